// Command manager is the SingletonJob operator.
package main

import (
	"errors"
	"flag"
	"fmt"
	"io"
	"log/slog"
	"net"
	"os"
	"strings"
	"time"

	"github.com/go-logr/logr"
	_ "golang.org/x/crypto/x509roots/fallback" // the image contains no CA certificates
	appsv1 "k8s.io/api/apps/v1"
	autoscalingv1 "k8s.io/api/autoscaling/v1"
	coordinationv1 "k8s.io/api/coordination/v1"
	corev1 "k8s.io/api/core/v1"
	policyv1 "k8s.io/api/policy/v1"
	rbacv1 "k8s.io/api/rbac/v1"
	"k8s.io/apimachinery/pkg/api/meta"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/util/validation"
	"k8s.io/client-go/rest"
	"k8s.io/client-go/tools/clientcmd"
	"k8s.io/klog/v2"
	"k8s.io/utils/clock"
	ctrl "sigs.k8s.io/controller-runtime"
	"sigs.k8s.io/controller-runtime/pkg/healthz"
	"sigs.k8s.io/controller-runtime/pkg/metrics"

	"github.com/singletonjob/operator/api/v1alpha1"
	"github.com/singletonjob/operator/internal/contract"
	"github.com/singletonjob/operator/internal/controller"
	"github.com/singletonjob/operator/internal/entrypoint"
	"github.com/singletonjob/operator/internal/inject"
)

// leaderLease is the default name of the Lease with which the operator's replicas elect a leader. It is unrelated to the Leases of
// SingletonJobs, which stay safe even if two operators run.
const leaderLease = "singletonjob-operator"

const usage = `The SingletonJob operator manages the candidate Pods and the Lease of every SingletonJob, and reports
their tenures. It takes no part in elections. While it is down, running jobs keep running and fail over.

Usage: manager [flags]

`

// options are the flags.
type options struct {
	kubeconfig                    string
	agentImage, agentPull         string
	agentImageVolume              bool
	namespaces                    string
	readNodes, leaderElect        bool
	leaderID, leaderNamespace     string
	metricsAddress, healthAddress string
	metricsSecure                 bool
	metricsCertPath               string
	pprofAddress                  string
	leaseDuration, renewDeadline  time.Duration
	retryPeriod                   time.Duration
	concurrency, verbosity, burst int
	fleetRollouts                 int
	qps                           float64
	entrypoints                   bool
	pullSecrets                   bool
	insecureRegistries            string
	registryCA                    string
}

func main() {
	o, err := parse(os.Args[1:], os.Stderr)
	switch {
	case errors.Is(err, flag.ErrHelp):
		return
	case err != nil:
		os.Exit(2)
	}
	if err := run(o); err != nil {
		fmt.Fprintln(os.Stderr, "manager:", err)
		os.Exit(1)
	}
}

