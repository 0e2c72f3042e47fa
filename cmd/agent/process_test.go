//go:build linux

package main

import (
	"context"
	"fmt"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"syscall"
	"testing"
	"time"

	coordinationv1 "k8s.io/api/coordination/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/singletonjob/operator/fence"
	"github.com/singletonjob/operator/internal/contract"
	"github.com/singletonjob/operator/internal/lease"
	"github.com/singletonjob/operator/internal/supervise"
	"github.com/singletonjob/operator/test/faultproxy"
	"github.com/singletonjob/operator/test/tier"
)

var (
	isWrite = faultproxy.Method(http.MethodPut)
	isRead  = faultproxy.Match(func(r *http.Request) bool { return r.Method == http.MethodGet && !faultproxy.Watches()(r) })
)

// duration is the leaseDuration of the tests.
func leaseDuration() time.Duration { return time.Duration(testConfig().LeaseDuration) }

func TestHandover(t *testing.T) {
	t.Parallel()
	for name, test := range map[string]struct {
		process []string
		lease   float64 // seconds; steady if 0
		grace   float64 // seconds
		code    int
		why     string
	}{
		"prompt": {grace: 30},
		"slow": {
			process: []string{"linger=14s"}, lease: 12, grace: 60,
			why: "it stops for longer than its lease lasts: renewals go on, and the other waits",
		},
		"stubborn": {process: []string{"stubborn"}, grace: 2, code: 128 + 9, why: "killed when the grace period ends"},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			config := steadyConfig()
			if test.lease > 0 {
				config.LeaseDuration, config.RenewDeadline = seconds(test.lease), seconds(test.lease*2/3)
			}
			config.GracePeriod = seconds(test.grace)
			mustGoOn(t, func(w *world) error {
				a := w.holder("a", config, test.process...)
				b := w.candidate("b", config)
				b.await("lease held", "holder=a/")
				a.signal(syscall.SIGTERM)
				a.await("released", "reason=PodTerminating")
				w.acts(b)
				code := a.exit()
				w.checkLives()
				if code != test.code {
					return fmt.Errorf("exit code %d, want %d; its log:\n%s", code, test.code, a.lines)
				}
				return nil
			})
		})
	}
}

// The operator requests a handover and the Pod does not end, so the agent stays as a standby. No process starts before the first one has
// ended.
func TestHandoverOnRequest(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	a := w.holder("a", steadyConfig(), "linger=1s")
	b := w.candidate("b", steadyConfig())
	b.await("lease held", "holder=a/")
	w.annotate(map[string]any{contract.HandoverToAnnotation: "b", contract.HandoverReasonAnnotation: string(lease.ReasonRollout)})
	a.await("released", "reason=RolloutHandover")
	w.acts(b)
	a.await("lease held", "holder=b/")
	b.signal(syscall.SIGTERM)
	w.acts(a)
	w.checkLives()
}

// When the process ends, the agent exits with its status and releases the Lease at once. The next read that either agent makes by itself
// comes long after this test's timeout.
func TestExitCode(t *testing.T) {
	t.Parallel()
	config := steadyConfig()
	config.RetryPeriod = contract.Duration(3 * patience)
	for name, test := range map[string]struct {
		process []string
		signal  syscall.Signal
		code    int
	}{
		"exits with 0":    {process: []string{"exit=0"}, signal: syscall.SIGUSR1, code: 0},
		"exits with 3":    {process: []string{"exit=3"}, signal: syscall.SIGUSR1, code: 3},
		"exits with 78":   {process: []string{"exit=78"}, signal: syscall.SIGUSR1, code: 78},
		"dies of SIGKILL": {signal: syscall.SIGKILL, code: 128 + 9},
		"dies of SIGSEGV": {process: []string{"faulty"}, signal: syscall.SIGSEGV, code: 128 + 11},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			w := newWorld(t)
			a := w.candidate("a", config, test.process...)
			w.acts(a)
			b := w.standby("b", config)
			w.must(syscall.Kill(w.lives()[0].pid, test.signal))
			if code := a.exit(); code != test.code {
				t.Errorf("exit code %d, want %d; log:\n%s", code, test.code, a.lines)
			}
			w.acts(b)
			w.checkLives()
		})
	}
}

