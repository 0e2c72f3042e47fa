//go:build linux

package main

import (
	"context"
	_ "embed"
	"fmt"
	"net/http"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"syscall"
	"time"

	"github.com/singletonjob/operator/api/v1alpha1"
	"github.com/singletonjob/operator/fence"
	"github.com/singletonjob/operator/fence/fencetest"
	"github.com/singletonjob/operator/test/faultproxy"
	"github.com/singletonjob/operator/test/localnode"
	"github.com/singletonjob/operator/test/observe"
	"github.com/singletonjob/operator/test/stack"
)

//go:embed jobs.yaml
var jobs string

const (
	ledger  = "ledger"
	journal = "journal"
	// leaseDuration of the jobs in jobs.yaml.
	leaseDuration = 6 * time.Second
	// enoughHeld is a number of writes in flight that makes a stale write certain.
	enoughHeld = 3
	// steady is how long the standby is watched for requests: four times the interval of a standby that polls.
	steady = 2 * time.Second
	// tries is how often a step is tried, because a machine that stalls for seconds spoils it: leases are short here.
	tries = 5
)

// election applies the samples and the demo's job.
func (d *demo) election(ctx context.Context) error {
	d.scene("Election", `Two candidates run on two nodes. One acquires the Lease and starts the process. The other is a warm standby.
		The process writes to the sink every 20 ms, each time with its fencing token.`)
	if err := d.applyJobs(ctx); err != nil {
		return err
	}
	now, err := d.await(ctx, 0)
	if err != nil {
		return err
	}
	job, err := d.AwaitJob(ctx, namespace, ledger, "protected, with the token that the sink sees", func(job *v1alpha1.SingletonJob) bool {
		now.token = d.Sink.Report().Resource(ledger).Highest // a busy machine may have brought another tenure
		return stack.Protected(job) && job.Status.FencingToken == int64(now.token)
	})
	if err != nil {
		return err
	}
	d.check(job.Status.FencingToken == int64(now.token), "the process acts with the token of the Lease",
		"status and sink both have %d", now.token)
	return d.quietStandby(ctx)
}

func (d *demo) applyJobs(ctx context.Context) error {
	file := filepath.Join(d.Plane.Dir(), "jobs.yaml")
	if err := os.WriteFile(file, []byte(strings.ReplaceAll(jobs, "$SINK", d.SinkLink.URL())), 0o600); err != nil {
		return err
	}
	if err := d.Plane.Apply(ctx, file); err != nil {
		return err
	}
	sample := filepath.Join(d.root, "config/samples")
	if err := d.Plane.Apply(ctx, sample); err != nil {
		return err
	}
	d.note("applied config/samples (checked at the end), and the jobs demo/%s and demo/%s with leases of %v", ledger, journal, leaseDuration)
	return nil
}

// await waits for the next tenure of the ledger: its first write and its status.
func (d *demo) await(ctx context.Context, after fence.Token) (tenure, error) {
	first, err := d.AwaitWrite(ctx, ledger, after)
	if err != nil {
		return tenure{}, err
	}
	job, err := d.AwaitJob(ctx, namespace, ledger, "active with the next token", stack.ActiveAfter(after))
	if err != nil {
		return tenure{}, err
	}
	// On a very busy machine, the status can already show a later tenure than that of the first write.
	now := tenure{token: max(first.Token, fence.Token(job.Status.FencingToken)), pod: job.Status.ActivePod, node: job.Status.ActiveNode}
	d.say(cyan, "%s on %s acts with token %d", now.pod, now.node, now.token)
	return now, nil
}

// meter prints every second how many writes the sink received in it. It shows the active process at work, and the time without one.
func (d *demo) meter(ctx context.Context) {
	before := d.Sink.Report()
	for tick := time.NewTicker(time.Second); ; {
		select {
		case <-ctx.Done():
			return
		case <-tick.C:
		}
		now := d.Sink.Report()
		job, _ := d.metered.Load().(fence.Resource)
		was, is := before.Resource(job), now.Resource(job)
		d.say(dim, "  sink  %2d writes with token %d%s", is.Accepted-was.Accepted, is.Highest, refusals(is.Refused-was.Refused))
		before = now
	}
}