func parse(args []string, out io.Writer) (options, error) {
	var o options
	f := flag.NewFlagSet("manager", flag.ContinueOnError)
	f.SetOutput(out)
	f.Usage = func() {
		_, _ = io.WriteString(out, usage)
		f.PrintDefaults()
	}
	f.StringVar(&o.agentImage, "agent-image", os.Getenv("AGENT_IMAGE"),
		"`image` from which candidate Pods get the agent: this operator's image (default: the environment variable AGENT_IMAGE)")
	f.StringVar(&o.agentPull, "agent-image-pull-policy", "", "`policy` for pulling the agent image: Always, IfNotPresent or Never; empty for the cluster's default")
	f.BoolVar(&o.agentImageVolume, "agent-image-volume", false,
		"mount the agent's image into candidate Pods instead of copying the agent; all nodes must run Kubernetes 1.35 and containerd 2.1, or later")
	f.StringVar(&o.namespaces, "namespaces", "", "comma-separated `names` of the namespaces in which the operator works and has rights; empty for all")
	f.BoolVar(&o.readNodes, "read-nodes", true, "read nodes, to react to the taint node.kubernetes.io/out-of-service; this needs a cluster-wide right to list and watch nodes")
	f.BoolVar(&o.leaderElect, "leader-elect", true, "elect with a Lease the one of several replicas that acts")
	f.StringVar(&o.leaderID, "leader-election-id", leaderLease, "`name` of that Lease; each set of replicas needs its own")
	f.StringVar(&o.leaderNamespace, "leader-election-namespace", "", "`namespace` of that Lease; required outside a cluster")
	f.DurationVar(&o.leaseDuration, "leader-election-lease-duration", 15*time.Second, "`time` without a renewal after which another replica can take over")
	f.DurationVar(&o.renewDeadline, "leader-election-renew-deadline", 10*time.Second, "`time` without a renewal after which the acting replica exits")
	f.DurationVar(&o.retryPeriod, "leader-election-retry-period", 2*time.Second, "`time` between renewals, and between attempts to become leader")
	f.StringVar(&o.metricsAddress, "metrics-bind-address", ":8443", "`address` that serves /metrics; 0 to disable")
	f.BoolVar(&o.metricsSecure, "metrics-secure", true,
		"serve metrics over HTTPS, and only to clients whose bearer token the API server accepts and whose user may get /metrics; if false, serve them over HTTP to everybody")
	f.StringVar(&o.metricsCertPath, "metrics-cert-path", "",
		"`directory` with the tls.crt and tls.key of the metrics server, reloaded when they change; empty for a self-signed certificate")
	f.StringVar(&o.healthAddress, "health-probe-bind-address", ":8081", "`address` that serves /healthz and /readyz; 0 to disable")
	f.StringVar(&o.pprofAddress, "pprof-bind-address", "", "loopback `address` that serves /debug/pprof, such as 127.0.0.1:6060; empty to disable")
	f.IntVar(&o.concurrency, "concurrency", 32, "`number` of SingletonJobs to reconcile at a time; each has at most one request in flight, and those of one namespace take at most a quarter, unless --namespaces names only that one")
	f.IntVar(&o.fleetRollouts, "fleet-rollouts", controller.DefaultFleetRollouts,
		"`number` of SingletonJobs that may replace their Pods at a time if only the operator's additions to Pods have changed; 0 for no limit")
	f.Float64Var(&o.qps, "kube-api-qps", -1, "sustained requests per second to the API server; -1 for no limit: API Priority and Fairness protects it, and --concurrency bounds the requests in flight")
	f.IntVar(&o.burst, "kube-api-burst", 200, "requests to the API server in a burst, if --kube-api-qps sets a limit")
	f.BoolVar(&o.entrypoints, "entrypoint", true, "ask an image's registry what the image runs, if the gated container sets no command")
	f.BoolVar(&o.pullSecrets, "entrypoint-pull-secrets", false, "use the Pods' pull secrets for that; the operator must have the right to get them")
	f.StringVar(&o.insecureRegistries, "entrypoint-insecure-registries", "",
		"comma-separated `hosts`, with :port if they have one, of registries that the operator may ask over plain HTTP, and on this machine's own addresses")
	f.StringVar(&o.registryCA, "entrypoint-ca-file", "", "`file` with CA certificates in PEM to trust for registries, in addition to the usual ones")
	f.IntVar(&o.verbosity, "v", 0, "`verbosity` of the log: 0 for production, 4 for debugging")
	f.StringVar(&o.kubeconfig, "kubeconfig", os.Getenv("KUBECONFIG"), "`file` with the address and credentials of the cluster; empty inside a cluster")
	if err := f.Parse(args); err != nil {
		return o, err
	}
	return o, o.check(out, f.Args())
}

