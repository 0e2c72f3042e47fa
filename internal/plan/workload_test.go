package plan

import (
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	corev1 "k8s.io/api/core/v1"
	rbacv1 "k8s.io/api/rbac/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"

	"github.com/singletonjob/operator/api/v1alpha1"
	"github.com/singletonjob/operator/internal/contract"
	"github.com/singletonjob/operator/internal/inject"
)

// ofWorkload moves the job's template, if it has one, to a Deployment that is scaled to 0.
func (g *given) ofWorkload() {
	if g.Job == nil || g.Job.Spec.WorkloadRef != nil {
		if g.Workload == nil {
			g.Workload = &Workload{}
		}
		return
	}
	g.Workload = &Workload{Exists: true, UID: "web-uid", Generation: 3, Settled: true, Template: *g.Job.Spec.Template.DeepCopy()}
	g.Job.Spec.Template = corev1.PodTemplateSpec{}
	g.Job.Spec.WorkloadRef = &v1alpha1.WorkloadRef{APIVersion: "apps/v1", Kind: v1alpha1.WorkloadDeployment, Name: "web"}
}

// stranger is a pod that the workload's selector matches. owner is its controller, nil for none.
func stranger(name string, owner *metav1.OwnerReference) *corev1.Pod {
	pod := &corev1.Pod{ObjectMeta: metav1.ObjectMeta{Name: name, UID: types.UID(name)}}
	if owner != nil {
		owner.Controller = new(true)
		pod.OwnerReferences = []metav1.OwnerReference{*owner}
	}
	return pod
}

// strangers adds a pod whose controller runs pods for a workload; "" means that the controller no longer exists.
func strangers(runs string, change ...func(*corev1.Pod)) func(*given) {
	return func(g *given) {
		g.ofWorkload()
		pod := stranger("web-x", &metav1.OwnerReference{Kind: "ReplicaSet", Name: "web-1", UID: "owner"})
		for _, c := range change {
			c(pod)
		}
		g.Workload.Pods = append(g.Workload.Pods, pod)
		if runs != "" {
			g.Workload.Owners = map[types.UID]string{"owner": runs}
		}
	}
}

func rival(name string, age time.Duration, workload string) func(*given) {
	return func(g *given) {
		g.ofWorkload()
		g.Job.CreationTimestamp = metav1.NewTime(ago(time.Hour))
		other := g.Job.DeepCopy()
		other.Name, other.UID, other.CreationTimestamp, other.Spec.WorkloadRef.Name = name, types.UID(name), metav1.NewTime(ago(age)), workload
		g.Workload.Others = append(g.Workload.Others, other)
	}
}