// A process that the main process leaves behind in a session of its own is dead before the next tenure begins.
func TestDaemonIsKilled(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	a := w.holder("a", steadyConfig(), "exit=0", "daemon")
	b := w.standby("b", steadyConfig())
	lastOfDaemon := func() (at int64) {
		for _, line := range w.words() {
			if fields := strings.Fields(line); len(fields) == 4 && fields[0] == "daemon" {
				at, _ = strconv.ParseInt(fields[3], 10, 64)
			}
		}
		return at
	}
	w.eventually("the daemon writes", func() bool { return lastOfDaemon() != 0 })
	w.must(syscall.Kill(w.lives()[0].pid, syscall.SIGUSR1))
	if code := a.exit(); code != 0 {
		t.Errorf("exit code %d; log:\n%s", code, a.lines)
	}
	w.acts(b)
	elapse(t, 100*time.Millisecond)
	if lives := w.checkLives(); len(lives) != 2 || lastOfDaemon() >= lives[1].first {
		t.Errorf("the daemon wrote last at %d; %+v", lastOfDaemon(), lives)
	}
}

// TestCannotStart: an agent whose command certainly cannot be executed never gets a tenure.
func TestCannotStart(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	file := func(name, text string, mode os.FileMode) string {
		path := filepath.Join(dir, name)
		if err := os.WriteFile(path, []byte(text), mode); err != nil {
			t.Fatal(err)
		}
		return path
	}
	missing := "/no/such/program"
	for name, test := range map[string]struct {
		command string
		hook    string // preActivate, which can install the command
		code    int
		tried   bool
	}{
		"not found":                      {command: missing, code: 127},
		"not executable":                 {command: file("file", "", 0o600), code: 126},
		"not found, and has to be tried": {command: file("script", "#!/no/such/interpreter\n", 0o700), code: 127, tried: true},
		"not found yet":                  {command: missing, hook: "/bin/true", code: 127, tried: true},
		"hook not found":                 {command: "/bin/true", hook: missing, code: 127},
		"differs from tenure to tenure":  {command: missing + contract.MarkReferences("$(TOKEN)", "secret", func(string) bool { return true }), code: 127, tried: true},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			w := newWorld(t)
			config := steadyConfig()
			config.TokenEnv, config.Marks = "TOKEN", "secret"
			if test.hook != "" {
				config.PreActivate = &contract.PreActivate{Exec: []string{test.hook}, Timeout: config.GracePeriod}
			}
			a := w.prepare("a", config)
			a.run(test.command)
			if test.tried {
				a.await("not started")
				a.await("released", "reason=ProcessExited")
			} else {
				a.await("singletonjob: execute")
			}
			if code := a.exit(); code != test.code {
				t.Errorf("exit code %d, want %d", code, test.code)
			}
			if held := w.lease().Annotations[contract.TokenAnnotation] != ""; held != test.tried {
				t.Errorf("it has held the Lease: %t, want %t; log:\n%s", held, test.tried, a.lines)
			}
		})
	}
}

func TestEnvironment(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	config := steadyConfig()
	config.TokenEnv, config.Marks = "MY_TOKEN", "secret"
	marked := contract.MarkReferences("$(MY_TOKEN)", config.Marks, func(string) bool { return true })
	a := w.prepare("a", config)
	a.env = append(a.env, "THEIRS=kept", "MY_TOKEN=stale", contract.RuntimeReapsEnv+"=true")
	a.start("env", "--token="+marked, marked+":$(MY_TOKEN)", "$$(MY_TOKEN)", "$(THEIRS) $MY_TOKEN")
	token := a.acquired()
	w.eventually("the process has written its environment", func() bool {
		return slices.Contains(w.words(), "end of env")
	})
	for _, want := range []string{
		fmt.Sprintf("arg --token=%d", token), fmt.Sprintf("arg %d:$(MY_TOKEN)", token), "arg $$(MY_TOKEN)", "arg $(THEIRS) $MY_TOKEN",
	} {
		if !slices.Contains(w.words(), want) {
			t.Errorf("among the arguments is not %q: %q", want, w.words())
		}
	}
	got := map[string][]string{}
	for _, line := range w.words() {
		if kv, ok := strings.CutPrefix(line, "env "); ok {
			name, value, _ := strings.Cut(kv, "=")
			got[name] = append(got[name], value)
		}
	}
	want := map[string]string{
		"MY_TOKEN": fmt.Sprint(token), contract.NameEnv: jobName, contract.NamespaceEnv: w.ns, contract.PodEnv: "a", contract.TenureEnv: "1",
		contract.LeaseDurationEnv: "1h0m0s", contract.RunIDEnv: "run", "THEIRS": "kept", contract.SocketEnv: filepath.Join(a.credentials, "agent.sock"),
	}
	for name, value := range want {
		if !slices.Equal(got[name], []string{value}) {
			t.Errorf("%s is %q, want %q once", name, got[name], value)
		}
	}
	for _, name := range []string{contract.ConfigEnv, contract.PodUIDEnv, contract.NodeEnv, contract.RuntimeReapsEnv, fence.EnvToken} {
		if got[name] != nil {
			t.Errorf("%s is %q; it is the agent's alone", name, got[name])
		}
	}
}

