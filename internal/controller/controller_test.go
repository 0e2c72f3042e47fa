package controller

import (
	"fmt"
	"slices"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	coordinationv1 "k8s.io/api/coordination/v1"
	corev1 "k8s.io/api/core/v1"
	policyv1 "k8s.io/api/policy/v1"
	rbacv1 "k8s.io/api/rbac/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/singletonjob/operator/api/v1alpha1"
	"github.com/singletonjob/operator/internal/contract"
	"github.com/singletonjob/operator/internal/inject"
	"github.com/singletonjob/operator/internal/plan"
)

// served is a world whose job is in the state that its spec asks for.
func served(t *testing.T, change func(*v1alpha1.SingletonJobSpec)) *world {
	t.Helper()
	t.Parallel()
	w := newWorld(t)
	w.job(change)
	w.until("serving", w.serving)
	return w
}

// changes are the changes of holder in the status, oldest first.
func (w *world) changes() []string {
	w.t.Helper()
	var out []string
	for _, h := range slices.Backward(w.status().History) {
		out = append(out, string(h.Type)+" "+h.Reason)
	}
	return out
}

// records fails unless the status records exactly these changes, each with its Event, for all processes that were started.
func (w *world) records(want ...string) {
	w.t.Helper()
	if diff := cmp.Diff(want, w.changes()); diff != "" {
		w.t.Errorf("the history (-want +got):\n%s\n%s", diff, w.describe())
	}
	var tokens []int64
	for _, h := range slices.Backward(w.status().History) {
		tokens = append(tokens, h.Token)
	}
	if !slices.Equal(tokens, w.tenures) {
		w.t.Errorf("processes were started with the tokens %v, the history records %v", w.tenures, tokens)
	}
	w.announces()
}

// announces fails unless there is exactly one Event for each process that was started. Event names are unique by themselves, so two
// Events of one tenure would have different names.
func (w *world) announces() {
	w.t.Helper()
	job := w.read()
	announced := map[string]bool{}
	for _, e := range w.events() {
		if slices.Contains([]string{"Elected", "Failover", "Handover"}, e.Reason) {
			announced[e.Name] = e.InvolvedObject.UID == job.UID
		}
	}
	for _, token := range w.tenures {
		name := fmt.Sprintf("%s.tenure-%d", w.key.Name, token)
		if _, found := announced[name]; !found {
			w.t.Errorf("there is no Event %s", name)
		}
		delete(announced, name)
	}
	for name, ofThisJob := range announced {
		if ofThisJob {
			w.t.Errorf("the Event %s says what was not", name)
		}
	}
}

// agentsRights are the rules of the Role for a job with two candidates.
func (w *world) agentsRights() []rbacv1.PolicyRule {
	w.t.Helper()
	var names []string
	prefix, _ := strings.CutSuffix(w.pods()[0].Name, "0")
	for ordinal := range 4 { // two Pods more than candidates
		names = append(names, prefix+strconv.Itoa(ordinal))
	}
	return []rbacv1.PolicyRule{{
		APIGroups: []string{"coordination.k8s.io"}, Resources: []string{"leases"}, ResourceNames: []string{"job"}, Verbs: []string{"get", "watch", "update"},
	}, {
		APIGroups: []string{""}, Resources: []string{"pods"}, ResourceNames: names, Verbs: []string{"get"},
	}}
}

func TestNewJobIsServed(t *testing.T) {
	w := served(t, nil)
	w.records("Elected Elected")
	ctx := t.Context()
	child := types.NamespacedName{Namespace: w.key.Namespace, Name: plan.ChildName(w.key.Name)}
	var role rbacv1.Role
	w.must(w.api.Get(ctx, child, &role))
	want := w.agentsRights()
	if diff := cmp.Diff(want, role.Rules); diff != "" {
		t.Errorf("the agents may (-want +got):\n%s", diff)
	}
	job := w.read()
	for _, owned := range []client.Object{&role, &corev1.ServiceAccount{}, &rbacv1.RoleBinding{}, &policyv1.PodDisruptionBudget{}} {
		w.must(w.api.Get(ctx, child, owned))
		if !metav1.IsControlledBy(owned, job) {
			t.Errorf("%T is not the job's: %v", owned, owned.GetOwnerReferences())
		}
		if !slices.ContainsFunc(owned.GetOwnerReferences(), func(r metav1.OwnerReference) bool { return r.UID == w.lease().UID }) {
			t.Errorf("%T goes with the job, before its pods: %v", owned, owned.GetOwnerReferences())
		}
	}
	l := w.lease()
	if len(l.OwnerReferences) > 0 || l.Labels[contract.ManagedByLabel] != contract.ManagedBy || l.Labels[contract.NameLabel] != "job" {
		t.Errorf("the Lease has owners %v and labels %v", l.OwnerReferences, l.Labels)
	}
	s := job.Status
	if s.ActivePod != w.holder().name || s.ActiveNode != w.holder().node || s.FencingToken != w.tenures[0] || s.LeaseSummary != "5s/3s/1s" {
		t.Errorf("status %+v", s)
	}
	if c := condition(s, v1alpha1.ConditionProtected); c.Reason != v1alpha1.ReasonStandbyReady {
		t.Errorf("protected: %+v", c)
	}

	before := w.operators[0].writes
	for range 20 { // renewals continue, and cause no write
		w.round()
	}
	if o := w.operators[0]; o.writes != before {
		t.Errorf("nothing happens, but the operator writes: %v", o.log[before:])
	}
}

