// Package schedule decides when a run is due. It knows the ticks of a schedule, which tick to start now, and what became of the ticks
// that will never start.
//
// The package is pure. [Parse] turns a job's spec into a [Schedule]. [Schedule.Decide] takes the known facts and the time of two
// clocks, and returns one [Decision]. The package reads no clock, no file and no environment. It contains the time zone tables, so
// that all programs with the same version of it agree, whatever image they run in.
//
// A tick is an instant in UTC, and its name is that instant (RFC 3339). The instants follow a zone's clock by one of two rules: see
// [Schedule.Next]. Each tick is run at most once, or counted once as missed or skipped. [Facts] has one instant up to which all
// ticks are accounted for, and that instant only grows. [Decision], Ended and Resumed report what became of the ticks that it
// passes.
package schedule

import (
	"fmt"
	"time"
)

// Stamp is a whole second of UTC, counted from 1970. Ticks are greater than 0, which means none, and not after the year 9999.
type Stamp int64

// maxStamp is the last second of the year 9999, the last one that RFC 3339 can represent.
const maxStamp = Stamp(253402300799)

// StampOf is the second that contains t. ok is false if t is not in the years 1970 to 9999.
func StampOf(t time.Time) (s Stamp, ok bool) {
	s = Stamp(t.Unix()) // does not overflow for any time.Time
	return s, s > 0 && s <= maxStamp
}

// Time converts s.
func (s Stamp) Time() time.Time { return time.Unix(int64(s), 0).UTC() }

// String is the name of a tick; empty for 0.
func (s Stamp) String() string {
	if s <= 0 {
		return ""
	}
	return s.Time().Format(time.RFC3339)
}

// ParseStamp is the inverse of String. ok is false for texts that String never returns: with another offset, or with a fraction.
func ParseStamp(name string) (s Stamp, ok bool) {
	t, err := time.Parse(time.RFC3339, name)
	if err != nil {
		return 0, false
	}
	s, ok = StampOf(t)
	return s, ok && s.String() == name
}

// CatchUp selects which ticks to catch up that came due while no candidate could start them.
type CatchUp string

// The values of CatchUp. No tick starts after startingDeadline.
const (
	// CatchUpSkip: none. A tick starts within OnTime of when it could have started, or never.
	CatchUpSkip CatchUp = "Skip"
	// CatchUpLatest: the newest.
	CatchUpLatest CatchUp = "Latest"
	// CatchUpAll: all, oldest first. If there are more than MaxBacklog, the oldest are missed.
	CatchUpAll CatchUp = "All"
)

// Overlap selects what happens to a tick that comes due during a run.
type Overlap string

// The values of Overlap.
const (
	// OverlapSkip: the tick is skipped.
	OverlapSkip Overlap = "Skip"
	// OverlapQueue: the tick waits for the end of the run.
	OverlapQueue Overlap = "Queue"
	// OverlapReplace: the run is stopped, and the tick's run starts.
	OverlapReplace Overlap = "Replace"
)

// Bounds and defaults of a Spec.
const (
	MinStartingDeadline     = 10 * time.Second
	MaxStartingDeadline     = 168 * time.Hour
	DefaultStartingDeadline = time.Hour
	DefaultTimeZone         = "Etc/UTC"
)

const (
	// MaxBacklog is the maximum number of ticks to catch up.
	MaxBacklog = 100
	// OnTime is how late a tick may start under CatchUpSkip. Two clocks that agree can delay a start by Tolerance; the rest is time
	// for the Pod that starts the tick.
	OnTime = time.Minute
	// Tolerance is the maximum difference between two clocks that agree.
	Tolerance = 30 * time.Second
)

// Spec is a schedule as in a job's spec. Empty fields have defaults: Etc/UTC, an hour, Latest, Skip.
type Spec struct {
	// Cron is five fields, separated by single spaces.
	Cron string
	// TimeZone is a name from the IANA database.
	TimeZone string
	// StartingDeadline is how long after its instant a tick may start.
	StartingDeadline time.Duration
	CatchUp          CatchUp
	Overlap          Overlap
}

// Schedule is a valid Spec.
type Schedule struct {
	spec Spec
	cron cron
	zone zone
}

// Parse checks a Spec. Its error names the field, the value and the remedy.
func Parse(spec Spec) (*Schedule, error) {
	spec = spec.withDefaults()
	if d := spec.StartingDeadline; d < MinStartingDeadline || d > MaxStartingDeadline {
		return nil, fmt.Errorf("spec.schedule.startingDeadline: %s is not accepted: from %s to %s",
			d, MinStartingDeadline, MaxStartingDeadline)
	}
	switch spec.CatchUp {
	case CatchUpSkip, CatchUpLatest, CatchUpAll:
	default:
		return nil, fmt.Errorf("spec.schedule.catchUp: %s is not accepted: Skip, Latest or All", quote(string(spec.CatchUp)))
	}
	switch spec.Overlap {
	case OverlapSkip, OverlapQueue, OverlapReplace:
	default:
		return nil, fmt.Errorf("spec.schedule.overlap: %s is not accepted: Skip, Queue or Replace", quote(string(spec.Overlap)))
	}
	if spec.CatchUp == CatchUpAll && spec.Overlap == OverlapReplace {
		return nil, fmt.Errorf("spec.schedule.overlap: Replace is not accepted with catchUp All, because its runs would stop each other: set " +
			"Queue, or catchUp Latest")
	}
	c, err := parseCron(spec.Cron)
	if err != nil {
		return nil, fmt.Errorf("spec.schedule.cron: %w", err)
	}
	z, err := loadZone(spec.TimeZone)
	if err != nil {
		return nil, fmt.Errorf("spec.schedule.timeZone: %w", err)
	}
	return &Schedule{spec: spec, cron: c, zone: z}, nil
}

// Spec is the spec of s, with its defaults.
func (s *Schedule) Spec() Spec { return s.spec }

func (s Spec) withDefaults() Spec {
	if s.TimeZone == "" {
		s.TimeZone = DefaultTimeZone
	}
	if s.StartingDeadline == 0 {
		s.StartingDeadline = DefaultStartingDeadline
	}
	if s.CatchUp == "" {
		s.CatchUp = CatchUpLatest
	}
	if s.Overlap == "" {
		s.Overlap = OverlapSkip
	}
	return s
}
