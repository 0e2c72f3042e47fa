package plan

import (
	"cmp"
	"fmt"
	"math"
	"slices"
	"strings"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/singletonjob/operator/api/v1alpha1"
	"github.com/singletonjob/operator/internal/contract"
	"github.com/singletonjob/operator/internal/lease"
)

// verdict is the reason of a condition and its message for users. The API's table says which status goes with a reason. Messages contain no
// times and no counts that change by themselves, because every changed message is a write.
type verdict struct{ reason, message string }

// maxMessage limits the length of a condition's message, well below the API's limit, because it can quote a spec.
const maxMessage = 4096

// condition returns a verdict as a condition, with the status that the API declares for its reason.
func (v verdict) condition(condition string) metav1.Condition {
	status, declared := declaredStatuses[reasonOf{condition, v.reason}]
	if !declared {
		panic(condition + " has no reason " + v.reason)
	}
	return metav1.Condition{Type: condition, Status: status, Reason: v.reason, Message: bounded(v.message, maxMessage)}
}

type reasonOf struct{ condition, reason string }

// declaredStatuses are the statuses of conditions for each reason.
var declaredStatuses = statusesByReason(v1alpha1.ConditionReasons())

func statusesByReason(all []v1alpha1.ConditionReason) map[reasonOf]metav1.ConditionStatus {
	statuses := map[reasonOf]metav1.ConditionStatus{}
	for _, r := range all {
		statuses[reasonOf{r.Condition, r.Reason}] = r.Status
	}
	return statuses
}

// idle is the verdict on a job for which nothing is done. It is the same under each condition.
func idle(state State, j *job, t *tenure) verdict {
	switch state {
	case InvalidSpec:
		return invalidSpec(j)
	case LeaseConflict:
		return verdict{v1alpha1.ReasonLeaseConflict, fmt.Sprintf("the Lease %s/%s exists and does not belong to this operator, because it lacks the label %s=%s: "+
			"delete it, or give the SingletonJob another name; the operator changes nothing until then", j.Namespace, t.name, contract.ManagedByLabel, contract.ManagedBy)}
	default:
		return verdict{v1alpha1.ReasonSuspended, "spec.suspend is set; nothing runs"}
	}
}

func invalidSpec(j *job) verdict {
	spec := "the spec"
	if j.ref != nil {
		spec = fmt.Sprintf("the spec with the pod template of %s", j.ref)
	}
	return verdict{v1alpha1.ReasonInvalidSpec, spec + " is not valid, so the operator changes nothing: " + j.faults.ToAggregate().Error()}
}

func deleting() verdict {
	return verdict{v1alpha1.ReasonDeleting, "the SingletonJob is being deleted; the operator creates no more pods"}
}

func active(state State, j *job, t *tenure, m *members, r *runs, refused []Refusal) verdict {
	switch state {
	case InvalidSpec, LeaseConflict, Suspended:
		return idle(state, j, t)
	case Suspending:
		return suspending(j, t, m, "the process is being stopped")
	default:
	}
	switch {
	case t.holder.foreign:
		return verdict{v1alpha1.ReasonForeignHolder, foreignText(t.Record.Holder)}
	case t.shown:
		return attended(t, m)
	case t.stopped():
		return verdict{v1alpha1.ReasonHolderUnreachable, stoppedText(j, t)}
	case state == Deleting:
		return deleting()
	case state == Resting && !m.contended():
		return resting(r)
	case slices.ContainsFunc(refused, Refusal.blocks):
		return refusal(refused)
	case r.waits() && !m.contended() && (r.Now.State != lease.RunFailed || m.any(candidate.available)):
		return resting(r)
	}
	return unattended(j, t, m)
}

// attended is the verdict on a job with an acting pod.
func attended(t *tenure, m *members) verdict {
	switch {
	case m.unmanaged(t):
		return verdict{v1alpha1.ReasonUnmanagedHolder, unmanagedText(t)}
	case m.any(func(c candidate) bool { return c.unwell }):
		return verdict{v1alpha1.ReasonNotReady, t.holder.Pod + " holds the Lease and renews it, but its process is not ready by its own probes; its log says why"}
	}
	return verdict{v1alpha1.ReasonRunning, t.holder.Pod + " holds the Lease and renews it"}
}

