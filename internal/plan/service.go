package plan

import (
	"cmp"
	"maps"
	"time"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/equality"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/util/intstr"

	"github.com/singletonjob/operator/api/v1alpha1"
	"github.com/singletonjob/operator/internal/contract"
	"github.com/singletonjob/operator/internal/inject"
)

// ServiceOp is what to do to the job's Service.
type ServiceOp uint8

// The writes to a Service. Each is conditional: on there being none, or on the version that was observed.
const (
	CreateService ServiceOp = iota
	UpdateService
	DeleteService
)

// ServiceWrite is a conditional write to the job's Service.
type ServiceWrite struct {
	Op ServiceOp
	// Service is complete, or the one to delete.
	Service *corev1.Service
	// why is for the log.
	why string
}

// nobody is what a Service selects while nobody acts: the name of no pod. Without any selector its endpoints would stay.
const nobody = "none"

// acting is the candidate that acts, nil for none. One that runs on though it cannot renew (KeepRunning) acts until there is
// another tenure.
func acting(t *tenure, m *members) *candidate {
	if !t.acts() && (!t.holder.ours || !t.holder.limits.keepRunning || t.dead()) {
		return nil
	}
	return m.first(func(c candidate) bool { return c.holds })
}

// succession is for how long the Service goes on to name a pod that has released the Lease, whose process is dead, while another
// can take it. That mostly comes within milliseconds, and kube-proxy, once told that there is no endpoint, does not
// look at the next for a second (its minSyncPeriod).
const succession = time.Second

// inSuccession is how long a Service goes on to name who has released the Lease; 0 for no longer.
func inSuccession(state State, t *tenure, m *members, live *corev1.Service) time.Duration {
	if state != Serving || live == nil || !t.Record.Free() || len(t.past) == 0 {
		return 0
	}
	last := t.past[len(t.past)-1]
	if last.Token != t.Record.Token || last.Pod != live.Spec.Selector[contract.PodLabel] ||
		m.first(func(c candidate) bool { return c.isStandby() && c.pod.Name != last.Pod }) == nil {
		return 0
	}
	return max(0, succession-t.Unchanged)
}

// ServicesOf finds among the Services that carry a job's labels the one that spec.service names, or without a spec.service any that
// is the job's, and another of the job's, from when it had another name.
func ServicesOf(job *v1alpha1.SingletonJob, services []*corev1.Service) (named, other *corev1.Service) {
	isNamed := func(s *corev1.Service) bool { return metav1.IsControlledBy(s, job) }
	if job.Spec.Service != nil {
		isNamed = func(s *corev1.Service) bool { return s.Name == serviceName(job) }
	}
	for _, s := range services {
		switch {
		case named == nil && isNamed(s):
			named = s
		case metav1.IsControlledBy(s, job):
			other = s
		}
	}
	return named, other
}

func serviceName(job *v1alpha1.SingletonJob) string {
	if job.Spec.Service == nil {
		return job.Name
	}
	return cmp.Or(job.Spec.Service.Name, job.Name)
}

// service is the write that the job's Service needs, nil for none. It names its one pod, so that a change of holder is one
// write, before which the old pod is its only endpoint and after which the new one is. The same by role would take two.
func service(state State, j *job, t *tenure, m *members, there *Children) *ServiceWrite {
	live, wanted := there.Service, j.Spec.Service != nil && len(j.faults) == 0
	switch {
	case state == Deleting:
		return nil // it goes with the job
	case there.OtherService != nil && wanted: // before there is one of the new name: nobody would have it follow who acts
		return removal(j, there.OtherService, "spec.service has another name")
	case live != nil && !mine(j, &corev1.Service{ObjectMeta: serviceMeta(j)}, live):
		live = nil // a previous job's, which is being deleted: making one shows that
	case live != nil && j.Spec.Service == nil && (removable(state) || !metav1.IsControlledBy(live, j)):
		return removal(j, live, "spec.service is no longer set")
	}
	pod := behind(state, t, m, live)
	switch {
	case live != nil:
		return serviceUpdate(live, serviceOf(j, pod, live, wanted))
	case wanted:
		next := serviceOf(j, pod, &corev1.Service{}, true)
		next.ObjectMeta = serviceMeta(j)
		return &ServiceWrite{Op: CreateService, Service: next, why: "spec.service asks for it"}
	}
	return nil
}

