package v1alpha1

import (
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/util/intstr"
	"k8s.io/apimachinery/pkg/util/validation/field"
)

func serving(ports ...ServicePort) func(*SingletonJob) {
	return func(job *SingletonJob) { job.Spec.Service = &ServiceSpec{Ports: append([]ServicePort{}, ports...)} }
}

const (
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
	"a service of another protocol": {
		change: serving(ServicePort{Name: "a", Port: 1, Protocol: "ICMP"}),
		want:   []problem{{field.ErrorTypeNotSupported, atPorts + "[0].protocol", `supported values: "TCP", "UDP", "SCTP"`}},
	},
}
