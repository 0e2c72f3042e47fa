package mistake

// Broken is a mistake in the surroundings of the state machine.
type Broken uint8

// The mistakes.
const (
	Nothing Broken = iota
	// SlewedClock: agents compare readings of the clock that NTP slews.
	SlewedClock
	// LeashArmedOnce: the leash's timer is set once for the whole remaining time, and never set again.
	LeashArmedOnce
	// StartBlocks: neither deadlines nor kills reach a tree before its program runs.
	StartBlocks
	// OperatorOverwrites: the operator writes from an earlier read without the condition that nothing has changed.
	OperatorOverwrites
	// OperatorBelievesAbsence: the operator treats a deleted pod object as a dead pod.
	OperatorBelievesAbsence
	// OperatorCreatesFree: the operator recreates a deleted Lease as a free one.
	OperatorCreatesFree
	// AgentsHeedNoLabel: the agents use any Lease with the name, whatever its labels.
	AgentsHeedNoLabel
	// OperatorHeedsNoLabel: the operator uses any Lease with the name, whatever its labels.
	OperatorHeedsNoLabel
	// RestoreTooSoon: the API servers start from a snapshot while later holders may live.
	RestoreTooSoon
	// OperatorBelievesDate: the operator settles ticks by the time of one server's answer, whatever its own clock shows.
	OperatorBelievesDate
	// OneAnswerBelieved: the agents ask no further server about what contradicts the state that they know.
	OneAnswerBelieved
	// OperatorSettlesNothing: the operator changes cron without settling ticks, as it changes a policy.
	OperatorSettlesNothing
)
