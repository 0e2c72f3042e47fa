package plan

import (
	"cmp"
	"fmt"
	"slices"
	"strings"

	"github.com/singletonjob/operator/api/v1alpha1"
)

// Reasons say why each write of a plan is made, for the log: by kind and name of the object.
type Reasons map[string]string

// Of is why an object is written.
func (r Reasons) Of(kind, name string) string {
	return cmp.Or(r[kind+"/"+name], r[kind])
}

func (r Reasons) add(kind, name, why string) {
	key := strings.TrimSuffix(kind+"/"+name, "/")
	if before := r[key]; before != "" {
		why = before + "; " + why
	}
	r[key] = why
}

func (f *facts) reasons(p Plan) Reasons {
	r := Reasons{}
	// A pod that is called active and is none of this plan's, because the cache lags.
	r.add("Pod", "", "its role is not that of who acts")
	if p.Lease != nil {
		r.add("Lease", f.Name, f.whyLease(p))
	}
	for _, child := range slices.Concat(p.Apply, p.Also) {
		kind := child.GetObjectKind().GroupVersionKind().Kind
		r.add(kind, child.GetName(), "it is missing or not as it should be")
	}
	for _, pod := range p.Adopt {
		r.add("Pod", pod.Name, "nothing owns it any more")
	}
	for _, pod := range p.Relabel {
		r.add("Pod", pod.Name, "its role is "+pod.Role)
	}
	for _, pod := range p.Delete {
		r.add("Pod", pod.Name, f.whyDeleted(p, pod))
	}
	for _, pod := range p.Create {
		r.add("Pod", pod.Name, f.whyCreated(pod.Annotations[FailuresAnnotation]))
	}
	if p.Status != nil {
		r.add(v1alpha1.Kind, f.Name, whyStatus(&f.job.Status, p.Status))
	}
	for _, e := range p.Events {
		r.add("Event", e.Name, e.Reason+": "+e.Message)
	}
	return r
}

func (f *facts) whyLease(p Plan) string {
	switch r := p.Lease.Record; p.State {
	case Collecting:
		return "the job is gone, and no tenure can last"
	case LeaseMissing:
		if r.Holder != "" {
			return "there is none, and an earlier tenure may last"
		}
		return "there is none"
	case LeaseUnclaimed:
		if f.badTokenBase() != "" {
			return "its token base is none"
		}
		if f.toldToken() != f.record.Token {
			return "its token is below one that was given out"
		}
		if f.claim == f.Lease.Claim {
			return "the token base is another"
		}
		return "it is kept for this job"
	case HolderDead, Deleting:
		return fmt.Sprintf("the process of %s is dead: %s", f.holder.Pod, f.death.reason)
	default:
		if r.Handover.To == "" {
			return "nobody is asked to hand over any more"
		}
		return fmt.Sprintf("%s is asked to hand over to %s: %s", f.holder.Pod, r.Handover.To, r.Handover.Reason)
	}
}

func (f *facts) whyDeleted(p Plan, pod PodRef) string {
	for _, c := range f.candidates {
		switch {
		case c.pod.UID != pod.UID:
		case p.State == Suspending:
			return "spec.suspend is set"
		case c.finished:
			return bounded(failureOf(c.pod).what, maxDetail)
		case !c.updated:
			return "it is of an earlier template"
		}
	}
	return "there are more candidates than spec.candidates"
}

func (f *facts) whyCreated(failures string) string {
	fleet := f.fleet()
	switch {
	case failures != "":
		return "candidates are missing, and " + failures + " failed in a row before it"
	case fleet.total() >= fleet.Want:
		return "candidates are of an earlier template"
	}
	return fmt.Sprintf("there are %d of %d candidates", fleet.total(), fleet.Want)
}

// whyStatus is what a status tells anew.
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
	if now.Candidates != before.Candidates {
		news = append(news, fmt.Sprintf("%d candidates, %d ready, %d updated", now.Candidates.Total, now.Candidates.Ready, now.Candidates.Updated))
	}
	if len(news) == 0 {
		return "details"
	}
	return strings.Join(news, "; ")
}
