// Package probe decides what the results of a process's probes mean, and when the next check is due: what a kubelet does for
// a container, for the process of one tenure.
//
// It is pure: results and instants come in, and whether the process has started, is ready or must end comes out. Package
// check asks the process.
package probe

import (
	"fmt"
	"time"

	"github.com/singletonjob/operator/internal/contract"
)

// Kind is one of the three probes.
type Kind uint8

// The kinds of probes.
const (
	Startup Kind = iota
	Liveness
	Readiness
	kinds
)

func (k Kind) String() string { return [...]string{"startup", "liveness", "readiness"}[k] }

// Outcome is what one check found out.
type Outcome uint8

// What a check may find out.
const (
	// Unknown: the check itself could not be made. It counts for nothing.
	Unknown Outcome = iota
	Failure
	Success
)

func (o Outcome) String() string { return [...]string{"unknown", "failure", "success"}[o] }

// Result is what a check found out, in words too.
type Result struct {
	Outcome Outcome
	// Text says what was wrong, or that a success was a doubtful one. It may be empty, and is of other people's words.
	Text string
}

// Passed is a success without more to say of it.
func Passed() Result { return Result{Outcome: Success} }

// Failed is a failure and why.
func Failed(format string, args ...any) Result {
	return Result{Outcome: Failure, Text: fmt.Sprintf(format, args...)}
}

// State is all that is remembered of a process's probes. Begin makes one; each method returns the next.
type State struct {
	probes [kinds]*contract.Probe
	runs   [kinds]run
	// stopping: the process was asked to end.
	stopping bool

	started, ready, failed bool
	failure                Kind
}

// run is how one probe stands.
type run struct {
	// due is when the next check is; meaningless while asking.
	due time.Time
	// asking: a check is under way.
	asking bool
	// over: nothing is asked any more.
	over bool
	last Outcome
	row  int // how many results in a row were like the last one
}

// Begin is the state of a process that starts to run now. What is not asked for is well: without probes it has started and
// is ready at once.
func Begin(p contract.Probes, now time.Time) State {
	s := State{probes: [kinds]*contract.Probe{p.Startup, p.Liveness, p.Readiness}, started: p.Startup == nil, ready: p.Readiness == nil}
	for k, p := range s.probes {
		if p != nil {
			s.runs[k].due = now.Add(time.Duration(p.InitialDelay))
		}
	}
	return s
}

// Started reports whether the startup probe has succeeded.
func (s State) Started() bool { return s.started }

// Ready reports whether the process can do its work, as far as it says.
func (s State) Ready() bool { return s.started && s.ready }

// Failed reports whether the process must end, and which probe says so.
func (s State) Failed() (k Kind, failed bool) { return s.failure, s.failed }

// Row is how many results in a row a probe has had that are like the last one.
func (s State) Row(k Kind) int { return s.runs[k].row }

// Stopping is the state of a process that was asked to end. That it is no longer alive soon is no fault of its, so nothing
// more is asked but whether it is ready: a process that drains may say that it is not.
func (s State) Stopping() State {
	s.stopping = true
	return s
}

// asked reports whether a probe is to be asked now or later, as things stand.
func (s State) asked(k Kind) bool {
	switch {
	case s.probes[k] == nil || s.runs[k].over:
		return false
	case k == Startup:
		return !s.stopping
	case k == Liveness:
		return !s.stopping && s.started
	}
	return s.started
}

// Due are the checks to begin now. Each must be answered by Answered, and is not due again before.
func (s State) Due(now time.Time) (State, []Kind) {
	var due []Kind
	for k := range kinds {
		if r := &s.runs[k]; s.asked(k) && !r.asking && !now.Before(r.due) {
			r.asking = true
			due = append(due, k)
		}
	}
	return s, due
}

// Wake is when Due has something, unless a result comes before; zero if nothing is due without one.
func (s State) Wake() time.Time {
	var at time.Time
	for k := range kinds {
		if r := s.runs[k]; s.asked(k) && !r.asking && (at.IsZero() || r.due.Before(at)) {
			at = r.due
		}
	}
	return at
}

// Answered takes note of a check's result. Checks keep to the beat of their period: one that took longer is followed by
// another at once, and what was missed besides is not made up for.
func (s State) Answered(k Kind, o Outcome, now time.Time) State {
	r, p := &s.runs[k], s.probes[k]
	r.asking = false
	period := time.Duration(p.Period)
	r.due = r.due.Add(max(period, now.Sub(r.due).Truncate(period)))
	if o == Unknown || !s.asked(k) {
		return s
	}
	if r.last != o {
		r.last, r.row = o, 0
	}
	r.row++
	switch {
	case o == Success && r.row >= p.SuccessThreshold:
		return s.succeeded(k, now)
	case o == Failure && r.row >= p.FailureThreshold:
		return s.failedFor(k)
	}
	return s
}

func (s State) succeeded(k Kind, now time.Time) State {
	switch k {
	case Startup:
		s.started, s.runs[k].over = true, true
		for later := Liveness; later < kinds; later++ { // the beat of the others begins here
			if r := &s.runs[later]; r.due.Before(now) {
				r.due = now
			}
		}
	case Readiness:
		s.ready = true
	default: // what is alive need not be told so
	}
	return s
}

func (s State) failedFor(k Kind) State {
	if k == Readiness {
		s.ready = false
		return s
	}
	s.failed, s.failure, s.runs[k].over = true, k, true
	return s
}
