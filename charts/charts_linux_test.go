// Package charts tests the charts in this directory: it applies the output of Helm to a real API server.
package charts

import (
	"bytes"
	"context"
	"encoding/json"
	"flag"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	appsv1 "k8s.io/api/apps/v1"
	"sigs.k8s.io/yaml"

	"github.com/singletonjob/operator/build/gotool"
	"github.com/singletonjob/operator/test/apiserver"
	"github.com/singletonjob/operator/test/controlplane"
)

const (
	chart = "singletonjob"
	crd   = "customresourcedefinition/singletonjobs.singletonjob.io"
)

func TestMain(m *testing.M) {
	flag.Parse()
	if parallel := flag.Lookup("test.parallel"); parallel.Value.String() == parallel.DefValue {
		_ = flag.Set("test.parallel", "32") // most wait for their turn at the shared control plane
	}
	os.Exit(apiserver.Main(m))
}

// helmPath is the Helm version that tools/helm.mod pins. The first call on a machine builds it.
var helmPath = sync.OnceValues(func() (string, error) {
	out, err := gotool.Command(context.Background(), "", "tool", "-modfile=../tools/helm.mod", "-n", "helm").Output()
	return strings.TrimSpace(string(out)), err
})

// cluster is Helm and kubectl with the test's control plane.
type cluster struct {
	t     testing.TB
	plane *controlplane.APIServer
	helm  string
	home  string
}

// turn is held by the test that uses the shared control plane, because definitions and roles are cluster-wide.
var turn sync.Mutex

// newCluster is the control plane that tests share, one at a time. Tests with a control plane of their own run in parallel.
func newCluster(t *testing.T) *cluster {
	t.Helper()
	t.Parallel()
	turn.Lock()
	t.Cleanup(turn.Unlock)
	c := onlyHelm(t)
	c.plane = apiserver.ForTest(t)
	return c
}

// newHelm is Helm alone, for tests without an API server. They do not wait for turn.
func newHelm(t *testing.T) *cluster {
	t.Helper()
	t.Parallel()
	return onlyHelm(t)
}

func onlyHelm(t *testing.T) *cluster {
	t.Helper()
	helm, err := helmPath()
	if err != nil {
		t.Fatalf("build Helm: %v", err)
	}
	return &cluster{t: t, helm: helm, home: t.TempDir()}
}

func (c *cluster) run(name string, input []byte, args ...string) (output string, err error) {
	cmd := c.command(c.t.Context(), name, args...)
	cmd.Stdin = bytes.NewReader(input)
	out, err := cmd.CombinedOutput()
	return string(out), err
}

// command knows no other cluster than the test's.
func (c *cluster) command(ctx context.Context, name string, args ...string) *exec.Cmd {
	cmd := exec.CommandContext(ctx, name, args...)
	programs, kubeconfig := filepath.Dir(c.helm), filepath.Join(c.home, "none")
	if c.plane != nil {
		programs, kubeconfig = programs+":"+c.plane.Binaries().Dir, c.plane.Kubeconfig()
	}
	// A program that ends after a second hardly needs garbage collection.
	cmd.Env = []string{"HOME=" + c.home, "KUBECONFIG=" + kubeconfig, "PATH=" + programs + ":" + os.Getenv("PATH"), "GOGC=400"}
	return cmd
}

// mustHelm runs Helm and returns what it printed.
func (c *cluster) mustHelm(args ...string) string {
	c.t.Helper()
	out, err := c.run(c.helm, nil, args...)
	if err != nil {
		c.t.Fatalf("helm %s: %v\n%s", strings.Join(args, " "), err, out)
	}
	return out
}

func (c *cluster) mustKubectl(args ...string) string {
	c.t.Helper()
	out, err := c.plane.Kubectl(c.t.Context(), args...)
	if err != nil {
		c.t.Fatalf("kubectl %s: %v\n%s", strings.Join(args, " "), err, out)
	}
	return out
}

