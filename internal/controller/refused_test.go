package controller

import (
	"context"
	"fmt"
	"net"
	"slices"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	admissionv1 "k8s.io/api/admissionregistration/v1"
	coordinationv1 "k8s.io/api/coordination/v1"
	corev1 "k8s.io/api/core/v1"
	policyv1 "k8s.io/api/policy/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/util/retry"
	"k8s.io/utils/clock"
	ctrl "sigs.k8s.io/controller-runtime"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/config"
	metricsserver "sigs.k8s.io/controller-runtime/pkg/metrics/server"

	"github.com/singletonjob/operator/api/v1alpha1"
	"github.com/singletonjob/operator/internal/contract"
	"github.com/singletonjob/operator/internal/inject"
)

// refuse makes the API server refuse to create objects of a kind in the world's namespace, each time with a different text. The server
// asks a webhook that resets every connection, and calls counts the calls.
func (w *world) refuse(rule admissionv1.Rule, sample client.Object) (calls *atomic.Int64) {
	w.t.Helper()
	return w.hook(rule, sample, func(connection net.Conn) {
		_ = connection.(*net.TCPConn).SetLinger(0)
		_ = connection.Close()
	})
}

// hook has the API server ask a webhook before it creates objects of a kind in the world's namespace, and counts the calls.
func (w *world) hook(rule admissionv1.Rule, sample client.Object, answer func(net.Conn)) (calls *atomic.Int64) {
	w.t.Helper()
	listener, err := (&net.ListenConfig{}).Listen(w.t.Context(), "tcp", "127.0.0.1:0")
	w.must(err)
	w.t.Cleanup(func() { _ = listener.Close() })
	calls = new(atomic.Int64)
	go func() {
		for {
			connection, err := listener.Accept()
			if err != nil {
				return
			}
			calls.Add(1)
			go func() {
				_, _ = connection.Read(make([]byte, 1)) // otherwise the client fails to connect, and its error has no local port
				answer(connection)
			}()
		}
	}()
	hook := &admissionv1.ValidatingWebhookConfiguration{
		ObjectMeta: metav1.ObjectMeta{Name: "refuse-" + w.key.Namespace},
		Webhooks: []admissionv1.ValidatingWebhook{{
			Name: "refuse.example.com", FailurePolicy: new(admissionv1.Fail), SideEffects: new(admissionv1.SideEffectClassNone),
			AdmissionReviewVersions: []string{"v1"}, TimeoutSeconds: new(int32(30)),
			ClientConfig:      admissionv1.WebhookClientConfig{URL: new("https://" + listener.Addr().String())},
			NamespaceSelector: &metav1.LabelSelector{MatchLabels: map[string]string{corev1.LabelMetadataName: w.key.Namespace}},
			Rules:             []admissionv1.RuleWithOperations{{Operations: []admissionv1.OperationType{admissionv1.Create}, Rule: rule}},
		}},
	}
	s := runtime.NewScheme()
	w.must(admissionv1.AddToScheme(s))
	api, err := client.New(w.plane.Config(), client.Options{Scheme: s})
	w.must(err)
	w.must(api.Create(w.t.Context(), hook))
	w.t.Cleanup(func() { _ = api.Delete(context.Background(), hook) })
	for calls.Load() == 0 { // the API server learns of it a little later
		sample.SetNamespace(w.key.Namespace)
		sample.SetName("sample")
		asking, cancel := context.WithTimeout(w.t.Context(), 200*time.Millisecond)
		_ = w.api.Create(asking, sample.DeepCopyObject().(client.Object), client.DryRunAll)
		cancel()
	}
	return calls
}

// TestTheBudgetIsRefused: objects that no Pod needs block no Pod, and roles wait for nothing.
func TestTheBudgetIsRefused(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	w.refuse(admissionv1.Rule{APIGroups: []string{"policy"}, APIVersions: []string{"v1"}, Resources: []string{"poddisruptionbudgets"}},
		&policyv1.PodDisruptionBudget{})
	w.job(nil)
	ready := func() bool { s := w.status(); return s.ActivePod != "" && s.Candidates.Ready == 2 }
	w.until("it serves", ready)
	if c := condition(w.status(), v1alpha1.ConditionProgressing); c.Reason != v1alpha1.ReasonFailedCreate || !strings.Contains(c.Message, "create PodDisruptionBudget") {
		t.Errorf("progressing: %+v", c)
	}
	w.deletePod(w.holder().name)
	w.until("the standby is active and the pod replaced", func() bool { return ready() && w.status().Handovers == 1 })
	for _, pod := range w.pods() {
		if holds := pod.Name == w.holder().name; (pod.Labels[contract.RoleLabel] == contract.RoleActive) != holds {
			t.Errorf("%s is labelled %s", pod.Name, pod.Labels[contract.RoleLabel])
		}
	}
}

