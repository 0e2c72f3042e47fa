//go:build linux

package main

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"runtime"
	"slices"
	"strings"
	"time"

	"golang.org/x/sync/errgroup"
	"golang.org/x/sys/unix"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/rest"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/singletonjob/operator/api/v1alpha1"
	"github.com/singletonjob/operator/test/bench/onlab"
	"github.com/singletonjob/operator/test/controlplane"
	"github.com/singletonjob/operator/test/observe"
	"github.com/singletonjob/operator/test/stack"
	"github.com/singletonjob/operator/test/subprocess"
)

// usual is the lease of all jobs, unless a flag says otherwise.
var usual = leaseFlag{60 * time.Second, 40 * time.Second, 10 * time.Second}

// leaseFlag are leaseDuration, renewDeadline and retryPeriod.
type leaseFlag [3]time.Duration

// String implements flag.Value.
func (l *leaseFlag) String() string { return fmt.Sprintf("%v/%v/%v", l[0], l[1], l[2]) }

// Set implements flag.Value.
func (l *leaseFlag) Set(text string) error {
	parts := strings.Split(text, "/")
	if len(parts) != len(l) {
		return fmt.Errorf("%q is not leaseDuration/renewDeadline/retryPeriod, such as 60s/40s/10s", text)
	}
	for i, part := range parts {
		d, err := time.ParseDuration(part)
		if err != nil {
			return err
		}
		l[i] = d
	}
	return nil
}

const (
	candidates   = 2
	perNamespace = 100
	creating     = 16 // at a time
	starting     = 32 // pods, at a time
	// glance is the least time between two looks, and glancePerJob what more jobs take: a look costs them something. A look at the operator's
	// metrics costs it more.
	glance, glancePerJob, scrapePerJob = 50 * time.Millisecond, 50 * time.Microsecond, 400 * time.Microsecond
	// calm is for how long the operator sends nothing when all is done.
	calm = 6 * time.Second
)

// Names of phases.
const (
	created   = "created"
	atRest    = "at rest"
	churn     = "1 % failovers a minute"
	restarted = "operator restarted"
	half      = "half of the holders cut off"
	healed    = "healed"
	outage    = "API server restarted"
	recovered = "after that"
)

// bench is one run.
type bench struct {
	options
	dir      string
	plane    *controlplane.ControlPlane
	client   client.Client
	server   rest.Interface
	fleet    *fleet
	sent     float64 // requests of its own to create jobs
	operator *subprocess.Process
	metrics  string // the operator's address
	profiles string // and that of its profiles
	last     sample
	result   Result
}

func measure(ctx context.Context, o options) (r Result, err error) {
	dir, err := os.MkdirTemp("", "singletonjob-scale-")
	if err != nil {
		return r, err
	}
	defer func() { _ = os.RemoveAll(dir) }()
	b := &bench{options: o, dir: dir}
	b.result = Result{Date: time.Now().UTC(), Jobs: o.jobs, Cores: runtime.NumCPU(), Lease: o.lease.String()}
	var uname unix.Utsname
	if err := unix.Uname(&uname); err != nil {
		return r, err
	}
	b.result.Kernel = unix.ByteSliceToString(uname.Release[:])
	if len(b.planned()) == 0 {
		return r, fmt.Errorf("-until=%q is not the name of a phase", o.until)
	}
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	err = b.setUp(ctx)
	defer b.stop()
	if err != nil {
		return r, err
	}
	err = b.phases(ctx)
	b.result.Faults = append(b.result.Faults, b.fleet.ledger.found()...)
	b.result.Took = time.Since(b.result.Date).Seconds()
	return b.result, err
}

// stop ends all that was started.
func (b *bench) stop() {
	if b.operator != nil {
		b.operator.Stop(0)
	}
	if b.plane != nil {
		b.plane.Stop()
	}
}

