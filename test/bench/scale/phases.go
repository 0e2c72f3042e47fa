//go:build linux

package main

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"os"
	"path/filepath"
	"runtime"
	"strings"
	"time"

	"golang.org/x/sync/errgroup"
	"golang.org/x/sys/unix"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
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
	// calm is for how long the operator sends nothing when all is done.
	calm = 5 * time.Second
)

// Names of phases.
const (
	created   = "created"
	atRest    = "at rest"
	churn     = "1 % failovers a minute"
	restarted = "operator restarted"
	outage    = "API server restarted"
	half      = "half of the holders cut off"
	healed    = "healed"
)

// bench is one run.
type bench struct {
	options
	dir      string
	plane    *controlplane.ControlPlane
	client   client.Client
	fleet    *fleet
	operator *subprocess.Process
	metrics  string // the operator's address
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
	b.result = Result{Date: time.Now().UTC(), Jobs: o.jobs, Cores: runtime.NumCPU(), Lease: o.lease.String(), Kubernetes: controlplane.KubernetesVersion}
	var uname unix.Utsname
	if err := unix.Uname(&uname); err != nil {
		return r, err
	}
	b.result.Kernel = unix.ByteSliceToString(uname.Release[:])
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	err = b.setUp(ctx)
	if b.plane != nil {
		defer b.plane.Stop()
	}
	if err != nil {
		return r, err
	}
	defer func() { b.operator.Stop(0) }()
	err = b.phases(ctx)
	b.fleet.ledger.mu.Lock()
	b.result.Faults = append(b.result.Faults, b.fleet.ledger.faults...)
	b.fleet.ledger.mu.Unlock()
	b.result.Took = time.Since(b.result.Date).Seconds()
	return b.result, err
}

func (b *bench) setUp(ctx context.Context) (err error) {
	root, err := os.Getwd()
	if err != nil {
		return err
	}
	if err := stack.Build(ctx, root, b.dir); err != nil {
		return err
	}
	// As a control plane of a cluster runs, where memory is for it.
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
	for i := range (b.jobs + perNamespace - 1) / perNamespace {
		if err := b.client.Create(ctx, &corev1.Namespace{ObjectMeta: metav1.ObjectMeta{Name: namespace(i * perNamespace)}}); err != nil {
			return err
		}
	}
	if b.fleet, err = startFleet(ctx, b.plane, filepath.Join(b.dir, "pods")); err != nil {
		return err
	}
	return b.startOperator(ctx)
}

func namespace(job int) string { return fmt.Sprintf("scale-%d", job/perNamespace) }

// startOperator starts it by its default flags, and returns when it serves its metrics.
func (b *bench) startOperator(ctx context.Context) error {
	port, err := controlplane.FreePort()
	if err != nil {
		return err
	}
	b.metrics = fmt.Sprintf("127.0.0.1:%d", port)
	b.operator, err = stack.RunOperator(b.plane.Config(), b.dir, filepath.Join(b.dir, "operator", "manager"), "--metrics-secure=false", "--metrics-bind-address="+b.metrics)
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
	return observe.Await(ctx, what, is)
}

// phases goes through all that is measured.
func (b *bench) phases(ctx context.Context) (err error) {
	if b.last, err = b.sample(ctx); err != nil {
		return err
	}
	for _, p := range []struct {
		name string
		do   func(context.Context, map[string]float64) error
	}{
		{created, b.create},
		{atRest, b.leaveAlone},
		{churn, b.crashSome},
		{restarted, b.restartOperator},
		{outage, b.restartServer},
		{half, b.cutHalf},
		{healed, b.judge},
	} {
		facts := map[string]float64{}
		b.fleet.takeRenewals()
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
			b.fleet.add(verbOf("POST", "singletonjobs"))
			return b.client.Create(making, job(i, b.lease))
		})
	}
	if err := made.Wait(); err != nil {
		return err
	}
	if err := b.settled(ctx, time.Time{}); err != nil {
		return err
	}
	facts["all settled"] = time.Since(began).Seconds()
	return b.calmed(ctx)
}

func job(i int, lease leaseFlag) *v1alpha1.SingletonJob {
	seconds := func(d time.Duration) metav1.Duration { return metav1.Duration{Duration: d} }
	return &v1alpha1.SingletonJob{
		ObjectMeta: metav1.ObjectMeta{Namespace: namespace(i), Name: fmt.Sprintf("job-%d", i)},
		Spec: v1alpha1.SingletonJobSpec{
			Candidates: candidates,
			Lease:      v1alpha1.LeaseSpec{LeaseDuration: seconds(lease[0]), RenewDeadline: seconds(lease[1]), RetryPeriod: seconds(lease[2])},
			Template: corev1.PodTemplateSpec{Spec: corev1.PodSpec{
				Containers: []corev1.Container{{Name: "app", Image: "app:1", Command: []string{"run"}}},
			}},
		},
	}
}

