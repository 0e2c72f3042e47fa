package plan

import (
	"fmt"
	"math"
	"math/rand/v2"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"

	"github.com/singletonjob/operator/api/v1alpha1"
	"github.com/singletonjob/operator/internal/inject"
	"github.com/singletonjob/operator/internal/lease"
	"github.com/singletonjob/operator/test/tier"
)

// distortions change an observation in ways that occur, and in some that should not occur.
var distortions = []func(*given, *rand.Rand){
	func(g *given, _ *rand.Rand) { g.Job = nil },
	func(g *given, _ *rand.Rand) { g.Job.DeletionTimestamp = &metav1.Time{Time: now} },
	func(g *given, _ *rand.Rand) { g.Job.Spec.Suspend = true },
	func(g *given, r *rand.Rand) { g.Job.Spec.Candidates = r.Int32N(5) },
	func(g *given, _ *rand.Rand) { g.Job.Spec.Template.Spec.Containers[0].Image = "v2" },
	func(g *given, _ *rand.Rand) { g.Job.Spec.Template.Spec.Containers = nil },
	func(g *given, _ *rand.Rand) { dropCommand(g) },
	func(g *given, r *rand.Rand) {
		dropCommand(g)
		g.Entrypoint = Lookup{Problem: "trouble", Retry: time.Duration(r.Int64N(int64(time.Minute)))}
	},
	func(g *given, _ *rand.Rand) { g.Entrypoint.Found = found(g, "/found") },
	func(g *given, _ *rand.Rand) {
		dropCommand(g)
		g.Job.Status.Entrypoint = found(g, "/found")
	},
	func(g *given, _ *rand.Rand) { g.Job.Spec.Lease.RenewDeadline.Duration = time.Hour },
	func(g *given, r *rand.Rand) { g.ofWorkload(); g.Workload.Replicas = r.Int32N(2) },
	func(g *given, r *rand.Rand) { g.ofWorkload(); g.Workload.Exists = r.IntN(2) == 0 },
	func(g *given, _ *rand.Rand) { g.ofWorkload(); g.Workload = nil },
	func(g *given, _ *rand.Rand) { g.ofWorkload(); g.Workload.Claims = []string{"data"} },
	func(g *given, _ *rand.Rand) { g.ofWorkload(); g.Workload.Pods = []*corev1.Pod{stranger("x", nil)} },
	func(g *given, r *rand.Rand) { g.Job.Spec.Fencing.TokenBase = r.Int64N(1000) },
	func(g *given, r *rand.Rand) { g.Job.Spec.HistoryLimit = new(r.Int32N(3)) },
	func(g *given, _ *rand.Rand) { g.Job.Status = v1alpha1.SingletonJobStatus{} },
	func(g *given, _ *rand.Rand) { g.Job.UID = "another" },
	func(g *given, _ *rand.Rand) { g.Pods = nil },
	func(g *given, _ *rand.Rand) {
		g.Job.Spec.Suspend = true
		g.Pods = nil
		g.released(lease.ReasonPodTerminating)
	},
	func(g *given, r *rand.Rand) { g.pod(2+r.IntN(3), "c") },
	func(g *given, r *rand.Rand) { g.some(r, func(i int) { g.terminating(i) }) },
	func(g *given, r *rand.Rand) { g.some(r, func(i int) { g.unready(i) }) },
	func(g *given, r *rand.Rand) { g.some(r, func(i int) { g.waiting(i, "CrashLoopBackOff") }) },
	func(g *given, r *rand.Rand) {
		g.some(r, func(i int) { g.ended(i, ago(2*time.Hour), ago(time.Second)) })
	},
	func(g *given, r *rand.Rand) { g.some(r, func(i int) { g.Pods[i].Status.Phase = corev1.PodFailed }) },
	func(g *given, r *rand.Rand) { g.some(r, func(i int) { g.Pods[i].OwnerReferences = nil }) },
	func(g *given, r *rand.Rand) { g.some(r, func(i int) { g.Pods[i].OwnerReferences[0].UID = "earlier" }) },
	func(g *given, r *rand.Rand) { g.some(r, func(i int) { g.Pods[i].Name = "job-" }) },
	func(g *given, r *rand.Rand) { g.some(r, func(i int) { g.Pods[i].Spec.NodeName = "a" }) },
	func(g *given, r *rand.Rand) { g.together(); g.noteTry(time.Duration(r.Int64N(int64(time.Hour))), "b") },
	func(g *given, r *rand.Rand) { g.together(); g.mover(time.Duration(r.Int64N(int64(4 * time.Minute)))) },
	func(g *given, _ *rand.Rand) { g.Job.Spec.Strategy.MaxSurge = new(int32(0)) },
	func(g *given, _ *rand.Rand) { g.Job.Spec.Strategy.Paused = true },
	func(g *given, _ *rand.Rand) { g.Lease = Lease{} },
	func(g *given, _ *rand.Rand) { g.Lease = Lease{Presence: Foreign} },
	func(g *given, _ *rand.Rand) { g.absent() },
	func(g *given, _ *rand.Rand) { g.released(lease.ReasonProcessExited) },
	func(g *given, _ *rand.Rand) { g.Lease.Record.Holder = "" },
	func(g *given, _ *rand.Rand) { g.Lease.Record.Holder = lease.UnknownHolder },
	func(g *given, r *rand.Rand) { g.Lease.Unchanged = time.Duration(r.Int64N(int64(20 * time.Second))) },
	func(g *given, r *rand.Rand) { g.Lease.Record.Token = r.Int64N(1000) },
	func(g *given, r *rand.Rand) { g.Lease.Record.TokenBase = r.Int64N(1000) },
	func(g *given, _ *rand.Rand) { g.Lease.Record.History = nil },
	func(g *given, r *rand.Rand) {
		g.Lease.Record.History = append(past(pastTenure(r.Int64N(1000), "p", 5, 6, "?")), g.Lease.Record.History...)
	},
	func(g *given, _ *rand.Rand) { g.Lease.Record.Duration = 0 },
	func(g *given, r *rand.Rand) { g.Observed = toCompletion().Observed; g.distortRuns(r) },
	func(g *given, r *rand.Rand) { g.Observed = onSchedule("*/10 * * * *", nil).Observed; g.distortRuns(r) },
	func(g *given, _ *rand.Rand) {
		g.Lease.Record.Handover = lease.Handover{To: "x", Reason: lease.ReasonRollout}
	},
	func(g *given, _ *rand.Rand) { g.OutOfService["a"] = true },
	func(g *given, _ *rand.Rand) { g.Refused = []Refusal{{Text: "quota", Pods: true}} },
	func(g *given, _ *rand.Rand) { g.EventsUnknown = true },
	func(g *given, r *rand.Rand) { g.Unannounced = r.Int64N(1000) },
	func(g *given, _ *rand.Rand) { g.Lease.Renewed = false },
	func(g *given, r *rand.Rand) { g.Lease.SinceRenewal = time.Duration(r.Int64N(int64(20 * time.Second))) },
	func(g *given, r *rand.Rand) { g.Lease.Record.Token = max(0, anyNumber(r)) },
	func(g *given, r *rand.Rand) { g.Lease.Record.TokenBase = max(0, anyNumber(r)) },
	func(g *given, r *rand.Rand) { g.Lease.Claim.Before = max(0, anyNumber(r)) },
	func(g *given, r *rand.Rand) {
		g.Lease.Record.RenewTime, g.Lease.Record.AcquireTime = anyTime(r), anyTime(r)
	},
	func(g *given, r *rand.Rand) { g.Lease.Record.Duration = time.Duration(r.Int32()) * time.Second },
	func(g *given, r *rand.Rand) {
		g.Lease.Record.Release.Reason = lease.Reason(strings.Repeat("ü", r.IntN(1<<18)))
	},
	func(g *given, r *rand.Rand) {
		g.Lease.Record.History = past(pastTenure(max(1, anyNumber(r)), strings.Repeat("p", 900), max(0, anyNumber(r)), max(0, anyNumber(r)), lease.Reason(strings.Repeat("ü", 99))))
	},
	func(g *given, r *rand.Rand) {
		g.Job.Status.FencingToken, g.Job.Status.Tenures = anyNumber(r), anyNumber(r)
	},
	func(g *given, _ *rand.Rand) {
		g.Refused = []Refusal{{Text: strings.Repeat("ü", 1<<20)}, {Text: strings.Repeat("x", 1<<20)}}
	},
}

