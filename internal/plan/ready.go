package plan

import "github.com/singletonjob/operator/api/v1alpha1"

// ready is the verdict for those who wait until what they applied is so: that the process runs which the present spec asks
// for, or that nothing runs where it asks for that. Standbys are not waited for: that is Protected. It is the one condition
// that such tools look at, so it is not true either while a change is under way, or of a job that the API server refuses
// something.
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
		return verdict{v1alpha1.ReasonFailedCreate, refusal(refused)}
	case m.held():
		return verdict{v1alpha1.ReasonRolloutPaused, "spec.strategy.paused is set: the current template is not rolled out"}
	case m.stalled():
		return verdict{v1alpha1.ReasonRolloutStalled, stalledText(j, m)}
	case m.fleet.outdated():
		return verdict{v1alpha1.ReasonRollingOut, "candidates are being replaced by ones of the current template, standbys first"}
	case !m.fleet.HolderNew:
		return verdict{v1alpha1.ReasonReplacingCandidates, "the active pod is being removed; another one takes over"}
	}
	return verdict{v1alpha1.ReasonRunning, "the process of the current template runs"}
}
