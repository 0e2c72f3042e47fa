package plan

import (
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

// tokens returns the tokens of tenures.
func tokens(past []lease.PastTenure) (all []int64) {
	for _, t := range past {
		all = append(all, t.Token)
	}
	return all
}

// TestLeaseDropsRecordedChanges: the Lease drops a change of holder once the status records it, and when the write harms no candidate.
func TestLeaseDropsRecordedChanges(t *testing.T) {
	for name, c := range map[string]struct {
		given   func(g *given)
		renewal bool // the write waits for a renewal
		kept    []int64
	}{
		"with the status":             {kept: []int64{200}},
		"after the status":            {given: (*given).toldAll, kept: []int64{200}},
		"it was told, not how it was": {given: func(g *given) { g.toldAll(); g.Lease.Record.History[1].Node = "x" }},
		"told by a reason that is cut short": {given: func(g *given) {
			g.Lease.Record.History[1].Reason = "NoAgentOfTheseDaysWritesAReasonThatIsAsLongAsThisOneSoThatItsEndIsMissing"
		}},
		"few changes are kept in the status": {given: func(g *given) { g.Job.Spec.HistoryLimit = new(int32(lease.HistoryLimit - 1)) }},
		"a renewal is missing":               {given: func(g *given) { g.toldAll(); g.Lease.SinceRenewal = 3 * time.Second }, renewal: true},
		"this process has not seen one":      {given: func(g *given) { g.toldAll(); g.Lease.Renewed = false }, renewal: true},
		"the holder has stopped":             {given: func(g *given) { g.toldAll(); g.Lease.Unchanged = 11 * time.Second }, renewal: true},
		"free":                               {given: func(g *given) { g.toldAll(); g.released(lease.ReasonPodTerminating) }},
		"nobody's":                           {given: func(g *given) { g.toldAll(); g.Lease.Record.Holder = lease.UnknownHolder }},
		"somebody else's":                    {given: func(g *given) { g.toldAll(); g.Lease.Record.Holder = "elector" }},
		"for another job":                    {given: func(g *given) { g.toldAll(); g.Lease.Claim.JobUID = "another" }},
		"the spec is invalid":                {given: func(g *given) { g.toldAll(); g.Job.Spec.Candidates = -1 }},
		"the job is deleted":                 {given: func(g *given) { g.toldAll(); g.Job.DeletionTimestamp = &metav1.Time{Time: now} }},
		"of a previous job": {kept: []int64{200}, given: func(g *given) {
			g.Lease.Claim.Before, g.Lease.Record.Transitions, g.Job.Status = 199, 7, v1alpha1.SingletonJobStatus{}
		}},
		"the clocks of two nodes differ by a second": {kept: []int64{200}, given: func(g *given) {
			g.Lease.Record.History[1].Ended = g.Lease.Record.History[0].Acquired + 1000
		}},
		"the clocks of two nodes differ by more": {given: func(g *given) {
			g.Lease.Record.History[1].Ended = g.Lease.Record.History[0].Acquired + 1001
		}},
		"what was told ten changes ago": {kept: []int64{200}, given: func(g *given) {
			g.toldAll()
			told := g.Job.Status.History[:1]
			for len(told) < lease.HistoryLimit {
				told = append(told, v1alpha1.TenureChange{Token: told[len(told)-1].Token - 1})
			}
			g.Job.Status.History = told
		}},
		"what comes after one that is not told": {given: func(g *given) {
			g.toldAll()
			g.Lease.Record.History = append(g.Lease.Record.History, pastTenure(50, "p", 1, 2, lease.ReasonLeaseExpired))
		}},
	} {
		t.Run(name, func(t *testing.T) {
			g := failedOver()
			if c.given != nil {
				c.given(g)
			}
			p := Decide(g.Observed)
			if p.Renewal != c.renewal {
				t.Errorf("waits for a renewal: %v, want %v", p.Renewal, c.renewal)
			}
			var kept []int64
			if p.Told != nil {
				kept = tokens(p.Told.Record.History)
			}
			if diff := cmp.Diff(c.kept, kept); diff != "" {
				t.Errorf("status %v, Lease %v (-want +got):\n%s", lines(g.Job.Status.History), g.Lease.Record.History, diff)
			}
			if p.Told == nil {
				return
			}
			g.Lease.Record, g.Job.Status = p.Told.Record, statusOr(p, g)
			g.carryOut(p)
			if again := Decide(g.Observed); again.writes() || len(again.Changes)+len(again.Events) > 0 {
				t.Errorf("after that there is more to do: %+v", again)
			}
		})
	}
}

// toldAll stores the status that should be stored.
func (g *given) toldAll() {
	if p := Decide(g.Observed); p.Status != nil {
		g.Job.Status = *p.Status
	}
}

// TestOtherWritesComeFirst: a plan writes the Lease only once.
func TestOtherWritesComeFirst(t *testing.T) {
	g := failedOver()
	g.toldAll()
	g.Job.Spec.Fencing.TokenBase = 1000
	if p := Decide(g.Observed); p.Lease == nil || p.Told != nil {
		t.Errorf("writes %+v and %+v", p.Lease, p.Told)
	}
}

// TestThePreviousJob: its last tenure stays until the status records the first one after it, which is known to be the first only because of
// the earlier one.
func TestThePreviousJob(t *testing.T) {
	history := past(pastTenure(8, "q", 5, 0, ""), pastTenure(7, "p", 3, 4, lease.ReasonPodTerminating), pastTenure(6, "p", 1, 2, lease.ReasonPodTerminating))
	for told, want := range map[int64][]int64{0: {8, 7, 6}, 8: {8}} {
		if got := tokens(untold(history, &v1alpha1.SingletonJobStatus{FencingToken: told}, 7)); !slices.Equal(got, want) {
			t.Errorf("told up to %d: %v stay, want %v", told, got, want)
		}
	}
}

// TestRunsAreNotForgotten: status.runs records the end of an attempt, but without the details that rollouts need.
func TestRunsAreNotForgotten(t *testing.T) {
	g := toCompletion()
	g.toldAll()
	g.Lease.Record.History = append(g.Lease.Record.History, pastTenure(50, g.name(0), 1, 2, lease.ReasonLeaseExpired))
	g.Lease.Claim.Before = 60
	if p := Decide(g.Observed); p.Told != nil {
		t.Errorf("writes %+v", p.Told.Record)
	}
}

// aLife is a Lease and the status of its job.
type aLife struct {
	g *given
	// forgets: entries are removed from the Lease.
	forgets bool
}

func newLife(forgets bool) *aLife {
	l := &aLife{steady(), forgets}
	l.g.Lease.Record.History, l.g.Lease.Record.Transitions, l.g.Job.Status = nil, 0, v1alpha1.SingletonJobStatus{}
	return l
}

// next adds a tenure, as its agent writes it.
func (l *aLife) next(t lease.PastTenure, ended int64, why lease.Reason) {
	r := &l.g.Lease.Record
	past := slices.Clone(r.History)
	if len(past) > 0 {
		past[0].Ended, past[0].Reason = ended, why
	}
	r.History = append([]lease.PastTenure{t}, past[:min(len(past), lease.HistoryLimit-1)]...)
	r.Token, r.Transitions, r.AcquireTime = t.Token, r.Transitions+1, t.Acquired*1000
	r.Holder = lease.Identity{Pod: t.Pod, PodUID: "uid", Nonce: "n"}.String()
}

// tell stores what is new, and removes it from the Lease.
func (l *aLife) tell() (news []string, incomplete bool) {
	j := jobOf(&l.g.Observed)
	c := changesOf(j, tenureOf(j, l.g.Name, &l.g.Observed), nil)
	record(&l.g.Job.Status, c.news, int(*j.Spec.HistoryLimit))
	l.g.Job.Status.FencingToken = l.g.Lease.Record.Token
	if l.forgets {
		l.g.Lease.Record.History = untold(l.g.Lease.Record.History, &l.g.Job.Status, l.g.Lease.Claim.Before)
	}
	return lines(c.news), c.incomplete
}

// verdicts are the results of everything that reads earlier tenures.
func (l *aLife) verdicts(at int64) (all []string) {
	l.g.Now = time.UnixMilli(at)
	j := jobOf(&l.g.Observed)
	t := tenureOf(j, l.g.Name, &l.g.Observed)
	for _, version := range []string{"job-a-", "job-b-"} {
		for _, preparation := range []time.Duration{0, 20 * time.Second} {
			all = append(all, fmt.Sprintf("%s prepared for %v: soaked %v, tried %v, full trial %v, failed %v", version, preparation,
				t.soaked(version, preparation), t.short(version, preparation) == 0,
				t.untried(version, preparation) <= 0, t.failedEarly(version, preparation, 10*time.Second)))
		}
	}
	return append(all, fmt.Sprint("not taken: ", t.wasNotTaken()))
}

// trialOf adds what this process has seen of a tenure, if anything.
func (g *given) trialOf(r *rand.Rand, token int64) {
	if r.IntN(3) == 0 {
		return
	}
	ran := func() time.Duration { return time.Duration(r.IntN(24)) * 2500 * time.Millisecond } // never near half a tenure
	g.saw(Trial{Token: token, Partly: r.IntN(3) == 0, Seen: ran(), Ready: r.IntN(3) > 0, For: ran(), Longest: ran()})
}

// TestDroppedTenuresChangeNothing: a Lease that drops recorded tenures leads to the same history and the same verdicts as one that keeps
// them. This holds whenever they are recorded, on nodes whose clocks differ by up to a second.
func TestDroppedTenuresChangeNothing(t *testing.T) {
	reasons := []lease.Reason{
		lease.ReasonProcessExited, lease.ReasonLivenessFailed, lease.ReasonRollout, lease.ReasonPodTerminating, lease.ReasonLeaseExpired, lease.ReasonPreActivateFailed, "",
	}
	forgotten := 0
	for _, seed := range tier.Seeds(t, 100, 300) {
		r := rand.New(rand.NewPCG(seed, 0))
		keeps, forgets := newLife(false), newLife(true)
		at, often := ago(time.Hour).UnixMilli(), 1+r.IntN(3)
		ended, why := int64(0), lease.Reason("")
		for token := range int64(40) {
			off := r.Int64N(apart.Milliseconds())
			tenure := lease.PastTenure{Token: token + 1, Pod: fmt.Sprintf("job-%c-%d", 'a'+r.Int32N(2), r.IntN(2)), Node: "n", Acquired: at + off}
			keeps.g.trialOf(r, tenure.Token)
			forgets.g.Trials = keeps.g.Trials
			keeps.next(tenure, ended, why)
			forgets.next(tenure, ended, why)
			if r.IntN(often) == 0 {
				want, lost := keeps.tell()
				got, alsoLost := forgets.tell()
				if diff := cmp.Diff(want, got); diff != "" || lost != alsoLost {
					t.Fatalf("seed %d, token %d: incomplete %v and %v (-kept +forgotten):\n%s", seed, token, lost, alsoLost, diff)
				}
			}
			at += 2500 + 5000*r.Int64N(12) // never within a second of a limit, nor of half another tenure
			if diff := cmp.Diff(keeps.verdicts(at+off), forgets.verdicts(at+off)); diff != "" {
				t.Fatalf("seed %d, token %d (-kept +forgotten):\n%s\nkept %v\nforgot %v", seed, token, diff, keeps.g.Lease.Record.History, forgets.g.Lease.Record.History)
			}
			ended, why = at+off, reasons[r.IntN(len(reasons))]
			at += r.Int64N(300)
			forgotten += len(keeps.g.Lease.Record.History) - len(forgets.g.Lease.Record.History)
		}
		if diff := cmp.Diff(keeps.g.Job.Status, forgets.g.Job.Status); diff != "" {
			t.Fatalf("seed %d: (-kept +forgotten):\n%s", seed, diff)
		}
	}
	if forgotten < 10_000 {
		t.Errorf("%d tenures were forgotten: too few to tell", forgotten)
	}
}
