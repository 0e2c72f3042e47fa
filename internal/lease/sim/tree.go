package sim

import (
	"time"

	"github.com/singletonjob/operator/internal/lease"
	"github.com/singletonjob/operator/internal/lease/mistake"
)

// tree holds the processes of one tenure, with the kernel's leash around them.
type tree struct {
	w     *world
	agent *agent
	token int64
	// wanted is when its agent asked for it. Processes live from began to ended; alive is true in between.
	wanted, began, ended time.Duration
	alive                bool
	// frozen processes live and do nothing; they do not even die. thawed is when they last resumed.
	frozen   bool
	thawed   time.Duration
	mainOver bool
	crashed  bool
	// deadline is the leash's deadline by the agent's clock, told the one last sent to it. The settings of its timer are counted in armed;
	// only the last one fires. If never is set, the deadline is removed as soon as the program runs.
	deadline, told lease.Instant
	armed          int
	never          bool
	// counted is the lateness that deadline takes into account.
	counted time.Duration
	// hears is when the leash receives the last message sent to it.
	hears time.Duration
	// reported is when the agent learns of the main process's end.
	reported time.Duration
	// asked is when their kill was due, by the agent or by the kernel's timer. dies is when they die of it; 0: not yet.
	asked, dies time.Duration
	gone        bool
	// ordered means that its agent has killed it.
	ordered bool
	doomed  bool
	// preparing means that the program is preActivate, and not the main process.
	preparing bool
	// starting holds what waits for a start that blocks its caller, as a mutant has it.
	starting bool
	waiting  []func()
	// run is the executed run. signalled means that it was asked to end, completed that it ended with 0 before that, and heard
	// that its agent learned of that at once.
	run                         lease.Run
	signalled, completed, heard bool
	// ignored means that the attempt ended by itself, with an exit code that the policy ignores.
	ignored bool
}

// newTree starts the processes a moment after the request, or when exec stops hanging.
func newTree(a *agent, s lease.StartChild) *tree {
	w := a.w
	t := &tree{w: w, agent: a, token: s.Token, run: s.Run, deadline: s.Deadline, told: s.Deadline, counted: a.late, starting: true, wanted: w.now}
	if w.o.Broken != mistake.StartBlocks {
		t.arm()
	}
	takes := w.between(time.Millisecond, 20*time.Millisecond)
	if until := a.machine.execHangs; until > w.now {
		takes = w.between(0, until-w.now)
	}
	w.after(takes, t.start)
	return t
}

// start is exec. It runs nothing if the tree was killed before, or if the program cannot be started.
func (t *tree) start() {
	a := t.agent
	t.starting = false
	if !a.alive || t.dies != 0 || a.machine.now() >= t.deadline || t.w.chance(a.machine.execFails) {
		t.crashed = true
		t.report()
		return
	}
	t.alive, t.began, t.preparing = true, t.w.now, t.w.p.profile == Hooks
	t.w.check.started(t)
	if t.w.o.Broken == mistake.StartBlocks {
		t.arm()
	}
	for _, do := range t.waiting {
		do()
	}
	t.unbind()
	t.w.after(0, t.work)
	if t.preparing {
		t.prepare()
		return
	}
	t.completes()
}

// prepare lets preActivate take its time. In times of trouble it can take longer than any tenure, and can fail.
func (t *tree) prepare() {
	w, d := t.w, t.agent.config.Duration
	takes, fails := w.between(0, d/4), false
	if w.troubled {
		fails = w.chance(0.2)
		if w.chance(0.2) {
			takes = w.between(0, 3*d)
		}
	}
	w.after(takes, func() { t.prepared(fails) })
}

// prepared is called when preActivate ends by itself. If that went well and the tenure is still held, the main process follows, as in
// package agent.
func (t *tree) prepared(failed bool) {
	a := t.agent
	switch {
	case !t.alive || !t.preparing || t.mainOver || t.dies != 0 || !a.alive:
	case t.frozen || a.stopped > 0:
		t.w.after(10*time.Millisecond, func() { t.prepared(failed) })
	case failed && t.w.troubled:
		t.exit(true)
	case a.state.Phase != lease.Holding:
		t.endsPrepared()
	default:
		t.preparing = false
		if t.w.trace != nil {
			t.w.note(a.id, "preActivate of token %d has ended, the process runs", t.token)
		}
		a.deliver(lease.Ticked{})
	}
}

