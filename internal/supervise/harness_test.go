//go:build linux

package supervise

import (
	"bufio"
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"maps"
	"os"
	"os/exec"
	"os/signal"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/singletonjob/operator/test/tier"
)

// raceEnv keeps every process of a race-enabled test binary from sleeping for a
// second before it exits.
const raceEnv = "GORACE=atexit_sleep_ms=0"

// patience is how long a test waits for what must happen. Nothing is asserted
// about it: only a hang makes it run out.
const patience = 4 * time.Minute

// command is what a test tells its agent; event is what the agent tells.
type command struct {
	Op     string
	Argv   []string
	Env    []string
	Dir    string
	In     time.Duration // a deadline, counted from the agent's now; 0: none
	At     int64         // a deadline as it is
	Signal syscall.Signal
	Out    string // start: a file that takes stdout and stderr
	Forced bool   // start: skip Start's own look at the deadline
	Lock   string // prepare, start: a file that is locked, of which only the leash keeps the open file
	Late   bool   // start: read the leash's report only when the program has come and gone, or the leash got Signal
	Async  bool   // start: reply at once; "started" is an event
	Cold   bool   // start: with no leash that waits, also as PID 1
	Name   string // of exec
}

type event struct {
	Kind     string // "reply", "started", "exited", "gone"
	PID      int
	Deadline int64
	Status   Status
	Err      string
	ErrKind  string        // "passed", "killed", "stopped", "start 127", …
	Took     time.Duration // of the command
	Count    int
	Result   executed
}

// executed is an ExecResult.
type executed struct {
	Status   Status
	TimedOut bool
	Output   string
	Err      string
	ErrKind  string
}

const (
	commandsFD = 3 // of the agent; not close-on-exec, so a leak would show
	eventsFD   = 4
)

// playAgent does as it is told by commands. It is the supervisor of the tests
// because a test binary has children of its own, which Start would reap and kill.
func playAgent() int {
	leashEnv = append(leashEnv, raceEnv, "SUPERVISE_TEST_MARK="+os.Getenv("SUPERVISE_TEST_MARK")) // also for a child that is not executed yet
	if os.Getpid() == 1 {
		if err := unix.Mount("proc", "/proc", "proc", 0, ""); err != nil {
			panic(err)
		}
	}
	if err := Init(); err != nil {
		panic(err)
	}
	var mu sync.Mutex
	events := json.NewEncoder(os.NewFile(eventsFD, "events"))
	p := player{tell: func(e event) {
		mu.Lock()
		defer mu.Unlock()
		if err := events.Encode(e); err != nil {
			os.Exit(97)
		}
	}}
	commands := json.NewDecoder(os.NewFile(commandsFD, "commands"))
	for {
		var c command
		if err := commands.Decode(&c); err != nil {
			return 0
		}
		switch {
		case c.In != 0:
			c.At = BootTime() + int64(c.In)
		case c.At == 0:
			c.At = Never
		}
		e := event{Kind: "reply", Deadline: c.At}
		began := BootTime()
		err := p.obey(c, &e)
		e.Took = time.Duration(BootTime() - began)
		e.Err, e.ErrKind = describe(err)
		p.tell(e)
	}
}

// player is the agent's side of the conversation.
type player struct {
	tree *Tree
	tell func(event)
}

func (p *player) obey(c command, e *event) (err error) {
	switch c.Op {
	case "start":
		t, opened, err := startAs(c)
		if err != nil {
			return err
		}
		p.tree = t
		if c.Async {
			go func() {
				e := event{Kind: "started"}
				e.Err, e.ErrKind = describe(<-t.Started())
				closeAll(opened)
				p.tell(e)
				p.follow(t, e.Err == "")
			}()
			return nil
		}
		err = <-t.Started()
		closeAll(opened)
		if err != nil {
			<-t.Gone()
			return err
		}
		process.mu.Lock()
		e.PID = t.main
		process.mu.Unlock()
		go p.follow(t, true)
	case "extend":
		return p.tree.Extend(c.At)
	case "executable", "allow", "ignore", "prepare":
		return set(c)
	case "exec": // its timeout is In; "executed" is an event
		return p.exec(ExecSpec{Argv: c.Argv, Env: c.Env, Dir: c.Dir, Timeout: c.In, Name: c.Name})
	case "expire": // the time of all commands is over, but only their leashes are to kill
		p.tree.expireAll()
	case "flood":
		e.Count, err = p.tree.flood(c.At)
	case "signal":
		return p.tree.Signal(c.Signal)
	case "kill":
		p.tree.Kill()
	default:
		e.Count = counts[c.Op]()
	}
	return err
}

