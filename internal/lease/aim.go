package lease

import (
	"slices"
	"time"

	"github.com/singletonjob/operator/internal/schedule"
)

// aim is what the next write of a candidate does: Acquire, or Close. runs are those of the record after it.
type aim struct {
	kind Kind
	runs Runs
}

// aimed says what a candidate is to write as soon as it may. ok is false where there is nothing to do now. Of a job whose process is
// to run for ever there always is; else it is asked only when the Lease is free, so that nobody looks at a schedule in vain.
func (m *machine) aimed() (a aim, ok bool) {
	runs := m.s.Observed.Record.Runs
	if m.c.Runs == nil {
		return aim{Acquire, runs}, true
	}
	_, is := runs.asked(m.c.Runs.UID)
	switch {
	case runs.Bad != "" || !m.due(m.c.FreeAt(m.s)):
		return aim{}, false
	case runs.Now.Open():
		a, ok = m.goOn(runs)
	default:
		a, ok = m.startNext(runs)
	}
	if !is && a.kind == Acquire { // or it would be followed again when its run is forgotten; a Close takes nothing on
		a.runs.Asked = Request{}
	}
	return a, ok
}

// startNext is for when no run is under way.
func (m *machine) startNext(runs Runs) (aim, bool) {
	asked, is := runs.asked(m.c.Runs.UID)
	switch {
	case is && runs.Facts.Suspended == 0: // else it waits, as all that is to come
		runs.Answered, runs.Asked = asked.Name, Request{}
		runs.Facts = runs.Facts.StartedByHand(m.stamp())
		return m.start(runs, Run{ID: m.c.Runs.UID + "/" + asked.Name, Tick: asked.Tick}), true
	case runs.Schedule != nil:
		return m.startDue(runs)
	case runs.Now.ID == "":
		return m.start(runs, Run{ID: m.c.Runs.UID}), true
	default:
		return aim{}, false
	}
}

// startDue is for the tick that is due, if one is.
func (m *machine) startDue(runs Runs) (aim, bool) {
	d := m.scheduled(runs)
	if d.Verdict != schedule.Start {
		return aim{}, false
	}
	runs.Facts = runs.facts().Started(d)
	runs.Missed += d.Tally.Missed()
	runs.Skipped += d.Tally.Skipped()
	return m.start(runs, Run{ID: m.c.Runs.UID + "/" + d.Tick.String(), Tick: d.Tick}), true
}

func (m *machine) start(runs Runs, run Run) aim {
	return aim{Acquire, runs.started(run, *m.c.Runs, m.t, m.clocks().Later())}
}

// goOn is for a run whose attempt has failed, or whose holder has vanished. One of which an attempt is left, but which is to be replaced,
// ends in the acquire of the next one.
func (m *machine) goOn(runs Runs) (aim, bool) {
	now := runs.Now
	if m.replaced(runs) {
		return m.startNext(runs.ended(RunReplaced, ReasonReplaced, m.stamp(), m.t.Wall/1000))
	}
	until := m.runUntil(now)
	spent := until != 0 && m.due(until)
	switch again := m.notBegun(now); {
	case spent:
		return aim{Close, runs.ended(RunGivenUp, ReasonDeadlineExceeded, m.stamp(), m.t.Wall/1000)}, true
	case again:
	case now.Attempt > m.c.Runs.BackoffLimit:
		return aim{Close, runs.ended(RunGivenUp, m.lastReason(), m.stamp(), m.t.Wall/1000)}, true
	case !m.due(m.s.Observed.At.Add(now.backoff())):
		return aim{}, false
	default:
		runs.Now.Attempt++
	}
	if now.State == RunRunning { // it never said how it ended
		runs.Now.Code, runs.Now.Reason = 0, m.lastReason()
	}
	runs.Now.State = RunRunning
	return aim{Acquire, runs}, true
}

// notBegun reports whether it is known that nothing has run by the present attempt: it is made again, and counts once. Its own acquire,
// stored after it was given up, names an agent that never began; nobody else can know that. It is above all tokens that it began with:
// one that is not is out of a backup, and of what was before its last tenure an agent knows nothing.
func (m *machine) notBegun(now Run) bool {
	if now.State == RunFailed {
		return now.Reason == ReasonNotBegun
	}
	last, r := m.s.Past, m.s.Observed.Record
	return r.Holder == m.c.Identity.String() && (last == nil || last.Tenure.Token < r.Token)
}

// lastReason is why the last tenure ended.
func (m *machine) lastReason() Reason {
	if r := m.s.Observed.Record; r.Free() {
		return r.Release.Reason
	}
	return m.presumedReason()
}

// scheduled is what the schedule asks for by now. Where the API server's time was told long ago, it is asked for before anything is
// started by it, since clocks are set; and now and then while it can't be used.
func (m *machine) scheduled(runs Runs) schedule.Decision {
	clocks := m.clocks()
	d := runs.Schedule.Decide(runs.facts(), clocks)
	if d.Wait > 0 {
		wait := d.Wait
		if d.Next != 0 { // the later clock may be the right one
			wait -= clocks.Later().Sub(clocks.Now())
		}
		if wait <= 0 {
			wait = d.Wait
			m.askTime()
		}
		if wait > time.Second { // timers run on a clock that may be slow by a tenth
			wait = wait / 8 * 7
		}
		m.due(m.t.Boot.Add(wait))
	}
	switch d.Verdict {
	case schedule.Start, schedule.Replace:
		if m.outdated() {
			d.Verdict = schedule.NoServerClock
			m.askTime()
		}
	case schedule.NoServerClock, schedule.ClocksDisagree:
		m.askTime()
	default:
	}
	return d
}

