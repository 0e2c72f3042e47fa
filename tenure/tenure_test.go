package tenure

import (
	"context"
	"encoding/json"
	"errors"
	"net"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"github.com/singletonjob/operator/fence"
)

// fake is an agent with preset answers.
type fake struct {
	Agent
	mu     sync.Mutex
	answer func() []byte
	asked  chan struct{} // receives once per answer
}

func newFake(t *testing.T) *fake {
	t.Helper()
	f := &fake{Agent: Agent{Socket: filepath.Join(t.TempDir(), "s")}, asked: make(chan struct{}, 1000)}
	l, err := net.Listen("unix", f.Socket)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = l.Close() })
	go func() {
		for {
			conn, err := l.Accept()
			if err != nil {
				return
			}
			f.mu.Lock()
			body := f.answer()
			f.mu.Unlock()
			_, _ = conn.Write(body)
			_ = conn.Close()
			f.asked <- struct{}{}
		}
	}()
	return f
}

// says has the agent give an answer, as of when it is asked.
func (f *fake) says(s func() Status) {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.answer = func() []byte {
		body, err := json.Marshal(s())
		if err != nil {
			panic(err)
		}
		return body
	}
}

// sends has the agent answer what no agent does.
func (f *fake) sends(text string) {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.answer = func() []byte { return []byte(text) }
}

// holds has the agent be within a tenure.
func (f *fake) holds(token int64, left time.Duration) {
	f.says(func() Status {
		return Status{Version: Version, Name: "job", Phase: "Holding", Token: token, Valid: true, ValidUntil: now() + int64(left)}
	})
}

func (f *fake) waits(reason string) {
	f.says(func() Status { return Status{Version: Version, Phase: "Waiting", Token: 7, Reason: reason} })
}

// patient is the context of what may take long on a busy machine.
func patient(t *testing.T) context.Context {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), 5*time.Minute)
	t.Cleanup(cancel)
	return ctx
}

func TestCurrent(t *testing.T) {
	f := newFake(t)
	t.Setenv(EnvSocket, f.Socket)
	for name, test := range map[string]struct {
		env    string
		agent  func()
		token  int64
		fails  error
		reason string
	}{
		"from a shell":               {agent: func() { f.holds(7, time.Hour) }, token: 7},
		"of the process":             {env: "7", agent: func() { f.holds(7, time.Hour) }, token: 7},
		"of an earlier process":      {env: "6", agent: func() { f.holds(7, time.Hour) }, fails: ErrNoTenure, reason: "the tenure with token 6 is over"},
		"of a standby":               {agent: func() { f.waits("the holder is another") }, fails: ErrNoTenure, reason: "the holder is another"},
		"of an agent from tomorrow":  {agent: func() { f.says(func() Status { return Status{Version: 2, Valid: true} }) }, fails: ErrNoAgent, reason: "version 2"},
		"of an agent from yesterday": {agent: func() { f.says(func() Status { return Status{Valid: true} }) }, fails: ErrNoAgent, reason: "version 0"},
		"of something else":          {agent: func() { f.sends("SSH-2.0") }, fails: ErrNoAgent, reason: "not an agent's status"},
		"of nobody":                  {agent: func() { f.sends("") }, fails: ErrNoAgent, reason: "just ended"},
	} {
		t.Setenv(fence.EnvToken, test.env)
		test.agent()
		got, err := Current(patient(t))
		if !errors.Is(err, test.fails) || (err == nil) != (test.fails == nil) {
			t.Errorf("%s: error %v, want %v", name, err, test.fails)
			continue
		}
		if err != nil && !strings.Contains(err.Error(), test.reason) || err == nil && (got.Token != test.token || got.Name != "job") {
			t.Errorf("%s: %+v, %v; want token %d, a reason with %q", name, got, err, test.token, test.reason)
		}
	}
}

func TestCheck(t *testing.T) {
	f := newFake(t)
	f.holds(7, time.Hour)
	tenure, err := f.Tenure(patient(t), 0)
	if err != nil {
		t.Fatal(err)
	}
	if left, err := tenure.Check(patient(t)); err != nil || left <= 50*time.Minute || left > time.Hour {
		t.Errorf("%v left, %v", left, err)
	}
	f.says(func() Status { return Status{Version: Version, Token: 7, Valid: true, ValidUntil: now()} })
	if left, err := tenure.Check(patient(t)); !errors.Is(err, ErrNoTenure) {
		t.Errorf("of one that has run out on the way: %v left, %v", left, err)
	}
	f.holds(8, time.Hour)
	if left, err := tenure.Check(patient(t)); !errors.Is(err, ErrNoTenure) || !strings.Contains(err.Error(), "token 8") {
		t.Errorf("of the next tenure: %v left, %v", left, err)
	}
}

