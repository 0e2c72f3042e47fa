package plan

import (
	"fmt"
	"math"
	"slices"
	"strings"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/singletonjob/operator/api/v1alpha1"
	"github.com/singletonjob/operator/internal/contract"
)

// verdict is a reason for a condition and what a person is told. Messages have no times and no counts that change by
// themselves: a message that changes is a write.
type verdict struct {
	reason string
	holds  func(*situation) bool
	says   func(*situation) string
}

// situation is what conditions are judged by.
type situation struct {
	*facts
	state State
	fleet Fleet
	// handing: the holder is asked to hand over, already or by this plan.
	handing bool
}

// conditions are one of each type. The tables beside v1alpha1.ConditionReasons say which reason goes with which status.
func (f *facts) conditions(p Plan) []metav1.Condition {
	s := &situation{facts: f, state: p.State, fleet: f.fleet()}
	asked := f.record.Handover
	if p.Lease != nil && p.Lease.Op == UpdateLease {
		asked = p.Lease.Record.Handover
	}
	s.handing = asked.To != "" && f.holder.named
	return []metav1.Condition{
		s.judge(v1alpha1.ConditionActive, activeVerdicts),
		s.judge(v1alpha1.ConditionProtected, protectedVerdicts),
		s.judge(v1alpha1.ConditionProgressing, progressingVerdicts),
		s.judge(v1alpha1.ConditionTimely, timelyVerdicts),
	}
}

// maxMessage bounds what a condition says, well below the API's limit: it may quote a spec.
const maxMessage = 4096

func (s *situation) judge(condition string, verdicts []verdict) metav1.Condition {
	for _, v := range verdicts {
		if v.holds(s) {
			return metav1.Condition{Type: condition, Status: statusOf(condition, v.reason), Reason: v.reason, Message: bounded(v.says(s), maxMessage)}
		}
	}
	panic("the last verdict on " + condition + " holds always")
}

// statusOf looks a reason up in the API's table.
func statusOf(condition, reason string) metav1.ConditionStatus {
	for _, r := range v1alpha1.ConditionReasons() {
		if r.Condition == condition && r.Reason == reason {
			return r.Status
		}
	}
	panic(condition + " has no reason " + reason)
}

func always(*situation) bool { return true }

func in(state State) func(*situation) bool {
	return func(s *situation) bool { return s.state == state }
}

func text(words string) func(*situation) string {
	return func(*situation) string { return words }
}

// Verdicts are tried in order.
var (
	invalidSpec   = verdict{v1alpha1.ReasonInvalidSpec, in(InvalidSpec), (*situation).faultText}
	leaseConflict = verdict{v1alpha1.ReasonLeaseConflict, in(LeaseConflict), (*situation).conflictText}
	suspended     = verdict{v1alpha1.ReasonSuspended, in(Suspended), text("spec.suspend is set; nothing runs")}
	deleting      = verdict{v1alpha1.ReasonDeleting, in(Deleting), text("the SingletonJob is being deleted; nothing is made any more")}
	podsRefused   = verdict{v1alpha1.ReasonPodsRefused, (*situation).podsRefused, (*situation).refusal}
	refused       = verdict{v1alpha1.ReasonPodsRefused, (*situation).refused, (*situation).refusal}

	activeVerdicts = []verdict{
		invalidSpec,
		leaseConflict,
		suspended,
		{v1alpha1.ReasonSuspending, in(Suspending), text("spec.suspend is set; the process is being stopped")},
		{v1alpha1.ReasonForeignHolder, (*situation).isForeign, (*situation).foreignText},
		{v1alpha1.ReasonRunning, (*situation).runs, (*situation).runningText},
		{v1alpha1.ReasonHolderUnreachable, (*situation).silent, (*situation).silentText},
		deleting,
		podsRefused,
		{v1alpha1.ReasonPodsFailing, (*situation).isWithoutWhatFails, (*situation).failingText},
		{v1alpha1.ReasonNoCandidates, (*situation).hasNoCandidates, text("no candidate pod exists yet")},
		{v1alpha1.ReasonAgentMisconfigured, (*situation).isMisconfigured, (*situation).troubleText},
		{v1alpha1.ReasonProcessBackOff, (*situation).backsOff, (*situation).troubleText},
		{v1alpha1.ReasonCandidatesNotReady, (*situation).hasNoneReady, (*situation).notReadyText},
		{v1alpha1.ReasonElecting, always, (*situation).electingText},
	}

	protectedVerdicts = []verdict{
		invalidSpec,
		leaseConflict,
		suspended,
		{v1alpha1.ReasonSuspended, in(Suspending), text("spec.suspend is set; the candidates are being removed")},
		{v1alpha1.ReasonSingleCandidate, (*situation).wantsOne, text("spec.candidates is 1, so no standby can take over: ask for 2 or more")},
		{v1alpha1.ReasonNoHolder, (*situation).doesNotRun, text("nothing is active, so there is nothing to protect")},
		{v1alpha1.ReasonNoStandby, (*situation).hasNoStandby, text("no standby is ready to take over")},
		{v1alpha1.ReasonStandbyOnSameNode, (*situation).isOnOneNode, text("every ready standby is on the node of the active pod and would be lost with it: delete one when another node can take it")},
		{v1alpha1.ReasonStandbyReady, always, text("a warm standby is ready on another node")},
	}

	progressingVerdicts = []verdict{
		invalidSpec,
		leaseConflict,
		suspended,
		{v1alpha1.ReasonSuspending, in(Suspending), text("spec.suspend is set; the candidates are being removed, the active one last")},
		deleting,
		refused,
		{v1alpha1.ReasonRolloutStalled, (*situation).isStalled, (*situation).stalledText},
		{v1alpha1.ReasonHandingOver, (*situation).handsOver, (*situation).handingText},
		{v1alpha1.ReasonPodsFailing, (*situation).failsAgain, (*situation).failingText},
		{v1alpha1.ReasonCandidateStuck, (*situation).isStuck, (*situation).notReadyText},
		{v1alpha1.ReasonRollingOut, (*situation).rollsOut, text("candidates are being replaced by ones of the current template, standbys first")},
		{v1alpha1.ReasonProvisioning, (*situation).isNew, (*situation).newText},
		{v1alpha1.ReasonScaling, (*situation).scales, text("the number of candidates follows spec.candidates")},
		{v1alpha1.ReasonReplacingCandidates, (*situation).lacksCandidates, (*situation).notReadyText},
		{v1alpha1.ReasonUpToDate, always, text("every candidate is made from the current template and ready")},
	}

	timelyVerdicts = []verdict{
		invalidSpec,
		{v1alpha1.ReasonCPULimitTooSmall, (*situation).isLimited, (*situation).limitText},
		{v1alpha1.ReasonInTime, always, text("no CPU limit makes a kill later than spec.lease leaves time for")},
	}
)

