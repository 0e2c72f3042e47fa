package controller

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	appsv1 "k8s.io/api/apps/v1"
	autoscalingv1 "k8s.io/api/autoscaling/v1"
	corev1 "k8s.io/api/core/v1"
	policyv1 "k8s.io/api/policy/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/client/apiutil"

	"github.com/singletonjob/operator/api/v1alpha1"
	"github.com/singletonjob/operator/internal/inject"
	"github.com/singletonjob/operator/internal/plan"
)

var webRef = v1alpha1.WorkloadRef{APIVersion: v1alpha1.WorkloadAPIVersion, Kind: v1alpha1.WorkloadDeployment, Name: "web"}

// deployment creates the Deployment web, whose Pods the world then runs.
func (w *world) deployment(replicas int32) {
	w.t.Helper()
	w.deployments = true
	labels := map[string]string{"app": "web"}
	w.must(w.api.Create(w.t.Context(), &appsv1.Deployment{
		ObjectMeta: metav1.ObjectMeta{Namespace: w.key.Namespace, Name: webRef.Name},
		Spec: appsv1.DeploymentSpec{
			Replicas: &replicas, Selector: &metav1.LabelSelector{MatchLabels: labels},
			Template: corev1.PodTemplateSpec{
				ObjectMeta: metav1.ObjectMeta{Labels: labels},
				Spec:       corev1.PodSpec{Containers: []corev1.Container{{Name: "app", Image: "v1", Command: []string{"run"}}}},
			},
		},
	}))
}

// jobOfWeb creates the job with the template of that Deployment.
func (w *world) jobOfWeb() {
	w.t.Helper()
	w.job(func(spec *v1alpha1.SingletonJobSpec) {
		spec.Template, spec.WorkloadRef = corev1.PodTemplateSpec{}, new(webRef)
	})
}

func (w *world) web() *appsv1.Deployment {
	w.t.Helper()
	d, err := get(w.t.Context(), w.api, types.NamespacedName{Namespace: w.key.Namespace, Name: webRef.Name}, &appsv1.Deployment{})
	w.must(err)
	return d
}

func (w *world) editWeb(change func(*appsv1.DeploymentSpec)) {
	w.t.Helper()
	d := w.web()
	change(&d.Spec)
	w.must(w.api.Update(w.t.Context(), d))
}

// deploy acts as the controllers of Deployments and ReplicaSets. The ReplicaSet controller does nothing while it lags.
func (w *world) deploy() {
	w.t.Helper()
	if !w.deployments {
		return
	}
	d := w.web()
	if d == nil {
		return
	}
	set := w.replicaSet(d)
	if *set.Spec.Replicas != *d.Spec.Replicas {
		set.Spec.Replicas = d.Spec.Replicas
		w.must(w.api.Update(w.t.Context(), set))
	}
	if !w.lagging {
		w.replicate(set)
	}
	if d.Status.ObservedGeneration != d.Generation || d.Status.Replicas != set.Status.Replicas {
		d.Status.ObservedGeneration, d.Status.Replicas = d.Generation, set.Status.Replicas
		w.must(w.api.Status().Update(w.t.Context(), d))
	}
}

// replicaSet is the ReplicaSet of a Deployment, created if there is none.
func (w *world) replicaSet(d *appsv1.Deployment) *appsv1.ReplicaSet {
	w.t.Helper()
	set := &appsv1.ReplicaSet{
		ObjectMeta: metav1.ObjectMeta{
			Namespace: d.Namespace, Name: d.Name + "-1", Labels: map[string]string{"app": "web", "pod-template-hash": "1"},
			OwnerReferences: []metav1.OwnerReference{*metav1.NewControllerRef(d, appsv1.SchemeGroupVersion.WithKind("Deployment"))},
		},
		Spec: appsv1.ReplicaSetSpec{
			Replicas: d.Spec.Replicas, Selector: &metav1.LabelSelector{MatchLabels: map[string]string{"app": "web", "pod-template-hash": "1"}},
			Template: *d.Spec.Template.DeepCopy(),
		},
	}
	set.Spec.Template.Labels["pod-template-hash"] = "1"
	known, err := get(w.t.Context(), w.api, client.ObjectKeyFromObject(set), &appsv1.ReplicaSet{})
	w.must(err)
	if known == nil {
		w.must(w.api.Create(w.t.Context(), set))
		known = set
	}
	return known
}