// Variables for the process have no effect on the agent, and the process gets them unchanged.
func TestAgentIgnoresTemplateVariables(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	theirs := []string{
		"KUBERNETES_SERVICE_HOST=", "KUBERNETES_SERVICE_PORT=", "HTTPS_PROXY=http://127.0.0.1:1", "SSL_CERT_FILE=/nowhere", "LD_PRELOAD=",
		"GODEBUG=gctrace=1", "GOGC=1", "GOMAXPROCS=1", "GOMEMLIMIT=64MiB", "GOTRACEBACK=none", "TZ=Asia/Kathmandu", "HOME=/nowhere", "_=x",
	}
	a := w.prepare("a", steadyConfig())
	a.env = append(a.env, theirs...)
	a.run("/bin/sh", "-c", `tr '\0' '\n' </proc/self/environ >"$0.part"; mv "$0.part" "$0"; exec sleep 1000000`, filepath.Join(a.credentials, "environ"))
	a.acquired()
	w.eventually("the process has written its environment", func() bool {
		_, err := os.Stat(filepath.Join(a.credentials, "environ"))
		return err == nil
	})
	got, err := os.ReadFile(filepath.Join(a.credentials, "environ"))
	w.must(err)
	lines := strings.Split(string(got), "\n")
	for _, kv := range theirs {
		if name, _, _ := strings.Cut(kv, "="); name != "_" && !slices.Contains(lines, kv) { // a shell sets _ itself
			t.Errorf("the process lacks %s; it has %q", kv, lines)
		}
	}
	// The agent requests a garbage collection when it has started. Earlier ones belong to the program before it executed itself again.
	if log := a.lines.String(); strings.Contains(log, "(forced)") {
		t.Errorf("the agent heeds GODEBUG:\n%s", log)
	}
	a.signal(syscall.SIGTERM)
	a.exit()
	w.checkLives()
}

func TestSignalsAreForwarded(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	a := w.holder("a", steadyConfig())
	for _, sig := range []syscall.Signal{syscall.SIGHUP, syscall.SIGUSR2, syscall.SIGQUIT, syscall.SIGWINCH} {
		a.signal(sig)
		w.eventually("the process got "+sig.String(), func() bool {
			return slices.ContainsFunc(w.words(), func(line string) bool { return strings.HasPrefix(line, "signal-"+sig.String()) })
		})
	}
	if lives := w.checkLives(); len(lives) != 1 {
		t.Errorf("%d processes, want 1 that continues", len(lives))
	}
}

