//go:build linux

package agent

import (
	"context"
	"errors"
	"fmt"
	"net/http"
	"net/http/httptest"
	"os"
	"regexp"
	"slices"
	"strings"
	"sync"
	"syscall"
	"testing"
	"testing/synctest"
	"time"

	"github.com/singletonjob/operator/docs/commands"
	"github.com/singletonjob/operator/internal/contract"
	"github.com/singletonjob/operator/internal/lease"
	"github.com/singletonjob/operator/internal/probe"
	"github.com/singletonjob/operator/internal/supervise"
)

// asked is a process that is asked for its health. Probes are told apart by the port that they ask.
type asked struct {
	mu    sync.Mutex
	says  map[int]probe.Result
	count map[int]int
	stuck chan struct{} // closed when checks continue that heed not even their own time
}

const (
	startupPort = 1 + iota
	livenessPort
	readinessPort
)

var well, ill = probe.Passed(), probe.Failed("HTTP probe failed with statuscode: 503")

// What a process says that never answers, and of which a check learns only long after its time.
var hangs, stuck = probe.Result{Text: "hangs"}, probe.Result{Text: "stuck"}

func (p *asked) check(ctx context.Context, of contract.Check) probe.Result {
	p.mu.Lock()
	p.count[of.TCPSocket.Port]++
	says := p.says[of.TCPSocket.Port]
	p.mu.Unlock()
	switch says {
	case hangs:
		<-ctx.Done()
		return probe.Failed("%s", ctx.Err())
	case stuck:
		<-p.stuck
		return ill
	}
	return says
}

func (p *asked) say(port int, r probe.Result) {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.says[port] = r
}

func (p *asked) times(port int) int {
	p.mu.Lock()
	defer p.mu.Unlock()
	return p.count[port]
}

func tcpProbe(port int, grace time.Duration) *contract.Probe {
	return &contract.Probe{
		Check: contract.Check{TCPSocket: &contract.TCPSocket{Port: port}}, Period: dur(10 * time.Second), Timeout: dur(time.Second),
		SuccessThreshold: 1, FailureThreshold: 3, GracePeriod: dur(grace),
	}
}

// inProbedBubble runs a test of an agent whose process has all three probes and is well unless told otherwise.
func inProbedBubble(t *testing.T, f func(*world, *asked)) {
	t.Helper()
	inProbedBubbleWith(t, 8*time.Second, f)
}

// inProbedBubbleWith gives the pod another grace period.
func inProbedBubbleWith(t *testing.T, grace time.Duration, f func(*world, *asked)) {
	t.Helper()
	var p *asked
	inBubbleWith(t, func(o *Options) {
		p = &asked{
			says: map[int]probe.Result{startupPort: well, livenessPort: well, readinessPort: well}, count: map[int]int{},
			stuck: make(chan struct{}),
		}
		o.Config.GracePeriod = dur(grace)
		o.Config.Probes = contract.Probes{
			Startup: tcpProbe(startupPort, 0), Liveness: tcpProbe(livenessPort, 3*time.Second), Readiness: tcpProbe(readinessPort, 0),
		}
		o.Check = p.check
	}, func(w *world) { f(w, p) })
}

// ready is what the agent answers its kubelet. The reason is for those within the container, and not for whoever reaches the port.
func (w *world) ready() (ready bool, why string) {
	w.Helper()
	synctest.Wait()
	answer := httptest.NewRecorder()
	w.agent.Handler().ServeHTTP(answer, httptest.NewRequest(http.MethodGet, contract.ReadyPath, nil))
	why = w.agent.snapshot.Load().status(0).NotReady
	if body := answer.Body.String(); why != "" && strings.Contains(body, why) || !strings.HasPrefix(body, "phase "+w.phase()+", watching") {
		w.Errorf("the port tells everybody %q", body)
	}
	return answer.Code == http.StatusOK, why
}

// after lets time pass, and all that happens in it.
func (w *world) after(d time.Duration) {
	w.Helper()
	time.Sleep(d)
	synctest.Wait()
}

