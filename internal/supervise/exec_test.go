//go:build linux

package supervise

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"syscall"
	"testing"
	"time"

	"golang.org/x/sys/unix"
)

// exec runs a command beside the main process and waits for its end.
func (a *agent) exec(argv []string) executed {
	a.t.Helper()
	a.must(command{Op: "exec", Argv: argv, In: time.Hour})
	return await(a.t, "the end of a command", a.executed)
}

// main starts a main process that no command is to disturb.
func (a *agent) main() {
	a.t.Helper()
	a.must(command{Op: "start", Argv: program("stubborn"), In: time.Hour, Env: []string{"TOKEN=7", "PATH=/bin:/usr/bin", a.mark}, Dir: "/"})
	a.expectLine("ready")
}

// end ends the main process, and finds nothing left.
func (a *agent) end() {
	a.t.Helper()
	a.must(command{Op: "kill"})
	await(a.t, "exit", a.exited)
	a.expectGone()
}

func TestExecStatus(t *testing.T) {
	t.Parallel()
	inBothModes(t, func(t *testing.T, a *agent) {
		a.main()
		for _, code := range []int{0, 1, 3, 127, 255} {
			if got, want := a.exec(program("exit", strconv.Itoa(code))), (executed{Status: Status{ExitCode: code}}); got != want {
				t.Errorf("exit %d: %+v, want %+v", code, got, want)
			}
		}
		for _, sig := range []syscall.Signal{unix.SIGTERM, unix.SIGKILL, unix.SIGSEGV} {
			if got, want := a.exec(program("raise", strconv.Itoa(int(sig)))), (executed{Status: Status{ExitCode: -1, Signal: sig}}); got != want {
				t.Errorf("%v: %+v, want %+v", sig, got, want)
			}
		}
		a.end()
	})
}

// A command finds what the main process found, and nothing to read.
func TestExecHasTheEnvironmentOfTheMainProcess(t *testing.T) {
	t.Parallel()
	a := startAgent(t, nil)
	a.main()
	for _, row := range []struct {
		c    command
		want string
	}{
		{command{Argv: []string{"sh", "-c", "echo $TOKEN; pwd; cat; echo wrong >&2"}}, "7\n/\nwrong\n"},
		{command{Argv: []string{"sh", "-c", "echo $TOKEN$OTHER; pwd"}, Env: []string{"OTHER=8", "PATH=/bin"}, Dir: "/proc"}, "8\n/proc\n"},
		{command{Argv: []string{"sh", "-c", "ls /proc/$$/fd; awk '{print ($5 == $1) ($6 == $1)}' /proc/$$/stat"}}, "0\n1\n2\n11\n"}, // in no pipeline, whose ends the shell would have for a while
		{command{Argv: program("parent-death")}, "9 0 <nil>\n"},
	} {
		row.c.Op, row.c.In = "exec", time.Hour
		a.must(row.c)
		if got := await(t, "the end of a command", a.executed); got != (executed{Output: row.want}) {
			t.Errorf("%q: %+v, want output %q", row.c.Argv, got, row.want)
		}
	}
	a.end()
}

func TestExecErrors(t *testing.T) {
	t.Parallel()
	a := startAgent(t, nil)
	a.main()
	for name, row := range map[string]struct {
		c            command
		reply, later string
	}{
		"no argv":     {command{In: time.Hour}, "other", ""},
		"no timeout":  {command{Argv: []string{"true"}}, "other", ""},
		"no program":  {command{Argv: []string{"/no/such/program"}, In: time.Hour}, "", "start 127"},
		"no file":     {command{Argv: []string{"/"}, In: time.Hour}, "", "start 126"},
		"no folder":   {command{Argv: []string{"true"}, Dir: "/none", In: time.Hour}, "", "start 126"},
		"longest arg": {command{Argv: []string{"true", strings.Repeat("x", 1<<17-1)}, In: time.Hour}, "", ""},
		"too long":    {command{Argv: []string{"true", strings.Repeat("x", 1<<17)}, In: time.Hour}, "", "start 126"},
	} {
		row.c.Op = "exec"
		e := a.do(row.c)
		if e.ErrKind != row.reply {
			t.Errorf("%s: %q (%s), want kind %q", name, e.Err, e.ErrKind, row.reply)
		}
		if e.Err != "" {
			continue
		}
		if got := await(t, name, a.executed); got.ErrKind != row.later || row.later == "" && got != (executed{}) {
			t.Errorf("%s: %+v, want kind %q", name, got, row.later)
		}
	}
	a.end()
	if e := a.do(command{Op: "exec", Argv: []string{"true"}, In: time.Hour}); e.ErrKind != "done" {
		t.Errorf("without a main process: %q, want ErrProcessDone", e.Err)
	}
}

