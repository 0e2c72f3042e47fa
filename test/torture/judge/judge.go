package judge

import (
	"cmp"
	"fmt"
	"slices"
	"time"

	"github.com/singletonjob/operator/fence"
	"github.com/singletonjob/operator/fence/fencetest"
	"github.com/singletonjob/operator/internal/lease"
	"github.com/singletonjob/operator/test/observe"
)

// The invariants.
const (
	TokensGrow    = "tokens strictly grow"
	OneProcess    = "one process at a time"
	FenceHolds    = "the fenced sink accepts no token below one it accepted"
	Linearizable  = "the fenced sink is linearizable"
	HolderReturns = "a holder comes back when all faults have ended"
	ToldOnce      = "the history tells each tenure once"
	GuardRefuses  = "the guard refuses every foreign write"
	GuardPasses   = "the guard refuses no write of an agent or the operator"
)

// Invariants are all of them.
func Invariants() []string {
	return []string{TokensGrow, OneProcess, FenceHolds, Linearizable, HolderReturns, ToldOnce, GuardRefuses, GuardPasses}
}

// Broken is an invariant that did not hold.
type Broken struct {
	Invariant, Subject, Text string
	// At is when it showed; zero if that is no moment.
	At time.Duration
}

// Verdict is the result of a run.
type Verdict struct {
	Subjects []SubjectVerdict // as in the History
	Broken   []Broken
}

// SubjectVerdict is the result of one subject.
type SubjectVerdict struct {
	Subject
	// Processes that have written, and Tenures, which are their tokens; the control has none.
	Processes, Tenures int
	// Takeovers are the pairs of processes that followed on each other. ByTime counts those of them in which the Lease had to expire,
	// because no component released it or proved the holder dead. A takeover without a clear cause is not among them.
	Takeovers, ByTime int
	// Ends counts the tenures for which the Lease records why they ended.
	Ends map[lease.Reason]int
	// Gaps are the times without a stored write between the processes of a takeover, in ascending order.
	Gaps []time.Duration
	// Overlaps counts processes that wrote after a younger one had begun, and Acted is for how long in sum. Allowed counts those of them
	// that may outlive their lease. Starved counts those without a verdict, because the machine had no CPU for them. All others broke an
	// invariant.
	Overlaps, Allowed, Starved int
	Acted                      time.Duration
	// StaleOffered counts writes of a process after a younger one had begun; StaleFenced and StaleUnfenced are those that each
	// sink stored.
	StaleOffered, StaleFenced, StaleUnfenced int
}

// withheld is the share of a time, as its inverse. If a machine withheld a CPU for that share at once, it proves nothing about what
// should have happened in that time. A kill takes up to four steps that wait for a CPU.
const withheld = 4

// Judge judges a history. Its claim about processes is this: the kernel kills a process a margin before the next one may begin. A process
// acts when it reads the clock and sends that reading to the sink. If it acts after the next process has acted, that is an overlap. An
// overlap breaks the invariant, with two exceptions. The first is a process that may outlive its lease. The second is a machine on which an
// idle thread once waited too long for a CPU, because the kill may have waited, too. Too long is at least a quarter of the time from when
// the process should have been dead until it acted. No other invariant depends on time.
func Judge(h *History) Verdict {
	var v Verdict
	for _, s := range h.Subjects {
		j := judgement{History: h, SubjectVerdict: SubjectVerdict{Subject: s}}
		j.processes()
		j.stale()
		if !s.Control {
			j.tokens()
			j.fence()
			j.linearizable()
			j.returned()
			j.told()
		}
		v.Subjects = append(v.Subjects, j.SubjectVerdict)
		v.Broken = append(v.Broken, j.broken...)
	}
	v.Broken = append(v.Broken, guard(h)...)
	slices.SortStableFunc(v.Broken, func(a, b Broken) int { return cmp.Compare(a.At, b.At) })
	return v
}

// guard judges the decisions of the guard.
func guard(h *History) (broken []Broken) {
	for _, f := range h.Forgeries {
		if f.Stored {
			broken = append(broken, Broken{Invariant: GuardRefuses, Subject: f.Subject, At: f.At, Text: "a foreign writer " + f.What + ", and the API server stored it"})
		}
	}
	for _, r := range h.Refusals {
		broken = append(broken, Broken{Invariant: GuardPasses, At: r.At, Text: r.Text})
	}
	return broken
}

// judgement is of one subject.
type judgement struct {
	*History
	SubjectVerdict
	users  map[fence.Token]string // who wrote with a token
	broken []Broken
}

