package adopt

import (
	"strings"
	"testing"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/singletonjob/operator/api/v1alpha1"
	"github.com/singletonjob/operator/internal/plan"
)

// given is a Deployment with two replicas, and no SingletonJob.
func given() facts {
	ref := v1alpha1.WorkloadRef{APIVersion: v1alpha1.WorkloadAPIVersion, Kind: v1alpha1.WorkloadDeployment, Name: "web"}
	template := corev1.PodTemplateSpec{Spec: corev1.PodSpec{Containers: []corev1.Container{{Name: "app", Image: "app", Command: []string{"run"}}}}}
	r := run{Options: Options{JobName: "web", Namespace: "ns"}, ref: ref}
	return facts{ref: ref, workload: &plan.Workload{Exists: true, Replicas: 2, Template: template}, desired: r.job()}
}

// several puts a proxy container first in the workload.
func several(f *facts) {
	pod := &f.workload.Template.Spec
	pod.Containers = append([]corev1.Container{{Name: "proxy", Image: "proxy"}}, pod.Containers...)
}

// made adds the SingletonJob, with a reason that the operator reports.
func made(reason string, status metav1.ConditionStatus) facts {
	f := given()
	f.job = f.desired.DeepCopy()
	f.job.Annotations = recordOf(f.workload)
	f.job.Generation, f.job.Status.ObservedGeneration = 1, 1
	f.job.Status.Conditions = []metav1.Condition{
		{Type: v1alpha1.ConditionActive, Status: status, Reason: reason, Message: "the operator's text"},
		{Type: v1alpha1.ConditionProgressing, Reason: reason, Message: "the operator's text"},
	}
	return f
}

// beside makes the operator report a reason for the workload, with this number of replicas.
func beside(reason string, replicas int32) func(*facts) {
	return func(f *facts) {
		f.job.Status.Conditions[1].Reason, f.workload.Replicas = reason, replicas
	}
}

