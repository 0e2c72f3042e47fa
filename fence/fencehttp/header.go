package fencehttp

import (
	"fmt"
	"net/http"
	"net/textproto"
	"slices"
	"strings"

	"github.com/singletonjob/operator/fence"
)

// single refuses a repeated header, because sender, proxy and server could each read another of its values.
func single(h http.Header, name string) (string, error) {
	switch values := h[textproto.CanonicalMIMEHeaderKey(name)]; len(values) {
	case 0:
		return "", nil
	case 1:
		return values[0], nil
	default:
		return "", fmt.Errorf("header %s is sent %d times, want it once", name, len(values))
	}
}

// unambiguous refuses requests from which a server behind the fence could read another token than the fence does. It refuses a header that
// differs only by _ for -, one that Connection tells proxies to drop, and one that comes after the body.
func unambiguous(r *http.Request) error {
	for name := range r.Header {
		if alike(name) {
			return fmt.Errorf("%w: header %.40q could be confused with a header of the fence: remove it", fence.ErrMalformedToken, name)
		}
	}
	for name := range r.Trailer {
		if own(name) || alike(name) {
			return fmt.Errorf("%w: %s comes after the body, want it before", fence.ErrMalformedToken, name)
		}
	}
	for _, name := range tokens(r.Header["Connection"]) {
		if own(name) || alike(name) {
			return fmt.Errorf("%w: header Connection names %.40q, which must reach the server: remove it there", fence.ErrMalformedToken, name)
		}
	}
	return nil
}

// withoutH2C returns the request without its offer to continue in HTTP/2 on the same connection. A client can make that offer with every
// request (Java's does), and a server can ignore it. The requests after such an upgrade would bypass the fence.
func withoutH2C(r *http.Request) *http.Request {
	const upgrade, settings = "Upgrade", "Http2-Settings"
	offers := slices.DeleteFunc(tokens(r.Header[upgrade]), func(name string) bool { return strings.EqualFold(name, "h2c") })
	if _, set := r.Header[settings]; !set && len(offers) == len(tokens(r.Header[upgrade])) {
		return r
	}
	plain := *r
	plain.Header = r.Header.Clone()
	plain.Header.Del(settings)
	dropped := []string{settings}
	if plain.Header[upgrade] = offers; len(offers) == 0 {
		plain.Header.Del(upgrade)
		dropped = append(dropped, upgrade)
	}
	if options := r.Header["Connection"]; len(options) > 0 {
		plain.Header["Connection"] = slices.DeleteFunc(tokens(options), func(name string) bool {
			return slices.ContainsFunc(dropped, func(one string) bool { return strings.EqualFold(one, name) })
		})
	}
	return &plain
}

// tokens returns the parts of a header that is a list.
func tokens(values []string) (all []string) {
	for _, value := range values {
		for one := range strings.SplitSeq(value, ",") {
			if one = strings.TrimSpace(one); one != "" {
				all = append(all, one)
			}
		}
	}
	return all
}

func own(name string) bool {
	return strings.EqualFold(name, fence.HeaderToken) || strings.EqualFold(name, fence.HeaderResource)
}

// alike reports whether the name is that of a fence header with _ for some -.
func alike(name string) bool {
	const length = len(fence.HeaderToken)
	return len(name) >= length && strings.Contains(name, "_") && own(strings.ReplaceAll(name, "_", "-"))
}
