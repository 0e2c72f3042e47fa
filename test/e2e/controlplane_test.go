//go:build linux

package e2e

import (
	"fmt"
	"slices"
	"testing"
	"time"

	coordinationv1 "k8s.io/api/coordination/v1"
	"k8s.io/apimachinery/pkg/api/meta"

	"github.com/singletonjob/operator/api/v1alpha1"
	"github.com/singletonjob/operator/test/cluster"
	"github.com/singletonjob/operator/test/observe"
)

// An outage takes the API server from everybody.
type outage struct {
	breaks []string
	why    string
}

var outages = map[string]outage{
	"API server stopped": {breaks: []string{"stop", "control", "apiserver-1"}, why: "connections are refused"},
	"API server hangs":   {breaks: []string{"suspend", "control", "apiserver-1"}, why: "connections stay open and nothing answers"},
	"etcd paused":        {breaks: []string{"suspend", "control", "etcd-1"}, why: "requests hang in the API server, and may be carried out later"},
}

func keepRunning(o *v1alpha1.SingletonJob) {
	o.Spec.Lease.OnRenewFailure = v1alpha1.OnRenewFailureKeepRunning
}

// TestOutage: without an API server for longer than a lease no process may act, and one comes back. Where sinks fence and
// processes are kept running, it stops nothing, and the tenure continues with its token.
func TestOutage(t *testing.T) {
	for name, o := range outages {
		t.Run(name, func(t *testing.T) {
			x := begin(t)
			x.needLab()
			stops, goesOn := x.createNamed("stops", lease), x.createNamed("goes-on", cluster.ClientGo, keepRunning)
			before := map[*job]*v1alpha1.SingletonJob{}
			for _, j := range []*job{stops, goesOn} {
				before[j] = j.awaitSettled()
				j.awaitWriteAfter(0)
			}
			x.fault(o.breaks...)
			stops.awaitSilence()
			silent := len(stops.lives())
			time.Sleep(cluster.ClientGo.Duration) // of both leases the longer
			if now := len(stops.lives()); now != silent {
				x.Errorf("a process began to write without an API server")
			}
			goesOn.awaitFurtherWrites() // while the API server is away
			x.heal()

			token := before[stops].Status.FencingToken
			stops.awaitWriteAfter(token)
			stops.awaitActiveAfter(token)
			stops.awaitSettled()
			stops.check(false)

			// The first to come, the holder with its renewal or a standby whose wait is over, has the Lease: if the
			// standby, the holder learns of it and is stopped.
			token = before[goesOn].Status.FencingToken
			goesOn.awaitRenewal()
			if goesOn.awaitSettled().Status.FencingToken == token {
				goesOn.undisturbed(before[goesOn])
			} else {
				goesOn.awaitWriteAfter(token)
				x.Logf("a standby was first: %+v", goesOn.lives())
				goesOn.check(true)
			}
		})
	}
}

// awaitRenewal waits until the Lease is renewed or taken after now: a status may be from before an outage.
func (j *job) awaitRenewal() {
	j.Helper()
	var before *coordinationv1.Lease
	j.await("the Lease to be renewed", func() (bool, any, error) {
		now := &coordinationv1.Lease{}
		if err := bed.Client.Get(j.ctx, j.key, now); err != nil {
			return false, nil, err
		}
		if before == nil {
			before = now
		}
		return !now.Spec.RenewTime.Equal(before.Spec.RenewTime), now.Spec, nil
	})
}

// awaitSilence waits until nobody has written for a second.
func (j *job) awaitSilence() {
	j.Helper()
	var last time.Duration
	quietSince := time.Now()
	j.await("no more writes", func() (bool, any, error) {
		lives := j.lives()
		if newest := lives[len(lives)-1].Last; newest != last {
			last, quietSince = newest, time.Now()
		}
		return time.Since(quietSince) > time.Second, last, nil
	})
}

// TestEtcdRestarted: a restart is shorter than a lease, and no tenure may end.
func TestEtcdRestarted(t *testing.T) {
	x := begin(t)
	x.needLab()
	j := x.start(steady)
	before := j.get()
	x.fault("restart", "control", "etcd-1")
	time.Sleep(shows)
	j.awaitSettled()
	j.undisturbed(before)
}

