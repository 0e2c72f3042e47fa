//go:build linux

package supervise

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"testing"
	"time"

	"golang.org/x/sys/unix"
)

// prepare makes a leash wait, and returns its PID.
func (a *agent) prepare() int {
	a.t.Helper()
	a.must(command{Op: "prepare"})
	eventually(a.t, "a leash waits", func() bool { return a.must(command{Op: "spares"}).Count == 1 })
	leash := a.find(leashName)
	eventually(a.t, "it has set itself up, or is dead", func() bool {
		name, err := os.ReadFile(fmt.Sprintf("/proc/%d/comm", leash))
		return err != nil || string(name) == "leash\n"
	})
	return leash
}

// expectLeash waits for the program, and checks that it has one leash, the one that waited or another one.
func (a *agent) expectLeash(waited int, same bool) {
	a.t.Helper()
	a.expectLine("ready")
	if leash := a.find(leashName); (leash == waited) != same || a.leashes() != 1 {
		a.t.Errorf("%d leashes, and %d holds the program: %d waited, and is it to hold the program: %t", a.leashes(), leash, waited, same)
	}
	a.must(command{Op: "kill"})
	await(a.t, "exit", a.exited)
	a.expectGone()
}

func TestALeashThatWaitedHoldsTheProgram(t *testing.T) {
	t.Parallel()
	inBothModes(t, func(_ *testing.T, a *agent) {
		for range 3 { // a tenure may follow another one
			waited := a.prepare()
			a.must(command{Op: "prepare"}) // harmless
			a.must(command{Op: "start", Argv: program("idle"), In: time.Hour})
			a.expectLeash(waited, true)
		}
	})
}

// A leash that waits knows neither the token nor the arguments. The program gets them unchanged, whatever bytes they contain.
func TestAnOrderArrivesUnchanged(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	mean := "a b\n\x01ÿ$(X)=" + strings.Repeat("x", 1<<16)
	a := startAgent(t, nil)
	a.prepare()
	out := filepath.Join(dir, "out")
	a.must(command{
		Op: "start", Dir: dir, In: time.Hour, Env: []string{"TOKEN=7", "MEAN=" + mean, "EMPTY=", "TOKEN=8", "OUT=" + out},
		Argv: []string{"/bin/sh", "-c", `printf '%s|%s|%s|%s|%s|%s' "$TOKEN" "$MEAN" "$EMPTY" "$PWD" "$1" "$2" >"$OUT"`, "sh", "", mean},
	})
	await(t, "exit", a.exited)
	a.expectGone()
	if got, err := os.ReadFile(out); err != nil || string(got) != strings.Join([]string{"8", mean, "", dir, "", mean}, "|") {
		t.Errorf("the program found %q, %v", got, err)
	}
}

// A fault of a leash while it waits costs no tenure.
func TestALeashThatWaits(t *testing.T) {
	t.Parallel()
	for name, row := range map[string]struct {
		happens func(*agent, int)
		same    bool
	}{
		"is killed": {func(a *agent, leash int) {
			_ = unix.Kill(leash, unix.SIGKILL)
			eventually(a.t, "no leash waits", func() bool { return a.must(command{Op: "spares"}).Count == 0 })
		}, false},
		"is stopped": {func(a *agent, leash int) {
			_ = unix.Kill(leash, unix.SIGSTOP)
			eventually(a.t, "it is stopped", func() bool { return state(leash) == "T" })
		}, true},
		"gets every signal": {func(_ *agent, leash int) {
			for sig := unix.Signal(1); sig <= 64; sig++ {
				if sig != unix.SIGKILL && sig != unix.SIGSTOP && sig != 32 && sig != 34 {
					_ = unix.Kill(-leash, sig)
				}
			}
		}, true},
		"is killed just before the start": {func(_ *agent, leash int) {
			_ = unix.Kill(leash, unix.SIGKILL)
			for canAct(leash) {
				time.Sleep(time.Millisecond)
			}
		}, false},
	} {
		t.Run(name, func(t *testing.T) {
			inBothModes(t, func(_ *testing.T, a *agent) {
				waited := a.prepare()
				row.happens(a, waited)
				a.must(command{Op: "start", Argv: program("idle"), In: time.Hour})
				a.expectLeash(waited, row.same)
			})
		})
	}
}

// A leash that waits dies with its agent, stopped or not.
func TestALeashThatWaitsDiesWithTheAgent(t *testing.T) {
	t.Parallel()
	for _, stopped := range []bool{false, true} {
		t.Run("stopped="+strconv.FormatBool(stopped), func(t *testing.T) {
			inBothModes(t, func(t *testing.T, a *agent) {
				waited := a.prepare()
				if stopped {
					_ = unix.Kill(waited, unix.SIGSTOP)
				}
				a.signal(unix.SIGKILL)
				eventually(t, "nothing is left", func() bool { return len(a.processes()) == 0 })
			})
		})
	}
}

