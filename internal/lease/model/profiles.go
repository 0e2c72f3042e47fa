package model

import "github.com/singletonjob/operator/internal/lease"

// Sets of faults that occur together. The faults of one profile meet each other in every order and at every moment. Faults of two
// profiles never meet; the profile "everything" has the faults one at a time.
var (
	messages = setOf(lose, fail, failStored, refuse, delay, loseReply, delayReply, twice, stale)
	watches  = setOf(stall, breaks, oldEvent)
	network  = setOf(cut, deaf, apiDown)
	machines = setOf(crash, stop, hiccup)
	lives    = setOf(exit, leave, terminate, hang)
	operator = setOf(handover, late, remove)
)

// standard returns the settings that all profiles start from.
func standard(budget int, sets ...faults) *model {
	m := &model{step: lease.Step, candidates: 2, budget: budget, slips: 0, killTakes: 1, pid1: true}
	for _, set := range sets {
		m.faults |= set
	}
	return m
}

// with changes the model and returns it.
func (m *model) with(change func(*model)) *model {
	change(m)
	return m
}

// slowly makes candidates wait longer than a tick for answers, and learn by reading alone.
func slowly(m *model) { m.slow, m.noWatch = true, true }

// alone leaves one candidate, so that nobody takes its Lease while it is told what is outdated.
func alone(m *model) { m.candidates = 1 }

// profile is one bounded world.
type profile struct {
	name, about string
	model       *model
}

// profiles are the worlds that `make model` explores. Each budget is one more than the longest known counterexample in that world
// needs, unless the world is one of those that are too large for that (wide in mutants_test.go).
var profiles = []profile{
	{"everything", "each fault by itself", standard(1, messages, watches, network, machines, lives, operator, setOf(freeze, blank))},
	{"three", "three candidates, each of these faults by itself", standard(1, messages, setOf(cut, crash, handover)).with(func(m *model) { m.candidates = 3 })},
	{"messages", "requests and answers lost, late and doubled", standard(2, messages, setOf(cut))},
	{"slow-answers", "answers that take long, and no watch", standard(2, setOf(delayReply, cut)).with(slowly)},
	{"slow-requests", "requests that take long, and no watch", standard(2, setOf(delay, cut)).with(slowly)},
	{"lost", "answers lost, networks cut between request and answer, and no watch", standard(2, setOf(loseReply, cut)).with(func(m *model) { m.noWatch, m.between = true, true })},
	{"watches", "watches that lag, repeat and break", standard(2, watches, setOf(handover, cut, remove))},
	{"clocks", "clocks that slip by as much as the margin pays for", standard(2, setOf(slip, cut, stop)).with(func(m *model) { m.slips, m.killTakes = 1, 0 })},
	{"processes", "processes and agents that die and stop", standard(2, machines, lives, setOf(cut))},
	{"freezes", "containers frozen beyond the lease", standard(2, setOf(freeze, crash, cut, handover))},
	{"operator", "handovers, releases by proof of death, a Lease that is deleted", standard(2, operator, setOf(crash, delay, cut, exit, leave))},
	{"blanked", "the holder emptied by hand", standard(2, setOf(blank, cut, crash))},
	{"keep-running", "holders that run on while they are cut off", standard(2, network, setOf(remove, delay, stall, crash)).with(func(m *model) { m.keepRunning = true })},
	{"lock-delay", "lockDelay, of two ticks", standard(2, setOf(exit, crash, cut, handover)).with(func(m *model) { m.lockDelay = 2 })},
	{"not-pid-1", "agents that start while processes of the last one live", standard(2, setOf(crash, cut, stop)).with(func(m *model) { m.pid1 = false })},
	{"one-pod", "agents of one pod, each in a container that the runtime has lost but for the last", standard(2, setOf(crash, cut, stop, freeze)).with(func(m *model) { m.onePod = true })},
	{"starved", "kills that are late by a tick that was measured", standard(2, setOf(cut, stop)).with(func(m *model) { m.late, m.killTakes = 1, 2 })},
	{"hangs", "starts that hang", standard(4, setOf(hang, remove))},
	{"settings", "candidates of two durations", standard(2, setOf(cut, crash)).with(func(m *model) { m.longer = 2 })},
	{"edited", "durations lowered and parts of a release written by hand", standard(3, setOf(lower, marker, blank))},
	{"lowered", "a duration lowered under a holder that is cut off, of candidates with two", standard(2, setOf(lower, cut)).with(func(m *model) { m.longer = 2 })},
	{"foreign", "a client-go elector takes the Lease, and somebody empties its holder", standard(4, setOf(elector, blank, exit))},
	{"history", "token and base lowered by hand", standard(2, setOf(lowerToken, cut)).with(func(m *model) { m.history, m.base = 1, 1_000_000 })},
	{"forged", "a history that tells of a token that none can be", standard(3, setOf(forge, crash)).with(func(m *model) { m.history = 2 })},
	{"label", "our label removed", standard(2, setOf(unlabel, cut, crash, handover))},
	{"restored", "the store's data goes back when no process of the time since lives", standard(3, setOf(restore, crash))},
	{"restored-at-once", "the store's data goes back while agents live that saw it all", standard(2, setOf(restore, handover)).with(func(m *model) { m.quickRestore = true })},
	{"outages", "outages as long as a tenure must survive", standard(1, setOf(apiDown)).with(func(m *model) { m.lossless, m.outage = true, 2 })},
	{"runs", "a run that is to end, in two attempts at most", standard(2, setOf(exit, crash, loseReply, handover)).with(func(m *model) { m.runs = true })},
	{"runs-ignored", "a run whose failures do not count", standard(2, setOf(exit, crash, cut)).with(func(m *model) { m.runs, m.ignores = true, true })},
	{"runs-cut-off", "the same, and results that are stored late", standard(2, setOf(exit, cut)).with(func(m *model) { m.runs = true })},
	{"runs-prepared", "a run with preActivate, whose process fails probes", standard(2, setOf(exit, unfit, handover, crash)).with(func(m *model) { m.runs, m.prepares = true, true })},
	{"hooks", "preActivate that takes any length of time, and probes that fail", standard(2, setOf(unfit, exit, crash, cut, handover, terminate)).with(func(m *model) { m.prepares = true })},
	{"outdated", "a lone agent that is told what was before its tenure", standard(4, setOf(stale, cut, loseReply)).with(alone)},
	{"outdated-standing", "the same, and a wall clock that is set back again and again", standard(4, setOf(stale, cut, loseReply)).with(alone).with(func(m *model) { m.standing = true })},
	{"sink", "a sink that restarts", standard(3, setOf(sinkDown, freeze, handover)).with(func(m *model) { m.digits = 9_970 })},
}