// flood extends until that fails, and returns how often it did not.
func (t *Tree) flood(at int64) (n int, err error) {
	for ; err == nil && n < 1<<20; n++ {
		err = t.Extend(at + int64(n))
	}
	return n, err
}

func (t *Tree) expireAll() {
	process.mu.Lock()
	execs := slices.Collect(maps.Keys(t.execs))
	process.mu.Unlock()
	for _, x := range execs {
		t.expire(x)
	}
}

// prepared waits until a leash waits, or none can be forked.
func prepared() {
	if err := Prepare(nil); err != nil {
		panic(err)
	}
	awaitFork()
}

// awaitFork waits for the end of the fork that Prepare began, if it did.
func awaitFork() {
	process.mu.Lock()
	preparing := process.preparing
	process.mu.Unlock()
	if preparing != nil {
		<-preparing
	}
}

// set changes a setting of the agent.
func set(c command) error {
	switch c.Op {
	case "prepare":
		lock, err := openLock(c.Lock)
		if err != nil {
			return err
		}
		locks[c.Lock] = lock
		return Prepare(lock)
	case "executable": // forks wait for the exec of that
		process.forks <- func() { process.executable = c.Dir }
	case "allow": // that much time for the start of a command
		startAllowance = c.In
	case "ignore":
		signal.Ignore(c.Signal)
	}
	return nil
}

// locks are the files of leashes that wait, by path.
var locks = map[string]*os.File{}

// lockOf returns the file of the leash that waits, or opens another one.
func lockOf(path string) (*os.File, error) {
	if f := locks[path]; f != nil {
		return f, nil
	}
	return openLock(path)
}

// openLock opens and locks a file. It returns no file without a path.
func openLock(path string) (*os.File, error) {
	if path == "" {
		return nil, nil
	}
	f, err := os.OpenFile(path, os.O_RDWR|os.O_CREATE, 0o600)
	if err != nil {
		return nil, err
	}
	return f, unix.Flock(int(f.Fd()), unix.LOCK_EX|unix.LOCK_NB)
}

// counts are commands that count something.
var counts = map[string]func() int{
	"litter": func() int { // as much as is collected again and again
		n := 0
		for range 64 {
			n += len(slices.Repeat([]byte{1}, 1<<20))
		}
		return n
	},
	"fds": func() int {
		fds, _ := os.ReadDir("/proc/self/fd")
		return len(fds)
	},
	"spares": func() int { // one that is being forked counts
		awaitFork()
		process.mu.Lock()
		defer process.mu.Unlock()
		if process.spare == nil {
			return 0
		}
		return 1
	},
	"children":         func() int { return len(children()) },
	"children-by-scan": func() int { return len(childrenByScan(os.Getpid())) },
}

func (p *player) exec(spec ExecSpec) error {
	results, err := p.tree.Exec(spec)
	if err == nil {
		go func() {
			r := <-results
			e := executed{Status: r.Status, TimedOut: r.TimedOut, Output: string(r.Output)}
			e.Err, e.ErrKind = describe(r.Err)
			p.tell(event{Kind: "executed", Result: e})
		}()
	}
	return err
}

// follow tells of the end of a tree that was started, or was not.
func (p *player) follow(t *Tree, started bool) {
	if started {
		p.tell(event{Kind: "exited", Status: <-t.Exited()})
	}
	<-t.Gone()
	p.tell(event{Kind: "gone"})
}

// startAs starts a tree. What it returns besides is open until that has started.
func startAs(c command) (t *Tree, opened []*os.File, err error) {
	if os.Getpid() == 1 && !c.Cold && c.Lock == "" { // so that all tests have a leash that waited, and one that did not
		prepared()
	}
	spec := Spec{Argv: c.Argv, Env: c.Env, Dir: c.Dir, Deadline: c.At}
	if c.Out != "" {
		f, err := os.Create(c.Out)
		if err != nil {
			return nil, nil, err
		}
		opened = append(opened, f)
		spec.Stdout, spec.Stderr = f, f
	}
	if c.Lock != "" {
		if spec.Lock, err = lockOf(c.Lock); err != nil {
			return nil, nil, err
		}
		opened = append(opened, spec.Lock)
	}
	switch {
	case c.Forced:
		t, err = process.start(spec)
		return t, opened, err
	case !c.Late:
		t, err = Start(spec)
		return t, opened, err
	}
	t, err = process.reserve(spec)
	if err != nil {
		return nil, nil, err
	}
	forked := t.fork()
	if c.Signal != 0 { // before it has read its first deadline, perhaps
		process.mu.Lock()
		_ = unix.Kill(t.leash, c.Signal)
		process.mu.Unlock()
	}
	for over := c.Signal != 0; !over; time.Sleep(time.Millisecond) {
		process.mu.Lock()
		over = t.leashEnd != nil && len(t.early) > 0
		process.mu.Unlock()
	}
	go t.awaitReport(forked)
	return t, opened, nil
}

