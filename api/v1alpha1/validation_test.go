package v1alpha1

import (
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/util/intstr"
	"k8s.io/apimachinery/pkg/util/validation/field"

	"github.com/singletonjob/operator/internal/lease"
)

// validationCase is one case of the table that Validate and the API server must decide in the same way.
type validationCase struct {
	// change turns a valid job into the case.
	change func(*SingletonJob)
	// from, if set, turns a valid job into the stored one that the case updates.
	from func(*SingletonJob)
	want []problem
}

// problem is one expected error.
type problem struct {
	Type          field.ErrorType
	Field, Detail string
}

func validJob() *SingletonJob {
	return &SingletonJob{
		TypeMeta:   metav1.TypeMeta{APIVersion: GroupVersion.String(), Kind: Kind},
		ObjectMeta: metav1.ObjectMeta{Name: "billing"},
		Spec: SingletonJobSpec{Container: "app", Template: corev1.PodTemplateSpec{Spec: corev1.PodSpec{Containers: []corev1.Container{
			{Name: "app", Image: "app", Command: []string{"/app"}},
			{Name: "proxy", Image: "proxy"},
		}}}},
	}
}

const (
	inPod        = "spec.template.spec."
	inContainers = inPod + "containers"
	mustBePID1   = "the agent must be PID 1 of the gated container and see only its own processes, or it could not guarantee " +
		"that all are dead: remove it"
	manyTenures = "a candidate lives through many tenures: remove it"
	badEnvVar   = " is not accepted: a C identifier of at most 63 characters (letters, digits and _, not beginning with a " +
		"digit) that does not begin with SINGLETONJOB_"
	takenEnvVar = " is not accepted: other programs read it, and would find the token in it: choose a name of your own, such as FENCING_TOKEN, that is not PATH, HOME, HOSTNAME " +
		"or PWD and does not begin with KUBERNETES_ or LD_"
	badEnv       = `the gated container "app" is not accepted; it sets FENCING_TOKEN in env: the agent sets it, remove it or choose another spec.fencing.envVar`
	reservedName = "names that begin with singletonjob- are reserved for the operator: rename "
	reservedEnv  = "variables that begin with SINGLETONJOB_ are reserved for the agent: remove "
	badVolume    = "volumes whose names begin with singletonjob- are reserved for the agent: remove the mount of "
	badMount     = `the gated container "app" mounts a volume at or below /singletonjob, where the agent and its credentials are: choose another mountPath`
	badCaps      = `the gated container "app" is not accepted; it has SETUID without KILL: the process can change its user (CAP_SETUID), and without CAP_KILL the agent could not kill ` +
		"it after that: add KILL to securityContext.capabilities of the container, or drop SETUID; if its image does not run as root, set runAsNonRoot"
	badPolicy = `the gated container "app" is not accepted; it has a restart policy of its own: remove restartPolicy and restartPolicyRules, ` +
		"because a candidate lives through many tenures"
	badName = " is not accepted: at most 52 characters of a-z, 0-9 and - that begin and end with a letter or digit, because " +
		"the names and host names of the pods begin with it"
	tooLong = " (leaseDuration less the safety margin, less 1s for the process to stop), or a longer leaseDuration"
)

func invalid(at, detail string) []problem { return []problem{{field.ErrorTypeInvalid, at, detail}} }

func forbidden(at, detail string) []problem { return []problem{{field.ErrorTypeForbidden, at, detail}} }

func missing(at, detail string) []problem { return []problem{{field.ErrorTypeRequired, at, detail}} }

// leaseOf sets leaseDuration, renewDeadline and retryPeriod.
func leaseOf(duration, deadline, retry time.Duration) func(*SingletonJob) {
	return func(job *SingletonJob) {
		job.Spec.Lease.LeaseDuration.Duration = duration
		job.Spec.Lease.RenewDeadline.Duration = deadline
		job.Spec.Lease.RetryPeriod.Duration = retry
	}
}

func lockDelay(delay time.Duration, mode OnRenewFailure) func(*SingletonJob) {
	return func(job *SingletonJob) {
		job.Spec.Lease.LockDelay.Duration, job.Spec.Lease.OnRenewFailure = delay, mode
	}
}

func pod(change func(*corev1.PodSpec)) func(*SingletonJob) {
	return func(job *SingletonJob) { change(&job.Spec.Template.Spec) }
}

// hook gives the gated container a preStop hook.
func hook(handler corev1.LifecycleHandler) func(*SingletonJob) {
	return app(func(c *corev1.Container) { c.Lifecycle = &corev1.Lifecycle{PreStop: &handler} })
}

const badPreStop = `the gated container "app" is not accepted; it has a preStop hook that the agent cannot run: set exactly one of exec.command, httpGet, and sleep.seconds (0 to 3600)`

const longPause = `the gated container "app" is not accepted; it has a preStop hook that sleeps for longer than the Pod has to stop: set sleep.seconds to at most ` +
	"terminationGracePeriodSeconds (30 by default)"

// pause has a preStop hook sleep for a number of seconds.
func pause(grace, seconds int64) func(*SingletonJob) {
	return func(job *SingletonJob) {
		job.Spec.Template.Spec.TerminationGracePeriodSeconds = &grace
		hook(corev1.LifecycleHandler{Sleep: &corev1.SleepAction{Seconds: seconds}})(job)
	}
}

func httpHook(change func(*corev1.Container, *corev1.HTTPGetAction)) func(*SingletonJob) {
	return app(func(c *corev1.Container) {
		get := &corev1.HTTPGetAction{Port: intstr.FromInt32(80)}
		c.Lifecycle = &corev1.Lifecycle{PreStop: &corev1.LifecycleHandler{HTTPGet: get}}
		change(c, get)
	})
}

const inPreStop = inContainers + "[0].lifecycle.preStop"

var badHookPort = wrongPorts("lifecycle.preStop.httpGet.port")

func wrongPorts(fields string) []problem {
	return forbidden(inContainers, `the gated container "app" asks for a port that is neither a number from 1 to 65535 nor the name of one of its ports with such a number, in `+
		fields+`: add that name to ports, or set a number there`)
}

func app(change func(*corev1.Container)) func(*SingletonJob) {
	return pod(func(p *corev1.PodSpec) { change(&p.Containers[0]) })
}

func named(name string) func(*SingletonJob) { return func(job *SingletonJob) { job.Name = name } }
func preActivate(seconds int32, command ...string) func(*SingletonJob) {
	return func(job *SingletonJob) {
		job.Spec.PreActivate = &PreActivate{Exec: PreActivateExec{Command: append([]string{}, command...)}, TimeoutSeconds: seconds}
	}
}

func envVar(name string) func(*SingletonJob) {
	return func(job *SingletonJob) { job.Spec.Fencing.EnvVar = name }
}

func base(tokenBase int64) func(*SingletonJob) {
	return func(job *SingletonJob) { job.Spec.Fencing.TokenBase = tokenBase }
}

const ms = time.Millisecond

