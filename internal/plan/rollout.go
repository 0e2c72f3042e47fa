package plan

// Fleet is the number of candidates in each state. It counts those that are alive; a terminating one does not count.
type Fleet struct {
	// Desired is spec.candidates.
	Desired int
	// Standbys by version and readiness.
	OldReady, OldUnready, NewReady, NewUnready int
	// OldAble is how many of OldUnready could still act: they may be unready for a moment or because of their own probe, or may start
	// again.
	OldAble int
	// HolderOld and HolderNew say which version holds the Lease. Both are false if there is no holder.
	HolderOld, HolderNew bool
	// Silent: the holder is old and does not renew. It may be lost together with its node.
	Silent bool
	// Soaked: the holder is new and has been ready for minReadySeconds, or that is irrelevant.
	Soaked bool
	// Failed: the new version was tried and its process ended before it was soaked.
	Failed bool
	// InPlace: no more than Desired candidates can exist (maxSurge is 0). Paused: the rollout does not continue.
	InPlace, Paused bool
	// Busy: the holder's process must run to its end, so the rollout waits for that.
	Busy bool
	// Unplaced: a new standby has no node yet. NoRoom: a surge pod can't be scheduled, and the operator has waited long enough for it.
	Unplaced, NoRoom bool
	// Together: all ready standbys share the holder's node, and another node can take one. Mover: a pod that was created to replace one of
	// them is not ready yet; it is counted nowhere else. Awaited: the operator still waits for the mover.
	Together, Mover, Awaited bool
}

// Step is the next action, in numbers of candidates.
type Step struct {
	Create int
	// Removals of standbys by version and readiness.
	OldReady, OldUnready, NewReady, NewUnready int
	// HandOver: the holder must hand over to a ready standby of the new version.
	HandOver bool
	// RemoveHolder: the holder must be removed although there is no standby.
	RemoveHolder bool
	// Move: create one more standby, for a node other than the holder's. GiveUpMove: remove the mover.
	Move, GiveUpMove bool
}

// Standbys returns a pointer to the number of a fleet's standbys with a version and readiness, for counting.
func Standbys(f *Fleet, updated, ready bool) *int {
	return pick(updated, ready, &f.NewReady, &f.NewUnready, &f.OldReady, &f.OldUnready)
}

// Removals returns a pointer to the number of standbys with a version and readiness that a step removes, for counting.
func Removals(s *Step, updated, ready bool) *int {
	return pick(updated, ready, &s.NewReady, &s.NewUnready, &s.OldReady, &s.OldUnready)
}

func pick(updated, ready bool, newReady, newUnready, oldReady, oldUnready *int) *int {
	switch {
	case updated && ready:
		return newReady
	case updated:
		return newUnready
	case ready:
		return oldReady
	}
	return oldUnready
}

// Next returns the next step of a rollout, of scaling, and of replacing lost candidates. All three are the same problem: the
// fleet differs from its desired state. The rules:
//
//   - One candidate more than desired can exist during a rollout, so that a ready standby is removed only when enough others
//     are left. If only one candidate is desired, there is no standby. The candidate is then removed before its replacement is
//     created, because two pods may not be able to share a resource such as a volume.
//   - If a surge candidate is not allowed, or can't be scheduled, a ready standby of the old version is removed before a new one
//     is ready. This happens one at a time, and only while all others are ready.
//   - The holder is never removed while there is an alternative. Once every standby is new, the holder is asked to hand over to
//     a ready one: one handover in a rollout.
//   - The last pod of the old version is removed only when the new version is soaked. Until then it is the fallback for a broken
//     new version. A ready pod is kept, or else one that is not ready but could act. If the new version fails before it is
//     soaked, the rollout stops until the template changes.
//   - If the holder's process must run to its end, every step waits for that.
//   - If there is nothing else to do, a standby on the holder's node is moved. One more is created elsewhere, and when that one is
//     ready there is one too many. Until then the new one does not count as a standby, and it is given up for any other step.
func Next(f Fleet) Step {
	s := f.next()
	s.Move = f.Together && !f.Mover && f.mayMove() && f.atRest() && s == Step{}
	s.GiveUpMove = f.Mover && !(f.Awaited && f.mayMove())
	return s
}

// mayMove reports whether a surge candidate is allowed only to move a standby.
func (f Fleet) mayMove() bool { return f.Desired > 1 && !f.outdated() && !f.InPlace && !f.Failed }

