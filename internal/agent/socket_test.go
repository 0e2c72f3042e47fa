//go:build linux

package agent

import (
	"context"
	"errors"
	"io"
	"net"
	"os"
	"path/filepath"
	"runtime"
	"strings"
	"testing"
	"time"

	"github.com/singletonjob/operator/internal/contract"
	"github.com/singletonjob/operator/internal/lease"
	"github.com/singletonjob/operator/internal/supervise"
	"github.com/singletonjob/operator/tenure"
)

// answering is an agent of a given snapshot that is asked by its socket.
func answering(t *testing.T, s Snapshot) (a *Agent, at tenure.Agent) {
	t.Helper()
	at = tenure.Agent{Socket: filepath.Join(t.TempDir(), "s")}
	listener, err := Listen(func(string) string { return at.Socket })
	if err != nil {
		t.Fatal(err)
	}
	o := testOptions()
	o.Clock = newFakeClock()
	a = New(o)
	a.snapshot.Store(&s)
	served := make(chan struct{})
	go func() {
		defer close(served)
		a.ServeSocket(listener)
	}()
	t.Cleanup(func() {
		_ = listener.Close()
		<-served
	})
	return a, at
}

// unhurried is the context of a question that a busy machine may take its time to answer.
func unhurried(t *testing.T) context.Context {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
	t.Cleanup(cancel)
	return ctx
}

func TestSocket(t *testing.T) {
	_, at := answering(t, Snapshot{Name: "job", Token: 7, ValidUntil: supervise.BootTime() + int64(time.Hour)})
	if info, err := os.Stat(at.Socket); err != nil || info.Mode().Perm() != 0o666 {
		t.Errorf("%v, %v: a process of another user can't ask", info.Mode(), err)
	}
	if _, err := Listen(func(string) string { return at.Socket }); err == nil {
		t.Error("a second agent took the socket of one that lives")
	}
	s, err := at.Ask(unhurried(t))
	boot := supervise.NoLater(supervise.BootTime())
	if err != nil || s.Name != "job" || s.Token != 7 || !s.Valid || s.Reason != "" || s.Left() <= 0 || s.Left() > time.Hour ||
		s.LeftMilliseconds > time.Hour.Milliseconds() || s.LeftMilliseconds < (50*time.Minute).Milliseconds() ||
		s.ValidUntilBoot > boot+int64(48*time.Minute) || s.ValidUntilBoot < boot+int64(40*time.Minute) { // 3/4 of the hour
		t.Errorf("%+v, %v", s, err)
	}
}

// Where the agent's own check looks, and where a program of the container's does.
func TestSocketPaths(t *testing.T) {
	if got := filepath.Dir(tenure.DefaultSocket); got != contract.RunDir {
		t.Errorf("package tenure asks in %s, and the Pod has a volume at %s", got, contract.RunDir)
	}
	if at := Local(func(string) string { return "" }); at.Socket != tenure.DefaultSocket {
		t.Errorf("without a variable, the agent is looked for on %s", at.Socket)
	}
	if at := Local(func(string) string { return "@abstract" }); at.Socket != "@abstract" {
		t.Errorf("by the variable, the agent is looked for on %s", at.Socket)
	}
}

// The answers to a standby and to others without a right to act.
func TestReasons(t *testing.T) {
	past := supervise.BootTime() - int64(time.Second)
	for _, test := range []struct {
		snapshot Snapshot
		says     string
	}{
		{Snapshot{}, "just started"},
		{Snapshot{known: true, absent: true}, "no Lease"},
		{Snapshot{known: true}, "no Pod holds"},
		{Snapshot{known: true, Holder: "a/b/c"}, `standby: the holder is "a/b/c"`},
		{Snapshot{known: true, Phase: lease.Acquiring.String()}, "acquiring"},
		{Snapshot{known: true, Phase: lease.Holding.String(), Token: 7, ValidUntil: past}, "not renewed in time"},
		{Snapshot{known: true, Phase: lease.Stopping.String(), Token: 7, stopping: lease.ReasonSwitchover}, "token 7 is ending: Switchover"},
	} {
		s := test.snapshot.status(supervise.BootTime())
		if s.Valid || s.ValidUntil != 0 || s.ValidUntilBoot != 0 || s.LeftMilliseconds != 0 || !strings.Contains(s.Reason, test.says) {
			t.Errorf("%+v is told as %+v, want a reason with %q", test.snapshot, s, test.says)
		}
	}
}

// Those who connect and never read, or say what nobody asked for, take nothing from the agent, and nobody waits for them.
func TestSocketCrowd(t *testing.T) {
	a, at := answering(t, Snapshot{Name: "job"})
	before := runtime.NumGoroutine()
	patience := unhurried(t)
	for i := range 500 {
		var conn net.Conn
		for conn == nil { // the kernel has a place for each as soon as the agent has answered those before it
			var err error
			if conn, err = net.Dial("unix", at.Socket); err != nil {
				if patience.Err() != nil {
					t.Fatal(err)
				}
				time.Sleep(time.Millisecond)
			}
		}
		t.Cleanup(func() { _ = conn.Close() })
		if i%2 == 0 {
			_, _ = io.WriteString(conn, "GET / HTTP/1.1\r\n\r\n")
		}
	}
	if s, err := at.Ask(unhurried(t)); err != nil || s.Name != "job" {
		t.Errorf("beside a crowd that does not read: %+v, %v", s, err)
	}
	if n := runtime.NumGoroutine() - before; n > 10 {
		t.Errorf("%d goroutines look after clients that do not read", n)
	}
	a.snapshot.Store(&Snapshot{Name: "later"})
	if s, err := at.Ask(unhurried(t)); err != nil || s.Name != "later" {
		t.Errorf("after a crowd: %+v, %v", s, err)
	}
}

// The socket of an agent that was killed is in the way of nobody, and says what became of it.
func TestSocketOfDeadAgent(t *testing.T) {
	path := filepath.Join(t.TempDir(), "s")
	listener, err := net.ListenUnix("unix", &net.UnixAddr{Name: path})
	if err != nil {
		t.Fatal(err)
	}
	listener.SetUnlinkOnClose(false)
	if err := listener.Close(); err != nil {
		t.Fatal(err)
	}
	if _, err := (tenure.Agent{Socket: path}).Ask(unhurried(t)); !errors.Is(err, tenure.ErrNoAgent) || !strings.Contains(err.Error(), "has ended") {
		t.Errorf("of a dead agent: %v", err)
	}
	again, err := Listen(func(string) string { return path })
	if err != nil {
		t.Fatal(err)
	}
	_ = again.Close()
}
