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
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/types"

	"github.com/singletonjob/operator/internal/lease"
	"github.com/singletonjob/operator/internal/plan"
)

// memory is what one process of the operator remembers and no object stores. It can be lost at any time. The operator then waits
// longer than necessary, and writes Events that already exist.
type memory struct {
	mu     sync.Mutex
	leases map[types.NamespacedName]observedLease
	// trials are for how long the Pods of the last tenures were ready.
	trials map[types.NamespacedName]*plan.Trials
	// announced records which changes of holder have Events.
	announced map[types.NamespacedName]announced
	// refused are the jobs whose last requests were partly refused.
	refused map[types.NamespacedName]refused
	// settled are the Deployments whose ReplicaSets were all seen at 0.
	settled map[types.NamespacedName]settledAt
	// beside is what was last found beside the jobs' workloads.
	beside map[types.NamespacedName]beside
	// hashes are the hashes of the jobs' templates.
	hashes map[types.NamespacedName]plan.Hashed
	// crowded are the jobs that had two Pods on one node at the last reconcile.
	crowded map[types.NamespacedName]bool
	// written are the versions of jobs after their last status writes, until the cache shows them.
	written map[types.NamespacedName]string
	// hidden are the jobs whose Leases exist though the cache may not show them.
	hidden map[types.NamespacedName]bool
	// labels are the last Pods that this process labelled active.
	labels map[types.NamespacedName]label
	// differing is since when the stored statuses of jobs have differed from what they should be.
	differing map[types.NamespacedName]time.Time
}

// label is the Pod of a tenure that this process labelled active after all others had lost that label. The token 0 stands for the
// creation of a Lease without any Pod. taken: this process took the label away after the end of that tenure.
type label struct {
	token       int64
	transitions int32
	lease       string // its UID, empty for one that was just created
	pod         types.UID
	taken       bool
}

// settledAt is one state of a Deployment's spec.
type settledAt struct {
	uid        types.UID
	generation int64
}

// beside is what was found beside one state of a workload, and when.
type beside struct {
	of                   settledAt
	at                   time.Time
	autoscalers, budgets []string
}

// observedLease is the newest observed version of a Lease.
type observedLease struct {
	uid     types.UID
	version string
	// since is when this version was first seen. That is after it was written, so a duration counted from here is never too long.
	// It contains Go's monotonic clock, which nobody sets back.
	since time.Time
	// heard is when the current renewTime was first seen. renewed means that the current holder was seen to acquire or to renew.
	heard   time.Time
	renewed bool
	lease   plan.Lease
}

// announced is the token up to which every change of holder of a job has its Event, and whether later Events are being written.
type announced struct {
	job     types.UID
	token   int64
	pending bool
}

// refused are the refusals for a job, and when they started.
type refused struct {
	since time.Time
	what  []plan.Refusal
	// overQuota is when a quota started to refuse Pods; zero if none does.
	overQuota time.Time
}

func newMemory() *memory {
	return &memory{
		leases: map[types.NamespacedName]observedLease{}, trials: map[types.NamespacedName]*plan.Trials{}, announced: map[types.NamespacedName]announced{},
		refused: map[types.NamespacedName]refused{}, settled: map[types.NamespacedName]settledAt{}, beside: map[types.NamespacedName]beside{},
		hashes:  map[types.NamespacedName]plan.Hashed{},
		crowded: map[types.NamespacedName]bool{}, written: map[types.NamespacedName]string{},
		hidden: map[types.NamespacedName]bool{}, labels: map[types.NamespacedName]label{}, differing: map[types.NamespacedName]time.Time{},
	}
}

