package plan

import (
	"math"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/singletonjob/operator/api/v1alpha1"
	"github.com/singletonjob/operator/internal/contract"
	"github.com/singletonjob/operator/internal/lease"
)

// fresh is a new job: no pods, no Lease, no status.
func fresh() *given {
	g := steady()
	g.Pods, g.Lease, g.Children = nil, Lease{}, Children{}
	g.Job.Status = v1alpha1.SingletonJobStatus{}
	return g
}

func TestLeaseCreation(t *testing.T) {
	for name, c := range map[string]struct {
		given *given
		with  func(*given)
		free  bool
		want  lease.Record // only the fields that are set
		why   string
	}{
		"first": {
			given: fresh(), free: true, want: lease.Record{Duration: 15 * time.Second},
			why: "nothing speaks for an earlier tenure",
		},
		"first, with a token base": {
			given: fresh(), with: func(g *given) { g.Job.Spec.Fencing.TokenBase = 500 }, free: true,
			want: lease.Record{Duration: 15 * time.Second, TokenBase: 500},
			why:  "the first token must be above it too",
		},
		"deleted under the holder, seen by this process": {
			given: steady(), with: (*given).absent,
			want: lease.Record{Duration: 15 * time.Second, Token: 100, Transitions: 1},
			why:  "the holder lives until it finds out",
		},
		"deleted while no operator looked": {
			given: steady(), with: func(g *given) { g.Lease = Lease{} },
			want: lease.Record{Duration: 15 * time.Second, Token: 100, Transitions: 1},
			why:  "the status speaks for it",
		},
		"only a pod of a previous job is left": {
			given: steady(), with: func(g *given) {
				g.absent()
				g.Lease.Last = nil
				g.Job.Status = v1alpha1.SingletonJobStatus{}
				g.Pods = g.Pods[:1]
				g.Pods[0].OwnerReferences[0].UID = "earlier"
			},
			want: lease.Record{Duration: 15 * time.Second},
			why:  "it may be the holder",
		},
		"only a pod of this job, before any status": {
			given: fresh(), with: func(g *given) { g.pod(0, "a") },
			want: lease.Record{Duration: 15 * time.Second},
			why:  "pods are made after the Lease, so there was one",
		},
		"only a pod without an owner": {
			given: fresh(), with: func(g *given) { g.pod(0, "a").OwnerReferences = nil },
			want: lease.Record{Duration: 15 * time.Second},
			why:  "no matter who left it there",
		},
		"only remembered": {
			given: fresh(), with: func(g *given) {
				g.Lease.Last = &Lease{Presence: Ours, Record: lease.Record{UID: "u", Token: 7, Duration: time.Minute, Transitions: 3}}
			},
			want: lease.Record{Duration: time.Minute, Token: 7, Transitions: 3},
			why:  "this process saw a tenure, of a holder that may be cut off",
		},
		"remembered, never held": {
			given: fresh(), with: func(g *given) {
				g.Lease.Last = &Lease{Presence: Ours, Record: lease.Record{UID: "u", Duration: time.Minute}}
			},
			free: true, want: lease.Record{Duration: 15 * time.Second},
			why: "there was no tenure",
		},
		"a pod with a longer lease": {
			given: steady(), with: func(g *given) {
				g.absent()
				g.Lease.Last = nil
				g.Job.Spec.Lease.LeaseDuration = metav1.Duration{Duration: time.Minute}
				g.Job.Spec.Lease.RenewDeadline = metav1.Duration{Duration: 30 * time.Second}
				g.pod(2, "c") // created with the longer duration
				g.Job.Spec.Lease.LeaseDuration = metav1.Duration{Duration: 15 * time.Second}
				g.Job.Spec.Lease.RenewDeadline = metav1.Duration{Duration: 10 * time.Second}
			},
			want: lease.Record{Duration: time.Minute, Token: 100, Transitions: 1},
			why:  "the unknown holder may be that one",
		},
		"a remembered token base": {
			given: steady(), with: func(g *given) { g.Lease.Record.TokenBase = 900; g.absent() },
			want: lease.Record{Duration: 15 * time.Second, Token: 100, Transitions: 1, TokenBase: 900},
			why:  "sinks have seen tokens above it",
		},
	} {
		t.Run(name, func(t *testing.T) {
			g := c.given
			if c.with != nil {
				c.with(g)
			}
			p := Decide(g.Observed)
			if p.State != LeaseMissing || p.Lease == nil || p.Lease.Verb != Create {
				t.Fatalf("want a new Lease, got %v %+v", p.State, p.Lease)
			}
			if len(p.Create) > 0 {
				t.Error("pods are created before there is a Lease")
			}
			got := p.Lease.Record
			if c.free {
				c.want.Release.Reason = lease.ReasonCreated
			} else {
				c.want.Holder = lease.UnknownHolder
			}
			got.AcquireTime, got.RenewTime, got.History = 0, 0, nil
			if diff := cmp.Diff(c.want, got); diff != "" {
				t.Errorf("%s (-want +got):\n%s", c.why, diff)
			}
		})
	}
}

