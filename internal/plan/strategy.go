package plan

import (
	"slices"
	"time"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/equality"
	"k8s.io/utils/ptr"

	"github.com/singletonjob/operator/api/v1alpha1"
	"github.com/singletonjob/operator/internal/inject"
)

// strategy is spec.strategy with its defaults.
type strategy struct {
	// inPlace: no more pods than spec.candidates can exist.
	inPlace bool
	// minReady is how long a tenure of a new version must last before the last standby of the old version is removed. Before that, an end
	// by itself counts against the version. After that the version is soaked.
	minReady time.Duration
	// deadline is how long a candidate can take to become ready before that is reported as an issue.
	deadline time.Duration
	// patience is how long to wait for a surge pod that can't be scheduled before a ready standby is removed for it.
	patience time.Duration
}

// maxPatience is enough time for most ways to get room: a scheduler that preempts, a pod that ends, or a new machine that was requested
// some time ago.
const maxPatience = time.Minute

func strategyOf(spec *v1alpha1.SingletonJobSpec) strategy {
	s := spec.Strategy
	surge := int32(1)
	if spec.Candidates == 1 {
		surge = 0
	}
	seconds := func(value *int32, unset int32) time.Duration {
		return time.Duration(ptr.Deref(value, unset)) * time.Second
	}
	deadline := seconds(s.ProgressDeadlineSeconds, v1alpha1.DefaultProgressDeadlineSeconds)
	return strategy{
		inPlace:  ptr.Deref(s.MaxSurge, surge) == 0,
		minReady: seconds(s.MinReadySeconds, v1alpha1.DefaultMinReadySeconds),
		deadline: deadline,
		patience: min(maxPatience, deadline/2),
	}
}

// fitsInPlaceOf reports whether a pod that can't be scheduled would fit in the place of another one: it can run on the same nodes and
// requests no more resources. Otherwise removing the other pod does not help.
func fitsInPlaceOf(other, pod *corev1.Pod) bool {
	was, is := &other.Spec, &pod.Spec
	if !equality.Semantic.DeepEqual(was.NodeSelector, is.NodeSelector) || !equality.Semantic.DeepEqual(inject.NodeAffinity(other), inject.NodeAffinity(pod)) ||
		!equality.Semantic.DeepEqual(was.Tolerations, is.Tolerations) || !slices.Equal(claims(was), claims(is)) {
		return false
	}
	return asksForNoMore(was, is)
}

// asksForNoMore reports whether a pod requests no more of the resources of nodes and quotas than another one.
func asksForNoMore(was, is *corev1.PodSpec) bool {
	for _, kind := range []func(*corev1.ResourceRequirements) corev1.ResourceList{
		func(r *corev1.ResourceRequirements) corev1.ResourceList { return r.Requests },
		func(r *corev1.ResourceRequirements) corev1.ResourceList { return r.Limits },
	} {
		has := sum(was, kind)
		for name, asked := range sum(is, kind) {
			if given := has[name]; given.Cmp(asked) < 0 {
				return false
			}
		}
	}
	return true
}

// claims returns the volume claims that a pod mounts. Other volumes have names that differ from pod to pod.
func claims(spec *corev1.PodSpec) []string {
	var names []string
	for i := range spec.Volumes {
		if claim := spec.Volumes[i].PersistentVolumeClaim; claim != nil {
			names = append(names, claim.ClaimName)
		}
	}
	return names
}

// sum returns the total of all containers, including init containers. That is more than a scheduler counts, for either pod.
func sum(spec *corev1.PodSpec, kind func(*corev1.ResourceRequirements) corev1.ResourceList) corev1.ResourceList {
	all := corev1.ResourceList{}
	for _, containers := range [][]corev1.Container{spec.InitContainers, spec.Containers} {
		for i := range containers {
			for name, q := range kind(&containers[i].Resources) {
				total := all[name]
				total.Add(q)
				all[name] = total
			}
		}
	}
	return all
}