// A process that is not alive any more ends its tenure: by SIGTERM, after the probe's own grace period by SIGKILL. The agent
// ends as it did, as a kubelet's container does.
func TestLivenessFails(t *testing.T) {
	inProbedBubble(t, func(w *world, p *asked) {
		process := w.holding()
		w.after(60 * time.Second)
		p.say(livenessPort, hangs)
		w.after(25 * time.Second) // the third check in vain begins now
		if _, signals, _ := process.state(); len(signals) > 0 {
			t.Errorf("signals %v before the threshold", signals)
		}
		w.after(time.Second + 100*time.Millisecond) // its timeout
		if _, signals, killed := process.state(); !slices.Equal(signals, []syscall.Signal{syscall.SIGTERM}) || killed {
			t.Errorf("signals %v, killed %t at the threshold; log:\n%s", signals, killed, w.log)
		}
		if ready, _ := w.ready(); ready {
			t.Error("ready though it is not alive")
		}
		if code := <-w.exited; code != 128+9 {
			t.Errorf("exit code %d", code)
		}
		w.exited <- 0
		if r := w.api.present(); r.Holder != "" || r.Release.Reason != lease.ReasonLivenessFailed || !r.Release.Unclean || r.History[0].Reason != lease.ReasonLivenessFailed {
			t.Errorf("the Lease is not released for its reason: %+v", r)
		}
		if log := w.log.String(); !strings.Contains(log, `liveness probe failed failures=1 error="context deadline exceeded"`) || !strings.Contains(log, "grace=3s") {
			t.Errorf("the log does not tell why:\n%s", log)
		}
	})
}

// TestQuotedLog: docs/probes.md quotes what a failed probe writes to the log.
func TestQuotedLog(t *testing.T) {
	inProbedBubble(t, func(w *world, p *asked) {
		w.holding()
		w.after(60 * time.Second)
		p.say(livenessPort, ill)
		w.after(25 * time.Second)
		<-w.exited
		w.exited <- 0
		lines := regexp.MustCompile(`(?m)^.*(?: failed failures=1 |stopping ).*$`).FindAllString(w.log.String(), -1)
		if err := commands.Quoted("../..", "docs/probes.md", strings.ReplaceAll(strings.Join(lines, "\n"), "token=10 ", "token=254 ")); err != nil {
			t.Error(err)
		}
	})
}

func TestStartupFails(t *testing.T) {
	inProbedBubble(t, func(w *world, p *asked) {
		p.say(startupPort, ill)
		process := w.holding()
		if ready, why := w.ready(); ready || !strings.Contains(why, "startup probe: HTTP probe failed with statuscode: 503") {
			t.Errorf("ready %t, %s", ready, why)
		}
		w.after(20*time.Second + time.Millisecond)
		if _, signals, _ := process.state(); !slices.Equal(signals, []syscall.Signal{syscall.SIGTERM}) {
			t.Errorf("signals %v after three checks", signals)
		}
		w.after(5 * time.Second) // less than of the pod's grace period is the process's
		process.finish(supervise.Status{ExitCode: 143})
		if code := <-w.exited; code != 143 {
			t.Errorf("exit code %d", code)
		}
		w.exited <- 0
		if r := w.api.present(); r.Holder != "" || r.Release.Reason != lease.ReasonStartupFailed {
			t.Errorf("the Lease is not released for its reason: %+v", r)
		}
		if n := p.times(livenessPort) + p.times(readinessPort); n > 0 {
			t.Errorf("%d other checks before the process had started", n)
		}
	})
}

// A standby is ready when its agent is; a holder, when its process says so.
func TestReadiness(t *testing.T) {
	inProbedBubble(t, func(w *world, p *asked) {
		p.say(readinessPort, ill)
		s := <-w.starts
		if ready, why := w.ready(); ready || !strings.Contains(why, "is being started") {
			t.Errorf("before its process runs: ready %t, %s", ready, why)
		}
		s.process.begin(nil)
		w.after(time.Second)
		if ready, why := w.ready(); ready || !strings.Contains(why, "readiness probe: HTTP probe failed with statuscode: 503") {
			t.Errorf("ready %t, %s", ready, why)
		}
		p.say(readinessPort, well)
		w.after(10 * time.Second)
		if ready, why := w.ready(); !ready {
			t.Errorf("not ready: %s", why)
		}
		p.say(readinessPort, ill)
		w.after(15 * time.Second)
		if ready, why := w.ready(); !ready {
			t.Errorf("not ready before the threshold: %s", why)
		}
		w.after(15 * time.Second)
		if ready, _ := w.ready(); ready {
			t.Error("ready though the process is not")
		}
		if w.phase() != "Holding" {
			t.Errorf("phase %s: what is not ready is not to end", w.phase())
		}
		// The tenure goes to another, and the candidate is a standby, which is ready whatever its process said.
		w.api.store(func(r *lease.Record) { r.Handover.To = "other" })
		w.after(time.Second)
		if ready, _ := w.ready(); ready {
			t.Error("ready while the process is being stopped that is not")
		}
		s.process.finish(supervise.Status{})
		w.after(time.Second)
		if ready, why := w.ready(); !ready {
			t.Errorf("a standby is not ready: %s", why)
		}
	})
}