// Faults that a tenure survives: it is neither lost nor begun again.
func TestTenureContinues(t *testing.T) {
	t.Parallel()
	config := testConfig()
	outage := time.Duration(config.RenewDeadline) / 2
	for name, test := range map[string]struct {
		fault func() faultproxy.Fault
		when  []faultproxy.Match
		why   string
	}{
		"replies lost":      {fault: faultproxy.LoseReply, when: []faultproxy.Match{isWrite}, why: "stored all the same"},
		"replies cut off":   {fault: faultproxy.ResetReply, when: []faultproxy.Match{isWrite}, why: "stored all the same"},
		"black hole":        {fault: faultproxy.BlackHole},
		"reset":             {fault: faultproxy.Reset},
		"throttled":         {fault: func() faultproxy.Fault { return faultproxy.TooManyRequests(time.Hour) }, why: "Retry-After is not for a holder"},
		"server errors":     {fault: func() faultproxy.Fault { return faultproxy.Fail(500) }},
		"lost proxy":        {fault: func() faultproxy.Fault { return faultproxy.Answer(404, nil, "404 page not found") }, why: "no word of the API server's"},
		"slow":              {fault: func() faultproxy.Fault { return faultproxy.Delay(150*time.Millisecond, 150*time.Millisecond) }},
		"duplicates":        {fault: func() faultproxy.Fault { return faultproxy.Duplicate(0) }, when: []faultproxy.Match{isWrite}},
		"late duplicates":   {fault: func() faultproxy.Fault { return faultproxy.Duplicate(700 * time.Millisecond) }, when: []faultproxy.Match{isWrite}},
		"stale reads":       {fault: faultproxy.Stale, when: []faultproxy.Match{isRead}},
		"held, then all at": {fault: faultproxy.Hold, when: []faultproxy.Match{isWrite}, why: "old writes arrive late: none may win"},
		"unauthorised": {fault: func() faultproxy.Fault {
			return faultproxy.Answer(401, nil, `{"kind":"Status","code":401,"reason":"Unauthorized"}`)
		}},
		"forbidden": {fault: func() faultproxy.Fault {
			return faultproxy.Answer(403, nil, `{"kind":"Status","code":403,"reason":"Forbidden"}`)
		}},
		"watch stalls": {fault: faultproxy.StallWatch, when: []faultproxy.Match{faultproxy.Watches()}},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			mustGoOn(t, func(w *world) error {
				a := w.candidate("a", config)
				token := w.acts(a)
				w.standby("b", config)
				remove := a.proxy.Inject(test.fault(), test.when...)
				elapse(t, outage)
				remove()
				w.renewedTwice()
				// A candidate that counted from the begin of the outage would have taken over by now.
				elapse(t, leaseDuration())
				w.renewedTwice()
				if lives := w.checkLives(); len(lives) != 1 || lives[0].token != token {
					return fmt.Errorf("%s: the tenure did not go on: %+v; log of the holder:\n%s", test.why, lives, a.lines)
				}
				return nil
			})
		})
	}
}

// elapse lets time pass as part of the scenario. No event is expected by the end of it.
func elapse(t testing.TB, d time.Duration) {
	t.Helper()
	select {
	case <-time.After(d):
	case <-t.Context().Done():
	}
}

// renewedTwice waits for two renewals, because the reply to the first one can still be lost.
func (w *world) renewedTwice() {
	w.t.Helper()
	for range 2 {
		before := w.lease().Spec.RenewTime
		// Each check is a request to an API server that many tests share.
		w.looking(100*time.Millisecond, "the Lease is renewed", func() bool { return !w.lease().Spec.RenewTime.Equal(before) })
	}
}

// An acquire that was stored but whose reply was lost becomes a tenure with one more write.
func TestAcquireReplyLost(t *testing.T) {
	t.Parallel()
	for name, fault := range map[string]faultproxy.Fault{"silence": faultproxy.LoseReply(), "reset": faultproxy.ResetReply()} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			mustGoOn(t, func(w *world) error {
				a := w.prepare("a", testConfig())
				a.proxy.Inject(fault, faultproxy.Times(1, isWrite))
				a.start()
				w.acts(a)
				if l := w.lease(); *l.Spec.LeaseTransitions != 1 {
					return fmt.Errorf("%d tenures, want 1; log:\n%s", *l.Spec.LeaseTransitions, a.lines)
				}
				if n := len(a.proxy.Seen(func(r faultproxy.Request) bool { return r.Method == http.MethodPut })); n < 2 {
					return fmt.Errorf("%d writes before the process started, want the lost one and another", n)
				}
				w.checkLives()
				return nil
			})
		})
	}
}

