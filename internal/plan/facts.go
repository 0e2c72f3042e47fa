package plan

import (
	"cmp"
	"encoding/json"
	"slices"
	"strconv"
	"strings"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/util/validation/field"

	"github.com/singletonjob/operator/api/v1alpha1"
	"github.com/singletonjob/operator/internal/contract"
	"github.com/singletonjob/operator/internal/inject"
	"github.com/singletonjob/operator/internal/lease"
)

// facts is an observation with what follows from it.
type facts struct {
	Observed
	// job is a copy with its defaults, nil if there is no job.
	job *v1alpha1.SingletonJob
	// faults are the rules that the spec breaks.
	faults field.ErrorList
	// hash is that of the pods that the present spec asks for.
	hash string

	// candidates are the job's pods, by ordinal. orphans are pods that no controller owns any more, strangers those of an
	// earlier job of the name, and whatever else carries its labels.
	candidates []candidate
	orphans    []*corev1.Pod
	strangers  int

	// record is the Lease's, zero unless it is ours. claim is what it should say of this job.
	record lease.Record
	claim  Claim
	holder holder
	death  *death
}

// candidate is a pod of the job.
type candidate struct {
	pod     *corev1.Pod
	ordinal int
	// updated: it was made from the present template and settings.
	updated bool
	ready   bool
	// leaving: it is being deleted. finished: it will never run again.
	leaving, finished bool
	// holds: the Lease names it as the holder.
	holds bool
	// failure is how it ended, if it is finished.
	failure *failure
	// trouble is why it does not get ready, as far as known.
	trouble trouble
}

// live tells whether it counts as a candidate: a pod that is on its way out is replaced at once, because on a node that
// is cut off that way has no end.
func (c candidate) live() bool { return !c.leaving && !c.finished }

func (c candidate) ref() PodRef { return PodRef{Name: c.pod.Name, UID: c.pod.UID} }

// holder is what the Lease says of the present tenure.
type holder struct {
	// named: the Lease is not free. ours: by an agent, in a tenure of this job.
	named, ours bool
	lease.Identity
	node string
	// since is when the tenure was acquired, by the holder's clock, in milliseconds.
	since int64
	// settings are the holder's as far as known.
	settings settings
}

// settings are the limits of a tenure.
type settings struct {
	duration, renewDeadline, retryPeriod time.Duration
	keepRunning                          bool
}

func gather(o Observed) *facts {
	f := &facts{Observed: o}
	if o.Lease.Presence == Ours {
		f.record = o.Lease.Record
	}
	if o.Job == nil {
		f.strangers = len(o.Pods)
		return f
	}
	f.job = o.Job.DeepCopy()
	v1alpha1.Default(f.job)
	if f.faults = v1alpha1.Validate(f.job); len(f.faults) == 0 {
		f.hash = inject.Hash(f.job)
	}
	f.claim = f.claimed()
	f.holder = f.gatherHolder()
	for _, pod := range o.Pods {
		switch owner := metav1.GetControllerOf(pod); {
		case owner == nil && gated(pod) != "":
			f.orphans = append(f.orphans, pod)
		case owner != nil && owner.UID == f.job.UID:
			f.candidates = append(f.candidates, f.candidate(pod))
		default:
			f.strangers++
		}
	}
	slices.SortFunc(f.candidates, func(a, b candidate) int {
		return cmp.Or(cmp.Compare(a.ordinal, b.ordinal), cmp.Compare(a.pod.Name, b.pod.Name))
	})
	f.death = f.gatherDeath()
	return f
}

func (f *facts) candidate(pod *corev1.Pod) candidate {
	_, suffix, _ := cutLast(pod.Name, "-")
	ordinal, err := strconv.Atoi(suffix)
	if err != nil {
		ordinal = len(f.Pods) // after all others
	}
	c := candidate{
		pod:      pod,
		ordinal:  ordinal,
		updated:  strings.HasPrefix(pod.Name, inject.PodPrefix(f.job.Name, f.hash)), // unlike its label, a name stays
		ready:    isReady(pod),
		leaving:  pod.DeletionTimestamp != nil,
		finished: pod.Status.Phase == corev1.PodSucceeded || pod.Status.Phase == corev1.PodFailed,
		holds:    f.holder.named && f.holder.Pod == pod.Name && f.holder.PodUID == string(pod.UID),
		trouble:  troubleOf(pod, gated(pod)),
	}
	if c.finished {
		c.failure = f.failed(pod)
	}
	return c
}

// gated is the name of a pod's gated container, empty where that is not certain.
func gated(pod *corev1.Pod) string {
	if i := inject.Gated(pod); i >= 0 {
		return pod.Spec.Containers[i].Name
	}
	return ""
}

