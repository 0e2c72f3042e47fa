//go:build linux

package supervise

import (
	"errors"
	"fmt"
	"math"
	"os"
	"os/exec"
	"os/signal"
	"path/filepath"
	"runtime"
	"slices"
	"strconv"
	"strings"
	"syscall"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/singletonjob/operator/test/cgroup"
	"github.com/singletonjob/operator/test/tier"
)

func TestExitStatus(t *testing.T) {
	t.Parallel()
	type row struct {
		argv []string
		want Status
		code int
	}
	rows := map[string]row{}
	for _, code := range []int{0, 1, 2, 42, 126, 127, 128, 255} {
		rows[fmt.Sprintf("exit %d", code)] = row{program("exit", strconv.Itoa(code)), Status{ExitCode: code}, code}
	}
	for n := 1; n <= 64; n++ {
		sig := syscall.Signal(n)
		switch sig {
		case unix.SIGCHLD, unix.SIGCONT, unix.SIGURG, unix.SIGWINCH, // ignored by default
			unix.SIGSTOP, unix.SIGTSTP, unix.SIGTTIN, unix.SIGTTOU, // stop
			32, 33: // taken by the C library's threads
			continue
		}
		rows[fmt.Sprintf("signal %d", n)] = row{program("raise", strconv.Itoa(n)), Status{ExitCode: -1, Signal: sig}, 128 + n}
	}
	inBothModes(t, func(t *testing.T, a *agent) {
		for name, row := range rows {
			a.must(command{Op: "start", Argv: row.argv, In: time.Hour})
			got := await(t, "the exit of "+name, a.exited)
			if got != row.want || got.Code() != row.code {
				t.Errorf("%s: status %+v, code %d; want %+v, code %d", name, got, got.Code(), row.want, row.code)
			}
			a.expectGone()
		}
	})
}

// A program may have ended before Start knows its PID.
func TestExitBeforeStartReturns(t *testing.T) {
	t.Parallel()
	inBothModes(t, func(t *testing.T, a *agent) {
		a.must(command{Op: "start", Argv: program("exit", "42"), Late: true})
		if got, want := await(t, "exit", a.exited), (Status{ExitCode: 42}); got != want {
			t.Errorf("status %+v, want %+v", got, want)
		}
		a.expectGone()
	})
}

func TestStartErrors(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	file := func(name, content string, mode os.FileMode) string {
		path := filepath.Join(dir, name)
		if err := os.WriteFile(path, []byte(content), mode); err != nil {
			t.Fatal(err)
		}
		return path
	}
	file("plain", "text", 0o644)
	junk := file("junk", "\x01\x02no format", 0o755)
	orphanScript := file("script", "#!/no/such/interpreter\n", 0o755)
	path := "PATH=/no/such/dir:" + dir

	rows := map[string]struct {
		c    command
		kind string
		why  string
	}{
		"no such path":        {command{Argv: []string{"/no/such/program"}}, "start 127", "as a shell"},
		"not in PATH":         {command{Argv: []string{"nowhere"}, Env: []string{path}}, "start 127", "as a shell"},
		"empty name":          {command{Argv: []string{""}}, "start 127", "it names no file"},
		"in PATH, not mode x": {command{Argv: []string{"plain"}, Env: []string{path}}, "start 126", "it is there"},
		"path, not mode x":    {command{Argv: []string{dir + "/plain"}}, "start 126", "it is there"},
		"directory":           {command{Argv: []string{dir}}, "start 126", "it is there"},
		"unknown format":      {command{Argv: []string{junk}}, "start 126", "no shell runs it instead"},
		"no interpreter":      {command{Argv: []string{orphanScript}}, "start 127", "exec says ENOENT"},
		"no directory":        {command{Argv: []string{"/bin/true"}, Dir: dir + "/none"}, "start 126", "not the program is missing"},
		"directory is a file": {command{Argv: []string{"/bin/true"}, Dir: junk}, "start 126", "not the program is missing"},
		"no argv":             {command{}, "other", "a mistake of the caller"},
		"negative deadline":   {command{Argv: []string{"/bin/true"}, At: -1}, "other", "a mistake of the caller"},
		"deadline passed":     {command{Argv: []string{"/bin/true"}, At: 1}, "passed", "it may not run"},
		"passed in the leash": {command{Argv: []string{"/bin/true"}, At: 1, Forced: true}, "passed", "the deadline may pass after Start looked"},
		"NUL in an argument":  {command{Argv: []string{"/bin/true", "a\x00b"}}, "start 126", "exec cannot pass it on"},
		"NUL in a variable":   {command{Argv: []string{"/bin/true"}, Env: []string{"A=a\x00b"}}, "start 126", "exec cannot pass it on"},
	}
	a := startAgent(t, nil)
	for name, row := range rows {
		row.c.Op = "start"
		if e := a.do(row.c); e.ErrKind != row.kind {
			t.Errorf("%s: error %q (%s), want kind %q: %s", name, e.Err, e.ErrKind, row.kind, row.why)
		}
		a.expectNoDescendants()
	}
	for name, certain := range map[string]bool{
		"no such path": true, "not in PATH": true, "empty name": true, "in PATH, not mode x": true, "path, not mode x": true, "directory": true,
		"unknown format": false, "no interpreter": false,
	} {
		row := rows[name]
		err := CannotExecute(row.c.Argv[0], row.c.Env)
		var start *StartError
		if known := errors.As(err, &start); known != certain || known && fmt.Sprintf("start %d", start.Code()) != row.kind {
			t.Errorf("%s: known beforehand is %v, and the start says %q", name, err, row.kind)
		}
	}
}

// output runs a program to its end, which must be a success, and returns its lines.
func (a *agent) output(c command) []string {
	a.t.Helper()
	c.Op, c.In, c.Out = "start", time.Hour, filepath.Join(a.t.TempDir(), "output")
	c.Env = append(c.Env, a.mark)
	a.must(c)
	if got := await(a.t, "exit", a.exited); got != (Status{}) {
		a.t.Fatalf("%v: %v", c.Argv, got)
	}
	a.expectGone()
	text, err := os.ReadFile(c.Out)
	if err != nil {
		a.t.Fatal(err)
	}
	return strings.Split(strings.TrimSuffix(string(text), "\n"), "\n")
}

