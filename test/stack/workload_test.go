//go:build linux

package stack

import (
	"fmt"
	"io"
	"slices"
	"strings"
	"testing"

	appsv1 "k8s.io/api/apps/v1"
	autoscalingv1 "k8s.io/api/autoscaling/v1"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/singletonjob/operator/api/v1alpha1"
	"github.com/singletonjob/operator/internal/adopt"
	"github.com/singletonjob/operator/test/observe"
	"github.com/singletonjob/operator/test/tier"
)

// borrowed is a workload under Kubernetes' own controllers, and the job that takes its template.
type borrowed struct {
	*world
	ref    v1alpha1.WorkloadRef
	object client.Object
}

// workload makes one of one replica. Its processes know no token, as they don't in somebody else's chart, and end late.
func (w *world) workload(kind v1alpha1.WorkloadKind) *borrowed {
	w.t.Helper()
	labels := map[string]string{"app": "web"}
	template := w.job(long).Spec.Template
	template.Labels = labels
	template.Spec.TerminationGracePeriodSeconds = new(int64(60))
	writer := &template.Spec.Containers[0]
	writer.Args = []string{"unfenced"}
	writer.Env = append(writer.Env, corev1.EnvVar{Name: "LINGER", Value: "10s"})
	meta := metav1.ObjectMeta{Namespace: w.ns, Name: "web"}
	b := &borrowed{world: w, ref: v1alpha1.WorkloadRef{APIVersion: v1alpha1.WorkloadAPIVersion, Kind: kind, Name: meta.Name}}
	switch selector := (&metav1.LabelSelector{MatchLabels: labels}); kind {
	case v1alpha1.WorkloadDeployment:
		b.object = &appsv1.Deployment{ObjectMeta: meta, Spec: appsv1.DeploymentSpec{Replicas: new(int32(1)), Selector: selector, Template: template}}
	case v1alpha1.WorkloadStatefulSet:
		b.object = &appsv1.StatefulSet{ObjectMeta: meta, Spec: appsv1.StatefulSetSpec{Replicas: new(int32(1)), Selector: selector, Template: template, ServiceName: "web"}}
	}
	w.must(w.p.Client.Create(w.t.Context(), b.object))
	return b
}

func (b *borrowed) patch(to client.Object, format string, args ...any) {
	b.t.Helper()
	patch := client.RawPatch(types.StrategicMergePatchType, fmt.Appendf(nil, format, args...))
	b.await("the patch of "+to.GetName(), func() (bool, any, error) {
		err := b.p.Client.Patch(b.t.Context(), to, patch)
		return err == nil, nil, err
	})
}

func (b *borrowed) scale(replicas int32) {
	b.t.Helper()
	patch := client.RawPatch(types.MergePatchType, fmt.Appendf(nil, `{"spec":{"replicas":%d}}`, replicas))
	b.await(fmt.Sprintf("scaled to %d", replicas), func() (bool, any, error) {
		err := b.p.Client.SubResource("scale").Patch(b.t.Context(), b.object, patch, client.WithSubResourceBody(&autoscalingv1.Scale{}))
		return err == nil, nil, err
	})
}

// lives are the processes, those of the workload's own pods and those of candidates.
func (b *borrowed) lives() (own, candidates []observe.Life) {
	for _, life := range b.p.Lives(b.resource()) {
		if strings.HasPrefix(life.Writer, jobName+"-") {
			candidates = append(candidates, life)
		} else {
			own = append(own, life)
		}
	}
	return own, candidates
}

// runsItself waits for the n-th process of the workload's own pods.
func (b *borrowed) runsItself(n int) {
	b.t.Helper()
	b.await(fmt.Sprintf("process %d of the workload itself", n), func() (bool, any, error) {
		own, _ := b.lives()
		return len(own) >= n, own, nil
	})
}

// alone asserts that no candidate's process wrote beside any other.
func (b *borrowed) alone() {
	b.t.Helper()
	own, candidates := b.lives()
	for _, overlap := range observe.Overlaps(candidates) {
		b.t.Error(overlap)
	}
	for _, life := range candidates {
		for _, other := range own {
			if life.First <= other.Last && other.First <= life.Last {
				b.t.Errorf("two processes: %s of the workload itself, %v to %v, and %s, %v to %v", other.Writer, other.First, other.Last, life.Writer, life.First, life.Last)
			}
		}
	}
}

// aloneAfter asserts that the workload's processes from the n-th on began after the last write of the candidates' processes.
func (b *borrowed) aloneAfter(n int) {
	b.t.Helper()
	own, candidates := b.lives()
	for _, life := range candidates {
		for _, other := range own[n:] {
			if other.First <= life.Last {
				b.t.Errorf(observe.Safety+"%s of the workload itself began at %v, and %s wrote until %v", other.Writer, other.First, life.Writer, life.Last)
			}
		}
	}
}

// says waits for the reason of a condition.
func (b *borrowed) says(condition, reason string) {
	b.t.Helper()
	_, err := b.p.AwaitJob(b.context(), b.ns, jobName, condition+" "+reason, func(job *v1alpha1.SingletonJob) bool {
		c := meta.FindStatusCondition(job.Status.Conditions, condition)
		return c != nil && c.Reason == reason
	})
	b.must(err)
}