func (b *bench) setUp(ctx context.Context) (err error) {
	root, err := os.Getwd()
	if err != nil {
		return err
	}
	if err := stack.Build(ctx, root, b.dir); err != nil {
		return err
	}
	// As a control plane of a cluster runs: without a limit, near which it would do little but collect garbage.
	b.plane, err = controlplane.Start(ctx, controlplane.Options{Progress: os.Stderr, Environment: []string{"GOGC=100", "GOMEMLIMIT=off"}})
	if err != nil {
		return err
	}
	if err := stack.Install(ctx, b.plane, root); err != nil {
		return err
	}
	if b.client, err = stack.NewClient(b.plane.Config()); err != nil {
		return err
	}
	for i := range nodes {
		node := &corev1.Node{ObjectMeta: metav1.ObjectMeta{Name: nodeName(i), Labels: map[string]string{corev1.LabelHostname: nodeName(i)}}}
		if err := b.client.Create(ctx, node); err != nil {
			return err
		}
	}
	for i := range (b.jobs + perNamespace - 1) / perNamespace {
		if err := b.client.Create(ctx, &corev1.Namespace{ObjectMeta: metav1.ObjectMeta{Name: namespace(i * perNamespace)}}); err != nil {
			return err
		}
	}
	if err := b.startFleet(ctx); err != nil {
		return err
	}
	return b.startOperator(ctx)
}

func (b *bench) startFleet(ctx context.Context) error {
	room, err := connections()
	if err != nil {
		return err
	}
	if b.share || b.jobs*connectionsEach > room {
		b.result.Shared = max(nodes, candidates*b.jobs/eachShares)
	}
	config := b.plane.Config()
	at := place{Host: config.Host, Token: config.BearerToken, CA: config.CAData, Dir: filepath.Join(b.dir, "pods"), Shared: b.result.Shared}
	clients, err := kubernetes.NewForConfig(at.config())
	if err != nil {
		return err
	}
	version, err := clients.Discovery().ServerVersion()
	if err != nil {
		return err
	}
	b.result.Kubernetes, b.server = version.String(), clients.Discovery().RESTClient()
	connected := "each agent has its own connections"
	if b.result.Shared > 0 {
		connected = fmt.Sprintf("the agents share %d connections", b.result.Shared)
	}
	fmt.Fprintf(os.Stderr, "%d jobs; %s\n", b.jobs, connected)
	b.fleet, err = startFleet(ctx, at)
	return err
}

func namespace(job int) string { return fmt.Sprintf("scale-%d", job/perNamespace) }

// startOperator starts it by its default flags, and returns when it serves its metrics.
func (b *bench) startOperator(ctx context.Context) error {
	port, err := controlplane.FreePort()
	if err != nil {
		return err
	}
	b.metrics = fmt.Sprintf("127.0.0.1:%d", port)
	flags := []string{"--metrics-secure=false", "--metrics-bind-address=" + b.metrics}
	if b.heap != "" {
		if port, err = controlplane.FreePort(); err != nil {
			return err
		}
		b.profiles = fmt.Sprintf("127.0.0.1:%d", port)
		flags = append(flags, "--pprof-bind-address="+b.profiles)
	}
	b.operator, err = stack.RunOperator(b.plane.Config(), b.dir, filepath.Join(b.dir, "operator", "manager"), flags...)
	if err != nil {
		return err
	}
	return b.await(ctx, "the operator's metrics", func() (bool, any, error) {
		select {
		case <-b.operator.Done():
			text, _ := os.ReadFile(filepath.Join(b.dir, "operator.log"))
			return false, string(text), b.operator.Err()
		default:
		}
		_, err := b.operatorMetrics(ctx)
		return err == nil, nil, err
	})
}

func (b *bench) await(ctx context.Context, what string, is func() (bool, any, error)) error {
	ctx, cancel := context.WithTimeout(ctx, b.patience)
	defer cancel()
	var lost error
	err := observe.Await(ctx, what, func() (bool, any, error) {
		if faults := b.fleet.ledger.found(); len(faults) > 0 {
			lost = fmt.Errorf("%d faults", len(faults))
			return true, nil, nil
		}
		return is()
	})
	return errors.Join(err, lost)
}