// apply runs kubectl apply on a manifest.
func (c *cluster) apply(manifest string) {
	c.t.Helper()
	if out, err := c.run(c.plane.Binaries().Path("kubectl"), []byte(manifest), "apply", "--filename=-"); err != nil {
		c.t.Fatalf("%v\n%s", err, out)
	}
}

// restricted is a namespace in which the API server warns of every Pod template that violates the profile "restricted".
func (c *cluster) restricted() string {
	c.t.Helper()
	namespace := c.plane.Namespace(c.t)
	c.mustKubectl("label", "namespace", namespace, "pod-security.kubernetes.io/warn=restricted")
	return namespace
}

const digest = "sha256:0123456789abcdef0123456789abcdef0123456789abcdef0123456789abcdef"

// renderings are values that change which objects are rendered, or their contents.
var renderings = map[string]struct {
	values           string
	objects          int
	image, agentFlag string
}{
	"defaults": {"", 23, "singletonjob/operator:0.1.0", "--agent-image=singletonjob/operator:0.1.0"},
	"a pinned image": {
		"image: {repository: mirror.example/sj, tag: v9, digest: '" + digest + "'}", 23,
		"mirror.example/sj@" + digest, "--agent-image=mirror.example/sj@" + digest,
	},
	"an agent of its own": {
		"image: {tag: v9}\nagentImage: mirror.example/agent:v9", 23,
		"singletonjob/operator:v9", "--agent-image=mirror.example/agent:v9",
	},
	"the agent's image as a volume": {
		"{agentImageVolume: true, agentImagePullPolicy: Always}", 23, "singletonjob/operator:0.1.0",
		"--agent-image=singletonjob/operator:0.1.0 --agent-image-pull-policy=Always --agent-image-volume",
	},
	"two namespaces": {
		"watchNamespaces: [default, kube-system]", 24, "singletonjob/operator:0.1.0", "--namespaces=default,kube-system --read-nodes=false",
	},
	"a namespace and nodes": {
		"{watchNamespaces: [default], nodes: {read: true}}", 24, "singletonjob/operator:0.1.0", "--namespaces=default --leader-election-id=release-singletonjob-operator",
	},
	"a namespace and metrics for some": {
		"{watchNamespaces: [default], metrics: {secure: true, rbac: {create: true}}}", 25, "singletonjob/operator:0.1.0", "--metrics-bind-address=:8443 --metrics-secure=true",
	},
	"a namespace and metrics for some, by somebody else's right": {
		"{watchNamespaces: [default], metrics: {secure: true, rbac: {create: false}}}", 22, "singletonjob/operator:0.1.0", "--metrics-bind-address=:8443 --metrics-secure=true",
	},
	"nothing optional": {
		`{crds: {install: false}, serviceAccount: {create: false, name: given}, rbac: {create: false, aggregate: false},
		  flowSchema: {create: false}, guard: {create: false}, podDisruptionBudget: {create: false}, metrics: {service: {create: false}}}`, 1,
		"singletonjob/operator:0.1.0", "--agent-image=singletonjob/operator:0.1.0",
	},
	"everything set": {
		`{replicas: 1, nameOverride: other, imagePullSecrets: [{name: pull}], crds: {keep: false},
		  serviceAccount: {name: sj, annotations: {a: b}}, fleetRollouts: 0, verbosity: 4, extraArgs: [--concurrency=2], agentImagePullPolicy: Always, metrics: {certSecret: certs, service: {port: 9090, annotations: {a: b}}},
		  networkPolicy: {enabled: true, metricsFrom: [{namespaceSelector: {matchLabels: {a: b}}}], extraEgress: [{ports: [{port: 5000}]}],
		    apiServer: {to: [{ipBlock: {cidr: 10.0.0.1/32}}], ports: [6443]}},
		  resources: {requests: {cpu: 1}}, podAnnotations: {a: b}, podLabels: {c: d}, priorityClassName: system-cluster-critical,
		  nodeSelector: {kubernetes.io/os: linux}, tolerations: [{operator: Exists}],
		  affinity: {nodeAffinity: {requiredDuringSchedulingIgnoredDuringExecution: {nodeSelectorTerms: [
		    {matchExpressions: [{key: a, operator: Exists}]}]}}},
		  topologySpreadConstraints: [{maxSkew: 1, topologyKey: zone, whenUnsatisfiable: ScheduleAnyway, labelSelector: {}}], guard: {operators: ['o''connor@"b"', system:serviceaccount:b:c]},
		  entrypoint: {pullSecrets: true, insecureRegistries: [a.example:5000, b.example], caConfigMap: authorities}}`, 23,
		"singletonjob/operator:0.1.0", "--metrics-bind-address=:9090 --metrics-secure=true --metrics-cert-path=/metrics-certs",
	},
}

