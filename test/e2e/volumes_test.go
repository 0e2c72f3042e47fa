//go:build linux

package e2e

import (
	"context"
	"regexp"
	"slices"
	"strings"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/meta"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/singletonjob/operator/api/v1alpha1"
	"github.com/singletonjob/operator/internal/contract"
	"github.com/singletonjob/operator/test/cluster"
)

// TestColdStandby: one candidate on a claim that one pod at a time can have, through a rollout and the loss of its node. The
// volume is a directory that all nodes of the lab see, and the scheduler keeps pods from it while another has it.
func TestColdStandby(t *testing.T) {
	x := beginBeside(t)
	x.needLab()
	x.claim("data", corev1.ReadWriteOncePod, corev1.PersistentVolumeSource{HostPath: &corev1.HostPathVolumeSource{Path: t.TempDir()}})
	j := x.create(cluster.ClientGo, coldOn("data"))
	first := j.awaitActiveAfter(0)
	if c := meta.FindStatusCondition(first.Status.Conditions, v1alpha1.ConditionProtected); c == nil || !strings.Contains(c.Message, "data is ReadWriteOncePod") {
		x.Errorf("Protected does not tell of the claim: %+v", c)
	}

	x.note("rollout")
	j.update(func(o *v1alpha1.SingletonJob) {
		metav1.SetMetaDataAnnotation(&o.Spec.Template.ObjectMeta, "e2e/rollout", "1")
	})
	second := j.awaitActiveAfter(first.Status.FencingToken)
	j.awaitWriteAfter(first.Status.FencingToken)

	x.note("the node is lost")
	x.fault("crash", second.Status.ActiveNode)
	x.notReady(second.Status.ActiveNode)
	lost := j.awaitStatus("the status tells what the next pod waits for", func(o *v1alpha1.SingletonJob) bool {
		return remedyOf(o) != ""
	})
	x.kubectl(strings.Fields(remedyOf(lost))...)
	j.awaitWriteAfter(second.Status.FencingToken)
	if now := j.awaitActiveAfter(second.Status.FencingToken); now.Status.ActiveNode == second.Status.ActiveNode {
		x.Errorf("the active pod is on node %s, which has no power", now.Status.ActiveNode)
	}
	j.check(false)
}

// notReady says of a node without power what Kubernetes takes most of a minute to notice.
func (x *trial) notReady(node string) {
	x.Helper()
	var n corev1.Node
	x.must(bed.Client.Get(x.ctx, client.ObjectKey{Name: node}, &n))
	patched := n.DeepCopy()
	for i := range patched.Status.Conditions {
		if c := &patched.Status.Conditions[i]; c.Type == corev1.NodeReady {
			c.Status, c.LastTransitionTime = corev1.ConditionFalse, metav1.Now()
		}
	}
	x.must(bed.Client.Status().Patch(x.ctx, patched, client.MergeFrom(&n)))
}

// claim makes a claim with a volume.
func (x *trial) claim(name string, mode corev1.PersistentVolumeAccessMode, source corev1.PersistentVolumeSource) {
	x.Helper()
	modes := []corev1.PersistentVolumeAccessMode{mode}
	size := corev1.ResourceList{corev1.ResourceStorage: resource.MustParse("1Mi")}
	volume := &corev1.PersistentVolume{
		ObjectMeta: metav1.ObjectMeta{Name: x.namespace + "-" + name},
		Spec: corev1.PersistentVolumeSpec{
			Capacity: size, AccessModes: modes, PersistentVolumeReclaimPolicy: corev1.PersistentVolumeReclaimRetain,
			ClaimRef:               &corev1.ObjectReference{Namespace: x.namespace, Name: name},
			PersistentVolumeSource: source,
		},
	}
	x.must(bed.Client.Create(x.ctx, volume))
	x.Cleanup(func() { _ = bed.Client.Delete(context.Background(), volume) })
	x.must(bed.Client.Create(x.ctx, &corev1.PersistentVolumeClaim{
		ObjectMeta: metav1.ObjectMeta{Namespace: x.namespace, Name: name},
		Spec: corev1.PersistentVolumeClaimSpec{
			AccessModes: modes, Resources: corev1.VolumeResourceRequirements{Requests: size},
			StorageClassName: new(""), VolumeName: volume.Name,
		},
	}))
}

