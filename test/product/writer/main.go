//go:build linux

// Command writer is a singleton's process for tests and the demo: it writes to a toy sink again and again, each time with
// its fencing token and the time. It does not stop when the sink refuses it: the worst behaved writer is the one to test.
//
// SINK is the sink's URL and RESOURCE what it writes to. It ends at SIGTERM with 0 (with STUBBORN set, never), at SIGUSR1
// with 0, at SIGUSR2 with 1.
package main

import (
	"context"
	"errors"
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
	// every is the time between writes.
	every = 20 * time.Millisecond
	// patience with one write. What the network holds back is given up, and may arrive later all the same.
	patience = 100 * time.Millisecond
)

func main() {
	token, err := fence.ParseToken(os.Getenv(fence.EnvToken))
	if err != nil {
		fmt.Fprintln(os.Stderr, fence.EnvToken+":", err)
		os.Exit(1)
	}
	go obey()
	w := &fencetest.Writer{
		URL: os.Getenv("SINK"), Resource: fence.Resource(os.Getenv("RESOURCE")), Token: token,
		// A connection for each write: one that hangs holds up no other.
		ID: fmt.Sprintf("%s#%d", os.Getenv("SINGLETONJOB_POD"), os.Getpid()), Client: &http.Client{Transport: &http.Transport{DisableKeepAlives: true}},
	}
	fmt.Println("writing with token", token)
	refused := false
	for tick := time.NewTicker(every); ; <-tick.C {
		ctx, cancel := context.WithTimeout(context.Background(), patience)
		err := w.Write(ctx)
		cancel()
		if errors.Is(err, fence.ErrStale) && !refused {
			refused = true
			fmt.Println("refused:", err)
		}
	}
}

func obey() {
	signals := make(chan os.Signal, 4)
	signal.Notify(signals, syscall.SIGTERM, syscall.SIGUSR1, syscall.SIGUSR2)
	for s := range signals {
		switch {
		case s == syscall.SIGUSR2:
			os.Exit(1)
		case s == syscall.SIGUSR1 || os.Getenv("STUBBORN") == "":
			os.Exit(0)
		}
	}
}