// unless waits before the next look, unless all is as it should be. perJob is the wait for each job.
func (b *bench) unless(ctx context.Context, is bool, seen any, perJob time.Duration) (bool, any, error) {
	if is {
		return true, seen, nil
	}
	return false, seen, onlab.Sleep(ctx, max(glance, time.Duration(b.jobs)*perJob))
}

type step struct {
	name string
	do   func(context.Context, map[string]float64) error
}

// planned are the phases until the last one that is asked for.
func (b *bench) planned() []step {
	all := []step{
		{created, b.create},
		{atRest, b.leaveAlone},
		{churn, b.crashSome},
		{restarted, b.restartOperator},
		{half, b.cutHalf},
		{healed, b.judge},
		{outage, b.restartServer},
		{recovered, b.judge},
	}
	return all[:1+slices.IndexFunc(all, func(s step) bool { return s.name == b.until })]
}

// phases goes through all that is measured.
func (b *bench) phases(ctx context.Context) (err error) {
	if b.last, err = b.sample(ctx); err != nil {
		return err
	}
	for _, p := range b.planned() {
		facts := map[string]float64{}
		_ = b.fleet.takeRenewals()
		if err := p.do(ctx, facts); err != nil {
			return fmt.Errorf("%s: %w", p.name, err)
		}
		now, err := b.sample(ctx)
		if err != nil {
			return err
		}
		phase := between(p.name, b.last, now, b.fleet.takeRenewals())
		phase.Facts = facts
		b.result.Phases, b.last = append(b.result.Phases, phase), now
		if p.name == atRest && b.heap != "" {
			if err := b.profileHeap(ctx); err != nil {
				return err
			}
		}
		fmt.Fprintf(os.Stderr, "%d jobs, %s: %.0f s, operator %.0f MiB and %.3f cores, %v\n",
			b.jobs, p.name, phase.Took, phase.Memory["operator"], phase.CPU["operator"], facts)
	}
	b.result.LeaseBytes[1], err = b.leaseBytes(ctx)
	return err
}

// create makes all jobs, and waits until each has a process, a label on its pod, and two pods that are ready.
func (b *bench) create(ctx context.Context, facts map[string]float64) error {
	began := time.Now()
	made, making := errgroup.WithContext(ctx)
	made.SetLimit(creating)
	for i := range b.jobs {
		made.Go(func() error {
			return b.client.Create(making, job(i, b.lease))
		})
	}
	b.sent += float64(b.jobs)
	if err := made.Wait(); err != nil {
		return err
	}
	if err := b.settled(ctx, time.Time{}); err != nil {
		return err
	}
	facts["all settled"] = time.Since(began).Seconds()
	return b.calmed(ctx)
}

// createJob is what the bench itself sends.
var createJob = verbOf("POST", "singletonjobs")

func job(i int, lease leaseFlag) *v1alpha1.SingletonJob {
	labels := map[string]string{"app.kubernetes.io/part-of": "bench"}
	seconds := func(d time.Duration) metav1.Duration { return metav1.Duration{Duration: d} }
	return &v1alpha1.SingletonJob{
		ObjectMeta: metav1.ObjectMeta{Namespace: namespace(i), Name: fmt.Sprintf("job-%d", i), Labels: labels},
		Spec: v1alpha1.SingletonJobSpec{
			Candidates: candidates,
			Lease:      v1alpha1.LeaseSpec{LeaseDuration: seconds(lease[0]), RenewDeadline: seconds(lease[1]), RetryPeriod: seconds(lease[2])},
			Template: corev1.PodTemplateSpec{
				ObjectMeta: metav1.ObjectMeta{Labels: labels},
				Spec:       corev1.PodSpec{Containers: []corev1.Container{{Name: "app", Image: "app:1", Command: []string{"run"}}}},
			},
		},
	}
}

