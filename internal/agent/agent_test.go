//go:build linux

package agent

import (
	"errors"
	"fmt"
	"slices"
	"strings"
	"sync/atomic"
	"syscall"
	"testing"
	"testing/synctest"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/singletonjob/operator/internal/contract"
	"github.com/singletonjob/operator/internal/lease"
	"github.com/singletonjob/operator/internal/sender"
	"github.com/singletonjob/operator/internal/supervise"
)

func TestTenure(t *testing.T) {
	inBubble(t, func(w *world) {
		p := w.holding()
		time.Sleep(time.Minute)
		synctest.Wait()
		deadline, signals, killed := p.state()
		left := time.Duration(deadline - int64(w.clock.Now().Boot))
		// Renewed every 2 s, so the leash has at least 15 s − 1 s − 2 s and what a request takes.
		if left < 11*time.Second || left > 14*time.Second || len(signals) > 0 || killed {
			t.Errorf("after a minute the leash has %v, signals %v, killed %t", left, signals, killed)
		}
		if n, _ := w.api.counts(); n < 28 || n > 32 {
			t.Errorf("%d writes in a minute, want one every 2 s", n)
		}
		w.signals <- syscall.SIGTERM
		synctest.Wait()
		if _, signals, _ := p.state(); !slices.Equal(signals, []syscall.Signal{syscall.SIGTERM}) {
			t.Errorf("signals %v, want SIGTERM once", signals)
		}
		w.signals <- syscall.SIGINT
		synctest.Wait()
		if _, signals, _ := p.state(); !slices.Equal(signals, []syscall.Signal{syscall.SIGTERM, syscall.SIGINT}) {
			t.Errorf("signals %v, want an impatient second one forwarded", signals)
		}
		p.finish(supervise.Status{ExitCode: 42})
		if code := <-w.exited; code != 42 {
			t.Errorf("exit code %d, want the process's, 42", code)
		}
		w.exited <- 0
		if r := w.api.present(); r.Holder != "" || r.Release.Reason != lease.ReasonPodTerminating {
			t.Errorf("the Lease is not released: %+v", r)
		}
	})
}

// The main process's end is not the end of what it has started: until that is reaped the tenure continues.
func TestReleaseWaitsForEveryProcess(t *testing.T) {
	inBubble(t, func(w *world) {
		p := w.holding()
		p.mu.Lock()
		p.immortal = true
		p.mu.Unlock()
		p.exit(supervise.Status{ExitCode: 3})
		time.Sleep(time.Minute)
		synctest.Wait()
		if r := w.api.present(); r.Holder == "" {
			t.Errorf("released (%s) while something of the process lives", r.Release.Reason)
		}
		if n, _ := w.api.counts(); n < 25 {
			t.Errorf("%d writes in a minute: the tenure is not renewed meanwhile", n)
		}
		p.finish(supervise.Status{})
		if code := <-w.exited; code != 3 {
			t.Errorf("exit code %d, want the main process's", code)
		}
		w.exited <- 0
		if r := w.api.present(); r.Holder != "" || r.Release.Reason != lease.ReasonProcessExited {
			t.Errorf("not released: %+v", r)
		}
	})
}

// An end that was not the process's own making is unclean, so that lockDelay applies.
func TestCrashIsUnclean(t *testing.T) {
	for name, row := range map[string]struct {
		status supervise.Status
		want   bool
	}{
		"in order":    {supervise.Status{}, false},
		"by a signal": {supervise.Status{ExitCode: -1, Signal: syscall.SIGSEGV}, true},
		"by its code": {supervise.Status{ExitCode: 1}, true},
	} {
		inBubble(t, func(w *world) {
			w.holding().finish(row.status)
			w.exited <- <-w.exited
			if r := w.api.present(); r.Release.Unclean != row.want || r.Holder != "" {
				t.Errorf("ended %s: unclean %t, holder %q", name, r.Release.Unclean, r.Holder)
			}
		})
	}
}

