//go:build linux

package observe

import (
	"cmp"
	"context"
	"fmt"
	"slices"
	"strings"
	"sync"
	"time"

	coordinationv1 "k8s.io/api/coordination/v1"
	corev1 "k8s.io/api/core/v1"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/singletonjob/operator/api/v1alpha1"
	"github.com/singletonjob/operator/fence/fencetest"
	"github.com/singletonjob/operator/internal/contract"
)

// A Timeline collects what happened, for a person who reads of a failure without a rerun.
type Timeline struct {
	begin time.Time

	mu      sync.Mutex
	entries []entry
}

type entry struct {
	at   time.Time
	text string
}

// NewTimeline begins now.
func NewTimeline() *Timeline { return &Timeline{begin: time.Now()} }

// Note records that something happened now.
func (t *Timeline) Note(format string, args ...any) { t.noteAt(time.Now(), format, args...) }

func (t *Timeline) noteAt(at time.Time, format string, args ...any) {
	t.mu.Lock()
	defer t.mu.Unlock()
	t.entries = append(t.entries, entry{at: at, text: fmt.Sprintf(format, args...)})
}

// NoteLives records when each process wrote.
func (t *Timeline) NoteLives(lives []Life) {
	// CLOCK_BOOTTIME as the time of day. Where the writers' clocks are not this machine's, the sink's are not either, and
	// only the order counts.
	now, boottime := time.Now(), fencetest.Boottime()
	of := func(d time.Duration) time.Time { return now.Add(d - boottime) }
	for i, l := range lives {
		t.noteAt(of(l.First), "SINK   token %v: first write of %s", l.Tokens, l.Writer)
		t.noteAt(of(l.Last), "SINK   token %v: last write of %s; %d stored, %d refused, %d of them stale", l.Tokens, l.Writer, l.Accepted, l.Refused, l.Stale)
		if i > 0 && l.FirstStored > 0 {
			t.noteAt(of(l.FirstStored), "SINK   token %v: first stored write, %v after the last one of token %v", l.Tokens, (l.FirstStored - lives[i-1].LastStored).Round(time.Millisecond), lives[i-1].Tokens)
		}
	}
}

// String is the whole, a line each, in seconds since the beginning.
func (t *Timeline) String() string {
	t.mu.Lock()
	defer t.mu.Unlock()
	sorted := slices.Clone(t.entries)
	slices.SortStableFunc(sorted, func(a, b entry) int { return cmp.Compare(a.at.UnixNano(), b.at.UnixNano()) })
	var text strings.Builder
	for _, e := range sorted {
		fmt.Fprintf(&text, "%9.3f  %s\n", e.at.Sub(t.begin).Seconds(), e.text)
	}
	return text.String()
}

// Follow records how the Leases, pods, SingletonJobs and Events of the namespace change, until the context ends.
func (t *Timeline) Follow(ctx context.Context, c client.WithWatch, namespace string) {
	for _, list := range []client.ObjectList{&coordinationv1.LeaseList{}, &corev1.PodList{}, &v1alpha1.SingletonJobList{}, &corev1.EventList{}} {
		go t.follow(ctx, c, namespace, list)
	}
}

func (t *Timeline) follow(ctx context.Context, c client.WithWatch, namespace string, list client.ObjectList) {
	last := map[string]string{} // by kind and name: what was recorded of it
	for ctx.Err() == nil {
		w, err := c.Watch(ctx, list, client.InNamespace(namespace))
		if err != nil { // the API server is away: that is what some tests are about
			select {
			case <-ctx.Done():
			case <-time.After(200 * time.Millisecond):
			}
			continue
		}
		for event := range w.ResultChan() {
			object, ok := event.Object.(client.Object)
			if !ok {
				continue // an error: the watch ends
			}
			kind, text := describe(object)
			if event.Type == "DELETED" {
				text = "deleted"
			}
			key := kind + object.GetName()
			if last[key] != text {
				last[key] = text
				t.Note("%-6s %s %s", kind, object.GetName(), text)
			}
		}
		w.Stop()
	}
}

// describe leaves out what changes without meaning, such as the time of a renewal.
func describe(o client.Object) (kind, text string) {
	switch o := o.(type) {
	case *coordinationv1.Lease:
		holder := ""
		if o.Spec.HolderIdentity != nil {
			holder = *o.Spec.HolderIdentity
		}
		text = fmt.Sprintf("holder %q token %s", holder, o.Annotations[contract.TokenAnnotation])
		if reason := o.Annotations[contract.ReleaseReasonAnnotation]; reason != "" {
			text += " released: " + reason
		}
		if to := o.Annotations[contract.HandoverToAnnotation]; to != "" {
			text += " to be handed over to " + to
		}
		return "LEASE", text
	case *corev1.Pod:
		return "POD", describePod(o)
	case *v1alpha1.SingletonJob:
		conditions := make([]string, 0, len(o.Status.Conditions))
		for _, c := range o.Status.Conditions {
			conditions = append(conditions, fmt.Sprintf("%s=%s(%s)", c.Type, c.Status, c.Reason))
		}
		text = fmt.Sprintf("active %q token %d ready %s failovers %d handovers %d %s", o.Status.ActivePod, o.Status.FencingToken,
			o.Status.Candidates.Summary, o.Status.Failovers, o.Status.Handovers, strings.Join(conditions, " "))
		return "JOB", text
	case *corev1.Event:
		return "EVENT", fmt.Sprintf("%s %s: %s", o.InvolvedObject.Name, o.Reason, o.Message)
	}
	return fmt.Sprintf("%T", o), ""
}

func describePod(p *corev1.Pod) string {
	words := []string{string(p.Status.Phase), "on", p.Spec.NodeName}
	for _, c := range p.Status.Conditions {
		if c.Type == corev1.PodReady {
			words = append(words, "ready="+string(c.Status))
		}
	}
	if role := p.Labels[contract.RoleLabel]; role != "" {
		words = append(words, "role="+role)
	}
	for _, c := range p.Status.ContainerStatuses {
		words = append(words, c.Name+": "+describeState(c.State))
		if c.RestartCount > 0 {
			words = append(words, fmt.Sprintf("(restarts %d)", c.RestartCount))
		}
	}
	if p.DeletionTimestamp != nil {
		words = append(words, "terminating")
	}
	return strings.Join(words, " ")
}

func describeState(s corev1.ContainerState) string {
	switch {
	case s.Running != nil:
		return "running"
	case s.Terminated != nil:
		return fmt.Sprintf("ended %d %s", s.Terminated.ExitCode, s.Terminated.Reason)
	case s.Waiting != nil:
		return "waiting " + s.Waiting.Reason
	}
	return "unknown"
}