func TestAPIServerAcceptsRenderedObjects(t *testing.T) {
	c := newCluster(t)
	for name, r := range renderings {
		t.Run(name, func(t *testing.T) {
			namespace := c.restricted()
			values := filepath.Join(t.TempDir(), "values.yaml")
			if err := os.WriteFile(values, []byte(r.values), 0o600); err != nil {
				t.Fatal(err)
			}
			manifest := c.mustHelm("template", "release", chart, "--namespace", namespace, "--values", values)
			out, err := c.run(c.plane.Binaries().Path("kubectl"), []byte(manifest),
				"apply", "--server-side", "--dry-run=server", "--validate=strict", "--filename=-")
			if err != nil || strings.Contains(out, "Warning") {
				t.Fatalf("the API server says: %v\n%s", err, out)
			}
			if accepted := strings.Count(out, "(server dry run)"); accepted != r.objects {
				t.Errorf("%d objects were accepted, want %d:\n%s", accepted, r.objects, out)
			}
			checkDeployment(t, manifest, r.image, r.agentFlag)
		})
	}
}

// checkDeployment: the images are those of the values, and there is no privilege, whatever the values are.
func checkDeployment(t *testing.T, manifest, image, agentFlag string) {
	t.Helper()
	var deployment appsv1.Deployment
	for document := range strings.SplitSeq(manifest, "\n---\n") {
		if strings.Contains(document, "\nkind: Deployment\n") {
			if err := yaml.UnmarshalStrict([]byte(document), &deployment); err != nil {
				t.Fatal(err)
			}
		}
	}
	if len(deployment.Spec.Template.Spec.Containers) != 1 {
		t.Fatalf("want a deployment of one container, got %+v", deployment.Spec.Template.Spec.Containers)
	}
	manager := deployment.Spec.Template.Spec.Containers[0]
	if manager.Image != image || !strings.Contains(strings.Join(manager.Args, " ")+" ", agentFlag+" ") {
		t.Errorf("the image is %s and the arguments are %q, want %s and %s", manager.Image, manager.Args, image, agentFlag)
	}
	if own := "--leader-election-id=" + deployment.Name + "-operator"; !slices.Contains(manager.Args, own) {
		t.Errorf("the arguments are %q, want %s: releases beside each other have leaders of their own", manager.Args, own)
	}
	got, err := json.Marshal([]any{deployment.Spec.Template.Spec.SecurityContext, manager.SecurityContext})
	if err != nil {
		t.Fatal(err)
	}
	want := `[{"runAsNonRoot":true,"seccompProfile":{"type":"RuntimeDefault"}},` +
		`{"capabilities":{"drop":["ALL"]},"readOnlyRootFilesystem":true,"allowPrivilegeEscalation":false}]`
	if diff := cmp.Diff(want, string(got)); diff != "" {
		t.Errorf("security contexts of pod and container (-want +got):\n%s", diff)
	}
}

