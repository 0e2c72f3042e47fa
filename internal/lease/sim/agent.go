package sim

import (
	"fmt"
	"time"

	"github.com/singletonjob/operator/internal/lease"
	"github.com/singletonjob/operator/internal/lease/mistake"
)

// slot holds one candidate: it has one agent at a time, in a pod on a machine.
type slot struct {
	w     *world
	index int
	agent *agent
	pods  int
}

func newSlot(w *world, index int) *slot {
	s := &slot{w: w, index: index}
	s.replacePod()
	return s
}

// replacePod replaces the slot's pod with a new pod on another machine.
func (s *slot) replacePod() {
	s.pods++
	clk := clock{offset: lease.Instant(s.w.rng.Int64N(int64(1000 * time.Hour)))}
	switch s.w.rng.IntN(4) {
	case 0:
		clk.ppm = -maxPPM
	case 1:
		clk.ppm = maxPPM
	default:
		clk.ppm = s.w.rng.Int64N(2*maxPPM+1) - maxPPM
	}
	number := uint64(1000*(s.index+1) + s.pods)
	s.run(&machine{
		w:      s.w,
		clock:  clk,
		timers: newTimers(s.w.p.seed, number, clk, s.w.p.slew),
		link:   &link{w: s.w},
		pod:    fmt.Sprintf("p%d", s.index),
		uid:    fmt.Sprintf("u%d.%d", s.index, s.pods),
		agents: new(int),
		wall:   s.w.firstWall(),
	})
}

// run starts an agent process on a machine.
func (s *slot) run(m *machine) {
	*m.agents++
	c := s.w.p.configs[s.index%len(s.w.p.configs)]
	c.Identity = lease.Identity{Pod: m.pod, PodUID: m.uid, Nonce: fmt.Sprintf("n%d", *m.agents)}
	c.Node = c.Identity.PodUID
	c.Jitter = time.Duration(s.index) * time.Millisecond
	c.EndProvesDeath = s.w.p.endProvesDeath
	c.Runs = s.w.p.runs.policyOf()
	if s.w.p.profile == Mixed && s.w.chance(0.05) {
		c.Duration = s.w.p.longest() // lease settings of another version of the job
	}
	a := &agent{w: s.w, slot: s, machine: m, config: c, id: c.Identity.String(), alive: true}
	a.wakeUp = a.wake
	m.link.name = a.id
	s.agent = a
	s.w.agents = append(s.w.agents, a)
	if s.w.byID[a.id] != nil {
		panic("two agents are called " + a.id)
	}
	s.w.byID[a.id] = a
	if s.w.trace != nil {
		s.w.note(a.id, "agent starts (clock %+d ppm, timers by up to %d more)", m.clock.ppm, m.timers.slew)
	}
	s.w.after(0, a.look)
	s.w.after(s.w.between(0, 20*time.Millisecond), a.watch)
}

// machine is the machine on which a pod runs.
type machine struct {
	w        *world
	clock    clock
	timers   *timers
	link     *link
	pod, uid string
	// agents counts the agents of the pod. The sandboxes of one pod share it: no two agents of a pod have the same nonce.
	agents *int
	// wall is how far the wall clock is ahead, in microseconds. stands, unless it is 0, is what the clock shows all the time.
	wall, stands int64
	// execHangs is the time until which no program starts, execFails the probability that a start fails.
	execHangs time.Duration
	execFails float64
	// throttled bounds how late the processes of the pod get a CPU.
	throttled time.Duration
}

// now returns the clock reading of the machine's agent.
func (m *machine) now() lease.Instant {
	if m.w.o.Broken == mistake.SlewedClock {
		return m.timers.at(m.w.now)
	}
	return m.clock.at(m.w.now)
}

// when returns the true time at which now is i.
func (m *machine) when(i lease.Instant) time.Duration {
	if m.w.o.Broken == mistake.SlewedClock {
		return m.timers.when(m.w.now, i)
	}
	return m.clock.when(i)
}

// fires returns when a kernel timer fires that is set now for d.
func (m *machine) fires(d time.Duration) time.Duration {
	return m.timers.fires(m.w.now, max(d, leastSleep))
}

// leastSleep is the shortest sleep of a process.
const leastSleep = 50 * time.Microsecond

