package fencehttp

import (
	"fmt"
	"net"
	"net/http"
	"net/netip"
	"net/textproto"
	"regexp"
	"slices"
	"strings"

	"github.com/singletonjob/operator/fence"
)

// reads are the methods that change nothing.
var reads = []string{http.MethodGet, http.MethodHead, http.MethodOptions}

// overrides are the headers that make some servers treat a request as one of another method.
var overrides = []string{"X-Http-Method-Override", "X-Http-Method", "X-Method-Override"}

// isRead reports whether a request changes nothing and starts nothing that continues after it.
func isRead(r *http.Request, methods []string) bool {
	return slices.Contains(methods, r.Method) && !upgrades(r) && !overridden(r.Header)
}

// overridden reports whether a header overrides the method. It also finds the spellings that servers which replace _ by - accept.
func overridden(h http.Header) bool {
	for name := range h {
		if strings.HasPrefix(name, "X") && slices.Contains(overrides, textproto.CanonicalMIMEHeaderKey(strings.ReplaceAll(name, "_", "-"))) {
			return true
		}
	}
	return false
}

// Fixed is for a server of one resource: every request except GET, HEAD and OPTIONS is a write to it. A request to upgrade, as for a
// WebSocket, is a write too.
func Fixed(resource fence.Resource) func(*http.Request) (fence.Resource, bool, error) {
	return func(r *http.Request) (fence.Resource, bool, error) {
		return resource, !isRead(r, reads), nil
	}
}

// FromHeader is for a server of many resources that its clients name in a header. It trusts the clients to name the right one.
func FromHeader(r *http.Request) (fence.Resource, bool, error) {
	if isRead(r, reads) {
		return "", false, nil
	}
	resource, err := named(r)
	return resource, true, err
}

func named(r *http.Request) (fence.Resource, error) {
	text, err := single(r.Header, fence.HeaderResource)
	if err != nil {
		return "", fmt.Errorf("%w: %w", fence.ErrMalformedResource, err)
	}
	if text == "" {
		return "", fmt.Errorf("%w: header %s is missing", fence.ErrMalformedResource, fence.HeaderResource)
	}
	return fence.ParseResource(text)
}

// Rule says to which resource the requests for a host and below a path write.
type Rule struct {
	// Host is a name or address without port, or *.example.com. Empty: any.
	Host string
	// Path covers itself and all paths below: /ledger covers /ledger and /ledger/1, not /ledgers. Empty: all.
	Path string
	// Set exactly one of these. Use FromHeader only if you trust the clients to name the resource.
	Resource   fence.Resource
	FromHeader bool
	Unfenced   bool
}

// Rules find the resource of a request: the first rule that matches decides. A write that matches no rule is refused. If a rule has a path,
// a write with an ambiguous path is refused too. A path is ambiguous if it is not in its shortest form, or if it matches another rule on a
// server that ignores case.
type Rules struct {
	rules  []Rule
	reads  []string
	byPath bool
}

// host matches a name, or a name with a wildcard as its first part.
var host = regexp.MustCompile(`^(\*\.)?[a-z0-9]([-_a-z0-9.]*[a-z0-9])?$`)

// isHost reports whether a rule's host can match that of a request, from which the port and the brackets of an IPv6 address are removed
// before the comparison.
func isHost(text string) bool {
	address, err := netip.ParseAddr(text)
	return host.MatchString(text) || err == nil && address.String() == text
}

// NewRules checks rules. The methods are those that pass without a token. If none is given: GET, HEAD and OPTIONS.
func NewRules(rules []Rule, methods ...string) (*Rules, error) {
	if len(rules) == 0 {
		return nil, fmt.Errorf(`rules is empty: a rule that fences everything is {resource: "namespace/name"}`)
	}
	if len(methods) == 0 {
		methods = reads
	}
	all := &Rules{rules: slices.Clone(rules), reads: methods}
	for i, rule := range rules {
		if err := rule.check(); err != nil {
			return nil, fmt.Errorf("rules[%d]: %w", i, err)
		}
		all.rules[i].Path = strings.TrimSuffix(rule.Path, "/")
		all.byPath = all.byPath || all.rules[i].Path != ""
	}
	return all, nil
}