// TestWorkload: what can be started with a workload. Each row applies to a new job and to a running one.
func TestWorkload(t *testing.T) {
	const starts = "" // no condition reports an obstacle
	for name, c := range map[string]struct {
		with   func(*given)
		reason string
		says   string
	}{
		"scaled to 0":         {with: (*given).ofWorkload, reason: starts},
		"not looked for":      {with: func(g *given) { g.ofWorkload(); g.Workload = nil }, reason: "WorkloadMissing", says: "Deployment/web in spec.workloadRef"},
		"missing":             {with: func(g *given) { g.ofWorkload(); *g.Workload = Workload{} }, reason: "WorkloadMissing", says: "does not exist"},
		"not to be read":      {with: func(g *given) { g.ofWorkload(); *g.Workload = Workload{Denied: "forbidden"} }, reason: "WorkloadDenied", says: "no permission to read Deployment/web in spec.workloadRef, or what belongs to it: forbidden"},
		"of the other kind":   {with: func(g *given) { g.ofWorkload(); *g.Workload = Workload{Namesake: "StatefulSet"} }, reason: "WorkloadMissing", says: "does not exist, but StatefulSet/web does: set spec.workloadRef.kind to StatefulSet"},
		"replicas":            {with: func(g *given) { g.ofWorkload(); g.Workload.Replicas = 3 }, reason: "WorkloadRunning", says: "Deployment/web has 3 replicas"},
		"its controller lags": {with: func(g *given) { g.ofWorkload(); g.Workload.Settled = false }, reason: "WorkloadSettling", says: "the controller of Deployment/web has not acted on that yet"},
		"a ReplicaSet's lags": {with: func(g *given) { g.ofWorkload(); g.Workload.Lagging = []string{"web-1"} }, reason: "WorkloadSettling", says: "the controller of ReplicaSet/web-1"},
		"it lags, and the image is not known": {
			with: func(g *given) {
				g.ofWorkload()
				g.Workload.Settled, g.Workload.Template.Spec.Containers[0].Command = false, nil
			},
			reason: "WorkloadSettling", says: "this must be fixed first, too: the gated container",
		},
		"a pod of it":                 {with: strangers("Deployment/web"), reason: "WorkloadRunning", says: "web-x"},
		"a pod of it that goes":       {with: strangers("Deployment/web", func(p *corev1.Pod) { p.DeletionTimestamp = &metav1.Time{Time: now} }), reason: "WorkloadRunning"},
		"a pod of it that waits":      {with: strangers("Deployment/web", func(p *corev1.Pod) { p.Status.Phase = corev1.PodPending }), reason: "WorkloadRunning"},
		"a pod of it that failed":     {with: strangers("Deployment/web", func(p *corev1.Pod) { p.Status.Phase = corev1.PodFailed }), reason: starts},
		"a pod of it that ended":      {with: strangers("Deployment/web", func(p *corev1.Pod) { p.Status.Phase = corev1.PodSucceeded }), reason: starts},
		"a pod whose owner is gone":   {with: strangers(""), reason: "WorkloadRunning"},
		"a pod without an owner":      {with: strangers("", func(p *corev1.Pod) { p.OwnerReferences = nil }), reason: "WorkloadRunning"},
		"a pod of another workload":   {with: strangers("Deployment/other"), reason: starts},
		"a pod of another kind":       {with: strangers("StatefulSet/web"), reason: starts},
		"a candidate, labelled alike": {with: func(g *given) { g.ofWorkload(); g.Workload.Pods = g.Pods }, reason: starts},
		"a candidate of another job":  {with: strangers("Deployment/web", func(p *corev1.Pod) { p.Labels = map[string]string{contract.NameLabel: "other"} }), reason: "WorkloadRunning"},
		"a candidate that was made of it": {
			with:   strangers("Deployment/other", func(p *corev1.Pod) { p.Annotations = map[string]string{WorkloadAnnotation: "Deployment/web"} }),
			reason: "WorkloadRunning",
		},
		"a candidate of the job, of which nothing is certain": {
			with: func(g *given) {
				strangers("SingletonJob/job")(g)
				g.Workload.Pods[0].OwnerReferences[0].UID = g.Job.UID
			},
			reason: starts,
		},
		"replicas, and an image that is not known": {
			with: func(g *given) {
				g.ofWorkload()
				g.Workload.Replicas, g.Workload.Template.Spec.Containers[0].Command = 3, nil
			},
			reason: "WorkloadRunning", says: "this must be fixed first, too: the gated container",
		},
		"a pod that says it is ours":     {with: strangers("Deployment/web", func(p *corev1.Pod) { p.Labels = map[string]string{contract.NameLabel: "job"} }), reason: "WorkloadRunning"},
		"an older job of it":             {with: rival("elder", 2*time.Hour, "web"), reason: "WorkloadTaken", says: "SingletonJob elder"},
		"a job of it as old, UID lower":  {with: rival("a", time.Hour, "web"), reason: "WorkloadTaken"},
		"a job of it as old, UID higher": {with: rival("z", time.Hour, "web"), reason: starts},
		"a younger job of it":            {with: rival("child", time.Minute, "web"), reason: starts},
		"an older job of another":        {with: rival("elder", 2*time.Hour, "other"), reason: starts},
		"an autoscaler": {
			with: func(g *given) {
				g.ofWorkload()
				g.Workload.Replicas, g.Workload.Autoscalers = 1, []string{"web", "more"}
			},
			reason: "WorkloadRunning", says: "; the HorizontalPodAutoscaler web, more scales Deployment/web as soon as it has a replica",
		},
		"volume claim templates": {with: func(g *given) { g.ofWorkload(); g.Workload.Claims = []string{"data", "log"} }, reason: "InvalidSpec", says: "volumeClaimTemplates (data, log)"},
		"a template that is not accepted": {
			with:   func(g *given) { g.ofWorkload(); g.Workload.Template.Spec.HostPID = true },
			reason: "InvalidSpec", says: "with the pod template of Deployment/web is not valid",
		},
		"a template without a command": {
			with:   func(g *given) { g.ofWorkload(); g.Workload.Template.Spec.Containers[0].Command = nil },
			reason: "EntrypointUnknown", says: `the gated container "app" sets no command`,
		},
	} {
		t.Run(name, func(t *testing.T) {
			fresh := fresh()
			fresh.free()
			c.with(fresh)
			p := Decide(fresh.Observed)
			if started := len(p.Create) > 0; started != (c.reason == starts) {
				t.Errorf("a new job: %d pods are created", len(p.Create))
			}
			if reasons, _ := conditionsOf(p, fresh); c.reason != starts && reasons != c.reason+" NoHolder "+c.reason && reasons != c.reason+" "+c.reason+" "+c.reason {
				t.Errorf("a new job: %s", reasons)
			}
			if c.says != "" && !strings.Contains(texts(p), c.says) {
				t.Errorf("nothing says %q: %s", c.says, texts(p))
			}

			runs := steady()
			c.with(runs)
			if p := Decide(runs.Observed); len(p.Create)+len(p.Delete)+len(p.Relabel)+len(p.Apply) > 0 || p.Lease != nil {
				t.Errorf("a job that runs: something is done: %+v", p)
			} else if reasons, active := conditionsOf(p, runs); active != runs.Pods[0].Name || c.reason == starts && reasons != "Running StandbyReady UpToDate" {
				t.Errorf("a job that runs: %s is active: %s", active, reasons)
			}
		})
	}
}