func (j *judgement) breaks(invariant string, at time.Duration, format string, args ...any) {
	j.broken = append(j.broken, Broken{Invariant: invariant, Subject: j.Name, At: at, Text: fmt.Sprintf(format, args...)})
}

func (j *judgement) resource() fence.Resource { return fence.Resource(j.Name) }

// own are the attempts on the subject's resource that are judged.
func (j *judgement) own(all []fencetest.Attempt) []fencetest.Attempt {
	var own []fencetest.Attempt
	for _, a := range all {
		if a.Resource == j.resource() && (j.Judged == 0 || a.Sent <= j.Judged) {
			own = append(own, a)
		}
	}
	return own
}

// processes judges which process acted when, by the times that the processes read from the clock.
func (j *judgement) processes() {
	lives := observe.Lives(j.own(j.Fenced), j.resource(), true)
	if !j.Control { // a process that got no CPU before the next one began still counts as the older one
		slices.SortStableFunc(lives, func(a, b observe.Life) int { return cmp.Compare(slices.Min(a.Tokens), slices.Min(b.Tokens)) })
	}
	j.Processes = len(lives)
	ends := j.ends()
	for i := range lives {
		if i == 0 {
			continue
		}
		older, younger := latest(lives[:i]), lives[i]
		j.Takeovers++
		if older.LastStored > 0 && younger.FirstStored > 0 {
			j.Gaps = append(j.Gaps, max(0, younger.FirstStored-older.LastStored))
		}
		tells := true
		if older.Last > younger.First {
			tells = j.overlap(older, younger)
		}
		if tells && ends[int64(slices.Max(lives[i-1].Tokens))] == lease.ReasonLeaseExpired {
			j.ByTime++
		}
	}
	slices.Sort(j.Gaps)
}

// ends are the reasons for the ends of tenures, by token. The Lease of a control has none.
func (j *judgement) ends() map[int64]lease.Reason {
	ends := map[int64]lease.Reason{}
	for _, version := range j.Leases {
		if version.Name == j.Name && version.Ended.Reason != "" {
			ends[version.Ended.Token] = version.Ended.Reason
		}
	}
	j.Ends = map[lease.Reason]int{}
	for _, reason := range ends {
		j.Ends[reason]++
	}
	return ends
}

// latest is the one of the older processes that acted last.
func latest(lives []observe.Life) observe.Life {
	return slices.MaxFunc(lives, func(a, b observe.Life) int { return cmp.Compare(a.Last, b.Last) })
}

// overlap judges one. It returns false if the cause is unknown.
func (j *judgement) overlap(older, younger observe.Life) bool {
	j.Overlaps++
	j.Acted += older.Last - younger.First
	due := younger.First - j.Margin
	late := j.late(due, older.Last)
	switch {
	case j.Control:
	case j.Outlives:
		j.Allowed++
	case withheld*late >= older.Last-due:
		j.Starved++
		return false
	default:
		j.breaks(OneProcess, younger.First, "%s (token %v) acted %v after %s (token %v) had begun to, and was due dead %v before that; "+
			"the longest wait for a CPU in this time was %v", older.Writer, older.Tokens, older.Last-younger.First, younger.Writer, younger.Tokens, j.Margin, late)
	}
	return true
}

// late is the longest wait for any CPU.
func (j *judgement) late(from, to time.Duration) time.Duration {
	var most time.Duration
	for _, cpu := range j.Late {
		most = max(most, cpu.within(from, to))
	}
	return most
}

// stale counts the late writes and their outcomes. A process is older than another if its token is lower. Without tokens, the one that
// began earlier is older.
func (j *judgement) stale() {
	offered, fenced := j.staleAt(j.Fenced)
	_, unfenced := j.staleAt(j.Unfenced)
	j.StaleOffered, j.StaleFenced, j.StaleUnfenced = offered, fenced, unfenced
}

func (j *judgement) staleAt(all []fencetest.Attempt) (offered, stored int) {
	if j.Control {
		for _, life := range observe.Lives(j.own(all), j.resource(), true) {
			offered += life.Stale
			stored += life.StaleAccepted
		}
		return offered, stored
	}
	var highest fence.Token
	for _, a := range j.own(all) {
		highest = max(highest, a.Token)
		if a.Token < highest {
			offered++
			if a.Accepted {
				stored++
			}
		}
	}
	return offered, stored
}

