package tenure

import (
	"context"
	"fmt"
	"os"
	"strconv"
	"time"

	"github.com/singletonjob/operator/fence"
)

// Tenure is one tenure of an agent. Once it is over it stays over, even if the agent begins another tenure.
type Tenure struct {
	// Namespace and Name identify the SingletonJob. Pod is the name of the Pod.
	Namespace, Name, Pod string
	// Token is the fencing token. It is greater than the token of every earlier tenure.
	Token int64

	agent Agent
	until int64 // an instant of now(), from the latest answer
}

// Current returns the tenure of this process. It returns ErrNoTenure if there is none and ErrNoAgent if no agent answers.
//
// If the environment has a fencing token in fence.EnvToken, as in a process that the agent started, the tenure must have that token. So a
// process of an earlier tenure never gets a later one. If spec.fencing.envVar gives the variable another name, use Agent.Tenure.
func Current(ctx context.Context) (*Tenure, error) {
	token, err := strconv.ParseInt(os.Getenv(fence.EnvToken), 10, 64)
	if err != nil {
		token = 0
	}
	return Here().Tenure(ctx, token)
}

// Tenure returns the agent's current tenure if it has the given token; 0 accepts any token. It returns the same errors as Current.
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

// heard records an answer. It returns an error if the answer is not about this tenure.
func (t *Tenure) heard(s Status) error {
	switch {
	case !s.Valid:
		return fmt.Errorf("%w: %s", ErrNoTenure, s.Reason)
	case s.Token != t.Token:
		return fmt.Errorf("%w: the tenure with token %d is over, the agent's current tenure has token %d", ErrNoTenure, t.Token, s.Token)
	}
	t.until = s.ValidUntil
	return nil
}

// Check asks the agent whether the tenure is still valid. It returns the time left if the tenure is not renewed, which is more than 0 if
// there is no error. If ctx has no deadline, Check takes at most Patience.
//
// The time left was correct when Check read the clock. It is not a fence: see the package documentation. A step that needs more time can
// rely on renewals only while the API server is reachable.
func (t *Tenure) Check(ctx context.Context) (left time.Duration, err error) {
	s, err := t.agent.Ask(ctx)
	if err != nil {
		return 0, err
	}
	asked := *t // several goroutines can use one Tenure
	if err := asked.heard(s); err != nil {
		return 0, err
	}
	if left = s.Left(); left <= 0 {
		return 0, fmt.Errorf("%w: it has expired", ErrNoTenure)
	}
	return left, nil
}

// poll is the interval of Watch's queries.
const poll = time.Second

// Watch returns when the tenure is over, or when less than early is left and it was not renewed. The error is then ErrNoTenure with the
// reason. If ctx ends first, Watch returns the error of ctx. Watch asks the agent every second, so it learns of a planned end of the tenure
// within a second. While the agent does not answer, its last answer counts until it expires.
//
// Go's timers stop while the machine sleeps, so Watch can return late after a sleep. The process is killed in time regardless of Watch.
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
			continue // the last answer is valid until it expires
		}
		if err := latest.heard(s); err != nil {
			return err
		}
	}
}

// askFor queries the agent with a timeout of left, at most Patience.
func (t *Tenure) askFor(ctx context.Context, left time.Duration) (Status, error) {
	ctx, cancel := context.WithTimeout(ctx, min(left, Patience))
	defer cancel()
	return t.agent.Ask(ctx)
}

// Context returns a context that is cancelled when the tenure is over, or when less than early is left and it was not renewed. Set early to
// the time that the work needs for an orderly stop. The context's cause is the error of Watch. Call cancel, as for context.WithCancel.
//
// The limit for early: directly after a renewal, leaseDuration minus a fifteenth (at least 1 s) is left, and a renewal follows every
// retryPeriod. If early is more than the time left just before a renewal, the context is cancelled at once.
func (t *Tenure) Context(parent context.Context, early time.Duration) (ctx context.Context, cancel context.CancelFunc) {
	ctx, end := context.WithCancelCause(parent)
	go func() { end(t.Watch(ctx, early)) }()
	return ctx, func() { end(nil) }
}
