package mistake

// Broken is a mistake in what surrounds the state machine.
type Broken uint8

// The mistakes.
const (
	Nothing Broken = iota
	// SlewedClock: agents compare readings of the clock that NTP slews.
	SlewedClock
	// LeashArmedOnce: the leash's timer is set for the whole of what is left, and never looked at again.
	LeashArmedOnce
	// StartBlocks: neither deadlines nor kills reach a tree before its program runs.
	StartBlocks
	// OperatorOverwrites: the operator writes what it read without the condition that nothing changed.
	OperatorOverwrites
	// OperatorBelievesAbsence: the operator takes a pod object that is gone for a pod that is dead.
	OperatorBelievesAbsence
	// OperatorCreatesFree: the operator makes a Lease that was deleted anew as a free one.
	OperatorCreatesFree
	// AgentsHeedNoLabel: the agents take any Lease of the name for theirs.
	AgentsHeedNoLabel
	// OperatorHeedsNoLabel: the operator does.
	OperatorHeedsNoLabel
	// RestoreTooSoon: the API servers start from a snapshot while holders of the time since may live.
	RestoreTooSoon
	// OperatorBelievesDate: the operator dates what settles ticks by an answer of one server, whatever its own clock shows.
	OperatorBelievesDate
	// OperatorSettlesNothing: the operator changes cron as it does a policy.
	OperatorSettlesNothing
)
