//go:build linux

package agent

import (
	"context"
	"errors"
	"math"
	"slices"
	"strings"
	"sync"
	"syscall"
	"testing"
	"testing/synctest"
	"time"

	"github.com/singletonjob/operator/internal/contract"
	"github.com/singletonjob/operator/internal/kubelease"
	"github.com/singletonjob/operator/internal/lease"
	"github.com/singletonjob/operator/internal/sender"
	"github.com/singletonjob/operator/internal/supervise"
)

func deletedWithin(period time.Duration) kubelease.Deletion {
	return kubelease.Deletion{Requested: true, GracePeriod: period}
}

var (
	notDeleted = kubelease.Deletion{}
	goneAway   = kubelease.Deletion{Gone: true}
)

// TestGrace has the cases of the decision: what is learned, and when after the kubelet's signal the process has its signal and is dead.
func TestGrace(t *testing.T) {
	const template = 30 * time.Second
	type answer struct {
		sent time.Duration // after the signal
		of   kubelease.Deletion
	}
	for name, row := range map[string]struct {
		answers  []answer
		template time.Duration // 0: of the test
		// signal is when it has its signal because no period is known, dead is when it must be dead; 0 is never.
		signal, dead time.Duration
	}{
		"no answer":                   {signal: 6 * time.Second},
		"no answer, a short template": {template: 4 * time.Second, signal: 2250 * time.Millisecond},
		"not deleted":                 {answers: []answer{{0, notDeleted}, {time.Second, notDeleted}}, signal: 6 * time.Second},
		"the template's":              {answers: []answer{{0, deletedWithin(template)}}, dead: 28 * time.Second},
		"longer than the template's":  {answers: []answer{{0, deletedWithin(time.Hour)}}, dead: time.Hour - 2*time.Second},
		"shorter":                     {answers: []answer{{0, deletedWithin(5 * time.Second)}}, dead: 3750 * time.Millisecond},
		"shorter than a kubelet's":    {answers: []answer{{0, deletedWithin(time.Second)}}, dead: 1500 * time.Millisecond},
		"none":                        {answers: []answer{{0, deletedWithin(0)}}, dead: 1500 * time.Millisecond},
		"forced":                      {answers: []answer{{0, goneAway}}, dead: 1500 * time.Millisecond},
		"huge":                        {answers: []answer{{0, deletedWithin(math.MaxInt64)}}, dead: math.MaxInt64},
		// The kubelet has counted from the signal.
		"known late":              {answers: []answer{{3 * time.Second, deletedWithin(5 * time.Second)}}, dead: 3750 * time.Millisecond},
		"the first server lags":   {answers: []answer{{0, notDeleted}, {time.Second, deletedWithin(5 * time.Second)}}, dead: 3750 * time.Millisecond},
		"a later server lags":     {answers: []answer{{0, deletedWithin(5 * time.Second)}, {time.Second, notDeleted}}, dead: 3750 * time.Millisecond},
		"it lags by one deletion": {answers: []answer{{0, deletedWithin(5 * time.Second)}, {time.Second, deletedWithin(template)}}, dead: 3750 * time.Millisecond},
		// The kubelet counts the second period from the second deletion.
		"deleted once more, within less": {
			answers: []answer{{0, deletedWithin(template)}, {10 * time.Second, deletedWithin(template)}, {11 * time.Second, deletedWithin(8 * time.Second)}},
			dead:    16 * time.Second,
		},
		"and forced then": {
			answers: []answer{{0, deletedWithin(template)}, {4 * time.Second, deletedWithin(20 * time.Second)}, {8 * time.Second, goneAway}},
			dead:    5500 * time.Millisecond,
		},
	} {
		t.Run(name, func(t *testing.T) {
			const began = lease.Instant(1000 * time.Second)
			g := grace{signalled: began}
			for _, a := range row.answers {
				g = g.learned(a.of, began.Add(a.sent))
			}
			if row.template == 0 {
				row.template = template
			}
			for what, at := range map[string]struct {
				got  lease.Instant
				want time.Duration
			}{"signalled": {g.signalBy(row.template), row.signal}, "dead": {g.ends(), row.dead}} {
				want := began.Add(at.want)
				if at.want == 0 {
					want = lease.Never
				}
				if at.got != want {
					t.Errorf("%s after %v, want %v", what, at.got.Sub(began), want.Sub(began))
				}
			}
		})
	}
	if g := (grace{}).learned(deletedWithin(time.Second), 1); g != (grace{}) || g.ends() != lease.Never || g.signalBy(template) != lease.Never {
		t.Errorf("without a signal from outside: %+v", g)
	}
}

