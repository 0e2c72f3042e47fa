//go:build linux

package e2e

import (
	"strconv"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/singletonjob/operator/api/v1alpha1"
	"github.com/singletonjob/operator/test/cluster"
	"github.com/singletonjob/operator/test/observe"
)

// patient is steady, where handovers are counted: whom a busy machine keeps from taking over at once is not overtaken by who released.
var patient = cluster.LeaseSetting{Duration: steady.Duration, Deadline: steady.Deadline, Retry: 8 * time.Second}

func violations(lives []observe.Life) []string { return observe.Violations(lives, false) }

// update changes the job's spec.
func (j *job) update(change func(*v1alpha1.SingletonJob)) {
	j.Helper()
	j.await("the spec to be changed", func() (bool, any, error) {
		o := j.get()
		change(o)
		err := bed.Client.Update(j.ctx, o)
		return err == nil, nil, err
	})
}

// TestRollout changes what the pods are made from: one handover, and no moment without a process but that of the handover.
func TestRollout(t *testing.T) {
	t.Parallel()
	for name, change := range map[string]func(*v1alpha1.SingletonJob){
		"template": func(o *v1alpha1.SingletonJob) {
			o.Spec.Template.Spec.Containers[0].Env = append(o.Spec.Template.Spec.Containers[0].Env, corev1.EnvVar{Name: "VERSION", Value: "2"})
		},
		"lease settings": func(o *v1alpha1.SingletonJob) {
			o.Spec.Lease.LeaseDuration.Duration = steady.Duration + 9*time.Second
			o.Spec.Lease.RenewDeadline.Duration = steady.Deadline + 6*time.Second
		},
	} {
		t.Run(name, func(t *testing.T) {
			x := beginBeside(t)
			j := x.start(patient)
			j.update(change)
			after := j.awaitSettled()
			if after.Status.Handovers != 1 || after.Status.Failovers != 0 {
				x.Errorf("%d handovers and %d failovers, want one handover: %+v", after.Status.Handovers, after.Status.Failovers, after.Status.History)
			}
			if after.Status.History[0].Reason != v1alpha1.ChangeRolloutHandover {
				x.Errorf("the history says %s, want %s", after.Status.History[0].Reason, v1alpha1.ChangeRolloutHandover)
			}
			j.check(false)
			for _, step := range observe.Takeovers(j.lives()) {
				x.Logf("handed over with %v without a stored write", step.Gap.Round(time.Millisecond))
			}
		})
	}
}

// TestRollouts: twenty rollouts of a job that writes all the time are twenty handovers.
func TestRollouts(t *testing.T) {
	const all = 20
	x := beginBeside(t)
	j := x.start(patient, func(o *v1alpha1.SingletonJob) {
		o.Spec.Strategy.MinReadySeconds, o.Spec.HistoryLimit = new(int32(1)), new(v1alpha1.MaxHistoryLimit)
	})
	for n := range int64(all) {
		j.update(func(o *v1alpha1.SingletonJob) {
			metav1.SetMetaDataAnnotation(&o.Spec.Template.ObjectMeta, "e2e/rollout", strconv.FormatInt(n, 10))
		})
		j.awaitStatus("rolled out", func(o *v1alpha1.SingletonJob) bool {
			return settled(o) && o.Status.Handovers > n && o.Status.Candidates.Updated == o.Status.Candidates.Total
		})
	}
	j.checkHandovers(all, v1alpha1.ChangeRolloutHandover)
}