// Faults that a holder does not survive: its process is dead before another one starts, and the other one is not disturbed if the fault
// ends at that moment.
func TestCutOff(t *testing.T) {
	t.Parallel()
	for name, test := range map[string]struct {
		cut     func(*candidate)
		heal    func(*candidate)
		process []string
	}{
		"black hole":           {cut: func(c *candidate) { c.proxy.Cut() }, heal: healProxy},
		"black hole, stubborn": {cut: func(c *candidate) { c.proxy.Cut() }, heal: healProxy, process: []string{"stubborn"}},
		"refused":              {cut: func(c *candidate) { c.proxy.Refuse() }, heal: healProxy},
		"replies swallowed":    {cut: blind(faultproxy.LoseReply()), heal: healProxy},
		"replies cut off":      {cut: blind(faultproxy.ResetReply()), heal: healProxy},
		"internal errors":      {cut: blind(faultproxy.Fail(500)), heal: healProxy},
		"overloaded":           {cut: blind(faultproxy.TooManyRequests(time.Hour)), heal: healProxy},
		"one-way":              {cut: func(c *candidate) { c.proxy.Inject(faultproxy.BlackHole(), isWrite) }, heal: healProxy},
		"late delivery":        {cut: func(c *candidate) { c.proxy.Inject(faultproxy.Hold(), isWrite) }, heal: healProxy},
		"token expired":        {cut: func(c *candidate) { c.setToken("expired") }, heal: func(c *candidate) { c.setToken(c.w.newToken()) }},
		"agent stopped": {
			cut: func(c *candidate) { c.signal(syscall.SIGSTOP) }, heal: func(c *candidate) { c.signal(syscall.SIGCONT) },
			process: []string{"stubborn"},
		},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			mustGoOn(t, func(w *world) error {
				a := w.holder("a", testConfig(), test.process...)
				b := w.standby("b", testConfig())
				test.cut(a)
				cut := time.Now()
				second := b.acquired()
				test.heal(a)
				w.awaitBeat(second)
				// No renewal that was sent after the cut was stored. The process lives on during a pause of the machine, because nothing
				// can kill it then.
				late := time.Duration(w.lives()[0].last - a.deadline(cut))
				if late > min(stall, lease.Margin(leaseDuration())) {
					return fmt.Errorf("the process lived on for %v after its deadline; log of the holder:\n%s", late, a.lines)
				}
				a.await("lease held", "holder=b/")
				elapse(t, leaseDuration())
				w.renewedTwice()
				if lives := w.checkLives(); len(lives) != 2 {
					return fmt.Errorf("%d processes, want 2: %+v", len(lives), lives)
				}
				// The agent that was cut off is a normal candidate again.
				b.signal(syscall.SIGTERM)
				w.acts(a)
				w.checkLives()
				return nil
			})
		})
	}
}

// blind applies a fault to all requests of a candidate. It also stalls the open watch, which would show that the renewals arrive.
func blind(fault faultproxy.Fault) func(*candidate) {
	return func(c *candidate) {
		c.proxy.Inject(faultproxy.StallWatch())
		c.proxy.Inject(fault)
	}
}

func healProxy(c *candidate) {
	c.w.t.Helper()
	c.w.must(c.proxy.Heal())
}

func TestAgentKilled(t *testing.T) {
	t.Parallel()
	t.Run("another pod waits", func(t *testing.T) {
		t.Parallel()
		w := newWorld(t)
		a := w.holder("a", testConfig(), "stubborn")
		b := w.standby("b", testConfig())
		a.signal(syscall.SIGKILL)
		w.acts(b)
		w.checkLives()
	})
	t.Run("the same pod restarts", func(t *testing.T) {
		t.Parallel()
		w := newWorld(t)
		// It is so long that waiting for it would fail the test.
		config := testConfig()
		config.LeaseDuration = contract.Duration(10 * patience)
		a := w.prepare("a", config)
		a.env = append(a.env, contract.RuntimeReapsEnv+"=true")
		a.start()
		w.acts(a)
		a.signal(syscall.SIGKILL)
		a.exit()
		a.start()
		w.acts(a)
		if lives := w.checkLives(); len(lives) != 2 {
			t.Errorf("%d processes, want 2", len(lives))
		}
	})
}

// A runtime can lose track of a container that still runs, and the kubelet starts another one in the same Pod. The new agent waits as long
// as the first one lives, and no longer.
func TestContainerLostByTheRuntime(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	lost := w.prepare("a", steadyConfig())
	lost.env = append(lost.env, contract.RuntimeReapsEnv+"=true")
	lost.start("stubborn")
	first := w.acts(lost)
	lost.proxy.Cut()

	second := w.prepare("a", steadyConfig())
	second.env = append(second.env, contract.RuntimeReapsEnv+"=true")
	second.start()
	second.awaitEither("earlier agent may live", "acquired ")
	elapse(t, time.Second) // a tenure that it began by mistake shows
	if lives := w.checkLives(); len(lives) != 1 {
		t.Fatalf("SAFETY: two containers of one pod run; the second one's log:\n%s", second.lines)
	}
	lost.signal(syscall.SIGKILL)
	second.await("earlier agent dead")
	if token := w.acts(second); token <= first {
		t.Errorf("token %d after %d", token, first)
	}
	w.checkLives()
}