var leaseCases = map[string]validationCase{
	"defaults":                           {change: func(*SingletonJob) {}},
	"shortest lease":                     {change: leaseOf(3*time.Second, 1500*ms, 200*ms)},
	"longest lease":                      {change: leaseOf(time.Hour, time.Hour-4*time.Minute-time.Second, 2*time.Second)},
	"lease of 60s renewed every 10s":     {change: leaseOf(time.Minute, 40*time.Second, 10*time.Second)},
	"margin is 500ms just below 5s":      {change: leaseOf(4*time.Second, 2500*ms, 500*ms)},
	"margin is 1s from 5s on":            {change: leaseOf(5*time.Second, 3*time.Second, 500*ms)},
	"retryPeriod of renewDeadline / 1.5": {change: leaseOf(15*time.Second, 3*time.Second, 2*time.Second)},

	"lease too short":   {change: leaseOf(2*time.Second, time.Second, 200*ms), want: invalid("spec.lease.leaseDuration", "2s is not accepted: whole seconds, from 3s to 1h")},
	"lease too long":    {change: leaseOf(3601*time.Second, 10*time.Second, 2*time.Second), want: invalid("spec.lease.leaseDuration", "3601s is not accepted: whole seconds, from 3s to 1h")},
	"lease not whole":   {change: leaseOf(15500*ms, 10*time.Second, 2*time.Second), want: invalid("spec.lease.leaseDuration", "15.5s is not accepted: whole seconds, from 3s to 1h")},
	"no time to stop":   {change: leaseOf(10*time.Second, 10*time.Second, 2*time.Second), want: invalid("spec.lease.renewDeadline", "10s is too long for leaseDuration 10s: at most 8s"+tooLong)},
	"client-go's 15/14": {change: leaseOf(15*time.Second, 14*time.Second, 5*time.Second), want: invalid("spec.lease.renewDeadline", "14s is too long for leaseDuration 15s: at most 13s"+tooLong)},
	"only leaseDuration lowered": {
		change: func(job *SingletonJob) { job.Spec.Lease.LeaseDuration.Duration = 5 * time.Second },
		want:   invalid("spec.lease.renewDeadline", "10s is too long for leaseDuration 5s: at most 3s"+tooLong),
	},
	"short lease, 1ms too late":       {change: leaseOf(4*time.Second, 2501*ms, 500*ms), want: invalid("spec.lease.renewDeadline", "2.501s is too long for leaseDuration 4s: at most 2.5s"+tooLong)},
	"margin is a fifteenth above 15s": {change: leaseOf(16*time.Second, 13934*ms, 2*time.Second), want: invalid("spec.lease.renewDeadline", "13.934s is too long for leaseDuration 16s: at most 13.933333334s"+tooLong)},
	"retryPeriod too short":           {change: leaseOf(15*time.Second, 10*time.Second, 199*ms), want: invalid("spec.lease.retryPeriod", "0.199s is too short: at least 200ms, because every renewal is a write to the API server")},
	"retryPeriod too long":            {change: leaseOf(15*time.Second, 3*time.Second, 2001*ms), want: invalid("spec.lease.retryPeriod", "2.001s is too long for renewDeadline 3s: at most 2s (renewDeadline / 1.5), so that a renewal that failed can be repeated")},
	"several errors are reported at once": {
		change: leaseOf(2*time.Second, time.Second, 100*ms),
		want: []problem{
			{field.ErrorTypeInvalid, "spec.lease.leaseDuration", "2s is not accepted: whole seconds, from 3s to 1h"},
			{field.ErrorTypeInvalid, "spec.lease.retryPeriod", "0.1s is too short: at least 200ms, because every renewal is a write to the API server"},
		},
	},

	"lockDelay":          {change: lockDelay(time.Hour, OnRenewFailureStop)},
	"lockDelay too long": {change: lockDelay(time.Hour+time.Second, OnRenewFailureStop), want: invalid("spec.lease.lockDelay", "3601s is not accepted: from 0s to 1h")},
	"KeepRunning":        {change: lockDelay(0, OnRenewFailureKeepRunning)},
	"KeepRunning contradicts a delay": {
		change: lockDelay(5*time.Second, OnRenewFailureKeepRunning),
		want: invalid("spec.lease.lockDelay", "5s contradicts onRenewFailure KeepRunning, which is for sinks that reject old tokens and "+
			"need no delay: set lockDelay 0s, or onRenewFailure Stop"),
	},
	"unknown onRenewFailure": {
		change: lockDelay(0, "Panic"),
		want:   []problem{{field.ErrorTypeNotSupported, "spec.lease.onRenewFailure", `supported values: "Stop", "KeepRunning"`}},
	},
}

