package samples

import (
	"slices"
	"time"
)

// An Event is something that a sink has accepted.
type Event struct {
	At time.Time
	// Unit is what must be done once: a message, a tick, a height. Where doing it again costs nothing it is empty, and what counts is who asks.
	Unit string
	// Writer is who did it, where the sink can tell.
	Writer string
}

// A Sum is what became of a sample's work. Twice are events that repeat a unit, or without units, those by which a writer returns after another
// one. Lost are expected units that were not done.
type Sum struct{ Done, Twice, Lost int }

// Count judges events, in any order.
func Count(events []Event, expected []string) (c Sum) {
	done, followed, last := map[string]bool{}, map[string]bool{}, ""
	for _, e := range inOrder(events) {
		switch {
		case e.Unit != "" && done[e.Unit]:
			c.Twice++
		case e.Unit != "":
			done[e.Unit] = true
			c.Done++
		default:
			c.Done++
			if e.Writer == last {
				continue
			}
			if followed[e.Writer] {
				c.Twice++
			}
			followed[last], last = true, e.Writer
		}
	}
	for _, unit := range expected {
		if !done[unit] {
			c.Lost++
		}
	}
	return c
}

// Gap is the longest time without an event that a fault has caused, which lies between two times. It counts from the last event before the
// fault, and what is still missing at the end counts.
func Gap(events []Event, fault, end time.Time) (gap time.Duration) {
	last := fault
	for _, e := range inOrder(events) {
		switch {
		case e.At.After(end):
			return max(gap, end.Sub(last))
		case !e.At.After(fault):
			last = e.At
		default:
			gap, last = max(gap, e.At.Sub(last)), e.At
		}
	}
	return max(gap, end.Sub(last))
}

func inOrder(events []Event) []Event {
	return slices.SortedStableFunc(slices.Values(events), func(a, b Event) int { return a.At.Compare(b.At) })
}
