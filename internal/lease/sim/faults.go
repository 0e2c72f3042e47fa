package sim

import (
	"fmt"
	"math"
	"math/rand/v2"
	"slices"
	"time"

	"github.com/singletonjob/operator/internal/lease"
)

// Fault is one thing that goes wrong, from At to Until.
type Fault struct {
	Kind      string
	At, Until time.Duration
	// Target is the candidate that the fault affects, if it affects one. theHolder stands for the holder of the Lease at that
	// time.
	Target int
	// X and Y, from 0 to 1, are the severity. Their meaning depends on the kind.
	X, Y float64
}

// theHolder as Fault.Target.
const theHolder = -1

func (f Fault) String() string {
	return fmt.Sprintf("%v to %v: %s", f.At.Round(time.Millisecond), f.Until.Round(time.Millisecond), f.what())
}

func (f Fault) what() string {
	target := "the holder"
	if f.Target != theHolder {
		target = fmt.Sprintf("p%d", f.Target)
	}
	return fmt.Sprintf("%s (%s, %.2f, %.2f)", f.Kind, target, f.X, f.Y)
}

// kind is a kind of fault. begin starts it and returns a function that ends it, or nil.
type kind struct {
	name   string
	weight int
	begin  func(*world, Fault) (end func())
}

// once is a fault without an end.
func once(do func(*world, Fault)) func(*world, Fault) func() {
	return func(w *world, f Fault) func() {
		do(w, f)
		return nil
	}
}

// kinds are all kinds of faults, with their relative frequencies.
var kinds = []kind{
	{"cut off", 5, (*world).cutOff},
	{"requests lost", 3, (*world).loseRequests},
	{"answers lost", 3, (*world).loseAnswers},
	{"slow network", 2, (*world).slow},
	{"requests doubled", 2, (*world).double},
	{"stale reads", 1, (*world).lag},
	{"not authorised", 1, (*world).refuse},
	{"watch silent", 2, (*world).silence},
	{"watch breaks", 2, once(func(w *world, f Fault) { w.target(f).conn.breaks() })},
	{"watch late", 2, (*world).delayWatch},
	{"watches refused", 3, (*world).refuseWatches},
	{"API server slow", 3, (*world).slowForAll},
	{"API server", 3, (*world).troubleAPI},
	{"paused", 5, (*world).pause},
	{"hiccups", 2, (*world).hiccup},
	{"frozen", 2, (*world).freeze},
	{"agent killed", 4, once((*world).killAgent)},
	{"pod terminated", 2, once(func(w *world, f Fault) { w.target(f).deliver(lease.Terminated{Signal: 15}) })},
	{"pod deleted by force", 2, (*world).orphan},
	{"process exits", 4, once((*world).exitProcess)},
	{"handover asked for", 3, once((*world).askHandover)},
	{"Lease deleted", 2, once(func(w *world, _ Fault) { w.api.remove() })},
	{"container lost", 2, (*world).loseContainer},
	{"holder cleared by hand", 2, once((*world).clearHolder)},
	{"transitions lowered by hand", 1, once((*world).lowerTransitions)},
	{"token base raised", 1, once((*world).raiseBase)},
	{"wall clock set", 1, once(func(w *world, f Fault) { w.target(f).machine.wall += int64((f.X - 0.5) * 7200 * million) })},
	{"exec hangs", 2, (*world).hangExec},
	{"starts fail", 1, (*world).failStarts},
	{"throttled", 3, (*world).throttle},
	{"operator down", 1, (*world).stopOperator},
	{"elector cut off", 0, (*world).cutElector},
	{"elector paused", 0, (*world).pauseElector},
	{"elector cancelled", 0, once(func(w *world, _ Fault) { w.elector.cancel() })},
	{"restored", 0, (*world).restore},
	{"restored at once", 0, (*world).restoreAtOnce},
	{"edited by hand", 0, (*world).editByHand},
	{"label taken away", 0, (*world).unlabel},
	{"release written by hand", 0, once((*world).forge)},
	{"history edited", 0, (*world).editHistory},
	{"one API server dead", 2, (*world).killServer},
	{"outage", 0, (*world).outage},
	{"one API server lags", 0, (*world).lagServer},
	{"wall clock wrong", 0, (*world).wrongWall},
	{"Date wrong", 0, (*world).wrongDate},
	{"no Date", 0, (*world).noDate},
	{"run asked for", 0, once((*world).askRun)},
	{"suspended", 0, (*world).suspend},
	{"schedule changed", 0, (*world).changeSchedule},
	{"outdated answers", 0, (*world).outdate},
	{"wall clock stands", 0, (*world).standWall},
	{"probe fails", 0, once((*world).failProbe)},
	{"answers lost singly", 0, (*world).loseSingly},
	{"slow network within limits", 0, (*world).slowWithin},
	{"requests doubled within limits", 0, (*world).doubleWithin},
}

