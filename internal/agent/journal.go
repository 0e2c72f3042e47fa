//go:build linux

package agent

import (
	"cmp"
	"errors"
	"fmt"
	"math/bits"
	"strings"
	"syscall"
	"time"

	"github.com/singletonjob/operator/internal/contract"
	"github.com/singletonjob/operator/internal/kubelease"
	"github.com/singletonjob/operator/internal/lease"
	"github.com/singletonjob/operator/internal/probe"
	"github.com/singletonjob/operator/internal/schedule"
)

// journal logs what happens to one Lease and its tenures. It logs only changes.
type journal struct {
	log                    *Log
	writes, reads, watches streak
	deletions              streak
	// held is the last logged reason why a tick was not started.
	held schedule.Verdict
	// probes are the failure streaks of the current process's probes, by probe.Kind.
	probes [3]streak
}

// maxHolder is the maximum number of bytes of a holder's identity in the log. An agent's identity is never longer.
const maxHolder = 400

// streak counts failures in a row. The 1st, 2nd, 4th, 8th … failure is logged.
type streak int

func (s *streak) failed(log *Log, event string, err error) {
	*s++
	if bits.OnesCount(uint(*s)) == 1 {
		log.Print(event, "failures", int(*s), "error", err)
	}
}

func (s *streak) succeeded(log *Log, event string) {
	if *s > 0 {
		log.Print(event, "failures", int(*s))
	}
	*s = 0
}

// observed logs a change of the Lease's holder.
func (j *journal) observed(before, after lease.Observation, me lease.Identity) {
	old, r := before.Record, after.Record
	switch {
	case !after.Known || before.Known && before.Absent == after.Absent && old.Holder == r.Holder && old.Token == r.Token && old.UID == r.UID:
	case after.Absent:
		j.log.Print("lease absent")
	case r.Holder == me.String(), r.Holder == "" && old.Holder == me.String(): // logged as a tenure
	case r.Holder == "":
		j.log.Print("lease free", "token", r.Token, "reason", r.Release.Reason)
	default:
		j.log.Print("lease held", "holder", contract.Cut(r.Holder, maxHolder), "token", r.Token)
	}
}

// soughtDeath logs once that another agent of this Pod may still live, and later that it is dead.
func (j *journal) soughtDeath(known lease.Death, holder string, dead bool) {
	switch {
	case known.Holder != holder || known.Proven:
	case !dead && !known.Seen:
		j.log.Print("earlier agent may live", "holder", contract.Cut(holder, maxHolder),
			"note", "an earlier agent of this Pod holds the Lease, and its lock is held or missing: the container runtime may have lost track of a container that still runs. This agent waits until the Lease expires")
	case dead && known.Seen:
		j.log.Print("earlier agent dead", "holder", contract.Cut(holder, maxHolder))
	}
}

// barred logs once why no agent can begin a tenure.
func (j *journal) barred(before, after lease.Observation) {
	_, was := before.Record.NextToken()
	_, is := after.Record.NextToken()
	r := after.Record
	switch {
	case is || !after.Known || after.Absent || before.Known && !was && before.Record.BadTokenBase == r.BadTokenBase:
	case r.BadTokenBase != "":
		j.log.Print("lease barred", "annotation", contract.TokenBaseAnnotation, "value", r.BadTokenBase,
			"note", fmt.Sprintf("it is not a number from 0 to %d, so no new tenure can get a token; the operator resets it, or you can set spec.fencing.tokenBase", int64(lease.MaxTokenBase)))
	default:
		j.log.Print("lease barred", "annotation", contract.TokenAnnotation, "value", r.Token,
			"note", "there is no higher token for a new tenure; set the annotation to the highest token that a sink has seen")
	}
}

func (j *journal) wrote(kind lease.Kind, outcome lease.Outcome, err error) {
	switch {
	case outcome == lease.Confirmed:
		j.writes.succeeded(j.log, "writing again")
	case outcome == lease.Conflict && kind == lease.Acquire: // another candidate acquired the Lease first
	default:
		j.writes.failed(j.log, word(kind)+" failing", err)
	}
}

// unanswered logs a write without an answer when the next write is sent.
func (j *journal) unanswered(kind lease.Kind, waited time.Duration) {
	j.writes.failed(j.log, word(kind)+" failing", fmt.Errorf("no answer for %v", waited))
}

// word is the name of a kind of write in the log and in the metrics.
func word(kind lease.Kind) string { return strings.ToLower(kind.String()) }

func (j *journal) read(err error) {
	if err != nil {
		j.reads.failed(j.log, "read failing", err)
		return
	}
	j.reads.succeeded(j.log, "reading again")
}

func (j *journal) watch(e kubelease.WatchEvent) {
	switch e.Kind {
	case kubelease.Opened:
		j.watches.succeeded(j.log, "watching again")
	case kubelease.Closed, kubelease.NotOpened:
		j.watches.failed(j.log, "watch failing", e.Err)
	case kubelease.Changed, kubelease.Deleted: // logged by observed
	}
}