var specCases = map[string]validationCase{
	"longest name":    {change: named(strings.Repeat("x", 52))},
	"name too long":   {change: named(strings.Repeat("x", 53)), want: invalid("metadata.name", `"`+strings.Repeat("x", 53)+`"`+badName)},
	"name with a dot": {change: named("a.b"), want: invalid("metadata.name", `"a.b"`+badName)},
	"most candidates": {change: func(job *SingletonJob) { job.Spec.Candidates = 16 }},
	"too many candidates": {
		change: func(job *SingletonJob) { job.Spec.Candidates = 17 },
		want:   invalid("spec.candidates", "should be less than or equal to 16"),
	},
	"no history": {change: func(job *SingletonJob) { job.Spec.HistoryLimit = new(int32) }},
	"negative history": {
		change: func(job *SingletonJob) { job.Spec.HistoryLimit = new(int32(-1)) },
		want:   invalid("spec.historyLimit", "should be greater than or equal to 0"),
	},
	"too much history": {
		change: func(job *SingletonJob) { job.Spec.HistoryLimit = new(int32(101)) },
		want:   invalid("spec.historyLimit", "should be less than or equal to 100"),
	},
	"maxSurge 2": {
		change: func(job *SingletonJob) { job.Spec.Strategy.MaxSurge = new(int32(2)) },
		want:   invalid("spec.strategy.maxSurge", "should be less than or equal to 1"),
	},
	"maxSurge -1": {
		change: func(job *SingletonJob) { job.Spec.Strategy.MaxSurge = new(int32(-1)) },
		want:   invalid("spec.strategy.maxSurge", "should be greater than or equal to 0"),
	},
	"minReadySeconds 3601": {
		change: func(job *SingletonJob) { job.Spec.Strategy.MinReadySeconds = new(int32(3601)) },
		want:   invalid("spec.strategy.minReadySeconds", "should be less than or equal to 3600"),
	},
	"progressDeadlineSeconds 0": {
		change: func(job *SingletonJob) { job.Spec.Strategy.ProgressDeadlineSeconds = new(int32(0)) },
		want:   invalid("spec.strategy.progressDeadlineSeconds", "should be greater than or equal to 1"),
	},
	"progressDeadlineSeconds 86401": {
		change: func(job *SingletonJob) { job.Spec.Strategy.ProgressDeadlineSeconds = new(int32(86401)) },
		want:   invalid("spec.strategy.progressDeadlineSeconds", "should be less than or equal to 86400"),
	},
	"a strategy": {
		change: func(job *SingletonJob) {
			job.Spec.Strategy = Strategy{MaxSurge: new(int32(0)), MinReadySeconds: new(int32(0)), ProgressDeadlineSeconds: new(int32(1)), Paused: true}
		},
	},

	"preActivate":           {change: preActivate(60, "x")},
	"preActivate for long":  {change: preActivate(3600, "x")},
	"preActivate too long":  {change: preActivate(3601, "x"), want: invalid("spec.preActivate.timeoutSeconds", "should be less than or equal to 3600")},
	"preActivate no time":   {change: preActivate(-1, "x"), want: invalid("spec.preActivate.timeoutSeconds", "should be greater than or equal to 1")},
	"preActivate, nothing":  {change: preActivate(60), want: invalid("spec.preActivate.exec.command", "should have at least 1 items")},
	"envVar":                {change: envVar("_Token9")},
	"envVar with a digit":   {change: envVar("9TOKEN"), want: invalid("spec.fencing.envVar", `"9TOKEN"`+badEnvVar)},
	"envVar with a dash":    {change: envVar("MY-TOKEN"), want: invalid("spec.fencing.envVar", `"MY-TOKEN"`+badEnvVar)},
	"envVar is ours":        {change: envVar("SINGLETONJOB_TOKEN"), want: invalid("spec.fencing.envVar", `"SINGLETONJOB_TOKEN"`+badEnvVar)},
	"envVar of everybody":   {change: envVar("PATH"), want: invalid("spec.fencing.envVar", `"PATH"`+takenEnvVar)},
	"envVar of the shell":   {change: envVar("HOME"), want: invalid("spec.fencing.envVar", `"HOME"`+takenEnvVar)},
	"envVar of the kubelet": {change: envVar("KUBERNETES_SERVICE_HOST"), want: invalid("spec.fencing.envVar", `"KUBERNETES_SERVICE_HOST"`+takenEnvVar)},
	"envVar of the linker":  {change: envVar("LD_PRELOAD"), want: invalid("spec.fencing.envVar", `"LD_PRELOAD"`+takenEnvVar)},
	"envVar like others":    {change: envVar("PATH_TOKEN")},
	"longest envVar":        {change: envVar(strings.Repeat("X", 63))},
	"envVar too long":       {change: envVar(strings.Repeat("X", 64)), want: invalid("spec.fencing.envVar", `"`+strings.Repeat("X", 64)+`"`+badEnvVar)},
	"tokenBase":             {change: base(MaxTokenBase)},
	"tokenBase too great":   {change: base(MaxTokenBase + 1), want: invalid("spec.fencing.tokenBase", "4503599627370497 is not accepted: from 0 to 4503599627370496 (2^52)")},
	"tokenBase negative":    {change: base(-1), want: invalid("spec.fencing.tokenBase", "-1 is not accepted: from 0 to 4503599627370496 (2^52)")},
	"tokenBase raised":      {from: base(5), change: base(6)},
	"tokenBase kept":        {from: base(5), change: base(5)},
	"tokenBase lowered":     {from: base(5), change: base(4), want: invalid("spec.fencing.tokenBase", "4 is less than before: at least 5, because sinks have seen tokens above it")},
	"tokenBase taken away":  {from: base(5), change: base(0), want: invalid("spec.fencing.tokenBase", "0 is less than before: at least 5, because sinks have seen tokens above it")},
	"template exchanged":    {from: func(*SingletonJob) {}, change: app(func(c *corev1.Container) { c.Image = "app:2" })},
	"label of the operator": {
		change: func(job *SingletonJob) {
			job.Spec.Template.Labels = map[string]string{"app": "x", "singletonjob.io/role": "active"}
		},
		want: forbidden("spec.template.metadata.labels", `keys that begin with singletonjob.io/ are reserved for the operator: remove ["singletonjob.io/role"]`),
	},
	"annotation of the operator": {
		change: func(job *SingletonJob) { job.Spec.Template.Annotations = map[string]string{"singletonjob.io/x": ""} },
		want:   forbidden("spec.template.metadata.annotations", `keys that begin with singletonjob.io/ are reserved for the operator: remove ["singletonjob.io/x"]`),
	},
	"labels and annotations of one's own": {
		change: func(job *SingletonJob) {
			job.Spec.Template.Labels = map[string]string{"app": "x", "app.kubernetes.io/managed-by": "Helm"}
			job.Spec.Template.Annotations = map[string]string{"a": "b"}
		},
	},
}

var templateCases = map[string]validationCase{
	"Linux, Always, no sharing": {change: pod(func(p *corev1.PodSpec) {
		p.OS, p.RestartPolicy, p.ShareProcessNamespace = &corev1.PodOS{Name: corev1.Linux}, corev1.RestartPolicyAlways, new(false)
	})},
	"hostPID":               {change: pod(func(p *corev1.PodSpec) { p.HostPID = true }), want: forbidden(inPod+"hostPID", mustBePID1)},
	"shareProcessNamespace": {change: pod(func(p *corev1.PodSpec) { p.ShareProcessNamespace = new(true) }), want: forbidden(inPod+"shareProcessNamespace", mustBePID1)},
	"activeDeadlineSeconds": {change: pod(func(p *corev1.PodSpec) { p.ActiveDeadlineSeconds = new(int64(9)) }), want: forbidden(inPod+"activeDeadlineSeconds", manyTenures)},
	"Windows": {
		change: pod(func(p *corev1.PodSpec) { p.OS = &corev1.PodOS{Name: corev1.Windows} }),
		want:   forbidden(inPod+"os", "the agent runs on Linux only: remove it, or set name: linux"),
	},
	"shortest grace period": {change: pod(func(p *corev1.PodSpec) { p.TerminationGracePeriodSeconds = new(int64(1)) })},
	"no grace period": {
		change: pod(func(p *corev1.PodSpec) { p.TerminationGracePeriodSeconds = new(int64(0)) }),
		want: invalid(inPod+"terminationGracePeriodSeconds", "0 is not accepted: at least 1, because with 0 a deleted pod no longer exists "+
			"in the API before it is stopped, and no handover is clean"),
	},
	"restartPolicy Never": {
		change: pod(func(p *corev1.PodSpec) { p.RestartPolicy = corev1.RestartPolicyNever }),
		want: invalid(inPod+"restartPolicy", `"Never" is not accepted: set Always, or remove it, because a candidate lives `+
			"through many tenures"),
	},
	"no container": {change: pod(func(p *corev1.PodSpec) { p.Containers = []corev1.Container{} }), want: missing(inContainers, "a pod needs at least one container")},
	"another container is gated": {change: func(job *SingletonJob) {
		job.Spec.Container = "proxy"
		job.Spec.Template.Spec.Containers[1].Command = []string{"/proxy"}
		job.Spec.Template.Spec.Containers[0].Command = nil
	}},
	"gated container without a command": {change: app(func(c *corev1.Container) { c.Command, c.Args = nil, []string{"run"} })},
	"reserved volume": {
		change: pod(func(p *corev1.PodSpec) {
			p.Volumes = []corev1.Volume{{Name: "singletonjob-x"}, {Name: "x"}, {Name: "singletonjob-y"}}
		}),
		want: append(forbidden(inPod+"volumes[0].name", reservedName+"singletonjob-x"), forbidden(inPod+"volumes[2].name", reservedName+"singletonjob-y")...),
	},
	"reserved init container": {
		change: pod(func(p *corev1.PodSpec) {
			p.InitContainers = []corev1.Container{{Name: "singletonjob-install", Image: "x"}}
		}),
		want: forbidden(inPod+"initContainers[0].name", reservedName+"singletonjob-install"),
	},
	"reserved container": {
		change: pod(func(p *corev1.PodSpec) { p.Containers[1].Name = "singletonjob-x" }),
		want:   forbidden(inContainers+"[1].name", reservedName+"singletonjob-x"),
	},
}

