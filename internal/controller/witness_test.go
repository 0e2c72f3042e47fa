package controller

import (
	"context"
	"fmt"
	"slices"
	"strconv"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	coordinationv1 "k8s.io/api/coordination/v1"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/watch"
	"k8s.io/utils/ptr"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/singletonjob/operator/api/v1alpha1"
	"github.com/singletonjob/operator/internal/contract"
	"github.com/singletonjob/operator/internal/lease"
)

// witness watches each version of a world's Lease, of its job's status, and of its Events.
type witness struct {
	mu     sync.Mutex
	leases []*coordinationv1.Lease
	jobs   []*v1alpha1.SingletonJob
	events []*corev1.Event
	// odd are events that must not occur: a changed or deleted Event, or the end of a watch.
	odd []string
}

func watchAll(w *world) *witness {
	w.t.Helper()
	seen := &witness{}
	for _, list := range []client.ObjectList{&coordinationv1.LeaseList{}, &v1alpha1.SingletonJobList{}, &corev1.EventList{}} {
		ctx, cancel := context.WithCancel(context.WithoutCancel(w.t.Context()))
		stream, err := w.api.Watch(ctx, list, client.InNamespace(w.key.Namespace))
		w.must(err)
		ended := make(chan struct{})
		go func() {
			defer close(ended)
			for e := range stream.ResultChan() {
				seen.see(e)
			}
			if ctx.Err() == nil {
				seen.see(watch.Event{Type: watch.Error, Object: list})
			}
		}()
		w.t.Cleanup(func() { cancel(); <-ended })
	}
	return seen
}

func (s *witness) see(e watch.Event) {
	s.mu.Lock()
	defer s.mu.Unlock()
	switch o := e.Object.(type) {
	case *coordinationv1.Lease:
		if e.Type != watch.Deleted {
			s.leases = append(s.leases, o)
		}
	case *v1alpha1.SingletonJob:
		s.jobs = append(s.jobs, o)
	case *corev1.Event:
		if s.events = append(s.events, o); e.Type != watch.Added {
			s.odd = append(s.odd, fmt.Sprintf("the Event %s: %s", o.Name, e.Type))
		}
	default:
		s.odd = append(s.odd, fmt.Sprintf("a watch gives %s, %T", e.Type, o))
	}
}

// all waits until the witness has seen every existing version.
func (s *witness) all(w *world) {
	w.t.Helper()
	has := func(version string, seen []string) bool { return slices.Contains(seen, version) }
	job, held, events := w.read().ResourceVersion, w.lease().ResourceVersion, len(w.events())
	for began := time.Now(); ; time.Sleep(20 * time.Millisecond) {
		s.mu.Lock()
		complete := has(job, versions(s.jobs)) && has(held, versions(s.leases)) && len(s.events) >= events
		s.mu.Unlock()
		if complete {
			return
		}
		if time.Since(began) > 5*time.Minute {
			w.t.Fatalf("the watches do not tell of what there is: %v", s.odd)
		}
	}
}

func versions[T client.Object](objects []T) (all []string) {
	for _, o := range objects {
		all = append(all, o.GetResourceVersion())
	}
	return all
}

// held is a tenure according to the Lease's own fields, in microseconds.
type held struct {
	token             int64
	holder, pod       string
	acquired, renewed int64
	// released is the reason of its release, empty if there was none, and ended is the time of the release.
	released string
	ended    int64
}

// tenures are all tenures, derived from holder, token, times and release, not from the Lease's history.
func (s *witness) tenures(t *testing.T) []held {
	t.Helper()
	var all []held
	for _, l := range s.leases {
		holder := ptr.Deref(l.Spec.HolderIdentity, "")
		token, _ := strconv.ParseInt(l.Annotations[contract.TokenAnnotation], 10, 64)
		var now held
		if len(all) > 0 {
			now = all[len(all)-1]
		}
		id, agent := lease.ParseIdentity(holder)
		switch why, _, _ := strings.Cut(l.Annotations[contract.ReleaseReasonAnnotation], ","); {
		case agent && token > now.token:
			all = append(all, held{
				token: token, holder: holder, pod: id.Pod,
				acquired: l.Spec.AcquireTime.UnixMicro(), renewed: l.Spec.RenewTime.UnixMicro(),
			})
		case len(all) == 0, token != now.token: // no tenure yet, or a Lease that was restored
		case holder == now.holder:
			all[len(all)-1].renewed = l.Spec.RenewTime.UnixMicro()
		case holder == "" && why != "" && now.released == "":
			now.released, now.ended = why, l.Spec.RenewTime.UnixMicro()
			all[len(all)-1] = now
		}
	}
	return all
}

// happened are the changes of holder that the history must contain, oldest first.
func (s *witness) happened(o *ordeal) []v1alpha1.TenureChange {
	t := o.w.t
	t.Helper()
	nodes := map[int64]string{}
	for _, acted := range o.w.acted {
		nodes[acted.token] = acted.node
	}
	var all []v1alpha1.TenureChange
	var before held
	for _, now := range s.tenures(t) {
		c := v1alpha1.TenureChange{
			Type: v1alpha1.Elected, Reason: v1alpha1.ChangeElected,
			Time: metav1.NewMicroTime(time.UnixMilli(now.acquired / 1000)), To: now.pod, ToNode: nodes[now.token], Token: now.token,
		}
		if before.token > 0 {
			c.From, c.FromNode, c.FromToken = before.pod, nodes[before.token], before.token
			c.Reason = o.reasonOf(before)
			c.Type = v1alpha1.Failover
			if slices.Contains(planned, lease.Reason(c.Reason)) {
				c.Type = v1alpha1.Handover
			}
			down := now.acquired/1000 - o.lastActed(before)/1000
			c.Downtime = &metav1.Duration{Duration: time.Duration(down) * time.Millisecond}
		}
		all, before = append(all, c), now
	}
	return all
}