// A signal that stops a standby is forwarded to the process once it runs.
func TestSignalsOfAnActiveProcess(t *testing.T) {
	for _, sig := range []syscall.Signal{syscall.SIGQUIT, syscall.SIGUSR1, syscall.SIGUSR2, syscall.SIGHUP, syscall.SIGWINCH, SIGRTMIN3} {
		inBubble(t, func(w *world) {
			p := w.holding()
			w.signals <- sig
			time.Sleep(time.Minute)
			synctest.Wait()
			if _, signals, killed := p.state(); !slices.Equal(signals, []syscall.Signal{sig}) || killed || w.phase() != "Holding" {
				t.Errorf("after %v: signals %v, killed %t, phase %s", sig, signals, killed, w.phase())
			}
		})
	}
}

// The agent's own variables do not reach the process.
func TestEnvironmentOfTheProcess(t *testing.T) {
	inBubbleWith(t, func(o *Options) {
		o.Environ = []string{"THEIRS=kept"}
		for _, name := range contract.AgentsEnv() {
			o.Environ = append(o.Environ, name+"=the-agent's")
		}
	}, func(w *world) {
		p := w.holding()
		if !slices.Contains(p.spec.Env, "THEIRS=kept") {
			t.Errorf("the environment %q lacks what the container was given", p.spec.Env)
		}
		for _, kv := range p.spec.Env {
			if strings.HasSuffix(kv, "=the-agent's") {
				t.Errorf("%s is in the environment", kv)
			}
		}
	})
}

// A kubelet has expanded these as far as it could.
func TestReferencesToAgentVariables(t *testing.T) {
	inBubbleWith(t, func(o *Options) {
		o.Environ = []string{
			"OPTIONS=" + marked("-Dfence=$(TOKEN) -Dlease=$(SINGLETONJOB_LEASE_DURATION) $(UNKNOWN)"), "ESCAPED=$$(TOKEN)", "OTHER=$(TOKEN)",
		}
	}, func(w *world) {
		p := w.holding()
		for _, want := range []string{"OPTIONS=-Dfence=10 -Dlease=15s $(UNKNOWN)", "ESCAPED=$$(TOKEN)", "OTHER=$(TOKEN)"} {
			if !slices.Contains(p.spec.Env, want) {
				t.Errorf("the environment %q lacks %q", p.spec.Env, want)
			}
		}
	})
}

// A Lease that is deleted is lost at once, though its last state names this holder.
func TestDeletionIsALoss(t *testing.T) {
	inBubble(t, func(w *world) {
		p := w.holding()
		w.api.mu.Lock()
		close(w.api.gone)
		w.api.mu.Unlock()
		synctest.Wait()
		if _, signals, killed := p.state(); !killed || len(signals) > 0 {
			t.Errorf("killed %t, signals %v; want killed without grace", killed, signals)
		}
		if !strings.Contains(w.log.String(), "reason=LeaseDeleted") {
			t.Errorf("the log does not say why:\n%s", w.log)
		}
	})
}

// A container is stopped by the signal that its image names. Without a process it can mean nothing else.
func TestStopSignals(t *testing.T) {
	for _, sig := range []syscall.Signal{syscall.SIGTERM, syscall.SIGINT, syscall.SIGQUIT, syscall.SIGUSR1, syscall.SIGWINCH, SIGRTMIN3} {
		inBubble(t, func(w *world) {
			w.api.store(func(r *lease.Record) { r.Holder, r.Duration = "other/uid/x", 15*time.Second })
			synctest.Wait()
			w.signals <- syscall.SIGHUP
			w.signals <- sig
			if code := <-w.exited; code != 0 {
				t.Errorf("a standby ends by %v with %d", sig, code)
			}
			w.exited <- 0
		})
	}
}

