//go:build linux

package subprocess_test

import (
	"bufio"
	"os"
	"os/exec"
	"strconv"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/prometheus/procfs"

	"github.com/singletonjob/operator/test/subprocess"
)

// asParent makes this test binary the process that starts a tethered child and is then killed.
const asParent = "SUBPROCESS_TEST_PARENT"

func TestMain(m *testing.M) {
	if os.Getenv(asParent) == "" {
		os.Exit(m.Run())
	}
	child, err := subprocess.Start(exec.Command("sleep", "600"))
	if err != nil {
		panic(err)
	}
	os.Stdout.WriteString(strconv.Itoa(child.Pid()) + "\n")
	<-child.Done()
}

func TestTheChildDiesWithAKilledParent(t *testing.T) {
	parent := exec.Command(os.Args[0])
	parent.Env = append(os.Environ(), asParent+"=1")
	out, err := parent.StdoutPipe()
	if err != nil {
		t.Fatal(err)
	}
	if err := parent.Start(); err != nil {
		t.Fatal(err)
	}
	line, err := bufio.NewReader(out).ReadString('\n')
	if err != nil {
		t.Fatal(err)
	}
	pid, err := strconv.Atoi(strings.TrimSpace(line))
	if err != nil {
		t.Fatal(err)
	}
	if err := parent.Process.Kill(); err != nil {
		t.Fatal(err)
	}
	_ = parent.Wait()
	for deadline := time.Now().Add(5 * time.Minute); alive(pid); time.Sleep(time.Millisecond) {
		if time.Now().After(deadline) {
			_ = syscall.Kill(pid, syscall.SIGKILL)
			t.Fatalf("the child %d outlived its parent", pid)
		}
	}
}

// alive is false for a zombie too: who reaps an orphan is not this test's matter.
func alive(pid int) bool {
	process, err := procfs.NewProc(pid)
	if err != nil {
		return false
	}
	stat, err := process.Stat()
	return err == nil && stat.State != "Z" && stat.State != "X"
}

func TestStopEndsAChildThatIgnoresTheRequest(t *testing.T) {
	cases := map[string]struct {
		script string
		grace  time.Duration
		stop   bool
	}{
		"polite":          {script: "echo; exec sleep 600", grace: time.Minute},
		"ignores SIGTERM": {script: "trap '' TERM; echo; while :; do sleep 1; done", grace: time.Millisecond},
		"stopped":         {script: "echo; exec sleep 600", grace: time.Millisecond, stop: true},
		"no grace":        {script: "echo; exec sleep 600"},
	}
	for name, c := range cases {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			cmd := exec.Command("sh", "-c", c.script)
			out, err := cmd.StdoutPipe()
			if err != nil {
				t.Fatal(err)
			}
			child, err := subprocess.Start(cmd)
			if err != nil {
				t.Fatal(err)
			}
			if _, err := bufio.NewReader(out).ReadString('\n'); err != nil {
				t.Fatal(err)
			}
			if c.stop {
				if err := child.Signal(syscall.SIGSTOP); err != nil {
					t.Fatal(err)
				}
			}
			child.Stop(c.grace)
			select {
			case <-child.Done():
			default:
				t.Fatal("Stop returned before the child was reaped")
			}
			if child.Err() == nil {
				t.Fatal("a killed child must not look like one that ended well")
			}
			if err := child.Signal(syscall.SIGTERM); err != nil {
				t.Fatalf("signalling an ended child: %v", err)
			}
		})
	}
}