// warned is how often people were warned that two may act.
func (b *borrowed) warned() (times int) {
	b.t.Helper()
	events := &corev1.EventList{}
	b.must(b.p.Client.List(b.t.Context(), events, client.InNamespace(b.ns)))
	for i := range events.Items {
		if events.Items[i].Reason == v1alpha1.ReasonWorkloadRunning {
			times++
		}
	}
	return times
}

// rolledOut waits for the end of the n-th rollout.
func (b *borrowed) rolledOut(n int) {
	b.t.Helper()
	job, err := b.p.AwaitJob(b.context(), b.ns, jobName, fmt.Sprintf("rolled out %d times", n), func(job *v1alpha1.SingletonJob) bool {
		return job.Status.Handovers >= int64(n) && job.Status.Candidates.Updated == 2 && Protected(job) &&
			meta.FindStatusCondition(job.Status.Conditions, v1alpha1.ConditionProgressing).Reason == v1alpha1.ReasonUpToDate
	})
	b.must(err)
	count := 0
	for _, c := range job.Status.History {
		if c.Reason == v1alpha1.ChangeRolloutHandover {
			count++
		}
	}
	if count != n {
		b.t.Errorf("%d rollouts cost these: %+v", n, job.Status.History)
	}
}

// TestAWorkloadOfKubernetesOwnControllers is adopted while they run, rolled out, rolled back, scaled up behind our back, and left.
func TestAWorkloadOfKubernetesOwnControllers(t *testing.T) {
	tier.Deep(t, "rolls workloads out and back, for minutes")
	for _, kind := range []v1alpha1.WorkloadKind{v1alpha1.WorkloadDeployment, v1alpha1.WorkloadStatefulSet} {
		t.Run(string(kind), func(t *testing.T) {
			b := newWorld(t).workload(kind)
			b.runsItself(1)
			job := b.job(patient, func(job *v1alpha1.SingletonJob) {
				job.Spec.Template, job.Spec.WorkloadRef = corev1.PodTemplateSpec{}, &b.ref
			})
			b.must(b.p.Client.Create(t.Context(), job.DeepCopy()))
			b.says(v1alpha1.ConditionActive, v1alpha1.ReasonWorkloadRunning)
			b.scale(0)
			b.await("its pod to be asked to end, which takes that a while", func() (bool, any, error) {
				pods := &corev1.PodList{}
				err := b.p.Client.List(t.Context(), pods, client.InNamespace(b.ns))
				return slices.ContainsFunc(pods.Items, func(p corev1.Pod) bool { return p.DeletionTimestamp != nil }), len(pods.Items), err
			})
			b.scale(1)
			b.runsItself(2)
			b.must(adopt.Run(b.context(), adopt.Options{
				Client: b.p.Client, Namespace: b.ns, Kind: string(kind), Name: b.ref.Name, JobName: jobName, Out: io.Discard, ErrOut: t.Output(),
			}))
			b.protected()
			b.alone()

			warned := b.warned()
			const version = `{"spec":{"template":{"spec":{"containers":[{"name":"writer","env":[{"name":"VERSION","value":"%d"},{"name":"LINGER","value":"0s"}]}]}}}}`
			for n, v := range []int{2, 3, 2} { // the last is a rollback, for which a Deployment takes an old ReplicaSet
				b.patch(b.object, version, v)
				b.rolledOut(n + 1)
			}
			b.alone()
			if now := b.warned(); now != warned {
				t.Errorf("people were warned %d times while the workload was at 0", now-warned)
			}
			n := b.besideIt() // two act until it ends
			b.leave(n)
			b.aloneAfter(n)
		})
	}
}

// besideIt scales the workload up beside the job, and down again: that is said, and nothing else is done. It returns how many
// processes of its own the workload has had.
func (b *borrowed) besideIt() int {
	b.t.Helper()
	before, running := b.lives()
	b.scale(1)
	b.says(v1alpha1.ConditionProtected, v1alpha1.ReasonWorkloadRunning)
	b.runsItself(len(before) + 1)
	b.scale(0)
	b.says(v1alpha1.ConditionProtected, v1alpha1.ReasonStandbyReady)
	own, after := b.lives()
	if !slices.EqualFunc(running, after, func(a, b observe.Life) bool { return a.Writer == b.Writer }) {
		b.t.Errorf("the job's processes were %v and are %v", running, after)
	}
	return len(own)
}

// leave goes back: the job's process ends, then the workload runs by itself again.
func (b *borrowed) leave(n int) {
	b.t.Helper()
	b.must(adopt.Run(b.context(), adopt.Options{
		Client: b.p.Client, Namespace: b.ns, Kind: string(b.ref.Kind), Name: b.ref.Name, Undo: true, Out: io.Discard, ErrOut: b.t.Output(),
	}))
	b.runsItself(n + 1)
	if job, err := b.p.Job(b.t.Context(), b.ns, jobName); err == nil {
		b.t.Errorf("the job is left: %+v", job.Status)
	}
}
