// Package schedule says when a run is due: which instants are the ticks of a schedule, which of them is to be started now, and
// what became of those that never will be.
//
// It is pure. [Parse] takes what a job says and returns a [Schedule]; [Schedule.Decide] takes what is known, the time of two
// clocks, and returns one [Decision]. It reads no clock, no file and no environment: the tables of time zones are in the
// package, so that all who have one version of it agree, whatever image they run in.
//
// A tick is an instant of UTC, and its name is that instant (RFC 3339). The instants follow the clock of a zone by one rule of
// two, which [Schedule.Next] tells. Each tick that exists is run at most once, or counted once as missed or skipped: [Facts] has one
// instant up to which all are accounted for, which only grows, and [Decision], Ended and Resumed say what became of those
// that it passes.
package schedule

import (
	"fmt"
	"time"
)

// Stamp is a whole second of UTC, counted from 1970. Ticks are after 0, which stands for none, and not after year 9999.
type Stamp int64

// maxStamp is the last second of year 9999, the last that RFC 3339 can write.
const maxStamp = Stamp(253402300799)

// StampOf is the second in which t lies; ok is false where it is not from 1970 to 9999.
func StampOf(t time.Time) (s Stamp, ok bool) {
	s = Stamp(t.Unix()) // of any time.Time, without overflow
	return s, s > 0 && s <= maxStamp
}

// Time is s as a time.Time.
func (s Stamp) Time() time.Time { return time.Unix(int64(s), 0).UTC() }

// String is the name of a tick; empty for none.
func (s Stamp) String() string {
	if s <= 0 {
		return ""
	}
	return s.Time().Format(time.RFC3339)
}

// ParseStamp is the inverse of String. ok is false for what String never says: another offset, a part of a second.
func ParseStamp(name string) (s Stamp, ok bool) {
	t, err := time.Parse(time.RFC3339, name)
	if err != nil {
		return 0, false
	}
	s, ok = StampOf(t)
	return s, ok && s.String() == name
}

// CatchUp says which ticks are made up for that were due while nobody could start them.
type CatchUp string

// What is made up for. None is started after startingDeadline.
const (
	// CatchUpSkip: none. A tick is started within OnTime of when it could have been, or never.
	CatchUpSkip CatchUp = "Skip"
	// CatchUpLatest: the newest.
	CatchUpLatest CatchUp = "Latest"
	// CatchUpAll: all, the oldest first; of more than MaxBacklog the oldest are missed.
	CatchUpAll CatchUp = "All"
)

// Overlap says what becomes of a tick that comes due while a run is under way.
type Overlap string

// What becomes of it.
const (
	// OverlapSkip: it is passed over.
	OverlapSkip Overlap = "Skip"
	// OverlapQueue: it waits for the run's end.
	OverlapQueue Overlap = "Queue"
	// OverlapReplace: the run is stopped for it.
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
	// MaxBacklog is how many ticks are made up for at most.
	MaxBacklog = 100
	// OnTime is how late a tick may be started under CatchUpSkip. Two clocks that agree make a start Tolerance late; the rest is
	// for the pod that takes the tick.
	OnTime = time.Minute
	// Tolerance is how far apart two clocks may be that agree.
	Tolerance = 30 * time.Second
)

// Spec is a schedule as a job says it. What is empty has its default: Etc/UTC, an hour, Latest, Skip.
type Spec struct {
	// Cron is five fields, each separated from the next by one space.
	Cron string
	// TimeZone is a name of the IANA tables.
	TimeZone string
	// StartingDeadline is how long after its instant a tick may be started.
	StartingDeadline time.Duration
	CatchUp          CatchUp
	Overlap          Overlap
}

// Schedule is a Spec that was found good.
type Schedule struct {
	spec Spec
	cron cron
	zone zone
}

// Parse checks a Spec. Its error names the field, the value and what to write instead.
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

// Spec is what s was parsed from, with its defaults.
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