// TestTheHistoryOutlivesTheLease: the history of a deleted Lease becomes the start of the next Lease's history, so that the next tenure has
// a predecessor.
func TestTheHistoryOutlivesTheLease(t *testing.T) {
	for name, c := range map[string]struct {
		with func(*given)
		want []lease.PastTenure
	}{
		"seen by this process": {
			with: (*given).absent,
			want: []lease.PastTenure{{Token: 100, Pod: steady().name(0), Node: "a", Acquired: ago(time.Hour).UnixMilli()}},
		},
		"seen by this process as it was long ago": {
			with: func(g *given) {
				g.absent()
				g.Job.Status.FencingToken = 120
				g.Job.Status.History = append([]v1alpha1.TenureChange{{
					Time: metav1.NewMicroTime(ago(time.Minute)), Type: v1alpha1.Failover, Reason: v1alpha1.ChangeProcessExited,
					From: g.name(0), FromToken: 100, To: g.name(1), ToNode: "b", Token: 120,
				}}, g.Job.Status.History...)
			},
			want: []lease.PastTenure{
				{Token: 120, Pod: steady().name(1), Node: "b", Acquired: ago(time.Minute).UnixMilli(), Reason: lease.ReasonLeaseDeleted},
				{Token: 100, Pod: steady().name(0), Node: "a", Acquired: ago(time.Hour).UnixMilli(), Reason: lease.ReasonProcessExited},
			},
		},
		"known from the status": {
			with: func(g *given) { g.Lease = Lease{} },
			want: []lease.PastTenure{{
				Token: 100, Pod: steady().name(0), Node: "a", Acquired: ago(time.Hour).UnixMilli(), Reason: lease.ReasonLeaseDeleted,
			}},
		},
		"the status keeps no history": {
			with: func(g *given) { g.Lease = Lease{}; g.Job.Status.History = nil },
			want: []lease.PastTenure{{Token: 100, Reason: lease.ReasonLeaseDeleted}},
		},
		"another job's": {
			with: func(g *given) {
				g.absent()
				g.Job.Status, g.Lease.Last.Claim.JobUID = v1alpha1.SingletonJobStatus{}, "earlier"
			},
			want: []lease.PastTenure{{Token: 100, Pod: steady().name(0), Node: "a", Acquired: ago(time.Hour).UnixMilli()}},
		},
	} {
		t.Run(name, func(t *testing.T) {
			g := steady()
			c.with(g)
			w := Decide(g.Observed).Lease
			if diff := cmp.Diff(c.want, w.Record.History); diff != "" {
				t.Errorf("-want +got:\n%s", diff)
			}
			if before := map[bool]int64{true: 100, false: 0}[name == "another job's"]; w.Claim != (Claim{"job-uid", before}) {
				t.Errorf("claim %+v, want the tenures after token %d", w.Claim, before)
			}
		})
	}
}

