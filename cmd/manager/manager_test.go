//go:build linux

package main

import (
	"bytes"
	"context"
	"fmt"
	"io"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"syscall"
	"testing"
	"time"

	authenticationv1 "k8s.io/api/authentication/v1"
	authorizationv1 "k8s.io/api/authorization/v1"
	corev1 "k8s.io/api/core/v1"
	rbacv1 "k8s.io/api/rbac/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/kubernetes"

	"github.com/singletonjob/operator/internal/contract"
	"github.com/singletonjob/operator/test/controlplane"
	"github.com/singletonjob/operator/test/subprocess"
)

// asManager makes this test binary the operator itself.
const asManager = "MANAGER_TEST_RUN"

func TestMain(m *testing.M) {
	if os.Getenv(asManager) != "" {
		main()
		return
	}
	os.Exit(controlplane.Main(m))
}

func TestCommandLine(t *testing.T) {
	t.Setenv("AGENT_IMAGE", "")
	for name, c := range map[string]struct {
		args []string
		says string
	}{
		"good":                 {args: []string{"--agent-image=x"}},
		"no agent image":       {says: "--agent-image or AGENT_IMAGE"},
		"bad pull policy":      {args: []string{"--agent-image=x", "--agent-image-pull-policy=sometimes"}, says: `"sometimes" is none of Always`},
		"nobody works":         {args: []string{"--agent-image=x", "--concurrency=0"}, says: "--concurrency 0 is less than 1"},
		"stray argument":       {args: []string{"--agent-image=x", "y"}, says: `unexpected argument "y"`},
		"unknown flag":         {args: []string{"--nonsense"}, says: "nonsense"},
		"help names the flags": {args: []string{"--help"}, says: "-agent-image"},
	} {
		t.Run(name, func(t *testing.T) {
			var out bytes.Buffer
			_, err := parse(c.args, &out)
			if (err != nil) != (c.says != "") || !strings.Contains(out.String(), c.says) {
				t.Errorf("got %v and the text %q, want it to say %q", err, out.String(), c.says)
			}
		})
	}
}

func must(t *testing.T, err error) {
	t.Helper()
	if err != nil {
		t.Fatal(err)
	}
}

// TestTheProgramWorksWithTheRightsItAsksFor runs the operator as it is installed: elected, with the generated role and no
// other right, in one namespace.
func TestTheProgramWorksWithTheRightsItAsksFor(t *testing.T) {
	t.Parallel()
	plane := controlplane.ForTest(t)
	must(t, plane.Apply(t.Context(), "../../config/crd", "../../config/rbac"))
	namespace := plane.Namespace(t)
	address := startManager(t, plane, namespace)

	job := filepath.Join(t.TempDir(), "job.yaml")
	must(t, os.WriteFile(job, fmt.Appendf(nil, sample, namespace), 0o600))
	must(t, plane.Apply(t.Context(), job))
	client, err := kubernetes.NewForConfig(plane.Config())
	must(t, err)
	eventually(t, "two candidates", func() string {
		pods, err := client.CoreV1().Pods(namespace).List(t.Context(), metav1.ListOptions{LabelSelector: contract.NameLabel + "=job"})
		if err == nil && len(pods.Items) == 2 {
			return ""
		}
		return fmt.Sprintf("%d pods, %v", len(pods.Items), err)
	})
	lease, err := client.CoordinationV1().Leases(namespace).Get(t.Context(), "job", metav1.GetOptions{})
	must(t, err)
	if len(lease.OwnerReferences) > 0 {
		t.Errorf("the Lease is owned: %v", lease.OwnerReferences)
	}
	eventually(t, "a status", func() string {
		out, err := plane.Kubectl(t.Context(), "get", "-n", namespace, "sj", "job", "-o", "jsonpath={.status.candidates.summary}")
		if out == "0/2" {
			return ""
		}
		return fmt.Sprint(out, err)
	})
	for path, want := range map[string]string{
		address[0] + "/metrics": `singletonjob_candidates_desired{name="job",namespace="` + namespace + `"} 2`,
		address[1] + "/healthz": "ok",
		address[1] + "/readyz":  "ok",
	} {
		eventually(t, path+" to say "+want, func() string {
			if body := fetch(t, "http://"+path); !strings.Contains(body, want) {
				return body
			}
			return ""
		})
	}
	// The Lease of a job that is gone is collected once its pods are gone; nobody else deletes them here.
	_, err = plane.Kubectl(t.Context(), "delete", "-n", namespace, "sj", "job")
	must(t, err)
	// Then the operator replaces no pod any more: nobody would collect it.
	eventually(t, "metrics without the job", func() string {
		if body := fetch(t, "http://"+address[0]+"/metrics"); !strings.Contains(body, "controller_runtime") || strings.Contains(body, `name="job",namespace="`+namespace) {
			return body
		}
		return ""
	})
	must(t, client.CoreV1().Pods(namespace).DeleteCollection(t.Context(), metav1.DeleteOptions{GracePeriodSeconds: new(int64)}, metav1.ListOptions{}))
	eventually(t, "no Lease", func() string {
		out, err := plane.Kubectl(t.Context(), "get", "-n", namespace, "leases", "-o", "name", "-l", contract.NameLabel+"=job")
		return out + errText(err)
	})
}

