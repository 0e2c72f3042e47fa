package main

import (
	"slices"
	"strings"

	"github.com/singletonjob/operator/internal/contract"
)

// rule is one CEL rule. Validate in api/v1alpha1 has the same rule in Go, with the same message; one table of cases in its tests feeds
// both.
type rule struct {
	// at is the schema that the rule is attached to. Its value is self.
	at string
	// field is the path from at to the field that the error names, if that is another field.
	field string
	// cel is true for a valid object.
	cel string
	// message is the text for the user; args are the expressions for its verbs. Only format() puts a number or a duration into a message at
	// a cost that the API server estimates as bounded.
	message string
	args    []string
	// reason is FieldValueInvalid if empty.
	reason string
}

const (
	forbidden = "FieldValueForbidden"
	required  = "FieldValueRequired"
)

func (r rule) schema() map[string]any {
	out := map[string]any{"rule": oneLine(r.cel)}
	if r.at == "spec" && strings.Contains(r.cel, "self.template.") { // a job with a workloadRef has none
		out["rule"] = "!has(self.template) || (" + oneLine(r.cel) + ")"
	}
	if len(r.args) == 0 {
		out["message"] = oneLine(r.message)
	} else {
		out["messageExpression"] = said(r.message, r.args)
	}
	if r.field != "" {
		out["fieldPath"] = "." + r.field
	}
	if r.reason != "" {
		out["reason"] = r.reason
	}
	return out
}

func oneLine(cel string) string { return strings.Join(strings.Fields(cel), " ") }

// bounds limits the collections that rules iterate over. The limits are far above what a pod can have (an object in etcd has at most 1.5
// MiB). They are needed because the API server estimates the cost for the largest object that the schema allows.
var bounds = map[string]map[string]any{
	"spec.lease.leaseDuration":                                            {"maxLength": 64},
	"spec.lease.renewDeadline":                                            {"maxLength": 64},
	"spec.lease.retryPeriod":                                              {"maxLength": 64},
	"spec.lease.lockDelay":                                                {"maxLength": 64},
	"spec.fencing.envVar":                                                 {"maxLength": 256},
	"spec.schedule.startingDeadline":                                      {"maxLength": 64},
	"spec.schedule.leadTime":                                              {"maxLength": 64},
	"spec.template.metadata.labels":                                       {"maxProperties": 256},
	"spec.template.metadata.annotations":                                  {"maxProperties": 256},
	"spec.template.spec.containers":                                       {"maxItems": 64},
	"spec.template.spec.containers[].name":                                {"maxLength": 63},
	"spec.template.spec.containers[].env":                                 {"maxItems": 1024},
	"spec.template.spec.containers[].env[].name":                          {"maxLength": 1024},
	"spec.template.spec.containers[].env[].value":                         {"maxLength": 131072}, // Linux passes at most this much to a program
	"spec.template.spec.containers[].volumeMounts":                        {"maxItems": 256},
	"spec.template.spec.containers[].volumeMounts[].mountPath":            {"maxLength": 4096},
	"spec.template.spec.initContainers":                                   {"maxItems": 64},
	"spec.template.spec.containers[].securityContext.capabilities.add":    {"maxItems": 64},
	"spec.template.spec.containers[].securityContext.capabilities.add[]":  {"maxLength": 64},
	"spec.template.spec.containers[].securityContext.capabilities.drop":   {"maxItems": 64},
	"spec.template.spec.containers[].securityContext.capabilities.drop[]": {"maxLength": 64},
	"spec.template.spec.containers[].volumeMounts[].name":                 {"maxLength": 63},
	"spec.template.spec.initContainers[].name":                            {"maxLength": 63},
	"spec.template.spec.initContainers[].env":                             {"maxItems": 1024},
	"spec.template.spec.initContainers[].env[].name":                      {"maxLength": 1024},
	"spec.template.spec.initContainers[].volumeMounts":                    {"maxItems": 256},
	"spec.template.spec.initContainers[].volumeMounts[].name":             {"maxLength": 63},
	"spec.template.spec.ephemeralContainers":                              {"maxItems": 64},
	"spec.template.spec.volumes":                                          {"maxItems": 256},
	"spec.template.spec.volumes[].name":                                   {"maxLength": 63},
	"spec.template.spec.os.name":                                          {"maxLength": 63},
	"spec.template.spec.restartPolicy":                                    {"maxLength": 63},
}

