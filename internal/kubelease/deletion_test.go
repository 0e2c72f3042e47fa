//go:build linux

package kubelease

import (
	"net/http"
	"os"
	"strings"
	"testing"
	"time"

	authenticationv1 "k8s.io/api/authentication/v1"
	corev1 "k8s.io/api/core/v1"
	rbacv1 "k8s.io/api/rbac/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
)

// podJSON is the metadata of a Pod, with more fields.
func podJSON(more string) string {
	return `{"kind":"PartialObjectMetadata","apiVersion":"meta.k8s.io/v1","metadata":{"name":"pod","namespace":"ns","uid":"uid"` + more + `}}`
}

func TestDeletion(t *testing.T) {
	const deleted = `,"deletionTimestamp":"2030-01-02T03:04:05Z"`
	for name, row := range map[string]struct {
		answer http.HandlerFunc
		want   Deletion
		err    string // a part of it
	}{
		"not deleted":           {answer: say(200, podJSON("")), want: Deletion{}},
		"deleted":               {answer: say(200, podJSON(deleted+`,"deletionGracePeriodSeconds":5`)), want: Deletion{Requested: true, GracePeriod: 5 * time.Second}},
		"forced":                {answer: say(200, podJSON(deleted+`,"deletionGracePeriodSeconds":0`)), want: Deletion{Requested: true}},
		"negative":              {answer: say(200, podJSON(deleted+`,"deletionGracePeriodSeconds":-5`)), want: Deletion{Requested: true}},
		"huge":                  {answer: say(200, podJSON(deleted+`,"deletionGracePeriodSeconds":9223372036854775807`)), want: Deletion{Requested: true, GracePeriod: 9223372036 * time.Second}},
		"a period alone":        {answer: say(200, podJSON(`,"deletionGracePeriodSeconds":5`)), want: Deletion{}},
		"no period":             {answer: say(200, podJSON(deleted)), err: "deletionGracePeriodSeconds"},
		"a period as text":      {answer: say(200, podJSON(deleted+`,"deletionGracePeriodSeconds":"5"`)), err: "cannot unmarshal"},
		"too large":             {answer: say(200, podJSON(deleted+`,"deletionGracePeriodSeconds":1e300`)), err: "cannot unmarshal"},
		"another Pod":           {answer: say(200, strings.Replace(podJSON(""), `"uid":"uid"`, `"uid":"other"`, 1)), want: Deletion{Gone: true}},
		"a Pod of another name": {answer: say(200, strings.Replace(podJSON(""), `"name":"pod"`, `"name":"other"`, 1)), err: "other"},
		"no UID":                {answer: say(200, strings.Replace(podJSON(""), `"uid":"uid"`, `"uid":""`, 1)), err: "UID"},
		"a page":                {answer: say(200, "<html>"), err: "invalid character"},
		"gone":                  {answer: say(404, statusJSON(404, "NotFound", "", "pods", "pod")), want: Deletion{Gone: true}},
		"its namespace is gone": {answer: say(404, statusJSON(404, "NotFound", "", "namespaces", "ns")), want: Deletion{Gone: true}},
		"404 about another Pod": {answer: say(404, statusJSON(404, "NotFound", "", "pods", "other")), err: "404"},
		"404 about a Lease":     {answer: say(404, statusJSON(404, "NotFound", "coordination.k8s.io", "leases", "pod")), err: "404"},
		"404 of a proxy":        {answer: say(404, "no such page"), err: "404"},
		"forbidden":             {answer: say(403, statusJSON(403, "Forbidden", "", "pods", "pod")), err: "403"},
		"busy":                  {answer: say(429, "later"), err: "429"},
		"in trouble":            {answer: say(503, ""), err: "503"},
		"broken off":            {answer: hangUp("HTTP/1.1 200 OK\r\nContent-Length: 1000\r\n\r\n" + podJSON("")), err: "broke off"},
	} {
		t.Run(name, func(t *testing.T) {
			c := serve(t, row.answer).client(t)
			got, err := c.Deletion(within(t, 3*time.Minute), "pod", "uid")
			if got != row.want || (err == nil) != (row.err == "") || err != nil && !strings.Contains(err.Error(), row.err) {
				t.Errorf("%+v, %v", got, err)
			}
		})
	}
}

// TestDeletionAsksForTheMetadata: a Pod's spec has the values of variables, which an agent need not read. Requests for the Lease use other
// connections.
func TestDeletionAsksForTheMetadata(t *testing.T) {
	asked := make(chan *http.Request, 1)
	f := serve(t, func(w http.ResponseWriter, r *http.Request) {
		if strings.HasSuffix(r.URL.Path, "/pods/pod") {
			asked <- r
			say(200, podJSON(""))(w, r)
			return
		}
		say(200, leaseJSON(5))(w, r)
	})
	c := f.client(t)
	if _, err := c.Get(within(t, 3*time.Minute), 0); err != nil {
		t.Fatal(err)
	}
	if _, err := c.Deletion(within(t, 3*time.Minute), "pod", "uid"); err != nil {
		t.Fatal(err)
	}
	r := <-asked
	if r.Method != http.MethodGet || r.URL.Path != "/api/v1/namespaces/ns/pods/pod" || r.URL.RawQuery != "" ||
		r.Header.Get("Accept") != "application/json;as=PartialObjectMetadata;g=meta.k8s.io;v=v1" || !strings.HasPrefix(r.Header.Get("Authorization"), "Bearer ") {
		t.Errorf("%s %v with %v", r.Method, r.URL, r.Header)
	}
	if r.Context().Value(connectionKey{}) == int64(1) {
		t.Error("over the connection of the Lease")
	}
}

