//go:build linux

package agent

import (
	"fmt"
	"strings"
	"syscall"
	"testing"
	"testing/synctest"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/singletonjob/operator/internal/contract"
	"github.com/singletonjob/operator/internal/lease"
	"github.com/singletonjob/operator/internal/probe"
	"github.com/singletonjob/operator/internal/schedule"
	"github.com/singletonjob/operator/internal/supervise"
)

// once has the process run to completion.
func once(o *Options) {
	o.Config.RunID = ""
	o.Config.Run = &contract.RunConfig{JobUID: "job-uid", BackoffLimit: 2, Leaves: true}
	o.Environ = []string{contract.TickEnv + "=of-nobody", "THEIRS=kept"}
	o.Argv = []string{"program", marked("$(" + contract.RunIDEnv + ")"), marked("$(" + contract.AttemptEnv + ")"), marked("$(" + contract.TickEnv + ")")}
}

// everyMinute has it run at each minute, by a schedule that is in the Lease from now on.
func (w *world) everyMinute() {
	w.Helper()
	s, err := schedule.Parse(schedule.Spec{Cron: "* * * * *"})
	if err != nil {
		w.Fatal(err)
	}
	now, _ := schedule.StampOf(time.Now())
	w.api.store(func(r *lease.Record) { r.Runs.Schedule, r.Runs.Facts.Settled = s, now })
}

// beginning is the next process, as it begins, and what it finds.
func (w *world) beginning() (start, map[string]string) {
	w.Helper()
	s := <-w.starts
	s.process.begin(nil)
	synctest.Wait()
	found := map[string]string{}
	for _, kv := range s.Env {
		name, value, _ := strings.Cut(kv, "=")
		if _, twice := found[name]; twice {
			w.Errorf("%s twice in %q", name, s.Env)
		}
		found[name] = value
	}
	return s, found
}

func (w *world) ends(s start, code int) {
	w.Helper()
	s.process.finish(supervise.Status{ExitCode: code})
	synctest.Wait()
}

func (w *world) logged(lines ...string) {
	w.Helper()
	synctest.Wait()
	for _, line := range lines {
		if !strings.Contains(w.log.String(), line+"\n") {
			w.Errorf("no %q in the log:\n%s", line, w.log)
		}
	}
}

func (w *world) same(what string, want, got any) {
	w.Helper()
	if diff := cmp.Diff(want, got); diff != "" {
		w.Errorf("%s (-want +got):\n%s", what, diff)
	}
}

// toldOf asserts what those are told who ask the agent: a run, or none.
func (w *world) toldOf(run string, attempt int32) {
	w.Helper()
	s := w.agent.snapshot.Load().status(int64(w.clock.Now().Boot))
	if s.Run != run || s.Attempt != attempt || s.Tick != strings.TrimPrefix(strings.TrimPrefix(run, "job-uid"), "/") {
		w.Errorf("told %+v", s)
	}
}

// leaves waits for the agent to end as one that has nothing more to do.
func (w *world) leaves() {
	w.Helper()
	if code := <-w.exited; code != 0 {
		w.Errorf("exit code %d", code)
	}
	w.exited <- 0
}

func (w *world) measured(samples ...string) {
	w.Helper()
	_, text := w.get(contract.MetricsPath)
	for _, sample := range samples {
		if !strings.Contains(text, "\nsingletonjob_agent_"+sample+"\n") {
			w.Errorf("no %s in\n%s", sample, text)
		}
	}
}

// A run is tried again until it has ended with 0, under one ID, with a new token each time; then its agent leaves.
func TestRunToCompletion(t *testing.T) {
	inBubbleWith(t, once, func(w *world) {
		begun := time.Now()
		first, found := w.beginning()
		want := map[string]string{
			"TOKEN": "10", contract.NameEnv: "job", contract.NamespaceEnv: "ns", contract.PodEnv: "pod", contract.TenureEnv: "1",
			contract.LeaseDurationEnv: "15s", contract.SocketEnv: "", "THEIRS": "kept", contract.RunIDEnv: "job-uid", contract.AttemptEnv: "1",
		}
		w.same("the environment", want, found)
		w.same("the command", []string{"program", "job-uid", "1", "$(" + contract.TickEnv + ")"}, first.Argv)
		w.ends(first, 3)
		second, found := w.beginning()
		if waited := time.Since(begun); waited < 10*time.Second {
			w.Errorf("tried again after %v", waited)
		}
		if found["TOKEN"] == "10" {
			w.Errorf("the second attempt finds %v", found)
		}
		w.same("the second attempt's run", []string{"job-uid", "2"}, []string{found[contract.RunIDEnv], found[contract.AttemptEnv]})
		w.toldOf("job-uid", 2)
		w.ends(second, 0)
		w.leaves()
		if r := w.api.present(); r.Runs.Now.State != lease.RunComplete || r.Runs.Now.Attempt != 2 || !r.Free() {
			w.Errorf("the Lease says %+v", r)
		}
		w.logged(
			"singletonjob: acquired token=10 tenure=1 run=job-uid attempt=1",
			"singletonjob: released token=10 reason=ProcessExited run=job-uid attempt=1 outcome=Failed",
			"singletonjob: released token="+found["TOKEN"]+" reason=ProcessExited run=job-uid attempt=2 outcome=Complete",
		)
		w.measured("attempts_total 2", `attempts_ended_total{outcome="Complete"} 1`, `attempts_ended_total{outcome="Failed"} 1`, "start_delay_seconds_count 0")
	})
}

