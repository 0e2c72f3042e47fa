//go:build linux

package subprocess

import (
	"encoding/json"
	"fmt"
	"os"
	"os/exec"
	"runtime"
	"slices"
	"syscall"

	"golang.org/x/sys/unix"
)

// tether says what a link runs. It is in a file beside the link.
type tether struct {
	Owner       int // its PID
	Program     string
	Dir         string
	Environment []string
}

// beside a link is its tether, under the link's name with this at its end.
const beside = ".tether"

// Tether makes link a program, for a library that starts programs by itself. link is an absolute path. It runs cmd.Path in cmd.Dir, with
// the arguments that the library gives it, the environment of this process, and what cmd.Env has beside that.
//
// If the library starts it inside OnLastingThread, it cannot outlive this process, like a child of Start. No other process can start it.
//
// link leads to this executable. An init function recognises the name, sets the parent-death signal and executes the program, which so
// has the PID that the library knows.
func Tether(link string, cmd *exec.Cmd) error {
	self, err := os.Executable()
	if err != nil {
		return fmt.Errorf("tethering %s: %w", cmd.Path, err)
	}
	more := slices.Clone(cmd.Env)
	for _, known := range os.Environ() {
		more = slices.DeleteFunc(more, func(variable string) bool { return variable == known })
	}
	text, err := json.Marshal(tether{Owner: os.Getpid(), Program: cmd.Path, Dir: cmd.Dir, Environment: more})
	if err != nil {
		return fmt.Errorf("tethering %s: %w", cmd.Path, err)
	}
	if err := os.WriteFile(link+beside, text, 0o600); err != nil {
		return fmt.Errorf("tethering %s: %w", cmd.Path, err)
	}
	_ = os.Remove(link) // of an earlier start in the directory
	return os.Symlink(self, link)
}

func init() {
	if len(os.Args) == 0 {
		return
	}
	text, err := os.ReadFile(os.Args[0] + beside)
	if err != nil {
		return // it was not started by a link
	}
	fmt.Fprintf(os.Stderr, "starting what %s is: %v\n", os.Args[0], become(text))
	os.Exit(1)
}

// become returns only if it fails. It is called by init, so on the process's main thread.
func become(text []byte) error {
	var t tether
	if err := json.Unmarshal(text, &t); err != nil {
		return err
	}
	if err := unix.Prctl(unix.PR_SET_PDEATHSIG, uintptr(unix.SIGKILL), 0, 0, 0); err != nil {
		return fmt.Errorf("setting the parent-death signal: %w", err)
	}
	// The owner may have died before the signal was set, and then it will not come.
	if parent := os.Getppid(); parent != t.Owner {
		return fmt.Errorf("process %d, which it is tethered to, is not its parent: that is %d", t.Owner, parent)
	}
	if t.Dir != "" {
		if err := os.Chdir(t.Dir); err != nil {
			return err
		}
	}
	// The parent-death signal outlives this: prctl(2).
	return syscall.Exec(t.Program, append([]string{t.Program}, os.Args[1:]...), append(os.Environ(), t.Environment...))
}

// OnLastingThread calls start on a thread that lasts as long as this process. The kernel sends the parent-death signal when the thread
// that forked ends.
func OnLastingThread(start func() error) error {
	result := make(chan error)
	go func() {
		runtime.LockOSThread()
		result <- start()
		select {}
	}()
	return <-result
}
