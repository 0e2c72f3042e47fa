package plan

import "github.com/singletonjob/operator/api/v1alpha1"

// turn is a job's part in a rollout of all jobs, which an operator causes that puts something else into pods than the one before it. Only
// some jobs at a time have their turn. Whose rollout it is, the names of pods say: those that it alone made outdated have the hash that
// the same job had before.
type turn struct {
	// own: there are outdated pods, the operator alone made them so, and nobody holds the rollout back.
	own bool
	// given: the job may go on as soon as that is stored, and waits: it is not. Stored first, it is counted by whoever gives turns next.
	given, waits bool
	// asks: with a turn it would begin now.
	asks bool
}

// seekTurn says what part the job has. While it waits, pods of both versions count as one: a lost one is replaced, the number follows the
// spec, and nothing else moves.
func (m *members) seekTurn(j *job, r *runs, may bool) {
	outdated := func(c candidate) bool { return c.live() && !c.updated }
	if j.Spec.Strategy.Paused || !m.any(outdated) || m.any(func(c candidate) bool { return outdated(c) && !j.wasOf(c.pod.Name) }) {
		return
	}
	stored := j.Status.FleetRollout == v1alpha1.FleetRolloutUnderWay
	// A process that is to run to its end would keep the place for as long, and be replaced by nobody when it has.
	busy := r != nil && m.any(func(c candidate) bool { return outdated(c) && c.runsToAnEnd() })
	m.turn = turn{own: true, given: (stored || may) && !busy, waits: !stored || busy, asks: !stored && !busy}
	if !m.turn.waits {
		return
	}
	for i := range m.candidates {
		c := &m.candidates[i]
		c.updated = c.updated || j.wasOf(c.pod.Name)
	}
}

// fleetRollout is what the status says of the job's part. A turn ends when all candidates are new and ready, and one of them has acted
// for long enough: that is when something is known of the new version.
func (m *members) fleetRollout(state State, j *job) v1alpha1.FleetRollout {
	switch state {
	case Serving, LeaseMissing, LeaseUnclaimed, HolderDead:
	case Collecting, Deleting, InvalidSpec, LeaseConflict, Suspending, Suspended, Blocked, EntrypointUnknown, Resting:
		return "" // nothing is replaced
	}
	switch ends := j.Status.FleetRollout == v1alpha1.FleetRolloutUnderWay && !m.fleet.outdated() && !j.Spec.Strategy.Paused; {
	case m.turn.given, ends && !m.proven():
		return v1alpha1.FleetRolloutUnderWay
	case m.turn.own:
		return v1alpha1.FleetRolloutWaiting
	}
	return ""
}

// proven reports whether there are as many candidates as asked for, all are ready, and one has acted for minReadySeconds, if any is to.
func (m *members) proven() bool {
	return m.fleet.Soaked && m.fleet.total() == m.fleet.Desired && !m.any(func(c candidate) bool { return c.live() && !c.ready && !m.isMover(c) })
}

const waitsText = "what the operator adds to pods has changed since these were created, and it replaces them when it is this job's turn: at most as many jobs " +
	"at a time as its flag --fleet-rollouts sets, in the order of their names; until then both versions count as one, and a restart is not delayed"