// tokens judges the Lease's own versions, in the order of etcd, and which process used which token.
func (j *judgement) tokens() {
	users := map[fence.Token]string{}
	j.users = users
	tokens := map[string]fence.Token{}
	for _, a := range j.own(j.Fenced) {
		if other, used := users[a.Token]; used && other != a.Writer {
			j.breaks(TokensGrow, a.At, "token %d is used by %s and by %s", a.Token, other, a.Writer)
		}
		if other, has := tokens[a.Writer]; has && other != a.Token {
			j.breaks(TokensGrow, a.At, "%s uses the tokens %d and %d", a.Writer, other, a.Token)
		}
		users[a.Token], tokens[a.Writer] = a.Writer, a.Token
	}
	j.Tenures = len(users)
	var highest int64
	var by string
	for _, acquired := range j.acquires() {
		if acquired.Token <= highest {
			j.breaks(TokensGrow, acquired.Seen, "%s acquired the Lease with token %d after %s had with %d", acquired.Holder, acquired.Token, by, highest)
		}
		if acquired.Token > highest {
			highest, by = acquired.Token, acquired.Holder
		}
	}
}

// acquires are the versions with which a tenure began. An acquire without an answer is confirmed by another write of the same token with
// another time. An edit of the token leaves the time. Both continue the same tenure.
func (j *judgement) acquires() []LeaseVersion {
	type tenure struct {
		holder   string
		acquired time.Time
		token    int64
	}
	seen := map[tenure]bool{}
	var all []LeaseVersion
	for _, version := range j.Leases {
		_, agent := lease.ParseIdentity(version.Holder)
		if version.Name != j.Name || version.Deleted || version.Foreign || version.Missing || !agent {
			continue
		}
		byTime, byToken := tenure{holder: version.Holder, acquired: version.Acquired}, tenure{holder: version.Holder, token: version.Token}
		if !seen[byTime] && !seen[byToken] {
			all = append(all, version)
		}
		seen[byTime], seen[byToken] = true, true
	}
	return all
}

// fence judges the record of the sink, in the order in which it decided.
func (j *judgement) fence() {
	var highest fence.Token
	for _, a := range j.Fenced {
		if a.Resource != j.resource() || !a.Accepted {
			continue
		}
		if a.Token < highest {
			j.breaks(FenceHolds, a.At, "token %d of %s was accepted after token %d", a.Token, a.Writer, highest)
		}
		highest = max(highest, a.Token)
	}
}

func (j *judgement) returned() {
	if !j.Returned[j.Name] {
		j.breaks(HolderReturns, j.Judged, "nobody has acted since all faults ended")
	}
}

// told judges what the job's status reported. Only the Lease records a tenure. So the status may lack a tenure only if its Lease was deleted
// before any operator read it, or if the Lease had dropped it after many more tenures.
func (j *judgement) told() {
	firstTold := map[int64]int64{} // revisions, by token
	for _, status := range j.Told {
		if status.Name != j.Name {
			continue
		}
		for i, token := range status.Tokens {
			if i > 0 && status.Tokens[i-1] <= token {
				j.breaks(ToldOnce, status.Seen, "the history tells token %d after token %d: %v", status.Tokens[i-1], token, status.Tokens)
			}
			if _, known := firstTold[token]; !known {
				firstTold[token] = status.Revision
			}
		}
	}
	for _, acquired := range j.acquires() {
		if _, known := firstTold[acquired.Token]; known || j.users[fence.Token(acquired.Token)] == "" {
			continue
		}
		until, later := nextTold(firstTold, acquired.Token)
		if later && !j.forgotten(acquired.Revision, until) && j.tenures(acquired.Revision, until) < lease.HistoryLimit {
			j.breaks(ToldOnce, acquired.Seen, "the history never told token %d of %s", acquired.Token, acquired.Holder)
		}
	}
}

// nextTold is the revision of the status that first reported a tenure after that of a token.
func nextTold(firstTold map[int64]int64, token int64) (revision int64, ok bool) {
	for other, at := range firstTold {
		if other > token && (!ok || at < revision) {
			revision, ok = at, true
		}
	}
	return revision, ok
}

// forgotten reports whether the Lease was or may have been deleted, or edited by hand, between two revisions.
func (j *judgement) forgotten(from, to int64) bool {
	return slices.ContainsFunc(j.Leases, func(v LeaseVersion) bool {
		return v.Name == j.Name && (v.Deleted || v.Foreign || v.Missing) && v.Revision >= from && v.Revision <= to
	})
}

// tenures is the number of tenures that began between two revisions.
func (j *judgement) tenures(after, until int64) int {
	count := 0
	for _, acquired := range j.acquires() {
		if acquired.Revision > after && acquired.Revision <= until {
			count++
		}
	}
	return count
}
