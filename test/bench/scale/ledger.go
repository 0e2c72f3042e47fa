//go:build linux

package main

import (
	"fmt"
	"slices"
	"sync"
	"time"

	"k8s.io/apimachinery/pkg/types"

	"github.com/singletonjob/operator/api/v1alpha1"
)

// tenure is one life of a job's process.
type tenure struct {
	pod          string
	token        int64
	began, ended time.Time // ended is zero while it lives
}

// jobRecord is what the simulation knows of a job: what its processes did, and which of its pods are labelled active.
type jobRecord struct {
	tenures  []tenure
	labelled map[string]bool
	ready    map[string]bool
	// right is when the label began to be at the newest holder, and nowhere else; zero while it isn't.
	right time.Time
}

func (j *jobRecord) newest() tenure {
	if len(j.tenures) == 0 {
		return tenure{}
	}
	return j.tenures[len(j.tenures)-1]
}

// acts reports whether the newest tenure's process lives, and began after since.
func (j *jobRecord) acts(since time.Time) bool {
	t := j.newest()
	return t.token != 0 && t.ended.IsZero() && t.began.After(since)
}

func (j *jobRecord) look(now time.Time) {
	switch holder := j.newest().pod; {
	case holder == "" || len(j.labelled) != 1 || !j.labelled[holder]:
		j.right = time.Time{}
	case j.right.IsZero():
		j.right = now
	}
}

// ledger is about all jobs.
type ledger struct {
	mu     sync.Mutex
	jobs   map[types.NamespacedName]*jobRecord
	faults []string
}

func newLedger() *ledger { return &ledger{jobs: map[types.NamespacedName]*jobRecord{}} }

func (l *ledger) of(key types.NamespacedName) *jobRecord {
	j := l.jobs[key]
	if j == nil {
		j = &jobRecord{labelled: map[string]bool{}, ready: map[string]bool{}}
		l.jobs[key] = j
	}
	return j
}

// began notes the start of a process, and what must not be: another one that lives, or a token that is not above all earlier ones.
func (l *ledger) began(key types.NamespacedName, pod string, token int64) {
	l.mu.Lock()
	defer l.mu.Unlock()
	j := l.of(key)
	for _, t := range j.tenures {
		if t.token >= token {
			l.faults = append(l.faults, fmt.Sprintf("%s: token %d after %d", key, token, t.token))
		}
		if t.ended.IsZero() {
			l.faults = append(l.faults, fmt.Sprintf("%s: %s acts beside %s", key, pod, t.pod))
		}
	}
	now := time.Now()
	j.tenures = append(j.tenures, tenure{pod: pod, token: token, began: now})
	j.right = time.Time{}
	j.look(now)
}

func (l *ledger) ended(key types.NamespacedName, token int64) {
	l.mu.Lock()
	defer l.mu.Unlock()
	j := l.of(key)
	for i := range j.tenures {
		if j.tenures[i].token == token {
			j.tenures[i].ended = time.Now()
		}
	}
}

// seen records the state of a pod, as the API server reports it.
func (l *ledger) seen(key types.NamespacedName, pod string, active, ready bool) {
	l.mu.Lock()
	defer l.mu.Unlock()
	j := l.of(key)
	set(j.labelled, pod, active)
	set(j.ready, pod, ready)
	j.look(time.Now())
}

func set(in map[string]bool, name string, is bool) {
	if is {
		in[name] = true
	} else {
		delete(in, name)
	}
}

// count is of how many jobs something holds.
func (l *ledger) count(holds func(*jobRecord) bool) (n int) {
	l.mu.Lock()
	defer l.mu.Unlock()
	for _, j := range l.jobs {
		if holds(j) {
			n++
		}
	}
	return n
}

// tenures is how many there have been.
func (l *ledger) tenures() (n int) {
	l.mu.Lock()
	defer l.mu.Unlock()
	for _, j := range l.jobs {
		n += len(j.tenures)
	}
	return n
}

// taken is when the last of some jobs got its new holder, and when the last had its label right.
func (l *ledger) taken(keys []types.NamespacedName) (acts, labelled time.Time) {
	l.mu.Lock()
	defer l.mu.Unlock()
	for _, key := range keys {
		j := l.of(key)
		acts, labelled = later(acts, j.newest().began), later(labelled, j.right)
	}
	return acts, labelled
}

func later(a, b time.Time) time.Time {
	if b.After(a) {
		return b
	}
	return a
}

// missing is what a job's status does not tell, or tells wrongly, of its tenures.
func (l *ledger) missing(job *v1alpha1.SingletonJob) []string {
	l.mu.Lock()
	defer l.mu.Unlock()
	key := types.NamespacedName{Namespace: job.Namespace, Name: job.Name}
	tenures, told, oldest := l.of(key).tenures, map[int64]bool{}, int64(0)
	for _, change := range job.Status.History { // newest first
		told[change.Token], oldest = true, change.Token
	}
	whole := len(told) < historyLimit
	if whole {
		oldest = 0
	}
	// An agent that learns too late that it acquired starts no process: such a tenure is in the status, and not in the ledger.
	var wrong []string
	if n := int(job.Status.Failovers+job.Status.Handovers) + 1; len(tenures) > 0 && (n < len(tenures) || whole && n != len(told)) {
		wrong = append(wrong, fmt.Sprintf("%s: %d tenures with a process, %d told, of which %d failovers and %d handovers",
			key, len(tenures), len(told), job.Status.Failovers, job.Status.Handovers))
	}
	for _, t := range tenures {
		if t.token >= oldest && !told[t.token] {
			wrong = append(wrong, fmt.Sprintf("%s: token %d is not told", key, t.token))
		}
	}
	return wrong
}

// historyLimit is spec.historyLimit's default.
const historyLimit = 10

// fault notes what must not be.
func (l *ledger) fault(text string) {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.faults = append(l.faults, text)
}

// found are the faults so far.
func (l *ledger) found() []string {
	l.mu.Lock()
	defer l.mu.Unlock()
	return slices.Clone(l.faults)
}