func TestExecsAtOnce(t *testing.T) {
	t.Parallel()
	a := startAgent(t, nil)
	a.main()
	for range MaxExecs {
		a.must(command{Op: "exec", Argv: []string{"sleep", "1000"}, In: time.Hour})
	}
	if e := a.do(command{Op: "exec", Argv: []string{"true"}, In: time.Hour}); e.ErrKind != "many" {
		t.Errorf("one more: %q, want ErrTooManyExecs", e.Err)
	}
	eventually(t, "all are executed", func() bool {
		n := 0
		for _, p := range a.processes() {
			if strings.HasPrefix(p.cmdline, "sleep ") {
				n++
			}
		}
		return n == MaxExecs
	})
	a.end()
	for range MaxExecs {
		got, want := await(t, "the end of a command", a.executed), executed{Status: Status{ExitCode: -1, Signal: unix.SIGKILL}}
		if got.ErrKind == "stopped" { // its leash was killed before it could say that it runs
			want.Err, want.ErrKind = got.Err, got.ErrKind
		}
		if got != want {
			t.Errorf("%+v, want %+v", got, want)
		}
	}
}

// One of a kind that can't be killed does not take the place of all others.
func TestExecsOfOneName(t *testing.T) {
	t.Parallel()
	a := startAgent(t, nil)
	a.main()
	asleep := command{Op: "exec", Argv: []string{"sleep", "1000"}, In: time.Hour}
	readiness, liveness := asleep, asleep
	readiness.Name, liveness.Name = "readiness", "liveness"
	a.must(readiness)
	if e := a.do(readiness); e.ErrKind != "still runs" {
		t.Errorf("another of the same name: %q, want ErrStillRuns", e.Err)
	}
	a.must(liveness)
	a.must(asleep)
	a.must(asleep)
	eventually(t, "they are executed", func() bool { return a.find("sleep") != 0 })
	unix.Kill(a.find("sleep"), unix.SIGKILL)
	await(t, "the end of a command", a.executed)
	a.end()
}

// Statuses are exact while many commands and their orphans end at the same time.
func TestExecStatusAmongOrphans(t *testing.T) {
	t.Parallel()
	inBothModes(t, func(t *testing.T, a *agent) {
		a.main()
		for round := range 10 {
			want := map[Status]int{}
			for i := range MaxExecs {
				code := round*MaxExecs + i
				want[Status{ExitCode: code}]++
				a.must(command{Op: "exec", Argv: []string{"sh", "-c", fmt.Sprintf("(true & true &); (true & true &); exit %d", code)}, In: time.Hour})
			}
			for range MaxExecs {
				got := await(t, "the end of a command", a.executed)
				if want[got.Status]--; got.Err != "" || want[got.Status] != 0 {
					t.Errorf("round %d: %+v", round, got)
				}
			}
		}
		a.end()
	})
}

// The end of a leash, the end of its program, and the report that names the program become known in any order. The threads of a leash end one
// after the other, so its program can be reaped before it.
func TestEndsInAnyOrder(t *testing.T) {
	t.Parallel()
	ends := map[string]func(*testing.T, *Tree, *run, int){
		"leash":   func(_ *testing.T, tree *Tree, x *run, _ int) { tree.reaped(x.leash, 0) },
		"program": func(t *testing.T, tree *Tree, _ *run, program int) { tree.reaped(program, reap(t, program)) },
		"report": func(_ *testing.T, tree *Tree, x *run, program int) {
			tree.takeReport(x, report{stage: stageStarted, pid: program})
		},
	}
	for _, order := range [][]string{
		{"leash", "program", "report"},
		{"leash", "report", "program"},
		{"program", "leash", "report"},
		{"program", "report", "leash"},
		{"report", "leash", "program"},
		{"report", "program", "leash"},
	} {
		program, err := syscall.ForkExec("/bin/sh", []string{"sh", "-c", "exit 7"}, &syscall.ProcAttr{})
		if err != nil {
			t.Fatal(err)
		}
		x := &execution{run: run{leash: -1}, ended: make(chan struct{})}
		tree := &Tree{run: run{reported: true}, execs: map[*execution]struct{}{x: {}}, early: map[int]unix.WaitStatus{}}
		for _, end := range order {
			ends[end](t, tree, &x.run, program)
		}
		if x.mainEnd == nil || *x.mainEnd != 7<<8 {
			t.Errorf("%q: the status is %v, want that of exit 7", order, x.mainEnd)
		}
		if tree.announceExecs(false); len(tree.execs) > 0 {
			t.Errorf("%q: the execution has not ended", order)
		}
	}
}

