package tenure

import (
	"context"
	"fmt"
	"os"
	"strconv"
	"time"

	"github.com/singletonjob/operator/fence"
)

// Tenure is one tenure. It does not outlast itself: when its agent begins another one, it stays over.
type Tenure struct {
	// Namespace and Name are those of the SingletonJob, Pod is the pod.
	Namespace, Name, Pod string
	// Token is the fencing token: greater than that of every earlier tenure.
	Token int64

	agent Agent
	until int64 // of now(), as last heard
}

// Current is the tenure of this process: ErrNoTenure if there is none, ErrNoAgent if nobody can be asked. Where the environment
// has a fencing token in fence.EnvToken, as that of a process which the agent started, it must be that tenure's: a process of an
// earlier one is not told of a later one. Where spec.fencing.envVar gives the token another name, use Agent.Tenure.
func Current(ctx context.Context) (*Tenure, error) {
	token, err := strconv.ParseInt(os.Getenv(fence.EnvToken), 10, 64)
	if err != nil {
		token = 0
	}
	return Here().Tenure(ctx, token)
}

// Tenure is the agent's present tenure, on condition that its token is the given one; 0 stands for any. Its errors are Current's.
func (a Agent) Tenure(ctx context.Context, token int64) (*Tenure, error) {
	s, err := a.Ask(ctx)
	if err != nil {
		return nil, err
	}
	if token == 0 {
		token = s.Token
	}
	t := &Tenure{Namespace: s.Namespace, Name: s.Name, Pod: s.Pod, Token: token, agent: a}
	if err := t.heard(s); err != nil {
		return nil, err
	}
	return t, nil
}

// heard takes note of an answer. It is an error if that is not of this tenure.
func (t *Tenure) heard(s Status) error {
	switch {
	case !s.Valid:
		return fmt.Errorf("%w: %s", ErrNoTenure, s.Reason)
	case s.Token != t.Token:
		return fmt.Errorf("%w: that of token %d is over, the agent's present one has token %d", ErrNoTenure, t.Token, s.Token)
	}
	t.until = s.ValidUntil
	return nil
}

// Check asks the agent whether the tenure is valid still, and for how long if it is not renewed: more than 0 without an error.
// Without a deadline of ctx's own, it takes no longer than Patience.
//
// The time left was true when Check looked at the clock, and is no fence: see the package's documentation. A step that needs
// more than what is left may count on renewals while the API server can be reached, and on nothing otherwise.
func (t *Tenure) Check(ctx context.Context) (left time.Duration, err error) {
	s, err := t.agent.Ask(ctx)
	if err != nil {
		return 0, err
	}
	asked := *t // a Tenure may be used by several goroutines
	if err := asked.heard(s); err != nil {
		return 0, err
	}
	if left = s.Left(); left <= 0 {
		return 0, fmt.Errorf("%w: it has run out", ErrNoTenure)
	}
	return left, nil
}

// poll is how often Watch asks.
const poll = time.Second

// Watch returns when the tenure is over, or will be within early unless it is renewed, with ErrNoTenure and why; when ctx ends
// before that, with its error. It asks the agent every second, and learns of a tenure that ends by plan within that time. While
// the agent does not answer, what it said last counts until it has run out.
//
// Timers of Go stand still while the machine sleeps: after it Watch may return late, and the process is killed without it.
func (t *Tenure) Watch(ctx context.Context, early time.Duration) error {
	latest := *t
	for {
		left := time.Duration(latest.until-now()) - early
		if left <= 0 {
			return fmt.Errorf("%w: it was not renewed, and ends within %v", ErrNoTenure, early)
		}
		select {
		case <-ctx.Done():
			return ctx.Err()
		case <-time.After(min(left, poll)):
		}
		s, err := latest.askFor(ctx, time.Duration(latest.until-now())-early)
		if err != nil {
			continue // known to be valid until it has run out
		}
		if err := latest.heard(s); err != nil {
			return err
		}
	}
}

// askFor asks for as long as there is time.
func (t *Tenure) askFor(ctx context.Context, left time.Duration) (Status, error) {
	ctx, cancel := context.WithTimeout(ctx, min(left, Patience))
	defer cancel()
	return t.agent.Ask(ctx)
}

// Context is a context that is cancelled when the tenure is over, or will be within early unless it is renewed: early is the
// time that the work needs to stop in order. Its cause is Watch's error. cancel must be called, as that of context.WithCancel.
//
// How much early can be: after a renewal there is leaseDuration less a fifteenth (1 s at least) left, and renewals come every
// retryPeriod. More than what is left between two of them cancels at once.
func (t *Tenure) Context(parent context.Context, early time.Duration) (ctx context.Context, cancel context.CancelFunc) {
	ctx, end := context.WithCancelCause(parent)
	go func() { end(t.Watch(ctx, early)) }()
	return ctx, func() { end(nil) }
}