// A supervised program must find itself as if a container runtime had started it.
func TestProgramStartsAsInAContainer(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	if err := os.Mkdir(filepath.Join(dir, "bin"), 0o755); err != nil {
		t.Fatal(err)
	}
	script := []byte("#!/bin/sh\necho from the PATH\n")
	if err := os.WriteFile(filepath.Join(dir, "bin", "prog"), script, 0o755); err != nil {
		t.Fatal(err)
	}
	// Go raises the soft limit of its own processes.
	limit, err := exec.Command("/bin/sh", "-c", "ulimit -n").Output()
	if err != nil {
		t.Fatal(err)
	}
	a := startAgent(t, nil)
	for name, row := range map[string]struct {
		c    command
		want []string
	}{
		"looked up in a relative PATH, from Dir": {
			command{Argv: []string{"prog"}, Dir: dir, Env: []string{"PATH=:bin:/bin"}}, []string{"from the PATH"},
		},
		"working directory": {
			command{Argv: []string{"pwd"}, Dir: dir, Env: []string{"PATH=/usr/bin:/bin"}}, []string{dir},
		},
		"arguments, untouched by a shell": {
			command{Argv: []string{"echo", "a b", "", "$HOME", "*"}}, []string{"a b  $HOME *"},
		},
		"environment, the last of equal names, nothing of the leash": {
			command{Argv: []string{"env"}, Env: []string{"GODEBUG=inittrace=1", "A=1", "GOMAXPROCS=7", "A=2", "_=x", "EMPTY="}},
			[]string{"GODEBUG=inittrace=1", "GOMAXPROCS=7", "A=2", "_=x", "EMPTY=", a.mark},
		},
		"descriptors (3 is the one by which ls reads)": {
			command{Argv: []string{"ls", "/proc/self/fd"}}, []string{"0", "1", "2", "3"},
		},
		"descriptors beside a lock": {
			command{Argv: []string{"ls", "/proc/self/fd"}, Lock: filepath.Join(dir, "lock")}, []string{"0", "1", "2", "3"},
		},
		"limit of open files": {
			command{Argv: []string{"/bin/sh", "-c", "ulimit -n"}}, []string{strings.TrimSpace(string(limit))},
		},
		"parent-death signal": {
			command{Argv: program("parent-death")}, []string{"9 0 <nil>"},
		},
	} {
		if got := a.output(row.c); !slices.Equal(got, row.want) {
			t.Errorf("%s: %q, want %q", name, got, row.want)
		}
	}

	stat := strings.Fields(a.output(command{Argv: []string{"cat", "/proc/self/stat"}})[0])
	if pid, group, session := stat[0], stat[4], stat[5]; pid != group || pid != session {
		t.Errorf("process %s has group %s, session %s; want its own", pid, group, session)
	}
}

// An agent with too few privileges could not kill a process that gains some, or that already has them.
func TestPrivileges(t *testing.T) {
	if os.Geteuid() != 0 {
		tier.Needs(t, "it takes root, to give privileges away")
	}
	for name, row := range map[string]struct {
		capabilities, noMore, mayKill string
	}{
		"all":                 {"+kill", "0", "<nil>"},
		"none":                {"-all", "1", "<nil>"},
		"may change its user": {"-all,+setuid", "1", ErrCannotKill.Error()},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			a := startAgent(t, nil, "setpriv", "--inh-caps="+row.capabilities, "--bounding-set="+row.capabilities)
			if got := a.output(command{Argv: []string{"sed", "-n", "s/NoNewPrivs:.//p", "/proc/self/status"}}); !slices.Equal(got, []string{row.noMore}) {
				t.Errorf("no new privileges: %v, want %s", got, row.noMore)
			}
			if got := a.output(command{Argv: program("may-kill")}); !slices.Equal(got, []string{row.mayKill}) {
				t.Errorf("MayKill: %v, want %s", got, row.mayKill)
			}
		})
	}
}

// A program of the agent's own user, without privileges as under restricted Pod Security, gets at neither agent nor leash.
// It does not inherit that.
func TestOutOfReach(t *testing.T) {
	t.Parallel()
	var attr *syscall.SysProcAttr
	if os.Geteuid() == 0 {
		attr = &syscall.SysProcAttr{Credential: &syscall.Credential{Uid: 65532, Gid: 65532}}
	}
	a := startAgent(t, attr)
	for range 2 { // what an agent does to start a leash must continue to work for one that is hidden
		a.must(command{Op: "start", Argv: program("reach"), In: time.Hour})
		for line := ""; line != "that is all"; line = await(t, "what it has reached", a.stdout) {
			if line != "" {
				t.Error(line)
			}
		}
		await(t, "exit", a.exited)
		a.expectGone()
	}
}

// The signals that a program finds blocked, ignored and caught are as without an agent.
func TestSignalStateIsInherited(t *testing.T) {
	t.Parallel()
	a := startAgent(t, nil)
	status := a.output(command{Argv: []string{"cat", "/proc/self/status"}})
	// Not zero: a parent may pass ignored signals on. GNU make does so with two that
	// belong to the C library, nohup with SIGHUP.
	plain, err := exec.Command("cat", "/proc/self/status").Output()
	if err != nil {
		t.Fatal(err)
	}
	for line := range strings.Lines(string(plain)) {
		if mask, _, _ := strings.Cut(line, ":"); slices.Contains([]string{"SigBlk", "SigIgn", "SigCgt"}, mask) && !slices.Contains(status, strings.TrimSpace(line)) {
			t.Errorf("signal state of a program: want %q as without an agent, in %q", line, status)
		}
	}
	a.must(command{Op: "ignore", Signal: unix.SIGHUP})
	for _, line := range a.output(command{Argv: []string{"cat", "/proc/self/status"}}) {
		mask, ok := strings.CutPrefix(line, "SigIgn:\t")
		if bits, err := strconv.ParseUint(mask, 16, 64); ok && (err != nil || bits&1 == 0) {
			t.Errorf("ignored signals %q: SIGHUP, which the agent ignores, is not", mask)
		}
	}
}

func TestOutputRedirected(t *testing.T) {
	t.Parallel()
	a := startAgent(t, nil)
	out := filepath.Join(t.TempDir(), "out")
	a.must(command{Op: "start", Argv: []string{"/bin/sh", "-c", "echo out; echo err >&2"}, Out: out})
	await(t, "exit", a.exited)
	a.expectGone()
	if got, err := os.ReadFile(out); string(got) != "out\nerr\n" {
		t.Errorf("output %q, %v", got, err)
	}
}

