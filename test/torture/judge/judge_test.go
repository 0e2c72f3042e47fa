package judge

import (
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/singletonjob/operator/fence"
	"github.com/singletonjob/operator/fence/fencetest"
	"github.com/singletonjob/operator/internal/lease"
)

const ms = time.Millisecond

// recorder records a history write by write. Times are in milliseconds.
type recorder struct {
	History
	mark fence.Token
}

func newRecorder() *recorder {
	return &recorder{History: History{
		Subjects: []Subject{{Name: "job", Margin: 500 * ms}}, Returned: map[string]bool{"job": true}, Judged: time.Hour,
		Late: []Lateness{{{At: 0}, {At: time.Hour}}},
	}}
}

// writes are sent, arrive and are decided at the same time, as by a fence.
func (r *recorder) writes(writer string, token fence.Token, at ...int) *recorder {
	for _, t := range at {
		r.arrives(writer, token, t, t, token >= r.mark)
	}
	return r
}

// arrives is a write that was sent at one time, and decided on at another.
func (r *recorder) arrives(writer string, token fence.Token, sent, at int, accepted bool) *recorder {
	a := fencetest.Attempt{Resource: "job", Token: token, Writer: writer, Sent: time.Duration(sent) * ms, At: time.Duration(at) * ms, Accepted: accepted}
	r.Fenced = append(r.Fenced, a)
	if accepted {
		r.mark = max(r.mark, token)
	}
	r.Operations = append(r.Operations, Operation{Resource: "job", Token: token, Call: a.At, Return: a.At + ms/2, Accepted: accepted})
	a.Accepted = true
	r.Unfenced = append(r.Unfenced, a)
	return r
}

// acquires is a version of the Lease with which a tenure begins.
func (r *recorder) acquires(pod string, token int64, at int) *recorder {
	r.Leases = append(r.Leases, LeaseVersion{
		Name: "job", Revision: int64(at), Seen: time.Duration(at) * ms, Holder: pod + "/uid/nonce", Token: token, Acquired: time.UnixMilli(int64(at)),
	})
	return r
}

func (r *recorder) tells(at int, tokens ...int64) *recorder {
	r.Told = append(r.Told, Told{Name: "job", UID: "1", Revision: int64(at), Seen: time.Duration(at) * ms, Tokens: tokens})
	return r
}

// starved withholds a CPU once, until a time.
func (r *recorder) starved(until, wait int) *recorder {
	at := time.Duration(until) * ms
	r.Late = append(r.Late, Lateness{{At: 0}, {At: at - time.Duration(wait)*ms}, {At: at, Max: time.Duration(wait) * ms}, {At: time.Hour}})
	return r
}

// busy withholds a CPU for a share of all time, in short waits.
func (r *recorder) busy(percent int) *recorder {
	var busy Lateness
	for at := 0; at < 100_000; at += 100 {
		busy = append(busy, Late{At: time.Duration(at) * ms, Max: time.Duration(percent) * ms})
	}
	r.Late = append(r.Late, busy)
	return r
}

// ended is a version of the Lease that tells why a tenure ended.
func (r *recorder) ended(token int64, reason lease.Reason) *recorder {
	last := &r.Leases[len(r.Leases)-1]
	last.Ended = Ended{Token: token, Reason: reason}
	return r
}

func (r *recorder) with(change func(*History)) *recorder {
	change(&r.History)
	return r
}

func deleted(at int) LeaseVersion {
	return LeaseVersion{Name: "job", Revision: int64(at), Seen: time.Duration(at) * ms, Deleted: true}
}

// takeover is a run without a fault.
func takeover() *recorder {
	return newRecorder().acquires("a", 5, 1000).acquires("b", 9, 5000).tells(6000, 9, 5).
		writes("a@1", 5, 1100, 1200, 1300).writes("b@5", 9, 5100, 5200)
}

// untold is a history that reports the last of some tenures, but not the first one.
func untold(later int) *recorder {
	r := newRecorder().acquires("a", 5, 1000).writes("a@1", 5, 1100)
	at := 1000
	for i := range later {
		at += 1000
		r.acquires("b", int64(10+i), at)
	}
	return r.tells(at+500, int64(9+later)).writes("b@2", 10+fence.Token(later)-1, at+100)
}

