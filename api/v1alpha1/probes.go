package v1alpha1

import (
	"fmt"
	"math"
	"regexp"
	"slices"
	"strings"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/util/intstr"
	"k8s.io/apimachinery/pkg/util/validation/field"
)

// namedProbe is one of a container's three probes, with the name of its field.
type namedProbe struct {
	name string
	*corev1.Probe
}

// probesOf returns the probes that a container has.
func probesOf(c *corev1.Container) []namedProbe {
	return slices.DeleteFunc([]namedProbe{
		{"startupProbe", c.StartupProbe}, {"livenessProbe", c.LivenessProbe}, {"readinessProbe", c.ReadinessProbe},
	}, func(p namedProbe) bool { return p.Probe == nil })
}

// validateProbes checks all containers, as the API server does for pods. The probes of the gated container are in no pod, so no API server
// checks them there.
func validateProbes(containers []corev1.Container, at *field.Path) field.ErrorList {
	var errs field.ErrorList
	for i := range containers {
		for _, p := range probesOf(&containers[i]) {
			at := at.Index(i).Child(p.name)
			errs = append(errs, validateProbe(p, at)...)
			errs = append(errs, validateProbeNumbers(p, at)...)
		}
	}
	return errs
}

func validateProbeNumbers(p namedProbe, at *field.Path) field.ErrorList {
	var errs field.ErrorList
	check := func(name string, value, most int32) {
		errs = append(errs, outside(at.Child(name), value, 0, most)...)
	}
	successes := int32(1)
	if p.name == "readinessProbe" {
		successes = math.MaxInt32
	}
	check("initialDelaySeconds", p.InitialDelaySeconds, math.MaxInt32)
	check("periodSeconds", p.PeriodSeconds, math.MaxInt32)
	check("timeoutSeconds", p.TimeoutSeconds, math.MaxInt32)
	check("successThreshold", p.SuccessThreshold, successes)
	check("failureThreshold", p.FailureThreshold, math.MaxInt32)
	if grace := p.TerminationGracePeriodSeconds; grace != nil && *grace < 1 {
		errs = append(errs, field.Invalid(at.Child("terminationGracePeriodSeconds"), *grace, "should be greater than or equal to 1"))
	}
	if p.GRPC != nil {
		errs = append(errs, outside(at.Child("grpc", "port"), p.GRPC.Port, 1, math.MaxUint16)...)
	}
	return errs
}

func validateProbe(p namedProbe, at *field.Path) field.ErrorList {
	var errs field.ErrorList
	wrong := func(found bool, detail string) {
		if found {
			errs = append(errs, field.Invalid(at, p.name, detail))
		}
	}
	ways := 0
	for _, set := range []bool{p.Exec != nil, p.HTTPGet != nil, p.TCPSocket != nil, p.GRPC != nil} {
		if set {
			ways++
		}
	}
	wrong(ways != 1, fmt.Sprintf("%d of exec, httpGet, tcpSocket and grpc are set: set one of them", ways))
	wrong(p.Exec != nil && len(p.Exec.Command) == 0, "exec has no command: set exec.command")
	if grpc := p.GRPC; grpc != nil && grpc.Mode != nil {
		wrong(*grpc.Mode != corev1.GRPCProbeModePlaintext && *grpc.Mode != corev1.GRPCProbeModeTLS, "grpc.mode is neither Plaintext nor TLS")
	}
	if get := p.HTTPGet; get != nil {
		for _, bad := range badHTTPGet(get) {
			wrong(true, bad)
		}
	}
	wrong(p.name == "readinessProbe" && p.TerminationGracePeriodSeconds != nil,
		"terminationGracePeriodSeconds has no effect on a readiness probe, which ends nothing: remove it")
	return errs
}

// badHTTPGet returns what is wrong with a request, except for its port: that check needs the ports of the container.
func badHTTPGet(get *corev1.HTTPGetAction) []string {
	var bad []string
	if !slices.Contains([]corev1.URIScheme{"", corev1.URISchemeHTTP, corev1.URISchemeHTTPS}, get.Scheme) {
		bad = append(bad, "httpGet.scheme is neither HTTP nor HTTPS")
	}
	if p := get.Protocol; p != nil && *p != corev1.HTTPProtocolHTTP1 && (*p != corev1.HTTPProtocolHTTP2 || get.Scheme == corev1.URISchemeHTTPS) {
		bad = append(bad, "httpGet.protocol is neither HTTP1 nor, with scheme HTTP, HTTP2")
	}
	if p := get.Protocol; p != nil && *p == corev1.HTTPProtocolHTTP2 && get.Host != "" {
		bad = append(bad, "httpGet.host is set with protocol HTTP2, which allows no other host than the Pod: remove host")
	}
	if slices.ContainsFunc(get.HTTPHeaders, func(h corev1.HTTPHeader) bool { return !headerName.MatchString(h.Name) }) {
		bad = append(bad, "httpGet.httpHeaders has an invalid name: use letters, digits and - only")
	}
	return bad
}

var headerName = regexp.MustCompile(`^[-A-Za-z0-9]+$`)

// portFaults checks the ports of the gated container's probes and hooks. A kubelet notices an unknown port name only when it makes the request.
func portFaults(c *corev1.Container) []string {
	var wrong []string
	check := func(of, way string, port intstr.IntOrString) {
		if !isPort(port, c) {
			wrong = append(wrong, ", in "+of+"."+way+".port")
		}
	}
	for _, p := range probesOf(c) {
		if p.TCPSocket != nil {
			check(p.name, "tcpSocket", p.TCPSocket.Port)
		}
		if p.HTTPGet != nil {
			check(p.name, "httpGet", p.HTTPGet.Port)
		}
	}
	for _, h := range httpHooksOf(c) {
		check("lifecycle."+h.name, "httpGet", h.get.Port)
	}
	if len(wrong) == 0 {
		return nil
	}
	return []string{"asks for a port that is neither a number from 1 to 65535 nor the name of one of its ports with such a number" + strings.Join(wrong, "") +
		": add that name to ports, or set a number there"}
}

// isPort reports whether a port can be used in a request: a named port must be among the container's ports.
func isPort(port intstr.IntOrString, c *corev1.Container) bool {
	number := port.IntVal
	if port.Type != intstr.Int {
		named := slices.IndexFunc(c.Ports, func(p corev1.ContainerPort) bool { return port.StrVal != "" && p.Name == port.StrVal })
		if named < 0 {
			return false
		}
		number = c.Ports[named].ContainerPort
	}
	return number >= 1 && number <= math.MaxUint16
}