func (s *situation) runs() bool { return s.shown() }
func (s *situation) silent() bool {
	return s.holder.ours && !s.shown() && !s.expired() && !s.seemsOver()
}
func (s *situation) hasNoCandidates() bool { return !s.any(candidate.live) }
func (s *situation) hasNoneReady() bool    { return !s.any(isStandby) }
func (s *situation) wantsOne() bool        { return s.job.Spec.Candidates == 1 }
func (s *situation) doesNotRun() bool      { return !s.shown() }
func (s *situation) refused() bool         { return len(s.Refused) > 0 }
func (s *situation) podsRefused() bool {
	return slices.ContainsFunc(s.Refused, func(r Refusal) bool { return r.Pods })
}
func (s *situation) handsOver() bool { return s.handing }
func (s *situation) rollsOut() bool  { return s.fleet.outdated() }
func (s *situation) isNew() bool     { return s.job.Status.Tenures == 0 && s.record.Transitions == 0 }

func isStandby(c candidate) bool { return c.live() && c.ready }

func (s *situation) hasNoStandby() bool {
	return !s.any(func(c candidate) bool { return isStandby(c) && !c.holds })
}

func (s *situation) isOnOneNode() bool {
	return !s.any(func(c candidate) bool { return isStandby(c) && !c.holds && !s.besideHolder(c) })
}

// isMisconfigured tells whether an agent has refused its configuration and none is ready.
func (s *situation) isMisconfigured() bool {
	return s.hasNoneReady() && s.any(func(c candidate) bool { return c.live() && c.trouble.what == misconfigured })
}

// backsOff tells whether no candidate is ready because processes keep exiting.
func (s *situation) backsOff() bool {
	return s.hasNoneReady() && s.any(func(c candidate) bool { return c.live() && strings.HasPrefix(c.trouble.what, backOff) })
}

// failsAgain tells whether candidates are missing, or not of the present template, because pods fail, and not for the first time.
func (s *situation) failsAgain() bool {
	newest := s.newestFailed()
	return newest != nil && newest.failure.row > 1 && (s.lacksCandidates() || s.fleet.outdated())
}

func (s *situation) isWithoutWhatFails() bool { return s.hasNoneReady() && s.failsAgain() }

// isStuck tells whether a candidate has not been ready for long. What Active tells of is not told of twice.
func (s *situation) isStuck() bool {
	return !s.fleet.outdated() && !s.isMisconfigured() && !s.backsOff() && s.tardy() != nil
}

// tardy is a candidate that has not been ready for long.
func (s *situation) tardy() *candidate {
	for i := range s.candidates {
		if c := &s.candidates[i]; c.live() && !c.ready && s.unready(*c) >= patience {
			return c
		}
	}
	return nil
}

// isStalled tells whether a rollout does not move: its version failed, or a candidate of it has a trouble that time does
// not heal, or takes too long.
func (s *situation) isStalled() bool {
	return s.fleet.outdated() && (s.fleet.Failed || s.slowest() != nil || s.failsAgain())
}

