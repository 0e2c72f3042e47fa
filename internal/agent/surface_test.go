//go:build linux

package agent

import (
	"encoding/pem"
	"fmt"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"syscall"
	"testing"
	"testing/synctest"
	"time"

	"github.com/prometheus/common/expfmt"
	"github.com/prometheus/common/model"
	"golang.org/x/sys/unix"

	"github.com/singletonjob/operator/internal/contract"
	"github.com/singletonjob/operator/internal/lease"
)

func (w *world) get(path string) (int, string) {
	w.Helper()
	recorder := httptest.NewRecorder()
	w.agent.Handler().ServeHTTP(recorder, httptest.NewRequest(http.MethodGet, path, nil))
	return recorder.Code, recorder.Body.String()
}

// The snapshot bounds what it claims: a reader who gets it late, or whose agent is stopped, sees that it has run out.
func TestSnapshot(t *testing.T) {
	inBubble(t, func(w *world) {
		synctest.Wait()
		if s := w.agent.snapshot.Load(); s.ValidUntil != 0 {
			t.Errorf("valid without a tenure: %+v", s)
		}
		p := w.holding()
		s := *w.agent.snapshot.Load()
		now := int64(w.clock.Now().Boot)
		if left := s.Left(now); left <= 0 || left > 14*time.Second || s.Token != 10 || s.Tenure != 1 {
			t.Errorf("%+v with %v left; want token 10, tenure 1 and at most leaseDuration less the margin", s, left)
		}
		if left := s.Left(now + int64(15*time.Second)); left > 0 {
			t.Errorf("15 s later it still claims %v", left)
		}
		w.signals <- syscall.SIGTERM
		synctest.Wait()
		if left := w.agent.snapshot.Load().Left(now); left > 0 {
			t.Errorf("while stopping it claims %v", left)
		}
		p.end()
	})
}

func TestReady(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		o := testOptions()
		o.Clock = newFakeClock()
		w := &world{T: t, agent: New(o)}
		if code, text := w.get(contract.ReadyPath); code != http.StatusServiceUnavailable {
			t.Errorf("%d %s before the Lease was seen", code, text)
		}
		if code, text := w.get(contract.LivePath); code != http.StatusOK {
			t.Errorf("%d %s", code, text)
		}
	})
	inBubble(t, func(w *world) {
		w.api.store(func(r *lease.Record) { r.Holder, r.Duration = "other/uid/x", 15*time.Second })
		synctest.Wait()
		time.Sleep(time.Second)
		if code, text := w.get(contract.ReadyPath); code != http.StatusOK || w.phase() != "Waiting" {
			t.Errorf("%d %s as a standby in phase %s, want 200", code, text, w.phase())
		}
		close(w.api.blind)
		synctest.Wait()
		if code, text := w.get(contract.ReadyPath); code != http.StatusServiceUnavailable {
			t.Errorf("%d %s as a standby whose watch is down, want 503", code, text)
		}
		w.api.store(func(r *lease.Record) { r.Holder, r.Release.Reason = "", lease.ReasonSwitchover })
		p := w.holding()
		if code, text := w.get(contract.ReadyPath); code != http.StatusOK {
			t.Errorf("%d %s as the holder", code, text)
		}
		p.end()
		synctest.Wait()
	})
}

// An agent whose goroutine is stuck is not alive, however long nothing is to be done.
func TestLive(t *testing.T) {
	now := lease.Instant(time.Hour)
	for name, test := range map[string]struct {
		wake  lease.Instant
		stuck bool
	}{
		"nothing to do":  {wake: lease.Never},
		"not yet":        {wake: now.Add(time.Second)},
		"a little late":  {wake: now.Add(-time.Second)},
		"late by a mile": {wake: now.Add(-stuckAfter - time.Second), stuck: true},
	} {
		t.Run(name, func(t *testing.T) {
			if got := (Snapshot{wake: test.wake}).stuck(now); got != test.stuck {
				t.Errorf("stuck %t, want %t", got, test.stuck)
			}
		})
	}
}