func kindOf(name string) kind {
	for _, k := range kinds {
		if k.name == name {
			return k
		}
	}
	panic("no fault of kind " + name)
}

// weights returns the relative frequency of each kind in a profile.
func (p params) weights() map[string]int {
	if p.profile == Replies {
		return map[string]int{
			"answers lost singly": 3, "slow network within limits": 3, "requests doubled within limits": 3,
			"watch silent": 2, "watch breaks": 2, "watch late": 3, "wall clock set": 1, "handover asked for": 2,
		}
	}
	if p.profile == FastRestore {
		return map[string]int{"restored at once": 1, "handover asked for": 2}
	}
	if p.profile == Outdated {
		return map[string]int{
			"cut off": 6, "outdated answers": 8, "wall clock stands": 6, "answers lost": 3, "requests lost": 2, "stale reads": 2,
			"watch breaks": 2, "watch silent": 2, "watches refused": 3, "agent killed": 2, "process exits": 2, "pod terminated": 1,
		}
	}
	weights := map[string]int{}
	for _, k := range kinds {
		weights[k.name] = k.weight
	}
	if p.profile == Foreign {
		weights["elector cut off"], weights["elector paused"], weights["elector cancelled"] = 8, 5, 5
	}
	if p.profile == Starved {
		weights["throttled"], weights["exec hangs"], weights["starts fail"], weights["cut off"] = 25, 15, 5, 20
	}
	if p.profile == KeepRunning {
		weights["one API server lags"], weights["API server"] = 15, 15
	}
	if p.profile == Edited {
		weights["edited by hand"], weights["label taken away"], weights["cut off"] = 25, 5, 10
		// The Lease's history keeps an edited token from being assigned again; a new Lease has no history.
		weights["Lease deleted"] = 0
	}
	if p.profile == Forged {
		weights["release written by hand"], weights["holder cleared by hand"], weights["cut off"] = 25, 10, 10
	}
	if p.profile == History {
		weights["history edited"], weights["token base raised"], weights["Lease deleted"] = 25, 5, 0
	}
	if p.profile == Restore {
		weights["restored"] = 10
	}
	if p.profile == Hooks {
		weights["probe fails"] = 15
	}
	if p.profile == Runs {
		weights["wall clock wrong"], weights["Date wrong"], weights["no Date"], weights["run asked for"], weights["suspended"] = 8, 6, 2, 8, 6
		weights["wall clock set"], weights["schedule changed"], weights["restored"] = 0, 6, 2
	}
	return weights
}

// plan draws the faults of an episode: calm and trouble alternate.
func plan(p params) []Fault {
	rng := rand.New(rand.NewPCG(p.seed, 3))
	weights := p.weights()
	total := 0
	for _, k := range kinds {
		total += weights[k.name]
	}
	var faults []Fault
	if p.profile == Outages {
		return p.outages(rng)
	}
	for begin := p.calm; begin+p.trouble+p.calm <= p.length; begin += p.trouble + p.calm {
		for range 1 + rng.IntN(10) {
			n := rng.IntN(total)
			for _, k := range kinds {
				if n -= weights[k.name]; n < 0 {
					faults = append(faults, p.fault(rng, k.name, begin))
					break
				}
			}
		}
	}
	return faults
}

// outages draws consecutive outages. None is longer than a tenure must survive, and most are the longest such. Between two of
// them a renewal has the time that it needs.
func (p params) outages(rng *rand.Rand) []Fault {
	var faults []Fault
	limit := p.survivable()
	for begin := p.calm; begin+p.trouble+p.calm <= p.length; begin += p.trouble + p.calm {
		at := begin + time.Duration(rng.Float64()*float64(p.config.RetryPeriod))
		for {
			lasts := time.Duration(rng.Float64() * float64(limit))
			if rng.IntN(2) == 0 {
				lasts = limit - lasts/20
			}
			if at+lasts > begin+p.trouble {
				break
			}
			faults = append(faults, Fault{Kind: "outage", Target: theHolder, At: at, Until: at + lasts, X: rng.Float64()})
			at += lasts + 3*p.config.RetryPeriod + 3*p.request() + time.Duration(rng.Float64()*float64(p.config.RetryPeriod))
		}
	}
	return faults
}

