// Package fencetest holds what a sink is tested with: [Run], the conformance suite that every fenced sink
// passes, and [Sink], a toy sink behind HTTP that checks, records and reports every write, with a [Writer] for
// its other end.
//
// The toy sink keeps mark and data in memory, so both go together when its process ends. It is for
// demonstrations and tests and has no authentication.
package fencetest

import (
	"errors"
	"sync"
	"time"

	"github.com/singletonjob/operator/fence"
)

// Attempt is one well-formed write that reached the sink.
type Attempt struct {
	Resource fence.Resource `json:"resource"`
	Token    fence.Token    `json:"token"`
	// Writer is who says that it is the writer: a pod, a process. The sink trusts the token, not the name.
	Writer string `json:"writer"`
	// Seq is the writer's own count of its writes.
	Seq int64 `json:"seq"`
	// Sent is the writer's CLOCK_BOOTTIME when it sent the write, zero if it does not say. It compares with At
	// only on one machine.
	Sent time.Duration `json:"sentNanos,omitempty"`
	// At is the sink's CLOCK_BOOTTIME when it decided. Attempts are recorded in the order of their decisions.
	At time.Duration `json:"atNanos"`
	// Accepted says whether the write was stored. All others were refused as stale.
	Accepted bool `json:"accepted"`
}

// Sink is the toy sink. The zero value is ready to use, by any number of goroutines; it must not be copied.
type Sink struct {
	// Unfenced makes the sink store stale writes too, and record them: it shows what a sink without a
	// fence would suffer. Set it before the first use.
	Unfenced bool
	// Now replaces the clock. Set it before the first use.
	Now func() time.Duration

	mu        sync.Mutex // guards all below; check, write and record are one step under it
	marks     map[fence.Resource]fence.Token
	attempts  []Attempt
	malformed int
}

// Write decides on one write, stores and records it. It sets At and Accepted of what it records, and returns
// the record. The error is a [*fence.StaleError], or says why the write is no well-formed one; only
// a write without an error was stored.
func (s *Sink) Write(a Attempt) (Attempt, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if _, err := fence.ParseResource(string(a.Resource)); err != nil {
		s.malformed++
		return a, err
	}
	mark, err := fence.Gate{Resource: a.Resource}.Accept(s.marks[a.Resource], a.Token)
	if err != nil && !errors.Is(err, fence.ErrStale) {
		s.malformed++
		return a, err
	}
	if s.Unfenced {
		err = nil
	}
	if s.marks == nil {
		s.marks = make(map[fence.Resource]fence.Token)
	}
	s.marks[a.Resource] = mark
	a.At, a.Accepted = s.now(), err == nil
	s.attempts = append(s.attempts, a)
	return a, err
}

// countMalformed counts a write that could not even be made an Attempt.
func (s *Sink) countMalformed() {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.malformed++
}

// Attempts returns what was recorded from the given index on, oldest first: to follow a sink, ask again
// from the index where the last answer ended.
func (s *Sink) Attempts(from int) []Attempt {
	s.mu.Lock()
	defer s.mu.Unlock()
	from = min(max(from, 0), len(s.attempts))
	return append([]Attempt{}, s.attempts[from:]...)
}

// Report sums up everything recorded so far.
func (s *Sink) Report() Report {
	s.mu.Lock()
	defer s.mu.Unlock()
	report := Summarize(s.attempts)
	report.Malformed = s.malformed
	return report
}

func (s *Sink) now() time.Duration {
	if s.Now != nil {
		return s.Now()
	}
	return Boottime()
}