// reasonOf is why a tenure ended: the reason of its release, or else the one that the test's action knows.
func (o *ordeal) reasonOf(h held) string {
	o.w.t.Helper()
	may := o.why[h.token]
	switch {
	case h.released == "" && len(may) == 0:
		o.w.t.Errorf("the tenure of token %d was not released, and nobody has ended it", h.token)
		return ""
	case h.released == "":
		return may[len(may)-1]
	case len(may) > 0 && !slices.Contains(may, h.released):
		o.w.t.Errorf("the tenure of token %d was released as %s, and ended by %v", h.token, h.released, may)
	}
	return h.released
}

// lastActed is the last proof that a tenure's process acted: its last renewal, or after a release the end of the process.
func (o *ordeal) lastActed(h held) int64 {
	switch died, killed := o.died[h.token]; {
	case h.released == "" || h.released == v1alpha1.ChangeNodeLost:
		return h.renewed
	case killed:
		return max(died.UnixMicro(), h.renewed)
	}
	return h.ended
}

// judge fails the test unless each stored status recorded everything up to its time, and each change has one Event.
func (s *witness) judge(o *ordeal) {
	t := o.w.t
	t.Helper()
	s.all(o.w)
	s.mu.Lock()
	defer s.mu.Unlock()
	for _, odd := range s.odd {
		t.Error(odd)
	}
	happened := s.happened(o)
	if len(happened) != len(o.w.tenures) {
		t.Errorf("the witness has seen %d tenures, and %d processes were started", len(happened), len(o.w.tenures))
	}
	told := map[int64]v1alpha1.TenureChange{}
	for _, job := range s.jobs {
		if diff := wrong(job.Status, happened); diff != "" {
			t.Errorf("the status up to token %d (-what happened +what is told):\n%s", job.Status.FencingToken, diff)
			break
		}
		for _, h := range job.Status.History {
			told[h.Token] = h
		}
	}
	if len(told) != len(happened) {
		t.Errorf("%d changes are told in all, and %d happened", len(told), len(happened))
	}
	s.judgeEvents(o, happened, told)
}

// wrong is the difference between a status and what had happened up to its token.
func wrong(s v1alpha1.SingletonJobStatus, happened []v1alpha1.TenureChange) string {
	type story struct {
		History              []v1alpha1.TenureChange
		Failovers, Handovers int64
		Last                 time.Time
	}
	var want, got story
	for _, c := range happened {
		if c.Token > s.FencingToken {
			break
		}
		want.History = slices.Insert(want.History, 0, c)
		switch c.Type {
		case v1alpha1.Failover:
			want.Failovers++
			want.Last = c.Time.Truncate(time.Second)
		case v1alpha1.Handover:
			want.Handovers++
		case v1alpha1.Elected:
		}
	}
	want.History = want.History[:min(len(want.History), int(v1alpha1.DefaultHistoryLimit))]
	got = story{slices.Clone(s.History), s.Failovers, s.Handovers, time.Time{}}
	if s.LastFailoverTime != nil {
		got.Last = s.LastFailoverTime.Time
	}
	for i := range min(len(got.History), len(want.History)) {
		leeway(&want.History[i], got.History[i])
	}
	return cmp.Diff(want, got)
}

// leeway removes a downtime of a tenure whose Lease was deleted. An operator that saw the Lease knows its renewals until its last
// reconcile. One that did not see the Lease gives no downtime.
func leeway(want *v1alpha1.TenureChange, got v1alpha1.TenureChange) {
	if want.Reason != v1alpha1.ChangeLeaseDeleted && want.Reason != v1alpha1.ChangeLeaseLost {
		return
	}
	const looks = 3 * time.Second // renewDeadline: the operator reads the Lease again by then
	if got.Downtime == nil || got.Downtime.Duration >= want.Downtime.Duration && got.Downtime.Duration <= want.Downtime.Duration+looks {
		want.Downtime = got.Downtime
	}
}

func (s *witness) judgeEvents(o *ordeal, happened []v1alpha1.TenureChange, told map[int64]v1alpha1.TenureChange) {
	t := o.w.t
	t.Helper()
	want, got := map[string]string{}, map[string]string{}
	for _, c := range happened {
		text := fmt.Sprintf("%s (node %s, token %d)", c.To, c.ToNode, c.Token)
		if c.Type == v1alpha1.Elected {
			text += " is the first holder"
		} else {
			text += fmt.Sprintf(" took over from %s (node %s, token %d): %s", c.From, c.FromNode, c.FromToken, c.Reason)
		}
		if down := told[c.Token].Downtime; down != nil {
			text += fmt.Sprintf(", %v without an active process", down.Duration)
		}
		want[fmt.Sprintf("%s.tenure-%d", o.w.key.Name, c.Token)] = string(c.Type) + ": " + text
	}
	for _, e := range s.events {
		if slices.Contains([]string{"Elected", "Failover", "Handover"}, e.Reason) {
			got[e.Name] = e.Reason + ": " + e.Message
		}
	}
	if diff := cmp.Diff(want, got); diff != "" {
		t.Errorf("the Events (-what happened +what they say):\n%s", diff)
	}
}