// TestEventsAreRefused: refused Events block nothing and are not retried in a loop. They are written when that is allowed again.
func TestEventsAreRefused(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	o := w.operators[0]
	asked := 0
	o.refuses = func(_ string, obj client.Object) bool {
		_, is := obj.(*corev1.Event)
		if is {
			asked++
		}
		return is
	}
	w.job(nil)
	w.until("it serves", w.serving)
	w.holder().exit(1)
	w.until("it failed over", func() bool { return w.serving() && w.status().Failovers == 1 })
	asked = 0
	w.clock.SetTime(w.clock.Now().Add(time.Second)) // after its last renewal, so that the plan has a time for the next reconcile
	result, err := o.r.Reconcile(t.Context(), ctrl.Request{NamespacedName: w.key})
	if err != nil || result.RequeueAfter <= 0 || result.RequeueAfter > 3*time.Second || asked == 0 {
		t.Errorf("comes back after %v, %v, with %d Events refused; want when the holder would have stopped renewing", result.RequeueAfter, err, asked)
	}
	w.edit(func(job *v1alpha1.SingletonJob) { job.Spec.Suspend = true })
	w.until("suspended", func() bool { return len(w.pods()) == 0 })
	for range 5 {
		w.clock.SetTime(w.clock.Now().Add(5 * time.Minute))
		w.round()
	}
	if result, err := o.r.Reconcile(t.Context(), ctrl.Request{NamespacedName: w.key}); err != nil || result.RequeueAfter < time.Minute {
		t.Errorf("after an hour of refusals it comes back after %v, %v", result.RequeueAfter, err)
	}
	o.refuses = nil
	w.edit(func(job *v1alpha1.SingletonJob) { job.Spec.Suspend = false })
	w.until("it serves again", w.serving)
	w.until("the failover's Event", func() bool {
		return slices.ContainsFunc(w.events(), func(e corev1.Event) bool { return e.Reason == string(v1alpha1.Failover) })
	})
}

// TestALeaseIsRefused: the status reports the refused write, and it is made when that is allowed again.
func TestALeaseIsRefused(t *testing.T) {
	w := served(t, nil)
	w.operators[0].refuses = func(_ string, obj client.Object) bool {
		_, is := obj.(*coordinationv1.Lease)
		return is
	}
	w.edit(func(job *v1alpha1.SingletonJob) { job.Spec.Fencing.TokenBase = 1_000_000 })
	w.until("the status records it", func() bool {
		c := condition(w.status(), v1alpha1.ConditionProgressing)
		return c.Reason == v1alpha1.ReasonFailedUpdate && strings.Contains(c.Message, "write the Lease "+w.key.String())
	})
	w.operators[0].refuses = nil
	w.clock.SetTime(w.clock.Now().Add(refusalLimit))
	w.until("a higher token", func() bool { return w.serving() && w.status().FencingToken > 1_000_000 })
}

// TestRolesAreRefused: traffic reaches no Pod, but lost Pods are replaced, and the status gives the reason.
func TestRolesAreRefused(t *testing.T) {
	w := served(t, nil)
	w.operators[0].refuses = func(verb string, obj client.Object) bool {
		_, is := obj.(*corev1.Pod)
		return is && verb == "patch"
	}
	w.deletePod(w.holder().name)
	acts := func() bool {
		s := w.status()
		return s.Handovers == 1 && s.ActivePod != "" && s.Candidates.Ready == 2
	}
	w.until("the next one acts", acts)
	for _, pod := range w.pods() { // a role has to be changed now
		if pod.Name != w.holder().name {
			w.deletePod(pod.Name)
			w.until("a pod is lost", func() bool { return !acts() })
		}
	}
	w.until("it is replaced", acts)
	if c := condition(w.status(), v1alpha1.ConditionProgressing); c.Reason != v1alpha1.ReasonFailedUpdate || !strings.Contains(c.Message, "change pod") {
		t.Errorf("progressing: %+v", c)
	}
	w.operators[0].refuses = nil
	w.clock.SetTime(w.clock.Now().Add(refusalLimit))
	w.until("it serves", w.serving)
	if pod, labelled := w.holder().name, w.pods(); !slices.ContainsFunc(labelled, func(p corev1.Pod) bool {
		return p.Name == pod && p.Labels[contract.RoleLabel] == contract.RoleActive
	}) {
		t.Errorf("%s is not labelled active", pod)
	}
}