func closeAll(files []*os.File) {
	for _, f := range files {
		f.Close()
	}
}

func describe(err error) (text, kind string) {
	if err == nil {
		return "", ""
	}
	var start *StartError
	switch {
	case errors.As(err, &start):
		kind = fmt.Sprintf("start %d", start.Code())
	case errors.Is(err, ErrTooManyExecs):
		kind = "many"
	case errors.Is(err, ErrStillRuns):
		kind = "still runs"
	case errors.Is(err, errStillStarts):
		kind = "still starts"
	case errors.Is(err, errNotInTime):
		kind = "not in time"
	case errors.Is(err, ErrDeadlinePassed):
		kind = "passed"
	case errors.Is(err, ErrLeashKilled):
		kind = "killed"
	case errors.Is(err, ErrStopped):
		kind = "stopped"
	case errors.Is(err, unix.EAGAIN):
		kind = "full"
	case errors.Is(err, os.ErrProcessDone):
		kind = "done"
	default:
		kind = "other"
	}
	return err.Error(), kind
}

// agent is a supervisor process, driven by a test.
type agent struct {
	t        testing.TB
	cmd      *exec.Cmd
	mark     string // in the environment of everything that descends from it
	commands *json.Encoder
	replies  chan event
	started  chan event
	exited   chan Status
	executed chan executed
	gone     chan struct{}
	stdout   chan string // lines
	waited   chan struct{}
	forked   bool // it is the child of the command by which it was started
}

// modes are the two ways to be the parent of a tree.
var modes = map[string]func(testing.TB) *agent{
	"subreaper": func(t testing.TB) *agent { return startAgent(t, nil) },
	"PID 1":     func(t testing.TB) *agent { return startPID1(t, os.Getuid()) },
}

// startPID1 starts an agent in a PID namespace of its own, as a user of this machine.
func startPID1(t testing.TB, uid int) *agent {
	t.Helper()
	return startAgent(t, &syscall.SysProcAttr{
		Cloneflags:  unix.CLONE_NEWUSER | unix.CLONE_NEWPID | unix.CLONE_NEWNS,
		UidMappings: []syscall.SysProcIDMap{{ContainerID: 0, HostID: uid, Size: 1}},
		GidMappings: []syscall.SysProcIDMap{{ContainerID: 0, HostID: os.Getgid(), Size: 1}},
		Credential:  &syscall.Credential{Uid: 0, Gid: 0, NoSetGroups: true}, // there
	})
}

// startInUserNamespace starts an agent as a pod with a user namespace has it: root there, nobody outside.
func startInUserNamespace(t testing.TB) *agent {
	t.Helper()
	mapped := []syscall.SysProcIDMap{{ContainerID: 0, HostID: 1 << 20, Size: 1 << 16}}
	return startAgent(t, &syscall.SysProcAttr{
		Cloneflags:  unix.CLONE_NEWUSER | unix.CLONE_NEWPID | unix.CLONE_NEWNS,
		UidMappings: mapped, GidMappings: mapped, GidMappingsEnableSetgroups: true,
		Credential: &syscall.Credential{Uid: 0, Gid: 0}, // there
	})
}

// inBothModes runs a test with a subreaper and with a real PID 1.
func inBothModes(t *testing.T, test func(*testing.T, *agent)) {
	t.Helper()
	for name, start := range modes {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			test(t, start(t))
		})
	}
}