func TestClaim(t *testing.T) {
	for name, c := range map[string]struct {
		with func(*given)
		want *LeaseWrite
		why  string
	}{
		"ours": {with: func(*given) {}, why: "nothing is to be written"},
		"a previous job's": {
			with: func(g *given) {
				g.Job.Status, g.Lease.Claim = v1alpha1.SingletonJobStatus{}, Claim{JobUID: "earlier", Before: 7}
				g.Pods[0].OwnerReferences[0].UID = "earlier"
			},
			want: &LeaseWrite{Claim: Claim{JobUID: "job-uid", Before: 100}},
			why:  "its tenures are not this job's",
		},
		"a previous job's, held by an orphan": {
			with: func(g *given) {
				g.Job.Status, g.Lease.Claim = v1alpha1.SingletonJobStatus{}, Claim{JobUID: "earlier", Before: 7}
				g.Pods[0].OwnerReferences = nil
			},
			want: &LeaseWrite{Claim: Claim{JobUID: "job-uid", Before: 99}},
			why:  "the pod is adopted, and its tenure with it",
		},
		"of tokens that are to come": {
			with: func(g *given) { g.Lease.Claim.Before = math.MaxInt64 },
			want: &LeaseWrite{Claim: Claim{JobUID: "job-uid"}},
			why:  "somebody has written it: all of this job's tenures would be an earlier one's",
		},
		"of tokens that the status records": {
			with: func(g *given) { g.Lease.Claim.Before = 100 },
			want: &LeaseWrite{Claim: Claim{JobUID: "job-uid"}},
			why:  "the same",
		},
		"removed by hand": {
			with: func(g *given) { g.Lease.Claim = Claim{} },
			want: &LeaseWrite{Claim: Claim{JobUID: "job-uid"}},
			why:  "the status says which tenures are this job's",
		},
		"token base raised": {
			with: func(g *given) { g.Job.Spec.Fencing.TokenBase = 5000 },
			want: &LeaseWrite{
				Claim:  Claim{JobUID: "job-uid"},
				Record: lease.Record{TokenBase: 5000, Handover: lease.Handover{To: lease.AnyPod, Reason: lease.ReasonTokenBaseRaised}},
			},
			why: "the present tenure's token is too low, so it must end",
		},
		"token base raised while nobody holds": {
			with: func(g *given) { g.released(lease.ReasonPodTerminating); g.Job.Spec.Fencing.TokenBase = 5000 },
			want: &LeaseWrite{Claim: Claim{JobUID: "job-uid"}, Record: lease.Record{TokenBase: 5000}},
			why:  "there is nobody to hand over",
		},
		"a recreated job with a lower token base": {
			with: func(g *given) { g.Lease.Record.TokenBase = 5000 },
			why:  "it is never lowered",
		},
	} {
		t.Run(name, func(t *testing.T) {
			g := steady()
			c.with(g)
			p := Decide(g.Observed)
			if c.want != nil {
				base, asked := c.want.Record.TokenBase, c.want.Record.Handover
				c.want.Verb, c.want.Record = Update, g.Lease.Record
				c.want.Record.TokenBase, c.want.Record.Handover = base, asked
			}
			if diff := cmp.Diff(c.want, p.Lease); diff != "" {
				t.Errorf("%s (-want +got):\n%s", c.why, diff)
			}
			if c.want != nil && len(p.Create)+len(p.Delete) > 0 {
				t.Error("pods are created or deleted before the Lease is this job's")
			}
		})
	}
}

// TestALeaseThatIsNotRenewedIsLeftAlone: any write makes the candidates wait again.
func TestALeaseThatIsNotRenewedIsLeftAlone(t *testing.T) {
	base := func(g *given) { g.Job.Spec.Fencing.TokenBase = 5000 }
	for name, c := range map[string]struct {
		with   func(*given)
		writes bool
		wake   time.Duration
	}{
		"a holder that renews, a higher token base": {with: base, writes: true, wake: 9 * time.Second},
		"a renewal is missed": {
			with: func(g *given) { base(g); g.Lease.SinceRenewal = 3 * time.Second }, wake: time.Second,
		},
		"a renewal is missed, in a rollout": {
			with: func(g *given) {
				r := rollingOut()
				g.Observed = r.Observed
				g.Lease.SinceRenewal = 3 * time.Second
			}, wake: time.Second,
		},
		"a renewal is missed, kept for a previous job": {
			with: func(g *given) { g.Lease.Claim = Claim{JobUID: "earlier"}; g.Lease.SinceRenewal = 3 * time.Second }, wake: time.Second,
		},
		"nobody has heard a renewal yet": {with: func(g *given) { base(g); g.Lease.Renewed = false }, wake: time.Second},
		"not renewing beyond the deadline": {
			with: func(g *given) { base(g); g.Lease.SinceRenewal, g.Lease.Unchanged = 11*time.Second, 11*time.Second }, wake: 4 * time.Second,
		},
		"expired": {
			with: func(g *given) { base(g); g.Lease.SinceRenewal, g.Lease.Unchanged = time.Minute, time.Minute },
		},
		"held by nobody knows who": {with: func(g *given) { base(g); g.Lease.Record.Holder = lease.UnknownHolder }, wake: 9 * time.Second},
		"cleared by hand":          {with: func(g *given) { base(g); g.Lease.Record.Holder = "" }},
		"released":                 {with: func(g *given) { base(g); g.released(lease.ReasonPodTerminating) }, writes: true},
		"not renewing and proven dead": {
			with: func(g *given) {
				base(g)
				g.Lease.SinceRenewal = 5 * time.Second
				g.ended(0, ago(2*time.Hour), ago(time.Second))
			},
			writes: true, wake: 9 * time.Second,
		},
	} {
		t.Run(name, func(t *testing.T) {
			g := steady()
			c.with(g)
			p := Decide(g.Observed)
			if (p.Lease != nil) != c.writes {
				t.Errorf("writes %+v", p.Lease)
			}
			if p.Wake != c.wake {
				t.Errorf("wakes after %v, want %v", p.Wake, c.wake)
			}
		})
	}
}

