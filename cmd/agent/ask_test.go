//go:build linux

package main

import (
	"context"
	"encoding/json"
	"fmt"
	"io"
	"net"
	"net/http"
	"os"
	"os/exec"
	"strconv"
	"strings"
	"syscall"
	"testing"

	"github.com/singletonjob/operator/internal/contract"
	"github.com/singletonjob/operator/test/controlplane"
)

// ask runs a command of the agent in a candidate's container, so to speak.
func (c *candidate) ask(args ...string) (out string, code int) {
	c.w.t.Helper()
	ctx, cancel := context.WithTimeout(c.w.t.Context(), patience)
	defer cancel()
	cmd := exec.CommandContext(ctx, c.w.program, args...)
	cmd.Env = c.env
	text, _ := cmd.CombinedOutput()
	return string(text), cmd.ProcessState.ExitCode()
}

func TestCheck(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	config := steadyConfig()
	a := w.candidate("a", config)
	token := w.acts(a)
	b := w.standby("b", config)
	for name, test := range map[string]struct {
		candidate *candidate
		args      []string
		code      int
		says      string
	}{
		"the holder":            {candidate: a},
		"the holder, by token":  {candidate: a, args: []string{"-token", fmt.Sprint(token)}},
		"the holder, of before": {candidate: a, args: []string{"-token", fmt.Sprint(token - 1)}, code: 1, says: fmt.Sprint(token)},
		"a standby":             {candidate: b, code: 1, says: "no valid tenure"},
		"a standby, by token":   {candidate: b, args: []string{"-token", fmt.Sprint(token)}, code: 1, says: "no valid tenure"},
	} {
		out, code := test.candidate.ask(append([]string{"check"}, test.args...)...)
		if code != test.code || !strings.Contains(out, test.says) {
			t.Errorf("%s: exit code %d, %q; want %d and a word of %q", name, code, out, test.code, test.says)
		}
	}

	var told struct {
		Holder           string
		Token            int64
		Tenure           int
		Valid            bool
		LeftMilliseconds int64
	}
	out, code := a.ask("lease", "-json")
	if err := json.Unmarshal([]byte(out), &told); err != nil || code != 0 {
		t.Fatalf("%q, %v, exit code %d", out, err, code)
	}
	if !strings.HasPrefix(told.Holder, "a/") || told.Token != token || told.Tenure != 1 || !told.Valid || told.LeftMilliseconds <= 0 {
		t.Errorf("%+v", told)
	}
	if out, _ := b.ask("lease"); !strings.Contains(out, "holder:    a/") || strings.Contains(out, "time left") {
		t.Errorf("the standby says %q", out)
	}
}

// An agent that has lost its way to the API server, or that is stopped, confirms nothing for longer than it may.
func TestCheckByAgentThatIsStuck(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	a := w.holder("a", testConfig())
	b := w.standby("b", testConfig())
	a.proxy.Cut()
	b.acquired()
	if out, code := a.ask("check"); code != 1 {
		t.Errorf("cut off: exit code %d, %q", code, out)
	}
	b.signal(syscall.SIGSTOP)
	if out, code := b.ask("check"); code != 1 {
		t.Errorf("stopped: exit code %d, %q", code, out)
	}
}

func TestProbesAndMetrics(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	config := steadyConfig()
	port, err := controlplane.FreePort()
	w.must(err)
	config.Port = port
	a := w.prepare("a", config)
	a.env = append(a.env, contract.RuntimeAddressEnv+"=127.0.0.1")
	a.start()
	w.acts(a)
	w.renewedTwice()
	client := &http.Client{Timeout: patience}
	for path, says := range map[string]string{
		contract.ReadyPath: "Holding", contract.LivePath: "stuck: false", contract.MetricsPath: "singletonjob_agent_active 1\n",
	} {
		request, err := http.NewRequestWithContext(t.Context(), http.MethodGet, "http://"+net.JoinHostPort("127.0.0.1", strconv.Itoa(port))+path, nil)
		w.must(err)
		response, err := client.Do(request)
		w.must(err)
		body, err := io.ReadAll(response.Body)
		_ = response.Body.Close()
		w.must(err)
		if response.StatusCode != http.StatusOK || !strings.Contains(string(body), says) {
			t.Errorf("%s: %d %q, want a word of %q", path, response.StatusCode, body, says)
		}
	}
	// Another agent on that port says why it ends.
	b := w.prepare("b", config)
	b.env = append(b.env, contract.RuntimeAddressEnv+"=127.0.0.1")
	b.start()
	b.await("no port for probes and metrics", strconv.Itoa(port))
	if code := b.exit(); code != contract.ExitInternal {
		t.Errorf("exit code %d, want %d", code, contract.ExitInternal)
	}
}

// What collected the agent's log is gone: every line fails, and would end a program that does not expect it.
func TestLogReaderGone(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	a := w.prepare("a", steadyConfig())
	reader, writer, err := os.Pipe()
	w.must(err)
	w.must(reader.Close())
	a.stderr = writer
	a.start()
	w.must(writer.Close())
	for tenures := 1; tenures <= 2; tenures++ {
		w.eventually("its process lives", func() bool { return len(w.lives()) == tenures })
		w.patch(map[string]any{"spec": map[string]any{"holderIdentity": ""}})
	}
	w.eventually("its process lives", func() bool { return len(w.lives()) == 3 })
	w.checkLives()
}