// From outside of the container each signal that an agent hears is the runtime's, and ends a standby.
func TestEverySignalFromOutsideEndsAStandby(t *testing.T) {
	for _, name := range contract.StopSignals() {
		inBubbleWith(t, func(o *Options) { o.Terminal = true }, func(w *world) {
			w.api.store(func(r *lease.Record) { r.Holder, r.Duration = "other/uid/x", 15*time.Second })
			synctest.Wait()
			w.signals <- sender.Outside(contract.SignalNumber(name))
			if code := <-w.exited; code != 0 {
				t.Errorf("a standby ends by %s with %d", name, code)
			}
			w.exited <- 0
		})
	}
}

// A terminal that is resized sends SIGWINCH, too, and does not end a standby.
func TestStandbyOnATerminal(t *testing.T) {
	inBubbleWith(t, func(o *Options) { o.Terminal = true }, func(w *world) {
		w.api.store(func(r *lease.Record) { r.Holder, r.Duration = "other/uid/x", 15*time.Second })
		synctest.Wait()
		w.signals <- syscall.SIGWINCH
		synctest.Wait()
		select {
		case code := <-w.exited:
			t.Errorf("it ended with %d", code)
		default:
		}
	})
}

func TestCrashed(t *testing.T) {
	for name, row := range map[string]struct {
		asked  syscall.Signal
		status supervise.Status
		want   bool
	}{
		"exits 0":                     {0, supervise.Status{}, false},
		"exits 1":                     {0, supervise.Status{ExitCode: 1}, true},
		"was asked and exits 1":       {syscall.SIGTERM, supervise.Status{ExitCode: 1}, true},
		"was asked and says so":       {syscall.SIGTERM, supervise.Status{ExitCode: 143}, false},
		"says so and was not asked":   {0, supervise.Status{ExitCode: 143}, true},
		"was asked by another signal": {syscall.SIGINT, supervise.Status{ExitCode: 143}, true},
		"was killed":                  {syscall.SIGTERM, supervise.Status{ExitCode: -1, Signal: syscall.SIGKILL}, true},
		"did not handle the signal":   {syscall.SIGTERM, supervise.Status{ExitCode: -1, Signal: syscall.SIGTERM}, true},
	} {
		if got := (&child{asked: row.asked}).crashed(row.status); got != row.want {
			t.Errorf("%s: crashed %t", name, got)
		}
	}
}

// While every request hangs, signals and deadlines are heeded as ever, and the number of those that hang is bounded.
func TestHungRequestsBlockNothing(t *testing.T) {
	inBubble(t, func(w *world) {
		p := w.holding()
		w.api.hang()
		w.signals <- syscall.SIGHUP
		time.Sleep(9 * time.Second)
		synctest.Wait()
		if _, signals, _ := p.state(); !slices.Equal(signals, []syscall.Signal{syscall.SIGHUP}) {
			t.Errorf("signals %v, want SIGHUP at once", signals)
		}
		if _, n := w.api.counts(); n > 18 {
			t.Errorf("%d requests hang, want at most 9 writes and 9 reads", n)
		}
		time.Sleep(2 * time.Second) // past renewDeadline
		synctest.Wait()
		if _, signals, _ := p.state(); !slices.Contains(signals, syscall.SIGTERM) {
			t.Errorf("signals %v, want SIGTERM after renewDeadline", signals)
		}
		time.Sleep(4 * time.Second) // past the deadline
		synctest.Wait()
		if _, _, killed := p.state(); !killed {
			t.Error("not killed by the deadline")
		}
		w.api.heal()
		next := w.holding()
		if _, _, killed := next.state(); killed {
			t.Error("the next tenure's process is killed")
		}
	})
}

// After a sleep of the machine the clock is far ahead of Go's timers: what hung before does not hang on.
func TestSuspend(t *testing.T) {
	inBubble(t, func(w *world) {
		p := w.holding()
		w.api.hang()
		time.Sleep(3 * time.Second) // a renewal is under way
		w.clock.suspend(time.Hour)
		synctest.Wait()
		if _, _, killed := p.state(); !killed {
			t.Error("the process lives an hour after its last renewal")
		}
		if left := w.agent.snapshot.Load().Left(int64(w.clock.Now().Boot)); left > 0 {
			t.Errorf("the tenure is said to be valid for %v", left)
		}
		time.Sleep(time.Millisecond)
		synctest.Wait()
		if _, hung := w.api.counts(); hung > 2 {
			t.Errorf("%d requests hang, those from before the sleep too", hung)
		}
	})
}