var gatedCases = map[string]validationCase{
	"other variables, mounts and restart policy": {change: app(func(c *corev1.Container) {
		c.Env = []corev1.EnvVar{{Name: "TOKEN", Value: "x"}}
		c.VolumeMounts = []corev1.VolumeMount{{Name: "data", MountPath: "/singletonjobs"}}
		c.RestartPolicy = new(corev1.ContainerRestartPolicyAlways)
	})},
	"token set by the template": {change: app(func(c *corev1.Container) { c.Env = []corev1.EnvVar{{Name: "FENCING_TOKEN", Value: "1"}} }), want: forbidden(inContainers, badEnv)},
	"variable of the agent":     {change: app(func(c *corev1.Container) { c.Env = []corev1.EnvVar{{Name: "SINGLETONJOB_CONFIG"}} }), want: forbidden(inContainers+"[0].env[0].name", reservedEnv+"SINGLETONJOB_CONFIG")},
	"several faults are one message": {
		change: app(func(c *corev1.Container) {
			c.Env = []corev1.EnvVar{{Name: "FENCING_TOKEN", Value: "1"}}
			c.RestartPolicyRules = []corev1.ContainerRestartRule{{Action: "Restart", ExitCodes: &corev1.ContainerRestartRuleOnExitCodes{Operator: "In", Values: []int32{1}}}}
		}),
		want: forbidden(inContainers, badPolicy+"; it "+strings.TrimPrefix(badEnv, `the gated container "app" is not accepted; it `)),
	},
	"no restart policy rules": {change: app(func(c *corev1.Container) { c.RestartPolicyRules = []corev1.ContainerRestartRule{} })},
	"variable of the agent in a sidecar": {
		change: pod(func(p *corev1.PodSpec) {
			p.Containers[1].Env = []corev1.EnvVar{{Name: "X"}, {Name: "SINGLETONJOB_CONFIG", Value: "{}"}}
		}),
		want: forbidden(inContainers+"[1].env[1].name", reservedEnv+"SINGLETONJOB_CONFIG"),
	},
	"variables of the agent in init containers": {
		change: pod(func(p *corev1.PodSpec) {
			env := []corev1.EnvVar{{Name: "SINGLETONJOB_X"}}
			p.InitContainers = []corev1.Container{{Name: "a", Env: env}, {Name: "b"}, {Name: "c", Env: env}}
		}),
		want: append(forbidden(inPod+"initContainers[0].env[0].name", reservedEnv+"SINGLETONJOB_X"),
			forbidden(inPod+"initContainers[2].env[0].name", reservedEnv+"SINGLETONJOB_X")...),
	},
	"the agent's volume in a sidecar": {
		change: pod(func(p *corev1.PodSpec) {
			p.Containers[1].VolumeMounts = []corev1.VolumeMount{{Name: "singletonjob-bin", MountPath: "/x"}}
		}),
		want: forbidden(inContainers+"[1].volumeMounts[0].name", badVolume+"singletonjob-bin"),
	},
	"the agent's credentials in an init container": {
		change: pod(func(p *corev1.PodSpec) {
			p.InitContainers = []corev1.Container{{Name: "a", VolumeMounts: []corev1.VolumeMount{{Name: "singletonjob-credentials", MountPath: "/x"}}}}
		}),
		want: forbidden(inPod+"initContainers[0].volumeMounts[0].name", badVolume+"singletonjob-credentials"),
	},
	"ephemeral container": {
		change: pod(func(p *corev1.PodSpec) {
			p.EphemeralContainers = []corev1.EphemeralContainer{{EphemeralContainerCommon: corev1.EphemeralContainerCommon{
				Name: "debug", Env: []corev1.EnvVar{{Name: "SINGLETONJOB_CONFIG"}},
			}}}
		}),
		want: forbidden(inPod+"ephemeralContainers", "no pod can be created with ephemeral containers: remove it, and use kubectl debug"),
	},
	"mount in place of the agent": {change: app(func(c *corev1.Container) {
		c.VolumeMounts = []corev1.VolumeMount{{Name: "d", MountPath: "/singletonjob"}}
	}), want: forbidden(inContainers, badMount)},
	"mount over the agent": {change: app(func(c *corev1.Container) {
		c.VolumeMounts = []corev1.VolumeMount{{Name: "d", MountPath: "/singletonjob/bin"}}
	}), want: forbidden(inContainers, badMount)},
	"mount over the credentials":                 {change: mount("/singletonjob/credentials"), want: forbidden(inContainers, badMount)},
	"mount over the agent, with a slash":         {change: mount("/singletonjob/"), want: forbidden(inContainers, badMount)},
	"mount over the agent, with two":             {change: mount("//singletonjob"), want: forbidden(inContainers, badMount)},
	"mount over the agent, relative":             {change: mount("singletonjob"), want: forbidden(inContainers, badMount)},
	"mount over the agent, with a dot":           {change: mount("/./singletonjob"), want: forbidden(inContainers, badMount)},
	"mount over the agent, a dot behind it":      {change: mount("/singletonjob/."), want: forbidden(inContainers, badMount)},
	"mount over the agent, relative with a dot":  {change: mount("./singletonjob"), want: forbidden(inContainers, badMount)},
	"mount over the agent, by a detour":          {change: mount("/data/../singletonjob/bin"), want: forbidden(inContainers, badMount)},
	"mount of another's of the name":             {change: mount("/data/./singletonjob")},
	"mount with dots":                            {change: mount("/././data//x")},
	"mount of another name":                      {change: mount("/.singletonjob/singletonjob")},
	"mount of Secrets at a usual path":           {change: mount("/var/run/secrets")},
	"mount of Secrets that are called like ours": {change: mount("/var/run/secrets/singletonjob.io/serviceaccount")},
	"restart policy of a container":              {change: app(func(c *corev1.Container) { c.RestartPolicy = new(corev1.ContainerRestartPolicyNever) }), want: forbidden(inContainers, badPolicy)},
	"hook, a command":                            {change: hook(corev1.LifecycleHandler{Exec: &corev1.ExecAction{Command: []string{"x"}}})},
	"hook, a pause":                              {change: hook(corev1.LifecycleHandler{Sleep: &corev1.SleepAction{Seconds: 30}})},
	"hook, a pause of all the Pod's time":        {change: pause(3600, 3600)},
	"hook, a pause of more than the Pod's time":  {change: pause(60, 61), want: forbidden(inContainers, longPause)},
	"hook, a pause of more than 30 s":            {change: hook(corev1.LifecycleHandler{Sleep: &corev1.SleepAction{Seconds: 31}}), want: forbidden(inContainers, longPause)},
	"hook after the start, a long pause": {
		change: app(func(c *corev1.Container) {
			c.Lifecycle = &corev1.Lifecycle{PostStart: &corev1.LifecycleHandler{Sleep: &corev1.SleepAction{Seconds: 31}}}
		}),
		want: forbidden(inContainers, strings.ReplaceAll(longPause, "preStop", "postStart")),
	},
	"hook, HTTP/2 to another host": {change: httpHook(func(_ *corev1.Container, h *corev1.HTTPGetAction) {
		h.Host, h.Protocol = "127.0.0.1", new(corev1.HTTPProtocolHTTP2)
	}), want: invalid(inPreStop, badHost)},
	"hook, no command": {change: hook(corev1.LifecycleHandler{Exec: &corev1.ExecAction{}}), want: forbidden(inContainers, badPreStop)},
	"hook, two ways": {
		change: hook(corev1.LifecycleHandler{Exec: &corev1.ExecAction{Command: []string{"x"}}, Sleep: &corev1.SleepAction{}}), want: forbidden(inContainers, badPreStop),
	},
	"hook, nothing":      {change: hook(corev1.LifecycleHandler{}), want: forbidden(inContainers, badPreStop)},
	"hook, a long pause": {change: pause(7200, 3601), want: forbidden(inContainers, badPreStop)},
	"hook, before now":   {change: hook(corev1.LifecycleHandler{Sleep: &corev1.SleepAction{Seconds: -1}}), want: forbidden(inContainers, badPreStop)},
	"hook, a request":    {change: httpHook(func(*corev1.Container, *corev1.HTTPGetAction) {})},
	"hook, a request with it all": {change: httpHook(func(c *corev1.Container, h *corev1.HTTPGetAction) {
		c.Ports = []corev1.ContainerPort{{Name: "web", ContainerPort: 80}}
		h.Port, h.Scheme, h.Host, h.Path = intstr.FromString("web"), corev1.URISchemeHTTPS, "::1", "/x?y"
		h.HTTPHeaders, h.Protocol = []corev1.HTTPHeader{{Name: "X-A", Value: "b"}}, new(corev1.HTTPProtocolHTTP1)
	})},
	"hook, a request and a pause": {
		change: hook(corev1.LifecycleHandler{HTTPGet: &corev1.HTTPGetAction{Port: intstr.FromInt32(80)}, Sleep: &corev1.SleepAction{}}), want: forbidden(inContainers, badPreStop),
	},
	"hook, a request to no port": {
		change: httpHook(func(_ *corev1.Container, h *corev1.HTTPGetAction) { h.Port = intstr.FromInt32(0) }), want: badHookPort,
	},
	"hook, a request to a port of another name": {change: httpHook(func(c *corev1.Container, h *corev1.HTTPGetAction) {
		c.Ports = []corev1.ContainerPort{{Name: "web", ContainerPort: 80}}
		h.Port = intstr.FromString("wep")
	}), want: badHookPort},
	"hook, a request to a port whose number is none": {change: httpHook(func(c *corev1.Container, h *corev1.HTTPGetAction) {
		c.Ports = []corev1.ContainerPort{{Name: "web"}}
		h.Port = intstr.FromString("web")
	}), want: badHookPort},
	"hook, a scheme in small letters": {
		change: httpHook(func(_ *corev1.Container, h *corev1.HTTPGetAction) { h.Scheme = "https" }), want: invalid(inPreStop, badScheme),
	},
	"hook, HTTP/2 with TLS": {change: httpHook(func(_ *corev1.Container, h *corev1.HTTPGetAction) {
		h.Scheme, h.Protocol = corev1.URISchemeHTTPS, new(corev1.HTTPProtocolHTTP2)
	}), want: invalid(inPreStop, badProtocol)},
	"hook, a header with a colon": {change: httpHook(func(_ *corev1.Container, h *corev1.HTTPGetAction) {
		h.HTTPHeaders = []corev1.HTTPHeader{{Name: "X:"}}
	}), want: invalid(inPreStop, badHeader)},
	"hook after the start, to no port": {
		change: app(func(c *corev1.Container) {
			c.Lifecycle = &corev1.Lifecycle{PostStart: &corev1.LifecycleHandler{HTTPGet: &corev1.HTTPGetAction{Port: intstr.FromInt32(65536), Scheme: "ftp"}}}
		}),
		want: append(forbidden(inContainers, strings.ReplaceAll(badHookPort[0].Detail, "preStop", "postStart")),
			invalid(inContainers+"[0].lifecycle.postStart", badScheme)...),
	},
	"hook, TCP": {
		change: hook(corev1.LifecycleHandler{TCPSocket: &corev1.TCPSocketAction{Port: intstr.FromInt32(80)}}), want: forbidden(inContainers, badPreStop),
	},
	"hook after the start": {
		change: app(func(c *corev1.Container) { c.Lifecycle = &corev1.Lifecycle{PostStart: &corev1.LifecycleHandler{}} }),
		want:   forbidden(inContainers, strings.ReplaceAll(badPreStop, "preStop", "postStart")),
	},
	"memory limit of Go":                {change: variables("GOMEMLIMIT", "4GiB")},
	"memory limit of Go, off":           {change: variables("GOMEMLIMIT", "off")},
	"memory limit of Go, empty":         {change: variables("GOMEMLIMIT", "")},
	"memory limit of Go, of a variable": {change: variables("GOMEMLIMIT", "$(MEMORY)MiB")},
	"memory limit of Go, the last counts": {
		change: app(func(c *corev1.Container) {
			c.Env = []corev1.EnvVar{{Name: "GOMEMLIMIT", Value: "4Gi"}, {Name: "X"}, {Name: "GOMEMLIMIT", Value: "4GiB"}}
		}),
	},
	"memory limit of Go, from elsewhere": {
		change: app(func(c *corev1.Container) {
			limit := &corev1.ResourceFieldSelector{Resource: "limits.memory"}
			c.Env = []corev1.EnvVar{{Name: "GOMEMLIMIT", ValueFrom: &corev1.EnvVarSource{ResourceFieldRef: limit}}}
		}),
	},
	"memory limit of Go, a quantity": {change: variables("GOMEMLIMIT", "4Gi"), want: forbidden(inContainers, badMemLimit("4Gi"))},
	"memory limit of Go, a quotation": {
		change: variables("GOMEMLIMIT", `"4GiB"`), want: forbidden(inContainers, badMemLimit(`"4GiB"`)),
	},
	"memory limit of Go, the last counts and is wrong": {
		change: app(func(c *corev1.Container) {
			c.Env = []corev1.EnvVar{{Name: "GOMEMLIMIT", Value: "4GiB"}, {Name: "X"}, {Name: "GOMEMLIMIT", Value: "x"}}
		}),
		want: forbidden(inContainers, badMemLimit("x")),
	},
	"memory limit of Go in a sidecar": {change: pod(func(p *corev1.PodSpec) {
		p.Containers[1].Env = []corev1.EnvVar{{Name: "GOMEMLIMIT", Value: "4Gi"}}
	})},
	"settings of Go": {change: variables("GODEBUG", "gctrace=1,fips140=on,x")},
	"stop signal": {
		change: app(func(c *corev1.Container) { c.Lifecycle = &corev1.Lifecycle{StopSignal: new(corev1.SIGQUIT)} }),
	},
	"stop signal that the agent does not handle": {
		change: app(func(c *corev1.Container) { c.Lifecycle = &corev1.Lifecycle{StopSignal: new(corev1.SIGURG)} }),
		want:   forbidden(inContainers, `the gated container "app" is not accepted; it sets lifecycle.stopSignal to a signal that the agent does not handle: use SIGTERM, SIGINT, SIGQUIT, SIGHUP, SIGUSR1, SIGUSR2, SIGWINCH or SIGRTMIN+3`),
	},
	"what other containers do is their own": {change: pod(func(p *corev1.PodSpec) {
		c := &p.Containers[1]
		c.ReadinessProbe = &corev1.Probe{ProbeHandler: corev1.ProbeHandler{TCPSocket: &corev1.TCPSocketAction{Port: intstr.FromString("unknown")}}}
		c.LivenessProbe, c.StartupProbe = c.ReadinessProbe, c.ReadinessProbe
		c.Lifecycle = &corev1.Lifecycle{PreStop: &corev1.LifecycleHandler{Exec: &corev1.ExecAction{Command: []string{"x"}}}}
		c.Env = []corev1.EnvVar{{Name: "FENCING_TOKEN", Value: "1"}}
		c.VolumeMounts = []corev1.VolumeMount{{Name: "d", MountPath: "/singletonjob"}}
	})},
}