// TestCandidatesDoNotWaitForTheClaim: while a previous job's holder does not renew, the new job's pods are created and wait.
func TestCandidatesDoNotWaitForTheClaim(t *testing.T) {
	g := steady()
	g.Job.Status, g.Lease.Claim, g.Lease.SinceRenewal = v1alpha1.SingletonJobStatus{}, Claim{JobUID: "earlier"}, time.Minute
	g.Pods = nil
	if p := Decide(g.Observed); p.Lease != nil || len(p.Create) != 2 {
		t.Errorf("writes %+v, makes %d pods", p.Lease, len(p.Create))
	}
}

// TestATokenBaseBeyondTheLimitIsReset: another component wrote it, and with it tokens would soon stop growing.
func TestATokenBaseBeyondTheLimitIsReset(t *testing.T) {
	for _, silent := range []time.Duration{0, time.Minute} {
		g := steady()
		g.Job.Spec.Fencing.TokenBase = 7
		g.Lease.Record.BadTokenBase, g.Lease.Record.Token, g.Lease.SinceRenewal = "9223372036854775807", 1<<60, silent
		p := Decide(g.Observed)
		if p.Lease == nil || p.Lease.Record.BadTokenBase != "" || p.Lease.Record.TokenBase != 7 || p.Lease.Record.Token != 1<<60 || p.Lease.Record.Handover != (lease.Handover{}) {
			t.Fatalf("writes %+v", p.Lease)
		}
		if !slices.ContainsFunc(p.Events, func(e Event) bool {
			return e.Reason == "TokenBaseInvalid" && strings.Contains(e.Message, contract.TokenBaseAnnotation) &&
				strings.Contains(e.Message, "9223372036854775807") && strings.Contains(e.Message, "spec.fencing.tokenBase")
		}) {
			t.Errorf("emits %+v", p.Events)
		}
	}
}

// TestLoweredTokenIsRaisedAgain: the status has recorded a higher token, and no lower one may be issued.
func TestLoweredTokenIsRaisedAgain(t *testing.T) {
	for name, c := range map[string]struct {
		with func(*given)
		want int64 // 0: nothing is written
	}{
		"under its holder":               {with: func(g *given) { g.Lease.Record.Token = 1 }, want: 100},
		"to what is none":                {with: func(g *given) { g.Lease.Record.Token = 0 }, want: 100},
		"and the history with it":        {with: func(g *given) { g.Lease.Record.Token, g.Lease.Record.History = 1, nil }, want: 100},
		"of a Lease that is free":        {with: func(g *given) { g.released(lease.ReasonProcessExited); g.Lease.Record.Token = 1 }, want: 100},
		"while a holder does not renew":  {with: func(g *given) { g.Lease.Record.Token, g.Lease.SinceRenewal = 1, time.Minute }},
		"acquired with less":             {with: func(g *given) { g.Lease.Record.Token = 60; g.Lease.Record.History[0].Token = 60 }},
		"a status that says too much":    {with: func(g *given) { g.Job.Status.FencingToken = math.MaxInt64 }},
		"another job's Lease is claimed": {with: func(g *given) { g.Lease.Record.Token, g.Lease.Claim.JobUID = 1, "earlier" }, want: 1},
	} {
		t.Run(name, func(t *testing.T) {
			g := steady()
			c.with(g)
			p := Decide(g.Observed)
			switch {
			case c.want == 0 && p.Lease != nil:
				t.Errorf("writes %+v", p.Lease)
			case c.want != 0 && (p.Lease == nil || p.Lease.Verb != Update || p.Lease.Record.Token != c.want || p.Lease.Record.Holder != g.Lease.Record.Holder):
				t.Errorf("writes %+v, want token %d", p.Lease, c.want)
			}
			if c.want == 100 && p.Reasons.Of("Lease", "job") != "its token is lower than one that was already issued" {
				t.Errorf("because %q", p.Reasons.Of("Lease", "job"))
			}
		})
	}
}