func refusals(n int) string {
	if n == 0 {
		return ""
	}
	return fmt.Sprintf(", %d refused", n)
}

// quietStandby counts the standby's requests to the API server while nothing happens. A standby that polls would send requests in each try.
// One that has lost its watch on a busy machine, or has begun a tenure, does so once.
func (d *demo) quietStandby(ctx context.Context) error {
	holder, standby := 0, 0
	for try := 0; try < tries && (standby > 0 || holder == 0); try++ {
		now, _, err := d.current(ctx)
		if err != nil {
			return err
		}
		if holder, standby, err = d.requests(ctx, now); err != nil {
			return err
		}
	}
	d.check(standby == 0 && holder > 0, "the standby only watches", "it sent %d requests in %v", standby, steady)
	return nil
}

// requests counts the requests of the holder and of the standby during steady.
func (d *demo) requests(ctx context.Context, now tenure) (holder, standby int, err error) {
	begin := time.Now()
	report := d.Sink.Report().Resource(ledger)
	select {
	case <-time.After(steady):
	case <-ctx.Done():
		return 0, 0, ctx.Err()
	}
	for _, node := range d.Cluster.Nodes() {
		for _, r := range node.Proxy().Seen() {
			switch {
			case r.Time.Before(begin) || !strings.HasPrefix(r.Pod, ledger+"-"):
			case r.Pod == now.pod:
				holder++
			default:
				standby++
			}
		}
	}
	writes := d.Sink.Report().Resource(ledger).Accepted - report.Accepted
	d.note("%d writes accepted in %v, all with token %d; the holder renewed %d times", writes, steady, now.token, holder)
	return holder, standby, nil
}

// current waits until the ledger has a warm standby, and finds its active process.
func (d *demo) current(ctx context.Context) (tenure, *stack.Process, error) {
	job, err := d.AwaitJob(ctx, namespace, ledger, "protected", stack.Protected)
	if err != nil {
		return tenure{}, nil, err
	}
	now := tenure{token: fence.Token(job.Status.FencingToken), pod: job.Status.ActivePod, node: job.Status.ActiveNode}
	process, err := d.WriterProcess(namespace, now.pod)
	return now, process, err
}

// killedProcess is a crash of the user's program.
func (d *demo) killedProcess(ctx context.Context) error {
	d.scene("The active process is killed", "Its agent is still running, sees the exit, and releases the Lease. The standby takes over without waiting for the lease to expire.")
	var old, next tenure
	var killed time.Duration
	why := ""
	// An agent that gets no CPU for long can be overtaken by a new agent, or cannot release the Lease before it expires.
	for try := 0; try < tries && (next.pod == old.pod || why != v1alpha1.ChangeProcessExited); try++ {
		before, process, err := d.current(ctx)
		if err != nil {
			return err
		}
		d.say(red, "kill -9 %d, the process of %s", process.Pid, before.pod)
		old, killed = before, fencetest.Boottime()
		if err := syscall.Kill(process.Pid, syscall.SIGKILL); err != nil {
			return err
		}
		if next, err = d.await(ctx, old.token); err != nil {
			return err
		}
		if why, err = d.reasonOf(ctx, next.token); err != nil {
			return err
		}
	}
	first := d.Sink.Report().Resource(ledger).Tenure(next.token).FirstAccepted
	d.check(next.pod != old.pod && next.node != old.node, "a warm standby on another node takes over", "%s on %s", next.pod, next.node)
	d.safe(next.token > old.token, "the token grows (kill)", "%d → %d", old.token, next.token)
	d.check(why == v1alpha1.ChangeProcessExited, "a killed process is replaced without waiting for its lease",
		"the Lease was released: %s; first write of the next %v after the kill", why, (first - killed).Round(time.Millisecond))
	return nil
}

