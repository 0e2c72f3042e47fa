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

	"github.com/singletonjob/operator/api/v1alpha1"
)

// refused reports whether a registry demands other credentials.
func refused(err error) bool {
	answer := (*transport.Error)(nil)
	return errors.As(err, &answer) && (answer.StatusCode == http.StatusUnauthorized || answer.StatusCode == http.StatusForbidden)
}

// FindError is the reason of a condition, and a text for users, which is the same for the same cause.
type FindError struct{ Reason, Text string }

// Error returns the text.
func (p FindError) Error() string { return p.Text }

// explain describes why a look-up failed. It quotes nothing from the answer, which may be meant only for the operator. insecure
// means that plain HTTP was tried too.
func explain(ctx context.Context, err error, registry, note string, insecure bool) FindError {
	answer := (*transport.Error)(nil)
	registry = "the registry " + registry
	switch finding, isFinding := errors.AsType[FindError](err); {
	case isFinding:
		return finding
	case refused(err):
		if note != "" {
			note = " (" + note + ")"
		}
		return FindError{v1alpha1.ReasonRegistryRefused, registry + " has no such image, or refuses the operator's credentials" + note}
	case errors.As(err, new(*tls.CertificateVerificationError)):
		return FindError{v1alpha1.ReasonRegistryUntrusted, registry + " has a certificate that the operator does not trust: add its CA to the operator (entrypoint.caConfigMap)"}
	case errors.As(err, &answer) && answer.StatusCode == http.StatusNotFound:
		return FindError{v1alpha1.ReasonImageNotFound, registry + " has no such image"}
	case errors.As(err, &answer):
		return FindError{v1alpha1.ReasonRegistryUnreachable, registry + " " + byStatus(answer.StatusCode)}
	case errors.Is(err, errLocal):
		return FindError{v1alpha1.ReasonRegistryUntrusted, registry + " is at a loopback or link-local address, which the operator does not ask: list it in " +
			"entrypoint.insecureRegistries to allow this"}
	case ctx.Err() != nil, errors.Is(err, context.DeadlineExceeded):
		return FindError{v1alpha1.ReasonRegistryUnreachable, registry + " did not answer in time"}
	case errors.Is(err, errPlain), errors.Is(err, http.ErrSchemeMismatch) && !insecure:
		return FindError{v1alpha1.ReasonRegistryUntrusted, registry + ", or a host to which it redirects, uses plain HTTP: list that host in " +
			"entrypoint.insecureRegistries to allow this"}
	case errors.Is(err, errLong):
		return FindError{v1alpha1.ReasonRegistryUnreachable, registry + " gives " + errLong.Error()}
	}
	return FindError{v1alpha1.ReasonRegistryUnreachable, registry + " " + byCause(err)}
}

func byStatus(code int) string {
	if code == http.StatusTooManyRequests {
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