func variables(name, value string) func(*SingletonJob) {
	return app(func(c *corev1.Container) {
		c.Env = []corev1.EnvVar{{Name: name, Value: value}, {Name: "OTHER", Value: "x"}}
	})
}

func badMemLimit(value string) string {
	return `the gated container "app" sets GOMEMLIMIT to "` + value + `" in env, but no Go program, including the agent, starts with that value: write a number of bytes, ` +
		"alone or with the suffix B, KiB, MiB, GiB or TiB (4GiB, not 4Gi), or off"
}

// mount mounts a volume into the gated container.
func mount(path string) func(*SingletonJob) {
	return app(func(c *corev1.Container) { c.VolumeMounts = []corev1.VolumeMount{{Name: "d", MountPath: path}} })
}

// choice is a template that selects the gated container only by its annotation, or not at all.
func choice(annotation string, change func(*SingletonJob)) func(*SingletonJob) {
	return func(job *SingletonJob) {
		job.Spec.Container = ""
		if annotation != "" {
			job.Spec.Template.Annotations = map[string]string{"kubectl.kubernetes.io/default-container": annotation}
		}
		if change != nil {
			change(job)
		}
	}
}

var (
	noChoice = missing("spec.container", `one of several containers is gated, and the others run in every candidate: set it to one of `+
		`["app", "proxy"], or name that in spec.template.metadata.annotations as kubectl.kubernetes.io/default-container`)
	// ofProxy shows which container is gated.
	ofProxy = pod(func(p *corev1.PodSpec) {
		p.Containers[1].RestartPolicy = new(corev1.ContainerRestartPolicyNever)
	})
	badProxy = forbidden(inContainers, strings.ReplaceAll(badPolicy, "app", "proxy"))
)

