package controller

import (
	"errors"
	"fmt"
	"os"
	"regexp"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"github.com/prometheus/client_golang/prometheus"
	coordinationv1 "k8s.io/api/coordination/v1"
	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/types"
	"sigs.k8s.io/controller-runtime/pkg/event"

	"github.com/singletonjob/operator/api/v1alpha1"
	"github.com/singletonjob/operator/internal/contract"
	"github.com/singletonjob/operator/internal/lease"
	"github.com/singletonjob/operator/internal/plan"
)

func aLease() *coordinationv1.Lease {
	l := newLease(types.NamespacedName{Namespace: "ns", Name: "job"}, &plan.LeaseWrite{
		Record: lease.Record{
			Holder: "p/u/n", Token: 7, Transitions: 3, Duration: 15 * time.Second, AcquireTime: 1_700_000_000_000_001,
			RenewTime: 1_700_000_000_000_002, TokenBase: 5,
			History: []lease.PastTenure{{Token: 7, Pod: "p", Node: "n", Acquired: 1}},
		},
		Claim: plan.Claim{JobUID: "job-uid", Before: 2},
	})
	l.UID, l.ResourceVersion = "lease-uid", "41"
	return l
}

func TestLeaseObjectRoundTrip(t *testing.T) {
	l := aLease()
	l.Annotations["other"] = "kept"
	read, err := decode(l)
	if err != nil {
		t.Fatal(err)
	}
	again := written(l, read.Record, read.Claim)
	if diff := cmp.Diff(l, again); diff != "" {
		t.Errorf("-want +got:\n%s", diff)
	}
	read.Record = read.Record.Released(lease.Release{Reason: lease.ReasonNodeLost, Unclean: true}, 9, 1_700_000_000_000_009)
	released, err := decode(written(l, read.Record, read.Claim))
	if err != nil {
		t.Fatal(err)
	}
	if diff := cmp.Diff(read.Record, released.Record); diff != "" || !released.Record.Free() {
		t.Errorf("-want +got:\n%s", diff)
	}
	delete(l.Labels, contract.ManagedByLabel)
	if foreign, err := decode(l); err != nil || foreign.Presence != plan.Foreign || foreign.Record.Token != 0 {
		t.Errorf("a Lease without the label is read as %+v, %v", foreign, err)
	}
}

func TestOnlyRenewals(t *testing.T) {
	for name, c := range map[string]struct {
		change  func(*coordinationv1.Lease)
		renewal bool
	}{
		"renewed": {func(l *coordinationv1.Lease) {
			l.ResourceVersion, l.Spec.RenewTime = "42", &metav1.MicroTime{Time: time.Unix(1_800_000_000, 0)}
		}, true},
		"another holder":     {func(l *coordinationv1.Lease) { l.Spec.HolderIdentity = new("q/v/m") }, false},
		"released":           {func(l *coordinationv1.Lease) { l.Annotations[contract.ReleaseReasonAnnotation] = "x" }, false},
		"asked to hand over": {func(l *coordinationv1.Lease) { l.Annotations[contract.HandoverToAnnotation] = "*" }, false},
		"another duration":   {func(l *coordinationv1.Lease) { l.Spec.LeaseDurationSeconds = new(int32(9)) }, false},
		"another label":      {func(l *coordinationv1.Lease) { l.Labels["x"] = "y" }, false},
		"recreated":          {func(l *coordinationv1.Lease) { l.UID = "another" }, false},
	} {
		before, after := aLease(), aLease()
		c.change(after)
		if got := onlyRenewed(before, after); got != c.renewal {
			t.Errorf("%s: only a renewal: %v, want %v", name, got, c.renewal)
		}
	}
}

