package controller

import (
	"sync"
	"time"

	coordinationv1 "k8s.io/api/coordination/v1"
	"k8s.io/apimachinery/pkg/types"

	"github.com/singletonjob/operator/internal/plan"
)

// memory is what one process of the operator remembers: what no object says. All of it may be lost at any time; then the
// operator waits longer than it must, and writes Events that exist already.
type memory struct {
	mu     sync.Mutex
	leases map[types.NamespacedName]observedLease
	// emitted are the jobs whose changes of holder all have their Events, with their UIDs.
	emitted map[types.NamespacedName]types.UID
	// refused are the jobs for which something was refused when it was last asked for.
	refused map[types.NamespacedName]refused
}

// observedLease is the newest that was seen of a Lease.
type observedLease struct {
	uid     types.UID
	version string
	// since is when this version was first seen: after it was written, so that what is counted from here is never more
	// than has passed. It carries Go's monotonic clock, which nobody sets back.
	since time.Time
	// heard is since when the renewTime is as it is, and renewed: the present holder was seen to acquire or to renew.
	heard   time.Time
	renewed bool
	lease   plan.Lease
}

// refused is what the API server would not do for a job, and since when.
type refused struct {
	since time.Time
	what  []plan.Refusal
}

func newMemory() *memory {
	return &memory{
		leases: map[types.NamespacedName]observedLease{}, emitted: map[types.NamespacedName]types.UID{},
		refused: map[types.NamespacedName]refused{},
	}
}

// observe notes a Lease of ours, and returns it with what is known of when it changed.
func (m *memory) observe(l *coordinationv1.Lease, decoded plan.Lease, now time.Time) plan.Lease {
	m.mu.Lock()
	defer m.mu.Unlock()
	key := types.NamespacedName{Namespace: l.Namespace, Name: l.Name}
	s, known := m.leases[key]
	known = known && s.uid == l.UID
	was := s.lease.Record
	same := known && was.Holder == decoded.Record.Holder
	if known && was.Revision > decoded.Record.Revision {
		decoded.Renewed = s.renewed && same
		return decoded // an old state, out of a cache that lags
	}
	if !known || s.version != l.ResourceVersion {
		next := observedLease{uid: l.UID, version: l.ResourceVersion, since: now, heard: now, lease: decoded}
		if known && was.RenewTime == decoded.Record.RenewTime { // others write Leases too: what they write is no sign of life
			next.heard, next.renewed = s.heard, s.renewed && same
		} else {
			next.renewed = known
		}
		s = next
		m.leases[key] = s
	}
	decoded.Unchanged, decoded.SinceRenewal, decoded.Renewed = now.Sub(s.since), now.Sub(s.heard), s.renewed
	return decoded
}

// sinceRenewal is how long a Lease was not renewed, as far as it was seen.
func (m *memory) sinceRenewal(key types.NamespacedName, now time.Time) time.Duration {
	m.mu.Lock()
	defer m.mu.Unlock()
	if s, seen := m.leases[key]; seen {
		return now.Sub(s.heard)
	}
	return 0
}

// last is the newest that was seen of a Lease that is gone.
func (m *memory) last(key types.NamespacedName) *plan.Lease {
	m.mu.Lock()
	defer m.mu.Unlock()
	s, seen := m.leases[key]
	if !seen {
		return nil
	}
	return &s.lease
}

// forget drops a Lease that is gone for good.
func (m *memory) forget(key types.NamespacedName) {
	m.mu.Lock()
	defer m.mu.Unlock()
	delete(m.leases, key)
}

// jobGone drops what was remembered of a job that is gone, and of its Lease if that is gone too: unless a tenure may last,
// which a recreated job must know. It returns how long that is at most, 0 for no tenure that is remembered.
func (m *memory) jobGone(key types.NamespacedName, leaseGone bool, now time.Time) time.Duration {
	m.mu.Lock()
	defer m.mu.Unlock()
	delete(m.emitted, key)
	delete(m.refused, key)
	s, seen := m.leases[key]
	if !seen || !leaseGone {
		return 0
	}
	left := plan.Left(s.lease.Record, now.Sub(s.since))
	if left == 0 {
		delete(m.leases, key)
	}
	return left
}

// refuse notes whether anything was refused for a job, and what of it is to be recorded, and returns when to ask again: after as
// long as it has been refused, from the shortest to the longest time.
func (m *memory) refuse(key types.NamespacedName, anything bool, what []plan.Refusal, now time.Time) time.Duration {
	m.mu.Lock()
	defer m.mu.Unlock()
	if !anything && len(what) == 0 {
		delete(m.refused, key)
		return 0
	}
	since := now
	if was, before := m.refused[key]; before {
		since = was.since
	}
	m.refused[key] = refused{since: since, what: what}
	return min(max(now.Sub(since), refusalRetry), refusalLimit)
}

// refusals are what was refused when it was last asked for.
func (m *memory) refusals(key types.NamespacedName) []plan.Refusal {
	m.mu.Lock()
	defer m.mu.Unlock()
	return m.refused[key].what
}

func (m *memory) hasEmitted(key types.NamespacedName, job types.UID) bool {
	m.mu.Lock()
	defer m.mu.Unlock()
	return m.emitted[key] == job
}

func (m *memory) setEmitted(key types.NamespacedName, job types.UID, all bool) {
	m.mu.Lock()
	defer m.mu.Unlock()
	if all {
		m.emitted[key] = job
	} else {
		delete(m.emitted, key)
	}
}