func serviceUpdate(is, next *corev1.Service) *ServiceWrite {
	write := &ServiceWrite{Op: UpdateService, Service: next, why: "it is not as it should be"}
	switch {
	case equality.Semantic.DeepEqual(is, next):
		return nil
	case !maps.Equal(is.Spec.Selector, next.Spec.Selector):
		write.why = "active is " + next.Spec.Selector[contract.PodLabel]
	}
	return write
}

// behind is the name of the pod that the Service is to select.
func behind(state State, t *tenure, m *members, live *corev1.Service) string {
	if acts := acting(t, m); acts != nil {
		return acts.pod.Name
	}
	if inSuccession(state, t, m, live) > 0 {
		return live.Spec.Selector[contract.PodLabel]
	}
	return nobody
}

// serviceOf is a Service as it should be: wanted, or one that spec.service can't be read for and that goes on as it is.
func serviceOf(j *job, pod string, is *corev1.Service, wanted bool) *corev1.Service {
	next := is.DeepCopy()
	if !kept(&corev1.Service{ObjectMeta: serviceMeta(j)}, is) {
		next.OwnerReferences = append(next.OwnerReferences, OwnerReference(j.SingletonJob))
	}
	next.Spec.Selector = map[string]string{contract.NameLabel: j.Name, contract.PodLabel: pod}
	if ports := servicePorts(j); wanted && !samePorts(is.Spec.Ports, ports) {
		next.Spec.Ports = ports
	}
	return next
}

// removable reports whether it is time to delete a Service that is not asked for any more; until then it follows who acts.
func removable(state State) bool {
	return state == Serving || state == Resting || state == Suspending || state == Suspended
}

// removal deletes a Service that is not asked for any more, if it is certainly the job's.
func removal(j *job, live *corev1.Service, why string) *ServiceWrite {
	if live.DeletionTimestamp != nil || !metav1.IsControlledBy(live, j) {
		return nil
	}
	return &ServiceWrite{Op: DeleteService, Service: live.DeepCopy(), why: why}
}

func serviceMeta(j *job) metav1.ObjectMeta {
	return metav1.ObjectMeta{
		Namespace: j.Namespace, Name: serviceName(j.SingletonJob), Labels: inject.Selector(j.Name),
		OwnerReferences: []metav1.OwnerReference{OwnerReference(j.SingletonJob)},
	}
}

func servicePorts(j *job) []corev1.ServicePort {
	if j.Spec.Service == nil {
		return nil
	}
	var ports []corev1.ServicePort
	for _, p := range j.Spec.Service.Ports {
		target := intstr.FromInt32(p.Port)
		if p.TargetPort != nil && *p.TargetPort != (intstr.IntOrString{}) && *p.TargetPort != intstr.FromString("") { // as Kubernetes has it
			target = *p.TargetPort
		}
		ports = append(ports, corev1.ServicePort{
			Name: p.Name, Port: p.Port, TargetPort: target, Protocol: cmp.Or(p.Protocol, corev1.ProtocolTCP),
		})
	}
	return ports
}

// samePorts compares what a job says of ports; a Service may say more of them, such as a node's port.
func samePorts(live, desired []corev1.ServicePort) bool {
	if len(live) != len(desired) {
		return false
	}
	for i, want := range desired {
		is := corev1.ServicePort{Name: live[i].Name, Port: live[i].Port, TargetPort: live[i].TargetPort, Protocol: live[i].Protocol}
		if is != want {
			return false
		}
	}
	return true
}