// As a runtime signals PID 1 and nobody else: a child whose work the main process waits for is that one's to tell.
func TestSignalReachesTheMainProcessAlone(t *testing.T) {
	t.Parallel()
	for _, sig := range []syscall.Signal{unix.SIGUSR1, unix.SIGHUP, unix.SIGTERM} {
		t.Run(unix.SignalName(sig), func(t *testing.T) {
			t.Parallel()
			inBothModes(t, func(t *testing.T, a *agent) {
				a.must(command{Op: "start", Argv: program("pair")})
				for range 2 {
					if got := await(t, "output", a.stdout); got != "first ready" && got != "second ready" {
						t.Fatalf("the program wrote %q", got)
					}
				}
				a.must(command{Op: "signal", Signal: sig})
				a.expectLine("first " + unix.SignalName(sig))
				if sig == unix.SIGTERM {
					// The main process leaves by its own choice, and the second one is killed, as in any container whose process has ended.
					if got, want := await(t, "exit", a.exited), (Status{ExitCode: 7}); got != want {
						t.Errorf("status %+v, want %+v", got, want)
					}
					a.expectGone()
					if e := a.do(command{Op: "signal", Signal: unix.SIGTERM}); e.ErrKind != "done" {
						t.Errorf("signal after the end: %q, want os.ErrProcessDone", e.Err)
					}
					return
				}
				// Signals of one process are delivered by their numbers: what it had got before would come first.
				if err := unix.Kill(a.find("listen second"), unix.SIGTERM); err != nil {
					t.Fatal(err)
				}
				a.expectLine("second SIGTERM")
				a.must(command{Op: "kill"})
				a.expectGone()
			})
		})
	}
}

// A shell that waits for its command ends when that has done its work, and not because that was told to end.
func TestAChildEndsItsWorkAfterTheSignal(t *testing.T) {
	t.Parallel()
	inBothModes(t, func(t *testing.T, a *agent) {
		work := filepath.Join(t.TempDir(), "work")
		if err := unix.Mkfifo(work, 0o666); err != nil {
			t.Fatal(err)
		}
		gate, err := os.OpenFile(work, os.O_RDWR, 0) // for both ends: nobody waits for the other
		if err != nil {
			t.Fatal(err)
		}
		defer gate.Close()
		a.start([]string{"/bin/sh", "-c", `trap 'echo told' TERM; sh -c 'echo ready; read -r line <"$0"; exit "$line"' "$0"; echo "child $?"; exit 3`, work})
		a.must(command{Op: "signal", Signal: unix.SIGTERM})
		if _, err := gate.WriteString("5\n"); err != nil {
			t.Fatal(err)
		}
		for _, want := range []string{"told", "child 5"} {
			a.expectLine(want)
		}
		if got, want := await(t, "exit", a.exited), (Status{ExitCode: 3}); got != want {
			t.Errorf("status %+v, want %+v", got, want)
		}
		a.expectGone()
	})
}

func TestLeashIgnoresSignals(t *testing.T) {
	t.Parallel()
	a := startAgent(t, nil)
	main := a.start(program("idle")).PID
	leash := a.find(leashName)
	for sig := syscall.Signal(1); sig <= 64; sig++ {
		if sig == unix.SIGKILL || sig == unix.SIGSTOP || sig == 32 || sig == 34 { // the last two are beyond Go's reach
			continue
		}
		if err := unix.Kill(-leash, sig); err != nil { // its group: it leads one
			t.Fatal(err)
		}
	}
	// Extend makes the round trip that shows the leash alive: it must take the
	// new deadline and kill by it.
	if s := state(main); s == "" || s == "Z" {
		t.Fatalf("the program died of a signal to its leash")
	}
	a.must(command{Op: "signal", Signal: unix.SIGKILL})
	if got, want := await(t, "exit", a.exited), (Status{ExitCode: -1, Signal: unix.SIGKILL}); got != want {
		t.Errorf("status %+v, want %+v: the leash should have outlived its program", got, want)
	}
	a.expectGone()
}

func TestKillTakesAll(t *testing.T) {
	t.Parallel()
	for name, argv := range map[string][]string{
		"ignores SIGTERM":                    program("stubborn"),
		"daemons in sessions of their own":   program("daemons", "5"),
		"chains of forks":                    program("hoppers", "3", "never"),
		"chains of forks in their own group": program("hoppers", "3", "once"),
		"chains of forks that change groups": program("hoppers", "3", "each"),
		"zombies":                            program("zombies", "200"),
	} {
		t.Run(name, func(t *testing.T) {
			inBothModes(t, func(t *testing.T, a *agent) {
				a.start(argv)
				if argv[1] == rolePrefix+"daemons" {
					for range 5 {
						a.expectLine("ready")
					}
				}
				a.must(command{Op: "signal", Signal: unix.SIGTERM})
				a.must(command{Op: "kill"})
				a.must(command{Op: "kill"}) // harmless
				got := await(t, "exit", a.exited)
				if got.ByLeash || got.Signal != unix.SIGKILL && got.Signal != unix.SIGTERM {
					// A Go program without a handler dies of SIGTERM with this
					// signal; a stubborn one of SIGKILL.
					t.Errorf("status %+v", got)
				}
				a.expectGone()
				a.must(command{Op: "kill"}) // harmless, also after Gone
			})
		})
	}
}

// Processes that the main process leaves behind are killed.
func TestEndOfMainProcessTakesAll(t *testing.T) {
	t.Parallel()
	inBothModes(t, func(t *testing.T, a *agent) {
		a.start(program("daemons", "2"))
		a.expectLine("ready")
		a.expectLine("ready")
		a.must(command{Op: "signal", Signal: unix.SIGKILL})
		if got, want := await(t, "exit", a.exited), (Status{ExitCode: -1, Signal: unix.SIGKILL}); got != want {
			t.Errorf("status %+v, want %+v", got, want)
		}
		a.expectGone()
	})
}

func TestOrphansAreReapedWhileTheProgramRuns(t *testing.T) {
	t.Parallel()
	inBothModes(t, func(t *testing.T, a *agent) {
		a.start(program("zombies", "300"))
		eventually(t, "only the leash is a child of the agent", func() bool {
			return a.must(command{Op: "children-by-scan"}).Count == 1
		})
		a.must(command{Op: "kill"})
		a.expectGone()
	})
}

func TestChildrenByScan(t *testing.T) {
	t.Parallel()
	a := startAgent(t, nil)
	if _, err := os.Stat("/proc/self/task/" + strconv.Itoa(os.Getpid()) + "/children"); err != nil {
		t.Skip("this kernel has no CONFIG_PROC_CHILDREN: the scan is what all other tests use")
	}
	a.start(program("daemons", "3"))
	for range 3 {
		a.expectLine("ready")
	}
	const want = 4 // three daemons, adopted, and the leash
	eventually(t, "both ways find 4 children", func() bool {
		return a.must(command{Op: "children"}).Count == want && a.must(command{Op: "children-by-scan"}).Count == want
	})
}

// tolerance bounds every last write. It is not a measurement, but it is far less than the time until the agent runs again. To die, the leash
// needs a CPU for a moment. On an overloaded machine that can take as long as for this test's own threads. The same holds again for each
// process that dies after it.
func tolerance() time.Duration { return 5*time.Second + 4*stillness.SoFar() }