// request returns how long one request of a holder can take before the next is sent beside it. That is a second, or less if a second is
// much of the time that renewals have.
func (p params) request() time.Duration {
	return min(time.Second, (p.config.RenewDeadline-p.config.RetryPeriod)/3)
}

// survivable returns the longest outage that ends no tenure. The outage can begin just before a renewal is due, and one request
// must succeed before renewDeadline. Each sleep of an agent can take a tenth longer.
func (p params) survivable() time.Duration {
	c := p.config
	return c.RenewDeadline - c.RetryPeriod - p.request() - (c.RetryPeriod+p.request())/10 - 50*time.Millisecond
}

func (p params) fault(rng *rand.Rand, name string, begin time.Duration) Fault {
	f := Fault{Kind: name, Target: rng.IntN(p.candidates), X: rng.Float64(), Y: rng.Float64()}
	if rng.IntN(2) == 0 {
		f.Target = theHolder
	}
	f.At = begin + time.Duration(rng.Float64()*float64(p.trouble-p.outage))
	// Faults about as long as the lease are the most interesting.
	lasts := time.Duration(rng.Float64() * 2.5 * float64(p.config.Duration))
	f.Until = min(f.At+lasts, begin+p.trouble)
	if name == "restored" {
		f.Until = f.At + p.outage
	}
	return f
}

// schedule queues the faults. At the end of each time of trouble it heals and judges everything.
func (w *world) schedule(faults []Fault) {
	for _, f := range faults {
		w.at(f.At, func() { w.begin(f) })
	}
	p := w.p
	w.at(p.bound(), w.check.holderNow)
	round := uint64(0)
	for begin := p.calm; begin+p.trouble+p.calm <= p.length; begin += p.trouble + p.calm {
		round++
		stream := round
		// Each round has its own random source, so that it stays the same when faults of earlier rounds are left out.
		w.at(begin, func() { w.rng = rand.New(rand.NewPCG(p.seed, 3+stream)) })
		w.at(begin+p.trouble, w.heal)
		w.at(begin+p.trouble+p.bound(), w.check.holderNow)
		w.at(begin+p.trouble+p.calm-time.Millisecond, w.check.holderStays)
	}
}

// begin starts a fault and ends it when its time is over.
func (w *world) begin(f Fault) {
	if w.trace != nil {
		w.note("world", "%s", f.what())
	}
	w.troubled = true
	end := kindOf(f.Kind).begin(w, f)
	if end == nil {
		return
	}
	round := w.healed
	w.at(f.Until, func() {
		if w.healed != round {
			return
		}
		if w.trace != nil {
			w.note("world", "over: %s", f.what())
		}
		end()
	})
}

// heal ends every fault.
func (w *world) heal() {
	if w.trace != nil {
		w.note("world", "all faults are over")
	}
	w.healed++
	w.hiccups = 0
	w.troubled = false
	w.suspended, w.api.dateless = false, false
	w.api.setDates()
	for _, o := range w.operators {
		o.down = 0
	}
	w.api.restoring, w.api.noWatches, w.api.slow, w.api.dead, w.api.lags = 0, 0, 0, [servers]bool{}, [servers]bool{}
	w.api.set(up)
	w.mendEdits()
	for _, a := range w.agents {
		a.machine.link.heal()
		a.machine.stands = 0
		if w.p.runs != nil {
			a.machine.wall = 0
		}
		if a.machine.execFails = 0; a.machine.throttled > 0 {
			a.machine.throttled = 0
			a.deliver(lease.Starved{})
		}
		if a.slot.agent != a {
			a.resetNode()
		}
	}
	if w.elector != nil {
		w.elector.heal()
	}
	for _, s := range w.slots {
		a := s.agent
		a.tree.thaw()
		a.stopped = min(a.stopped, 1)
		a.goOn()
		a.conn.recovers()
	}
}