func TestProcessExits(t *testing.T) {
	w := served(t, nil)
	first := w.holder()
	first.exit(3)
	w.until("the standby has taken over", func() bool { return w.serving() && w.status().Failovers == 1 })
	w.records("Elected Elected", "Failover ProcessExited")
	h := w.status().History[0]
	if h.From != first.name || h.FromNode != first.node || h.FromToken != w.tenures[0] || h.To != w.holder().name || h.To == h.From || h.Downtime == nil {
		t.Errorf("%+v", h)
	}
	if s := w.status(); s.LastFailoverTime == nil || !s.LastFailoverTime.Time.Equal(h.Time.Truncate(time.Second)) {
		t.Errorf("the last failover was at %v, by the history at %v", s.LastFailoverTime, h.Time)
	}
}

func TestPodDeleted(t *testing.T) {
	w := served(t, nil)
	w.deletePod(w.holder().name)
	w.until("the standby has taken over and the pod is replaced", func() bool { return w.serving() && w.status().Handovers == 1 })
	w.records("Elected Elected", "Handover PodTerminating")
}

func (w *world) deletePod(name string) {
	w.t.Helper()
	w.must(w.api.Delete(w.t.Context(), &corev1.Pod{ObjectMeta: metav1.ObjectMeta{Namespace: w.key.Namespace, Name: name}}))
}

func TestNodeCutOff(t *testing.T) {
	w := served(t, nil)
	first := w.holder()
	w.cutOffNode(first.node)
	w.until("the holder is called unreachable", func() bool {
		s := w.status()
		return condition(s, v1alpha1.ConditionActive).Reason == v1alpha1.ReasonHolderUnreachable && s.ActivePod == ""
	})
	w.until("the standby has taken over", func() bool { return w.status().Failovers == 1 })
	if first.alive {
		t.Error("the process of the holder that was cut off still runs")
	}
	// The node lifecycle controller would delete the Pod. On a node that is cut off, the deletion never finishes.
	w.deletePod(first.name)
	w.until("it is replaced under another name", func() bool { return w.serving() && len(w.pods()) == 3 })
	w.records("Elected Elected", "Failover LeaseExpired")
	if names := w.names(); !slices.Contains(names, first.name) {
		t.Errorf("pods %v", names)
	}
	if d := w.status().History[0].Downtime.Duration; d < 4*time.Second || d > 7*time.Second {
		t.Errorf("a lease of 5s has run out, but nothing acted for %v", d)
	}
	w.reachNode(first.node)
	w.until("the node is back, and the old pod goes", func() bool { return w.serving() && len(w.pods()) == 2 })
	w.records("Elected Elected", "Failover LeaseExpired")
}

func (w *world) names() []string {
	var names []string
	for _, pod := range w.pods() {
		names = append(names, pod.Name)
	}
	return names
}

func TestHolderKnownDead(t *testing.T) {
	w := served(t, func(s *v1alpha1.SingletonJobSpec) {
		s.Lease.LeaseDuration.Duration, s.Lease.RenewDeadline.Duration = time.Hour, 30*time.Minute
	})
	for range 10 { // finishedAt has a precision of seconds, so the tenure must be older
		w.round()
	}
	w.kill(w.holder())
	killed := w.clock.Now()
	w.until("the standby has taken over", func() bool { return w.status().Failovers == 1 })
	w.records("Elected Elected", "Failover HolderTerminated")
	if took := w.clock.Now().Sub(killed); took > 2*time.Second {
		t.Errorf("it took %v, want at most 2s whatever the lease", took)
	}
}