// Parts of expressions. CEL has no user-defined functions; `[x].all(v, ...)` and `[x].map(v, ...)[0]` bind v to x.
const (
	// isDuration is true for strings that duration() accepts without an error, except for those with a sign. With five digits per unit and
	// 64 characters in total, no sum overflows.
	isDuration = `.matches('^([0-9]{1,5}([.][0-9]{1,9})?(h|m|s|ms|us|µs|ns))+$')`

	// longestRenewDeadline is leaseDuration - margin - 1s, for s whole seconds. margin is leaseDuration/15, at least 1s, and 500ms below
	// 5s. It is calculated in nanoseconds, because CEL does not divide durations.
	longestRenewDeadline = `duration('%dns'.format([1000000000 * s - 1000000000 -
		(s < 5 ? 500000000 : s <= 15 ? 1000000000 : 1000000000 * s / 15)]))`

	// inPod is where the fields of the pod are.
	inPod = "spec.template.spec."

	// Each step of a path costs the API server time in proportion to the number of fields of the object, even if the field is not set. So a rule
	// reads a field once, and binds it to a name. For lists, the steps are not optional ones (.?), because the API server then estimates the cost
	// for a list without a limit.
	pod        = `self.template.spec`
	containers = pod + `.containers`
	// isGated is true for the gated container c.
	isGated = `(has(self.container) ? c.name == self.container : ` + containers + `.size() == 1 || ` + annotated + ` && c.name == ` + annotation + `)`

	// annotated is true for a template whose annotation names a container.
	annotated  = `(has(self.template.metadata) && has(self.template.metadata.annotations) && ` + defaultContainer + ` in self.template.metadata.annotations)`
	annotation = `self.template.metadata.annotations[` + defaultContainer + `]`

	defaultContainer = `'kubectl.kubernetes.io/default-container'`

	notOurs = `the agent must be PID 1 of the gated container and see only its own processes, or it could not guarantee
		that all are dead: remove it`
)

var rules = slices.Concat(
	[]rule{{
		field: "metadata.name",
		cel:   `self.metadata.name.size() <= 52 && self.metadata.name.matches('^[a-z0-9]([-a-z0-9]*[a-z0-9])?$')`,
		message: `"%s" is not accepted: at most 52 characters of a-z, 0-9 and - that begin and end
			with a letter or digit, because the names and host names of the pods begin with it`,
		args: []string{"self.metadata.name"},
	}},
	isWritten("spec.lease.leaseDuration"), isWritten("spec.lease.renewDeadline"),
	isWritten("spec.lease.retryPeriod"), isWritten("spec.lease.lockDelay"),
	isWritten("spec.schedule.startingDeadline"), isWritten("spec.schedule.leadTime"),
	leaseRules, fencingRules, runRules(), scheduleRules(), sourceRules, serviceRules, podRules, gatedRules, probeRules(), hookRules(),
	reservedNames(), reservedKeys("labels"), reservedKeys("annotations"),
)

func isWritten(at string) []rule {
	return []rule{{
		at:  at,
		cel: `self` + isDuration,
		message: `"%s" is not accepted: numbers with units, such as 15s, 500ms or 1m30s (h, m, s or ms; no spaces,
			no sign)`,
		args: []string{"self"},
	}}
}