// TestADeletionIsRefused: one Pod is protected. The others are deleted, and this one is deleted when that is allowed again.
func TestADeletionIsRefused(t *testing.T) {
	w := served(t, func(s *v1alpha1.SingletonJobSpec) { s.Candidates = 4 })
	protected := ""
	w.operators[0].refuses = func(verb string, obj client.Object) bool {
		if _, is := obj.(*corev1.Pod); !is || verb != "delete" {
			return false
		}
		if protected == "" {
			protected = obj.GetName() // the first one that must be deleted
		}
		return obj.GetName() == protected
	}
	w.edit(func(job *v1alpha1.SingletonJob) { job.Spec.Candidates = 2 })
	w.until("the other one goes", func() bool { return len(w.pods()) == 3 })
	if c := condition(w.status(), v1alpha1.ConditionProgressing); c.Reason != v1alpha1.ReasonFailedDelete || !strings.Contains(c.Message, "delete pod "+w.key.Namespace+"/"+protected) {
		t.Errorf("progressing: %+v", c)
	}
	w.operators[0].refuses = nil
	w.until("it goes too", func() bool { return w.serving() && len(w.pods()) == 2 })
}

// policy makes the API server itself refuse what an expression denies, until lift is called. It returns when the server refuses probe, a
// request that changes nothing.
func (w *world) policy(operation admissionv1.OperationType, group, resource, allows string, probe func(client.Client) error) (lift func()) {
	w.t.Helper()
	s := scheme(w.t)
	w.must(admissionv1.AddToScheme(s))
	api, err := client.New(w.plane.Config(), client.Options{Scheme: s})
	w.must(err)
	name := strings.ToLower(string(operation)) + "-" + resource + "-" + w.key.Namespace
	policy := &admissionv1.ValidatingAdmissionPolicy{
		ObjectMeta: metav1.ObjectMeta{Name: name},
		Spec: admissionv1.ValidatingAdmissionPolicySpec{
			FailurePolicy: new(admissionv1.Fail),
			MatchConstraints: &admissionv1.MatchResources{ResourceRules: []admissionv1.NamedRuleWithOperations{{RuleWithOperations: admissionv1.RuleWithOperations{
				Operations: []admissionv1.OperationType{operation},
				Rule:       admissionv1.Rule{APIGroups: []string{group}, APIVersions: []string{"v1"}, Resources: []string{resource}},
			}}}},
			Validations: []admissionv1.Validation{{Expression: allows, Message: "not in this namespace", Reason: new(metav1.StatusReasonForbidden)}},
		},
	}
	binding := &admissionv1.ValidatingAdmissionPolicyBinding{
		ObjectMeta: metav1.ObjectMeta{Name: name},
		Spec: admissionv1.ValidatingAdmissionPolicyBindingSpec{
			PolicyName: name, ValidationActions: []admissionv1.ValidationAction{admissionv1.Deny},
			MatchResources: &admissionv1.MatchResources{NamespaceSelector: &metav1.LabelSelector{MatchLabels: map[string]string{corev1.LabelMetadataName: w.key.Namespace}}},
		},
	}
	w.must(api.Create(w.t.Context(), policy))
	w.t.Cleanup(func() { _ = api.Delete(context.Background(), policy) })
	w.must(api.Create(w.t.Context(), binding))
	w.t.Cleanup(func() { _ = api.Delete(context.Background(), binding) })
	await := func(refused bool) { // the API server learns of it a little later
		w.t.Helper()
		for began := time.Now(); apierrors.IsForbidden(probe(api)) != refused; time.Sleep(20 * time.Millisecond) {
			if time.Since(began) > time.Minute {
				w.t.Fatalf("a policy has no effect: refused: %t", !refused)
			}
		}
	}
	await(true)
	return func() {
		w.t.Helper()
		w.must(api.Delete(w.t.Context(), binding))
		await(false)
	}
}

