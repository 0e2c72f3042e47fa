package plugin

import (
	"context"
	"io"
	"strconv"
	"strings"
	"testing"
	"time"

	appsv1 "k8s.io/api/apps/v1"
	coordinationv1 "k8s.io/api/coordination/v1"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/cli-runtime/pkg/genericiooptions"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/singletonjob/operator/api/v1alpha1"
	"github.com/singletonjob/operator/docs/commands"
)

// TestPage runs the commands of docs/kubectl.md in the order of the page, on a terminal of 80 columns, against a real API server. Their
// output must be the page's, to the letter. Commands that wait for an operator, or read a kubelet's log, are not run.
func TestPage(t *testing.T) {
	w := newWorld(t)
	w.must(w.api.Create(t.Context(), &corev1.Namespace{ObjectMeta: metav1.ObjectMeta{Name: "demo"}}))
	w.must(w.api.Create(t.Context(), &corev1.ServiceAccount{ObjectMeta: metav1.ObjectMeta{Namespace: "demo", Name: "default"}}))
	w.namespace = "demo"
	w.node("node-a", "eu-1a")
	w.node("node-b", "eu-1b")
	s := w.ledger()
	scenes := []struct {
		command string
		before  func()
	}{
		{"status ledger", s.failedOver},
		{"why report; echo status $?", func() { s.unschedulable("report") }},
		{"why ledger", func() { s.renew(time.Now(), 3600) }}, // by the API server's clock, to which the Lease is compared
		{"history ledger", nil},
		{"token ledger -o wide", nil},
		{"status ledger", s.switchedOver},
		{"adopt deployment/billing --dry-run", func() { w.deployment("billing") }},
		{"status ledger", s.suspended},
		{"status ledgr", nil},
		{"status --as viewer", nil},
		{"switchover ledger --to=nobody", s.resumed},
		{"status nightly", s.nightly},
	}
	typist := &commands.Typist{TB: t, Test: "internal/plugin TestPage", Top: "../..", Exactly: true, Run: func(command string) string {
		if len(scenes) == 0 || command != "kubectl singleton "+scenes[0].command {
			t.Fatalf("%q comes, and these scenes are left: %+v", command, scenes)
		}
		if scenes[0].before != nil {
			scenes[0].before()
		}
		scenes = scenes[1:]
		line, echo, echoes := strings.Cut(strings.TrimPrefix(command, "kubectl singleton "), "; echo ")
		out, status := onTerminal(t, s.now, append([]string{"--kubeconfig=" + w.kubeconfig, "-n", w.namespace}, strings.Fields(line)...)...)
		if echoes {
			out += strings.Replace(echo, "$?", strconv.Itoa(status), 1) + "\n"
		}
		return out
	}}
	typist.Page("docs/kubectl.md")
	typist.Page("docs/runs.md")
	typist.End()
	if len(scenes) > 0 {
		t.Errorf("the page does not show %+v", scenes)
	}
}

// TestPlan runs the plans of the documents on such a terminal, without a cluster.
func TestPlan(t *testing.T) {
	t.Setenv("KUBECONFIG", "/nowhere")
	typist := &commands.Typist{TB: t, Test: "internal/plugin TestPlan", Top: "../..", Exactly: true, Run: func(command string) string {
		out, status := onTerminal(t, time.Now(), strings.Fields(strings.TrimPrefix(command, "kubectl singleton "))...)
		if status != ExitOK {
			t.Errorf("%s ends with %d", command, status)
		}
		return out
	}}
	typist.Page("docs/guide.md")
	typist.Page("docs/timing.md")
	typist.End()
}

