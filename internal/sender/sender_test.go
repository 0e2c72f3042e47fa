//go:build linux && (amd64 || arm64)

package sender

import (
	"bufio"
	"fmt"
	"go/build"
	"io"
	"os"
	"os/exec"
	"runtime"
	"slices"
	"strconv"
	"strings"
	"syscall"
	"testing"
	"unsafe"

	"golang.org/x/sys/unix"

	"github.com/singletonjob/operator/test/tier"
)

const listenCommand = "listen"

var watched = []syscall.Signal{unix.SIGTERM, unix.SIGHUP, unix.SIGQUIT, unix.SIGUSR1, unix.SIGWINCH, 34 + 3}

// last has the highest number of all signals that listen watches. Go relays it after all other waiting signals.
const last = syscall.Signal(34 + 4)

func TestMain(m *testing.M) {
	if len(os.Args) == 2 && os.Args[1] == listenCommand {
		listen()
		return
	}
	os.Exit(m.Run())
}

// listen prints where signals come from. A line on its standard input has it send one to itself: the signal's number, and how.
func listen() {
	c := make(chan os.Signal, 10)
	if err := Notify(c, append(watched, last)...); err != nil {
		fmt.Println(err)
		os.Exit(1)
	}
	fmt.Println("listens")
	go func() {
		for lines := bufio.NewScanner(os.Stdin); lines.Scan(); {
			text, how, _ := strings.Cut(lines.Text(), " ")
			number, _ := strconv.Atoi(text)
			send(syscall.Signal(number), how)
		}
		os.Exit(0)
	}()
	for s := range c {
		switch s := s.(type) {
		case Outside:
			fmt.Println("outside", int(s))
		case syscall.Signal:
			fmt.Println("inside", int(s))
		}
	}
}

const (
	forged   = "forged" // by sigqueue, which takes any sender's PID from the one who calls it
	late     = "late"   // when another one has come, of which the rest of the program cannot know yet
	byThread = "by thread"
)

// send sends this process a signal.
func send(s syscall.Signal, how string) {
	switch how {
	case forged:
		nobody := struct {
			signal, errno, code int32
			_                   [116]byte
		}{signal: int32(s), code: -1}
		_, _, _ = unix.RawSyscall(unix.SYS_RT_SIGQUEUEINFO, uintptr(os.Getpid()), uintptr(s), uintptr(unsafe.Pointer(&nobody)))
	case late:
		hold(s)
	case byThread:
		_ = unix.Tgkill(os.Getpid(), unix.Gettid(), s)
	default:
		_ = unix.Kill(os.Getpid(), s)
	}
}

// hold lets no other goroutine run until a byte comes in, and sends a signal then.
func hold(s syscall.Signal) {
	defer runtime.GOMAXPROCS(runtime.GOMAXPROCS(1))
	fmt.Println("holds")
	var one [1]byte
	_, _, _ = unix.RawSyscall(unix.SYS_READ, 0, uintptr(unsafe.Pointer(&one[0])), 1) // does not hand over to others
	// The kernel delivers a signal for this thread before the call returns. It would deliver one for the process whenever it wakes another
	// thread.
	_, _, _ = unix.RawSyscall(unix.SYS_TGKILL, uintptr(os.Getpid()), uintptr(unix.Gettid()), uintptr(s))
}

func TestSenderOfASignal(t *testing.T) {
	t.Parallel()
	for name, row := range map[string]struct {
		flags uintptr
		want  string
	}{
		"of the same namespace": {0, "inside"},
		"of the one around it":  {unix.CLONE_NEWUSER | unix.CLONE_NEWPID, "outside"},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			l := startListening(t, row.flags)
			for range 100 { // each way, one after the other
				for _, s := range watched {
					l.signal(s)
					l.expect("%s %d", row.want, int(s))
					for _, how := range []string{"", forged, byThread} {
						l.tell("%d %s\n", int(s), how)
						l.expect("inside %d", int(s))
					}
				}
			}
			l.end()
		})
	}
}

