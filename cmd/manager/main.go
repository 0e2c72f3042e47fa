// Command manager is the SingletonJob operator.
package main

import (
	"errors"
	"flag"
	"fmt"
	"io"
	"log/slog"
	"os"
	"strings"

	"github.com/go-logr/logr"
	coordinationv1 "k8s.io/api/coordination/v1"
	corev1 "k8s.io/api/core/v1"
	policyv1 "k8s.io/api/policy/v1"
	rbacv1 "k8s.io/api/rbac/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/client-go/rest"
	"k8s.io/client-go/tools/clientcmd"
	"k8s.io/klog/v2"
	"k8s.io/utils/clock"
	ctrl "sigs.k8s.io/controller-runtime"
	"sigs.k8s.io/controller-runtime/pkg/healthz"
	"sigs.k8s.io/controller-runtime/pkg/metrics"
	"sigs.k8s.io/controller-runtime/pkg/metrics/server"

	"github.com/singletonjob/operator/api/v1alpha1"
	"github.com/singletonjob/operator/internal/contract"
	"github.com/singletonjob/operator/internal/controller"
	"github.com/singletonjob/operator/internal/inject"
)

// leaderLease is the default name of the Lease by which the operator's replicas elect the one that acts. It has nothing to do
// with the Leases of SingletonJobs: those stay safe with two operators at work.
const leaderLease = "singletonjob-operator"

const usage = `The SingletonJob operator: keeps the candidates and the Lease of every SingletonJob, and reports
their tenures. It takes no part in elections; while it is down, running jobs run on and fail over.

Usage: manager [flags]

`

// options are the command line.
type options struct {
	kubeconfig                    string
	agentImage, agentPull         string
	namespaces                    string
	leaderElect                   bool
	leaderID, leaderNamespace     string
	metricsAddress, healthAddress string
	concurrency, verbosity, burst int
	qps                           float64
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
		"`image` from which candidate pods get the agent: this operator's own (default: the environment's AGENT_IMAGE)")
	f.StringVar(&o.agentPull, "agent-image-pull-policy", "", "Always, IfNotPresent or Never; empty for the cluster's default `policy`")
	f.StringVar(&o.namespaces, "namespaces", "", "comma-separated `names` of the namespaces to work in; empty for all")
	f.BoolVar(&o.leaderElect, "leader-elect", true, "let one of several replicas act, elected by a Lease")
	f.StringVar(&o.leaderID, "leader-election-id", leaderLease, "`name` of that Lease: one for each set of replicas")
	f.StringVar(&o.leaderNamespace, "leader-election-namespace", "", "`namespace` of that Lease; needed outside a cluster")
	f.StringVar(&o.metricsAddress, "metrics-bind-address", ":8080", "`address` that serves /metrics; 0 for none")
	f.StringVar(&o.healthAddress, "health-probe-bind-address", ":8081", "`address` that serves /healthz and /readyz; 0 for none")
	f.IntVar(&o.concurrency, "concurrency", 8, "`number` of SingletonJobs worked on at a time")
	f.Float64Var(&o.qps, "kube-api-qps", 100, "requests per second to the API server, sustained; -1 for no limit")
	f.IntVar(&o.burst, "kube-api-burst", 200, "requests to the API server in a burst")
	f.IntVar(&o.verbosity, "v", 0, "`verbosity` of the log: 0 is for operation, 4 for debugging")
	f.StringVar(&o.kubeconfig, "kubeconfig", os.Getenv("KUBECONFIG"), "`file` with the address and credentials of the cluster; empty inside a cluster")
	if err := f.Parse(args); err != nil {
		return o, err
	}
	return o, o.check(out, f.Args())
}

func (o options) check(out io.Writer, rest []string) error {
	var errs []error
	if len(rest) > 0 {
		errs = append(errs, fmt.Errorf("unexpected argument %q: flags only", rest[0]))
	}
	if o.agentImage == "" {
		errs = append(errs, errors.New("no agent image: set --agent-image or AGENT_IMAGE to the image of this operator"))
	}
	switch corev1.PullPolicy(o.agentPull) {
	case "", corev1.PullAlways, corev1.PullIfNotPresent, corev1.PullNever:
	default:
		errs = append(errs, fmt.Errorf("--agent-image-pull-policy %q is none of Always, IfNotPresent, Never", o.agentPull))
	}
	if o.concurrency < 1 {
		errs = append(errs, fmt.Errorf("--concurrency %d is less than 1", o.concurrency))
	}
	err := errors.Join(errs...)
	if err != nil {
		_, _ = fmt.Fprintln(out, err)
	}
	return err
}

func run(o options) error {
	log := logr.FromSlogHandler(slog.NewJSONHandler(os.Stderr, &slog.HandlerOptions{Level: slog.Level(-o.verbosity)}))
	ctrl.SetLogger(log)
	klog.SetLogger(log)
	config, err := o.config()
	if err != nil {
		return fmt.Errorf("no way to reach a cluster (--kubeconfig %q): %w", o.kubeconfig, err)
	}
	m, err := o.manager(config)
	if err != nil {
		return err
	}
	ctx := ctrl.SetupSignalHandler()
	r := controller.New(m.GetClient(), m.GetAPIReader(), clock.RealClock{}, inject.Settings{
		AgentImage: o.agentImage, AgentPullPolicy: corev1.PullPolicy(o.agentPull),
	})
	for _, c := range r.Collectors() {
		if err := metrics.Registry.Register(c); err != nil {
			return err
		}
	}
	if err := r.SetupWithManager(ctx, m, o.concurrency); err != nil {
		return err
	}
	log.Info("starting", "version", contract.Version, "agentImage", o.agentImage, "namespaces", o.namespaces)
	return m.Start(ctx)
}

func (o options) config() (*rest.Config, error) {
	config, err := clientcmd.BuildConfigFromFlags("", o.kubeconfig) // in the cluster if the file is empty
	if err != nil {
		return nil, err
	}
	config.QPS, config.Burst, config.UserAgent = float32(o.qps), o.burst, "singletonjob-operator"
	return config, nil
}

func (o options) manager(config *rest.Config) (ctrl.Manager, error) {
	scheme := runtime.NewScheme()
	for _, add := range []func(*runtime.Scheme) error{
		v1alpha1.AddToScheme, corev1.AddToScheme, coordinationv1.AddToScheme, rbacv1.AddToScheme, policyv1.AddToScheme,
	} {
		if err := add(scheme); err != nil {
			return nil, err
		}
	}
	m, err := ctrl.NewManager(config, ctrl.Options{
		Scheme:                  scheme,
		Cache:                   controller.CacheOptions(strings.FieldsFunc(o.namespaces, func(r rune) bool { return r == ',' || r == ' ' })),
		LeaderElection:          o.leaderElect,
		LeaderElectionID:        o.leaderID,
		LeaderElectionNamespace: o.leaderNamespace,
		// Releasing at the end can blank the Lease of a successor.
		LeaderElectionReleaseOnCancel: false,
		Metrics:                       server.Options{BindAddress: o.metricsAddress},
		HealthProbeBindAddress:        o.healthAddress,
	})
	if err != nil {
		return nil, err
	}
	if err := m.AddHealthzCheck("ping", healthz.Ping); err != nil {
		return nil, err
	}
	return m, m.AddReadyzCheck("ping", healthz.Ping)
}
