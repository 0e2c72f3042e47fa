package fencehttp

import (
	"fmt"
	"net/http"
	"net/textproto"
	"slices"
	"strings"

	"github.com/singletonjob/operator/fence"
)

// single refuses a repeated header: sender, proxy and server that disagree must not choose the token between them.
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

// unambiguous refuses the ways in which what is behind this could read another token than this: a header that is the same to
// servers which take _ for -, one that is to be dropped on the way (Connection), and one that comes after the body.
func unambiguous(r *http.Request) error {
	for name := range r.Header {
		if alike(name) {
			return fmt.Errorf("%w: header %.40q is not to be told from one of the fence's", fence.ErrMalformedToken, name)
		}
	}
	for name := range r.Trailer {
		if own(name) || alike(name) {
			return fmt.Errorf("%w: %s comes after the body, want it before", fence.ErrMalformedToken, name)
		}
	}
	for _, name := range tokens(r.Header["Connection"]) {
		if own(name) || alike(name) {
			return fmt.Errorf("%w: header Connection names %.40q, which is not for one connection only", fence.ErrMalformedToken, name)
		}
	}
	return nil
}

// withoutH2C is the request without an offer to go on in HTTP/2 on the same connection, which a client may make with every request (Java's does) and no
// server has to take. What would follow passes by the fence.
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

// tokens are the parts of a header that is a list.
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

// alike: it is the fence's with - and _ mixed up.
func alike(name string) bool {
	const length = len(fence.HeaderToken)
	return len(name) >= length && strings.Contains(name, "_") && own(strings.ReplaceAll(name, "_", "-"))
}
