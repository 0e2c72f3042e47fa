//go:build linux

package localnode

import (
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"runtime"
	"sync"
	"syscall"
	"time"

	"golang.org/x/sys/unix"
)

// A container is a process called the shim, this same binary executed again, and everything below it. The shim is to its container what
// the end of a PID namespace is to a real one. When the container's main process ends, the shim kills and reaps all that it left behind
// before it reports the end. When the node ends, its end of the control connection closes and the shim does the same. So nothing of a
// container outlives its report, or its node.

// shimName is argv[0] of a shim.
const shimName = "localnode-shim"

// controlFD is the shim's end of the control connection.
const controlFD = 3

var initialized bool

// Init must be called first in main or TestMain of a program that uses this package: in a process that was started as a
// container's shim, it does not return.
func Init() {
	initialized = true
	if os.Args[0] != shimName {
		return
	}
	if err := shim(os.NewFile(controlFD, "control")); err != nil {
		fmt.Fprintln(os.Stderr, "localnode shim:", err)
		os.Exit(1)
	}
	os.Exit(0)
}

// command is what the node sends to the shim: first Start, then signals.
type command struct {
	Start  *execution     `json:"start,omitempty"`
	Signal syscall.Signal `json:"signal,omitempty"` // to the main process alone
	Kill   bool           `json:"kill,omitempty"`   // everything
}

// execution is a program to run, completely resolved.
type execution struct {
	Path string   `json:"path"`
	Args []string `json:"args"` // with argv[0]
	Env  []string `json:"env"`
	Dir  string   `json:"dir"`
}

// report is what the shim sends to the node: Pid or Failed, then Exited.
type report struct {
	Pid    int    `json:"pid,omitempty"`
	Failed string `json:"failed,omitempty"`
	Exited *exit  `json:"exited,omitempty"`
}

// exit is how a container's main process ended. At that time nothing of the container was left.
type exit struct {
	Code   int            `json:"code"` // as a shell tells it: 128 + the signal's number for a killed one
	Signal syscall.Signal `json:"signal,omitempty"`
	At     time.Time      `json:"at"`
}

func shim(control io.ReadWriter) error {
	// The main process dies with the thread that forks it.
	runtime.LockOSThread()
	syscall.CloseOnExec(controlFD)
	if err := unix.Prctl(unix.PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0); err != nil {
		return fmt.Errorf("becoming the subreaper: %w", err)
	}
	commands, reports := json.NewDecoder(control), json.NewEncoder(control)
	var first command
	if err := commands.Decode(&first); err != nil || first.Start == nil {
		return fmt.Errorf("no program to start: %w", err)
	}
	var handle int // of the main process: unlike its id, it never comes to mean another one
	pid, err := syscall.ForkExec(first.Start.Path, first.Start.Args, &syscall.ProcAttr{
		Dir: first.Start.Dir, Env: first.Start.Env, Files: []uintptr{0, 1, 2},
		Sys: &syscall.SysProcAttr{Setsid: true, Pdeathsig: syscall.SIGKILL, PidFD: &handle},
	})
	if err != nil {
		return reports.Encode(report{Failed: fmt.Sprintf("%s: %v", first.Start.Path, err)})
	}
	if err := reports.Encode(report{Pid: pid}); err != nil {
		return errors.Join(err, killAll())
	}
	go obey(commands, handle)
	status, err := reapUntil(pid)
	if err != nil {
		return errors.Join(err, killAll())
	}
	if err := killAll(); err != nil {
		return err
	}
	ended := exit{Code: status.ExitStatus(), At: time.Now()}
	if status.Signaled() {
		ended.Signal = status.Signal()
		ended.Code = 128 + int(status.Signal())
	}
	return reports.Encode(report{Exited: &ended})
}

// obey carries out the node's commands on the main process. When the node is gone, the container goes too.
func obey(commands *json.Decoder, handle int) {
	for {
		var c command
		if err := commands.Decode(&c); err != nil || c.Kill {
			// Killing the main process makes shim, who waits for it, kill the rest.
			_ = unix.PidfdSendSignal(handle, unix.SIGKILL, nil, 0)
			return
		}
		_ = unix.PidfdSendSignal(handle, c.Signal, nil, 0)
	}
}

