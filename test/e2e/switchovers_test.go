//go:build linux

package e2e

import (
	"bufio"
	"bytes"
	"context"
	"fmt"
	"io"
	"slices"
	"strings"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"

	"github.com/singletonjob/operator/api/v1alpha1"
	"github.com/singletonjob/operator/internal/plugin"
	"github.com/singletonjob/operator/test/observe"
)

// TestSwitchovers: fifty switchovers, each to a named standby and waited for, are fifty handovers to that standby.
func TestSwitchovers(t *testing.T) {
	const all = 50
	x := beginBeside(t)
	j := x.start(patient)
	for range all {
		before := j.awaitSettled().Status
		to := ""
		for _, pod := range j.candidates() {
			if pod.Name != before.ActivePod {
				to = pod.Name
			}
		}
		var out bytes.Buffer
		if status := x.singleton(x.ctx, &out, &out, "switchover", j.name, "--to="+to, "--wait"); status != plugin.ExitOK {
			t.Fatalf("switchover to %s ended with %d:\n%s", to, status, &out)
		}
		if after := j.get().Status; after.ActivePod != to || after.FencingToken <= before.FencingToken {
			t.Fatalf("%s is active with token %d after a switchover to %s: %+v", after.ActivePod, after.FencingToken, to, after.History)
		}
	}
	j.checkHandovers(all, v1alpha1.ChangeSwitchoverRequested)
}

// checkHandovers demands that a settled job had this many handovers for one reason and no failover, as its status and the sink tell, and that
// no stale write was stored. It prints how long they took, and judges that only with -most.
func (j *job) checkHandovers(all int, reason string) {
	j.Helper()
	after := j.awaitSettled().Status
	if after.Handovers != int64(all) || after.Failovers != 0 {
		j.Errorf("%d handovers and %d failovers, want %d handovers: %+v", after.Handovers, after.Failovers, all, after.History)
	}
	j.awaitWriteAfter(after.FencingToken - 1)
	lives := j.lives()
	for _, v := range violations(lives) {
		j.Error("violation: ", v)
	}
	var gaps, idle []time.Duration
	stale := 0
	for _, step := range observe.Takeovers(lives) {
		gaps = append(gaps, step.Gap)
	}
	for _, life := range lives {
		stale += life.Refused
	}
	if len(gaps) != all {
		j.Fatalf("the sink saw %d handovers, want %d", len(gaps), all)
	}
	for _, change := range after.History {
		switch {
		case change.Type == v1alpha1.Elected:
		case change.Reason != reason || change.Downtime == nil:
			j.Errorf("the history says %+v, want a handover for %s", change, reason)
		default:
			idle = append(idle, change.Downtime.Duration)
		}
	}
	j.Logf("%d handovers for %s; %d stale writes were refused, none was stored", all, reason, stale)
	j.Logf("without a stored write, which includes the stop and the start of the process: %s", distribution(gaps))
	j.Logf("from the end of one process to the tenure of the next: %s", distribution(idle))
	if longest := slices.Max(idle); *most > 0 && longest > *most {
		j.Errorf("no process had the Lease for %v, with -most=%v", longest, *most)
	}
}

func distribution(all []time.Duration) string {
	slices.Sort(all)
	return fmt.Sprintf("median %v, 90 %% %v, at most %v", all[len(all)/2], all[len(all)*9/10], all[len(all)-1])
}

// TestLogsAcrossFailovers: logs -f prints each line of each process once and in order, over four failovers of each of five jobs. A kubelet
// restarts a container later each time, so one job with twenty failovers would take an hour.
func TestLogsAcrossFailovers(t *testing.T) {
	t.Parallel()
	for n := range 5 {
		t.Run(fmt.Sprint(n), func(t *testing.T) {
			x := beginBeside(t)
			j := x.start(patient, func(o *v1alpha1.SingletonJob) {
				c := &o.Spec.Template.Spec.Containers[0]
				c.Env = append(c.Env, corev1.EnvVar{Name: "PRINT", Value: "10ms"})
			})
			log := j.followLog()
			var kept []map[string]bool
			for range 4 {
				before := j.awaitSettled().Status
				log.awaitLine(fmt.Sprintf("count %d 50", before.FencingToken))
				signalProcess("KILL")(j, before.ActivePod, "")
				j.awaitActiveAfter(before.FencingToken)
				kept = append(kept, j.keptLines(before.ActivePod, before.FencingToken))
			}
			last := j.awaitSettled().Status
			log.awaitLine(fmt.Sprintf("count %d 50", last.FencingToken))
			lines := log.end()
			log.check(lines, 5)
			for _, of := range kept {
				for line := range of {
					if !slices.Contains(lines, line) {
						t.Errorf("logs -f did not print %q, which the kubelet has", line)
						break
					}
				}
			}
			j.check(false)
		})
	}
}