// Each error gives a remedy: a missing agent, a directory without permission, and a stopped agent. None hangs.
func TestNoAgent(t *testing.T) {
	dir := t.TempDir()
	closed := filepath.Join(dir, "closed")
	if err := os.Mkdir(closed, 0); err != nil {
		t.Fatal(err)
	}
	stopped, err := net.Listen("unix", filepath.Join(dir, "stopped"))
	if err != nil {
		t.Fatal(err)
	}
	defer stopped.Close()
	full, err := syscall.Socket(syscall.AF_UNIX, syscall.SOCK_STREAM, 0)
	if err != nil {
		t.Fatal(err)
	}
	defer syscall.Close(full)
	if err := errors.Join(syscall.Bind(full, &syscall.SockaddrUnix{Name: filepath.Join(dir, "full")}), syscall.Listen(full, 0)); err != nil {
		t.Fatal(err)
	}
	first, err := net.Dial("unix", filepath.Join(dir, "full"))
	if err != nil {
		t.Fatal(err)
	}
	defer first.Close()
	unhurried, cancel := context.WithTimeout(t.Context(), 5*time.Minute)
	defer cancel()
	const stillThere = "the agent is stopped"
	for name, test := range map[string]struct{ path, says string }{
		"outside a container":           {path: filepath.Join(dir, "none"), says: "kubectl exec"},
		"a stopped agent":               {path: filepath.Join(dir, "stopped"), says: stillThere},
		"one that very many have asked": {path: filepath.Join(dir, "full"), says: stillThere},
		"a file":                        {path: "/proc/self/exe", says: "has ended"},
		"another user's directory":      {path: filepath.Join(closed, "s"), says: "execute permission"},
	} {
		if os.Getuid() == 0 && name == "another user's directory" {
			continue // root searches every directory
		}
		ctx := t.Context() // without a deadline
		if test.says != stillThere {
			ctx = unhurried // it is answered as soon as the machine finds the time
		}
		s, err := Agent{Socket: test.path}.Ask(ctx)
		if !errors.Is(err, ErrNoAgent) || !strings.Contains(err.Error(), test.says) || !strings.Contains(err.Error(), test.path) {
			t.Errorf("%s: %+v, error %v; want one with %q", name, s, err, test.says)
		}
	}
}

func TestContext(t *testing.T) {
	for name, test := range map[string]struct {
		early  time.Duration
		ends   func(*fake)
		reason string
	}{
		"it ends by plan": {ends: func(f *fake) { f.waits("the tenure is ending") }, reason: "the tenure is ending"},
		"another begins":  {ends: func(f *fake) { f.holds(8, time.Hour) }, reason: "the tenure with token 7 is over"},
		"it runs out": {ends: func(f *fake) {
			until := now() + int64(10*time.Millisecond)
			f.says(func() Status { return Status{Version: Version, Token: 7, Valid: true, ValidUntil: until} })
		}, reason: "not renewed"},
		"it is about to run out": {early: 30 * time.Minute, ends: func(f *fake) { f.holds(7, 20*time.Minute) }, reason: "not renewed, and ends within 30m"},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			f := newFake(t)
			f.holds(7, time.Hour)
			tenure, err := f.Tenure(patient(t), 7)
			if err != nil {
				t.Fatal(err)
			}
			ctx, cancel := tenure.Context(patient(t), test.early)
			defer cancel()
			<-f.asked
			select {
			case <-f.asked: // by the watch
			case <-ctx.Done():
				t.Fatalf("it ended while the tenure was valid: %v", context.Cause(ctx))
			}
			test.ends(f)
			<-ctx.Done()
			if why := context.Cause(ctx); !errors.Is(why, ErrNoTenure) || !strings.Contains(why.Error(), test.reason) {
				t.Errorf("it ended with %v, want %q", why, test.reason)
			}
		})
	}
}

// An agent that does not answer takes nothing from a tenure that has not run out, and gives nothing to one that has.
func TestWatchWithoutAnswers(t *testing.T) {
	f := newFake(t)
	f.holds(7, 3*time.Second)
	tenure, err := f.Tenure(patient(t), 7)
	if err != nil {
		t.Fatal(err)
	}
	f.sends("")
	if err := tenure.Watch(patient(t), 0); !errors.Is(err, ErrNoTenure) || !strings.Contains(err.Error(), "not renewed") {
		t.Errorf("it ended with %v", err)
	}
	if early := time.Duration(tenure.until - now()); early > 0 {
		t.Errorf("it ended %v before its time", early)
	}
}

func TestWatchEndsWithItsContext(t *testing.T) {
	f := newFake(t)
	f.holds(7, time.Hour)
	tenure, err := f.Tenure(patient(t), 7)
	if err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	if err := tenure.Watch(ctx, 0); !errors.Is(err, context.Canceled) {
		t.Errorf("it ended with %v", err)
	}
}
