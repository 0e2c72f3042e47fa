package charts

import (
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	appsv1 "k8s.io/api/apps/v1"
	corev1 "k8s.io/api/core/v1"
	networkingv1 "k8s.io/api/networking/v1"
	"sigs.k8s.io/yaml"

	"github.com/singletonjob/operator/internal/fenceproxy"
)

const fenceProxyOnly = "--show-only=templates/fenceproxy.yaml"

// fenceProxies are values that change the objects of a fence-proxy.
var fenceProxies = map[string]struct {
	values   string
	objects  int
	replicas int32
	recreate bool
}{
	"a file": {"{config: {upstream: 'http://ledger', rules: [{resource: a/b}]}}", 4, 1, true},
	"PostgreSQL": {
		"{replicas: 3, store: {postgres: {urlSecret: pg}}, config: {upstream: 'http://ledger', rules: [{fromHeader: true}]}}", 4, 3, false,
	},
	"everything": {
		`{replicas: 2, store: {postgres: {urlSecret: pg, urlKey: dsn, evictAfter: 1m}}, tlsSecret: tls, advanceTokenSecret: advance, upstreamCAConfigMap: ca,
		  config: {upstream: 'https://ledger', rules: [{path: /open, unfenced: true}, {host: a.example, resource: a/b, upstream: 'http://other:81'}],
		    unfencedMethods: [GET], strict: true, monitor: true, drain: 1s, settle: 2s, patience: 4s, shutdownDelay: 5s, shutdown: 6s},
		  service: {port: 8443, annotations: {a: b}}, networkPolicy: {enabled: true, clientsFrom: [{podSelector: {}}],
		    adminFrom: [{podSelector: {}}], egress: [{ports: [{port: 5432}]}]},
		  resources: {requests: {cpu: 1}}, priorityClassName: system-cluster-critical, nodeSelector: {a: b}, tolerations: [{operator: Exists}]}`,
		5, 2, false,
	},
}

func object[T any](t *testing.T, manifest, kind string) (found T) {
	t.Helper()
	for document := range strings.SplitSeq(manifest, "\n---\n") {
		if strings.Contains(document, "\nkind: "+kind+"\n") {
			if err := yaml.UnmarshalStrict([]byte(document), &found); err != nil {
				t.Fatal(err)
			}
			return found
		}
	}
	t.Fatalf("there is no %s", kind)
	return found
}

// TestFenceProxy: the API server accepts the rendered objects, and the proxy accepts its configuration file.
func TestFenceProxy(t *testing.T) {
	c := newCluster(t)
	for name, want := range fenceProxies {
		t.Run(name, func(t *testing.T) {
			namespace := c.restricted()
			values := filepath.Join(t.TempDir(), "values.yaml")
			if err := os.WriteFile(values, []byte("fenceProxy: "+want.values), 0o600); err != nil {
				t.Fatal(err)
			}
			manifest := c.mustHelm("template", "release", chart, "--namespace", namespace, "--values", values, "--set=fenceProxy.enabled=true", fenceProxyOnly)
			out, err := c.run(c.plane.Binaries().Path("kubectl"), []byte(manifest),
				"apply", "--server-side", "--dry-run=server", "--validate=strict", "--filename=-")
			if accepted := strings.Count(out, "(server dry run)"); err != nil || strings.Contains(out, "Warning") || accepted != want.objects {
				t.Errorf("the API server accepted %d objects, want %d: %v\n%s", accepted, want.objects, err, out)
			}
			deployment := object[appsv1.Deployment](t, manifest, "Deployment")
			if *deployment.Spec.Replicas != want.replicas || (deployment.Spec.Strategy.Type == appsv1.RecreateDeploymentStrategyType) != want.recreate {
				t.Errorf("%d replicas, strategy %q", *deployment.Spec.Replicas, deployment.Spec.Strategy.Type)
			}
			checkFenceProxyFile(t, object[corev1.ConfigMap](t, manifest, "ConfigMap"), deployment.Spec.Template.Spec)
		})
	}
}