// TestBadTemplateOfAWorkload: the running process continues, is kept, and can be suspended.
func TestBadTemplateOfAWorkload(t *testing.T) {
	bad := func() *given {
		g := steady()
		g.ofWorkload()
		g.Workload.Template.Spec.HostPID = true
		return g
	}
	g := bad()
	g.Children.RoleBinding = nil
	if p := Decide(g.Observed); p.State != InvalidSpec || len(p.Apply) != 1 || len(p.Delete) > 0 {
		t.Errorf("%v without its RoleBinding: applies %d, deletes %d", p.State, len(p.Apply), len(p.Delete))
	}
	g = bad()
	g.Job.Spec.Suspend = true
	if p := Decide(g.Observed); p.State != Suspending || len(p.Delete) == 0 {
		t.Errorf("%v: deletes %d", p.State, len(p.Delete))
	}
	g = bad()
	g.absent()
	if p := Decide(g.Observed); p.Lease == nil {
		t.Errorf("%v: a deleted Lease is not created again", p.State)
	}
	g = steady() // the job's own template is invalid
	g.Job.Spec.Template.Spec.HostPID = true
	g.Children.RoleBinding = nil
	if p := Decide(g.Observed); p.State != InvalidSpec || len(p.Apply) > 0 {
		t.Errorf("%v applies %d", p.State, len(p.Apply))
	}
}

func texts(p Plan) string {
	var all []string
	if p.Status != nil {
		for _, c := range p.Status.Conditions {
			all = append(all, c.Message)
		}
	}
	return strings.Join(all, "\n")
}

