// Package kubelease reads, writes and watches one coordination.k8s.io/v1 Lease over plain HTTP. For each write it reports what is
// certain about the outcome. In a pod, only this package writes the Lease's spec. It also asks whether a Pod is being deleted.
//
// It never retries, throttles or delays a request. The state machine decides when to send the next one, and the caller's context
// is the deadline. There are two exceptions. The watch reopens itself. And a report that a known Lease does not exist, or is in an
// older state, can end a tenure. It must be confirmed over other connections, because several API servers can be behind the address.
//
// It uses HTTP/1.1. A request without an answer then closes its own connection, and the next request opens another. A half-open
// HTTP/2 connection would swallow requests until its keep-alive detects the failure.
package kubelease

import (
	"bytes"
	"context"
	"crypto/x509"
	"encoding/json"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/http/httptrace"
	"net/url"
	"os"
	"strings"
	"time"

	"github.com/singletonjob/operator/internal/contract"
	"github.com/singletonjob/operator/internal/lease"
)

// Config names the Lease and the credentials.
type Config struct {
	// Server is the API server's URL, without a path.
	Server string
	// Namespace and Name identify the Lease.
	Namespace, Name string
	// Credentials is the directory that contains token and ca.crt. Both are read again for every request, because they are
	// replaced while the agent runs.
	Credentials string
	// RetryPeriod is the agent's. A watch that broke is opened again after a part of it, see Pauses.
	RetryPeriod time.Duration
	// Connect opens connections in place of the client's own. Only a benchmark sets it, if its machine cannot have connections for each agent.
	// If it is nil, the client uses HTTP/1.1, as the protocol needs.
	Connect func(*x509.CertPool) Transport
}

// InCluster returns the API server's URL from the environment of a container that the operator creates. The operator sets the
// variables, or the kubelet expands them.
func InCluster(env func(string) string) (string, error) {
	host, port := env(contract.APIHostEnv), env(contract.APIPortEnv)
	switch {
	case host == "" || port == "":
		return "", fmt.Errorf("%s is %q and %s is %q: both are required; the operator sets them in the containers that it creates",
			contract.APIHostEnv, host, contract.APIPortEnv, port)
	case strings.HasPrefix(host, "$") || strings.HasPrefix(port, "$"):
		return "", fmt.Errorf("%s is %q and %s is %q: the node's kubelet does not know the Service kubernetes in namespace default, "+
			"through which Pods reach the API server; check that this Service exists and that the kubelet can watch Services", contract.APIHostEnv, host, contract.APIPortEnv, port)
	}
	return "https://" + net.JoinHostPort(host, port), nil
}

// Client accesses one Lease. Its methods can be called from any goroutine.
type Client struct {
	config Config
	leases string // URL of the namespace's Leases
	// requests, watches and pods have separate connections, so that none of them waits for or fails with another. Those of pods are opened
	// when a Pod stops.
	requests, watches, pods *pool
}

// New returns an error if the configuration cannot work. It sends nothing.
func New(c Config) (*Client, error) {
	if _, err := url.Parse(c.Server); err != nil || !strings.Contains(c.Server, "://") {
		return nil, fmt.Errorf("the API server's address %q is not a URL", c.Server)
	}
	leases := fmt.Sprintf("%s/apis/coordination.k8s.io/v1/namespaces/%s/leases",
		strings.TrimSuffix(c.Server, "/"), url.PathEscape(c.Namespace))
	client := &Client{
		config:   c,
		leases:   leases,
		requests: newPool(c),
		watches:  newPool(c),
		pods:     newPool(c),
	}
	if _, err := client.requests.open(); err != nil {
		return nil, err
	}
	if _, err := os.ReadFile(client.requests.tokenFile()); err != nil {
		return nil, fmt.Errorf("the token of the agent's service account: %w", err)
	}
	return client, nil
}

// Answer is the result of a read. If neither Object nor Absent is set, the read failed.
type Answer struct {
	Object *Object
	// Absent means that the Lease does not exist.
	Absent bool
	// Date is the time by the clock of the server that answered, in seconds since 1970; 0 if the answer has none.
	Date int64
}

// Get reads the Lease from etcd, not from a cache. floor is the newest revision at which the Lease is known to exist; 0 if it is not
// known to exist. An answer that contradicts floor is returned only if several answers do.
func (c *Client) Get(ctx context.Context, floor int64) (Answer, error) {
	answer, err := c.read(ctx)
	if err != nil {
		return Answer{}, err
	}
	return c.confirm(ctx, answer, floor)
}

// contradicts reports whether an answer can be true only after one of two events. The Lease was deleted since it had that revision, or the
// data of the API servers was restored from a backup.
func (a Answer) contradicts(floor int64) bool {
	return floor > 0 && (a.Object == nil || a.Object.Record.Revision < floor)
}

// newer reports whether an answer shows a later state than another. An answer without the Lease shows no state.
func (a Answer) newer(other Answer) bool {
	return other.Object == nil || a.Object != nil && a.Object.Record.Revision > other.Object.Record.Revision
}

// witnesses is the number of further answers needed to establish what contradicts an earlier answer. An API server can lag, have
// lost its data, or belong to another cluster.
const witnesses = 2

// confirm reads the Lease again, over other connections, after an answer that contradicts floor. It returns the first answer that
// does not, or the first error. If all answers contradict floor, it returns the newest. If the client can reach no other server, it
// waits until the deadline.
func (c *Client) confirm(ctx context.Context, newest Answer, floor int64) (Answer, error) {
	for range witnesses {
		if !newest.contradicts(floor) {
			break
		}
		c.requests.leave()
		answer, err := c.read(ctx)
		if err != nil {
			return Answer{}, fmt.Errorf("%s, and another could not be asked: %w", newest.claim(floor), err)
		}
		if answer.newer(newest) {
			newest = answer
		}
	}
	return newest, nil
}