func (r Rule) check() error {
	if r.Host != "" && !isHost(r.Host) {
		return fmt.Errorf("host %q never matches: want a name in lower case or an address, without port and brackets, such as ledger.example or fd00::1, or *.example", r.Host)
	}
	if r.Path != "" {
		if _, err := segments(r.Path); err != nil || strings.ContainsAny(r.Path, "%;") {
			return fmt.Errorf("path %q must be absolute, without empty parts, dots, %% and ;", r.Path)
		}
	}
	ways := 0
	for _, set := range []bool{r.Resource != "", r.FromHeader, r.Unfenced} {
		if set {
			ways++
		}
	}
	if ways != 1 {
		return fmt.Errorf("set exactly one of resource, fromHeader: true and unfenced: true")
	}
	if r.Resource != "" {
		if _, err := fence.ParseResource(string(r.Resource)); err != nil {
			return err
		}
	}
	return nil
}

// Resource is the function for [Fence.Resource].
func (a *Rules) Resource(r *http.Request) (fence.Resource, bool, error) {
	if isRead(r, a.reads) {
		return "", false, nil
	}
	found, err := a.Match(r)
	if err != nil {
		return "", true, err
	}
	switch rule := a.rules[found]; {
	case rule.Unfenced:
		return "", false, nil
	case rule.FromHeader:
		resource, err := named(r)
		return resource, true, err
	default:
		return rule.Resource, true, nil
	}
}

// Match returns the index of the first rule that matches.
func (a *Rules) Match(r *http.Request) (int, error) {
	path := ""
	if a.byPath {
		parts, err := segments(r.URL.Path)
		if err == nil && strings.Contains(strings.ToLower(r.URL.EscapedPath()), "%2f") {
			err = fmt.Errorf("it has an encoded /")
		}
		if err != nil {
			return 0, fmt.Errorf("%w: path %.80q can be read in two ways: %w", fence.ErrMalformedResource, r.URL.EscapedPath(), err)
		}
		path = strings.Join(parts, "/")
	}
	name := hostOf(r.Host)
	found := a.find(name, path, strings.HasPrefix)
	if found != a.find(name, path, hasPrefixFold) {
		return 0, fmt.Errorf("%w: path %.80q differs from the path of a rule only in upper and lower case", fence.ErrMalformedResource, path)
	}
	if found < 0 {
		return 0, fmt.Errorf("%w: no rule covers host %.80q and path %.80q", fence.ErrMalformedResource, name, r.URL.Path)
	}
	return found, nil
}

func (a *Rules) find(name, path string, hasPrefix func(s, prefix string) bool) int {
	return slices.IndexFunc(a.rules, func(rule Rule) bool {
		if suffix, wild := strings.CutPrefix(rule.Host, "*"); wild && !strings.HasSuffix(name, suffix) || !wild && rule.Host != "" && rule.Host != name {
			return false
		}
		return rule.Path == "" || hasPrefix(path, rule.Path) && (len(path) == len(rule.Path) || path[len(rule.Path)] == '/')
	})
}

func hasPrefixFold(s, prefix string) bool {
	return len(s) >= len(prefix) && strings.EqualFold(s[:len(prefix)], prefix)
}

func hostOf(header string) string {
	if name, _, err := net.SplitHostPort(header); err == nil {
		header = name
	}
	return strings.TrimSuffix(strings.ToLower(strings.Trim(header, "[]")), ".")
}

// encoded matches what a server that decodes twice would decode again.
var encoded = regexp.MustCompile(`%[0-9A-Fa-f]{2}`)

// segments returns the parts of a path between its slashes (the first part is empty), without their parameters (;a=b), because some servers
// remove these before they route the request.
func segments(path string) ([]string, error) {
	if !strings.HasPrefix(path, "/") {
		return nil, fmt.Errorf("it does not begin with /")
	}
	if strings.ContainsFunc(path, func(c rune) bool { return c == '\\' || c < ' ' || c == 0x7f }) {
		return nil, fmt.Errorf("it has a backslash or a control character")
	}
	if encoded.MatchString(path) {
		return nil, fmt.Errorf("it is encoded twice")
	}
	parts := strings.Split(path, "/")
	for i, part := range parts {
		part, _, _ = strings.Cut(part, ";")
		parts[i] = part
		if part == "." || part == ".." || part == "" && i > 0 && i < len(parts)-1 {
			return nil, fmt.Errorf("it has an empty part, or a part that is . or .., which names another path")
		}
	}
	return parts, nil
}
