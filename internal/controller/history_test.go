package controller

import (
	"flag"
	"fmt"
	"maps"
	"math/rand/v2"
	"slices"
	"testing"
	"time"

	coordinationv1 "k8s.io/api/coordination/v1"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/singletonjob/operator/api/v1alpha1"
	"github.com/singletonjob/operator/internal/contract"
	"github.com/singletonjob/operator/internal/lease"
)

var seed = flag.Uint64("seed", 0, "what decides which faults the tests of faults play; 0 for what their tier has")

// TestTheHistoryLosesNothing: the holder changes 50 times, in every possible way. Meanwhile the operator is killed at random calls to the
// API server, before or after their execution, and is stopped during two periods. A witness that sees each version of each object knows
// from the Lease, without its history, what happened. Each version of the status must have recorded exactly that, and each change must
// have one Event.
func TestTheHistoryLosesNothing(t *testing.T) {
	t.Parallel()
	o := newOrdeal(t, 1)
	o.goThrough(o.everything())
	if n := len(o.w.tenures) - 1; n != 50 {
		t.Errorf("the holder changed %d times, want 50: the operator or the test has caused others\n%s", n, o.w.describe())
	}
	if killed := o.killed(); killed < 200 {
		t.Errorf("the operator was killed %d times, want 200", killed)
	}
}

// TestTheHistoryWithTwoStaleOperators: two operators are killed in this way, and both see old states, as after a change of leader.
func TestTheHistoryWithTwoStaleOperators(t *testing.T) {
	t.Parallel()
	o := newOrdeal(t, 2)
	for i, op := range o.w.operators {
		op.cache = newLaggingCache(o.w, rand.New(rand.NewPCG(o.seed, uint64(i))))
	}
	o.goThrough(o.everything()[:12])
}

// ordeal is the sequence of events for a job and its operators.
type ordeal struct {
	w         *world
	witness   *witness
	seed      uint64
	rand      *rand.Rand
	operators []*operator
	// died holds, by token, when the killed containers ended, as a kubelet reports it.
	died map[int64]time.Time
	// why holds, by token, the reasons that may be reported for the end of a tenure.
	why map[int64][]string
	// first is the Lease in the first tenure.
	first *coordinationv1.Lease
	// images counts the rollouts.
	images int
}

func newOrdeal(t *testing.T, operators int) *ordeal {
	t.Helper()
	seed := firstSeed(t)
	o := &ordeal{w: newWorld(t), seed: seed, rand: rand.New(rand.NewPCG(seed, 0)), why: map[int64][]string{}, died: map[int64]time.Time{}}
	for len(o.w.operators) < operators {
		o.w.operators = append(o.w.operators, o.w.newOperator())
	}
	o.operators = o.w.operators
	for _, op := range o.operators {
		op.dies = o.dies
	}
	o.witness = watchAll(o.w)
	return o
}

// dies decides randomly whether an operator dies at a call, and whether the call is executed: often enough for 5 deaths per change
// of holder. Most calls repeat Events after a restart, and only few deaths happen there.
func (o *ordeal) dies(call string) (ends, after bool) {
	in := 8
	switch deaths := 5 * len(o.w.tenures); {
	case o.killed() < deaths:
		in = 3
	case call == "create *v1.Event":
		in = 30
	}
	return o.rand.IntN(in) == 0, o.rand.IntN(2) == 0
}

// killed is the number of times that operators were killed.
func (o *ordeal) killed() (times int) {
	for _, op := range o.operators {
		times += len(op.crashes)
	}
	return times
}

// tell prints the calls at which operators were killed.
func (o *ordeal) tell() {
	at := map[string]int{}
	for _, op := range o.operators {
		for _, call := range op.crashes {
			at[call]++
		}
	}
	for _, call := range slices.Sorted(maps.Keys(at)) {
		o.w.t.Logf("%4d × killed at %s", at[call], call)
	}
	o.w.t.Logf("%d operators killed during %d changes of holder", o.killed(), len(o.w.tenures)-1)
}

// change is a way in which a tenure ends.
type change struct {
	name    string
	reasons []string
	// unaided: the next tenure needs no operator.
	unaided bool
	// times is the number of such changes.
	times int
	// end ends a holder's tenure, and heal undoes the damage when the next tenure has started.
	end func(o *ordeal, holder *agent) (heal func())
}

func nothing() {}

