// Package fencehttp is the fence for HTTP services: a request of a past tenure is refused.
//
// The client's [Transport] puts the token into each request. The server's [Fence] stands before the handlers that write:
//
//	fenced := &fencehttp.Fence{Resource: fencehttp.Fixed("billing/reconcile"), Store: store, Next: mux}
//	err := http.ListenAndServe(":8080", fenced)
//
// # What it guarantees
//
// The first write of a new tenure begins only when the mark is stored, and when each write of earlier ones that had begun has come
// to its end: its handler has returned. Those that have not after [Fence.Drain] are cut: their context is canceled, with [ErrCut] as its cause,
// and what they still read or write of their client fails. Writes with the same token run side by side.
//
// # What it can't
//
// What a handler has started elsewhere and left behind when it returned goes on. A handler that does not heed its context holds the
// next tenure up, which is refused with 503 after [Fence.Settle]. A mark is worth as much as its [Store]: with [Memory] a restart
// forgets it. Several processes before one resource need one [Shared] store. Reads pass; so do mails and payments by other ways.
//
// # Refusals
//
// Each is a problem of RFC 9457 in JSON that names resource, presented and highest token: 412 stale, 428 missing, 400 malformed,
// 425 ahead of a strict mark, 503 where it can't be decided now; see [Check]. Only the last may be repeated as it is.
//
// The package imports the standard library only.
package fencehttp

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"net/http"
	"sync"
	"sync/atomic"
	"time"

	"github.com/singletonjob/operator/fence"
)

// The bounds of a [Fence] that sets none.
const (
	DefaultDrain     = 5 * time.Second
	DefaultSettle    = 5 * time.Second
	DefaultPatience  = 30 * time.Second
	DefaultStoreTime = 10 * time.Second
)

const (
	// maxResources is how many resources a Fence has in use at most, since clients may name them.
	maxResources = 10_000
	// idleTime is how long a resource is in use after its last write.
	idleTime = time.Minute
	// maxWatched is how many decisions Monitor may wait for at one time.
	maxWatched = 1000
)

// What else can become of a write than what package fence says.
var (
	// ErrCut is the cause of the canceled context of a write that a later tenure has ended. Whether it had taken effect, nobody can say.
	ErrCut = errors.New("a later tenure has taken over: the write was cut")
	// ErrUnavailable says that whether a write may pass can't be decided now. It did not.
	ErrUnavailable = errors.New("the fence can't decide now")
)

// Fence is a handler that lets to Next only what the fence lets pass. Its fields are not to be changed once it serves.
type Fence struct {
	// Resource tells what a request writes to, and whether it is fenced at all: [Fixed], [FromHeader] or [Rules].
	Resource func(*http.Request) (resource fence.Resource, fenced bool, err error)
	// Store keeps the marks.
	Store Store
	Next  http.Handler

	// Strict has only Advance raise the mark; see [fence.Gate].
	Strict bool
	// Monitor refuses nothing, waits for nothing and cuts nothing: Observe is told what would have been refused. It is no fence.
	Monitor bool
	// Drain is how long the writes of earlier tenures that have begun may go on when a later one comes; streams (requests to
	// upgrade) may not. 0: DefaultDrain. Negative: not at all.
	Drain time.Duration
	// Settle is how long those that were cut may take to end. After it, the later tenure is refused with 503. 0: DefaultSettle.
	// Negative: no time.
	Settle time.Duration
	// Patience is how long a write waits at most for its turn and for the store: longer than Drain and Settle together, or the first write of a tenure
	// may have to be sent twice. 0: DefaultPatience.
	Patience time.Duration
	// StoreTime is how long a question to the store may take, beyond the Drain and Settle of another process that has to let go of the mark. It goes on for so long
	// also when nobody has the patience to wait for it. 0: DefaultStoreTime.
	StoreTime time.Duration
	// Detach has a write go on when its client hangs up, until Next returns or it is cut; what Next writes to nobody passes for written. A proxy
	// needs it: that it gave up the request does not mean that the service behind it has.
	Detach bool
	// Observe, if set, is told of each decision on a fenced request. It must not block. With Monitor the request may be over by then.
	Observe func(*http.Request, Decision)
	// ObserveCut, if set, is told of each write that a later tenure, or the loss of a hold, has cut.
	ObserveCut func(fence.Resource)

	idle    time.Duration // 0: idleTime
	watched atomic.Int32  // decisions that Monitor waits for

	mu      sync.Mutex // guards what follows, and who uses a lane
	lanes   map[fence.Resource]*lane
	sweeper *time.Timer // nil: there are no lanes
}

