package sim

import (
	"time"

	"github.com/singletonjob/operator/internal/lease"
)

// tree is the processes of one tenure, with the kernel's leash around them.
type tree struct {
	w     *world
	agent *agent
	token int64
	// began and ended are when processes lived; alive is between them.
	began, ended time.Duration
	alive        bool
	// frozen processes live and do nothing, not even die.
	frozen, froze bool
	mainOver      bool
	crashed       bool
	deadline      lease.Instant
	// reported is when the agent hears of the main process's end.
	reported time.Duration
	// dies is when the processes die of a signal that was sent; 0: none was.
	dies   time.Duration
	gone   bool
	doomed bool
}

// newTree starts the processes a moment after it was asked to.
func newTree(a *agent, s lease.StartChild) *tree {
	w := a.w
	t := &tree{w: w, agent: a, token: s.Token, deadline: s.Deadline}
	w.after(w.between(time.Millisecond, 20*time.Millisecond), t.start)
	return t
}

// start runs the program, unless it was killed before or its deadline has passed: then the leash does not let it.
func (t *tree) start() {
	a := t.agent
	if !a.alive || t.dies != 0 || a.machine.at(t.w.now) >= t.deadline {
		t.crashed = true
		t.report()
		return
	}
	t.alive, t.began = true, t.w.now
	t.w.check.started(t)
	t.leash()
	t.w.after(0, t.work)
}

// leash is the kernel's timer.
func (t *tree) leash() {
	if t.deadline == lease.Never {
		return
	}
	t.w.at(t.agent.machine.when(t.deadline), func() {
		switch {
		case !t.alive:
		case t.agent.machine.at(t.w.now) < t.deadline: // it was moved
			t.leash()
		default:
			t.kill()
		}
	})
}

func (t *tree) extend(deadline lease.Instant) {
	if t.agent.machine.at(t.w.now) < t.deadline && deadline > t.deadline {
		t.deadline = deadline
	}
}

// budget is what a kill may take: what the margin leaves after clocks that run apart as far as they may.
func (t *tree) budget() time.Duration {
	c := t.agent.config
	m := t.agent.machine
	return fastest.lasts(c.Duration) - m.lasts(c.Duration-lease.Margin(c.Duration)) - time.Millisecond
}

// kill is SIGKILL to all of them.
func (t *tree) kill() {
	if t.gone {
		return
	}
	takes := t.w.between(0, 10*time.Millisecond)
	if t.w.chance(0.3) {
		takes = t.w.between(0, t.budget())
	}
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
		t.frozen, t.froze = true, true
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
	t.frozen = false
	t.write()
	if t.dies != 0 {
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
	t.mainOver, t.crashed = true, crashed
	code := 0
	if crashed {
		code = 1
	}
	if t.w.trace != nil {
		t.w.note(t.agent.id, "process of token %d exits with %d", t.token, code)
	}
	t.reported = t.w.now + t.w.between(0, 5*time.Millisecond)
	t.w.at(t.reported, func() { t.agent.deliver(lease.ChildExited{Code: code, Crashed: crashed}) })
	if t.w.chance(0.5) {
		t.dies = t.w.now
		t.die()
	}
}

// signal is SIGTERM: some obey soon, some late, some never.
func (t *tree) signal() {
	if t.w.chance(0.2) {
		return
	}
	t.w.after(t.w.between(0, t.w.p.config.GracePeriod*3/2), func() { t.exit(t.w.chance(0.5)) })
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
		t.w.check.write(t.token)
		return
	}
	token := t.token
	t.w.after(t.w.between(0, 2*t.w.p.config.Duration), func() { t.w.check.write(token) })
}
