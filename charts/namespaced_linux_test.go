package charts

import (
	"context"
	"maps"
	"slices"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
)

// nothingClusterWide are the settings of a user with rights only in some namespaces. Another release has the rest.
var nothingClusterWide = []string{
	"--set=crds.install=false", "--set=rbac.aggregate=false", "--set=flowSchema.create=false", "--set=guard.create=false",
}

// In each of its namespaces, a namespaced operator has the same rights, from the same rules, as the default operator has
// everywhere.
func TestRolesOfANamespacedInstallation(t *testing.T) {
	t.Parallel()
	inside := verbs("")
	delete(inside, "nodes")
	want := map[string]map[string]string{
		"a/": inside, "b/": inside,
		"ns/:election": {
			"coordination.k8s.io/leases":                               "create",
			"coordination.k8s.io/leases release-singletonjob-operator": "get update",
			"events": "create",
		},
	}
	for name, c := range map[string]struct {
		set  string
		more map[string]map[string]string
	}{
		"by default":   {"watchNamespaces={a,b}", nil},
		"with nodes":   {"watchNamespaces={a,b},nodes.read=true", map[string]map[string]string{":nodes": {"nodes": granted[""]["nodes"].verbs}}},
		"its own, too": {"watchNamespaces={a,b,ns}", map[string]map[string]string{"ns/": inside}},
		"with metrics for some": {"watchNamespaces={a,b},metrics.secure=true,metrics.rbac.create=true", map[string]map[string]string{
			":metrics-auth": verbs(":metrics-auth"), ":metrics-reader": verbs(":metrics-reader"),
		}},
		"with metrics for some, by somebody else's right": {"watchNamespaces={a,b},metrics.secure=true,metrics.rbac.create=false", nil},
	} {
		t.Run(name, func(t *testing.T) {
			all := maps.Clone(want)
			maps.Copy(all, c.more)
			if diff := cmp.Diff(all, rules(t, slices.Concat(nothingClusterWide, []string{"--set=" + c.set})...)); diff != "" {
				t.Errorf("rules by role and resource (-want +got):\n%s", diff)
			}
		})
	}
	everywhere := rules(t, slices.Concat(nothingClusterWide, []string{"--set=nodes.read=false,metrics.secure=false"})...)
	if diff := cmp.Diff(map[string]map[string]string{"": inside}, everywhere); diff != "" {
		t.Errorf("rules of an operator for all namespaces without nodes (-want +got):\n%s", diff)
	}
}

// tenantAdmin has the rights of the built-in role admin in a namespace. The test names the aggregated roles, because nothing
// aggregates them here.
const tenantAdmin = `
apiVersion: rbac.authorization.k8s.io/v1
kind: RoleBinding
metadata: {name: %[2]s, namespace: %[1]s}
roleRef: {apiGroup: rbac.authorization.k8s.io, kind: ClusterRole, name: '%[2]s'}
subjects: [{kind: User, apiGroup: rbac.authorization.k8s.io, name: tenant}]
---
`

// A user who administers only two namespaces installs an operator in one for the other, after an administrator of the cluster has
// installed the definition and the users' roles.
func TestNamespaceAdministratorInstalls(t *testing.T) {
	c := newCluster(t)
	home, work := c.restricted(), c.restricted()
	c.apply(c.mustHelm("template", "cluster", chart, "--namespace", "cluster",
		"--show-only=templates/crds.yaml", "--show-only=templates/user-roles.yaml"))
	t.Cleanup(func() {
		_, _ = c.plane.Kubectl(context.Background(), "delete", crd, "--ignore-not-found", "--timeout=60s")
	})
	for _, namespace := range []string{home, work} {
		for _, role := range []string{
			"system:aggregate-to-admin", "system:aggregate-to-edit", "system:aggregate-to-view",
			"cluster:cluster-singletonjob:admin", "cluster:cluster-singletonjob:edit", "cluster:cluster-singletonjob:view",
		} {
			c.apply(strings.NewReplacer("%[1]s", namespace, "%[2]s", role).Replace(tenantAdmin))
		}
	}
	c.mustHelm(slices.Concat(nothingClusterWide, []string{
		"install", "release", chart, "--namespace", home, "--set=watchNamespaces={" + work + "},metrics.secure=true,metrics.rbac.create=false",
		"--kube-as-user=tenant", "--kube-as-group=system:authenticated",
	})...)
	t.Cleanup(func() {
		if out, err := c.command(context.Background(), c.helm, "uninstall", "release", "--namespace", home).CombinedOutput(); err != nil {
			t.Errorf("%v\n%s", err, out) // otherwise the releases of other tests would have to name it
		}
	})
	c.mustKubectl("create", "clusterrolebinding", home+"-metrics", "--clusterrole=system:auth-delegator", "--serviceaccount="+home+":release-singletonjob")
	c.operatorMay(home, map[string]string{
		"create pods --namespace=" + work:                                 "yes",
		"create pods --namespace=" + home:                                 "no",
		"list nodes":                                                      "no",
		"create tokenreviews.authentication.k8s.io":                       "yes",
		"create subjectaccessreviews.authorization.k8s.io":                "yes",
		"list singletonjobs.singletonjob.io --all-namespaces":             "no",
		"update leases/release-singletonjob-operator --namespace=" + home: "yes",
		"update leases/another --namespace=" + home:                       "no",
	})
}
