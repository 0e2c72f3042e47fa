//go:build linux

package e2e

import (
	"testing"
	"time"

	coordinationv1 "k8s.io/api/coordination/v1"
	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/singletonjob/operator/api/v1alpha1"
	"github.com/singletonjob/operator/internal/contract"
)

// tampering is what people and other programs do to a Lease. Each changes it as it is at that moment.
var tampering = map[string]func(*coordinationv1.Lease){
	"holder cleared":          func(l *coordinationv1.Lease) { l.Spec.HolderIdentity = new("") },
	"holder is somebody else": func(l *coordinationv1.Lease) { l.Spec.HolderIdentity = new("somebody-else") },
	"transitions lowered":     func(l *coordinationv1.Lease) { l.Spec.LeaseTransitions = new(int32(0)) },
	"duration shortened":      func(l *coordinationv1.Lease) { l.Spec.LeaseDurationSeconds = new(int32(1)) },
	"token removed":           func(l *coordinationv1.Lease) { delete(l.Annotations, contract.TokenAnnotation) },
	"token lowered":           func(l *coordinationv1.Lease) { l.Annotations[contract.TokenAnnotation] = "1" },
	"annotations removed":     func(l *coordinationv1.Lease) { l.Annotations = nil },
	"deleted":                 nil,
}

// guardMark set to "off" lets an administrator change a Lease and delete it.
const guardMark = "singletonjob.io/guard"

// unguard marks the Lease, if there is one. It may go, or be recreated, while kubectl looks.
func (j *job) unguard() {
	j.Helper()
	j.await("the Lease to be marked, or gone", func() (bool, any, error) {
		_, err := bed.Kubectl(j.ctx, "--namespace="+j.namespace, "annotate", "leases", "--overwrite", "--selector="+contract.NameLabel+"="+j.name, guardMark+"=off")
		return err == nil, nil, err
	})
}

// TestLeaseTampered: there may be a new tenure, with a higher token, and never two processes.
func TestLeaseTampered(t *testing.T) {
	t.Parallel()
	for name, change := range tampering {
		t.Run(name, func(t *testing.T) {
			x := beginBeside(t)
			j := x.start(lease)
			j.tamper(change)
			time.Sleep(2*lease.Duration + time.Second) // until whatever follows has followed
			j.awaitSettled()
			j.awaitFurtherWrites()
			x.Logf("%d processes wrote", len(j.lives()))
			j.check(false)
		})
	}
}

// tamper changes the Lease, or deletes it for nil, between two renewals, with the mark that the guard asks of who does so.
func (j *job) tamper(change func(*coordinationv1.Lease)) {
	j.Helper()
	j.await("the Lease to be tampered with", func() (bool, any, error) {
		var l coordinationv1.Lease
		err := bed.Client.Get(j.ctx, j.key, &l)
		if err == nil && l.Annotations[guardMark] == "" {
			l.Annotations[guardMark] = "off"
			err = bed.Client.Update(j.ctx, &l)
		}
		if err != nil {
			return false, nil, err
		}
		if change == nil {
			err = bed.Client.Delete(j.ctx, &l)
		} else {
			change(&l)
			err = bed.Client.Update(j.ctx, &l)
		}
		return err == nil, nil, err
	})
}

// awaitFurtherWrites waits until somebody writes after now.
func (j *job) awaitFurtherWrites() {
	j.Helper()
	stored := func() (n int) {
		for _, l := range j.lives() {
			n += l.Accepted
		}
		return n
	}
	before := stored()
	j.await("further writes", func() (bool, any, error) { return stored() > before+10, stored(), nil })
}

// TestForeignLease: a Lease of that name without our label is not touched.
func TestForeignLease(t *testing.T) {
	x := beginBeside(t)
	foreign := &coordinationv1.Lease{
		ObjectMeta: metav1.ObjectMeta{Namespace: x.namespace, Name: "job"},
		Spec:       coordinationv1.LeaseSpec{HolderIdentity: new("the-owner"), LeaseDurationSeconds: new(int32(15))},
	}
	x.must(bed.Client.Create(x.ctx, foreign))
	j := x.create(lease)
	j.awaitStatus("in conflict", inConflict)
	var now coordinationv1.Lease
	x.must(bed.Client.Get(x.ctx, j.key, &now))
	if now.ResourceVersion != foreign.ResourceVersion {
		x.Errorf("the Lease of somebody else was written: %+v", now)
	}
	if n := len(j.candidates()); n != 0 {
		x.Errorf("%d candidates contend for a Lease of somebody else", n)
	}
}

// TestLeaseLabelRemoved: without the label the Lease is somebody else's to all of us. The process stops, nobody takes over,
// and all continues when the label is back.
func TestLeaseLabelRemoved(t *testing.T) {
	x := beginBeside(t)
	j := x.start(lease)
	token := j.get().Status.FencingToken
	j.tamper(func(l *coordinationv1.Lease) { delete(l.Labels, contract.ManagedByLabel) })
	j.awaitStatus("in conflict", inConflict)
	j.awaitSilence()
	j.tamper(func(l *coordinationv1.Lease) { l.Labels[contract.ManagedByLabel] = contract.ManagedBy })
	j.awaitWriteAfter(token)
	j.awaitSettled()
	j.check(false)
}

