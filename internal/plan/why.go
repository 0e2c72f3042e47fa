package plan

import (
	"fmt"
	"slices"
	"strings"

	"github.com/singletonjob/operator/api/v1alpha1"
)

// roles returns the reasons that every plan has. A pod that is labelled active may not be in the plan, because the cache lags.
func roles() Reasons { return Reasons{"Pod": "its role label does not match the active pod"} }

func reasonsOf(j *job, t *tenure, m *members, runs *runs, p *Plan) Reasons {
	r := roles()
	if p.Lease != nil {
		r.add("Lease", t.name, whyLease(t, runs, p))
	}
	if p.Told != nil {
		r.add("Lease", t.name, "the status records the tenures before this one")
	}
	for _, child := range slices.Concat(p.Apply, p.Also) {
		kind := child.GetObjectKind().GroupVersionKind().Kind
		r.add(kind, child.GetName(), "it is missing or differs from its desired state")
	}
	if p.Service != nil {
		r.add("Service", p.Service.Service.Name, p.Service.why)
	}
	for _, pod := range p.Adopt {
		r.add("Pod", pod.Name, "it no longer has an owner")
	}
	for _, pod := range p.Relabel {
		r.add("Pod", pod.Name, "its role is "+pod.Role)
	}
	for _, pod := range p.Delete {
		r.add("Pod", pod.Name, whyDeleted(m, p.State, pod))
	}
	for _, pod := range p.Create {
		r.add("Pod", pod.Name, whyCreated(m.fleet, pod.Annotations[FailuresAnnotation]))
	}
	if p.Move != nil {
		r.add("Pod", p.Move.Beside.Name, "it records that a pod is created for another node")
		r.add("Pod", p.Move.Pod.Name, "every ready standby is on the node of the active pod, and another node can take one")
	}
	if p.Expired {
		r.add(v1alpha1.Kind, j.Name, "spec.ttlSecondsAfterFinished has passed")
	}
	if p.Status != nil {
		r.add(v1alpha1.Kind, j.Name, whyStatus(&j.Status, p.Status))
	}
	for _, e := range p.Events {
		r.add("Event", e.Name, e.Reason+": "+e.Message)
	}
	return r
}

func whyLease(t *tenure, runs *runs, p *Plan) string {
	switch r := p.Lease.Record; p.State {
	case LeaseMissing:
		if r.Holder != "" {
			return "there is no Lease, and an earlier tenure may not be over"
		}
		return "there is none"
	case LeaseUnclaimed:
		if t.badTokenBase != "" {
			return "its token base is not valid"
		}
		if t.desired.token != t.Record.Token {
			return "its token is lower than one that was already issued"
		}
		if t.desired.claim == t.Claim {
			return "the token base has changed"
		}
		return "it is kept for this job"
	case HolderDead, Deleting:
		return fmt.Sprintf("the process of %s is dead: %s", t.holder.Pod, t.death.reason)
	default:
		if runs != nil && runs.why != "" {
			return runs.why
		}
		if r.Handover.To == "" {
			return "the request for a handover is withdrawn"
		}
		return fmt.Sprintf("%s is asked to hand over to %s: %s", t.holder.Pod, r.Handover.To, r.Handover.Reason)
	}
}

func whyDeleted(m *members, state State, pod PodRef) string {
	for _, c := range m.candidates {
		switch {
		case c.pod.UID != pod.UID:
		case state == Suspending:
			return "spec.suspend is set"
		case state == Resting:
			return "no run needs it"
		case c.terminal && c.failure == nil:
			return "its run is over, and the next run has its own candidates"
		case c.terminal:
			return bounded(failureOf(c.pod).what, maxDetail)
		case m.isMover(c):
			return "it was created for another node, and the operator no longer waits for it"
		case !c.updated && m.turn.own:
			return "what the operator adds to pods has changed since it was created"
		case !c.updated:
			return "it was created from an earlier template"
		case m.moved():
			return "another standby is ready, on a different node than the active pod"
		}
	}
	return "there are more candidates than spec.candidates"
}

func whyCreated(fleet Fleet, failures string) string {
	switch {
	case failures != "":
		return "candidates are missing, and " + failures + " failed in a row before it"
	case fleet.total() >= fleet.Desired:
		return "candidates are of an earlier template"
	}
	return fmt.Sprintf("there are %d of %d candidates", fleet.total(), fleet.Desired)
}

// whyStatus returns what is new in a status.
func whyStatus(before, now *v1alpha1.SingletonJobStatus) string {
	var news []string
	for i := range now.Conditions {
		if c := &now.Conditions[i]; !said(before.Conditions, c) {
			news = append(news, fmt.Sprintf("%s is %s, %s: %s", c.Type, c.Status, c.Reason, c.Message))
		}
	}
	if now.FencingToken != before.FencingToken {
		news = append(news, fmt.Sprintf("token %d", now.FencingToken))
	}
	if now.FleetRollout != before.FleetRollout {
		news = append(news, fmt.Sprintf("its place in the fleet-wide rollout is %q", now.FleetRollout))
	}
	if now.Candidates != before.Candidates {
		news = append(news, fmt.Sprintf("%d candidates, %d ready, %d updated", now.Candidates.Total, now.Candidates.Ready, now.Candidates.Updated))
	}
	if len(news) == 0 {
		return "details"
	}
	return strings.Join(news, "; ")
}