// coldOn makes a job of one candidate that has its data in a claim.
func coldOn(claim string) func(*v1alpha1.SingletonJob) {
	return func(o *v1alpha1.SingletonJob) {
		o.Spec.Candidates = 1
		pod := &o.Spec.Template.Spec
		pod.Tolerations = []corev1.Toleration{{ // less than by default, to save time
			Key: corev1.TaintNodeNotReady, Operator: corev1.TolerationOpExists, Effect: corev1.TaintEffectNoExecute, TolerationSeconds: new(int64(1)),
		}}
		pod.Volumes = []corev1.Volume{{Name: "data", VolumeSource: corev1.VolumeSource{
			PersistentVolumeClaim: &corev1.PersistentVolumeClaimVolumeSource{ClaimName: claim},
		}}}
		pod.Containers[0].VolumeMounts = []corev1.VolumeMount{{Name: "data", MountPath: "/data"}}
	}
}

// TestRolloutOnAnAttachedVolume: two candidates on a ReadWriteOnce claim whose volume Kubernetes attaches to one node. A rollout does not get
// its new pod, the old version continues, and the status says by the deadline what to do. That ends the rollout.
func TestRolloutOnAnAttachedVolume(t *testing.T) {
	const deadline = 20 * time.Second
	x := begin(t)
	x.needLab()
	d := x.driver()
	x.claim("data", corev1.ReadWriteOnce, corev1.PersistentVolumeSource{CSI: &corev1.CSIPersistentVolumeSource{Driver: d.name, VolumeHandle: "data"}})
	j := x.create(patient, coldOn("data"), func(o *v1alpha1.SingletonJob) {
		o.Spec.Candidates, o.Spec.Strategy.ProgressDeadlineSeconds = 2, new(int32(deadline.Seconds()))
	})
	x.deleteBeforeItsDriver(j)
	says := func(o *v1alpha1.SingletonJob, condition, reason, text string) bool {
		c := meta.FindStatusCondition(o.Status.Conditions, condition)
		return c != nil && c.Reason == reason && strings.Contains(c.Message, text)
	}
	before := j.awaitStatus("not protected, because of the claim", func(o *v1alpha1.SingletonJob) bool {
		return says(o, v1alpha1.ConditionProtected, v1alpha1.ReasonVolumeNotShared, "data is ReadWriteOnce")
	}).Status
	j.awaitWriteAfter(0)
	began := time.Now()
	j.update(func(o *v1alpha1.SingletonJob) {
		metav1.SetMetaDataAnnotation(&o.Spec.Template.ObjectMeta, "e2e/rollout", "1")
	})
	stuck := j.awaitStatus("the status says what to do", func(o *v1alpha1.SingletonJob) bool {
		return says(o, v1alpha1.ConditionProgressing, v1alpha1.ReasonProgressDeadlineExceeded, "Set spec.candidates to 1")
	})
	took := time.Since(began)
	x.Logf("after %v Progressing says: %s", took.Round(time.Second), meta.FindStatusCondition(stuck.Status.Conditions, v1alpha1.ConditionProgressing).Message)
	if took > deadline+slack {
		x.Errorf("the status said what to do after %v, the deadline is %v", took, deadline)
	}
	j.awaitFurtherWrites()
	if now := j.get().Status; now.ActivePod != before.ActivePod || now.Handovers+now.Failovers > 0 {
		x.Errorf("the old version does not continue: %+v", now)
	}
	x.kubectl("scale", "singletonjob", j.name, "--replicas=1")
	j.awaitStatus("rolled out", func(o *v1alpha1.SingletonJob) bool {
		return o.Status.ActivePod != "" && o.Status.FencingToken > before.FencingToken && o.Status.Candidates.Total == 1 && o.Status.Candidates.Updated == 1
	})
	j.awaitWriteAfter(before.FencingToken)
	j.check(false)
}