// TestLastPart: the process has two seconds after its signal, less if it has less than eight seconds, and never none of a period.
func TestLastPart(t *testing.T) {
	for _, row := range []struct{ began, killed, want time.Duration }{
		{0, time.Minute, 58 * time.Second},
		{0, 8 * time.Second, 6 * time.Second},
		{0, 4 * time.Second, 3 * time.Second},
		{10 * time.Second, 12 * time.Second, 11500 * time.Millisecond},
		{10 * time.Second, 9 * time.Second, 9 * time.Second},
	} {
		if got := lastPart(lease.Instant(row.began), lease.Instant(row.killed)); got != lease.Instant(row.want) {
			t.Errorf("from %v to %v: at %v, want %v", row.began, row.killed, time.Duration(got), row.want)
		}
	}
}

// fakeDeletion answers questions about the deletion of the agent's Pod.
type fakeDeletion struct {
	mu    sync.Mutex
	of    kubelease.Deletion
	err   error
	hangs bool
	asked []time.Time
}

func (f *fakeDeletion) ask(ctx context.Context) (kubelease.Deletion, error) {
	f.mu.Lock()
	f.asked = append(f.asked, time.Now())
	of, err, hangs := f.of, f.err, f.hangs
	f.mu.Unlock()
	if hangs {
		<-ctx.Done()
		return kubelease.Deletion{}, ctx.Err()
	}
	return of, err
}

func (f *fakeDeletion) set(change func(*fakeDeletion)) {
	f.mu.Lock()
	defer f.mu.Unlock()
	change(f)
}

func (f *fakeDeletion) questions() int {
	f.mu.Lock()
	defer f.mu.Unlock()
	return len(f.asked)
}

// stopping runs a test of an agent whose Pod has a template's grace period of 30 s, and whose preStop hook runs until the test ends it.
func stopping(t *testing.T, deletion *fakeDeletion, f func(*world)) {
	t.Helper()
	inBubbleWith(t, func(o *Options) {
		o.Config.GracePeriod, o.KnowsOutside, o.Deletion = dur(30*time.Second), true, deletion.ask
		o.Config.Hooks = contract.Hooks{PreStop: aCommand}
	}, f)
}

const fromOutside = sender.Outside(syscall.SIGTERM)

// stopsWithin reports how long after a signal from outside the process gets its signal and is killed. It heeds no signal, and the hook hangs.
func (w *world) stopsWithin(p *fakeProcess) (signalled, killed time.Duration) {
	w.Helper()
	began := time.Now()
	for ; ; time.Sleep(10 * time.Millisecond) {
		synctest.Wait()
		_, signals, kill := p.state()
		if signalled == 0 && len(signals) > 0 {
			signalled = time.Since(began)
		}
		if kill {
			return signalled, time.Since(began)
		}
	}
}

