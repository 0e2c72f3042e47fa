package plan

import (
	"fmt"
	"math"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"github.com/google/go-cmp/cmp/cmpopts"
	corev1 "k8s.io/api/core/v1"

	"github.com/singletonjob/operator/api/v1alpha1"
	"github.com/singletonjob/operator/internal/inject"
	"github.com/singletonjob/operator/internal/lease"
)

// past is a history of the Lease, newest first: token, pod, start and end in seconds after the epoch, reason.
func past(tenures ...lease.PastTenure) []lease.PastTenure { return tenures }

func pastTenure(token int64, pod string, acquired, ended int64, why lease.Reason) lease.PastTenure {
	return lease.PastTenure{Token: token, Pod: pod, Node: "node-" + pod, Acquired: acquired * 1000, Ended: ended * 1000, Reason: why}
}

// lines are short forms of changes of holder.
func lines(changes []v1alpha1.TenureChange) []string {
	var out []string
	for _, c := range changes {
		line := fmt.Sprintf("%d %s %s %s→%s", c.Token, c.Type, c.Reason, c.From, c.To)
		if c.Downtime != nil {
			line += fmt.Sprintf(" %v", c.Downtime.Duration)
		}
		out = append(out, line)
	}
	return out
}

func TestChangesOfHolder(t *testing.T) {
	for name, c := range map[string]struct {
		history     []lease.PastTenure
		transitions int32
		before      int64 // of the claim
		recorded    int64 // the last token in the status
		want        []string
		incomplete  bool
	}{
		"the first": {
			history: past(pastTenure(10, "p", 1, 0, "")), transitions: 1,
			want: []string{"10 Elected Elected →p"},
		},
		"recorded already": {history: past(pastTenure(10, "p", 1, 0, "")), transitions: 1, recorded: 10},
		"a failover": {
			history: past(pastTenure(20, "q", 30, 0, ""), pastTenure(10, "p", 1, 15, lease.ReasonLeaseExpired)), transitions: 2, recorded: 10,
			want: []string{"20 Failover LeaseExpired p→q 15s"},
		},
		"the same pod again": {
			history: past(pastTenure(20, "p", 16, 0, ""), pastTenure(10, "p", 1, 15, lease.ReasonHolderTerminated)), transitions: 2, recorded: 10,
			want: []string{"20 Failover HolderTerminated p→p 1s"},
		},
		"a handover": {
			history: past(pastTenure(20, "q", 15, 0, ""), pastTenure(10, "p", 1, 15, lease.ReasonRollout)), transitions: 2, recorded: 10,
			want: []string{"20 Handover RolloutHandover p→q 0s"},
		},
		"several while no operator ran": {
			history: past(pastTenure(40, "p", 9, 0, ""), pastTenure(30, "q", 5, 8, lease.ReasonProcessExited),
				pastTenure(20, "p", 3, 4, lease.ReasonPodTerminating), pastTenure(10, "q", 1, 2, lease.ReasonRenewFailed)),
			transitions: 4, recorded: 10,
			want: []string{"20 Failover RenewFailed q→p 1s", "30 Handover PodTerminating p→q 1s", "40 Failover ProcessExited q→p 1s"},
		},
		"all while no operator ran": {
			history:     past(pastTenure(20, "q", 3, 0, ""), pastTenure(10, "p", 1, 2, lease.ReasonTokenBaseRaised)),
			transitions: 2, want: []string{"10 Elected Elected →p", "20 Handover TokenBaseRaised p→q 1s"},
		},
		"more than the Lease could keep": {
			history:     past(pastTenure(50, "p", 9, 0, ""), pastTenure(40, "q", 5, 8, lease.ReasonProcessExited)),
			transitions: 5, recorded: 10, incomplete: true,
			want: []string{"50 Failover ProcessExited q→p 1s"},
		},
		"more than the Lease could keep, none recorded": {
			history:     past(pastTenure(50, "p", 9, 0, ""), pastTenure(40, "q", 5, 8, lease.ReasonProcessExited)),
			transitions: 5, incomplete: true,
			want: []string{"50 Failover ProcessExited q→p 1s"},
		},
		"of a previous job before": {
			history:     past(pastTenure(20, "q", 3, 0, ""), pastTenure(10, "p", 1, 2, lease.ReasonPodTerminating)),
			transitions: 9, before: 10,
			want: []string{"20 Elected Elected →q"},
		},
		"taken over from a previous job, whose tenures are forgotten": {
			history: past(pastTenure(20, "q", 3, 0, "")), transitions: 9, before: 19,
			want: []string{"20 Elected Elected →q"},
		},
		"only of a previous job": {
			history: past(pastTenure(10, "p", 1, 2, lease.ReasonPodTerminating)), transitions: 9, before: 10,
		},
		"the status was wiped": {
			history:     past(pastTenure(20, "q", 3, 0, ""), pastTenure(10, "p", 1, 2, lease.ReasonLeaseExpired)),
			transitions: 2, want: []string{"10 Elected Elected →p", "20 Failover LeaseExpired p→q 1s"},
		},
		"clocks that run apart": {
			history: past(pastTenure(20, "q", 10, 0, ""), pastTenure(10, "p", 1, 15, lease.ReasonLeaseExpired)), transitions: 2, recorded: 10,
			want: []string{"20 Failover LeaseExpired p→q 0s"},
		},
		"an end without a recorded reason": {
			history: past(pastTenure(20, "q", 10, 0, ""), pastTenure(10, "p", 1, 0, "")), transitions: 2, recorded: 10,
			want: []string{"20 Failover LeaseExpired p→q"},
		},
		"a reason of a later version": {
			history: past(pastTenure(20, "q", 10, 0, ""), pastTenure(10, "p", 1, 9, "NewInThatVersion")), transitions: 2, recorded: 10,
			want: []string{"20 Failover NewInThatVersion p→q 1s"},
		},
		"removed by hand": {transitions: 2, recorded: 10, incomplete: true},
		"scrambled": {
			history:     past(pastTenure(10, "p", 1, 2, lease.ReasonLeaseExpired), pastTenure(20, "q", 3, 0, ""), pastTenure(20, "q", 3, 0, "")),
			transitions: 2, recorded: 10, want: []string{"20 Failover LeaseExpired p→q 1s"},
		},
	} {
		t.Run(name, func(t *testing.T) {
			g := steady()
			r := &g.Lease.Record
			r.History, r.Transitions, r.Token = c.history, c.transitions, 20
			if len(c.history) > 0 {
				r.Token = max(c.history[0].Token, c.history[len(c.history)-1].Token)
			}
			g.Lease.Claim.Before = c.before
			g.Job.Status = v1alpha1.SingletonJobStatus{FencingToken: c.recorded}
			j := jobOf(&g.Observed)
			got := changesOf(j, tenureOf(j, g.Name, &g.Observed), nil)
			if diff := cmp.Diff(c.want, lines(got.news)); diff != "" || got.incomplete != c.incomplete {
				t.Errorf("incomplete %v, want %v (-want +got):\n%s", got.incomplete, c.incomplete, diff)
			}
		})
	}
}

