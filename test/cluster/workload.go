//go:build linux

package cluster

import (
	"slices"
	"time"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/singletonjob/operator/api/v1alpha1"
	"github.com/singletonjob/operator/fence"
)

// A LeaseSetting is leaseDuration, renewDeadline and retryPeriod.
type LeaseSetting struct{ Duration, Deadline, Retry time.Duration }

var (
	// ClientGo is what client-go's elector has by default, and SingletonJob too.
	ClientGo = LeaseSetting{15 * time.Second, 10 * time.Second, 2 * time.Second}
	// Fast is the shortest lease that is recommended.
	Fast = LeaseSetting{5 * time.Second, 2500 * time.Millisecond, 500 * time.Millisecond}
)

// Apply gives the setting to a job.
func (l LeaseSetting) Apply(job *v1alpha1.SingletonJob) {
	job.Spec.Lease.LeaseDuration.Duration = l.Duration
	job.Spec.Lease.RenewDeadline.Duration = l.Deadline
	job.Spec.Lease.RetryPeriod.Duration = l.Retry
}

// Workload is the container that writes to the sink as that resource. It asks for CPU, as a workload with neighbours should. A container
// that asks for none runs only when nobody else wants the CPU, and on a busy machine whole leases pass meanwhile.
func (c *Cluster) Workload(writesTo fence.Resource) corev1.Container {
	return corev1.Container{
		Name: "app", Image: c.Image, Command: []string{"/workload"},
		Resources: corev1.ResourceRequirements{Requests: corev1.ResourceList{corev1.ResourceCPU: resource.MustParse("100m")}},
		Env:       []corev1.EnvVar{{Name: "SINK", Value: c.SinkURL()}, {Name: "RESOURCE", Value: string(writesTo)}},
	}
}

// PodReady reports whether all of the pod's containers are ready.
func PodReady(p corev1.Pod) bool {
	return slices.ContainsFunc(p.Status.Conditions, func(c corev1.PodCondition) bool {
		return c.Type == corev1.PodReady && c.Status == corev1.ConditionTrue
	})
}

// RestrictedPod is a pod with these containers that the Pod Security standard "restricted" allows.
func RestrictedPod(containers ...corev1.Container) corev1.PodSpec {
	nobody, yes, no := int64(65532), true, false
	for i := range containers {
		containers[i].SecurityContext = &corev1.SecurityContext{
			AllowPrivilegeEscalation: &no,
			Capabilities:             &corev1.Capabilities{Drop: []corev1.Capability{"ALL"}},
		}
		if containers[i].ImagePullPolicy == "" {
			containers[i].ImagePullPolicy = corev1.PullIfNotPresent
		}
	}
	return corev1.PodSpec{
		Containers: containers,
		SecurityContext: &corev1.PodSecurityContext{
			RunAsNonRoot: &yes, RunAsUser: &nobody,
			SeccompProfile: &corev1.SeccompProfile{Type: corev1.SeccompProfileTypeRuntimeDefault},
		},
	}
}

// Job is a SingletonJob that runs the workload.
func (c *Cluster) Job(namespace, name string, l LeaseSetting) *v1alpha1.SingletonJob {
	job := &v1alpha1.SingletonJob{ObjectMeta: metav1.ObjectMeta{Namespace: namespace, Name: name}}
	l.Apply(job)
	job.Spec.Template.Spec = RestrictedPod(c.Workload(fence.ResourceOf(namespace, name)))
	return job
}