// While a process is being stopped it need not be alive, but it may say that it is not ready.
func TestProbesWhileStopping(t *testing.T) {
	inProbedBubbleWith(t, time.Hour, func(w *world, p *asked) {
		process := w.holding()
		w.after(time.Second)
		w.signals <- syscall.SIGTERM
		synctest.Wait()
		before := p.times(livenessPort)
		p.say(livenessPort, ill)
		p.say(readinessPort, ill)
		w.after(10 * time.Minute)
		if _, signals, killed := process.state(); killed || len(signals) != 1 || p.times(livenessPort) != before {
			t.Errorf("killed %t, signals %v, %d liveness checks while it was being stopped", killed, signals, p.times(livenessPort)-before)
		}
		if ready, _ := w.ready(); ready {
			t.Error("ready though the process says that it is not")
		}
		process.finish(supervise.Status{})
	})
}

// Checks that hang keep nothing from being renewed, and what they find out of the last tenure's process says nothing about
// this one's.
func TestProbesDoNotBlockRenewals(t *testing.T) {
	inProbedBubble(t, func(w *world, p *asked) {
		p.say(startupPort, stuck)
		first := w.holding()
		w.after(30 * time.Second)
		if writes, _ := w.api.counts(); writes < 14 {
			t.Errorf("%d writes in half a minute of a check that hangs", writes)
		}
		w.api.store(func(r *lease.Record) { r.Handover.To = lease.AnyPod })
		w.after(time.Second)
		first.finish(supervise.Status{})
		p.say(startupPort, well)
		second := w.holding()
		close(p.stuck)
		w.after(time.Minute)
		if _, signals, killed := second.state(); len(signals) > 0 || killed {
			t.Errorf("signals %v, killed %t", signals, killed)
		}
		if log := w.log.String(); strings.Contains(log, "probe failed") {
			t.Errorf("the last process's answer was heard:\n%s", log)
		}
	})
}

// A check by a command is one of the process's tree. A check that could not run says nothing about the process.
func TestExecProbe(t *testing.T) {
	inBubbleWith(t, func(o *Options) {
		o.Environ = []string{"SECRET=s3cr3t"}
		o.Config.Probes.Liveness = tcpProbe(livenessPort, 0)
		o.Config.Probes.Liveness.Check = contract.Check{Exec: []string{"check", "$(SECRET)", "$(TOKEN)", "$$(SECRET)", "$(date)"}}
	}, func(w *world) {
		p := w.holding()
		for i, result := range []supervise.ExecResult{
			{Status: supervise.Status{ExitCode: 2}, Output: []byte("not well\n")},
			{Err: errors.New("no such program")},
			{Err: errors.New("not running yet"), Status: supervise.Status{ExitCode: -1, Signal: syscall.SIGKILL}, TimedOut: true},
			{Status: supervise.Status{ExitCode: -1, Signal: syscall.SIGKILL}, TimedOut: true},
			{},
			{Status: supervise.Status{ExitCode: -1, Signal: syscall.SIGSEGV}},
			{Status: supervise.Status{ExitCode: 1}},
			{Status: supervise.Status{ExitCode: 1}},
		} {
			x := <-p.execs
			if want := []string{"check", "s3cr3t", "10", "$(SECRET)", "$(date)"}; !slices.Equal(x.Argv, want) || x.Timeout != time.Second || x.Name != "liveness" {
				t.Errorf("ran %q for %v, want %q", x.Argv, x.Timeout, want)
			}
			if _, signals, _ := p.state(); len(signals) > 0 {
				t.Errorf("signals %v before check %d", signals, i)
			}
			x.result <- result
		}
		synctest.Wait()
		if _, signals, _ := p.state(); !slices.Equal(signals, []syscall.Signal{syscall.SIGTERM}) {
			t.Errorf("signals %v after three failures in a row", signals)
		}
		log := w.log.String()
		for _, want := range []string{
			`liveness probe failed failures=1 error="not well"`, `liveness probe errored failures=2 error="no such program"`,
			`liveness probe failed failures=4 error="command timed out`,
		} {
			if !strings.Contains(log, want) {
				t.Errorf("no %q in\n%s", want, log)
			}
		}
		if strings.Contains(log, "s3cr3t") {
			t.Errorf("a secret is in the log:\n%s", log)
		}
		p.finish(supervise.Status{})
		w.exited <- <-w.exited
	})
}