func TestNodeOutOfService(t *testing.T) {
	w := served(t, func(s *v1alpha1.SingletonJobSpec) {
		s.Lease.LeaseDuration.Duration, s.Lease.RenewDeadline.Duration = time.Hour, 30*time.Minute
	})
	taint := func() {
		var node corev1.Node
		w.must(w.api.Get(t.Context(), types.NamespacedName{Name: w.holder().node}, &node))
		node.Spec.Taints = append(node.Spec.Taints, corev1.Taint{Key: corev1.TaintNodeOutOfService, Effect: corev1.TaintEffectNoExecute})
		w.must(w.api.Update(t.Context(), &node))
	}
	taint()
	for range 30 {
		w.round()
	}
	if got := w.status(); got.Failovers > 0 || got.ActivePod == "" && w.holder() == nil {
		t.Fatalf("the holder renews, so its node is in service whatever the taint says: %+v", got)
	}
	first := w.holder()
	first.alive, first.stopped, first.frozen = false, true, true
	w.cutOff[first.node] = true
	w.until("the standby has taken over", func() bool { return w.status().Failovers == 1 })
	w.records("Elected Elected", "Failover NodeLost")
}

// image changes the template's image.
func (w *world) image(name string) {
	w.t.Helper()
	w.edit(func(job *v1alpha1.SingletonJob) { job.Spec.Template.Spec.Containers[0].Image = name })
}

func (w *world) holderRuns(image string) func() bool {
	return func() bool { return w.holder() != nil && w.holder().image == image }
}

// warm fails unless a standby is ready.
func (w *world) warm() {
	w.t.Helper()
	for _, pod := range w.pods() {
		if a := w.agents[pod.UID]; a != nil && !a.alive && podReady(&pod) && pod.DeletionTimestamp == nil {
			return
		}
	}
	w.t.Fatalf("no warm standby\n%s", w.describe())
}

func TestRollout(t *testing.T) {
	for _, candidates := range []int32{2, 3} {
		t.Run(fmt.Sprint(candidates, " candidates"), func(t *testing.T) {
			w := served(t, func(s *v1alpha1.SingletonJobSpec) { s.Candidates = candidates })
			w.tick = 800 * time.Millisecond // a trial is long
			w.image("v2")
			w.until("all are new", func() bool {
				w.warm()
				return w.serving() && w.holder().image == "v2" && len(w.pods()) == int(candidates)
			})
			w.records("Elected Elected", "Handover RolloutHandover")
		})
	}
}

func TestRolloutOfOneCandidate(t *testing.T) {
	w := served(t, func(s *v1alpha1.SingletonJobSpec) { s.Candidates = 1 })
	w.image("v2")
	w.until("it is replaced", func() bool { return w.serving() && w.holderRuns("v2")() })
	w.records("Elected Elected", "Handover PodTerminating")
}

func TestRolloutThatDoesNotStart(t *testing.T) {
	w := served(t, nil)
	w.broken["v2"] = true
	w.image("v2")
	w.until("it is stalled", func() bool {
		return condition(w.status(), v1alpha1.ConditionProgressing).Reason == v1alpha1.ReasonRolloutStalled
	})
	for range 20 {
		w.round()
		w.warm()
	}
	if !w.holderRuns("v1")() {
		t.Error("the old version does not go on")
	}
	w.records("Elected Elected")
	w.tick = 800 * time.Millisecond
	w.image("v3")
	w.until("a good one is rolled out", func() bool {
		w.warm()
		return w.serving() && w.holder().image == "v3"
	})
	w.records("Elected Elected", "Handover RolloutHandover")
}

func TestRolloutThatEndsAtOnce(t *testing.T) {
	w := served(t, nil)
	w.crashing["v2"] = true
	w.image("v2")
	w.until("the old version is back", func() bool {
		return w.status().Failovers > 0 && w.holderRuns("v1")()
	})
	tried := len(w.tenures)
	for range 50 {
		w.round()
	}
	if !w.holderRuns("v1")() || len(w.tenures) != tried {
		t.Errorf("it is tried again: %v", w.changes())
	}
	if c := condition(w.status(), v1alpha1.ConditionProgressing); c.Reason != v1alpha1.ReasonRolloutStalled {
		t.Errorf("progressing: %+v", c)
	}
	w.tick = 800 * time.Millisecond
	w.image("v3")
	w.until("a good one is rolled out", func() bool { return w.serving() && w.holder().image == "v3" })
}

