package fencehttp

import (
	"fmt"
	"net/http"
	"os"

	"github.com/singletonjob/operator/fence"
)

// Transport sends token and resource with every request, also with those that follow a redirect.
type Transport struct {
	Token    fence.Token
	Resource fence.Resource
	// Base sends the requests. nil: [http.DefaultTransport].
	Base http.RoundTripper
}

// FromEnvironment is the transport of the active process of a SingletonJob: token, namespace and name are in its environment. The resource is the
// job's; set another where it guards more than one thing.
func FromEnvironment() (*Transport, error) {
	token, err := fence.ParseToken(os.Getenv(fence.EnvToken))
	if err != nil {
		return nil, fmt.Errorf("read $%s: %w", fence.EnvToken, err)
	}
	resource := fence.ResourceOf(os.Getenv(fence.EnvNamespace), os.Getenv(fence.EnvName))
	if os.Getenv(fence.EnvNamespace) == "" || os.Getenv(fence.EnvName) == "" {
		return nil, fmt.Errorf("read $%s and $%s: %w: one of them is empty", fence.EnvNamespace, fence.EnvName, fence.ErrMalformedResource)
	}
	if _, err := fence.ParseResource(string(resource)); err != nil {
		return nil, fmt.Errorf("read $%s and $%s: %w", fence.EnvNamespace, fence.EnvName, err)
	}
	return &Transport{Token: token, Resource: resource}, nil
}

// RoundTrip implements [http.RoundTripper]. A request that has another token already is not sent.
func (t *Transport) RoundTrip(r *http.Request) (*http.Response, error) {
	if err := t.check(r); err != nil {
		if r.Body != nil {
			_ = r.Body.Close()
		}
		return nil, err
	}
	r = r.Clone(r.Context())
	r.Header.Set(fence.HeaderToken, t.Token.String())
	r.Header.Set(fence.HeaderResource, string(t.Resource))
	base := t.Base
	if base == nil {
		base = http.DefaultTransport
	}
	return base.RoundTrip(r)
}

func (t *Transport) check(r *http.Request) error {
	if _, err := (fence.Gate{Resource: t.Resource}).Accept(0, t.Token); err != nil {
		return fmt.Errorf("fencehttp: Transport: %w", err)
	}
	if _, err := fence.ParseResource(string(t.Resource)); err != nil {
		return fmt.Errorf("fencehttp: Transport: %w", err)
	}
	for name, want := range map[string]string{fence.HeaderToken: t.Token.String(), fence.HeaderResource: string(t.Resource)} {
		if values := r.Header.Values(name); len(values) > 1 || len(values) == 1 && values[0] != want {
			return fmt.Errorf("fencehttp: Transport: the request has %s %q already, want %q or none", name, values, want)
		}
	}
	return nil
}
