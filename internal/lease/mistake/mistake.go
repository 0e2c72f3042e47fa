// Package mistake contains the mistakes that every test tool for lease.Step must find: the simulator (internal/lease/sim) and the
// model (internal/lease/model). Each mistake wraps the unchanged Step, and is as pure as Step.
package mistake

import "github.com/singletonjob/operator/internal/lease"

// Step is lease.Step, or lease.Step with a mistake.
type Step func(lease.Config, lease.State, lease.Time, lease.Event) (lease.State, []lease.Action)

// Mistake is one mistake.
type Mistake struct {
	// Why says what is wrong about it.
	Why string
	// Step has the mistake; nil if the mistake is in the surroundings of the state machine.
	Step Step
}

// InStep are mistakes of the state machine.
var InStep = map[string]Mistake{
	"validity counted from the reply": {
		Why:  "the others count from when the write was stored, which was before its reply arrived",
		Step: before(replyTimed),
	},
	"waiting counted from the request": {
		Why:  "the holder may have renewed between the request and its answer",
		Step: waitFromRequest,
	},
	"no kill budget": {
		Why:  "killing takes time, and clocks run at different rates",
		Step: noMargin,
	},
	"start before reap": {
		Why:  "after a loss the old process may still be dying when the Lease is won again",
		Step: treeGoneOn(func(s lease.State, actions []lease.Action) bool { return s.Stop.Lost && kills(actions) }),
	},
	"release before reap": {
		Why:  "a standby starts at once on a release",
		Step: treeGoneOn(func(s lease.State, _ []lease.Action) bool { return s.Tree.Alive && s.Tree.Exited && !s.Stop.Lost }),
	},
	"same identity keeps the token": {
		Why:  "a request of the last tenure may still be on the wire",
		Step: rewriteAcquire(keepToken),
	},
	"token from leaseTransitions": {
		Why:  "it starts again with a new Lease, and anybody can lower it",
		Step: rewriteAcquire(transitionsToken),
	},
	"go on after seeing another holder": {
		Why:  "the other may have started",
		Step: before(blind),
	},
	"keep running after seeing another holder": {
		Why:  "KeepRunning is for holders that have not seen another tenure",
		Step: before(blind),
	},
	"ambiguous reply counted as success": {
		Why:  "the write may not have been stored",
		Step: ambiguousIsSuccess,
	},
	"ambiguous reply timed from the read": {
		Why:  "the write was stored long before the read saw it",
		Step: before(readTimed),
	},
	"release marker ignored": {
		Why:  "clearing the holder stops no process",
		Step: before(anyEmptyIsFree),
	},
	"release marker of another tenure believed": {
		Why:  "a client-go elector leaves the marker in place, and its holder can be cleared by hand",
		Step: before(oldMarkerCounts),
	},
	"stale watch event accepted": {
		Why:  "a watch can deliver a state of the Lease from before the tenure",
		Step: before(staleAccepted),
	},
	"lockDelay not waited for": {
		Why:  "requests of a killed process may still be on the wire",
		Step: before(noLockDelay),
	},
	"restart taken for proof of death": {
		Why:  "if the agent is not PID 1, its container's processes can outlive it",
		Step: before(restartIsProof),
	},
	"restart proves death": {
		Why:  "a runtime can lose track of a running container, and start another in the same pod",
		Step: before(startIsProof),
	},
	"an answer is waited for as long as it is of use": {
		Why:  "in an outage almost as long as the time to renew, an agent that waits until its end has no time left",
		Step: after(patient),
	},
	"restored data believed": {
		Why:  "the events that the server forgot may have happened",
		Step: believeRestored,
	},
	"measured lateness ignored": {
		Why:  "a shortage of CPU that delays the agent delays the kill too",
		Step: before(neverStarved),
	},
	"newest duration waited for, not the longest": {
		Why:  "lowering it under a holder does not shorten the holder's lease",
		Step: before(newestDuration),
	},
	"parts of a release left by renewals": {
		Why:  "clearing the holder would complete the release, and a cleared holder alone frees nothing",
		Step: halfReleased,
	},
	"history not heard": {
		Why:  "the token may have been lowered",
		Step: rewriteAcquire(noHistory),
	},
	"history believed": {
		Why:  "after an impossible token, nobody could ever acquire again",
		Step: before(anyHistory),
	},
	"own duration waited for": {
		Why:  "the holder may have a longer one",
		Step: before(ownDuration),
	},
	"acquire without its time": {
		Why:  "after an outdated answer, an agent tries to win the token of its last tenure again, and then takes that tenure for the new one",
		Step: before(acquireWithoutItsTime),
	},
	"acquire at the wall clock's time": {
		Why:  "the clock can be set back to the time of the last acquire, and then the time tells neither from the other",
		Step: acquireAtWallTime,
	},
}

// Around are mistakes in the surroundings of the state machine: in the agent's clock, its leash, the operator, the store and the sink.
var Around = map[string]Mistake{
	"deadlines and waits on the slewed clock, 4 %":                  {Why: "NTP speeds up and slows down CLOCK_BOOTTIME by more than any margin pays for"},
	"deadlines and waits on the slewed clock, 4 %, an hour's lease": {Why: "as before, and a margin that is a fifteenth is less than 8 %"},
	"leash's timer set once for all that is left":                   {Why: "the kernel's timers run on the slewed clock"},
	"start blocks until exec is done":                               {Why: "neither deadline nor kill reaches a program whose start hangs: it runs although it was killed"},
	"operator writes without a condition":                           {Why: "the state that it read may be long outdated"},
	"operator takes absence for death":                              {Why: "a pod deleted by force keeps running if its node is cut off"},
	"operator makes a free Lease":                                   {Why: "the holder of the deleted Lease may live"},
	"API servers start from a snapshot at once":                     {Why: "a candidate that starts after that does not know the holder that the server forgot"},
	"agents heed no label":                                          {Why: "without our label the Lease is somebody else's"},
	"operator heeds no label":                                       {Why: "without our label the Lease is somebody else's"},
	"sink checks before it writes":                                  {Why: "a newer write falls between the check and the write"},
	"sink forgets its mark":                                         {Why: "the mark must be as durable as the data"},
	"sink refuses equal tokens":                                     {Why: "one tenure writes many times"},
	"sink compares tokens as text":                                  {Why: "9999 is not above 10000"},
}

// InClient are mistakes in how an agent reads. They show only where there are several API servers, as in the simulator.
var InClient = map[string]Mistake{
	"one API server's old answer believed": {Why: "it can lag, and the tenure that it does not show may last"},
}

// Steps that are judged by how many tenures they lose.
var (
	Patient         = after(patient)
	OneAfterAnother = before(oneAfterAnother)
	LateIsLost      = before(lateIsLost)
	OwnDuration     = before(ownDuration)
)
