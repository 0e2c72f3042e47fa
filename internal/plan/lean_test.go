package plan

import (
	"math/rand/v2"
	"reflect"
	"testing"

	"github.com/google/go-cmp/cmp"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"sigs.k8s.io/randfill"

	"github.com/singletonjob/operator/test/tier"
)

// TestLeanPodsGiveTheSamePlan: decisions on the pods that the operator keeps in memory are the same as on the complete ones.
func TestLeanPodsGiveTheSamePlan(t *testing.T) {
	for _, seed := range tier.Seeds(t, 300, 300) {
		g, r := observation(seed), rand.New(rand.NewPCG(seed, 3))
		for _, pod := range g.Pods {
			fatten(pod, r)
		}
		whole := Decide(g.Observed)
		lean := g.Observed
		lean.Pods = nil
		for _, pod := range g.Pods {
			lean.Pods = append(lean.Pods, LeanPod(pod))
		}
		if diff := cmp.Diff(did(whole), did(Decide(lean))); diff != "" {
			t.Fatalf("seed %d: %s", seed, diff)
		}
		if diff := cmp.Diff(Claims(g.Pods), Claims(lean.Pods)); diff != "" {
			t.Fatalf("seed %d: claims: %s", seed, diff)
		}
	}
}

// fatten adds some fields that pods in real clusters have.
func fatten(pod *corev1.Pod, r *rand.Rand) {
	pod.ManagedFields = []metav1.ManagedFieldsEntry{{Manager: "kubelet"}}
	for _, change := range []func(){
		func() { pod.Annotations[corev1.LastAppliedConfigAnnotation] = "{}" },
		func() {
			pod.Spec.Containers[0].Resources.Limits = corev1.ResourceList{corev1.ResourceCPU: resource.MustParse("1m")}
		},
		func() {
			pod.Spec.Resources = &corev1.ResourceRequirements{Limits: corev1.ResourceList{corev1.ResourceCPU: resource.MustParse("2m")}}
		},
		func() { pod.Spec.NodeSelector = map[string]string{"disk": "ssd"} },
		func() {
			pod.Spec.Tolerations = []corev1.Toleration{{Key: "taint", Operator: corev1.TolerationOpExists}}
		},
		func() {
			pod.Spec.Volumes = append(pod.Spec.Volumes, corev1.Volume{Name: "data", VolumeSource: corev1.VolumeSource{
				PersistentVolumeClaim: &corev1.PersistentVolumeClaimVolumeSource{ClaimName: "data"},
			}})
		},
		func() { pod.Spec.ServiceAccountName = "another" },
		func() { pod.Spec.RestartPolicy = corev1.RestartPolicyOnFailure },
		func() { pod.Spec.RestartPolicy = corev1.RestartPolicyAlways },
		func() { pod.Spec.NodeName = "" },
		func() {
			pod.Status.Conditions = append(pod.Status.Conditions, corev1.PodCondition{
				Type: corev1.PodScheduled, Status: corev1.ConditionFalse, Reason: corev1.PodReasonUnschedulable, Message: "no room",
			})
		},
		func() {
			pod.Status.InitContainerStatuses = []corev1.ContainerStatus{{Name: "init", State: corev1.ContainerState{
				Waiting: &corev1.ContainerStateWaiting{Reason: "ErrImagePull", Message: "no such image"},
			}}}
		},
		func() {
			pod.Status.Phase, pod.Status.Reason, pod.Status.Message = corev1.PodFailed, "Evicted", "the node was low on memory"
		},
		func() {
			pod.Spec.Containers = append(pod.Spec.Containers, corev1.Container{Name: "sidecar"})
			pod.Status.ContainerStatuses = append(pod.Status.ContainerStatuses, corev1.ContainerStatus{
				Name: "sidecar", Ready: true, State: corev1.ContainerState{Running: &corev1.ContainerStateRunning{}},
				LastTerminationState: corev1.ContainerState{Terminated: &corev1.ContainerStateTerminated{ExitCode: 1}},
			})
		},
		func() {
			for i := range pod.Status.ContainerStatuses {
				pod.Status.ContainerStatuses[i].State = corev1.ContainerState{Terminated: &corev1.ContainerStateTerminated{}}
			}
		},
		func() {
			pod.Status.ContainerStatuses[0].Ready = false
			pod.Status.ContainerStatuses[0].State = corev1.ContainerState{Waiting: &corev1.ContainerStateWaiting{Reason: crashLoop}}
			pod.Status.ContainerStatuses[0].LastTerminationState.Terminated = &corev1.ContainerStateTerminated{ExitCode: 78, Message: "why"}
		},
	} {
		if r.IntN(4) == 0 {
			func() {
				defer func() { _ = recover() }() // the pod has no such container
				change()
			}()
		}
	}
}