// Ticks are run one after another by one agent, each process on its own: nothing of one is left to the next.
func TestRunsOfASchedule(t *testing.T) {
	var p *asked
	inBubbleWith(t, func(o *Options) {
		once(o)
		o.Config.Run.Leaves = false
		o.Config.Hooks.PreStop = &contract.Hook{Sleep: dur(time.Second)}
		p = &asked{says: map[int]probe.Result{readinessPort: well}, count: map[int]int{}}
		o.Config.Probes.Readiness, o.Check = tcpProbe(readinessPort, 0), p.check
	}, func(w *world) {
		zeroth, _ := w.beginning()
		w.ends(zeroth, 0)
		w.everyMinute()
		before := ""
		for i := range 3 {
			s, tick := w.onTime(before)
			before = tick
			w.toldOf("job-uid/"+tick, 1)
			w.after(22 * time.Second)
			w.expectReady("during a run")
			w.ends(s, 0)
			asked := p.times(readinessPort)
			w.expectReady("between two runs")
			w.after(15 * time.Second)
			w.same("how often who is gone is asked", asked, p.times(readinessPort))
			w.toldOf("", 0)
			if c := &w.agent.child; c.of != nil || c.process != nil || c.prober != nil || c.env != nil || c.run != (lease.Run{}) || c.started || c.killed || c.asked != 0 {
				w.Errorf("of run %d is left: %+v", i, c)
			}
			w.measured(fmt.Sprintf("start_delay_seconds_count %d", i+1), fmt.Sprintf("attempts_total %d", i+2))
		}
		if len(w.exited) > 0 {
			w.Error("the agent has left")
		}
	})
}

// onTime is the run of the next tick, as it begins, and that tick; before is the last one, empty if there was none.
func (w *world) onTime(before string) (s start, name string) {
	w.Helper()
	s, found := w.beginning()
	tick, ok := schedule.ParseStamp(found[contract.TickEnv])
	if late := time.Since(tick.Time()); !ok || late < 0 || late > 5*time.Second {
		w.Errorf("begun %v after %q", late, found[contract.TickEnv])
	}
	name = tick.String()
	w.same("the run and its attempt", []string{"job-uid/" + name, "1"}, []string{found[contract.RunIDEnv], found[contract.AttemptEnv]})
	if previous, there := found[contract.PreviousTickEnv]; there != (before != "") || previous != before {
		w.Errorf("the last tick that was completed is %q, want %q", previous, before)
	}
	return s, name
}

func (w *world) expectReady(when string) {
	w.Helper()
	if ready, why := w.ready(); !ready {
		w.Errorf("%s the candidate is not ready: %s", when, why)
	}
}

// A process that ends because it was asked to has not completed its run.
func TestRunThatIsAskedToEnd(t *testing.T) {
	inBubbleWith(t, once, func(w *world) {
		s, _ := w.beginning()
		w.signals <- syscall.SIGTERM
		synctest.Wait()
		w.ends(s, 0)
		<-w.exited
		w.exited <- 0
		if now := w.api.present().Runs.Now; now.State != lease.RunFailed || now.Reason != lease.ReasonPodTerminating {
			w.Errorf("the run is %+v", now)
		}
		w.logged("singletonjob: released token=10 reason=PodTerminating run=job-uid attempt=1 outcome=Failed")
	})
}