// A command that the agent had no time to start says nothing about the process. A command without a free place says nothing either, nor
// does the check after it. A command that runs and cannot be killed hangs, and so does its process.
func TestExecProbeThatIsNotServed(t *testing.T) {
	late := supervise.ExecResult{Err: errors.New("not running yet"), TimedOut: true}
	hangs := supervise.ExecResult{Status: supervise.Status{ExitCode: -1, Signal: syscall.SIGKILL}, TimedOut: true}
	for name, row := range map[string]struct {
		latest supervise.ExecResult
		err    error
		want   probe.Outcome
	}{
		"no place":                         {latest: hangs, err: supervise.ErrTooManyExecs, want: probe.Unknown},
		"the process has ended":            {latest: hangs, err: os.ErrProcessDone, want: probe.Unknown},
		"an earlier one runs":              {latest: hangs, err: supervise.ErrStillRuns, want: probe.Failure},
		"an earlier one has not begun yet": {latest: late, err: supervise.ErrStillRuns, want: probe.Unknown},
	} {
		t.Run(name, func(t *testing.T) {
			p := &execs{results: make(chan supervise.ExecResult, 1)}
			c := newCommands(p, nil)[probe.Liveness]
			p.results <- row.latest
			first := c.execute(&contract.Probe{Check: contract.Check{Exec: []string{"check"}}, Timeout: dur(time.Second)})
			if want := row.want; name != "no place" && name != "the process has ended" && first.Outcome != want {
				t.Errorf("the command itself is %v, want %v", first, want)
			}
			p.err = row.err
			for range 2 {
				if got := c.execute(&contract.Probe{Check: contract.Check{Exec: []string{"check"}}, Timeout: dur(time.Second)}); got.Outcome != row.want {
					t.Errorf("the check after it is %v, want %v", got, row.want)
				}
			}
		})
	}
}

// execs is a process that runs commands, or refuses to.
type execs struct {
	Process
	results chan supervise.ExecResult
	err     error
}

func (p *execs) Exec(supervise.ExecSpec) (<-chan supervise.ExecResult, error) {
	return p.results, p.err
}

// A process that fails a probe has all of the Pod's grace period, because no kubelet waits for the agent then.
func TestProbesGrace(t *testing.T) {
	inProbedBubbleWith(t, 40*time.Second, func(w *world, p *asked) {
		p.say(startupPort, ill)
		process := w.holding()
		w.after(20*time.Second + time.Millisecond)
		w.after(40*time.Second - 100*time.Millisecond)
		if _, signals, killed := process.state(); killed || len(signals) != 1 {
			t.Errorf("killed %t, signals %v before its grace period is over; log:\n%s", killed, signals, w.log)
		}
		w.after(time.Second)
		if _, _, killed := process.state(); !killed {
			t.Errorf("not killed after its grace period; log:\n%s", w.log)
		}
		w.exited <- <-w.exited
	})
}

// The order in a tenure: the process executes, postStart has ended, the startup probe has succeeded, liveness and readiness are checked. The
// Pod is ready only after that, and never between what preActivate does and the process.
func TestNeverReadyBeforeStarted(t *testing.T) {
	type states struct{ preActivate, startup, postStart bool }
	for _, has := range []states{{}, {startup: true}, {postStart: true}, {startup: true, postStart: true}, {true, true, true}, {preActivate: true}} {
		t.Run(fmt.Sprintf("%+v", has), func(t *testing.T) {
			var p *asked
			inBubbleWith(t, func(o *Options) {
				p = &asked{says: map[int]probe.Result{startupPort: ill, livenessPort: well}, count: map[int]int{}}
				o.Check = p.check
				o.Config.Probes.Liveness = tcpProbe(livenessPort, 0)
				if has.startup {
					o.Config.Probes.Startup = tcpProbe(startupPort, 0)
					o.Config.Probes.Startup.FailureThreshold = 1000
				}
				if has.postStart {
					o.Config.Hooks.PostStart = aCommand
				}
				if has.preActivate {
					prepared(o)
				}
			}, func(w *world) {
				unready := func(when string, startups int) {
					w.Helper()
					w.after(time.Minute)
					if ready, why := w.ready(); ready || why == "" || p.times(livenessPort) > 0 || (p.times(startupPort) > 0) != (startups > 0) {
						w.Errorf("%s: ready %t %q, %d checks of startup, %d of liveness", when, ready, why, p.times(startupPort), p.times(livenessPort))
					}
				}
				s := <-w.starts
				unready("before it executes", 0)
				if has.preActivate {
					s.process.begin(nil)
					unready("while preActivate runs", 0)
					s.process.finish(supervise.Status{})
					s = <-w.starts
					unready("between preActivate and the process", 0)
				}
				s.process.begin(nil)
				if has.postStart {
					unready("while postStart runs", 0)
					(<-s.process.execs).result <- supervise.ExecResult{}
				}
				if has.startup {
					unready("while it starts", 1)
					p.say(startupPort, well)
				}
				w.after(time.Minute)
				if ready, why := w.ready(); !ready || p.times(livenessPort) == 0 {
					w.Errorf("ready %t %q, %d checks of liveness in the end", ready, why, p.times(livenessPort))
				}
				s.process.finish(supervise.Status{})
			})
		})
	}
}
