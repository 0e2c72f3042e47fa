package plan

import (
	"fmt"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	policyv1 "k8s.io/api/policy/v1"
	rbacv1 "k8s.io/api/rbac/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"

	"github.com/singletonjob/operator/api/v1alpha1"
	"github.com/singletonjob/operator/internal/contract"
	"github.com/singletonjob/operator/internal/inject"
	"github.com/singletonjob/operator/internal/lease"
)

var (
	now = time.Date(2030, 1, 2, 3, 4, 5, 0, time.UTC)
	// twoMinutes is the default progress deadline.
	twoMinutes = time.Duration(v1alpha1.DefaultProgressDeadlineSeconds) * time.Second

	ago = func(d time.Duration) time.Time { return now.Add(-d) }
)

// given is an observation under construction. At first it is a job with two ready candidates and a status that records them. The candidate
// job-…-0 on node a holds the Lease with token 100, and job-…-1 is on node b.
type given struct{ Observed }

func steady() *given {
	o := settled().Observed
	o.Job = o.Job.DeepCopy()
	o.Pods = slices.Clone(o.Pods)
	for i := range o.Pods {
		o.Pods[i] = o.Pods[i].DeepCopy()
	}
	o.Lease.Record.History = slices.Clone(o.Lease.Record.History)
	o.OutOfService = map[string]bool{}
	return &given{o} // the children are never modified in place
}

var settled = sync.OnceValue(func() *given {
	g := &given{Observed{
		Namespace: "ns", Name: "job", Now: now, OutOfService: map[string]bool{},
		Job: &v1alpha1.SingletonJob{
			ObjectMeta: metav1.ObjectMeta{Namespace: "ns", Name: "job", UID: "job-uid", Generation: 1},
			Spec: v1alpha1.SingletonJobSpec{Template: corev1.PodTemplateSpec{Spec: corev1.PodSpec{
				Containers: []corev1.Container{{Name: "app", Image: "v1", Command: []string{"run"}}},
			}}},
		},
	}}
	v1alpha1.Default(g.Job)
	g.pod(0, "a")
	g.pod(1, "b")
	g.held(0, 100, ago(time.Hour))
	g.Lease.Claim = Claim{JobUID: "job-uid"}
	g.Lease.Record.History = []lease.PastTenure{{Token: 100, Pod: g.name(0), Node: "a", Acquired: ago(time.Hour).UnixMilli()}}
	g.settle()
	return g
})

// settle stores what the operator would store, until it has nothing more to do.
func (g *given) settle() {
	for range 10 {
		p := Decide(g.Observed)
		if p.Status == nil && len(p.Apply)+len(p.Also)+len(p.Relabel) == 0 {
			return
		}
		if p.Status != nil {
			g.Job.Status = *p.Status
		}
		g.carryOut(p)
	}
}

// carryOut applies a plan to the objects, without its status.
func (g *given) carryOut(p Plan) {
	for _, child := range append(p.Apply, p.Also...) {
		g.apply(child)
	}
	for _, r := range p.Relabel {
		for _, pod := range g.Pods {
			if pod.UID == r.UID {
				pod.Labels[contract.RoleLabel] = r.Role
			}
		}
	}
}

func (g *given) name(ordinal int) string { return inject.PodName("job", inject.Hash(g.Job), ordinal) }

// pod adds a ready candidate.
func (g *given) pod(ordinal int, node string) *corev1.Pod {
	pod, err := inject.Pod(g.Job, ordinal, g.Settings)
	if err != nil {
		panic(err)
	}
	pod.UID = types.UID(fmt.Sprintf("%s-uid", pod.Name))
	pod.Labels[contract.RoleLabel] = contract.RoleStandby
	pod.Spec.NodeName = node
	pod.CreationTimestamp = metav1.NewTime(ago(2 * time.Hour))
	pod.Status.Phase = corev1.PodRunning
	pod.Status.Conditions = []corev1.PodCondition{{Type: corev1.PodReady, Status: corev1.ConditionTrue}}
	pod.Status.ContainerStatuses = []corev1.ContainerStatus{{Name: "app", Ready: true, State: corev1.ContainerState{
		Running: &corev1.ContainerStateRunning{StartedAt: metav1.NewTime(ago(2 * time.Hour))},
	}}}
	g.Pods = append(g.Pods, pod)
	return pod
}

// held makes a pod the holder.
func (g *given) held(pod int, token int64, since time.Time) {
	id := lease.Identity{Pod: g.Pods[pod].Name, PodUID: string(g.Pods[pod].UID), Nonce: "n"}
	g.Lease.Presence = Ours
	g.Lease.Record = lease.Record{
		UID: "lease-uid", Revision: 1000, Holder: id.String(), Token: token, Transitions: 1,
		Duration: 15 * time.Second, AcquireTime: since.UnixMicro(), RenewTime: ago(time.Second).UnixMicro(),
	}
	g.Lease.Unchanged, g.Lease.Renewed = time.Second, true
	lasted := now.Sub(since)
	g.saw(Trial{Token: token, Seen: lasted, Ready: isReady(g.Pods[pod]), For: lasted})
}