// reap waits for the end of a child and returns its status.
func reap(t *testing.T, pid int) (ws unix.WaitStatus) {
	t.Helper()
	for {
		switch _, err := unix.Wait4(pid, &ws, 0, nil); err {
		case nil:
			return ws
		case unix.EINTR:
		default:
			t.Fatal(err)
		}
	}
}

func TestExecOutput(t *testing.T) {
	t.Parallel()
	a := startAgent(t, nil)
	a.main()
	got := a.exec(program("write", strconv.Itoa(8<<20)))
	if want := strings.Repeat(pattern, MaxExecOutput/len(pattern)+1)[:MaxExecOutput]; got.Output != want || got.Status != (Status{}) {
		t.Errorf("of 8 MiB: %d bytes, status %v; want the first %d bytes and success", len(got.Output), got.Status, MaxExecOutput)
	}
	a.end()
}

// A process that a command leaves behind continues, although it holds the output open. It dies with the tree.
func TestExecLeavesAProcessBehind(t *testing.T) {
	t.Parallel()
	inBothModes(t, func(t *testing.T, a *agent) {
		a.main()
		path := filepath.Join(t.TempDir(), "heartbeat")
		h, err := openHeartbeat(path)
		if err != nil {
			t.Fatal(err)
		}
		if got := a.exec(program("leave", path)); got != (executed{Status: Status{ExitCode: 5}, Output: "left\n"}) {
			t.Errorf("%+v, want code 5", got)
		}
		// Its leash is dead by now, so a signal by that would have come.
		ended := BootTime()
		eventually(t, "what the command has left beats on", func() bool { return h.last.Load() > ended })
		a.end()
	})
}

// The agent kills a command whose time is over, perhaps before the command's leash has seen that. The leash does not take that for the command's
// own end, and kills what the command has started. A leash that continues after a stop sees both at once.
func TestExecEndsAfterItsTime(t *testing.T) {
	t.Parallel()
	inBothModes(t, func(t *testing.T, a *agent) {
		a.main()
		for range 10 {
			a.must(command{Op: "exec", Argv: program("chain", "2"), In: time.Hour})
			var first int
			eventually(t, "the command runs", func() bool { first = a.chain(); return first != 0 })
			a.stopLeashes()
			a.must(command{Op: "expire"})
			unix.Kill(first, unix.SIGKILL)
			a.continueLeashes()
			await(t, "the end of a command", a.executed)
			eventually(t, "agent, leash and main process are left", func() bool { return len(a.processes()) == 3 })
		}
		a.end()
	})
}

// A process that a command leaves behind can write more to the output than a pipe holds, although no reader is left.
func TestExecLeavesAWriterBehind(t *testing.T) {
	t.Parallel()
	inBothModes(t, func(t *testing.T, a *agent) {
		a.main()
		path := filepath.Join(t.TempDir(), "heartbeat")
		h, err := openHeartbeat(path)
		if err != nil {
			t.Fatal(err)
		}
		if got := a.exec(program("leave-talking", path)); got.Status != (Status{}) || got.Err != "" {
			t.Errorf("%+v, want success", got)
		}
		for range 3 { // the first write can have been before the end
			then := BootTime()
			eventually(t, "it has written on", func() bool { return h.last.Load() > then })
		}
		a.end()
	})
}

// Commands that leave a process behind each time do not fill the agent.
func TestExecsLeaveABoundedNumberOpen(t *testing.T) {
	t.Parallel()
	a := startAgent(t, nil)
	open := func() int { return a.must(command{Op: "fds"}).Count }
	a.main()
	before := open()
	for range maxDrains + 8 {
		if got := a.exec([]string{"sh", "-c", "sleep 1000 & exit 3"}); got != (executed{Status: Status{ExitCode: 3}}) {
			t.Errorf("%+v, want code 3", got)
		}
	}
	eventually(t, "as many outputs are open as may be", func() bool { return open() == before+maxDrains })
	a.end()
	eventually(t, "none is open", func() bool { return open() < before })
}

// When the time of a command is over, all that descends from it is killed, and the main process is not.
func TestExecTimeout(t *testing.T) {
	t.Parallel()
	for name, argv := range map[string][]string{
		"alone":   {"sleep", "1000"},
		"group":   {"sh", "-c", "sleep 1000 & sleep 1000 & wait"},
		"daemons": program("daemons", "3"),
		"chain":   program("chain", "8"), // each of which hands the next up when it is killed
		"deaf":    program("stubborn"),
		"stopped": {"sh", "-c", "kill -STOP $$"},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			inBothModes(t, func(t *testing.T, a *agent) {
				a.main()
				a.must(command{Op: "exec", Argv: argv, In: 2 * time.Second})
				got := await(t, "the end of a command", a.executed)
				if !got.TimedOut || got.Err == "" && got.Status != (Status{ExitCode: -1, Signal: unix.SIGKILL}) {
					t.Errorf("%+v, want TimedOut and SIGKILL", got)
				}
				eventually(t, "agent, leash and main process are left", func() bool { return len(a.processes()) == 3 })
				if len(a.exited) > 0 {
					t.Error("the main process has ended")
				}
				a.end()
			})
		})
	}
}