// TestPodsThatKubeletsReject checks that the operator stores what it must know about earlier Pods on the Pods themselves.
func TestPodsThatKubeletsReject(t *testing.T) {
	w := newWorld(t)
	w.rejected["v1"] = true
	w.tick = time.Second
	w.job(nil)
	made := map[types.UID]bool{}
	for i := range 60 {
		w.round()
		pods := w.pods()
		for _, pod := range pods {
			made[pod.UID] = true
		}
		if i > 0 && (len(pods) == 0 || len(pods) > 4) {
			t.Fatalf("round %d: %d pods\n%s", i, len(pods), w.describe())
		}
		if i%5 == 0 {
			w.operators[0].restart()
		}
	}
	if len(made) > 10 { // two at first, then two again after 0, 10, 30 and 70 s
		t.Errorf("%d pods were made in a minute", len(made))
	}
	for _, name := range []string{v1alpha1.ConditionActive, v1alpha1.ConditionProgressing} {
		c := condition(w.status(), name)
		if c.Reason != v1alpha1.ReasonPodsFailing || !strings.Contains(c.Message, `: failed: SysctlForbidden: forbidden sysctl: "kernel.msgmax" not allowlisted`) {
			t.Errorf("condition %+v", c)
		}
	}
	w.image("v2")
	w.until("another template is tried at once", w.serving)
	if n := len(w.pods()); n != 2 {
		t.Errorf("%d pods are left\n%s", n, w.describe())
	}
}

func TestScale(t *testing.T) {
	w := served(t, nil)
	for _, n := range []int32{4, 2, 1, 3} {
		w.edit(func(job *v1alpha1.SingletonJob) { job.Spec.Candidates = n })
		w.until(fmt.Sprint(n, " candidates"), func() bool { return w.serving() && len(w.pods()) == int(n) })
	}
	w.records("Elected Elected")
}

func TestSuspend(t *testing.T) {
	w := served(t, nil)
	w.edit(func(job *v1alpha1.SingletonJob) { job.Spec.Suspend = true })
	w.until("suspended", func() bool {
		return len(w.pods()) == 0 && condition(w.status(), v1alpha1.ConditionActive).Reason == v1alpha1.ReasonSuspended
	})
	if s := w.status(); w.lease() == nil || s.FencingToken == 0 || s.ActivePod != "" || len(s.History) != 1 {
		t.Errorf("Lease %v, status %+v", w.lease(), s)
	}
	w.edit(func(job *v1alpha1.SingletonJob) { job.Spec.Suspend = false })
	w.until("serving again", w.serving)
	w.records("Elected Elected", "Handover PodTerminating")
}

func TestTokenBaseRaised(t *testing.T) {
	for _, candidates := range []int32{1, 2} {
		t.Run(fmt.Sprint(candidates, " candidates"), func(t *testing.T) {
			w := served(t, func(s *v1alpha1.SingletonJobSpec) { s.Candidates = candidates })
			const base = 1_000_000_000_000
			w.edit(func(job *v1alpha1.SingletonJob) { job.Spec.Fencing.TokenBase = base })
			w.until("a tenure above the base", func() bool { return w.serving() && w.status().FencingToken > base })
			for range 20 {
				w.round()
			}
			w.records("Elected Elected", "Handover TokenBaseRaised")
		})
	}
}

// TestNamespaceTerminating: if nothing can be created any more, status still follows, and the operator tries nothing in vain.
func TestNamespaceTerminating(t *testing.T) {
	w := served(t, nil)
	w.must(w.api.Delete(t.Context(), &corev1.Namespace{ObjectMeta: metav1.ObjectMeta{Name: w.key.Namespace}}))
	w.operators[0].restart() // so it emits again Events that it may have emitted before
	w.holder().exit(3)
	w.until("the standby has taken over", func() bool { return w.status().Failovers == 1 })
}

func (w *world) deleteLease() {
	w.t.Helper()
	if n := len(w.acted); n > 0 {
		w.acted[n-1].deleted = true
	}
	w.must(w.api.Delete(w.t.Context(), &coordinationv1.Lease{ObjectMeta: metav1.ObjectMeta{Namespace: w.key.Namespace, Name: w.key.Name}}))
}

func TestLeaseDeleted(t *testing.T) {
	w := served(t, nil)
	w.deleteLease()
	deleted := w.clock.Now()
	w.until("another tenure", func() bool { return w.serving() && len(w.tenures) == 2 })
	w.records("Elected Elected", "Failover LeaseDeleted")
	if since := w.status().History[0].Time.Sub(deleted); since < 5*time.Second {
		t.Errorf("the next tenure began %v after the Lease was deleted; the old holder might have lived for 5s", since)
	}
	if !slices.ContainsFunc(w.events(), func(e corev1.Event) bool { return e.Reason == "LeaseMissing" }) {
		t.Error("no Event says that the Lease was deleted")
	}
}