// replicate creates and deletes Pods for a ReplicaSet, possibly from an old state of it.
func (w *world) replicate(set *appsv1.ReplicaSet) {
	w.t.Helper()
	var pods []corev1.Pod
	for _, pod := range w.pods() {
		if metav1.IsControlledBy(&pod, set) && pod.DeletionTimestamp == nil {
			pods = append(pods, pod)
		}
	}
	wanted := int(*set.Spec.Replicas)
	for i := len(pods); i < wanted; i++ {
		pod := &corev1.Pod{ObjectMeta: *set.Spec.Template.ObjectMeta.DeepCopy(), Spec: *set.Spec.Template.Spec.DeepCopy()}
		pod.Namespace, pod.GenerateName = set.Namespace, set.Name+"-"
		pod.OwnerReferences = []metav1.OwnerReference{*metav1.NewControllerRef(set, appsv1.SchemeGroupVersion.WithKind("ReplicaSet"))}
		w.must(w.api.Create(w.t.Context(), pod))
	}
	for i := wanted; i < len(pods); i++ {
		w.must(w.api.Delete(w.t.Context(), &pods[i]))
	}
	if set.Status.ObservedGeneration != set.Generation || int(set.Status.Replicas) != wanted {
		set.Status.ObservedGeneration, set.Status.Replicas = set.Generation, int32(wanted)
		w.must(client.IgnoreNotFound(w.api.Status().Update(w.t.Context(), set)))
	}
}

// runPlain acts as a kubelet for a Pod without an agent: it runs as soon as it has a node. A deleted Pod takes a round to end.
func (w *world) runPlain(pod *corev1.Pod) {
	w.t.Helper()
	const ending = "test/ending"
	switch {
	case pod.Spec.NodeName == "":
		w.schedule(pod)
	case pod.DeletionTimestamp != nil && pod.Annotations[ending] == "":
		pod.Annotations = map[string]string{ending: "1"}
		w.must(w.api.Update(w.t.Context(), pod))
	case pod.DeletionTimestamp != nil:
		w.removePod(pod)
	}
}

// plain are the pods that run without an agent.
func (w *world) plain() []string {
	var names []string
	for _, pod := range w.pods() {
		if inject.Gated(&pod) < 0 && pod.Spec.NodeName != "" {
			names = append(names, pod.Name)
		}
	}
	return names
}

// reasons are those of Active, Protected and Progressing.
func (w *world) reasons() string {
	s := w.status()
	return strings.Join([]string{
		condition(s, v1alpha1.ConditionActive).Reason, condition(s, v1alpha1.ConditionProtected).Reason, condition(s, v1alpha1.ConditionProgressing).Reason,
	}, " ")
}

// warnings are the Warning Events by reason.
func (w *world) warnings(reason string) (n int) {
	for _, e := range w.events() {
		if e.Type == corev1.EventTypeWarning && e.Reason == reason {
			n++
		}
	}
	return n
}

// TestAWorkloadIsTakenOver: no candidate starts before the last Pod of the Deployment no longer exists. The candidates use its
// template, and a change of the template is a rollout with one handover.
func TestAWorkloadIsTakenOver(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	w.deployment(1)
	w.until("the Deployment's pod runs", func() bool { return len(w.plain()) == 1 })
	w.jobOfWeb()
	for range 20 {
		w.round()
	}
	if got := w.reasons(); got != "WorkloadRunning NoHolder WorkloadRunning" || len(w.tenures) > 0 || w.warnings("WorkloadRunning") == 0 {
		t.Fatalf("beside a Deployment that runs: %s\n%s", got, w.describe())
	}
	w.editWeb(func(d *appsv1.DeploymentSpec) { d.Replicas = new(int32(0)) })
	w.until("serving", w.serving)
	for _, pod := range w.pods() {
		if pod.Labels["app"] != "web" || pod.Labels["pod-template-hash"] != "" {
			t.Errorf("the labels of a candidate are %v", pod.Labels)
		}
	}
	w.tick = time.Second
	w.editWeb(func(d *appsv1.DeploymentSpec) { d.Template.Spec.Containers[0].Image = "v2" })
	w.until("the rollout begins", func() bool { return !w.serving() })
	w.until("the rollout is over", w.serving)
	if diff := cmp.Diff([]string{"Elected Elected", "Handover RolloutHandover"}, w.changes()); diff != "" {
		t.Errorf("-want +got:\n%s", diff)
	}
	if a := w.holder(); a == nil || a.image != "v2" {
		t.Errorf("the holder is %+v", a)
	}
}