// TestPlanReadsOnlyLeanFields: a decision does not depend on any of the fields that a lean pod does not have.
func TestPlanReadsOnlyLeanFields(t *testing.T) {
	names := map[string]bool{}
	for _, seed := range tier.Seeds(t, 100, 100) {
		g := observation(seed)
		random := randfill.NewWithSeed(int64(seed)).NilChance(0).NumElements(1, 1).MaxDepth(30).Funcs(
			func(r *corev1.ResourceList, _ randfill.Continue) {
				*r = corev1.ResourceList{corev1.ResourceCPU: resource.MustParse("1m")}
			},
			func(p *corev1.RestartPolicy, _ randfill.Continue) { *p = corev1.RestartPolicyOnFailure },
		)
		lean := g.Observed
		lean.Pods = nil
		for i, pod := range g.Pods {
			lean.Pods = append(lean.Pods, LeanPod(pod))
			var noise corev1.Pod
			random.Fill(&noise)
			whole := pod.DeepCopy()
			fillWhatIsDropped(reflect.ValueOf(whole).Elem(), reflect.ValueOf(&noise).Elem(), reflect.ValueOf(LeanPod(&noise)).Elem(), "pod", names)
			g.Pods[i] = whole
		}
		if diff := cmp.Diff(did(Decide(g.Observed)), did(Decide(lean))); diff != "" {
			t.Fatalf("seed %d: %s", seed, diff)
		}
		if diff := cmp.Diff(Claims(g.Pods), Claims(lean.Pods)); diff != "" {
			t.Fatalf("seed %d: claims: %s", seed, diff)
		}
	}
	for _, name := range []string{"pod.Spec.Hostname", "pod.Spec.Affinity.PodAffinity", "pod.Spec.Containers.Image", "pod.Status.PodIPs", "pod.Status.ContainerStatuses.RestartCount"} {
		if !names[name] {
			t.Errorf("%s was not varied", name)
		}
	}
}

// fillWhatIsDropped fills a value with noise where the lean form of the noise is empty.
func fillWhatIsDropped(value, noise, lean reflect.Value, name string, names map[string]bool) {
	switch {
	case lean.IsZero() && !noise.IsZero():
		names[name] = true
		if value.Kind() == reflect.Slice { // the lean form has part of it
			value.Set(reflect.AppendSlice(value, noise))
		} else {
			value.Set(noise)
		}
	case value.Kind() == reflect.Struct && value.Type() != reflect.TypeFor[metav1.Time]() && value.Type() != reflect.TypeFor[resource.Quantity]():
		for i := range value.NumField() {
			fillWhatIsDropped(value.Field(i), noise.Field(i), lean.Field(i), name+"."+value.Type().Field(i).Name, names)
		}
	case value.Kind() == reflect.Pointer && !lean.IsNil():
		filled := reflect.New(value.Type().Elem())
		if !value.IsNil() {
			filled = value
		}
		if fillWhatIsDropped(filled.Elem(), noise.Elem(), lean.Elem(), name, names); !filled.Elem().IsZero() {
			value.Set(filled)
		}
	case value.Kind() == reflect.Slice && lean.Len() > 0:
		for i := range value.Len() {
			fillWhatIsDropped(value.Index(i), noise.Index(0), lean.Index(0), name, names)
		}
	}
}

// TestLeanPodsAreLean: lean pods are small, and the complete pod is not modified.
func TestLeanPodsAreLean(t *testing.T) {
	pod := steady().Pods[0]
	pod.ManagedFields = []metav1.ManagedFieldsEntry{{Manager: "kubelet"}}
	pod.Annotations[corev1.LastAppliedConfigAnnotation] = "{}"
	before := pod.DeepCopy()
	lean := LeanPod(pod)
	if _, applied := lean.Annotations[corev1.LastAppliedConfigAnnotation]; applied || lean.ManagedFields != nil || len(lean.Spec.Volumes) > 0 {
		t.Errorf("%+v", lean)
	}
	if diff := cmp.Diff(before, pod); diff != "" {
		t.Error(diff)
	}
	// In a pod as small as this, most of the kept data is the agent's configuration.
	if whole, is := pod.Size(), lean.Size(); is > whole*3/5 {
		t.Errorf("a lean pod has %d bytes, the whole one %d", is, whole)
	}
}
