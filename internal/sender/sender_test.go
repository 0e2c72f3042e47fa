//go:build linux

package sender

import (
	"bufio"
	"fmt"
	"os"
	"os/exec"
	"strconv"
	"syscall"
	"testing"

	"golang.org/x/sys/unix"

	"github.com/singletonjob/operator/test/tier"
)

const listenCommand = "listen"

var watched = []syscall.Signal{unix.SIGTERM, unix.SIGHUP, unix.SIGQUIT, unix.SIGUSR1, unix.SIGWINCH, 34 + 3}

func TestMain(m *testing.M) {
	if len(os.Args) == 2 && os.Args[1] == listenCommand {
		listen()
		return
	}
	os.Exit(m.Run())
}

// listen prints where signals come from. A line on its standard input has it send one to itself.
func listen() {
	c := make(chan os.Signal, 10)
	if err := Notify(c, watched...); err != nil {
		fmt.Println(err)
		os.Exit(1)
	}
	fmt.Println("listens")
	go func() {
		for lines := bufio.NewScanner(os.Stdin); lines.Scan(); {
			number, _ := strconv.Atoi(lines.Text())
			_ = unix.Kill(os.Getpid(), syscall.Signal(number))
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

func TestWhoSends(t *testing.T) {
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
			command := exec.CommandContext(t.Context(), "/proc/self/exe", listenCommand)
			command.SysProcAttr = &syscall.SysProcAttr{Cloneflags: row.flags}
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
			lines := bufio.NewScanner(output)
			next := func() string {
				lines.Scan()
				return lines.Text()
			}
			if said := next(); said != "listens" {
				t.Fatal(said)
			}
			for range 100 { // each way, one after the other
				for _, s := range watched {
					if err := command.Process.Signal(s); err != nil {
						t.Fatal(err)
					}
					if said, want := next(), fmt.Sprintf("%s %d", row.want, int(s)); said != want {
						t.Fatalf("it says %q, want %q", said, want)
					}
					_, _ = fmt.Fprintln(input, int(s))
					if said, want := next(), fmt.Sprintf("inside %d", int(s)); said != want {
						t.Fatalf("of its own it says %q, want %q", said, want)
					}
				}
			}
			_ = input.Close()
			if err := command.Wait(); err != nil {
				t.Error(err)
			}
		})
	}
}

// Signals arrive while the runtime interrupts goroutines by its own, and a child is not left with the handler.
func TestTheRuntimeGoesOn(t *testing.T) {
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