func (o options) check(out io.Writer, rest []string) error {
	var errs []error
	if len(rest) > 0 {
		errs = append(errs, fmt.Errorf("unexpected argument %q: the manager accepts only flags", rest[0]))
	}
	if o.agentImage == "" {
		errs = append(errs, errors.New("no agent image: set --agent-image or AGENT_IMAGE to the image of this operator"))
	}
	switch corev1.PullPolicy(o.agentPull) {
	case "", corev1.PullAlways, corev1.PullIfNotPresent, corev1.PullNever:
	default:
		errs = append(errs, fmt.Errorf("--agent-image-pull-policy %q must be Always, IfNotPresent or Never", o.agentPull))
	}
	if _, err := o.workIn(); err != nil {
		errs = append(errs, err)
	}
	if o.concurrency < 1 {
		errs = append(errs, fmt.Errorf("--concurrency %d must be at least 1", o.concurrency))
	}
	if o.fleetRollouts < 0 {
		errs = append(errs, fmt.Errorf("--fleet-rollouts %d must not be negative: set how many jobs may be rolled out at a time, or 0 for no limit", o.fleetRollouts))
	}
	if !loopback(o.pprofAddress) {
		errs = append(errs, fmt.Errorf("--pprof-bind-address %q is not a loopback address: profiles expose memory, so use 127.0.0.1:PORT", o.pprofAddress))
	}
	errs = append(errs, o.checkElection(), o.checkMetrics())
	if _, err := o.registry(); err != nil {
		errs = append(errs, err)
	}
	err := errors.Join(errs...)
	if err != nil {
		_, _ = fmt.Fprintln(out, err)
	}
	return err
}

// checkElection rejects settings with which the elector would end the program, or the leader would outlive its lease.
func (o options) checkElection() error {
	const jitter = 1.2 // client-go multiplies its waits by at most this factor
	switch {
	case o.retryPeriod <= 0:
		return fmt.Errorf("--leader-election-retry-period %v must be greater than 0", o.retryPeriod)
	case float64(o.renewDeadline) <= jitter*float64(o.retryPeriod):
		return fmt.Errorf("--leader-election-renew-deadline %v must be more than 1.2 times --leader-election-retry-period %v", o.renewDeadline, o.retryPeriod)
	case o.leaseDuration <= o.renewDeadline:
		return fmt.Errorf("--leader-election-lease-duration %v must be greater than --leader-election-renew-deadline %v", o.leaseDuration, o.renewDeadline)
	case o.leaseDuration%time.Second != 0:
		return fmt.Errorf("--leader-election-lease-duration %v must be a whole number of seconds, because a Lease stores seconds", o.leaseDuration)
	}
	return nil
}

// loopback reports whether an address is empty or can be reached only from this host.
func loopback(address string) bool {
	if address == "" {
		return true
	}
	host, _, err := net.SplitHostPort(address)
	ip := net.ParseIP(host)
	return err == nil && (host == "localhost" || ip != nil && ip.IsLoopback())
}

// workIn returns the namespaces in which the operator works; none for all. Only an empty flag means all: a list that lost its names
// by mistake must not become the whole cluster.
func (o options) workIn() ([]string, error) {
	if o.namespaces == "" {
		return nil, nil
	}
	names := strings.Split(o.namespaces, ",")
	for _, name := range names {
		if wrong := validation.IsDNS1123Label(name); len(wrong) > 0 {
			return nil, fmt.Errorf("--namespaces %q: %q is not a valid namespace name: %s", o.namespaces, name, wrong[0])
		}
	}
	return names, nil
}

func run(o options) error {
	log := logr.FromSlogHandler(slog.NewJSONHandler(os.Stderr, &slog.HandlerOptions{Level: slog.Level(-o.verbosity)}))
	ctrl.SetLogger(log)
	klog.SetLogger(log)
	collectOften()
	if err := heedMemoryLimit(); err != nil {
		return err
	}
	config, err := o.config()
	if err != nil {
		return fmt.Errorf("cannot reach a cluster (--kubeconfig %q): %w", o.kubeconfig, err)
	}
	served := &controller.ServerClock{}
	config.Wrap(served.Wrap)
	m, err := o.manager(config)
	if err != nil {
		return err
	}
	ctx := ctrl.SetupSignalHandler()
	r := controller.New(m.GetClient(), m.GetAPIReader(), clock.RealClock{}, o.settings(os.Getenv))
	r.WithoutNodes, r.ServerTime, r.FleetRollouts = !o.readNodes, served.Now, o.fleetRollouts
	if o.entrypoints {
		registry, err := o.registry()
		if err != nil {
			return err
		}
		pull := controller.Pull{Live: m.GetAPIReader(), Secrets: o.pullSecrets}
		r.Entrypoints = entrypoint.New(pull.Finder(registry), clock.RealClock{})
	}
	for _, c := range r.Collectors() {
		if err := metrics.Registry.Register(c); err != nil {
			return err
		}
	}
	namespaces, err := o.workIn()
	if err != nil {
		return err
	}
	r.OneNamespace = len(namespaces) == 1
	if err := r.SetupWithManager(ctx, m, o.concurrency); err != nil {
		if meta.IsNoMatchError(err) {
			return fmt.Errorf("the API server does not know SingletonJobs: install their CustomResourceDefinition: %w", err)
		}
		return err
	}
	ready := newReadiness(m, namespaces, r.Watched())
	if err := errors.Join(m.Add(ready), m.AddReadyzCheck("works", ready.Check)); err != nil {
		return err
	}
	if err := o.mayAsk(config, m.GetHTTPClient()); err != nil {
		log.Error(err, "metrics")
	}
	log.Info("starting", "version", contract.Version, "agentImage", o.agentImage, "namespaces", o.namespaces)
	return m.Start(ctx)
}