// A machine may sleep in mid-tenure, with no request under way. What it slept is gone from the tenure, and a wake-up that comes
// late has more of it kept back (starvation): what is left continues.
func TestSuspendMidTenure(t *testing.T) {
	for slept, killed := range map[time.Duration]bool{5 * time.Second: false, 12 * time.Second: true, 14 * time.Second: true, 1000 * time.Hour: true} {
		inBubble(t, func(w *world) {
			p := w.holding()
			time.Sleep(time.Second)
			w.clock.suspend(slept)
			synctest.Wait()
			_, signals, got := p.state()
			left := w.agent.snapshot.Load().Left(int64(w.clock.Now().Boot))
			if got != killed || len(signals) > 0 || left > 0 == killed {
				t.Errorf("slept for %v: killed %t, signals %v, valid for %v", slept, got, signals, left)
			}
			time.Sleep(time.Minute)
			synctest.Wait()
			if deadline, _, got := p.state(); !killed && (got || deadline < int64(w.clock.Now().Boot)) {
				t.Errorf("slept for %v: the tenure did not go on", slept)
			}
		})
	}
}

// A token of before, in the environment or in an argument, would be a token that is used again.
func TestEveryTenureHasItsToken(t *testing.T) {
	inBubble(t, func(w *world) {
		var last int64
		for range 3 {
			p := w.holding()
			token := w.api.present().Token
			if token <= last {
				t.Errorf("token %d after %d", token, last)
			}
			last = token
			if want := []string{"program", fmt.Sprintf("--token=%d", token)}; !slices.Equal(p.spec.Argv, want) {
				t.Errorf("started as %q, want %q", p.spec.Argv, want)
			}
			if want := fmt.Sprintf("TOKEN=%d", token); !slices.Contains(p.spec.Env, want) {
				t.Errorf("the environment %q lacks %s", p.spec.Env, want)
			}
			w.api.hang() // until the tenure is lost
			time.Sleep(15 * time.Second)
			w.api.heal()
		}
	})
}

// A process that SIGKILL does not end keeps its tenure, and the log says ever less often why nothing continues.
func TestProcessThatCannotBeKilled(t *testing.T) {
	inBubble(t, func(w *world) {
		p := w.holding()
		p.mu.Lock()
		p.immortal = true
		p.mu.Unlock()
		w.signals <- syscall.SIGTERM
		time.Sleep(time.Duration(testOptions().Config.GracePeriod) + time.Minute)
		synctest.Wait()
		if _, _, killed := p.state(); !killed {
			t.Fatal("it is not killed when the grace period is over")
		}
		if r := w.api.present(); r.Holder == "" {
			t.Error("the Lease is released, and the process lives")
		}
		if n := strings.Count(w.log.String(), "still alive after SIGKILL"); n != 4 {
			t.Errorf("told %d times in a minute, want after about 5, 10, 20 and 40 s:\n%s", n, w.log)
		}
		p.end()
		<-w.exited
		w.exited <- 0
		if r := w.api.present(); r.Holder != "" {
			t.Errorf("the Lease is not released: %+v", r)
		}
	})
}