// unattended is the verdict on a job without an acting pod.
func unattended(j *job, t *tenure, m *members) verdict {
	switch {
	case m.any(candidate.available):
		return verdict{v1alpha1.ReasonElecting, electingText(t)}
	case j.blocked.reason != "" && !m.any(candidate.live):
		return j.blocked
	case m.failAgain():
		return verdict{v1alpha1.ReasonPodsFailing, failingText(j, m)}
	case !m.any(candidate.live):
		return verdict{v1alpha1.ReasonNoCandidates, m.missingText("no candidate pod exists yet")}
	case m.misconfigured():
		return verdict{v1alpha1.ReasonAgentMisconfigured, issueText(j, m)}
	case m.backOff():
		return verdict{v1alpha1.ReasonProcessBackOff, issueText(j, m)}
	}
	return verdict{v1alpha1.ReasonCandidatesNotReady, notReadyText(j, m)}
}

func protected(state State, j *job, t *tenure, m *members, r *runs) verdict {
	switch state {
	case InvalidSpec, LeaseConflict, Suspended:
		return idle(state, j, t)
	case Suspending:
		return verdict{v1alpha1.ReasonSuspended, "spec.suspend is set; the candidates are being removed"}
	default:
	}
	switch {
	case t.shown && j.blocked.reason == v1alpha1.ReasonWorkloadRunning:
		return verdict{v1alpha1.ReasonWorkloadRunning, j.blocked.message}
	case j.Spec.Candidates == 1:
		return verdict{v1alpha1.ReasonSingleCandidate, m.singleText()}
	case !t.shown && r.rests():
		return verdict{v1alpha1.ReasonResting, "no run is under way, so there is nothing to protect"}
	case !t.shown:
		return verdict{v1alpha1.ReasonNoHolder, "nothing is active, so there is nothing to protect"}
	case m.confinedText() != "" && !m.any(candidate.isElsewhere):
		return verdict{v1alpha1.ReasonVolumeNotShared, m.unsharedText()}
	case !m.any(candidate.isStandby):
		return verdict{v1alpha1.ReasonNoStandby, "no standby is ready to take over"}
	case !m.any(candidate.isElsewhere):
		return verdict{v1alpha1.ReasonStandbyOnSameNode, m.togetherText()}
	}
	return verdict{v1alpha1.ReasonStandbyReady, "a warm standby is ready on another node"}
}

// handover is a handover that a user requests (asked). handing: the holder is asked to hand over, already or by this plan.
type handover struct {
	asked   switchover
	handing bool
}

// suspending is the verdict on a job that is being suspended. what is the progress to report, unless something prevents it.
func suspending(j *job, t *tenure, m *members, what string) verdict {
	switch {
	case m.unmanaged(t):
		what = "but " + unmanagedText(t)
	case t.keepsRunning() && !t.shown && (t.silent() || t.seemsOver):
		what = "but " + unprovenText(j, t)
	case len(m.candidates) == 0:
		what = "but " + lastingText(t)
	}
	return verdict{v1alpha1.ReasonSuspending, "spec.suspend is set; " + what}
}

// progressing is the verdict on changes in progress.
func progressing(state State, j *job, t *tenure, m *members, r *runs, refused []Refusal, h handover) verdict {
	switch state {
	case InvalidSpec, LeaseConflict, Suspended:
		return idle(state, j, t)
	case Suspending:
		return suspending(j, t, m, "the candidates are being removed, the active one last")
	case Deleting:
		return deleting()
	case Resting:
		if len(refused) > 0 {
			return refusal(refused)
		}
		if r.badRequest != "" {
			return badRequest(r)
		}
		return upToDate(t, m, "no candidate is needed while there is no run")
	default:
		return changing(j, t, m, r, refused, h)
	}
}

// changing is the verdict on the changes in progress of a job that must run.
func changing(j *job, t *tenure, m *members, r *runs, refused []Refusal, h handover) verdict {
	switch {
	case j.blocked.reason != "" && h.handing: // the handover continues
		return j.blocked
	case j.blocked.reason != "":
		return h.asked.waiting(j.blocked)
	case len(refused) > 0:
		return refusal(refused)
	case m.held():
		return verdict{v1alpha1.ReasonRolloutPaused, "spec.strategy.paused is set: the current template is not rolled out, and a lost candidate of the earlier one is not replaced"}
	case m.stalled():
		return stalling(j, m)
	case h.handing:
		return verdict{v1alpha1.ReasonHandingOver, t.holder.Pod + " was asked to hand over"}
	case h.asked.blocked != "":
		return verdict{v1alpha1.ReasonSwitchoverBlocked, h.asked.blocked}
	case m.failAgain():
		return verdict{v1alpha1.ReasonPodsFailing, failingText(j, m)}
	case m.fleet.outdated():
		return verdict{v1alpha1.ReasonRollingOut, m.rollingText()}
	case m.tardy() != nil && !m.misconfigured() && !m.backOff(): // Active reports those
		return verdict{v1alpha1.ReasonCandidateStuck, notReadyText(j, m)}
	}
	return provisioning(j, t, m, r)
}

