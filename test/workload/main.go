// Command workload is what tests, the demo and the benchmark run as a singleton. It writes to a sink every 20 ms, with its fencing token
// and the time, and does not stop when the sink refuses it.
//
//	workload            write to the sink at $SINK as $RESOURCE; see package load
//	workload unfenced   the same, without a token
//	workload as UID     become another user, as gosu and su-exec do, and write to the sink
//	workload sink       be a sink, on port 8080, where no host is at hand to be one
//	workload book       be one run of a schedule, which books at the ledger $LEDGER; see package book
//	workload whoami     tell arguments, user, directory and environment, in one line of JSON, and wait
//	workload client     ask $URL all the time who answers there, and report that to $REPORT; see package ask
//
// A writer with a token answers at $LISTEN, if that is set, with its pod and its token.
//
// It ends at SIGUSR1 with 0 and at SIGUSR2 with 1, and at SIGHUP it takes memory until the kernel ends it.
package main

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"net"
	"net/http"
	"os"
	"os/signal"
	"strconv"
	"strings"
	"syscall"
	"time"

	"github.com/singletonjob/operator/fence"
	"github.com/singletonjob/operator/fence/fencetest"
	"github.com/singletonjob/operator/test/workload/ask"
	"github.com/singletonjob/operator/test/workload/book"
	"github.com/singletonjob/operator/test/workload/load"
)

func main() {
	if err := run(os.Args[1:]); err != nil {
		fmt.Fprintln(os.Stderr, "workload:", err)
		os.Exit(1)
	}
}

func run(args []string) error {
	switch {
	case len(args) == 0:
		return write()
	case args[0] == "unfenced":
		obey()
		load.Write(load.Context(), load.NoToken)
		return nil
	case args[0] == "sink":
		return sink()
	case args[0] == "client":
		(&ask.Client{URL: os.Getenv("URL"), Report: os.Getenv("REPORT")}).Run(load.Context())
		return nil
	case args[0] == "book":
		return book.Main()
	case args[0] == "whoami":
		return whoami()
	case args[0] == "as" && len(args) == 2:
		return as(args[1])
	}
	return fmt.Errorf("what is %q?", args[0])
}

func write() error {
	token, err := fence.ParseToken(os.Getenv(fence.EnvToken))
	if err != nil {
		return fmt.Errorf("%s: %w", fence.EnvToken, err)
	}
	obey()
	if err := answer(os.Getenv("LISTEN"), token); err != nil {
		return err
	}
	fmt.Println("writing with token", token)
	ctx := load.Context()
	if every, err := time.ParseDuration(os.Getenv("PRINT")); err == nil {
		go count(ctx, token, every)
	}
	load.Write(ctx, token)
	return nil
}

// count prints numbered lines, so that a reader of the log sees which are missing, or come twice.
func count(ctx context.Context, token fence.Token, every time.Duration) {
	tick := time.NewTicker(every)
	defer tick.Stop()
	for n := 1; ctx.Err() == nil; n++ {
		fmt.Printf("count %d %d\n", token, n)
		<-tick.C
	}
}

func whoami() error {
	groups, err := os.Getgroups()
	if err != nil {
		return err
	}
	dir, err := os.Getwd()
	if err != nil {
		return err
	}
	env := map[string]string{}
	for _, kv := range os.Environ() {
		key, value, _ := strings.Cut(kv, "=")
		env[key] = value
	}
	text, err := json.Marshal(map[string]any{"argv": os.Args, "uid": os.Getuid(), "gid": os.Getgid(), "groups": groups, "directory": dir, "env": env})
	if err != nil {
		return err
	}
	fmt.Printf("%s\n", text)
	<-load.Context().Done()
	return nil
}

// answer has the process tell who it is at an address, if there is one.
func answer(address string, token fence.Token) error {
	if address == "" {
		return nil
	}
	listener, err := net.Listen("tcp", address)
	if err != nil {
		return err
	}
	server := &http.Server{Handler: ask.Handler(ask.Who{Pod: load.Pod(), Token: token}), ReadHeaderTimeout: time.Minute}
	go func() { _ = server.Serve(listener) }()
	return nil
}

// as begins again as another user, for whom the kernel forgets whose death was to kill this process.
func as(user string) error {
	uid, err := strconv.Atoi(user)
	if err != nil {
		return fmt.Errorf("as whom? %w", err)
	}
	program, err := os.Executable()
	if err != nil {
		return err
	}
	if err := errors.Join(syscall.Setgroups(nil), syscall.Setgid(uid), syscall.Setuid(uid)); err != nil {
		return fmt.Errorf("become user %d: %w", uid, err)
	}
	users, err := os.ReadFile("/proc/self/uid_map")
	if err != nil {
		return err
	}
	fmt.Printf("user %d of %s", os.Getuid(), users)
	return fmt.Errorf("begin anew: %w", syscall.Exec(program, []string{program}, os.Environ()))
}

// obey does from now on what signals ask for. One that nobody awaits yet is lost, so this comes before the first write.
func obey() {
	signals := make(chan os.Signal, 4)
	signal.Notify(signals, syscall.SIGUSR1, syscall.SIGUSR2, syscall.SIGHUP)
	go func() {
		for s := range signals {
			switch s {
			case syscall.SIGUSR1:
				os.Exit(0)
			case syscall.SIGUSR2:
				os.Exit(1)
			case syscall.SIGHUP:
				takeMemory()
			}
		}
	}()
}

func takeMemory() {
	const chunk = 16 << 20
	for taken := [][]byte{}; ; {
		b := make([]byte, chunk)
		for i := 0; i < len(b); i += 4096 {
			b[i] = 1 // or the kernel does not give it
		}
		taken = append(taken, b)
	}
}

func sink() error {
	server := &http.Server{Addr: ":8080", Handler: (&fencetest.Sink{}).Handler(), ReadHeaderTimeout: time.Minute}
	return server.ListenAndServe()
}