// registry returns the client that looks up images in registries.
func (o options) registry() (*entrypoint.Registry, error) {
	var roots []byte
	if o.registryCA != "" {
		var err error
		if roots, err = os.ReadFile(o.registryCA); err != nil {
			return nil, fmt.Errorf("--entrypoint-ca-file: %w", err)
		}
	}
	registry, err := entrypoint.NewRegistry(entrypoint.Options{Insecure: split(o.insecureRegistries), Roots: roots})
	if err != nil {
		return nil, fmt.Errorf("--entrypoint-insecure-registries %q, --entrypoint-ca-file %q: %w", o.insecureRegistries, o.registryCA, err)
	}
	return registry, nil
}

// split splits a list at commas and spaces.
func split(list string) []string {
	return strings.FieldsFunc(list, func(r rune) bool { return r == ',' || r == ' ' })
}

// settings are the settings for the Pods that the operator creates. If the operator uses a kubeconfig file, its own environment may
// belong to another cluster.
func (o options) settings(env func(string) string) inject.Settings {
	settings := inject.Settings{
		AgentImage: o.agentImage, AgentPullPolicy: corev1.PullPolicy(o.agentPull), AgentImageVolume: o.agentImageVolume,
	}
	if o.kubeconfig == "" {
		settings.APIHost, settings.APIPort = env(inject.APIHostOfService), env(inject.APIPortOfService)
	}
	return settings
}

func (o options) config() (*rest.Config, error) {
	config, err := clientcmd.BuildConfigFromFlags("", o.kubeconfig) // in-cluster configuration if the file is empty
	if err != nil {
		return nil, err
	}
	config.QPS, config.Burst, config.UserAgent = float32(o.qps), o.burst, "singletonjob-operator"
	return config, nil
}

func (o options) manager(config *rest.Config) (ctrl.Manager, error) {
	scheme := runtime.NewScheme()
	for _, add := range []func(*runtime.Scheme) error{
		v1alpha1.AddToScheme, appsv1.AddToScheme, corev1.AddToScheme, coordinationv1.AddToScheme, rbacv1.AddToScheme, policyv1.AddToScheme,
		autoscalingv1.AddToScheme,
	} {
		if err := add(scheme); err != nil {
			return nil, err
		}
	}
	namespaces, err := o.workIn()
	if err != nil {
		return nil, err
	}
	metricsOptions, certificates, err := o.metrics()
	if err != nil {
		return nil, err
	}
	m, err := ctrl.NewManager(config, ctrl.Options{
		Scheme:                  scheme,
		Cache:                   controller.CacheOptions(namespaces),
		LeaderElection:          o.leaderElect,
		LeaderElectionID:        o.leaderID,
		LeaderElectionNamespace: o.leaderNamespace,
		LeaseDuration:           &o.leaseDuration,
		RenewDeadline:           &o.renewDeadline,
		RetryPeriod:             &o.retryPeriod,
		// Releasing at shutdown could clear the Lease of a successor.
		LeaderElectionReleaseOnCancel: false,
		Metrics:                       metricsOptions,
		HealthProbeBindAddress:        o.healthAddress,
		PprofBindAddress:              o.pprofAddress,
	})
	if err != nil {
		return nil, err
	}
	if certificates != nil {
		if err := m.Add(certificates); err != nil {
			return nil, err
		}
	}
	return m, m.AddHealthzCheck("ping", healthz.Ping)
}