func TestLeaseDeletedWhileNoOperatorRuns(t *testing.T) {
	w := served(t, nil)
	operators := w.operators
	w.operators = nil
	w.deleteLease()
	for range 10 {
		w.round()
	}
	operators[0].restart()
	w.operators = operators
	w.until("another tenure", func() bool { return w.serving() && len(w.tenures) == 2 })
	w.records("Elected Elected", "Failover LeaseDeleted")
}

// children are all objects here that have an owner.
func (w *world) children() []client.Object {
	w.t.Helper()
	var owned []client.Object
	for _, list := range []client.ObjectList{&corev1.PodList{}, &corev1.ServiceAccountList{}, &rbacv1.RoleList{}, &rbacv1.RoleBindingList{}, &policyv1.PodDisruptionBudgetList{}, &corev1.ServiceList{}} {
		w.must(w.api.List(w.t.Context(), list, client.InNamespace(w.key.Namespace)))
		for _, o := range objects(w.t, list) {
			if metav1.GetControllerOf(o) != nil {
				owned = append(owned, o)
			}
		}
	}
	return owned
}

// collectGarbage does the work of the garbage collector: it deletes objects without any existing owner, and removes deleted owners
// from objects that have another owner.
func (w *world) collectGarbage(gone types.UID) {
	w.t.Helper()
	l := w.lease()
	for _, o := range w.children() {
		if metav1.GetControllerOf(o).UID != gone || o.GetDeletionTimestamp() != nil {
			continue
		}
		left := slices.DeleteFunc(o.GetOwnerReferences(), func(r metav1.OwnerReference) bool {
			return r.UID == gone || r.Kind == "Lease" && (l == nil || r.UID != l.UID)
		})
		if len(left) == 0 {
			w.must(client.IgnoreNotFound(w.api.Delete(w.t.Context(), o)))
			continue
		}
		o.SetOwnerReferences(left)
		w.must(client.IgnoreNotFound(w.api.Update(w.t.Context(), o)))
	}
}

func TestJobDeleted(t *testing.T) {
	w := served(t, nil)
	job := w.read()
	w.must(w.api.Delete(t.Context(), job))
	for range 5 {
		w.round()
	}
	if w.lease() == nil {
		t.Fatal("the Lease is deleted while its holder runs")
	}
	w.collectGarbage(job.UID)
	w.until("the Lease is collected", func() bool { return w.lease() == nil })
	if len(w.pods()) > 0 {
		t.Errorf("the Lease is collected while there are pods: %v", w.names())
	}
}

// TestJobDeletedAndRecreated: the Lease outlives its job, so that the new job's candidates wait for the old holder, which is cut
// off at that moment and keeps running.
func TestJobDeletedAndRecreated(t *testing.T) {
	w := served(t, nil)
	job, first := w.read(), w.holder()
	w.cutOff[first.node] = true
	w.must(w.api.Delete(t.Context(), job))
	w.collectGarbage(job.UID)
	for _, pod := range w.pods() {
		w.force(&pod)
	}
	token := w.tenures[0]
	w.tenures = nil
	w.job(nil)
	w.until("the new job serves", w.serving)
	w.records("Elected Elected")
	if w.status().FencingToken <= token {
		t.Errorf("token %d after %d", w.status().FencingToken, token)
	}
	if got := w.status(); got.Failovers+got.Handovers != 0 {
		t.Errorf("the new job counts changes of the old one: %+v", got)
	}
}

// TestLeaseAndJobDeletedAndRecreated: only the operator's memory still knows the holder.
func TestLeaseAndJobDeletedAndRecreated(t *testing.T) {
	w := served(t, nil)
	job, first := w.read(), w.holder()
	w.cutOff[first.node] = true
	w.must(w.api.Delete(t.Context(), job))
	w.collectGarbage(job.UID)
	for _, pod := range w.pods() {
		w.force(&pod)
	}
	w.deleteLease()
	w.tenures = nil
	w.job(nil)
	w.until("the new job serves", w.serving)
	w.records("Elected Elected")
}

func TestForeignLease(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	foreign := &coordinationv1.Lease{ObjectMeta: metav1.ObjectMeta{Namespace: w.key.Namespace, Name: w.key.Name}}
	w.must(w.api.Create(t.Context(), foreign))
	w.job(nil)
	for range 5 {
		w.round()
	}
	if c := condition(w.status(), v1alpha1.ConditionActive); c.Reason != v1alpha1.ReasonLeaseConflict || !strings.Contains(c.Message, "does not belong to this operator") {
		t.Errorf("active: %+v", c)
	}
	if len(w.pods()) > 0 || w.lease().ResourceVersion != foreign.ResourceVersion {
		t.Error("something was touched")
	}
	w.must(w.api.Delete(t.Context(), foreign))
	w.until("it serves once the Lease is gone", w.serving)
}

