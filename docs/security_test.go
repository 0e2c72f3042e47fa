package docs

import (
	"os"
	"path/filepath"
	"strings"
	"testing"

	rbacv1 "k8s.io/api/rbac/v1"
	"sigs.k8s.io/yaml"
)

// TestDocumentedRightsMatchTheRole compares the table of SECURITY.md to the operator's role.
func TestDocumentedRightsMatchTheRole(t *testing.T) {
	text, err := os.ReadFile(filepath.Join(top, "SECURITY.md"))
	if err != nil {
		t.Fatal(err)
	}
	told := map[string]string{}
	_, rights, _ := strings.Cut(string(text), "## Rights")
	for _, row := range rows(rights) {
		told[strings.Trim(row[0], "`")] = row[1]
	}
	raw, err := os.ReadFile(filepath.Join(top, "config/rbac/role.yaml"))
	if err != nil {
		t.Fatal(err)
	}
	var role rbacv1.ClusterRole
	if err := yaml.UnmarshalStrict(raw, &role); err != nil {
		t.Fatal(err)
	}
	for _, rule := range role.Rules {
		for _, resource := range rule.Resources {
			if want := strings.Join(rule.Verbs, ", "); told[resource] != want {
				t.Errorf("the operator may %s of %s, and SECURITY.md says %q", want, resource, told[resource])
			}
			delete(told, resource)
		}
	}
	for resource, verbs := range told {
		t.Errorf("SECURITY.md says that the operator may %s of %s", verbs, resource)
	}
}