// exec may hang. Signals for the process reach its leash meanwhile.
func TestStartHangs(t *testing.T) {
	for _, keep := range []bool{false, true} {
		t.Run(fmt.Sprintf("renewed, KeepRunning %t", keep), func(t *testing.T) {
			inBubbleWith(t, func(o *Options) { o.Config.KeepRunning = keep }, func(w *world) {
				s := <-w.starts
				w.signals <- syscall.SIGUSR1
				time.Sleep(time.Minute)
				synctest.Wait()
				deadline, signals, killed := s.process.state()
				if !slices.Equal(signals, []syscall.Signal{syscall.SIGUSR1}) || killed {
					t.Errorf("signals %v, killed %t; want SIGUSR1 alone", signals, killed)
				}
				if left := time.Duration(deadline - int64(w.clock.Now().Boot)); left < 10*time.Second || left > 14*time.Second {
					t.Errorf("%v left for a process that is being started and renewed", left)
				}
				s.process.begin(nil)
				synctest.Wait()
				if got := w.phase(); got != "Holding" {
					t.Errorf("phase %s, want Holding", got)
				}
			})
		})
	}
	t.Run("killed before it is there", func(t *testing.T) {
		inBubble(t, func(w *world) {
			s := <-w.starts
			w.api.store(func(r *lease.Record) { r.Holder = "somebody/else/x" })
			synctest.Wait()
			if _, _, killed := s.process.state(); !killed {
				t.Error("the Lease was lost while the process was started; it was not killed")
			}
			time.Sleep(time.Minute)
			if strings.Contains(w.log.String(), "still alive") {
				t.Errorf("nothing was started, and is said to live:\n%s", w.log)
			}
		})
	})
}

func TestStartFails(t *testing.T) {
	for name, test := range map[string]struct {
		err  error
		code int
	}{
		"not found":  {err: &supervise.StartError{Op: "execute", Path: "x", Err: syscall.ENOENT}, code: 127},
		"no right":   {err: &supervise.StartError{Op: "execute", Path: "x", Err: syscall.EACCES}, code: 126},
		"no process": {err: errors.New("out of processes"), code: 70},
	} {
		t.Run(name, func(t *testing.T) {
			inBubble(t, func(w *world) {
				s := <-w.starts
				s.process.begin(test.err)
				if code := <-w.exited; code != test.code {
					t.Errorf("exit code %d, want %d", code, test.code)
				}
				w.exited <- 0
				if r := w.api.present(); r.Release.Reason != lease.ReasonProcessExited {
					t.Errorf("the Lease is not released: %+v", r)
				}
			})
		})
	}
}

// A program that was not started for want of time ends as if it had been killed, and not as by a defect of the agent.
func TestStartCode(t *testing.T) {
	for _, c := range []struct {
		err  error
		code int
	}{
		{&supervise.StartError{Op: "execute", Path: "none", Err: syscall.ENOENT}, 127},
		{&supervise.StartError{Op: "execute", Path: "text", Err: syscall.EACCES}, 126},
		{supervise.ErrDeadlinePassed, 137},
		{supervise.ErrLeashKilled, 137},
		{supervise.ErrStopped, 137},
		{syscall.EAGAIN, contract.ExitInternal},
	} {
		if code := StartCode(fmt.Errorf("start: %w", c.err)); code != c.code {
			t.Errorf("%v: exit code %d, want %d", c.err, code, c.code)
		}
	}
}

// A start that comes too late does not count as the program's failure: the agent stays.
func TestStartAfterDeadline(t *testing.T) {
	inBubble(t, func(w *world) {
		s := <-w.starts
		w.api.hang()
		time.Sleep(14 * time.Second)
		s.process.begin(supervise.ErrDeadlinePassed)
		w.api.heal()
		w.holding()
		if got := w.phase(); got != "Holding" {
			t.Errorf("phase %s, want Holding", got)
		}
	})
}

func TestDefiniteLoss(t *testing.T) {
	inBubble(t, func(w *world) {
		p := w.holding()
		w.api.store(func(r *lease.Record) { r.Holder, r.Token = "other/uid/x", r.Token+1 })
		synctest.Wait()
		if _, signals, killed := p.state(); !killed || len(signals) > 0 {
			t.Errorf("killed %t, signals %v; want killed without grace", killed, signals)
		}
		if got := w.phase(); got != "Waiting" {
			t.Errorf("phase %s, want Waiting", got)
		}
	})
}