// settled waits until each job has a process that began after since, or any, its label and its standby.
func (b *bench) settled(ctx context.Context, since time.Time) error {
	return b.await(ctx, "all jobs to have a process, a label and a standby", func() (bool, any, error) {
		n := b.fleet.ledger.count(func(j *jobRecord) bool { return j.acts(since) && !j.right.IsZero() && len(j.ready) == candidates })
		return n == b.jobs, fmt.Sprintf("%d of %d", n, b.jobs), nil
	})
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
		return time.Since(since) > calm, sent, onlab.Sleep(ctx, time.Second)
	})
}

func (b *bench) leaveAlone(ctx context.Context, facts map[string]float64) (err error) {
	if b.result.LeaseBytes[0], err = b.leaseBytes(ctx); err != nil {
		return err
	}
	before := b.fleet.ledger.tenures()
	if err := onlab.Sleep(ctx, b.rest); err != nil {
		return err
	}
	facts["changes of holder"] = float64(b.fleet.ledger.tenures() - before)
	return nil
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
		holders := b.fleet.holders()
		if len(holders) == 0 {
			return errors.New("nobody holds a Lease")
		}
		c := holders[rand.IntN(len(holders))]
		at := time.Now()
		c.crash()
		if err := b.await(ctx, c.job.String()+" to have another process", func() (bool, any, error) {
			b.fleet.ledger.mu.Lock()
			defer b.fleet.ledger.mu.Unlock()
			return b.fleet.ledger.of(c.job).acts(at), nil, nil
		}); err != nil {
			return err
		}
		acts, _ := b.fleet.ledger.taken([]types.NamespacedName{c.job})
		took = append(took, acts.Sub(at))
	}
	facts["failovers"] = float64(len(took))
	facts["next acts, median"], facts["next acts, most"] = quantile(took, 50).Seconds(), quantile(took, 100).Seconds()
	return b.calmed(ctx)
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
		return int(known) == b.jobs, known, err
	})
	if err != nil {
		return err
	}
	facts["all known"] = time.Since(began).Seconds()
	return b.calmed(ctx)
}

// restartServer kills the API server and starts it again, and waits until each holder has renewed.
func (b *bench) restartServer(ctx context.Context, facts map[string]float64) error {
	before, began := b.fleet.ledger.tenures(), time.Now()
	b.plane.KillAPIServer()
	if err := b.plane.StartAPIServer(ctx); err != nil {
		return err
	}
	facts["away"] = time.Since(began).Seconds()
	back := time.Now()
	err := b.await(ctx, "all holders to have renewed", func() (bool, any, error) {
		late := 0
		for _, c := range b.fleet.holders() {
			if !c.renewedSince(back) {
				late++
			}
		}
		return late == 0, late, nil
	})
	if err != nil {
		return err
	}
	facts["all renewed"] = time.Since(back).Seconds()
	if err := b.calmed(ctx); err != nil {
		return err
	}
	facts["changes of holder"] = float64(b.fleet.ledger.tenures() - before)
	return nil
}

// cutHalf cuts half of the holders off, and waits until the others have taken over and are labelled.
func (b *bench) cutHalf(ctx context.Context, facts map[string]float64) error {
	var cut []*candidate
	var keys []types.NamespacedName
	for i, c := range b.fleet.holders() {
		if i%2 == 0 {
			cut, keys = append(cut, c), append(keys, c.job)
		}
	}
	at := time.Now()
	for _, c := range cut {
		c.sever()
	}
	err := b.await(ctx, "others to take over from those who are cut off", func() (bool, any, error) {
		b.fleet.ledger.mu.Lock()
		defer b.fleet.ledger.mu.Unlock()
		n := 0
		for _, key := range keys {
			if j := b.fleet.ledger.of(key); j.acts(at) && !j.right.IsZero() {
				n++
			}
		}
		return n == len(keys), fmt.Sprintf("%d of %d", n, len(keys)), nil
	})
	if err != nil {
		return err
	}
	acts, labelled := b.fleet.ledger.taken(keys)
	facts["failovers"], facts["last acts"], facts["last labelled"] = float64(len(keys)), acts.Sub(at).Seconds(), labelled.Sub(at).Seconds()
	if err := b.calmed(ctx); err != nil {
		return err
	}
	for _, c := range cut {
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
	var all v1alpha1.SingletonJobList
	if err := b.client.List(ctx, &all); err != nil {
		return err
	}
	for i := range all.Items {
		b.result.Faults = append(b.result.Faults, b.fleet.ledger.missing(&all.Items[i])...)
	}
	facts["tenures"] = float64(b.fleet.ledger.tenures())
	return nil
}