// Decision is what became of a fenced request.
type Decision struct {
	Resource  fence.Resource
	Presented fence.Token // zero where there is none
	// Err is nil for what passed, and what it would have been refused for where Monitor let it pass.
	Err error
	// Waited is how long the decision took.
	Waited time.Duration
}

// ServeHTTP implements [http.Handler].
func (f *Fence) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	r = withoutH2C(r)
	resource, fenced, err := f.resource(r)
	if err == nil && !fenced {
		f.Next.ServeHTTP(w, r)
		return
	}
	began := time.Now()
	var token fence.Token
	if err == nil {
		token, err = tokenOf(r)
	}
	decided := func(err error) {
		if f.Observe != nil {
			f.Observe(r, Decision{Resource: resource, Presented: token, Err: err, Waited: time.Since(began)})
		}
	}
	if f.Monitor {
		f.watch(r.Context(), resource, token, err, decided)
		f.Next.ServeHTTP(w, r)
		return
	}
	in := newWrite(w, r, f.Detach)
	if err == nil {
		err = f.begin(r.Context(), resource, token, in)
	}
	decided(err)
	if err != nil {
		in.cancel(nil)
		refuse(w, resource, token, err)
		return
	}
	in.serve(f.Next, r)
}

// resource also checks the header that names it, since the client must mean the same.
func (f *Fence) resource(r *http.Request) (fence.Resource, bool, error) {
	resource, fenced, err := f.Resource(r)
	if err != nil || !fenced {
		return resource, fenced, err
	}
	if err := unambiguous(r); err != nil {
		return resource, true, err
	}
	named, err := single(r.Header, fence.HeaderResource)
	if err != nil {
		return resource, true, fmt.Errorf("%w: %w", fence.ErrMalformedResource, err)
	}
	if named != "" && named != string(resource) {
		return resource, true, fmt.Errorf("%w: header %s is %.60q, but this is guarded as %s", fence.ErrMalformedResource,
			fence.HeaderResource, named, resource)
	}
	return resource, true, nil
}

func tokenOf(r *http.Request) (fence.Token, error) {
	text, err := single(r.Header, fence.HeaderToken)
	if err != nil {
		return 0, fmt.Errorf("%w: %w", fence.ErrMalformedToken, err)
	}
	return fence.ParseToken(text)
}

func (f *Fence) begin(ctx context.Context, resource fence.Resource, token fence.Token, in *write) error {
	l, err := f.lane(resource)
	if err != nil {
		return err
	}
	defer f.done(l)
	ctx, cancel := context.WithTimeout(ctx, f.patience())
	defer cancel()
	in.lane = l
	return l.begin(ctx, token, in)
}

func (f *Fence) patience() time.Duration { return cmp.Or(f.Patience, DefaultPatience) }

// watch finds out what would be refused, and tells it. Nothing waits for it.
func (f *Fence) watch(ctx context.Context, resource fence.Resource, token fence.Token, err error, decided func(error)) {
	var l *lane
	if err == nil {
		l, err = f.lane(resource)
	}
	if err != nil {
		decided(err)
		return
	}
	if known, err := l.recall(token); known {
		f.done(l)
		decided(err)
		return
	}
	if f.watched.Add(1) > maxWatched {
		f.watched.Add(-1)
		f.done(l)
		decided(l.unavailable("ask the store", fmt.Errorf("%w: %d decisions wait for it already", ErrUnavailable, maxWatched)))
		return
	}
	go func() {
		defer f.watched.Add(-1)
		defer f.done(l)
		ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), f.patience())
		defer cancel()
		decided(l.watch(ctx, token))
	}()
}

