//go:build linux

package agent

import (
	"context"
	"errors"
	"slices"
	"strings"
	"syscall"
	"testing"
	"testing/synctest"
	"time"

	"github.com/singletonjob/operator/internal/contract"
	"github.com/singletonjob/operator/internal/lease"
	"github.com/singletonjob/operator/internal/probe"
	"github.com/singletonjob/operator/internal/sender"
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
	// As a kubelet's container, it has its preStop hook, its signal and the pod's time.
	t.Run("fails", func(t *testing.T) {
		inBubbleWith(t, withHooks(contract.Hooks{PostStart: aCommand, PreStop: aCommand}), func(w *world) {
			p := w.holding()
			(<-p.execs).result <- supervise.ExecResult{Status: supervise.Status{ExitCode: 1}}
			synctest.Wait()
			if len(p.execs) == 0 {
				t.Error("no preStop")
				return
			}
			stops := <-p.execs
			if ready, why := w.ready(); ready || len(p.sent()) > 0 || w.phase() != "Stopping" {
				t.Errorf("%s, ready: %t %s, %v", w.phase(), ready, why, p.sent())
			}
			stops.result <- supervise.ExecResult{}
			synctest.Wait()
			if sent := p.sent(); !slices.Equal(sent, sigterm) {
				t.Errorf("%v after preStop, want SIGTERM", sent)
			}
			p.finish(supervise.Status{ExitCode: 3})
			if code := <-w.exited; code != 3 {
				t.Errorf("exit code %d, want the process's", code)
			}
			w.exited <- 0
			if r := w.api.present(); r.Holder != "" || r.Release.Reason != lease.ReasonPostStartFailed {
				t.Errorf("released %+v", r.Release)
			}
		})
	})
	t.Run("fails, and the process heeds no signal", func(t *testing.T) {
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
}

func TestPostStartWhileTheProcessEnds(t *testing.T) {
	// It dies with the process, and is heard of first.
	t.Run("of a process that has ended", func(t *testing.T) {
		inBubbleWith(t, withHooks(contract.Hooks{PostStart: aCommand}), func(w *world) {
			p := w.holding()
			x := <-p.execs
			p.die()
			x.result <- supervise.ExecResult{Status: supervise.Status{ExitCode: -1, Signal: syscall.SIGKILL}}
			synctest.Wait()
			p.tell(supervise.Status{})
			w.exited <- <-w.exited
			if r := w.api.present(); r.Release.Reason != lease.ReasonProcessExited || r.Release.Unclean {
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

// A kubelet asks nothing of a container before its postStart has succeeded, and counts initialDelaySeconds from its start.
func TestProbesAfterPostStart(t *testing.T) {
	for name, row := range map[string]struct {
		takes, delay, want time.Duration // from the start to the first check
	}{
		"asked when it is over":           {takes: time.Minute, want: time.Minute},
		"the delay is over, too":          {takes: time.Minute, delay: 50 * time.Second, want: time.Minute},
		"the delay counts from the start": {takes: time.Minute, delay: 90 * time.Second, want: 90 * time.Second},
		"a hook that is over at once":     {delay: 10 * time.Second, want: 10 * time.Second},
	} {
		t.Run(name, func(t *testing.T) {
			var asked chan time.Time
			inBubbleWith(t, func(o *Options) {
				asked = make(chan time.Time, 1000)
				o.Config.Hooks.PostStart = aCommand
				o.Config.Probes.Liveness = tcpProbe(livenessPort, 0)
				o.Config.Probes.Liveness.InitialDelay = dur(row.delay)
				o.Check = func(context.Context, contract.Check) probe.Result {
					asked <- time.Now()
					return well
				}
			}, func(w *world) {
				p := w.holding()
				began := time.Now()
				if ready, why := w.ready(); ready || !strings.Contains(why, "postStart runs") {
					t.Errorf("ready: %t %q while postStart runs", ready, why)
				}
				time.Sleep(row.takes)
				if len(asked) > 0 {
					t.Error("asked while postStart runs")
				}
				(<-p.execs).result <- supervise.ExecResult{}
				if ready, why := w.ready(); !ready {
					t.Errorf("not ready after it: %q", why)
				}
				if after := (<-asked).Sub(began); after != row.want {
					t.Errorf("asked after %v, want %v", after, row.want)
				}
				p.finish(supervise.Status{})
			})
		})
	}
}

// planned are the ends of a tenure that leave time for a hook.
var planned = map[string]func(*world){
	"pod ends": func(w *world) { w.signals <- syscall.SIGTERM },
	"handover": func(w *world) { w.api.store(func(r *lease.Record) { r.Handover = lease.Handover{To: "other"} }) },
}

// The process learns about its end when its hook is over, and no earlier.
func TestPreStop(t *testing.T) {
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

// A hook that sends a request to the process also delays its signal. It does so until the answer, the end of the hook's time, or the end of
// the process.
func TestHooksBySendingARequest(t *testing.T) {
	type call struct {
		ctx    context.Context
		path   string
		answer chan error
	}
	calls := make(chan call, 2)
	with := func(o *Options) {
		o.Config.Hooks = contract.Hooks{
			PostStart: &contract.Hook{HTTPGet: &contract.HTTPGet{Path: "/started"}}, PreStop: &contract.Hook{HTTPGet: &contract.HTTPGet{Path: "/stops"}},
		}
		o.Call = func(ctx context.Context, of *contract.HTTPGet) error {
			c := call{ctx, of.Path, make(chan error, 1)}
			calls <- c
			select {
			case err := <-c.answer:
				return err
			case <-ctx.Done():
				return ctx.Err()
			}
		}
	}
	expect := func(t *testing.T, path string) call {
		c := <-calls
		if c.path != path {
			t.Errorf("asked for %s, want %s", c.path, path)
		}
		return c
	}
	for name, happens := range map[string]func(call){
		"answered": func(c call) { c.answer <- nil },
		"in vain":  func(c call) { c.answer <- errors.New("refused") },
		"hangs":    func(call) { time.Sleep(7 * time.Second) },
	} {
		t.Run("before the signal, "+name, func(t *testing.T) {
			inBubbleWith(t, with, func(w *world) {
				p := w.holding()
				expect(t, "/started").answer <- nil
				w.signals <- syscall.SIGTERM
				stops := expect(t, "/stops")
				synctest.Wait()
				if sent := p.sent(); len(sent) > 0 {
					t.Errorf("%v while it is asked", sent)
				}
				happens(stops)
				synctest.Wait()
				if sent := p.sent(); !slices.Equal(sent, sigterm) {
					t.Errorf("%v after that, want SIGTERM", sent)
				}
				p.finish(supervise.Status{})
			})
		})
	}
	t.Run("after the start, in vain", func(t *testing.T) {
		inBubbleWith(t, with, func(w *world) {
			p := w.holding()
			expect(t, "/started").answer <- errors.New("refused")
			expect(t, "/stops").answer <- nil
			synctest.Wait()
			p.finish(supervise.Status{})
			w.exited <- <-w.exited
			if r := w.api.present(); r.Release.Reason != lease.ReasonPostStartFailed {
				t.Errorf("released %+v", r.Release)
			}
		})
	})
	t.Run("of a process that has ended", func(t *testing.T) {
		inBubbleWith(t, with, func(w *world) {
			p := w.holding()
			started := expect(t, "/started")
			time.Sleep(time.Hour) // what follows the start may take as long as the process lives
			if started.ctx.Err() != nil {
				t.Error("given up while the process lives")
			}
			p.finish(supervise.Status{})
			<-started.ctx.Done()
			w.exited <- <-w.exited
			if r := w.api.present(); r.Release.Reason != lease.ReasonProcessExited {
				t.Errorf("released %+v", r.Release)
			}
		})
	})
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

// A pod that is told to stop while the hook has a probe's longer time: the process gets its signal before it is killed.
func TestPreStopIsShortened(t *testing.T) {
	with := func(o *Options) {
		o.Config.Hooks = contract.Hooks{PreStop: &contract.Hook{Sleep: dur(time.Hour)}}
		o.Config.Probes.Liveness = &contract.Probe{
			Check:  contract.Check{TCPSocket: &contract.TCPSocket{Port: 1}},
			Period: dur(time.Second), Timeout: dur(time.Second), SuccessThreshold: 1, FailureThreshold: 1, GracePeriod: dur(time.Hour),
		}
		o.Check = func(context.Context, contract.Check) probe.Result { return probe.Failed("no") }
	}
	inBubbleWith(t, with, func(w *world) {
		p := w.holding()
		time.Sleep(time.Minute)
		w.signals <- syscall.SIGTERM
		synctest.Wait()
		if sent := p.sent(); len(sent) > 0 || w.phase() != "Stopping" {
			t.Errorf("%s, %v while the hook runs", w.phase(), sent)
		}
		w.exited <- <-w.exited
		if sent := p.sent(); !slices.Equal(sent, sigterm) {
			t.Errorf("%v in all, want SIGTERM before SIGKILL", sent)
		}
	})
}

// A hook that would take all of the grace period leaves the process some of it: a pause, and a command that nobody can kill.
func TestPreStopThatTakesLong(t *testing.T) {
	for name, hook := range map[string]*contract.Hook{"a pause": {Sleep: contract.Duration(time.Hour)}, "a command": aCommand} {
		for beginning, begin := range planned {
			t.Run(name+", "+beginning, func(t *testing.T) {
				inBubbleWith(t, withHooks(contract.Hooks{PreStop: hook}), func(w *world) {
					p := w.holding()
					begin(w)
					synctest.Wait()
					if sent := p.sent(); len(sent) > 0 {
						t.Errorf("%v while the hook runs", sent)
					}
					<-p.Gone()
					if sent := p.sent(); !slices.Equal(sent, sigterm) {
						t.Errorf("%v in all, want SIGTERM before SIGKILL", sent)
					}
					for len(p.execs) > 0 {
						(<-p.execs).result <- supervise.ExecResult{TimedOut: true}
					}
				})
			})
		}
	}
}

// A holder that must stop acting, now or soon, has no time for a hook.
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

// TestStopSignal: the signal that the template names begins the stop, as SIGTERM does, and the process gets it when preStop is over.
func TestStopSignal(t *testing.T) {
	for _, name := range contract.StopSignals() {
		for _, sent := range []syscall.Signal{syscall.SIGTERM, syscall.Signal(contract.SignalNumber(name))} {
			inBubbleWith(t, func(o *Options) {
				o.Config.Hooks, o.Config.StopSignal = contract.Hooks{PreStop: aCommand}, name
			}, func(w *world) {
				p := w.holding()
				w.signals <- sent
				synctest.Wait()
				if got := p.sent(); len(got) > 0 || len(p.execs) == 0 {
					t.Errorf("%s by %v: the process gets %v, preStop runs: %v", name, sent, got, len(p.execs) > 0)
					p.finish(supervise.Status{})
					w.exited <- <-w.exited
					return
				}
				(<-p.execs).result <- supervise.ExecResult{}
				synctest.Wait()
				if got := p.sent(); !slices.Equal(got, []syscall.Signal{syscall.Signal(contract.SignalNumber(name))}) {
					t.Errorf("%s by %v: the process gets %v after preStop", name, sent, got)
				}
				p.finish(supervise.Status{})
				w.exited <- <-w.exited
				if r := w.api.present(); r.Release.Reason != lease.ReasonPodTerminating {
					t.Errorf("%s by %v: released %+v", name, sent, r.Release)
				}
			})
		}
	}
}

// A runtime stops a container by the signal that its image names, which nobody has told the agent: the process gets that one, after preStop.
func TestStopSignalFromOutside(t *testing.T) {
	for _, name := range contract.StopSignals() {
		sent := syscall.Signal(contract.SignalNumber(name))
		inBubbleWith(t, func(o *Options) { o.Config.Hooks.PreStop = aCommand }, func(w *world) {
			p := w.holding()
			w.signals <- sender.Outside(sent)
			w.signals <- sender.Outside(sent) // once more changes nothing
			synctest.Wait()
			if got := p.sent(); len(got) > 0 || len(p.execs) == 0 {
				t.Errorf("by %s: the process gets %v, preStop runs: %v", name, got, len(p.execs) > 0)
				p.finish(supervise.Status{})
				w.exited <- <-w.exited
				return
			}
			(<-p.execs).result <- supervise.ExecResult{}
			synctest.Wait()
			if got := p.sent(); !slices.Equal(got, []syscall.Signal{sent}) {
				t.Errorf("by %s: the process gets %v after preStop", name, got)
			}
			p.finish(supervise.Status{})
			w.exited <- <-w.exited
			if r := w.api.present(); r.Release.Reason != lease.ReasonPodTerminating {
				t.Errorf("by %s: released %+v", name, r.Release)
			}
		})
	}
}

// A preStop hook that sends the container's PID 1 a signal, as many do, speaks to the process: it gets that at once, and the agent does
// not end by it.
func TestPreStopSignalsTheProcess(t *testing.T) {
	handover := func(w *world) {
		w.api.store(func(r *lease.Record) { r.Handover = lease.Handover{To: "other", Reason: lease.ReasonSwitchover} })
	}
	for name, row := range map[string]struct {
		config string
		sent   syscall.Signal
		ends   func(*world)
		want   lease.Release
	}{
		"when the pod stops": {
			"", syscall.SIGTERM, func(w *world) { w.signals <- sender.Outside(syscall.SIGTERM) }, lease.Release{Reason: lease.ReasonPodTerminating},
		},
		"before a handover":              {"", syscall.SIGTERM, handover, lease.Release{Reason: lease.ReasonSwitchover}},
		"by the image's signal, as well": {"SIGQUIT", syscall.SIGQUIT, handover, lease.Release{Reason: lease.ReasonSwitchover}},
	} {
		inBubbleWith(t, func(o *Options) {
			o.Config.Hooks, o.Config.StopSignal, o.KnowsOutside = contract.Hooks{PreStop: aCommand}, row.config, true
		}, func(w *world) {
			p := w.holding()
			row.ends(w)
			synctest.Wait()
			w.signals <- row.sent
			synctest.Wait()
			if got := p.sent(); !slices.Equal(got, []syscall.Signal{row.sent}) {
				t.Errorf("%s: while the hook runs the process gets %v, want %v", name, got, row.sent)
			}
			(<-p.execs).result <- supervise.ExecResult{}
			synctest.Wait()
			w.signals <- row.sent // the last word of a hook may arrive after its end
			synctest.Wait()
			p.finish(supervise.Status{ExitCode: 128 + int(row.sent)})
			time.Sleep(time.Second) // for the release
			synctest.Wait()
			if got := w.api.present().Release; got != row.want {
				t.Errorf("%s: released %+v, want %+v", name, got, row.want)
			}
			if ended := len(w.exited) > 0; ended != (row.want.Reason == lease.ReasonPodTerminating) {
				t.Errorf("%s: the agent has ended: %t", name, ended)
			}
		})
	}
}

// A signal that nothing names as the one to stop by is the process's own affair, and so is every other one. A terminal that is resized sends
// SIGWINCH, whatever that is named for.
func TestSignalsThatDoNotStop(t *testing.T) {
	for _, config := range []string{"", "SIGQUIT", "SIGWINCH"} {
		inBubbleWith(t, func(o *Options) {
			o.Config.StopSignal, o.Terminal = config, config == "SIGWINCH"
		}, func(w *world) {
			p := w.holding()
			want := []syscall.Signal{syscall.SIGHUP, syscall.SIGUSR1, syscall.SIGUSR2, syscall.SIGWINCH}
			if config != "SIGQUIT" {
				want = append(want, syscall.SIGQUIT)
			}
			for _, s := range want {
				w.signals <- s
			}
			synctest.Wait()
			if got := p.sent(); !slices.Equal(got, want) || w.phase() != "Holding" {
				t.Errorf("%q: the process gets %v and its tenure is %s; want %v", config, got, w.phase(), want)
			}
			p.finish(supervise.Status{})
			w.exited <- <-w.exited
		})
	}
}