func (w *world) target(f Fault) *agent {
	if f.Target != theHolder {
		return w.slots[f.Target].agent
	}
	if a := w.byID[w.api.lease.Holder]; a != nil {
		return a
	}
	return w.slots[0].agent
}

func (w *world) link(f Fault) *link { return w.target(f).machine.link }

// cutOff cuts both ways, or one.
func (w *world) cutOff(f Fault) func() {
	a := w.target(f)
	l := a.machine.link
	if f.X < 0.7 {
		l.cutUp++
	}
	if f.X < 0.4 || f.X >= 0.7 {
		l.cutDown++
	}
	if c := a.conn; f.Y < 0.4 { // the dead connection is noticed later
		w.after(time.Duration(f.Y*100)*time.Second, func() {
			if l.cutUp+l.cutDown > 0 {
				c.breaks()
			}
		})
	}
	return func() {
		l.cutUp, l.cutDown = 0, 0
		a.conn.recovers()
	}
}

func (w *world) loseRequests(f Fault) func() {
	l := w.link(f)
	l.lossUp = f.X
	return func() { l.lossUp = 0 }
}

func (w *world) loseAnswers(f Fault) func() {
	l := w.link(f)
	l.lossDown = f.X
	return func() { l.lossDown = 0 }
}

// loseSingly never loses two answers in a row.
func (w *world) loseSingly(f Fault) func() {
	w.link(f).maxLost = 1
	return w.loseAnswers(f)
}

// slow delays messages so much that some arrive after their deadline, and some requests after several later ones.
func (w *world) slow(f Fault) func() {
	d := f.X * float64(w.p.patience())
	if f.Y < 0.3 {
		d *= 4
	}
	return w.slowBy(f, d)
}

// slowWithin delays messages, but leaves every request the time that it needs.
func (w *world) slowWithin(f Fault) func() {
	return w.slowBy(f, 0.1*f.X*float64(w.p.patience()))
}

func (w *world) slowBy(f Fault, d float64) func() {
	l := w.link(f)
	l.slow = time.Duration(d)
	return func() { l.slow = 0 }
}

func (w *world) double(f Fault) func() {
	return w.doubleBy(f, f.Y*float64(w.p.config.Duration))
}

func (w *world) doubleWithin(f Fault) func() {
	return w.doubleBy(f, 0.1*f.Y*float64(w.p.patience()))
}

func (w *world) doubleBy(f Fault, late float64) func() {
	l := w.link(f)
	l.twice, l.late = f.X, time.Duration(late)
	return func() { l.twice = 0 }
}

func (w *world) lag(f Fault) func() {
	l := w.link(f)
	l.lag = f.X
	return func() { l.lag = 0 }
}

// outdate answers reads with the state that the last acquire has replaced.
func (w *world) outdate(f Fault) func() {
	l := w.link(f)
	l.outdated = true
	return func() { l.outdated = false }
}

// standWall makes the wall clock show the time of the last acquire, as one does that is set back again and again.
func (w *world) standWall(f Fault) func() {
	a := w.target(f)
	m := a.machine
	switch s := a.state; {
	case s.Tenure.AcquireTime != 0:
		m.stands = s.Tenure.AcquireTime
	case s.Past != nil:
		m.stands = s.Past.Tenure.AcquireTime
	}
	return func() { m.stands = 0 }
}

// failProbe has the process end for a probe or a hook that has failed, some at once.
func (w *world) failProbe(f Fault) {
	a := w.target(f)
	grace := time.Duration(max(0, 1.5*f.Y-0.3) * float64(a.config.GracePeriod))
	if t := a.tree; t != nil && t.alive && !t.preparing && a.alive {
		a.deliver(lease.Unhealthy{Reason: [...]lease.Reason{lease.ReasonLivenessFailed, lease.ReasonPostStartFailed}[int(f.X*2)], Grace: grace})
	}
}

func (w *world) refuse(f Fault) func() {
	l := w.link(f)
	l.refused = true
	return func() { l.refused = false }
}

// silence stalls the watch that is open at this time.
func (w *world) silence(f Fault) func() {
	c := w.target(f).conn
	if c == nil {
		return nil
	}
	c.stalled = true
	return c.recovers
}

// refuseWatches refuses all watches, so that every agent polls.
func (w *world) refuseWatches(Fault) func() {
	w.api.noWatches++
	for _, c := range slices.Clone(w.api.conns) {
		c.breaks()
	}
	return func() { w.api.noWatches-- }
}