// startAgent starts an agent, by a command if one is given.
func startAgent(t testing.TB, attr *syscall.SysProcAttr, by ...string) *agent {
	t.Helper()
	commandsR, commandsW, err := os.Pipe()
	if err != nil {
		t.Fatal(err)
	}
	eventsR, eventsW, err := os.Pipe()
	if err != nil {
		t.Fatal(err)
	}
	stdoutR, stdoutW, err := os.Pipe()
	if err != nil {
		t.Fatal(err)
	}
	a := &agent{
		t:        t,
		mark:     fmt.Sprintf("SUPERVISE_TEST_MARK=%d-%d", os.Getpid(), BootTime()),
		commands: json.NewEncoder(commandsW),
		replies:  make(chan event, 1),
		started:  make(chan event, 16),
		exited:   make(chan Status, 16),
		executed: make(chan executed, 16),
		gone:     make(chan struct{}, 16),
		stdout:   make(chan string, 1024),
		waited:   make(chan struct{}),
	}
	argv := program("agent")
	if len(by) > 0 { // whose own executable is another
		exe, err := os.Executable()
		if err != nil {
			t.Fatal(err)
		}
		argv = slices.Concat(by, []string{exe, argv[1]})
	}
	err = whereFull(func() error {
		a.cmd = exec.Command(argv[0], argv[1:]...)
		a.cmd.Env = append(os.Environ(), a.mark, raceEnv)
		a.cmd.Stdout, a.cmd.Stderr = stdoutW, os.Stderr
		a.cmd.ExtraFiles = []*os.File{commandsR, eventsW}
		a.cmd.SysProcAttr = attr
		return a.cmd.Start()
	})
	commandsR.Close()
	eventsW.Close()
	stdoutW.Close()
	t.Cleanup(func() {
		commandsW.Close()
		a.cleanUp()
		stdoutR.Close()
		eventsR.Close()
	})
	if attr != nil && (errors.Is(err, unix.EPERM) || errors.Is(err, unix.EACCES) || errors.Is(err, unix.ENOSPC) || errors.Is(err, unix.EINVAL)) {
		close(a.waited)
		tier.Needs(t, "no PID 1 here: this machine lets us create no user and PID namespace: %v", err)
	} else if err != nil {
		close(a.waited)
		t.Fatal(err)
	}
	go a.readEvents(eventsR)
	go a.readLines(stdoutR)
	go func() {
		defer close(a.waited)
		a.cmd.Wait()
	}()
	return a
}

func (a *agent) readEvents(r io.Reader) {
	decoder := json.NewDecoder(r)
	for {
		var e event
		if decoder.Decode(&e) != nil {
			return
		}
		switch e.Kind {
		case "started":
			a.started <- e
		case "exited":
			a.exited <- e.Status
		case "executed":
			a.executed <- e.Result
		case "gone":
			a.gone <- struct{}{}
		default:
			a.replies <- e
		}
	}
}

func (a *agent) readLines(r io.Reader) {
	lines := bufio.NewScanner(r)
	for lines.Scan() {
		a.stdout <- lines.Text()
	}
}

// cleanUp leaves nothing behind, whatever state the test ended in.
func (a *agent) cleanUp() {
	if a.cmd.Process == nil {
		return
	}
	a.cmd.Process.Kill()
	<-a.waited
	eventually(a.t, "the test's processes are killed", func() bool {
		left := a.processes()
		for _, p := range left {
			unix.Kill(p.pid, unix.SIGKILL)
		}
		return len(left) == 0
	})
}

// do has the agent carry out a command and returns its reply.
func (a *agent) do(c command) event {
	a.t.Helper()
	if err := a.commands.Encode(c); err != nil {
		a.t.Fatalf("command %s: %v", c.Op, err)
	}
	return await(a.t, "the reply to "+c.Op, a.replies)
}

// must is do for a command that has to succeed.
func (a *agent) must(c command) event {
	a.t.Helper()
	e := a.do(c)
	if e.Err != "" {
		a.t.Fatalf("command %s: %s", c.Op, e.Err)
	}
	return e
}

// start starts a program without a deadline and waits until it says that it is ready.
func (a *agent) start(argv []string) event {
	a.t.Helper()
	e := a.must(command{Op: "start", Argv: argv})
	a.expectLine("ready")
	return e
}

func (a *agent) expectLine(want string) {
	a.t.Helper()
	if got := await(a.t, "line "+want, a.stdout); got != want {
		a.t.Fatalf("the program wrote %q, want %q", got, want)
	}
}

func (a *agent) signal(sig syscall.Signal) {
	a.t.Helper()
	if err := a.cmd.Process.Signal(sig); err != nil {
		a.t.Fatal(err)
	}
	if sig == unix.SIGSTOP {
		eventually(a.t, "the agent is stopped", func() bool { return state(a.cmd.Process.Pid) == "T" })
	}
}

// stopLeash reports whether it was there in time to stop the leash.
func (a *agent) stopLeash() bool {
	a.t.Helper()
	leash := 0
	eventually(a.t, "the leash is stopped or dead", func() bool {
		for _, p := range a.processes() {
			if a.isLeash(p) { // and no child of it, which exec has not made another program yet
				leash = p.pid
				unix.Kill(leash, unix.SIGSTOP)
			}
		}
		return leash != 0 && state(leash) == "T" || len(a.exited) > 0 || len(a.started) > 0
	})
	return len(a.exited) == 0
}

