//go:build linux

// Command torture injects random faults into SingletonJobs with real agents, a real operator, three real API servers and the guard. It
// injects the same faults into client-go's elector beside them. You set how long. Then it judges the records of the sinks, the Leases and
// the statuses. It exits with 0 only if no invariant broke. In a run that is long enough, the same faults must also have broken the elector
// and a sink without a fence. Otherwise the run proves nothing.
//
// The seed determines which faults are drawn, and how long they last. Their effects depend on the machine.
package main

import (
	"context"
	"encoding/json"
	"flag"
	"fmt"
	"io"
	"math/rand/v2"
	"os"
	"os/signal"
	"syscall"
	"time"

	"github.com/singletonjob/operator/fence/fencetest"
	"github.com/singletonjob/operator/test/localnode"
	"github.com/singletonjob/operator/test/torture/judge"
)

// telling is the duration of a run that must break the unprotected sink and the control.
const telling = 10 * time.Minute

func main() {
	localnode.Init()
	minutes := flag.Float64("minutes", 3, "for how long")
	seed := flag.Uint64("seed", rand.Uint64(), "what decides which faults are drawn")
	record := flag.String("record", "", "a file for all that was recorded, as JSON")
	flag.Parse()
	held, err := run(".", time.Duration(*minutes*float64(time.Minute)), *seed, *record, os.Stdout)
	if err != nil {
		fmt.Fprintln(os.Stderr, "torture:", err)
	}
	if err != nil || !held {
		os.Exit(1)
	}
}

// run builds the programs from the root of the checkout, and reports whether every invariant held.
func run(root string, lasts time.Duration, seed uint64, record string, out io.Writer) (bool, error) {
	ctx, cancel := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM, syscall.SIGHUP)
	defer cancel()
	w, stop, err := newWorld(ctx, root, out)
	defer stop()
	if err != nil {
		return false, err
	}
	w.say("seed %d: %v of faults begin", seed, lasts)
	began := fencetest.Boottime()
	tormenting, end := context.WithTimeout(ctx, lasts)
	defer end()
	go w.tell(tormenting, began)
	w.torment(tormenting, seed)
	if ctx.Err() != nil {
		return false, context.Cause(ctx)
	}
	w.say("all faults have ended")
	if err := w.heal(); err != nil {
		return false, err
	}
	returned := w.settle(ctx)
	if err := w.hearOperator(); err != nil {
		return false, err
	}
	h := w.history(fencetest.Boottime(), returned)
	stop()
	if record != "" {
		if err := save(record, h); err != nil {
			return false, err
		}
	}
	verdict := judge.Judge(h)
	r := report{seed: seed, lasts: lasts, began: began, history: h, verdict: &verdict}
	_, _ = io.WriteString(out, r.String())
	return r.held(), nil
}

func save(path string, h *judge.History) error {
	text, err := json.Marshal(h)
	if err != nil {
		return err
	}
	return os.WriteFile(path, text, 0o600)
}

// tell prints the progress of the run.
func (w *world) tell(ctx context.Context, began time.Duration) {
	for {
		pause(ctx, 20*time.Second)
		if ctx.Err() != nil {
			return
		}
		w.mu.Lock()
		n := len(w.faults)
		w.mu.Unlock()
		w.say("%7.0f s  %d faults, %d writes", (fencetest.Boottime() - began).Seconds(), n, w.sinks.writes())
	}
}