// timerLate is how late the kernel's timers kill, schedulingLate how late a process gets a CPU.
func (m *machine) timerLate() time.Duration {
	if m.w.rng.IntN(200) == 0 {
		return m.w.between(0, time.Second)
	}
	return 0
}

func (m *machine) schedulingLate() time.Duration { return m.w.between(0, m.throttled) }

// agent is one agent process: its state machine and its surroundings.
type agent struct {
	w       *world
	slot    *slot
	machine *machine
	config  lease.Config
	id      string
	state   lease.State
	alive   bool
	// stopped counts the reasons why the process gets no CPU. While there are any, events collect in inbox, and todo holds the
	// actions that it was about to carry out.
	stopped int
	inbox   []lease.Event
	todo    []lease.Action

	tree *tree
	conn *conn
	// wakeAt is when the timer set for wakeFor fires; 0 if none is set. wakeUp is the method value of wake.
	wakeAt  time.Duration
	wakeFor lease.Instant
	wakeUp  func()
	wakes   spin
	// revision is the revision of its last stored write, or a newer one at which it learned that the Lease is still its own. Its last read
	// is asked, and sent counts its requests.
	revision int64
	asked    lease.SendRead
	sent     requests
	// late is the reported lateness of its processes.
	late time.Duration
	// misled means that several servers have contradicted what the agent knew of the Lease.
	misled bool
}

// deliver hands an event to the agent.
func (a *agent) deliver(e lease.Event) {
	switch {
	case !a.alive:
	case a.stopped > 0:
		a.inbox = append(a.inbox, e)
	default:
		a.handle(e)
	}
}

// wake is called when the last timer that was set fires.
func (a *agent) wake() {
	if a.w.now == a.wakeAt {
		a.look()
	}
}

// look lets the agent read the clock when it wakes, and sleep again if it is too early.
func (a *agent) look() {
	a.wakeAt = 0
	switch {
	case !a.alive || a.stopped > 0:
	case a.state.Wake != 0 && a.machine.now() < a.state.Wake:
		a.sleep()
	default:
		a.wakes.count(a)
		a.handle(lease.Ticked{})
	}
}

// sleep sets a kernel timer for the rest of the wait, unless one is already set for that instant.
func (a *agent) sleep() {
	if a.state.Wake == lease.Never {
		a.wakeAt = 0
		return
	}
	if a.wakeAt > a.w.now && a.wakeFor == a.state.Wake {
		return
	}
	a.wakeFor = a.state.Wake
	a.wakeAt = a.machine.fires(a.state.Wake.Sub(a.machine.now())) + a.machine.schedulingLate()
	a.w.at(a.wakeAt, a.wakeUp)
}

// handle calls the state machine and carries out its decisions.
func (a *agent) handle(e lease.Event) {
	w := a.w
	w.check.result.Steps++
	w.check.tells(a, e)
	a.state, a.todo = w.step(a.config, a.state, lease.Time{Boot: a.machine.now(), Wall: a.wallTime()}, e)
	if w.chance(w.hiccups) {
		a.stop()
		w.after(w.between(0, 2*a.config.Duration), a.goOn)
		return
	}
	a.carryOut()
}

// carryOut carries out the pending actions. A pause can fall between any two of them.
func (a *agent) carryOut() {
	for len(a.todo) > 0 && a.alive && a.stopped == 0 {
		next := a.todo[0]
		a.todo = a.todo[1:]
		a.do(next)
		if len(a.todo) > 0 && a.w.chance(a.w.hiccups) {
			a.stop()
			a.w.after(a.w.between(0, 2*a.config.Duration), a.goOn)
		}
	}
	if a.alive && a.stopped == 0 {
		a.sleep()
	}
}

// stop takes the CPU away, goOn gives it back.
func (a *agent) stop() {
	a.stopped++
	if a.w.trace != nil {
		a.w.note(a.id, "paused")
	}
}

func (a *agent) goOn() {
	if a.stopped == 0 {
		return
	}
	a.stopped--
	if a.stopped > 0 || !a.alive {
		return
	}
	if a.w.trace != nil {
		a.w.note(a.id, "goes on")
	}
	a.tree.unbind()
	a.carryOut()
	// The timer and the events that arrived in between are ready at once. Either can be handled first.
	if a.w.chance(0.5) {
		a.look()
	}
	for len(a.inbox) > 0 && a.stopped == 0 && a.alive {
		next := a.inbox[0]
		a.inbox = a.inbox[1:]
		a.handle(next)
	}
	if a.alive && a.stopped == 0 {
		a.look()
	}
}

