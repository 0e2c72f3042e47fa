package controller

import (
	"context"
	"sync"
	"time"

	"golang.org/x/sync/semaphore"
)

const (
	// busyRetry is the wait before the next attempt to look at a job of a slow namespace.
	busyRetry = 2 * time.Second
	// lanePatience is how long a worker waits for a seat.
	lanePatience = time.Second
	// slowPass: the requests of a job that take longer are held up by something, such as an admission webhook.
	slowPass = 5 * time.Second
	// laneShare: the jobs of one namespace occupy at most this part of all workers.
	laneShare = 4
)

// lanes bounds how many workers look at jobs of one namespace at a time. A slow admission webhook of one namespace then does not occupy all
// of them, and a failover elsewhere does not wait for it. A worker takes its seat before it reads anything, so that it never waits between
// a check and the write that relies on it.
type lanes struct {
	mu   sync.Mutex
	most int64
	of   map[string]*lane
}

// lane is what is under way in a namespace.
type lane struct {
	seats *semaphore.Weighted
	users int  // with and without a seat
	slow  bool // the last pass that ended was slow
}

func newLanes() *lanes { return &lanes{most: 1, of: map[string]*lane{}} }

// share sets the size of the lanes by the number of workers. A single namespace gets all of them.
func (l *lanes) share(workers int, single bool) {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.most = int64(workers)
	if !single {
		l.most = max(1, l.most/laneShare)
	}
}

// enter takes a seat in a namespace's lane. The result is nil if there is none: at once if the lane is slow, otherwise after a while.
func (l *lanes) enter(ctx context.Context, namespace string) (leave func(took time.Duration)) {
	l.mu.Lock()
	at := l.of[namespace]
	if at == nil {
		at = &lane{seats: semaphore.NewWeighted(l.most)}
		l.of[namespace] = at
	}
	at.users++
	slow := at.slow
	l.mu.Unlock()

	has := at.seats.TryAcquire(1)
	if !has && !slow {
		ctx, cancel := context.WithTimeout(ctx, lanePatience)
		has = at.seats.Acquire(ctx, 1) == nil
		cancel()
	}
	if !has {
		l.leave(namespace, at)
		return nil
	}
	return func(took time.Duration) {
		l.mu.Lock()
		at.slow = took > slowPass
		l.mu.Unlock()
		at.seats.Release(1)
		l.leave(namespace, at)
	}
}

func (l *lanes) leave(namespace string, at *lane) {
	l.mu.Lock()
	defer l.mu.Unlock()
	if at.users--; at.users == 0 {
		delete(l.of, namespace)
	}
}