// TestBrokenRollout changes to what can't run: the old process continues, and the status says so.
func TestBrokenRollout(t *testing.T) {
	t.Parallel()
	for name, c := range map[string]struct {
		change func(*v1alpha1.SingletonJob)
		tried  int64 // how often the Lease may have been handed over to it
	}{
		"an image that is nowhere": {change: func(o *v1alpha1.SingletonJob) {
			o.Spec.Template.Spec.Containers[0].Image = "local/no-such-image:1"
			o.Spec.Template.Spec.Containers[0].ImagePullPolicy = corev1.PullNever
		}},
		"a program that ends at once": {tried: 1, change: func(o *v1alpha1.SingletonJob) {
			o.Spec.Template.Spec.Containers[0].Command = []string{"/workload", "end"}
		}},
		"a command that is not in the image": {change: func(o *v1alpha1.SingletonJob) {
			o.Spec.Template.Spec.Containers[0].Command = []string{"/no/such/program"}
		}},
	} {
		t.Run(name, func(t *testing.T) {
			x := beginBeside(t)
			j := x.start(patient)
			before := j.get()
			j.update(c.change)
			stalled := func(o *v1alpha1.SingletonJob) bool {
				c := meta.FindStatusCondition(o.Status.Conditions, v1alpha1.ConditionProgressing)
				return c != nil && c.Status == metav1.ConditionFalse &&
					(c.Reason == v1alpha1.ReasonRolloutStalled || c.Reason == v1alpha1.ReasonProgressDeadlineExceeded) &&
					meta.IsStatusConditionTrue(o.Status.Conditions, v1alpha1.ConditionActive) && o.Status.ActivePod == before.Status.ActivePod
			}
			j.awaitStatus("stalled, and active", stalled)
			time.Sleep(10 * time.Second) // long enough to do harm
			j.awaitFurtherWrites()
			o := j.awaitStatus("stalled, and active", stalled)
			x.Logf("the status says %s", meta.FindStatusCondition(o.Status.Conditions, v1alpha1.ConditionProgressing).Message)
			// A second new pod that is up by then may win the Lease once before the old one does.
			failed := map[string]bool{}
			for _, change := range o.Status.History {
				if change.Type == v1alpha1.Failover && (failed[change.From] || change.From == before.Status.ActivePod) {
					x.Errorf("%s failed over once more: %+v", change.From, o.Status.History)
				}
				failed[change.From] = true
			}
			if o.Status.Handovers > c.tried || o.Status.Failovers > 2*c.tried {
				x.Errorf("%d failovers and %d handovers, want %d and %d at most: %+v", o.Status.Failovers, o.Status.Handovers, 2*c.tried, c.tried, o.Status.History)
			}
			j.update(func(o *v1alpha1.SingletonJob) { o.Spec.Template = before.Spec.Template })
			j.awaitSettled()
			j.awaitFurtherWrites()
			j.check(false)
		})
	}
}

// TestSuspend stops the job and starts it again: the token grows.
func TestSuspend(t *testing.T) {
	x := beginBeside(t)
	j := x.start(lease)
	before := j.get()
	j.update(func(o *v1alpha1.SingletonJob) { o.Spec.Suspend = true })
	j.awaitStatus("suspended", func(o *v1alpha1.SingletonJob) bool {
		c := meta.FindStatusCondition(o.Status.Conditions, v1alpha1.ConditionActive)
		return c != nil && c.Status == metav1.ConditionFalse && c.Reason == v1alpha1.ReasonSuspended
	})
	x.await("no candidates", func() (bool, any, error) { return len(j.candidates()) == 0, nil, nil })
	j.awaitSilence()
	j.update(func(o *v1alpha1.SingletonJob) { o.Spec.Suspend = false })
	j.awaitWriteAfter(before.Status.FencingToken)
	j.awaitSettled()
	j.check(false)
}

// TestOutOfService: an administrator's word that a node is down ends its tenure at once, however long the lease is.
func TestOutOfService(t *testing.T) {
	x := beginBeside(t)
	x.needLab()
	long := cluster.LeaseSetting{Duration: 300 * time.Second, Deadline: 200 * time.Second, Retry: 5 * time.Second}
	j := x.start(long)
	before := j.get()
	node := before.Status.ActiveNode
	began := time.Now()
	x.fault("crash", node)
	var n corev1.Node
	x.must(bed.Client.Get(x.ctx, client.ObjectKey{Name: node}, &n))
	patched := n.DeepCopy()
	patched.Spec.Taints = append(patched.Spec.Taints, corev1.Taint{Key: corev1.TaintNodeOutOfService, Value: "nodeshutdown", Effect: corev1.TaintEffectNoExecute})
	x.must(bed.Client.Patch(x.ctx, patched, client.MergeFrom(&n)))
	j.awaitWriteAfter(before.Status.FencingToken)
	// The operator itself may have been on that node: another one leads after up to 24 s, and looks at the Lease for 10 s.
	if took := time.Since(began); took > 34*time.Second+slack {
		x.Errorf("the next process wrote after %v, though the node was known to be down", took)
	}
	x.kubectl("taint", "node", node, string(corev1.TaintNodeOutOfService)+"-")
	x.heal()
	x.restoreNodes(x.ctx)
	after := j.awaitSettled()
	if change := changeFrom(after, before.Status.FencingToken); change == nil || change.Reason != v1alpha1.ChangeNodeLost {
		x.Errorf("the history says %+v, want %s", change, v1alpha1.ChangeNodeLost)
	}
	j.check(false)
}