// TestQuorum: a tenure outlasts the loss of any one etcd of three, the leader among them, one after the other. Without a
// quorum nobody can renew: all stop, and one comes back.
func TestQuorum(t *testing.T) {
	x := begin(t)
	x.needControlPlanes(3)
	// Requests that are under way when a leader dies take their time, and so does the next election.
	patient := cluster.LeaseSetting{Duration: 30 * time.Second, Deadline: 20 * time.Second, Retry: 2 * time.Second}
	j := x.start(patient)
	before := j.get()
	for i := range 3 {
		x.fault("restart", "control", fmt.Sprintf("etcd-%d", i+1))
		time.Sleep(patient.Deadline)
	}
	j.undisturbed(before)

	x.fault("stop", "control", "etcd-3")
	time.Sleep(patient.Deadline)
	j.undisturbed(before)
	x.fault("suspend", "control", "etcd-2")
	time.Sleep(patient.Deadline)
	j.awaitSilence()
	x.heal()
	j.awaitWriteAfter(before.Status.FencingToken)
	j.awaitSettled()
	j.check(false)
}

// TestEtcdRestored restores a backup from before the present tenure: the store has forgotten it and gives out its revisions
// again. No two processes run, the sink refuses what comes with a token from before, and all is well with a token base
// above all that was seen.
func TestEtcdRestored(t *testing.T) {
	x := begin(t)
	x.needLab()
	j := x.start(lease)
	x.fault("backup-etcd")
	j.awaitSettled()
	j.crash()
	j.crash()
	seen := j.awaitSettled().Status.FencingToken
	x.fault("restore-etcd")
	// As every controller after a restore: their watches are at revisions yet to come.
	x.kubectl("rollout", "restart", "deployment", release, "--namespace="+systemNamespace)
	j.awaitStatus("active again", func(o *v1alpha1.SingletonJob) bool {
		return o.Status.Tenures > 1 && meta.IsStatusConditionTrue(o.Status.Conditions, v1alpha1.ConditionActive)
	})
	j.checkNeverTwo()

	j.update(func(o *v1alpha1.SingletonJob) { o.Spec.Fencing.TokenBase = seen })
	j.awaitWriteAfter(seen)
	j.awaitActiveAfter(seen)
	j.awaitSettled()
	j.checkNeverTwo()
}

// checkNeverTwo is check where tokens may have been given out twice: only processes and the sink are looked at.
func (j *job) checkNeverTwo() {
	j.Helper()
	lives := j.lives()
	for _, v := range slices.Concat(observe.StoredStale(lives), observe.Overlaps(lives)) {
		j.Error("violation: ", v)
	}
}

// TestRequestsFail lets the holder's requests meet what real networks do to them, one kind after the other: no tenure may
// end as long as renewals get through within the deadline.
func TestRequestsFail(t *testing.T) {
	t.Parallel()
	for _, proxy := range [][]string{
		{"delay", "-after=800ms"}, {"delay-reply", "-after=800ms"}, {"duplicate", "-after=300ms", "-method=PUT"}, {"stall-watch"},
	} {
		t.Run(proxy[0], func(t *testing.T) {
			x := beginBeside(t)
			x.needLab()
			j := x.start(steady)
			before := j.get()
			x.fault(append([]string{"proxy", before.Status.ActiveNode}, proxy...)...)
			time.Sleep(shows)
			j.undisturbed(before)
			x.heal()
			j.awaitSettled()
			j.undisturbed(before)
		})
	}
}

// TestRepliesLost: every write of the holder's succeeds and none is answered. It must not count on what it can't know.
func TestRepliesLost(t *testing.T) {
	t.Parallel()
	for _, kind := range []string{"lose-reply", "reset-reply", "stale", "overload", "fail"} {
		t.Run(kind, func(t *testing.T) {
			x := beginBeside(t)
			x.needLab()
			j := x.start(lease)
			before := j.get()
			x.fault("proxy", before.Status.ActiveNode, kind, "-path=/leases/")
			time.Sleep(2 * lease.Duration)
			x.heal()
			j.awaitSettled()
			x.Logf("%d processes wrote", len(j.lives()))
			j.check(false)
		})
	}
}
