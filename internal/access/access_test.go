//go:build linux

package access

import (
	"context"
	"encoding/base64"
	"fmt"
	"io"
	"net/http"
	"net/http/httptest"
	"os"
	"strings"
	"testing"
	"time"

	"github.com/go-logr/logr"
	authenticationv1 "k8s.io/api/authentication/v1"
	corev1 "k8s.io/api/core/v1"
	rbacv1 "k8s.io/api/rbac/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/rest"
	clocktesting "k8s.io/utils/clock/testing"

	"github.com/singletonjob/operator/test/apiserver"
	"github.com/singletonjob/operator/test/faultproxy"
)

func TestMain(m *testing.M) { os.Exit(apiserver.Main(m)) }

// world is an operator that serves metrics, with its own connection to a real API server, and accounts that request the metrics.
type world struct {
	*testing.T
	client    kubernetes.Interface
	namespace string
	proxy     *faultproxy.Proxy
	clock     *clocktesting.FakePassiveClock
	reviewer  *Reviewer
	url       string
}

func newWorld(t *testing.T) *world {
	t.Helper()
	plane := apiserver.ForTest(t)
	w := &world{T: t, namespace: plane.Namespace(t), clock: clocktesting.NewFakePassiveClock(time.Now())}
	var err error
	w.client, err = kubernetes.NewForConfig(plane.Config())
	w.must(err)
	w.proxy, err = faultproxy.Start(faultproxy.Options{Listen: "127.0.0.1:0", Upstream: plane.URL(), UpstreamCA: plane.CA()})
	w.must(err)
	t.Cleanup(w.proxy.Close)

	config := &rest.Config{Host: w.proxy.URL(), BearerToken: w.account("operator")}
	httpClient, err := rest.HTTPClientFor(config)
	w.must(err)
	w.reviewer, err = New(config, httpClient, w.clock)
	w.must(err)
	handler, err := w.reviewer.Filter(logr.Discard(), http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) {
		_, _ = io.WriteString(w, "secret figures")
	}))
	w.must(err)
	server := httptest.NewServer(handler)
	t.Cleanup(server.Close)
	w.url = server.URL
	return w
}

func (w *world) must(err error) {
	w.Helper()
	if err != nil {
		w.Fatal(err)
	}
}

// account creates a service account and a token for it.
func (w *world) account(name string) string {
	w.Helper()
	accounts := w.client.CoreV1().ServiceAccounts(w.namespace)
	_, err := accounts.Create(w.Context(), &corev1.ServiceAccount{ObjectMeta: metav1.ObjectMeta{Name: name}}, metav1.CreateOptions{})
	w.must(err)
	token, err := accounts.CreateToken(w.Context(), name, &authenticationv1.TokenRequest{}, metav1.CreateOptions{})
	w.must(err)
	return token.Status.Token
}

// grant grants an account a right with a role of the same name. Deleting the role revokes the right.
func (w *world) grant(account string, rules ...rbacv1.PolicyRule) (name string) {
	w.Helper()
	meta := metav1.ObjectMeta{Name: w.namespace + ":" + account}
	_, err := w.client.RbacV1().ClusterRoles().Create(w.Context(), &rbacv1.ClusterRole{ObjectMeta: meta, Rules: rules}, metav1.CreateOptions{})
	w.must(err)
	_, err = w.client.RbacV1().ClusterRoleBindings().Create(w.Context(), &rbacv1.ClusterRoleBinding{
		ObjectMeta: meta, RoleRef: rbacv1.RoleRef{APIGroup: rbacv1.GroupName, Kind: "ClusterRole", Name: meta.Name},
		Subjects: []rbacv1.Subject{{Kind: rbacv1.ServiceAccountKind, Namespace: w.namespace, Name: account}},
	}, metav1.CreateOptions{})
	w.must(err)
	w.Cleanup(func() {
		_ = w.client.RbacV1().ClusterRoleBindings().Delete(context.Background(), meta.Name, metav1.DeleteOptions{})
		_ = w.client.RbacV1().ClusterRoles().Delete(context.Background(), meta.Name, metav1.DeleteOptions{})
	})
	return meta.Name
}

// The rights of the chart's roles.
var (
	toAsk = []rbacv1.PolicyRule{
		{APIGroups: []string{"authentication.k8s.io"}, Resources: []string{"tokenreviews"}, Verbs: []string{"create"}},
		{APIGroups: []string{"authorization.k8s.io"}, Resources: []string{"subjectaccessreviews"}, Verbs: []string{"create"}},
	}
	toRead = rbacv1.PolicyRule{NonResourceURLs: []string{"/metrics"}, Verbs: []string{"get"}}
)