// A start that comes while the leash is forked waits for it. A start that needs another leash leaves none over.
func TestAStartBesideALeashThatWaits(t *testing.T) {
	t.Parallel()
	a := startAgent(t, nil)
	for range 20 {
		a.must(command{Op: "prepare"})
		a.must(command{Op: "start", Argv: program("idle"), In: time.Hour})
		a.expectLeash(a.find(leashName), true)
	}
	waited := a.prepare()
	a.must(command{Op: "start", Argv: []string{"/bin/sleep", "1000"}, In: time.Hour, Out: filepath.Join(t.TempDir(), "out")})
	eventually(t, "one leash is left", func() bool { return a.leashes() == 1 })
	if leash := a.find(leashName); leash == waited {
		t.Error("a leash whose output is another file holds the program")
	}
	a.must(command{Op: "kill"})
	await(t, "exit", a.exited)
	a.expectGone()
	a.must(command{Op: "start", Argv: program("idle"), In: time.Hour})
	a.expectLine("ready")
	a.must(command{Op: "prepare"}) // a tree has no need of one
	if spares := a.must(command{Op: "spares"}).Count; spares != 0 || a.leashes() != 1 {
		t.Errorf("%d leashes wait beside a tree, and there are %d in all", spares, a.leashes())
	}
	a.must(command{Op: "kill"})
	await(t, "exit", a.exited)
	a.expectGone()
}

// A deadline that passed while a leash waited is found by the leash.
func TestALeashThatWaitedStartsNothingAfterTheDeadline(t *testing.T) {
	t.Parallel()
	inBothModes(t, func(t *testing.T, a *agent) {
		a.prepare()
		if e := a.do(command{Op: "start", Argv: program("idle"), At: 1, Forced: true}); e.ErrKind != "passed" {
			t.Errorf("error %q (%s), want that the deadline has passed", e.Err, e.ErrKind)
		}
		a.expectNoDescendants()
	})
}

// Leashes that wait and die leave no descriptor open.
func TestLeashesThatWaitLeaveNothingOpen(t *testing.T) {
	t.Parallel()
	a := startAgent(t, nil)
	open := 0
	for i := range 10 {
		_ = unix.Kill(a.prepare(), unix.SIGKILL)
		eventually(t, "no leash waits", func() bool { return a.must(command{Op: "spares"}).Count == 0 })
		if fds := a.must(command{Op: "fds"}).Count; i == 0 {
			open = fds
		} else if fds > open {
			t.Fatalf("%d descriptors after %d leashes, %d after the first", fds, i+1, open)
		}
	}
}

func FuzzOrder(f *testing.F) {
	f.Add(encodeOrder(order{dir: "/", argv: []string{"a", ""}, env: []string{"B=c"}}))
	f.Add([]byte{1, 0, 0, 0})
	f.Add([]byte{1, 0, 255, 255, 255, 255, 255, 255, 255, 255, 255, 1})
	f.Fuzz(func(t *testing.T, data []byte) {
		if o, err := decodeOrder(data); err == nil {
			if again, err := decodeOrder(encodeOrder(o)); err != nil || again.dir != o.dir || len(again.argv) != len(o.argv) || len(again.env) != len(o.env) {
				t.Errorf("%+v became %+v, %v", o, again, err)
			}
		}
	})
}

// A leash that waited holds the lock that the agent gave it, as every leash does.
func TestALeashThatWaitedHoldsTheLock(t *testing.T) {
	t.Parallel()
	inBothModes(t, func(t *testing.T, a *agent) {
		path := filepath.Join(t.TempDir(), "lock")
		a.must(command{Op: "prepare", Lock: path})
		eventually(t, "a leash waits", func() bool { return a.must(command{Op: "spares"}).Count == 1 })
		waited := a.find(leashName)
		a.must(command{Op: "start", Argv: program("idle"), In: time.Hour, Lock: path}) // the agent closes its file
		f, err := os.Open(path)
		if err != nil {
			t.Fatal(err)
		}
		defer f.Close()
		if err := unix.Flock(int(f.Fd()), unix.LOCK_EX|unix.LOCK_NB); !errors.Is(err, unix.EWOULDBLOCK) {
			t.Errorf("SAFETY: the lock is free while the leash lives: %v", err)
		}
		a.expectLeash(waited, true)
		if err := unix.Flock(int(f.Fd()), unix.LOCK_EX|unix.LOCK_NB); err != nil {
			t.Errorf("the lock outlives the leash: %v", err)
		}
	})
}

// A leash that is stopped before it has read its first deadline has no timer that continues it. The agent does.
func TestALeashThatIsStoppedBeforeItsDeadline(t *testing.T) {
	t.Parallel()
	inBothModes(t, func(t *testing.T, a *agent) {
		for range 5 {
			a.must(command{Op: "start", Cold: true, Argv: program("idle"), In: time.Hour, Late: true, Signal: unix.SIGSTOP})
			a.expectLine("ready")
			a.must(command{Op: "kill"})
			await(t, "exit", a.exited)
			a.expectGone()
		}
	})
}