// failedOver is a steady job whose holder stopped renewing some time ago. The other pod holds the Lease, and the status does not record
// that yet.
func failedOver() *given {
	g := steady()
	g.held(1, 200, ago(time.Minute))
	g.Lease.Record.Transitions = 2
	g.Lease.Record.History = past(
		lease.PastTenure{Token: 200, Pod: g.name(1), Node: "b", Acquired: ago(time.Minute).UnixMilli()},
		lease.PastTenure{Token: 100, Pod: g.name(0), Node: "a", Acquired: ago(time.Hour).UnixMilli(), Ended: ago(75 * time.Second).UnixMilli(), Reason: lease.ReasonLeaseExpired},
	)
	return g
}

// TestAChangeIsRecordedOnce: a decision on a status that already has a change does not record it again.
func TestAChangeIsRecordedOnce(t *testing.T) {
	g := failedOver()
	first := Decide(g.Observed)
	if diff := cmp.Diff([]string{"200 Failover LeaseExpired " + g.name(0) + "→" + g.name(1) + " 15s"}, lines(first.Changes)); diff != "" || len(first.Events) != 1 {
		t.Fatalf("events %v (-want +got):\n%s", first.Events, diff)
	}
	if again := Decide(g.Observed); cmp.Diff(first, again, cmpopts.EquateComparable(Hashed{})) != "" {
		t.Error("the same observation has two plans")
	}
	g.Job.Status = *first.Status
	second := Decide(g.Observed)
	if second.Status != nil || len(second.Changes)+len(second.Events) > 0 {
		t.Errorf("recorded again: %v %v", lines(second.Changes), second.Events)
	}
}