// replaced reports whether the run under way is to end because the next one is due.
func (m *machine) replaced(runs Runs) bool {
	if runs.Schedule == nil || !runs.Schedule.Replaces() {
		return false
	}
	_, asked := runs.asked(m.c.Runs.UID)
	return asked && runs.Facts.Suspended == 0 || m.scheduled(runs).Verdict == schedule.Replace
}

// overrun says why the run that this agent holds the Lease for must end though its process runs, empty if it need not.
func (m *machine) overrun() Reason {
	runs := m.s.Observed.Record.Runs
	switch {
	case m.c.Runs == nil:
	case m.s.Tenure.RunUntil != 0 && m.due(m.s.Tenure.RunUntil):
		return ReasonDeadlineExceeded
	case runs.Bad == "" && m.replaced(runs):
		return ReasonReplaced
	}
	return ""
}

// runUntil is when a run must end, by the clock that decides everything; 0 for never. No attempt lasts longer than a run may, whatever
// the clocks are.
func (m *machine) runUntil(run Run) Instant {
	if m.c.Runs == nil || run.Until == 0 {
		return 0
	}
	left := run.Until.Time().Sub(m.clocks().Now())
	if d := m.c.Runs.ActiveDeadline; d > 0 {
		left = min(left, d)
	}
	return m.t.Boot.Add(max(0, left))
}

// Ending is how an attempt ended, kept from when the last of its processes is gone until it is stored: what is written must not
// depend on when that succeeds.
type Ending struct {
	Known bool
	// At is the time by both clocks, Wall that of this machine in milliseconds.
	At   schedule.Stamp
	Wall int64
}

// concluded are the runs with the end of the present attempt, for the release.
func (m *machine) concluded(runs Runs) Runs {
	if m.c.Runs == nil || runs.Bad != "" || !runs.Now.Open() {
		return runs
	}
	tree, stop := m.s.Tree, m.s.Stop
	if !tree.Exited {
		runs.Now.State, runs.Now.Reason = RunFailed, ReasonNotBegun
		return runs
	}
	runs.Now.Code = tree.Code
	state := m.verdict(runs.Now)
	if state == RunFailed {
		runs.Now.State, runs.Now.Reason, runs.Now.Ended = RunFailed, stop.Reason, stop.Ending.Wall
		return runs
	}
	why := stop.Reason
	if state == RunComplete {
		why = ReasonProcessExited // though the tenure may have ended for another reason a moment later
	}
	return runs.ended(state, why, stop.Ending.At, stop.Ending.Wall)
}

// verdict is what the end of an attempt makes of its run. One that was asked to end and ends with 0 has not completed: many programs
// end so in the middle of their work. To repeat it is the mistake that the fence at the sink is for; to lose it is not.
func (m *machine) verdict(run Run) RunState {
	tree, stop := m.s.Tree, m.s.Stop
	own := !stop.Signalled && tree.Reason == "" // nothing is signalled that has ended
	failed := own && stop.Reason == ReasonProcessExited
	switch {
	case own && tree.Code == 0 && !tree.Crashed:
		return RunComplete
	case stop.Reason == ReasonReplaced:
		return RunReplaced
	case stop.Reason == ReasonDeadlineExceeded,
		failed && slices.Contains(m.c.Runs.FailCodes, int32(tree.Code)),
		run.Attempt > m.c.Runs.BackoffLimit:
		return RunGivenUp
	default:
		return RunFailed
	}
}

// left reports whether this agent has nothing more to do: its pod has run the last run to its end, and nothing is asked for. With a
// schedule that is known only when the Lease is free for this agent too, and the time was told if it had to be.
func (m *machine) left() bool {
	runs, me := m.s.Observed.Record.Runs, m.c.Identity
	if m.c.Runs == nil || !m.c.Runs.Leaves || runs.Bad != "" || runs.Now.ID == "" || runs.Now.Open() {
		return false
	}
	if runs.Now.Pod != me.Pod || runs.Now.PodUID != me.PodUID {
		return false
	}
	return runs.Schedule == nil || m.due(m.c.FreeAt(m.s)) && !m.s.MustRead
}

// ServerClock is the API server's time, as it was last told.
type ServerClock struct {
	// Date is in seconds since 1970, 0 for none; At is when it came.
	Date int64
	At   Instant
	// Asked is when it was last asked for.
	Asked Instant
}

// timeHolds is how long the API server's time is good for once it was told, and after how long it is asked for again where no answer has
// told it.
const timeHolds = time.Minute

// clocks are the two by which ticks come due.
func (m *machine) clocks() schedule.Clocks {
	c := schedule.Clocks{Wall: time.UnixMicro(m.t.Wall)}
	if s := m.s.Server; s.Date != 0 {
		c.Server = time.Unix(s.Date, 0).Add(m.t.Boot.Sub(s.At))
	}
	return c
}

// stamp is the time that both clocks have reached, 0 where there is only one: then no tick is settled by it.
func (m *machine) stamp() schedule.Stamp {
	c := m.clocks()
	if c.Server.IsZero() {
		return 0
	}
	s, _ := schedule.StampOf(c.Now())
	return s
}

func (m *machine) outdated() bool {
	return m.s.Server.Date == 0 || m.t.Boot >= m.s.Server.At.Add(timeHolds)
}

// askTime has the Lease read, for the time that comes with the answer.
func (m *machine) askTime() {
	s := &m.s.Server
	vain := s.Asked > s.At // the last answer told none
	if !m.outdated() || vain && !m.due(s.Asked.Add(timeHolds)) || m.s.MustRead {
		return
	}
	s.Asked, m.s.MustRead = m.t.Boot, true
	if m.s.Read == nil {
		m.s.Since = m.s.LastRead + 1
	}
}
