package entrypoint

import (
	"context"
	"crypto/tls"
	"errors"
	"fmt"
	"net"
	"net/http"
	"syscall"

	"github.com/google/go-containerregistry/pkg/v1/remote/transport"
)

// refused reports whether a registry demands other credentials.
func refused(err error) bool {
	answer := (*transport.Error)(nil)
	return errors.As(err, &answer) && (answer.StatusCode == http.StatusUnauthorized || answer.StatusCode == http.StatusForbidden)
}

// explain describes why a look-up failed. It quotes nothing from the answer, which may be meant only for the operator. insecure
// means that plain HTTP was tried too.
func explain(ctx context.Context, err error, registry, note string, insecure bool) error {
	var finding imageError
	answer := (*transport.Error)(nil)
	switch {
	case errors.As(err, &finding):
		return finding
	case refused(err):
		if note != "" {
			note = " (" + note + ")"
		}
		return fmt.Errorf("the registry %s has no such image, or refuses the operator's credentials%s", registry, note)
	case errors.As(err, new(*tls.CertificateVerificationError)):
		return fmt.Errorf("the registry %s has a certificate that the operator does not trust: add its CA to the operator (entrypoint.caConfigMap)", registry)
	case errors.As(err, &answer):
		return fmt.Errorf("the registry %s %s", registry, byStatus(answer.StatusCode))
	case errors.Is(err, errLocal):
		return fmt.Errorf("the registry %s is at a loopback or link-local address, which the operator does not ask: list it in "+
			"entrypoint.insecureRegistries to allow this", registry)
	case ctx.Err() != nil, errors.Is(err, context.DeadlineExceeded):
		return fmt.Errorf("the registry %s did not answer in time", registry)
	case errors.Is(err, errPlain), errors.Is(err, http.ErrSchemeMismatch) && !insecure:
		return fmt.Errorf("the registry %s, or a host to which it redirects, uses plain HTTP: list that host in "+
			"entrypoint.insecureRegistries to allow this", registry)
	case errors.Is(err, errLong):
		return fmt.Errorf("the registry %s gives %w", registry, errLong)
	}
	return fmt.Errorf("the registry %s %s", registry, byCause(err))
}

func byStatus(code int) string {
	switch code {
	case http.StatusNotFound:
		return "has no such image"
	case http.StatusTooManyRequests:
		return "limits the rate of requests (status 429)"
	}
	return fmt.Sprintf("answers with status %d", code)
}

func byCause(err error) string {
	lookup := (*net.DNSError)(nil)
	connection := (*net.OpError)(nil)
	timed, isTimed := errors.AsType[net.Error](err)
	switch {
	case errors.As(err, &lookup):
		return "has a name that the operator cannot resolve"
	case errors.Is(err, syscall.ECONNREFUSED):
		return "refuses connections"
	case isTimed && timed.Timeout():
		return "did not answer in time"
	case errors.As(err, &connection):
		return "cannot be reached"
	}
	return "gives an answer that the operator cannot read"
}
