package docs

import (
	"os"
	"path/filepath"
	"regexp"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	rbacv1 "k8s.io/api/rbac/v1"
	"sigs.k8s.io/yaml"
)

// TestDocumentedRightsOfUsers compares the table of users in SECURITY.md to the chart's roles for them.
func TestDocumentedRightsOfUsers(t *testing.T) {
	text, err := os.ReadFile(filepath.Join(top, "SECURITY.md"))
	if err != nil {
		t.Fatal(err)
	}
	section, ok := sectionOf(string(text), "rights-of-users")
	if !ok {
		t.Fatal("SECURITY.md has no rights of users")
	}
	told := map[string]string{} // verbs by role and resource
	for _, row := range rows(section) {
		for resource := range strings.SplitSeq(row[1], ", ") {
			told[strings.Trim(row[0], "`")+" "+strings.Trim(resource, "`")] += ", " + row[2]
		}
	}
	template, err := os.ReadFile(filepath.Join(top, "charts/singletonjob/templates/user-roles.yaml"))
	if err != nil {
		t.Fatal(err)
	}
	name, has := regexp.MustCompile(`(?m)^  name: .*:(\w+)$`), map[string]string{}
	for part := range strings.SplitSeq(string(template), "\n---\n") {
		_, rules, _ := strings.Cut(part, "\nrules:\n")
		rules, _, _ = strings.Cut(rules, "{{")
		var role rbacv1.ClusterRole
		if err := yaml.UnmarshalStrict([]byte("rules:\n"+rules), &role); err != nil {
			t.Fatal(err)
		}
		for _, rule := range role.Rules {
			for _, resource := range rule.Resources {
				has[name.FindStringSubmatch(part)[1]+" "+resource] += ", " + strings.Join(rule.Verbs, ", ")
			}
		}
	}
	if diff := cmp.Diff(has, told); diff != "" || len(has) < 5 {
		t.Errorf("SECURITY.md differs from the chart's roles (-chart +document):\n%s", diff)
	}
}

// TestDocumentedRightsMatchTheRole compares the table of SECURITY.md to the operator's role.
func TestDocumentedRightsMatchTheRole(t *testing.T) {
	text, err := os.ReadFile(filepath.Join(top, "SECURITY.md"))
	if err != nil {
		t.Fatal(err)
	}
	told := map[string]string{}
	_, rights, _ := strings.Cut(string(text), "## Rights\n")
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
