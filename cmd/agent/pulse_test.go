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

// mustGoOn runs a scenario in which a tenure must continue. On a machine that is too busy for renewals, the tenure can rightly end. So an
// attempt that failed while the machine stalled is repeated. Any other failure is a defect; a defect that shows half of the time must not
// pass because it is absent once.
//
// An event that does not happen within patience ends the attempt. An event that must never happen (an error that is reported to the world's
// t) fails the test at once.
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

// trial is a test in which a fatal error ends only the attempt.
type trial struct{ testing.TB }

type fatal string

func (trial) Fatal(args ...any)                 { panic(fatal(fmt.Sprint(args...))) }
func (trial) Fatalf(format string, args ...any) { panic(fatal(fmt.Sprintf(format, args...))) }
func (trial) FailNow()                          { panic(fatal("it can't go on")) }

// ended reports how an attempt ended.
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
	// attempts is the maximum number of attempts of mustGoOn.
	attempts = 10
	// stall is a pause of the machine that can have ended a tenure. Scenarios leave at least a second.
	stall = 300 * time.Millisecond
)

// repeated implements the rule for repeating an attempt. An attempt returns its failure and the longest pause of the machine.
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

// pulse measures how fast the machine works: how late a goroutine wakes up, and how long the API server takes to store an unrelated
// object.
type pulse struct {
	mu    sync.Mutex
	began time.Time // when the current check began; zero if there is none
	most  time.Duration
	stop  context.CancelFunc
}

const pulsePeriod = 100 * time.Millisecond

func watchPulse(client kubernetes.Interface, ns string) *pulse {
	ctx, stop := context.WithCancel(context.Background())
	p := &pulse{stop: stop, began: time.Now()}
	go func() {
		for i := 0; ctx.Err() == nil; i++ {
			// Count from before the pause, so that a late wake-up counts.
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

// longest ends the measurement and returns the longest pause.
func (p *pulse) longest() time.Duration {
	p.stop()
	p.beat()
	p.mu.Lock()
	defer p.mu.Unlock()
	return p.most
}

// A defect that shows in every second attempt is reported, even if the machine stalls sometimes.
func TestOnlyPausesRepeatAnAttempt(t *testing.T) {
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

func TestFatalErrorEndsTheAttempt(t *testing.T) {
	w := &world{t: trial{t}}
	err := ended(func() error {
		w.must(errors.New("it never came"))
		return nil
	})
	if err == nil || err.Error() != "it never came" {
		t.Errorf("the attempt ended with %v", err)
	}
}