// slowForAll overloads the API server.
func (w *world) slowForAll(f Fault) func() {
	w.api.slow = time.Duration(f.X * float64(w.p.patience()))
	return func() { w.api.slow = 0 }
}

func (w *world) delayWatch(f Fault) func() {
	c := w.target(f).conn
	if c == nil {
		return nil
	}
	c.late = time.Duration(f.X * float64(w.p.config.Duration))
	return func() { c.late = 0 }
}

func (w *world) troubleAPI(f Fault) func() {
	w.api.set(mode(1 + int(f.X*5)))
	return func() { w.api.set(up) }
}

// killServer makes one of the API servers silent.
func (w *world) killServer(f Fault) func() {
	n := int(f.X * servers)
	w.api.dead[n] = true
	var silent []*conn
	for i, c := range w.api.conns {
		if i%servers == n {
			c.stalled = true
			silent = append(silent, c)
		}
	}
	return func() {
		w.api.dead[n] = false
		for _, c := range silent {
			c.recovers()
		}
	}
}

// lagServer makes one of the API servers show old states to who reads.
func (w *world) lagServer(f Fault) func() {
	n := int(f.X * servers)
	w.api.lags[n] = true
	return func() { w.api.lags[n] = false }
}

// outage makes the API server unreachable for the holder, or for every client, in any possible way.
func (w *world) outage(f Fault) func() {
	const perLink = 4
	n := int(f.X * (perLink + 5))
	if n >= perLink {
		w.api.set(mode(1 + n - perLink))
		return func() { w.api.set(up) }
	}
	l := w.link(f)
	switch n {
	case 0:
		l.cutUp++
	case 1:
		l.cutDown++
	case 2:
		l.cutUp++
		l.cutDown++
	default:
		l.refused = true
	}
	a := w.target(f)
	return func() {
		l.cutUp, l.cutDown, l.refused = 0, 0, false
		a.conn.recovers()
	}
}

func (w *world) pause(f Fault) func() {
	a := w.target(f)
	a.stop()
	return a.goOn
}

func (w *world) hiccup(f Fault) func() {
	w.hiccups = 0.1 * f.X
	return func() { w.hiccups = 0 }
}

// freeze stops the whole container: agent, leash and process.
func (w *world) freeze(f Fault) func() {
	a := w.target(f)
	t := a.tree
	a.stop()
	t.freeze()
	return func() {
		t.thaw()
		a.goOn()
	}
}

func (w *world) killAgent(f Fault) {
	if a := w.target(f); a.alive {
		a.dies()
		a.slot.restart(a)
	}
}

// orphan deletes the pod by force while its node is cut off. The pod keeps running unseen, its token stays valid for a while, and
// another pod takes its place. In the end the node is reset.
func (w *world) orphan(f Fault) func() {
	a := w.target(f)
	if !a.alive {
		return nil
	}
	l := a.machine.link
	if f.X < 0.7 {
		l.cutUp++
		l.cutDown++
	}
	w.after(10*time.Second, func() { l.refused = true })
	a.slot.replacePod()
	return a.resetNode
}

// loseContainer simulates a runtime that loses track of a running container, often one that is cut off, so that the kubelet
// starts another in the same pod. In the end the node is reset.
func (w *world) loseContainer(f Fault) func() {
	a := w.target(f)
	if !a.alive {
		return nil
	}
	sandbox := *a.machine
	sandbox.link = &link{w: w}
	if l := a.machine.link; f.X < 0.7 {
		l.cutUp++
		l.cutDown++
	}
	a.slot.run(&sandbox)
	return a.resetNode
}

func (a *agent) resetNode() {
	a.dies()
	a.tree.thaw()
}

// throttle simulates a CPU limit that is too small: all due work in a pod is late, and the agent has measured how late.
// Occasionally its measurement is wrong.
func (w *world) throttle(f Fault) func() {
	a := w.target(f)
	m := a.machine
	m.throttled = time.Duration(f.X * float64(a.config.Duration) / 4)
	told := m.throttled
	switch {
	case f.Y > 0.95:
		told = math.MaxInt64
	case f.Y > 0.9:
		told, m.throttled = -told, 0
	}
	a.deliver(lease.Starved{Late: told})
	return func() {
		m.throttled = 0
		a.deliver(lease.Starved{})
	}
}