// punctual is what the kernel achieves if it has a CPU to spare; see BenchmarkDeadline.
const punctual = 50 * time.Millisecond

// attempts that may be late.
const attempts = 20

// beating starts a program that writes the time as long as it lives, and waits for
// its first write. Where the machine is too busy to get there before the deadline,
// it tries again with a later one.
func (a *agent) beating(role string, in time.Duration) (*heartbeat, event) {
	a.t.Helper()
	for {
		path := filepath.Join(a.t.TempDir(), "heartbeat")
		h, err := openHeartbeat(path)
		if err != nil {
			a.t.Fatal(err)
		}
		e := a.do(command{Op: "start", Argv: program(role, path), In: in})
		if e.Err == "" {
			eventually(a.t, "the program writes or ends", func() bool { return h.last.Load() != 0 || len(a.exited) > 0 })
			if h.last.Load() != 0 {
				return h, e
			}
			<-a.exited
			a.expectGone()
		} else if !e.late() || in > time.Minute {
			a.t.Fatalf("start: %s", e.Err)
		}
		in *= 2
	}
}

// late tells that there was no time for a start.
func (e event) late() bool { return e.ErrKind == "passed" || e.ErrKind == "killed" }

// withLaterDeadlines repeats what a busy machine may be too late for, each time with a later deadline. A defect fails every attempt.
func withLaterDeadlines(t *testing.T, in time.Duration, attempt func(in time.Duration) error) {
	t.Helper()
	for {
		err := attempt(in)
		if err == nil {
			return
		}
		if in *= 2; in > time.Minute {
			t.Fatal(err)
		}
	}
}

// extend moves the deadline to each of these.
func (a *agent) extend(to ...int64) (err error) {
	a.t.Helper()
	for _, at := range to {
		if e := a.do(command{Op: "extend", At: at}); e.Err != "" {
			err = errors.Join(err, fmt.Errorf("extend: %s", e.Err))
		}
	}
	return err
}

// lastWrite waits until no process but the agent is left and says how long after the
// deadline the program wrote for the last time.
func (h *heartbeat) lastWrite(a *agent, deadline int64) time.Duration {
	a.t.Helper()
	// Not before the deadline, nor without a pause: to look through all of the machine's processes is a load of its own.
	time.Sleep(time.Duration(deadline - BootTime()))
	eventually(a.t, "the program is dead", func() bool {
		time.Sleep(10 * time.Millisecond)
		left := a.processes()
		return len(left) == 0 || len(left) == 1 && left[0].pid == a.cmd.Process.Pid
	})
	late := time.Duration(h.last.Load() - deadline)
	if late > tolerance() {
		a.t.Errorf("the program wrote %v after its deadline", late)
	}
	return late
}

func TestDeadlineHoldsWhileTheAgentIsStopped(t *testing.T) {
	t.Parallel()
	for role, why := range map[string]string{
		"beat":                   "the parent-death signal",
		"beat-in-group":          "the pipe whose end closes with the leash",
		"beat-after-thread-exec": "the same, when the parent-death signal was lost",
	} {
		t.Run(role, func(t *testing.T) {
			t.Parallel()
			inBothModes(t, func(t *testing.T, a *agent) {
				// A busy machine may make each of them late, and a defect does.
				for attempt := 1; ; attempt++ {
					late := stoppedPastDeadline(t, a, role)
					if late <= punctual {
						t.Logf("attempt %d was in time", attempt)
						return
					}
					if attempt < attempts {
						continue
					}
					const say = "%s is to kill: the program died %v after its deadline, and late each time before"
					if tier.IsDeep() {
						t.Fatalf(say, why, late)
					}
					t.Logf(say, why, late) // on a quiet machine it is a fault; elsewhere BenchmarkDeadline tells how fast it is
					return
				}
			})
		})
	}
}

// stoppedPastDeadline stops the agent, returns how late the program died, and checks what the agent makes of it when it continues.
func stoppedPastDeadline(t *testing.T, a *agent, role string) time.Duration {
	t.Helper()
	h, e := a.beating(role, 700*time.Millisecond)
	a.signal(unix.SIGSTOP)
	late := h.lastWrite(a, e.Deadline)
	a.signal(unix.SIGCONT)
	got := await(t, "exit", a.exited)
	if want := (Status{ExitCode: -1, Signal: unix.SIGKILL, ByLeash: true}); got != want {
		t.Errorf("status %+v, want %+v", got, want)
	}
	a.expectGone()
	return late
}

// A stopped agent cannot reach daemons that left the group; a running one must.
func TestDeadlineTakesDaemonsToo(t *testing.T) {
	t.Parallel()
	inBothModes(t, func(t *testing.T, a *agent) {
		// Where the machine is too busy for all of them to run before a deadline, again with a later one.
		for in, all := 2*time.Second, false; !all; in *= 2 {
			for len(a.stdout) > 0 {
				<-a.stdout
			}
			if e := a.do(command{Op: "start", Argv: program("daemons", "3"), In: in}); e.late() && in < time.Minute {
				continue
			} else if e.Err != "" {
				t.Fatal(e.Err)
			}
			got := await(t, "exit", a.exited)
			if want := (Status{ExitCode: -1, Signal: unix.SIGKILL, ByLeash: true}); got != want {
				t.Errorf("status %+v, want %+v", got, want)
			}
			a.expectGone()
			if all = len(a.stdout) == 4; !all && in > time.Minute {
				t.Fatalf("%d of 4 processes ran before a deadline of %v", len(a.stdout), in)
			}
		}
	})
}

func TestAgentKilled(t *testing.T) {
	t.Parallel()
	for _, role := range []string{"beat", "beat-in-group", "beat-after-thread-exec"} {
		t.Run(role, func(t *testing.T) {
			t.Parallel()
			inBothModes(t, func(_ *testing.T, a *agent) {
				h, _ := a.beating(role, 0)
				a.signal(unix.SIGKILL)
				<-a.waited
				h.lastWrite(a, BootTime())
			})
		})
	}
}

func TestLeashKilled(t *testing.T) {
	t.Parallel()
	inBothModes(t, func(t *testing.T, a *agent) {
		a.start(program("daemons", "3"))
		for range 3 {
			a.expectLine("ready")
		}
		unix.Kill(a.find(leashName), unix.SIGKILL)
		got := await(t, "exit", a.exited)
		if want := (Status{ExitCode: -1, Signal: unix.SIGKILL, ByLeash: true}); got != want {
			t.Errorf("status %+v, want %+v", got, want)
		}
		a.expectGone()
		if e := a.do(command{Op: "extend", In: time.Hour}); e.ErrKind != "stopped" {
			t.Errorf("extend after the leash's death: %q, want ErrStopped", e.Err)
		}
	})
}

