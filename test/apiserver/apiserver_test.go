//go:build linux

package apiserver

import (
	"context"
	"os"
	"path/filepath"
	"strings"
	"testing"

	authenticationv1 "k8s.io/api/authentication/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/rest"

	"github.com/singletonjob/operator/test/controlplane"
	"github.com/singletonjob/operator/test/subprocess"
)

// asOwner makes this test binary a process that owns an API server and waits to be killed.
const asOwner = "APISERVER_TEST_OWNER"

func TestMain(m *testing.M) {
	dir := os.Getenv(asOwner)
	if dir == "" {
		os.Exit(Main(m))
	}
	server, _, err := start(context.Background(), controlplane.Options{Dir: dir})
	if err != nil {
		panic(err)
	}
	os.Stdout.WriteString(server.URL() + "\n")
	select {}
}

func client(t *testing.T, config *rest.Config) kubernetes.Interface {
	t.Helper()
	c, err := kubernetes.NewForConfig(config)
	if err != nil {
		t.Fatal(err)
	}
	return c
}

func TestAKilledOwnerLeavesNoProcess(t *testing.T) {
	t.Parallel()
	subprocess.KilledOwner(t, asOwner, 2) // etcd and kube-apiserver
}

func TestStopLeavesNothing(t *testing.T) {
	t.Parallel()
	server, stop, err := start(t.Context(), controlplane.Options{})
	if err != nil {
		t.Fatal(err)
	}
	if running := processesIn(t, server.Dir()); len(running) != 2 {
		t.Errorf("want etcd and kube-apiserver to run in %s, found %v", server.Dir(), running)
	}
	stop()
	if left := processesIn(t, server.Dir()); len(left) > 0 {
		t.Errorf("still running: %v", left)
	}
	if _, err := os.Stat(server.Dir()); !os.IsNotExist(err) {
		t.Errorf("%s is still there (%v)", server.Dir(), err)
	}
}

func processesIn(t *testing.T, dir string) []int {
	t.Helper()
	found, err := subprocess.In(dir)
	if err != nil {
		t.Fatal(err)
	}
	return found
}

func TestBadFlagErrorQuotesTheProgram(t *testing.T) {
	t.Parallel()
	_, _, err := start(t.Context(), controlplane.Options{APIServerFlags: []string{"--no-such-flag"}})
	if err == nil || !strings.Contains(err.Error(), "no-such-flag") {
		t.Errorf("want an error that names the flag, got %v", err)
	}
}

func TestServiceAccountsAuthenticateAndAreAuthorizedByRBAC(t *testing.T) {
	t.Parallel()
	server := ForTest(t)
	namespace := server.Namespace(t)
	admin := client(t, server.Config())
	token, err := admin.CoreV1().ServiceAccounts(namespace).CreateToken(t.Context(), "default", &authenticationv1.TokenRequest{}, metav1.CreateOptions{})
	if err != nil {
		t.Fatal(err)
	}
	config := server.Config()
	config.BearerToken = token.Status.Token
	account := client(t, config)
	who, err := account.AuthenticationV1().SelfSubjectReviews().Create(t.Context(), &authenticationv1.SelfSubjectReview{}, metav1.CreateOptions{})
	if err != nil {
		t.Fatal(err)
	}
	if got, want := who.Status.UserInfo.Username, "system:serviceaccount:"+namespace+":default"; got != want {
		t.Errorf("the token is %s's, want %s's", got, want)
	}
	if _, err := account.CoordinationV1().Leases(namespace).List(t.Context(), metav1.ListOptions{}); !apierrors.IsForbidden(err) {
		t.Errorf("an account without a role listed Leases: %v", err)
	}
	config = server.Config()
	config.Impersonate = rest.ImpersonationConfig{UserName: "somebody"}
	if _, err := client(t, config).CoreV1().Pods(namespace).List(t.Context(), metav1.ListOptions{}); !apierrors.IsForbidden(err) {
		t.Errorf("an impersonated user without a role listed pods: %v", err)
	}
	ca, err := admin.CoreV1().ConfigMaps(namespace).Get(t.Context(), "kube-root-ca.crt", metav1.GetOptions{})
	if err != nil || ca.Data["ca.crt"] != string(server.CA()) {
		t.Errorf("kube-root-ca.crt does not hold the authority's certificate (%v)", err)
	}
}

func TestKubectlAppliesDefinitionsAndWaitsForThem(t *testing.T) {
	t.Parallel()
	server := ForTest(t)
	file := filepath.Join(t.TempDir(), "crd.yaml")
	if err := os.WriteFile(file, []byte(definition), 0o600); err != nil {
		t.Fatal(err)
	}
	if err := server.Apply(t.Context(), file); err != nil {
		t.Fatal(err)
	}
	if out, err := server.Kubectl(t.Context(), "get", "gadgets.test.singletonjob.io", "-A", "-o", "name"); err != nil || out != "" {
		t.Errorf("listing the new kind: %q, %v", out, err)
	}
	if _, err := server.Kubectl(t.Context(), "get", "nonsense"); err == nil || !strings.Contains(err.Error(), "nonsense") {
		t.Errorf("the error does not say what kubectl said: %v", err)
	}
}

const definition = `
apiVersion: apiextensions.k8s.io/v1
kind: CustomResourceDefinition
metadata: {name: gadgets.test.singletonjob.io}
spec:
  group: test.singletonjob.io
  scope: Namespaced
  names: {kind: Gadget, listKind: GadgetList, plural: gadgets, singular: gadget}
  versions:
  - {name: v1, served: true, storage: true, schema: {openAPIV3Schema: {type: object}}}
`
