//go:build linux

package controlplane_test

import (
	"context"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
	"time"

	authenticationv1 "k8s.io/api/authentication/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/rest"

	"github.com/singletonjob/operator/test/controlplane"
)

// asOwner makes this test binary a process that owns a control plane and waits to be killed.
const asOwner = "CONTROLPLANE_TEST_OWNER"

func TestMain(m *testing.M) {
	if os.Getenv(asOwner) == "" {
		os.Exit(controlplane.Main(m))
	}
	plane, err := controlplane.Start(context.Background(), controlplane.Options{Dir: os.Getenv(asOwner)})
	if err != nil {
		panic(err)
	}
	os.Stdout.WriteString(plane.URL() + "\n")
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

func TestServiceAccountsAuthenticateAndAreAuthorizedByRBAC(t *testing.T) {
	t.Parallel()
	plane := controlplane.ForTest(t)
	namespace := plane.Namespace(t)
	admin := client(t, plane.Config())
	token, err := admin.CoreV1().ServiceAccounts(namespace).CreateToken(t.Context(), "default", &authenticationv1.TokenRequest{}, metav1.CreateOptions{})
	if err != nil {
		t.Fatal(err)
	}
	config := plane.Config()
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
	config = plane.Config()
	config.Impersonate = rest.ImpersonationConfig{UserName: "somebody"}
	if _, err := client(t, config).CoreV1().Pods(namespace).List(t.Context(), metav1.ListOptions{}); !apierrors.IsForbidden(err) {
		t.Errorf("an impersonated user without a role listed pods: %v", err)
	}
	ca, err := admin.CoreV1().ConfigMaps(namespace).Get(t.Context(), "kube-root-ca.crt", metav1.GetOptions{})
	if err != nil || ca.Data["ca.crt"] != string(plane.CA()) {
		t.Errorf("kube-root-ca.crt does not hold the authority's certificate (%v)", err)
	}
}

func TestKubectlAppliesDefinitionsAndWaitsForThem(t *testing.T) {
	t.Parallel()
	plane := controlplane.ForTest(t)
	file := filepath.Join(t.TempDir(), "crd.yaml")
	if err := os.WriteFile(file, []byte(definition), 0o600); err != nil {
		t.Fatal(err)
	}
	if err := plane.Apply(t.Context(), file); err != nil {
		t.Fatal(err)
	}
	if out, err := plane.Kubectl(t.Context(), "get", "gadgets.test.singletonjob.io", "-A", "-o", "name"); err != nil || out != "" {
		t.Errorf("listing the new kind: %q, %v", out, err)
	}
	if _, err := plane.Kubectl(t.Context(), "get", "nonsense"); err == nil || !strings.Contains(err.Error(), "nonsense") {
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

func TestFaultsOfTheControlPlane(t *testing.T) {
	t.Parallel()
	plane, err := controlplane.Start(t.Context(), controlplane.Options{APIServerFlags: []string{"--event-ttl=10m"}})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(plane.Stop)
	namespace := plane.Namespace(t)
	admin := client(t, plane.Config())
	write := func(ctx context.Context) error {
		_, err := admin.CoreV1().ServiceAccounts(namespace).Patch(ctx, "default", "application/merge-patch+json",
			[]byte(`{"metadata":{"annotations":{"at":"`+time.Now().String()+`"}}}`), metav1.PatchOptions{})
		return err
	}

	url := plane.URL()
	if err := plane.StartAPIServer(t.Context()); err == nil {
		t.Error("a second API server was started beside the first")
	}
	plane.StopAPIServer()
	if err := write(t.Context()); err == nil {
		t.Error("a write succeeded without an API server")
	}
	if err := plane.StartAPIServer(t.Context()); err != nil {
		t.Fatal(err)
	}
	if plane.URL() != url {
		t.Errorf("the API server moved from %s to %s", url, plane.URL())
	}
	if _, err := admin.CoreV1().Namespaces().Get(t.Context(), namespace, metav1.GetOptions{}); err != nil {
		t.Errorf("the data did not survive the restart: %v", err)
	}
}

func TestStopLeavesNothing(t *testing.T) {
	t.Parallel()
	plane, err := controlplane.Start(t.Context(), controlplane.Options{})
	if err != nil {
		t.Fatal(err)
	}
	if len(processesIn(t, plane.Dir())) != 2 {
		t.Errorf("want etcd and kube-apiserver to run in %s, found %v", plane.Dir(), processesIn(t, plane.Dir()))
	}
	plane.Stop()
	plane.Stop()
	if left := processesIn(t, plane.Dir()); len(left) > 0 {
		t.Errorf("still running: %v", left)
	}
	if _, err := os.Stat(plane.Dir()); !os.IsNotExist(err) {
		t.Errorf("%s is still there (%v)", plane.Dir(), err)
	}
}

func TestAKilledOwnerLeavesNoProcess(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	owner := exec.Command(os.Args[0])
	owner.Env = append(os.Environ(), asOwner+"="+dir)
	out, err := owner.StdoutPipe()
	if err != nil {
		t.Fatal(err)
	}
	owner.Stderr = os.Stderr
	if err := owner.Start(); err != nil {
		t.Fatal(err)
	}
	if _, err := io.ReadAtLeast(out, make([]byte, 256), len("https://")); err != nil {
		t.Fatal(err)
	}
	if running := processesIn(t, dir); len(running) != 2 {
		t.Fatalf("want etcd and kube-apiserver to run in %s, found %v", dir, running)
	}
	_ = owner.Process.Kill()
	_ = owner.Wait()
	for deadline := time.Now().Add(5 * time.Minute); len(processesIn(t, dir)) > 0; time.Sleep(5 * time.Millisecond) {
		if time.Now().After(deadline) {
			t.Fatalf("still running long after their owner was killed: %v", processesIn(t, dir))
		}
	}
}

// processesIn lists the living processes whose working directory is dir.
func processesIn(t *testing.T, dir string) []string {
	t.Helper()
	links, err := filepath.Glob("/proc/[0-9]*/cwd")
	if err != nil {
		t.Fatal(err)
	}
	var found []string
	for _, link := range links {
		if target, err := os.Readlink(link); err == nil && strings.TrimSuffix(target, " (deleted)") == dir {
			found = append(found, filepath.Base(filepath.Dir(link)))
		}
	}
	return found
}

func TestABadFlagIsToldWithTheProgramsOwnWords(t *testing.T) {
	t.Parallel()
	_, err := controlplane.Start(t.Context(), controlplane.Options{APIServerFlags: []string{"--no-such-flag"}})
	if err == nil || !strings.Contains(err.Error(), "no-such-flag") {
		t.Errorf("want an error that names the flag, got %v", err)
	}
}

func TestPortsLieBelowThoseOfOutgoingConnections(t *testing.T) {
	t.Parallel()
	seen := map[int]bool{}
	for range 50 {
		port, err := controlplane.FreePort()
		if err != nil {
			t.Fatal(err)
		}
		if port < 1024 || port >= 32768 || seen[port] {
			t.Errorf("port %d is privileged, an outgoing connection's, or given out twice", port)
		}
		seen[port] = true
	}
}
