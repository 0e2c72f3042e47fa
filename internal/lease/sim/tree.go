package sim

import (
	"time"

	"github.com/singletonjob/operator/internal/lease"
	"github.com/singletonjob/operator/internal/lease/mistake"
)

// tree is the processes of one tenure, with the kernel's leash around them.
type tree struct {
	w     *world
	agent *agent
	token int64
	// wanted is when its agent asked for it, began and ended are when processes lived; alive is between them.
	wanted, began, ended time.Duration
	alive                bool
	// frozen processes live and do nothing, not even die; thawed is when they last went on.
	frozen   bool
	thawed   time.Duration
	mainOver bool
	crashed  bool
	// deadline is the leash's, by the agent's clock, told the one that it was told last, and armed counts the settings of
	// its timer: only the last one fires. never says that there is to be none as soon as the program runs.
	deadline, told lease.Instant
	armed          int
	never          bool
	// counted is the lateness that deadline takes into account.
	counted time.Duration
	// hears is when the leash gets what was sent to it last.
	hears time.Duration
	// reported is when the agent hears of the main process's end.
	reported time.Duration
	// asked is when the kernel was asked, or its timer was set, to kill them, and dies when they die of it; 0: not yet.
	asked, dies time.Duration
	gone        bool
	// ordered says that its agent has killed it.
	ordered bool
	doomed  bool
	// starting is what waits for a start that blocks its caller, as a mutant has it.
	starting bool
	waiting  []func()
	// run is what is run, signalled whether it was asked to end, completed whether it ended with 0 before that, and heard whether its agent
	// got to know of it at once.
	run                         lease.Run
	signalled, completed, heard bool
}

// newTree starts the processes a moment after it was asked to, or when what exec waits for is there.
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

// start is exec. It runs nothing where the tree was killed before, or the program can't be started.
func (t *tree) start() {
	a := t.agent
	t.starting = false
	if !a.alive || t.dies != 0 || a.machine.now() >= t.deadline || t.w.chance(a.machine.execFails) {
		t.crashed = true
		t.report()
		return
	}
	t.alive, t.began = true, t.w.now
	t.w.check.started(t)
	if t.w.o.Broken == mistake.StartBlocks {
		t.arm()
	}
	for _, do := range t.waiting {
		do()
	}
	t.unbind()
	t.w.after(0, t.work)
	t.completes()
}

// arm sets the kernel's timer, which kills without anybody's help. It runs on a clock that may be fast or slow by a
// tenth, so it is set for 7/8 of what is left; before that the leash looks at the unslewed clock and sets it anew.
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

// nearDeadline is how little may be left for the timer to be set for all of it: what a slewed clock errs by then is
// nothing beside what a kill takes.
const nearDeadline = 2 * time.Millisecond

// extend is the agent's part, as package supervise has it: a deadline that has passed is final, one that is earlier changes
// nothing, and none at all is there only when the program runs.
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
		t.hears = max(t.hears, t.w.now+late) // a pipe keeps the order
		t.w.at(t.hears, func() { t.extended(deadline, counted) })
		return
	}
	t.extended(deadline, counted)
}

// unbind takes the deadline away that was to hold until the program runs, if its agent gets to know that it does.
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

// blocked puts off what a start that blocks keeps from its caller.
func (t *tree) blocked(do func()) bool {
	if t.starting && t.w.o.Broken == mistake.StartBlocks {
		t.waiting = append(t.waiting, do)
		return true
	}
	return false
}

// margin is what the documents promise: half a second below 5 s, else a fifteenth and at least one second.
func margin(d time.Duration) time.Duration {
	if d < 5*time.Second {
		return 500 * time.Millisecond
	}
	return max(time.Second, d/15)
}

// paidFor is the rule by which the checker judges: how long after its kill was due a tree may live before another may
// start. It is the margin, less what two crystals may differ by over the leaseDuration.
func paidFor(d time.Duration) time.Duration {
	return margin(d) - d*2*maxPPM/million - 6*time.Millisecond
}

// ask is when a kill is due. The kernel's timer may be late.
func (t *tree) ask() {
	if t.asked == 0 {
		t.asked = max(1, t.w.now)
	}
}

// kill is SIGKILL to all of them. How long dying takes is the world's doing: mostly
// little, often as much as is paid for, and now and then far more.
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

// killed is the agent's own kill.
func (t *tree) killed() {
	if !t.blocked(t.killed) {
		t.kill()
	}
}

// longestKill bounds what is simulated.
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
	t.write() // the last request may be on the wire for long
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

// thaw lets frozen processes go on; those that were killed meanwhile act for one more instant.
func (t *tree) thaw() {
	if t == nil || !t.frozen {
		return
	}
	t.frozen, t.thawed = false, t.w.now
	t.write()
	if t.asked == 0 { // its leash slept as well
		t.arm()
	} else if t.dies > 0 {
		t.dies = max(t.dies, t.w.now+time.Millisecond)
		t.w.at(t.dies, t.die)
	}
}

// report tells the agent that all is over, once everything is reaped.
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
			t.agent.deliver(lease.ChildExited{Code: code, Crashed: t.crashed})
		}
		t.agent.deliver(lease.TreeGone{})
	})
}

// exit is the end of the main process by itself. Its descendants, if it has any, live until they are killed.
func (t *tree) exit(crashed bool) {
	if t == nil || !t.alive || t.mainOver || t.frozen {
		return
	}
	t.mainOver, t.crashed, t.completed = true, crashed, !crashed && !t.signalled
	code := 0
	if crashed {
		code = 1
	}
	if t.w.trace != nil {
		t.w.note(t.agent.id, "process of token %d exits with %d", t.token, code)
	}
	t.reported = t.w.now + t.w.between(0, 5*time.Millisecond)
	t.w.at(t.reported, func() {
		t.heard = t.completed && !t.signalled && t.agent.alive && t.agent.stopped == 0 && !t.ordered
		t.agent.deliver(lease.ChildExited{Code: code, Crashed: crashed})
	})
	if t.w.chance(0.5) {
		t.dies = t.w.now
		t.die()
	}
}

// signal is SIGTERM: some obey soon, some late, some never, in a stubborn world none.
func (t *tree) signal() {
	t.signalled = true
	if t.w.stubborn || t.w.chance(0.2) {
		return
	}
	t.w.after(t.w.between(0, t.agent.config.GracePeriod*3/2), func() { t.exit(t.w.chance(0.5)) })
}

// work writes to the sink now and then.
func (t *tree) work() {
	if t.alive {
		t.write()
		t.w.after(t.w.between(2*time.Second, 5*time.Second), t.work)
	}
}

// write sends one write to the sink, which now and then takes its time to get there.
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