func (f *facts) gatherHolder() holder {
	h := holder{named: f.record.Holder != "", settings: f.settings()}
	id, ok := lease.ParseIdentity(f.record.Holder)
	if !h.named || !ok {
		return h
	}
	h.Identity = id
	h.ours = f.record.Token > f.claim.Before
	h.since = f.record.AcquireTime / 1000
	if past := f.record.History; len(past) > 0 && past[0].Token == f.record.Token {
		h.node = past[0].Node
	}
	if pod := f.podOf(id); pod != nil {
		// Where it runs is said by the pod, which nobody can write after it was bound; the history is the agent's word.
		h.node = cmp.Or(pod.Spec.NodeName, h.node)
		if s, ok := configured(pod); ok {
			h.settings = s
		}
	}
	h.settings.duration = min(max(h.settings.duration, f.record.Duration), lease.MaxDuration)
	return h
}

// podOf is the pod that an identity is of, nil if it is not seen.
func (f *facts) podOf(id lease.Identity) *corev1.Pod {
	for _, pod := range f.Pods {
		if pod.Name == id.Pod && string(pod.UID) == id.PodUID {
			return pod
		}
	}
	return nil
}

// settings are those that the spec asks for.
func (f *facts) settings() settings {
	l := f.job.Spec.Lease
	return settings{
		l.LeaseDuration.Duration, l.RenewDeadline.Duration, l.RetryPeriod.Duration,
		l.OnRenewFailure == v1alpha1.OnRenewFailureKeepRunning,
	}
}

// configured reads the settings that a pod was made with. Unlike the agent it does not mind fields that it does not know:
// the pod may be of a newer operator.
func configured(pod *corev1.Pod) (settings, bool) {
	i := inject.Gated(pod)
	if i < 0 {
		return settings{}, false
	}
	for _, e := range pod.Spec.Containers[i].Env {
		var c contract.AgentConfig
		if e.Name == contract.ConfigEnv && json.Unmarshal([]byte(e.Value), &c) == nil {
			return settings{
				time.Duration(c.LeaseDuration), time.Duration(c.RenewDeadline), time.Duration(c.RetryPeriod), c.KeepRunning,
			}, true
		}
	}
	return settings{}, false
}

// longest is the longest leaseDuration that an agent in a pod may have been told, by any of its containers: where it is
// not certain which one is gated, waiting too long is no harm.
func longest(pod *corev1.Pod) time.Duration {
	var d time.Duration
	for i := range pod.Spec.Containers {
		for _, e := range pod.Spec.Containers[i].Env {
			var c contract.AgentConfig
			if e.Name == contract.ConfigEnv && json.Unmarshal([]byte(e.Value), &c) == nil {
				d = max(d, time.Duration(c.LeaseDuration))
			}
		}
	}
	return min(d, lease.MaxDuration)
}

// acts tells whether the holder's process may be taken to run: its tenure is this job's, it renews, and it is not known to
// be dead.
func (f *facts) acts() bool {
	return f.holder.ours && !f.dead() && f.Lease.Unchanged < f.holder.settings.renewDeadline && !f.expired()
}

// shown tells whether the holder is reported as acting. After a restart this process has not seen for how long the Lease has
// been unchanged, and the tenure may have ended hours ago: then a wall clock may say so. It may be wrong by hours itself,
// as may that of the holder's node, so it is only heard when two renewals are due that did not come, and until then
// what was reported of this tenure before stays. Nothing is decided by it.
func (f *facts) shown() bool {
	switch {
	case !f.acts():
		return false
	case !f.seemsOver():
		return true
	case f.unheard() > 0:
		return f.job.Status.ActivePod == f.holder.Pod && f.job.Status.FencingToken == f.record.Token
	}
	return false
}

// seemsOver tells whether the last renewal is, by wall clocks, older than the lease lasts, and this process has not seen it.
func (f *facts) seemsOver() bool {
	return !f.Lease.Renewed && f.Now.UnixMicro()-f.record.RenewTime >= f.holder.settings.duration.Microseconds()
}

// unheard is how long a renewal of a holder that renews may let itself be waited for.
func (f *facts) unheard() time.Duration {
	return max(0, 2*f.holder.settings.retryPeriod-f.Lease.Unchanged)
}

// expired tells whether the tenure is over by time: unchanged for the whole duration, as this process saw it.
func (f *facts) expired() bool {
	return f.Lease.Unchanged >= f.holder.settings.duration
}

// count tells of how many candidates something holds.
func (f *facts) count(holds func(candidate) bool) int {
	n := 0
	for _, c := range f.candidates {
		if holds(c) {
			n++
		}
	}
	return n
}

func (f *facts) any(holds func(candidate) bool) bool { return f.count(holds) > 0 }

func isReady(pod *corev1.Pod) bool {
	for _, c := range pod.Status.Conditions {
		if c.Type == corev1.PodReady {
			return c.Status == corev1.ConditionTrue
		}
	}
	return false
}

func cutLast(s, sep string) (before, after string, found bool) {
	i := strings.LastIndex(s, sep)
	if i < 0 {
		return "", s, false
	}
	return s[:i], s[i+len(sep):], true
}
