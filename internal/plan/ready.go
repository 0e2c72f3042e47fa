package plan

import (
	"github.com/singletonjob/operator/api/v1alpha1"
	"github.com/singletonjob/operator/internal/lease"
)

// ready is the verdict for tools that wait until an applied change has taken effect: the process of the current spec runs, or nothing runs
// if the spec says so. Standbys do not matter here; Protected reports them. Ready is the only condition that such tools read. So it is also
// not true while a change is in progress, or while the API server rejects a request for the job.
func ready(state State, j *job, t *tenure, m *members, r *runs, refused []Refusal) verdict {
	if state == Deleting {
		return deleting()
	}
	if now := active(state, j, t, m, r, refused); now.reason != v1alpha1.ReasonRunning {
		return now
	}
	switch {
	case j.blocked.reason != "":
		return j.blocked
	case len(refused) > 0:
		return refusal(refused)
	case m.held():
		return verdict{v1alpha1.ReasonRolloutPaused, "spec.strategy.paused is set: the current template is not rolled out"}
	case m.stalled():
		return verdict{v1alpha1.ReasonRolloutStalled, stalledText(j, m)}
	case m.fleet.outdated():
		return verdict{v1alpha1.ReasonRollingOut, "candidates are being replaced by ones of the current template, standbys first"}
	case !m.fleet.HolderNew:
		return verdict{v1alpha1.ReasonReplacingCandidates, "the active pod is being removed; another one takes over"}
	case r != nil && j.Spec.Schedule == nil:
		return verdict{v1alpha1.ReasonRunUnderWay, "the run is under way; Ready is true when it is complete"}
	}
	return verdict{v1alpha1.ReasonRunning, "the process of the current template runs"}
}

// stalled is the verdict that nothing but a change of the job, or a request for another run, can make it ready; no verdict if that is not
// certain. A quota, a registry or a Lease of somebody else can change at any time, and the job then continues by itself.
func stalled(state State, j *job, r *runs) verdict {
	switch {
	case state == InvalidSpec:
		return invalidSpec(j)
	case state != Deleting && r != nil && j.Spec.Schedule == nil && r.final() && r.Now.State == lease.RunGivenUp:
		return verdict{v1alpha1.ReasonRunFailed, failedText(r)}
	}
	return well
}