func TestObservedRenewals(t *testing.T) {
	m, l := newMemory(), aLease()
	version := 100
	see := func(what string, want bool) {
		t.Helper()
		version++
		l.ResourceVersion = fmt.Sprint(version)
		decoded, err := decode(l)
		if err != nil {
			t.Fatal(err)
		}
		for range 2 {
			if renewed := m.observe(l, decoded, time.Now()).Renewed; renewed != want {
				t.Errorf("%s: renewed %v", what, renewed)
			}
		}
	}
	see("it is there", false)
	l.Annotations = map[string]string{"somebody's": "note"}
	see("somebody writes it", false)
	l.Spec.RenewTime = &metav1.MicroTime{Time: l.Spec.RenewTime.Add(-time.Hour)} // its node's clock was set back
	see("it is renewed", true)
	l.Annotations["somebody's"] = "other"
	see("somebody writes it again", true)
	l.Spec.HolderIdentity = new("another/uid/n")
	see("somebody writes another holder", false)
	l.Spec.RenewTime = &metav1.MicroTime{Time: l.Spec.RenewTime.Add(time.Second)}
	see("who renews", true)
	l.UID = "made-anew"
	see("it is another Lease", false)
}

// TestChangesThatTriggerReconcile: the operator's own status writes trigger no reconcile; other changes of a job do.
func TestChangesThatTriggerReconcile(t *testing.T) {
	job := func(change func(*v1alpha1.SingletonJob)) *v1alpha1.SingletonJob {
		j := &v1alpha1.SingletonJob{ObjectMeta: metav1.ObjectMeta{UID: "u", Generation: 2, ResourceVersion: "1"}}
		j.Status.FencingToken, j.Status.ObservedGeneration = 7, 2
		change(j)
		return j
	}
	for name, c := range map[string]struct {
		change func(*v1alpha1.SingletonJob)
		wakes  bool
	}{
		"another text":     {change: func(j *v1alpha1.SingletonJob) { j.Status.Conditions = []metav1.Condition{{Message: "port 1"}} }},
		"more is recorded": {change: func(j *v1alpha1.SingletonJob) { j.Status.FencingToken = 8 }},
		"wiped":            {change: func(j *v1alpha1.SingletonJob) { j.Status = v1alpha1.SingletonJobStatus{} }, wakes: true},
		"spec":             {change: func(j *v1alpha1.SingletonJob) { j.Generation++ }, wakes: true},
		"annotation":       {change: func(j *v1alpha1.SingletonJob) { j.Annotations = map[string]string{"a": "b"} }, wakes: true},
		"label":            {change: func(j *v1alpha1.SingletonJob) { j.Labels = map[string]string{"a": "b"} }, wakes: true},
		"deleted":          {change: func(j *v1alpha1.SingletonJob) { j.DeletionTimestamp = &metav1.Time{Time: time.Unix(1, 0)} }, wakes: true},
		"recreated":        {change: func(j *v1alpha1.SingletonJob) { j.UID = "v" }, wakes: true},
	} {
		e := event.UpdateEvent{ObjectOld: job(func(*v1alpha1.SingletonJob) {}), ObjectNew: job(c.change)}
		if got := jobChanged.Update(e); got != c.wakes {
			t.Errorf("%s: wakes %v, want %v", name, got, c.wakes)
		}
	}
}