// TestRunningWorkloadIsReportedEachTime: it is announced each time, and no process is killed for it.
func TestRunningWorkloadIsReportedEachTime(t *testing.T) {
	g := steady()
	g.ofWorkload()
	g.settle()
	seen := map[string]bool{}
	for i := range int64(3) {
		g.Workload.Replicas, g.Workload.Generation = 1, 10+2*i
		p := Decide(g.Observed)
		if reasons, _ := conditionsOf(p, g); reasons != "Running WorkloadRunning WorkloadRunning" {
			t.Errorf("the conditions are %s", reasons)
		}
		if len(p.Events) != 1 || p.Events[0].Type != corev1.EventTypeWarning || p.Events[0].Reason != "WorkloadRunning" || seen[p.Events[0].Name] {
			t.Errorf("the Events are %+v, after %v", p.Events, seen)
		} else {
			seen[p.Events[0].Name] = true
		}
		if p.Lease != nil || len(p.Delete)+len(p.Create) > 0 {
			t.Errorf("something is done: %+v", p)
		}
		g.settle()
		if again := Decide(g.Observed); again.Status != nil || len(again.Events) > 0 {
			t.Errorf("the same is announced twice: %+v", again)
		}
		g.Workload.Replicas, g.Workload.Generation = 0, 11+2*i
		g.settle()
		if reasons, _ := conditionsOf(Decide(g.Observed), g); reasons != "Running StandbyReady UpToDate" {
			t.Errorf("after that the conditions are %s", reasons)
		}
	}
}

// TestBlockedJobStillReleases: the Lease of a dead holder is released, so that a standby takes over, but lost candidates are not replaced.
// A job can be suspended although its workload no longer exists.
func TestBlockedJobStillReleases(t *testing.T) {
	for _, gone := range []bool{true, false} {
		g := steady()
		g.ofWorkload()
		g.settle()
		if g.Workload.Replicas = 1; gone {
			g.Workload = &Workload{}
		}
		g.ended(0, ago(2*time.Hour), ago(time.Second))
		if p := Decide(g.Observed); p.State != HolderDead || !writes(p, Update) || p.Lease.Record.Holder != "" {
			t.Errorf("gone %v: the holder is dead, and the plan %v, %+v", gone, p.State, p.Lease)
		}

		g = steady()
		g.ofWorkload()
		g.settle()
		g.Pods = g.Pods[:1]
		if g.Workload.Replicas = 1; gone {
			g.Workload = &Workload{}
		}
		if p := Decide(g.Observed); p.State != Blocked || len(p.Create)+len(p.Apply)+len(p.Also) > 0 {
			t.Errorf("gone %v: a standby is lost, and the plan %v makes %d pods", gone, p.State, len(p.Create))
		}
		g.Job.Spec.Suspend = true
		if p := Decide(g.Observed); p.State != Suspending || len(p.Delete) != 1 {
			t.Errorf("gone %v: suspended, and the plan is %v", gone, p.State)
		}
	}
}

// TestWhatIsBesideAWorkload: autoscalers and budgets of the chart are named while the job runs, and are looked up again. They keep nothing
// from starting.
func TestWhatIsBesideAWorkload(t *testing.T) {
	g := steady()
	g.ofWorkload()
	g.settle()
	g.Workload.Autoscalers, g.Workload.Budgets = []string{"web-hpa"}, []string{"web-pdb"}
	p := Decide(g.Observed)
	reasons, _ := conditionsOf(p, g)
	text := texts(p)
	if reasons != "Running StandbyReady UpToDate" || !strings.Contains(text, "PodDisruptionBudget web-pdb also matches the candidates") ||
		!strings.Contains(text, "HorizontalPodAutoscaler web-hpa scales Deployment/web") || p.Wake > BesidePeriod || len(p.Events) > 0 {
		t.Errorf("%s, wakes after %v: %s", reasons, p.Wake, text)
	}
	g.settle()
	if again := Decide(g.Observed); again.Status != nil {
		t.Errorf("the same is written twice: %+v", again.Status.Conditions)
	}
	g.Workload.Autoscalers, g.Workload.Budgets = nil, nil
	if text := texts(Decide(g.Observed)); strings.Contains(text, "web-hpa") || strings.Contains(text, "web-pdb") || text == "" {
		t.Errorf("they are gone, and the conditions are %s", text)
	}
}

