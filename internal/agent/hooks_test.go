//go:build linux

package agent

import (
	"slices"
	"syscall"
	"testing"
	"testing/synctest"
	"time"

	"github.com/singletonjob/operator/internal/contract"
	"github.com/singletonjob/operator/internal/lease"
	"github.com/singletonjob/operator/internal/supervise"
)

func withHooks(h contract.Hooks) func(*Options) {
	return func(o *Options) { o.Config.Hooks = h }
}

var aCommand = &contract.Hook{Exec: []string{"hook"}}

func (p *fakeProcess) sent() []syscall.Signal {
	_, signals, _ := p.state()
	return signals
}

var sigterm = []syscall.Signal{syscall.SIGTERM}

func TestPostStart(t *testing.T) {
	t.Run("succeeds", func(t *testing.T) {
		inBubbleWith(t, withHooks(contract.Hooks{PostStart: aCommand}), func(w *world) {
			p := w.holding()
			(<-p.execs).result <- supervise.ExecResult{}
			time.Sleep(time.Minute)
			if _, _, killed := p.state(); killed {
				t.Errorf("killed; log:\n%s", w.log)
			}
			p.finish(supervise.Status{})
		})
	})
	t.Run("fails", func(t *testing.T) {
		inBubbleWith(t, withHooks(contract.Hooks{PostStart: aCommand}), func(w *world) {
			(<-w.holding().execs).result <- supervise.ExecResult{Status: supervise.Status{ExitCode: 1}}
			if code := <-w.exited; code != 128+9 {
				t.Errorf("exit code %d, want that of SIGKILL", code)
			}
			w.exited <- 0
			if r := w.api.present(); r.Holder != "" || r.Release.Reason != lease.ReasonPostStartFailed || !r.Release.Unclean {
				t.Errorf("released %+v", r.Release)
			}
		})
	})
	// A process that was asked to end is not to be told that it failed.
	t.Run("fails when it ends", func(t *testing.T) {
		inBubbleWith(t, withHooks(contract.Hooks{PostStart: aCommand}), func(w *world) {
			p := w.holding()
			w.signals <- syscall.SIGTERM
			synctest.Wait()
			(<-p.execs).result <- supervise.ExecResult{Status: supervise.Status{ExitCode: 1}}
			synctest.Wait()
			p.finish(supervise.Status{})
			w.exited <- <-w.exited
			if r := w.api.present(); r.Release.Reason != lease.ReasonPodTerminating {
				t.Errorf("released %+v", r.Release)
			}
		})
	})
}

// The process hears of its end when its hook is over, and no earlier.
func TestPreStop(t *testing.T) {
	planned := map[string]func(*world){
		"pod ends": func(w *world) { w.signals <- syscall.SIGTERM },
		"handover": func(w *world) { w.api.store(func(r *lease.Record) { r.Handover = lease.Handover{To: "other"} }) },
	}
	for name, begin := range planned {
		t.Run(name, func(t *testing.T) {
			inBubbleWith(t, withHooks(contract.Hooks{PreStop: aCommand}), func(w *world) {
				p := w.holding()
				begin(w)
				x := <-p.execs
				grace := time.Duration(testOptions().Config.GracePeriod)
				if x.Timeout <= 0 || x.Timeout >= grace {
					t.Errorf("the hook may take %v of %v", x.Timeout, grace)
				}
				synctest.Wait()
				if sent := p.sent(); len(sent) > 0 {
					t.Errorf("%v while the hook runs", sent)
				}
				x.result <- supervise.ExecResult{Status: supervise.Status{ExitCode: 1}} // its failure changes nothing
				synctest.Wait()
				if sent := p.sent(); !slices.Equal(sent, sigterm) {
					t.Errorf("%v after the hook, want SIGTERM", sent)
				}
				p.finish(supervise.Status{})
			})
		})
	}
}

