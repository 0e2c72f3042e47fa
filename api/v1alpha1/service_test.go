package v1alpha1

import (
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/util/intstr"
	"k8s.io/apimachinery/pkg/util/validation/field"
)

func serving(ports ...ServicePort) func(*SingletonJob) {
	return func(job *SingletonJob) { job.Spec.Service = &ServiceSpec{Ports: append([]ServicePort{}, ports...)} }
}

// exposed changes a service that is otherwise valid.
func exposed(change func(*ServiceSpec)) func(*SingletonJob) {
	return func(job *SingletonJob) {
		serving(ServicePort{Name: "http", Port: 80})(job)
		change(job.Spec.Service)
	}
}

const (
	atService   = "spec.service."
	atPorts     = "spec.service.ports"
	badPortName = "should match '^([a-z0-9]([-a-z0-9]{0,61}[a-z0-9])?)?$'"
)

var serviceCases = map[string]validationCase{
	"a service": {change: serving(ServicePort{Name: "http", Port: 80})},
	"a service of another name": {change: func(job *SingletonJob) {
		serving(ServicePort{Port: 80})(job)
		job.Spec.Service.Name = "billing-active"
	}},
	"a service of a bad name": {
		change: func(job *SingletonJob) {
			serving(ServicePort{Port: 80})(job)
			job.Spec.Service.Name = "billing.active"
		},
		want: invalid("spec.service.name", "should match '^[a-z0-9]([-a-z0-9]{0,61}[a-z0-9])?$'"),
	},
	"a service of several ports": {change: serving(
		ServicePort{Name: "dns", Port: 53, Protocol: corev1.ProtocolUDP}, ServicePort{Name: "dns-tcp", Port: 53},
		ServicePort{Name: "http", Port: 65535, TargetPort: new(intstr.FromInt32(1))},
		ServicePort{Name: "web", Port: 1, TargetPort: new(intstr.FromString("web"))},
	)},
	"a service without ports":         {change: serving(), want: invalid(atPorts, "should have at least 1 items")},
	"a service's port 0":              {change: serving(ServicePort{Name: "http"}), want: invalid(atPorts+"[0].port", "should be greater than or equal to 1")},
	"a service's port 65536":          {change: serving(ServicePort{Name: "http", Port: 65536}), want: invalid(atPorts+"[0].port", "should be less than or equal to 65535")},
	"a service's port without a name": {change: serving(ServicePort{Port: 80})},
	"several ports, one of them without a name": {
		change: serving(ServicePort{Port: 80}, ServicePort{Name: "metrics", Port: 9090}),
		want:   []problem{{field.ErrorTypeRequired, atPorts, "with several ports, each one needs a name"}},
	},
	"a service's port of a bad name": {
		change: serving(ServicePort{Name: "ok", Port: 1}, ServicePort{Name: "Web", Port: 2}), want: invalid(atPorts+"[1].name", badPortName),
	},
	"two ports of a name": {
		change: serving(ServicePort{Name: "a", Port: 1}, ServicePort{Name: "a", Port: 2}),
		want:   []problem{{field.ErrorTypeDuplicate, atPorts + "[1]", ""}},
	},
	"a service with all that a Service has": {change: exposed(func(s *ServiceSpec) {
		s.Type, s.ExternalTrafficPolicy, s.LoadBalancerClass = corev1.ServiceTypeLoadBalancer, corev1.ServiceExternalTrafficPolicyLocal, "example.com/lb"
		s.Annotations = map[string]string{"example.com/pool": "a"}
		s.IPFamilyPolicy, s.IPFamilies = corev1.IPFamilyPolicyPreferDualStack, []corev1.IPFamily{corev1.IPv6Protocol, corev1.IPv4Protocol}
		s.SessionAffinity, s.Ports[0].NodePort, s.Ports[0].AppProtocol = corev1.ServiceAffinityClientIP, 30080, "kubernetes.io/h2c"
	})},
	"a headless service": {change: exposed(func(s *ServiceSpec) { s.ClusterIP = corev1.ClusterIPNone })},
	"a service of type ExternalName": {
		change: exposed(func(s *ServiceSpec) { s.Type = corev1.ServiceTypeExternalName }),
		want:   []problem{{field.ErrorTypeNotSupported, atService + "type", `supported values: "ClusterIP", "NodePort", "LoadBalancer"`}},
	},
	"a service with an address": {
		change: exposed(func(s *ServiceSpec) { s.ClusterIP = "10.0.0.1" }),
		want:   []problem{{field.ErrorTypeNotSupported, atService + "clusterIP", `supported values: "None"`}},
	},
	"a service with a policy that is none": {
		change: exposed(func(s *ServiceSpec) { s.IPFamilyPolicy = "Both" }),
		want:   []problem{{field.ErrorTypeNotSupported, atService + "ipFamilyPolicy", `supported values: "SingleStack", "PreferDualStack", "RequireDualStack"`}},
	},
	"a service of another IP family": {
		change: exposed(func(s *ServiceSpec) { s.IPFamilies = []corev1.IPFamily{"IPv5"} }),
		want:   []problem{{field.ErrorTypeNotSupported, atService + "ipFamilies[0]", `supported values: "IPv4", "IPv6"`}},
	},
	"a service with a wrong affinity": {
		change: exposed(func(s *ServiceSpec) { s.SessionAffinity = "Pod" }),
		want:   []problem{{field.ErrorTypeNotSupported, atService + "sessionAffinity", `supported values: "None", "ClientIP"`}},
	},
	"a service with a wrong traffic policy": {
		change: exposed(func(s *ServiceSpec) {
			s.Type, s.ExternalTrafficPolicy = corev1.ServiceTypeNodePort, "Node"
		}),
		want: []problem{{field.ErrorTypeNotSupported, atService + "externalTrafficPolicy", `supported values: "Cluster", "Local"`}},
	},
	"a headless service with node ports": {
		change: exposed(func(s *ServiceSpec) { s.Type, s.ClusterIP = corev1.ServiceTypeNodePort, corev1.ClusterIPNone }),
		want:   []problem{{field.ErrorTypeForbidden, atService + "clusterIP", notHeadless}},
	},
	"a traffic policy of a service inside": {
		change: exposed(func(s *ServiceSpec) { s.ExternalTrafficPolicy = corev1.ServiceExternalTrafficPolicyLocal }),
		want:   []problem{{field.ErrorTypeForbidden, atService + "externalTrafficPolicy", notExternal}},
	},
	"a load balancer's class without a load balancer": {
		change: exposed(func(s *ServiceSpec) { s.Type, s.LoadBalancerClass = corev1.ServiceTypeNodePort, "example.com/lb" }),
		want:   []problem{{field.ErrorTypeForbidden, atService + "loadBalancerClass", notBalanced}},
	},
	"a node port of a service inside": {
		change: exposed(func(s *ServiceSpec) { s.Ports[0].NodePort = 30080 }),
		want:   []problem{{field.ErrorTypeForbidden, atPorts, "nodePort: " + notExternal}},
	},
	"a node port of 65536": {
		change: exposed(func(s *ServiceSpec) { s.Type, s.Ports[0].NodePort = corev1.ServiceTypeNodePort, 65536 }),
		want:   invalid(atPorts+"[0].nodePort", "should be less than or equal to 65535"),
	},
	"a service of another protocol": {
		change: serving(ServicePort{Name: "a", Port: 1, Protocol: "ICMP"}),
		want:   []problem{{field.ErrorTypeNotSupported, atPorts + "[0].protocol", `supported values: "TCP", "UDP", "SCTP"`}},
	},
}