// deleteBeforeItsDriver deletes a job before its driver ends, which takes the volume away.
func (x *trial) deleteBeforeItsDriver(j *job) {
	x.Cleanup(func() {
		ctx, cancel := context.WithTimeout(context.Background(), patience)
		defer cancel()
		_, _ = bed.Kubectl(ctx, "delete", "singletonjob", j.name, "--namespace="+x.namespace, "--cascade=foreground", "--wait")
	})
}

// TestAttachedVolume: one candidate on a ReadWriteOnce claim whose volume is attached to one node at a time, by Kubernetes' own controller
// and a CSI driver. A rollout keeps the volume; when the node is lost, the volume stays with it until somebody says that it has
// no power, and the next pod waits for that.
func TestAttachedVolume(t *testing.T) {
	x := begin(t)
	x.needLab()
	d := x.driver()
	x.claim("data", corev1.ReadWriteOnce, corev1.PersistentVolumeSource{CSI: &corev1.CSIPersistentVolumeSource{Driver: d.name, VolumeHandle: "data"}})
	j := x.create(cluster.ClientGo, coldOn("data"))
	x.deleteBeforeItsDriver(j)
	first := j.awaitActiveAfter(0).Status
	j.awaitWriteAfter(0)
	if got := d.attachedTo(x); !slices.Equal(got, []string{first.ActiveNode}) {
		x.Errorf("the volume is attached to %v, the active pod on %s", got, first.ActiveNode)
	}

	x.note("rollout")
	j.update(func(o *v1alpha1.SingletonJob) {
		metav1.SetMetaDataAnnotation(&o.Spec.Template.ObjectMeta, "e2e/rollout", "1")
	})
	second := j.awaitActiveAfter(first.FencingToken).Status
	j.awaitWriteAfter(first.FencingToken)

	x.note("the node is lost")
	x.fault("crash", second.ActiveNode)
	x.notReady(second.ActiveNode)
	lost := j.awaitStatus("the status tells what the next pod waits for", func(o *v1alpha1.SingletonJob) bool {
		return remedyOf(o) != ""
	})
	x.await("Kubernetes keeps the next pod from the volume", func() (bool, any, error) {
		events, err := bed.Kubectl(x.ctx, "events", "--namespace="+x.namespace)
		return strings.Contains(events, "FailedAttachVolume"), events, err
	})
	if got := d.attachedTo(x); !slices.Equal(got, []string{second.ActiveNode}) {
		x.Errorf("the volume is attached to %v, want the lost node %s until its end is certain", got, second.ActiveNode)
	}
	x.kubectl(strings.Fields(remedyOf(lost))...)
	j.awaitWriteAfter(second.FencingToken)
	now := j.awaitActiveAfter(second.FencingToken).Status
	if now.ActiveNode == second.ActiveNode {
		x.Errorf("the active pod is on node %s, which has no power", now.ActiveNode)
	}
	if got := d.attachedTo(x); !slices.Equal(got, []string{now.ActiveNode}) {
		x.Errorf("the volume is attached to %v, the active pod on %s", got, now.ActiveNode)
	}
	j.check(false)
}

// remedyOf is what a job's condition says about a node that may be lost, as arguments of kubectl.
func remedyOf(o *v1alpha1.SingletonJob) string {
	c := meta.FindStatusCondition(o.Status.Conditions, v1alpha1.ConditionActive)
	if c == nil {
		return ""
	}
	return regexp.MustCompile(`taint node \S+ \S+`).FindString(c.Message)
}