// An open watch that delivers nothing hides a release. The candidate waits for the Lease to expire, and learns of the release from its own
// write.
func TestWatchStallsSilently(t *testing.T) {
	t.Parallel()
	mustGoOn(t, func(w *world) error {
		a := w.holder("a", testConfig())
		b := w.standby("b", testConfig())
		b.proxy.Inject(faultproxy.StallWatch(), faultproxy.Watches())
		w.renewedTwice()
		a.signal(syscall.SIGTERM)
		a.await("released")
		w.acts(b)
		w.checkLives()
		return nil
	})
}

func TestLeaseDeleted(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	// It is so long that only a loss, not the deadline, ends the process within the test.
	config := testConfig()
	config.LeaseDuration, config.RenewDeadline = contract.Duration(10*patience), contract.Duration(8*patience)
	a := w.candidate("a", config, "stubborn")
	w.acts(a)
	leases := w.client.CoordinationV1().Leases(w.ns)
	w.must(leases.Delete(t.Context(), jobName, metav1.DeleteOptions{}))
	a.await("killing", "reason=LeaseDeleted")
	a.await("lost", "reason=LeaseDeleted")
	elapse(t, 5*time.Duration(config.RetryPeriod))
	if _, err := leases.Get(t.Context(), jobName, metav1.GetOptions{}); !apierrors.IsNotFound(err) {
		t.Fatalf("the agent made a Lease of its own: %v", err)
	}
	// The operator creates it again like this while a tenure can last.
	unknown, duration := lease.UnknownHolder, int32(2)
	_, err := leases.Create(t.Context(), &coordinationv1.Lease{
		ObjectMeta: metav1.ObjectMeta{Name: jobName, Labels: map[string]string{contract.ManagedByLabel: contract.ManagedBy}},
		Spec:       coordinationv1.LeaseSpec{HolderIdentity: &unknown, LeaseDurationSeconds: &duration},
	}, metav1.CreateOptions{})
	w.must(err)
	made := supervise.BootTime()
	b := w.candidate("b", testConfig())
	second := b.acquired()
	if waited := time.Duration(supervise.BootTime() - made); waited < leaseDuration() {
		t.Errorf("taken over %v after it was made, sooner than the candidate's own duration of %v", waited, leaseDuration())
	}
	w.awaitBeat(second)
	w.checkLives()
}

// A user clears the holder, for example with kubectl edit. The holder's process is killed, and the Lease is not free for others.
func TestHolderCleared(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	a := w.candidate("a", steadyConfig(), "stubborn")
	w.acts(a)
	w.standby("b", steadyConfig())
	w.patch(map[string]any{"spec": map[string]any{"holderIdentity": ""}})
	a.await("killing", "reason=LeaseLost")
	w.eventually("there is another tenure", func() bool { return *w.lease().Spec.LeaseTransitions >= 2 })
	w.eventually("its process lives", func() bool { return len(w.lives()) >= 2 })
	w.checkLives()
}

func TestForeignHolder(t *testing.T) {
	t.Parallel()
	mustGoOn(t, func(w *world) error {
		a := w.holder("a", testConfig(), "stubborn")
		seen := supervise.BootTime()
		w.patch(map[string]any{"spec": map[string]any{"holderIdentity": "somebody"}})
		a.await("killing", "reason=LeaseLost")
		second := a.acquired()
		if waited := time.Duration(supervise.BootTime() - seen); waited < leaseDuration() {
			w.t.Errorf("SAFETY: taken back after %v, sooner than %v", waited, leaseDuration())
		}
		w.awaitBeat(second)
		w.checkLives()
		return nil
	})
}

// A Lease with a foreign label is not ours: no agent writes it, and the holder stops in order.
func TestLabelRemoved(t *testing.T) {
	t.Parallel()
	mustGoOn(t, func(w *world) error {
		a := w.holder("a", testConfig())
		w.standby("b", testConfig())
		w.patch(map[string]any{"metadata": map[string]any{"labels": map[string]any{contract.ManagedByLabel: nil}}})
		a.await("read failing", "belongs to somebody else")
		a.await("stopping", "reason=RenewFailed")
		revision := w.lease().ResourceVersion
		elapse(t, leaseDuration()+time.Second)
		if now := w.lease().ResourceVersion; now != revision {
			t.Errorf("the Lease was written: revision %s, then %s", revision, now)
		}
		w.patch(map[string]any{"metadata": map[string]any{"labels": map[string]any{contract.ManagedByLabel: contract.ManagedBy}}})
		w.eventually("a process lives again", func() bool { return len(w.lives()) >= 2 })
		w.checkLives()
		return nil
	})
}