// atRest reports whether the number of candidates is the desired one, one of them holds the Lease, and the others are ready.
func (f Fleet) atRest() bool {
	return f.holders() == 1 && f.total() == f.Desired && f.OldUnready+f.NewUnready == 0
}

func (f Fleet) next() Step {
	switch {
	case f.Paused && f.outdated(), f.Busy && f.HolderOld:
		return Step{}
	case f.Desired == 1 && f.InPlace:
		return replacePlainly(f)
	}
	s := f.removals()
	left := f.less(s)
	switch {
	case left.total() < f.Desired:
		s.Create = f.Desired - left.total()
	case left.total() == f.Desired && left.updated() < f.Desired && !f.Failed && !f.InPlace && !f.Unplaced:
		s.Create = 1
	}
	s.HandOver = f.HolderOld && f.NewReady > 0 && f.OldReady+f.OldUnready == 0 && !f.Failed
	return s
}

func replacePlainly(f Fleet) Step {
	s := Step{OldReady: f.OldReady, OldUnready: f.OldUnready, RemoveHolder: f.HolderOld}
	news := f.NewReady + f.NewUnready
	if f.HolderNew {
		s.NewReady, s.NewUnready = f.NewReady, f.NewUnready
		return s
	}
	s.NewUnready = min(f.NewUnready, max(0, news-1))
	s.NewReady = max(0, news-1-s.NewUnready)
	if news == 0 {
		s.Create = 1
	}
	return s
}

// removals picks what to remove because there are too many candidates: first useless ones, then old ones. It removes ready ones only if
// enough ready ones are left.
func (f Fleet) removals() Step {
	var s Step
	excess := max(0, f.total()-f.Desired)
	gives := 0 // ready ones that are removed before their replacements are ready
	if f.givesUp() {
		excess, gives = max(excess, 1), 1
	}
	take := func(most int) int {
		n := max(0, min(excess, most))
		excess -= n
		return n
	}
	standbys := f.Desired
	if f.HolderOld || f.HolderNew {
		standbys--
	}
	spare := f.OldReady + f.NewReady - standbys // ready ones in excess of the desired number
	kept, keptUnready := f.fallback()
	s.OldUnready = take(f.OldUnready - keptUnready)
	s.OldReady = take(min(spare+gives, f.OldReady-kept))
	surplus := f.updated() - f.Desired // the number changed, and not the template
	if f.Failed {
		surplus = excess - 1
	}
	s.NewUnready = take(min(surplus, f.NewUnready))
	s.NewReady = take(min(surplus-s.NewUnready, f.NewReady))
	return s
}

// fallback returns how many ready and unready old standbys are kept in case the new version fails. If none is ready, one that could act is
// kept. Even that one is not kept if there is no room for the new version beside it, and nothing else acts or could act.
func (f Fleet) fallback() (ready, unready int) {
	switch {
	case f.HolderOld && !f.Silent, f.Soaked:
	case f.OldReady > 0:
		ready = 1
	case f.NoRoom && !f.HolderNew && f.NewReady == 0:
	default:
		unready = min(1, f.OldAble)
	}
	if f.Failed {
		ready = f.OldReady
	}
	return ready, unready
}

// givesUp reports whether old standbys are removed before new ones are created, because there is no room for both.
func (f Fleet) givesUp() bool {
	return (f.InPlace || f.NoRoom) && !f.Failed && (f.updated() < f.Desired || f.NewUnready > 0)
}

func (f Fleet) holders() int {
	if f.HolderOld || f.HolderNew {
		return 1
	}
	return 0
}

func (f Fleet) total() int {
	return f.OldReady + f.OldUnready + f.NewReady + f.NewUnready + f.holders()
}

// outdated reports whether a rollout is under way.
func (f Fleet) outdated() bool { return f.total() > f.updated() }

func (f Fleet) updated() int {
	if f.HolderNew {
		return f.NewReady + f.NewUnready + 1
	}
	return f.NewReady + f.NewUnready
}

func (f Fleet) less(s Step) Fleet {
	f.OldReady -= s.OldReady
	f.OldUnready -= s.OldUnready
	f.OldAble = min(f.OldAble, f.OldUnready) // those that could not act are removed first
	f.NewReady -= s.NewReady
	f.NewUnready -= s.NewUnready
	return f
}