// saw sets what this process has seen of the newest tenure.
func (g *given) saw(trial Trial) {
	trials := slices.DeleteFunc(slices.Clone(g.Trials), func(t Trial) bool { return t.Token >= trial.Token })
	for i := range trials {
		trials[i].Longest, trials[i].Ready = trials[i].ran(), false
	}
	trials = append(trials, trial)
	g.Trials = trials
}

// sees changes what this process sees of the newest tenure.
func (g *given) sees(change func(*Trial)) {
	g.Trials = slices.Clone(g.Trials)
	change(&g.Trials[len(g.Trials)-1])
}

func (g *given) unready(pod int) {
	g.Pods[pod].Status.Conditions[0] = corev1.PodCondition{
		Type: corev1.PodReady, Status: corev1.ConditionFalse, LastTransitionTime: metav1.NewTime(ago(time.Second)),
	}
	g.Pods[pod].Status.ContainerStatuses[0].Ready = false
	if id, _ := lease.ParseIdentity(g.Lease.Record.Holder); id.PodUID == string(g.Pods[pod].UID) {
		g.sees(func(t *Trial) { t.Ready = false })
	}
}

// waiting puts a pod's container into a waiting state.
func (g *given) waiting(pod int, reason string, message ...string) {
	g.unready(pod)
	g.Pods[pod].Status.ContainerStatuses[0].State = corev1.ContainerState{
		Waiting: &corev1.ContainerStateWaiting{Reason: reason, Message: strings.Join(message, " ")},
	}
}

// since sets how long a pod has not been ready.
func (g *given) since(pod int, d time.Duration) {
	g.Pods[pod].Status.Conditions[0].LastTransitionTime = metav1.NewTime(ago(d))
}

// rejected makes a kubelet reject a pod.
func (g *given) rejected(pod int, reason, message string) {
	status := &g.Pods[pod].Status
	*status = corev1.PodStatus{Phase: corev1.PodFailed, Reason: reason, Message: message}
}

// ended reports the end of a run of a pod's container.
func (g *given) ended(pod int, began, over time.Time) {
	g.unready(pod)
	g.Pods[pod].Status.ContainerStatuses[0].State = corev1.ContainerState{Terminated: &corev1.ContainerStateTerminated{
		ExitCode: 137, StartedAt: metav1.NewTime(began.Truncate(time.Second)), FinishedAt: metav1.NewTime(over.Truncate(time.Second)),
	}}
}

func (g *given) terminating(pod int) {
	g.Pods[pod].DeletionTimestamp = &metav1.Time{Time: now.Add(30 * time.Second)}
	g.Pods[pod].DeletionGracePeriodSeconds = new(int64(30))
}

// released frees the Lease for a reason.
func (g *given) released(why lease.Reason) {
	g.Lease.Record = g.Lease.Record.Released(lease.Release{Reason: why}, ago(time.Second).UnixMicro(), ago(time.Second).UnixMicro())
	if len(g.Trials) > 0 {
		g.sees(func(t *Trial) { t.Longest, t.Ready = t.ran(), false })
	}
}

func (g *given) absent() {
	last := g.Lease
	g.Lease = Lease{Last: &last}
}

func TestSteadyStateNeedsNoWrite(t *testing.T) {
	g := steady()
	p := Decide(g.Observed)
	if p.Status != nil || p.Lease != nil || len(p.Apply)+len(p.Also)+len(p.Create)+len(p.Delete)+len(p.Relabel)+len(p.Events)+len(p.Adopt) > 0 {
		t.Errorf("there is nothing to do, but: %+v", p)
	}
	if want := v1alpha1.DefaultRenewDeadline - time.Second; p.Wake != want {
		t.Errorf("wakes after %v, want %v: when the holder would have stopped renewing", p.Wake, want)
	}
	if s := g.Job.Status; s.ActivePod != g.name(0) || s.ActiveNode != "a" || s.FencingToken != 100 {
		t.Errorf("status %+v", s)
	}
}

// apply records a child as applied.
func (g *given) apply(child Child) {
	c := &g.Children
	switch child := child.(type) {
	case *corev1.ServiceAccount:
		c.ServiceAccount = child
	case *rbacv1.Role:
		c.Role = child
	case *rbacv1.RoleBinding:
		c.RoleBinding = child
	case *policyv1.PodDisruptionBudget:
		c.Budget = child
	}
}

// reported changes how the end of the holder's container is reported.
func (g *given) reported(code int32, reason string) {
	t := g.Pods[0].Status.ContainerStatuses[0].State.Terminated
	t.ExitCode, t.Reason = code, reason
}

// crashing makes all pods wait to be restarted: their containers ended with that exit code.
func (g *given) crashing(status int32) {
	g.released(lease.ReasonProcessExited)
	for i := range g.Pods {
		g.waiting(i, "CrashLoopBackOff")
		g.Pods[i].Status.ContainerStatuses[0].LastTerminationState.Terminated = &corev1.ContainerStateTerminated{ExitCode: status}
	}
}