// hangExec keeps programs from starting until the fault is over.
func (w *world) hangExec(f Fault) func() {
	m := w.target(f).machine
	m.execHangs = f.Until
	return nil
}

func (w *world) failStarts(f Fault) func() {
	m := w.target(f).machine
	m.execFails = f.X
	return func() { m.execFails = 0 }
}

func (w *world) exitProcess(f Fault) {
	for _, s := range w.slots {
		s.agent.tree.exit(f.X < 0.5)
	}
}

func (w *world) askHandover(f Fault) {
	to := lease.AnyPod
	if f.X < 0.5 {
		to = w.target(f).machine.pod
	}
	o := w.operators[0]
	if read := o.read(); !read.absent && !read.unlabelled {
		read.lease.Handover = lease.Handover{To: to, Reason: lease.ReasonSwitchover}
		o.write(read.lease)
	}
}

// clearHolder clears holderIdentity and nothing else, as a user might.
func (w *world) clearHolder(Fault) {
	w.api.edit(func(r *lease.Record) { r.Holder = "" })
}

// editByHand writes one field of the Lease, but not the history. With the history edited, and the token first raised and then
// lowered, the next token could be lower than one already assigned. Edits that keep everybody from acquiring are undone in the
// end.
func (w *world) editByHand(f Fault) func() {
	edits := []edit{
		func(r *lease.Record) { r.Duration = time.Second },
		func(r *lease.Record) { r.Duration = -time.Duration(f.Y * float64(horizon)) },
		// Candidates wait for it, up to an hour, even after it is undone.
		func(r *lease.Record) { r.Duration = w.p.longest() },
		func(r *lease.Record) { r.Holder = "somebody" },
		func(r *lease.Record) { r.Transitions = int32(f.Y * math.MaxInt32) },
		func(r *lease.Record) { r.Token += int64(f.Y * million) },
		func(r *lease.Record) { r.Token = int64(f.Y * float64(r.Token%(1<<40))) },
		func(r *lease.Record) { r.Token = math.MaxInt64 },
		func(r *lease.Record) { r.Token = -(r.Token % (1 << 40)) },
		func(r *lease.Record) { r.TokenBase, r.BadTokenBase = 0, "1152921504606846976" }, // as the codec decodes it
		func(r *lease.Record) { r.TokenBase += int64(f.Y * million) },
		func(r *lease.Record) { r.AcquireTime, r.RenewTime = 0, 0 },
		func(r *lease.Record) { r.AcquireTime, r.RenewTime = math.MaxInt64, math.MinInt64 },
	}
	was := w.api.lease.Duration
	w.editOne(edits, f.X)
	for _, c := range w.check.claims {
		if w.api.lease.Duration < was {
			c.lowered = w.now
		}
	}
	return w.mendEdits
}

// edit makes one edit of the Lease.
type edit func(*lease.Record)

func (w *world) editOne(edits []edit, x float64) {
	n := int(x * float64(len(edits)))
	if w.trace != nil {
		w.note("world", "edit %d", n)
	}
	w.api.edit(edits[n])
}

// unlabel makes the Lease somebody else's for a while.
func (w *world) unlabel(Fault) func() {
	w.api.relabel(false)
	return func() { w.api.relabel(true) }
}

// forge writes a false release, whole or in part, of this tenure or of another.
func (w *world) forge(f Fault) {
	marker := lease.Release{Reason: lease.ReasonSwitchover, Unclean: f.Y < 0.3}
	whole := func(r *lease.Record) { r.Holder, r.Release, r.AcquireTime = "", marker, 0 }
	w.editOne([]edit{
		whole,
		func(r *lease.Record) { *r = r.Released(marker, r.RenewTime, r.RenewTime+1) },
		func(r *lease.Record) { whole(r); r.Token = int64(f.Y * float64(r.Token)) },
		func(r *lease.Record) { whole(r); r.Transitions = int32(f.Y * math.MaxInt32) },
		func(r *lease.Record) { whole(r); r.Handover.To = w.target(f).machine.pod },
		// Each of these is a part of a release.
		func(r *lease.Record) { r.Release = marker },
		func(r *lease.Record) { r.AcquireTime = 0 },
		func(r *lease.Record) { r.Release, r.AcquireTime = marker, 0 },
		func(r *lease.Record) { r.Holder, r.Release, r.AcquireTime = "somebody", marker, 0 },
		func(r *lease.Record) { r.Holder, r.Release = "", marker },
		func(r *lease.Record) { r.Holder, r.AcquireTime = "", 0 },
	}, f.X)
}