// onTerminal runs a command on a terminal of 80 columns without colours, and returns what it shows.
func onTerminal(t *testing.T, now time.Time, args ...string) (out string, status int) {
	t.Helper()
	t.Setenv("NO_COLOR", "1")
	person, program := pty(t, 80, 60)
	shown := make(chan string)
	go func() {
		raw, _ := io.ReadAll(person)
		shown <- strings.ReplaceAll(string(raw), "\r\n", "\n")
	}()
	status = runAt(t.Context(), func() time.Time { return now }, args, genericiooptions.IOStreams{In: strings.NewReader(""), Out: program, ErrOut: program})
	_ = program.Close()
	return <-shown, status
}

// scene is the job of the page, at a time.
type scene struct {
	*world
	job     *v1alpha1.SingletonJob
	history []v1alpha1.TenureChange // newest first
	now     time.Time
}

func (w *world) ledger() *scene {
	w.Helper()
	s := &scene{world: w, job: w.job("ledger")}
	start := time.Now().Truncate(time.Second).Add(30 * time.Second) // after the Pods, whose ages are then not near a whole minute
	s.now = start
	s.changed(v1alpha1.Elected, v1alpha1.ChangeElected, "", "1", 531, 0)
	s.now = start.Add(8 * time.Minute)
	s.changed(v1alpha1.Failover, v1alpha1.ChangeProcessExited, "1", "0", 656, 13*time.Millisecond)
	s.now = start.Add(11 * time.Minute)
	s.changed(v1alpha1.Failover, v1alpha1.ChangeLeaseExpired, "0", "1", 716, 6085*time.Millisecond)
	s.now = start.Add(12 * time.Minute)
	return s
}

// changed adds a change of holder to the history. Pods are named by their ordinals.
func (s *scene) changed(kind v1alpha1.TenureChangeType, reason, from, to string, token int64, down time.Duration) {
	nodes := map[string]string{"": "", "0": "node-a", "1": "node-b"}
	pod := func(ordinal string) string {
		if ordinal == "" {
			return ""
		}
		return s.job.Name + "-752pq9t-" + ordinal
	}
	c := v1alpha1.TenureChange{
		Time: metav1.NewMicroTime(s.now), Type: kind, Reason: reason, From: pod(from), FromNode: nodes[from], To: pod(to), ToNode: nodes[to], Token: token,
	}
	if down > 0 {
		c.Downtime = &metav1.Duration{Duration: down}
	}
	if len(s.history) > 0 {
		c.FromToken = s.history[0].Token
	}
	s.history = append([]v1alpha1.TenureChange{c}, s.history...)
}

// report stores the history and who acts.
func (s *scene) report() {
	s.Helper()
	newest := s.history[0]
	s.took(newest.To, s.job, newest.Token)
	s.renew(s.now.Add(-200*time.Millisecond), 6)
	s.status(s.job, func(status *v1alpha1.SingletonJobStatus) {
		status.History, status.LeaseSummary = s.history, "6s/4s/500ms"
		status.ActivePod, status.ActiveNode, status.FencingToken = newest.To, newest.ToNode, newest.Token
		status.ActiveSince = new(metav1.NewTime(newest.Time.Time))
		status.Failovers, status.Handovers = 0, 0
		for _, c := range s.history {
			switch c.Type {
			case v1alpha1.Failover:
				status.Failovers++
			case v1alpha1.Handover:
				status.Handovers++
			case v1alpha1.Elected:
			}
		}
	})
}

// renew renews the Lease for some seconds.
func (s *scene) renew(at time.Time, seconds int32) {
	s.Helper()
	var l coordinationv1.Lease
	s.must(s.api.Get(s.Context(), types.NamespacedName{Namespace: s.namespace, Name: s.job.Name}, &l))
	l.Spec.RenewTime, l.Spec.LeaseDurationSeconds = new(metav1.NewMicroTime(at)), &seconds
	s.must(s.api.Update(s.Context(), &l))
}

func (s *scene) failedOver() {
	s.changed(v1alpha1.Failover, v1alpha1.ChangeLeaseExpired, "1", "0", 1006, 6989*time.Millisecond)
	s.now = s.now.Add(35 * time.Second)
	s.report()
}

