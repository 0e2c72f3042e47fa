// Package fencetest has tools to test sinks. [Run] is the conformance suite that every fenced sink
// passes. [Sink] is a toy sink with an HTTP API that checks, records and reports every write, and [Writer] is
// its client.
//
// The toy sink keeps mark and data in memory, so both are lost when its process ends. It is for
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
	// Writer is the writer's own name, such as that of a Pod or process. The sink trusts the token, not the name.
	Writer string `json:"writer"`
	// Seq is the writer's own count of its writes.
	Seq int64 `json:"seq"`
	// Sent is the writer's CLOCK_BOOTTIME when it sent the write, zero if unknown. It can be compared with At
	// only if both processes ran on the same machine.
	Sent time.Duration `json:"sentNanos,omitempty"`
	// At is the sink's CLOCK_BOOTTIME when it decided. Attempts are recorded in the order of their decisions.
	At time.Duration `json:"atNanos"`
	// Accepted reports whether the write was stored. All other attempts were refused as stale.
	Accepted bool `json:"accepted"`
}

// Sink is the toy sink. Its zero value is ready to use. It is safe for concurrent use and must not be copied.
type Sink struct {
	// Unfenced makes the sink store stale writes too, and record them. It shows what happens to a sink without a
	// fence. Set it before the first use.
	Unfenced bool
	// Now replaces the clock. Set it before the first use.
	Now func() time.Duration

	mu        sync.Mutex // guards all below; check, write and record are one step under it
	marks     map[fence.Resource]fence.Token
	attempts  []Attempt
	malformed int
}

// Write decides on one write, stores it and records it. It sets At and Accepted in the record, and returns
// the record. The error is a [*fence.StaleError], or says why the write is malformed. A write is stored only if the
// error is nil.
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

// countMalformed counts a write that could not be read as an Attempt.
func (s *Sink) countMalformed() {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.malformed++
}

// Attempts returns the recorded attempts from the given index on, oldest first. To follow a sink, call it again
// with the index where the last result ended.
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
