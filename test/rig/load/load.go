// Package load is the work of a singleton under test: a write to a sink every 20 ms.
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
)

const (
	// Every is the time between writes.
	Every = 20 * time.Millisecond
	// patience with one write. What the network holds back is given up, and may arrive later all the same.
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
		// The host name is the pod's. Its start tells a process from the one before in the same container.
		ID:     fmt.Sprintf("%s@%d", hostname(), fencetest.Boottime().Milliseconds()),
		Client: &http.Client{Transport: &http.Transport{}},
	}
	tick := time.NewTicker(Every)
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

func hostname() string {
	name, err := os.Hostname()
	if err != nil {
		return "unknown"
	}
	return name
}
