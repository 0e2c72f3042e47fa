package check

import (
	"context"
	"errors"
	"io"
	"net/http"
	"slices"
	"strings"

	"github.com/singletonjob/operator/internal/contract"
)

// Call makes the request of a hook and reads a short response to its end, unless ctx ends first. Any response counts as success, as for a
// kubelet. If the hook specifies https and the server speaks http, Call repeats the request over http, without the Authorization header,
// which must not be sent in plain text.
func (c Checker) Call(ctx context.Context, of *contract.HTTPGet) error {
	err := c.call(ctx, of)
	if !errors.Is(err, http.ErrSchemeMismatch) {
		return err
	}
	plain := *of
	plain.TLS = false
	plain.Headers = slices.DeleteFunc(slices.Clone(of.Headers), func(h contract.Header) bool {
		return strings.EqualFold(h.Name, "Authorization")
	})
	if c.call(ctx, &plain) == nil {
		return nil
	}
	return err
}

func (c Checker) call(ctx context.Context, of *contract.HTTPGet) error {
	req, err := c.request(ctx, of, HookUserAgent)
	if err != nil {
		return err
	}
	client := clientFor(of)
	defer client.CloseIdleConnections()
	resp, err := client.Do(req)
	if err != nil {
		return err
	}
	defer func() { _ = resp.Body.Close() }()
	if resp.ContentLength <= maxBody {
		_, _ = io.Copy(io.Discard, io.LimitReader(resp.Body, maxBody))
	}
	return nil
}