// checkFenceProxyFile: the file is valid, and the files that it names are mounted.
func checkFenceProxyFile(t *testing.T, files corev1.ConfigMap, pod corev1.PodSpec) {
	t.Helper()
	file := filepath.Join(t.TempDir(), "config.yaml")
	if err := os.WriteFile(file, []byte(files.Data["config.yaml"]), 0o600); err != nil {
		t.Fatal(err)
	}
	config, err := fenceproxy.Read(file)
	if err == nil {
		err = config.Validate()
	}
	if err != nil {
		t.Fatalf("%v\n%s", err, files.Data["config.yaml"])
	}
	named := []string{config.Store.Bolt, config.AdvanceTokenFile, config.UpstreamCA}
	if config.Store.Postgres != nil {
		named = append(named, config.Store.Postgres.URLFile)
	}
	if config.TLS != nil {
		named = append(named, config.TLS.Cert, config.TLS.Key)
	}
	for _, path := range named {
		if path != "" && !slices.ContainsFunc(pod.Containers[0].VolumeMounts, func(m corev1.VolumeMount) bool { return m.MountPath == filepath.Dir(path) }) {
			t.Errorf("%s is not mounted", path)
		}
	}
}

// TestFenceProxyNetworkPolicy: the policy allows clients, administrators, DNS and what the values add.
func TestFenceProxyNetworkPolicy(t *testing.T) {
	c := newHelm(t)
	manifest := c.mustHelm("template", "release", chart, fenceProxyOnly, "--set", "fenceProxy.enabled=true", "--set", "fenceProxy.config.rules[0].fromHeader=true",
		"--set", "fenceProxy.networkPolicy.enabled=true", "--set", "fenceProxy.networkPolicy.egress[0].ports[0].port=5432")
	policy := object[networkingv1.NetworkPolicy](t, manifest, "NetworkPolicy")
	in, out := passes(&policy)
	if got := strings.Join(in, ", "); got != "TCP clients anywhere, TCP admin anywhere" {
		t.Errorf("lets in %s", got)
	}
	if got := strings.Join(out, ", "); got != "UDP 53 anywhere, TCP 53 anywhere, TCP 5432 anywhere" {
		t.Errorf("lets out %s", got)
	}
}

// TestFenceProxyErrors: there is one error, and it gives the remedy.
func TestFenceProxyErrors(t *testing.T) {
	c := newHelm(t)
	for set, want := range map[string]string{
		"replicas=2":                                "fenceProxy.replicas is 2, but only one process can open the file of fenceProxy.store.bolt",
		"store.bolt.enabled=false":                  "fenceProxy.store has no store",
		"config.upstream=http://a":                  "fenceProxy.config.rules is empty",
		"config.strict=true":                        "fenceProxy.advanceTokenSecret",
		"config.listen=x":                           "listen",
		"store.bolt.size=much":                      "/fenceProxy/store/bolt/size",
		"replicas=-1":                               "/fenceProxy/replicas",
		"store.postgres.evictAfter=soon":            "/fenceProxy/store/postgres/evictAfter",
		"store.postgres.urlSecret=a,config.upst=x":  "upst",
		"store.postgres.urlSecret=a,service.port=0": "/fenceProxy/service/port",
	} {
		args := []string{"template", "release", chart, "--set", "fenceProxy.enabled=true"}
		if !strings.Contains(set, "upstream=") { // for which there are none
			args = append(args, "--set", "fenceProxy.config.rules[0].fromHeader=true")
		}
		for part := range strings.SplitSeq(set, ",") {
			args = append(args, "--set", "fenceProxy."+part)
		}
		if out, err := c.run(c.helm, nil, args...); err == nil || !strings.Contains(out, want) {
			t.Errorf("%s: %v, want an error that names %s:\n%s", set, err, want, out)
		}
	}
}
