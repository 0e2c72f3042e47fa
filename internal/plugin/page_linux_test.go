package plugin

import (
	"context"
	"flag"
	"io"
	"os"
	"regexp"
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
)

var updatePage = flag.Bool("update", false, "rewrite the output in docs/kubectl.md, with ages of minutes: takes 5 minutes")

const page = "../../docs/kubectl.md"

// TestPage runs the commands of docs/kubectl.md in the order of the page, on a terminal of 80 columns, against a real API server. Their
// output must be the page's, except for times and how lines wrap. Commands that wait for an operator, or read a kubelet's log, are not run.
func TestPage(t *testing.T) {
	raw, err := os.ReadFile(page)
	if err != nil {
		t.Fatal(err)
	}
	w := newWorld(t)
	w.must(w.api.Create(t.Context(), &corev1.Namespace{ObjectMeta: metav1.ObjectMeta{Name: "demo"}}))
	w.must(w.api.Create(t.Context(), &corev1.ServiceAccount{ObjectMeta: metav1.ObjectMeta{Namespace: "demo", Name: "default"}}))
	w.namespace = "demo"
	w.node("node-a", "eu-1a")
	w.node("node-b", "eu-1b")
	s := w.ledger()
	if *updatePage {
		time.Sleep(109 * time.Second)
	}
	scenes := []struct {
		command string
		before  func()
	}{
		{"status ledger", s.failedOver},
		{"why report", func() { w.unschedulable("report") }},
		{"why ledger", s.renew},
		{"history ledger", nil},
		{"token ledger -o wide", nil},
		{"status ledger", s.switchedOver},
		{"adopt deployment/billing --dry-run", func() { w.deployment("billing") }},
		{"status ledger", s.suspended},
		{"status ledgr", nil},
		{"status --as viewer", nil},
		{"switchover ledger --to=nobody", s.resumed},
	}
	text := string(raw)
	at := 0
	for _, scene := range scenes {
		prompt := "\n$ kubectl singleton " + scene.command
		i := strings.Index(text[at:], prompt)
		if i < 0 {
			t.Fatalf("the page does not have, behind the command before it: %q", prompt[1:])
		}
		begin := at + i + len(prompt)
		begin += strings.IndexByte(text[begin:], '\n') + 1 // behind "; echo status $?"
		size := len(text[begin:])
		for _, end := range []string{"\n$ ", "\n```", "\nstatus 3\n"} {
			if n := strings.Index(text[begin:], end); n >= 0 {
				size = min(size, n+1)
			}
		}
		if scene.before != nil {
			scene.before()
		}
		got := w.onTerminal(80, strings.Fields(scene.command)...)
		if *updatePage {
			text = text[:begin] + got + text[begin+size:]
			size = len(got)
		} else if want := text[begin : begin+size]; timeless(want) != timeless(got) {
			t.Errorf("%s prints\n%s\nand the page has\n%s\n(go test ./internal/plugin -run TestPage -update rewrites it)", scene.command, got, want)
		}
		at = begin + size - 1 // the end of the last line
	}
	if *updatePage {
		w.must(os.WriteFile(page, []byte(text), 0o644))
	}
}

var durations = regexp.MustCompile(`\b(\d+(\.\d+)?(ms|s|m|h|d))+\b`)

// timeless is the words of a text without times, and without what depends on their length: where lines wrap, and whether names are whole.
func timeless(text string) string {
	text = strings.NewReplacer("│", " ", "├", " ", "└", " ", "─", " ", "ledger-752pq9t", "…752pq9t").Replace(durations.ReplaceAllString(text, "T"))
	return strings.Join(strings.Fields(text), " ")
}

// onTerminal runs a command on a terminal without colours, and returns what it shows.
func (w *world) onTerminal(columns uint16, args ...string) string {
	w.Helper()
	w.Setenv("NO_COLOR", "1")
	person, program := pty(w.T, columns, 60)
	shown := make(chan string)
	go func() {
		raw, _ := io.ReadAll(person)
		shown <- strings.ReplaceAll(string(raw), "\r\n", "\n")
	}()
	args = append([]string{"--kubeconfig=" + w.kubeconfig, "-n", w.namespace}, args...)
	Run(w.Context(), args, genericiooptions.IOStreams{In: strings.NewReader(""), Out: program, ErrOut: program})
	_ = program.Close()
	return <-shown
}