func (a *agent) wallTime() int64 {
	if at := a.machine.stands; at != 0 {
		return at
	}
	return a.w.p.runs.microseconds() + int64(a.w.now/time.Microsecond) + a.machine.wall
}

func (a *agent) do(action lease.Action) {
	w := a.w
	if w.trace != nil {
		w.noteAction(a, action)
	}
	w.check.asks(a, action)
	switch action := action.(type) {
	case lease.SendWrite:
		r, nonce := action.Attempt.Record, action.Attempt.Nonce
		a.machine.link.call(
			func() reply { return w.api.put(a.id, r) },
			func(got reply) {
				a.deliver(lease.WriteDone{Nonce: nonce, Outcome: got.outcome, Record: got.record})
			})
	case lease.SendRead:
		a.asked = action
		a.read(action, reply{absent: true}, witnesses)
	case lease.RestartWatch:
		a.conn.breaks()
	case lease.SeekDeath:
		w.after(w.between(0, 5*time.Millisecond), func() {
			a.deliver(lease.DeathSought{Holder: action.Holder, Dead: w.dead(action.Holder)})
		})
	case lease.StartChild:
		a.tree = newTree(a, action)
	case lease.ExtendLeash:
		a.tree.extend(action.Deadline)
	case lease.SignalChild:
		a.tree.signal()
	case lease.KillTree:
		a.tree.killed()
	case lease.Exit:
		w.check.exits(a)
		a.dies()
		a.slot.restart(a)
	}
}

// witnesses is the number of further servers that an agent asks before it believes what contradicts the known state.
const witnesses = 2

// read asks for the Lease, and asks further servers as long as the answers contradict what the agent knows. The newest answer so far is
// newest, and further is the number of servers that it still asks.
func (a *agent) read(ask lease.SendRead, newest reply, further int) {
	w, l := a.w, a.machine.link
	l.call(
		func() reply { return w.api.get(l).ours() },
		func(got reply) {
			if got.contradicts(ask.Floor) && newest.older(got) {
				newest = got
			}
			switch {
			case !got.contradicts(ask.Floor):
				newest = got
			case w.o.Broken == mistake.OneAnswerBelieved:
			case further > 0:
				l.idle = nil
				a.read(ask, newest, further-1)
				return
			default:
				a.misled = true
			}
			a.deliver(lease.ReadDone{ID: ask.ID, Found: newest.record, Absent: newest.absent, Date: newest.date})
		})
}

// contradicts reports whether an answer is true only if the Lease was deleted since that revision, or data was restored.
func (r reply) contradicts(floor int64) bool {
	return floor > 0 && !r.failed && (r.absent || r.record.Revision < floor)
}

// older reports whether an answer shows an older state than another.
func (r reply) older(than reply) bool {
	return r.absent || than.record != nil && r.record.Revision < than.record.Revision
}

// dead reports whether the lock of an agent is free: neither the agent nor its leash lives. If an agent is not PID 1, processes
// may have left its leash.
func (w *world) dead(holder string) bool {
	a := w.byID[holder]
	return a != nil && !a.alive && !(w.p.endProvesDeath && a.tree != nil && a.tree.alive)
}

// dies ends the process and everything that depends on it.
func (a *agent) dies() {
	if !a.alive {
		return
	}
	a.alive = false
	a.todo, a.inbox = nil, nil
	a.conn.forget()
	if a.w.trace != nil {
		a.w.note(a.id, "agent dead")
	}
	if a.tree != nil {
		a.tree.kill()
	}
}

// restart lets the kubelet restart the container, or replaces a pod that was terminated with another.
func (s *slot) restart(dead *agent) {
	w := s.w
	if dead.state.Terminating || dead.state.Done && w.p.runs != nil { // a pod that has succeeded is not restarted
		w.after(w.between(100*time.Millisecond, 3*time.Second), func() {
			if s.agent == dead {
				s.replacePod()
			}
		})
		return
	}
	pause := w.between(100*time.Millisecond, 3*time.Second)
	var again func()
	again = func() {
		switch {
		case s.agent != dead:
		case w.p.endProvesDeath && dead.tree != nil && dead.tree.alive:
			w.after(10*time.Millisecond, again)
		default:
			s.run(dead.machine)
		}
	}
	w.after(pause, again)
}
