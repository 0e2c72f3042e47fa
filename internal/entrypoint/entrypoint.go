// Package entrypoint finds out what an image runs by asking its registry.
//
// A user who may create a SingletonJob chooses the host that is asked, and that host chooses the answer. [Registry] therefore uses
// only HTTPS, connects to no address of this machine or its link, and limits the time and the size of answers. It exposes only the
// entrypoint of an answer, and sends credentials only to the registry that they are for. [Lookups] asks in the background and
// answers its callers at once.
package entrypoint

import (
	"context"
	"errors"
	"maps"
	"slices"
	"sync"
	"time"

	"k8s.io/apimachinery/pkg/types"
	"k8s.io/utils/clock"

	"github.com/singletonjob/operator/api/v1alpha1"
)

// Want is a request for an entrypoint.
type Want struct {
	Namespace string
	// TemplateHash of the Pods to create.
	TemplateHash string
	Image        string
	// Args: the Pod sets arguments, so an image that runs nothing by itself is usable.
	Args bool
	// Architectures of the nodes that could run the Pod, in Go's names, sorted. Empty: all architectures of the image.
	Architectures []string
	// PullSecrets that the Pod names. If it names none, those of its ServiceAccount apply, as in a cluster.
	PullSecrets    []string
	ServiceAccount string
}

func (w Want) equal(v Want) bool {
	return w.Namespace == v.Namespace && w.TemplateHash == v.TemplateHash && w.Image == v.Image && w.Args == v.Args &&
		w.ServiceAccount == v.ServiceAccount && slices.Equal(w.Architectures, v.Architectures) && slices.Equal(w.PullSecrets, v.PullSecrets)
}

// Answer is the current result of a look-up.
type Answer struct {
	// Found is nil until the entrypoint is found.
	Found *v1alpha1.Entrypoint
	// Problem says why the last attempt failed.
	Problem FindError
	// Retry is the time until the next attempt; 0 while an attempt is in progress.
	Retry time.Duration
}

// Finder finds an entrypoint, or returns an error for users. It returns soon after its context ends.
type Finder func(context.Context, Want) (*v1alpha1.Entrypoint, error)

const (
	// timeout bounds one look-up with all its requests.
	timeout = 30 * time.Second
	// parallel is the maximum number of concurrent look-ups, and parallelEach the maximum for one namespace: a namespace whose
	// registries do not answer delays only itself.
	parallel     = 16
	parallelEach = 2
	// A failed look-up is retried after firstRetry. The delay doubles each time, up to lastRetry.
	firstRetry = 10 * time.Second
	lastRetry  = 5 * time.Minute
)

// Lookups runs at most one look-up at a time for each job. It is safe for concurrent use.
type Lookups struct {
	find  Finder
	clock clock.PassiveClock
	slots chan struct{}

	mu         sync.Mutex
	ctx        context.Context // look-ups end with the operator, not with their caller
	done       func(job types.NamespacedName)
	jobs       map[types.NamespacedName]*lookup
	namespaces map[string]*namespace
}

type lookup struct {
	want     Want
	answer   Answer
	failures int
	// running: the look-up is in progress, and cancel ends it. Otherwise it is due at retryAt.
	running bool
	cancel  context.CancelFunc
	retryAt time.Time
}

// namespace holds the slots of a namespace's look-ups. It exists while look-ups run or wait.
type namespace struct {
	slots chan struct{}
	users int
}

// New returns Lookups that use find.
func New(find Finder, now clock.PassiveClock) *Lookups {
	return &Lookups{
		find: find, clock: now, slots: make(chan struct{}, parallel), ctx: context.Background(), done: func(types.NamespacedName) {},
		jobs: map[types.NamespacedName]*lookup{}, namespaces: map[string]*namespace{},
	}
}

// Start binds look-ups to ctx, and sets done, which is called after each look-up with its job. done must not block.
func (l *Lookups) Start(ctx context.Context, done func(job types.NamespacedName)) {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.ctx, l.done = ctx, done
}

// Ask returns what is known for a job, and starts a look-up if one is due. It never waits. A changed want ends the job's current
// look-up and starts a new one.
func (l *Lookups) Ask(job types.NamespacedName, want Want) Answer {
	l.mu.Lock()
	defer l.mu.Unlock()
	now := l.clock.Now()
	k := l.jobs[job]
	if k == nil || !k.want.equal(want) {
		l.drop(job)
		k = &lookup{want: want, retryAt: now}
		l.jobs[job] = k
	}
	if k.answer.Found == nil && !k.running && !now.Before(k.retryAt) {
		l.begin(job, k)
	}
	answer := k.answer
	if !k.running && answer.Found == nil {
		answer.Retry = k.retryAt.Sub(now)
	}
	return answer
}

// Forget drops a job's result and ends its look-up.
func (l *Lookups) Forget(job types.NamespacedName) {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.drop(job)
}

func (l *Lookups) drop(job types.NamespacedName) {
	if k := l.jobs[job]; k != nil && k.running {
		k.cancel()
	}
	delete(l.jobs, job)
}

// begin runs a look-up in a goroutine. The caller holds the lock.
func (l *Lookups) begin(job types.NamespacedName, k *lookup) {
	ctx, cancel := context.WithCancel(l.ctx)
	k.running, k.cancel = true, cancel
	space := l.namespaces[k.want.Namespace]
	if space == nil {
		space = &namespace{slots: make(chan struct{}, parallelEach)}
		l.namespaces[k.want.Namespace] = space
	}
	space.users++
	go func() {
		defer cancel()
		found, err := l.inTurn(ctx, space, k.want)
		l.end(job, k, space, found, err)
	}()
}

// inTurn waits for a slot of the namespace, then for one of all slots. The timeout starts after that.
func (l *Lookups) inTurn(ctx context.Context, space *namespace, want Want) (*v1alpha1.Entrypoint, error) {
	if err := occupy(ctx, space.slots); err != nil {
		return nil, err
	}
	defer func() { <-space.slots }()
	if err := occupy(ctx, l.slots); err != nil {
		return nil, err
	}
	defer func() { <-l.slots }()
	ctx, cancel := context.WithTimeout(ctx, timeout)
	defer cancel()
	return l.find(ctx, want)
}

func occupy(ctx context.Context, slots chan<- struct{}) error {
	select {
	case slots <- struct{}{}:
		return nil
	case <-ctx.Done():
		return ctx.Err()
	}
}

// problemOf gives an error without a reason of its own the general one.
func problemOf(err error) FindError {
	if p, ok := errors.AsType[FindError](err); ok {
		return p
	}
	return FindError{v1alpha1.ReasonEntrypointUnknown, err.Error()}
}

func (l *Lookups) end(job types.NamespacedName, k *lookup, space *namespace, found *v1alpha1.Entrypoint, err error) {
	l.mu.Lock()
	if space.users--; space.users == 0 {
		maps.DeleteFunc(l.namespaces, func(_ string, s *namespace) bool { return s == space })
	}
	k.running = false
	if err != nil {
		k.answer.Problem = problemOf(err)
		k.retryAt = l.clock.Now().Add(min(firstRetry<<min(k.failures, 10), lastRetry))
		k.failures++
	} else {
		k.answer = Answer{Found: found}
	}
	wanted, done := l.jobs[job] == k, l.done
	l.mu.Unlock()
	if wanted {
		done(job)
	}
}