// settled waits until each job has a process that began after since, or any, its label and its standby. It says each minute how many have,
// and ends when that number falls: the control plane does not keep up then, and will not.
func (b *bench) settled(ctx context.Context, since time.Time) error {
	var p progress
	var failed error
	began := time.Now()
	err := b.await(ctx, "all jobs to have a process, a label and a standby", func() (bool, any, error) {
		settled, took := b.fleet.settled(since), time.Since(began)
		switch p.look(took, settled) {
		case told:
			fmt.Fprintf(os.Stderr, "%d jobs, %s: %d settled\n", b.jobs, took.Round(time.Second), settled)
		case falls:
			failed = fmt.Errorf("%d jobs were settled, now %d: the control plane does not keep up", p.most, settled)
			return true, nil, nil
		case quiet:
		}
		return b.unless(ctx, settled == b.jobs, fmt.Sprintf("%d of %d", settled, b.jobs), glancePerJob)
	})
	return errors.Join(err, failed)
}

// progress is what is known of a number that should grow.
type progress struct {
	most  int
	low   bool
	since time.Duration // when it began to be low
	next  time.Duration // when it is told again
}

type outlook int

const (
	quiet outlook = iota
	told
	falls
)

// patienceForFalls is for how long a number may be below nine tenths of what it was.
const patienceForFalls = 2 * time.Minute

// look takes a number, and the time since the beginning.
func (p *progress) look(now time.Duration, n int) outlook {
	p.most = max(p.most, n)
	if low := n*10 < p.most*9; low != p.low {
		p.low, p.since = low, now
	}
	switch {
	case p.low && now-p.since >= patienceForFalls:
		return falls
	case now >= p.next:
		p.next = now + time.Minute
		return told
	}
	return quiet
}

// calmed waits until the operator sends nothing any more. Its own client counts.
func (b *bench) calmed(ctx context.Context) error {
	before, since := -1.0, time.Now()
	return b.await(ctx, "the operator to send nothing", func() (bool, any, error) {
		families, err := b.operatorMetrics(ctx)
		if err != nil {
			return false, nil, err
		}
		sent := 0.0
		each(families["rest_client_requests_total"], func(_ map[string]string, n float64) { sent += n })
		if sent != before {
			before, since = sent, time.Now()
		}
		return time.Since(since) > calm, sent, onlab.Sleep(ctx, max(2*time.Second, time.Duration(b.jobs)*scrapePerJob))
	})
}

func (b *bench) leaveAlone(ctx context.Context, facts map[string]float64) (err error) {
	if b.result.LeaseBytes[0], err = b.leaseBytes(ctx); err != nil {
		return err
	}
	return b.changes(facts, func() error { return onlab.Sleep(ctx, b.rest) })
}

// changes counts the changes of holder while something is done.
func (b *bench) changes(facts map[string]float64, do func() error) error {
	before := b.fleet.ledger.tenures()
	err := do()
	facts["changes of holder"] = float64(b.fleet.ledger.tenures() - before)
	return err
}

// leaseBytes is the longest of the first Leases in etcd.
func (b *bench) leaseBytes(ctx context.Context) (most int, err error) {
	const some = 20
	for i := range min(b.jobs, some) {
		stored, err := b.plane.Stored(ctx, fmt.Sprintf("/registry/leases/%s/job-%d", namespace(i), i))
		if err != nil {
			return 0, err
		}
		most = max(most, len(stored))
	}
	return most, nil
}

// crashSome has processes crash, one after the other.
func (b *bench) crashSome(ctx context.Context, facts map[string]float64) error {
	const share = 100
	pause := time.Minute * share / time.Duration(b.jobs)
	end := time.Now().Add(b.churn)
	var took []time.Duration
	for next := time.Now(); next.Before(end); next = next.Add(pause) {
		if err := onlab.Sleep(ctx, time.Until(next)); err != nil {
			return err
		}
		after, err := b.crashOne(ctx)
		if err != nil {
			return err
		}
		took = append(took, after)
	}
	facts["failovers"] = float64(len(took))
	facts["next acts, median"], facts["next acts, most"] = quantile(took, 50).Seconds(), quantile(took, 100).Seconds()
	return b.calmed(ctx)
}

func (b *bench) crashOne(ctx context.Context) (time.Duration, error) {
	ctx, cancel := context.WithTimeout(ctx, b.patience)
	defer cancel()
	return b.fleet.crashOne(ctx)
}