// The leash must not outlive the agent even when nothing it does could end it.
func TestStoppedLeashDiesWithTheAgent(t *testing.T) {
	t.Parallel()
	a := startAgent(t, nil)
	a.start(program("idle"))
	a.stopLeash()
	a.signal(unix.SIGKILL)
	<-a.waited
	eventually(t, "nothing is left", func() bool { return len(a.processes()) == 0 })
}

// Stopping a leash does not delay a deadline, and does not end the tenure of an agent that renews: the leash continues before its deadline.
func TestStoppedLeashContinues(t *testing.T) {
	t.Parallel()
	inBothModes(t, func(t *testing.T, a *agent) {
		// The deadline may come first, and a leash that gets no CPU when it continues is killed.
		withLaterDeadlines(t, 4*time.Second, func(in time.Duration) error {
			h, first := a.beatingAlone(in)
			second := first.Deadline + int64(3*time.Second)
			err := a.extend(second)
			if err != nil {
				second = first.Deadline
			}
			h.lastWrite(a, second)
			await(t, "exit", a.exited)
			a.expectGone()
			if err == nil && h.last.Load() <= first.Deadline {
				err = errors.New("the program died at its first deadline, though it was extended")
			}
			return err
		})
	})
}

// One that can't continue, here because a debugger holds it, is killed, and its program dies with it.
func TestLeashThatIsHeld(t *testing.T) {
	t.Parallel()
	inBothModes(t, func(t *testing.T, a *agent) {
		for in := 4 * time.Second; ; in *= 2 {
			_, e := a.beating("beat", in)
			a.signal(unix.SIGSTOP)
			release, err := seize(a.leash())
			dies := err != nil || a.isLeftAlone(e.Deadline)
			release()
			a.signal(unix.SIGCONT)
			await(t, "exit", a.exited)
			a.expectGone()
			switch {
			case errors.Is(err, unix.EPERM) && os.Getuid() != 0:
				tier.Needs(t, "nobody may be held here: %v", err)
			case err != nil && in < time.Minute: // it was dead already
				continue
			case err != nil:
				t.Fatal(err)
			case !dies && in < time.Minute: // nobody had a CPU for the kill
				continue
			case !dies:
				t.Error("the program lived on after its deadline, and after each one before")
			}
			return
		}
	})
}

// seize stops a process as a debugger does, whom no SIGCONT overrules, until it is released.
func seize(pid int) (release func(), err error) {
	held, free := make(chan error), make(chan struct{})
	go func() {
		runtime.LockOSThread() // its end sets free whom it traces
		threads, err := os.ReadDir(fmt.Sprintf("/proc/%d/task", pid))
		for _, thread := range threads {
			tid, _ := strconv.Atoi(thread.Name())
			err = errors.Join(err, unix.PtraceSeize(tid), unix.PtraceInterrupt(tid))
		}
		held <- err
		<-free
	}()
	return func() { close(free) }, <-held
}

// Extend must not wait for a leash that does not read. It says so when the pipe is full.
func TestExtendNeverBlocks(t *testing.T) {
	t.Parallel()
	a := startAgent(t, nil)
	a.must(command{Op: "start", Argv: program("stubborn"), In: time.Hour})
	a.expectLine("ready")
	a.stopLeash()
	if e := a.do(command{Op: "flood", In: 2 * time.Hour}); e.ErrKind != "full" {
		t.Errorf("%d deadlines that nobody reads: %q, want EAGAIN", e.Count, e.Err)
	}
	a.must(command{Op: "kill"})
	a.expectGone()
}

func TestExtend(t *testing.T) {
	t.Parallel()
	a := startAgent(t, nil)
	withLaterDeadlines(t, 4*time.Second, func(in time.Duration) error {
		h, first := a.beating("beat", in)
		second := first.Deadline + int64(2*time.Second)
		err := a.extend(second, first.Deadline, 1) // earlier: no error, no effect
		if e := a.do(command{Op: "extend", At: -1}); e.ErrKind != "other" {
			t.Errorf("negative deadline: %q", e.Err)
		}
		h.lastWrite(a, second)
		await(t, "exit", a.exited)
		a.expectGone()
		if err == nil && h.last.Load() <= first.Deadline {
			err = errors.New("the program died at its first deadline, though it was extended")
		}
		return err
	})
	if e := a.do(command{Op: "extend", In: time.Hour}); e.ErrKind != "stopped" {
		t.Errorf("extend after the end: %q, want ErrStopped", e.Err)
	}

	withLaterDeadlines(t, 4*time.Second, func(in time.Duration) error {
		h, first := a.beating("beat", in)
		err := a.extend(Never, first.Deadline+50) // earlier than never
		eventually(t, "the disarmed deadline is over, or the program", func() bool {
			return h.last.Load() > first.Deadline+int64(10*time.Millisecond) || len(a.exited) > 0
		})
		a.must(command{Op: "kill"})
		if e := a.do(command{Op: "extend", In: time.Hour}); e.ErrKind != "stopped" {
			t.Errorf("extend after Kill: %q, want ErrStopped", e.Err)
		}
		got := await(t, "exit", a.exited)
		a.expectGone()
		if err == nil && got.ByLeash {
			err = fmt.Errorf("status %+v of a program that was killed by Kill", got)
		}
		return err
	})
}

// An extension that comes at the last moment either counts or does not. Nothing
// may live beyond the deadline that holds.
func TestExtendRacesWithTheDeadline(t *testing.T) {
	t.Parallel()
	a := startAgent(t, nil)
	var in, out int
	for i := range 12 {
		path := filepath.Join(t.TempDir(), "heartbeat")
		h, err := openHeartbeat(path)
		if err != nil {
			t.Fatal(err)
		}
		first := a.do(command{Op: "start", Argv: program("beat", path), In: 200 * time.Millisecond})
		if first.Err != "" {
			continue // the machine was too busy to start it in time
		}
		eventually(t, "the deadline is near", func() bool {
			return BootTime() > first.Deadline-int64(3*time.Millisecond)+int64(i)*int64(300*time.Microsecond)
		})
		second := a.do(command{Op: "extend", In: 150 * time.Millisecond})
		switch second.ErrKind {
		case "":
			in++
		case "passed", "stopped":
			out++
		default:
			t.Errorf("extend at the deadline: %q", second.Err)
		}
		await(t, "exit", a.exited)
		a.expectGone()
		holds := first.Deadline
		if second.Err == "" {
			holds = second.Deadline
		}
		if late := time.Duration(h.last.Load() - holds); late > tolerance() {
			t.Errorf("the program wrote %v after the deadline that held (extend: %q)", late, second.Err)
		}
	}
	t.Logf("extended %d times, too late %d times", in, out)
}

