//go:build linux

package main

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net"
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

	"github.com/singletonjob/operator/fence"
	"github.com/singletonjob/operator/internal/agent"
	"github.com/singletonjob/operator/internal/contract"
	"github.com/singletonjob/operator/tenure"
	"github.com/singletonjob/operator/test/controlplane"
)

// ask runs a command of the agent with the environment of a candidate's container.
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
	nowhere := &candidate{w: w, env: slices.Concat(a.env, []string{contract.SocketEnv + "=" + filepath.Join(t.TempDir(), "none")})}
	right, wrong := fmt.Sprint(token), fmt.Sprint(token-1)
	for name, test := range map[string]struct {
		candidate *candidate
		args      []string
		code      int
		says      string
	}{
		"the holder":            {candidate: a, says: "valid: token " + right},
		"the holder, by token":  {candidate: a, args: []string{"-token", right}, says: "valid: "},
		"the holder, of before": {candidate: a, args: []string{"-token", wrong}, code: 1, says: right},
		"time enough":           {candidate: a, args: []string{"--min-left=1ms"}, says: "s left"},
		"too little time":       {candidate: a, args: []string{"-min-left", "2h"}, code: 1, says: "no valid tenure for 2h"},
		"a standby":             {candidate: b, code: 1, says: `the holder is "a/`},
		"a standby, by token":   {candidate: b, args: []string{"-token", right}, code: 1, says: "no valid tenure"},
		"outside a container":   {candidate: nowhere, code: contract.ExitNoAgent, says: "kubectl exec"},
		"no such flag":          {candidate: a, args: []string{"-least", "1s"}, code: contract.ExitUsage, says: "-least"},
		"no such token":         {candidate: a, args: []string{"-token", "x"}, code: contract.ExitUsage, says: "-token"},
		"a negative token":      {candidate: a, args: []string{"-token", "-1"}, code: contract.ExitUsage, says: "negative"},
		"a negative time":       {candidate: a, args: []string{"-min-left", "-1s"}, code: contract.ExitUsage, says: "negative"},
		"no time to answer":     {candidate: a, args: []string{"-timeout", "0s"}, code: contract.ExitUsage, says: "more than 0"},
		"an argument":           {candidate: a, args: []string{"now"}, code: contract.ExitUsage, says: "now"},
		"help":                  {candidate: nowhere, args: []string{"--help"}, says: "A check is not a fence"},
	} {
		args := slices.Concat([]string{"check", "-timeout=1m"}, test.args)
		out, code := test.candidate.ask(args...)
		if code != test.code || !strings.Contains(out, test.says) {
			t.Errorf("%s: exit code %d, %q; want %d and a word of %q", name, code, out, test.code, test.says)
		}
		if test.code == contract.ExitUsage || name == "help" {
			continue
		}
		if out, code := test.candidate.ask(slices.Concat(args, []string{"-q"})...); code != test.code || out != "" {
			t.Errorf("%s, quietly: exit code %d, %q; want %d and nothing", name, code, out, test.code)
		}
	}
}

func TestLeaseCommand(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	a := w.candidate("a", steadyConfig())
	token := w.acts(a)
	b := w.standby("b", steadyConfig())
	var told tenure.Status
	out, code := a.ask("lease", "-timeout=1m", "-o", "json")
	if err := json.Unmarshal([]byte(out), &told); err != nil || code != 0 {
		t.Fatalf("%q, %v, exit code %d", out, err, code)
	}
	if !strings.HasPrefix(told.Holder, "a/") || told.Token != token || told.Tenure != 1 || !told.Valid || told.LeftMilliseconds <= 0 || told.Version != 1 {
		t.Errorf("%+v", told)
	}
	for says, c := range map[string]*candidate{"time left: ": a, "holder:    a/": b, "not valid: this Pod is a standby": b} {
		if out, code := c.ask("lease", "-timeout=1m"); code != 0 || !strings.Contains(out, says) {
			t.Errorf("%s says %q with exit code %d, want %q", c.pod, out, code, says)
		}
	}
	if out, code := a.ask("lease", "-o", "yaml"); code != contract.ExitUsage || !strings.Contains(out, "text and json") {
		t.Errorf("in a format that there is not: %q with exit code %d", out, code)
	}
}