// provisioning is the verdict on the number of candidates.
func provisioning(j *job, t *tenure, m *members, r *runs) verdict {
	switch {
	case j.Status.Tenures == 0 && t.Record.Transitions == 0 && (r == nil || m.lacking()):
		return verdict{v1alpha1.ReasonProvisioning, newText(j, m)}
	case scaling(j, m):
		return verdict{v1alpha1.ReasonScaling, "the number of candidates follows spec.candidates"}
	case m.lacking():
		return verdict{v1alpha1.ReasonReplacingCandidates, notReadyText(j, m)}
	}
	if r != nil && r.badRequest != "" {
		return badRequest(r)
	}
	switch {
	case m.turn.waits:
		return verdict{v1alpha1.ReasonRolloutWaits, waitsText}
	case m.any(func(c candidate) bool { return c.unwell }):
		return upToDate(t, m, "every candidate is created from the current template, and the standbys are ready")
	}
	return upToDate(t, m, "every candidate is created from the current template and ready")
}

// upToDate is the verdict that nothing must change, unless a pod acts that does not belong to the job.
func upToDate(t *tenure, m *members, text string) verdict {
	if m.unmanaged(t) {
		return verdict{v1alpha1.ReasonUnmanagedHolder, unmanagedText(t)}
	}
	return verdict{v1alpha1.ReasonUpToDate, text}
}

// scaling reports whether the number of candidates follows a changed spec. That lasts until all are ready.
func scaling(j *job, m *members) bool {
	if m.fleet.total() > m.fleet.Desired {
		return !m.moved()
	}
	before := meta.FindStatusCondition(j.Status.Conditions, v1alpha1.ConditionProgressing)
	changed := j.Status.ObservedGeneration > 0 && j.Status.ObservedGeneration != j.Generation ||
		before != nil && before.Reason == v1alpha1.ReasonScaling
	return changed && (m.fleet.total() < m.fleet.Desired || m.lacking())
}

// misconfigured reports whether an agent has rejected its configuration and no candidate is ready.
func (m *members) misconfigured() bool {
	return !m.any(candidate.available) && m.any(func(c candidate) bool { return c.live() && c.issue.what == misconfigured })
}

// backOff reports whether no candidate is ready because processes keep exiting.
func (m *members) backOff() bool {
	return !m.any(candidate.available) && m.any(func(c candidate) bool { return c.live() && strings.HasPrefix(c.issue.what, backOff) })
}

// failAgain reports whether candidates are missing or outdated because pods failed more than once in a row.
func (m *members) failAgain() bool {
	newest := m.newestFailed()
	return newest != nil && newest.failure.row > 1 && (m.lacking() || m.fleet.outdated())
}

// tardy returns a candidate that has not been ready for too long.
func (m *members) tardy() *candidate {
	return m.first(func(c candidate) bool {
		return c.live() && !c.inPlace() && !m.isMover(c) && c.unready >= m.strategy.deadline
	})
}

// stalled reports whether a rollout makes no progress: its version failed, or one of its candidates has an issue that time does not fix, or
// takes too long.
func (m *members) stalled() bool {
	return m.fleet.outdated() && !m.fleet.Busy && (m.fleet.Failed || m.slowest() != nil || m.failAgain())
}

// slowest returns a candidate of the current template that does not become ready.
func (m *members) slowest() *candidate {
	return m.first(func(c candidate) bool {
		return c.live() && c.updated && !c.ready && (c.issue.lasting || c.unready >= m.strategy.deadline)
	})
}

func (m *members) rollingText() string {
	if m.fleet.Busy {
		return "candidates are replaced by ones of the current template when the current attempt ends"
	}
	if m.turn.own {
		return "candidates are being replaced by ones of the same template, standbys first, because what the operator adds to pods has changed"
	}
	return "candidates are being replaced by ones of the current template, standbys first"
}

// held reports whether there is a rollout and it is paused.
func (m *members) held() bool { return m.fleet.Paused && m.fleet.outdated() }

