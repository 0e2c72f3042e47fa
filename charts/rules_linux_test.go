package charts

import (
	"maps"
	"os/exec"
	"slices"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	rbacv1 "k8s.io/api/rbac/v1"
	"sigs.k8s.io/yaml"
)

// granted are all rules of the chart's roles: the verbs per resource, with reasons. An extra verb is an extra right for an attacker
// of the operator, or for every editor of a namespace. A missing verb stops the operator.
var granted = map[string]map[string]struct{ verbs, why string }{
	"": {
		"events":                               {"create", "tells of every change of holder"},
		"nodes":                                {"list watch", "a node that is out of service proves its holder dead"},
		"pods":                                 {"create delete get list patch watch", "makes candidates, replaces them, labels who is active; lets pods get what it may get"},
		"services":                             {"create delete get list update watch", "makes the Service of a job that asks for one, and turns it to the active pod"},
		"serviceaccounts":                      {"create get list patch watch", "makes the account of a job's pods"},
		"apps/deployments":                     {"get list watch", "spec.workloadRef: its template, and whether it is scaled to 0"},
		"apps/replicasets":                     {"get list", "spec.workloadRef: whose a pod is that a Deployment's selector matches, and whether they are scaled to 0"},
		"apps/statefulsets":                    {"get list watch", "as Deployments"},
		"autoscaling/horizontalpodautoscalers": {"list", "spec.workloadRef: names in a condition what would scale it up"},
		"persistentvolumeclaims":               {"get", "says that a job's claim is why no standby gets ready elsewhere"},
		"coordination.k8s.io/leases": {
			"create delete get list update watch",
			"makes a Lease before its pods, releases it for the dead, deletes it after the job; lets pods do what it may do; elects its leader",
		},
		"policy/poddisruptionbudgets":              {"create get list patch watch", "makes a drain wait for a standby"},
		"rbac.authorization.k8s.io/rolebindings":   {"create delete get list patch watch", "gives the account its one Role; one to another Role is recreated"},
		"rbac.authorization.k8s.io/roles":          {"create get list patch watch", "makes the Role on exactly one Lease and the job's Pods"},
		"singletonjob.io/singletonjobs":            {"delete get list watch", "deletes those whose ttlSecondsAfterFinished is over, and changes none"},
		"singletonjob.io/singletonjobs/finalizers": {"update", "owner references that block deletion may ask for it"},
		"singletonjob.io/singletonjobs/status":     {"update", "reports"},
	},
	":metrics-auth": {
		"authentication.k8s.io/tokenreviews":        {"create", "asks whose a token is with which metrics are asked for"},
		"authorization.k8s.io/subjectaccessreviews": {"create", "and whether that user may read them"},
	},
	":metrics-reader": {"url /metrics": {"get", "for who reads metrics; bound to nobody"}},
	":view": {
		"singletonjob.io/singletonjobs":        {"get list watch", "who may view a namespace may view its jobs"},
		"singletonjob.io/singletonjobs/scale":  {"get", "and their scale"},
		"singletonjob.io/singletonjobs/status": {"get", "and their status"},
	},
	":edit": {
		"singletonjob.io/singletonjobs":       {"create delete deletecollection patch update", "an editor may make pods anyway"},
		"singletonjob.io/singletonjobs/scale": {"patch update", "kubectl scale"},
	},
	":admin": {
		"singletonjob.io/singletonjobs/lease":      {"override", "repairs a Lease that the guard keeps; an editor may not"},
		"singletonjob.io/singletonjobs/finalizers": {"update", "who administrates a namespace may install an operator for it, which needs this"},
		"singletonjob.io/singletonjobs/status":     {"patch update", "repairs; an editor may not: by its status the operator knows of earlier tenures"},
	},
}

// verbs are the verbs of a role, by resource.
func verbs(role string) map[string]string {
	all := map[string]string{}
	for resource, rule := range granted[role] {
		all[resource] = rule.verbs
	}
	return all
}

func TestRoleRules(t *testing.T) {
	t.Parallel()
	want := map[string]map[string]string{}
	for role := range granted {
		want[role] = verbs(role)
	}
	if diff := cmp.Diff(want, rules(t)); diff != "" {
		t.Errorf("rules by role and resource; one that is new needs its reason here (-want +got):\n%s", diff)
	}
}

// rules are the verbs by role and resource in the chart's rendered YAML. No API server is involved, which could drop fields that it
// does not know. A Role's name starts with its namespace.
func rules(t *testing.T, settings ...string) map[string]map[string]string {
	t.Helper()
	helm, err := helmPath()
	if err != nil {
		t.Fatalf("build Helm: %v", err)
	}
	args := append([]string{"template", "release", chart, "--namespace", "ns"}, settings...)
	manifest, err := exec.CommandContext(t.Context(), helm, args...).Output()
	if err != nil {
		t.Fatalf("helm template: %v", err)
	}
	got := map[string]map[string]string{}
	for document := range strings.SplitSeq(string(manifest), "\n---\n") {
		var role rbacv1.ClusterRole
		if err := yaml.Unmarshal([]byte(document), &role); err != nil {
			t.Fatal(err)
		}
		if role.Kind != "ClusterRole" && role.Kind != "Role" {
			continue
		}
		name, ours := strings.CutPrefix(role.Name, "ns:release-singletonjob")
		if role.Kind == "Role" {
			name = role.Namespace + "/" + name
		}
		if !ours || got[name] != nil {
			t.Errorf("%s %s was not looked for", role.Kind, role.Name)
		}
		got[name] = byResource(role.Rules)
	}
	return got
}

func byResource(rules []rbacv1.PolicyRule) map[string]string {
	verbs := map[string]map[string]bool{}
	for _, rule := range rules {
		for _, name := range objects(rule) {
			if verbs[name] == nil {
				verbs[name] = map[string]bool{}
			}
			for _, verb := range rule.Verbs {
				verbs[name][verb] = true
			}
		}
	}
	out := map[string]string{}
	for name, set := range verbs {
		out[name] = strings.Join(slices.Sorted(maps.Keys(set)), " ")
	}
	return out
}

// objects are the objects to which a rule applies.
func objects(rule rbacv1.PolicyRule) (names []string) {
	for _, url := range rule.NonResourceURLs {
		names = append(names, "url "+url)
	}
	for _, group := range rule.APIGroups {
		for _, resource := range rule.Resources {
			name := strings.TrimPrefix(group+"/"+resource, "/")
			if len(rule.ResourceNames) > 0 {
				name += " " + strings.Join(rule.ResourceNames, " ")
			}
			names = append(names, name)
		}
	}
	return names
}