// Package tenure receives the same answer, and learns of the end of the tenure.
func TestTenureWatch(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	a := w.candidate("a", steadyConfig())
	token := w.acts(a)
	w.standby("b", steadyConfig())
	asked, answered := context.WithTimeout(t.Context(), patience)
	defer answered()
	present, err := tenure.Agent{Socket: a.socket()}.Tenure(asked, token)
	w.must(err)
	ctx, cancel := present.Context(t.Context(), 0)
	defer cancel()
	w.annotate(map[string]any{contract.HandoverToAnnotation: "b"})
	select {
	case <-ctx.Done():
	case <-time.After(patience):
		t.Fatal("the context was not cancelled when the tenure had ended")
	}
	if why := context.Cause(ctx); !errors.Is(why, tenure.ErrNoTenure) {
		t.Errorf("the context ended with %v", why)
	}
}

func (c *candidate) socket() string {
	return agent.Lookup(c.env)(contract.SocketEnv)
}

// The examples in docs/tenure.md do what the text says.
func TestDocumentedExamples(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	a := w.candidate("a", steadyConfig())
	token := fmt.Sprint(w.acts(a))
	b := w.standby("b", steadyConfig())
	text, err := os.ReadFile("../../docs/tenure.md")
	w.must(err)
	for language, run := range map[string][]string{"sh": {"sh", "-c"}, "python": {"python3", "-c"}} {
		if _, err := exec.LookPath(run[0]); err != nil {
			t.Errorf("%s is needed to try what the document says: %v", run[0], err)
			continue
		}
		_, rest, found := strings.Cut(string(text), "```"+language+"\n")
		program, _, ended := strings.Cut(rest, "```")
		if !found || !ended {
			t.Fatalf("docs/tenure.md has no example in %s", language)
		}
		// A busy machine can be slow.
		program = strings.NewReplacer(contract.AgentPath, w.program, "-quiet", "-quiet -timeout 1m", "timeout=1.0", "timeout=60").Replace(program)
		for name, test := range map[string]struct {
			of    *candidate
			token string
			says  string
		}{
			"the holder":            {a, token, "one more step\n"},
			"a process of before":   {a, "1", "no more steps\n"},
			"the process of nobody": {b, token, "no more steps\n"},
		} {
			ctx, cancel := context.WithTimeout(t.Context(), 5*time.Minute)
			cmd := exec.CommandContext(ctx, run[0], append(run[1:], program)...)
			cmd.Env = append(slices.Clone(test.of.env), fence.EnvToken+"="+test.token)
			if out, _ := cmd.CombinedOutput(); string(out) != test.says {
				t.Errorf("%s as %s says %q, want %q", language, name, out, test.says)
			}
			cancel()
		}
	}
	// The Go example in the document is a compiled example.
	_, rest, _ := strings.Cut(string(text), "```go\n")
	program, _, _ := strings.Cut(rest, "```")
	compiled, err := os.ReadFile("../../tenure/example_test.go")
	w.must(err)
	if indented := "\t" + strings.ReplaceAll(strings.TrimSpace(program), "\n", "\n\t") + "\n"; !strings.Contains(string(compiled), indented) {
		t.Errorf("tenure/example_test.go does not have what docs/tenure.md says:\n%s", program)
	}
}

// An agent that has lost its connection to the API server, or that is stopped, never confirms a tenure after its end.
func TestCheckOfAStuckAgent(t *testing.T) {
	t.Parallel()
	mustGoOn(t, func(w *world) error {
		a := w.holder("a", testConfig())
		b := w.standby("b", testConfig())
		a.proxy.Cut()
		b.acquired()
		if out, code := a.ask("check", "-timeout=1m"); code != 1 {
			t.Errorf("cut off: exit code %d, %q", code, out)
		}
		b.signal(syscall.SIGSTOP)
		if out, code := b.ask("check"); code != contract.ExitNoAgent || !strings.Contains(out, "stopped") {
			t.Errorf("stopped: exit code %d, %q", code, out)
		}
		return nil
	})
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
	// A second agent on the same port logs why it ends.
	b := w.prepare("b", config)
	b.env = append(b.env, contract.RuntimeAddressEnv+"=127.0.0.1")
	b.start()
	b.await("cannot listen on the port for probes and metrics", strconv.Itoa(port))
	if code := b.exit(); code != contract.ExitInternal {
		t.Errorf("exit code %d, want %d", code, contract.ExitInternal)
	}
}

// The reader of the agent's log no longer exists. Every write fails, and would end a program that does not expect this.
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
