// Package probe evaluates the results of a process's probes and decides when the next check is due. It does for the process of one tenure
// what a kubelet does for a container.
//
// The package is pure. Its input is results and instants. Its output is whether the process has started, is ready or must end. Package
// check makes the checks.
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

// Outcome is the outcome of one check.
type Outcome uint8

// The outcomes of a check.
const (
	// Unknown: the check could not be made. It does not count.
	Unknown Outcome = iota
	Failure
	Success
)

func (o Outcome) String() string { return [...]string{"unknown", "failure", "success"}[o] }

// Result is the outcome of a check with a text.
type Result struct {
	Outcome Outcome
	// Text says what failed, or why a success is doubtful. It can be empty, and can contain text from the process.
	Text string
}

// Passed returns a success without a text.
func Passed() Result { return Result{Outcome: Success} }

// Failed returns a failure with the reason.
func Failed(format string, args ...any) Result {
	return Result{Outcome: Failure, Text: fmt.Sprintf(format, args...)}
}

// State is the state of a process's probes. Begin returns the first one, and each method that changes it returns the next.
type State struct {
	probes [kinds]*contract.Probe
	runs   [kinds]run
	// stopping: the process was asked to end.
	stopping bool

	started, ready, failed bool
	failure                Kind
}

// run is the state of one probe.
type run struct {
	// due is the time of the next check. It has no meaning while asking is set.
	due time.Time
	// asking: a check is in progress.
	asking bool
	// over: there are no more checks.
	over bool
	last Outcome
	row  int // number of results in a row that equal the last one
}

// Begin returns the state of a process that starts now. A process without a startup probe has started, and one without a readiness probe is
// ready as soon as it has started.
func Begin(p contract.Probes, now time.Time) State {
	s := State{probes: [kinds]*contract.Probe{p.Startup, p.Liveness, p.Readiness}, started: p.Startup == nil, ready: p.Readiness == nil}
	for k, p := range s.probes {
		if p != nil {
			s.runs[k].due = now.Add(time.Duration(p.InitialDelay))
		}
	}
	if s.started {
		s = s.spread()
	}
	return s
}

// spread delays liveness, by less than its period, so that its checks never begin at the same time as those of readiness. They come as far
// apart as their periods allow: a check that starts a command needs CPU time of the container's own limit.
func (s State) spread() State {
	liveness, readiness := s.probes[Liveness], s.probes[Readiness]
	if liveness == nil || readiness == nil {
		return s
	}
	beat := greatestDivisor(time.Duration(liveness.Period), time.Duration(readiness.Period))
	apart := s.runs[Liveness].due.Sub(s.runs[Readiness].due) % beat // can be negative
	s.runs[Liveness].due = s.runs[Liveness].due.Add((beat/2 - apart + beat) % beat)
	return s
}

// greatestDivisor returns the greatest common divisor.
func greatestDivisor(a, b time.Duration) time.Duration {
	for b != 0 {
		a, b = b, a%b
	}
	return a
}

// Started reports whether the startup probe has succeeded.
func (s State) Started() bool { return s.started }

// Ready reports whether the process is ready according to its probes.
func (s State) Ready() bool { return s.started && s.ready }

// Failed reports whether the process must end, and which probe has failed.
func (s State) Failed() (k Kind, failed bool) { return s.failure, s.failed }

// Row returns how many results in a row of a probe equal its last one.
func (s State) Row(k Kind) int { return s.runs[k].row }

// Stopping returns the state of a process that was asked to end. Only readiness is still checked, because a draining process can report
// that it is not ready. A process that then stops answering does not fail startup or liveness.
func (s State) Stopping() State {
	s.stopping = true
	return s
}

// asked reports whether a probe has a check due, now or later, in this state.
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

// Due returns the checks to begin now. Report the result of each with Answered; until then the check is not due again.
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

// Wake returns when the next check is due, unless a result arrives earlier. It is zero if no check is due without a result.
func (s State) Wake() time.Time {
	var at time.Time
	for k := range kinds {
		if r := s.runs[k]; s.asked(k) && !r.asking && (at.IsZero() || r.due.Before(at)) {
			at = r.due
		}
	}
	return at
}

// Answered records the result of a check. Checks keep the rhythm of their period. If a check took longer than its period, the next one
// follows at once, and further missed checks are skipped.
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
		for later := Liveness; later < kinds; later++ { // the period of the others begins now
			if r := &s.runs[later]; r.due.Before(now) {
				r.due = now
			}
		}
		s = s.spread()
	case Readiness:
		s.ready = true
	default: // a live process needs no action
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
