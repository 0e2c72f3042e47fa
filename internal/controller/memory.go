package controller

import (
	"sync"
	"time"

	coordinationv1 "k8s.io/api/coordination/v1"
	"k8s.io/apimachinery/pkg/types"

	"github.com/singletonjob/operator/internal/plan"
)

// memory is what one process of the operator remembers: what no object tells. All of it may be lost at any time; then the
// operator waits longer than it must, and writes Events that exist already.
type memory struct {
	mu     sync.Mutex
	leases map[types.NamespacedName]sighting
	// told are the jobs whose changes of holder all have their Events, with their UIDs.
	told map[types.NamespacedName]types.UID
}

// sighting is the newest that was seen of a Lease.
type sighting struct {
	uid     types.UID
	version string
	// since is when this version was first seen: after it was written, so that what is counted from here is never more
	// than has passed. It carries Go's monotonic clock, which nobody sets back.
	since time.Time
	// renewed: the present holder was seen to acquire or to renew.
	renewed bool
	lease   plan.Lease
}

func newMemory() *memory {
	return &memory{leases: map[types.NamespacedName]sighting{}, told: map[types.NamespacedName]types.UID{}}
}

// see notes a Lease of ours. It returns for how long it was seen like this, and whether its holder was seen to act.
func (m *memory) see(l *coordinationv1.Lease, decoded plan.Lease, now time.Time) (unchanged time.Duration, renewed bool) {
	m.mu.Lock()
	defer m.mu.Unlock()
	key := types.NamespacedName{Namespace: l.Namespace, Name: l.Name}
	s, known := m.leases[key]
	known = known && s.uid == l.UID
	if known && s.version == l.ResourceVersion {
		return now.Sub(s.since), s.renewed
	}
	was := s.lease.Record
	if known && was.Revision > decoded.Record.Revision {
		return 0, s.renewed && was.Holder == decoded.Record.Holder // an old state, out of a cache that lags
	}
	// Others write Leases too: what they write is no sign of life.
	same := was.Holder == decoded.Record.Holder
	renewed = known && (s.renewed && same || was.RenewTime != decoded.Record.RenewTime)
	m.leases[key] = sighting{uid: l.UID, version: l.ResourceVersion, since: now, renewed: renewed, lease: decoded}
	return 0, renewed
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
// which a job made anew must know. It returns how long that is at most, 0 for no tenure that is remembered.
func (m *memory) jobGone(key types.NamespacedName, leaseGone bool, now time.Time) time.Duration {
	m.mu.Lock()
	defer m.mu.Unlock()
	delete(m.told, key)
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

func (m *memory) isTold(key types.NamespacedName, job types.UID) bool {
	m.mu.Lock()
	defer m.mu.Unlock()
	return m.told[key] == job
}

func (m *memory) setTold(key types.NamespacedName, job types.UID, told bool) {
	m.mu.Lock()
	defer m.mu.Unlock()
	if told {
		m.told[key] = job
	} else {
		delete(m.told, key)
	}
}