// The watch is asked to begin again, once, however often the state machine asks before it does.
func TestRestartWatch(t *testing.T) {
	inBubble(t, func(w *world) {
		p := w.holding()
		c := w.agent.contender
		w.agent.post(c, func() lease.Event {
			for range 3 {
				w.agent.do(c, lease.RestartWatch{}, w.clock.Now())
			}
			return nil
		})
		synctest.Wait()
		if n := len(c.restartWatch); n != 1 {
			t.Errorf("%d restarts are asked for, want 1", n)
		}
		p.end()
	})
}

// The client learns what is known of the Lease, so that it asks several servers about what contradicts it.
func TestReadPassesKnownState(t *testing.T) {
	inBubble(t, func(w *world) {
		p := w.holding()
		c := w.agent.contender
		w.agent.post(c, func() lease.Event {
			now := w.clock.Now()
			w.agent.do(c, lease.SendRead{ID: 99, Deadline: now.Boot.Add(time.Second), Floor: 7}, now)
			return nil
		})
		synctest.Wait()
		w.api.mu.Lock()
		floor := w.api.floor
		w.api.mu.Unlock()
		if floor != 7 {
			t.Errorf("it says that revision %d is known, want 7", floor)
		}
		p.end()
	})
}

func TestJournal(t *testing.T) {
	inBubble(t, func(w *world) {
		p := w.holding()
		quiet := w.log.String()
		time.Sleep(10 * time.Minute)
		synctest.Wait()
		if got := w.log.String(); got != quiet {
			t.Errorf("it is not quiet in steady state: %s", strings.TrimPrefix(got, quiet))
		}
		w.api.hang()
		time.Sleep(5 * time.Second)
		w.api.heal()
		time.Sleep(5 * time.Second)
		w.signals <- syscall.SIGTERM
		synctest.Wait()
		p.finish(supervise.Status{ExitCode: 0})
		<-w.exited
		w.exited <- 0
		synctest.Wait()
		got := strings.Split(strings.TrimSpace(w.log.String()), "\n")
		want := []string{
			`singletonjob: watch failing failures=1 error="a first attempt that fails"`,
			`singletonjob: watching again failures=1`,
			`singletonjob: lease free token=0 reason=Created`,
			`singletonjob: acquired token=10 tenure=1`,
			`singletonjob: renew failing failures=1 error="no answer for 500ms"`,
			`singletonjob: renew failing failures=2 error="no answer for 1s"`,
			`singletonjob: renew failing failures=4 error="no answer for 1s"`,
			`singletonjob: writing again failures=4`,
			`singletonjob: terminating signal=15 phase=Holding`,
			`singletonjob: stopping token=10 reason=PodTerminating grace=6s time-left=13.749s`,
			`singletonjob: exited status="exit code 0"`,
			`singletonjob: released token=10 reason=PodTerminating`,
		}
		if diff := cmp.Diff(want, got); diff != "" {
			t.Errorf("log (-want +got):\n%s", diff)
		}
	})
}

// The next start is prepared once while the agent competes, also after a tenure that was lost, and not by an agent that ends.
func TestTheNextStartIsPrepared(t *testing.T) {
	var prepared atomic.Int64
	inBubbleWith(t, func(o *Options) { o.Prepare = func() { prepared.Add(1) } }, func(w *world) {
		expect := func(when string, want int64) {
			t.Helper()
			synctest.Wait()
			if got := prepared.Load(); got != want {
				t.Errorf("%s: prepared %d times, want %d", when, got, want)
			}
		}
		w.holding()
		expect("while the process runs", 1)
		time.Sleep(time.Minute)
		expect("after a minute", 1)
		w.api.hang() // until the tenure is lost
		time.Sleep(15 * time.Second)
		expect("after a tenure that was lost", 2)
		w.api.heal()
		w.holding().finish(supervise.Status{})
		w.exited <- <-w.exited
		expect("at the end", 2)
	})
}
