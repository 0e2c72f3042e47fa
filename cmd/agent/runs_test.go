//go:build linux

package main

import (
	"bytes"
	"fmt"
	"net/http"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/singletonjob/operator/internal/contract"
	"github.com/singletonjob/operator/internal/lease"
	"github.com/singletonjob/operator/internal/schedule"
	"github.com/singletonjob/operator/test/faultproxy"
)

// work is a process that writes its environment when it begins, and writes a line when it ends. It ends with the code that the test gives
// it. If a signal asks it to end, it ends with 0.
const work = `
trap 'echo "end $FENCING_TOKEN" >> "$0"; exit 0' TERM
echo "begin $FENCING_TOKEN $SINGLETONJOB_RUN_ID $SINGLETONJOB_ATTEMPT ${SINGLETONJOB_TICK:-none}" >> "$0"
until mv "$0.code" "$0.last" 2>/dev/null; do
	[ -e "$0" ] || exit 1 # the test is over
	sleep 0.05
done
echo "end $FENCING_TOKEN" >> "$0"
exit "$(cat "$0.last")"
`

// job is a job that runs to completion.
type job struct {
	*world
	config contract.AgentConfig
	file   string
}

func newJob(t *testing.T) *job {
	t.Helper()
	j := &job{world: newWorld(t), config: steadyConfig(), file: filepath.Join(t.TempDir(), "work")}
	j.config.RunID, j.config.Run = "", &contract.RunConfig{JobUID: "job-uid", BackoffLimit: 3, Leaves: true}
	return j
}

func (j *job) candidate(pod string) *candidate {
	j.t.Helper()
	c := j.prepare(pod, j.config)
	c.run("sh", "-c", work, j.file)
	return c
}

// works waits until a candidate's process has begun, and returns its run, attempt and tick.
func (j *job) works(c *candidate) string {
	j.t.Helper()
	token := c.acquired()
	var found string
	j.eventually("the process has begun", func() bool {
		for _, line := range j.told() {
			if words := strings.Fields(line); words[0] == "begin" && words[1] == strconv.FormatInt(token, 10) {
				found = strings.Join(words[2:], " ")
			}
		}
		return found != ""
	})
	return found
}

// told returns the lines that processes have written.
func (j *job) told() []string {
	j.t.Helper()
	text, err := os.ReadFile(j.file)
	if err != nil && !os.IsNotExist(err) {
		j.t.Fatal(err)
	}
	whole := text[:bytes.LastIndexByte(text, '\n')+1]
	return strings.FieldsFunc(string(whole), func(c rune) bool { return c == '\n' })
}

// ends makes the process end.
func (j *job) ends(code int) {
	j.t.Helper()
	j.must(os.WriteFile(j.file+".new", []byte(strconv.Itoa(code)), 0o600))
	j.must(os.Rename(j.file+".new", j.file+".code"))
}

// run returns the newest run in the Lease.
func (j *job) run() lease.Run {
	j.t.Helper()
	l := j.lease()
	r, err := contract.DecodeLease(contract.Fields{UID: string(l.UID), ResourceVersion: l.ResourceVersion, Annotations: l.Annotations})
	if err != nil || r.Runs.Bad != "" {
		j.t.Fatalf("%q, %v", r.Runs.Bad, err)
	}
	return r.Runs.Now
}

// checkRun checks how a run has ended, and that each attempt was over before the next one began.
func (j *job) checkRun(state lease.RunState, attempt int32, reason lease.Reason) {
	j.t.Helper()
	if r := j.run(); r.State != state || r.Attempt != attempt || r.Reason != reason {
		j.t.Errorf("the run is %+v, want attempt %d to be %s for %s", r, attempt, state, reason)
	}
	last := int64(0)
	for i, line := range j.told() {
		words := strings.Fields(line)
		token, _ := strconv.ParseInt(words[1], 10, 64)
		begins := i%2 == 0
		if (words[0] == "begin") != begins || begins && token <= last || !begins && token != last {
			j.t.Errorf("attempts are not one after another: %q", j.told())
		}
		last = token
	}
}

// A failed attempt is followed by another attempt of the same run, after a while. An attempt that ends with 0 completes the run. The agent
// of its Pod then exits, and a standby stays.
func TestRunCompletes(t *testing.T) {
	t.Parallel()
	j := newJob(t)
	a := j.candidate("a")
	if found := j.works(a); found != "job-uid 1 none" {
		t.Errorf("found %q", found)
	}
	b := j.candidate("b")
	b.await("lease held")
	failed := time.Now()
	j.ends(3)
	a.await("released", "run=job-uid", "attempt=1", "outcome=Failed")
	j.eventually("the second attempt has begun", func() bool { return len(j.told()) == 3 })
	if r := j.run(); r.Attempt != 2 || r.State != lease.RunRunning || r.Code != 3 {
		t.Errorf("the run is %+v", r)
	}
	if waited := time.Since(failed); waited < 9*time.Second {
		t.Errorf("tried again after %v", waited)
	}
	j.ends(0)
	last, other := a, b
	if j.run().Pod == "b" {
		last, other = b, a
	}
	if code := last.exit(); code != 0 {
		t.Errorf("exit code %d", code)
	}
	j.checkRun(lease.RunComplete, 2, lease.ReasonProcessExited)
	other.signal(syscall.SIGTERM)
	if code := other.exit(); code != 0 {
		t.Errorf("exit code %d of the standby", code)
	}
	if n := len(j.told()); n != 4 {
		t.Errorf("%d lines of two attempts: %q", n, j.told())
	}
}