// TestJudge has one history for each way in which an invariant breaks, and the most similar history in which it holds.
func TestJudge(t *testing.T) {
	outlives := func(h *History) { h.Subjects[0].Outlives = true }
	control := func(h *History) { h.Subjects[0].Control = true }
	for name, c := range map[string]struct {
		history *recorder
		broken  []string // the invariants, in any order
		overlap int
	}{
		"a takeover": {history: takeover()},

		"the older acts after the younger":  {history: takeover().writes("a@1", 5, 5150), broken: []string{OneProcess}, overlap: 1},
		"what it sent before arrives later": {history: takeover().arrives("a@1", 5, 1400, 5150, false)},
		"it may outlive its lease":          {history: takeover().writes("a@1", 5, 9000).with(outlives), overlap: 1},
		"it is the control":                 {history: takeover().writes("a@1", 5, 9000).with(control), overlap: 1},
		// The process was due dead at 4600.
		"the machine withheld a CPU for half of the time":         {history: takeover().writes("a@1", 5, 5150).starved(5000, 275), overlap: 1},
		"the machine withheld a CPU for just a quarter of it":     {history: takeover().writes("a@1", 5, 5200).starved(4900, 150), overlap: 1},
		"the machine withheld a CPU for less than a quarter":      {history: takeover().writes("a@1", 5, 5200).starved(4900, 149), broken: []string{OneProcess}, overlap: 1},
		"the machine withheld a CPU before the process was due":   {history: takeover().writes("a@1", 5, 5150).starved(4600, 900), broken: []string{OneProcess}, overlap: 1},
		"the machine withheld a CPU for 90 % in many short waits": {history: takeover().writes("a@1", 5, 5150).busy(90), broken: []string{OneProcess}, overlap: 1},
		"the machine withheld a CPU for a tenth of the time": {
			history: takeover().writes("a@1", 5, 9000).starved(6000, 440), broken: []string{OneProcess}, overlap: 1,
		},
		"the older begins to write after the younger": {
			history: newRecorder().acquires("a", 5, 1000).acquires("b", 9, 5000).tells(6000, 9, 5).
				writes("b@5", 9, 5100, 5200).writes("a@1", 5, 9000), broken: []string{OneProcess}, overlap: 1,
		},
		"that, where the machine withheld a CPU": {
			history: newRecorder().acquires("a", 5, 1000).acquires("b", 9, 5000).tells(6000, 9, 5).
				writes("b@5", 9, 5100, 5200).writes("a@1", 5, 9000).starved(8000, 2700), overlap: 1,
		},
		"what is sent while all is being stopped": {
			history: takeover().writes("a@1", 5, 9000).with(func(h *History) { h.Judged = 8 * time.Second }),
		},

		"two processes with one token":   {history: takeover().writes("c@6", 9, 9000), broken: []string{TokensGrow}},
		"one process with two tokens":    {history: takeover().writes("b@5", 10, 9000).acquires("b", 10, 8000), broken: []string{TokensGrow}},
		"a tenure with the token before": {history: takeover().acquires("c", 9, 9000), broken: []string{TokensGrow}},
		"a tenure with a lower token":    {history: takeover().acquires("c", 7, 9000), broken: []string{TokensGrow}},
		"a token lowered by hand": {history: takeover().with(func(h *History) {
			h.Leases = append(h.Leases, LeaseVersion{Name: "job", Seen: 7 * time.Second, Foreign: true, Holder: "x/y/z", Token: 1})
		})},
		"a renewal of that": {history: takeover().with(func(h *History) {
			again := h.Leases[1]
			again.Token, again.Seen = 1, 7*time.Second
			h.Leases = append(h.Leases, again)
		})},
		"a tenure that is confirmed": {history: takeover().acquires("b", 9, 5050)},
		"a holder that is no agent": {history: takeover().with(func(h *History) {
			h.Leases = append(h.Leases, LeaseVersion{Name: "job", Seen: 7 * time.Second, Holder: "unknown", Token: 1})
		})},

		"the fence stores what is stale": {
			history: takeover().arrives("a@1", 5, 1400, 5150, true), broken: []string{FenceHolds, Linearizable},
		},
		"the fence refuses what is not": {history: takeover().arrives("b@5", 9, 5300, 5300, false), broken: []string{Linearizable}},
		"a stale write is stored while the next token's first is under way": {
			history: takeover().with(func(h *History) {
				h.Operations[3].Call, h.Operations[3].Return = 2000*ms, 5101*ms
				h.Operations = append(h.Operations, Operation{Resource: "job", Token: 5, Call: 4000 * ms, Return: 4001 * ms, Accepted: true})
			}),
		},

		"a foreign write is refused": {history: takeover().with(func(h *History) { h.Forgeries = []Forgery{{Subject: "job", What: "takes"}} })},
		"a foreign write is stored": {
			history: takeover().with(func(h *History) { h.Forgeries = []Forgery{{Subject: "job", What: "takes", Stored: true}} }), broken: []string{GuardRefuses},
		},
		"the guard refuses an agent": {
			history: takeover().with(func(h *History) { h.Refusals = []Refusal{{Text: "renew failing"}} }), broken: []string{GuardPasses},
		},

		"nobody comes back": {history: takeover().with(func(h *History) { h.Returned = nil }), broken: []string{HolderReturns}},

		"a tenure is told twice":       {history: takeover().tells(7000, 9, 9, 5), broken: []string{ToldOnce}},
		"tenures are told out of turn": {history: takeover().tells(7000, 5, 9), broken: []string{ToldOnce}},
		"a tenure is not told": {
			history: newRecorder().acquires("a", 5, 1000).acquires("b", 9, 5000).tells(6000, 9).writes("a@1", 5, 1100).writes("b@5", 9, 5100),
			broken:  []string{ToldOnce},
		},
		"a tenure is not told, since the Lease was deleted first": {
			history: newRecorder().acquires("a", 5, 1000).with(func(h *History) { h.Leases = append(h.Leases, deleted(2000)) }).
				acquires("b", 9, 5000).tells(6000, 9).writes("a@1", 5, 1100).writes("b@5", 9, 5100),
		},
		"a tenure is not told, since the Lease was deleted first, which its watch showed late": {
			history: newRecorder().acquires("a", 5, 1000).acquires("b", 9, 5000).tells(6000, 9).writes("a@1", 5, 1100).writes("b@5", 9, 5100).
				with(func(h *History) {
					late := deleted(2000)
					late.Seen = 9 * time.Second
					h.Leases = append(h.Leases, late)
				}),
		},
		"a tenure is not told, since the Lease keeps no more than those after it": {history: untold(lease.HistoryLimit)},
		"a tenure is not told, and the Lease kept it with just so many others": {
			history: untold(lease.HistoryLimit - 1), broken: []string{ToldOnce},
		},
		"a tenure is not told, and its Lease's deletion may have been missed": {
			history: newRecorder().acquires("a", 5, 1000).acquires("b", 9, 5000).tells(6000, 9).writes("a@1", 5, 1100).writes("b@5", 9, 5100).
				with(func(h *History) {
					h.Leases = append(h.Leases, LeaseVersion{Name: "job", Revision: 5500, Missing: true})
				}),
		},
		"a tenure is not told, and the Lease was deleted long after": {
			history: newRecorder().acquires("a", 5, 1000).acquires("b", 9, 5000).tells(6000, 9).writes("a@1", 5, 1100).writes("b@5", 9, 5100).
				with(func(h *History) { h.Leases = append(h.Leases, deleted(7000)) }),
			broken: []string{ToldOnce},
		},
		"a tenure without a process is not told": {
			history: newRecorder().acquires("a", 5, 1000).acquires("b", 9, 5000).tells(6000, 9).writes("b@5", 9, 5100),
		},
	} {
		t.Run(name, func(t *testing.T) {
			v := Judge(&c.history.History)
			broken := map[string]bool{}
			for _, b := range v.Broken {
				broken[b.Invariant] = true
				if !slices.Contains(c.broken, b.Invariant) {
					t.Errorf("broken: %s: %s", b.Invariant, b.Text)
				}
			}
			for _, want := range c.broken {
				if !broken[want] {
					t.Errorf("not broken: %s", want)
				}
			}
			if v.Subjects[0].Overlaps != c.overlap {
				t.Errorf("%d overlaps, want %d", v.Subjects[0].Overlaps, c.overlap)
			}
		})
	}
}