// reasonOf returns why a tenure followed the one before it, according to the ledger's status.history.
func (d *demo) reasonOf(ctx context.Context, token fence.Token) (reason string, err error) {
	_, err = d.AwaitJob(ctx, namespace, ledger, fmt.Sprintf("history up to token %d", token), func(job *v1alpha1.SingletonJob) bool {
		for _, h := range job.Status.History {
			if h.Token == int64(token) {
				reason = h.Reason
			}
		}
		return reason != ""
	})
	return reason, err
}

// cutOffNode is a partition between a node and the API server. The node can still reach the sink.
func (d *demo) cutOffNode(ctx context.Context) error {
	d.scene("A node is cut off from the API server", `The process on it still reaches the sink. No component can tell it to stop, so it must stop by itself
		before the standby takes over.`)
	writes := 0
	for try := 0; try < tries && writes == 0; try++ { // a process that gets no CPU for long can end before it can write
		var err error
		if writes, err = d.cutOff(ctx); err != nil {
			return err
		}
	}
	d.check(writes > 0, "the cut-off process could still reach the sink", "%d of its writes after the cut", writes)
	return nil
}

// cutOff cuts off the active process's node until the next process acts, and counts the writes of the process after the cut.
func (d *demo) cutOff(ctx context.Context) (writes int, err error) {
	old, process, err := d.current(ctx)
	if err != nil {
		return 0, err
	}
	cut := fencetest.Boottime()
	process.Node.Cut()
	d.say(red, "%s is cut off; process %d of %s continues to write", process.Node.Name(), process.Pid, old.pod)
	died, alive, err := process.AwaitDeath(ctx)
	if err != nil {
		return 0, err
	}
	d.note("process %d ended %v after the cut", process.Pid, (died - cut).Round(time.Millisecond))
	next, err := d.await(ctx, old.token)
	if err != nil {
		return 0, err
	}
	successor, err := d.WriterProcess(namespace, next.pod)
	if err != nil {
		return 0, err
	}
	for _, a := range d.Sink.Attempts(0) {
		if a.Token == old.token && a.Accepted && a.Sent > cut {
			writes++
		}
	}
	d.safe(alive <= successor.Started, "the process ended before the next one started", "last seen alive at +%.2f s, next started at +%.2f s: %v apart",
		(alive - cut).Seconds(), (successor.Started - cut).Seconds(), (successor.Started - alive).Round(time.Millisecond))
	d.safe(next.token > old.token, "the token grows (cut)", "%d → %d", old.token, next.token)
	if err := process.Node.Heal(); err != nil {
		return 0, err
	}
	d.note("%s is connected again", process.Node.Name())
	return writes, nil
}

// writesWith matches requests to the sink that carry a token.
func writesWith(token fence.Token) faultproxy.Match {
	return func(r *http.Request) bool { return r.Header.Get(fence.HeaderToken) == token.String() }
}

