package plan

// Fleet is the candidates in numbers. It counts those that are alive; one that is on its way out counts no more.
type Fleet struct {
	// Desired is spec.candidates.
	Desired int
	// Standbys by version and readiness.
	OldReady, OldUnready, NewReady, NewUnready int
	// OldAble is how many of OldUnready could act all the same: they may be unready for a moment or by a probe of their own, or start again.
	OldAble int
	// HolderOld and HolderNew say which version holds the Lease: neither where nobody does.
	HolderOld, HolderNew bool
	// Silent: the holder is old and does not renew. Its node may be lost, and it with it.
	Silent bool
	// Soaked: the holder is new and has run for minReadySeconds, or how long it runs says nothing.
	Soaked bool
	// Failed: the new version was tried and its process ended before it was soaked.
	Failed bool
	// InPlace: no more than Desired may live (maxSurge is 0). Paused: nothing of a rollout is done.
	InPlace, Paused bool
	// Busy: the holder's process is to run to its end, so that nothing of a rollout is done before that.
	Busy bool
	// Unplaced: a new standby has no node yet. NoRoom: one more than Desired finds no room, and was waited for long enough.
	Unplaced, NoRoom bool
	// Together: the ready standbys share the holder's node, and another node may take one. Mover: a pod that was made to take the
	// place of one of them, and is not ready yet; it is counted nowhere else. Awaited: it is worth to be waited for.
	Together, Mover, Awaited bool
}

// Step is what to do next, in numbers of candidates.
type Step struct {
	Create int
	// Removals of standbys by version and readiness.
	OldReady, OldUnready, NewReady, NewUnready int
	// HandOver: the holder is to hand over to a ready standby of the new version.
	HandOver bool
	// RemoveHolder: the holder is to go although there is no standby.
	RemoveHolder bool
	// Move: one more standby is made, for another node than the holder's. GiveUpMove: the mover goes.
	Move, GiveUpMove bool
}

// Standbys is the number of a fleet's standbys of a version and readiness, to count with.
func Standbys(f *Fleet, updated, ready bool) *int {
	return pick(updated, ready, &f.NewReady, &f.NewUnready, &f.OldReady, &f.OldUnready)
}

// Removals is the number of a step's standbys of a version and readiness that go, to count with.
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

// Next is the next step of a rollout, of scaling, and of replacing what was lost; all three are one thing: the fleet is not
// as it should be. Its rules:
//
//   - One candidate more than asked for may live during a rollout, so that a ready standby goes only when as many are left
//     as there should be. Where only one candidate is asked for, nothing stands by, and it is replaced plainly: what
//     it holds, such as a volume, may not be had twice.
//   - Where one more may not live, or finds no room, a ready standby of the old version goes before one of the new is ready: one
//     at a time, and only while all others are ready.
//   - The holder is never removed while there is a choice. Once every standby is new, it is asked to hand over to a ready
//     one: one handover in a rollout.
//   - The last pod of the old version goes only when the new version is soaked: until then it is what a broken one falls back
//     to. One that is ready is kept, or else one that could act though it is not. If the new version fails before, nothing
//     moves until the template changes.
//   - A holder whose process is to run to its end is waited for with all of it.
//   - When nothing else is to be done, a standby on the holder's node is moved: one more is made elsewhere, and when that is ready
//     there is one too many. Until then it stands in for none, and it is given up for anything else.
func Next(f Fleet) Step {
	s := f.next()
	s.Move = f.Together && !f.Mover && f.mayMove() && f.atRest() && s == Step{}
	s.GiveUpMove = f.Mover && !(f.Awaited && f.mayMove())
	return s
}

// mayMove reports whether one more than asked for may live for no other reason than to move a standby.
func (f Fleet) mayMove() bool { return f.Desired > 1 && !f.outdated() && !f.InPlace && !f.Failed }

// atRest reports whether there are as many candidates as asked for, one of them acts, and the others are ready.
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

// removals picks what goes because there are more than asked for: first what is of no use, then what is old, and of the
// ready ones no more than leaves enough of them ready.
func (f Fleet) removals() Step {
	var s Step
	excess := max(0, f.total()-f.Desired)
	gives := 0 // ready ones that go before their successors are ready
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
	spare := f.OldReady + f.NewReady - standbys // ready ones beyond those that should be
	kept, keptUnready := f.fallback()
	s.OldUnready = take(f.OldUnready - keptUnready)
	s.OldReady = take(min(spare+gives, f.OldReady-kept))
	surplus := f.updated() - f.Desired // the template did not change, the number did
	if f.Failed {
		surplus = excess - 1
	}
	s.NewUnready = take(min(surplus, f.NewUnready))
	s.NewReady = take(min(surplus-s.NewUnready, f.NewReady))
	return s
}

// fallback is how many old standbys are left for what becomes of the new version, of the ready ones and of the others: one that could act
// will do where none is ready. Only where there is no room for the new version beside it, and nothing else acts or could, it is in the way.
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

// givesUp reports whether old standbys go before new ones are made, since these find no room beside them.
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
	f.OldAble = min(f.OldAble, f.OldUnready) // who could not act goes first
	f.NewReady -= s.NewReady
	f.NewUnready -= s.NewUnready
	return f
}