// Starting so close to the deadline that it may pass at any step of the start.
func TestStartRacesWithTheDeadline(t *testing.T) {
	t.Parallel()
	a := startAgent(t, nil)
	outcomes := map[string]int{}
	for i := range 60 {
		path := filepath.Join(t.TempDir(), "heartbeat")
		h, err := openHeartbeat(path)
		if err != nil {
			t.Fatal(err)
		}
		e := a.do(command{Op: "start", Argv: program("beat", path), In: time.Duration(i+1) * 500 * time.Microsecond})
		outcomes[e.ErrKind]++
		if e.Err == "" {
			if got := await(t, "exit", a.exited); !got.ByLeash {
				t.Errorf("status %+v, want the leash's doing", got)
			}
			await(t, "Gone", a.gone)
		} else if !e.late() {
			t.Errorf("start: %q, want success, ErrDeadlinePassed or ErrLeashKilled", e.Err)
		}
		a.expectNoDescendants()
		if late := time.Duration(h.last.Load() - e.Deadline); late > tolerance() {
			t.Errorf("the program wrote %v after its deadline", late)
		}
	}
	t.Logf("outcomes: %v", outcomes)
}

// PID 1 kills the whole namespace: who came in from outside (kubectl exec) might
// also be doing the tenure's work. It is nobody's child in there.
func TestStrangersInTheNamespace(t *testing.T) {
	t.Parallel()
	if os.Getuid() != 0 {
		tier.Needs(t, "only root may enter the namespace of the test's agent")
	}
	a := modes["PID 1"](t)
	a.start(program("idle"))
	stranger := enterPIDNamespace(t, a.cmd.Process.Pid)
	a.must(command{Op: "signal", Signal: unix.SIGKILL})
	await(t, "exit", a.exited)
	// Its parent, this test, does not reap it: what hangs outside must not keep the tenure.
	await(t, "Gone", a.gone)
	if s := state(stranger.Process.Pid); s != "Z" {
		t.Errorf("Gone while a process of the namespace lived, in state %q", s)
	}
}

// A process lives for as long as any of its threads does, though the first one, which stands for it, be a zombie.
func TestCanAct(t *testing.T) {
	t.Parallel()
	a := startAgent(t, nil)
	main := a.start(program("leave-thread")).PID
	eventually(t, "the leading thread is a zombie", func() bool { return state(main) == "Z" })
	if !canAct(main) {
		t.Error("a process with a thread that runs cannot act")
	}
	time.Sleep(3 * lookPeriod) // no bound: long enough to be taken for dead
	if !canAct(main) || len(a.exited) > 0 {
		t.Error("a process was ended whose leading thread alone had ended")
	}
	zombie := exec.Command("/bin/true")
	if err := zombie.Start(); err != nil {
		t.Fatal(err)
	}
	eventually(t, "a zombie cannot act", func() bool { return !canAct(zombie.Process.Pid) })
	zombie.Wait()
	if canAct(zombie.Process.Pid) {
		t.Error("who is gone can act")
	}
	a.must(command{Op: "kill"})
	a.expectGone()
}

// Without a deadline, as under KeepRunning, no timer ends a leash that is stopped.
func TestEndOfMainProcessBesideAStoppedLeash(t *testing.T) {
	t.Parallel()
	inBothModes(t, func(t *testing.T, a *agent) {
		main := a.start(program("raise-on-term", "10"))
		a.stopLeash()
		a.must(command{Op: "signal", Signal: unix.SIGTERM})
		if got, want := await(t, "exit", a.exited), (Status{ExitCode: -1, Signal: unix.SIGUSR1}); got != want {
			t.Errorf("status %+v of process %d, want %+v", got, main.PID, want)
		}
		a.expectGone()
	})
}

// slowExec is a copy of a program that cannot be executed before release is called.
func slowExec(t testing.TB, of string) (path string, release func()) {
	t.Helper()
	path = filepath.Join(t.TempDir(), "slow")
	data, err := os.ReadFile(of)
	if err != nil {
		t.Fatal(err)
	}
	syscall.ForkLock.RLock() // else a process that is forked meanwhile has it open for writing until it executes something
	err = os.WriteFile(path, data, 0o755)
	syscall.ForkLock.RUnlock()
	if err != nil {
		t.Fatal(err)
	}
	f, err := os.Open(path)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { f.Close() })
	signal.Notify(make(chan os.Signal, 1), unix.SIGIO) // that somebody waits
	// A lease on a file: who opens it waits, for 45 s at most, until it is given up.
	for give := time.Now().Add(patience); ; time.Sleep(10 * time.Millisecond) {
		_, err := unix.FcntlInt(f.Fd(), unix.F_SETLEASE, unix.F_WRLCK)
		switch {
		case err == nil:
			return path, func() {
				if _, err := unix.FcntlInt(f.Fd(), unix.F_SETLEASE, unix.F_UNLCK); err != nil && !errors.Is(err, unix.EAGAIN) { // the 45 s are over
					t.Error(err)
				}
			}
		case errors.Is(err, unix.EAGAIN) && time.Now().Before(give): // a process that is being forked has it open
		case errors.Is(err, unix.EINVAL) || errors.Is(err, unix.ENOLCK):
			t.Skipf("this file system knows no lease on a file: %v", err)
		case errors.Is(err, unix.EACCES):
			tier.Needs(t, "nobody may have a lease on a file here: %v", err)
		default:
			t.Fatal(err)
		}
	}
}

// While exec hangs, deadlines and signals are heeded.
func TestExecThatHangs(t *testing.T) {
	t.Parallel()
	t.Run("renewed", func(t *testing.T) {
		t.Parallel()
		inBothModes(t, func(t *testing.T, a *agent) {
			withLaterDeadlines(t, 4*time.Second, func(in time.Duration) error { return renewedWhileExecHangs(t, a, in) })
		})
	})
	for name, test := range map[string]struct {
		in   time.Duration
		do   command
		kind string
	}{
		"killed":   {time.Hour, command{Op: "kill"}, "stopped"},
		"deadline": {2 * time.Second, command{}, "passed"},
		// Never is for a program that runs. One that does not is not to begin after its tenure.
		"deadline, never later": {2 * time.Second, command{Op: "extend"}, "passed"},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			inBothModes(t, func(t *testing.T, a *agent) {
				argv, ran, release := hungTouch(t)
				a.must(command{Op: "start", Async: true, Argv: argv, In: test.in})
				eventually(t, "it is being executed", func() bool { return len(a.processes()) == 3 || len(a.started) > 0 }) // agent, leash, and the leash's child
				if test.do.Op != "" {
					if e := a.do(test.do); e.Err != "" && !e.late() && e.ErrKind != "stopped" { // which it is where the deadline came first
						t.Fatalf("command %s: %s", test.do.Op, e.Err)
					}
				}
				// A leash that gets no CPU for long is killed by its timer, and can't say why.
				if e := await(t, "started", a.started); e.ErrKind != test.kind && (test.kind != "passed" || !e.late()) {
					t.Errorf("started: %q, want kind %s", e.Err, test.kind)
				}
				a.expectGone()
				release()
				time.Sleep(100 * time.Millisecond) // no bound
				if ran() {
					t.Error("it was executed")
				}
			})
		})
	}
	t.Run("asked to end", func(t *testing.T) {
		a := startAgent(t, nil)
		path, release := slowExec(t, "/bin/sleep")
		a.must(command{Op: "start", Async: true, Argv: []string{path, "1000"}, In: time.Hour})
		a.must(command{Op: "signal", Signal: unix.SIGTERM})
		release()
		if got, want := await(t, "exit", a.exited), (Status{ExitCode: -1, Signal: unix.SIGTERM}); got != want {
			t.Errorf("status %+v, want %+v", got, want)
		}
		a.expectGone()
	})
}