// slowest is a candidate of the current template that does not get ready.
func (s *situation) slowest() *candidate {
	for i := range s.candidates {
		c := &s.candidates[i]
		if c.live() && c.updated && !c.ready && !c.holds && (c.trouble.lasting || s.unready(*c) >= patience) {
			return c
		}
	}
	return nil
}

// scales tells whether the number of candidates follows a new wish; that lasts until all are ready.
func (s *situation) scales() bool {
	status := s.job.Status
	unfit := s.fleet.total() != s.fleet.Want || s.lacksCandidates()
	if s.fleet.total() > s.fleet.Want {
		return true
	}
	changed := status.ObservedGeneration != 0 && status.ObservedGeneration != s.job.Generation
	for _, c := range status.Conditions {
		changed = changed || c.Type == v1alpha1.ConditionProgressing && c.Reason == v1alpha1.ReasonScaling
	}
	return unfit && changed
}

func (s *situation) lacksCandidates() bool {
	return s.count(isStandby) < s.fleet.Want
}

func (s *situation) faultText() string {
	return "the spec is not accepted, nothing is changed until it is: " + s.faults.ToAggregate().Error()
}

func (s *situation) conflictText() string {
	return fmt.Sprintf("the Lease %s/%s exists and is not this operator's, it lacks the label %s=%s: delete it, or give the "+
		"SingletonJob another name; nothing is touched until then", s.Namespace, s.Name, contract.ManagedByLabel, contract.ManagedBy)
}

func (s *situation) refusal() string {
	var texts []string
	for _, r := range s.Refused {
		texts = append(texts, Shorten(r.Text, maxRefusal))
	}
	return "the API server refuses what the operator asks for: " + strings.Join(texts, separator)
}

func (s *situation) runningText() string {
	return fmt.Sprintf("%s holds the Lease and renews it", s.holder.Pod)
}

func (s *situation) silentText() string {
	if s.dead() {
		return fmt.Sprintf("the process of %s is dead; the Lease is being released", s.holder.Pod)
	}
	if s.job.Spec.Lease.OnRenewFailure == v1alpha1.OnRenewFailureKeepRunning {
		return fmt.Sprintf("%s has stopped renewing; its process may run on (onRenewFailure: KeepRunning) until a standby takes over", s.holder.Pod)
	}
	return fmt.Sprintf("%s has stopped renewing; its process is dead when the lease has run out, and a standby takes over then", s.holder.Pod)
}

func (s *situation) electingText() string {
	switch {
	case s.badTokenBase() != "":
		return fmt.Sprintf("the Lease's annotation %s is %q, no number from 0 to %d (2^52); it is being reset, set spec.fencing.tokenBase instead",
			contract.TokenBaseAnnotation, s.badTokenBase(), v1alpha1.MaxTokenBase)
	case s.record.Token == math.MaxInt64:
		return fmt.Sprintf("the Lease's annotation %s is %d, above which there is no token, so nobody can take over: give the SingletonJob another name",
			contract.TokenAnnotation, s.record.Token)
	case s.holder.named && !s.holder.ours && s.holder.Pod != "":
		return fmt.Sprintf("the Lease is held by %s, of an earlier job of this name; a candidate takes over when it ends", s.holder.Pod)
	case s.holder.named && (s.expired() || s.holder.ours && s.seemsOver()):
		return "the lease of the last holder has run out; candidates contend for it"
	case s.holder.named:
		return "the last tenure may last; a candidate takes over when its lease has run out"
	}
	return "candidates contend for the Lease"
}

// troubleText tells of the first candidate that has one, that takes too long, or that has failed.
func (s *situation) troubleText() string {
	for _, c := range s.candidates {
		if c.live() && c.trouble.what != "" {
			return s.name(c.pod, c.trouble)
		}
	}
	if c := s.tardy(); c != nil {
		return s.name(c.pod, stuck(c.pod))
	}
	if failed := s.newestFailed(); failed != nil {
		return s.name(failed.pod, failureOf(failed.pod))
	}
	return ""
}

func (s *situation) notReadyText() string {
	if known := s.troubleText(); known != "" {
		return "a candidate is not ready: " + known
	}
	return "a candidate is missing or not ready yet"
}

func (s *situation) newText() string {
	if known := s.troubleText(); known != "" {
		return "the first candidates are not ready: " + known
	}
	return "the first candidates are being created"
}

// failingText tells of the newest pod that has failed, which is kept for a person to look at.
func (s *situation) failingText() string {
	pod := s.newestFailed().pod
	return "pods fail one after another and are made anew after a growing delay: " + s.name(pod, failureOf(pod))
}

func (s *situation) stalledText() string {
	const goesOn = "the old version goes on: "
	switch c := s.slowest(); {
	case s.fleet.Failed:
		return "the current template was tried and its process ended at once, so the old version went on: change spec.template"
	case c == nil:
		return goesOn + s.failingText()
	case c.trouble.what != "":
		return goesOn + s.name(c.pod, c.trouble)
	default:
		return goesOn + s.name(c.pod, stuck(c.pod))
	}
}

func (s *situation) handingText() string {
	return fmt.Sprintf("%s was asked to hand over", s.holder.Pod)
}
