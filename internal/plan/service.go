package plan

import (
	"cmp"
	"maps"
	"slices"
	"strings"
	"time"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/equality"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/util/intstr"

	"github.com/singletonjob/operator/api/v1alpha1"
	"github.com/singletonjob/operator/internal/contract"
	"github.com/singletonjob/operator/internal/inject"
)

// ServiceWrite is a conditional write to the job's Service: it requires that there is none, or that it still has the observed version.
type ServiceWrite struct {
	Verb Verb
	// Service is the complete object, or the one to delete.
	Service *corev1.Service
	// why is the reason, for the log.
	why string
}

// nobody is the pod name in the selector of a Service while no pod acts; no pod has it. Without any selector the endpoints would stay.
const nobody = "none"

// acting returns the candidate that acts, nil if there is none. A pod that keeps running although it can't renew (KeepRunning) acts until
// there is another tenure.
func acting(t *tenure, m *members) *candidate {
	if !t.acts() && (!t.holder.ours || !t.holder.limits.keepRunning || t.dead()) {
		return nil
	}
	return m.first(func(c candidate) bool { return c.holds })
}

// succession is how long the Service continues to select a pod that has released the Lease, and whose process is dead, while another pod
// can take it. The next tenure usually begins within milliseconds. After kube-proxy learns that there are no endpoints, it reads the next
// change only a second later (its minSyncPeriod).
const succession = time.Second

// inSuccession returns the remaining time for which a Service selects the pod that released the Lease; 0 if that time is over.
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

// ServicesOf finds two Services among those with a job's labels. The result named is the one in spec.service, or, without spec.service, any
// that belongs to the job. The result other is another one of the job, from when it had another name.
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

// service returns the write that the job's Service needs, nil if there is none. The Service selects its one pod by name. So a change of
// holder is a single write: before it the old pod is the only endpoint, and after it the new one is. Selecting by role would take two
// writes.
func service(state State, j *job, t *tenure, m *members, there *Children) *ServiceWrite {
	live, wanted := there.Service, j.Spec.Service != nil && len(j.faults) == 0
	switch {
	case state == Deleting:
		return nil // it is deleted with the job
	case wanted && replaced(j, there) != nil: // before the next one is created, because nothing would update the old one
		return removal(j, replaced(j, there), "spec.service has another name or clusterIP")
	case live != nil && !mine(j, &corev1.Service{ObjectMeta: serviceMeta(j)}, live):
		live = nil // it belongs to a previous job and is being deleted: the attempt to create one reports that
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
		return &ServiceWrite{Verb: Create, Service: next, why: "spec.service asks for it"}
	}
	return nil
}

func serviceUpdate(is, next *corev1.Service) *ServiceWrite {
	write := &ServiceWrite{Verb: Update, Service: next, why: "it is not as it should be"}
	switch {
	case equality.Semantic.DeepEqual(is, next):
		return nil
	case !maps.Equal(is.Spec.Selector, next.Spec.Selector):
		write.why = "active is " + next.Spec.Selector[contract.PodLabel]
	}
	return write
}

// behind returns the name of the pod that the Service must select.
func behind(state State, t *tenure, m *members, live *corev1.Service) string {
	if acts := acting(t, m); acts != nil {
		return acts.pod.Name
	}
	if inSuccession(state, t, m, live) > 0 {
		return live.Spec.Selector[contract.PodLabel]
	}
	return nobody
}

// serviceOf returns the desired state of a Service. If not wanted, spec.service can't be used, and the Service keeps its ports.
func serviceOf(j *job, pod string, is *corev1.Service, wanted bool) *corev1.Service {
	next := is.DeepCopy()
	if !kept(&corev1.Service{ObjectMeta: serviceMeta(j)}, is) {
		next.OwnerReferences = append(next.OwnerReferences, OwnerReference(j.SingletonJob))
	}
	next.Spec.Selector = map[string]string{contract.NameLabel: j.Name, contract.PodLabel: pod}
	if wanted {
		expose(j.Spec.Service, next)
	}
	return next
}

