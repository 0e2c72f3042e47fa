package plan

import (
	"flag"
	"fmt"
	"math/rand/v2"
	"slices"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/singletonjob/operator/api/v1alpha1"
	"github.com/singletonjob/operator/internal/lease"
	"github.com/singletonjob/operator/test/tier"
)

// later returns the same observation some time later, without any writes, except for the holder's renewals if renewed is set.
func (g *given) later(d time.Duration, renewed bool) *given {
	o := g.Observed
	o.Now = o.Now.Add(d)
	if !o.Server.IsZero() {
		o.Server = o.Server.Add(d)
	}
	if o.OverQuota > 0 {
		o.OverQuota += d
	}
	o.Remembered = max(0, o.Remembered-d)
	o.Entrypoint.Retry = max(0, o.Entrypoint.Retry-d)
	o.Trials = slices.Clone(o.Trials)
	for i := range o.Trials {
		trial := &o.Trials[i]
		trial.Seen += d
		if trial.Ready {
			trial.For += d
		}
	}
	if renewed {
		o.Lease.Record.Revision++
		o.Lease.Record.RenewTime = o.Now.UnixMicro()
		o.Lease.Unchanged, o.Lease.SinceRenewal, o.Lease.Renewed = 0, 0, true
	} else {
		o.Lease.Unchanged += d
		o.Lease.SinceRenewal += d
	}
	return &given{o}
}

// did returns the parts of a plan that must stay the same as long as nothing is due: all but dates and repeated reports.
func did(p Plan) any {
	names := func(refs []PodRef) (all []string) {
		for _, r := range refs {
			all = append(all, r.Name)
		}
		return all
	}
	var created []string
	for _, pod := range p.Create {
		created = append(created, pod.Name)
	}
	var conditions []metav1.Condition
	var status v1alpha1.SingletonJobStatus
	told := p.Status != nil && p.State != Deleting // the status of a job that is being deleted does not matter
	if told {
		status = *p.Status
		conditions = slices.Clone(status.Conditions)
		for i := range conditions {
			conditions[i].LastTransitionTime = metav1.Time{}
		}
		status.Conditions = nil
	}
	return []any{
		p.State, p.Lease != nil, p.Told != nil, p.Service != nil, p.Relabel, names(p.Adopt), names(p.Delete), created, len(p.Apply), len(p.Also),
		p.Move != nil, told, status, conditions, p.Expired,
	}
}

// writes reports whether there is something to do.
func (p *Plan) writes() bool {
	return p.Lease != nil || p.Told != nil || p.Service != nil || p.Move != nil || p.Status != nil || p.Expired ||
		len(p.Relabel)+len(p.Apply)+len(p.Adopt)+len(p.Delete)+len(p.Create)+len(p.Also) > 0
}

// TestClearedHolderExpires: a suspended job reports the end when the lease of a holder has expired whose name was cleared.
func TestClearedHolderExpires(t *testing.T) {
	g := steady()
	g.Job.Spec.Suspend = true
	g.Pods, g.Lease.Record.Holder = nil, ""
	p := Decide(g.Observed)
	if p.State != Suspending || p.Wake != 14*time.Second {
		t.Fatalf("%v, wakes after %v", p.State, p.Wake)
	}
	if p := Decide(g.later(p.Wake, false).Observed); p.State != Suspended {
		t.Errorf("it is %v then", p.State)
	}
}

// TestBlockedJobReportsALateCandidate: the cause for which a candidate waits is reported in time, although nothing can be started.
func TestBlockedJobReportsALateCandidate(t *testing.T) {
	g := steady()
	g.ofWorkload()
	g.Workload.Replicas = 1
	g.released(lease.ReasonProcessExited)
	for i := range g.Pods {
		g.unready(i)
	}
	if p := Decide(g.Observed); p.State != Blocked || p.Due != twoMinutes-time.Second {
		t.Errorf("%v, due in %v", p.State, p.Due)
	}
}

var wakeSeeds = flag.Uint64("wake-seeds", 400, "how many observations TestPlanIsStableUntilItWakes looks at; the deep tier at 1000, and as many that are drawn")

// TestPlanIsStableUntilItWakes: until the time that a plan sets, the plan stays the same, for every possible observation, whether the holder
// renews or is silent. So the test finds code that reads the clock and does not say when its result changes.
func TestPlanIsStableUntilItWakes(t *testing.T) {
	// Leases that wait for another job's pods, whose holder died, and without renewals.
	staysUntilDue(t, 3526537555733438432)
	staysUntilDue(t, 14511233679972947768)
	for _, seed := range tier.Seeds(t, *wakeSeeds, max(*wakeSeeds, 1000)) {
		staysUntilDue(t, seed)
		if t.Failed() {
			return
		}
	}
}

func staysUntilDue(t *testing.T, seed uint64) {
	t.Helper()
	if g := observation(seed); g.Job != nil {
		g.staysUntilDue(t, rand.New(rand.NewPCG(seed, 2)), fmt.Sprintf("seed %d", seed))
	}
}

func (g *given) staysUntilDue(t *testing.T, r *rand.Rand, name string) {
	t.Helper()
	g.EventsUnknown = false
	g.settle()
	p := Decide(g.Observed)
	if p.writes() {
		return // these lead to another decision
	}
	for _, renewed := range []bool{false, true} {
		until := p.Wake
		if renewed {
			until = p.Due
			if p.Renewal || g.Lease.Presence != Ours || !tenureOf(jobOf(&g.Observed), g.Name, &g.Observed).holder.ours {
				continue
			}
		}
		if until == 0 {
			until = 100 * time.Hour
		}
		d := time.Duration(r.Int64N(int64(until)))
		q := Decide(g.later(d, renewed).Observed)
		if diff := cmp.Diff(did(p), did(q)); diff != "" {
			t.Errorf("%s, %v, renewed %v: due in %v, by silence of %v, but after %v: %s", name, p.State, renewed, until, p.Silence, d, diff)
		}
	}
}

// TestAwaitedTimesWake: a rollout waits for these while the holder renews, and no event reports them.
func TestAwaitedTimesWake(t *testing.T) {
	const lasted = 10 * time.Second
	for name, c := range map[string]struct {
		given func(g *given)
		due   time.Duration
	}{
		"a handover that was not taken is asked for again": {func(g *given) { g.notTaken(ago(lasted)) }, notTakenFor - lasted},
		"the version before has lasted as long as any must": {func(g *given) {
			g.Lease.Record.AcquireTime = ago(lasted).UnixMicro()
			g.sees(func(t *Trial) { t.Seen = lasted })
			g.Lease.Record.Handover = lease.Handover{To: g.Pods[1].Name, Reason: lease.ReasonRollout}
		}, time.Duration(v1alpha1.DefaultMinReadySeconds)*time.Second - lasted},
	} {
		t.Run(name, func(t *testing.T) {
			g := rollingOut()
			c.given(g)
			if p := Decide(g.Observed); p.Due != c.due {
				t.Errorf("due in %v, want %v", p.Due, c.due)
			}
		})
	}
}