func TestTheRequestForATokenBaseIsNotWithdrawn(t *testing.T) {
	g := steady()
	g.Job.Spec.Fencing.TokenBase = 5000
	g.Lease.Record.TokenBase = 5000
	g.Lease.Record.Handover = lease.Handover{To: lease.AnyPod, Reason: lease.ReasonTokenBaseRaised}
	if p := Decide(g.Observed); p.Lease != nil {
		t.Errorf("the holder has not answered yet, but the Lease is written: %+v", p.Lease)
	}
}

func TestCollectingALease(t *testing.T) {
	for name, c := range map[string]struct {
		with    func(*given)
		deleted bool
		wake    time.Duration
		why     string
	}{
		"released": {with: func(g *given) { g.released(lease.ReasonPodTerminating) }, deleted: true, why: "no tenure lasts"},
		"held":     {with: func(*given) {}, wake: 14 * time.Second, why: "the holder renews"},
		"held and not renewed, not long enough": {
			with: func(g *given) { g.Lease.Unchanged = 15*time.Second - 1 }, wake: 1,
			why: "the holder may act for the whole duration",
		},
		"held and not renewed for the duration": {
			with: func(g *given) { g.Lease.Unchanged = 15 * time.Second }, deleted: true, why: "the tenure is over by time",
		},
		"cleared by hand": {
			with: func(g *given) { g.Lease.Record.Holder = "" }, wake: 14 * time.Second,
			why: "an empty holder that nobody released proves nothing",
		},
		"cleared by a client that leaves an old marker": {
			with: func(g *given) {
				g.Lease.Record.Holder, g.Lease.Record.Release.Reason = "", lease.ReasonPodTerminating
			},
			wake: 14 * time.Second, why: "the marker is of an earlier tenure: somebody has acquired since",
		},
		"without a duration": {
			with: func(g *given) { g.Lease.Record.Duration, g.Lease.Unchanged = 0, time.Minute }, wake: 59 * time.Minute,
			why: "somebody has edited it: the longest that a holder may have been promised",
		},
		"pods are left": {
			with: func(g *given) { g.released(lease.ReasonPodTerminating); g.pod(0, "a") },
			why:  "a recreated job finds the released Lease and need not wait",
		},
		"somebody else's": {with: func(g *given) { g.Lease = Lease{Presence: Foreign} }, why: "it is not touched"},
		"none":            {with: func(g *given) { g.Lease = Lease{} }, why: "there is nothing to do"},
	} {
		t.Run(name, func(t *testing.T) {
			g := steady()
			g.Pods = nil
			c.with(g)
			g.Job = nil
			p := Decide(g.Observed)
			if got := p.Lease != nil && p.Lease.Verb == Delete; got != c.deleted || p.State != Collecting {
				t.Errorf("deleted %v, want %v: %s", got, c.deleted, c.why)
			}
			if p.Status != nil || len(p.Apply)+len(p.Create)+len(p.Delete)+len(p.Relabel) > 0 {
				t.Errorf("something else is touched: %+v", p)
			}
			if p.Wake != c.wake {
				t.Errorf("wakes after %v, want %v", p.Wake, c.wake)
			}
		})
	}
}