// TestCountersAndTokenMoveTogether: one write stores them all, so that a change is counted once.
func TestCountersAndTokenMoveTogether(t *testing.T) {
	s := Decide(failedOver().Observed).Status
	if s.Failovers != 1 || s.Handovers != 0 || s.FencingToken != 200 || s.Tenures != 2 || len(s.History) != 2 {
		t.Errorf("status %+v", s)
	}
	if at := s.LastFailoverTime; at == nil || !at.Time.Equal(ago(time.Minute)) {
		t.Errorf("the last failover was at %v", at)
	}
}

// TestEventsAfterARestart: a process that does not know which Events were written writes the same ones again, except those that the API
// server has dropped by now.
func TestEventsAfterARestart(t *testing.T) {
	g := failedOver()
	first := Decide(g.Observed)
	g.Job.Status, g.EventsUnknown = *first.Status, true
	if diff := cmp.Diff(first.Events, Decide(g.Observed).Events); diff != "" {
		t.Errorf("-want +got:\n%s", diff)
	}
	g.Now = now.Add(time.Hour)
	for _, e := range Decide(g.Observed).Events {
		if strings.Contains(e.Name, "tenure") {
			t.Errorf("it is written again: %v", e)
		}
	}
}

// TestEventsThatFailed: a process that knows which Events were written writes the others, no matter how long that took.
func TestEventsThatFailed(t *testing.T) {
	g := failedOver()
	g.Job.Status = *Decide(g.Observed).Status
	g.Now = now.Add(24 * time.Hour)
	for from, want := range map[int64]int{0: 0, 101: 1, 200: 1, 201: 0} {
		g.Unannounced = from
		events := Decide(g.Observed).Events
		events = slices.DeleteFunc(events, func(e Event) bool { return !strings.Contains(e.Name, "tenure") })
		if len(events) != want || want > 0 && events[0].Name != "job.tenure-200" {
			t.Errorf("from token %d on: %v", from, events)
		}
	}
}

// TestEventsOfDroppedHistory: a job that keeps no history still gets its Events, also after a restart.
func TestEventsOfDroppedHistory(t *testing.T) {
	g := failedOver()
	g.Job.Spec.HistoryLimit = new(int32)
	g.Job.Status.History = nil
	first := Decide(g.Observed)
	if len(first.Events) != 1 || len(first.Status.History) > 0 {
		t.Fatalf("events %v, history %v", first.Events, lines(first.Status.History))
	}
	g.Job.Status, g.EventsUnknown = *first.Status, true
	if diff := cmp.Diff(first.Events, Decide(g.Observed).Events); diff != "" {
		t.Errorf("-want +got:\n%s", diff)
	}
}