func TestMemory(t *testing.T) {
	m, l := newMemory(), aLease()
	key := types.NamespacedName{Namespace: "ns", Name: "job"}
	at := func(s int64) time.Time { return time.Unix(1_800_000_000+s, 0) }
	since := func(l *coordinationv1.Lease, now int64) int64 {
		decoded, err := decode(l)
		if err != nil {
			t.Fatal(err)
		}
		return now - int64(m.observe(l, decoded, at(now)).Unchanged/time.Second)
	}
	if m.last(key) != nil {
		t.Error("something is remembered of a Lease that was never seen")
	}
	old := l.DeepCopy()
	if got := since(l, 1); got != 1 {
		t.Errorf("first seen at 1, not %d", got)
	}
	if got := since(l, 5); got != 1 {
		t.Errorf("unchanged since 1, not %d", got)
	}
	l.ResourceVersion = "42"
	if got := since(l, 6); got != 6 {
		t.Errorf("changed at 6, not %d", got)
	}
	if got := since(old, 7); got != 7 {
		t.Errorf("an old state out of a cache says nothing about since when the Lease is unchanged, but %d is said", got)
	}
	if got := since(l, 8); got != 6 {
		t.Errorf("and it is not remembered: unchanged since 6, not %d", got)
	}
	l.UID = "made-anew"
	if got := since(l, 9); got != 9 {
		t.Errorf("another Lease, seen at 9, not %d", got)
	}
	if left := m.jobGone(key, true, at(10)); m.last(key) == nil || left <= 0 || left > lease.MaxDuration {
		t.Errorf("a tenure that may last is forgotten, or looked for in %v", left)
	}
	m.jobGone(key, false, at(100))
	if m.last(key) == nil {
		t.Error("a Lease that is there is forgotten")
	}
	if left := m.jobGone(key, true, at(100)); m.last(key) != nil || left != 0 {
		t.Error("a tenure that is over is remembered for ever")
	}
}

func TestErrorsThatAreRefusals(t *testing.T) {
	pods := schema.GroupResource{Resource: "pods"}
	for name, c := range map[string]struct {
		err     error
		refused bool
	}{
		"quota":       {apierrors.NewForbidden(pods, "p", errors.New("exceeded quota")), true},
		"invalid":     {apierrors.NewInvalid(schema.GroupKind{Kind: "Pod"}, "p", nil), true},
		"bad request": {apierrors.NewBadRequest("no"), true},
		"conflict":    {apierrors.NewConflict(pods, "p", errors.New("changed")), false},
		"too many":    {apierrors.NewTooManyRequests("later", 1), false},
		"down":        {apierrors.NewServiceUnavailable("down"), false},
		"token":       {apierrors.NewUnauthorized("expired"), false},
		"webhook":     {apierrors.NewInternalError(errors.New(`failed calling webhook "w": connection refused`)), true},
		"broken":      {apierrors.NewInternalError(errors.New("leader changed")), false},
		"network":     {errors.New("connection refused"), false},
	} {
		err := asRefusal(plan.Delete, fmt.Errorf("creating: %w", c.err))
		if refused := (refusal{}); errors.As(err, &refused) != c.refused || !errors.Is(err, c.err) {
			t.Errorf("%s: refused %v, want %v", name, !c.refused, c.refused)
		}
	}
}

func TestTimeOfTheNextReconcile(t *testing.T) {
	failed := errors.New("failed")
	for name, c := range map[string]struct {
		wake time.Duration
		errs []error
		want time.Duration
		err  bool
	}{
		"when the plan says":       {wake: time.Minute, errs: []error{nil, nil}, want: time.Minute},
		"never":                    {errs: []error{nil}},
		"the state was old":        {wake: time.Minute, errs: []error{nil, errStale}, want: staleRetry},
		"a previous job's":         {errs: []error{previousError{"Role ns/job"}}, want: previousRetry},
		"refused":                  {errs: []error{refusal{error: failed}, nil}, want: refusalRetry},
		"refused, but due sooner":  {wake: time.Second, errs: []error{refusal{error: failed}}, want: time.Second},
		"refused, but due at once": {wake: time.Millisecond, errs: []error{refusal{error: failed}}, want: refusalRetry / 4},
		"old, but due at once":     {wake: time.Millisecond, errs: []error{errStale}, want: staleRetry},
		"failed":                   {wake: time.Minute, errs: []error{failed, errStale}, err: true},
	} {
		got, err := result(c.wake, refusalRetry, c.errs...)
		if got.RequeueAfter != c.want || (err != nil) != c.err {
			t.Errorf("%s: after %v, %v; want %v", name, got.RequeueAfter, err, c.want)
		}
	}
}