func TestTokenRenewed(t *testing.T) {
	t.Parallel()
	mustGoOn(t, func(w *world) error {
		a := w.holder("a", testConfig())
		a.setToken("expired")
		a.await("renew failing", "401")
		a.setToken(w.newToken())
		w.renewedTwice()
		if lives := w.checkLives(); len(lives) != 1 {
			return fmt.Errorf("%d processes, want 1", len(lives))
		}
		return nil
	})
}

func TestRBACRemovedAndRestored(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	a := w.holder("a", testConfig())
	w.must(w.client.RbacV1().RoleBindings(w.ns).Delete(t.Context(), "agents", metav1.DeleteOptions{}))
	a.await("renew failing", "403")
	a.await("stopping", "reason=RenewFailed")
	a.await("lost", "reason=RenewFailed")
	w.bind()
	w.acts(a)
	w.checkLives()
}

// outages affect all clients of the API server.
var outages = map[string]func(*candidate){
	"cut off":    func(c *candidate) { c.proxy.Cut() },
	"overloaded": func(c *candidate) { c.proxy.Inject(faultproxy.TooManyRequests(30 * time.Second)) },
	"slow":       func(c *candidate) { c.proxy.Inject(faultproxy.Delay(30*time.Second, 0)) },
}

// KeepRunning: an outage for all leaves the process running, with its token.
func TestKeepRunning(t *testing.T) {
	tier.Deep(t, "asks for exact tenures under a short lease")
	t.Parallel()
	for name, befall := range outages {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			w := newWorld(t)
			config := testConfig()
			config.KeepRunning = true
			a := w.holder("a", config)
			b := w.standby("b", config)
			befall(a)
			befall(b)
			elapse(t, leaseDuration()+2*time.Second)
			if lives := w.checkLives(); len(lives) != 1 {
				t.Fatalf("%d processes, want 1", len(lives))
			}
			healProxy(a)
			a.await("writing again")
			w.renewedTwice()
			healProxy(b) // the order of the candidates does not matter here
			last := w.lives()[0].last
			elapse(t, leaseDuration())
			lives := w.checkLives()
			if len(lives) != 1 || lives[0].last <= last {
				t.Errorf("the process did not go on: %+v", lives)
			}
		})
	}
}

// Without KeepRunning, an outage for all stops the tenure once, and one tenure begins after it.
func TestStopInAnOutage(t *testing.T) {
	tier.Deep(t, "asks for exact tenures under a short lease")
	t.Parallel()
	for name, befall := range outages {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			mustGoOn(t, func(w *world) error {
				a := w.holder("a", testConfig())
				b := w.standby("b", testConfig())
				befall(a)
				befall(b)
				a.await("lost", "reason=RenewFailed")
				healProxy(a)
				healProxy(b)
				w.eventually("a process lives again", func() bool { return len(w.lives()) >= 2 })
				w.renewedTwice()
				if lives := w.checkLives(); len(lives) != 2 {
					return fmt.Errorf("%d processes, want 2: %+v", len(lives), lives)
				}
				return nil
			})
		})
	}
}

// KeepRunning: the process is killed when its agent learns of another tenure. Until then both run, and the sink fences.
func TestKeepRunningEndsForAnotherTenure(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	config := testConfig()
	config.KeepRunning = true
	a := w.holder("a", config, "stubborn")
	b := w.standby("b", config)
	a.proxy.Cut()
	second := w.acts(b)
	healProxy(a)
	a.await("killing", "reason=LeaseLost")
	a.await("lost")
	after := supervise.BootTime()
	w.renewedTwice()
	for _, l := range w.lives() {
		if l.token != second && l.last > after {
			t.Errorf("%+v still lives after its agent said that it is dead", l)
		}
	}
}