// renewedWhileExecHangs has a program begin after a deadline that was moved while it was being executed. It returns what a busy machine may cause.
func renewedWhileExecHangs(t *testing.T, a *agent, in time.Duration) error {
	t.Helper()
	argv, ran, release := hungTouch(t)
	first := a.must(command{Op: "start", Async: true, Argv: argv, In: min(in, 16*time.Second)}) // exec hangs for 45 s at most
	err := a.extend(first.Deadline + int64(time.Hour))
	eventually(t, "the first deadline is over, or the leash", func() bool {
		return err == nil && BootTime() > first.Deadline+int64(500*time.Millisecond) || len(a.started) > 0
	})
	if len(a.started) > 0 {
		err = errors.Join(err, errors.New("started while exec hangs"))
	}
	release()
	if e := await(t, "started", a.started); e.Err != "" {
		a.expectGone()
		return errors.Join(err, fmt.Errorf("not started: %s", e.Err))
	}
	if got := await(t, "exit", a.exited); got != (Status{}) || !ran() {
		t.Errorf("status %+v, want success", got)
	}
	a.expectGone()
	return err
}

// hungTouch is a program that is being executed until release is called, and then reports whether it ran.
func hungTouch(t *testing.T) (argv []string, ran func() bool, release func()) {
	t.Helper()
	path, release := slowExec(t, "/bin/touch")
	made := filepath.Join(t.TempDir(), "made")
	return []string{path, made}, func() bool { _, err := os.Stat(made); return err == nil }, release
}

// A leash that is stopped while exec hangs continues before the deadline, and the program does not run.
func TestExecThatHangsBeyondAStoppedLeash(t *testing.T) {
	t.Parallel()
	inBothModes(t, func(t *testing.T, a *agent) {
		argv, ran, release := hungTouch(t)
		a.must(command{Op: "start", Async: true, Argv: argv, In: 2 * time.Second})
		eventually(t, "it is being executed", func() bool { return len(a.processes()) == 3 || len(a.started) > 0 })
		a.stopLeash() // until its timer wakes it
		if e := await(t, "started", a.started); !e.late() {
			t.Errorf("started: %q, want ErrDeadlinePassed", e.Err)
		}
		a.expectGone()
		release()
		time.Sleep(100 * time.Millisecond) // no bound
		if ran() {
			t.Error("it was executed")
		}
	})
}

// diesWithoutItsAgent reports whether a program in a user namespace, and all that it started, is dead soon after its deadline.
// The agent is stopped, and so is its leash by hold, which is told when the deadline is. On a busy machine that may come too late
// to hold anything.
func diesWithoutItsAgent(t *testing.T, argv []string, hold func(t *testing.T, a *agent, deadline int64)) bool {
	t.Helper()
	a := startInUserNamespace(t)
	e := event{ErrKind: "passed"}
	// By halves it comes near to twice the leash's lead, where its turn and its end are the nearest. A busy machine needs a later deadline.
	for in := 8 * leadForAll * time.Nanosecond; e.late() && in < time.Minute; in *= 2 {
		e = a.do(command{Op: "start", Argv: argv, In: in})
	}
	if e.Err != "" {
		t.Fatal(e.Err)
	}
	a.signal(unix.SIGSTOP)
	defer a.signal(unix.SIGCONT)
	hold(t, a, e.Deadline)
	return a.isLeftAlone(e.Deadline)
}

// leash returns the PID of the main process's leash, or math.MaxInt32, which is no PID, if the leash is dead.
func (a *agent) leash() int {
	for _, p := range a.processes() {
		if a.isLeash(p) {
			return p.pid
		}
	}
	return math.MaxInt32
}

// isLeftAlone reports whether nothing but the agent is left soon after a deadline.
func (a *agent) isLeftAlone(deadline int64) bool {
	for {
		last := BootTime() > deadline+int64(tolerance()) // a look that comes late, too, as this test may have got no CPU
		if left := a.processes(); len(left) == 1 && left[0].pid == a.cmd.Process.Pid {
			return true
		}
		if last {
			return false
		}
		time.Sleep(2 * time.Millisecond)
	}
}

// holds are what befalls the leash beside an agent that is stopped.
var holds = map[string]func(t *testing.T, a *agent, deadline int64){
	"the leash runs":    func(*testing.T, *agent, int64) {},
	"the leash stopped": func(_ *testing.T, a *agent, _ int64) { _ = unix.Kill(a.leash(), unix.SIGSTOP) },
	// Frozen, it gets no CPU; unlike one that is stopped it does not continue when it is told to.
	"the leash without a CPU": func(t *testing.T, a *agent, deadline int64) {
		t.Helper()
		group := cgroup.New(t, "freezer")
		_ = os.WriteFile(filepath.Join(group.Dir, "cgroup.procs"), []byte(strconv.Itoa(a.leash())), 0o600)
		// From before its turn until after it would be killed if it were as early as for others.
		time.Sleep(time.Duration(deadline - leadForAll*11/10 - BootTime()))
		thaw := group.Freeze()
		time.Sleep(time.Duration(deadline - leadForAll/4 - BootTime()))
		thaw()
	},
}