func (s *scene) switchedOver() {
	s.now = s.now.Add(time.Minute)
	s.changed(v1alpha1.Handover, v1alpha1.ChangeSwitchoverRequested, "0", "1", 1169, 28*time.Millisecond)
	s.now = s.now.Add(8 * time.Second)
	s.report()
}

func (s *scene) suspended() {
	s.Helper()
	for _, ordinal := range []string{"0", "1"} {
		pod := &corev1.Pod{ObjectMeta: metav1.ObjectMeta{Namespace: s.namespace, Name: s.job.Name + "-752pq9t-" + ordinal}}
		s.must(s.api.Delete(s.Context(), pod, client.GracePeriodSeconds(0)))
	}
	s.released(s.job.Name)
	s.status(s.job, func(status *v1alpha1.SingletonJobStatus) {
		status.ActivePod, status.ActiveNode, status.ActiveSince, status.Candidates = "", "", nil, v1alpha1.CandidatesStatus{}
		for _, name := range []string{v1alpha1.ConditionActive, v1alpha1.ConditionProtected, v1alpha1.ConditionProgressing} {
			s.condition(status, name, v1alpha1.ReasonSuspended)
		}
	})
}

func (s *scene) resumed() {
	s.Helper()
	s.pod(s.job, "0", "node-a")
	s.pod(s.job, "1", "node-b")
	s.report()
}

// released takes the holder out of a job's Lease.
func (s *scene) released(job string) {
	s.Helper()
	var l coordinationv1.Lease
	s.must(s.api.Get(s.Context(), types.NamespacedName{Namespace: s.namespace, Name: job}, &l))
	l.Spec.HolderIdentity = new("")
	s.must(s.api.Update(s.Context(), &l))
}

// nightly creates a job with a schedule, in the morning after a run.
func (s *scene) nightly() {
	s.Helper()
	tick := time.Date(2026, 11, 23, 1, 30, 0, 0, time.UTC)
	s.now = tick.Add(8*time.Hour + 10*time.Minute)
	job := &v1alpha1.SingletonJob{
		ObjectMeta: metav1.ObjectMeta{Namespace: s.namespace, Name: "nightly"},
		Spec: v1alpha1.SingletonJobSpec{
			RunPolicy: v1alpha1.RunPolicyRunToCompletion, Schedule: &v1alpha1.Schedule{Cron: "30 2 * * *", TimeZone: "Europe/Berlin"}, Template: s.job.Spec.Template,
		},
	}
	s.must(s.api.Create(s.Context(), job))
	s.lease(job, &corev1.Pod{}, 48213)
	s.released(job.Name)
	s.status(job, func(status *v1alpha1.SingletonJobStatus) {
		*status = v1alpha1.SingletonJobStatus{
			ObservedGeneration: job.Generation, FencingToken: 48213, LeaseSummary: "15s/10s/2s", NextTick: new(metav1.NewTime(tick.Add(24 * time.Hour))),
			Runs: []v1alpha1.RunStatus{{
				ID: string(job.UID) + "/2026-11-23T01:30:00Z", Tick: new(metav1.NewTime(tick)), State: v1alpha1.ConditionComplete, Attempts: 1, Token: 48213,
				Pod: "nightly-752pq9t-1", ExitCode: new(int32(0)), StartTime: new(metav1.NewTime(tick)), EndTime: new(metav1.NewTime(tick.Add(251 * time.Second))),
			}},
		}
		s.condition(status, v1alpha1.ConditionActive, v1alpha1.ReasonNotDue)
		s.condition(status, v1alpha1.ConditionProtected, v1alpha1.ReasonResting)
		s.condition(status, v1alpha1.ConditionProgressing, v1alpha1.ReasonUpToDate)
	})
}