// Requests in steady state: one write per retryPeriod from the holder, none from a standby.
func TestRequestsInSteadyState(t *testing.T) {
	tier.Deep(t, "counts requests that a slow answer adds to")
	t.Parallel()
	config := testConfig()
	atRest := func(a, b *candidate) error {
		began := time.Now()
		since := func(r faultproxy.Request) bool { return r.Time.After(began) }
		const renewals = 8
		elapse(t, renewals*time.Duration(config.RetryPeriod))
		took := time.Since(began)
		if got := b.proxy.Seen(since); len(got) != 0 {
			return fmt.Errorf("the standby sent %d requests: %+v", len(got), got)
		}
		writes := a.proxy.Seen(since, func(r faultproxy.Request) bool { return r.Method == http.MethodPut })
		if most := int(took/time.Duration(config.RetryPeriod)) + 1; len(writes) > most || len(writes) == 0 {
			return fmt.Errorf("%d renewals in %v, want at most %d", len(writes), took, most)
		}
		if all := a.proxy.Seen(since); len(all) != len(writes) {
			return fmt.Errorf("the holder sent %d requests besides its renewals", len(all)-len(writes))
		}
		return nil
	}
	mustGoOn(t, func(w *world) error {
		a := w.holder("a", config)
		b := w.standby("b", config)
		w.renewedTwice()
		w.renewedTwice()
		var err error
		for range 5 { // the holder repeats a request without an answer for a quarter of a second
			if err = atRest(a, b); err == nil {
				break
			}
		}
		return err
	})
}

func TestUsageErrors(t *testing.T) {
	t.Parallel()
	w := &world{t: t}
	exe, err := os.Executable()
	w.must(err)
	config := testConfig().Encode()
	for name, test := range map[string]struct {
		args []string
		env  []string
		code int
		says string
	}{
		"nothing":          {code: contract.ExitUsage, says: "no command given"},
		"unknown":          {args: []string{"dance"}, code: contract.ExitUsage, says: `"dance"`},
		"run nothing":      {args: []string{"run"}, code: contract.ExitUsage, says: "no command given after --"},
		"run without --":   {args: []string{"run", "sleep", "1"}, code: contract.ExitUsage, says: `unexpected argument "sleep" before --`},
		"install nowhere":  {args: []string{"install"}, code: contract.ExitUsage, says: "one directory"},
		"check a word":     {args: []string{"check", "-token", "x"}, code: contract.ExitUsage, says: "-token"},
		"no configuration": {args: []string{"run", "--", "true"}, code: contract.ExitConfig, says: contract.ConfigEnv + " is not set"},
		"bad configuration": {
			args: []string{"run", "--", "true"}, env: []string{contract.ConfigEnv + `={"name":"x","leaseDuration":"1s"}`},
			code: contract.ExitConfig, says: "retryPeriod 0s is less than 200ms",
		},
		"no pod": {
			args: []string{"run", "--", "true"}, env: []string{contract.ConfigEnv + "=" + config}, code: contract.ExitConfig, says: contract.PodEnv,
		},
		"no cluster": {
			args: []string{"run", "--", "true"},
			env:  []string{contract.ConfigEnv + "=" + config, contract.PodEnv + "=a", contract.PodUIDEnv + "=b", contract.NamespaceEnv + "=c"},
			code: contract.ExitConfig, says: contract.APIHostEnv,
		},
		"no credentials": {
			args: []string{"run", "--", "true"},
			env: []string{
				contract.ConfigEnv + "=" + config, contract.PodEnv + "=a", contract.PodUIDEnv + "=b", contract.NamespaceEnv + "=c",
				contract.APIHostEnv + "=127.0.0.1", contract.APIPortEnv + "=1",
			},
			code: contract.ExitConfig, says: "ca.crt",
		},
		"nobody to ask": {args: []string{"check"}, env: []string{contract.SocketEnv + "=/no/such/socket"}, code: contract.ExitNoAgent, says: "/no/such/socket"},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			ctx, cancel := context.WithTimeout(t.Context(), patience)
			defer cancel()
			cmd := exec.CommandContext(ctx, exe, test.args...)
			cmd.Env = append([]string{roleEnv + "=agent"}, test.env...)
			out, _ := cmd.CombinedOutput()
			if code := cmd.ProcessState.ExitCode(); code != test.code {
				t.Errorf("exit code %d, want %d", code, test.code)
			}
			if !strings.Contains(string(out), test.says) {
				t.Errorf("it says %q, want a word of %q", out, test.says)
			}
			if lines := strings.Count(string(out), "\n"); test.code == contract.ExitConfig && lines != 1 {
				t.Errorf("it says %d lines, want one:\n%s", lines, out)
			}
		})
	}
}
