package controller

import (
	"context"
	"errors"
	"strings"
	"testing"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/singletonjob/operator/api/v1alpha1"
)

// TestAClaimIsRead: the condition follows what the API server says of the Pods' claims.
func TestAClaimIsRead(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	w.job(withClaim("data"))
	w.until("serving without the claim", w.serving)
	if c := condition(w.status(), v1alpha1.ConditionProtected); strings.Contains(c.Message, "data") {
		t.Errorf("there is no claim, and Protected says %q", c.Message)
	}
	w.must(w.api.Create(t.Context(), &corev1.PersistentVolumeClaim{
		ObjectMeta: metav1.ObjectMeta{Namespace: w.key.Namespace, Name: "data"},
		Spec: corev1.PersistentVolumeClaimSpec{
			AccessModes: []corev1.PersistentVolumeAccessMode{corev1.ReadWriteOnce},
			Resources:   corev1.VolumeResourceRequirements{Requests: corev1.ResourceList{corev1.ResourceStorage: resource.MustParse("1Gi")}},
		},
	}))
	w.until("the claim is heeded", func() bool {
		c := condition(w.status(), v1alpha1.ConditionProtected)
		return c.Reason == v1alpha1.ReasonSingleCandidate && strings.Contains(c.Message, "the PersistentVolumeClaim data is ReadWriteOnce")
	})
}

// TestRolloutOnAVolumeOfOneNode: a claim that one node at a time can use keeps the new version's pod from starting. The old one continues
// without a handover, the status says what to do, and that ends the rollout.
func TestRolloutOnAVolumeOfOneNode(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	w.attached = true
	w.must(w.api.Create(t.Context(), &corev1.PersistentVolumeClaim{
		ObjectMeta: metav1.ObjectMeta{Namespace: w.key.Namespace, Name: "data"},
		Spec: corev1.PersistentVolumeClaimSpec{
			AccessModes: []corev1.PersistentVolumeAccessMode{corev1.ReadWriteOnce},
			Resources:   corev1.VolumeResourceRequirements{Requests: corev1.ResourceList{corev1.ResourceStorage: resource.MustParse("1Gi")}},
		},
	}))
	w.job(func(s *v1alpha1.SingletonJobSpec) {
		withClaim("data")(s)
		s.Candidates, s.Strategy.ProgressDeadlineSeconds = 2, new(int32(10))
	})
	w.until("no standby, because of the claim", func() bool {
		return condition(w.status(), v1alpha1.ConditionProtected).Reason == v1alpha1.ReasonVolumeNotShared
	})
	before := w.status()
	w.edit(func(job *v1alpha1.SingletonJob) { job.Spec.Template.Spec.Containers[0].Image = "v2" })
	says := func() bool {
		c := condition(w.status(), v1alpha1.ConditionProgressing)
		return c.Reason == v1alpha1.ReasonProgressDeadlineExceeded && strings.Contains(c.Message, "Set spec.candidates to 1") &&
			strings.Contains(c.Message, "the PersistentVolumeClaim data on node "+before.ActiveNode)
	}
	w.until("the status says what to do", says)
	for range 20 {
		w.round()
	}
	if s := w.status(); s.ActivePod != before.ActivePod || s.Handovers+s.Failovers > 0 || !says() {
		t.Errorf("the old version does not continue: %+v", s)
	}
	w.edit(func(job *v1alpha1.SingletonJob) { job.Spec.Candidates = 1 })
	w.until("rolled out", w.serving)
	if s := w.status(); s.Handovers != 1 || s.Failovers != 0 {
		t.Errorf("%d handovers and %d failovers, want one handover: %+v", s.Handovers, s.Failovers, s.History)
	}
}

// TestClaimsMayNotBeRead: the roles of an earlier release stop nothing.
func TestClaimsMayNotBeRead(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	w.operators[0].r.Live = blind{w.operators[0].r.Live}
	w.job(withClaim("data"))
	w.until("serving", w.serving)
}

func withClaim(name string) func(*v1alpha1.SingletonJobSpec) {
	return func(s *v1alpha1.SingletonJobSpec) {
		s.Candidates = 1
		s.Template.Spec.Volumes = []corev1.Volume{{Name: "v", VolumeSource: corev1.VolumeSource{
			PersistentVolumeClaim: &corev1.PersistentVolumeClaimVolumeSource{ClaimName: name},
		}}}
	}
}

// blind is an API server without the right to read claims.
type blind struct{ client.Reader }

func (b blind) Get(ctx context.Context, key client.ObjectKey, into client.Object, options ...client.GetOption) error {
	if _, claim := into.(*corev1.PersistentVolumeClaim); claim {
		return apierrors.NewForbidden(schema.GroupResource{Resource: "persistentvolumeclaims"}, key.Name, errors.New("no right"))
	}
	return b.Reader.Get(ctx, key, into, options...)
}
