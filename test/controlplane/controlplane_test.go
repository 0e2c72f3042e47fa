//go:build linux

package controlplane_test

import (
	"context"
	"os"
	"strings"
	"testing"
	"time"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/rest"

	"github.com/singletonjob/operator/test/controlplane"
	"github.com/singletonjob/operator/test/subprocess"
)

// asOwner makes this test binary a process that owns a control plane and waits to be killed.
const asOwner = "CONTROLPLANE_TEST_OWNER"

func TestMain(m *testing.M) {
	if os.Getenv(asOwner) == "" {
		os.Exit(m.Run())
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

func TestSeveralServers(t *testing.T) {
	t.Parallel()
	plane, err := controlplane.Start(t.Context(), controlplane.Options{Servers: 2})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(plane.Stop)
	answers := func(i int) bool {
		config := plane.Config()
		config.Host = plane.URLs()[i]
		_, err := client(t, config).CoreV1().Namespaces().Get(t.Context(), "kube-system", metav1.GetOptions{})
		return err == nil
	}
	namespace := plane.Namespace(t)
	plane.StopServer(0)
	if answers(0) || !answers(1) {
		t.Errorf("the stopped server answers: %t, the other one: %t", answers(0), answers(1))
	}
	if err := plane.StartAPIServer(t.Context()); err != nil {
		t.Fatal(err)
	}
	plane.KillServer(1)
	if !answers(0) || answers(1) {
		t.Errorf("the killed server answers: %t, the other one: %t", answers(1), answers(0))
	}
	if _, err := client(t, plane.Config()).CoreV1().Namespaces().Get(t.Context(), namespace, metav1.GetOptions{}); err != nil {
		t.Errorf("the servers have different data: %v", err)
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
	subprocess.KilledOwner(t, asOwner, 2) // etcd and kube-apiserver
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
	_, err := controlplane.Start(t.Context(), controlplane.Options{APIServerFlags: []string{"--no-such-flag"}})
	if err == nil || !strings.Contains(err.Error(), "no-such-flag") {
		t.Errorf("want an error that names the flag, got %v", err)
	}
}

func TestPortsAreBelowTheEphemeralRange(t *testing.T) {
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