// get is the response to a request with these headers.
func (w *world) get(method, path string, authorization ...string) (code int, text string) {
	w.Helper()
	request, err := http.NewRequestWithContext(w.Context(), method, w.url+path, nil)
	w.must(err)
	for _, value := range authorization {
		request.Header.Add("Authorization", value)
	}
	response, err := http.DefaultClient.Do(request)
	w.must(err)
	defer response.Body.Close()
	body, err := io.ReadAll(response.Body)
	w.must(err)
	if challenge := response.Header.Get("WWW-Authenticate"); (challenge != "") != (response.StatusCode == http.StatusUnauthorized) {
		w.Errorf("%d comes with the challenge %q", response.StatusCode, challenge)
	}
	if (response.StatusCode == http.StatusOK) != strings.Contains(string(body), "secret") {
		w.Errorf("%d comes with %q", response.StatusCode, body)
	}
	return response.StatusCode, string(body)
}

// until repeats a request, with empty caches, until the API server's own caches have the answer.
func (w *world) until(want int, token string) {
	w.Helper()
	deadline := time.Now().Add(5 * time.Minute)
	for {
		code, text := w.get(http.MethodGet, "/metrics", "Bearer "+token)
		if code == want {
			return
		}
		if time.Now().After(deadline) {
			w.Fatalf("still %d %q, want %d", code, text, want)
		}
		w.clock.SetTime(w.clock.Now().Add(allowedFor))
		time.Sleep(200 * time.Millisecond)
	}
}

func (w *world) asked() int { return len(w.proxy.Seen()) }

// TestAccess checks the response to each kind of client.
func TestAccess(t *testing.T) {
	w := newWorld(t)
	reader, stranger := w.account("reader"), w.account("stranger")
	w.until(http.StatusServiceUnavailable, reader)
	if err := w.reviewer.MayAsk(t.Context()); err == nil || !strings.Contains(err.Error(), "may not create tokenreviews") || !strings.Contains(err.Error(), remedy) {
		t.Errorf("without the right to ask it says %v", err)
	}
	w.grant("operator", toAsk...)
	w.until(http.StatusForbidden, reader)
	if err := w.reviewer.MayAsk(t.Context()); err != nil {
		t.Errorf("with the right to ask it says %v", err)
	}
	w.grant("reader", toRead)
	w.until(http.StatusOK, reader)

	payload := strings.Split(reader, ".")
	forged := payload[0] + "." + base64.RawURLEncoding.EncodeToString([]byte(`{"sub":"system:admin"}`)) + "." + payload[2]
	for name, c := range map[string]struct {
		method, path  string
		authorization []string
		code          int
		says          string
	}{
		"who may":                {authorization: []string{"Bearer " + reader}, code: http.StatusOK},
		"in small letters":       {authorization: []string{"bearer " + reader}, code: http.StatusOK},
		"nobody":                 {code: http.StatusUnauthorized, says: "send one Authorization header"},
		"a password":             {authorization: []string{"Basic " + reader}, code: http.StatusUnauthorized, says: "no bearer token"},
		"an empty token":         {authorization: []string{"Bearer "}, code: http.StatusUnauthorized, says: "no bearer token"},
		"a bad token":            {authorization: []string{"Bearer bad"}, code: http.StatusUnauthorized, says: "does not accept"},
		"a forged token":         {authorization: []string{"Bearer " + forged}, code: http.StatusUnauthorized, says: "does not accept"},
		"a token without an end": {authorization: []string{"Bearer " + strings.Repeat("x", maxToken+1)}, code: http.StatusUnauthorized, says: "longer than"},
		"two tokens":             {authorization: []string{"Bearer bad", "Bearer " + reader}, code: http.StatusUnauthorized, says: "send one Authorization header"},
		"in the address":         {path: "/metrics?access_token=" + reader, code: http.StatusUnauthorized, says: "send one Authorization header"},
		"without the right":      {authorization: []string{"Bearer " + stranger}, code: http.StatusForbidden, says: "serviceaccount:" + w.namespace + ":stranger may not get /metrics"},
		"to do something else":   {method: http.MethodPost, authorization: []string{"Bearer " + reader}, code: http.StatusForbidden, says: "may not post"},
		"something else":         {path: "/debug", authorization: []string{"Bearer " + reader}, code: http.StatusForbidden, says: "may not get /debug"},
	} {
		t.Run(name, func(t *testing.T) {
			if c.path == "" {
				c.path = "/metrics"
			}
			if code, text := w.get(c.method, c.path, c.authorization...); code != c.code || !strings.Contains(text, c.says) || strings.Contains(text, reader) {
				t.Errorf("is told %d %q, want %d %q", code, text, c.code, c.says)
			}
		})
	}
}

