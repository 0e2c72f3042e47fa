package model

import (
	"slices"
	"time"

	"github.com/singletonjob/operator/internal/lease"
)

// begins judges the start of a process for an attempt.
func (w *world) begins(attempt int32) {
	now := w.api.lease.Runs.Now
	switch {
	case !w.m.runs:
		return
	case now.ID == "", !now.Open() && !w.api.absent:
		w.violated(RunTwice, "attempt %d begins, and the Lease says %q", attempt, now.State)
	case attempt <= w.begun:
		w.violated(RunTwice, "attempt %d begins after attempt %d", attempt, w.begun)
	}
	w.begun = max(w.begun, attempt)
}

// runIs judges the state of a run that is written to the store.
func (w *world) runIs(by int, was, is lease.Record) {
	if !w.m.runs || was.Runs.Now == is.Runs.Now {
		return
	}
	now, before := is.Runs.Now, was.Runs.Now
	w.say("store", "%s: attempt %d is %s (%s)", author(by), now.Attempt, now.State, now.Reason)
	switch {
	case before.ID != "" && !before.Open():
		w.violated(RunTwice, "%s says %s after %s", author(by), now.State, before.State)
	case before.ID != "" && now.ID != before.ID:
		w.violated(RunTwice, "%s calls the run %s, which is %s", author(by), now.ID, before.ID)
	case is.Holder != "":
		w.runGoesOn(by, before, now)
	default:
		w.runEnds(by, before, now)
	}
	w.told = w.now
}

// runGoesOn judges the attempt that an acquire stores.
func (w *world) runGoesOn(by int, before, now lease.Run) {
	again := now.Attempt == before.Attempt && now.Attempt > w.begun
	next := now.Attempt == before.Attempt+1 && now.Attempt-now.Ignored <= mostAttempts
	switch waited := w.now - w.told; {
	case now.State != lease.RunRunning || !again && !next || now.Ignored != before.Ignored:
		w.mistold(by, before, now)
	case next && isOwn(before) && waited < ticksOf(betweenAttempts<<(before.Attempt-1)):
		w.violated(RunTooSoon, "%s begins attempt %d %v after the end of the last one", author(by), now.Attempt, time.Duration(waited)*tick)
	}
}

func (w *world) mistold(by int, before, now lease.Run) {
	w.violated(RunMistold, "%s makes attempt %d, %s, of attempt %d, %s", author(by), now.Attempt, now.State, before.Attempt, before.State)
}

// isOwn reports whether an attempt has failed by a fault of its process.
func isOwn(r lease.Run) bool {
	return r.State == lease.RunFailed && slices.Contains(ownFaults, r.Reason)
}

var ownFaults = []lease.Reason{lease.ReasonProcessExited, lease.ReasonPreActivateFailed, lease.ReasonLivenessFailed}

// runEnds judges the end of an attempt that a release stores.
func (w *world) runEnds(by int, before, now lease.Run) {
	complete := w.completed == now.Attempt
	own := by >= 0 && w.agents[by].state.Tenure.Token == now.Token
	w.ignores(by, before, now, own)
	switch {
	case now.Attempt != before.Attempt || now.State == lease.RunRunning || now.Attempt-now.Ignored > mostAttempts:
		w.mistold(by, before, now)
	case now.State == lease.RunComplete && !complete, own && complete && now.State != lease.RunComplete:
		w.violated(RunMistold, "%s says that attempt %d is %s, and that it is complete is %v", author(by), now.Attempt, now.State, complete)
	case now.State == lease.RunGivenUp && now.Attempt-now.Ignored < mostAttempts:
		w.violated(RunMistold, "%s gives up after attempt %d", author(by), now.Attempt)
	}
}

// ignores judges whether the end of an attempt counts. own means that its holder stores it.
func (w *world) ignores(by int, before, now lease.Run, own bool) {
	told, ignored := now.Ignored-before.Ignored, own && w.ignored == now.Attempt
	if told != 0 && (told != 1 || !ignored) || told == 0 && ignored && now.Reason == lease.ReasonProcessExited {
		w.violated(RunMistold, "%s ignores %d attempts at the end of attempt %d (%s)", author(by), told, now.Attempt, now.Reason)
	}
}
