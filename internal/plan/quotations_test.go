package plan

import (
	"strings"
	"testing"

	corev1 "k8s.io/api/core/v1"

	"github.com/singletonjob/operator/api/v1alpha1"
	"github.com/singletonjob/operator/docs/commands"
)

// TestQuotations: the documents quote these messages as they are.
func TestQuotations(t *testing.T) {
	on := func(g *given, mode corev1.PersistentVolumeAccessMode) {
		g.Volumes = []Volume{{"data", modes(mode), nil}}
		for _, pod := range g.Pods {
			pod.Spec.Volumes = append(pod.Spec.Volumes, corev1.Volume{Name: "v", VolumeSource: corev1.VolumeSource{
				PersistentVolumeClaim: &corev1.PersistentVolumeClaimVolumeSource{ClaimName: "data"},
			}})
		}
	}
	quoted := func(page, message string) {
		t.Helper()
		if err := commands.Quoted("../..", page, strings.NewReplacer("node a ", "node node-1 ", "node a,", "node node-1,").Replace(message)); err != nil {
			t.Error(err)
		}
	}

	unshared := steady()
	on(unshared, corev1.ReadWriteOnce)
	unshared.unready(1)
	protected := unshared.condition(v1alpha1.ConditionProtected)
	quoted("docs/volumes.md", protected.reason+": "+protected.message)

	rollout := steady()
	newTemplate(rollout)
	rollout.pod(0, "c")
	on(rollout, corev1.ReadWriteOnce)
	rollout.Pods[2].CreationTimestamp.Time = ago(twoMinutes)
	rollout.waiting(2, "ContainerCreating")
	rollout.since(2, twoMinutes)
	quoted("docs/volumes.md", rollout.condition(v1alpha1.ConditionProgressing).message)

	waits := lost()
	on(waits, corev1.ReadWriteOncePod)
	quoted("docs/volumes.md", waits.condition(v1alpha1.ConditionActive).message)

	registry := steady()
	registry.Job.Spec.Template.Spec.Containers[0] = corev1.Container{Name: "app", Image: "registry.example/team/app:v1"}
	registry.Entrypoint = Lookup{Reason: v1alpha1.ReasonRegistryUnreachable, Problem: "the registry registry.example answers with status 503"}
	quoted("docs/entrypoint.md", registry.condition(v1alpha1.ConditionProgressing).message)
}