// TestMeasures checks the counts.
func TestMeasures(t *testing.T) {
	v := Judge(&takeover().arrives("a@1", 5, 1400, 5150, false).writes("a@1", 5, 5160).starved(5160, 500).History).Subjects[0]
	want := SubjectVerdict{
		Subject: v.Subject, Processes: 2, Tenures: 2, Takeovers: 1, Gaps: []time.Duration{3800 * ms},
		Overlaps: 1, Starved: 1, Acted: 60 * ms, StaleOffered: 2, StaleUnfenced: 2,
	}
	if got := v; !slices.Equal(got.Gaps, want.Gaps) || got.Processes != want.Processes || got.Tenures != want.Tenures || got.Takeovers != want.Takeovers ||
		got.Overlaps != want.Overlaps || got.Starved != want.Starved || got.Acted != want.Acted ||
		got.StaleOffered != want.StaleOffered || got.StaleFenced != want.StaleFenced || got.StaleUnfenced != want.StaleUnfenced {
		t.Errorf("measured %+v\nwant     %+v", got, want)
	}
}

// TestWindows: the judge finds one wrong answer in any of many windows, and none in a correct history.
func TestWindows(t *testing.T) {
	const many = 5 * window
	for _, wrong := range []int{-1, 0, window, many - 1} {
		r := newRecorder()
		for i := range many {
			token := fence.Token(1 + i/100)
			r.arrives("w@"+token.String(), token, i, i, i != wrong)
		}
		j := judgement{History: &r.History, SubjectVerdict: SubjectVerdict{Subject: r.Subjects[0]}}
		j.linearizable()
		switch found := len(j.broken) > 0; {
		case found != (wrong >= 0):
			t.Errorf("with answer %d wrong: %v", wrong, j.broken)
		case found && !strings.Contains(j.broken[0].Text, "no order"):
			t.Errorf("it says %q", j.broken[0].Text)
		}
	}
}