// TestAPolicyRefuses: an admission policy of the API server refuses a label, a deletion, or a change of the Lease. Active and Progressing
// say which kind of request is refused, once by an Event, and the operator makes the request when it is allowed again.
func TestAPolicyRefuses(t *testing.T) {
	t.Parallel()
	anyPod := func(w *world) client.Object { return &w.pods()[0] }
	for name, c := range map[string]struct {
		operation       admissionv1.OperationType
		group, resource string
		allows          string
		probe           func(w *world, api client.Client) error
		act             func(w *world)
		reason, says    string
		done            func(w *world) bool
	}{
		"a label": {
			operation: admissionv1.Update, resource: "pods",
			allows: fmt.Sprintf("object.metadata.?labels[?%[1]q] == oldObject.metadata.?labels[?%[1]q]", contract.RoleLabel),
			probe: func(w *world, api client.Client) error {
				return api.Patch(t.Context(), anyPod(w), client.RawPatch(types.MergePatchType, []byte(`{"metadata":{"labels":{"`+contract.RoleLabel+`":"probe"}}}`)), client.DryRunAll)
			},
			act:    func(w *world) { w.deletePod(w.holder().name) },
			reason: v1alpha1.ReasonFailedUpdate, says: "change pod ",
			done: func(w *world) bool {
				return slices.ContainsFunc(w.pods(), func(p corev1.Pod) bool {
					return p.Name == w.status().ActivePod && p.Labels[contract.RoleLabel] == contract.RoleActive
				})
			},
		},
		"a deletion": {
			operation: admissionv1.Delete, resource: "pods", allows: "false",
			probe:  func(w *world, api client.Client) error { return api.Delete(t.Context(), anyPod(w), client.DryRunAll) },
			act:    func(w *world) { w.edit(func(job *v1alpha1.SingletonJob) { job.Spec.Candidates = 1 }) },
			reason: v1alpha1.ReasonFailedDelete, says: "delete pod ",
			done: func(w *world) bool { return len(w.pods()) == 1 },
		},
		"a change of the Lease": {
			operation: admissionv1.Update, group: "coordination.k8s.io", resource: "leases",
			allows: fmt.Sprintf("object.metadata.?annotations[?%[1]q] == oldObject.metadata.?annotations[?%[1]q]", contract.TokenBaseAnnotation),
			probe: func(w *world, api client.Client) error {
				return api.Patch(t.Context(), w.lease(), client.RawPatch(types.MergePatchType, []byte(`{"metadata":{"annotations":{"`+contract.TokenBaseAnnotation+`":"1"}}}`)), client.DryRunAll)
			},
			act:    func(w *world) { w.edit(func(job *v1alpha1.SingletonJob) { job.Spec.Fencing.TokenBase = 1_000_000 }) },
			reason: v1alpha1.ReasonFailedUpdate, says: "write the Lease ",
			done: func(w *world) bool { return w.status().FencingToken > 1_000_000 },
		},
	} {
		t.Run(name, func(t *testing.T) {
			w := served(t, nil)
			lift := w.policy(c.operation, c.group, c.resource, c.allows, func(api client.Client) error { return c.probe(w, api) })
			c.act(w)
			w.until("the refusal is reported", func() bool {
				s := w.status()
				p, r := condition(s, v1alpha1.ConditionProgressing), condition(s, v1alpha1.ConditionReady)
				return s.ActivePod != "" && p.Reason == c.reason && r.Reason == c.reason && strings.Contains(p.Message, c.says) && strings.Contains(p.Message, "not in this namespace")
			})
			for range 5 {
				w.clock.SetTime(w.clock.Now().Add(time.Second))
				w.round()
			}
			if n := len(slices.DeleteFunc(w.events(), func(e corev1.Event) bool { return e.Reason != c.reason || e.Type != corev1.EventTypeWarning })); n != 1 {
				t.Errorf("%d Events say %s, want 1", n, c.reason)
			}
			if c.done(w) {
				t.Error("the policy does not refuse what the test needs")
			}
			lift()
			w.clock.SetTime(w.clock.Now().Add(refusalLimit))
			w.until("it is done", func() bool { return w.serving() && c.done(w) })
		})
	}
}

