package plan

// Fleet is the candidates in numbers. It counts those that are alive; one that is on its way out counts no more.
type Fleet struct {
	// Desired is spec.candidates.
	Desired int
	// Standbys by version and readiness.
	OldReady, OldUnready, NewReady, NewUnready int
	// HolderOld and HolderNew say which version holds the Lease: neither where nobody does.
	HolderOld, HolderNew bool
	// Soaked: the holder is new and has run for minReadySeconds.
	Soaked bool
	// Failed: the new version was tried and its process ended before it was soaked.
	Failed bool
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
//   - The holder is never removed while there is a choice. Once every standby is new, it is asked to hand over to a ready
//     one: one handover in a rollout.
//   - The last ready standby of the old version goes only when the new version is soaked: until then it is what a broken
//     one falls back to. If the new version fails before, nothing moves until the template changes.
func Next(f Fleet) Step {
	if f.Desired == 1 {
		return replacePlainly(f)
	}
	s := f.removals()
	left := f.less(s)
	switch {
	case left.total() < f.Desired:
		s.Create = f.Desired - left.total()
	case left.total() == f.Desired && left.updated() < f.Desired && !f.Failed:
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
	kept := 0                                   // to fall back to
	if f.Failed {
		kept = f.OldReady
	} else if f.HolderNew && !f.Soaked {
		kept = 1
	}
	s.OldUnready = take(f.OldUnready)
	s.OldReady = take(min(spare, f.OldReady-kept))
	surplus := f.updated() - f.Desired // the template did not change, the number did
	if f.Failed {
		surplus = excess - 1
	}
	s.NewUnready = take(min(surplus, f.NewUnready))
	s.NewReady = take(min(surplus-s.NewUnready, f.NewReady))
	return s
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
	f.NewReady -= s.NewReady
	f.NewUnready -= s.NewUnready
	return f
}
