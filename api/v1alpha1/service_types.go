package v1alpha1

import (
	"fmt"
	"regexp"
	"slices"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/util/intstr"
	"k8s.io/apimachinery/pkg/util/validation/field"
)

// ServiceSpec is a Service that routes to the active pod only. Its fields mean the same as in a Service. The API server can reject the
// Service for reasons that this schema does not check; a condition then reports that.
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

	// How clients reach the Service. NodePort and LoadBalancer include ClusterIP. Default ClusterIP.
	// +kubebuilder:validation:Enum=ClusterIP;NodePort;LoadBalancer
	// +optional
	Type corev1.ServiceType `json:"type,omitempty"`

	// None makes the Service headless: its DNS name has the address of the active pod. Default: an address of its own. A change replaces
	// the Service.
	// +kubebuilder:validation:Enum=None
	// +optional
	ClusterIP string `json:"clusterIP,omitempty"`

	// Annotations of the Service, for example for a load balancer. The operator keeps annotations that others add.
	// +kubebuilder:validation:MaxProperties=64
	// +optional
	Annotations map[string]string `json:"annotations,omitempty"`

	// Whether the Service has addresses of both IP families. Default: SingleStack for a new Service.
	// +kubebuilder:validation:Enum=SingleStack;PreferDualStack;RequireDualStack
	// +optional
	IPFamilyPolicy corev1.IPFamilyPolicy `json:"ipFamilyPolicy,omitempty"`

	// The IP families of the Service, IPv4 or IPv6, the first one first. The first one can't be changed. Default: chosen by the API server.
	// +kubebuilder:validation:MaxItems=2
	// +kubebuilder:validation:items:Enum=IPv4;IPv6
	// +listType=atomic
	// +optional
	IPFamilies []corev1.IPFamily `json:"ipFamilies,omitempty"`

	// ClientIP keeps a client at one pod. There is only one, so this changes nothing, but some charts set it. Default None.
	// +kubebuilder:validation:Enum=None;ClientIP
	// +optional
	SessionAffinity corev1.ServiceAffinity `json:"sessionAffinity,omitempty"`

	// With type NodePort or LoadBalancer: Local sends traffic to the node of the active pod only, and keeps the client's address. Default
	// Cluster.
	// +kubebuilder:validation:Enum=Cluster;Local
	// +optional
	ExternalTrafficPolicy corev1.ServiceExternalTrafficPolicy `json:"externalTrafficPolicy,omitempty"`

	// With type LoadBalancer: the load balancer's implementation. It can be set only while the type changes to LoadBalancer.
	// +kubebuilder:validation:MaxLength=253
	// +optional
	LoadBalancerClass string `json:"loadBalancerClass,omitempty"`
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

	// With type NodePort or LoadBalancer: the port on each node. Default: chosen by the API server.
	// +kubebuilder:validation:Minimum=1
	// +kubebuilder:validation:Maximum=65535
	// +optional
	NodePort int32 `json:"nodePort,omitempty"`

	// The application protocol, such as kubernetes.io/h2c, for load balancers and service meshes.
	// +kubebuilder:validation:MaxLength=317
	// +optional
	AppProtocol string `json:"appProtocol,omitempty"`
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
	errs = append(errs, validateExposure(service, at)...)
	return append(errs, validatePorts(service, at.Child("ports"))...)
}

// The fields of a Service that only some types have.
const (
	notHeadless = "a headless Service has type ClusterIP: remove clusterIP, or set type: ClusterIP"
	notExternal = "only for type NodePort or LoadBalancer: set type, or remove it"
	notBalanced = "only for type LoadBalancer: set type, or remove it"
)

func validateExposure(service *ServiceSpec, at *field.Path) (errs field.ErrorList) {
	oneOf := func(name string, value string, all ...string) {
		if value != "" && !slices.Contains(all, value) {
			errs = append(errs, field.NotSupported(at.Child(name), value, all))
		}
	}
	oneOf("type", string(service.Type), "ClusterIP", "NodePort", "LoadBalancer")
	oneOf("clusterIP", service.ClusterIP, corev1.ClusterIPNone)
	oneOf("ipFamilyPolicy", string(service.IPFamilyPolicy), "SingleStack", "PreferDualStack", "RequireDualStack")
	oneOf("sessionAffinity", string(service.SessionAffinity), "None", "ClientIP")
	oneOf("externalTrafficPolicy", string(service.ExternalTrafficPolicy), "Cluster", "Local")
	errs = append(errs, validateFamilies(service.IPFamilies, at.Child("ipFamilies"))...)
	external := service.Type == corev1.ServiceTypeNodePort || service.Type == corev1.ServiceTypeLoadBalancer
	if service.ClusterIP != "" && external {
		errs = append(errs, field.Forbidden(at.Child("clusterIP"), notHeadless))
	}
	if service.ExternalTrafficPolicy != "" && !external {
		errs = append(errs, field.Forbidden(at.Child("externalTrafficPolicy"), notExternal))
	}
	if service.LoadBalancerClass != "" && service.Type != corev1.ServiceTypeLoadBalancer {
		errs = append(errs, field.Forbidden(at.Child("loadBalancerClass"), notBalanced))
	}
	if !external && slices.ContainsFunc(service.Ports, func(p ServicePort) bool { return p.NodePort != 0 }) {
		errs = append(errs, field.Forbidden(at.Child("ports"), "nodePort: "+notExternal))
	}
	return errs
}

func validateFamilies(families []corev1.IPFamily, at *field.Path) (errs field.ErrorList) {
	if n := len(families); n > 2 {
		errs = append(errs, field.TooMany(at, n, 2))
	}
	all := []corev1.IPFamily{corev1.IPv4Protocol, corev1.IPv6Protocol}
	for i, family := range families {
		if !slices.Contains(all, family) {
			errs = append(errs, field.NotSupported(at.Index(i), family, all))
		}
	}
	return errs
}

func validatePorts(service *ServiceSpec, at *field.Path) (errs field.ErrorList) {
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
		if p.NodePort != 0 {
			errs = append(errs, outside(at.Child("nodePort"), p.NodePort, 1, 65535)...)
		}
		if protocols := []corev1.Protocol{corev1.ProtocolTCP, corev1.ProtocolUDP, corev1.ProtocolSCTP}; !slices.Contains(protocols, p.Protocol) {
			errs = append(errs, field.NotSupported(at.Child("protocol"), p.Protocol, protocols))
		}
	}
	return errs
}
