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

// refused reports whether a registry wants other credentials.
func refused(err error) bool {
	answer := (*transport.Error)(nil)
	return errors.As(err, &answer) && (answer.StatusCode == http.StatusUnauthorized || answer.StatusCode == http.StatusForbidden)
}

// explain says why a look-up failed: in words of ours alone, since what an answer holds may be meant for the operator's eyes only. insecure: plain HTTP
// was tried, too.
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
		return fmt.Errorf("the registry %s has no such image, or does not show it to whom it takes the operator for%s", registry, note)
	case errors.As(err, new(*tls.CertificateVerificationError)):
		return fmt.Errorf("the registry %s shows a certificate that is not trusted: give its CA to the operator (entrypoint.caConfigMap)", registry)
	case errors.As(err, &answer):
		return fmt.Errorf("the registry %s %s", registry, byStatus(answer.StatusCode))
	case errors.Is(err, errLocal):
		return fmt.Errorf("the registry %s is at an address of the operator's own machine, where it is not asked: list it in "+
			"entrypoint.insecureRegistries if it is meant", registry)
	case ctx.Err() != nil, errors.Is(err, context.DeadlineExceeded):
		return fmt.Errorf("the registry %s did not answer in time", registry)
	case errors.Is(err, errPlain), errors.Is(err, http.ErrSchemeMismatch) && !insecure:
		return fmt.Errorf("the registry %s, or where it sends the operator, speaks plain HTTP only: list that host in "+
			"entrypoint.insecureRegistries if it may", registry)
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
		return "is asked too often (status 429)"
	}
	return fmt.Sprintf("answers with status %d", code)
}

func byCause(err error) string {
	lookup := (*net.DNSError)(nil)
	connection := (*net.OpError)(nil)
	timed, isTimed := errors.AsType[net.Error](err)
	switch {
	case errors.As(err, &lookup):
		return "is no name that the operator can resolve"
	case errors.Is(err, syscall.ECONNREFUSED):
		return "refuses connections"
	case isTimed && timed.Timeout():
		return "did not answer in time"
	case errors.As(err, &connection):
		return "can't be reached"
	}
	return "gives an answer that is not understood"
}