// anyNumber returns a value for a number that anyone can write.
func anyNumber(r *rand.Rand) int64 {
	return []int64{0, 1, -1, 99, 100, 101, math.MaxInt32, math.MaxInt64, math.MinInt64 + 1, r.Int64(), -r.Int64()}[r.IntN(11)]
}

// anyTime returns a possible value of a time in the API, in microseconds.
func anyTime(r *rand.Rand) int64 {
	last := lastMilli * 1000
	return []int64{0, -1, time.Date(0, 1, 1, 0, 0, 0, 0, time.UTC).UnixMicro(), last, r.Int64N(last)}[r.IntN(5)]
}

// some picks a pod.
func (g *given) some(r *rand.Rand, change func(int)) {
	if len(g.Pods) > 0 {
		change(r.IntN(len(g.Pods)))
	}
}

// observation returns a random observation, the same one for the same seed.
func observation(seed uint64) *given {
	r := rand.New(rand.NewPCG(seed, 1))
	g := steady()
	for range 1 + r.IntN(6) {
		if d := distortions[r.IntN(len(distortions))]; g.Job != nil {
			func() {
				defer func() { _ = recover() }() // an earlier distortion removed what this one changes
				d(g, r)
			}()
		}
	}
	return g
}

// promises hold for every observation.
var promises = map[string]func(g *given, p Plan) bool{
	"a Lease is deleted only if its job no longer exists and no tenure can last": func(g *given, p Plan) bool {
		return !writes(p, Delete) || g.Job == nil && Over(g.Lease.Record, g.Lease.Unchanged)
	},
	"a holder is removed only with proof": func(g *given, p Plan) bool {
		return !writes(p, Update) || p.Lease.Record.Holder == g.Lease.Record.Holder || proven(g) && p.Lease.Record.Holder == ""
	},
	"no write makes a pod the holder": func(g *given, p Plan) bool {
		return p.Lease == nil || p.Lease.Record.Holder == "" || p.Lease.Record.Holder == g.Lease.Record.Holder || p.Lease.Verb == Create && p.Lease.Record.Holder == lease.UnknownHolder
	},
	"a new Lease is free only if nothing indicates an earlier tenure": func(g *given, p Plan) bool {
		return !writes(p, Create) || p.Lease.Record.Holder == lease.UnknownHolder || len(g.Pods) == 0 && g.Job.Status.FencingToken == 0
	},
	"a Lease is created only if there is none": func(g *given, p Plan) bool { return !writes(p, Create) || g.Lease.Presence == Absent },
	"a foreign Lease is not written":           func(g *given, p Plan) bool { return g.Lease.Presence != Foreign || p.Lease == nil },
	"a write names the observed revision": func(g *given, p Plan) bool {
		return p.Lease == nil || p.Lease.Verb == Create || p.Lease.Record.UID == g.Lease.Record.UID && p.Lease.Record.Revision == g.Lease.Record.Revision
	},
	"tokens and their base are never lowered": func(g *given, p Plan) bool {
		return p.Lease == nil || g.Lease.Presence != Ours || p.Lease.Record.Token >= g.Lease.Record.Token && (p.Lease.Record.TokenBase >= g.Lease.Record.TokenBase || g.Lease.Record.TokenBase > v1alpha1.MaxTokenBase)
	},
	"pods are created only if there is a Lease": func(g *given, p Plan) bool { return len(p.Create) == 0 || g.Lease.Presence == Ours },
	"a live holder is removed only if it is the only candidate, or all are removed": func(g *given, p Plan) bool {
		for _, ref := range p.Delete {
			id, _ := lease.ParseIdentity(g.Lease.Record.Holder)
			if ref.Name == id.Pod && string(ref.UID) == id.PodUID && !g.Job.Spec.Suspend && g.Job.Spec.Candidates != 1 {
				return false
			}
		}
		return true
	},
	"nothing is started beside a workload that runs, or without one": func(g *given, p Plan) bool {
		started := (len(p.Create) > 0 || len(p.Delete) > 0 && p.State != Resting) && g.Job != nil && g.Job.Spec.WorkloadRef != nil && !g.Job.Spec.Suspend
		return !started || g.Workload != nil && g.Workload.Exists && g.Workload.Replicas == 0 && len(g.Workload.Claims)+len(g.Workload.Pods) == 0
	},
	"no name is used twice": func(g *given, p Plan) bool {
		names := map[string]bool{}
		for _, pod := range g.Pods {
			names[pod.Name] = true
		}
		for _, pod := range p.Create {
			if names[pod.Name] {
				return false
			}
			names[pod.Name] = true
		}
		return true
	},
	"no pod is created or deleted while the entrypoint is unknown, unless it has ended": func(g *given, p Plan) bool {
		return AsksForEntrypoint(&g.Observed) == nil || p.State == Resting || len(p.Create)+len(p.Delete) == 0
	},
	"a standby is moved only if another node takes it, and no other pod is created or deleted": func(g *given, p Plan) bool {
		return p.Move == nil || p.State == Serving && len(g.Nodes) > 0 && len(p.Create)+len(p.Delete) == 0 && p.Lease == nil && g.OverQuota == 0
	},
	"a moved standby is a surge pod of the current template for another node than the holder's": func(g *given, p Plan) bool {
		if p.Move == nil {
			return true
		}
		live := 0
		for _, pod := range g.Pods {
			if owner := metav1.GetControllerOf(pod); owner != nil && owner.UID == g.Job.UID && pod.DeletionTimestamp == nil && pod.Status.Phase == corev1.PodRunning {
				live++
			}
			if pod.Name == p.Move.Pod.Name {
				return false
			}
		}
		j := jobOf(&g.Observed)
		return live == int(j.Spec.Candidates) && strings.HasPrefix(p.Move.Pod.Name, j.updated()) && p.Move.Pod.Annotations[inject.KeptFromAnnotation] != ""
	},
	"the last standby that is ready is not removed": func(g *given, p Plan) bool {
		if p.State != Serving || g.Job.Spec.Candidates == 1 || p.Move != nil && len(p.Delete) > 0 {
			return true
		}
		seen := map[types.UID]bool{}
		for _, pod := range g.Pods {
			if seen[pod.UID] {
				return true // the promise does not apply
			}
			seen[pod.UID] = true
		}
		m := membersOf(jobOf(&g.Observed), tenureOf(jobOf(&g.Observed), g.Name, &g.Observed), nil, &g.Observed)
		if m.fleet.InPlace || m.fleet.NoRoom || m.fleet.outdated() || !m.any(candidate.isStandby) || !m.any(func(c candidate) bool { return c.live() && c.holds }) {
			return true
		}
		return m.any(func(c candidate) bool { return c.isStandby() && !slices.Contains(p.Delete, c.ref()) })
	},
	"a job that does not exist has no status": func(g *given, p Plan) bool { return p.Status == nil || g.Job != nil },
	"for a deleted or terminating job nothing is created or deleted": func(g *given, p Plan) bool {
		return g.Job != nil && g.Job.DeletionTimestamp == nil || len(p.Apply)+len(p.Also)+len(p.Adopt)+len(p.Create)+len(p.Delete) == 0
	},
	"the Lease of a holder that may not renew is only released": func(g *given, p Plan) bool {
		return !writes(p, Update) || g.Lease.Record.Free() || g.Lease.Record.BadTokenBase != "" || g.Lease.Record.TokenBase > v1alpha1.MaxTokenBase || g.Lease.Renewed && g.Lease.SinceRenewal < 3*time.Second || p.Lease.Record.Holder == ""
	},
	"the Lease drops only what the status records, while the holder renews, by a separate write": func(g *given, p Plan) bool {
		if p.Told == nil {
			return true
		}
		was, is := g.Lease.Record, p.Told.Record
		kept, status := len(is.History), statusOr(p, g)
		is.History = was.History
		return p.Lease == nil && g.Lease.Renewed && g.Lease.SinceRenewal < 3*time.Second && cmp.Equal(was, is) && p.Told.Claim == g.Lease.Claim &&
			kept > 0 && cmp.Equal(was.History[:kept], p.Told.Record.History) && was.History[kept-1].Token <= Recorded(&status)
	},
	"what is not stored at once can be stored after the rest is done": func(g *given, p Plan) bool {
		if p.Status == nil || p.Prompt {
			return true
		}
		later := g.Observed
		if w := p.Lease; w != nil {
			later.Lease.Presence, later.Lease.Record, later.Lease.Claim = Ours, w.Record, w.Claim
		}
		next := Decide(later)
		for _, c := range p.Changes {
			if !slices.ContainsFunc(next.Changes, func(n v1alpha1.TenureChange) bool { return n.Token == c.Token }) {
				return false
			}
		}
		for _, e := range p.Events {
			if !alarming[e.Reason] && !slices.ContainsFunc(next.Events, func(n Event) bool { return n.Name == e.Name }) {
				return false
			}
		}
		return true
	},
	"every written time is valid in the API": func(_ *given, p Plan) bool {
		year := func(t time.Time) bool { return t.UTC().Year() >= 0 && t.UTC().Year() <= 9999 }
		ok := p.Lease == nil || p.Lease.Verb != Update || p.Lease.Record.Holder != "" || year(time.UnixMicro(p.Lease.Record.RenewTime))
		for _, c := range p.Changes {
			ok = ok && year(c.Time.Time) && (c.Downtime == nil || c.Downtime.Duration >= 0)
		}
		return ok && (p.Status == nil || p.Status.ActiveSince == nil || year(p.Status.ActiveSince.Time))
	},
	"no invalid token base is written": func(_ *given, p Plan) bool {
		return p.Lease == nil || p.Lease.Verb == Delete || p.Lease.Record.Holder == "" && p.Lease.Verb == Update || p.Lease.Record.TokenBase <= v1alpha1.MaxTokenBase
	},
	"a claim is read as it was written": func(_ *given, p Plan) bool {
		return p.Lease == nil || p.Lease.Verb == Delete || ParseClaim(p.Lease.Claim.String()) == p.Lease.Claim
	},
	"no text is longer than the API accepts": func(_ *given, p Plan) bool {
		for _, e := range p.Events {
			if len(e.Message) > 1024 {
				return false
			}
		}
		return p.Status == nil || !slices.ContainsFunc(p.Status.Conditions, func(c metav1.Condition) bool { return len(c.Message) > 32768 })
	},
	"a status records what is new, and nothing of it the next time": func(g *given, p Plan) bool {
		if p.Status == nil || len(p.Changes) == 0 || p.Lease != nil {
			return true
		}
		g = &given{g.Observed}
		g.Job = g.Job.DeepCopy()
		g.Job.Status = *p.Status
		return len(Decide(g.Observed).Changes) == 0
	},
	"the active pod holds the Lease and renews it": func(g *given, p Plan) bool {
		if p.Status == nil || p.Status.ActivePod == "" {
			return true
		}
		id, _ := lease.ParseIdentity(g.Lease.Record.Holder)
		return p.Status.ActivePod == id.Pod && g.Lease.Unchanged < 15*time.Second
	},
	"at most one pod gets the role active": func(_ *given, p Plan) bool {
		n := 0
		for _, r := range p.Relabel {
			if r.Role == "active" {
				n++
			}
		}
		return n <= 1
	},
	"the history is newest first and within its limit": func(g *given, p Plan) bool {
		if p.Status == nil {
			return true
		}
		for i, h := range p.Status.History {
			if i > 0 && h.Token >= p.Status.History[i-1].Token {
				return false
			}
		}
		return g.Job.Spec.HistoryLimit == nil || len(p.Status.History) <= int(*g.Job.Spec.HistoryLimit)
	},
	"no job is reported as suspended while a process may act by its Lease": func(g *given, p Plan) bool {
		if p.State != Suspended {
			return true
		}
		r := g.Lease.Record
		over := r.Free() || g.Lease.Unchanged >= r.Duration || !g.Lease.Renewed && g.Now.UnixMicro()-r.RenewTime >= r.Duration.Microseconds()
		return over && !slices.ContainsFunc(g.Pods, func(pod *corev1.Pod) bool {
			owner := metav1.GetControllerOf(pod)
			return owner == nil && agents(pod) != nil || owner != nil && owner.UID == g.Job.UID
		})
	},
	"a pod without an owner is only adopted": func(_ *given, p Plan) bool {
		for _, ref := range p.Adopt {
			if slices.Contains(p.Delete, ref) {
				return false
			}
		}
		return len(p.Adopt) == 0 || len(p.Create)+len(p.Delete) == 0 && p.Move == nil && !p.Expired
	},
	"the future is in the future": func(_ *given, p Plan) bool { return p.Wake >= 0 },
}

