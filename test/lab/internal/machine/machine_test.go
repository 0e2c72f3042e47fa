//go:build linux

package machine

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/singletonjob/operator/test/lab/internal/initd"
	"github.com/singletonjob/operator/test/tier"
)

func TestMain(m *testing.M) {
	if len(os.Args) > 1 && os.Args[1] == InitCommand {
		fmt.Fprintln(os.Stderr, initd.Run())
		os.Exit(1)
	}
	os.Exit(m.Run())
}

func boot(t *testing.T, prepare func(Machine) error) (Machine, error) {
	t.Helper()
	if os.Geteuid() != 0 {
		tier.Needs(t, "it needs root: it makes namespaces")
	}
	dir := t.TempDir()
	m, err := Boot(t.Context(), Spec{
		Name: "m", Dir: filepath.Join(dir, "m"), OwnNetwork: true, Prepare: prepare,
		Setup: initd.Setup{Dir: dir, Private: []string{"/run"}, Hostname: "lab-test", IP: "link set lo up\n"},
	})
	if errors.Is(err, syscall.EPERM) {
		tier.Needs(t, "this machine allows no namespaces: %v", err)
	}
	t.Cleanup(func() {
		if err := m.Crash(context.Background()); err != nil {
			t.Error(err)
		}
	})
	return m, err
}

func service(m Machine, name string, argv ...string) initd.Service {
	return initd.Service{Name: name, Argv: argv, Log: filepath.Join(m.Dir, name+".log")}
}

func eventually(t *testing.T, what string, done func() bool) {
	t.Helper()
	for deadline := time.Now().Add(5 * time.Minute); !done(); time.Sleep(2 * time.Millisecond) {
		if time.Now().After(deadline) {
			t.Fatal("never: ", what)
		}
	}
}

func only(t *testing.T, m Machine) initd.Status {
	t.Helper()
	all, err := m.Services().List(t.Context())
	if err != nil || len(all) != 1 {
		t.Fatalf("services %v, error %v; want one", all, err)
	}
	return all[0]
}

func TestServices(t *testing.T) {
	m, err := boot(t, func(Machine) error { return nil })
	if err != nil {
		t.Fatal(err)
	}
	init, sleeper := m.Services(), service(m, "sleeper", "/bin/sh", "-c", "echo up; exec sleep 100000")
	for range 2 {
		if err := init.Start(t.Context(), sleeper); err != nil {
			t.Fatal(err)
		}
	}
	first := only(t, m)
	if first.PID == 0 {
		t.Fatalf("not running: %+v", first)
	}
	eventually(t, "its output in the log", func() bool {
		out, _ := os.ReadFile(sleeper.Log)
		return string(out) == "up\n" // once: the second start found it running
	})

	if err := init.Signal(t.Context(), "sleeper", syscall.SIGSTOP); err != nil {
		t.Fatal(err)
	}
	eventually(t, "stopped", func() bool { return only(t, m).Stopped })
	if err := init.Stop(t.Context(), "sleeper", time.Millisecond); err != nil { // a stopped one ignores SIGTERM
		t.Fatal(err)
	}
	if s := only(t, m); s.PID != 0 || s.Exit != "killed by SIGKILL" {
		t.Errorf("after the stop: %+v", s)
	}
	if err := init.Signal(t.Context(), "sleeper", syscall.SIGHUP); err == nil {
		t.Error("a signal to a service that does not run was accepted")
	}

	if err := init.Start(t.Context(), service(m, "sleeper", "/bin/sh", "-c", "exit 3")); err != nil {
		t.Fatal(err)
	}
	eventually(t, "its exit status", func() bool { return only(t, m).Exit == "exit status 3" })
	if err := init.Start(t.Context(), service(m, "sleeper", "/no/such/program")); err == nil {
		t.Error("a program that is not there was started")
	}
}

func TestOwnView(t *testing.T) {
	m, err := boot(t, func(Machine) error { return nil })
	if err != nil {
		t.Fatal(err)
	}
	out, err := m.Command(t.Context(), "sh", "-c", "hostname; cat /proc/1/comm; ls /run | wc -l; ls -d "+m.Dir+"; cat /proc/net/dev | wc -l").CombinedOutput()
	if err != nil {
		t.Fatalf("%v: %s", err, out)
	}
	host, _ := os.Hostname()
	if got, want := strings.Fields(string(out)), 5; len(got) != want || got[0] != "lab-test" || got[2] != "0" || got[3] != m.Dir || got[4] != "3" {
		t.Errorf("inside: %q", got)
	}
	if host == "lab-test" {
		t.Error("the host was renamed")
	}
	mounts, _ := os.ReadFile("/proc/self/mounts")
	if strings.Contains(string(mounts), "lab /run ") {
		t.Error("a mount of the machine reached the host")
	}
}

func TestOrphansAreReapedAndDieWithTheMachine(t *testing.T) {
	m, err := boot(t, func(Machine) error { return nil })
	if err != nil {
		t.Fatal(err)
	}
	lasting := fmt.Sprint(100_000 + os.Getpid()) // another run on this machine has another
	// The first grandchild ends and must be reaped; the second lives on after its parents.
	if err := m.Services().Start(t.Context(), service(m, "forks", "/bin/sh", "-c", "setsid sleep 0 & setsid sleep "+lasting+" & exit 0")); err != nil {
		t.Fatal(err)
	}
	inside := func() string {
		out, _ := m.Command(t.Context(), "sh", "-c", "cat /proc/[0-9]*/stat").Output()
		return string(out)
	}
	eventually(t, "the orphan alone is left, no zombie", func() bool {
		s := inside()
		return strings.Count(s, "(sleep) S 1 ") == 1 && !strings.Contains(s, " Z ")
	})
	if err := m.Crash(t.Context()); err != nil {
		t.Fatal(err)
	}
	eventually(t, "the orphan is dead", func() bool {
		found, _ := filepath.Glob("/proc/[0-9]*/cmdline")
		for _, f := range found {
			if line, _ := os.ReadFile(f); string(line) == "sleep\x00"+lasting+"\x00" {
				return false
			}
		}
		return true
	})
}

func TestAbandonedBootLeavesNothing(t *testing.T) {
	var abandoned Machine
	_, err := boot(t, func(m Machine) error {
		abandoned = m
		return errors.New("no")
	})
	if err == nil {
		t.Fatal("booted")
	}
	eventually(t, "init is gone", func() bool { return !abandoned.Init.Alive() })
}

func TestBrokenSetupIsReported(t *testing.T) {
	if os.Geteuid() != 0 {
		tier.Needs(t, "it needs root: it makes namespaces")
	}
	dir := t.TempDir()
	_, err := Boot(t.Context(), Spec{
		Name: "m", Dir: filepath.Join(dir, "m"), OwnNetwork: true, Prepare: func(Machine) error { return nil },
		Setup: initd.Setup{Dir: dir, IP: "link set nonesuch up\n"},
	})
	if err == nil || !strings.Contains(err.Error(), "nonesuch") {
		t.Errorf("error %v does not name what failed", err)
	}
}