// A followedLog is the output of logs -f.
type followedLog struct {
	*job
	lines  chan string
	seen   []string
	cancel context.CancelFunc
	ended  chan int
}

func (j *job) followLog() *followedLog {
	j.Helper()
	ctx, cancel := context.WithCancel(j.ctx)
	l := &followedLog{job: j, lines: make(chan string, 1<<16), cancel: cancel, ended: make(chan int, 1)}
	reader, writer := io.Pipe()
	go func() {
		l.ended <- j.singleton(ctx, writer, io.Discard, "logs", j.name, "-f")
		_ = writer.Close()
	}()
	go func() {
		defer close(l.lines)
		for in := bufio.NewScanner(reader); in.Scan(); {
			if strings.HasPrefix(in.Text(), "count ") {
				l.lines <- in.Text()
			}
		}
	}()
	j.Cleanup(cancel)
	return l
}

// awaitLine reads up to a line.
func (l *followedLog) awaitLine(want string) {
	l.Helper()
	hang := time.After(patience)
	for {
		select {
		case line, ok := <-l.lines:
			if !ok {
				l.Fatalf("the log ended before %q", want)
			}
			if l.seen = append(l.seen, line); line == want {
				return
			}
		case <-hang:
			l.Fatalf("the log does not reach %q; its last lines: %q", want, l.seen[max(0, len(l.seen)-3):])
		}
	}
}

// end stops to follow, and returns all lines.
func (l *followedLog) end() []string {
	l.Helper()
	l.cancel()
	if status := <-l.ended; status != plugin.ExitInterrupted {
		l.Errorf("logs -f was interrupted and ended with %d", status)
	}
	for line := range l.lines {
		l.seen = append(l.seen, line)
	}
	return l.seen
}

// check expects that the lines of each tenure are numbered from 1 without a gap, and that tenures begin in their order. The last lines of
// a process can come after the first ones of the next, because two kubelets send them.
func (l *followedLog) check(lines []string, tenures int) {
	l.Helper()
	last := map[int]int{} // the number of the last line, by token
	newest := 0
	for _, line := range lines {
		var token, n int
		if _, err := fmt.Sscanf(line, "count %d %d", &token, &n); err != nil {
			l.Errorf("a line was cut: %q", line)
			continue
		}
		if n != last[token]+1 || n == 1 && token < newest {
			l.Fatalf("line %q after line %d of its tenure; the newest tenure is %d", line, last[token], newest)
		}
		last[token], newest = n, max(newest, token)
	}
	if len(last) != tenures {
		l.Errorf("the log is of %d tenures, want %d", len(last), tenures)
	}
	l.Logf("%d lines of %d tenures, each once and in order", len(lines), len(last))
}

// keptLines are the lines of a tenure that the kubelet has, in the container that ended or in the one before the present.
func (j *job) keptLines(pod string, token int64) map[string]bool {
	j.Helper()
	lines := map[string]bool{}
	for _, more := range [][]string{nil, {"--previous"}} {
		out, err := bed.Kubectl(j.ctx, append([]string{"--namespace", j.namespace, "logs", pod, "--container=app"}, more...)...)
		if err != nil {
			continue // there is no container before, or the kubelet starts one just now
		}
		for line := range strings.Lines(out) {
			if line = strings.TrimSpace(line); strings.HasPrefix(line, fmt.Sprintf("count %d ", token)) {
				lines[line] = true
			}
		}
	}
	return lines
}