func TestMetrics(t *testing.T) {
	inBubble(t, func(w *world) {
		p := w.holding()
		time.Sleep(9 * time.Second)
		w.api.store(func(r *lease.Record) { r.Holder = "other/uid/x" })
		synctest.Wait()
		_, text := w.get(contract.MetricsPath)
		families, err := expfmtParser().TextToMetricFamilies(strings.NewReader(text))
		if err != nil {
			t.Fatalf("%v in\n%s", err, text)
		}
		value := func(name string, labels ...string) float64 {
			for _, m := range families[name].GetMetric() {
				var got []string
				for _, l := range m.GetLabel() {
					got = append(got, l.GetName()+"="+l.GetValue())
				}
				if slices.Equal(got, labels) {
					return m.GetCounter().GetValue() + m.GetGauge().GetValue() + float64(m.GetHistogram().GetSampleCount())
				}
			}
			t.Errorf("no %s%v in\n%s", name, labels, text)
			return 0
		}
		for _, file := range []string{"rules.yaml", "dashboard.json"} {
			shown, err := os.ReadFile("../../charts/singletonjob/monitoring/" + file)
			if err != nil {
				t.Fatal(err)
			}
			for _, name := range regexp.MustCompile(`singletonjob_agent_[a-z_]+`).FindAllString(string(shown), -1) {
				if families[strings.TrimSuffix(name, "_bucket")] == nil {
					t.Errorf("the chart's %s asks for %s, which no agent has", file, name)
				}
			}
		}
		for _, check := range []struct {
			name   string
			labels []string
			want   float64
		}{
			{name: "active", want: 0},
			{name: "lease_seconds_left", want: 0},
			{name: "fencing_token", want: 10},
			{name: "watching", want: 1},
			{name: "tenures_total", want: 1},
			{name: "tenures_ended_total", labels: []string{"reason=LeaseLost", "lease=lost"}, want: 1},
			{name: "stops_total", labels: []string{"signal=SIGKILL"}, want: 1},
			{name: "renew_duration_seconds", want: 4},
			{name: "writes_total", labels: []string{"kind=acquire", "outcome=confirmed"}, want: 1},
			{name: "writes_total", labels: []string{"kind=renew", "outcome=confirmed"}, want: 4},
			{name: "log_lines_dropped_total", want: 0},
		} {
			if got := value("singletonjob_agent_"+check.name, check.labels...); got != check.want {
				t.Errorf("%s%v is %v, want %v", check.name, check.labels, got, check.want)
			}
		}
		if _, _, killed := p.state(); !killed {
			t.Error("not killed")
		}
	})
}

func expfmtParser() *expfmt.TextParser {
	parser := expfmt.NewTextParser(model.UTF8Validation)
	return &parser
}

func TestHistogram(t *testing.T) {
	var h histogram
	for _, d := range []time.Duration{time.Microsecond, time.Millisecond, 2 * time.Millisecond, time.Minute} {
		h.observe(d)
	}
	var out strings.Builder
	h.write(&out, "x")
	for _, want := range []string{`x_bucket{le="0.001"} 2`, `x_bucket{le="0.0025"} 3`, `x_bucket{le="10"} 3`, `x_bucket{le="+Inf"} 4`, "x_count 4"} {
		if !strings.Contains(out.String(), want+"\n") {
			t.Errorf("no %s in\n%s", want, out.String())
		}
	}
}

func TestInstall(t *testing.T) {
	dir := filepath.Join(t.TempDir(), "made", "on", "demand")
	for i, program := range []string{"old", "new"} {
		if err := install(strings.NewReader(program), dir); err != nil {
			t.Fatal(err)
		}
		entries, err := os.ReadDir(dir)
		if err != nil {
			t.Fatal(err)
		}
		if len(entries) != 1 || entries[0].Name() != "agent" {
			t.Errorf("round %d leaves %v", i, entries)
		}
		info, err := os.Stat(filepath.Join(dir, "agent"))
		if err != nil {
			t.Fatal(err)
		}
		if info.Mode() != 0o755 {
			t.Errorf("mode %v, want 0755: users of any id run it", info.Mode())
		}
		got, err := os.ReadFile(filepath.Join(dir, "agent"))
		if err != nil || string(got) != program {
			t.Errorf("%q, %v; want %q", got, err, program)
		}
	}
	if err := install(strings.NewReader("x"), "/dev/null/x"); err == nil || !strings.Contains(err.Error(), "/dev/null/x") {
		t.Errorf("error %v, want one that names the directory", err)
	}
}