// beatingAlone is beating, and stops the leash. Where the deadline comes first, it tries again with a later one.
func (a *agent) beatingAlone(in time.Duration) (*heartbeat, event) {
	a.t.Helper()
	for {
		h, e := a.beating("beat", in)
		if a.stopLeash() {
			return h, e
		}
		<-a.exited
		a.expectGone()
		if in *= 2; in > time.Minute {
			a.t.Fatal("no leash was stopped before a deadline of half a minute")
		}
	}
}

// expectGone waits for Gone and then finds no process that descends from the agent.
func (a *agent) expectGone() {
	a.t.Helper()
	await(a.t, "Gone", a.gone)
	a.expectNoDescendants()
}

func (a *agent) expectNoDescendants() {
	a.t.Helper()
	for _, p := range a.processes() {
		if p.pid != a.cmd.Process.Pid && strconv.Itoa(p.pid) != a.pid() {
			a.t.Errorf("process %d (%s) is still there", p.pid, p.cmdline)
		}
	}
	if e := a.must(command{Op: "children-by-scan"}); e.Count != 0 {
		a.t.Errorf("%d children are not reaped", e.Count)
	}
}

type proc struct {
	pid     int
	cmdline string
}

// processes finds the agent, its leash, and the living that carry the agent's mark, by a way that is
// not the package's own. Their PIDs are the test's, also when the agent is a PID 1.
// Agent and leash hide their environment, from all but a root with all privileges.
func (a *agent) processes() []proc {
	var found []proc
	dirs, _ := filepath.Glob("/proc/[0-9]*")
	for _, dir := range dirs {
		pid, _ := strconv.Atoi(filepath.Base(dir))
		cmdline, _ := os.ReadFile(dir + "/cmdline")
		p := proc{pid, strings.ReplaceAll(string(cmdline), "\x00", " ")}
		environ, _ := os.ReadFile(dir + "/environ")
		if bytes.Contains(environ, []byte(a.mark)) || len(cmdline) > 0 && (pid == a.cmd.Process.Pid || a.isLeash(p)) {
			found = append(found, p)
		}
	}
	return found
}

func (a *agent) isLeash(p proc) bool {
	if !strings.HasPrefix(p.cmdline, leashName) {
		return false // without a look: this is asked of all of the machine's processes
	}
	stat, _ := os.ReadFile(fmt.Sprintf("/proc/%d/stat", p.pid))
	fields := statFields(stat)
	return len(fields) > 1 && fields[1] == a.pid()
}

// pid is the agent's own, "" while it has none.
func (a *agent) pid() string {
	command := strconv.Itoa(a.cmd.Process.Pid)
	if !a.forked {
		return command
	}
	child, _ := os.ReadFile(fmt.Sprintf("/proc/%s/task/%s/children", command, command))
	return strings.TrimSpace(string(child))
}

// find returns the PID of the one process whose command line contains text.
func (a *agent) find(text string) int {
	a.t.Helper()
	var pid int
	eventually(a.t, "there is a process "+text, func() bool {
		for _, p := range a.processes() {
			if strings.Contains(p.cmdline, text) && !(text != leashName && strings.HasPrefix(p.cmdline, leashName)) {
				pid = p.pid
				return true
			}
		}
		return false
	})
	return pid
}

// state is the letter of /proc/PID/stat, "" when there is no such process.
func state(pid int) string {
	data, err := os.ReadFile(fmt.Sprintf("/proc/%d/stat", pid))
	if err != nil {
		return ""
	}
	return strings.Fields(string(data[bytes.LastIndexByte(data, ')')+1:]))[0]
}

func await[T any](t testing.TB, what string, c <-chan T) T {
	t.Helper()
	select {
	case v := <-c:
		return v
	case <-time.After(patience):
		t.Fatalf("waited in vain for %s", what)
		panic("unreachable")
	}
}

// eventually looks often at first: most things come soon. To look through /proc is a load of its own for those that do not.
func eventually(t testing.TB, what string, done func() bool) {
	t.Helper()
	pause := 2 * time.Millisecond
	for give := time.Now().Add(patience); !done(); time.Sleep(pause) {
		if time.Now().After(give) {
			t.Fatalf("waited in vain until %s", what)
		}
		pause = min(pause*5/4, 25*time.Millisecond)
	}
}

// whereFull tries again for as long as the machine says that it has no more processes, or no memory for one.
func whereFull(start func() error) (err error) {
	for give := time.Now().Add(patience); ; time.Sleep(100 * time.Millisecond) {
		err = start()
		if !errors.Is(err, unix.EAGAIN) && !errors.Is(err, unix.ENOMEM) || time.Now().After(give) {
			return err
		}
	}
}