// frozenHolder freezes a holder and its writes in flight.
func (d *demo) frozenHolder(ctx context.Context) error {
	d.scene("A holder is frozen past its lease, and thawed", `Agent, leash and process are stopped, and the writes that they have sent are held back.
		No code of SingletonJob runs there any more: a timer in the kernel must end the process.`)
	old, process, err := d.current(ctx)
	if err != nil {
		return err
	}
	deliver := d.SinkLink.Inject(faultproxy.Hold(), writesWith(old.token))
	defer deliver()
	err = observe.Await(ctx, "writes in flight", func() (bool, any, error) { return d.SinkLink.Held() >= enoughHeld, d.SinkLink.Held(), nil })
	if err != nil {
		return err
	}
	frozen := fencetest.Boottime()
	if err := process.Node.Freeze(namespace, old.pod); err != nil {
		return err
	}
	d.say(red, "%s is frozen, with %d writes in flight", old.pod, d.SinkLink.Held())
	died, alive, err := process.AwaitDeath(ctx)
	if err != nil {
		return err
	}
	d.note("the kernel has killed the frozen process, %v after the freeze", (died - frozen).Round(time.Millisecond))
	next, err := d.await(ctx, old.token)
	if err != nil {
		return err
	}
	successor, err := d.WriterProcess(namespace, next.pod)
	if err != nil {
		return err
	}
	d.safe(alive <= successor.Started, "the frozen process ended before the next one started", "%v apart", (successor.Started - alive).Round(time.Millisecond))
	d.safe(next.token > old.token, "the token grows (freeze)", "%d → %d", old.token, next.token)
	if err := process.Node.Thaw(namespace, old.pod); err != nil {
		return err
	}
	deliver()
	d.say(red, "thawed: its writes arrive, %v after they were sent", since(frozen).Round(time.Millisecond))
	return d.refused(ctx, ledger, old.token, next.token, "late writes of the frozen holder are refused")
}

// thawedWriter freezes a holder whose process can outlive its lease, and thaws the process before its agent and leash.
func (d *demo) thawedWriter(ctx context.Context) error {
	d.scene("The worst case: a process thaws before its agent", `The job demo/journal has onRenewFailure: KeepRunning. Its process can outlive its lease, because its sink checks tokens.
		This process is frozen during a takeover, thaws before its agent, and writes. Only the sink can stop it.`)
	d.metered.Store(fence.Resource(journal))
	job, err := d.AwaitJob(ctx, namespace, journal, "protected", stack.Protected)
	if err != nil {
		return err
	}
	old := tenure{token: fence.Token(job.Status.FencingToken), pod: job.Status.ActivePod, node: job.Status.ActiveNode}
	process, err := d.WriterProcess(namespace, old.pod)
	if err != nil {
		return err
	}
	if err := process.Node.Freeze(namespace, old.pod); err != nil {
		return err
	}
	d.say(red, "%s on %s, with token %d, is frozen", old.pod, old.node, old.token)
	first, err := d.AwaitWrite(ctx, journal, old.token)
	if err != nil {
		return err
	}
	d.say(cyan, "%s acts with token %d", first.Writer, first.Token)
	d.say(red, "thawed: process %d first, its agent later", process.Pid)
	if _, err := process.Node.Signal(namespace, old.pod, localnode.Leaves, syscall.SIGCONT); err != nil {
		return err
	}
	if err := d.refused(ctx, journal, old.token, first.Token, "writes of the thawed process are refused"); err != nil {
		return err
	}
	thawed := fencetest.Boottime()
	if err := process.Node.Thaw(namespace, old.pod); err != nil {
		return err
	}
	died, _, err := process.AwaitDeath(ctx)
	if err != nil {
		return err
	}
	d.check(true, "the thawed agent kills the process", "%v after the agent's thaw", (died - thawed).Round(time.Millisecond))
	return nil
}

// refused waits for the sink's refusals of an old token, and checks that no write with it was stored after the first write with the next
// token.
func (d *demo) refused(ctx context.Context, resource fence.Resource, old, next fence.Token, what string) error {
	var report fencetest.ResourceReport
	err := observe.Await(ctx, "refusals of stale writes", func() (bool, any, error) {
		report = d.Sink.Report().Resource(resource)
		return report.Tenure(old).Refused > 0, report, nil
	})
	if err != nil {
		return err
	}
	stale := report.Tenure(old)
	began := report.Tenure(next).FirstAccepted // 0 if the tenure has not written yet
	d.safe(report.StaleAccepted == 0 && (began == 0 || stale.LastAccepted < began), what,
		"%d writes with token %d after token %d: %d refused, %d accepted", stale.Refused, old, next, stale.Refused, report.StaleAccepted)
	return nil
}

