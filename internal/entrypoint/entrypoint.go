// Package entrypoint finds out what an image runs by itself, by asking its registry.
//
// Whoever may make a SingletonJob chooses the host that is asked, and that host what it answers. So [Registry] speaks HTTPS only,
// connects to no address of this machine or its link, takes neither long nor much, shows nothing of an answer but its entrypoint,
// and sends credentials to nobody but the registry that they are for. [Lookups] asks beside its callers and answers them at once.
package entrypoint

import (
	"context"
	"maps"
	"slices"
	"sync"
	"time"

	"k8s.io/apimachinery/pkg/types"
	"k8s.io/utils/clock"

	"github.com/singletonjob/operator/api/v1alpha1"
)

// Want is what to find, for whom.
type Want struct {
	Namespace string
	// TemplateHash is that of the pods that are to be made.
	TemplateHash string
	Image        string
	// Args: the pod brings arguments, so that an image without any is of use.
	Args bool
	// Architectures are those of the nodes that may run it, as Go calls them, sorted; none for all that the image is for.
	Architectures []string
	// PullSecrets are those that the pod names. Where it names none, those of its ServiceAccount count, as in a cluster.
	PullSecrets    []string
	ServiceAccount string
}

func (w Want) equal(v Want) bool {
	return w.Namespace == v.Namespace && w.TemplateHash == v.TemplateHash && w.Image == v.Image && w.Args == v.Args &&
		w.ServiceAccount == v.ServiceAccount && slices.Equal(w.Architectures, v.Architectures) && slices.Equal(w.PullSecrets, v.PullSecrets)
}

// Answer is what is known now.
type Answer struct {
	// Found is nil until it was found.
	Found *v1alpha1.Entrypoint
	// Problem says why it was not, the last time that it was tried: for people, and the same words for the same cause.
	Problem string
	// Retry is how long until it is tried again; 0 while it is being tried.
	Retry time.Duration
}

// Finder finds an entrypoint, or says why it can't, in words for people. It ends soon after its context.
type Finder func(context.Context, Want) (*v1alpha1.Entrypoint, error)

const (
	// timeout is for one look-up, all its requests together.
	timeout = 30 * time.Second
	// parallel is how many look-ups are under way at most, and parallelEach those for one namespace: a namespace whose
	// registries do not answer holds up none but itself.
	parallel     = 16
	parallelEach = 2
	// A look-up that failed is tried again after firstRetry, then after twice as long each time, up to lastRetry.
	firstRetry = 10 * time.Second
	lastRetry  = 5 * time.Minute
)

// Lookups has at most one look-up under way for each job. It is safe for concurrent use.
type Lookups struct {
	find  Finder
	clock clock.PassiveClock
	slots chan struct{}

	mu         sync.Mutex
	ctx        context.Context // look-ups end with the operator, and not with who asked
	done       func(job types.NamespacedName)
	jobs       map[types.NamespacedName]*lookup
	namespaces map[string]*namespace
}

type lookup struct {
	want     Want
	answer   Answer
	failures int
	// running: it is under way, and cancel ends it. Else it is due at retryAt.
	running bool
	cancel  context.CancelFunc
	retryAt time.Time
}

// namespace has a slot for each look-up of it, and is kept while some are under way or wait.
type namespace struct {
	slots chan struct{}
	users int
}

// New makes Lookups that find by find.
func New(find Finder, now clock.PassiveClock) *Lookups {
	return &Lookups{
		find: find, clock: now, slots: make(chan struct{}, parallel), ctx: context.Background(), done: func(types.NamespacedName) {},
		jobs: map[types.NamespacedName]*lookup{}, namespaces: map[string]*namespace{},
	}
}

// Start has look-ups end with ctx, and done be called after each, with the job that it was for. done does not block.
func (l *Lookups) Start(ctx context.Context, done func(job types.NamespacedName)) {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.ctx, l.done = ctx, done
}

// Ask says what is known for a job, and begins to look it up where that is due. It never waits. Another want than before ends what
// is under way for the job and begins anew.
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

// Forget drops what is known for a job, and ends what is under way.
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

// begin runs a look-up beside the caller, who holds the lock.
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

// inTurn waits for a slot of the namespace, then for one of all. Its time begins after that.
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

func (l *Lookups) end(job types.NamespacedName, k *lookup, space *namespace, found *v1alpha1.Entrypoint, err error) {
	l.mu.Lock()
	if space.users--; space.users == 0 {
		maps.DeleteFunc(l.namespaces, func(_ string, s *namespace) bool { return s == space })
	}
	k.running = false
	if err != nil {
		k.answer.Problem = err.Error()
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