// Advance raises the mark of a resource without a write. When it returns without an error, every lower token is refused from then on, and
// no write with one is under way. It is for the beginning of a tenure, and may be repeated.
func (f *Fence) Advance(ctx context.Context, resource fence.Resource, to fence.Token) error {
	if _, err := fence.ParseResource(string(resource)); err != nil {
		return err
	}
	l, err := f.lane(resource)
	if err != nil {
		return err
	}
	defer f.done(l)
	ctx, cancel := context.WithTimeout(ctx, f.patience())
	defer cancel()
	return l.advance(ctx, to)
}

// Advancer is a handler by which a tenure begins: its request carries token and resource in their headers, and is answered with 204 when
// Advance has returned. Who may reach it can lock all others out: put it behind a credential of its own.
func (f *Fence) Advancer() http.Handler {
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		resource, _, err := FromHeader(r)
		var token fence.Token
		if err == nil {
			err = unambiguous(r)
		}
		if err == nil {
			token, err = tokenOf(r)
		}
		if err == nil {
			err = f.Advance(r.Context(), resource, token)
		}
		if err != nil {
			refuse(w, resource, token, err)
			return
		}
		w.WriteHeader(http.StatusNoContent)
	})
}

// lane is that of a resource until done.
func (f *Fence) lane(resource fence.Resource) (*lane, error) {
	f.mu.Lock()
	defer f.mu.Unlock()
	l := f.lanes[resource]
	if l == nil && len(f.lanes) >= maxResources {
		return nil, fmt.Errorf("%w: %d resources are in use, the most there may be; one that is not written to is not after %v", ErrUnavailable,
			maxResources, cmp.Or(f.idle, idleTime))
	}
	if l == nil {
		l = f.newLane(resource)
	}
	l.users++
	return l, nil
}

func (f *Fence) newLane(resource fence.Resource) *lane {
	if f.lanes == nil {
		f.lanes = make(map[fence.Resource]*lane)
	}
	l := newLane(fence.Gate{Resource: resource, Strict: f.Strict}, f.Store)
	l.drain, l.settle = max(cmp.Or(f.Drain, DefaultDrain), 0), max(cmp.Or(f.Settle, DefaultSettle), 0)
	l.storeTime = l.drain + l.settle + cmp.Or(f.StoreTime, DefaultStoreTime)
	l.observeCut = f.ObserveCut
	f.lanes[resource] = l
	if f.sweeper == nil {
		f.sweeper = time.AfterFunc(cmp.Or(f.idle, idleTime), f.sweep)
	}
	return l
}

func (f *Fence) done(l *lane) {
	f.mu.Lock()
	defer f.mu.Unlock()
	l.users--
	l.used = time.Now()
}

// sweep forgets the lanes that are not in use, and lets go of their marks.
func (f *Fence) sweep() {
	f.mu.Lock()
	after := cmp.Or(f.idle, idleTime)
	var unused []*lane
	for resource, l := range f.lanes {
		if l.users == 0 && time.Since(l.used) >= after && l.retire() {
			delete(f.lanes, resource)
			unused = append(unused, l)
		}
	}
	if len(f.lanes) == 0 {
		f.sweeper = nil
	} else {
		f.sweeper.Reset(after)
	}
	f.mu.Unlock()
	for _, l := range unused {
		l.release()
	}
}

// Close cuts all writes under way, and lets go of all marks. It is for the end of the process.
func (f *Fence) Close() {
	f.mu.Lock()
	lanes := f.lanes
	f.lanes = nil
	f.mu.Unlock()
	for _, l := range lanes {
		l.close()
	}
}