func TestMetrics(t *testing.T) {
	r := New(nil, nil, nil, plan.Observed{}.Settings)
	job := &v1alpha1.SingletonJob{ObjectMeta: metav1.ObjectMeta{Namespace: "ns", Name: "job"}}
	job.Spec.Candidates, job.Spec.Lease.RetryPeriod.Duration = 2, 4*time.Second
	job.Status = v1alpha1.SingletonJobStatus{ActivePod: "p", FencingToken: 7, Candidates: v1alpha1.CandidatesStatus{Ready: 1}}
	job.Status.Conditions = []metav1.Condition{
		{Type: v1alpha1.ConditionActive, Status: metav1.ConditionFalse, Reason: v1alpha1.ReasonElecting},
		{Type: v1alpha1.ConditionProtected, Status: metav1.ConditionFalse, Reason: v1alpha1.ReasonNoStandby},
	}
	r.metrics.show(job, nil)
	job.Status.Conditions[0].Status, job.Status.Conditions[0].Reason = metav1.ConditionTrue, v1alpha1.ReasonRunning
	r.metrics.show(job, []v1alpha1.TenureChange{
		{Type: v1alpha1.Elected, Reason: v1alpha1.ChangeElected},
		{Type: v1alpha1.Failover, Reason: v1alpha1.ChangeLeaseExpired, Downtime: &metav1.Duration{Duration: 15 * time.Second}},
		{Type: v1alpha1.Handover, Reason: v1alpha1.ChangePodTerminating, Downtime: &metav1.Duration{Duration: 20 * time.Millisecond}},
	})
	registry := prometheus.NewRegistry()
	for _, c := range r.Collectors() {
		registry.MustRegister(c)
	}
	series := func() map[string]float64 {
		families, err := registry.Gather()
		if err != nil {
			t.Fatal(err)
		}
		got := map[string]float64{}
		for _, family := range families {
			for _, m := range family.GetMetric() {
				name := strings.TrimPrefix(family.GetName(), "singletonjob_")
				for _, l := range m.GetLabel() {
					name += " " + l.GetValue()
				}
				got[name] = m.GetGauge().GetValue() + m.GetCounter().GetValue() + m.GetHistogram().GetSampleSum()
			}
		}
		return got
	}
	want := map[string]float64{
		"active job ns": 1, "fencing_token job ns": 7, "candidates_ready job ns": 1, "candidates_desired job ns": 2,
		"suspended job ns": 0, "idle job ns": 0, "renewals_per_second job ns": .25, "condition job ns Running True Active": 1, "condition job ns NoStandby False Protected": 1,
		"failovers_total job ns LeaseExpired": 1, "handovers_total job ns PodTerminating": 1,
		"downtime_seconds Failover": 15, "downtime_seconds Handover": .02,
	}
	if diff := cmp.Diff(want, series()); diff != "" {
		t.Errorf("-want +got:\n%s", diff)
	}
	job.Spec.Suspend, job.Status.ActivePod = true, ""
	r.metrics.show(job, nil)
	if got := series(); got["active job ns"] != 0 || got["candidates_desired job ns"] != 0 || got["suspended job ns"] != 1 || got["renewals_per_second job ns"] != 0 {
		t.Errorf("a suspended job looks like an outage, or renews: %v", got)
	}
	r.metrics.forget(types.NamespacedName{Namespace: "ns", Name: "job"})
	if got := series(); len(got) != 2 {
		t.Errorf("of a job that is gone there is still %v", got)
	}
}