var leaseRules = []rule{{
	at: "spec.lease.leaseDuration",
	cel: `!self` + isDuration + ` || duration(self) >= duration('3s') && duration(self) <= duration('1h')
		&& duration(self) <= duration('%ds'.format([duration(self).getSeconds()]))`,
	message: `%s is not accepted: whole seconds, from 3s to 1h`,
	args:    []string{"duration(self)"},
}, {
	at:      "spec.lease.retryPeriod",
	cel:     `!self` + isDuration + ` || duration(self) >= duration('200ms')`,
	message: `%s is too short: at least 200ms, because every renewal is a write to the API server`,
	args:    []string{"duration(self)"},
}, {
	at:      "spec.lease.lockDelay",
	cel:     `!self` + isDuration + ` || duration(self) <= duration('1h')`,
	message: `%s is not accepted: from 0s to 1h`,
	args:    []string{"duration(self)"},
}, {
	at: "spec.lease", field: "renewDeadline",
	cel: `![self.leaseDuration, self.renewDeadline].all(d, d` + isDuration + `)
		|| [duration(self.leaseDuration).getSeconds()].all(s, s < 3 || s > 3600
			|| duration(self.leaseDuration) > duration('%ds'.format([s]))
			|| duration(self.renewDeadline) <= ` + longestRenewDeadline + `)`,
	message: `%s is too long for leaseDuration %s: at most %s (leaseDuration less the safety margin, less 1s for the process
		to stop), or a longer leaseDuration`,
	args: []string{
		"duration(self.renewDeadline)", "duration(self.leaseDuration)",
		`[duration(self.leaseDuration).getSeconds()].map(s, ` + longestRenewDeadline + `)[0]`,
	},
}, {
	at: "spec.lease", field: "retryPeriod",
	cel: `![self.retryPeriod, self.renewDeadline].all(d, d` + isDuration + `) || duration(self.retryPeriod) < duration('200ms')
		|| duration(self.retryPeriod) + duration(self.retryPeriod) + duration(self.retryPeriod)
			<= duration(self.renewDeadline) + duration(self.renewDeadline)`,
	message: `%s is too long for renewDeadline %s: at most %s (renewDeadline / 1.5), so that a renewal that failed can be
		repeated`,
	args: []string{
		"duration(self.retryPeriod)", "duration(self.renewDeadline)",
		`duration('%dms'.format([duration(self.renewDeadline).getMilliseconds() * 2 / 3]))`,
	},
}, {
	at: "spec.lease", field: "lockDelay",
	cel: `self.onRenewFailure != 'KeepRunning' || !self.lockDelay` + isDuration + `
		|| duration(self.lockDelay) <= duration('0s') || duration(self.lockDelay) > duration('1h')`,
	message: `%s contradicts onRenewFailure KeepRunning, which is for sinks that reject old tokens and need no delay: set lockDelay 0s, or
		onRenewFailure Stop`,
	args: []string{"duration(self.lockDelay)"},
}}

var fencingRules = []rule{{
	at:  "spec.fencing.envVar",
	cel: `self.matches('^[A-Za-z_][A-Za-z0-9_]{0,62}$') && !self.startsWith('SINGLETONJOB_')`,
	message: `"%s" is not accepted: a C identifier of at most 63 characters (letters, digits and _, not beginning with a
		digit) that does not begin with SINGLETONJOB_`,
	args: []string{"self"},
}, {
	at:  "spec.fencing.envVar",
	cel: `!(self in ['PATH', 'HOME', 'HOSTNAME', 'PWD']) && !self.startsWith('KUBERNETES_') && !self.startsWith('LD_')`,
	message: `"%s" is not accepted: other programs read it, and would find the token in it: choose a name of your own, such as FENCING_TOKEN, that is not
		PATH, HOME, HOSTNAME or PWD and does not begin with KUBERNETES_ or LD_`,
	args: []string{"self"},
}, {
	at:      "spec.fencing.tokenBase",
	cel:     `self >= 0 && self <= 4503599627370496`,
	message: `%d is not accepted: from 0 to 4503599627370496 (2^52)`,
	args:    []string{"self"},
}, {
	at:      "spec.fencing.tokenBase",
	cel:     `self >= oldSelf`,
	message: `%d is less than before: at least %d, because sinks have seen tokens above it`,
	args:    []string{"self", "oldSelf"},
}}

