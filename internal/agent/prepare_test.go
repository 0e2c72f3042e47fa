//go:build linux

package agent

import (
	"slices"
	"strings"
	"syscall"
	"testing"
	"testing/synctest"
	"time"

	"github.com/singletonjob/operator/internal/contract"
	"github.com/singletonjob/operator/internal/lease"
	"github.com/singletonjob/operator/internal/sender"
	"github.com/singletonjob/operator/internal/supervise"
)

func prepared(o *Options) {
	o.Config.PreActivate = &contract.PreActivate{
		Exec: []string{"prepare", "$(" + o.Config.TokenEnv + ")"}, Timeout: contract.Duration(time.Hour),
	}
}

// preparing brings the agent to where its preActivate runs.
func (w *world) preparing() start {
	w.Helper()
	s := <-w.starts
	if len(s.Argv) != 2 || s.Argv[0] != "prepare" || s.Argv[1] == "" || s.Argv[1][0] == '$' {
		w.Errorf("first %q is started, want preActivate's command with the token", s.Argv)
	}
	s.process.begin(nil)
	synctest.Wait()
	return s
}

// expectNoMain looks for a while that no main process is started.
func (w *world) expectNoMain() {
	w.Helper()
	time.Sleep(time.Minute)
	synctest.Wait()
	if len(w.starts) > 0 {
		w.Fatalf("%q is started", (<-w.starts).Argv)
	}
}

// expectUnready asserts that the agent waits for preActivate, and whether its log tells of something that does not die.
func (w *world) expectUnready(when string, undying bool) {
	w.Helper()
	shot, told := w.agent.snapshot.Load(), strings.Contains(w.log.String(), "still alive after SIGKILL")
	if shot.ready || shot.unready != "preActivate runs" || told != undying {
		w.Errorf("%s: ready %t, %q; tells of what lives: %t; log:\n%s", when, shot.ready, shot.unready, told, w.log)
	}
}

func TestPreActivate(t *testing.T) {
	for _, keep := range []bool{false, true} {
		inBubbleWith(t, func(o *Options) { prepared(o); o.Config.KeepRunning = keep }, func(w *world) {
			s := w.preparing()
			w.expectNoMain()
			w.expectUnready("while it runs", false)
			if deadline, _, _ := s.process.state(); !keep && time.Duration(deadline-int64(w.clock.Now().Boot)) < 10*time.Second {
				t.Error("the deadline of what runs first does not follow the renewals")
			}
			s.process.exit(supervise.Status{})
			w.expectNoMain() // while something lives that it has left
			w.expectUnready("while what it has left lives", true)
			s.process.finish(supervise.Status{})
			main := <-w.starts
			if main.Argv[0] != testOptions().Argv[0] || !slices.Equal(main.Env, s.Env) {
				t.Errorf("started %q with %q", main.Argv, main.Env)
			}
			if left := time.Duration(main.Deadline - int64(w.clock.Now().Boot)); left < 10*time.Second || left > 14*time.Second {
				t.Errorf("it may start within %v", left)
			}
			main.process.begin(nil)
			synctest.Wait()
			if !w.agent.snapshot.Load().ready {
				t.Error("not ready when the process runs")
			}
			if keep != main.process.never {
				t.Errorf("KeepRunning %t, once it runs it may do so for ever: %t", keep, main.process.never)
			}
			main.process.finish(supervise.Status{ExitCode: 3})
			if code := <-w.exited; code != 3 {
				t.Errorf("exit code %d, want the process's", code)
			}
			w.exited <- 0
		})
	}
}

// The agent expands its command as a kubelet expands a container's.
func TestPreActivateIsExpanded(t *testing.T) {
	inBubbleWith(t, func(o *Options) {
		prepared(o)
		o.Environ = []string{"URL=db://$(TOKEN)"}
		o.Config.PreActivate.Exec = []string{"prepare", "$(URL)", "$(TOKEN)", "$$(URL)", "$(NONE)", "$$"}
	}, func(w *world) {
		s := <-w.starts
		s.process.begin(nil)
		if want := []string{"prepare", "db://$(TOKEN)", "10", "$(URL)", "$(NONE)", "$"}; !slices.Equal(s.Argv, want) {
			t.Errorf("%q, want %q", s.Argv, want)
		}
		s.process.finish(supervise.Status{ExitCode: 1})
		w.exited <- <-w.exited
	})
}