// TestShorterGracePeriod: the process gets its signal and the Lease is free before a kubelet kills the container.
func TestShorterGracePeriod(t *testing.T) {
	for name, row := range map[string]struct {
		deletion         *fakeDeletion
		meanwhile        func(*world, *fakeDeletion)
		signalled, ended time.Duration // rounded to 10 ms
	}{
		"the template's": {
			deletion: &fakeDeletion{of: deletedWithin(30 * time.Second)}, signalled: 26 * time.Second, ended: 28 * time.Second,
		},
		"five seconds": {
			deletion: &fakeDeletion{of: deletedWithin(5 * time.Second)}, signalled: 2820 * time.Millisecond, ended: 3750 * time.Millisecond,
		},
		"one second": {deletion: &fakeDeletion{of: deletedWithin(time.Second)}, signalled: 1130 * time.Millisecond, ended: 1500 * time.Millisecond},
		"forced":     {deletion: &fakeDeletion{of: goneAway}, signalled: 1130 * time.Millisecond, ended: 1500 * time.Millisecond},
		"longer":     {deletion: &fakeDeletion{of: deletedWithin(time.Hour)}, signalled: 26 * time.Second, ended: 28 * time.Second},
		"the container restarts": {
			deletion: &fakeDeletion{of: notDeleted}, signalled: 6 * time.Second, ended: 28 * time.Second,
		},
		"forbidden": {
			deletion: &fakeDeletion{err: errors.New("403")}, signalled: 6 * time.Second, ended: 28 * time.Second,
		},
		"no answer": {deletion: &fakeDeletion{hangs: true}, signalled: 6 * time.Second, ended: 28 * time.Second},
		"the first answers are lost": {
			deletion:  &fakeDeletion{hangs: true, of: deletedWithin(9 * time.Second)},
			meanwhile: func(_ *world, f *fakeDeletion) { f.hangs = false },
			signalled: 5250 * time.Millisecond, ended: 7 * time.Second,
		},
		"deleted once more": {
			deletion:  &fakeDeletion{of: deletedWithin(30 * time.Second)},
			meanwhile: func(_ *world, f *fakeDeletion) { f.of = deletedWithin(4 * time.Second) },
			// The last question before it was sent 2 s after the signal.
			signalled: 3750 * time.Millisecond, ended: 5 * time.Second,
		},
	} {
		t.Run(name, func(t *testing.T) {
			stopping(t, row.deletion, func(w *world) {
				p := w.holding()
				w.signals <- fromOutside
				if row.meanwhile != nil {
					time.AfterFunc(2500*time.Millisecond, func() { row.deletion.set(func(f *fakeDeletion) { row.meanwhile(w, f) }) })
				}
				signalled, ended := w.stopsWithin(p)
				if signalled.Round(10*time.Millisecond) != row.signalled || ended.Round(10*time.Millisecond) != row.ended {
					t.Errorf("it gets its signal after %v and is killed after %v, want %v and %v; log:\n%s", signalled, ended, row.signalled, row.ended, w.log)
				}
				(<-p.execs).result <- supervise.ExecResult{Err: supervise.ErrStopped}
				if code := <-w.exited; code != 128+9 {
					t.Errorf("exit code %d", code)
				}
				w.exited <- 0
				if r := w.api.present(); r.Holder != "" || r.Release.Reason != lease.ReasonPodTerminating || !r.Release.Unclean {
					t.Errorf("released %+v", r.Release)
				}
			})
		})
	}
}

// TestGraceIsAskedForAtASignalFromOutside: a signal from within ends the process, and no kubelet waits.
func TestGraceIsAskedForAtASignalFromOutside(t *testing.T) {
	deletion := &fakeDeletion{of: deletedWithin(5 * time.Second)}
	stopping(t, deletion, func(w *world) {
		p := w.holding()
		w.signals <- syscall.SIGTERM
		time.Sleep(20 * time.Second)
		if sent := p.sent(); len(sent) > 0 || deletion.questions() > 0 {
			t.Errorf("%v and %d questions after a signal from within", sent, deletion.questions())
		}
		w.signals <- fromOutside // now the kubelet stops the Pod
		if signalled, ended := w.stopsWithin(p); signalled.Round(10*time.Millisecond) != 1750*time.Millisecond || ended.Round(10*time.Millisecond) != 3750*time.Millisecond {
			t.Errorf("it gets its signal after %v and is killed after %v", signalled, ended)
		}
		(<-p.execs).result <- supervise.ExecResult{Err: supervise.ErrStopped}
	})
}

// TestGraceDuringAHandover: the Pod is deleted while the hook of a handover runs.
func TestGraceDuringAHandover(t *testing.T) {
	deletion := &fakeDeletion{of: deletedWithin(5 * time.Second)}
	stopping(t, deletion, func(w *world) {
		p := w.holding()
		w.api.store(func(r *lease.Record) { r.Handover = lease.Handover{To: "other"} })
		time.Sleep(10 * time.Second)
		w.signals <- fromOutside
		if signalled, ended := w.stopsWithin(p); signalled.Round(10*time.Millisecond) != 1750*time.Millisecond || ended.Round(10*time.Millisecond) != 3750*time.Millisecond {
			t.Errorf("it gets its signal after %v and is killed after %v", signalled, ended)
		}
		(<-p.execs).result <- supervise.ExecResult{Err: supervise.ErrStopped}
	})
}

