package controller

import (
	"context"

	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/controller/priorityqueue"
	"sigs.k8s.io/controller-runtime/pkg/event"
	"sigs.k8s.io/controller-runtime/pkg/handler"
	"sigs.k8s.io/controller-runtime/pkg/reconcile"
)

// What waits is taken in this order: changes of holder, on which traffic and people wait; what else happens to jobs that run, rollouts
// too; jobs that are new; and last what a list says at the operator's start (controller-runtime's LowPriority).
const (
	failoverPriority = 10
	newJobPriority   = -10
)

// add puts jobs where their priority has them. A queue of another kind, as tests have, knows none.
func add(q queue, priority int, jobs ...reconcile.Request) {
	if p, ok := q.(priorityqueue.PriorityQueue[reconcile.Request]); ok {
		p.AddWithOpts(priorityqueue.AddOpts{Priority: &priority}, jobs...)
		return
	}
	for _, job := range jobs {
		q.Add(job)
	}
}

// newJobs have jobs wait that are new to an operator. Whether a job is one of its start each handler is told by itself, and of one that is made
// during the start they are told otherwise: so this one takes all.
var newJobs = handler.Funcs{CreateFunc: func(_ context.Context, e event.CreateEvent, q queue) {
	priority := newJobPriority
	if e.IsInInitialList {
		priority = handler.LowPriority
	}
	add(q, priority, reconcile.Request{NamespacedName: client.ObjectKeyFromObject(e.Object)})
}}
