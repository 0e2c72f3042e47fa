package plan

import "github.com/singletonjob/operator/api/v1alpha1"

// turn is a job's place in a fleet-wide rollout. Such a rollout starts when what the operator adds to pods changes. Only some jobs at a
// time have their turn. The names of the pods show the cause: pods that only such a change made outdated have the earlier hash of the same
// job.
type turn struct {
	// own: there are outdated pods, only a change of the operator made them so, and the rollout is not paused.
	own bool
	// given: the job can continue as soon as its turn is stored. waits: the turn is not stored yet. It is stored first, so that it is
	// counted when the next turns are given.
	given, waits bool
	// asks: with a turn the job would begin now.
	asks bool
}

// seekTurn determines the job's place. While the job waits, pods of both versions count as the same version: a lost pod is replaced, the
// number of candidates follows the spec, and nothing else changes.
func (m *members) seekTurn(j *job, r *runs, may bool) {
	outdated := func(c candidate) bool { return c.live() && !c.updated }
	if j.Spec.Strategy.Paused || !m.any(outdated) || m.any(func(c candidate) bool { return outdated(c) && !j.wasOf(c.pod.Name) }) {
		return
	}
	stored := j.Status.FleetRollout == v1alpha1.FleetRolloutUnderWay
	// A process that must run to its end would occupy the place until then, and after its end it is not replaced.
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

// fleetRollout returns the status of the job's place. A turn ends when all candidates are new and ready and one of them has acted for long
// enough: then something is known about the new version.
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

// proven reports whether the number of candidates is the desired one, all are ready, and one has acted for minReadySeconds, if one must
// act.
func (m *members) proven() bool {
	return m.fleet.Soaked && m.fleet.total() == m.fleet.Desired && !m.any(func(c candidate) bool { return c.live() && !c.ready && !m.isMover(c) })
}

const waitsText = "what the operator adds to pods has changed since these were created, and the operator replaces them when it is this job's turn: at most as many jobs " +
	"at a time as its flag --fleet-rollouts sets, in the order of their names; until then both versions count as one, and a restart is not delayed"
