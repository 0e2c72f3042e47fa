package v1alpha1

import (
	"fmt"
	"regexp"
	"slices"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/util/intstr"
	"k8s.io/apimachinery/pkg/util/validation/field"
)

// ServiceSpec is a Service of type ClusterIP that routes to the active pod only. The API server can reject the Service for reasons that
// this schema does not check; a condition then reports that.
type ServiceSpec struct {
	// The name of the Service, a DNS label. Default: the name of the job. Another name means another Service, with another address.
	// +kubebuilder:validation:Pattern=`^[a-z0-9]([-a-z0-9]{0,61}[a-z0-9])?$`
	// +optional
	Name string `json:"name,omitempty"`

	// The ports of the Service.
	// +kubebuilder:validation:MinItems=1
	// +required
	// +listType=map
	// +listMapKey=name
	Ports []ServicePort `json:"ports"`
}

// ServicePort is a port of the Service.
type ServicePort struct {
	// The name of the port, a DNS label. Default: none, which is valid only for a single port.
	// +kubebuilder:default=""
	// +kubebuilder:validation:Pattern=`^([a-z0-9]([-a-z0-9]{0,61}[a-z0-9])?)?$`
	// +optional
	Name string `json:"name,omitempty"`

	// +kubebuilder:validation:Minimum=1
	// +kubebuilder:validation:Maximum=65535
	// +required
	Port int32 `json:"port"`

	// The pod's port, by number or name. Default: the value of port.
	// +optional
	TargetPort *intstr.IntOrString `json:"targetPort,omitempty"`

	// +kubebuilder:default=TCP
	// +kubebuilder:validation:Enum=TCP;UDP;SCTP
	// +optional
	Protocol corev1.Protocol `json:"protocol,omitempty"`
}

var (
	serviceName = regexp.MustCompile(`^[a-z0-9]([-a-z0-9]{0,61}[a-z0-9])?$`)
	portName    = regexp.MustCompile(`^([a-z0-9]([-a-z0-9]{0,61}[a-z0-9])?)?$`)
)

func validateService(service *ServiceSpec, at *field.Path) field.ErrorList {
	if service == nil {
		return nil
	}
	var errs field.ErrorList
	if name := at.Child("name"); service.Name != "" && !serviceName.MatchString(service.Name) {
		errs = append(errs, field.Invalid(name, service.Name, fmt.Sprintf("%s in body should match '%s'", name, serviceName)))
	}
	at = at.Child("ports")
	if len(service.Ports) == 0 {
		errs = append(errs, field.Invalid(at, 0, fmt.Sprintf("%s in body should have at least 1 items", at)))
	}
	if len(service.Ports) > 1 && slices.ContainsFunc(service.Ports, func(p ServicePort) bool { return p.Name == "" }) {
		errs = append(errs, field.Required(at, "with several ports, each one needs a name"))
	}
	names := map[string]bool{}
	for i, p := range service.Ports {
		at := at.Index(i)
		if !portName.MatchString(p.Name) {
			errs = append(errs, field.Invalid(at.Child("name"), p.Name, fmt.Sprintf("%s in body should match '%s'", at.Child("name"), portName)))
		}
		if names[p.Name] {
			errs = append(errs, field.Duplicate(at, p.Name))
		}
		names[p.Name] = true
		errs = append(errs, outside(at.Child("port"), p.Port, 1, 65535)...)
		if protocols := []corev1.Protocol{corev1.ProtocolTCP, corev1.ProtocolUDP, corev1.ProtocolSCTP}; !slices.Contains(protocols, p.Protocol) {
			errs = append(errs, field.NotSupported(at.Child("protocol"), p.Protocol, protocols))
		}
	}
	return errs
}