// TestRestoredLease: the next tenure follows on the last recorded one, and not on the one in an old copy.
func TestRestoredLease(t *testing.T) {
	g := failedOver()
	g.Job.Status = *Decide(g.Observed).Status // up to token 200
	g.held(0, 300, now)
	g.Lease.Record.Transitions = 2
	g.Lease.Record.History = past(
		lease.PastTenure{Token: 300, Pod: g.name(0), Node: "a", Acquired: now.UnixMilli()},
		lease.PastTenure{Token: 100, Pod: g.name(0), Node: "a", Acquired: 1, Ended: ago(time.Hour).UnixMilli(), Reason: lease.ReasonLeaseExpired},
	)
	p := Decide(g.Observed)
	if diff := cmp.Diff([]string{"300 Failover LeaseLost " + g.name(1) + "→" + g.name(0)}, lines(p.Changes)); diff != "" || p.Changes[0].FromToken != 200 {
		t.Errorf("%+v (-want +got):\n%s", p.Changes, diff)
	}
}

func TestHistoryLimit(t *testing.T) {
	for limit := range int32(4) {
		g := steady()
		g.Job.Spec.HistoryLimit = &limit
		g.Job.Status = v1alpha1.SingletonJobStatus{}
		g.Lease.Record.Token, g.Lease.Record.Transitions = 30, 3
		g.Lease.Record.History = past(pastTenure(30, "p", 5, 0, ""), pastTenure(20, "q", 3, 4, lease.ReasonLeaseExpired), pastTenure(10, "p", 1, 2, lease.ReasonLeaseExpired))
		p := Decide(g.Observed)
		if len(p.Status.History) != int(min(limit, 3)) || p.Status.Failovers != 2 || len(p.Events) != 3 {
			t.Errorf("limit %d: %v, %d failovers, %d events", limit, lines(p.Status.History), p.Status.Failovers, len(p.Events))
		}
		if limit > 0 && p.Status.History[0].Token != 30 {
			t.Errorf("limit %d: not newest first: %v", limit, lines(p.Status.History))
		}
	}
}

func TestAVersionThatFailsBeforeItIsSoaked(t *testing.T) {
	own := steady().name(0)
	for name, c := range map[string]struct {
		history []lease.PastTenure
		failed  bool
	}{
		"never tried":            {history: past(pastTenure(10, "job-oldhash-0", 0, 1, lease.ReasonProcessExited))},
		"ended by itself":        {history: past(pastTenure(10, own, 0, 1, lease.ReasonProcessExited)), failed: true},
		"its agent was killed":   {history: past(pastTenure(10, own, 0, 1, lease.ReasonHolderTerminated)), failed: true},
		"was not alive":          {history: past(pastTenure(10, own, 0, 1, lease.ReasonLivenessFailed)), failed: true},
		"never started":          {history: past(pastTenure(10, own, 0, 300, lease.ReasonStartupFailed)), failed: true},
		"lasted, then died":      {history: past(pastTenure(10, own, 0, 61, lease.ReasonLivenessFailed))},
		"was slow to die":        {history: past(pastTenure(10, own, 0, 49, lease.ReasonLivenessFailed)), failed: true},
		"never prepared":         {history: past(pastTenure(10, own, 0, 300, lease.ReasonPreActivateFailed)), failed: true},
		"told to stop":           {history: past(pastTenure(10, own, 0, 1, lease.ReasonPodTerminating))},
		"cut off":                {history: past(pastTenure(10, own, 0, 1, lease.ReasonLeaseExpired))},
		"lasted":                 {history: past(pastTenure(10, own, 0, 31, lease.ReasonProcessExited))},
		"failed, then lasted":    {history: past(pastTenure(20, own, 40, 80, lease.ReasonPodTerminating), pastTenure(10, own, 0, 1, lease.ReasonProcessExited))},
		"as short as the other":  {history: past(pastTenure(20, own, 40, 44, lease.ReasonProcessExited), pastTenure(10, "job-oldhash-0", 0, 5, lease.ReasonProcessExited))},
		"shorter than the other": {history: past(pastTenure(20, own, 40, 42, lease.ReasonProcessExited), pastTenure(10, "job-oldhash-0", 0, 5, lease.ReasonProcessExited)), failed: true},
		"the other was ended by a rollout": {
			history: past(pastTenure(20, own, 40, 44, lease.ReasonProcessExited), pastTenure(10, "job-oldhash-0", 0, 5, lease.ReasonRollout)), failed: true,
		},
		"the other once lasted": {failed: true, history: past(pastTenure(20, own, 50, 54, lease.ReasonProcessExited),
			pastTenure(15, "job-oldhash-0", 40, 45, lease.ReasonProcessExited), pastTenure(10, "job-oldhash-1", 0, 31, lease.ReasonRollout))},
		"lasted, then failed": {history: past(pastTenure(20, own, 40, 41, lease.ReasonProcessExited), pastTenure(10, own, 0, 31, lease.ReasonPodTerminating)), failed: true},
	} {
		g := steady()
		g.released(lease.ReasonPodTerminating)
		g.Lease.Record.History = c.history
		j := jobOf(&g.Observed)
		if got := tenureOf(j, g.Name, &g.Observed).failedEarly(j.updated(), j.preparation(), j.grace()); got != c.failed {
			t.Errorf("%s: failed %v, want %v", name, got, c.failed)
		}
	}
}