// TestAReplicaSetThatLagsBehindItsDeployment: its controller creates a Pod after the Deployment has reported 0 Pods. No candidate
// starts before the ReplicaSet has reported 0 itself; the world fails if two processes run.
func TestAReplicaSetThatLagsBehindItsDeployment(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	w.lagging = true
	w.deployment(1)
	w.round()
	before := w.replicaSet(w.web())
	w.jobOfWeb()
	w.editWeb(func(d *appsv1.DeploymentSpec) { d.Replicas = new(int32(0)) })
	w.until("it is waited for", func() bool { return w.reasons() == "WorkloadSettling NoHolder WorkloadSettling" })
	for range 20 {
		w.round()
	}
	if c := condition(w.status(), v1alpha1.ConditionActive); !strings.Contains(c.Message, "but the controller of ReplicaSet/web-1 has not acted on that yet") {
		t.Errorf("%+v", c)
	}
	before.ResourceVersion = w.replicaSet(w.web()).ResourceVersion
	w.replicate(before)
	w.until("its pod runs", func() bool { return len(w.plain()) == 1 })
	if len(w.tenures) > 0 {
		t.Fatalf("a process was started:\n%s", w.describe())
	}
	w.lagging = false
	w.until("serving", w.serving)
}

// TestWorkloadChangeRaisesNoAlarm: nothing starts until the workload's controller has seen that only the template changed. It is
// known throughout that no Pod of it can be left, so there is no warning.
func TestWorkloadChangeRaisesNoAlarm(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	w.deployment(0)
	w.jobOfWeb()
	w.until("serving", w.serving)
	w.deployments = false // its controllers do nothing for a while
	w.editWeb(func(d *appsv1.DeploymentSpec) { d.Template.Spec.Containers[0].Image = "v2" })
	for range 5 {
		w.round()
	}
	if got := w.reasons(); got != "Running StandbyReady WorkloadSettling" || w.warnings("WorkloadSettling")+w.warnings("WorkloadRunning") > 0 {
		t.Errorf("%s\n%s", got, w.describe())
	}
	w.deployments = true
	w.until("the rollout is over", func() bool { return w.serving() && w.holder().image == "v2" })
}

// TestAWorkloadThatIsScaledUpBesideTheJob: the operator reports it, and neither kills nor creates Pods. It also reports the
// deletion of the workload. A standby takes over in both cases.
func TestAWorkloadThatIsScaledUpBesideTheJob(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	w.deployment(0)
	w.jobOfWeb()
	w.until("serving", w.serving)
	holder := w.holder()

	w.deployments = false // two processes do run, so the world's rules and the Deployment's controller are off
	w.editWeb(func(d *appsv1.DeploymentSpec) { d.Replicas = new(int32(2)) })
	w.until("it is said", func() bool { return w.reasons() == "Running WorkloadRunning WorkloadRunning" })
	if w.holder() != holder || len(w.pods()) != 2 || w.warnings("WorkloadRunning") == 0 {
		t.Errorf("something was done about it:\n%s", w.describe())
	}
	w.kill(holder)
	w.until("a standby takes over", func() bool { return w.holder() != nil && w.status().ActivePod == w.holder().name })
	for _, pod := range w.pods() {
		if w.agents[pod.UID] == holder {
			w.removePod(&pod)
		}
	}
	for range 10 {
		w.round()
	}
	if len(w.pods()) != 1 {
		t.Errorf("a candidate was made:\n%s", w.describe())
	}

	w.must(w.api.Delete(t.Context(), w.web()))
	w.until("its loss is said", func() bool { return w.reasons() == "Running NoStandby WorkloadMissing" })
	w.deployment(0)
	w.until("serving again", w.serving)
	if n := len(w.tenures); n != 2 {
		t.Errorf("%d processes were started", n)
	}
}

// forbidding has no right to read Deployments.
type forbidding struct{ client.Reader }