// TestAnswersAreCached: cached answers expire, and a missing answer is not cached.
func TestAnswersAreCached(t *testing.T) {
	w := newWorld(t)
	w.grant("operator", toAsk...)
	reader, second := w.account("reader"), w.account("second")
	right := w.grant("reader", toRead)
	w.grant("second", toRead)
	w.until(http.StatusOK, second)
	w.until(http.StatusOK, reader)

	before := w.asked()
	for range 10 {
		w.until(http.StatusOK, reader)
	}
	if more := w.asked() - before; more > 0 {
		t.Errorf("ten more scrapes ask the API server %d times", more)
	}
	w.get(http.MethodGet, "/metrics", "Bearer bad")
	before = w.asked()
	if code, _ := w.get(http.MethodGet, "/metrics", "Bearer bad"); code != http.StatusUnauthorized || w.asked() > before {
		t.Errorf("a bad token is told %d, and asked about %d times more", code, w.asked()-before)
	}

	w.proxy.Refuse()
	if code, _ := w.get(http.MethodGet, "/metrics", "Bearer "+reader); code != http.StatusOK {
		t.Errorf("while the API server is down, who was allowed is told %d", code)
	}
	if code, _ := w.get(http.MethodGet, "/metrics", "Bearer unknown"); code != http.StatusServiceUnavailable {
		t.Errorf("while the API server is down, who was never seen is told %d", code)
	}
	w.clock.SetTime(w.clock.Now().Add(allowedFor))
	if code, _ := w.get(http.MethodGet, "/metrics", "Bearer "+reader); code != http.StatusServiceUnavailable {
		t.Errorf("when the answer is old, and there is no other, it is still %d", code)
	}
	if err := w.reviewer.MayAsk(t.Context()); err != nil {
		t.Errorf("an API server that is down says nothing of rights: %v", err)
	}
	w.must(w.proxy.Heal())
	w.until(http.StatusOK, reader)
	w.proxy.Cut()
	w.reviewer.timeout = 100 * time.Millisecond
	if code, _ := w.get(http.MethodGet, "/metrics", "Bearer hangs"); code != http.StatusServiceUnavailable {
		t.Errorf("while the API server hangs, it is %d", code)
	}
	w.reviewer.timeout = timeout
	w.must(w.proxy.Heal())

	// A revoked right, and a token whose account is deleted, keep working for a minute and no longer.
	w.until(http.StatusOK, second)
	w.until(http.StatusOK, reader)
	w.must(w.client.RbacV1().ClusterRoleBindings().Delete(t.Context(), right, metav1.DeleteOptions{}))
	w.must(w.client.CoreV1().ServiceAccounts(w.namespace).Delete(t.Context(), "second", metav1.DeleteOptions{}))
	w.clock.SetTime(w.clock.Now().Add(allowedFor - time.Second))
	if code, _ := w.get(http.MethodGet, "/metrics", "Bearer "+reader); code != http.StatusOK {
		t.Errorf("within a minute it is %d", code)
	}
	w.until(http.StatusForbidden, reader)
	w.until(http.StatusUnauthorized, second)
}

// TestMemoryIsBounded: a client that guesses tokens uses bounded memory, and evicts no other client.
func TestMemoryIsBounded(t *testing.T) {
	w := newWorld(t)
	w.grant("operator", toAsk...)
	w.grant("reader", toRead)
	w.until(http.StatusOK, w.account("reader"))
	for i := range 2 * remembered {
		w.reviewer.refused.Add(question{path: fmt.Sprint(i)}, verdict{code: http.StatusUnauthorized})
	}
	if n, allowed := w.reviewer.refused.Len(), w.reviewer.allowed.Len(); n != remembered || allowed != 1 {
		t.Errorf("%d refusals are remembered, want %d, beside %d that are allowed", n, remembered, allowed)
	}
}