// The lease is renewed meanwhile: a hook has the pod's time, however short the lease, and a pod told to stop again hurries nothing.
func TestPreStopHasThePodsTime(t *testing.T) {
	long := func(o *Options) {
		o.Config.Hooks = contract.Hooks{PreStop: aCommand}
		o.Config.GracePeriod = contract.Duration(2 * time.Minute)
	}
	inBubbleWith(t, long, func(w *world) {
		p := w.holding()
		w.signals <- syscall.SIGTERM
		x := <-p.execs
		if x.Timeout < 110*time.Second || x.Timeout >= 2*time.Minute {
			t.Errorf("the hook may take %v of 2m", x.Timeout)
		}
		w.signals <- syscall.SIGTERM
		time.Sleep(100 * time.Second)
		synctest.Wait()
		if sent := p.sent(); len(sent) > 0 {
			t.Errorf("%v while the hook runs", sent)
		}
		x.result <- supervise.ExecResult{}
		synctest.Wait()
		if sent := p.sent(); !slices.Equal(sent, sigterm) {
			t.Errorf("%v after the hook, want SIGTERM once", sent)
		}
		p.finish(supervise.Status{})
	})
}

// A pause that would take all of the grace period leaves the process some of it.
func TestPreStopThatTakesLong(t *testing.T) {
	inBubbleWith(t, withHooks(contract.Hooks{PreStop: &contract.Hook{Sleep: contract.Duration(time.Hour)}}), func(w *world) {
		p := w.holding()
		w.signals <- syscall.SIGTERM
		synctest.Wait()
		if sent := p.sent(); len(sent) > 0 {
			t.Errorf("%v while the hook runs", sent)
		}
		w.exited <- <-w.exited
		if sent := p.sent(); !slices.Equal(sent, sigterm) {
			t.Errorf("%v in all, want SIGTERM before SIGKILL", sent)
		}
	})
}

// Who may not act any more, or soon may not, has no time for a hook.
func TestNoPreStopWithoutTime(t *testing.T) {
	for name, row := range map[string]struct {
		happens func(*world)
		want    []syscall.Signal
	}{
		"cut off": {func(w *world) { w.api.hang() }, sigterm},
		"lost":    {func(w *world) { w.api.store(func(r *lease.Record) { r.Holder = "other/uid/nonce" }) }, nil},
	} {
		t.Run(name, func(t *testing.T) {
			inBubbleWith(t, withHooks(contract.Hooks{PreStop: aCommand}), func(w *world) {
				p := w.holding()
				row.happens(w)
				<-p.Gone()
				if len(p.execs) > 0 || !slices.Equal(p.sent(), row.want) {
					t.Errorf("%d hooks, %v; want none, and %v", len(p.execs), p.sent(), row.want)
				}
			})
		})
	}
}

// An API server that is out of reach while the hook runs cuts it short.
func TestPreStopOfAHolderThatIsCutOff(t *testing.T) {
	long := func(o *Options) {
		o.Config.Hooks = contract.Hooks{PreStop: aCommand}
		o.Config.GracePeriod = contract.Duration(time.Hour)
	}
	inBubbleWith(t, long, func(w *world) {
		p := w.holding()
		w.signals <- syscall.SIGTERM
		x := <-p.execs
		w.api.hang()
		<-p.Gone() // by the deadline
		if sent := p.sent(); !slices.Equal(sent, sigterm) {
			t.Errorf("%v, want SIGTERM before the deadline", sent)
		}
		x.result <- supervise.ExecResult{Err: supervise.ErrStopped}
		w.api.heal()
		w.exited <- <-w.exited
	})
}

// A standby runs no hook, nor does a process that has ended.
func TestNoHookWithoutAProcess(t *testing.T) {
	inBubbleWith(t, withHooks(contract.Hooks{PostStart: aCommand, PreStop: aCommand}), func(w *world) {
		s := <-w.starts
		w.signals <- syscall.SIGTERM
		synctest.Wait()
		if len(s.process.execs) > 0 || !slices.Equal(s.process.sent(), sigterm) {
			t.Errorf("%d hooks, signals %v of a process that was only being started", len(s.process.execs), s.process.sent())
		}
		s.process.finish(supervise.Status{})
	})
}