// expose sets the fields that spec.service sets. As with kubectl apply, a field that is no longer set gets its default, or keeps its value
// if the API server has chosen the default. A controller of load balancers adds fields of its own.
func expose(spec *v1alpha1.ServiceSpec, next *corev1.Service) {
	if ports := servicePorts(spec); !samePorts(next.Spec.Ports, ports) {
		next.Spec.Ports = ports
	}
	next.Spec.Type = cmp.Or(spec.Type, corev1.ServiceTypeClusterIP)
	if spec.ClusterIP != "" {
		next.Spec.ClusterIP = spec.ClusterIP
	}
	if next.Spec.SessionAffinity = cmp.Or(spec.SessionAffinity, corev1.ServiceAffinityNone); next.Spec.SessionAffinity == corev1.ServiceAffinityNone {
		next.Spec.SessionAffinityConfig = nil
	}
	if spec.IPFamilyPolicy != "" {
		next.Spec.IPFamilyPolicy = new(spec.IPFamilyPolicy)
	}
	if len(spec.IPFamilies) > 0 {
		next.Spec.IPFamilies = slices.Clone(spec.IPFamilies)
	}
	if next.Spec.Type != corev1.ServiceTypeClusterIP {
		next.Spec.ExternalTrafficPolicy = cmp.Or(spec.ExternalTrafficPolicy, corev1.ServiceExternalTrafficPolicyCluster)
	}
	if spec.LoadBalancerClass != "" {
		next.Spec.LoadBalancerClass = new(spec.LoadBalancerClass)
	}
	annotateService(spec.Annotations, next)
}

// annotateService sets the annotations of spec.service, and removes those that it no longer has. An annotation of its own lists them,
// because others annotate a Service, too.
func annotateService(wanted map[string]string, next *corev1.Service) {
	for name := range strings.SplitSeq(next.Annotations[contract.ServiceAnnotationsAnnotation], ",") {
		delete(next.Annotations, name)
	}
	delete(next.Annotations, contract.ServiceAnnotationsAnnotation)
	if len(wanted) == 0 {
		return
	}
	if next.Annotations == nil {
		next.Annotations = map[string]string{}
	}
	maps.Copy(next.Annotations, wanted)
	next.Annotations[contract.ServiceAnnotationsAnnotation] = strings.Join(slices.Sorted(maps.Keys(wanted)), ",")
}

// replaced returns a Service of the job that cannot become the wanted one. It has another name, or the API server does not let it change
// between headless and not headless.
func replaced(j *job, there *Children) *corev1.Service {
	live := there.Service
	if live == nil || there.OtherService != nil || !metav1.IsControlledBy(live, j) ||
		(live.Spec.ClusterIP == corev1.ClusterIPNone) == (j.Spec.Service.ClusterIP == corev1.ClusterIPNone) {
		return there.OtherService
	}
	return live
}

// removable reports whether a Service that is no longer wanted can be deleted now. Until then it follows the acting pod.
func removable(state State) bool {
	return state == Serving || state == Resting || state == Suspending || state == Suspended
}

// removal deletes a Service that is no longer wanted, if it certainly belongs to the job.
func removal(j *job, live *corev1.Service, why string) *ServiceWrite {
	if live.DeletionTimestamp != nil || !metav1.IsControlledBy(live, j) {
		return nil
	}
	return &ServiceWrite{Verb: Delete, Service: live.DeepCopy(), why: why}
}

func serviceMeta(j *job) metav1.ObjectMeta {
	return metav1.ObjectMeta{
		Namespace: j.Namespace, Name: serviceName(j.SingletonJob), Labels: inject.Selector(j.Name),
		OwnerReferences: []metav1.OwnerReference{OwnerReference(j.SingletonJob)},
	}
}

func servicePorts(spec *v1alpha1.ServiceSpec) []corev1.ServicePort {
	var ports []corev1.ServicePort
	for _, p := range spec.Ports {
		target := intstr.FromInt32(p.Port)
		if p.TargetPort != nil && *p.TargetPort != (intstr.IntOrString{}) && *p.TargetPort != intstr.FromString("") { // the default of Kubernetes
			target = *p.TargetPort
		}
		port := corev1.ServicePort{Name: p.Name, Port: p.Port, TargetPort: target, Protocol: cmp.Or(p.Protocol, corev1.ProtocolTCP), NodePort: p.NodePort}
		if p.AppProtocol != "" {
			port.AppProtocol = new(p.AppProtocol)
		}
		ports = append(ports, port)
	}
	return ports
}

// samePorts compares the port fields that a job sets. The API server chooses a node port if the job sets none.
func samePorts(live, desired []corev1.ServicePort) bool {
	if len(live) != len(desired) {
		return false
	}
	for i, want := range desired {
		is := live[i]
		if want.NodePort == 0 {
			is.NodePort = 0
		}
		if !equality.Semantic.DeepEqual(is, want) {
			return false
		}
	}
	return true
}