// A leash that does not run cannot kill what its command has started, and it alone knows what that is: its agent kills it.
func TestExecTimeoutBesideAStoppedLeash(t *testing.T) {
	t.Parallel()
	for name, row := range map[string]struct {
		argv      []string
		processes int // beside agent, two leashes and the main process
	}{
		"group":   {[]string{"sh", "-c", "sleep 1000 & wait"}, 2},
		"daemons": {program("daemons", "3"), 4},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			inBothModes(t, func(t *testing.T, a *agent) {
				a.main()
				a.must(command{Op: "exec", Argv: row.argv, In: 5 * time.Second})
				eventually(t, "it runs, or has ended", func() bool { return len(a.processes()) == 4+row.processes || len(a.executed) > 0 })
				a.stopLeashes()
				if got := await(t, "the end of a command", a.executed); !got.TimedOut {
					t.Errorf("%+v, want TimedOut", got)
				}
				eventually(t, "agent, leash and main process are left", func() bool { return len(a.processes()) == 3 })
				if len(a.exited) > 0 {
					t.Error("the main process has ended")
				}
				a.end()
			})
		})
	}
}

// stopLeashes stops all that there are now.
func (a *agent) stopLeashes() {
	a.t.Helper()
	for _, p := range a.processes() {
		if a.isLeash(p) {
			unix.Kill(p.pid, unix.SIGSTOP)
			eventually(a.t, "the leash is stopped or dead", func() bool { return slices.Contains([]string{"T", "Z", "X", ""}, state(p.pid)) })
		}
	}
}

func (a *agent) continueLeashes() {
	for _, p := range a.processes() {
		if a.isLeash(p) {
			unix.Kill(p.pid, unix.SIGCONT)
		}
	}
}

// A command that is not executing yet when its time is over never does, and holds nobody up.
func TestExecThatHangsBesideTheMainProcess(t *testing.T) {
	t.Parallel()
	for _, stopped := range []bool{false, true} {
		t.Run(fmt.Sprintf("leash stopped=%t", stopped), func(t *testing.T) {
			t.Parallel()
			inBothModes(t, func(t *testing.T, a *agent) {
				a.main()
				argv, ran, release := hungTouch(t)
				a.must(command{Op: "allow", In: 2 * time.Second})
				a.must(command{Op: "exec", Argv: argv, In: time.Second})
				a.must(command{Op: "extend", In: 2 * time.Hour})
				a.must(command{Op: "exec", Argv: []string{"true"}, In: time.Hour})
				got := await(t, "the end of another", a.executed)
				if got != (executed{}) && got.ErrKind != "not in time" {
					t.Errorf("another command meanwhile: %+v, want success", got)
				}
				if stopped && got == (executed{}) { // else the other one is still to end, which takes its leash
					a.stopLeashes()
				}
				if got := await(t, "the end of a command", a.executed); got != (executed{}) && (got.TimedOut || got.ErrKind != "not in time") {
					t.Errorf("%+v, want errNotInTime", got)
				}
				a.end()
				release()
				time.Sleep(100 * time.Millisecond) // no bound
				if ran() {
					t.Error("it was executed")
				}
			})
		})
	}
}

// The time of a command begins when the program executes.
func TestExecTimeoutBeginsWithTheProgram(t *testing.T) {
	t.Parallel()
	a := startAgent(t, nil)
	a.main()
	argv, ran, release := hungTouch(t)
	a.must(command{Op: "exec", Argv: argv, In: 3 * time.Second})
	time.Sleep(4 * time.Second)
	release()
	if got := await(t, "the end of a command", a.executed); got != (executed{}) || !ran() {
		t.Errorf("%+v, want success", got)
	}
	a.end()
}

// hangForks has the agent's forks hang, until release is called, in the exec of a leash.
func (a *agent) hangForks() (release func()) {
	a.t.Helper()
	exe, err := os.Executable()
	if err != nil {
		a.t.Fatal(err)
	}
	path, release := slowExec(a.t, exe)
	a.must(command{Op: "executable", Dir: path})
	return release
}

// expectForking waits until the agent has so many children, one of which is being forked.
func (a *agent) expectForking(children int) {
	a.t.Helper()
	eventually(a.t, "a leash is being executed", func() bool { return a.must(command{Op: "children"}).Count == children })
}