func (f forbidding) Get(ctx context.Context, key client.ObjectKey, obj client.Object, opts ...client.GetOption) error {
	if _, is := obj.(*appsv1.Deployment); is {
		return apierrors.NewForbidden(appsv1.Resource("deployments"), key.Name, errors.New("no role grants it"))
	}
	return f.Reader.Get(ctx, key, obj, opts...)
}

// TestAWorkloadThatCannotBeRead: a name that only the other kind has, and a right that is missing, are reported as such. A running process
// is not affected by either, or by the workload's deletion and creation.
func TestAWorkloadThatCannotBeRead(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	w.deployment(0)
	w.jobOfWeb()
	ofKind := func(kind v1alpha1.WorkloadKind) {
		w.edit(func(job *v1alpha1.SingletonJob) { job.Spec.WorkloadRef.Kind = kind })
	}
	says := func(reasons, text string) {
		t.Helper()
		w.until(reasons, func() bool {
			return w.reasons() == reasons && strings.Contains(condition(w.status(), v1alpha1.ConditionProgressing).Message, text)
		})
	}
	const other = "StatefulSet/web in spec.workloadRef does not exist, but Deployment/web does: set spec.workloadRef.kind to Deployment"
	const denied = `no permission to read Deployment/web in spec.workloadRef, or what belongs to it: read Deployment/web in namespace `
	ofKind(v1alpha1.WorkloadStatefulSet)
	says("WorkloadMissing NoHolder WorkloadMissing", other)
	operator := w.operators[0].r
	live := operator.Live
	operator.Live = forbidding{live}
	ofKind(v1alpha1.WorkloadDeployment)
	says("WorkloadDenied NoHolder WorkloadDenied", denied)
	operator.Live = live
	w.until("serving", w.serving)
	operator.Live = forbidding{live}
	says("Running StandbyReady WorkloadDenied", "deployments.apps \"web\" is forbidden")
	operator.Live = live
	ofKind(v1alpha1.WorkloadStatefulSet)
	says("Running StandbyReady WorkloadMissing", other)
	ofKind(v1alpha1.WorkloadDeployment)
	w.until("serving again", w.serving)
	w.must(w.api.Delete(t.Context(), w.web()))
	says("Running StandbyReady WorkloadMissing", "does not exist or is being deleted: create it, with replicas: 0")
	w.deployment(0)
	w.until("serving with the new one", w.serving)
	if w.warnings("WorkloadDenied") == 0 || w.warnings("WorkloadMissing") == 0 || len(w.tenures) != 1 {
		t.Errorf("%d processes were started, and these are the Events: %v", len(w.tenures), w.events())
	}
}

// TestWhatIsBesideAWorkload: the chart's autoscaler and budget are named in Progressing, until they no longer exist.
func TestWhatIsBesideAWorkload(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	named := func(name string) metav1.ObjectMeta { return metav1.ObjectMeta{Namespace: w.key.Namespace, Name: name} }
	to := func(kind, name string) autoscalingv1.HorizontalPodAutoscalerSpec {
		return autoscalingv1.HorizontalPodAutoscalerSpec{MaxReplicas: 3, ScaleTargetRef: autoscalingv1.CrossVersionObjectReference{APIVersion: "apps/v1", Kind: kind, Name: name}}
	}
	over := func(app string) policyv1.PodDisruptionBudgetSpec {
		return policyv1.PodDisruptionBudgetSpec{Selector: &metav1.LabelSelector{MatchLabels: map[string]string{"app": app}}}
	}
	autoscaler := &autoscalingv1.HorizontalPodAutoscaler{ObjectMeta: named("web-hpa"), Spec: to("Deployment", "web")}
	budget := &policyv1.PodDisruptionBudget{ObjectMeta: named("web-pdb"), Spec: over("web")}
	for _, o := range []client.Object{
		autoscaler, budget,
		&autoscalingv1.HorizontalPodAutoscaler{ObjectMeta: named("other-hpa"), Spec: to("Deployment", "other")},
		&autoscalingv1.HorizontalPodAutoscaler{ObjectMeta: named("set-hpa"), Spec: to("StatefulSet", "web")},
		&policyv1.PodDisruptionBudget{ObjectMeta: named("other-pdb"), Spec: over("other")},
	} {
		w.must(w.api.Create(t.Context(), o))
	}
	w.deployment(0)
	w.jobOfWeb()
	w.until("serving", w.serving)
	message := func() string { return condition(w.status(), v1alpha1.ConditionProgressing).Message }
	if got := message(); !strings.Contains(got, "PodDisruptionBudget web-pdb also") || !strings.Contains(got, "HorizontalPodAutoscaler web-hpa scales Deployment/web") {
		t.Error(got)
	}
	w.must(w.api.Delete(t.Context(), autoscaler))
	w.must(w.api.Delete(t.Context(), budget))
	w.clock.SetTime(w.clock.Now().Add(plan.BesidePeriod))
	w.until("they are no longer named", func() bool { return !strings.Contains(message(), "web-") })
}

