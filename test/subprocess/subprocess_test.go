//go:build linux

package subprocess_test

import (
	"bufio"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"syscall"
	"testing"
	"time"
	"unsafe"

	"github.com/singletonjob/operator/test/subprocess"
)

// asParent makes this test binary the process that starts a tethered child and is then killed.
const asParent = "SUBPROCESS_TEST_PARENT"

func TestMain(m *testing.M) {
	switch os.Getenv(asParent) {
	case "":
		os.Exit(m.Run())
	case "by Start":
		child, err := subprocess.Start(exec.Command("sleep", "600"))
		if err != nil {
			panic(err)
		}
		os.Stdout.WriteString(strconv.Itoa(child.Pid()) + "\n")
		<-child.Done()
	case "by another library":
		link := filepath.Join(os.Getenv("LINKS"), "sleep")
		if err := subprocess.Tether(link, exec.Command("/bin/sh")); err != nil {
			panic(err)
		}
		child := exec.Command(link, "-c", "echo $$; exec sleep 600")
		child.Stdout = os.Stdout
		if err := subprocess.OnLastingThread(child.Start); err != nil {
			panic(err)
		}
		_ = child.Wait()
	case "tethered":
		var signal int
		_, _, errno := syscall.RawSyscall(syscall.SYS_PRCTL, syscall.PR_GET_PDEATHSIG, uintptr(unsafe.Pointer(&signal)), 0)
		fmt.Println(syscall.Signal(signal), errno)
	}
}

func TestTheChildDiesWithAKilledParent(t *testing.T) {
	for _, started := range []string{"by Start", "by another library"} {
		t.Run(started, func(t *testing.T) { dies(t, started) })
	}
}

// dies: a child that is started like that ends when its parent is killed.
func dies(t *testing.T, started string) {
	t.Helper()
	parent := exec.Command(os.Args[0])
	parent.Env = append(os.Environ(), asParent+"="+started, "LINKS="+t.TempDir())
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
	child, err := subprocess.Hold(pid)
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = child.Close() }()
	if err := parent.Process.Kill(); err != nil {
		t.Fatal(err)
	}
	_ = parent.Wait()
	for deadline := time.Now().Add(5 * time.Minute); !child.Ended(); time.Sleep(time.Millisecond) {
		if time.Now().After(deadline) {
			_ = child.Kill()
			t.Fatalf("the child %d outlived its parent", pid)
		}
	}
}

// TestATetheredProgramAsksForTheSignal, and has it after it became what it stands for.
func TestATetheredProgramAsksForTheSignal(t *testing.T) {
	link, self := filepath.Join(t.TempDir(), "program"), exec.Command(os.Args[0])
	self.Env = append(os.Environ(), asParent+"=tethered")
	if err := subprocess.Tether(link, self); err != nil {
		t.Fatal(err)
	}
	if out, err := exec.Command(link).CombinedOutput(); err != nil || !strings.HasPrefix(string(out), "killed ") {
		t.Errorf("want it to be killed when its parent dies, the signal is %s, %v", out, err)
	}
}

// TestATetheredProgram becomes what it stands for, under its owner. Another parent cannot start it, such as the one that a child gets if
// its owner dies before the child asks for its parent-death signal.
func TestATetheredProgram(t *testing.T) {
	dir, link := t.TempDir(), filepath.Join(t.TempDir(), "program")
	is := exec.Command("/bin/sh")
	is.Dir, is.Env = dir, append(os.Environ(), "WORD=schibboleth")
	if err := subprocess.Tether(link, is); err != nil {
		t.Fatal(err)
	}
	out, err := exec.Command(link, "-c", `echo "$WORD $1"; pwd`, "sh", "given").Output()
	if err != nil || string(out) != "schibboleth given\n"+dir+"\n" {
		t.Errorf("the program said %q, %v", out, err)
	}
	out, err = exec.Command("/bin/sh", "-c", `"$1" -c "echo it runs"; exit $?`, "sh", link).CombinedOutput()
	if err == nil || !strings.Contains(string(out), "is not its parent") {
		t.Errorf("under another parent the program said %q, %v", out, err)
	}
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
