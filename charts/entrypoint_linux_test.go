package charts

import (
	"os/exec"
	"strings"
	"testing"
)

// TestEntrypointSettings: the operator may read Secrets only if that is enabled, and each value is a flag.
func TestEntrypointSettings(t *testing.T) {
	t.Parallel()
	helm, err := helmPath()
	if err != nil {
		t.Fatalf("build Helm: %v", err)
	}
	for set, c := range map[string]struct {
		secrets bool
		says    []string
	}{
		"replicas=2":                  {false, []string{"--entrypoint=true", "--entrypoint-pull-secrets=false"}},
		"entrypoint.pullSecrets=true": {true, []string{"--entrypoint=true", "--entrypoint-pull-secrets=true"}},
		"entrypoint.enabled=false,entrypoint.pullSecrets=true": {false, []string{"--entrypoint=false"}},
		"entrypoint.insecureRegistries={a:5000,b}":             {false, []string{"--entrypoint-insecure-registries=a:5000,b"}},
		"entrypoint.caConfigMap=authorities": {false, []string{
			"--entrypoint-ca-file=/registry-ca/ca.crt", "mountPath: /registry-ca", "name: authorities",
		}},
	} {
		t.Run(set, func(t *testing.T) {
			out, err := exec.CommandContext(t.Context(), helm, "template", "release", chart, "--set", set).Output()
			if err != nil {
				t.Fatalf("helm template: %v", err)
			}
			manifest := string(out)
			if got := strings.Contains(manifest, "- secrets") || strings.Contains(manifest, "[secrets]"); got != c.secrets {
				t.Errorf("a role names secrets: %v, want %v", got, c.secrets)
			}
			for _, text := range c.says {
				if !strings.Contains(manifest, text) {
					t.Errorf("%q is not in what is rendered", text)
				}
			}
		})
	}
}
