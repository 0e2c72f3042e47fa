//go:build linux

package main

import (
	"fmt"
	"os"
	"os/signal"
	"slices"
	"strconv"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/singletonjob/operator/internal/contract"
	"github.com/singletonjob/operator/internal/supervise"
)

// process is what agents run: it writes that it lives, every 2 ms, with its token and CLOCK_BOOTTIME, which all
// processes of the machine share. Its arguments are the diary's path and what to do besides:
//
//	stubborn     ignore SIGTERM
//	exit=N       exit with N at SIGUSR1
//	linger=D     exit D after SIGTERM
//	env          write the environment first
func process() {
	diary, err := os.OpenFile(os.Args[1], os.O_APPEND|os.O_CREATE|os.O_WRONLY, 0o600)
	if err != nil {
		fmt.Fprintln(os.Stderr, err)
		os.Exit(1)
	}
	token := os.Getenv(contract.DefaultTokenEnv)
	write := func(what string) {
		// One write is one line, whole, whoever else appends.
		fmt.Fprintf(diary, "%s %s %d %d\n", what, token, os.Getpid(), supervise.BootTime())
	}
	signals := make(chan os.Signal, 16)
	signal.Notify(signals)
	does := parseBehaviour(os.Args[2:])
	if does.tellsEnv {
		for _, kv := range os.Environ() {
			fmt.Fprintf(diary, "env %s\n", kv)
		}
	}
	beat := time.NewTicker(2 * time.Millisecond)
	for {
		write("beat")
		select {
		case <-beat.C:
		case sig := <-signals:
			switch {
			case sig == syscall.SIGUSR1:
				write("exit")
				os.Exit(does.code)
			case sig == syscall.SIGTERM && !does.stubborn:
				time.AfterFunc(does.linger, func() { os.Exit(0) })
			case sig == syscall.SIGURG || sig == syscall.SIGCHLD: // the Go runtime's own
			default:
				write("signal-" + sig.(syscall.Signal).String())
			}
		}
	}
}

// behaviour is what the process does besides living.
type behaviour struct {
	code               int
	linger             time.Duration
	stubborn, tellsEnv bool
}

func parseBehaviour(args []string) (b behaviour) {
	for _, arg := range args {
		name, value, _ := strings.Cut(arg, "=")
		switch name {
		case "stubborn":
			b.stubborn = true
		case "exit":
			b.code, _ = strconv.Atoi(value)
		case "linger":
			b.linger, _ = time.ParseDuration(value)
		case "env":
			b.tellsEnv = true
		}
	}
	return b
}

// life is the time in which one process was seen alive.
type life struct {
	token       int64
	pid         int
	first, last int64
}

func (w *world) diaryLines() []string {
	w.t.Helper()
	text, err := os.ReadFile(w.diary)
	if os.IsNotExist(err) {
		return nil
	}
	w.must(err)
	all := strings.Split(string(text), "\n")
	return all[:len(all)-1] // the last one may be half written
}

// lives reads the diary, in the order of the first beats.
func (w *world) lives() []life {
	w.t.Helper()
	byPID := map[int]*life{}
	var lives []*life
	for _, line := range w.diaryLines() {
		var what string
		var token, at int64
		var pid int
		if n, _ := fmt.Sscan(line, &what, &token, &pid, &at); n != 4 {
			continue
		}
		l := byPID[pid]
		if l == nil || l.token != token {
			l = &life{token: token, pid: pid, first: at}
			byPID[pid] = l
			lives = append(lives, l)
		}
		l.last = at
	}
	var out []life
	for _, l := range lives {
		out = append(out, *l)
	}
	slices.SortFunc(out, func(a, b life) int { return int(a.first - b.first) })
	return out
}

// checkLives asserts what holds in every test: never two processes alive at once, and each token greater than every
// earlier one. It returns the lives.
func (w *world) checkLives() []life {
	w.t.Helper()
	lives := w.lives()
	for i := 1; i < len(lives); i++ {
		before, after := lives[i-1], lives[i]
		if after.first <= before.last {
			w.t.Errorf("two at once for %v: %+v and %+v", time.Duration(before.last-after.first), before, after)
		}
	}
	highest := int64(0)
	for _, l := range lives {
		switch {
		case l.token == 0: // a leader by client-go, which has no tokens
		case l.token <= highest:
			w.t.Errorf("%+v: its token is not above %d", l, highest)
		default:
			highest = l.token
		}
	}
	return lives
}

// awaitBeat waits until the process of a token lives.
func (w *world) awaitBeat(token int64) {
	w.t.Helper()
	w.eventually(fmt.Sprintf("the process with token %d lives", token), func() bool {
		return slices.ContainsFunc(w.lives(), func(l life) bool { return l.token == token })
	})
}

func TestDiaryTellsOverlap(t *testing.T) {
	for name, test := range map[string]struct {
		lines string
		fails bool
	}{
		"one after the other": {lines: "beat 1 10 100\nbeat 1 10 200\nbeat 2 11 201\n"},
		"two at once":         {lines: "beat 1 10 100\nbeat 2 11 150\nbeat 1 10 200\n", fails: true},
		"same token":          {lines: "beat 1 10 100\nbeat 1 11 200\n", fails: true},
	} {
		t.Run(name, func(t *testing.T) {
			inner := &recorder{TB: t}
			w := &world{t: inner, diary: t.TempDir() + "/diary"}
			if err := os.WriteFile(w.diary, []byte(test.lines), 0o600); err != nil {
				t.Fatal(err)
			}
			w.checkLives()
			if inner.failed != test.fails {
				t.Errorf("failed: %t, want %t", inner.failed, test.fails)
			}
		})
	}
}

// recorder takes note of errors in place of the test.
type recorder struct {
	testing.TB
	failed bool
}

func (r *recorder) Errorf(string, ...any) { r.failed = true }