// observe records a Lease of ours, and returns it with the known times of its changes.
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
		return decoded // an old state from a lagging cache
	}
	if !known || s.version != l.ResourceVersion {
		next := observedLease{uid: l.UID, version: l.ResourceVersion, since: now, heard: now, lease: decoded}
		if known && was.RenewTime == decoded.Record.RenewTime { // a write without a new renewTime, for example by the operator, does not show that the holder is alive
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

// tried records the state of the current tenure, and returns what is known of the last ones. now is after the observation.
func (m *memory) tried(key types.NamespacedName, l *plan.Lease, pods []*corev1.Pod, now time.Time) []plan.Trial {
	m.mu.Lock()
	defer m.mu.Unlock()
	if m.trials[key] == nil {
		m.trials[key] = &plan.Trials{}
	}
	return m.trials[key].See(l, pods, now)
}

// sinceRenewal is the observed time since a Lease was last renewed.
func (m *memory) sinceRenewal(key types.NamespacedName, now time.Time) time.Duration {
	m.mu.Lock()
	defer m.mu.Unlock()
	if s, seen := m.leases[key]; seen {
		return now.Sub(s.heard)
	}
	return 0
}

// unchanged is how long the newest observed version of a Lease has been known.
func (m *memory) unchanged(key types.NamespacedName, now time.Time) time.Duration {
	m.mu.Lock()
	defer m.mu.Unlock()
	if s, seen := m.leases[key]; seen {
		return now.Sub(s.since)
	}
	return math.MaxInt64
}

// last is the last observed version of a deleted Lease.
func (m *memory) last(key types.NamespacedName) *plan.Lease {
	m.mu.Lock()
	defer m.mu.Unlock()
	s, seen := m.leases[key]
	if !seen {
		return nil
	}
	return &s.lease
}

// forget drops a Lease that will not come back.
func (m *memory) forget(key types.NamespacedName) {
	m.mu.Lock()
	defer m.mu.Unlock()
	delete(m.leases, key)
}

// jobGone drops the memory of a deleted job, and of its Lease if that is deleted too. It keeps the Lease while a tenure may still
// last, because a recreated job must know it. It returns the maximum remaining time of that tenure; 0 if there is none.
func (m *memory) jobGone(key types.NamespacedName, leaseGone bool, now time.Time) time.Duration {
	m.mu.Lock()
	defer m.mu.Unlock()
	delete(m.trials, key)
	delete(m.announced, key)
	delete(m.refused, key)
	delete(m.settled, key)
	delete(m.beside, key)
	delete(m.hashes, key)
	delete(m.crowded, key)
	delete(m.written, key)
	delete(m.hidden, key)
	delete(m.labels, key)
	delete(m.differing, key)
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

// refuse records the refusals for a job, and returns the wait before the next attempt: the time since the first refusal, within
// limits.
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

// refusals are the refusals of the last attempt.
func (m *memory) refusals(key types.NamespacedName) []plan.Refusal {
	m.mu.Lock()
	defer m.mu.Unlock()
	return m.refused[key].what
}

// overQuota is how long a quota has refused a job's Pods; 0 if none does.
func (m *memory) overQuota(key types.NamespacedName, now time.Time) time.Duration {
	m.mu.Lock()
	defer m.mu.Unlock()
	since := m.refused[key].overQuota
	if since.IsZero() {
		return 0
	}
	return max(1, now.Sub(since))
}

// announcements returns which changes of holder may lack an Event: unknown, or those from a token on; 0 means none.
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

// announce records that further changes of holder are about to be recorded or to get Events.
func (m *memory) announce(key types.NamespacedName, job types.UID) {
	m.mu.Lock()
	defer m.mu.Unlock()
	if a, known := m.announced[key]; known && a.job == job {
		a.pending = true
		m.announced[key] = a
	}
}

// hasAnnounced records that every change of holder up to a token has its Event.
func (m *memory) hasAnnounced(key types.NamespacedName, job types.UID, token int64) {
	m.mu.Lock()
	defer m.mu.Unlock()
	if a := m.announced[key]; a.job == job { // the job may come from a stale cache
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

// foundBeside is what was last found, zero if nothing is known of this state of the workload, or not since a period.
func (m *memory) foundBeside(key types.NamespacedName, of settledAt, now time.Time) (beside, bool) {
	m.mu.Lock()
	defer m.mu.Unlock()
	found := m.beside[key]
	return found, found.of == of && now.Sub(found.at) < plan.BesidePeriod
}

func (m *memory) setBeside(key types.NamespacedName, found beside) {
	m.mu.Lock()
	defer m.mu.Unlock()
	m.beside[key] = found
}

// hashed is the last known hash result for a job's template.
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

// setCrowded records whether two Pods of a job are on one node. It runs before the nodes are read, so that a node that changes
// afterwards triggers the job.
func (m *memory) setCrowded(key types.NamespacedName, crowded bool) {
	m.mu.Lock()
	defer m.mu.Unlock()
	if crowded {
		m.crowded[key] = true
	} else {
		delete(m.crowded, key)
	}
}

// setWritten records the version of a job after a stored status.
func (m *memory) setWritten(key types.NamespacedName, version string) {
	m.mu.Lock()
	defer m.mu.Unlock()
	m.written[key] = version
}

// precedes reports whether a version of a job is older than its last stored status. The newer version triggers no reconcile when
// the cache shows it, so a write that is left out because of the older version would never happen.
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

// lastOn are the jobs whose newest tenure belongs to a Pod on this node, whether the Pod still exists or not.
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

// hide records that a Lease may exist that the cache does not show.
func (m *memory) hide(key types.NamespacedName) {
	m.mu.Lock()
	defer m.mu.Unlock()
	m.hidden[key] = true
}

func (m *memory) isHidden(key types.NamespacedName) bool {
	m.mu.Lock()
	defer m.mu.Unlock()
	return m.hidden[key]
}

// startsAfresh records that no Pod existed when the Lease was created.
func (m *memory) startsAfresh(key types.NamespacedName) {
	m.mu.Lock()
	defer m.mu.Unlock()
	m.labels[key] = label{taken: true}
}

// promotes records that a Pod may get the label active.
func (m *memory) promotes(key types.NamespacedName) {
	m.mu.Lock()
	defer m.mu.Unlock()
	delete(m.labels, key)
}

// promoted records that the Pod of the current tenure has got the label active.
func (m *memory) promoted(key types.NamespacedName, pod types.UID, now *lease.Record) {
	m.mu.Lock()
	defer m.mu.Unlock()
	m.labels[key] = label{token: now.Token, transitions: now.Transitions, lease: now.UID, pod: pod}
}

// demoted records that a Pod has lost that label. over is the highest token of a tenure that has ended.
func (m *memory) demoted(key types.NamespacedName, pod types.UID, over int64) {
	m.mu.Lock()
	defer m.mu.Unlock()
	if l := m.labels[key]; l.pod == pod && l.token <= over {
		l.taken = true
		m.labels[key] = l
	}
}

// noneActive reports whether no Pod can have the label active, except the current holder's. Operators give it only to the Pod of the
// current tenure. So a tenure matters only if it followed on the last one whose Pod this process labelled, or is that one. There must be
// none in between, and this process must have taken the label from its Pod.
func (m *memory) noneActive(key types.NamespacedName, now *lease.Record) bool {
	m.mu.Lock()
	defer m.mu.Unlock()
	l, known := m.labels[key]
	if !known || !l.taken || now.Transitions != l.transitions+1 || len(now.History) == 0 || now.History[0].Token != now.Token {
		return false
	}
	if l.lease == "" { // tenures that the status records are not in the history
		return len(now.History) == 1
	}
	return now.UID == l.lease && len(now.History) > 1 && now.History[1].Token == l.token
}

// differs returns since when the stored status of a job has differed from what it should be.
func (m *memory) differs(key types.NamespacedName, now time.Time) time.Time {
	m.mu.Lock()
	defer m.mu.Unlock()
	since, known := m.differing[key]
	if !known {
		since = now
		m.differing[key] = since
	}
	return since
}

// agrees records that the stored status of a job is what it should be.
func (m *memory) agrees(key types.NamespacedName) {
	m.mu.Lock()
	defer m.mu.Unlock()
	delete(m.differing, key)
}