// TestRealDeletion asks a real API server, with the right that the operator grants.
func TestRealDeletion(t *testing.T) {
	t.Parallel()
	c := newCluster(t)
	ctx := t.Context()
	pods := c.client.CoreV1().Pods(c.ns)
	must := func(err error) {
		t.Helper()
		if err != nil {
			t.Fatal(err)
		}
	}
	ask := func(uid string) Deletion {
		t.Helper()
		d, err := c.ours.Deletion(within(t, 3*time.Minute), "pod", uid)
		must(err)
		return d
	}
	if d := ask("uid"); d != (Deletion{Gone: true}) {
		t.Errorf("before it exists: %+v", d)
	}
	pod, err := pods.Create(ctx, &corev1.Pod{
		ObjectMeta: metav1.ObjectMeta{Name: "pod"},
		Spec:       corev1.PodSpec{NodeName: "node", Containers: []corev1.Container{{Name: "app", Image: "image"}}},
	}, metav1.CreateOptions{})
	must(err)
	uid := string(pod.UID)
	if d := ask(uid); d != (Deletion{}) {
		t.Errorf("not deleted: %+v", d)
	}
	if d := ask("another"); d != (Deletion{Gone: true}) {
		t.Errorf("another Pod: %+v", d)
	}
	for _, row := range []struct{ asked, want time.Duration }{
		{20 * time.Second, 20 * time.Second},
		{25 * time.Second, 20 * time.Second}, // nobody gets more time
		{5 * time.Second, 5 * time.Second},
	} {
		must(pods.Delete(ctx, "pod", metav1.DeleteOptions{GracePeriodSeconds: new(int64(row.asked / time.Second))}))
		if d := ask(uid); d != (Deletion{Requested: true, GracePeriod: row.want}) {
			t.Errorf("deleted within %v: %+v", row.asked, d)
		}
	}
	must(pods.Delete(ctx, "pod", metav1.DeleteOptions{GracePeriodSeconds: new(int64(0))}))
	if d := ask(uid); d != (Deletion{Gone: true}) {
		t.Errorf("forced: %+v", d)
	}
}

// TestRealDeletionByName: get on the names of Pods suffices, and other Pods are refused.
func TestRealDeletionByName(t *testing.T) {
	t.Parallel()
	c := newCluster(t)
	ctx := t.Context()
	meta := metav1.ObjectMeta{Name: "agents"}
	must := func(err error) {
		t.Helper()
		if err != nil {
			t.Fatal(err)
		}
	}
	_, err := c.client.CoreV1().ServiceAccounts(c.ns).Create(ctx, &corev1.ServiceAccount{ObjectMeta: meta}, metav1.CreateOptions{})
	must(err)
	_, err = c.client.RbacV1().Roles(c.ns).Create(ctx, &rbacv1.Role{ObjectMeta: meta, Rules: []rbacv1.PolicyRule{{
		APIGroups: []string{""}, Resources: []string{"pods"}, ResourceNames: []string{"pod"}, Verbs: []string{"get"},
	}}}, metav1.CreateOptions{})
	must(err)
	_, err = c.client.RbacV1().RoleBindings(c.ns).Create(ctx, &rbacv1.RoleBinding{
		ObjectMeta: meta, RoleRef: rbacv1.RoleRef{APIGroup: rbacv1.GroupName, Kind: "Role", Name: "agents"},
		Subjects: []rbacv1.Subject{{Kind: "ServiceAccount", Name: "agents", Namespace: c.ns}},
	}, metav1.CreateOptions{})
	must(err)
	token, err := c.client.CoreV1().ServiceAccounts(c.ns).CreateToken(ctx, "agents", &authenticationv1.TokenRequest{}, metav1.CreateOptions{})
	must(err)
	config := c.ours.config
	ca, err := os.ReadFile(c.ours.pods.caFile())
	must(err)
	config.Credentials = credentials(t, ca, token.Status.Token)
	limited := newClient(t, config)
	for began := time.Now(); ; time.Sleep(50 * time.Millisecond) {
		d, err := limited.Deletion(within(t, 3*time.Minute), "pod", "uid")
		if err == nil {
			if d != (Deletion{Gone: true}) {
				t.Errorf("%+v", d)
			}
			break
		}
		if !strings.Contains(err.Error(), "403") || time.Since(began) > 5*time.Minute {
			t.Fatal(err)
		}
	}
	if _, err := limited.Deletion(within(t, 3*time.Minute), "other", "uid"); err == nil || !strings.Contains(err.Error(), "403") {
		t.Errorf("of another Pod: %v", err)
	}
	if _, err := c.client.CoreV1().Pods(c.ns).Get(ctx, "pod", metav1.GetOptions{}); !apierrors.IsNotFound(err) {
		t.Errorf("the Pod: %v", err)
	}
}