// sourceRules require exactly one source of the pod template.
var sourceRules = []rule{{
	at: "spec", field: "template", reason: required,
	cel:     `has(self.template) || has(self.workloadRef)`,
	message: `set template, or workloadRef to use the template of a Deployment or StatefulSet that is scaled to 0`,
}, {
	at: "spec", field: "workloadRef", reason: forbidden,
	cel:     `!has(self.workloadRef) || !has(self.template)`,
	message: `template is set as well: remove one of them`,
}}

var serviceRules = []rule{{
	at: "spec.service", field: "clusterIP", reason: forbidden,
	cel:     `!has(self.clusterIP) || !has(self.type) || self.type == 'ClusterIP'`,
	message: `a headless Service has type ClusterIP: remove clusterIP, or set type: ClusterIP`,
}, {
	at: "spec.service", field: "externalTrafficPolicy", reason: forbidden,
	cel:     `!has(self.externalTrafficPolicy) || has(self.type) && self.type != 'ClusterIP'`,
	message: `only for type NodePort or LoadBalancer: set type, or remove it`,
}, {
	at: "spec.service", field: "loadBalancerClass", reason: forbidden,
	cel:     `!has(self.loadBalancerClass) || has(self.type) && self.type == 'LoadBalancer'`,
	message: `only for type LoadBalancer: set type, or remove it`,
}, {
	at: "spec.service", field: "ports", reason: forbidden,
	cel:     `has(self.type) && self.type != 'ClusterIP' || self.ports.all(p, !has(p.nodePort))`,
	message: `nodePort: only for type NodePort or LoadBalancer: set type, or remove it`,
}, {
	at: "spec.service.ports", reason: required,
	cel:     `self.size() == 1 || self.all(p, p.name.size() > 0)`,
	message: `with several ports, each one needs a name`,
}}

// podRules are at the fields themselves: the API server evaluates them only where these are set.
var podRules = []rule{{
	at: inPod + "hostPID", reason: forbidden,
	cel:     `!self`,
	message: notOurs,
}, {
	at: inPod + "shareProcessNamespace", reason: forbidden,
	cel:     `!self`,
	message: notOurs,
}, {
	at: inPod + "activeDeadlineSeconds", reason: forbidden,
	cel:     `false`,
	message: `a candidate lives through many tenures: remove it`,
}, {
	at: inPod + "ephemeralContainers", reason: forbidden,
	cel:     `self.size() == 0`,
	message: `no pod can be created with ephemeral containers: remove it, and use kubectl debug`,
}, {
	at: inPod + "os", reason: forbidden,
	cel:     `self.name == 'linux'`,
	message: `the agent runs on Linux only: remove it, or set name: linux`,
}, {
	at:  inPod + "terminationGracePeriodSeconds",
	cel: `self >= 1`,
	message: `%d is not accepted: at least 1, because with 0 a deleted pod no longer exists in the API before it is stopped, and no
		handover is clean`,
	args: []string{"self"},
}}

