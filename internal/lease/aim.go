package lease

import (
	"slices"
	"time"

	"github.com/singletonjob/operator/internal/schedule"
)

// aim is the next write of a candidate: Acquire, or Close. runs are the runs in the record after it.
type aim struct {
	kind Kind
	runs Runs
}

// aimed returns what a candidate must write as soon as it may. ok is false if there is nothing to write now. For a job whose
// process runs indefinitely ok is always true. For other jobs the schedule is evaluated only when the Lease is free, so that no
// candidate evaluates it in vain.
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
	if !is && a.kind == Acquire { // the answered request must not start a run again when its run is no longer in the history; a Close takes over nothing
		a.runs.Asked = Request{}
	}
	return a, ok
}

// startNext returns the write that starts the next run when none is in progress.
func (m *machine) startNext(runs Runs) (aim, bool) {
	asked, is := runs.asked(m.c.Runs.UID)
	switch {
	case is && runs.Facts.Suspended == 0: // a request waits while the job is suspended, like the schedule
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

// startDue returns the write that starts the run of the due tick, if there is one.
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

// goOn returns the write for a run whose attempt has failed, or whose holder has vanished. A run that must be replaced ends in
// the acquire of the next run, even if it has an attempt left.
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
	case now.spent(m.c.Runs.BackoffLimit):
		return aim{Close, runs.ended(RunGivenUp, m.lastReason(), m.stamp(), m.t.Wall/1000)}, true
	case !m.due(m.s.Observed.At.Add(now.backoff())):
		return aim{}, false
	default:
		runs.Now.Attempt++
	}
	if now.State == RunRunning { // the holder never stored how it ended
		runs.Now.Code, runs.Now.Reason = 0, m.lastReason()
	}
	runs.Now.State = RunRunning
	return aim{Acquire, runs}, true
}

// notBegun reports whether it is known that the present attempt ran nothing. Such an attempt is repeated and counts once. One
// case is this agent's own acquire, stored after the agent gave it up: the Lease names an agent that never began, and only that
// agent knows so. Its token is above every token of a tenure that this agent began. If it is not, the record comes from a backup,
// and an agent remembers nothing from before its last tenure.
func (m *machine) notBegun(now Run) bool {
	if now.State == RunFailed {
		return now.Reason == ReasonNotBegun
	}
	last, r := m.s.Past, m.s.Observed.Record
	return r.Holder == m.c.Identity.String() && (last == nil || last.Tenure.Token < r.Token)
}

// lastReason returns why the last tenure ended.
func (m *machine) lastReason() Reason {
	if r := m.s.Observed.Record; r.Free() {
		return r.Release.Reason
	}
	return m.presumedReason()
}

// scheduled returns what the schedule asks for now. Clocks can be set, so if the API server's time is old, the agent asks for it
// again before it starts anything. It also asks from time to time while that time cannot be used.
func (m *machine) scheduled(runs Runs) schedule.Decision {
	clocks := m.clocks()
	d := runs.Schedule.Decide(runs.facts(), clocks)
	if d.Wait > 0 {
		wait := d.Wait
		if d.Next != 0 { // the later clock may be the correct one
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

// replaced reports whether the present run must end because the next one is due.
func (m *machine) replaced(runs Runs) bool {
	if runs.Schedule == nil || !runs.Schedule.Replaces() {
		return false
	}
	_, asked := runs.asked(m.c.Runs.UID)
	return asked && runs.Facts.Suspended == 0 || m.scheduled(runs).Verdict == schedule.Replace
}

// overrun returns why this holder's run must end though its process runs; empty if it need not.
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

// runUntil returns when a run must end, by the boot clock; 0 for never. ActiveDeadline limits the duration of every attempt,
// whatever the wall clocks show.
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

// Ending records when an attempt ended. It is kept from the end of the attempt's last process until it is stored, because the
// stored value must not depend on when the write succeeds.
type Ending struct {
	Known bool
	// At is the time by both clocks. Wall is the time by this machine's clock in milliseconds.
	At   schedule.Stamp
	Wall int64
}

// concluded returns the runs with the end of the present attempt, for the release.
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
	if runs.Now.State == RunRunning && m.processFailed() && slices.Contains(m.c.Runs.IgnoreCodes, int32(tree.Code)) {
		runs.Now.Ignored++
	}
	state := m.verdict(runs.Now)
	if state == RunFailed {
		runs.Now.State, runs.Now.Reason, runs.Now.Ended = RunFailed, stop.Reason, stop.Ending.Wall
		return runs
	}
	why := stop.Reason
	if state == RunComplete {
		why = ReasonProcessExited // even if the tenure ended for another reason a moment later
	}
	return runs.ended(state, why, stop.Ending.At, stop.Ending.Wall)
}

// verdict returns the state of the run after the attempt's end. An attempt that was asked to end and exits with 0 has not
// completed the run, because many programs exit with 0 in the middle of their work. A repeated run is a fault from which the
// fence at the sink protects; nothing protects from a lost one.
func (m *machine) verdict(run Run) RunState {
	tree, stop := m.s.Tree, m.s.Stop
	switch {
	case m.ownEnd() && tree.Code == 0 && !tree.Crashed:
		return RunComplete
	case stop.Reason == ReasonReplaced:
		return RunReplaced
	case stop.Reason == ReasonDeadlineExceeded,
		m.processFailed() && slices.Contains(m.c.Runs.FailCodes, int32(tree.Code)),
		run.spent(m.c.Runs.BackoffLimit):
		return RunGivenUp
	default:
		return RunFailed
	}
}

// ownEnd reports whether the process ended without being asked to. A process that has ended is not signalled.
func (m *machine) ownEnd() bool { return !m.s.Stop.Signalled && m.s.Tree.Reason == "" }

// processFailed reports whether the attempt ended because its process did, so that the policies for exit codes apply.
func (m *machine) processFailed() bool { return m.ownEnd() && m.s.Stop.Reason == ReasonProcessExited }

// left reports whether this agent has nothing more to do: its pod has executed the last attempt of the last run, and no run is
// requested. With a schedule, this is known only when the Lease is free for this agent too, and any read for the API server's
// time has been answered.
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

// ServerClock is the API server's time, as last received.
type ServerClock struct {
	// Date is in seconds since 1970, 0 for none. At is when it arrived.
	Date int64
	At   Instant
	// Asked is when the agent last asked for it.
	Asked Instant
}

// timeHolds is how long a received API server time stays usable, and after what time the agent asks again if an answer contained
// none.
const timeHolds = time.Minute

// clocks returns the two clocks that decide when ticks are due.
func (m *machine) clocks() schedule.Clocks {
	c := schedule.Clocks{Wall: time.UnixMicro(m.t.Wall)}
	if s := m.s.Server; s.Date != 0 {
		c.Server = time.Unix(s.Date, 0).Add(m.t.Boot.Sub(s.At))
	}
	return c
}

// stamp returns the time that both clocks have reached. It is 0 if there is only one clock; then it settles no tick.
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

// askTime requests a read of the Lease, for the time that comes with the answer.
func (m *machine) askTime() {
	s := &m.s.Server
	vain := s.Asked > s.At // the last answer contained no time
	if !m.outdated() || vain && !m.due(s.Asked.Add(timeHolds)) || m.s.MustRead {
		return
	}
	s.Asked, m.s.MustRead = m.t.Boot, true
	if m.s.Read == nil {
		m.s.Since = m.s.LastRead + 1
	}
}
