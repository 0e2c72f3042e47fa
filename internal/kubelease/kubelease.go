// Package kubelease reads, writes and watches one coordination.k8s.io/v1 Lease over plain HTTP, and says of each write
// what is certain about it. It is the only writer of a Lease's spec in a pod.
//
// It never retries, throttles or sleeps on behalf of a request: when to ask again is the state machine's decision, and
// a request's deadline is the caller's context. The watch alone keeps itself going, and only that a Lease is gone, which
// ends a tenure at once, is asked of others too: behind the address there may be several API servers.
//
// It speaks HTTP/1.1. A request that gets no answer then takes its connection with it and the next one opens another;
// a half-open HTTP/2 connection would swallow requests for as long as its keep-alive takes to notice.
package kubelease

import (
	"bytes"
	"context"
	"encoding/json"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/http/httptrace"
	"net/url"
	"os"
	"strings"
	"sync/atomic"

	"github.com/singletonjob/operator/internal/contract"
	"github.com/singletonjob/operator/internal/lease"
)

// Config says where the Lease is and how to identify oneself.
type Config struct {
	// Server is the API server's URL, without a path.
	Server string
	// Namespace and Name are the Lease's.
	Namespace, Name string
	// Credentials is the directory that holds token and ca.crt. Both are read again for every request, since they are
	// replaced while the agent runs.
	Credentials string
}

// InCluster is the API server's URL as the operator tells it, or has the kubelet tell it, in a container that it makes.
func InCluster(env func(string) string) (string, error) {
	host, port := env(contract.APIHostEnv), env(contract.APIPortEnv)
	switch {
	case host == "" || port == "":
		return "", fmt.Errorf("%s %q and %s %q: the operator sets both in the container that it makes",
			contract.APIHostEnv, host, contract.APIPortEnv, port)
	case strings.HasPrefix(host, "$") || strings.HasPrefix(port, "$"):
		return "", fmt.Errorf("%s is %q, and %s %q: the node's kubelet knows no Service kubernetes in namespace default, "+
			"by which pods reach the API server: see why", contract.APIHostEnv, host, contract.APIPortEnv, port)
	}
	return "https://" + net.JoinHostPort(host, port), nil
}

// Client is for one Lease. Its methods may be called from any goroutine.
type Client struct {
	config Config
	leases string // URL of the namespace's Leases
	// requests and watches have connections of their own, so that neither waits for or fails with the other.
	requests, watches *pool
	// seen says that there was a Lease when last read: that it is gone is believed of several answers only.
	seen atomic.Bool
}

// New fails where the configuration can't work. It sends nothing.
func New(c Config) (*Client, error) {
	if _, err := url.Parse(c.Server); err != nil || !strings.Contains(c.Server, "://") {
		return nil, fmt.Errorf("the API server's address %q is not a URL", c.Server)
	}
	leases := fmt.Sprintf("%s/apis/coordination.k8s.io/v1/namespaces/%s/leases",
		strings.TrimSuffix(c.Server, "/"), url.PathEscape(c.Namespace))
	client := &Client{
		config:   c,
		leases:   leases,
		requests: &pool{credentials: c.Credentials, connect: newDialer().transport},
		watches:  &pool{credentials: c.Credentials, connect: newDialer().transport},
	}
	if _, err := client.requests.open(); err != nil {
		return nil, err
	}
	if _, err := os.ReadFile(client.requests.tokenFile()); err != nil {
		return nil, fmt.Errorf("the token of the agent's service account: %w", err)
	}
	return client, nil
}

// Answer is what a read found. With neither, the read failed.
type Answer struct {
	Object *Object
	// Absent says that the API server has no such Lease.
	Absent bool
	// Date is the time by the clock of whoever answered, in seconds since 1970; 0 where the answer has none.
	Date int64
}

// Get reads the Lease from etcd, not from a cache. Absent is what several answers say, unless it was before.
func (c *Client) Get(ctx context.Context) (Answer, error) {
	answer, err := c.read(ctx)
	if err == nil && answer.Absent {
		return c.elsewhere(ctx)
	}
	return answer, err
}

// witnesses is how many more answers it takes to believe that a Lease is gone that was there: an API server may have lost its
// data, or be that of another cluster.
const witnesses = 2

