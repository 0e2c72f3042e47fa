// Package access restricts the operator's metrics to clients that the API server authenticates and authorizes, like controller-runtime's
// own filter. A TokenReview identifies the user of a bearer token. A SubjectAccessReview checks that the user may get /metrics.
// controller-runtime's filter would pull the API server's libraries into the operator, some 250 packages.
//
// The package fails closed: if the API server cannot be asked about a client, the client gets no metrics.
package access

import (
	"context"
	"crypto/sha256"
	"errors"
	"fmt"
	"net/http"
	"strings"
	"time"

	"github.com/go-logr/logr"
	authenticationv1 "k8s.io/api/authentication/v1"
	authorizationv1 "k8s.io/api/authorization/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	authenticationclient "k8s.io/client-go/kubernetes/typed/authentication/v1"
	authorizationclient "k8s.io/client-go/kubernetes/typed/authorization/v1"
	"k8s.io/client-go/rest"
	"k8s.io/utils/clock"
	"k8s.io/utils/lru"
	"sigs.k8s.io/controller-runtime/pkg/metrics/server"
)

const (
	// allowedFor and refusedFor are how long an answer of the API server is cached. A revoked right is therefore usable for up to
	// allowedFor, and a new right takes up to refusedFor to count.
	allowedFor, refusedFor = time.Minute, 10 * time.Second
	// remembered is the size of each cache. Refusals have a cache of their own, so that a client that guesses tokens evicts no
	// allowed client.
	remembered = 256
	// maxToken bounds the token that is sent on. Tokens of service accounts have about a thousand bytes.
	maxToken = 16 << 10
	// timeout bounds both requests to the API server together. It is below the ten seconds of a usual scrape.
	timeout = 8 * time.Second
	// qps and burst limit the requests to the API server, whatever clients ask for metrics.
	qps, burst = 10, 20
)

// remedy is the end of the message if the operator lacks the right to ask.
const remedy = "grant it the ClusterRole system:auth-delegator, or serve metrics to everybody with --metrics-secure=false"

// verdict is the API server's answer for a client.
type verdict struct {
	// code is the HTTP status for the client; StatusOK lets the request through.
	code  int
	text  string
	until time.Time
}

// question identifies a client's request.
type question struct {
	token        [sha256.Size]byte
	method, path string
}

// Reviewer asks the API server and caches its answers.
type Reviewer struct {
	tokens           authenticationclient.TokenReviewInterface
	accesses         authorizationclient.SubjectAccessReviewInterface
	own              authorizationclient.SelfSubjectAccessReviewInterface
	clock            clock.PassiveClock
	timeout          time.Duration
	allowed, refused *lru.Cache
}

// New returns a Reviewer that asks this API server.
func New(config *rest.Config, client *http.Client, c clock.PassiveClock) (*Reviewer, error) {
	config = rest.CopyConfig(config)
	config.QPS, config.Burst, config.RateLimiter = qps, burst, nil
	authentication, err := authenticationclient.NewForConfigAndClient(config, client)
	if err != nil {
		return nil, err
	}
	authorization, err := authorizationclient.NewForConfigAndClient(config, client)
	if err != nil {
		return nil, err
	}
	return &Reviewer{
		tokens: authentication.TokenReviews(), accesses: authorization.SubjectAccessReviews(), own: authorization.SelfSubjectAccessReviews(),
		clock: c, timeout: timeout, allowed: lru.New(remembered), refused: lru.New(remembered),
	}, nil
}

// Provide is a FilterProvider of the metrics server.
func Provide(config *rest.Config, client *http.Client) (server.Filter, error) {
	r, err := New(config, client, clock.RealClock{})
	if err != nil {
		return nil, err
	}
	return r.Filter, nil
}

// Filter checks requests before a handler sees them.
func (r *Reviewer) Filter(log logr.Logger, handler http.Handler) (http.Handler, error) {
	return http.HandlerFunc(func(w http.ResponseWriter, request *http.Request) {
		v, err := r.judge(request)
		switch {
		case err != nil:
			log.Error(err, "cannot check whether a client may read the metrics")
			http.Error(w, "cannot check whether you may read this; see the operator's log", http.StatusServiceUnavailable)
		case v.code == http.StatusOK:
			handler.ServeHTTP(w, request)
		default:
			if v.code == http.StatusUnauthorized {
				w.Header().Set("WWW-Authenticate", "Bearer")
			}
			http.Error(w, v.text, v.code)
		}
	}), nil
}