// containerCases are the cases about which container is gated.
var containerCases = map[string]validationCase{
	"unknown container": {
		change: func(job *SingletonJob) { job.Spec.Container = "web" },
		want:   invalid("spec.container", `"web" is not a container of spec.template: one of ["app", "proxy"]`),
	},
	"the container, an init container": {
		change: func(job *SingletonJob) {
			job.Spec.Container = "init"
			job.Spec.Template.Spec.InitContainers = []corev1.Container{{Name: "init", Image: "x"}}
		},
		want: invalid("spec.container", `"init" is not a container of spec.template: one of ["app", "proxy"]`),
	},
	"several containers, no choice":                 {change: choice("", nil), want: noChoice},
	"several containers, no choice, a faulty first": {change: choice("", app(func(c *corev1.Container) { c.RestartPolicy = new(corev1.ContainerRestartPolicyNever) })), want: noChoice},
	"several containers, no choice, an update":      {from: choice("app", nil), change: choice("", nil), want: noChoice},
	"several containers, an annotation":             {change: choice("proxy", nil)},
	"several containers, the annotation is heeded":  {change: choice("proxy", ofProxy), want: badProxy},
	"several containers, spec.container comes before the annotation": {change: func(job *SingletonJob) {
		choice("proxy", ofProxy)(job)
		job.Spec.Container = "app"
	}},
	"several containers, the annotation names none of them": {
		change: choice("web", nil),
		want: invalid("spec.template.metadata.annotations", `kubectl.kubernetes.io/default-container is "web", which is not a container of spec.template: `+
			`one of ["app", "proxy"], or set spec.container`),
	},
	"several containers, the annotation names a sidecar": {
		change: choice("mesh", pod(func(p *corev1.PodSpec) {
			p.InitContainers = []corev1.Container{{Name: "mesh", Image: "x", RestartPolicy: new(corev1.ContainerRestartPolicyAlways)}}
		})),
		want: invalid("spec.template.metadata.annotations", `kubectl.kubernetes.io/default-container is "mesh", which is not a container of spec.template: `+
			`one of ["app", "proxy"], or set spec.container`),
	},
	"several containers, the annotation is empty": {
		change: choice("", func(job *SingletonJob) {
			job.Spec.Template.Annotations = map[string]string{"kubectl.kubernetes.io/default-container": ""}
		}),
		want: invalid("spec.template.metadata.annotations", `kubectl.kubernetes.io/default-container is "", which is not a container of spec.template: `+
			`one of ["app", "proxy"], or set spec.container`),
	},
	"several containers, other annotations": {
		change: choice("", func(job *SingletonJob) { job.Spec.Template.Annotations = map[string]string{"a": "b"} }), want: noChoice,
	},
	"one container and sidecars": {change: choice("", pod(func(p *corev1.PodSpec) {
		p.Containers = p.Containers[:1]
		p.InitContainers = []corev1.Container{
			{Name: "migrate", Image: "x"},
			{Name: "mesh", Image: "x", RestartPolicy: new(corev1.ContainerRestartPolicyAlways)},
		}
	}))},
	"one container, the annotation names a sidecar": {change: choice("mesh", pod(func(p *corev1.PodSpec) {
		p.Containers = p.Containers[:1]
		p.InitContainers = []corev1.Container{{Name: "mesh", Image: "x", RestartPolicy: new(corev1.ContainerRestartPolicyAlways)}}
	}))},
	"one container is gated without a choice": {
		change: choice("", pod(func(p *corev1.PodSpec) {
			p.Containers = p.Containers[:1]
			p.Containers[0].RestartPolicy = new(corev1.ContainerRestartPolicyNever)
		})),
		want: forbidden(inContainers, badPolicy),
	},
}

// privileges are those of the gated container, besides those of the pod.
func privileges(pod *corev1.PodSecurityContext, drop, add string, change func(*corev1.SecurityContext)) func(*SingletonJob) {
	list := func(names string) (found []corev1.Capability) {
		for name := range strings.FieldsSeq(names) {
			found = append(found, corev1.Capability(name))
		}
		return found
	}
	return func(job *SingletonJob) {
		job.Spec.Template.Spec.SecurityContext = pod
		context := &corev1.SecurityContext{Capabilities: &corev1.Capabilities{Drop: list(drop), Add: list(add)}}
		job.Spec.Template.Spec.Containers[0].SecurityContext = context
		if change != nil {
			change(context)
		}
	}
}

func as(user int64) func(*corev1.SecurityContext) {
	return func(c *corev1.SecurityContext) { c.RunAsUser = &user }
}