// A failed preActivate ends the tenure with a separate reason. It also ends the container, so that the kubelet backs off.
func TestPreActivateFails(t *testing.T) {
	for name, row := range map[string]struct {
		happens func(*fakeProcess)
		code    int
	}{
		"exits with 1":   {func(p *fakeProcess) { p.finish(supervise.Status{ExitCode: 1}) }, 1},
		"by a signal":    {func(p *fakeProcess) { p.finish(supervise.Status{ExitCode: -1, Signal: syscall.SIGSEGV}) }, 139},
		"takes too long": {func(*fakeProcess) { time.Sleep(2 * time.Hour) }, 137},
	} {
		t.Run(name, func(t *testing.T) {
			inBubbleWith(t, prepared, func(w *world) {
				row.happens(w.preparing().process)
				select {
				case code := <-w.exited:
					if code != row.code {
						t.Errorf("exit code %d, want %d", code, row.code)
					}
				case <-time.After(time.Hour):
					t.Fatal("the agent goes on")
				}
				w.exited <- 0
				if r := w.api.present(); r.Holder != "" || r.Release != (lease.Release{Reason: lease.ReasonPreActivateFailed, Unclean: true}) {
					t.Errorf("released %+v", r.Release)
				}
				w.expectNoMain()
			})
		})
	}
	t.Run("cannot be executed", func(t *testing.T) {
		inBubbleWith(t, prepared, func(w *world) {
			(<-w.starts).process.begin(&supervise.StartError{Op: "execute", Path: "x", Err: syscall.ENOENT})
			if code := <-w.exited; code != 127 {
				t.Errorf("exit code %d, want 127", code)
			}
			w.exited <- 0
			if r := w.api.present(); r.Release.Reason != lease.ReasonPreActivateFailed {
				t.Errorf("released %+v", r.Release)
			}
		})
	})
}

// A tenure that ends while something runs before its process never gets one, however that ends.
func TestPreActivateInATenureThatEnds(t *testing.T) {
	for _, code := range []int{0, 1, 143} {
		inBubbleWith(t, prepared, func(w *world) {
			p := w.preparing().process
			w.signals <- syscall.SIGTERM
			synctest.Wait()
			if sent := p.sent(); !slices.Equal(sent, sigterm) {
				t.Errorf("%v, want SIGTERM", sent)
			}
			p.finish(supervise.Status{ExitCode: code})
			if got := <-w.exited; got != code {
				t.Errorf("exit code %d, want %d", got, code)
			}
			w.exited <- 0
			w.expectNoMain()
			// One that ends as it was asked to has left nothing on the wire that lockDelay is for.
			if r := w.api.present(); r.Holder != "" || r.Release != (lease.Release{Reason: lease.ReasonPodTerminating, Unclean: code == 1}) {
				t.Errorf("after code %d released %+v", code, r.Release)
			}
		})
	}
	t.Run("of a run, when it has succeeded", func(t *testing.T) {
		toCompletion := func(o *Options) {
			prepared(o)
			o.Config.Run = &contract.RunConfig{JobUID: "job", BackoffLimit: 3}
			o.Config.GracePeriod = 0 // it is killed, and not asked to end
		}
		inBubbleWith(t, toCompletion, func(w *world) {
			p := w.preparing().process
			p.exit(supervise.Status{}) // and something of it lives, until it is killed
			synctest.Wait()
			w.api.store(func(r *lease.Record) { r.Handover = lease.Handover{To: lease.AnyPod, Reason: lease.ReasonSwitchover} })
			synctest.Wait()
			<-p.Gone()
			synctest.Wait()
			time.Sleep(time.Minute)
			if now := w.api.present().Runs.Now; now.State == lease.RunComplete {
				w.Fatalf("the run is %+v, though its process never began", now)
			}
			// Its process never began, so another attempt follows; what ran before it may have done something, so it counts.
			w.preparing().process.finish(supervise.Status{})
			if main := <-w.starts; main.Argv[0] != testOptions().Argv[0] {
				t.Errorf("%q is started", main.Argv)
			}
			if now := w.api.present().Runs.Now; now.ID != "job" || now.Attempt != 2 || now.State != lease.RunRunning {
				t.Errorf("the run is %+v, want its second attempt", now)
			}
		})
	})
	t.Run("lost", func(t *testing.T) {
		inBubbleWith(t, prepared, func(w *world) {
			p := w.preparing().process
			p.exit(supervise.Status{}) // and something of it lives
			w.api.store(func(r *lease.Record) { r.Holder, r.Token = "other/uid/x", r.Token+1 })
			<-p.Gone()
			synctest.Wait()
			if _, _, killed := p.state(); !killed || len(w.starts) > 0 || w.phase() != "Waiting" {
				t.Errorf("killed %t, %d more started, phase %s", killed, len(w.starts), w.phase())
			}
		})
	})
}

// The stop signal of an image says something to the image's program. A command before it may ignore SIGWINCH.
func TestPreActivateGetsSIGTERM(t *testing.T) {
	for name, row := range map[string]struct {
		config string
		ends   func(*world)
	}{
		"of the runtime": {"", func(w *world) { w.signals <- sender.Outside(syscall.SIGWINCH) }},
		"that is known": {"SIGWINCH", func(w *world) {
			w.api.store(func(r *lease.Record) { r.Handover = lease.Handover{To: "other", Reason: lease.ReasonSwitchover} })
		}},
	} {
		inBubbleWith(t, func(o *Options) { prepared(o); o.Config.StopSignal = row.config }, func(w *world) {
			p := w.preparing().process
			row.ends(w)
			synctest.Wait()
			if sent := p.sent(); !slices.Equal(sent, sigterm) {
				t.Errorf("%s: what runs before the process gets %v, want SIGTERM", name, sent)
			}
			p.finish(supervise.Status{ExitCode: 143})
		})
	}
}