// changesOfHolder are all ways, 49 changes in total. The first change, the deletion of a Pod, comes in addition.
func changesOfHolder() []change {
	return []change{
		{"process exits", []string{v1alpha1.ChangeProcessExited}, true, 4, exits(lease.ChildExited{Code: 1, Crashed: true})},
		{"preActivate fails", []string{v1alpha1.ChangePreActivateFailed}, true, 2, exits(lease.ChildExited{Code: 1, Reason: lease.ReasonPreActivateFailed})},
		{"postStart fails", []string{v1alpha1.ChangePostStartFailed}, true, 2, unwell(lease.ReasonPostStartFailed)},
		{"startup probe fails", []string{v1alpha1.ChangeStartupFailed}, true, 2, unwell(lease.ReasonStartupFailed)},
		{"liveness probe fails", []string{v1alpha1.ChangeLivenessFailed}, true, 4, unwell(lease.ReasonLivenessFailed)},
		{"node cut off", []string{v1alpha1.ChangeLeaseExpired}, true, 5, (*ordeal).cutOff},
		{"API server lost for a while", []string{v1alpha1.ChangeRenewFailed}, true, 3, (*ordeal).deafen},
		{"holder written over", []string{v1alpha1.ChangeLeaseLost}, true, 1, writeHolder("somebody")},
		{"holder blanked", []string{v1alpha1.ChangeLeaseLost}, true, 1, writeHolder("")},
		{"pod deleted by force, node cut off", []string{v1alpha1.ChangeLeaseExpired}, false, 3, (*ordeal).force},
		{"container killed", []string{v1alpha1.ChangeHolderTerminated}, false, 4, (*ordeal).kill},
		{"node out of service", []string{v1alpha1.ChangeNodeLost, v1alpha1.ChangeLeaseExpired}, false, 3, (*ordeal).lose},
		{"pod deleted", []string{v1alpha1.ChangePodTerminating}, false, 3, (*ordeal).evict},
		{"switchover", []string{v1alpha1.ChangeSwitchoverRequested}, false, 3, (*ordeal).switchOver},
		{"rollout", []string{v1alpha1.ChangeRolloutHandover}, false, 3, (*ordeal).rollOut},
		{"suspended", []string{v1alpha1.ChangePodTerminating}, false, 2, (*ordeal).suspend},
		{"Lease deleted", []string{v1alpha1.ChangeLeaseDeleted}, false, 2, (*ordeal).deleteLease},
		{"Lease restored from a backup", []string{v1alpha1.ChangeLeaseLost}, false, 1, (*ordeal).restore},
		{"token base raised", []string{v1alpha1.ChangeTokenBaseRaised}, false, 1, (*ordeal).raiseBase},
	}
}

// exits ends the process with all its children.
func exits(e lease.ChildExited) func(*ordeal, *agent) func() {
	return func(_ *ordeal, a *agent) func() {
		a.alive = false
		a.feed(e)
		a.feed(lease.TreeGone{})
		return nothing
	}
}

func unwell(why lease.Reason) func(*ordeal, *agent) func() {
	return func(_ *ordeal, a *agent) func() {
		a.feed(lease.Unhealthy{Reason: why})
		return nothing
	}
}

func writeHolder(name string) func(*ordeal, *agent) func() {
	return func(o *ordeal, _ *agent) func() {
		o.w.changeLease(func(l *coordinationv1.Lease) { l.Spec.HolderIdentity = &name })
		return nothing
	}
}

func (o *ordeal) cutOff(a *agent) func() {
	o.w.cutOffNode(a.node)
	return func() { o.w.reachNode(a.node) }
}

// deafen disconnects a node from the API server until its process is stopped, and reconnects it in time for a release.
func (o *ordeal) deafen(a *agent) func() {
	o.w.cutOff[a.node] = true
	o.w.until("the process is stopped", func() bool { return !a.alive })
	delete(o.w.cutOff, a.node)
	return nothing
}

func (o *ordeal) force(a *agent) func() {
	o.w.cutOffNode(a.node)
	pod := o.w.pod(a.name)
	o.w.must(o.w.api.Delete(o.w.t.Context(), pod, client.GracePeriodSeconds(0)))
	return func() {
		delete(o.w.agents, pod.UID) // the kubelet learns that its Pod was deleted
		o.w.reachNode(a.node)
	}
}

func (o *ordeal) kill(a *agent) func() {
	o.w.kill(a)
	o.died[o.w.highest] = o.w.clock.Now().Truncate(time.Second)
	return func() { a.frozen = false }
}

func (o *ordeal) lose(a *agent) func() {
	a.alive, a.stopped, a.frozen = false, true, true
	o.w.cutOffNode(a.node)
	o.w.outOfService(a.node)
	return func() {
		node := &corev1.Node{ObjectMeta: metav1.ObjectMeta{Name: a.node}}
		o.w.must(o.w.api.Patch(o.w.t.Context(), node, client.RawPatch(types.MergePatchType, []byte(`{"spec": {"taints": null}}`))))
		a.frozen = false
		o.w.reachNode(a.node)
	}
}