// claim describes an answer that contradicts floor.
func (a Answer) claim(floor int64) string {
	if a.Object == nil {
		return "one API server reports that the Lease does not exist"
	}
	return fmt.Sprintf("one API server has the Lease at revision %d, which is older than the known %d", a.Object.Record.Revision, floor)
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
	return Answer{Object: o, Date: reply.date}, nil
}

// gone returns the outcome of a write of r after an answer that the Lease does not exist.
func (c *Client) gone(ctx context.Context, r lease.Record, said error) (lease.Outcome, error) {
	switch answer, err := c.confirm(ctx, Answer{Absent: true}, r.Revision); {
	case err != nil:
		return lease.Unknown, err
	case answer.Object != nil && answer.Object.Record.UID == r.UID:
		return lease.Unknown, fmt.Errorf("one API server has it, and another does not: %w", said)
	}
	return lease.Gone, said
}

// Update replaces base with base plus r's values, on condition that the Lease is still at base's revision. The returned object is
// the stored one; it is set only with Confirmed. The error explains any other outcome.
func (c *Client) Update(ctx context.Context, base *Object, r lease.Record) (lease.Outcome, *Object, error) {
	body, err := base.with(r)
	if err != nil {
		return lease.Refused, nil, fmt.Errorf("write Lease %s: %w", c, err)
	}
	// Nothing was sent, for certain, as long as no connection was assigned to the request.
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

// outcome returns what a reply to a write of r proves. Everything uncertain is Unknown: to treat a stored write as not stored is
// the one error that must not happen.
func (c *Client) outcome(reply reply, r lease.Record) (lease.Outcome, *Object, error) {
	switch reply.code {
	case http.StatusOK:
		stored, err := c.decode(reply.body)
		if err != nil {
			return lease.Unknown, nil, fmt.Errorf("the reply: %w", err)
		}
		if s := stored.Record; s.UID != r.UID || s.Holder != r.Holder || s.Token != r.Token || s.RenewTime != r.RenewTime {
			return lease.Unknown, nil, fmt.Errorf("the reply is not what was written: it has holder %q and token %d", s.Holder, s.Token)
		}
		return lease.Confirmed, stored, nil
	case http.StatusConflict:
		// The Status proves that the API server's compare-and-swap failed; a 409 of a proxy does not count.
		if s := parseStatus(reply.body); s.Reason == "Conflict" && s.ours(c.config.Name) {
			return lease.Conflict, nil, reply.failure()
		}
	case http.StatusNotFound:
		if c.absent(reply.body) {
			return lease.Gone, nil, reply.failure()
		}
	case http.StatusBadRequest, http.StatusUnauthorized, http.StatusForbidden, http.StatusUnprocessableEntity, http.StatusTooManyRequests:
		// The API server decides these before it stores anything. 429 arrives as plain text, so none of these needs to be a
		// Status.
		return lease.Refused, nil, reply.failure()
	}
	return lease.Unknown, nil, reply.failure()
}

// absent reports whether a 404 is the API server's statement that the Lease or its namespace does not exist, and not the answer
// of a misconfigured proxy.
func (c *Client) absent(body []byte) bool {
	s := parseStatus(body)
	namespace := s.Details.Kind == "namespaces" && s.Details.Name == c.config.Namespace
	return s.Reason == "NotFound" && (namespace || s.ours(c.config.Name))
}

func (c *Client) lease() string { return c.leases + "/" + url.PathEscape(c.config.Name) }

// String returns the Lease's name for messages.
func (c *Client) String() string { return c.config.Namespace + "/" + c.config.Name }

// fieldManager is the name under which the API server records which fields this client changed.
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

// parseStatus returns the zero value if the body is not a Status.
func parseStatus(body []byte) status {
	var s status
	if json.Unmarshal(body, &s) != nil || s.Kind != "Status" {
		return status{}
	}
	return s
}

// ours reports whether a Status is about the Lease of that name.
func (s status) ours(name string) bool {
	return s.Details.Group == "coordination.k8s.io" && s.Details.Kind == "leases" && s.Details.Name == name
}

// reply is an answer that was received completely.
type reply struct {
	code int
	body []byte
	date int64 // see Answer.Date
}

// dateOf reads the header Date, which HTTP requires of every server that has a clock. A proxy that answers itself may have set
// it.
func dateOf(h http.Header) int64 {
	date, err := http.ParseTime(h.Get("Date"))
	if err != nil {
		return 0
	}
	return max(0, date.Unix())
}

// failure returns the API server's answer as an error, for people.
func (r reply) failure() error {
	text := parseStatus(r.body).Message
	if text == "" {
		text = string(r.body)
	}
	const longest = 1000 // an admission message comes after the names of the webhooks
	if len(text) > longest {
		text = text[:longest] + "…"
	}
	return fmt.Errorf("the API server answered %d %s: %s", r.code, http.StatusText(r.code), strings.TrimSpace(text))
}

// largest bounds an answer's body. etcd stores no larger object.
const largest = 4 << 20

// exchange sends a request and reads the whole answer.
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
		drop() // the next request can reach another API server
	}
	return reply{code: response.StatusCode, body: body, date: dateOf(response.Header)}, nil
}

// leftFor reports whether another API server may have a better answer, because it already knows a new permission or key. A server
// that is too busy does not also get a new connection.
func leftFor(code int) bool {
	return code >= http.StatusInternalServerError || code == http.StatusUnauthorized || code == http.StatusForbidden
}

// managed reports whether a Lease belongs to this operator.
func managed(labels map[string]string) bool {
	return labels[contract.ManagedByLabel] == contract.ManagedBy
}
