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

// journal puts into words what happens to one Lease and its tenures, for the log. It says nothing while nothing changes.
type journal struct {
	log                    *Log
	writes, reads, watches streak
	// held is why a tick is not started, as it was told last.
	held schedule.Verdict
	// probes are of the present process: by probe.Kind.
	probes [3]streak
}

// maxHolder bounds what is recorded of a holder's name, in bytes; no agent's is longer.
const maxHolder = 400

// streak counts failures in a row. A long one is recorded at its 1st, 2nd, 4th, 8th … failure.
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

// observed records a Lease that changed hands.
func (j *journal) observed(before, after lease.Observation, me lease.Identity) {
	old, r := before.Record, after.Record
	switch {
	case !after.Known || before.Known && before.Absent == after.Absent && old.Holder == r.Holder && old.Token == r.Token && old.UID == r.UID:
	case after.Absent:
		j.log.Print("lease absent")
	case r.Holder == me.String(), r.Holder == "" && old.Holder == me.String(): // recorded as a tenure
	case r.Holder == "":
		j.log.Print("lease free", "token", r.Token, "reason", r.Release.Reason)
	default:
		j.log.Print("lease held", "holder", contract.Cut(r.Holder, maxHolder), "token", r.Token)
	}
}

// soughtDeath records that another agent of this pod may live, once, and that it is dead after that.
func (j *journal) soughtDeath(known lease.Death, holder string, dead bool) {
	switch {
	case known.Holder != holder || known.Proven:
	case !dead && !known.Seen:
		j.log.Print("earlier agent may live", "holder", contract.Cut(holder, maxHolder),
			"note", "it is of this pod, and its lock is not free or not found: the container runtime may have lost a container that runs on. This agent waits until the lease has run out")
	case dead && known.Seen:
		j.log.Print("earlier agent dead", "holder", contract.Cut(holder, maxHolder))
	}
}

// barred records, once, why nobody can begin a tenure.
func (j *journal) barred(before, after lease.Observation) {
	_, was := before.Record.NextToken()
	_, is := after.Record.NextToken()
	r := after.Record
	switch {
	case is || !after.Known || after.Absent || before.Known && !was && before.Record.BadTokenBase == r.BadTokenBase:
	case r.BadTokenBase != "":
		j.log.Print("lease barred", "annotation", contract.TokenBaseAnnotation, "value", r.BadTokenBase,
			"note", fmt.Sprintf("it is not a number from 0 to %d, so that no new tenure can have a token; the operator resets it, or set spec.fencing.tokenBase", int64(lease.MaxTokenBase)))
	default:
		j.log.Print("lease barred", "annotation", contract.TokenAnnotation, "value", r.Token,
			"note", "there is no greater token for a new tenure; set the annotation to the greatest token that a sink has seen")
	}
}

func (j *journal) wrote(kind lease.Kind, outcome lease.Outcome, err error) {
	switch {
	case outcome == lease.Confirmed:
		j.writes.succeeded(j.log, "writing again")
	case outcome == lease.Conflict && kind == lease.Acquire: // another candidate was faster
	default:
		j.writes.failed(j.log, word(kind)+" failing", err)
	}
}

// unanswered records a write that another goes out beside now.
func (j *journal) unanswered(kind lease.Kind, waited time.Duration) {
	j.writes.failed(j.log, word(kind)+" failing", fmt.Errorf("no answer for %v", waited))
}

// word is what a kind of writes is called, in the metrics too.
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
	case kubelease.Changed, kubelease.Deleted: // recorded by observed
	}
}

func (j *journal) acquired(s lease.StartChild) {
	clear(j.probes[:])
	j.log.Print("acquired", append([]any{"token", s.Token, "tenure", s.Tenure}, attemptOf(s.Run)...)...)
}

// attemptOf are the words for an attempt of a run, none without one.
func attemptOf(r lease.Run) []any {
	if r.ID == "" {
		return nil
	}
	return []any{"run", r.ID, "attempt", r.Attempt}
}

// badRuns records, once, why no run begins.
func (j *journal) badRuns(before, after lease.Observation) {
	if bad := after.Record.Runs.Bad; bad != "" && bad != before.Record.Runs.Bad {
		j.log.Print("runs barred", "annotation", bad,
			"note", "it can't be read, so that nobody knows what was run; without it no run is known: remove it, or put back what was there")
	}
}

// unstarted records, once until anybody has begun a run, why no tick is started, and of clocks that differ by how much.
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
			"note", fmt.Sprintf("this machine's clock and the API server's are more than %v apart, so one of them is wrong: set it", schedule.Tolerance))
	case schedule.NoServerClock:
		j.log.Print("tick not started", "reason", why,
			"note", "no answer of the API server has told the time, in a header Date: let the proxy before it pass that")
	case schedule.Ahead:
		j.log.Print("tick not started", "reason", why, "annotation", contract.TickAnnotation,
			"note", "all ticks are accounted for up to an instant that is yet to come, since clocks were wrong: none is due until then")
	default:
	}
}

// closed records the end of a run whose holder vanished.
func (j *journal) closed(r lease.Run) {
	j.log.Print("run closed", append(attemptOf(r), "outcome", r.State, "reason", r.Reason)...)
}

// probed records what is wrong with a process, in a kubelet's words, and when it is well again.
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

func (j *journal) stopping(s lease.State, grace, left time.Duration) {
	j.log.Print("stopping", "token", s.Tenure.Token, "reason", s.Stop.Reason, "grace", grace.Round(time.Millisecond), "time-left", left.Round(time.Millisecond))
}

func (j *journal) killing(s lease.State, left time.Duration) {
	j.log.Print("killing", "token", s.Tenure.Token, "reason", s.Stop.Reason, "time-left", left.Round(time.Millisecond))
}

// outlives records why nothing goes on: the tenure lasts for as long as anything of it lives.
func (j *journal) outlives(s lease.State, since time.Duration) {
	j.log.Print("still alive after SIGKILL", "token", s.Tenure.Token, "for", since.Round(time.Second),
		"note", "the kernel can't end what waits for a device or a file server; the tenure is not given up before it is gone")
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

// outcomeOf is how far a run has got with a tenure's end. What was not stored is for the next attempt to find out.
func outcomeOf(e lease.TenureEnded) string {
	return cmp.Or(string(e.Run), "unknown")
}
