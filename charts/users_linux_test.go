package charts

import (
	"strings"
	"testing"

	"github.com/singletonjob/operator/test/controlplane"
)

// The built-in roles view, edit and admin contain the chart's rights on SingletonJobs, by Kubernetes' own controller. A user who may edit a
// namespace creates, scales and deletes a SingletonJob.
func TestBuiltInRoles(t *testing.T) {
	t.Parallel()
	helm, err := helmPath()
	if err != nil {
		t.Fatalf("build Helm: %v", err)
	}
	plane, err := controlplane.Start(t.Context(), controlplane.Options{})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(plane.Stop)
	if err := plane.StartControllers(t.Context(), 0); err != nil {
		t.Fatal(err)
	}
	c := &cluster{t: t, plane: plane.APIServer, helm: helm, home: t.TempDir()}
	c.apply(c.mustHelm("template", "release", chart, "--namespace="+system, "--show-only=templates/crds.yaml"))
	c.mustKubectl("create", "namespace", tenant)
	for _, role := range []string{"view", "edit", "admin"} {
		c.mustKubectl("create", "rolebinding", role, "--namespace="+tenant, "--clusterrole="+role, "--user=a-"+role)
	}
	const in = " --namespace=" + tenant
	nothing := map[string]string{"get singletonjobs.singletonjob.io" + in: "no", "create singletonjobs.singletonjob.io" + in: "no"}
	for _, user := range []string{"a-view", "a-edit", "a-admin"} {
		c.may(user, nothing) // without the chart's roles
	}
	c.apply(c.mustHelm("template", "release", chart, "--namespace="+system, "--show-only=templates/user-roles.yaml"))
	for user, answers := range map[string]string{
		// get, list, create, delete, scale; its status, the guard's mark, elsewhere
		"a-view":  "yes yes no no no no no no",
		"a-edit":  "yes yes yes yes yes no no no",
		"a-admin": "yes yes yes yes yes yes yes no",
	} {
		questions := map[string]string{}
		for i, question := range []string{
			"get singletonjobs.singletonjob.io" + in, "watch singletonjobs.singletonjob.io" + in, "create singletonjobs.singletonjob.io" + in,
			"deletecollection singletonjobs.singletonjob.io" + in, "update singletonjobs.singletonjob.io --subresource=scale" + in,
			"update singletonjobs.singletonjob.io --subresource=status" + in, "override singletonjobs.singletonjob.io --subresource=lease" + in,
			"get singletonjobs.singletonjob.io --namespace=default",
		} {
			questions[question] = strings.Fields(answers)[i]
		}
		c.may(user, questions)
	}
	for _, args := range [][]string{
		{"create", "--filename=../config/samples/singletonjob.yaml"},
		{"scale", "--replicas=3", "singletonjob", "--all"},
		{"delete", "singletonjob", "--all", "--wait=false"},
	} {
		if _, err := plane.Kubectl(t.Context(), append(args, "--namespace="+tenant, "--as=a-view")...); err == nil || !strings.Contains(err.Error(), "forbidden") {
			t.Errorf("a user who may view a namespace: kubectl %s: %v", strings.Join(args, " "), err)
		}
		c.mustKubectl(append(args, "--namespace="+tenant, "--as=a-edit")...)
	}
}