// TestAgentImageVolume: the operator is told to mount the agent's image from now on. Running Pods continue unchanged. New candidates have
// the image, and exec finds their agents' sockets, also in a container that starts again and can write nowhere else. A drain needs no flag
// for emptyDirs.
func TestAgentImageVolume(t *testing.T) {
	x := begin(t)
	x.needLab()
	old := x.createNamed("old", steady)
	before := old.awaitSettled()
	old.awaitWriteAfter(0)
	x.note("helm upgrade --set agentImageVolume=true")
	x.must(bed.install(x.ctx, "agentImageVolume=true"))
	x.kubectl("annotate", "singletonjob", old.name, "e2e/noticed=yes") // makes the new operator look at it
	old.awaitSettled()
	old.undisturbed(before)

	j := x.create(steady, func(o *v1alpha1.SingletonJob) {
		o.Spec.Template.Spec.Containers[0].SecurityContext.ReadOnlyRootFilesystem = new(true)
	})
	first := j.awaitSettled().Status
	for _, pod := range j.candidates() {
		if len(pod.Spec.InitContainers) > 0 {
			x.Errorf("%s has init containers, want the agent's image alone", pod.Name)
		}
	}
	asks := func(pod string, args ...string) {
		x.Helper()
		x.await("the agent of "+pod+" answers", func() (bool, any, error) {
			out, err := bed.Kubectl(x.ctx, append([]string{"exec", "--namespace=" + x.namespace, pod, "--container=app", "--", contract.AgentPath}, args...)...)
			return err == nil, out, nil
		})
	}
	asks(first.ActivePod, "check")
	x.note("the agent is killed, and leaves its socket behind")
	x.fault("signal", j.container(first.ActivePod), "KILL")
	second := j.awaitActiveAfter(first.FencingToken).Status
	asks(first.ActivePod, "lease")
	asks(second.ActivePod, "check")

	second = j.awaitSettled().Status
	j.kubectl("drain", second.ActiveNode, "--ignore-daemonsets", "--force", "--timeout=2m", "--pod-selector=singletonjob.io/name=job")
	j.awaitWriteAfter(second.FencingToken)
	if now := j.awaitActiveAfter(second.FencingToken).Status; now.ActiveNode == second.ActiveNode {
		x.Errorf("the active pod is on node %s, which was drained", now.ActiveNode)
	}
	j.check(false)
	x.must(bed.install(x.ctx))
}

// TestColdStandbyOnOneNode: Kubernetes lets two pods on one node have a ReadWriteOnce claim. While the old pod still stops, the new one
// waits for the Lease, and only one process writes.
func TestColdStandbyOnOneNode(t *testing.T) {
	x := beginBeside(t)
	x.needLab()
	x.claim("data", corev1.ReadWriteOnce, corev1.PersistentVolumeSource{HostPath: &corev1.HostPathVolumeSource{Path: t.TempDir()}})
	j := x.create(steady, coldOn("data"), lingerFor(10*time.Second), longGrace, func(o *v1alpha1.SingletonJob) {
		o.Spec.Template.Spec.NodeSelector = map[string]string{corev1.LabelHostname: x.nodes()[0]}
	})
	first := j.awaitActiveAfter(0)
	j.awaitWriteAfter(0)
	x.kubectl("delete", "pod", first.Status.ActivePod, "--wait=false")
	x.await("the next pod runs beside the one that stops", func() (bool, any, error) {
		var beside []string
		for _, pod := range j.candidates() {
			if pod.DeletionTimestamp == nil && pod.Status.Phase == corev1.PodRunning || pod.DeletionTimestamp != nil {
				beside = append(beside, pod.Name)
			}
		}
		return len(beside) == 2, beside, nil
	})
	j.awaitWriteAfter(first.Status.FencingToken)
	if after := j.awaitActiveAfter(first.Status.FencingToken); after.Status.Failovers != 0 || after.Status.ActiveNode != first.Status.ActiveNode {
		x.Errorf("%+v", after.Status)
	}
	j.check(false)
}
