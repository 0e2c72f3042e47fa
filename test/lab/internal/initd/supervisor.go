//go:build linux

package initd

import (
	"fmt"
	"os"
	"os/signal"
	"slices"
	"strings"
	"sync"
	"syscall"
	"time"

	"golang.org/x/sys/unix"

	"github.com/singletonjob/operator/test/lab/internal/proc"
)

// A Service is one long-running program of the machine.
type Service struct {
	Name string   `json:"name"`
	Argv []string `json:"argv,omitempty"`
	Env  []string `json:"env,omitempty"` // beside init's own
	Log  string   `json:"log,omitempty"` // appended to
}

// A Status is what has become of a service.
type Status struct {
	Name    string `json:"name"`
	PID     int    `json:"pid"` // as the machine counts; 0: runs no more
	Stopped bool   `json:"stopped,omitempty"`
	Exit    string `json:"exit,omitempty"` // how its last process ended
}

type op string

const (
	opStart  op = "start"
	opSignal op = "signal"
	opStop   op = "stop"
	opList   op = "list"
)

type request struct {
	Op      op             `json:"op"`
	Service Service        `json:"service"`
	Signal  syscall.Signal `json:"signal,omitempty"`
	Grace   time.Duration  `json:"grace,omitempty"`
}

type response struct {
	Services []Status `json:"services,omitempty"`
	Error    string   `json:"error,omitempty"`
}

// supervisor knows every service that was ever started on the machine. The lock is held from before a process starts
// until it is listed, so that the reaper finds the owner of every pid it reaps.
type supervisor struct {
	mu       sync.Mutex
	services []*running
}

type running struct {
	Service
	process proc.Process  // zero: none
	ended   chan struct{} // closed when the process has been reaped
	exit    string
}

func newSupervisor() *supervisor { return &supervisor{} }

// reap collects every child that ends: services, and whatever was orphaned on the machine. Nothing else in this process
// may wait for a child.
func (s *supervisor) reap() {
	children := make(chan os.Signal, 1)
	signal.Notify(children, syscall.SIGCHLD)
	for range children {
		for {
			var status unix.WaitStatus
			s.mu.Lock()
			pid, err := unix.Wait4(-1, &status, unix.WNOHANG, nil)
			if err == nil && pid > 0 {
				s.ended(pid, status)
			}
			s.mu.Unlock()
			if err != nil || pid <= 0 {
				break
			}
		}
	}
}

func (s *supervisor) ended(pid int, status unix.WaitStatus) {
	for _, r := range s.services {
		if r.process.PID != pid {
			continue
		}
		r.exit = fmt.Sprintf("exit status %d", status.ExitStatus())
		if status.Signaled() {
			r.exit = "killed by " + unix.SignalName(status.Signal())
		}
		r.process = proc.Process{}
		close(r.ended)
	}
}

func (s *supervisor) handle(q request) response {
	var err error
	switch q.Op {
	case opStart:
		err = s.start(q.Service)
	case opSignal:
		err = s.signal(q.Service.Name, q.Signal)
	case opStop:
		err = s.stop(q.Service.Name, q.Grace)
	case opList:
	default:
		err = fmt.Errorf("unknown request %q", q.Op)
	}
	answer := response{Services: s.list()}
	if err != nil {
		answer.Error = err.Error()
	}
	return answer
}

// start is idempotent: a service that runs is left as it is.
func (s *supervisor) start(service Service) error {
	s.mu.Lock()
	defer s.mu.Unlock()
	r := s.find(service.Name)
	if r == nil {
		r = &running{}
		s.services = append(s.services, r)
	}
	if r.process.PID != 0 {
		return nil
	}
	r.Service = service
	return r.launch()
}

func (r *running) launch() error {
	output, err := os.OpenFile(r.Log, os.O_CREATE|os.O_APPEND|os.O_WRONLY, 0o644)
	if err != nil {
		return err
	}
	defer func() { _ = output.Close() }()
	child, err := os.StartProcess(r.Argv[0], r.Argv, &os.ProcAttr{
		Dir:   "/",
		Env:   append(os.Environ(), r.Env...),
		Files: []*os.File{nil, output, output},
		Sys:   &syscall.SysProcAttr{Setsid: true},
	})
	if err != nil {
		r.exit = err.Error()
		return fmt.Errorf("start %s: %w", r.Name, err)
	}
	pid := child.Pid
	_ = child.Release() // the reaper waits for it
	r.ended, r.exit = make(chan struct{}), ""
	// Should it have ended already, it is a zombie: the reaper needs the lock that the caller holds.
	r.process, err = proc.Of(pid)
	return err
}

func (s *supervisor) signal(name string, sig syscall.Signal) error {
	s.mu.Lock()
	defer s.mu.Unlock()
	r := s.find(name)
	if r == nil || r.process.PID == 0 {
		return s.notRunning(name)
	}
	return r.process.Signal(sig)
}

// stop ends the service: by SIGTERM, and by SIGKILL when the grace is over. It returns when the process is gone, and it
// is no error if none runs.
func (s *supervisor) stop(name string, grace time.Duration) error {
	s.mu.Lock()
	r := s.find(name)
	if r == nil {
		defer s.mu.Unlock()
		return s.notRunning(name)
	}
	process, ended := r.process, r.ended
	s.mu.Unlock()
	if process.PID == 0 {
		return nil
	}
	if grace > 0 {
		if err := process.Signal(syscall.SIGTERM); err != nil {
			return err
		}
		select {
		case <-ended:
			return nil
		case <-time.After(grace):
		}
	}
	if err := process.Signal(syscall.SIGKILL); err != nil {
		return err
	}
	<-ended
	return nil
}

func (s *supervisor) find(name string) *running {
	i := slices.IndexFunc(s.services, func(r *running) bool { return r.Name == name })
	if i < 0 {
		return nil
	}
	return s.services[i]
}

func (s *supervisor) notRunning(name string) error {
	var names []string
	for _, r := range s.services {
		if r.process.PID != 0 {
			names = append(names, r.Name)
		}
	}
	return fmt.Errorf("no service %q runs here; running: %s", name, strings.Join(names, ", "))
}

func (s *supervisor) list() []Status {
	s.mu.Lock()
	defer s.mu.Unlock()
	var all []Status
	for _, r := range s.services {
		all = append(all, Status{Name: r.Name, PID: r.process.PID, Stopped: r.process.PID != 0 && r.process.Stopped(), Exit: r.exit})
	}
	return all
}
