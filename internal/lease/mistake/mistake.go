// Package mistake has the mistakes that whatever tests lease.Step must find: the simulator (internal/lease/sim) and the
// model (internal/lease/model). Each is around the unchanged Step, and as pure as that is.
package mistake

import "github.com/singletonjob/operator/internal/lease"

// Step is lease.Step, or that with a mistake.
type Step func(lease.Config, lease.State, lease.Time, lease.Event) (lease.State, []lease.Action)

// Mistake is one mistake.
type Mistake struct {
	// Why says what is wrong about it.
	Why string
	// Step has it; nil where it is in what surrounds the state machine.
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
		Why:  "killing takes time, and clocks run apart",
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
		Why:  "it starts over with a new Lease, and anybody can set it back",
		Step: rewriteAcquire(transitionsToken),
	},
	"go on after seeing another holder": {
		Why:  "the other may have started",
		Step: before(blind),
	},
	"keep running after seeing another holder": {
		Why:  "KeepRunning is for those who do not know better",
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
		Why:  "to empty the holder stops no process",
		Step: before(anyEmptyIsFree),
	},
	"release marker of another tenure believed": {
		Why:  "a client-go elector leaves the marker in place, and may be blanked by hand",
		Step: before(oldMarkerCounts),
	},
	"stale watch event accepted": {
		Why:  "a watch may deliver what the Lease was before the tenure",
		Step: before(staleAccepted),
	},
	"lockDelay not waited for": {
		Why:  "requests of a killed process may still be on the wire",
		Step: before(noLockDelay),
	},
	"restart taken for proof of death": {
		Why:  "where the agent is not PID 1 its container's processes may outlive it",
		Step: before(restartIsProof),
	},
	"restart proves death": {
		Why:  "a runtime may lose a container that lives, and start another in the same pod",
		Step: before(startIsProof),
	},
	"an answer is waited for as long as it is of use": {
		Why:  "who waits until the end of an outage that is all but as long as the time to renew has none left",
		Step: after(patient),
	},
	"restored data believed": {
		Why:  "what the server forgot may have happened",
		Step: believeRestored,
	},
	"measured lateness ignored": {
		Why:  "what starves the agent starves the kill",
		Step: before(neverStarved),
	},
	"newest duration waited for, not the longest": {
		Why:  "anyone who lowers it under a holder does not shorten the holder's lease",
		Step: before(newestDuration),
	},
	"parts of a release left by renewals": {
		Why:  "who clears the holder completes them, and a cleared holder alone frees nothing",
		Step: halfReleased,
	},
	"history not heard": {
		Why:  "the token may have been lowered",
		Step: rewriteAcquire(noHistory),
	},
	"history believed": {
		Why:  "a token that none can be has nobody acquire ever again",
		Step: before(anyHistory),
	},
	"own duration waited for": {
		Why:  "the holder may have a longer one",
		Step: before(ownDuration),
	},
}

// Around are mistakes around the state machine: in the agent's clock, its leash, the operator, the store and the sink.
var Around = map[string]Mistake{
	"deadlines and waits on the slewed clock, 4 %":                  {Why: "NTP speeds up and slows down CLOCK_BOOTTIME by more than any margin pays for"},
	"deadlines and waits on the slewed clock, 4 %, an hour's lease": {Why: "as before, and a margin that is a fifteenth is less than 8 %"},
	"leash's timer set once for all that is left":                   {Why: "the kernel's timers run on the slewed clock"},
	"start blocks until exec is done":                               {Why: "neither deadline nor kill reach a program whose start hangs: it runs although it was killed"},
	"operator writes without a condition":                           {Why: "what it read may be long over"},
	"operator takes absence for death":                              {Why: "a pod deleted by force runs on where its node is cut off"},
	"operator makes a free Lease":                                   {Why: "the holder of the Lease that was deleted may live"},
	"API servers start from a snapshot at once":                     {Why: "a candidate that starts after that has never heard of the holder that the server forgot"},
	"agents heed no label":                                          {Why: "without our label the Lease is somebody else's"},
	"operator heeds no label":                                       {Why: "without our label the Lease is somebody else's"},
	"sink checks before it writes":                                  {Why: "a newer write falls between the check and the write"},
	"sink forgets its mark":                                         {Why: "the mark must be as durable as the data"},
	"sink refuses equal tokens":                                     {Why: "one tenure writes many times"},
	"sink compares tokens as text":                                  {Why: "9999 is not above 10000"},
}

// Steps that are judged by how many tenures they lose.
var (
	Patient         = after(patient)
	OneAfterAnother = before(oneAfterAnother)
	LateIsLost      = before(lateIsLost)
	OwnDuration     = before(ownDuration)
)