// summary prints what the status, Pods and events show afterwards, and checks it against what the sink has seen.
func (d *demo) summary(ctx context.Context) error {
	d.scene("What kubectl shows afterwards", "")
	last := d.Sink.Report().Resource(ledger).Highest
	job, err := d.AwaitJob(ctx, namespace, ledger, "complete in status.history", func(job *v1alpha1.SingletonJob) bool {
		return len(job.Status.History) > 0 && job.Status.History[0].Token >= int64(last) && stack.Protected(job)
	})
	if err != nil {
		return err
	}
	for _, args := range [][]string{
		{"get", "singletonjobs", "-A"},
		{"-n", namespace, "get", "singletonjobs", "-o", "wide"},
		{"-n", namespace, "get", "pods", "-o", "wide", "-L", "singletonjob.io/role"},
		{"-n", namespace, "events", "--for", "singletonjob/" + ledger},
	} {
		out, err := d.Plane.Kubectl(ctx, args...)
		if err != nil {
			return err
		}
		d.print(d.mark(bold, "   $ kubectl "+strings.Join(args, " ")))
		d.block(out)
		d.print("")
	}
	d.print(d.mark(bold, "   status.history of demo/"+ledger))
	for _, h := range job.Status.History {
		downtime := ""
		if h.Downtime != nil {
			downtime = fmt.Sprintf("downtime %v", h.Downtime.Round(time.Millisecond))
		}
		d.print(fmt.Sprintf("   %s  %-9s %-16s %s (%d) → %s (%d)  %s", h.Time.Format("15:04:05.000"), h.Type, h.Reason, orNobody(h.From), h.FromToken, h.To, h.Token, downtime))
	}
	d.print("")
	d.checkRecords(job)
	return d.checkSamples(ctx)
}

func orNobody(pod string) string {
	if pod == "" {
		return "nobody"
	}
	return pod
}

// checkRecords compares the history with what the sink has seen.
func (d *demo) checkRecords(job *v1alpha1.SingletonJob) {
	var told []int64
	for _, h := range slices.Backward(job.Status.History) {
		told = append(told, h.Token)
	}
	missed := 0
	for _, seen := range d.Sink.Report().Resource(ledger).Tenures {
		if !slices.Contains(told, int64(seen.Token)) {
			missed++
		}
	}
	d.check(missed == 0 && len(told) > 3, "status.history has every tenure that the sink has seen", "%d tenures, %d missing", len(told), missed)
	grows := true
	for i := 1; i < len(told); i++ {
		grows = grows && told[i] > told[i-1]
	}
	d.safe(grows, "tokens grow with every tenure, and none is listed twice", "%v", told)
	lives := d.Lives(ledger)
	violations := observe.Violations(lives, false)
	d.check(len(lives) > 3, "the sink has seen a process of each tenure", "%d processes", len(lives))
	d.safe(len(violations) == 0, "never two processes of the job at once", "%s",
		strings.Join(append([]string{fmt.Sprintf("%d processes, %d violations", len(lives), len(violations))}, violations...), "; "))
}

// checkSamples checks the jobs of config/samples, which ran during all scenes.
func (d *demo) checkSamples(ctx context.Context) error {
	// The timeout is long because a job whose node was cut off can still be waiting for its lease and its lockDelay.
	limited, cancel := context.WithTimeout(ctx, 5*time.Minute)
	defer cancel()
	var active []string
	err := observe.Await(limited, "every job of config/samples to run", func() (bool, any, error) {
		jobs := &v1alpha1.SingletonJobList{}
		err := d.Client.List(limited, jobs)
		active = nil
		samples := 0
		for i := range jobs.Items {
			job := &jobs.Items[i]
			if job.Namespace == namespace {
				continue
			}
			samples++
			if stack.ActiveAfter(0)(job) {
				active = append(active, job.Name)
			}
		}
		return samples > 0 && len(active) == samples, active, err
	})
	d.check(err == nil, "every job of config/samples runs", "%s", strings.Join(active, ", "))
	return ctx.Err()
}