// touch is a program, and reports whether it ran.
func touch(t *testing.T) (argv []string, ran func() bool) {
	t.Helper()
	made := filepath.Join(t.TempDir(), "made")
	return []string{"/bin/touch", made}, func() bool { _, err := os.Stat(made); return err == nil }
}

// While the exec of a leash hangs, as on a disk that does not answer, the agent does all else. A command that is killed meanwhile never runs.
func TestForkThatHangs(t *testing.T) {
	t.Parallel()
	inBothModes(t, func(t *testing.T, a *agent) {
		a.main()
		release := a.hangForks()
		argv, ran := touch(t)
		a.must(command{Op: "exec", Argv: argv, In: time.Hour})
		a.expectForking(2)
		a.must(command{Op: "exec", Argv: argv, In: time.Hour})
		a.must(command{Op: "extend", In: 2 * time.Hour})
		a.must(command{Op: "signal", Signal: unix.SIGTERM})
		a.must(command{Op: "litter"})
		if ran() {
			t.Error("the agent did not answer until the command ran")
		}
		a.end()
		for range 2 {
			if got := await(t, "the end of a command", a.executed); got.ErrKind != "stopped" {
				t.Errorf("%+v, want ErrStopped", got)
			}
		}
		release()
		time.Sleep(100 * time.Millisecond) // no bound
		if ran() {
			t.Error("it was executed")
		}
	})
}

// The deadline ends a tree, though a fork hangs.
func TestDeadlineWhileAForkHangs(t *testing.T) {
	t.Parallel()
	inBothModes(t, func(t *testing.T, a *agent) {
		withLaterDeadlines(t, 4*time.Second, func(in time.Duration) error {
			if e := a.do(command{Op: "start", Argv: program("stubborn"), In: in}); e.Err != "" {
				return errors.New(e.Err)
			}
			release := a.hangForks()
			argv, ran := touch(t)
			e := a.do(command{Op: "exec", Argv: argv, In: time.Hour})
			if got := await(t, "exit", a.exited); got.Signal != unix.SIGKILL {
				t.Errorf("status %+v, want SIGKILL", got)
			}
			a.expectGone()
			a.must(command{Op: "executable", Dir: "/proc/self/exe"})
			release()
			if e.Err != "" {
				return errors.New(e.Err)
			}
			// The main leash kills all of a PID namespace, and what is being forked can be the first of which the agent learns.
			if got := await(t, "the end of a command", a.executed); !slices.Contains([]string{"stopped", "killed", "passed"}, got.ErrKind) || ran() {
				t.Errorf("%+v, want ErrStopped, ErrLeashKilled or ErrDeadlinePassed", got)
			}
			return nil
		})
	})
}

// The agent does not wait for the leash of the main process either.
func TestForkOfTheMainProcessHangs(t *testing.T) {
	t.Parallel()
	begins := map[string]func(*agent){
		"its own": func(*agent) {},
		"of one that is to wait": func(a *agent) {
			a.must(command{Op: "prepare"})
			a.expectForking(1)
		},
	}
	for fork, begin := range begins {
		t.Run("killed/"+fork, func(t *testing.T) {
			t.Parallel()
			inBothModes(t, func(t *testing.T, a *agent) {
				release := a.hangForks()
				begin(a)
				argv, ran := touch(t)
				a.must(command{Op: "start", Cold: true, Async: true, Argv: argv, In: time.Hour})
				a.expectForking(1)
				a.must(command{Op: "extend", In: 2 * time.Hour})
				a.must(command{Op: "litter"})
				if len(a.started) > 0 {
					t.Error("the agent did not answer until the process ran")
				}
				a.must(command{Op: "kill"})
				if e := await(t, "started", a.started); e.ErrKind != "stopped" {
					t.Errorf("started: %q, want ErrStopped", e.Err)
				}
				a.expectGone()
				release()
				time.Sleep(100 * time.Millisecond) // no bound
				if ran() {
					t.Error("it was executed")
				}
			})
		})
		t.Run("renewed and asked to end/"+fork, func(t *testing.T) {
			t.Parallel()
			inBothModes(t, func(t *testing.T, a *agent) {
				release := a.hangForks()
				begin(a)
				first := a.must(command{Op: "start", Cold: true, Async: true, Argv: []string{"sleep", "1000"}, In: time.Second})
				if e := a.do(command{Op: "extend", In: time.Hour}); e.Err != "" {
					t.Skipf("the machine was too busy for a deadline of a second: %s", e.Err)
				}
				a.must(command{Op: "signal", Signal: unix.SIGTERM})
				eventually(t, "the first deadline is over", func() bool { return BootTime() > first.Deadline })
				release()
				if got, want := await(t, "exit", a.exited), (Status{ExitCode: -1, Signal: unix.SIGTERM}); got != want {
					t.Errorf("status %+v, want %+v", got, want)
				}
				a.expectGone()
			})
		})
	}
	t.Run("no such program", func(t *testing.T) {
		t.Parallel()
		a := startAgent(t, nil)
		a.must(command{Op: "executable", Dir: "/no/such/program"})
		if e := a.do(command{Op: "start", Cold: true, Argv: []string{"true"}, In: time.Hour}); e.ErrKind != "other" {
			t.Errorf("started: %q, want the reason", e.Err)
		}
		a.must(command{Op: "executable", Dir: "/proc/self/exe"})
		a.main() // the tree before is gone
		a.must(command{Op: "executable", Dir: "/no/such/program"})
		a.must(command{Op: "exec", Argv: []string{"true"}, In: time.Hour, Name: "liveness"})
		if got := await(t, "the end of a command", a.executed); got.ErrKind != "other" {
			t.Errorf("%+v, want the reason", got)
		}
		a.must(command{Op: "executable", Dir: "/proc/self/exe"})
		a.must(command{Op: "exec", Argv: []string{"true"}, In: time.Hour, Name: "liveness"})
		if got := await(t, "the end of a command", a.executed); got != (executed{}) {
			t.Errorf("%+v, want success", got)
		}
		a.end()
	})
}