// privilegeCases are the cases in which an agent would refuse to start.
var privilegeCases = map[string]validationCase{
	"privileges of the runtime":             {change: privileges(nil, "", "", nil)},
	"privileges, none":                      {change: privileges(nil, "ALL", "", nil)},
	"privileges, some":                      {change: privileges(nil, "NET_RAW", "SYS_TIME", as(0))},
	"privileges, SETUID and KILL":           {change: privileges(nil, "ALL", "SETUID KILL", as(0))},
	"privileges, all":                       {change: privileges(nil, "", "ALL", as(0))},
	"privileges, neither":                   {change: privileges(nil, "SETUID KILL", "", as(0))},
	"privileges, SETUID as root":            {change: privileges(nil, "ALL", "CHOWN SETUID SETGID DAC_OVERRIDE", as(0)), want: forbidden(inContainers, badCaps)},
	"privileges, SETUID as an unknown user": {change: privileges(nil, "ALL", "SETUID", nil), want: forbidden(inContainers, badCaps)},
	"privileges, SETUID in other words":     {change: privileges(nil, "all", "cap_setuid", nil), want: forbidden(inContainers, badCaps)},
	"privileges, KILL dropped":              {change: privileges(nil, "KILL", "", nil), want: forbidden(inContainers, badCaps)},
	"privileges, KILL dropped of all":       {change: privileges(nil, "KILL", "ALL", nil), want: forbidden(inContainers, badCaps)},
	"privileges, KILL dropped and added":    {change: privileges(nil, "KILL", "KILL", nil), want: forbidden(inContainers, badCaps)},
	"privileges, all dropped and added":     {change: privileges(nil, "ALL", "ALL", as(0))},
	"privileges, all dropped twice":         {change: privileges(nil, "ALL SETUID", "SETUID", nil)},
	"privileges, KILL added to all":         {change: privileges(nil, "ALL", "ALL KILL", nil)},
	"privileges, SETUID as another user":    {change: privileges(nil, "ALL", "SETUID", as(1000))},
	"privileges, SETUID as no root": {change: privileges(nil, "ALL", "SETUID", func(c *corev1.SecurityContext) {
		c.RunAsNonRoot = new(true)
	})},
	"privileges, SETUID as another user of the pod's": {change: privileges(&corev1.PodSecurityContext{RunAsUser: new(int64(1000))}, "ALL", "SETUID", nil)},
	"privileges, SETUID as root of the pod's": {
		change: privileges(&corev1.PodSecurityContext{RunAsUser: new(int64(0))}, "ALL", "SETUID", nil), want: forbidden(inContainers, badCaps),
	},
	"privileges, SETUID as root, not the pod's user": {
		change: privileges(&corev1.PodSecurityContext{RunAsUser: new(int64(1000))}, "ALL", "SETUID", as(0)), want: forbidden(inContainers, badCaps),
	},
	"privileges, SETUID as no root of the pod's": {change: privileges(&corev1.PodSecurityContext{RunAsNonRoot: new(true)}, "ALL", "SETUID", nil)},
	"privileges, SETUID as an unknown user, not the pod's non-root user": {
		change: privileges(&corev1.PodSecurityContext{RunAsNonRoot: new(true)}, "ALL", "SETUID", func(c *corev1.SecurityContext) { c.RunAsNonRoot = new(false) }),
		want:   forbidden(inContainers, badCaps),
	},
	"privileges, a privileged container": {change: privileges(nil, "ALL", "SETUID", func(c *corev1.SecurityContext) { c.Privileged = new(true) })},
	"privileges of another container": {change: func(job *SingletonJob) {
		privileges(nil, "ALL", "SETUID", nil)(job)
		containers := job.Spec.Template.Spec.Containers
		containers[1].SecurityContext, containers[0].SecurityContext = containers[0].SecurityContext, nil
	}},
}

// probe changes a valid probe of the gated container.
func probe(change func(*corev1.Container, *corev1.Probe)) func(*SingletonJob) {
	return app(func(c *corev1.Container) {
		c.Ports = []corev1.ContainerPort{{Name: "web", ContainerPort: 80}, {ContainerPort: 81}}
		c.LivenessProbe = &corev1.Probe{ProbeHandler: corev1.ProbeHandler{HTTPGet: &corev1.HTTPGetAction{Port: intstr.FromString("web")}}}
		change(c, c.LivenessProbe)
	})
}

func handler(h corev1.ProbeHandler) func(*SingletonJob) {
	return probe(func(_ *corev1.Container, p *corev1.Probe) { p.ProbeHandler = h })
}

func httpGet(change func(*corev1.HTTPGetAction)) func(*SingletonJob) {
	return probe(func(_ *corev1.Container, p *corev1.Probe) { change(p.HTTPGet) })
}

func tcp(port intstr.IntOrString) func(*SingletonJob) {
	return handler(corev1.ProbeHandler{TCPSocket: &corev1.TCPSocketAction{Port: port}})
}

const (
	inProbe     = inContainers + "[0].livenessProbe"
	badScheme   = "httpGet.scheme is neither HTTP nor HTTPS"
	badProtocol = "httpGet.protocol is neither HTTP1 nor, with scheme HTTP, HTTP2"
	badHost     = "httpGet.host is set with protocol HTTP2, which allows no other host than the Pod: remove host"
	badHeader   = "httpGet.httpHeaders has an invalid name: use letters, digits and - only"
	noWay       = "0 of exec, httpGet, tcpSocket and grpc are set: set one of them"
)

func badProbe(what string) []problem { return invalid(inProbe, what) }

func badPort(way string) []problem {
	return wrongPorts("livenessProbe." + way + ".port")
}

var probeCases = map[string]validationCase{
	"a named port":    {change: probe(func(*corev1.Container, *corev1.Probe) {})},
	"a port's number": {change: tcp(intstr.FromInt32(65535))},
	"a command":       {change: handler(corev1.ProbeHandler{Exec: &corev1.ExecAction{Command: []string{"true"}}})},
	"grpc":            {change: handler(corev1.ProbeHandler{GRPC: &corev1.GRPCAction{Port: 1, Service: new("s")}})},
	"grpc with TLS":   {change: handler(corev1.ProbeHandler{GRPC: &corev1.GRPCAction{Port: 1, Mode: new(corev1.GRPCProbeModeTLS)}})},
	"http with it all": {change: httpGet(func(h *corev1.HTTPGetAction) {
		h.Scheme, h.Host, h.Path, h.HTTPHeaders = corev1.URISchemeHTTPS, "::1", "/x?y", []corev1.HTTPHeader{{Name: "X-A", Value: "b"}}
		h.Protocol = new(corev1.HTTPProtocolHTTP1)
	})},
	"http 2": {change: httpGet(func(h *corev1.HTTPGetAction) { h.Protocol = new(corev1.HTTPProtocolHTTP2) })},
	"all three": {change: probe(func(c *corev1.Container, p *corev1.Probe) {
		c.StartupProbe, c.ReadinessProbe = p.DeepCopy(), p.DeepCopy()
		c.StartupProbe.TerminationGracePeriodSeconds, c.ReadinessProbe.SuccessThreshold = new(int64(1)), 5
	})},

	"no way": {change: handler(corev1.ProbeHandler{}), want: badProbe(noWay)},
	"two ways": {
		change: probe(func(_ *corev1.Container, p *corev1.Probe) {
			p.TCPSocket = &corev1.TCPSocketAction{Port: intstr.FromInt32(1)}
		}),
		want: badProbe("2 of exec, httpGet, tcpSocket and grpc are set: set one of them"),
	},
	"no way to be ready": {
		change: app(func(c *corev1.Container) { c.ReadinessProbe = &corev1.Probe{} }),
		want:   invalid(inContainers+"[0].readinessProbe", noWay),
	},
	"no way to start": {
		change: app(func(c *corev1.Container) { c.StartupProbe = &corev1.Probe{} }),
		want:   invalid(inContainers+"[0].startupProbe", noWay),
	},
	"no command of a probe":  {change: handler(corev1.ProbeHandler{Exec: &corev1.ExecAction{}}), want: badProbe("exec has no command: set exec.command")},
	"port 0":                 {change: tcp(intstr.FromInt32(0)), want: badPort("tcpSocket")},
	"port 65536":             {change: tcp(intstr.FromInt32(65536)), want: badPort("tcpSocket")},
	"a port of another name": {change: tcp(intstr.FromString("wep")), want: badPort("tcpSocket")},
	"a number in quotes":     {change: tcp(intstr.FromString("80")), want: badPort("tcpSocket")},
	"a port without a name":  {change: tcp(intstr.FromString("")), want: badPort("tcpSocket")},
	"http to no port":        {change: httpGet(func(h *corev1.HTTPGetAction) { h.Port = intstr.FromString("proxy") }), want: badPort("httpGet")},
	"no ports at all":        {change: probe(func(c *corev1.Container, _ *corev1.Probe) { c.Ports = nil }), want: badPort("httpGet")},
	"grpc to no port":        {change: handler(corev1.ProbeHandler{GRPC: &corev1.GRPCAction{}}), want: invalid(inProbe+".grpc.port", "should be greater than or equal to 1")},
	"grpc of no mode": {
		change: handler(corev1.ProbeHandler{GRPC: &corev1.GRPCAction{Port: 1, Mode: new(corev1.GRPCProbeMode("tls"))}}),
		want:   badProbe("grpc.mode is neither Plaintext nor TLS"),
	},
	"a scheme in small letters": {change: httpGet(func(h *corev1.HTTPGetAction) { h.Scheme = "https" }), want: badProbe(badScheme)},
	"http 3":                    {change: httpGet(func(h *corev1.HTTPGetAction) { h.Protocol = new(corev1.HTTPProtocol("HTTP3")) }), want: badProbe(badProtocol)},
	"http 2 with TLS": {change: httpGet(func(h *corev1.HTTPGetAction) {
		h.Scheme, h.Protocol = corev1.URISchemeHTTPS, new(corev1.HTTPProtocolHTTP2)
	}), want: badProbe(badProtocol)},
	"http 2 to another host": {change: httpGet(func(h *corev1.HTTPGetAction) {
		h.Host, h.Protocol = "127.0.0.1", new(corev1.HTTPProtocolHTTP2)
	}), want: badProbe(badHost)},
	"a header with a colon": {change: httpGet(func(h *corev1.HTTPGetAction) { h.HTTPHeaders = []corev1.HTTPHeader{{Name: "X:"}} }), want: badProbe(badHeader)},
	"grace of what ends nothing": {change: probe(func(c *corev1.Container, p *corev1.Probe) {
		c.ReadinessProbe = p.DeepCopy()
		c.ReadinessProbe.TerminationGracePeriodSeconds = new(int64(1))
	}), want: invalid(inContainers+"[0].readinessProbe", "terminationGracePeriodSeconds has no effect on a readiness probe, which ends nothing: remove it")},
	"alive only when it says so twice": {
		change: probe(func(_ *corev1.Container, p *corev1.Probe) { p.SuccessThreshold = 2 }),
		want:   invalid(inProbe+".successThreshold", "should be less than or equal to 1"),
	},
	"killed before it is asked": {
		change: probe(func(_ *corev1.Container, p *corev1.Probe) { p.TerminationGracePeriodSeconds = new(int64(0)) }),
		want:   invalid(inProbe+".terminationGracePeriodSeconds", "should be greater than or equal to 1"),
	},
	"asked backwards": {
		change: probe(func(_ *corev1.Container, p *corev1.Probe) { p.PeriodSeconds = -1 }),
		want:   invalid(inProbe+".periodSeconds", "should be greater than or equal to 0"),
	},
	"asked before it is there, of another container": {
		change: pod(func(p *corev1.PodSpec) {
			p.Containers[1].ReadinessProbe = &corev1.Probe{
				InitialDelaySeconds: -5, ProbeHandler: corev1.ProbeHandler{TCPSocket: &corev1.TCPSocketAction{Port: intstr.FromInt32(1)}},
			}
		}),
		want: invalid(inContainers+"[1].readinessProbe.initialDelaySeconds", "should be greater than or equal to 0"),
	},
}