// The end of a run is kept until it can be stored, also when the Lease has run out.
func TestEndOfARunDuringAnOutage(t *testing.T) {
	inBubbleWith(t, once, func(w *world) {
		s, _ := w.beginning()
		w.api.hang()
		w.after(time.Second)
		w.ends(s, 0)
		w.after(10 * time.Minute)
		if len(w.exited) > 0 || w.api.present().Runs.Now.State != lease.RunRunning {
			w.Fatal("the end is told to nobody")
		}
		w.api.heal()
		w.leaves()
		if now := w.api.present().Runs.Now; now.State != lease.RunComplete || now.Attempt != 1 {
			w.Errorf("the run is %+v", now)
		}
	})
}

// A candidate tells that a run has failed whose last attempt's holder vanished.
func TestRunIsClosed(t *testing.T) {
	inBubbleWith(t, func(o *Options) { once(o); o.Config.Run.BackoffLimit = 0 }, func(w *world) {
		w.api.store(func(r *lease.Record) {
			r.Holder, r.Token, r.Duration, r.Release = "other/uid/x", 10, 15*time.Second, lease.Release{}
			r.Runs.Now = lease.Run{ID: "job-uid", Attempt: 1, State: lease.RunRunning, Token: 10, Pod: "other"}
		})
		w.after(time.Minute)
		if now := w.api.present().Runs.Now; now.State != lease.RunGivenUp || len(w.starts) > 0 || len(w.exited) > 0 {
			w.Errorf("the run is %+v, and %d processes start", now, len(w.starts))
		}
		w.logged("singletonjob: run closed run=job-uid attempt=1 outcome=GivenUp reason=LeaseExpired")
		w.measured(`attempts_ended_total{outcome="GivenUp"} 1`, "attempts_total 0")
	})
}

// An unreadable record of runs starts no run, and is logged once.
func TestBadRunsAreReported(t *testing.T) {
	inBubbleWith(t, once, func(w *world) {
		w.api.store(func(r *lease.Record) { r.Runs.Bad = "singletonjob.io/run={" })
		w.after(5 * time.Minute)
		if len(w.starts) > 0 || strings.Count(w.log.String(), "runs barred annotation=") != 1 {
			w.Errorf("%d processes start; log:\n%s", len(w.starts), w.log)
		}
		w.api.store(func(r *lease.Record) { r.Runs.Bad = "" })
		s, _ := w.beginning()
		w.ends(s, 0)
	})
}

// The log says once why a tick is not started, and no process begins. The reasons are a wrong clock, an API server that sends no time, and
// ticks that are settled in advance. A reason that went away and comes back is logged again.
func TestTicksThatAreNotStarted(t *testing.T) {
	for name, c := range map[string]struct {
		wrong func(*world)
		want  string
	}{
		"this clock is behind": {func(w *world) { w.api.ahead(5 * time.Minute) }, "reason=ClocksDisagree ahead=-5m"},
		"it is a day ahead":    {func(w *world) { w.api.ahead(-24 * time.Hour) }, "reason=ClocksDisagree ahead=24h"},
		"no Date":              {func(w *world) { w.api.ahead(noDate) }, "reason=NoServerClock note="},
		"settled in advance": {func(w *world) {
			w.api.store(func(r *lease.Record) { r.Runs.Facts.Settled += 24 * 60 * 60 })
		}, "reason=Ahead annotation="},
	} {
		t.Run(name, func(t *testing.T) {
			inBubbleWith(t, func(o *Options) { once(o); o.Config.Run.Leaves = false }, func(w *world) {
				zeroth, _ := w.beginning()
				w.ends(zeroth, 0)
				w.everyMinute()
				c.wrong(w)
				w.after(20 * time.Minute)
				if n := strings.Count(w.log.String(), "tick not started"); len(w.starts) > 0 || n != 1 || !strings.Contains(w.log.String(), "tick not started "+c.want) {
					w.Errorf("%d processes start, %d lines, want one with %s; log:\n%s", len(w.starts), n, c.want, w.log)
				}
				w.api.ahead(0)
				w.api.store(func(r *lease.Record) { r.Runs.Facts.Settled, _ = schedule.StampOf(time.Now()) })
				s, _ := w.beginning()
				w.ends(s, 0)
			})
		})
	}
}

// A clock that is right has nothing told of it.
func TestStartedTicksAreNotLogged(t *testing.T) {
	inBubbleWith(t, func(o *Options) { once(o); o.Config.Run.Leaves = false }, func(w *world) {
		zeroth, _ := w.beginning()
		w.ends(zeroth, 0)
		w.everyMinute()
		for range 3 {
			s, _ := w.beginning()
			w.ends(s, 0)
		}
		if strings.Contains(w.log.String(), "not started") {
			w.Errorf("log:\n%s", w.log)
		}
	})
}