const sample = `
apiVersion: singletonjob.io/v1alpha1
kind: SingletonJob
metadata: {name: job, namespace: %s}
spec: {template: {spec: {containers: [{name: app, image: app, command: [run]}]}}}
`

// startManager returns the addresses of the metrics and of the health probes.
func startManager(t *testing.T, plane *controlplane.ControlPlane, namespace string) [2]string {
	t.Helper()
	client, err := kubernetes.NewForConfig(plane.Config())
	must(t, err)
	account := &corev1.ServiceAccount{ObjectMeta: metav1.ObjectMeta{Name: "operator"}}
	_, err = client.CoreV1().ServiceAccounts(namespace).Create(t.Context(), account, metav1.CreateOptions{})
	must(t, err)
	binding := &rbacv1.ClusterRoleBinding{
		ObjectMeta: metav1.ObjectMeta{Name: namespace},
		RoleRef:    rbacv1.RoleRef{APIGroup: rbacv1.GroupName, Kind: "ClusterRole", Name: "singletonjob-operator"},
		Subjects:   []rbacv1.Subject{{Kind: rbacv1.ServiceAccountKind, Namespace: namespace, Name: "operator"}},
	}
	_, err = client.RbacV1().ClusterRoleBindings().Create(t.Context(), binding, metav1.CreateOptions{})
	must(t, err)
	eventually(t, "the binding to count", func() string {
		review := &authorizationv1.SubjectAccessReview{Spec: authorizationv1.SubjectAccessReviewSpec{
			User:               "system:serviceaccount:" + namespace + ":operator",
			ResourceAttributes: &authorizationv1.ResourceAttributes{Namespace: namespace, Verb: "list", Group: "singletonjob.io", Resource: "singletonjobs"},
		}}
		review, err := client.AuthorizationV1().SubjectAccessReviews().Create(t.Context(), review, metav1.CreateOptions{})
		if err != nil || !review.Status.Allowed {
			return fmt.Sprint(err, " ", review)
		}
		return ""
	})
	token, err := client.CoreV1().ServiceAccounts(namespace).CreateToken(t.Context(), "operator", &authenticationv1.TokenRequest{}, metav1.CreateOptions{})
	must(t, err)
	config := plane.Config()
	config.BearerToken = token.Status.Token
	kubeconfig := filepath.Join(t.TempDir(), "kubeconfig")
	must(t, controlplane.WriteKubeconfig(kubeconfig, config))

	var addresses [2]string
	for i := range addresses {
		port, err := controlplane.FreePort()
		must(t, err)
		addresses[i] = fmt.Sprintf("127.0.0.1:%d", port)
	}
	cmd := exec.Command(os.Args[0], "--kubeconfig="+kubeconfig, "--agent-image=agent", "--namespaces="+namespace,
		"--leader-election-namespace="+namespace, "--metrics-bind-address="+addresses[0], "--health-probe-bind-address="+addresses[1])
	cmd.Env = append(slices.Clone(os.Environ()), asManager+"=1")
	var log bytes.Buffer
	cmd.Stderr = &log
	manager, err := subprocess.Start(cmd)
	must(t, err)
	t.Cleanup(func() {
		_ = manager.Signal(syscall.SIGTERM)
		select {
		case <-manager.Done():
		case <-time.After(time.Minute):
			t.Error("the manager did not end within a minute of SIGTERM")
			manager.Stop(0)
		}
		if t.Failed() || strings.Contains(log.String(), "forbidden") {
			t.Errorf("the manager's log:\n%s", log.String())
		}
	})
	return addresses
}

func eventually(t *testing.T, what string, lacking func() string) {
	t.Helper()
	deadline := time.Now().Add(5 * time.Minute)
	for {
		missing := lacking()
		if missing == "" {
			return
		}
		if time.Now().After(deadline) {
			t.Fatalf("want %s: %s", what, missing)
		}
		time.Sleep(50 * time.Millisecond)
	}
}

func fetch(t *testing.T, url string) string {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), 3*time.Minute)
	defer cancel()
	request, err := http.NewRequestWithContext(ctx, http.MethodGet, url, nil)
	must(t, err)
	response, err := http.DefaultClient.Do(request)
	if err != nil {
		return err.Error()
	}
	defer response.Body.Close()
	body, err := io.ReadAll(response.Body)
	must(t, err)
	return string(body)
}

func errText(err error) string {
	if err != nil {
		return err.Error()
	}
	return ""
}