// TestRefusalsAreRetriedWithBackoff: the operator as it runs, triggered by its own writes like by others, retries refused requests with a
// backoff, although the text of the refusal differs each time.
func TestRefusalsAreRetriedWithBackoff(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	calls := w.refuse(admissionv1.Rule{APIGroups: []string{""}, APIVersions: []string{"v1"}, Resources: []string{"pods"}},
		&corev1.Pod{Spec: corev1.PodSpec{Containers: []corev1.Container{{Name: "c", Image: "i"}}}})
	asItRuns(t, w)
	w.job(nil)
	job := awaitReason(t, w, v1alpha1.ReasonFailedCreate)
	if !strings.Contains(condition(job.Status, v1alpha1.ConditionActive).Message, "127.0.0.1") {
		t.Fatalf("the text has nothing that differs each time: %+v", job.Status.Conditions)
	}
	// Work that started earlier can end late on a busy machine; a loop has no quiet period. Refused requests are retried after as
	// long as they have been refused, so a quiet period before that proves nothing.
	for while := 5 * time.Second; ; while *= 2 {
		before, first := calls.Load(), w.read().ResourceVersion
		time.Sleep(while)
		job = w.read()
		asked, again := calls.Load()-before, job.ResourceVersion != first
		if asked > 0 && asked <= 6 && !again {
			return
		}
		if while > time.Minute {
			t.Fatalf("asked %d times in %v; the status was written again: %t, %+v", asked, while, again, job.Status.Conditions)
		}
	}
}

// TestALeaseWithAnotherJobsLabel: it belongs to the job of its name, as for the agents, and its changes are recorded.
func TestALeaseWithAnotherJobsLabel(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	asItRuns(t, w)
	w.job(nil)
	awaitReason(t, w, v1alpha1.ReasonCandidatesNotReady)
	for _, change := range []func(*coordinationv1.Lease){
		func(l *coordinationv1.Lease) { l.Labels[contract.NameLabel] = "another" },
		func(l *coordinationv1.Lease) { delete(l.Labels, contract.NameLabel) },
	} {
		w.changeLease(change)
		time.Sleep(time.Second) // its last change under the old label
		w.changeLease(func(l *coordinationv1.Lease) { l.Spec.HolderIdentity = new("somebody") })
		awaitReason(t, w, v1alpha1.ReasonForeignHolder)
		w.changeLease(func(l *coordinationv1.Lease) {
			l.Spec.HolderIdentity, l.Labels[contract.NameLabel] = new(""), w.key.Name
		})
		awaitReason(t, w, v1alpha1.ReasonCandidatesNotReady)
	}
}

// changeLease acts as a user with kubectl.
func (w *world) changeLease(change func(*coordinationv1.Lease)) {
	w.t.Helper()
	w.must(retry.RetryOnConflict(retry.DefaultRetry, func() error {
		l := w.lease()
		change(l)
		return w.api.Update(w.t.Context(), l)
	}))
}

// asItRuns runs the operator for a world, triggered by its watches.
func asItRuns(t *testing.T, w *world) {
	t.Helper()
	m, err := ctrl.NewManager(w.plane.Config(), ctrl.Options{
		Scheme: scheme(t), Cache: CacheOptions([]string{w.key.Namespace}), Metrics: metricsserver.Options{BindAddress: "0"},
		Controller: config.Controller{SkipNameValidation: new(true)},
	})
	w.must(err)
	r := New(m.GetClient(), m.GetAPIReader(), clock.RealClock{}, inject.Settings{AgentImage: "agent"})
	ctx, cancel := context.WithCancel(context.WithoutCancel(t.Context())) // must end before the API server does
	w.must(r.SetupWithManager(ctx, m, 1))
	ended := make(chan error)
	go func() { ended <- m.Start(ctx) }()
	t.Cleanup(func() {
		cancel()
		w.must(<-ended)
	})
	w.api = unmemoized(t, w) // other clients write to this API server too
}

// awaitReason waits until the job's status has a reason.
func awaitReason(t *testing.T, w *world, reason string) *v1alpha1.SingletonJob {
	t.Helper()
	for began := time.Now(); ; time.Sleep(20 * time.Millisecond) {
		job := w.read()
		if condition(job.Status, v1alpha1.ConditionActive).Reason == reason {
			return job
		}
		if time.Since(began) > 5*time.Minute {
			t.Fatalf("nothing gives the reason %s: %+v", reason, job.Status.Conditions)
		}
	}
}

// unmemoized is a client for a world to which others write.
func unmemoized(t *testing.T, w *world) client.WithWatch {
	t.Helper()
	api, err := client.NewWithWatch(w.plane.Config(), client.Options{Scheme: scheme(t)})
	w.must(err)
	return api
}