// proven reports whether there is proof of the holder's death.
func proven(g *given) bool {
	return tenureOf(jobOf(&g.Observed), g.Name, &g.Observed).dead()
}

func writes(p Plan, op Verb) bool { return p.Lease != nil && p.Lease.Verb == op }

// keepsItsPromises also finds panics, and plans that modify their observation.
func keepsItsPromises(t *testing.T, seed uint64) {
	t.Helper()
	g := observation(seed)
	before := fmt.Sprintf("%+v %+v %+v", g.Job, g.Lease, g.Children)
	p := Decide(g.Observed)
	if after := fmt.Sprintf("%+v %+v %+v", g.Job, g.Lease, g.Children); before != after {
		t.Errorf("seed %d: the observation was changed: %s", seed, cmp.Diff(before, after))
	}
	for promise, kept := range promises {
		if !kept(g, p) {
			t.Errorf("seed %d: %s: state %v, Lease %+v, status %+v", seed, promise, p.State, p.Lease, p.Status)
		}
	}
}

func TestPromises(t *testing.T) {
	states := map[State]int{}
	for _, seed := range tier.Seeds(t, 1000, 1000) {
		keepsItsPromises(t, seed)
		states[Decide(observation(seed).Observed).State]++
		if t.Failed() {
			return
		}
	}
	for s := Collecting; s <= Serving; s++ {
		if states[s] == 0 {
			t.Errorf("the state %v is never met: %v", s, states)
		}
	}
}

func FuzzPromises(f *testing.F) {
	for seed := range uint64(64) { // TestPromises checks that the seeds reach every state
		f.Add(seed)
	}
	f.Fuzz(func(t *testing.T, seed uint64) { keepsItsPromises(t, seed) })
}