var gatedRules = []rule{
	{
		at: inPod + "containers", reason: required,
		cel:     `self.size() > 0`,
		message: `a pod needs at least one container`,
	},
	{
		at: "spec", field: "container",
		cel:     `!has(self.container) || [` + containers + `].all(all, all.size() == 0 || [self.container].all(name, all.exists(c, c.name == name)))`,
		message: `"%s" is not a container of spec.template: one of %s`,
		args:    []string{"self.container", containers + `.map(c, c.name)`},
	},
	{
		at: "spec", field: "container", reason: required,
		cel: `has(self.container) || ` + containers + `.size() < 2 || ` + annotated,
		message: `one of several containers is gated, and the others run in every candidate: set it to one of %s, or name that in
			spec.template.metadata.annotations as kubectl.kubernetes.io/default-container`,
		args: []string{containers + `.map(c, c.name)`},
	},
	{
		at: "spec", field: "template.metadata.annotations",
		cel: `has(self.container) || ` + containers + `.size() < 2 || !` + annotated + ` || ` + containers + `.exists(c, c.name == ` + annotation + `)`,
		message: `kubectl.kubernetes.io/default-container is "%s", which is not a container of spec.template: one of %s, or set
			spec.container`,
		args: []string{annotation, containers + `.map(c, c.name)`},
	},
	allOfGated(slices.Concat([]demand{{
		is:      `!has(c.lifecycle) || c.lifecycle.?stopSignal.orValue('SIGTERM') in ['` + strings.Join(contract.StopSignals(), `', '`) + `']`,
		message: contract.NotHeard(),
	}}, hookDemands(), []demand{{
		is: `c.?restartPolicy.orValue('Always') == 'Always' && (!has(c.restartPolicyRules) || c.restartPolicyRules.size() == 0)`,
		message: `has a restart policy of its own: remove restartPolicy and restartPolicyRules, because a candidate lives through many
			tenures`,
	}, {
		is:      `!has(c.env) || [self.fencing.envVar].all(token, c.env.all(e, e.name != token))`,
		message: `sets %s in env: the agent sets it, remove it or choose another spec.fencing.envVar`,
		args:    []string{"self.fencing.envVar"},
	}, {
		is: mayKill,
		message: `has SETUID without KILL: the process can change its user (CAP_SETUID), and without CAP_KILL the agent could not kill it after that:
			add KILL to securityContext.capabilities of the container, or drop SETUID; if its image does not run as root, set runAsNonRoot`,
	}})...),
	askedPorts(),
	ofTheGated(`!has(c.volumeMounts)`, `!has(`+theGated+`.volumeMounts) || `+theGated+`.volumeMounts.all(m, !m.mountPath.matches('`+contract.OursPattern+`'))`,
		`mounts a volume at or below /singletonjob, where the agent and its credentials are: choose another mountPath`),
	ofTheGated(`!has(c.env) || c.env.all(e, e.name != '`+contract.GoMemLimit+`')`,
		`!has(`+theGated+`.env) || [`+goMemLimitOf(theGated)+`].all(j, j < 0 || !has(`+theGated+`.env[j].value)
			|| `+theGated+`.env[j].value.matches('`+contract.GoMemLimitPattern+`'))`,
		`sets GOMEMLIMIT to "%s" in env, but no Go program, including the agent, starts with that value: write `+contract.GoMemLimitRemedy,
		`[`+gatedIndex+`].map(i, `+theGated+`.env[`+goMemLimitOf(theGated)+`].value)[0]`),
}

// mayKill is true for a container c whose agent has CAP_KILL in effect, or does not have CAP_SETUID. For the reasons, see cannotKill in
// api/v1alpha1.
var mayKill = func() string {
	const context, pods = `c.securityContext`, pod + `.securityContext`
	names := func(list, name string) string {
		in := context + `.capabilities.` + list
		return `(has(` + in + `) && ` + in + `.exists(x, type(x) == string && x.upperAscii() in ['` + name + `', 'CAP_` + name + `']))`
	}
	has := func(name string) string {
		return `(!` + names("drop", name) + ` && (` + names("add", name) + ` || !` + names("drop", "ALL") + `))`
	}
	ofPod := func(field string) string { return `has(` + pods + `) && has(` + pods + `.` + field + `)` }
	noRoot := `(has(` + context + `.runAsUser) ? ` + context + `.runAsUser != 0 : ` + ofPod("runAsUser") + ` ? ` + pods + `.runAsUser != 0
		: has(` + context + `.runAsNonRoot) ? ` + context + `.runAsNonRoot : ` + ofPod("runAsNonRoot") + ` && ` + pods + `.runAsNonRoot)`
	return `!has(` + context + `) || !has(` + context + `.capabilities) || !` + has("SETUID") + ` || ` + has("KILL") + `
		|| has(` + context + `.privileged) && ` + context + `.privileged || ` + noRoot
}()