// editHistory edits the Lease's history, or its token, which the history contains too.
func (w *world) editHistory(f Fault) func() {
	n := func(r *lease.Record) int { return int(f.Y * float64(len(r.History))) }
	w.editOne([]edit{
		func(r *lease.Record) { r.History = nil },
		func(r *lease.Record) { r.History = r.History[n(r):] },
		func(r *lease.Record) { r.History = r.History[:n(r)] },
		func(r *lease.Record) { r.History = []lease.PastTenure{{Token: math.MaxInt64, Pod: "p0"}} },
		func(r *lease.Record) { r.History = []lease.PastTenure{{Token: int64(f.Y * 2 * lease.MaxTokenBase)}} },
		func(r *lease.Record) { // ended, or started again
			r.History = slices.Clone(r.History)
			for i := range r.History {
				p := &r.History[i]
				p.Reason, p.Ended, p.Token = lease.Reason([]string{"", "x"}[i%2]), math.MaxInt64, p.Token-int64(i)
			}
		},
		func(r *lease.Record) { r.History = slices.Repeat(r.History, 3) },
		func(r *lease.Record) { r.Token += int64(f.Y * million) },
		func(r *lease.Record) { r.Token = int64(f.Y * float64(r.Token)) },
		func(r *lease.Record) { r.Token = 0 },
		func(r *lease.Record) { r.Token, r.History = 0, nil },
	}, f.X)
	return w.mendEdits
}

// mendEdits undoes edits, as a user does who has read the conditions.
func (w *world) mendEdits() {
	w.api.relabel(true)
	if r := w.api.lease; r.Token == math.MaxInt64 || r.Token < 0 || r.TokenBase != w.base || r.BadTokenBase != "" || r.Duration > time.Hour {
		w.api.edit(func(r *lease.Record) {
			if r.Token == math.MaxInt64 || r.Token < 0 {
				r.Token = w.check.token
			}
			r.TokenBase, r.BadTokenBase, r.Duration = w.base, "", min(r.Duration, time.Hour)
		})
	}
}

func (w *world) lowerTransitions(f Fault) {
	w.api.edit(func(r *lease.Record) { r.Transitions = int32(f.X * float64(r.Transitions)) })
}

func (w *world) raiseBase(f Fault) {
	w.base += int64(f.X * million)
	w.api.edit(func(r *lease.Record) {
		r.TokenBase = w.base
		r.Handover = lease.Handover{To: lease.AnyPod, Reason: lease.ReasonTokenBaseRaised}
	})
}

func (w *world) stopOperator(f Fault) func() {
	o := w.operators[int(f.X*float64(len(w.operators)))]
	o.down++
	return func() { o.down = max(0, o.down-1) }
}

func (w *world) cutElector(Fault) func() {
	e := w.elector
	e.link.cutUp++
	e.link.cutDown++
	return func() { e.link.cutUp, e.link.cutDown = 0, 0 }
}

func (w *world) pauseElector(Fault) func() {
	w.elector.stopped++
	return func() { w.elector.stopped-- }
}

// restore takes the control plane down for longer than any tenure lasts, and goes back to the last snapshot.
func (w *world) restore(f Fault) func() {
	w.api.restoring++
	return func() {
		w.api.restoring--
		w.api.restore()
		if f.X < 0.5 { // candidates that start now remember nothing
			w.restartStandbys()
		}
		w.after(time.Duration(f.Y*float64(w.p.trouble)), w.api.save)
	}
}

// restartStandbys kills every agent except the one whose process runs. Each is replaced by another.
func (w *world) restartStandbys() {
	for _, s := range w.slots {
		if a := s.agent; a.alive && (a.tree == nil || !a.tree.alive) {
			a.dies()
			s.restart(a)
		}
	}
}

// restoreAtOnce goes back to a snapshot while later holders are alive. The candidates have seen them: no component could know of
// a tenure that no candidate has seen and the server has forgotten.
func (w *world) restoreAtOnce(Fault) func() {
	w.api.save()
	return func() {
		for _, s := range w.slots {
			if s.agent.state.Observed.Record.Token != w.api.lease.Token {
				return
			}
		}
		w.api.restore()
	}
}