func TestFromEnv(t *testing.T) {
	dir := t.TempDir()
	server := httptest.NewTLSServer(http.NotFoundHandler())
	defer server.Close()
	writeCredentials(t, dir, server)
	good := map[string]string{
		contract.ConfigEnv: testOptions().Config.Encode(), contract.PodEnv: "pod", contract.PodUIDEnv: "uid", contract.NodeEnv: "node",
		contract.NamespaceEnv: "ns", contract.APIHostEnv: "127.0.0.1", contract.APIPortEnv: "1", contract.CredentialsEnv: dir,
	}
	made := testOptions().Config
	made.Pod = "pod"
	for name, test := range map[string]struct {
		change map[string]string
		pid    int
		fails  string // a word of the error
		proves bool
	}{
		"in the pod that it was made for": {change: map[string]string{contract.ConfigEnv: made.Encode()}},
		"in a copy of it": {
			change: map[string]string{contract.ConfigEnv: made.Encode(), contract.PodEnv: "pod-debug"}, fails: `"pod-debug", is a copy of "pod"`,
		},
		"as PID 1":                       {pid: 1, proves: true},
		"as another":                     {pid: 7},
		"the runtime reaps not":          {pid: 7, change: map[string]string{contract.RuntimeReapsEnv: "false"}},
		"the runtime reaps":              {pid: 7, change: map[string]string{contract.RuntimeReapsEnv: "true"}, proves: true},
		"no pod":                         {change: map[string]string{contract.PodEnv: ""}, fails: contract.PodEnv},
		"no UID":                         {change: map[string]string{contract.PodUIDEnv: ""}, fails: contract.PodUIDEnv},
		"no namespace":                   {change: map[string]string{contract.NamespaceEnv: ""}, fails: contract.NamespaceEnv},
		"an ambiguous name":              {change: map[string]string{contract.PodEnv: "a/b"}, fails: "slash"},
		"no configuration":               {change: map[string]string{contract.ConfigEnv: ""}, fails: contract.ConfigEnv},
		"no server":                      {change: map[string]string{contract.APIHostEnv: ""}, fails: contract.APIHostEnv},
		"another server for the process": {pid: 1, proves: true, change: map[string]string{"KUBERNETES_SERVICE_HOST": "", "KUBERNETES_SERVICE_PORT": "1x"}},
		"no such credentials":            {change: map[string]string{contract.CredentialsEnv: dir + "/none"}, fails: "ca.crt"},
	} {
		t.Run(name, func(t *testing.T) {
			environ := environment(good, test.change)
			o, err := FromEnv(environ, test.pid)
			if test.fails != "" {
				if err == nil || !strings.Contains(err.Error(), test.fails) {
					t.Errorf("error %v, want one about %s", err, test.fails)
				}
				return
			}
			if err != nil {
				t.Fatal(err)
			}
			if o.EndProvesDeath != test.proves || o.Identity.Pod != "pod" || o.Identity.PodUID != "uid" || o.Node != "node" || o.Namespace != "ns" {
				t.Errorf("%+v", o)
			}
			other, err := FromEnv(environ, test.pid)
			if err != nil || other.Identity.Nonce == o.Identity.Nonce || o.Identity.Nonce == "" {
				t.Errorf("nonces %q and %q of two agents, error %v", o.Identity.Nonce, other.Identity.Nonce, err)
			}
		})
	}
}

// environment is what one is left with after a change; of equal names the last one counts.
func environment(values, change map[string]string) (environ []string) {
	for _, set := range []map[string]string{values, change} {
		for name, value := range set {
			environ = append(environ, name+"="+value)
		}
	}
	return environ
}

func writeCredentials(t *testing.T, dir string, server *httptest.Server) {
	t.Helper()
	for name, content := range map[string][]byte{"ca.crt": certificatePEM(server), "token": []byte("secret")} {
		if err := os.WriteFile(filepath.Join(dir, name), content, 0o600); err != nil {
			t.Fatal(err)
		}
	}
}

func certificatePEM(server *httptest.Server) []byte {
	return pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: server.Certificate().Raw})
}

func TestBootClock(t *testing.T) {
	c, err := NewClock()
	if err != nil {
		t.Fatal(err)
	}
	await := func(what string) {
		t.Helper()
		select {
		case <-c.C():
		case <-time.After(3 * time.Minute):
			t.Fatalf("the timer did not fire: %s", what)
		}
	}
	// Another clock shows only while the machine sleeps.
	info, err := os.ReadFile(fmt.Sprintf("/proc/self/fdinfo/%d", c.(*bootClock).fd))
	if want := fmt.Sprintf("clockid: %d\n", unix.CLOCK_BOOTTIME); err != nil || !strings.Contains(string(info), want) {
		t.Errorf("the timer is not on CLOCK_BOOTTIME: %s, %v", info, err)
	}
	at := c.Now().Boot.Add(20 * time.Millisecond)
	c.WakeAt(at)
	await("soon")
	if now := c.Now().Boot; now < at {
		t.Errorf("it fired %v too early", at.Sub(now))
	}
	c.WakeAt(c.Now().Boot.Add(-time.Hour))
	await("in the past")
	c.WakeAt(0)
	await("at boot")
	c.WakeAt(c.Now().Boot.Add(time.Second))
	c.WakeAt(lease.Never)
	select {
	case <-c.C():
		t.Error("it fired though it was disarmed")
	case <-time.After(1100 * time.Millisecond):
	}
}