// In a user namespace a process that changes its user is out of reach of all that the kernel would send it by itself.
// The agent is stopped; what the program started is to die too, in whatever session it is.
func TestDeadlineOfAnotherUser(t *testing.T) {
	t.Parallel()
	if os.Getuid() != 0 {
		tier.Needs(t, "it takes root, to map users")
	}
	for name, argv := range map[string][]string{
		"in a user namespace":              {"setpriv", "--reuid", "1000", "--regid", "1000", "--clear-groups"},
		"in a user namespace, as root":     {},
		"two users on, as gosu in a shell": {"setpriv", "--reuid", "1000", "--regid", "1000", "--clear-groups", "sh", "-c", `"$@"; exit`, "sh"},
	} {
		for held, hold := range holds {
			t.Run(name+"/"+held, func(t *testing.T) {
				t.Parallel()
				// A leash that is without a CPU for longer is killed. A defect fails every attempt.
				for attempt := 1; !diesWithoutItsAgent(t, append(argv, "sh", "-c", "setsid sleep 1001 & echo ready; exec sleep 1002"), hold); attempt++ {
					if attempt == attempts {
						t.Fatal("it lives on after its deadline")
					}
				}
			})
		}
	}
}

// But it cannot wait for those that it may not kill: a root's debugger beside an agent
// without privileges would keep the lease forever.
func TestStrangersOfOtherUsers(t *testing.T) {
	t.Parallel()
	if os.Getuid() != 0 {
		tier.Needs(t, "only root may enter the namespace of the test's agent")
	}
	const nobody = 65534
	a := startPID1(t, nobody)
	a.start(program("idle"))
	stranger := enterPIDNamespace(t, a.cmd.Process.Pid)
	a.must(command{Op: "kill"})
	await(t, "exit", a.exited)
	a.expectGone()
	if s := state(stranger.Process.Pid); s == "Z" || s == "" {
		t.Fatal("the stranger was killed: the test shows nothing")
	}
}

// enterPIDNamespace starts a process in the PID namespace of pid, as a child of the test.
func enterPIDNamespace(t *testing.T, pid int) *exec.Cmd {
	t.Helper()
	namespace, err := os.Open(fmt.Sprintf("/proc/%d/ns/pid", pid))
	if err != nil {
		t.Fatal(err)
	}
	defer namespace.Close()
	argv := program("stubborn")
	var cmd *exec.Cmd
	started := make(chan error)
	err = whereFull(func() error {
		cmd = exec.Command(argv[0], argv[1:]...)
		go func() {
			runtime.LockOSThread() // and never unlocked: no other goroutine may fork from it
			err := unix.Setns(int(namespace.Fd()), unix.CLONE_NEWPID)
			if err == nil {
				err = cmd.Start()
			}
			started <- err
		}()
		return <-started
	})
	if errors.Is(err, unix.EPERM) {
		tier.Needs(t, "nobody may enter the namespace of the test's agent: %v", err)
	} else if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		cmd.Process.Kill()
		cmd.Wait()
	})
	return cmd
}

// A deadline that somebody forgot to set is not that there is none.
func TestMissingDeadlineIsAnError(t *testing.T) {
	if _, err := Start(Spec{Argv: []string{"true"}}); !errors.Is(err, ErrDeadlinePassed) {
		t.Errorf("%v, want %v", err, ErrDeadlinePassed)
	}
}

// The leash itself must refuse a deadline that passed after Start looked.
func TestLeashStartsNothingAfterTheDeadline(t *testing.T) {
	t.Parallel()
	a := startAgent(t, nil)
	path := filepath.Join(t.TempDir(), "heartbeat")
	h, err := openHeartbeat(path)
	if err != nil {
		t.Fatal(err)
	}
	for range 20 {
		e := a.do(command{Op: "start", Forced: true, At: 1, Argv: program("beat", path)})
		if e.ErrKind != "passed" {
			t.Errorf("start: %q, want ErrDeadlinePassed", e.Err)
		}
		a.expectNoDescendants()
	}
	if h.first.Load() != 0 {
		t.Error("the program ran")
	}
}

// A process that is dead but not reaped may still have work in the kernel. As it
// takes luck or root to have one in uninterruptible sleep, a tracer holds its
// zombie here: that, too, the agent cannot reap.
func TestGoneWaitsForUnreapedProcesses(t *testing.T) {
	t.Parallel()
	a := startAgent(t, nil)
	a.start(program("daemons", "1"))
	a.expectLine("ready")
	daemon := a.find("role:stubborn")

	runtime.LockOSThread() // the tracer is a thread
	defer runtime.UnlockOSThread()
	if err := unix.PtraceSeize(daemon); errors.Is(err, unix.EPERM) {
		tier.Needs(t, "nobody may be traced here: %v", err)
	} else if err != nil {
		t.Fatal(err)
	}
	a.must(command{Op: "kill"})
	await(t, "exit", a.exited)
	eventually(t, "the daemon is a zombie", func() bool { return state(daemon) == "Z" })
	select {
	case <-a.gone:
		t.Error("Gone while a descendant was not reaped")
	case <-time.After(300 * time.Millisecond): // no bound: a late Gone is still wrong below
	}
	if e := a.do(command{Op: "start", Argv: program("exit", "0")}); e.Err == "" {
		t.Error("a second tree was started before the first was gone")
	}
	select {
	case <-a.gone:
		t.Error("Gone while a descendant was not reaped")
	default:
	}
	var ws unix.WaitStatus
	if _, err := unix.Wait4(daemon, &ws, unix.WALL, nil); err != nil {
		t.Fatal(err)
	}
	a.expectGone()
}

// The leash holds what its agent has locked for as long as it lives, and no longer, whatever the program does.
func TestLeashHoldsTheLock(t *testing.T) {
	t.Parallel()
	inBothModes(t, func(t *testing.T, a *agent) {
		path := filepath.Join(t.TempDir(), "lock")
		a.must(command{Op: "start", Argv: []string{"sleep", "100000"}, In: time.Hour, Lock: path})
		f, err := os.Open(path)
		if err != nil {
			t.Fatal(err)
		}
		defer f.Close()
		if err := unix.Flock(int(f.Fd()), unix.LOCK_EX|unix.LOCK_NB); !errors.Is(err, unix.EWOULDBLOCK) {
			t.Fatalf("SAFETY: the lock is free while the leash lives: %v", err)
		}
		a.must(command{Op: "kill"})
		a.expectGone()
		if err := unix.Flock(int(f.Fd()), unix.LOCK_EX|unix.LOCK_NB); err != nil {
			t.Errorf("the lock outlives the leash: %v", err)
		}
	})
}

func TestTenuresLeaveNothingOpen(t *testing.T) {
	t.Parallel()
	inBothModes(t, func(t *testing.T, a *agent) {
		tenure := func() {
			a.must(command{Op: "start", Argv: program("exit", "3"), In: time.Hour})
			await(t, "exit", a.exited)
			a.expectGone()
			a.do(command{Op: "start", Argv: []string{"/no/such/program"}})
		}
		tenure()
		before := a.must(command{Op: "fds"}).Count
		for range 20 {
			tenure()
		}
		if after := a.must(command{Op: "fds"}).Count; after != before {
			t.Errorf("%d descriptors open after 20 tenures, %d before", after, before)
		}
	})
}
