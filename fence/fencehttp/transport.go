package fencehttp

import (
	"fmt"
	"net/http"
	"os"

	"github.com/singletonjob/operator/fence"
)

// Transport adds token and resource to every request, including those that follow a redirect.
type Transport struct {
	Token    fence.Token
	Resource fence.Resource
	// Base sends the requests. nil: [http.DefaultTransport].
	Base http.RoundTripper
}

// FromEnvironment returns the transport for the active process of a SingletonJob, which has token, namespace and name in its environment.
// The resource is that of [fence.ResourceOf]; set another if the job writes to more than one resource.
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

// RoundTrip implements [http.RoundTripper]. It does not send a request that already has a different token or resource.
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
			return fmt.Errorf("fencehttp: Transport: the request already has %s %q, want %q or none", name, values, want)
		}
	}
	return nil
}
