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

// probesOf are the probes of a container, for the agent to run: with Kubernetes' defaults, and with numbers for the names of
// ports.
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
		get := &contract.HTTPGet{
			Host: h.HTTPGet.Host, Port: portOf(c, h.HTTPGet.Port), Path: cmp.Or(h.HTTPGet.Path, "/"),
			TLS:   h.HTTPGet.Scheme == corev1.URISchemeHTTPS,
			HTTP2: ptr.Deref(h.HTTPGet.Protocol, "") == corev1.HTTPProtocolHTTP2,
		}
		for _, header := range h.HTTPGet.HTTPHeaders {
			get.Headers = append(get.Headers, contract.Header{Name: header.Name, Value: header.Value})
		}
		return contract.Check{HTTPGet: get}
	case h.TCPSocket != nil:
		return contract.Check{TCPSocket: &contract.TCPSocket{Host: h.TCPSocket.Host, Port: portOf(c, h.TCPSocket.Port)}}
	case h.GRPC != nil:
		return contract.Check{GRPC: &contract.GRPC{
			Port: int(h.GRPC.Port), Service: ptr.Deref(h.GRPC.Service, ""), TLS: ptr.Deref(h.GRPC.Mode, "") == corev1.GRPCProbeModeTLS,
		}}
	}
	return contract.Check{}
}

// portOf is a port's number; the spec was found valid, so one that has a name is the container's.
func portOf(c *corev1.Container, port intstr.IntOrString) int {
	for _, known := range c.Ports {
		if port.Type == intstr.String && known.Name == port.StrVal {
			return int(known.ContainerPort)
		}
	}
	return port.IntValue()
}

// asksPod reports whether a probe asks the pod by its own address.
func asksPod(probes contract.Probes) bool {
	return slices.ContainsFunc([]*contract.Probe{probes.Startup, probes.Liveness, probes.Readiness}, func(p *contract.Probe) bool {
		return p != nil && (p.GRPC != nil || p.HTTPGet != nil && p.HTTPGet.Host == "" || p.TCPSocket != nil && p.TCPSocket.Host == "")
	})
}

// probedPorts are those that a container's probes name by number. Its process listens on them, declared or not.
func probedPorts(c *corev1.Container) []int32 {
	var ports []int32
	for _, p := range []*corev1.Probe{c.StartupProbe, c.LivenessProbe, c.ReadinessProbe} {
		switch {
		case p == nil:
		case p.HTTPGet != nil:
			ports = append(ports, p.HTTPGet.Port.IntVal)
		case p.TCPSocket != nil:
			ports = append(ports, p.TCPSocket.Port.IntVal)
		case p.GRPC != nil:
			ports = append(ports, p.GRPC.Port)
		}
	}
	return ports
}

// seconds are as many as fit.
func seconds(n int64) contract.Duration {
	return contract.Duration(time.Duration(min(n, math.MaxInt64/int64(time.Second))) * time.Second)
}