// unschedulable creates a job whose candidates find no node.
func (s *scene) unschedulable(name string) {
	s.Helper()
	w := s.world
	const message = "0/4 nodes are available: 4 node(s) didn't match Pod's node affinity/selector. preemption: 0/4 nodes are available: 4 Preemption is " +
		"not helpful for scheduling."
	job := w.job(name)
	for _, ordinal := range []string{"0", "1"} { // without a node
		pod := &corev1.Pod{ObjectMeta: metav1.ObjectMeta{Namespace: w.namespace, Name: name + "-752pq9t-" + ordinal}}
		w.must(w.api.Delete(w.Context(), pod, client.GracePeriodSeconds(0)))
		w.pod(job, ordinal, "")
	}
	s.released(name)
	for _, ordinal := range []string{"0", "1"} {
		pod := &corev1.Pod{ObjectMeta: metav1.ObjectMeta{Namespace: w.namespace, Name: name + "-752pq9t-" + ordinal}}
		w.must(w.api.Get(w.Context(), client.ObjectKeyFromObject(pod), pod))
		pod.Status = corev1.PodStatus{Phase: corev1.PodPending, Conditions: []corev1.PodCondition{{
			Type: corev1.PodScheduled, Status: corev1.ConditionFalse, Reason: corev1.PodReasonUnschedulable, Message: message,
		}}}
		w.must(w.api.Status().Update(w.Context(), pod))
	}
	w.status(job, func(s *v1alpha1.SingletonJobStatus) {
		s.ActivePod, s.ActiveNode, s.ActiveSince, s.FencingToken, s.History, s.Failovers = "", "", nil, 0, nil, 0
		s.Candidates.Ready = 0
		w.condition(s, v1alpha1.ConditionActive, v1alpha1.ReasonCandidatesNotReady)
		w.condition(s, v1alpha1.ConditionProtected, v1alpha1.ReasonNoHolder)
		w.condition(s, v1alpha1.ConditionProgressing, v1alpha1.ReasonCandidateStuck)
		for i := range s.Conditions {
			if s.Conditions[i].Type != v1alpha1.ConditionProtected {
				s.Conditions[i].Message = "a candidate is not ready: " + name + "-752pq9t-0: it can't be scheduled: " + message
			}
		}
	})
	w.must(w.api.Create(w.Context(), &corev1.Event{
		ObjectMeta: metav1.ObjectMeta{Namespace: w.namespace, Name: name + ".1"}, Type: corev1.EventTypeWarning, Reason: "FailedScheduling",
		Message: message, LastTimestamp: metav1.NewTime(s.now),
		InvolvedObject: corev1.ObjectReference{Namespace: w.namespace, Name: name + "-752pq9t-1", Kind: "Pod"},
	}))
}

// node creates a node that is ready, until the test ends.
func (w *world) node(name, zone string) {
	w.Helper()
	node := &corev1.Node{ObjectMeta: metav1.ObjectMeta{Name: name, Labels: map[string]string{corev1.LabelTopologyZone: zone}}}
	w.must(w.api.Create(w.Context(), node))
	w.Cleanup(func() { _ = w.api.Delete(context.Background(), node) })
	node.Status.Conditions = []corev1.NodeCondition{{Type: corev1.NodeReady, Status: corev1.ConditionTrue}}
	w.must(w.api.Status().Update(w.Context(), node))
}

// deployment creates a Deployment.
func (w *world) deployment(name string) {
	w.Helper()
	labels := map[string]string{"app": name}
	w.must(w.api.Create(w.Context(), &appsv1.Deployment{
		ObjectMeta: metav1.ObjectMeta{Namespace: w.namespace, Name: name},
		Spec: appsv1.DeploymentSpec{Replicas: new(int32(1)), Selector: &metav1.LabelSelector{MatchLabels: labels}, Template: corev1.PodTemplateSpec{
			ObjectMeta: metav1.ObjectMeta{Labels: labels},
			Spec:       corev1.PodSpec{Containers: []corev1.Container{{Name: "app", Image: name + ":1", Command: []string{"run"}}}},
		}},
	}))
}