// TestRolloutWithoutRoom: no third pod has room beside the two of a job. The operator gives up a standby for it, and the rollout costs one
// handover, as any other.
func TestRolloutWithoutRoom(t *testing.T) {
	t.Parallel()
	for name, limit := range map[string]func(*trial, *v1alpha1.SingletonJob){
		"quota": func(x *trial, _ *v1alpha1.SingletonJob) {
			x.must(bed.Client.Create(x.ctx, &corev1.ResourceQuota{
				ObjectMeta: metav1.ObjectMeta{Namespace: x.namespace, Name: "two"},
				Spec:       corev1.ResourceQuotaSpec{Hard: corev1.ResourceList{corev1.ResourcePods: *quantity("2")}},
			}))
		},
		"anti-affinity": func(x *trial, o *v1alpha1.SingletonJob) {
			x.leaveTwoNodes()
			o.Spec.Template.Labels = map[string]string{"app": "alone"}
			o.Spec.Template.Spec.Affinity = &corev1.Affinity{PodAntiAffinity: &corev1.PodAntiAffinity{
				RequiredDuringSchedulingIgnoredDuringExecution: []corev1.PodAffinityTerm{{
					TopologyKey: corev1.LabelHostname, LabelSelector: &metav1.LabelSelector{MatchLabels: o.Spec.Template.Labels},
				}},
			}}
		},
		"host port": func(x *trial, o *v1alpha1.SingletonJob) {
			x.leaveTwoNodes()
			o.Spec.Template.Spec.Containers[0].Ports = []corev1.ContainerPort{{ContainerPort: 18080, HostPort: 18080}}
		},
	} {
		t.Run(name, func(t *testing.T) {
			x := beginBeside(t)
			x.needLab()
			if name == "host port" {
				x.allow("privileged") // the standard "baseline" has no host ports
			}
			j := x.start(patient, func(o *v1alpha1.SingletonJob) {
				o.Spec.Strategy.MinReadySeconds, o.Spec.Strategy.ProgressDeadlineSeconds = new(int32(1)), new(int32(20))
				limit(x, o)
			})
			j.update(func(o *v1alpha1.SingletonJob) {
				metav1.SetMetaDataAnnotation(&o.Spec.Template.ObjectMeta, "e2e/rollout", "1")
			})
			told := map[string]bool{}
			after := j.awaitStatus("rolled out", func(o *v1alpha1.SingletonJob) bool {
				if c := meta.FindStatusCondition(o.Status.Conditions, v1alpha1.ConditionProgressing); c != nil && !told[c.Reason+c.Message] {
					told[c.Reason+c.Message] = true
					x.Logf("Progressing: %s: %s", c.Reason, c.Message)
				}
				return settled(o) && o.Status.Handovers > 0
			})
			if after.Status.Handovers != 1 || after.Status.Failovers != 0 {
				x.Errorf("%d handovers and %d failovers: %+v", after.Status.Handovers, after.Status.Failovers, after.Status.History)
			}
			j.check(false)
		})
	}
}

// nodes are those on which the trial's pods run.
func (x *trial) nodes() []string {
	if len(x.zone.nodes) > 0 {
		return x.zone.nodes
	}
	return bed.Lab.Nodes
}

// leaveTwoNodes cordons all nodes of the trial but two.
func (x *trial) leaveTwoNodes() {
	x.Helper()
	for _, node := range x.nodes()[2:] {
		x.kubectl("cordon", node)
	}
}

// allow sets the Pod Security standard of the trial's namespace.
func (x *trial) allow(standard string) {
	x.Helper()
	x.kubectl("label", "namespace", x.namespace, "pod-security.kubernetes.io/enforce="+standard, "--overwrite")
}
