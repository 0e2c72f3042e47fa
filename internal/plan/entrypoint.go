package plan

import (
	"cmp"
	"fmt"
	"time"

	"github.com/singletonjob/operator/api/v1alpha1"
	"github.com/singletonjob/operator/internal/inject"
)

// AsksForEntrypoint returns the job with its effective template if the operator must look up the entrypoint of its image before it can
// create pods; else nil.
func AsksForEntrypoint(o *Observed) *v1alpha1.SingletonJob {
	if o.Job == nil || o.Job.DeletionTimestamp != nil || o.Job.Spec.Suspend || !inject.Unknown(Effective(o.Job, o.Workload)) {
		return nil
	}
	if j := jobOf(o); j.mayAsk() {
		return j.SingletonJob
	}
	return nil
}

// recordSoon is how soon pods are created after the entrypoint was recorded. They are created only from what the status records. So all
// pods of a template get the same entrypoint, whichever operator creates them, and whether or not a registry answers.
const recordSoon = time.Millisecond

// describeEntrypoint records the lookup's result for the current template. The result for another template stays until then, so that a
// template that is restored finds its own result again.
func describeEntrypoint(status *v1alpha1.SingletonJobStatus, j *job) {
	if found := j.lookup.Found; found != nil && found.TemplateHash == inject.EntrypointHash(j.SingletonJob) && inject.Unknown(j.SingletonJob) {
		status.Entrypoint = found.DeepCopy()
	}
}

// await blocks all starts while the result of a lookup is not recorded.
func (j *job) await(l Lookup) {
	if j.lookup = l; !j.mayAsk() || !inject.Unknown(j.SingletonJob) {
		return
	}
	if j.blocked == well {
		j.blocked, j.awaits = unknownEntrypoint(j), true
	} else {
		j.blocked.message += "; this must be fixed first, too: " + unknownEntrypoint(j).message
	}
}

// mayAsk reports whether the lookup is wanted. That includes a workload that still runs by itself, so that the entrypoint is known before a
// user scales the workload to 0.
func (j *job) mayAsk() bool {
	switch j.blocked.reason {
	case well.reason, v1alpha1.ReasonWorkloadRunning, v1alpha1.ReasonWorkloadSettling:
		return len(j.faults) == 0
	}
	return false
}

func unknownEntrypoint(j *job) verdict {
	container := j.Spec.Template.Spec.Containers[j.GatedContainer()]
	text := fmt.Sprintf("the gated container %q sets no command, and the entrypoint of its image %q is unknown: %s", container.Name,
		bounded(container.Image, maxDetail), cmp.Or(bounded(j.lookup.Problem, maxRefusal), "the operator is asking its registry"))
	if j.lookup.Problem != "" {
		remedy := "set command to the ENTRYPOINT of the image, or fix the cause"
		if j.lookup.Reason == v1alpha1.ReasonNoEntrypoint {
			remedy = "set command to a program in the image"
		}
		text += "; " + remedy + "; existing pods stay as they are until then"
	}
	switch j.lookup.Reason {
	case v1alpha1.ReasonRegistryUnreachable:
		return verdict{v1alpha1.ReasonRegistryUnreachable, text}
	case v1alpha1.ReasonRegistryRefused:
		return verdict{v1alpha1.ReasonRegistryRefused, text}
	case v1alpha1.ReasonRegistryUntrusted:
		return verdict{v1alpha1.ReasonRegistryUntrusted, text}
	case v1alpha1.ReasonImageNotFound:
		return verdict{v1alpha1.ReasonImageNotFound, text}
	case v1alpha1.ReasonNoEntrypoint:
		return verdict{v1alpha1.ReasonNoEntrypoint, text}
	case v1alpha1.ReasonEntrypointsDiffer:
		return verdict{v1alpha1.ReasonEntrypointsDiffer, text}
	}
	return verdict{v1alpha1.ReasonEntrypointUnknown, text}
}

func wakeForLookup(a *alarm, l Lookup) {
	if l.Found != nil {
		a.in(recordSoon)
	}
	a.in(l.Retry)
}
