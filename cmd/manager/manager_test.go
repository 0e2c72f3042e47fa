//go:build linux

package main

import (
	"bytes"
	"context"
	"crypto/tls"
	"crypto/x509"
	"fmt"
	"io"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
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
	"github.com/singletonjob/operator/test/apiserver"
	"github.com/singletonjob/operator/test/controlplane"
	"github.com/singletonjob/operator/test/subprocess"
)

// asManager makes this test binary the operator.
const asManager = "MANAGER_TEST_RUN"

func TestMain(m *testing.M) {
	if os.Getenv(asManager) != "" {
		main()
		return
	}
	os.Exit(apiserver.Main(m))
}

func TestCommandLine(t *testing.T) {
	t.Setenv("AGENT_IMAGE", "")
	for name, c := range map[string]struct {
		args []string
		says string
	}{
		"good":                 {args: []string{"--agent-image=x"}},
		"no agent image":       {says: "--agent-image or AGENT_IMAGE"},
		"bad pull policy":      {args: []string{"--agent-image=x", "--agent-image-pull-policy=sometimes"}, says: `"sometimes" must be Always`},
		"nobody works":         {args: []string{"--agent-image=x", "--concurrency=0"}, says: "--concurrency 0 must be at least 1"},
		"fewer than none":      {args: []string{"--agent-image=x", "--fleet-rollouts=-1"}, says: "--fleet-rollouts -1 must not be negative: set how many jobs may be rolled out at a time, or 0"},
		"all at once":          {args: []string{"--agent-image=x", "--fleet-rollouts=0"}},
		"no name in a list":    {args: []string{"--agent-image=x", "--namespaces=a,,b"}, says: `--namespaces "a,,b": "" is not a valid namespace name`},
		"only a comma":         {args: []string{"--agent-image=x", "--namespaces=,"}, says: `"" is not a valid namespace name`},
		"two namespaces":       {args: []string{"--agent-image=x", "--namespaces=a,b-2"}},
		"profiles for all":     {args: []string{"--agent-image=x", "--pprof-bind-address=:6060"}, says: `--pprof-bind-address ":6060" is not a loopback address`},
		"profiles for others":  {args: []string{"--agent-image=x", "--pprof-bind-address=10.0.0.1:6060"}, says: "not a loopback address"},
		"profiles":             {args: []string{"--agent-image=x", "--pprof-bind-address=[::1]:6060"}},
		"a short lease":        {args: []string{"--agent-image=x", "--leader-election-lease-duration=10s"}, says: "--leader-election-lease-duration 10s must be greater than --leader-election-renew-deadline 10s"},
		"half a second":        {args: []string{"--agent-image=x", "--leader-election-lease-duration=15.5s"}, says: "15.5s must be a whole number of seconds"},
		"a late renewal":       {args: []string{"--agent-image=x", "--leader-election-retry-period=9s"}, says: "must be more than 1.2 times --leader-election-retry-period 9s"},
		"no renewal":           {args: []string{"--agent-image=x", "--leader-election-retry-period=0s"}, says: "--leader-election-retry-period 0s must be greater than 0"},
		"a longer election":    {args: []string{"--agent-image=x", "--leader-election-lease-duration=60s", "--leader-election-renew-deadline=40s"}},
		"two minds":            {args: []string{"--agent-image=x", "--metrics-secure=false", "--metrics-cert-path=/c"}, says: "--metrics-cert-path sets a certificate, but --metrics-secure=false uses none"},
		"stray argument":       {args: []string{"--agent-image=x", "y"}, says: `unexpected argument "y"`},
		"unknown flag":         {args: []string{"--nonsense"}, says: "nonsense"},
		"bad registry":         {args: []string{"--agent-image=x", "--entrypoint-insecure-registries=https://r/"}, says: `"https://r/" is not a registry`},
		"no such certificates": {args: []string{"--agent-image=x", "--entrypoint-ca-file=/none"}, says: "--entrypoint-ca-file"},
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

// TestManagerWorksWithItsGeneratedRole runs the operator as it is installed: with leader election, in one namespace, with the
// generated role there and no other right.
func TestManagerWorksWithItsGeneratedRole(t *testing.T) {
	t.Parallel()
	plane := apiserver.ForTest(t)
	must(t, plane.Apply(t.Context(), "../../config/crd", "../../config/rbac"))
	namespace := plane.Namespace(t)
	address := startManager(t, plane, namespace)
	elsewhere := plane.Namespace(t)
	another := filepath.Join(t.TempDir(), "another.yaml")
	must(t, os.WriteFile(another, fmt.Appendf(nil, sample, elsewhere), 0o600))
	must(t, plane.Apply(t.Context(), another))

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
	// The operator sees nothing of the other job. Everything that it does for a job happens within one reconcile.
	out, err := plane.Kubectl(t.Context(), "get", "-n", elsewhere, "pods,leases,roles,sj", "-o", "jsonpath={.items[*].metadata.name}{.items[*].status}")
	if out != `job{"observedGeneration":-1}` || err != nil { // as the API server makes it
		t.Errorf("in another namespace there is %q: %v", out, err)
	}
	for url, want := range map[string]string{
		address.metrics:             `singletonjob_candidates_desired{name="job",namespace="` + namespace + `"} 2`,
		address.health + "/healthz": "ok",
		address.health + "/readyz":  "ok",
	} {
		eventually(t, url+" to say "+want, func() string {
			if body := address.fetch(t, url); !strings.Contains(body, want) {
				return body
			}
			return ""
		})
	}
	address.name = metricsAreGuarded(t, address)
	takesAWorkload(t, plane, client, namespace)
	checkShownMetrics(t, address.fetch(t, address.metrics))
	// The operator deletes the Lease of a deleted job once its Pods no longer exist. Here, nothing else deletes the Pods.
	_, err = plane.Kubectl(t.Context(), "delete", "-n", namespace, "sj", "job")
	must(t, err)
	// The operator then replaces no Pods any more. Otherwise nothing would delete them.
	eventually(t, "metrics without the job", func() string {
		if body := address.fetch(t, address.metrics); !strings.Contains(body, "controller_runtime") || strings.Contains(body, `name="job",namespace="`+namespace) {
			return body
		}
		return ""
	})
	must(t, client.CoreV1().Pods(namespace).DeleteCollection(t.Context(), metav1.DeleteOptions{GracePeriodSeconds: new(int64)}, metav1.ListOptions{}))
	eventually(t, "no Lease", func() string {
		out, err := plane.Kubectl(t.Context(), "get", "-n", namespace, "leases", "-o", "name", "-l", contract.NameLabel+"=job")
		return out + errText(err)
	})
	_, err = plane.Kubectl(t.Context(), "delete", "-f", "../../config/crd")
	must(t, err)
	eventually(t, "that it is not ready without the definition", func() string {
		if body := address.fetch(t, address.health+"/readyz"); !strings.Contains(body, "works failed") {
			return body
		}
		return ""
	})
}

// takesAWorkload: the operator learns that a Deployment is scaled to 0, and that its controller has done so.
func takesAWorkload(t *testing.T, plane *controlplane.APIServer, client *kubernetes.Clientset, namespace string) {
	t.Helper()
	file := filepath.Join(t.TempDir(), "web.yaml")
	must(t, os.WriteFile(file, fmt.Appendf(nil, workloadSample, namespace), 0o600))
	must(t, plane.Apply(t.Context(), file))
	eventually(t, "a job that waits for the Deployment", func() string {
		out, err := plane.Kubectl(t.Context(), "get", "-n", namespace, "sj", "web", "-o", `jsonpath={.status.conditions[?(@.type=="Active")].reason}`)
		return strings.TrimPrefix(out, "WorkloadRunning") + errText(err)
	})
	web, err := client.AppsV1().Deployments(namespace).Get(t.Context(), "web", metav1.GetOptions{})
	must(t, err)
	web.Spec.Replicas = new(int32)
	web, err = client.AppsV1().Deployments(namespace).Update(t.Context(), web, metav1.UpdateOptions{})
	must(t, err)
	web.Status.ObservedGeneration = web.Generation
	_, err = client.AppsV1().Deployments(namespace).UpdateStatus(t.Context(), web, metav1.UpdateOptions{})
	must(t, err)
	eventually(t, "its candidates", func() string {
		pods, err := client.CoreV1().Pods(namespace).List(t.Context(), metav1.ListOptions{LabelSelector: contract.NameLabel + "=web,app=web"})
		if err == nil && len(pods.Items) == 2 {
			return ""
		}
		return fmt.Sprintf("%d pods, %v", len(pods.Items), err)
	})
	_, err = plane.Kubectl(t.Context(), "delete", "-n", namespace, "sj/web", "deployment/web")
	must(t, err)
}

const workloadSample = `
apiVersion: apps/v1
kind: Deployment
metadata: {name: web, namespace: %[1]s}
spec:
  replicas: 1
  selector: {matchLabels: {app: web}}
  template: {metadata: {labels: {app: web}}, spec: {containers: [{name: app, image: app, command: [run]}]}}
---
apiVersion: singletonjob.io/v1alpha1
kind: SingletonJob
metadata: {name: web, namespace: %[1]s}
spec: {workloadRef: {apiVersion: apps/v1, kind: Deployment, name: web}}
`

// checkShownMetrics: the metrics of controller-runtime that the chart's alerts and dashboard use exist while a replica leads.
func checkShownMetrics(t *testing.T, served string) {
	t.Helper()
	for _, file := range []string{"rules.yaml", "dashboard.json"} {
		content, err := os.ReadFile("../../charts/singletonjob/monitoring/" + file)
		must(t, err)
		for _, name := range regexp.MustCompile(`controller_runtime_\w+`).FindAllString(string(content), -1) {
			if !strings.Contains(served, name+`{controller="singletonjob"`) {
				t.Errorf("%s asks for %s, which is not in\n%s", file, name, served)
			}
		}
	}
}

const sample = `
apiVersion: singletonjob.io/v1alpha1
kind: SingletonJob
metadata: {name: job, namespace: %s}
spec: {template: {spec: {containers: [{name: app, image: app, command: [run]}]}}}
`

// manager holds the operator's addresses and the credentials for them.
type manager struct {
	metrics, health string
	// token is the token of an account that may read metrics.
	token string
	// certificates is the directory with the certificate of the metrics server, signed by an authority. name is its subject.
	certificates, name string
	trusted            *x509.CertPool
}

// startManager starts the operator as its chart does, with a certificate for its metrics.
func startManager(t *testing.T, plane *controlplane.APIServer, namespace string) manager {
	t.Helper()
	client, err := kubernetes.NewForConfig(plane.Config())
	must(t, err)
	account := &corev1.ServiceAccount{ObjectMeta: metav1.ObjectMeta{Name: "operator"}}
	_, err = client.CoreV1().ServiceAccounts(namespace).Create(t.Context(), account, metav1.CreateOptions{})
	must(t, err)
	// Because it is bound only in the namespace, the ClusterRole grants nothing elsewhere and no access to nodes.
	binding := &rbacv1.RoleBinding{
		ObjectMeta: metav1.ObjectMeta{Name: "operator"},
		RoleRef:    rbacv1.RoleRef{APIGroup: rbacv1.GroupName, Kind: "ClusterRole", Name: "singletonjob-operator"},
		Subjects:   []rbacv1.Subject{{Kind: rbacv1.ServiceAccountKind, Namespace: namespace, Name: "operator"}},
	}
	_, err = client.RbacV1().RoleBindings(namespace).Create(t.Context(), binding, metav1.CreateOptions{})
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

	m := mayReadMetrics(t, client, namespace)
	var addresses [2]string
	for i := range addresses {
		port, err := controlplane.FreePort()
		must(t, err)
		addresses[i] = fmt.Sprintf("127.0.0.1:%d", port)
	}
	m.metrics, m.health = "https://"+addresses[0]+"/metrics", "http://"+addresses[1]
	cmd := exec.Command(os.Args[0], "--kubeconfig="+kubeconfig, "--agent-image=agent", "--namespaces="+namespace, "--read-nodes=false",
		"--leader-election-namespace="+namespace, "--metrics-bind-address="+addresses[0], "--health-probe-bind-address="+addresses[1],
		"--metrics-cert-path="+m.certificates)
	cmd.Env = append(slices.Clone(os.Environ()), asManager+"=1")
	var log bytes.Buffer
	cmd.Stderr = &log
	process, err := subprocess.Start(cmd)
	must(t, err)
	t.Cleanup(func() {
		_ = process.Signal(syscall.SIGTERM)
		select {
		case <-process.Done():
		case <-time.After(5 * time.Minute):
			t.Error("the manager does not end after SIGTERM")
			process.Stop(0)
		}
		if t.Failed() || strings.Contains(log.String(), "forbidden") {
			t.Errorf("the manager's log:\n%s", log.String())
		}
	})
	return m
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

// fetch requests a page, with a token if the address is HTTPS.
func (m manager) fetch(t *testing.T, url string) string {
	t.Helper()
	_, body := m.ask(t, url, m.token)
	return body
}

func (m manager) ask(t *testing.T, url, token string) (code int, body string) {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), 3*time.Minute)
	defer cancel()
	request, err := http.NewRequestWithContext(ctx, http.MethodGet, url, nil)
	must(t, err)
	if token != "" {
		request.Header.Set("Authorization", "Bearer "+token)
	}
	transport := &http.Transport{TLSClientConfig: &tls.Config{RootCAs: m.trusted, ServerName: m.name}, DisableKeepAlives: true}
	response, err := (&http.Client{Transport: transport}).Do(request)
	if err != nil {
		return 0, err.Error()
	}
	defer response.Body.Close()
	content, err := io.ReadAll(response.Body)
	must(t, err)
	return response.StatusCode, string(content)
}

func errText(err error) string {
	if err != nil {
		return err.Error()
	}
	return ""
}
