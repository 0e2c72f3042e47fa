//go:build linux

package stack

import (
	"context"
	"fmt"
	"slices"
	"strings"
	"time"

	"github.com/prometheus/procfs"
	"golang.org/x/sys/unix"
	"k8s.io/apimachinery/pkg/api/meta"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/singletonjob/operator/api/v1alpha1"
	"github.com/singletonjob/operator/fence"
	"github.com/singletonjob/operator/fence/fencetest"
	"github.com/singletonjob/operator/test/localnode"
	"github.com/singletonjob/operator/test/observe"
)

// Job reads a SingletonJob.
func (p *Product) Job(ctx context.Context, namespace, name string) (*v1alpha1.SingletonJob, error) {
	job := &v1alpha1.SingletonJob{}
	return job, p.Client.Get(ctx, client.ObjectKey{Namespace: namespace, Name: name}, job)
}

// AwaitJob waits until a SingletonJob is as wanted.
func (p *Product) AwaitJob(ctx context.Context, namespace, name, what string, is func(*v1alpha1.SingletonJob) bool) (*v1alpha1.SingletonJob, error) {
	var job *v1alpha1.SingletonJob
	err := observe.Await(ctx, namespace+"/"+name+" to be "+what, func() (bool, any, error) {
		found, err := p.Job(ctx, namespace, name)
		if err != nil {
			return false, nil, err
		}
		job = found
		return is(found), found.Status, nil
	})
	return job, err
}

// ActiveAfter holds for a job whose process runs with a token above after.
func ActiveAfter(after fence.Token) func(*v1alpha1.SingletonJob) bool {
	return func(job *v1alpha1.SingletonJob) bool {
		return job.Status.ActivePod != "" && job.Status.FencingToken > int64(after) && meta.IsStatusConditionTrue(job.Status.Conditions, v1alpha1.ConditionActive)
	}
}

// Protected holds for a job with a warm standby on another node, and nothing under way.
func Protected(job *v1alpha1.SingletonJob) bool {
	return meta.IsStatusConditionTrue(job.Status.Conditions, v1alpha1.ConditionActive) && meta.IsStatusConditionTrue(job.Status.Conditions, v1alpha1.ConditionProtected)
}

// AwaitWrite waits for the first write that the sink accepted with a token above after.
func (p *Product) AwaitWrite(ctx context.Context, resource fence.Resource, after fence.Token) (fencetest.Attempt, error) {
	var found fencetest.Attempt
	err := observe.Await(ctx, fmt.Sprintf("a write with a token above %d", after), func() (bool, any, error) {
		for _, a := range p.Sink.Attempts(0) {
			if a.Resource == resource && a.Accepted && a.Token > after {
				found = a
				return true, nil, nil
			}
		}
		return false, p.Sink.Report().Resource(resource), nil
	})
	return found, err
}

// Process is a writer's process.
type Process struct {
	Node *localnode.Node
	Pid  int
	// Started is when the kernel made it, by CLOCK_BOOTTIME, rounded down to the kernel's tick.
	Started time.Duration
	died    chan death
}

// WriterProcess finds the process that makes a pod's writes, and watches it from now on.
func (p *Product) WriterProcess(namespace, pod string) (*Process, error) {
	node, err := p.Cluster.NodeOf(namespace, pod)
	if err != nil {
		return nil, err
	}
	all, err := node.Processes(namespace, pod)
	if err != nil {
		return nil, err
	}
	i := slices.IndexFunc(all, func(p localnode.Process) bool { return len(p.Args) > 0 && strings.HasSuffix(p.Args[0], "workload") })
	if i < 0 {
		return nil, fmt.Errorf("pod %s runs no writer: %+v", pod, all)
	}
	process := &Process{Node: node, Pid: all[i].Pid, died: make(chan death, 1)}
	handle, err := unix.PidfdOpen(process.Pid, 0)
	if err != nil {
		return nil, fmt.Errorf("watching process %d: %w", process.Pid, err)
	}
	if process.Started, err = startTime(process.Pid); err != nil {
		_ = unix.Close(handle)
		return nil, err
	}
	go func() {
		defer func() { _ = unix.Close(handle) }()
		d := death{alive: process.Started}
		for {
			now := fencetest.Boottime()
			// The handle becomes readable when the process has ended, be it reaped or not.
			n, err := unix.Poll([]unix.PollFd{{Fd: int32(handle), Events: unix.POLLIN}}, 1)
			switch {
			case err == nil && n == 1:
				d.dead = fencetest.Boottime()
				process.died <- d
				return
			case err == nil:
				d.alive = now
			}
		}
	}()
	return process, nil
}

// death is between two readings of CLOCK_BOOTTIME, a millisecond apart if the machine has the time.
type death struct{ alive, dead time.Duration }

// AwaitDeath waits for the end of the process. The times are of CLOCK_BOOTTIME: at dead it had ended, at alive it had not.
func (p *Process) AwaitDeath(ctx context.Context) (dead, alive time.Duration, err error) {
	select {
	case d := <-p.died:
		p.died <- d
		return d.dead, d.alive, nil
	case <-ctx.Done():
		return 0, 0, fmt.Errorf("waiting for the end of process %d: %w", p.Pid, context.Cause(ctx))
	}
}

// startTime is when the kernel made a process, in ticks of 10 ms since the machine started.
func startTime(pid int) (time.Duration, error) {
	const tick = 10 * time.Millisecond
	process, err := procfs.NewProc(pid)
	if err != nil {
		return 0, err
	}
	stat, err := process.Stat()
	return time.Duration(stat.Starttime) * tick, err
}

// Lives tells which processes wrote to a resource and when, by the clock that all processes of the machine share.
func (p *Product) Lives(resource fence.Resource) []observe.Life {
	return observe.Lives(p.Sink.Attempts(0), resource, true)
}
