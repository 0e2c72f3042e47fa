package plugin

import (
	"context"
	"io"
	"net/http"
	"slices"
	"sync/atomic"
	"time"

	coordinationv1 "k8s.io/api/coordination/v1"
	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/types"
	typedcorev1 "k8s.io/client-go/kubernetes/typed/core/v1"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/singletonjob/operator/api/v1alpha1"
	"github.com/singletonjob/operator/internal/show"
)

// evidence reads the facts of a job and all that explains them. What the user may not read is left out.
func (c *cluster) evidence(ctx context.Context, job *v1alpha1.SingletonJob) (show.Facts, error) {
	f, err := c.factsOf(ctx, job)
	if err != nil {
		return f, err
	}
	if err := c.readClock(ctx, &f); err != nil {
		return f, err
	}
	if err := c.readEvents(ctx, &f); err != nil {
		return f, err
	}
	f.Nodes = c.nodesOf(ctx, f)
	f.Operators, f.OperatorsKnown = c.operators(ctx)
	if show.View(f).Active == nil {
		c.readComplaints(ctx, &f)
	}
	f.Now = c.now()
	return f, nil
}

// readEvents reads the Events of the job and of its Pods that are not ready.
func (c *cluster) readEvents(ctx context.Context, f *show.Facts) error {
	names := []string{f.Job.Name}
	for _, candidate := range show.View(*f).Candidates {
		if !candidate.Ready {
			names = append(names, candidate.Pod)
		}
	}
	for _, name := range names {
		var events corev1.EventList
		err := c.List(ctx, &events, client.InNamespace(f.Job.Namespace), client.MatchingFields{"involvedObject.name": name})
		if apierrors.IsForbidden(err) {
			return nil // Events only help to explain
		}
		if err != nil {
			return err
		}
		f.Events = append(f.Events, events.Items...)
	}
	return nil
}

// nodesOf returns the nodes of a job's candidates and of the last failover, by name. One without a UID does not exist.
func (c *cluster) nodesOf(ctx context.Context, f show.Facts) map[string]*corev1.Node {
	var names []string
	for i := range f.Pods {
		names = append(names, f.Pods[i].Spec.NodeName)
	}
	for _, change := range f.Job.Status.History {
		if change.Type == v1alpha1.Failover {
			names = append(names, change.FromNode)
			break
		}
	}
	slices.Sort(names)
	nodes := map[string]*corev1.Node{}
	for _, name := range slices.Compact(names) {
		if name == "" {
			continue
		}
		node := &corev1.Node{}
		if err := c.Get(ctx, types.NamespacedName{Name: name}, node); err == nil || apierrors.IsNotFound(err) {
			nodes[name] = node
		}
	}
	return nodes
}

// operators lists the operators' Pods. They are not known if the user may not list the Pods of all namespaces.
func (c *cluster) operators(ctx context.Context) (pods []corev1.Pod, known bool) {
	var all corev1.PodList
	if err := c.List(ctx, &all, client.MatchingLabels(show.OperatorLabels())); err != nil {
		return nil, false
	}
	return all.Items, true
}

// readComplaints reads the end of each candidate's log.
func (c *cluster) readComplaints(ctx context.Context, f *show.Facts) {
	const lines, most = 200, 1 << 18
	core, err := typedcorev1.NewForConfig(c.config)
	if err != nil {
		return
	}
	f.Complaints = map[string]string{}
	for i := range f.Pods {
		pod := &f.Pods[i]
		options := &corev1.PodLogOptions{Container: show.GatedName(pod), TailLines: new(int64(lines)), LimitBytes: new(int64(most))}
		in, err := core.Pods(pod.Namespace).GetLogs(pod.Name, options).Stream(ctx)
		if err != nil {
			continue // no container has run, or the user may not read logs
		}
		text, _ := io.ReadAll(io.LimitReader(in, most))
		_ = in.Close()
		if complaint := show.Complaint(string(text)); complaint != "" {
			f.Complaints[pod.Name] = complaint
		}
	}
}

// dated is a RoundTripper that remembers the time of the last answer, by the clock of the API server.
type dated struct {
	http.RoundTripper
	last *atomic.Pointer[time.Time]
}

func (d dated) RoundTrip(r *http.Request) (*http.Response, error) {
	answer, err := d.RoundTripper.RoundTrip(r)
	if err == nil {
		if at, err := http.ParseTime(answer.Header.Get("Date")); err == nil {
			d.last.Store(&at)
		}
	}
	return answer, err
}

// readClock compares the clock of the holder's node with the API server's. If the Lease looks older than a renewal can be, it waits for
// the next renewal: either there is none, or that clock is behind.
func (c *cluster) readClock(ctx context.Context, f *show.Facts) error {
	period := f.Job.Spec.Lease.RetryPeriod.Duration
	if f.Lease == nil || show.Holder(*f) == "" {
		return nil
	}
	begun := c.now()
	for {
		var l coordinationv1.Lease
		if err := c.Get(ctx, client.ObjectKeyFromObject(f.Job), &l); err != nil {
			return client.IgnoreNotFound(err)
		}
		served := c.answered.Load()
		if l.Spec.RenewTime == nil || served == nil {
			return nil
		}
		renewed := l.Spec.RenewTime.Time
		f.Clock = show.Clock{Renewed: renewed, Served: *served}
		waited := c.now().Sub(begun)
		switch {
		case renewed.UnixMicro() != f.Lease.RenewTime: // it was stored during the wait
			f.Clock.Since = waited + 2*poll
			c.decode(&l, f)
			return nil
		case served.Sub(renewed) < period+settled, waited > period+settled, period > longest:
			return nil
		}
		select {
		case <-ctx.Done():
			return ctx.Err()
		case <-time.After(poll):
		}
	}
}

const (
	// poll is the time between two looks at a Lease.
	poll = 250 * time.Millisecond
	// settled is the time that a renewal may take beyond its period.
	settled = 3 * time.Second
	// longest is the longest period between renewals that an explanation waits for.
	longest = 10 * time.Second
)
