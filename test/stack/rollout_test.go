//go:build linux

package stack

import (
	"flag"
	"fmt"
	"slices"
	"strings"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/meta"

	"github.com/singletonjob/operator/api/v1alpha1"
	"github.com/singletonjob/operator/test/tier"
)

// rollouts of docs/rollout.md are 20.
var rollouts = flag.Int("rollouts", 2, "how many rollouts TestRollouts makes")

// TestRollouts: each costs one handover, while the process writes all the time, and nothing stale is stored. The downtime is printed and
// not judged, because a busy machine can make it long.
func TestRollouts(t *testing.T) {
	tier.Deep(t, "counts the handovers of rollouts")
	w := newWorld(t)
	job := w.job(patient, func(job *v1alpha1.SingletonJob) {
		job.Spec.Strategy.MinReadySeconds = new(int32(1))
		job.Spec.HistoryLimit = new(v1alpha1.MaxHistoryLimit)
		job.Spec.Template.Spec.TerminationGracePeriodSeconds = new(int64(60)) // for the release too, on a busy machine
	})
	last := w.run(job)
	var gaps []time.Duration
	for n := 1; n <= *rollouts; n++ {
		w.update(func(spec *v1alpha1.SingletonJobSpec) {
			env := &spec.Template.Spec.Containers[0].Env
			*env = append(slices.DeleteFunc(*env, func(e corev1.EnvVar) bool { return e.Name == "VERSION" }),
				corev1.EnvVar{Name: "VERSION", Value: fmt.Sprint(n)})
		})
		next := w.next(last)
		w.deadBefore(last, next)
		gaps = append(gaps, next.process.Started-w.died(last))
		_, err := w.p.AwaitJob(w.context(), w.ns, jobName, "rolled out", func(job *v1alpha1.SingletonJob) bool {
			s := job.Status
			return s.ObservedGeneration == job.Generation && s.Candidates.Updated == 2 && s.Candidates.Total == 2 && s.Candidates.Ready == 2 && s.Handovers >= int64(n)
		})
		w.must(err)
		last = next
	}
	changes := w.verify()
	if len(changes) != *rollouts+1 {
		t.Errorf("%d changes of holder in %d rollouts: %+v", len(changes), *rollouts, changes)
	}
	for _, c := range changes[1:] {
		if c.Type != v1alpha1.Handover || c.Reason != v1alpha1.ChangeRolloutHandover {
			t.Errorf("a rollout cost a %s for %s", c.Type, c.Reason)
		}
	}
	slices.Sort(gaps)
	t.Logf("%d rollouts, from the death of one process to the start of the next: median %v, longest %v", len(gaps), gaps[len(gaps)/2], gaps[len(gaps)-1])
}

func (w *world) update(change func(*v1alpha1.SingletonJobSpec)) {
	w.t.Helper()
	w.await("the job to be changed", func() (bool, any, error) {
		now, err := w.p.Job(w.t.Context(), w.ns, jobName)
		if err != nil {
			return false, nil, err
		}
		change(&now.Spec)
		return w.p.Client.Update(w.t.Context(), now) == nil, nil, nil
	})
}

// TestRolloutThatCannotStart: a new version whose command is not in its image never becomes active. The status says why, and the way
// back is no handover either.
func TestRolloutThatCannotStart(t *testing.T) {
	tier.Deep(t, "waits for a rollout to stall")
	w := newWorld(t)
	active := w.run(w.job(long))
	var command []string
	w.update(func(spec *v1alpha1.SingletonJobSpec) {
		command = spec.Template.Spec.Containers[0].Command
		spec.Template.Spec.Containers[0].Command = []string{"/no/such/program"}
	})
	settled := func(reason, says string) func(*v1alpha1.SingletonJob) bool {
		return func(job *v1alpha1.SingletonJob) bool {
			c := meta.FindStatusCondition(job.Status.Conditions, v1alpha1.ConditionProgressing)
			return job.Status.ObservedGeneration == job.Generation && c != nil && c.Reason == reason && strings.Contains(c.Message, says)
		}
	}
	_, err := w.p.AwaitJob(w.context(), w.ns, jobName, "stalled", settled(v1alpha1.ReasonRolloutStalled, "command not found"))
	w.must(err)
	w.update(func(spec *v1alpha1.SingletonJobSpec) { spec.Template.Spec.Containers[0].Command = command })
	_, err = w.p.AwaitJob(w.context(), w.ns, jobName, "as before", settled(v1alpha1.ReasonUpToDate, ""))
	w.must(err)
	w.protected()
	if changes := w.verify(); len(changes) != 1 || changes[0].Token != int64(active.token) {
		t.Errorf("it was active: %+v", changes)
	}
}