func (j *journal) acquired(s lease.StartChild) {
	clear(j.probes[:])
	j.log.Print("acquired", append([]any{"token", s.Token, "tenure", s.Tenure}, attemptOf(s.Run)...)...)
}

// attemptOf returns the log values for an attempt of a run, or nil without a run.
func attemptOf(r lease.Run) []any {
	if r.ID == "" {
		return nil
	}
	return []any{"run", r.ID, "attempt", r.Attempt}
}

// badRuns logs once why no run begins.
func (j *journal) badRuns(before, after lease.Observation) {
	if bad := after.Record.Runs.Bad; bad != "" && bad != before.Record.Runs.Bad {
		j.log.Print("runs barred", "annotation", bad,
			"note", "it cannot be parsed, so it is unknown what has run, and no run starts: restore its earlier value, or remove it; without it no run is known")
	}
}

// unstarted logs why no tick is started, and by how much clocks differ. It logs a reason once, until a candidate begins a run.
func (j *journal) unstarted(why schedule.Verdict, apart time.Duration, begun bool) {
	switch {
	case begun:
		j.held = ""
		return
	case why == "" || why == j.held:
		return
	}
	j.held = why
	switch why {
	case schedule.ClocksDisagree:
		j.log.Print("tick not started", "reason", why, "ahead", apart.Round(time.Second),
			"note", fmt.Sprintf("the clocks of this node and of the API server differ by more than %v, so one of them is wrong: set it", schedule.Tolerance))
	case schedule.NoServerClock:
		j.log.Print("tick not started", "reason", why,
			"note", "the API server's responses have no Date header: let the proxy in front of it pass this header on")
	case schedule.Ahead:
		j.log.Print("tick not started", "reason", why, "annotation", contract.TickAnnotation,
			"note", "this time is in the future because a clock was wrong when it was written: no tick is due before it")
	default:
	}
}

// closed logs the end of a run whose holder vanished.
func (j *journal) closed(r lease.Run) {
	j.log.Print("run closed", append(attemptOf(r), "outcome", r.State, "reason", r.Reason)...)
}

// probed logs a failed probe, in a kubelet's words, and its next success.
func (j *journal) probed(k probe.Kind, r probe.Result, row int) {
	of, text := &j.probes[k], contract.Cut(r.Text, maxProbeText)
	switch r.Outcome {
	case probe.Failure:
		of.failed(j.log, k.String()+" probe failed", errors.New(text))
	case probe.Unknown:
		of.failed(j.log, k.String()+" probe errored", errors.New(text))
	case probe.Success:
		of.succeeded(j.log, k.String()+" probe succeeds again")
		if text != "" && row == 1 {
			j.log.Print(k.String()+" probe warning", "note", text)
		}
	}
}

func (j *journal) readiness(ready bool) {
	if ready {
		j.log.Print("ready")
		return
	}
	j.log.Print("not ready")
}

func (j *journal) terminated(s syscall.Signal, state lease.State) {
	j.log.Print("terminating", "signal", int(s), "phase", state.Phase)
}

// deletion logs that the grace period in force cannot be asked for. The process then gets its signal early.
func (j *journal) deletion(err error) {
	if err != nil {
		j.deletions.failed(j.log, "grace period unknown", err)
		return
	}
	j.deletions.succeeded(j.log, "grace period known")
}

// grace logs a grace period that is shorter than the template's.
func (j *journal) grace(period, template time.Duration) {
	if period < template {
		j.log.Print("grace period shortened", "to", period, "template", template)
	}
}

func (j *journal) stopping(s lease.State, grace, left time.Duration) {
	j.log.Print("stopping", "token", s.Tenure.Token, "reason", s.Stop.Reason, "grace", grace.Round(time.Millisecond), "time-left", left.Round(time.Millisecond))
}

func (j *journal) killing(s lease.State, left time.Duration) {
	j.log.Print("killing", "token", s.Tenure.Token, "reason", s.Stop.Reason, "time-left", left.Round(time.Millisecond))
}

// outlives logs why the tenure does not end: it lasts as long as one of its processes lives.
func (j *journal) outlives(s lease.State, since time.Duration) {
	j.log.Print("still alive after SIGKILL", "token", s.Tenure.Token, "for", since.Round(time.Second),
		"note", "the kernel cannot kill a process that waits for a device or a file server; the agent keeps the tenure until the process is gone")
}

func (j *journal) ended(e lease.TenureEnded, r lease.Run) {
	event := "released"
	if !e.Released {
		event = "lost"
	}
	words := append([]any{"token", e.Token, "reason", e.Reason}, attemptOf(r)...)
	if r.ID != "" {
		words = append(words, "outcome", outcomeOf(e))
	}
	j.log.Print(event, words...)
}

// outcomeOf returns the state of the run at the end of the tenure. It is unknown if the state could not be stored; the next attempt then
// decides.
func outcomeOf(e lease.TenureEnded) string {
	return cmp.Or(string(e.Run), "unknown")
}
