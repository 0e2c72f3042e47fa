package charts

import (
	"context"
	"strings"
	"testing"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"sigs.k8s.io/yaml"
)

// Each release guards all Leases. If its guard does not know the operator of another release, that release's jobs stop.
func TestReleasesAllowEachOther(t *testing.T) {
	c := newCluster(t)
	here, there := c.restricted(), c.restricted()
	mine, theirs := "system:serviceaccount:"+here+":one-singletonjob", "system:serviceaccount:"+there+":two-singletonjob"
	one := []string{"one", chart, "--namespace=" + here, "--set=crds.install=false"}
	two := []string{"two", chart, "--namespace=" + there, "--set=crds.install=false"}
	knows := func(operator string) string { return "--set=guard.operators={" + operator + "}" }
	helm := func(command string, release []string, settings ...string) (string, error) {
		return c.run(c.helm, nil, append(append([]string{command}, release...), settings...)...)
	}
	must := func(command string, release []string, settings ...string) string {
		t.Helper()
		return c.mustHelm(append(append([]string{command}, release...), settings...)...)
	}
	refused := func(says, command string, release []string, settings ...string) {
		t.Helper()
		if out, err := helm(command, release, settings...); err == nil || !strings.Contains(out, says) {
			t.Errorf("helm %s %s %v: %v, want an error that says %s:\n%s", command, release[0], settings, err, says, out)
		}
	}
	t.Cleanup(func() {
		for _, release := range [][]string{{"one", "--namespace=" + here}, {"two", "--namespace=" + there}} {
			_ = c.command(context.Background(), c.helm, append([]string{"uninstall", "--ignore-not-found"}, release...)...).Run()
		}
	})

	if notes := must("install", one); !strings.Contains(notes, "helm uninstall one") {
		t.Errorf("the notes do not say what becomes of the guard:\n%s", notes)
	}
	upgradeOne := "helm upgrade one --namespace " + here + " CHART --reuse-values --set 'guard.operators={" + theirs + "}'"
	refused("--set 'guard.operators={"+mine+"}'", "install", two)
	refused(upgradeOne, "install", two, knows(mine))
	refused(upgradeOne, "install", two, "--set=guard.create=false")

	must("upgrade", one, knows(theirs))
	if out := must("install", two, knows(mine)); strings.Contains(out, "WARNING") {
		t.Errorf("both know each other, and the notes warn:\n%s", out)
	}
	// A cluster with such releases can be repaired: the release that forgets the other is refused, the other is only warned.
	refused("--set 'guard.operators={"+theirs+"}'", "upgrade", one, "--reset-values")
	must("upgrade", one, "--reset-values", "--set=guard.create=false")
	if out := must("upgrade", two, knows(mine)); strings.Contains(out, "WARNING") {
		t.Errorf("one has no guard, and the notes of two warn:\n%s", out)
	}
	refused(mine, "upgrade", two, "--reset-values") // though one has no guard
}

// Releases for different namespaces need not know each other.
func TestReleasesOfSomeNamespaces(t *testing.T) {
	c := newCluster(t)
	for _, name := range []string{"one", "two"} {
		namespace := c.restricted()
		c.mustHelm("install", name, chart, "--namespace="+namespace, "--set=crds.install=false", "--set=watchNamespaces={"+namespace+"}")
		t.Cleanup(func() { _ = c.command(context.Background(), c.helm, "uninstall", name, "--namespace="+namespace).Run() })
	}
	out, err := c.run(c.helm, nil, "install", "all", chart, "--namespace="+c.restricted(), "--set=crds.install=false")
	if err == nil || !strings.Contains(out, ":one-singletonjob") || !strings.Contains(out, ":two-singletonjob") {
		t.Errorf("a release of all namespaces locks both out: %v\n%s", err, out)
	}
}

// Cluster-scoped objects of two releases have different names, even if namespace and release together read the same.
func TestReleasesHaveDifferentNames(t *testing.T) {
	c := newHelm(t)
	of := map[string]string{} // the release of an object
	for _, release := range [][2]string{{"a-b", "c"}, {"a", "b-c"}, {"a-b-c-singletonjob", "a-b-c-singletonjob"}} {
		manifest := c.mustHelm("template", release[1], chart, "--namespace="+release[0])
		for document := range strings.SplitSeq(manifest, "\n---\n") {
			var o metav1.PartialObjectMetadata
			if err := yaml.Unmarshal([]byte(document), &o); err != nil {
				t.Fatal(err)
			}
			if o.Namespace != "" || o.Kind == "" || o.Kind == "CustomResourceDefinition" {
				continue
			}
			name, this := o.Kind+" "+o.Name, release[0]+"/"+release[1]
			if of[name] != "" {
				t.Errorf("both %s and %s have a %s", of[name], this, name)
			}
			of[name] = this
		}
	}
	if len(of) == 0 {
		t.Error("nothing is cluster-scoped")
	}
}
