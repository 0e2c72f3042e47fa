package plugin

import (
	"strings"
	"testing"

	coordinationv1 "k8s.io/api/coordination/v1"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/singletonjob/operator/api/v1alpha1"
	"github.com/singletonjob/operator/internal/contract"
)

// TestSwitchover: the request has the format that the operator reads, --wait waits for another tenure, and impossible requests are
// not sent.
func TestSwitchover(t *testing.T) {
	w := newWorld(t)
	job := w.job("billing")
	w.says(ExitError, "billing-752pq9t-1 is already active; ready standbys: billing-752pq9t-0", "switchover", "billing", "--to", "billing-752pq9t-1")
	w.says(ExitError, "billing-2 is not a candidate of billing; ready standbys: billing-752pq9t-0", "switchover", "billing", "--to", "billing-2")
	w.says(ExitOK, "billing-752pq9t-0\n", "__complete", "switchover", "billing", "--to", "")
	w.says(ExitOK, "asked to hand over", "switchover", "sj/billing", "--to", "pod/billing-752pq9t-0")
	w.asks(job, contract.SwitchoverAnnotation, "billing-752pq9t-0@7001")

	ended := make(chan struct{})
	go func() {
		defer close(ended)
		w.says(ExitOK, "asked to hand over", "switchover", "billing", "--wait", "--timeout=0")
	}()
	w.until(job, func() bool { return job.Annotations[contract.SwitchoverAnnotation] == "*@7001" })
	w.took("billing-752pq9t-0", job, 8002) // a new holder of the Lease is not active before the operator reports it
	w.status(job, func(s *v1alpha1.SingletonJobStatus) { s.ActivePod, s.FencingToken = "billing-752pq9t-0", 8002 })
	<-ended

	w.pod(job, "2", "node-c")
	ended = make(chan struct{})
	go func() {
		defer close(ended)
		w.says(ExitOK, "asked to hand over", "switchover", "billing", "--to=billing-752pq9t-2", "--wait", "--timeout=0")
	}()
	w.until(job, func() bool { return job.Annotations[contract.SwitchoverAnnotation] == "billing-752pq9t-2@8002" })
	w.tookOver(job, "billing-752pq9t-2", 9003)
	<-ended
	ended = make(chan struct{})
	go func() { // the process ends by itself, and another standby is faster
		defer close(ended)
		status, _, errOut := w.run("switchover", "billing", "--to=billing-752pq9t-0", "--wait", "--timeout=0")
		if status != ExitError || !strings.Contains(errOut, "error: billing-752pq9t-1 took over, not billing-752pq9t-0") {
			t.Errorf("a switchover to a Pod that did not take over ended with %d:\n%s", status, errOut)
		}
	}()
	w.until(job, func() bool { return job.Annotations[contract.SwitchoverAnnotation] == "billing-752pq9t-0@9003" })
	w.tookOver(job, "billing-752pq9t-1", 10004)
	<-ended

	w.status(job, func(s *v1alpha1.SingletonJobStatus) { s.ActivePod = "" })
	w.says(ExitError, "no process is active, so there is nothing to hand over; see kubectl singleton why billing", "switchover", "billing")
}

// TestSwitchoverWithoutStandby: an impossible request is refused at once.
func TestSwitchoverWithoutStandby(t *testing.T) {
	w := newWorld(t)
	job := w.job("billing")
	standby := &corev1.Pod{ObjectMeta: metav1.ObjectMeta{Namespace: w.namespace, Name: "billing-752pq9t-0"}}
	w.must(w.api.Get(t.Context(), client.ObjectKeyFromObject(standby), standby))
	standby.Status.Conditions[0].Status = corev1.ConditionFalse
	w.must(w.api.Status().Update(t.Context(), standby))
	w.says(ExitError, "billing-752pq9t-0 is not ready to take over; no standby is ready", "switchover", "billing", "--to=billing-752pq9t-0")
	w.says(ExitError, "no standby is ready; see kubectl singleton why billing", "switchover", "billing")
	w.asks(job, contract.SwitchoverAnnotation, "")
}

// TestRestart checks that --wait waits until no candidate from before is left, whatever the status says. For a moment the status
// says that all is well, because an annotation does not change the generation.
func TestRestart(t *testing.T) {
	w := newWorld(t)
	job := w.job("billing")
	const waits = "waiting: for 2 old candidates to end"
	if status, _, errOut := w.run("restart", "billing", "--wait", "--timeout=2s"); status != ExitError || !strings.Contains(errOut, "timed out after 2s") {
		t.Errorf("while nothing happens it ended with %d:\n%s", status, errOut)
	} else if !strings.Contains(errOut, waits) {
		t.Logf("on this slow machine it did not get to %q", waits)
	}
	w.until(job, func() bool { return true })
	first := job.Annotations[contract.RestartedAtAnnotation]
	ended := make(chan struct{})
	go func() {
		defer close(ended)
		w.says(ExitOK, "singletonjob.singletonjob.io/billing restarted", "restart", "billing", "--wait", "--timeout=0")
	}()
	w.until(job, func() bool { return job.Annotations[contract.RestartedAtAnnotation] != first })
	for _, ordinal := range []string{"0", "1"} {
		pod := &corev1.Pod{ObjectMeta: metav1.ObjectMeta{Namespace: w.namespace, Name: "billing-752pq9t-" + ordinal}}
		w.must(w.api.Delete(t.Context(), pod, client.GracePeriodSeconds(0)))
		w.pod(job, "new"+ordinal, "node-c")
	}
	w.took("billing-752pq9t-new1", job, 8002)
	w.status(job, func(s *v1alpha1.SingletonJobStatus) { s.ActivePod, s.FencingToken = "billing-752pq9t-new1", 8002 })
	<-ended
}

// asks fails unless a job has an annotation.
func (w *world) asks(job *v1alpha1.SingletonJob, name, want string) {
	w.Helper()
	w.must(w.api.Get(w.Context(), client.ObjectKeyFromObject(job), job))
	if got := job.Annotations[name]; got != want {
		w.Fatalf("the annotation %s is %q, want %q", name, got, want)
	}
}

// tookOver makes a Pod the holder of the Lease, and has the operator report it.
func (w *world) tookOver(job *v1alpha1.SingletonJob, pod string, token int64) {
	w.Helper()
	w.took(pod, job, token)
	w.status(job, func(s *v1alpha1.SingletonJobStatus) {
		s.ActivePod, s.FencingToken = pod, token
		s.History = append([]v1alpha1.TenureChange{{Time: metav1.NowMicro(), Type: v1alpha1.Handover, Reason: v1alpha1.ChangeSwitchoverRequested, To: pod, Token: token}}, s.History...)
	})
}

// took makes a Pod the holder of the Lease.
func (w *world) took(name string, job *v1alpha1.SingletonJob, token int64) {
	w.Helper()
	pod := &corev1.Pod{ObjectMeta: metav1.ObjectMeta{Namespace: w.namespace, Name: name}}
	w.must(w.api.Get(w.Context(), client.ObjectKeyFromObject(pod), pod))
	var l coordinationv1.Lease
	w.must(w.api.Get(w.Context(), client.ObjectKeyFromObject(job), &l))
	now := metav1.NowMicro()
	l.Annotations[contract.TokenAnnotation] = itoa(token)
	l.Spec.HolderIdentity, l.Spec.AcquireTime, l.Spec.RenewTime = new(pod.Name+"/"+string(pod.UID)+"/nonce"), &now, &now
	w.must(w.api.Update(w.Context(), &l))
}