func TestProofOfDeath(t *testing.T) {
	died := lease.Release{Reason: lease.ReasonHolderTerminated, Unclean: true}
	lost := lease.Release{Reason: lease.ReasonNodeLost, Unclean: true}
	began, over := ago(2*time.Hour), ago(time.Second)
	for name, c := range map[string]struct {
		with func(*given)
		want lease.Release
		why  string
	}{
		"the holder's container has ended": {
			with: func(g *given) { g.ended(0, began, over) }, want: died,
			why: "the kubelet says so, and with PID 1 its namespace is gone",
		},
		"the holder's container waits to be restarted": {
			with: func(g *given) {
				g.ended(0, began, over)
				s := &g.Pods[0].Status.ContainerStatuses[0]
				s.LastTerminationState = s.State
				g.waiting(0, "CrashLoopBackOff")
			},
			want: died, why: "it does not run",
		},
		"restarted": {
			with: func(g *given) {
				g.ended(0, began, over)
				s := &g.Pods[0].Status.ContainerStatuses[0]
				s.LastTerminationState, s.State = s.State, corev1.ContainerState{Running: &corev1.ContainerStateRunning{StartedAt: metav1.NewTime(now)}}
			},
			why: "the running agent may be the holder",
		},
		"ended before the tenure": {
			with: func(g *given) { g.ended(0, began, ago(2*time.Hour-time.Minute)) },
			why:  "the report is of an earlier run; the present one may hold",
		},
		"ended in the second of the acquire": {
			with: func(g *given) {
				g.Lease.Record.AcquireTime = over.Add(300 * time.Millisecond).UnixMicro()
				g.Lease.Record.RenewTime = over.Add(300 * time.Millisecond).UnixMicro()
				g.ended(0, began, over)
			},
			why: "finishedAt is cut to seconds, so it cannot say",
		},
		"ended in the instant of the acquire": {
			with: func(g *given) {
				at := over.Truncate(time.Second).UnixMicro()
				g.Lease.Record.AcquireTime, g.Lease.Record.RenewTime = at, at
				g.ended(0, began, over)
			},
			why: "one that had ended did not acquire",
		},
		"began after the acquire": {
			with: func(g *given) { g.ended(0, ago(time.Minute), over) },
			why:  "another run than the one that acquired, unless a clock was set: no proof",
		},
		"the node's clock was set back by an hour after an earlier run's end": {
			with: func(g *given) {
				g.Lease.Record.AcquireTime = ago(59 * time.Minute).UnixMicro()
				g.Lease.Record.RenewTime = ago(59 * time.Minute).UnixMicro()
				g.ended(0, began, over)
			},
			why: "a holder does not outlive its last renewal by more than its lease: the run that ended is not the holder's",
		},
		"ended long before the last renewal": {
			with: func(g *given) { g.ended(0, began, ago(time.Minute)) },
			why:  "the holder has renewed since",
		},
		"another container has ended": {
			with: func(g *given) {
				g.ended(0, began, over)
				g.Pods[0].Status.ContainerStatuses[0].Name = "sidecar"
			},
			why: "it is not the holder's",
		},
		"a sidecar in front, with the agent's variable, has ended": {
			with: func(g *given) { g.sidecarEnded(began, over, corev1.EnvVar{Name: contract.ConfigEnv, Value: "{}"}) },
			why:  "it stands in the template: the holder lives",
		},
		"a sidecar in front, with the agent's command, has ended": {
			with: func(g *given) {
				g.sidecarEnded(began, over)
				g.Pods[0].Spec.Containers[0].Command = []string{contract.AgentPath, "run", "--", "x"}
			},
			why: "the same",
		},
		"the holder's container has ended, but a sidecar has the agent's variable": {
			with: func(g *given) {
				g.sidecarEnded(began, over, corev1.EnvVar{Name: contract.ConfigEnv, Value: "{}"})
				g.Pods[0].Status.ContainerStatuses[0].Name = "app"
			},
			why: "it is not certain which of them is the holder's, so time alone decides",
		},
		"a sidecar has ended, and the annotation was changed to name it": {
			with: func(g *given) {
				g.sidecarEnded(began, over)
				g.Pods[0].Annotations[contract.GatedAnnotation] = "sidecar"
			},
			why: "who may change pods writes annotations",
		},
		"a sidecar has ended, and a webhook wrapped the holder's command": {
			with: func(g *given) {
				g.sidecarEnded(began, over, corev1.EnvVar{Name: contract.ConfigEnv, Value: "{}"})
				g.Pods[0].Spec.Containers[0].Command = []string{contract.AgentPath, "run", "--", "x"}
				g.Pods[0].Spec.Containers[1].Command = append([]string{"/wrap"}, g.Pods[0].Spec.Containers[1].Command...)
				g.Pods[0].Spec.Containers[1].Env = nil
			},
			why: "the annotation contradicts",
		},
		"the holder's container has ended, behind a webhook's program": {
			with: func(g *given) { g.ended(0, began, over); g.wrapped(0) },
			why:  "what ended may have put the agent elsewhere",
		},
		"the holder's container has ended, the annotation says otherwise": {
			with: func(g *given) {
				g.ended(0, began, over)
				g.Pods[0].Annotations[contract.GatedAnnotation] = "sidecar"
			},
			why: "what contradicts itself proves nothing",
		},
		"the holder's container has ended, in a pod of an older operator": {
			with: func(g *given) {
				g.ended(0, began, over)
				delete(g.Pods[0].Annotations, contract.GatedAnnotation)
			},
			want: died, why: "its command and variables say so",
		},
		"an ephemeral container with the agent's variable has ended": {
			with: func(g *given) {
				g.Pods[0].Spec.EphemeralContainers = []corev1.EphemeralContainer{{EphemeralContainerCommon: corev1.EphemeralContainerCommon{
					Name: "debug", Env: []corev1.EnvVar{{Name: contract.ConfigEnv, Value: "{}"}},
				}}}
				g.Pods[0].Status.EphemeralContainerStatuses = []corev1.ContainerStatus{{Name: "debug", State: corev1.ContainerState{
					Terminated: &corev1.ContainerStateTerminated{StartedAt: metav1.NewTime(began), FinishedAt: metav1.NewTime(over)},
				}}}
			},
			why: "anyone who may debug pods adds those",
		},
		"ended, with an edited duration in the Lease": {
			with: func(g *given) {
				g.Lease.Record.Duration = math.MaxInt32 * time.Second
				g.Lease.Record.AcquireTime, g.Lease.Record.RenewTime = ago(59*time.Minute).UnixMicro()-3600e6, ago(59*time.Minute).UnixMicro()-3600e6
				g.ended(0, ago(3*time.Hour), over)
			},
			why: "no holder outlives its last renewal by more than the longest lease that there is",
		},
		"lost by the kubelet": {
			with: func(g *given) {
				g.ended(0, began, over)
				g.Pods[0].Status.ContainerStatuses[0].State.Terminated.FinishedAt = metav1.Time{}
			},
			why: "ContainerStatusUnknown has no time: nobody has seen it end",
		},
		"the runtime has restarted, and does not find the container": {
			with: func(g *given) { g.ended(0, began, over); g.reported(255, "Unknown") },
			why:  "containerd writes its own time for the end, and nobody has seen one",
		},
		"the runtime's shim has died, and nothing is known": {
			with: func(g *given) { g.ended(0, began, over); g.reported(255, "Error") },
			why:  "containerd and CRI-O write 255 and their own time for what they do not know",
		},
		"the runtime has no exit file": {
			with: func(g *given) { g.ended(0, began, over); g.reported(-1, "Error") },
			why:  "older versions of CRI-O write -1 for what they do not know",
		},
		"lost by the kubelet, with a time": {
			with: func(g *given) { g.ended(0, began, over); g.reported(137, "ContainerStatusUnknown") },
			why:  "nobody has seen it end, whatever time is written",
		},
		"out of memory":                   {with: func(g *given) { g.ended(0, began, over); g.reported(137, "OOMKilled") }, want: died, why: "the kernel said so"},
		"a standby's container has ended": {with: func(g *given) { g.ended(1, began, over) }, why: "it holds nothing"},
		"a later pod of the same name": {
			with: func(g *given) { g.ended(0, began, over); g.Pods[0].UID = "another" },
			why:  "it is another pod",
		},
		"the pod is absent": {
			with: func(g *given) { g.Pods = g.Pods[1:] }, why: "it may have been deleted by force on a node that is cut off",
		},
		"the pod is being deleted": {with: func(g *given) { g.terminating(0) }, why: "it may run to the end of its grace period and beyond"},
		"the pod has failed, no container says how": {
			with: func(g *given) { g.Pods[0].Status.Phase = corev1.PodFailed },
			why:  "the pod collector says so of pods on nodes that it cannot reach",
		},
		"the node is out of service, the holder does not renew": {
			with: func(g *given) { g.OutOfService["a"] = true; g.Lease.Unchanged = 4 * time.Second }, want: lost,
			why: "an administrator says that the machine is off, and it looks so",
		},
		"the node is out of service, the holder renews": {
			with: func(g *given) { g.OutOfService["a"] = true }, why: "one who renews is not off",
		},
		"the node is out of service, the pod gone": {
			with: func(g *given) {
				g.OutOfService["a"] = true
				g.Lease.Unchanged = 4 * time.Second
				g.Pods = g.Pods[1:]
			},
			want: lost, why: "the Lease names the node",
		},
		"the node that the Lease names is out of service, the pod is on another": {
			with: func(g *given) {
				g.OutOfService["c"] = true
				g.Lease.Unchanged, g.Lease.Record.History[0].Node = 4*time.Second, "c"
			},
			why: "the Lease's history can be written by the pod's process",
		},
		"another node is out of service": {
			with: func(g *given) { g.OutOfService["b"] = true; g.Lease.Unchanged = 4 * time.Second }, why: "not the holder's",
		},
		"an unknown holder": {
			with: func(g *given) { g.Lease.Record.Holder = lease.UnknownHolder; g.ended(0, began, over) },
			why:  "of which nothing can be proven",
		},
		"the holder of a previous job of the name": {
			with: func(g *given) {
				g.Pods[0].OwnerReferences[0].UID = "earlier"
				g.ended(0, began, over)
			},
			want: died, why: "dead is dead",
		},
	} {
		t.Run(name, func(t *testing.T) {
			g := steady()
			c.with(g)
			p := Decide(g.Observed)
			if (p.State == HolderDead) != (c.want.Reason != "") {
				t.Fatalf("state %v: %s", p.State, c.why)
			}
			if c.want.Reason == "" {
				if p.Lease != nil && p.Lease.Record.Holder == "" {
					t.Errorf("the Lease is freed: %s", c.why)
				}
				return
			}
			releases(t, g, p.Lease, c.want)
		})
	}
}