// goOnlyCases can't reach an API server, which rejects the value as text (see malformedCases).
var goOnlyCases = map[string]validationCase{
	"too few candidates": {change: func(job *SingletonJob) { job.Spec.Candidates = -1 }, want: invalid("spec.candidates", "should be greater than or equal to 1")},
	"negative lockDelay": {change: lockDelay(-time.Second, OnRenewFailureStop), want: invalid("spec.lease.lockDelay", "-1s is not accepted: from 0s to 1h")},
	"negative lease":     {change: leaseOf(-time.Second, time.Second, 200*ms), want: invalid("spec.lease.leaseDuration", "-1s is not accepted: whole seconds, from 3s to 1h")},
}

// sharedCases are the cases that Validate and the API server must decide in the same way.
func sharedCases(t *testing.T) map[string]validationCase {
	return merged(t, leaseCases, specCases, templateCases, containerCases, gatedCases, privilegeCases, probeCases, workloadCases, serviceCases, runCases)
}

func merged(t *testing.T, tables ...map[string]validationCase) map[string]validationCase {
	t.Helper()
	all := map[string]validationCase{}
	for _, table := range tables {
		for name, c := range table {
			if _, twice := all[name]; twice {
				t.Fatalf("two cases are called %q", name)
			}
			all[name] = c
		}
	}
	return all
}

func (c validationCase) jobs() (old, job *SingletonJob) {
	job = validJob()
	c.change(job)
	if c.from != nil {
		old = validJob()
		c.from(old)
	}
	return old, job
}

func TestValidate(t *testing.T) {
	for name, c := range merged(t, sharedCases(t), goOnlyCases, operatorCases) {
		t.Run(name, func(t *testing.T) {
			old, job := c.jobs()
			before := job.DeepCopy()
			errs := Validate(job)
			if old != nil {
				errs = ValidateUpdate(old, job)
			}
			var got []problem
			for _, err := range errs {
				got = append(got, problem{err.Type, err.Field, strings.TrimPrefix(err.Detail, err.Field+" in body ")})
			}
			if diff := cmp.Diff(sorted(c.want), sorted(got)); diff != "" {
				t.Errorf("-want +got:\n%s", diff)
			}
			if diff := cmp.Diff(before, job); diff != "" {
				t.Errorf("Validate changed its argument:\n%s", diff)
			}
		})
	}
}

func sorted(problems []problem) []problem {
	problems = slices.Clone(problems)
	slices.SortFunc(problems, func(a, b problem) int { return strings.Compare(a.Field+a.Detail, b.Field+b.Detail) })
	return problems
}

// Every accepted spec must be safe by the rules of the state machine, which subtracts the same margin.
func TestMarginMatchesTheAgent(t *testing.T) {
	if MinLeaseDuration != lease.MinDuration || MaxLeaseDuration != lease.MaxDuration || MinRetryPeriod != lease.MinRetryPeriod || MaxTokenBase != lease.MaxTokenBase {
		t.Error("the agent's limits are others")
	}
	for deadline := time.Second; deadline < time.Minute; deadline += 7 * time.Millisecond {
		longest := lease.MaxRetryPeriod(deadline)
		for _, retry := range []time.Duration{longest, longest + 1} {
			spec := LeaseSpec{
				LeaseDuration: metav1.Duration{Duration: 2 * time.Minute}, RenewDeadline: metav1.Duration{Duration: deadline},
				RetryPeriod: metav1.Duration{Duration: retry}, OnRenewFailure: OnRenewFailureStop,
			}
			if refused := len(validateLease(&spec, field.NewPath("lease"))) > 0; refused != (retry > longest) {
				t.Fatalf("renewDeadline %v, retryPeriod %v: refused %v, the agent's most is %v", deadline, retry, refused, longest)
			}
		}
	}
	for d := MinLeaseDuration; d <= MaxLeaseDuration; d += time.Second {
		if got, want := margin(d), lease.Margin(d); got != want {
			t.Fatalf("leaseDuration %v: margin %v, the agent's %v", d, got, want)
		}
		if got, want := MaxRenewDeadline(d), lease.MaxRenewDeadline(d); got != want {
			t.Fatalf("leaseDuration %v: renewDeadline at most %v, the agent's %v", d, got, want)
		}
	}
	if MaxLeaseDuration != lease.MaxDuration {
		t.Errorf("MaxLeaseDuration is %v, the agent waits at most %v", MaxLeaseDuration, lease.MaxDuration)
	}
}
