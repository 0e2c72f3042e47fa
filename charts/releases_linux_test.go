package charts

import (
	"context"
	"strings"
	"testing"
)

// Each release guards all Leases. If its guard does not know the operator of another release, that release's jobs stop.
func TestReleasesKnowEachOther(t *testing.T) {
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

	must("install", one)
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