// elsewhere asks after a Lease that is said to be gone, over other connections. The first answer that has it, or is none, is the
// answer: who knows of nobody else who says so waits for the deadline.
func (c *Client) elsewhere(ctx context.Context) (Answer, error) {
	if !c.seen.Load() {
		return Answer{Absent: true}, nil
	}
	for range witnesses {
		c.requests.leave()
		if answer, err := c.read(ctx); err != nil {
			return Answer{}, fmt.Errorf("one API server says that it is gone, and another is asked in vain: %w", err)
		} else if answer.Object != nil {
			return answer, nil
		}
	}
	c.seen.Store(false)
	return Answer{Absent: true}, nil
}

func (c *Client) read(ctx context.Context) (Answer, error) {
	request, err := http.NewRequestWithContext(ctx, http.MethodGet, c.lease(), nil)
	if err != nil {
		return Answer{}, err
	}
	reply, err := c.requests.exchange(request)
	if err != nil {
		return Answer{}, fmt.Errorf("read Lease %s: %w", c, err)
	}
	if reply.code == http.StatusNotFound && c.absent(reply.body) {
		return Answer{Absent: true, Date: reply.date}, nil
	}
	if reply.code != http.StatusOK {
		return Answer{}, fmt.Errorf("read Lease %s: %w", c, reply.failure())
	}
	o, err := c.decode(reply.body)
	if err != nil {
		c.requests.leave()
		return Answer{}, fmt.Errorf("read Lease %s: %w", c, err)
	}
	c.seen.Store(true)
	return Answer{Object: o, Date: reply.date}, nil
}

// gone is what became of a write of r to a Lease that is said to be gone.
func (c *Client) gone(ctx context.Context, r lease.Record, said error) (lease.Outcome, error) {
	switch answer, err := c.elsewhere(ctx); {
	case err != nil:
		return lease.Unknown, err
	case answer.Object != nil && answer.Object.Record.UID == r.UID:
		return lease.Unknown, fmt.Errorf("one API server has it, and another says: %w", said)
	}
	return lease.Gone, said
}

// Update replaces base by base with r's values, on condition that the Lease is still at base's revision. The object is
// what was stored, set only with Confirmed; the error explains any other outcome.
func (c *Client) Update(ctx context.Context, base *Object, r lease.Record) (lease.Outcome, *Object, error) {
	body, err := base.with(r)
	if err != nil {
		return lease.Refused, nil, fmt.Errorf("write Lease %s: %w", c, err)
	}
	// It is certain that nothing was sent as long as no connection was handed out for it.
	handed := false
	trace := &httptrace.ClientTrace{GotConn: func(httptrace.GotConnInfo) { handed = true }}
	ctx = httptrace.WithClientTrace(ctx, trace)
	address := c.lease() + "?fieldManager=" + fieldManager
	request, err := http.NewRequestWithContext(ctx, http.MethodPut, address, bytes.NewReader(body))
	if err != nil {
		return lease.Refused, nil, fmt.Errorf("write Lease %s: %w", c, err)
	}
	request.Header.Set("Content-Type", "application/json")
	reply, err := c.requests.exchange(request)
	switch {
	case err == nil:
		outcome, stored, err := c.outcome(reply, r)
		switch outcome {
		case lease.Gone:
			outcome, err = c.gone(ctx, r, err)
		case lease.Unknown:
			c.requests.leave()
		default:
		}
		if err != nil {
			err = fmt.Errorf("write Lease %s: %w", c, err)
		}
		return outcome, stored, err
	case handed:
		return lease.Unknown, nil, fmt.Errorf("write Lease %s: %w", c, err)
	default:
		return lease.Refused, nil, fmt.Errorf("write Lease %s: not sent: %w", c, err)
	}
}