// endsPrepared ends a tenure whose preActivate has ended in order, and whose process does not begin.
func (t *tree) endsPrepared() {
	t.mainOver, t.reported = true, t.w.now
	t.agent.deliver(lease.ChildExited{Reason: lease.ReasonNotBegun})
	t.dies = t.w.now
	t.die()
}

// end is the event for the end of the program.
func (t *tree) end(code int, crashed bool) lease.ChildExited {
	e := lease.ChildExited{Code: code, Crashed: crashed}
	if t.preparing {
		e.Reason = lease.ReasonPreActivateFailed
	}
	return e
}

// arm sets the kernel's timer, which kills without help from any process. The timer's clock can be fast or slow by a tenth, so
// the timer is set for 7/8 of the remaining time. Before it is due, the leash reads the unslewed clock and sets it again.
func (t *tree) arm() {
	if t.gone {
		return
	}
	t.armed++
	if t.deadline == lease.Never {
		return
	}
	m, w := t.agent.machine, t.w
	left := t.deadline.Sub(m.now())
	armed, kill, look := t.armed, left, forever
	if left > nearDeadline && w.o.Broken != mistake.LeashArmedOnce {
		kill, look = left/8*7, left/4*3
	}
	due := m.fires(kill)
	w.at(due, func() {
		if t.armed == armed && !t.gone {
			t.ask()
			w.after(m.timerLate(), t.kill)
		}
	})
	if look == forever {
		return
	}
	w.at(m.fires(look)+m.schedulingLate(), func() {
		if t.armed == armed && !t.frozen && !t.gone && t.asked == 0 {
			t.arm()
		}
	})
}

// nearDeadline is the remaining time below which the timer is set for all of it. The error of a slewed clock is then small compared with
// the time that a kill takes.
const nearDeadline = 2 * time.Millisecond

// extend is the agent's part, as in package supervise. A deadline that has passed is final, and an earlier deadline changes
// nothing. The deadline is removed only when the program runs.
func (t *tree) extend(deadline lease.Instant) {
	if t.blocked(func() { t.extend(deadline) }) || t.frozen {
		return
	}
	switch {
	case t.agent.machine.now() >= t.told, deadline <= t.told:
		return
	case t.starting && deadline == lease.Never:
		t.never = true
		return
	}
	t.told = deadline
	counted := t.agent.late
	if late := t.agent.machine.schedulingLate(); late > 0 {
		t.hears = max(t.hears, t.w.now+late) // a pipe preserves the order
		t.w.at(t.hears, func() { t.extended(deadline, counted) })
		return
	}
	t.extended(deadline, counted)
}

// unbind removes the deadline of the start, if the agent learns that the program runs.
func (t *tree) unbind() {
	if t != nil && t.never && t.alive && t.agent.stopped == 0 {
		t.never = false
		t.extend(lease.Never)
	}
}

// extended is the leash's own part.
func (t *tree) extended(deadline lease.Instant, counted time.Duration) {
	if t.agent.machine.now() < t.deadline && t.asked == 0 {
		t.deadline, t.counted = deadline, counted
		t.arm()
	}
}

// blocked delays what a blocking start keeps from its caller.
func (t *tree) blocked(do func()) bool {
	if t.starting && t.w.o.Broken == mistake.StartBlocks {
		t.waiting = append(t.waiting, do)
		return true
	}
	return false
}

// margin is the documented margin: half a second below 5 s, else a fifteenth and at least one second.
func margin(d time.Duration) time.Duration {
	if d < 5*time.Second {
		return 500 * time.Millisecond
	}
	return max(time.Second, d/15)
}

// paidFor is the checker's rule for how long after its kill was due a tree can live before another may start. It is the margin,
// less the possible difference of two crystals over the leaseDuration.
func paidFor(d time.Duration) time.Duration {
	return margin(d) - d*2*maxPPM/million - 6*time.Millisecond
}

// ask is called when a kill is due. The kernel's timer can be late.
func (t *tree) ask() {
	if t.asked == 0 {
		t.asked = max(1, t.w.now)
	}
}