// A process that prepared for a minute and crashed a second later has proven nothing.
func TestPreparationProvesNothing(t *testing.T) {
	for name, c := range map[string]struct {
		change func(*v1alpha1.SingletonJob)
		lasts  time.Duration
		failed bool
	}{
		"nothing before it":        {func(*v1alpha1.SingletonJob) {}, 31 * time.Second, false},
		"preActivate":              {preActivateFor(60), 89 * time.Second, true},
		"long after preActivate":   {preActivateFor(60), 91 * time.Second, false},
		"startup probe":            {startupProbe(10, 5, 20), 139 * time.Second, true},
		"after the startup probe":  {startupProbe(10, 5, 20), 141 * time.Second, false},
		"with defaults":            {startupProbe(0, 0, 0), 59 * time.Second, true},
		"of defaults, and no more": {startupProbe(0, 0, 0), 61 * time.Second, false},
		"no end of it":             {startupProbe(math.MaxInt32, math.MaxInt32, math.MaxInt32), time.Hour, true},
	} {
		g := steady()
		c.change(g.Job)
		j := jobOf(&g.Observed)
		g.Lease.Record.History = past(lease.PastTenure{
			Token: 10, Pod: inject.PodName(g.Job.Name, j.hash, 0), Acquired: 1, Ended: 1 + c.lasts.Milliseconds(), Reason: lease.ReasonProcessExited,
		})
		if got := tenureOf(j, g.Name, &g.Observed).failedEarly(j.updated(), j.preparation(), j.grace()); got != c.failed {
			t.Errorf("%s: failed %v, want %v", name, got, c.failed)
		}
	}
}

func preActivateFor(seconds int32) func(*v1alpha1.SingletonJob) {
	return func(job *v1alpha1.SingletonJob) {
		job.Spec.PreActivate = &v1alpha1.PreActivate{Exec: v1alpha1.PreActivateExec{Command: []string{"x"}}, TimeoutSeconds: seconds}
	}
}

func startupProbe(delay, period, failures int32) func(*v1alpha1.SingletonJob) {
	return func(job *v1alpha1.SingletonJob) {
		job.Spec.Template.Spec.Containers[0].StartupProbe = &corev1.Probe{
			ProbeHandler:        corev1.ProbeHandler{Exec: &corev1.ExecAction{Command: []string{"x"}}},
			InitialDelaySeconds: delay, PeriodSeconds: period, FailureThreshold: failures,
		}
	}
}

// TestFutureTenuresAreNotRecorded: an entry with a token above the Lease's was recorded again with every status.
func TestFutureTenuresAreNotRecorded(t *testing.T) {
	g := steady()
	g.Lease.Record.History = append(past(pastTenure(5000, "forged", 1, 2, "?")), g.Lease.Record.History...)
	if p := Decide(g.Observed); len(p.Changes) > 0 || p.Status != nil {
		t.Errorf("recorded %+v", p.Changes)
	}
}