// TestRunningPodsKeepTheirRights: pods keep their permissions, whatever happens to the workload. If its template is unknown, the service
// account comes from the pods.
func TestRunningPodsKeepTheirRights(t *testing.T) {
	for name, c := range map[string]struct {
		with  func(*given)
		needs int // and a budget
		as    string
	}{
		"scaled up":            {with: func(g *given) { g.Workload.Replicas = 1 }, needs: 3, as: "job-singletonjob"},
		"gone":                 {with: func(g *given) { g.Workload = &Workload{} }, needs: 3, as: "job-singletonjob"},
		"gone, with its pods":  {with: func(g *given) { g.Workload, g.Pods = &Workload{}, nil }},
		"gone, of its account": {with: func(g *given) { g.Workload = &Workload{}; as("own", g.Pods) }, needs: 2, as: "own"},
	} {
		g := steady()
		g.ofWorkload()
		g.settle()
		c.with(g)
		g.Children = Children{}
		p := Decide(g.Observed)
		if len(p.Apply) != c.needs || (len(p.Also) > 0) != (c.needs > 0) {
			t.Errorf("%s: %d and %d objects are created", name, len(p.Apply), len(p.Also))
			continue
		}
		for _, o := range p.Apply {
			if b, ok := o.(*rbacv1.RoleBinding); ok && (len(b.Subjects) != 1 || b.Subjects[0].Name != c.as) {
				t.Errorf("%s: the right is given to %v", name, b.Subjects)
			}
		}
	}
}

func as(account string, pods []*corev1.Pod) {
	for _, pod := range pods {
		pod.Spec.ServiceAccountName = account
	}
}

// TestTerminatingPodsAreCheckedAgain: no event reports when they no longer exist.
func TestTerminatingPodsAreCheckedAgain(t *testing.T) {
	g := fresh()
	g.free()
	strangers("Deployment/web")(g)
	if p := Decide(g.Observed); p.Wake != leavingPeriod {
		t.Errorf("wakes after %v", p.Wake)
	}
	g.Workload.Replicas, g.Workload.Pods = 1, nil // the Deployment's status reports it
	if p := Decide(g.Observed); p.Wake != 0 {
		t.Errorf("wakes after %v", p.Wake)
	}
	g.Workload.Replicas, g.Workload.Lagging = 0, []string{"web-1"}
	if p := Decide(g.Observed); p.Wake != leavingPeriod {
		t.Errorf("wakes after %v for a ReplicaSet", p.Wake)
	}
	*g.Workload = Workload{Denied: "no"}
	if p := Decide(g.Observed); p.Wake != deniedPeriod {
		t.Errorf("wakes after %v", p.Wake)
	}
}

// TestEffective: a workload's template leads to the same pods as the same template in the job, without the labels of the workload's
// controllers. Its change is a rollout.
func TestEffective(t *testing.T) {
	g := steady()
	inline := g.Job.DeepCopy()
	g.ofWorkload()
	if got := inject.Hash(Effective(g.Job, g.Workload)); got != inject.Hash(inline) {
		t.Errorf("another hash: %s", got)
	}
	g.Workload.Template.Labels = map[string]string{"app": "web", "pod-template-hash": "x", "controller-revision-hash": "y"}
	before := g.Workload.Template.DeepCopy()
	job := Effective(g.Job, g.Workload)
	if diff := cmp.Diff(map[string]string{"app": "web"}, job.Spec.Template.Labels); diff != "" {
		t.Errorf("-want +got:\n%s", diff)
	}
	if diff := cmp.Diff(*before, g.Workload.Template); diff != "" {
		t.Errorf("the workload was changed:\n%s", diff)
	}
	if p := Decide(g.Observed); len(p.Create) != 1 || p.Create[0].Labels["app"] != "web" || metav1.GetControllerOf(p.Create[0]) == nil {
		t.Errorf("no rollout: %+v", p.Create)
	}
	if both := g.Job.DeepCopy(); true {
		both.Spec.Template = inline.Spec.Template
		if got := Effective(both, g.Workload); got.Spec.WorkloadRef == nil {
			t.Error("one of two sources is used, and no fault is reported")
		}
	}
}
