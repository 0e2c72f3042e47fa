// Package load is the work of a singleton under test: a write to a sink every 20 ms, or every $EVERY.
package load

import (
	"context"
	"fmt"
	"net/http"
	"os"
	"os/signal"
	"syscall"
	"time"

	"github.com/singletonjob/operator/fence"
	"github.com/singletonjob/operator/fence/fencetest"
	"github.com/singletonjob/operator/internal/contract"
)

const (
	// Every is the time between writes, if $EVERY says no other.
	Every = 20 * time.Millisecond
	// patience with one write. A request that the network delays is given up, but can still arrive later.
	patience = 200 * time.Millisecond
)

// NoToken is what writes without a fencing token carry: the same for all, which no sink refuses.
const NoToken fence.Token = 1

// Context ends when the process is asked to stop by SIGTERM, and $LINGER later: work that can't be put down at once.
func Context() context.Context {
	ctx, cancel := context.WithCancel(context.Background())
	linger, err := time.ParseDuration(os.Getenv("LINGER"))
	if err != nil {
		linger = 0
	}
	asked := make(chan os.Signal, 1)
	signal.Notify(asked, syscall.SIGTERM)
	go func() {
		<-asked
		time.Sleep(linger)
		cancel()
	}()
	return ctx
}

// Write writes to the sink $SINK as $RESOURCE until the context ends. A refusal or an error does not stop it: the worst
// behaved writer is the one to test.
func Write(ctx context.Context, token fence.Token) {
	w := &fencetest.Writer{
		URL:      os.Getenv("SINK"),
		Resource: fence.Resource(os.Getenv("RESOURCE")),
		Token:    token,
		// Its start tells a process from the one before in the same container.
		ID:     fmt.Sprintf("%s@%d", Pod(), fencetest.Boottime().Milliseconds()),
		Client: &http.Client{Transport: &http.Transport{}},
	}
	every, err := time.ParseDuration(os.Getenv("EVERY"))
	if err != nil {
		every = Every
	}
	tick := time.NewTicker(every)
	defer tick.Stop()
	for ctx.Err() == nil {
		attempt, cancel := context.WithTimeout(ctx, patience)
		_ = w.Write(attempt)
		cancel()
		select {
		case <-tick.C:
		case <-ctx.Done():
		}
	}
}

// Pod is this process's, by its host name where no agent says it.
func Pod() string {
	if name := os.Getenv(contract.PodEnv); name != "" {
		return name
	}
	name, err := os.Hostname()
	if err != nil {
		return "unknown"
	}
	return name
}