func (o *ordeal) evict(a *agent) func() {
	o.w.deletePod(a.name)
	return nothing
}

func (o *ordeal) switchOver(*agent) func() {
	o.w.annotate(contract.SwitchoverAnnotation, fmt.Sprintf("*@%d", o.w.highest))
	return nothing
}

func (o *ordeal) rollOut(*agent) func() {
	o.images++
	o.w.image(fmt.Sprint("image-", o.images))
	return func() { o.w.until("rolled out", o.w.serving) }
}

func (o *ordeal) suspend(*agent) func() {
	o.w.edit(func(job *v1alpha1.SingletonJob) { job.Spec.Suspend = true })
	o.w.until("all pods are gone", func() bool { return len(o.w.pods()) == 0 })
	o.w.edit(func(job *v1alpha1.SingletonJob) { job.Spec.Suspend = false })
	return nothing
}

func (o *ordeal) deleteLease(*agent) func() {
	o.w.deleteLease()
	return nothing
}

// restore resets the Lease to its state in the first tenure, whose Pod no longer exists.
func (o *ordeal) restore(*agent) func() {
	o.w.changeLease(func(l *coordinationv1.Lease) {
		l.Annotations, l.Spec = maps.Clone(o.first.Annotations), *o.first.Spec.DeepCopy()
	})
	return nothing
}

func (o *ordeal) raiseBase(*agent) func() {
	o.w.edit(func(job *v1alpha1.SingletonJob) { job.Spec.Fencing.TokenBase = 1_000_000 })
	return nothing
}

// everything returns the changes in an order of its own. A raised base comes last, because it is not in the backup.
func (o *ordeal) everything() (all []change) {
	for _, c := range changesOfHolder() {
		for range c.times {
			all = append(all, c)
		}
	}
	last := len(all) - 1
	o.rand.Shuffle(last, func(i, j int) { all[i], all[j] = all[j], all[i] })
	return all
}

// goThrough makes the holder change in these ways, and before them by the end of the first Pod. Some of the changes that need no
// operator happen while none runs, in two periods with as many changes as a Lease records.
func (o *ordeal) goThrough(all []change) {
	w := o.w
	defer o.tell()
	w.job(func(s *v1alpha1.SingletonJobSpec) { s.Strategy.MinReadySeconds = new(int32(1)) })
	w.until("the first tenure is recorded", func() bool { return w.serving() && o.told() })
	o.first = w.lease()
	o.turn(change{name: "the first pod is deleted", reasons: []string{v1alpha1.ChangePodTerminating}, end: (*ordeal).evict})

	var unaided []change
	aided := slices.DeleteFunc(slices.Clone(all), func(c change) bool {
		take := c.unaided && len(unaided) < len(all)/3
		if take {
			unaided = append(unaided, c)
		}
		return take
	})
	half := len(unaided) / 2
	for i, c := range aided {
		switch i {
		case len(aided) / 3:
			o.alone(unaided[:half])
		case 2 * len(aided) / 3:
			o.alone(unaided[half:])
		}
		o.turn(c)
	}
	for _, op := range o.operators {
		op.dies = nil
	}
	w.until("everything is recorded", o.told)
	for range 5 {
		w.round()
	}
	o.witness.judge(o)
}

// alone makes changes happen while no operator runs.
func (o *ordeal) alone(changes []change) {
	// Settled too, because only an operator creates what a suspended job lacks.
	o.w.until("everything is recorded", func() bool { return o.settled() && o.told() })
	o.w.operators = nil
	for _, c := range changes {
		o.turn(c)
	}
	o.w.operators = o.operators
	for _, op := range o.operators {
		op.restart()
	}
}

func (o *ordeal) turn(c change) {
	w := o.w
	w.until("settled before: "+c.name, o.settled)
	if !c.unaided {
		w.until("told before: "+c.name, o.told)
	}
	holder, token := w.holder(), w.highest
	o.why[token] = c.reasons
	heal := c.end(o, holder)
	w.until("another tenure after: "+c.name, func() bool { return w.highest > token })
	heal()
}

// told reports whether the status shows the current tenure.
func (o *ordeal) told() bool { return o.w.status().FencingToken == o.w.highest }

// settled reports whether a process has run for more than a second, which is the precision of a kubelet's times, and a standby is
// ready on another node.
func (o *ordeal) settled() bool {
	h := o.w.holder()
	if h == nil || o.w.clock.Now().Sub(h.begun) <= time.Second {
		return false
	}
	return slices.ContainsFunc(o.w.pods(), func(pod corev1.Pod) bool {
		a := o.w.agents[pod.UID]
		return a != nil && a != h && !a.stopped && a.node != h.node && pod.DeletionTimestamp == nil && podReady(&pod)
	})
}