// judge returns the verdict on a request, from the cache if possible.
func (r *Reviewer) judge(request *http.Request) (verdict, error) {
	token, err := bearer(request.Header)
	if err != nil {
		return verdict{code: http.StatusUnauthorized, text: err.Error()}, nil
	}
	q := question{sha256.Sum256([]byte(token)), request.Method, request.URL.Path}
	for _, known := range []*lru.Cache{r.allowed, r.refused} {
		if found, ok := known.Get(q); ok {
			if v, ok := found.(verdict); ok && r.clock.Now().Before(v.until) {
				return v, nil
			}
		}
	}
	ctx, end := context.WithTimeout(request.Context(), r.timeout)
	defer end()
	asked := r.clock.Now()
	v, err := r.ask(ctx, token, request)
	if err != nil {
		return verdict{}, err
	}
	if v.code == http.StatusOK {
		v.until = asked.Add(allowedFor)
		r.allowed.Add(q, v)
	} else {
		v.until = asked.Add(refusedFor)
		r.refused.Add(q, v)
	}
	return v, nil
}

// bearer returns the request's token. It looks only in the Authorization header.
func bearer(header http.Header) (string, error) {
	values := header.Values("Authorization")
	if len(values) != 1 {
		return "", errors.New("send one Authorization header with a bearer token that the API server accepts")
	}
	scheme, token, _ := strings.Cut(values[0], " ")
	token = strings.TrimSpace(token)
	switch {
	case !strings.EqualFold(scheme, "Bearer"), token == "":
		return "", errors.New("the Authorization header has no bearer token")
	case len(token) > maxToken:
		return "", fmt.Errorf("the bearer token is longer than %d bytes", maxToken)
	}
	return token, nil
}

// ask sends both requests to the API server. No message contains the token.
func (r *Reviewer) ask(ctx context.Context, token string, request *http.Request) (verdict, error) {
	review, err := r.tokens.Create(ctx, &authenticationv1.TokenReview{Spec: authenticationv1.TokenReviewSpec{Token: token}}, metav1.CreateOptions{})
	if err != nil {
		return verdict{}, fmt.Errorf("create TokenReview: %w", err)
	}
	if !review.Status.Authenticated {
		return verdict{code: http.StatusUnauthorized, text: "the API server does not accept the bearer token"}, nil
	}
	user := review.Status.User
	access := &authorizationv1.SubjectAccessReview{Spec: authorizationv1.SubjectAccessReviewSpec{
		User: user.Username, UID: user.UID, Groups: user.Groups, Extra: extra(user.Extra),
		NonResourceAttributes: &authorizationv1.NonResourceAttributes{Verb: strings.ToLower(request.Method), Path: request.URL.Path},
	}}
	answer, err := r.accesses.Create(ctx, access, metav1.CreateOptions{})
	switch {
	case err != nil:
		return verdict{}, fmt.Errorf("check whether %q may %s %s: %w", user.Username, request.Method, request.URL.Path, err)
	case !answer.Status.Allowed || answer.Status.Denied:
		text := fmt.Sprintf("%s may not %s %s: grant it a role with that nonResourceURL", user.Username, strings.ToLower(request.Method), request.URL.Path)
		return verdict{code: http.StatusForbidden, text: text}, nil
	}
	return verdict{code: http.StatusOK}, nil
}

func extra(of map[string]authenticationv1.ExtraValue) map[string]authorizationv1.ExtraValue {
	out := make(map[string]authorizationv1.ExtraValue, len(of))
	for key, values := range of {
		out[key] = authorizationv1.ExtraValue(values)
	}
	return out
}

// MayAsk returns an error if the operator lacks the right to check clients, so that no client can read metrics. It returns nil if
// the API server does not answer.
func (r *Reviewer) MayAsk(ctx context.Context) error {
	ctx, end := context.WithTimeout(ctx, r.timeout)
	defer end()
	for _, needed := range []authorizationv1.ResourceAttributes{
		{Verb: "create", Group: authenticationv1.GroupName, Resource: "tokenreviews"},
		{Verb: "create", Group: authorizationv1.GroupName, Resource: "subjectaccessreviews"},
	} {
		review := &authorizationv1.SelfSubjectAccessReview{Spec: authorizationv1.SelfSubjectAccessReviewSpec{ResourceAttributes: &needed}}
		if answer, err := r.own.Create(ctx, review, metav1.CreateOptions{}); err == nil && !answer.Status.Allowed {
			return fmt.Errorf("no client can read the metrics, because the operator may not create %s.%s to check clients: %s", needed.Resource, needed.Group, remedy)
		}
	}
	return nil
}
