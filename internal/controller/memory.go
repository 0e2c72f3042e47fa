package controller

import (
	"maps"
	"math"
	"slices"
	"strconv"
	"strings"
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
	// announced says of jobs which of their changes of holder have their Events.
	announced map[types.NamespacedName]announced
	// refused are the jobs for which something was refused when it was last asked for.
	refused map[types.NamespacedName]refused
	// settled are the Deployments of jobs whose ReplicaSets were all seen at 0.
	settled map[types.NamespacedName]settledAt
	// hashes are those of the jobs' templates.
	hashes map[types.NamespacedName]plan.Hashed
	// crowded are the jobs of which two pods were on one node when they were last looked at.
	crowded map[types.NamespacedName]bool
	// written are the versions of jobs by the last statuses that were written and not seen since.
	written map[types.NamespacedName]string
}

// settledAt is one state of a Deployment's spec.
type settledAt struct {
	uid        types.UID
	generation int64
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

// announced is up to which token each change of holder of a job has its Event, and whether later ones are being written.
type announced struct {
	job     types.UID
	token   int64
	pending bool
}

// refused is what the API server would not do for a job, and since when.
type refused struct {
	since time.Time
	what  []plan.Refusal
	// overQuota is since when a quota refuses pods, zero if none does.
	overQuota time.Time
}

func newMemory() *memory {
	return &memory{
		leases: map[types.NamespacedName]observedLease{}, announced: map[types.NamespacedName]announced{},
		refused: map[types.NamespacedName]refused{}, settled: map[types.NamespacedName]settledAt{}, hashes: map[types.NamespacedName]plan.Hashed{},
		crowded: map[types.NamespacedName]bool{}, written: map[types.NamespacedName]string{},
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

// unchanged is how long the newest version that was seen of a Lease has been seen.
func (m *memory) unchanged(key types.NamespacedName, now time.Time) time.Duration {
	m.mu.Lock()
	defer m.mu.Unlock()
	if s, seen := m.leases[key]; seen {
		return now.Sub(s.since)
	}
	return math.MaxInt64
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
	delete(m.announced, key)
	delete(m.refused, key)
	delete(m.settled, key)
	delete(m.hashes, key)
	delete(m.crowded, key)
	delete(m.written, key)
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
	was, before := m.refused[key]
	if before {
		since = was.since
	}
	next := refused{since: since, what: what}
	if slices.ContainsFunc(what, func(r plan.Refusal) bool { return r.Pods && strings.Contains(r.Text, overQuota) }) {
		if next.overQuota = was.overQuota; next.overQuota.IsZero() {
			next.overQuota = now
		}
	}
	m.refused[key] = next
	return min(max(now.Sub(since), refusalRetry), refusalLimit)
}

// refusals are what was refused when it was last asked for.
func (m *memory) refusals(key types.NamespacedName) []plan.Refusal {
	m.mu.Lock()
	defer m.mu.Unlock()
	return m.refused[key].what
}

// overQuota is for how long a quota has refused a job's pods, 0 if none does.
func (m *memory) overQuota(key types.NamespacedName, now time.Time) time.Duration {
	m.mu.Lock()
	defer m.mu.Unlock()
	since := m.refused[key].overQuota
	if since.IsZero() {
		return 0
	}
	return max(1, now.Sub(since))
}

// announcements says which changes of holder of a job may have no Event: unknown, or from a token on, or none, which is 0.
func (m *memory) announcements(key types.NamespacedName, job types.UID) (unknown bool, from int64) {
	m.mu.Lock()
	defer m.mu.Unlock()
	switch a, known := m.announced[key]; {
	case !known || a.job != job:
		return true, 0
	case a.pending:
		return false, a.token + 1
	}
	return false, 0
}

// announce notes that more changes of holder are about to be recorded, or to get their Events.
func (m *memory) announce(key types.NamespacedName, job types.UID) {
	m.mu.Lock()
	defer m.mu.Unlock()
	if a, known := m.announced[key]; known && a.job == job {
		a.pending = true
		m.announced[key] = a
	}
}

// hasAnnounced notes that each change of holder has its Event up to a token.
func (m *memory) hasAnnounced(key types.NamespacedName, job types.UID, token int64) {
	m.mu.Lock()
	defer m.mu.Unlock()
	if a := m.announced[key]; a.job == job { // the job may be out of an old cache
		token = max(token, a.token)
	}
	m.announced[key] = announced{job: job, token: token}
}

func (m *memory) isSettled(key types.NamespacedName, at settledAt) bool {
	m.mu.Lock()
	defer m.mu.Unlock()
	return m.settled[key] == at
}

func (m *memory) setSettled(key types.NamespacedName, at settledAt) {
	m.mu.Lock()
	defer m.mu.Unlock()
	m.settled[key] = at
}

// hashed is what was last found of a job's template.
func (m *memory) hashed(key types.NamespacedName) plan.Hashed {
	m.mu.Lock()
	defer m.mu.Unlock()
	return m.hashes[key]
}

func (m *memory) setHashed(key types.NamespacedName, hashed plan.Hashed) {
	m.mu.Lock()
	defer m.mu.Unlock()
	m.hashes[key] = hashed
}

// setCrowded notes whether two pods of a job are on one node. It is noted before the nodes are read, so that one that changes then wakes the job.
func (m *memory) setCrowded(key types.NamespacedName, crowded bool) {
	m.mu.Lock()
	defer m.mu.Unlock()
	if crowded {
		m.crowded[key] = true
	} else {
		delete(m.crowded, key)
	}
}

// setWritten notes the version that a job has by a status that was stored.
func (m *memory) setWritten(key types.NamespacedName, version string) {
	m.mu.Lock()
	defer m.mu.Unlock()
	m.written[key] = version
}

// precedes reports whether a version of a job is older than the last status that was stored. That one wakes nobody when it is seen, so that what
// is not written for the sake of the older one would stay unwritten.
func (m *memory) precedes(key types.NamespacedName, version string) bool {
	m.mu.Lock()
	defer m.mu.Unlock()
	seen, err := strconv.ParseUint(version, 10, 64)
	written, none := strconv.ParseUint(m.written[key], 10, 64)
	if err == nil && none == nil && seen < written {
		return true
	}
	delete(m.written, key)
	return false
}

func (m *memory) allCrowded() []types.NamespacedName {
	m.mu.Lock()
	defer m.mu.Unlock()
	return slices.Collect(maps.Keys(m.crowded))
}

// lastOn are the jobs whose newest tenure is of a pod on a node, whatever has become of the pod.
func (m *memory) lastOn(node string) []types.NamespacedName {
	m.mu.Lock()
	defer m.mu.Unlock()
	var found []types.NamespacedName
	for key := range m.leases {
		if past := m.leases[key].lease.Record.History; len(past) > 0 && past[0].Node == node {
			found = append(found, key)
		}
	}
	return found
}
