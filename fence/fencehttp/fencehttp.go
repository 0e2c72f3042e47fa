// Package fencehttp is the fence for HTTP services: a request of a past tenure is refused.
//
// The client's [Transport] puts the token into each request. The server's [Fence] stands before the handlers that write:
//
//	fenced := &fencehttp.Fence{Resource: fencehttp.Fixed("billing/reconcile"), Store: store, Next: mux}
//	err := http.ListenAndServe(":8080", fenced)
//
// # What it guarantees
//
// The first write of a new tenure begins only after the mark is stored and every write of earlier tenures has ended: its handler has
// returned. Writes that have not ended after [Fence.Drain] are cut. Their context is canceled, with [ErrCut] as its cause, and their reads
// from and writes to the client fail. Writes with the same token run concurrently.
//
// # What it does not guarantee
//
// Work that a handler started elsewhere, and that has not finished when the handler returns, continues. A handler that ignores its context
// delays the next tenure, which is refused with 503 after [Fence.Settle]. A mark is only as durable as its [Store]: with [Memory], a restart
// loses it. Several processes in front of one resource need one [Shared] store. Reads pass, and so do emails and payments on other paths.
//
// # Refusals
//
// Each refusal is a problem in JSON (RFC 9457) with the resource, the presented and the highest token. The status is 412 for a stale token,
// 428 for a missing one, 400 for a malformed one and 425 for one ahead of a strict mark. It is 503 if the fence can't decide now; only such
// a request can be repeated unchanged. See [Check].
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

// The default bounds of a [Fence].
const (
	DefaultDrain     = 5 * time.Second
	DefaultSettle    = 5 * time.Second
	DefaultPatience  = 30 * time.Second
	DefaultStoreTime = 10 * time.Second
)

const (
	// maxResources is the most resources that a Fence has in use at one time. It is limited because clients can name resources.
	maxResources = 10_000
	// idleTime is how long a resource stays in use after its last write.
	idleTime = time.Minute
	// maxWatched is the most decisions that Monitor waits for at one time.
	maxWatched = 1000
)

// The outcomes of a write besides the refusals of package fence.
var (
	// ErrCut is the cause of the canceled context of a write that a later tenure has ended. The write may or may not have taken effect.
	ErrCut = errors.New("a later tenure has taken over: the write was cut")
	// ErrUnavailable says that the fence can't decide now whether a write may pass. The write did not pass.
	ErrUnavailable = errors.New("the fence can't decide now")
)

// Fence is a handler that passes to Next only the requests that the fence accepts. Do not change its fields once it serves.
type Fence struct {
	// Resource returns the resource that a request writes to, and whether the request is fenced: use [Fixed], [FromHeader] or [Rules].
	Resource func(*http.Request) (resource fence.Resource, fenced bool, err error)
	// Store keeps the marks.
	Store Store
	Next  http.Handler

	// Strict lets only Advance raise the mark; see [fence.Gate].
	Strict bool
	// Monitor refuses nothing, waits for nothing and cuts nothing: it only reports to Observe what would have been refused. It does not
	// fence.
	Monitor bool
	// Drain is how long the writes of earlier tenures may continue after the first write of a later one arrives. Streams (requests to
	// upgrade) are cut at once. 0: DefaultDrain. Negative: no time.
	Drain time.Duration
	// Settle is how long writes that were cut may take to end. After it, the later tenure is refused with 503. 0: DefaultSettle.
	// Negative: no time.
	Settle time.Duration
	// Patience is the longest time that a write waits for its turn and for the store. If it is not longer than Drain and Settle together,
	// the client may have to send the first write of a tenure twice. 0: DefaultPatience.
	Patience time.Duration
	// StoreTime is the timeout of a request to the store, in addition to the Drain and Settle of another process that has to release the
	// mark. The request continues until then even if no write waits for it any more. 0: DefaultStoreTime.
	StoreTime time.Duration
	// Detach lets a write continue after its client disconnects, until Next returns or the write is cut. Output of Next for the lost client
	// is discarded without an error. A proxy needs this: the service behind it can still work on a request that the proxy has abandoned.
	Detach bool
	// Observe, if set, receives each decision on a fenced request. It must not block. With Monitor, the request may have ended by then.
	Observe func(*http.Request, Decision)
	// ObserveCut, if set, is called for each write that was cut because of a later tenure or the loss of a hold.
	ObserveCut func(fence.Resource)

	idle    time.Duration // 0: idleTime
	watched atomic.Int32  // decisions that Monitor waits for

	mu      sync.Mutex // guards the fields below and the users of each lane
	lanes   map[fence.Resource]*lane
	sweeper *time.Timer // nil: there are no lanes
}

// Decision is the fence's decision on a request.
type Decision struct {
	Resource  fence.Resource
	Presented fence.Token // zero if the request has none
	// Err is nil if the request passed. With Monitor, it is the error that would have refused the request.
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

// resource also checks the header Fencing-Resource: if the client sends it, it must name the same resource.
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

// watch finds out and reports what would be refused. No request waits for it.
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
		decided(l.unavailable("ask the store", fmt.Errorf("%w: %d decisions are already waiting for it", ErrUnavailable, maxWatched)))
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

// Advance raises the mark of a resource without a write. After it returns without an error, every lower token is refused, and no write with
// a lower token is in progress. It is for the beginning of a tenure, and can be repeated.
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

// Advancer returns a handler that begins a tenure. Its request carries token and resource in their headers, and is answered with 204 after
// Advance has returned. A client that can reach it can lock all others out: protect it with a separate credential.
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

// lane returns the lane of a resource. The caller calls done when it has finished.
func (f *Fence) lane(resource fence.Resource) (*lane, error) {
	f.mu.Lock()
	defer f.mu.Unlock()
	l := f.lanes[resource]
	if l == nil && len(f.lanes) >= maxResources {
		return nil, fmt.Errorf("%w: %d resources are in use, which is the limit; a resource without writes is freed after %v", ErrUnavailable,
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

// sweep removes the lanes that are not in use, and releases their marks.
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

// Close cuts all writes in progress and releases all marks. It is for the end of the process.
func (f *Fence) Close() {
	f.mu.Lock()
	lanes := f.lanes
	f.lanes = nil
	f.mu.Unlock()
	for _, l := range lanes {
		l.close()
	}
}