// A command that could not begin in time is the agent's failure and not the program's. It never runs, and keeps its name until it is gone.
func TestExecThatIsNotForkedInTime(t *testing.T) {
	t.Parallel()
	inBothModes(t, func(t *testing.T, a *agent) {
		a.main()
		a.must(command{Op: "allow", In: time.Second})
		release := a.hangForks()
		argv, ran := touch(t)
		c := command{Op: "exec", Argv: argv, In: time.Second, Name: "liveness"}
		a.must(c)
		if got := await(t, "the end of a command", a.executed); got.ErrKind != "not in time" || got.TimedOut {
			t.Errorf("%+v, want errNotInTime", got)
		}
		if e := a.do(c); e.ErrKind != "still starts" {
			t.Errorf("the next of its name: %q, want errStillStarts", e.Err)
		}
		release()
		a.must(command{Op: "executable", Dir: "/proc/self/exe"})
		c.Argv = []string{"true"}
		eventually(t, "another can begin", func() bool { return a.do(c).Err == "" })
		if got := await(t, "the end of a command", a.executed); got != (executed{}) || ran() {
			t.Errorf("%+v, want success, and nothing of the first", got)
		}
		a.end()
	})
}

// The kernel ends a command at the deadline of the tree, which moves with each renewal, whoever is stopped then.
func TestExecDiesAtTheDeadline(t *testing.T) {
	t.Parallel()
	for name, stop := range map[string]func(*agent){
		"nobody stopped":            func(*agent) {},
		"agent stopped":             func(a *agent) { a.signal(unix.SIGSTOP) },
		"agent and leashes stopped": func(a *agent) { a.signal(unix.SIGSTOP); a.stopLeashes() },
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			inBothModes(t, func(t *testing.T, a *agent) {
				for in := 4 * time.Second; ; in *= 2 {
					if a.execUntilDeadline(t, in, stop) {
						return
					}
					if in > time.Minute {
						t.Fatal("the machine is too busy for any deadline")
					}
				}
			})
		})
	}
}

// execUntilDeadline is false where the deadline came before the command ran.
func (a *agent) execUntilDeadline(t *testing.T, in time.Duration, stop func(*agent)) bool {
	t.Helper()
	e := a.do(command{Op: "start", Argv: program("stubborn"), In: in})
	if e.Err != "" {
		return false
	}
	path := filepath.Join(t.TempDir(), "heartbeat")
	h, err := openHeartbeat(path)
	if err != nil {
		t.Fatal(err)
	}
	extended := a.do(command{Op: "extend", In: in})
	alive := a.do(command{Op: "exec", Argv: program("beat", path), In: time.Hour}).Err == "" // with no deadline to come
	eventually(t, "the command beats, or the tree is dead", func() bool { return h.first.Load() != 0 || len(a.exited) > 0 })
	alive = alive && extended.Err == "" && h.first.Load() != 0
	if alive {
		stop(a)
		a.expectDead()
		a.signal(unix.SIGCONT)
		// Without a deadline it would end by itself, in the end.
		if got := await(t, "the end of the command", a.executed); got.Status.Signal != unix.SIGKILL || got.TimedOut {
			t.Errorf("%+v, want SIGKILL", got)
		}
	}
	await(t, "exit", a.exited)
	a.expectGone()
	for !alive && len(a.executed) > 0 {
		<-a.executed
	}
	for len(a.stdout) > 0 {
		<-a.stdout
	}
	return alive
}

