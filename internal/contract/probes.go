package contract

import (
	"errors"
	"fmt"
	"math"
	"time"
)

// Probes are the user's probes of the gated container. The agent runs them while its process lives. A nil probe is not set.
type Probes struct {
	Startup   *Probe `json:"startup,omitempty"`
	Liveness  *Probe `json:"liveness,omitempty"`
	Readiness *Probe `json:"readiness,omitempty"`
}

// Probe is one probe, with Kubernetes' defaults filled in.
type Probe struct {
	Check
	// InitialDelay is the time from the start of the process to the first check. Period is the time between checks.
	InitialDelay Duration `json:"initialDelay,omitzero"`
	Period       Duration `json:"period"`
	// Timeout is the time after which a check without an answer has failed.
	Timeout Duration `json:"timeout"`
	// SuccessThreshold and FailureThreshold are the numbers of equal results in a row that the probe needs to change its state.
	SuccessThreshold int `json:"successThreshold"`
	FailureThreshold int `json:"failureThreshold"`
	// GracePeriod is the time from SIGTERM to SIGKILL for a process that fails the probe. 0 means the Pod's grace period.
	GracePeriod Duration `json:"gracePeriod,omitzero"`
}

// Check is one way to check a process. Exactly one field is set.
type Check struct {
	// Exec is a command.
	Exec      []string   `json:"exec,omitempty"`
	HTTPGet   *HTTPGet   `json:"httpGet,omitempty"`
	TCPSocket *TCPSocket `json:"tcpSocket,omitempty"`
	GRPC      *GRPC      `json:"grpc,omitempty"`
}

// HTTPGet is an HTTP request. An empty Host, here and below, means the Pod's own address.
type HTTPGet struct {
	Host string `json:"host,omitempty"`
	Port int    `json:"port"`
	// TLS selects https; the certificate is not verified. HTTP2 selects HTTP/2 without TLS.
	TLS   bool `json:"tls,omitempty"`
	HTTP2 bool `json:"http2,omitempty"`
	// Path can include a query.
	Path    string   `json:"path,omitempty"`
	Headers []Header `json:"headers,omitempty"`
}

// Header is one header of an HTTP request.
type Header struct {
	Name  string `json:"name"`
	Value string `json:"value"`
}

// TCPSocket opens a connection and closes it.
type TCPSocket struct {
	Host string `json:"host,omitempty"`
	Port int    `json:"port"`
}

// GRPC uses the gRPC health checking protocol. An empty Service means the whole server.
type GRPC struct {
	Port    int    `json:"port"`
	Service string `json:"service,omitempty"`
	TLS     bool   `json:"tls,omitempty"`
}

func (p *Probe) validate(name string) error {
	if p == nil {
		return nil
	}
	var errs []error
	refuse := func(bad bool, format string, args ...any) {
		if bad {
			errs = append(errs, fmt.Errorf(ConfigEnv+": probes."+name+": "+format, args...))
		}
	}
	ways := 0
	asks := func(port int) {
		ways++
		refuse(port < 1 || port > math.MaxUint16, "port %d is not between 1 and 65535", port)
	}
	if len(p.Exec) > 0 {
		ways++
	}
	if p.HTTPGet != nil {
		asks(p.HTTPGet.Port)
	}
	if p.TCPSocket != nil {
		asks(p.TCPSocket.Port)
	}
	if p.GRPC != nil {
		asks(p.GRPC.Port)
	}
	refuse(ways != 1, "%d of exec, httpGet, tcpSocket and grpc are set: set one", ways)
	refuse(p.InitialDelay < 0, "initialDelay %v is negative", time.Duration(p.InitialDelay))
	refuse(p.Period <= 0, "period %v is not more than 0s", time.Duration(p.Period))
	refuse(p.Timeout <= 0, "timeout %v is not more than 0s", time.Duration(p.Timeout))
	refuse(p.SuccessThreshold < 1, "successThreshold %d is less than 1", p.SuccessThreshold)
	refuse(p.FailureThreshold < 1, "failureThreshold %d is less than 1", p.FailureThreshold)
	refuse(p.GracePeriod < 0, "gracePeriod %v is negative", time.Duration(p.GracePeriod))
	return errors.Join(errs...)
}

func (p Probes) validate() error {
	return errors.Join(p.Startup.validate("startup"), p.Liveness.validate("liveness"), p.Readiness.validate("readiness"))
}
