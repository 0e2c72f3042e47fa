package controller

import (
	"context"

	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/controller/priorityqueue"
	"sigs.k8s.io/controller-runtime/pkg/event"
	"sigs.k8s.io/controller-runtime/pkg/handler"
	"sigs.k8s.io/controller-runtime/pkg/reconcile"
)

// The queue order: first changes of holder, which traffic and users wait for. Then comes everything else about running jobs, including
// rollouts, then new jobs, and last the jobs listed at the operator's start (controller-runtime's LowPriority).
const (
	failoverPriority = 10
	newJobPriority   = -10
)

// add puts jobs into the queue with a priority. Other kinds of queue, as in tests, have no priorities.
func add(q queue, priority int, jobs ...reconcile.Request) {
	if p, ok := q.(priorityqueue.PriorityQueue[reconcile.Request]); ok {
		p.AddWithOpts(priorityqueue.AddOpts{Priority: &priority}, jobs...)
		return
	}
	for _, job := range jobs {
		q.Add(job)
	}
}

// newJobs gives a low priority to jobs that are new to the operator. IsInInitialList differs between handlers for a job that is
// created during the start, so this handler takes all new jobs.
var newJobs = handler.Funcs{CreateFunc: func(_ context.Context, e event.CreateEvent, q queue) {
	priority := newJobPriority
	if e.IsInInitialList {
		priority = handler.LowPriority
	}
	add(q, priority, reconcile.Request{NamespacedName: client.ObjectKeyFromObject(e.Object)})
}}