// scene is the job of the page.
type scene struct {
	*world
	job     *v1alpha1.SingletonJob
	history []v1alpha1.TenureChange // newest first
	lease   time.Duration
}

func (w *world) ledger() *scene {
	w.Helper()
	s := &scene{world: w, job: w.job("ledger"), lease: time.Hour} // a slow machine does not let it run out
	if *updatePage {
		s.lease = 6 * time.Second
	}
	start := time.Now()
	s.changed(start, v1alpha1.Elected, v1alpha1.ChangeElected, "", "1", 531, 0)
	s.changed(start.Add(8*time.Second), v1alpha1.Failover, v1alpha1.ChangeProcessExited, "1", "0", 656, 13*time.Millisecond)
	s.changed(start.Add(27*time.Second), v1alpha1.Failover, v1alpha1.ChangeLeaseExpired, "0", "1", 716, 6085*time.Millisecond)
	return s
}

// changed adds a change of holder to the history. Pods are named by their ordinals.
func (s *scene) changed(at time.Time, kind v1alpha1.TenureChangeType, reason, from, to string, token int64, down time.Duration) {
	nodes := map[string]string{"": "", "0": "node-a", "1": "node-b"}
	pod := func(ordinal string) string {
		if ordinal == "" {
			return ""
		}
		return s.job.Name + "-752pq9t-" + ordinal
	}
	c := v1alpha1.TenureChange{
		Time: metav1.NewMicroTime(at), Type: kind, Reason: reason, From: pod(from), FromNode: nodes[from], To: pod(to), ToNode: nodes[to], Token: token,
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
	s.renew()
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

// renew renews the Lease now.
func (s *scene) renew() {
	s.Helper()
	var l coordinationv1.Lease
	s.must(s.api.Get(s.Context(), types.NamespacedName{Namespace: s.namespace, Name: s.job.Name}, &l))
	l.Spec.RenewTime, l.Spec.LeaseDurationSeconds = new(metav1.NowMicro()), new(int32(s.lease/time.Second))
	s.must(s.api.Update(s.Context(), &l))
}

func (s *scene) failedOver() {
	s.changed(time.Now(), v1alpha1.Failover, v1alpha1.ChangeLeaseExpired, "1", "0", 1006, 6989*time.Millisecond)
	s.report()
	if *updatePage {
		time.Sleep(35 * time.Second)
		s.renew()
	}
}

func (s *scene) switchedOver() {
	s.changed(time.Now(), v1alpha1.Handover, v1alpha1.ChangeSwitchoverRequested, "0", "1", 1169, 28*time.Millisecond)
	s.report()
	if *updatePage {
		time.Sleep(8 * time.Second)
		s.renew()
	}
}

func (s *scene) suspended() {
	s.Helper()
	for _, ordinal := range []string{"0", "1"} {
		pod := &corev1.Pod{ObjectMeta: metav1.ObjectMeta{Namespace: s.namespace, Name: s.job.Name + "-752pq9t-" + ordinal}}
		s.must(s.api.Delete(s.Context(), pod, client.GracePeriodSeconds(0)))
	}
	var l coordinationv1.Lease
	s.must(s.api.Get(s.Context(), types.NamespacedName{Namespace: s.namespace, Name: s.job.Name}, &l))
	l.Spec.HolderIdentity = new("")
	s.must(s.api.Update(s.Context(), &l))
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

// unschedulable creates a job whose candidates find no node.
func (w *world) unschedulable(name string) {
	w.Helper()
	const message = "0/4 nodes are available: 4 node(s) didn't match Pod's node affinity/selector. preemption: 0/4 nodes are available: 4 Preemption is " +
		"not helpful for scheduling."
	job := w.job(name)
	for _, ordinal := range []string{"0", "1"} { // without a node
		pod := &corev1.Pod{ObjectMeta: metav1.ObjectMeta{Namespace: w.namespace, Name: name + "-752pq9t-" + ordinal}}
		w.must(w.api.Delete(w.Context(), pod, client.GracePeriodSeconds(0)))
		w.pod(job, ordinal, "")
	}
	var l coordinationv1.Lease
	w.must(w.api.Get(w.Context(), types.NamespacedName{Namespace: w.namespace, Name: name}, &l))
	l.Spec.HolderIdentity = new("")
	w.must(w.api.Update(w.Context(), &l))
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
		Message: message, LastTimestamp: metav1.Now(),
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