// TestPodsByAgent checks the sums over all jobs, and that an image without Pods has no series.
func TestPodsByAgent(t *testing.T) {
	m := newMetrics()
	key := func(name string) types.NamespacedName { return types.NamespacedName{Namespace: "ns", Name: name} }
	shows := func(want map[string]float64) {
		t.Helper()
		registry := prometheus.NewRegistry()
		registry.MustRegister(m.pods)
		families, err := registry.Gather()
		if err != nil {
			t.Fatal(err)
		}
		got := map[string]float64{}
		for _, family := range families {
			for _, series := range family.GetMetric() {
				got[family.GetName()+" "+series.GetLabel()[0].GetValue()] = series.GetGauge().GetValue()
			}
		}
		if diff := cmp.Diff(want, got); diff != "" {
			t.Errorf("-want +got:\n%s", diff)
		}
	}
	m.showAgents(key("a"), map[string]int{"v1": 2})
	m.showAgents(key("b"), map[string]int{"v1": 1, plan.UnknownAgent: 1})
	shows(map[string]float64{"singletonjob_pods v1": 3, "singletonjob_pods unknown": 1})
	m.showAgents(key("b"), map[string]int{"v1": 1, "v2": 1})
	m.showAgents(key("b"), map[string]int{"v1": 1, "v2": 1})
	shows(map[string]float64{"singletonjob_pods v1": 3, "singletonjob_pods v2": 1})
	m.forget(key("a"))
	m.showAgents(key("b"), map[string]int{"v2": 2})
	shows(map[string]float64{"singletonjob_pods v2": 2})
}

// TestShownMetricsAreServed: the chart's alerts and dashboard use only metrics that the operator serves.
func TestShownMetricsAreServed(t *testing.T) {
	r := New(nil, nil, nil, plan.Observed{}.Settings)
	descriptions := make(chan *prometheus.Desc, 100)
	for _, c := range r.Collectors() {
		c.Describe(descriptions)
	}
	close(descriptions)
	var served strings.Builder
	for d := range descriptions {
		served.WriteString(d.String())
	}
	names := regexp.MustCompile(`\bsingletonjob_[a-z_]+`)
	for _, file := range []string{"rules.yaml", "dashboard.json"} {
		content, err := os.ReadFile("../../charts/singletonjob/monitoring/" + file)
		if err != nil {
			t.Fatal(err)
		}
		found := 0
		for _, name := range names.FindAllString(string(content), -1) {
			if strings.HasPrefix(name, "singletonjob_agent_") {
				continue
			}
			found++
			if !strings.Contains(served.String(), `"`+strings.TrimSuffix(name, "_bucket")+`"`) {
				t.Errorf("%s asks for %s", file, name)
			}
		}
		if found == 0 {
			t.Errorf("%s asks for nothing", file)
		}
	}
}

func TestCachedNodesAreTrimmed(t *testing.T) {
	full := &corev1.Node{
		ObjectMeta: metav1.ObjectMeta{Name: "n", ResourceVersion: "3", Labels: map[string]string{"x": "y"}},
		Spec:       corev1.NodeSpec{PodCIDR: "10.0.0.0/24", Taints: []corev1.Taint{{Key: corev1.TaintNodeOutOfService}}, Unschedulable: true},
		Status: corev1.NodeStatus{Phase: corev1.NodeRunning, NodeInfo: corev1.NodeSystemInfo{
			OperatingSystem: "linux", Architecture: "arm64", KernelVersion: "6",
		}, Conditions: []corev1.NodeCondition{
			{Type: corev1.NodeDiskPressure, Status: corev1.ConditionFalse}, {Type: corev1.NodeReady, Status: corev1.ConditionTrue, Message: "it is"},
		}},
	}
	kept, err := leanNode(full)
	if err != nil {
		t.Fatal(err)
	}
	want := &corev1.Node{ObjectMeta: metav1.ObjectMeta{Name: "n", ResourceVersion: "3", Labels: full.Labels}}
	want.Spec = corev1.NodeSpec{Taints: full.Spec.Taints, Unschedulable: true}
	want.Status.Conditions = []corev1.NodeCondition{{Type: corev1.NodeReady, Status: corev1.ConditionTrue}}
	want.Status.NodeInfo = corev1.NodeSystemInfo{OperatingSystem: "linux", Architecture: "arm64"}
	if diff := cmp.Diff(want, kept); diff != "" || !isOutOfService(want) {
		t.Errorf("-want +got:\n%s", diff)
	}
}