// outcome is what a reply to a write of r says. What isn't certain is Unknown: to take a write that was stored for
// one that wasn't is the one mistake that must not happen.
func (c *Client) outcome(reply reply, r lease.Record) (lease.Outcome, *Object, error) {
	switch reply.code {
	case http.StatusOK:
		stored, err := c.decode(reply.body)
		if err != nil {
			return lease.Unknown, nil, fmt.Errorf("the reply: %w", err)
		}
		if s := stored.Record; s.UID != r.UID || s.Holder != r.Holder || s.Token != r.Token || s.RenewTime != r.RenewTime {
			return lease.Unknown, nil, fmt.Errorf("the reply is not what was written: holder %q, token %d", s.Holder, s.Token)
		}
		return lease.Confirmed, stored, nil
	case http.StatusConflict:
		// Not of any proxy's own: the API server's compare-and-swap, by its own word.
		if s := parseStatus(reply.body); s.Reason == "Conflict" && s.ours(c.config.Name) {
			return lease.Conflict, nil, reply.failure()
		}
	case http.StatusNotFound:
		if c.absent(reply.body) {
			return lease.Gone, nil, reply.failure()
		}
	case http.StatusBadRequest, http.StatusUnauthorized, http.StatusForbidden, http.StatusUnprocessableEntity, http.StatusTooManyRequests:
		// Decided before anything is stored. 429 comes as plain text, so none is asked to be a Status.
		return lease.Refused, nil, reply.failure()
	}
	return lease.Unknown, nil, reply.failure()
}

// absent reports whether a 404 is the API server's word that the Lease, or its namespace, does not exist, and not a lost
// proxy's.
func (c *Client) absent(body []byte) bool {
	s := parseStatus(body)
	namespace := s.Details.Kind == "namespaces" && s.Details.Name == c.config.Namespace
	return s.Reason == "NotFound" && (namespace || s.ours(c.config.Name))
}

func (c *Client) lease() string { return c.leases + "/" + url.PathEscape(c.config.Name) }

// String names the Lease for messages.
func (c *Client) String() string { return c.config.Namespace + "/" + c.config.Name }

// fieldManager is under what name the API server records who changed which field.
const fieldManager = "singletonjob-agent"

// status is the API's metav1.Status.
type status struct {
	Kind    string `json:"kind"`
	Code    int    `json:"code"`
	Reason  string `json:"reason"`
	Message string `json:"message"`
	Details struct {
		Group string `json:"group"`
		Kind  string `json:"kind"`
		Name  string `json:"name"`
	} `json:"details"`
}

// parseStatus returns the zero value for what is not a Status.
func parseStatus(body []byte) status {
	var s status
	if json.Unmarshal(body, &s) != nil || s.Kind != "Status" {
		return status{}
	}
	return s
}

// ours reports whether a Status speaks about the Lease of that name.
func (s status) ours(name string) bool {
	return s.Details.Group == "coordination.k8s.io" && s.Details.Kind == "leases" && s.Details.Name == name
}

// reply is an answer that came in whole.
type reply struct {
	code int
	body []byte
	date int64 // as Answer.Date
}

// dateOf reads the header Date, which HTTP asks of every server that has a clock. A proxy that makes the answer its own may have put it
// there.
func dateOf(h http.Header) int64 {
	date, err := http.ParseTime(h.Get("Date"))
	if err != nil {
		return 0
	}
	return max(0, date.Unix())
}

// failure is what the API server said, for people.
func (r reply) failure() error {
	text := parseStatus(r.body).Message
	if text == "" {
		text = string(r.body)
	}
	const longest = 1000 // what admission says comes after the names of who said it
	if len(text) > longest {
		text = text[:longest] + "…"
	}
	return fmt.Errorf("the API server said %d %s: %s", r.code, http.StatusText(r.code), strings.TrimSpace(text))
}

// largest bounds an answer's body; etcd stores no more in one object.
const largest = 4 << 20

// exchange sends a request and takes the whole answer.
func (p *pool) exchange(request *http.Request) (reply, error) {
	response, drop, err := p.send(request)
	if err != nil {
		return reply{}, err
	}
	defer func() { _ = response.Body.Close() }()
	body, err := io.ReadAll(io.LimitReader(response.Body, largest))
	if err != nil {
		return reply{}, fmt.Errorf("the answer broke off: %w", late(request, err))
	}
	if len(body) == largest {
		drop()
		return reply{}, fmt.Errorf("the answer has more than %d bytes", largest)
	}
	if leftFor(response.StatusCode) {
		drop() // the next one may reach another API server
	}
	return reply{code: response.StatusCode, body: body, date: dateOf(response.Header)}, nil
}

// leftFor reports whether another API server may have a better answer, one that has heard of a new right or a new key. One that
// is too busy is not made busier by a new connection.
func leftFor(code int) bool {
	return code >= http.StatusInternalServerError || code == http.StatusUnauthorized || code == http.StatusForbidden
}

// managed reports whether a Lease is one of this operator's.
func managed(labels map[string]string) bool {
	return labels[contract.ManagedByLabel] == contract.ManagedBy
}
