//go:build linux

package controlplane

import (
	"slices"
	"strings"
	"testing"
)

func TestWantedVersion(t *testing.T) {
	for value, want := range map[string]string{"": KubernetesVersion, "1.36.3": "1.36.3", "1.36": "", "v1.36.3": "", "1.36.x": "", "../1.36.3": ""} {
		t.Setenv(versionVariable, value)
		got, err := wantedVersion()
		if got != want || (err == nil) != (want != "") || err != nil && !strings.Contains(err.Error(), "K8S="+value) {
			t.Errorf("%q: %q, %v; want %q", value, got, err, want)
		}
	}
}

// TestEdits: the staging modules, and only these, are replaced by what is published of the same version.
func TestEdits(t *testing.T) {
	t.Parallel()
	const own = `{"Replace": [
	  {"Old": {"Path": "k8s.io/api"}, "New": {"Path": "./staging/src/k8s.io/api"}},
	  {"Old": {"Path": "example.com/other"}, "New": {"Path": "example.com/fork", "Version": "v1.2.3"}}]}`
	got, err := edits([]byte(own), "1.36.3")
	want := []string{"mod", "edit", "-module=kubernetes", "-require=k8s.io/kubernetes@v1.36.3", "-replace=k8s.io/api=k8s.io/api@v0.36.3"}
	if err != nil || !slices.Equal(got, want) {
		t.Errorf("%q, %v; want %q", got, err, want)
	}
}
