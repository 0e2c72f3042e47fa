package plugin

import (
	"bufio"
	"io"
	"slices"
	"strings"
	"testing"

	rbacv1 "k8s.io/api/rbac/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/singletonjob/operator/api/v1alpha1"
	"github.com/singletonjob/operator/test/apiserver"
)

// mayOnly grants a user some verbs on some resources of the namespace, and returns when the API server applies this.
func (w *world) mayOnly(user string, verbs map[string][]string) {
	w.Helper()
	s := runtime.NewScheme()
	w.must(rbacv1.AddToScheme(s))
	api, err := client.New(apiserver.ForTest(w).Config(), client.Options{Scheme: s})
	w.must(err)
	role := &rbacv1.Role{ObjectMeta: metav1.ObjectMeta{Namespace: w.namespace, Name: user}}
	for resource, may := range verbs {
		role.Rules = append(role.Rules, rbacv1.PolicyRule{APIGroups: []string{"", v1alpha1.GroupVersion.Group}, Resources: []string{resource}, Verbs: may})
	}
	w.must(api.Create(w.Context(), role))
	w.must(api.Create(w.Context(), &rbacv1.RoleBinding{
		ObjectMeta: metav1.ObjectMeta{Namespace: w.namespace, Name: user},
		RoleRef:    rbacv1.RoleRef{APIGroup: rbacv1.GroupName, Kind: "Role", Name: user},
		Subjects:   []rbacv1.Subject{{APIGroup: rbacv1.GroupName, Kind: rbacv1.UserKind, Name: user}},
	}))
	for { // the authorizer learns of it a moment later
		if status, _, _ := w.run("status", "--as", user); status == ExitOK {
			return
		}
	}
}

// lineReader reads the output of a command.
type lineReader struct {
	*bufio.Scanner
	lines []string
}

func newReader(in io.Reader) *lineReader { return &lineReader{Scanner: bufio.NewScanner(in)} }

// until reads up to the first line that contains a text.
func (r *lineReader) until(t *testing.T, text string) string {
	t.Helper()
	for r.Scan() {
		r.lines = append(r.lines, r.Text())
		if strings.Contains(r.Text(), text) {
			return r.Text()
		}
	}
	t.Fatalf("it ended before it said %q:\n%s", text, strings.Join(r.lines, "\n"))
	return ""
}

func (r *lineReader) count(text string) int {
	return len(slices.DeleteFunc(slices.Clone(r.lines), func(line string) bool { return !strings.Contains(line, text) }))
}

func (r *lineReader) drain() {
	for r.Scan() {
		continue
	}
}
