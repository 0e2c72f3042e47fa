package inject

import (
	"cmp"
	"math"
	"slices"
	"time"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/util/intstr"
	"k8s.io/utils/ptr"

	"github.com/singletonjob/operator/internal/contract"
)

// probesOf are a container's probes for the agent to run, with Kubernetes' defaults, and with port names resolved to numbers.
func probesOf(c *corev1.Container) contract.Probes {
	return contract.Probes{Startup: probeOf(c, c.StartupProbe), Liveness: probeOf(c, c.LivenessProbe), Readiness: probeOf(c, c.ReadinessProbe)}
}

func probeOf(c *corev1.Container, p *corev1.Probe) *contract.Probe {
	if p == nil {
		return nil
	}
	return &contract.Probe{
		Check:            checkOf(c, &p.ProbeHandler),
		InitialDelay:     seconds(int64(p.InitialDelaySeconds)),
		Period:           seconds(int64(cmp.Or(p.PeriodSeconds, 10))),
		Timeout:          seconds(int64(cmp.Or(p.TimeoutSeconds, 1))),
		SuccessThreshold: int(cmp.Or(p.SuccessThreshold, 1)),
		FailureThreshold: int(cmp.Or(p.FailureThreshold, 3)),
		GracePeriod:      seconds(ptr.Deref(p.TerminationGracePeriodSeconds, 0)),
	}
}

func checkOf(c *corev1.Container, h *corev1.ProbeHandler) contract.Check {
	switch {
	case h.Exec != nil:
		return contract.Check{Exec: h.Exec.Command}
	case h.HTTPGet != nil:
		return contract.Check{HTTPGet: httpGetOf(c, h.HTTPGet)}
	case h.TCPSocket != nil:
		return contract.Check{TCPSocket: &contract.TCPSocket{Host: h.TCPSocket.Host, Port: portOf(c, h.TCPSocket.Port)}}
	case h.GRPC != nil:
		return contract.Check{GRPC: &contract.GRPC{
			Port: int(h.GRPC.Port), Service: ptr.Deref(h.GRPC.Service, ""), TLS: ptr.Deref(h.GRPC.Mode, "") == corev1.GRPCProbeModeTLS,
		}}
	}
	return contract.Check{}
}

func httpGetOf(c *corev1.Container, h *corev1.HTTPGetAction) *contract.HTTPGet {
	get := &contract.HTTPGet{
		Host: h.Host, Port: portOf(c, h.Port), Path: cmp.Or(h.Path, "/"),
		TLS:   h.Scheme == corev1.URISchemeHTTPS,
		HTTP2: ptr.Deref(h.Protocol, "") == corev1.HTTPProtocolHTTP2,
	}
	for _, header := range h.HTTPHeaders {
		get.Headers = append(get.Headers, contract.Header{Name: header.Name, Value: header.Value})
	}
	return get
}

// portOf is a port's number. The spec is valid, so a named port is one of the container's.
func portOf(c *corev1.Container, port intstr.IntOrString) int {
	for _, known := range c.Ports {
		if port.Type == intstr.String && known.Name == port.StrVal {
			return int(known.ContainerPort)
		}
	}
	return port.IntValue()
}

// asksPod reports whether a probe or a hook connects to the Pod's own address.
func asksPod(config contract.AgentConfig) bool {
	probes, hooks := config.Probes, config.Hooks
	return slices.ContainsFunc([]*contract.Hook{hooks.PostStart, hooks.PreStop}, func(h *contract.Hook) bool {
		return h != nil && h.HTTPGet != nil && h.HTTPGet.Host == ""
	}) || slices.ContainsFunc([]*contract.Probe{probes.Startup, probes.Liveness, probes.Readiness}, func(p *contract.Probe) bool {
		return p != nil && (p.GRPC != nil || p.HTTPGet != nil && p.HTTPGet.Host == "" || p.TCPSocket != nil && p.TCPSocket.Host == "")
	})
}

// askedPorts are the ports that a container's probes and hooks name by number. Its process listens on them, whether declared or
// not.
func askedPorts(c *corev1.Container) []int32 {
	var handlers []corev1.ProbeHandler
	for _, p := range []*corev1.Probe{c.StartupProbe, c.LivenessProbe, c.ReadinessProbe} {
		if p != nil {
			handlers = append(handlers, p.ProbeHandler)
		}
	}
	if l := c.Lifecycle; l != nil {
		for _, h := range []*corev1.LifecycleHandler{l.PostStart, l.PreStop} {
			if h != nil {
				handlers = append(handlers, corev1.ProbeHandler{HTTPGet: h.HTTPGet})
			}
		}
	}
	var ports []int32
	for _, h := range handlers {
		switch {
		case h.HTTPGet != nil:
			ports = append(ports, h.HTTPGet.Port.IntVal)
		case h.TCPSocket != nil:
			ports = append(ports, h.TCPSocket.Port.IntVal)
		case h.GRPC != nil:
			ports = append(ports, h.GRPC.Port)
		}
	}
	return ports
}

// seconds converts seconds to a duration, limited to the longest duration.
func seconds(n int64) contract.Duration {
	return contract.Duration(time.Duration(min(n, math.MaxInt64/int64(time.Second))) * time.Second)
}