func inConflict(o *v1alpha1.SingletonJob) bool {
	c := meta.FindStatusCondition(o.Status.Conditions, v1alpha1.ConditionActive)
	return c != nil && c.Status == metav1.ConditionFalse && c.Reason == v1alpha1.ReasonLeaseConflict
}

// TestStatusWiped: what the status told is told again, from the Lease, and the tenure continues.
func TestStatusWiped(t *testing.T) {
	x := beginBeside(t)
	j := x.start(steady)
	before := j.crash()
	x.kubectl("patch", "singletonjob", j.name, "--subresource=status", "--type=json", `--patch=[{"op":"remove","path":"/status"}]`)
	after := j.awaitSettled()
	if after.Status.FencingToken != before.Status.FencingToken || after.Status.ActivePod != before.Status.ActivePod {
		x.Errorf("after its status was wiped the job tells of %s (%d), before of %s (%d)",
			after.Status.ActivePod, after.Status.FencingToken, before.Status.ActivePod, before.Status.FencingToken)
	}
	j.awaitFurtherWrites()
	j.check(false)
}

// TestDefinitionReinstalled deletes the definition, and every job with it, while the holder is cut off from the API server
// and writes on. A job recreated must wait for the old process.
func TestDefinitionReinstalled(t *testing.T) {
	x := begin(t)
	x.needLab()
	j := x.start(lease)
	before := j.get()
	x.fault("api", before.Status.ActiveNode, "drop")
	x.kubectl("delete", "crd", "singletonjobs.singletonjob.io", "--wait=true")
	x.must(bed.install(x.ctx))
	x.kubectl("wait", "--for=condition=established", "crd/singletonjobs.singletonjob.io", "--timeout=30s")
	x.makeAnew(before)
}

// makeAnew creates the job again while the holder from before is cut off and writes on, and heals.
func (x *trial) makeAnew(before *v1alpha1.SingletonJob) {
	x.Helper()
	again := x.create(lease)
	again.awaitWriteAfter(before.Status.FencingToken)
	time.Sleep(lease.Duration) // both sides must stay as they are
	again.checkLives()
	x.heal()
	again.awaitSettled()
	again.checkLives()
}

// TestRecreatedWhileCutOff deletes and recreates the job while its holder is cut off from the API server and still writes. The new job
// must wait for the old process, whatever has been forgotten.
func TestRecreatedWhileCutOff(t *testing.T) {
	t.Parallel()
	for name, forget := range map[string]func(*job){
		"job": func(*job) {},
		"job and Lease": func(j *job) {
			j.unguard()
			j.kubectl("delete", "lease", j.name, "--ignore-not-found")
		},
		"job, Lease and pods": func(j *job) {
			j.kubectl("delete", "pods", "--all", "--force", "--grace-period=0", "--wait=false")
			j.unguard()
			j.kubectl("delete", "lease", j.name, "--ignore-not-found")
		},
	} {
		t.Run(name, func(t *testing.T) {
			x := beginBeside(t)
			x.needLab()
			j := x.start(lease)
			before := j.get()
			x.fault("api", before.Status.ActiveNode, "drop")
			x.kubectl("delete", "singletonjob", j.name, "--wait=false")
			forget(j)
			x.await("the job to be gone", func() (bool, any, error) {
				err := bed.Client.Get(x.ctx, j.key, &v1alpha1.SingletonJob{})
				return apierrors.IsNotFound(err), nil, err
			})
			x.makeAnew(before)
		})
	}
}

// checkLives is check without the history, which begins again with a new job.
func (j *job) checkLives() {
	j.Helper()
	for _, v := range violations(j.lives()) {
		j.Error("violation: ", v)
	}
}

// TestNamespaceDeleted: nothing may hang, though the Lease is not owned by the job and agents are at work.
func TestNamespaceDeleted(t *testing.T) {
	x := beginBeside(t)
	j := x.start(lease)
	x.must(bed.DeleteNamespace(x.ctx, x.namespace))
	x.await("the namespace to be gone", func() (bool, any, error) {
		var n corev1.Namespace
		err := bed.Client.Get(x.ctx, client.ObjectKey{Name: x.namespace}, &n)
		return apierrors.IsNotFound(err), n.Status.Conditions, err
	})
	token := j.lives()[0].Tokens[0]
	x.must(bed.CreateNamespace(x.ctx, x.namespace, x.zone.name))
	again := x.start(lease)
	if now := again.get().Status.FencingToken; now <= int64(token) {
		x.Errorf("after the namespace was made anew the token is %d, want more than %d", now, token)
	}
	again.checkLives()
}
