package schedule

import "time"

// ticks are those of a schedule. Of one that does not follow real time, civil times up to shown have had theirs.
type ticks struct {
	*Schedule
	shown Stamp
}

// Next is the first tick after an instant; ok is false if there is none up to year 9999.
//
// A schedule with a star in its minute or its hour follows real time: its ticks are the instants at which the zone's clock shows a
// minute of its fields. What a clock skips that is set forward has none, what it shows twice has two.
//
// Any other is of fixed times: the tick of each is the first instant at which the zone's clock shows that time, or a later
// one. What is skipped comes when the clock is set forward, all of it as one tick; what is shown twice comes the first time.
func (s *Schedule) Next(after Stamp) (tick Stamp, ok bool) {
	return ticks{Schedule: s}.next(after)
}

// Local is what the zone's clock shows at a tick, in seconds counted as if it were UTC's: Facts.Local of a tick.
func (s *Schedule) Local(tick Stamp) Stamp { return tick + s.zone.offset(tick) }

// LocalTime is a tick as the zone's clock shows it, for people.
func (s *Schedule) LocalTime(tick Stamp) time.Time { return tick.Time().In(s.zone.location) }

func (t ticks) next(after Stamp) (tick Stamp, ok bool) {
	after = bounded(after)
	if t.cron.follows {
		tick = t.nextReal(after)
	} else if civil := t.cron.after(t.reached(after)); civil < far {
		tick = t.zone.first(civil)
	} else {
		tick = far
	}
	return tick, tick <= maxStamp
}

// reached is the civil time up to which all have had their ticks.
func (t ticks) reached(at Stamp) Stamp { return max(t.zone.reached(at), t.shown) }

func (t ticks) nextReal(after Stamp) Stamp {
	for at := after + 1; ; {
		_, end := t.zone.span(at)
		ahead := t.zone.offset(at)
		civil := t.cron.after(at - 1 + ahead)
		if tick := civil - ahead; civil == far || tick < end {
			return tick
		}
		at = end
	}
}

// count is the number of ticks after one instant and not after another.
func (t ticks) count(after, to Stamp) (n int64) {
	if to <= after {
		return 0
	}
	if t.cron.follows {
		for at := after + 1; at <= to; {
			_, end := t.zone.span(at)
			end = min(end, to+1)
			ahead := t.zone.offset(at)
			n += t.cron.count(at-1+ahead, end-1+ahead)
			at = end
		}
		return n
	}
	n = t.cron.count(t.reached(after), t.reached(to))
	for _, at := t.zone.span(after); at <= to; _, at = t.zone.span(at) {
		if skipped := t.cron.count(t.reached(at-1), at+t.zone.offset(at)); skipped > 1 {
			n -= skipped - 1 // all that is skipped is one tick
		}
	}
	return n
}

// last is the newest tick after one instant and not after another, of which there is one. It looks back ever farther, so that it
// walks over few.
func (t ticks) last(after, to Stamp) (tick Stamp) {
	const wider = 8
	for back := Stamp(minuteSeconds); ; back *= wider {
		at, ok := t.next(max(after, to-back))
		for ; ok && at <= to; at, ok = t.next(at) {
			tick = at
		}
		if tick != 0 || to-back <= after {
			return tick
		}
	}
}