// TestAnotherElectorOnTheLease: an elector of client-go took the Lease. The status names it, and candidates wait for its full
// duration.
func TestAnotherElectorOnTheLease(t *testing.T) {
	w := served(t, nil)
	l := w.lease()
	l.Spec.HolderIdentity, l.Spec.LeaseDurationSeconds = new("web-0_6a1f6ee4"), new(int32(8))
	l.Spec.RenewTime = &metav1.MicroTime{Time: w.clock.Now()}
	w.must(w.api.Update(t.Context(), l))
	began := w.clock.Now()
	w.until("it is named", func() bool {
		c := condition(w.status(), v1alpha1.ConditionActive)
		return c.Reason == v1alpha1.ReasonForeignHolder && strings.Contains(c.Message, `"web-0_6a1f6ee4" holds the Lease`)
	})
	w.until("it is over", w.serving)
	if took := w.clock.Now().Sub(began); took < 8*time.Second {
		t.Errorf("a candidate took over after %v", took)
	}
	warned := 0
	for _, e := range w.events() {
		if e.Reason == v1alpha1.ReasonForeignHolder && e.Type == corev1.EventTypeWarning && strings.Contains(e.Message, "web-0_6a1f6ee4") {
			warned++
		}
	}
	if warned != 1 {
		t.Errorf("%d Events name it", warned)
	}
}

func TestForeignServiceAccount(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	foreign := &corev1.ServiceAccount{ObjectMeta: metav1.ObjectMeta{Namespace: w.key.Namespace, Name: plan.ChildName(w.key.Name)}}
	w.must(w.api.Create(t.Context(), foreign))
	w.job(nil)
	w.until("it says so", func() bool {
		c := condition(w.status(), v1alpha1.ConditionActive)
		return c.Reason == v1alpha1.ReasonFailedCreate && strings.Contains(c.Message, "ServiceAccount "+w.key.Namespace+"/job-singletonjob exists and does not belong to this SingletonJob")
	})
	after := foreign.DeepCopy()
	w.must(w.api.Get(t.Context(), client.ObjectKeyFromObject(foreign), after))
	if after.ResourceVersion != foreign.ResourceVersion {
		t.Errorf("it was touched: %v", after.OwnerReferences)
	}
	w.must(w.api.Delete(t.Context(), foreign))
	w.until("it serves once that is gone", w.serving)
}

func TestFailedCreate(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	w.plane.EnforcePodSecurity(t, w.key.Namespace)
	w.job(nil) // its template is not
	w.until("it says so", func() bool {
		c := condition(w.status(), v1alpha1.ConditionActive)
		return c.Reason == v1alpha1.ReasonFailedCreate && strings.Contains(c.Message, "violates PodSecurity")
	})
	if n := len(slices.DeleteFunc(w.events(), func(e corev1.Event) bool { return e.Reason != v1alpha1.ReasonFailedCreate })); n != 1 {
		t.Errorf("%d Events say that pods are refused", n)
	}
	var namespace corev1.Namespace
	w.must(w.api.Get(t.Context(), types.NamespacedName{Name: w.key.Namespace}, &namespace))
	delete(namespace.Labels, "pod-security.kubernetes.io/enforce")
	w.must(w.api.Update(t.Context(), &namespace))
	w.until("it serves once they are not", w.serving)
}

// TestFailedCreateInARollout: the operator deletes no Pod whose replacement it cannot create.
func TestFailedCreateInARollout(t *testing.T) {
	w := served(t, func(s *v1alpha1.SingletonJobSpec) { s.Candidates = 1 })
	w.edit(func(job *v1alpha1.SingletonJob) { job.Spec.Template.Spec.PriorityClassName = "absent" })
	w.until("it says so", func() bool {
		c := condition(w.status(), v1alpha1.ConditionProgressing)
		return c.Reason == v1alpha1.ReasonFailedCreate && strings.Contains(c.Message, "no PriorityClass with name absent")
	})
	w.edit(func(job *v1alpha1.SingletonJob) { job.Spec.Template.Spec.PriorityClassName = "" })
	w.until("it is up to date", w.serving)
	w.records("Elected Elected")
}