// leashes counts those that there are now.
func (a *agent) leashes() (n int) {
	for _, p := range a.processes() {
		if a.isLeash(p) {
			n++
		}
	}
	return n
}

// isPending reports whether a signal waits for a process.
func isPending(pid int, sig unix.Signal) bool {
	status, _ := os.ReadFile(fmt.Sprintf("/proc/%d/status", pid))
	for line := range strings.Lines(string(status)) {
		if mask, is := strings.CutPrefix(line, "ShdPnd:"); is {
			set, err := strconv.ParseUint(strings.TrimSpace(mask), 16, 64)
			return err == nil && set&(1<<(sig-1)) != 0
		}
	}
	return false
}

// chain returns the first process of a chain if its last one runs, or 0.
func (a *agent) chain() (first int) {
	complete := false
	for _, p := range a.processes() {
		switch {
		case strings.Contains(p.cmdline, "chain 2") && !strings.HasPrefix(p.cmdline, leashName):
			first = p.pid
		case strings.Contains(p.cmdline, "chain 0"):
			complete = true
		}
	}
	if !complete {
		return 0
	}
	return first
}

// The leash of a command is stopped while it kills, which takes until the frozen process is dead, and the agent is stopped. Only the
// leash knows what that process has left.
func TestExecDiesThoughItsLeashIsStoppedWhileItKills(t *testing.T) {
	t.Parallel()
	a := startAgent(t, nil)
	for in := 4 * time.Second; ; in *= 2 { // where the machine is too busy for the first deadline, again with a later one
		if in > time.Minute {
			t.Fatal("the machine is too busy for any deadline")
		}
		e := a.do(command{Op: "start", Argv: program("stubborn"), In: in})
		if e.Err != "" {
			continue
		}
		executed := a.do(command{Op: "exec", Argv: program("chain", "2"), In: time.Hour}).Err == ""
		var first int
		eventually(t, "the command runs, or the tree is dead", func() bool {
			first = a.chain()
			return first != 0 || !executed || len(a.exited) > 0
		})
		if thaw := tryFreeze(t, first); thaw != nil {
			a.signal(unix.SIGSTOP)
			if len(a.exited) == 0 && BootTime() < NoLater(e.Deadline) {
				eventually(t, "the command is being killed", func() bool { return isPending(first, unix.SIGKILL) && a.leashes() < 2 })
				// On a busy machine the leash had no CPU at the deadline, and the kernel has killed it. Then nothing is to be seen here.
				if a.leashes() == 1 {
					a.stopLeashes()
					thaw()
					a.expectDead()
					a.signal(unix.SIGCONT)
					await(t, "exit", a.exited)
					a.expectGone()
					return
				}
			}
			a.signal(unix.SIGCONT)
			thaw()
		}
		await(t, "exit", a.exited)
		a.expectGone()
	}
}

// A renewal of the tree is one of its commands, too.
func TestExecOutlivesADeadlineThatMoved(t *testing.T) {
	t.Parallel()
	a := startAgent(t, nil)
	for in := 4 * time.Second; ; in *= 2 { // where the machine is too busy for the first deadline, again with a later one
		if in > 2*time.Minute {
			t.Fatal("the machine is too busy for any deadline")
		}
		e := a.do(command{Op: "start", Argv: program("stubborn"), In: in})
		if e.Err != "" {
			continue
		}
		executed := a.do(command{Op: "exec", Argv: []string{"sleep", "1000"}, In: time.Hour}).Err == ""
		eventually(t, "the command runs, or the tree is dead", func() bool { // so its leash does not begin with the later deadline
			return !executed || len(a.exited) > 0 || slices.ContainsFunc(a.processes(), func(p proc) bool { return strings.HasPrefix(p.cmdline, "sleep ") })
		})
		if a.do(command{Op: "extend", In: time.Hour}).Err != "" || !executed || len(a.executed) > 0 {
			await(t, "exit", a.exited)
			a.expectGone()
			for len(a.executed) > 0 {
				<-a.executed
			}
			continue
		}
		// A starved leash kills late. One that begins now, with as long a deadline, tells when the command's had its turn.
		later := startAgent(t, nil)
		if later.do(command{Op: "start", Argv: program("stubborn"), In: in}).Err == "" {
			await(t, "exit", later.exited)
		}
		eventually(t, "the first deadline is over", func() bool { return BootTime() > e.Deadline+int64(500*time.Millisecond) })
		break
	}
	if len(a.executed) > 0 {
		t.Errorf("a command ended with %+v at a deadline that was not the last", <-a.executed)
	}
	a.end()
}

