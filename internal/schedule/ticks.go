package schedule

import "time"

// ticks are the ticks of a schedule. If the schedule does not follow real time, civil times up to shown have had their ticks.
type ticks struct {
	*Schedule
	shown Stamp
}

// Next is the first tick after an instant. ok is false if there is none up to the year 9999.
//
// A schedule with a star in its minute or hour follows real time: its ticks are the instants at which the zone's clock shows a
// matching minute. Minutes that are skipped when the clock is set forward have no tick, and minutes that the clock shows twice have
// two.
//
// Any other schedule has fixed times: the tick of each time is the first instant at which the zone's clock shows that time or a
// later one. Times that are skipped come when the clock is set forward, all of them as one tick. Times that the clock shows twice
// come the first time.
func (s *Schedule) Next(after Stamp) (tick Stamp, ok bool) {
	return ticks{Schedule: s}.next(after)
}

// Local is the time on the zone's clock at a tick, in seconds counted as if the clock showed UTC: Facts.Local of a tick.
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

// reached is the civil time up to which all times have had their ticks.
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
			n -= skipped - 1 // all skipped times are one tick
		}
	}
	return n
}

// last is the newest tick after one instant and not after another; there must be one. It looks back in growing steps, so that it
// walks over few ticks.
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