// goMemLimitOf is the index of the last GOMEMLIMIT in env of a container, or -1. The last one counts.
func goMemLimitOf(container string) string {
	return container + `.env.map(e, e.name == '` + contract.GoMemLimit + `').lastIndexOf(true)`
}

// ofGated is a rule for the gated container c. message follows the container's name in the sentence. The condition comes first because it is
// nearly always true, and costs less than to find out which container is the gated one.
func ofGated(condition, message string, args ...string) rule {
	return rule{
		at: "spec", field: "template.spec.containers", reason: forbidden,
		cel:     containers + `.all(c, (` + condition + `) || !` + isGated + `)`,
		message: `the gated container "%s" ` + message,
		args:    append([]string{containers + `.filter(c, ` + isGated + `)[0].name`}, args...),
	}
}

const (
	// gatedIndex is the index of the gated container, or -1 if there is none.
	gatedIndex = containers + `.map(c, ` + isGated + `).indexOf(true)`
	// theGated is the gated container in a condition for ofTheGated.
	theGated = containers + `[i]`
)

// ofTheGated is ofGated for a condition on theGated. The API server estimates its cost for one container, and not for the maximum number of
// containers. Use it for patterns. usually is true for nearly every container c, and costs less.
func ofTheGated(usually, condition, message string, args ...string) rule {
	r := ofGated("", message, args...)
	r.cel = containers + `.all(c, ` + usually + `) || [` + gatedIndex + `].all(i, i < 0 || ` + condition + `)`
	return r
}

// demand is a condition for the gated container c, and the message if it is not met, which follows the container's name.
type demand struct {
	is, message string
	args        []string
}

// allOfGated is one rule for several demands, because the API server evaluates each rule of spec at each write of a status too, and each has
// to find the containers. The message says all that is wrong.
func allOfGated(demands ...demand) rule {
	met, unmet := make([]string, len(demands)), make([]string, len(demands))
	for i, d := range demands {
		met[i] = `(` + d.is + `)`
		unmet[i] = containers + `.exists(c, ` + isGated + ` && !` + met[i] + `) ? ` + said("; it "+d.message, d.args) + ` : ''`
	}
	return ofGated(strings.Join(met, " && "), `is not accepted`+strings.Repeat("%s", len(demands)), unmet...)
}

// said is an expression for a message with values in it.
func said(message string, args []string) string {
	text := `'` + strings.ReplaceAll(oneLine(message), "'", `\'`) + `'`
	if len(args) == 0 {
		return text
	}
	return text + `.format([` + oneLine(strings.Join(args, ", ")) + `])`
}

// reservedNames rejects the names with which the operator adds containers and volumes, and configures the gated container.
func reservedNames() []rule {
	var rules []rule
	reserve := func(list, prefix, message string) {
		rules = append(rules, rule{
			at: inPod + list + "[].name", reason: forbidden,
			cel:     `!self.startsWith('` + prefix + `')`,
			message: message, args: []string{"self"},
		})
	}
	for _, list := range []string{"containers", "initContainers", "volumes"} {
		reserve(list, "singletonjob-", "names that begin with singletonjob- are reserved for the operator: rename %s")
	}
	for _, list := range []string{"containers", "initContainers"} {
		reserve(list+"[].env", "SINGLETONJOB_", "variables that begin with SINGLETONJOB_ are reserved for the agent: remove %s")
		reserve(list+"[].volumeMounts", "singletonjob-", "volumes whose names begin with singletonjob- are reserved for the agent: remove the mount of %s")
	}
	return rules
}

func reservedKeys(in string) []rule {
	return []rule{{
		at: "spec.template.metadata." + in, reason: forbidden,
		cel:     `self.all(k, !k.startsWith('singletonjob.io/'))`,
		message: `keys that begin with singletonjob.io/ are reserved for the operator: remove %s`,
		args:    []string{`self.filter(k, k.startsWith('singletonjob.io/'))`},
	}}
}