// A signal of the runtime is not lost to one of the same number from within that comes before anybody has looked.
func TestTheRuntimesSignalIsNotLost(t *testing.T) {
	t.Parallel()
	l := startListening(t, unix.CLONE_NEWUSER|unix.CLONE_NEWPID)
	for _, s := range watched {
		l.tell("%d %s\n", int(s), late)
		l.expect("holds")
		l.signal(s)
		l.tell("\n")
		l.tell("%d\n", int(last))
		// Go may have relayed the first one before the second one came, or the second one while no thread had got CPU to take the first one.
		// Then there is a line for each. The kernel hands out the last one after both.
		own, outside := fmt.Sprint("inside ", int(s)), fmt.Sprint("outside ", int(s))
		switch said := l.until(fmt.Sprint("inside ", int(last))); {
		case slices.Equal(said, []string{outside}), slices.Equal(said, []string{outside, own}), slices.Equal(said, []string{own, outside}):
		default:
			t.Fatalf("it says %q, want %q, and at most once %q", said, outside, own)
		}
		l.tell("%d\n", int(s)) // a later signal is reported as what it is
		l.expect("inside %d", int(s))
	}
	l.end()
}

// listener is a process that listens.
type listener struct {
	*testing.T
	command *exec.Cmd
	input   io.WriteCloser
	lines   *bufio.Scanner
}

func startListening(t *testing.T, flags uintptr) *listener {
	t.Helper()
	command := exec.CommandContext(t.Context(), "/proc/self/exe", listenCommand)
	command.SysProcAttr = &syscall.SysProcAttr{Cloneflags: flags}
	command.Stderr = os.Stderr
	input, err := command.StdinPipe()
	if err != nil {
		t.Fatal(err)
	}
	output, err := command.StdoutPipe()
	if err != nil {
		t.Fatal(err)
	}
	if err := command.Start(); err != nil {
		tier.Needs(t, "no process can be started in namespaces of its own: %v", err)
	}
	l := &listener{t, command, input, bufio.NewScanner(output)}
	l.expect("listens")
	return l
}

func (l *listener) tell(format string, args ...any) { _, _ = fmt.Fprintf(l.input, format, args...) }

func (l *listener) line() string {
	l.lines.Scan()
	return l.lines.Text()
}

// until returns the lines before one.
func (l *listener) until(end string) (said []string) {
	for line := l.line(); line != end && line != ""; line = l.line() {
		said = append(said, line)
	}
	return said
}

func (l *listener) expect(format string, args ...any) {
	l.Helper()
	if said, want := l.line(), fmt.Sprintf(format, args...); said != want {
		l.Fatalf("it says %q, want %q", said, want)
	}
}

func (l *listener) signal(s syscall.Signal) {
	l.Helper()
	if err := l.command.Process.Signal(s); err != nil {
		l.Fatal(err)
	}
}

func (l *listener) end() {
	l.Helper()
	_ = l.input.Close()
	if err := l.command.Wait(); err != nil {
		l.Error(err)
	}
}

// Signals arrive while the runtime interrupts goroutines by its own, and a child is not left with the handler.
func TestGoRuntimeContinues(t *testing.T) {
	c := make(chan os.Signal, 10)
	for range 2 { // the second time relays, too
		if err := Notify(c, unix.SIGUSR2); err != nil {
			t.Fatal(err)
		}
	}
	stop := make(chan struct{})
	defer close(stop)
	for range 2 {
		go func() { // as busy as a goroutine that must be interrupted
			for n := 0; ; n++ {
				if n&(1<<20-1) == 0 {
					select {
					case <-stop:
						return
					default:
					}
				}
			}
		}()
	}
	for range 30 {
		if err := unix.Kill(os.Getpid(), unix.SIGUSR2); err != nil {
			t.Fatal(err)
		}
		for range 2 {
			if s := <-c; s != unix.SIGUSR2 {
				t.Fatal(s)
			}
		}
	}
	if out, err := exec.CommandContext(t.Context(), "sh", "-c", `kill -USR2 $$; echo lives on`).CombinedOutput(); err == nil {
		t.Errorf("a child does not end by a signal that has no handler in it: %s", out)
	}
}

// An agent for an architecture without a handler would lose the signals that it watches: without a handler's address, the kernel drops
// them. There must be none.
func TestArchitectures(t *testing.T) {
	t.Parallel()
	for _, arch := range []string{"386", "amd64", "arm", "arm64", "loong64", "mips64", "mips64le", "ppc64", "ppc64le", "riscv64", "s390x"} {
		context := build.Default
		context.GOOS, context.GOARCH = "linux", arch
		compiled, err := context.MatchFile(".", "sender.go")
		if err != nil {
			t.Fatal(err)
		}
		_, err = os.Stat("handler_linux_" + arch + ".s")
		if has := err == nil; compiled != has {
			t.Errorf("%s: compiled: %t, has a handler: %t", arch, compiled, has)
		}
	}
}