// restartOperator kills it, and waits until another one knows all jobs.
func (b *bench) restartOperator(ctx context.Context, facts map[string]float64) error {
	b.operator.Stop(0)
	began := time.Now()
	if err := b.startOperator(ctx); err != nil {
		return err
	}
	err := b.await(ctx, "the operator to know all jobs", func() (bool, any, error) {
		families, err := b.operatorMetrics(ctx)
		known := 0.0
		each(families["singletonjob_active"], func(_ map[string]string, n float64) { known += n })
		if err != nil {
			return false, nil, err
		}
		return b.unless(ctx, int(known) == b.jobs, known, scrapePerJob)
	})
	if err != nil {
		return err
	}
	facts["all known"] = time.Since(began).Seconds()
	return b.calmed(ctx)
}

// restartServer kills the API server and starts it again, and waits until each holder has renewed.
func (b *bench) restartServer(ctx context.Context, facts map[string]float64) error {
	return b.changes(facts, func() error {
		began := time.Now()
		b.plane.KillAPIServer()
		if err := b.startServer(ctx, facts); err != nil {
			return err
		}
		facts["away"] = time.Since(began).Seconds()
		back := time.Now()
		err := b.await(ctx, "all holders to have renewed", func() (bool, any, error) {
			renewed := b.fleet.renewed(back)
			return b.unless(ctx, renewed == b.jobs, fmt.Sprintf("%d of %d", renewed, b.jobs), glancePerJob)
		})
		if err != nil {
			return err
		}
		facts["all renewed"] = time.Since(back).Seconds()
		if err := b.settled(ctx, time.Time{}); err != nil {
			return err
		}
		facts["all settled"] = time.Since(back).Seconds()
		return b.calmed(ctx)
	})
}

// startServer starts the API server. If it ends while it starts, it is started again, with the pauses of a kubelet. One that thousands of
// agents ask while it starts can miss its own deadlines.
func (b *bench) startServer(ctx context.Context, facts map[string]float64) error {
	const most = 5
	pause := 10 * time.Second
	for starts := 1; ; starts++ {
		facts["starts"] = float64(starts)
		err := b.plane.StartAPIServer(ctx)
		if err == nil || starts == most {
			return err
		}
		fmt.Fprintf(os.Stderr, "start %d of the API server: %v\n", starts, err)
		select {
		case <-time.After(pause):
			b.plane.KillAPIServer() // it may run, and not be ready
			pause *= 2
		case <-ctx.Done():
			return ctx.Err()
		}
	}
}

// cutHalf cuts half of the holders off, and waits until the others have taken over and are labelled.
func (b *bench) cutHalf(ctx context.Context, facts map[string]float64) error {
	at := time.Now()
	severed := b.fleet.severHalf()
	var acts, labelled time.Time
	err := b.await(ctx, "others to take over from those who are cut off", func() (bool, any, error) {
		var done int
		done, acts, labelled = b.fleet.taken(severed, at)
		return b.unless(ctx, done == len(severed), fmt.Sprintf("%d of %d", done, len(severed)), glancePerJob)
	})
	if err != nil {
		return err
	}
	facts["failovers"], facts["last acts"], facts["last labelled"] = float64(len(severed)), acts.Sub(at).Seconds(), labelled.Sub(at).Seconds()
	if err := b.calmed(ctx); err != nil {
		return err
	}
	for _, c := range severed {
		c.heal()
	}
	return nil
}

// judge waits until every status tells every tenure, and notes what it does not tell.
func (b *bench) judge(ctx context.Context, facts map[string]float64) error {
	if err := b.settled(ctx, time.Time{}); err != nil {
		return err
	}
	if err := b.calmed(ctx); err != nil {
		return err
	}
	wrong, err := b.fleet.untold(ctx, b.client)
	b.result.Faults = append(b.result.Faults, wrong...)
	if len(wrong) > 0 {
		return errors.Join(err, errors.New("statuses do not tell all tenures"))
	}
	facts["tenures"] = float64(b.fleet.ledger.tenures())
	return err
}