// TestABindingToAnotherRole: a binding's role is immutable, so the binding is recreated.
func TestABindingToAnotherRole(t *testing.T) {
	w := served(t, nil)
	var binding rbacv1.RoleBinding
	child := types.NamespacedName{Namespace: w.key.Namespace, Name: plan.ChildName(w.key.Name)}
	w.must(w.api.Get(t.Context(), child, &binding))
	w.must(w.api.Delete(t.Context(), &binding))
	binding.UID, binding.ResourceVersion, binding.RoleRef.Name = "", "", "theirs"
	w.must(w.api.Create(t.Context(), &binding))
	w.until("it binds to ours", func() bool {
		var now rbacv1.RoleBinding
		return w.api.Get(t.Context(), child, &now) == nil && now.RoleRef.Name == child.Name && metav1.IsControlledBy(&now, w.read())
	})
	w.until("serving", w.serving)
}

// TestAdoptionKeepsOtherOwners: owners that others gave a Pod stay.
func TestAdoptionKeepsOtherOwners(t *testing.T) {
	w := served(t, nil)
	pod := w.pods()[0]
	theirs := metav1.OwnerReference{APIVersion: "v1", Kind: "ConfigMap", Name: "theirs", UID: "11111111-0000-4000-8000-000000000000"}
	pod.OwnerReferences = []metav1.OwnerReference{theirs}
	w.must(w.api.Update(t.Context(), &pod))
	w.until("adopted", func() bool { p := w.pods()[0]; return metav1.IsControlledBy(&p, w.read()) })
	if got := w.pods()[0].OwnerReferences; !slices.Contains(got, theirs) {
		t.Errorf("the owners are %+v", got)
	}
}

// TestJobBeingDeleted: while a finalizer keeps the job, its Pods live, and status and roles follow. The operator creates nothing.
func TestJobBeingDeleted(t *testing.T) {
	w := served(t, nil)
	w.edit(func(job *v1alpha1.SingletonJob) { job.Finalizers = []string{"example.com/theirs"} })
	w.must(w.api.Delete(t.Context(), w.read()))
	first := w.holder().name
	w.deletePod(first)
	w.until("the standby is active", func() bool { s := w.status(); return s.ActivePod != "" && s.ActivePod != first })
	for range 10 {
		w.round()
	}
	pods := w.pods()
	if len(pods) != 1 || pods[0].Labels[contract.RoleLabel] != contract.RoleActive {
		t.Errorf("there are %v", w.names())
	}
	if c := condition(w.status(), v1alpha1.ConditionProgressing); c.Reason != v1alpha1.ReasonDeleting {
		t.Errorf("progressing: %+v", c)
	}
	w.records("Elected Elected", "Handover PodTerminating")
	w.edit(func(job *v1alpha1.SingletonJob) { job.Finalizers = nil })
}

// TestTheOperatorDoesNotDelayATakeover: the operator postpones its writes to the Lease of a holder that stopped renewing.
func TestTheOperatorDoesNotDelayATakeover(t *testing.T) {
	w := served(t, nil)
	w.cutOffNode(w.holder().node)
	cut := w.clock.Now()
	for w.clock.Now().Sub(cut) < 2500*time.Millisecond {
		w.round()
	}
	w.edit(func(job *v1alpha1.SingletonJob) { job.Spec.Fencing.TokenBase = 1_000_000 })
	w.until("the standby has taken over", func() bool { return w.status().Failovers == 1 })
	if took := w.status().History[0].Time.Sub(cut); took > 6*time.Second {
		t.Errorf("the lease is 5s, it took %v", took)
	}
	w.until("a higher token", func() bool { return w.status().FencingToken > 1_000_000 })
}

// TestPodsWithoutLabels: a Pod whose labels somebody removed blocks its name.
func TestPodsWithoutLabels(t *testing.T) {
	w := served(t, nil)
	pods := w.pods()
	taken := pods[slices.IndexFunc(pods, func(p corev1.Pod) bool { return p.Name != w.holder().name })]
	label := func(value any) {
		patch := fmt.Sprintf(`{"metadata":{"labels":{%q:%s}}}`, contract.NameLabel, value)
		w.must(w.api.Patch(t.Context(), &taken, client.RawPatch(types.MergePatchType, []byte(patch))))
	}
	label("null")
	w.until("it says so", func() bool {
		c := condition(w.status(), v1alpha1.ConditionProgressing)
		return c.Reason == v1alpha1.ReasonFailedCreate && strings.Contains(c.Message, "the Pod "+w.key.Namespace+"/"+taken.Name+" exists without the label")
	})
	label(`"job"`)
	w.until("it serves again", w.serving)
}

