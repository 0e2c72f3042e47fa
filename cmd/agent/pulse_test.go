//go:build linux

package main

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"sync"
	"testing"
	"time"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/kubernetes"
)

// mustGoOn runs a scenario in which nothing is to happen to a tenure. On a machine that is too busy for renewals
// something does, rightly. So an attempt that failed while the machine stood still is repeated, and any other is a defect:
// one that comes half of the time must not pass because it stays away once. What did not come within patience ends the
// attempt; what must never happen (an error that is told to the world's t) fails the test at once.
func mustGoOn(t *testing.T, scenario func(w *world) error) {
	t.Helper()
	err := repeated(t.Logf, func() (time.Duration, error) {
		w := newWorld(t)
		w.t = trial{t}
		beat := watchPulse(w.client, w.ns)
		err := ended(func() error { return scenario(w) })
		return beat.longest(), err
	})
	if err != nil {
		t.Error(err)
	}
}

// trial is a test in which what is fatal ends the attempt.
type trial struct{ testing.TB }

type fatal string

func (trial) Fatal(args ...any)                 { panic(fatal(fmt.Sprint(args...))) }
func (trial) Fatalf(format string, args ...any) { panic(fatal(fmt.Sprintf(format, args...))) }
func (trial) FailNow()                          { panic(fatal("it can't go on")) }

// ended tells how an attempt ended.
func ended(attempt func() error) (err error) {
	defer func() {
		switch p := recover().(type) {
		case nil:
		case fatal:
			err = errors.New(string(p))
		default:
			panic(p)
		}
	}()
	return attempt()
}

const (
	// attempts of mustGoOn.
	attempts = 10
	// stall is a pause of the machine that may have ended a tenure: scenarios leave a second at least.
	stall = 300 * time.Millisecond
)

// repeated is the rule by which an attempt is repeated: an attempt tells what was wrong, and how long nothing went on.
func repeated(log func(string, ...any), attempt func() (time.Duration, error)) error {
	var paused time.Duration
	var err error
	for range attempts {
		if paused, err = attempt(); err == nil || paused < stall {
			return err
		}
		log("an attempt failed beside a pause of %v: %v", paused, err)
	}
	return fmt.Errorf("in each of %d attempts: %w", attempts, err)
}

// pulse is how fast the machine works: how late a goroutine wakes up, and how long the API server takes to store something
// that has nothing to do with agents.
type pulse struct {
	mu    sync.Mutex
	began time.Time // of the present look; zero: none is under way
	most  time.Duration
	stop  context.CancelFunc
}

const pulsePeriod = 100 * time.Millisecond

func watchPulse(client kubernetes.Interface, ns string) *pulse {
	ctx, stop := context.WithCancel(context.Background())
	p := &pulse{stop: stop, began: time.Now()}
	go func() {
		for i := 0; ctx.Err() == nil; i++ {
			// From before the pause: a wake-up that is late counts.
			time.Sleep(pulsePeriod)
			body := fmt.Appendf(nil, `{"metadata":{"annotations":{"pulse":"%d"}}}`, i)
			_, err := client.CoreV1().ServiceAccounts(ns).Patch(ctx, "agents", "application/merge-patch+json", body, metav1.PatchOptions{})
			if err == nil {
				p.beat()
			}
		}
	}()
	return p
}

func (p *pulse) beat() {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.most, p.began = max(p.most, time.Since(p.began)-pulsePeriod), time.Now()
}

// longest ends the watch and returns the longest pause.
func (p *pulse) longest() time.Duration {
	p.stop()
	p.beat()
	p.mu.Lock()
	defer p.mu.Unlock()
	return p.most
}

// A defect that shows in every second attempt is told, whatever the machine does now and then.
func TestAttemptsAreRepeatedForPausesOnly(t *testing.T) {
	wrong := errors.New("the tenure was lost")
	for name, test := range map[string]struct {
		fails    []bool
		pauses   []time.Duration
		attempts int
		want     error
	}{
		"all is well":               {fails: []bool{false}, pauses: []time.Duration{time.Hour}, attempts: 1},
		"a defect":                  {fails: []bool{true, false}, pauses: []time.Duration{stall - 1, 0}, attempts: 1, want: wrong},
		"a pause":                   {fails: []bool{true, false}, pauses: []time.Duration{stall, 0}, attempts: 2},
		"a pause, then a defect":    {fails: []bool{true, true, false}, pauses: []time.Duration{stall, 0, 0}, attempts: 2, want: wrong},
		"a defect or a bad machine": {fails: slices.Repeat([]bool{true}, attempts), pauses: slices.Repeat([]time.Duration{stall}, attempts), attempts: attempts, want: wrong},
	} {
		n := 0
		err := repeated(t.Logf, func() (time.Duration, error) {
			n++
			if test.fails[n-1] {
				return test.pauses[n-1], wrong
			}
			return test.pauses[n-1], nil
		})
		if !errors.Is(err, test.want) || n != test.attempts {
			t.Errorf("%s: %v after %d attempts, want %v after %d", name, err, n, test.want, test.attempts)
		}
	}
}

func TestWhatIsFatalEndsTheAttempt(t *testing.T) {
	w := &world{t: trial{t}}
	err := ended(func() error {
		w.must(errors.New("it never came"))
		return nil
	})
	if err == nil || err.Error() != "it never came" {
		t.Errorf("the attempt ended with %v", err)
	}
}