// stalling is the verdict on a rollout that makes no progress.
func stalling(j *job, m *members) verdict {
	if c := m.slowest(); c != nil && !m.fleet.Failed && c.unready >= m.strategy.deadline {
		return verdict{v1alpha1.ReasonProgressDeadlineExceeded, stalledText(j, m)}
	}
	return verdict{v1alpha1.ReasonRolloutStalled, stalledText(j, m)}
}

func (r Refusal) blocks() bool { return r.Pods }

// refusal is the verdict on rejected requests. The reason is that of the first one that blocks new pods, or else of the first one. The message
// lists them all.
func refusal(refused []Refusal) verdict {
	var texts []string
	for _, r := range refused {
		texts = append(texts, Shorten(r.Text, maxRefusal))
	}
	first := max(0, slices.IndexFunc(refused, Refusal.blocks))
	message := "the API server rejects requests of the operator: " + strings.Join(texts, separator)
	switch refused[first].Verb {
	case Update:
		return verdict{v1alpha1.ReasonFailedUpdate, message}
	case Delete:
		return verdict{v1alpha1.ReasonFailedDelete, message}
	default:
		return verdict{v1alpha1.ReasonFailedCreate, message}
	}
}

// maxIdentity limits how much of a holder's identity is shown, because it can be as long as an object.
const maxIdentity = 128

func holderText(identity string) string { return identity[:min(len(identity), maxIdentity)] }

func foreignText(holder string) string {
	return fmt.Sprintf("%q holds the Lease and is not an agent of this SingletonJob: another elector on the same Lease is not supported. "+
		"Stop it, or give it its own Lease; a candidate takes over when it has not renewed for its full lease duration", holderText(holder))
}

func unmanagedText(t *tenure) string {
	return fmt.Sprintf("%[1]s, which the operator does not see as a pod of this SingletonJob, holds the Lease and renews it: it lacks the label %[2]s=%[3]s or the owner "+
		"of the job's pods, or was deleted by force; a candidate takes over when it ends: kubectl delete pod %[1]s", t.holder.Pod, contract.NameLabel, t.name)
}

func stoppedText(j *job, t *tenure) string {
	switch {
	case t.dead():
		return fmt.Sprintf("the process of %s is dead; the Lease is being released", t.holder.Pod)
	case j.limits.keepRunning:
		return fmt.Sprintf("%s has stopped renewing; its process may keep running (onRenewFailure: KeepRunning) until a standby takes over", t.holder.Pod)
	}
	return fmt.Sprintf("%s has stopped renewing; its process is dead when the lease has expired, and a standby then takes over", t.holder.Pod)
}

// unprovenText describes a holder that does not renew but may still run, and what would prove its death.
func unprovenText(j *job, t *tenure) string {
	node := cmp.Or(t.holder.node, "NODE")
	return fmt.Sprintf("%[1]s has stopped renewing, and nothing proves that its process is dead: with onRenewFailure: KeepRunning it can keep running without the Lease, "+
		"for example on a node that is cut off. Bring node %[2]s back, or, if that machine is off, declare it: kubectl taint node %[2]s %[3]s=nodeshutdown:NoExecute; if that node no "+
		"longer exists, delete the Lease %[4]s/%[5]s", t.holder.Pod, node, corev1.TaintNodeOutOfService, j.Namespace, t.name)
}

// lastingText describes a tenure that may last although the job has no pod.
func lastingText(t *tenure) string {
	switch {
	case t.holder.foreign:
		return fmt.Sprintf("%q holds the Lease and is not an agent of this SingletonJob: stop it, and wait until its lease has expired", holderText(t.Record.Holder))
	case t.holder.Pod != "":
		return fmt.Sprintf("%s, which the operator does not see as a pod of this SingletonJob, holds the Lease; its process is dead %v after its last renewal",
			t.holder.Pod, t.holder.limits.duration)
	}
	return fmt.Sprintf("the last tenure may not be over; it is over when the Lease has not changed for %v", t.holder.limits.duration)
}