// TestGraceWithoutAProcess: a standby and an agent whose process is not yet executed need no answer to end.
func TestGraceWithoutAProcess(t *testing.T) {
	t.Run("a standby", func(t *testing.T) {
		deletion := &fakeDeletion{hangs: true}
		stopping(t, deletion, func(w *world) {
			p := w.holding()
			w.api.store(func(r *lease.Record) { r.Holder, r.Token = "other/uid/nonce", r.Token+1 })
			<-p.Gone()
			synctest.Wait()
			w.signals <- fromOutside
			w.exited <- <-w.exited
			if deletion.questions() > 0 {
				t.Errorf("%d questions", deletion.questions())
			}
		})
	})
	t.Run("while preActivate runs", func(t *testing.T) {
		deletion := &fakeDeletion{of: deletedWithin(5 * time.Second)}
		inBubbleWith(t, func(o *Options) {
			o.Config.GracePeriod, o.KnowsOutside, o.Deletion = dur(30*time.Second), true, deletion.ask
			o.Config.PreActivate = &contract.PreActivate{Exec: []string{"prepare"}, Timeout: dur(time.Hour)}
		}, func(w *world) {
			p := w.holding()
			w.signals <- fromOutside
			if signalled, ended := w.stopsWithin(p); signalled > 10*time.Millisecond || ended.Round(10*time.Millisecond) != 3750*time.Millisecond {
				t.Errorf("it gets its signal after %v and is killed after %v", signalled, ended)
			}
		})
	})
	t.Run("while postStart runs", func(t *testing.T) {
		deletion := &fakeDeletion{of: deletedWithin(5 * time.Second)}
		inBubbleWith(t, func(o *Options) {
			o.Config.GracePeriod, o.KnowsOutside, o.Deletion = dur(30*time.Second), true, deletion.ask
			o.Config.Hooks = contract.Hooks{PostStart: aCommand}
		}, func(w *world) {
			p := w.holding()
			w.signals <- fromOutside
			if signalled, ended := w.stopsWithin(p); signalled > 10*time.Millisecond || ended.Round(10*time.Millisecond) != 3750*time.Millisecond {
				t.Errorf("it gets its signal after %v and is killed after %v", signalled, ended)
			}
			(<-p.execs).result <- supervise.ExecResult{Err: supervise.ErrStopped}
		})
	})
}

// TestGraceIsCheap: a second between questions, and less only while no answer comes.
func TestGraceIsCheap(t *testing.T) {
	for name, row := range map[string]struct {
		deletion *fakeDeletion
		most     int // questions in the first ten seconds
	}{
		"answered": {&fakeDeletion{of: deletedWithin(30 * time.Second)}, 11},
		"refused":  {&fakeDeletion{err: errors.New("403")}, 13},
		"hung":     {&fakeDeletion{hangs: true}, 5},
		"gone":     {&fakeDeletion{of: goneAway}, 1},
	} {
		t.Run(name, func(t *testing.T) {
			stopping(t, row.deletion, func(w *world) {
				p := w.holding()
				w.signals <- fromOutside
				time.Sleep(10*time.Second + time.Millisecond)
				synctest.Wait()
				if n := row.deletion.questions(); n > row.most || n == 0 {
					t.Errorf("%d questions, of at most %d", n, row.most)
				}
				p.finish(supervise.Status{})
				for len(p.execs) > 0 {
					(<-p.execs).result <- supervise.ExecResult{Err: supervise.ErrStopped}
				}
				w.exited <- <-w.exited
				before := row.deletion.questions()
				time.Sleep(time.Minute)
				if after := row.deletion.questions(); after != before {
					t.Errorf("%d questions after the end", after-before)
				}
			})
		})
	}
}

// TestGraceIsLogged: the log tells why a process had less time than its template says.
func TestGraceIsLogged(t *testing.T) {
	deletion := &fakeDeletion{err: errors.New("forbidden by test")}
	stopping(t, deletion, func(w *world) {
		p := w.holding()
		w.signals <- fromOutside
		time.Sleep(400 * time.Millisecond)
		deletion.set(func(f *fakeDeletion) { f.err, f.of = nil, deletedWithin(5*time.Second) })
		w.stopsWithin(p)
		(<-p.execs).result <- supervise.ExecResult{Err: supervise.ErrStopped}
		w.exited <- <-w.exited
		time.Sleep(time.Second)
		text := w.log.String()
		words := []string{"grace period unknown", "forbidden by test", "grace period known", "grace period shortened to=5s template=30s"}
		if missing := slices.DeleteFunc(words, func(s string) bool { return strings.Contains(text, s) }); len(missing) > 0 {
			t.Errorf("no %q in\n%s", missing, text)
		}
	})
}