// A drain in the middle of a run does not end the run, even though the process ends with 0. Another Pod continues the run at once.
func TestRunIsDrained(t *testing.T) {
	t.Parallel()
	j := newJob(t)
	a := j.candidate("a")
	j.works(a)
	a.signal(syscall.SIGTERM)
	a.exit()
	j.checkRun(lease.RunFailed, 1, lease.ReasonPodTerminating)
	b := j.candidate("b")
	if found := j.works(b); found != "job-uid 2 none" {
		t.Errorf("found %q", found)
	}
	j.ends(0)
	if code := b.exit(); code != 0 {
		t.Errorf("exit code %d", code)
	}
	j.checkRun(lease.RunComplete, 2, lease.ReasonProcessExited)
}

// A result of a run while the API server was unreachable is stored afterwards, and no candidate begins the run again before that.
func TestRunEndsInAnOutage(t *testing.T) {
	t.Parallel()
	j := newJob(t)
	a := j.candidate("a")
	j.works(a)
	b := j.candidate("b")
	b.await("lease held")
	a.proxy.Cut()
	j.ends(0)
	a.await("exited")
	a.await("release failing")
	if r := j.run(); r.State != lease.RunRunning {
		t.Errorf("the run is %+v", r)
	}
	healProxy(a)
	if code := a.exit(); code != 0 {
		t.Errorf("exit code %d", code)
	}
	j.checkRun(lease.RunComplete, 1, lease.ReasonProcessExited)
	b.await("lease free", "reason=ProcessExited")
	b.signal(syscall.SIGTERM)
	b.exit()
	if n := len(j.told()); n != 2 {
		t.Errorf("%d lines of one attempt: %q", n, j.told())
	}
}

// A result that could not be stored before the Lease expired does not overwrite that of another attempt.
func TestResultOfARunIsLost(t *testing.T) {
	t.Parallel()
	j := newJob(t)
	j.config.LeaseDuration, j.config.RenewDeadline, j.config.RetryPeriod = seconds(20), seconds(15), seconds(1)
	a := j.candidate("a")
	j.works(a)
	a.proxy.Cut()
	j.ends(0)
	a.await("exited")
	b := j.candidate("b")
	if found := j.works(b); found != "job-uid 2 none" {
		t.Errorf("found %q", found)
	}
	healProxy(a)
	a.await("lost", "run=job-uid", "attempt=1", "outcome=unknown")
	if r := j.run(); !r.Open() || r.Attempt < 2 {
		t.Errorf("the run is %+v", r)
	}
	j.ends(0)
	j.eventually("the run is complete", func() bool { return j.run().State == lease.RunComplete })
	for _, c := range []*candidate{a, b} {
		_ = c.agent.Signal(syscall.SIGTERM) // the agent that completed it has exited, or is about to
		c.exit()
	}
	j.checkRun(lease.RunComplete, j.run().Attempt, lease.ReasonProcessExited)
}

// A tick is due by the API server's clock. One of two candidates runs it, and its agent waits for the next tick. The API server's clock is
// ahead here, as far as allowed, so that the minute ends sooner.
func TestTick(t *testing.T) {
	t.Parallel()
	j := newJob(t)
	j.config.Run.Leaves = false
	every, err := schedule.Parse(schedule.Spec{Cron: "* * * * *"})
	j.must(err)
	l := j.lease()
	record := lease.Record{UID: string(l.UID), Runs: lease.Runs{Schedule: every}}
	j.annotate(map[string]any{
		contract.ScheduleAnnotation: contract.EncodeLease(record, contract.Fields{}).Annotations[contract.ScheduleAnnotation],
	})
	const soon, atMost = 5 * time.Second, 25 * time.Second // from 30 s on the clocks would count as different
	ahead := min(time.Until(time.Now().Truncate(time.Minute).Add(time.Minute-soon)), atMost).Truncate(time.Second)
	ahead = max(ahead, 0)
	later := func(reply *http.Response, body []byte) []byte {
		if at, err := http.ParseTime(reply.Header.Get("Date")); err == nil {
			reply.Header.Set("Date", at.Add(ahead).Format(http.TimeFormat))
		}
		return body
	}
	var both []*candidate
	for _, pod := range []string{"a", "b"} {
		c := j.prepare(pod, j.config)
		c.proxy.Inject(faultproxy.Alter(later), func(r *http.Request) bool { return !faultproxy.Watches()(r) })
		c.run("sh", "-c", work, j.file)
		both = append(both, c)
	}
	j.eventually("a process has begun", func() bool { return len(j.told()) == 1 })
	began := j.told()
	words := strings.Fields(began[0])
	tick, ok := schedule.ParseStamp(words[4])
	if late := time.Since(tick.Time()) + ahead; !ok || late < 0 || late > patience || words[2] != "job-uid/"+words[4] || words[3] != "1" {
		t.Errorf("%v after its tick it found %q", late, words)
	}
	l = j.lease()
	if got := l.Annotations[contract.TickAnnotation]; got != words[4] || !l.CreationTimestamp.Time.Before(tick.Time()) {
		t.Errorf("the Lease says tick %q; it is of %v", got, l.CreationTimestamp)
	}
	j.ends(0)
	j.eventually("the run is complete", func() bool { r := j.run(); return r.Tick != tick || r.State == lease.RunComplete })
	for _, c := range both {
		c.signal(syscall.SIGTERM)
		c.exit()
	}
	if first := fmt.Sprint(j.told()[:2]); first != fmt.Sprint([]string{began[0], "end " + words[1]}) {
		t.Errorf("processes told %q", first)
	}
}