// TestTheMarkIsKeptBetweenWindows: the first write of a window may be stale after those of the one before.
func TestTheMarkIsKeptBetweenWindows(t *testing.T) {
	r := newRecorder()
	for i := range window {
		r.arrives("b@1", 9, i, i, true)
	}
	r.arrives("a@1", 5, window, window, true)
	j := judgement{History: &r.History, SubjectVerdict: SubjectVerdict{Subject: r.Subjects[0]}}
	if j.linearizable(); len(j.broken) == 0 {
		t.Error("a stale write that was stored fits into a window of its own")
	}
}

// TestWindowsAreCutWhereNothingIsUnderWay: a long write belongs to the same window as everything that happens during it.
func TestWindowsAreCutWhereNothingIsUnderWay(t *testing.T) {
	all := []Operation{{Call: 0, Return: 3 * window * ms}}
	for i := range 3*window - 1 {
		all = append(all, Operation{Call: time.Duration(i+1) * ms, Return: time.Duration(i+1)*ms + 1})
	}
	all = append(all, Operation{Call: 4 * window * ms, Return: 4 * window * ms})
	if parts := windows(all); len(parts) != 2 || len(parts[0]) != 3*window {
		t.Errorf("%d windows", len(parts))
	}
}

// TestByTime: the bound counts only takeovers that had to wait for the end of the lease.
func TestByTime(t *testing.T) {
	control := func(h *History) { h.Subjects[0].Control = true }
	for name, c := range map[string]struct {
		history *recorder
		want    int
	}{
		"the lease expired":                   {takeover().ended(5, lease.ReasonLeaseExpired), 1},
		"the Lease was released":              {takeover().ended(5, lease.ReasonPodTerminating), 0},
		"the process exited":                  {takeover().ended(5, lease.ReasonProcessExited), 0},
		"the holder was known to be dead":     {takeover().ended(5, lease.ReasonHolderTerminated), 0},
		"nobody knows":                        {takeover(), 0},
		"another tenure expired":              {takeover().ended(4, lease.ReasonLeaseExpired), 0},
		"the machine withheld a CPU":          {takeover().ended(5, lease.ReasonLeaseExpired).writes("a@1", 5, 5150).starved(5150, 500), 0},
		"another job's lease expired":         {takeover().ended(5, lease.ReasonLeaseExpired).with(func(h *History) { h.Leases[1].Name = "other" }), 0},
		"the control is measured by no lease": {takeover().with(control), 0},
	} {
		if got := Judge(&c.history.History).Subjects[0].ByTime; got != c.want {
			t.Errorf("%s: %d takeovers by time, want %d", name, got, c.want)
		}
	}
}

func TestLateness(t *testing.T) {
	l := Lateness{{At: 100 * ms, Max: 1 * ms}, {At: 200 * ms, Max: 49 * ms}, {At: 300 * ms, Max: 1 * ms}, {At: 400 * ms, Max: 39 * ms}}
	for _, c := range []struct{ from, to, want time.Duration }{
		{100 * ms, 200 * ms, 49 * ms},
		{150 * ms, 160 * ms, 49 * ms}, // one wait may lie on both sides of a moment
		{210 * ms, 290 * ms, 1 * ms},
		{200 * ms, 400 * ms, 39 * ms},
		{0, time.Second, 49 * ms}, // they do not add up
		{500 * ms, time.Second, 0},
	} {
		if got := l.within(c.from, c.to); got != c.want {
			t.Errorf("between %v and %v a CPU was withheld for %v, want %v", c.from, c.to, got, c.want)
		}
	}
}