func electingText(t *tenure) string {
	switch {
	case t.badTokenBase != "":
		return fmt.Sprintf("the Lease's annotation %s is %q, no number from 0 to %d (2^52); it is being reset. Set spec.fencing.tokenBase instead",
			contract.TokenBaseAnnotation, t.badTokenBase, v1alpha1.MaxTokenBase)
	case t.Record.Token == math.MaxInt64:
		return fmt.Sprintf("the Lease's annotation %s is %d, the highest possible token, so no candidate can take over: give the SingletonJob another name",
			contract.TokenAnnotation, t.Record.Token)
	case t.holder.named && !t.holder.ours && t.holder.Pod != "":
		return fmt.Sprintf("the Lease is held by %s, a pod of a previous job with this name; a candidate takes over when it ends", t.holder.Pod)
	case t.holder.named && (t.expired() || t.holder.ours && t.seemsOver):
		return "the lease of the last holder has expired; candidates compete for it"
	case t.holder.named:
		return "the last tenure may not be over; a candidate takes over when its lease has expired"
	}
	return "candidates compete for the Lease"
}

// issueText describes the first candidate that has an issue, takes too long, or has failed.
func issueText(j *job, m *members) string {
	if c := m.first(func(c candidate) bool { return c.live() && !m.isMover(c) && c.issue.what != "" }); c != nil {
		return named(j, c.pod, c.issue)
	}
	if c := m.tardy(); c != nil {
		return named(j, c.pod, stuck(c.pod))
	}
	if failed := m.newestFailed(); failed != nil {
		return named(j, failed.pod, failureOf(failed.pod))
	}
	return ""
}

func notReadyText(j *job, m *members) string {
	if volume := m.waitsForVolume(); volume != "" {
		return volume
	}
	if c := m.tardy(); c != nil && m.keptOutText(j, c) != "" {
		return "a candidate is not ready. " + m.keptOutText(j, c) + ": " + named(j, c.pod, cmp.Or(c.issue, stuck(c.pod)))
	}
	if known := issueText(j, m); known != "" {
		return "a candidate is not ready: " + known
	}
	return m.missingText("a candidate is missing or not ready yet")
}

func newText(j *job, m *members) string {
	if known := issueText(j, m); known != "" {
		return "the first candidates are not ready: " + known
	}
	return m.missingText("the first candidates are being created")
}

// missingText says why candidates are missing if that has an expected cause.
func (m *members) missingText(otherwise string) string {
	if len(m.strangers) > 0 {
		return fmt.Sprintf("no run starts while pods of a previous job with this name exist, such as %s: their agents would take the run for one of that job", m.strangers[0].Name)
	}
	if len(m.previous) == 0 {
		return otherwise
	}
	return "no candidate is created before the Kubernetes garbage collector has deleted the objects of a previous job with this name: " +
		strings.Join(m.previous, separator)
}

// failingText describes the newest failed pod, which is kept for inspection.
func failingText(j *job, m *members) string {
	pod := m.newestFailed().pod
	return "pods fail one after another and are recreated after a growing delay: " + named(j, pod, failureOf(pod))
}

func stalledText(j *job, m *members) string {
	const goesOn = "the old version continues: "
	switch c := m.slowest(); {
	case m.fleet.Failed:
		return "the current template was tried and its process ended before it had been ready for minReadySeconds, so the old version continued: change spec.template"
	case c == nil:
		return goesOn + failingText(j, m)
	case c.unwell:
		return c.pod.Name + " is active with the current template but not ready by its own probes; a standby of the old version is kept until it is"
	case c.holds:
		return "a standby of the old version is kept, because the active pod with the current template does not become ready: " +
			named(j, c.pod, cmp.Or(c.issue, stuck(c.pod)))
	case m.keptOutText(j, c) != "":
		return "the old version continues. " + m.keptOutText(j, c) + ": " + named(j, c.pod, cmp.Or(c.issue, stuck(c.pod)))
	case c.issue.unplaced && m.noRoom == 0 && !m.fleet.NoRoom:
		return "the old version continues. Make room for one pod more than spec.candidates, because no standby has the resources that it requests: " + named(j, c.pod, c.issue)
	case c.issue.what != "":
		return goesOn + named(j, c.pod, c.issue)
	default:
		return goesOn + named(j, c.pod, stuck(c.pod))
	}
}

// named returns an issue with the name of its pod, as the end of a message. The detail stays the first one as long as the rest is the same,
// because a text that differs each time would cause a write each time.
func named(j *job, pod *corev1.Pod, i issue) string {
	head := pod.Name + ": " + bounded(i.what, maxDetail)
	for c := range j.Status.Conditions {
		if _, first, said := strings.Cut(j.Status.Conditions[c].Message, head+": "); said && i.detail != "" {
			return head + ": " + first
		}
	}
	if detail := bounded(i.detail, maxDetail); detail != "" {
		return head + ": " + detail
	}
	return head
}
