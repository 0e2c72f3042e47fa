package main

import (
	"cmp"
	"errors"
	"fmt"
	"slices"
	"time"

	"github.com/singletonjob/operator/fence"
	"github.com/singletonjob/operator/test/bench/sinks/offer"
)

// A Result is what became of the writes to one sink around one fault.
type Result struct {
	Fault  string `json:"fault"`
	Sink   string `json:"sink"`
	Fenced bool   `json:"fenced"`

	Offered  int `json:"offered"`
	Accepted int `json:"accepted"` // stored
	// StaleOffered counts writes of a past tenure that reached the sink after a later one had written there: those that it stored, and
	// those that it refused. StaleAccepted are the stored ones.
	StaleOffered  int `json:"staleOffered"`
	StaleAccepted int `json:"staleAccepted"`
	// Lost counts writes that were acknowledged and are not stored, WronglyRefused those that were refused as stale though no later tenure
	// has written.
	Lost           int `json:"lost"`
	WronglyRefused int `json:"wronglyRefused"`
	// Gap is the longest time without an acknowledged write, from the fault on, in nanoseconds.
	Gap time.Duration `json:"gap"`
}

// identity is what a write has of its own.
type identity struct {
	writer string
	seq    int
}

func of(w offer.Write) identity { return identity{w.Writer, w.Seq} }

// count takes the sink's own log, in the order in which its writes took effect. It also takes what the writers have reported of the writes
// that they sent after the fault, by their clock. Earlier entries of the log are not counted, but show which tenures have written.
func count(stored []offer.Write, before int, reports []offer.Report, since time.Duration) Result {
	var r Result
	var highest fence.Token
	all, kept := map[identity]bool{}, map[identity]bool{}
	for i, w := range stored {
		kept[of(w)] = true
		if i >= before {
			all[of(w)] = true
		}
		if i >= before && w.Token < highest {
			r.StaleAccepted++
		}
		highest = max(highest, w.Token)
	}
	for _, report := range reports {
		if report.Sent < since {
			continue
		}
		all[of(report.Write)] = true
		switch {
		case report.Outcome == offer.Accepted && !kept[of(report.Write)]:
			r.Lost++
		case report.Outcome == offer.Stale && report.Token >= highest:
			r.WronglyRefused++
		case report.Outcome == offer.Stale:
			r.StaleOffered++
		}
	}
	r.Offered, r.Accepted = len(all), len(stored)-before
	r.StaleOffered += r.StaleAccepted
	r.Gap = gap(reports, since)
	return r
}

// gap is between two acknowledged writes, of whichever process, the second of them since the fault.
func gap(reports []offer.Report, since time.Duration) (longest time.Duration) {
	acknowledged := slices.DeleteFunc(slices.Clone(reports), func(r offer.Report) bool { return r.Outcome != offer.Accepted })
	slices.SortFunc(acknowledged, func(a, b offer.Report) int { return cmp.Compare(a.At, b.At) })
	for i := 1; i < len(acknowledged); i++ {
		if acknowledged[i].At > since {
			longest = max(longest, acknowledged[i].At-acknowledged[i-1].At)
		}
	}
	return longest
}

// judge says what a result proves wrong, or that it proves nothing. A process that is gone with its node offers nothing: silent.
func (r Result) judge(silent bool) error {
	fail := func(format string, args ...any) error {
		return fmt.Errorf("%s, %s: %w", r.Fault, r.Sink, fmt.Errorf(format, args...))
	}
	var errs []error
	if r.Fenced && r.StaleAccepted > 0 {
		errs = append(errs, fail("SAFETY: %d stale writes were stored", r.StaleAccepted))
	}
	if r.Fenced && r.Lost > 0 {
		errs = append(errs, fail("%d acknowledged writes are not stored", r.Lost))
	}
	if r.Fenced && r.WronglyRefused > 0 {
		errs = append(errs, fail("%d writes were refused though no later tenure has written", r.WronglyRefused))
	}
	if !silent && r.StaleOffered == 0 {
		errs = append(errs, fail("no stale write was offered, which proves nothing"))
	}
	if !silent && !r.Fenced && r.StaleAccepted == 0 {
		errs = append(errs, fail("no stale write was stored, though nothing would refuse one"))
	}
	return errors.Join(errs...)
}