// sidecarEnded puts a sidecar before the gated container of the holder's pod; the kubelet reports that it ended.
func (g *given) sidecarEnded(began, over time.Time, env ...corev1.EnvVar) {
	g.ended(0, began, over)
	g.Pods[0].Status.ContainerStatuses[0].Name = "sidecar"
	spec := &g.Pods[0].Spec
	spec.Containers = append([]corev1.Container{{Name: "sidecar", Image: "s", Env: env}}, spec.Containers...)
}

// releases fails unless a write releases exactly the observed record.
func releases(t *testing.T, g *given, w *LeaseWrite, why lease.Release) {
	t.Helper()
	want := g.Lease.Record
	want.Holder, want.Release, want.AcquireTime = "", why, 0
	got := w.Record
	got.RenewTime, got.History, want.History = want.RenewTime, nil, nil
	if diff := cmp.Diff(want, got); diff != "" || w.Verb != Update || w.Record.RenewTime == g.Lease.Record.RenewTime {
		t.Errorf("nonce %d (-want +got):\n%s", w.Record.RenewTime, diff)
	}
	if past := w.Record.History[0]; past.Reason != why.Reason || past.Ended < g.Lease.Record.RenewTime/1000-1 || past.Ended > now.UnixMilli() {
		t.Errorf("the history says %+v", past)
	}
}

func TestClaimIsReadBack(t *testing.T) {
	for _, c := range []Claim{{}, {JobUID: "a-b-c", Before: 0}, {JobUID: "x", Before: 1 << 62}} {
		if got := ParseClaim(c.String()); got != c {
			t.Errorf("%+v became %+v", c, got)
		}
	}
	for _, s := range []string{"", "x", "x,", ",1", "x,-1", "x,1,2", "x,9223372036854775808"} {
		if got := ParseClaim(s); got != (Claim{}) {
			t.Errorf("%q claims %+v", s, got)
		}
	}
}