// kill sends SIGKILL to all of them. The world determines how long dying takes: mostly a short time, often as long as is paid
// for, and occasionally far longer.
func (t *tree) kill() {
	if t.gone {
		return
	}
	t.ask()
	takes := t.w.killTakes(t.agent.config.Duration) + t.agent.machine.schedulingLate()
	at := t.w.now + takes
	if t.dies != 0 && t.dies <= at {
		return
	}
	t.dies = at
	t.crashed = t.crashed || !t.mainOver
	if t.alive {
		t.w.at(at, t.die)
	}
}

// killed is the kill by the agent itself.
func (t *tree) killed() {
	if !t.blocked(t.killed) {
		t.kill()
	}
}

// longestKill bounds the simulated time of a kill.
const longestKill = 8 * time.Second

func (w *world) killTakes(d time.Duration) time.Duration {
	switch n := w.rng.IntN(20); {
	case n < 13:
		return w.between(0, 10*time.Millisecond)
	case n < 19:
		return w.between(0, paidFor(d))
	default: // one in a hundred takes longer than 5 s
		return min(longestKill, time.Duration(float64(time.Second)/(0.01+w.rng.Float64())))
	}
}

func (t *tree) die() {
	if !t.alive || t.frozen || t.w.now < t.dies {
		return
	}
	t.write() // the last request can be in flight for long
	t.alive, t.ended = false, t.w.now
	t.w.check.died(t)
	t.report()
}

func (t *tree) freeze() {
	if t != nil && t.alive {
		t.frozen = true
		if t.w.trace != nil {
			t.w.note(t.agent.id, "process of token %d frozen", t.token)
		}
	}
}

// thaw resumes frozen processes. Those that were killed while frozen act for one more instant.
func (t *tree) thaw() {
	if t == nil || !t.frozen {
		return
	}
	t.frozen, t.thawed = false, t.w.now
	t.write()
	if t.asked == 0 { // its leash was frozen as well
		t.arm()
	} else if t.dies > 0 {
		t.dies = max(t.dies, t.w.now+time.Millisecond)
		t.w.at(t.dies, t.die)
	}
}

// report reports to the agent that all processes are dead, once everything is reaped.
func (t *tree) report() {
	t.gone = true
	reaped := t.w.between(0, 5*time.Millisecond)
	if t.w.chance(0.1) {
		reaped = t.w.between(0, 3*time.Second)
	}
	t.w.at(max(t.w.now+reaped, t.reported), func() {
		if !t.mainOver {
			t.mainOver = true
			code := 0
			if t.crashed {
				code = 137
			}
			t.agent.deliver(t.end(code, t.crashed))
		}
		t.agent.deliver(lease.TreeGone{})
	})
}

// exit ends the main process by itself. Its descendants, if any, live until they are killed.
func (t *tree) exit(crashed bool) {
	if t == nil || !t.alive || t.mainOver || t.frozen {
		return
	}
	if t.preparing && !crashed { // asked to end, or by itself
		t.prepared(false)
		return
	}
	t.mainOver, t.crashed, t.completed = true, crashed, !crashed && !t.signalled
	code := t.w.exitCode(crashed)
	t.ignored = t.ignores(code)
	if t.w.trace != nil {
		t.w.note(t.agent.id, "process of token %d exits with %d", t.token, code)
	}
	t.reported = t.w.now + t.w.between(0, 5*time.Millisecond)
	t.w.at(t.reported, func() {
		t.heard = t.completed && !t.signalled && t.agent.alive && t.agent.stopped == 0 && !t.ordered
		t.agent.deliver(t.end(code, crashed))
	})
	if t.w.chance(0.5) {
		t.dies = t.w.now
		t.die()
	}
}

// signal sends SIGTERM. Some processes obey soon, some late, some never; in a stubborn world none obeys.
func (t *tree) signal() {
	t.signalled = true
	if t.w.stubborn || t.w.chance(0.2) {
		return
	}
	t.w.after(t.w.between(0, t.agent.config.GracePeriod*3/2), func() { t.exit(t.w.chance(0.5)) })
}

// work writes to the sink from time to time.
func (t *tree) work() {
	if t.alive {
		t.write()
		t.w.after(t.w.between(2*time.Second, 5*time.Second), t.work)
	}
}

// write sends one write to the sink. Occasionally the write takes long to arrive.
func (t *tree) write() {
	if t.frozen {
		return
	}
	if !t.w.chance(0.1) {
		t.w.arrives(t.token)
		return
	}
	token := t.token
	t.w.after(t.w.between(0, 2*t.agent.config.Duration), func() { t.w.arrives(token) })
}
