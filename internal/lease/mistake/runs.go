package mistake

import (
	"slices"

	"github.com/singletonjob/operator/internal/lease"
	"github.com/singletonjob/operator/internal/schedule"
)

// InRuns are mistakes where processes run to completion: of the state machine, or of the operator.
var InRuns = map[string]Mistake{
	"tick from memory": {
		Why:  "another agent may have started it",
		Step: before(settledFromMemory),
	},
	"start recorded after it": {
		Why:  "an agent that dies in between has started a run that nobody knows of",
		Step: rewriteAcquire(func(_ lease.Config, s lease.State, r *lease.Record) { r.Runs = s.Observed.Record.Runs }),
	},
	"completion in a second write": {
		Why:  "if the agent dies in between, a run is repeated that it has reported as over",
		Step: rewriteRelease(func(_ lease.State, now *lease.Run) { now.State = lease.RunRunning }),
	},
	"exit 0 after SIGTERM is complete": {
		Why: "many programs exit with 0 in the middle of their work",
		Step: rewriteRelease(func(s lease.State, now *lease.Run) {
			if s.Stop.Signalled && s.Tree.Exited && s.Tree.Code == 0 {
				now.State = lease.RunComplete
			}
		}),
	},
	"the next replaces a run that still dies": {
		Why: "the process that was asked to stop works beside it",
		Step: treeGoneOn(func(s lease.State, _ []lease.Action) bool {
			return s.Stop.Reason == lease.ReasonReplaced && s.Stop.Signalled && s.Tree.Alive
		}),
	},
	"a retry under a new name": {
		Why: "the sink cannot recognize that it has done the work",
		Step: rewriteAcquire(func(_ lease.Config, _ lease.State, r *lease.Record) {
			if r.Runs.Now.Attempt > 1 {
				r.Runs.Now.ID += "-again"
			}
		}),
	},
	"an ignored attempt counts": {
		Why: "the run is given up too early",
		Step: rewriteRelease(func(s lease.State, now *lease.Run) {
			now.Ignored = s.Observed.Record.Runs.Now.Ignored
		}),
	},
	"an attempt that others end is ignored": {
		Why: "a run whose nodes are lost begins again and again",
		Step: rewriteAcquire(func(_ lease.Config, s lease.State, r *lease.Record) {
			if was := s.Observed.Record.Runs.Now; was.State == lease.RunRunning && r.Runs.Now.Attempt > was.Attempt {
				r.Runs.Now.Ignored++
			}
		}),
	},
	"a code is ignored after SIGTERM": {
		Why: "the code says that the process was stopped, not why it failed",
		Step: rewriteRelease(func(s lease.State, now *lease.Run) {
			if s.Stop.Signalled && now.Code != 0 {
				now.Ignored++
			}
		}),
	},
	"attempts counted in memory": {
		Why: "no other agent knows the count",
		Step: rewriteAcquire(func(_ lease.Config, s lease.State, r *lease.Record) {
			if s.Past == nil {
				r.Runs.Now.Attempt = 1
			}
		}),
	},
	"ticks counted when they are told": {
		Why: "the next agent that looks counts them again",
		Step: rewriteAcquire(func(_ lease.Config, s lease.State, r *lease.Record) {
			r.Runs.Missed += r.Runs.Missed - s.Observed.Record.Runs.Missed
		}),
	},
	"a backfill settles its tick": {
		Why: "the schedule goes on as if there had been no such run",
		Step: rewriteAcquire(func(_ lease.Config, _ lease.State, r *lease.Record) {
			r.Runs.Facts.Settled = max(r.Runs.Facts.Settled, r.Runs.Now.Tick)
		}),
	},
	"the last attempt's end is left to the next run": {
		Why:  "without a next run nobody says that it failed",
		Step: neverCloses,
	},
	"the next attempt follows at once": {
		Why:  "what fails at once would be started again and again",
		Step: before(noBackoff),
	},
	"a schedule from memory": {
		Why:  "the job may have another schedule by now",
		Step: before(scheduleFromMemory),
	},
	"what a restore forgot is remembered": {
		Why:  "the Lease's counts went back too, so the ticks in between are in none of them",
		Step: before(settledOnlyGrows),
	},
	"operator believes one server's clock": {Why: "a server clock that is a day ahead settles a day of ticks"},
	"operator settles nothing":             {Why: "ticks of the new cron from before it was written are run"},
	"due by the wall clock alone": {
		Why:  "a clock that is a day ahead uses up the ticks of a day",
		Step: before(wallDecides),
	},
}

func settledFromMemory(c lease.Config, s lease.State, _ lease.Time, e lease.Event) (lease.Config, lease.State, lease.Event) {
	return c, s, rewriteRecord(e, func(r *lease.Record) {
		if was := s.Observed.Record; s.Observed.Known && r.UID == was.UID {
			r.Runs.Facts.Settled = was.Runs.Facts.Settled
		}
	})
}

func noBackoff(c lease.Config, s lease.State, _ lease.Time, e lease.Event) (lease.Config, lease.State, lease.Event) {
	return c, s, rewriteRecord(e, func(r *lease.Record) {
		if now := &r.Runs.Now; now.State == lease.RunFailed && now.Reason != lease.ReasonNotBegun {
			now.Reason = lease.ReasonPodTerminating // not the process's own fault
		}
	})
}

func scheduleFromMemory(c lease.Config, s lease.State, _ lease.Time, e lease.Event) (lease.Config, lease.State, lease.Event) {
	return c, s, rewriteRecord(e, func(r *lease.Record) {
		if was := s.Observed.Record; s.Observed.Known && r.UID == was.UID {
			r.Runs.Schedule = was.Runs.Schedule
		}
	})
}

func settledOnlyGrows(c lease.Config, s lease.State, _ lease.Time, e lease.Event) (lease.Config, lease.State, lease.Event) {
	return c, s, rewriteRecord(e, func(r *lease.Record) {
		if was := s.Observed.Record; s.Observed.Known && r.UID == was.UID {
			r.Runs.Facts.Settled = max(r.Runs.Facts.Settled, was.Runs.Facts.Settled)
		}
	})
}

// rewriteRelease changes what a release stores of the run.
func rewriteRelease(change func(s lease.State, now *lease.Run)) Step {
	return func(c lease.Config, s lease.State, t lease.Time, e lease.Event) (lease.State, []lease.Action) {
		next, actions := lease.Step(c, s, t, e)
		for i, action := range actions {
			if w, ok := action.(lease.SendWrite); ok && w.Attempt.Kind == lease.ReleaseLease {
				change(next, &w.Attempt.Record.Runs.Now)
				actions[i] = w
				next.Write = &w.Attempt
			}
		}
		return next, actions
	}
}

func neverCloses(c lease.Config, s lease.State, t lease.Time, e lease.Event) (lease.State, []lease.Action) {
	next, actions := lease.Step(c, s, t, e)
	closes := func(a lease.Action) bool {
		w, ok := a.(lease.SendWrite)
		return ok && w.Attempt.Kind == lease.Close
	}
	if slices.ContainsFunc(actions, closes) {
		next.Write = nil
		actions = slices.DeleteFunc(actions, closes)
	}
	return next, actions
}

// wallDecides assumes that the API server's clock shows the same as its own.
func wallDecides(c lease.Config, s lease.State, t lease.Time, e lease.Event) (lease.Config, lease.State, lease.Event) {
	s.Server = lease.ServerClock{Date: int64(schedule.Stamp(t.Wall / 1_000_000)), At: t.Boot}
	return c, s, e
}
