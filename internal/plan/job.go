package plan

import (
	"math"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/util/validation/field"
	"k8s.io/utils/ptr"

	"github.com/singletonjob/operator/api/v1alpha1"
	"github.com/singletonjob/operator/internal/inject"
)

// job is what is asked for and what was reported of it before, with what follows from that alone.
type job struct {
	// The object is a copy with its defaults.
	*v1alpha1.SingletonJob
	// faults are the rules that the spec breaks.
	faults field.ErrorList
	// hash is that of the pods that the spec asks for.
	hash string
	// limits are those that the spec sets to a tenure.
	limits limits
}

func jobOf(observed *v1alpha1.SingletonJob) *job {
	j := &job{SingletonJob: observed.DeepCopy()}
	v1alpha1.Default(j.SingletonJob)
	if j.faults = v1alpha1.Validate(j.SingletonJob); len(j.faults) == 0 {
		j.hash = inject.Hash(j.SingletonJob)
	}
	l := j.Spec.Lease
	j.limits = limits{
		l.LeaseDuration.Duration, l.RenewDeadline.Duration, l.RetryPeriod.Duration,
		l.OnRenewFailure == v1alpha1.OnRenewFailureKeepRunning,
	}
	return j
}

// leases are the names of the job's Leases, one for each group of its pods.
func (j *job) leases() []string { return []string{j.Name} }

// updated is how the names of the pods begin that the spec asks for. Unlike a label, a name stays.
func (j *job) updated() string { return inject.PodPrefix(j.Name, j.hash) }

// grace is what a process has at most to end when it fails its liveness probe.
func (j *job) grace() time.Duration {
	pod := &j.Spec.Template.Spec
	grace := ptr.Deref(pod.TerminationGracePeriodSeconds, corev1.DefaultTerminationGracePeriodSeconds)
	if i := j.GatedContainer(); i >= 0 && pod.Containers[i].LivenessProbe != nil {
		grace = ptr.Deref(pod.Containers[i].LivenessProbe.TerminationGracePeriodSeconds, grace)
	}
	return time.Duration(min(max(0, grace), math.MaxInt32)) * time.Second
}

// OwnerReference makes a job the controller of what carries it.
func OwnerReference(job *v1alpha1.SingletonJob) metav1.OwnerReference {
	return *metav1.NewControllerRef(job, v1alpha1.GroupVersion.WithKind(v1alpha1.Kind))
}