func TestSchemaRefusesWrongValues(t *testing.T) {
	c := newHelm(t)
	for set, want := range map[string]string{
		"replica=3":                        "replica",
		"image.digest=sha256:12":           "/image/digest",
		"image.repository=":                "/image/repository",
		"image.pullPolicy=Sometimes":       "/image/pullPolicy",
		"verbosity=loud":                   "/verbosity",
		"fleetRollouts=-1":                 "/fleetRollouts",
		"replicas=two":                     "/replicas",
		"watchNamespaces={a,B}":            "/watchNamespaces/1",
		"watchNamespaces=a":                "/watchNamespaces",
		"nodes.read=maybe":                 "/nodes/read",
		"crds.instal=true":                 "instal",
		"metrics.service.port=0":           "/metrics/service/port",
		"metrics.secure=maybe":             "/metrics/secure",
		"networkPolicy.enable=true":        "enable",
		"networkPolicy.apiServer.ports={}": "/networkPolicy/apiServer/ports",
		"networkPolicy.metricsFrom={a}":    "/networkPolicy/metricsFrom/0",
		// Refused by a template.
		"metrics.secure=false,metrics.certSecret=a": "metrics.certSecret is set, but metrics.secure=false uses no certificate",
		"metrics.secure=true,watchNamespaces={a}":   "metrics.secure=true with watchNamespaces needs a cluster-wide right",
		"metrics.rbac.create=maybe":                 "/metrics/rbac/create",
		"flowSchema.shares=0":                       "/flowSchema/shares",
		"guard.enabled=false":                       "enabled",
		"fence.create=maybe":                        "/fence/create",
		"guard.operators={a b}":                     "/guard/operators/0",
		"entrypoint.enable=false":                   "enable",
		"entrypoint.insecureRegistries={a/b}":       "/entrypoint/insecureRegistries/0",
		"podLabels.a=1,podLabels.b.c=nothing":       "/podLabels",
	} {
		t.Run(set, func(t *testing.T) {
			out, err := c.run(c.helm, nil, "template", "release", chart, "--set", set)
			if err == nil || !strings.Contains(out, want) {
				t.Errorf("helm template --set %s: %v, want an error that names %s:\n%s", set, err, want, out)
			}
		})
	}
}

// The chart's definition is the generated one. Helm adds only labels and annotations.
func TestChartInstallsTheGeneratedDefinition(t *testing.T) {
	c := newHelm(t)
	type definition struct {
		APIVersion, Kind string
		Spec             map[string]any
	}
	read := func(content []byte) (d definition) {
		t.Helper()
		if err := yaml.Unmarshal(content, &d); err != nil {
			t.Fatal(err)
		}
		return d
	}
	generated, err := os.ReadFile("../config/crd/singletonjob.io_singletonjobs.yaml")
	if err != nil {
		t.Fatal(err)
	}
	rendered := c.mustHelm("template", "release", chart, "--show-only=templates/crds.yaml")
	if diff := cmp.Diff(read(generated), read([]byte(rendered))); diff != "" {
		t.Errorf("config/crd and the chart differ (-config +chart):\n%s", diff)
	}
	if !strings.Contains(rendered, "helm.sh/resource-policy: keep") {
		t.Error("the definition does not outlive the release")
	}
}

// nextVersion copies the chart with a changed description in the definition.
func nextVersion(t *testing.T) (dir, description string) {
	t.Helper()
	dir, description = filepath.Join(t.TempDir(), chart), "As the next version has it."
	if err := os.CopyFS(dir, os.DirFS(chart)); err != nil {
		t.Fatal(err)
	}
	file := filepath.Join(dir, "generated", "crd.yaml")
	content, err := os.ReadFile(file)
	if err != nil {
		t.Fatal(err)
	}
	column := regexp.MustCompile(`description: The pod whose process runs\.`)
	if !column.Match(content) {
		t.Fatal("the definition has no column that could be changed")
	}
	if err := os.WriteFile(file, column.ReplaceAll(content, []byte("description: "+description)), 0o600); err != nil {
		t.Fatal(err)
	}
	return dir, description
}