// TestStatusAnswerLost: a stored status counts as recorded even if its response was lost.
func TestStatusAnswerLost(t *testing.T) {
	w := served(t, nil)
	w.operators[0].loses = "update status"
	w.holder().exit(3)
	w.until("the standby has taken over", func() bool { return w.serving() && w.status().Failovers == 1 })
	w.records("Elected Elected", "Failover ProcessExited")
}

// TestOperatorDown: the Lease records what happens while the operator is down.
func TestOperatorDown(t *testing.T) {
	w := served(t, nil)
	operators := w.operators
	w.operators = nil
	for n := 2; n <= 5; n++ {
		w.holder().exit(1)
		w.until("a failover", func() bool { return len(w.tenures) == n && w.holder() != nil })
	}
	operators[0].restart()
	w.operators = operators
	w.until("serving", func() bool { return w.serving() && w.status().Failovers == 4 })
	w.records("Elected Elected", "Failover ProcessExited", "Failover ProcessExited", "Failover ProcessExited", "Failover ProcessExited")
}

// TestOperatorRestartedAfterAnOutage: no holder has renewed for an hour, and a new process has not seen that.
func TestOperatorRestartedAfterAnOutage(t *testing.T) {
	w := served(t, nil)
	for _, node := range w.nodes {
		w.cutOffNode(node)
	}
	w.clock.SetTime(w.clock.Now().Add(time.Hour))
	w.operators[0].restart()
	began := w.clock.Now()
	w.until("it says that nothing is active", func() bool {
		s := w.status()
		return s.ActivePod == "" && condition(s, v1alpha1.ConditionActive).Status == metav1.ConditionFalse
	})
	if took := w.clock.Now().Sub(began); took >= 3*time.Second {
		t.Errorf("that took %v, as long as to see it oneself", took)
	}
}

func TestStatusWiped(t *testing.T) {
	w := served(t, nil)
	w.holder().exit(1)
	w.until("a failover", func() bool { return w.serving() && w.status().Failovers == 1 })
	job := w.read()
	job.Status = v1alpha1.SingletonJobStatus{}
	w.must(w.api.Status().Update(t.Context(), job))
	w.until("recorded again", w.serving)
	w.records("Elected Elected", "Failover ProcessExited")
}

// TestOrphansOfADeletedJobAreLeft: the Pods lose their owner before the operator's cache shows that the job is deleted. If the
// operator adopted them, they would be deleted.
func TestOrphansOfADeletedJobAreLeft(t *testing.T) {
	for name, after := range map[string]func(*world){
		"it goes":       func(*world) {},
		"it is gone":    func(w *world) { w.finish() },
		"it came again": func(w *world) { w.finish(); w.job(nil) },
	} {
		t.Run(name, func(t *testing.T) {
			w := served(t, nil)
			job := w.read()
			job.Finalizers = []string{metav1.FinalizerOrphanDependents}
			w.must(w.api.Update(t.Context(), job))
			old := newLaggingCache(w, nil)
			old.lag()
			w.must(w.api.Delete(t.Context(), job))
			for _, pod := range w.pods() {
				pod.OwnerReferences = nil
				w.must(w.api.Update(t.Context(), &pod))
			}
			after(w)
			pods := &corev1.PodList{}
			w.must(w.api.List(t.Context(), pods, client.InNamespace(w.key.Namespace)))
			old.kinds[kindOf(pods)] = pods
			o := w.operators[0]
			o.cache = old
			o.reconcile()
			for _, pod := range w.pods() {
				if owner := metav1.GetControllerOf(&pod); owner != nil {
					t.Errorf("%s is owned by %s", pod.Name, owner.UID)
				}
			}
		})
	}
}

// finish removes the job's finalizers.
func (w *world) finish() {
	job := w.read()
	job.Finalizers = nil
	w.must(w.api.Update(w.t.Context(), job))
}

// TestOrphansAreAdopted: Pods left by kubectl delete --cascade=orphan become candidates of this job, even with an old template.
func TestOrphansAreAdopted(t *testing.T) {
	w := served(t, nil)
	job := w.read()
	w.must(w.api.Delete(t.Context(), job))
	for _, o := range w.children() {
		o.SetOwnerReferences(nil)
		w.must(w.api.Update(t.Context(), o))
	}
	w.round()
	w.job(nil)
	w.tick = 800 * time.Millisecond
	w.until("rolled to the new job's own", func() bool { return w.serving() && len(w.pods()) == 2 })
	hash := inject.Hash(w.read())
	for _, name := range w.names() {
		if !strings.Contains(name, hash) {
			t.Errorf("%s is not the new job's", name)
		}
	}
	w.records("Elected Elected", "Handover RolloutHandover")
}