// TestOwnersOfWorkloadPods: the owners of the Pods are those that the API server has.
func TestOwnersOfWorkloadPods(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	w.deployment(0)
	w.deploy()
	w.jobOfWeb()
	set, err := get(t.Context(), w.api, types.NamespacedName{Namespace: w.key.Namespace, Name: "web-1"}, &appsv1.ReplicaSet{})
	w.must(err)
	other := set.DeepCopy()
	other.ObjectMeta = metav1.ObjectMeta{Namespace: set.Namespace, Name: "other", Labels: set.Labels, OwnerReferences: set.OwnerReferences}
	other.OwnerReferences[0].Name = "another"
	w.must(w.api.Create(t.Context(), other))
	lone := set.DeepCopy()
	lone.ObjectMeta = metav1.ObjectMeta{Namespace: set.Namespace, Name: "lone", Labels: set.Labels}
	w.must(w.api.Create(t.Context(), lone))
	rival := w.read()
	rival.ObjectMeta = metav1.ObjectMeta{Namespace: w.key.Namespace, Name: "rival"}
	w.must(w.api.Create(t.Context(), rival))
	stranger := rival.DeepCopy()
	stranger.ObjectMeta = metav1.ObjectMeta{Namespace: w.key.Namespace, Name: "stranger"}
	stranger.Spec.WorkloadRef.Name = "another"
	w.must(w.api.Create(t.Context(), stranger))

	replicaSet := appsv1.SchemeGroupVersion.WithKind("ReplicaSet")
	singleton := v1alpha1.GroupVersion.WithKind(v1alpha1.Kind)
	gone := other.DeepCopy()
	gone.UID = "gone"
	for name, c := range map[string]struct {
		owner *metav1.OwnerReference
		waits bool
	}{
		"its own":                        {metav1.NewControllerRef(set, replicaSet), true},
		"of another Deployment":          {metav1.NewControllerRef(other, replicaSet), false},
		"of a ReplicaSet nobody owns":    {metav1.NewControllerRef(lone, replicaSet), true},
		"of a ReplicaSet that is gone":   {metav1.NewControllerRef(gone, replicaSet), true},
		"nobody's":                       {nil, true},
		"a candidate of another job":     {metav1.NewControllerRef(rival, singleton), true},
		"a candidate of other templates": {metav1.NewControllerRef(stranger, singleton), false},
		"of a StatefulSet":               {metav1.NewControllerRef(set, appsv1.SchemeGroupVersion.WithKind("StatefulSet")), false},
	} {
		pod := &corev1.Pod{
			ObjectMeta: metav1.ObjectMeta{Namespace: w.key.Namespace, Name: "x", Labels: set.Labels},
			Spec:       set.Spec.Template.Spec,
		}
		if c.owner != nil {
			pod.OwnerReferences = []metav1.OwnerReference{*c.owner}
		}
		w.must(w.api.Create(t.Context(), pod))
		o, err := w.operators[0].r.observe(t.Context(), w.key)
		w.must(err)
		o.Workload.Others = nil // which job is older may depend on their UIDs
		p := planOf(&o)
		if waits := strings.Contains(p, "pods of Deployment/web still exist"); waits != c.waits {
			t.Errorf("%s: waits %v: %s", name, waits, p)
		}
		w.must(w.api.Delete(t.Context(), pod, client.GracePeriodSeconds(0)))
	}
}