// An upgrade changes the definition. Uninstalling leaves the definition and all jobs, and the next installation finds both.
func TestDefinitionSurvivesUninstall(t *testing.T) {
	c := newCluster(t)
	namespace := c.restricted()
	next, description := nextVersion(t)
	helm := func(args ...string) { t.Helper(); c.mustHelm(append(args, "--namespace", namespace)...) }

	helm("install", "release", chart)
	t.Cleanup(func() {
		if out, err := c.plane.Kubectl(context.Background(), "delete", crd, "--ignore-not-found", "--timeout=60s"); err != nil {
			t.Errorf("%v\n%s", err, out)
		}
	})
	c.mustKubectl("wait", "--for=condition=Established", "--timeout=60s", crd)
	c.mustKubectl("--namespace", namespace, "apply", "--filename=../config/samples/singletonjob.yaml")
	checkOperatorRights(t, c, namespace)

	helm("upgrade", "release", next)
	if got := c.mustKubectl("get", crd, "--output=jsonpath={.spec.versions[0].additionalPrinterColumns[0].description}"); got != description {
		t.Errorf("after the upgrade the definition says %q, want %q", got, description)
	}

	helm("uninstall", "release")
	if got := c.mustKubectl("--namespace", namespace, "get", "singletonjobs", "--output=name"); !strings.Contains(got, "heartbeat") {
		t.Errorf("after the uninstallation the jobs are %q, want heartbeat kept", got)
	}

	other := c.restricted()
	out, err := c.run(c.helm, nil, "install", "other", chart, "--namespace", other)
	if err == nil || !strings.Contains(out, "ownership") {
		t.Errorf("another release took the definition over without being told to: %v\n%s", err, out)
	}
	const unguarded = "--set=guard.create=false" // otherwise each release would have to name the others
	c.mustHelm("install", "other", chart, "--namespace", other, "--take-ownership", unguarded)
	second := c.restricted()
	c.mustHelm("install", "second", chart, "--namespace", second, "--set=crds.install=false", unguarded)
	c.mustHelm("uninstall", "other", "--namespace", other)
	helm("install", "release", chart, "--take-ownership", unguarded)
	helm("uninstall", "release")
	c.mustHelm("uninstall", "second", "--namespace", second)
}

// checkOperatorRights: the rights suffice for the replicas' leader election with their own Lease, and with no other.
func checkOperatorRights(t *testing.T, c *cluster, namespace string) {
	t.Helper()
	c.operatorMay(namespace, map[string]string{
		"create leases --namespace=" + namespace:                       "yes",
		"update leases/singletonjob-operator --namespace=" + namespace: "yes",
		"delete namespaces --namespace=" + namespace:                   "no",
		"get secrets --namespace=" + namespace:                         "no",
	})
}

// operatorMay checks what the operator of a namespace may do, once it may do everything that it should: the authorizer learns of
// that a moment later.
func (c *cluster) operatorMay(namespace string, questions map[string]string) {
	c.t.Helper()
	c.may("system:serviceaccount:"+namespace+":release-singletonjob", questions)
}

// may asks the API server what a user may do.
func (c *cluster) may(user string, questions map[string]string) {
	c.t.Helper()
	ask := func(question string) string {
		out, _ := c.plane.Kubectl(c.t.Context(), append(strings.Fields("auth can-i "+question), "--as="+user)...)
		return strings.TrimSpace(out)
	}
	deadline := time.Now().Add(3 * time.Minute)
	for question, want := range questions {
		for want == "yes" && !strings.HasSuffix(ask(question), want) && time.Now().Before(deadline) {
			time.Sleep(100 * time.Millisecond)
		}
	}
	for question, want := range questions {
		if answer := ask(question); !strings.HasSuffix(answer, want) {
			c.t.Errorf("may %s %s? %q, want %s", user, question, answer, want)
		}
	}
}