func TestNext(t *testing.T) {
	const yes, no = metav1.ConditionTrue, metav1.ConditionFalse
	for name, c := range map[string]struct {
		facts  facts
		change func(*facts)
		scaled bool
		want   step
		says   string
	}{
		"nothing is done yet":        {facts: given(), want: create, says: "creating the SingletonJob web"},
		"no such workload":           {facts: given(), change: func(f *facts) { f.workload.Exists = false }, want: refuse, says: "does not exist"},
		"volume claim templates":     {facts: given(), change: func(f *facts) { f.workload.Claims = []string{"data"} }, want: refuse, says: "volumeClaimTemplates (data)"},
		"a template that is refused": {facts: given(), change: func(f *facts) { f.workload.Template.Spec.HostPID = true }, want: refuse, says: "hostPID"},
		"several containers":         {facts: given(), change: several, want: refuse, says: `spec.container: Required value: one of several containers is gated`},
		"several, one is chosen": {facts: given(), change: func(f *facts) {
			several(f)
			f.desired.Spec.Container = "app"
		}, want: create},
		"several, one that is not there": {facts: given(), change: func(f *facts) {
			several(f)
			f.desired.Spec.Container = "web"
		}, want: refuse, says: `"web" is not a container of spec.template: one of ["proxy", "app"]`},
		"a name that is refused":         {facts: given(), change: func(f *facts) { f.desired.Name = strings.Repeat("x", 60) }, want: refuse, says: "metadata.name"},
		"another job's workload":         {facts: given(), change: func(f *facts) { f.other = "first" }, want: refuse, says: "SingletonJob first"},
		"a job of the name":              {facts: made("Running", yes), change: func(f *facts) { f.job.Spec.WorkloadRef = nil }, want: refuse, says: "does not belong to Deployment/web"},
		"a job of another workload":      {facts: made("Running", yes), change: func(f *facts) { f.job.Spec.WorkloadRef.Name = "x" }, want: refuse, says: "does not belong to Deployment/web"},
		"a job that goes":                {facts: made("Running", yes), change: func(f *facts) { f.job.DeletionTimestamp = &metav1.Time{} }, want: refuse, says: "being deleted"},
		"a job that is suspended":        {facts: made("Suspended", no), change: func(f *facts) { f.job.Spec.Suspend = true }, want: refuse, says: "suspended"},
		"no operator has seen the job":   {facts: made("", no), change: func(f *facts) { f.job.Status.Conditions = nil }, want: wait, says: "waiting for the operator"},
		"nor what has changed":           {facts: made("WorkloadRunning", no), change: func(f *facts) { f.job.Generation = 2 }, want: wait, says: "waiting for the operator"},
		"the operator refuses it":        {facts: made("InvalidSpec", no), want: refuse, says: "the operator's text"},
		"the Lease is another's":         {facts: made("LeaseConflict", no), want: refuse, says: "the operator's text"},
		"the operator saw no pods yet":   {facts: made("NoCandidates", no), want: wait, says: "to see that Deployment/web runs"},
		"the operator waits":             {facts: made("WorkloadRunning", no), want: scale, says: "from 2 to 0"},
		"scaled since it was recorded":   {facts: made("WorkloadRunning", no), change: func(f *facts) { f.workload.Replicas = 3 }, want: record, says: "has 3 replicas"},
		"a job that was written by hand": {facts: made("WorkloadRunning", no), change: func(f *facts) { f.job.Annotations = nil }, want: record, says: "has 2 replicas"},
		"its image is not known": {
			facts: made("WorkloadRunning", no), change: func(f *facts) { f.workload.Template.Spec.Containers[0].Command = nil },
			want: wait, says: "before scaling anything",
		},
		"scaled up beside the job, unseen": {facts: made("Running", yes), want: wait, says: "to see that Deployment/web runs"},
		"scaled up beside the job":         {facts: made("Running", yes), change: beside("WorkloadRunning", 2), want: scale},
		"pods beside the job":              {facts: made("Running", yes), change: beside("WorkloadRunning", 0), scaled: true, want: wait, says: "the operator's text"},
		"a ReplicaSet beside the job":      {facts: made("Running", yes), change: beside("WorkloadSettling", 0), scaled: true, want: wait, says: "the operator's text"},
		"a ReplicaSet lags":                {facts: made("WorkloadSettling", no), change: beside("WorkloadSettling", 0), scaled: true, want: wait, says: "the operator's text"},
		"something scales it up":           {facts: made("WorkloadRunning", no), scaled: true, want: refuse, says: "has 2 replicas again"},
		"a tool scales it up": {
			facts: made("WorkloadRunning", no), change: func(f *facts) { f.keeper = keeper{tool: argoCD, name: "shop"} }, scaled: true,
			want: refuse, says: "Application shop sets the replicas of Deployment/web: set replicas: 0",
		},
		"its pods go":                   {facts: made("WorkloadRunning", no), change: func(f *facts) { f.workload.Replicas = 0 }, scaled: true, want: wait, says: "the operator's text"},
		"candidates start":              {facts: made("CandidatesNotReady", no), change: func(f *facts) { f.workload.Replicas = 0 }, scaled: true, want: wait},
		"it runs":                       {facts: made("Running", yes), change: func(f *facts) { f.workload.Replicas = 0 }, scaled: true, want: report, says: "is a singleton"},
		"it ran before this run of us":  {facts: made("Running", yes), change: func(f *facts) { f.workload.Replicas = 0 }, want: report},
		"a workload that is at 0 is so": {facts: given(), change: func(f *facts) { f.workload.Replicas = 0 }, want: create},
	} {
		t.Run(name, func(t *testing.T) {
			if c.change != nil {
				c.change(&c.facts)
			}
			if todo, why := next(c.facts, c.scaled); todo != c.want || !strings.Contains(why, c.says) {
				t.Errorf("step %d, want %d: %s", todo, c.want, why)
			}
		})
	}
}