// TestOneWorkloadOneJob: of two jobs, the older one has the workload.
func TestOneWorkloadOneJob(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	w.deployment(0)
	w.jobOfWeb()
	first := w.read()
	w.until("serving", w.serving)
	w.key.Name = "later"
	w.jobOfWeb()
	later := w.read()
	// Creation timestamps are whole seconds, so both jobs may have the same. Then the UID decides.
	if later.CreationTimestamp.Equal(&first.CreationTimestamp) && later.UID < first.UID {
		w.until("it waits for the pods", func() bool { return w.reasons() == "WorkloadRunning NoHolder WorkloadRunning" })
		return
	}
	w.until("it is refused", func() bool { return w.reasons() == "WorkloadTaken NoHolder WorkloadTaken" })
	if pods := w.pods(); len(pods) != 2 || slices.ContainsFunc(pods, func(p corev1.Pod) bool { return strings.HasPrefix(p.Name, "later") }) {
		t.Errorf("pods were made:\n%s", w.describe())
	}
}

// TestAStatefulSetWithClaimsIsRefused: a StatefulSet without claims is accepted.
func TestAStatefulSetWithClaimsIsRefused(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	labels := map[string]string{"app": "db"}
	set := &appsv1.StatefulSet{
		ObjectMeta: metav1.ObjectMeta{Namespace: w.key.Namespace, Name: "db"},
		Spec: appsv1.StatefulSetSpec{
			Replicas: new(int32(0)), ServiceName: "db", Selector: &metav1.LabelSelector{MatchLabels: labels},
			Template: corev1.PodTemplateSpec{
				ObjectMeta: metav1.ObjectMeta{Labels: labels},
				Spec:       corev1.PodSpec{Containers: []corev1.Container{{Name: "app", Image: "v1", Command: []string{"run"}}}},
			},
			VolumeClaimTemplates: []corev1.PersistentVolumeClaim{{ObjectMeta: metav1.ObjectMeta{Name: "data"}, Spec: corev1.PersistentVolumeClaimSpec{
				AccessModes: []corev1.PersistentVolumeAccessMode{corev1.ReadWriteOnce},
				Resources:   corev1.VolumeResourceRequirements{Requests: corev1.ResourceList{corev1.ResourceStorage: resource.MustParse("1Gi")}},
			}}},
		},
	}
	w.must(w.api.Create(t.Context(), set))
	w.job(func(spec *v1alpha1.SingletonJobSpec) {
		spec.Template = corev1.PodTemplateSpec{}
		spec.WorkloadRef = &v1alpha1.WorkloadRef{APIVersion: v1alpha1.WorkloadAPIVersion, Kind: v1alpha1.WorkloadStatefulSet, Name: "db"}
	})
	w.round()
	if c := condition(w.status(), v1alpha1.ConditionActive); c.Reason != v1alpha1.ReasonInvalidSpec || !strings.Contains(c.Message, "StatefulSet/db has volumeClaimTemplates (data)") {
		t.Errorf("%+v", c)
	}
	w.must(w.api.Delete(t.Context(), set))
	set.ObjectMeta, set.Spec.VolumeClaimTemplates = metav1.ObjectMeta{Namespace: set.Namespace, Name: set.Name}, nil
	w.must(w.api.Create(t.Context(), set))
	w.round()
	if got := w.reasons(); got != "WorkloadSettling NoHolder WorkloadSettling" { // its controller has reported nothing yet
		t.Errorf("%s\n%s", got, w.describe())
	}
	set.Status.ObservedGeneration = set.Generation
	w.must(w.api.Status().Update(t.Context(), set))
	w.until("serving", w.serving)
}

// planOf is the plan that the operator would follow.
func planOf(o *observation) string {
	p := plan.Decide(o.Observed)
	if p.Status == nil {
		return "nothing"
	}
	return fmt.Sprint(p.Status.Conditions)
}

// TestEveryCachedKindIsWatched: every kind with a cache rule is one that the operator waits for before it is ready, and
// watches.
func TestEveryCachedKindIsWatched(t *testing.T) {
	t.Parallel()
	kindOf := func(o client.Object) string {
		kind, err := apiutil.GVKForObject(o, scheme(t))
		if err != nil {
			t.Fatal(err)
		}
		return kind.String()
	}
	var kept []string
	for o := range CacheOptions(nil).ByObject {
		kept = append(kept, kindOf(o))
	}
	var watched []string
	for _, o := range (&Reconciler{}).Watched() {
		watched = append(watched, kindOf(o))
	}
	slices.Sort(kept)
	slices.Sort(watched)
	if diff := cmp.Diff(kept, slices.Compact(watched)); diff != "" {
		t.Errorf("-kept +watched:\n%s", diff)
	}
}