// reapUntil reaps whatever ends, until the process pid does.
func reapUntil(pid int) (syscall.WaitStatus, error) {
	for {
		var status syscall.WaitStatus
		ended, err := syscall.Wait4(-1, &status, 0, nil)
		if errors.Is(err, syscall.EINTR) {
			continue
		}
		if err != nil {
			return 0, fmt.Errorf("waiting for %d: %w", pid, err)
		}
		if ended == pid && (status.Exited() || status.Signaled()) {
			return status, nil
		}
	}
}

// killAll kills everything below this process until the kernel says that it has no child left. Orphans come to this
// process, the subreaper, so that none can leave the tree.
func killAll() error {
	for {
		for _, p := range below(os.Getpid()) {
			_ = syscall.Kill(p.Pid, syscall.SIGKILL)
		}
		for {
			ended, err := syscall.Wait4(-1, nil, syscall.WNOHANG, nil)
			if errors.Is(err, syscall.ECHILD) {
				return nil
			}
			if err != nil && !errors.Is(err, syscall.EINTR) {
				return fmt.Errorf("reaping: %w", err)
			}
			if err == nil && ended == 0 {
				break
			}
		}
		time.Sleep(time.Millisecond)
	}
}

// process is a running container, as its node sees it.
type process struct {
	shim    *exec.Cmd
	control *os.File
	mu      sync.Mutex // guards encode
	encode  *json.Encoder
	pid     int // of the main process
	done    chan struct{}
	exit    exit // set before done is closed
}

// startProcess runs e in a new shim whose output goes to stdout and stderr.
func startProcess(e execution, stdout, stderr *os.File) (*process, error) {
	pair, err := syscall.Socketpair(syscall.AF_UNIX, syscall.SOCK_STREAM|syscall.SOCK_CLOEXEC, 0)
	if err != nil {
		return nil, fmt.Errorf("making the control connection: %w", err)
	}
	ours, theirs := os.NewFile(uintptr(pair[0]), "control"), os.NewFile(uintptr(pair[1]), "control")
	defer func() { _ = theirs.Close() }()
	cmd := exec.Command("/proc/self/exe")
	cmd.Args = []string{shimName}
	// A race detector, where this program has one, would sleep for a second at the end of every container.
	cmd.Env = append(os.Environ(), "GOMAXPROCS=1", "GORACE=atexit_sleep_ms=0")
	cmd.Stdout, cmd.Stderr, cmd.ExtraFiles = stdout, stderr, []*os.File{theirs}
	// Not tethered: a killed shim could not clear up after itself, and the control connection tells it when to.
	cmd.SysProcAttr = &syscall.SysProcAttr{Setpgid: true}
	if err := cmd.Start(); err != nil {
		_ = ours.Close()
		return nil, fmt.Errorf("starting the shim: %w", err)
	}
	p := &process{shim: cmd, control: ours, encode: json.NewEncoder(ours), done: make(chan struct{})}
	reports := json.NewDecoder(ours)
	var first report
	err = errors.Join(p.send(command{Start: &e}), reports.Decode(&first))
	if err == nil && first.Failed != "" {
		err = errors.New(first.Failed)
	}
	if err != nil {
		_ = ours.Close()
		_ = cmd.Wait()
		return nil, err
	}
	p.pid = first.Pid
	go p.wait(reports)
	return p, nil
}

func (p *process) wait(reports *json.Decoder) {
	defer close(p.done)
	var last report
	if err := reports.Decode(&last); err != nil || last.Exited == nil {
		// The shim itself was killed. Its main process went with it; what that left behind may live.
		last.Exited = &exit{Code: 128 + int(syscall.SIGKILL), Signal: syscall.SIGKILL, At: time.Now()}
	}
	_ = p.shim.Wait()
	_ = p.control.Close()
	p.exit = *last.Exited
}

func (p *process) send(c command) error {
	p.mu.Lock()
	defer p.mu.Unlock()
	return p.encode.Encode(c)
}

// signal reaches the main process alone, as a kubelet's does. An ended process is no error.
func (p *process) signal(sig syscall.Signal) { _ = p.send(command{Signal: sig}) }

// kill ends the whole container; done tells when nothing is left.
func (p *process) kill() { _ = p.send(command{Kill: true}) }

// tree lists the container's processes, the main one first.
func (p *process) tree() []Process { return withArgs(below(p.shim.Process.Pid)) }

// freeze stops every process of the container.
func (p *process) freeze() error { return stopAll(p.shim.Process.Pid) }

// thaw resumes what freeze stopped.
func (p *process) thaw() { resumeAll(p.shim.Process.Pid) }