func TestExecDiesWithTheAgent(t *testing.T) {
	t.Parallel()
	for _, role := range []string{"beat", "beat-in-group"} {
		t.Run(role, func(t *testing.T) {
			t.Parallel()
			inBothModes(t, func(t *testing.T, a *agent) {
				a.main()
				a.execBeating(t, role)
				a.signal(unix.SIGKILL)
				<-a.waited
				a.expectDead()
			})
		})
	}
}

// expectDead waits until no process but the agent is left.
func (a *agent) expectDead() {
	a.t.Helper()
	var left []proc
	defer func() {
		for _, p := range left {
			if a.t.Failed() {
				a.t.Logf("left: process %d (%s) in state %q", p.pid, p.cmdline, state(p.pid))
			}
		}
	}()
	eventually(a.t, "only the agent is left", func() bool {
		time.Sleep(10 * time.Millisecond) // to look through all of the machine's processes is a load of its own
		left = a.processes()
		return len(left) == 0 || len(left) == 1 && left[0].pid == a.cmd.Process.Pid
	})
}

// execBeating runs a command that beats.
func (a *agent) execBeating(t *testing.T, role string) {
	t.Helper()
	path := filepath.Join(t.TempDir(), "heartbeat")
	h, err := openHeartbeat(path)
	if err != nil {
		t.Fatal(err)
	}
	a.must(command{Op: "exec", Argv: program(role, path), In: time.Hour})
	eventually(t, "the command beats", func() bool { return h.first.Load() != 0 })
}

// A command dies as the rest of a container does: when the main process has ended, or the leash.
func TestExecDiesWithTheMainProcess(t *testing.T) {
	t.Parallel()
	for name, end := range map[string]func(*agent){
		"main process": func(a *agent) { a.must(command{Op: "signal", Signal: unix.SIGKILL}) },
		"leash": func(a *agent) {
			for _, p := range a.processes() {
				if a.isLeash(p) && !strings.Contains(p.cmdline, ofCommand) {
					unix.Kill(p.pid, unix.SIGKILL)
				}
			}
		},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			inBothModes(t, func(t *testing.T, a *agent) {
				a.main()
				a.execBeating(t, "beat-in-group")
				end(a)
				await(t, "exit", a.exited)
				a.expectGone()
				a.expectDead()
				if got := await(t, "the end of the command", a.executed); got.Status.Signal != unix.SIGKILL || got.TimedOut {
					t.Errorf("%+v, want SIGKILL", got)
				}
				a.expectDead()
			})
		})
	}
}

func TestExecsLeaveNothingOpen(t *testing.T) {
	t.Parallel()
	a := startAgent(t, nil)
	a.main()
	round := func() {
		a.exec([]string{"true"})
		a.exec([]string{"/no/such/program"})
		a.must(command{Op: "exec", Argv: []string{"sleep", "1000"}, In: time.Millisecond})
		await(t, "the end of a command", a.executed)
	}
	round()
	open := func() int { return a.must(command{Op: "fds"}).Count }
	before := open()
	for range 10 {
		round()
	}
	eventually(t, "no more descriptors are open than before", func() bool { return open() <= before })
	a.end()
}

// BenchmarkExec tells what a command costs: the time until its end is known, and the CPU time of agent, leash and command.
func BenchmarkExec(b *testing.B) {
	a := startAgent(b, nil)
	a.must(command{Op: "start", Argv: program("stubborn"), In: time.Hour})
	a.expectLine("ready")
	var took []time.Duration
	before := cpuTime(b, a.cmd.Process.Pid)
	for b.Loop() {
		began := time.Now()
		a.must(command{Op: "exec", Argv: []string{"/bin/true"}, In: time.Hour})
		await(b, "the end of a command", a.executed)
		took = append(took, time.Since(began))
	}
	spent := cpuTime(b, a.cmd.Process.Pid) - before
	reportPercentiles(b, took)
	b.ReportMetric(float64(spent.Microseconds())/float64(len(took)), "cpu-µs/op")
}

// cpuTime is what a process and the children that it has reaped have used.
func cpuTime(t testing.TB, pid int) time.Duration {
	t.Helper()
	data, err := os.ReadFile(fmt.Sprintf("/proc/%d/stat", pid))
	if err != nil {
		t.Fatal(err)
	}
	ticks := 0
	for _, field := range statFields(data)[11:15] { // utime stime cutime cstime
		n, err := strconv.Atoi(field)
		if err != nil {
			t.Fatal(err)
		}
		ticks += n
	}
	return time.Duration(ticks) * time.Second / 100
}
