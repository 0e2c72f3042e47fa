package adopt

import (
	"strings"
	"testing"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/singletonjob/operator/api/v1alpha1"
)

// adopted is a SingletonJob that runs, of a Deployment that had two replicas.
func adopted() facts {
	f := made(v1alpha1.ReasonRunning, metav1.ConditionTrue)
	f.workload.Replicas = 0
	f.pods = []string{"web-x"}
	return f
}

// stopped is the same after the operator has suspended it.
func stopped(change ...func(*facts)) facts {
	f := adopted()
	f.job.Spec.Suspend, f.job.Status.Conditions[0].Reason, f.pods = true, v1alpha1.ReasonSuspended, nil
	for _, c := range change {
		c(&f)
	}
	return f
}

func TestBack(t *testing.T) {
	for name, c := range map[string]struct {
		facts  facts
		change func(*facts)
		scaled bool
		want   step
		says   string
	}{
		"it runs":                         {facts: adopted(), want: suspend, says: "suspending the SingletonJob web"},
		"the operator has not seen it":    {facts: stopped(), change: func(f *facts) { f.job.Generation = 2 }, want: wait, says: "waiting for the operator"},
		"it is being stopped":             {facts: stopped(), change: func(f *facts) { f.job.Status.Conditions[0].Reason = "Suspending" }, want: wait, says: "the operator's text"},
		"its run outlasts the suspension": {facts: stopped(), change: func(f *facts) { f.job.Status.Conditions[0].Reason = "Running" }, want: wait, says: "the operator's text"},
		"a Pod of it is left":             {facts: stopped(), change: func(f *facts) { f.pods = []string{"web-x"} }, want: wait, says: "the Pod web-x no longer exists"},
		"it is stopped":                   {facts: stopped(), want: restore, says: "scaling Deployment/web to 2"},
		"it is stopped, and a number is given": {
			facts: stopped(), change: func(f *facts) { f.replicas = 5 }, want: restore, says: "to 5",
		},
		"the workload runs":              {facts: stopped(), change: func(f *facts) { f.workload.Replicas = 2 }, scaled: true, want: remove, says: "deleting the SingletonJob web"},
		"the workload runs, and a Pod":   {facts: stopped(), change: func(f *facts) { f.workload.Replicas, f.pods = 2, []string{"web-x"} }, want: wait},
		"scaled up beside the job":       {facts: adopted(), change: func(f *facts) { f.workload.Replicas = 2 }, want: suspend},
		"something scales it to 0":       {facts: stopped(), scaled: true, want: refuse, says: "was scaled to 2 and has 0 replicas again (set replicas to 2 in the source of Deployment/web"},
		"it is deleted":                  {facts: given(), want: report, says: "runs by itself, with 2 replicas"},
		"it is being deleted":            {facts: stopped(), change: func(f *facts) { f.workload.Replicas, f.job.DeletionTimestamp = 2, &metav1.Time{} }, want: wait, says: "no longer exists"},
		"deleted by somebody, going":     {facts: adopted(), change: func(f *facts) { f.job.DeletionTimestamp = &metav1.Time{} }, want: refuse, says: "with --replicas"},
		"deleted by somebody":            {facts: adopted(), change: func(f *facts) { f.job = nil }, want: refuse, says: "no SingletonJob of Deployment/web exists that records its replicas: give the number with --replicas"},
		"deleted, Pods left":             {facts: adopted(), change: func(f *facts) { f.job, f.replicas = nil, 1 }, want: wait, says: "web-x"},
		"deleted, and a number is given": {facts: stopped(), change: func(f *facts) { f.job, f.replicas = nil, 1 }, want: restore, says: "to 1"},
		"no such workload":               {facts: adopted(), change: func(f *facts) { f.workload.Exists = false }, want: refuse, says: "does not exist"},
		"a job of another workload":      {facts: adopted(), change: func(f *facts) { f.job.Spec.WorkloadRef.Name = "x" }, want: refuse, says: "does not belong to Deployment/web"},
		"a job of its own template":      {facts: adopted(), change: func(f *facts) { f.job.Spec.WorkloadRef = nil }, want: refuse, says: "does not belong to Deployment/web"},
		"another job has it too":         {facts: stopped(), change: func(f *facts) { f.other = "second" }, want: refuse, says: "SingletonJob second"},
		"the Lease is another's":         {facts: stopped(), change: func(f *facts) { f.job.Status.Conditions[0].Reason = "LeaseConflict" }, want: refuse, says: "the operator's text"},
	} {
		t.Run(name, func(t *testing.T) {
			if c.change != nil {
				c.change(&c.facts)
			}
			if todo, why := back(c.facts, c.scaled); todo != c.want || !strings.Contains(why, c.says) {
				t.Errorf("step %d, want %d: %s", todo, c.want, why)
			}
		})
	}
}

// TestRecordedReplicas: a record that cannot be used stops the way back before its first write, with one line.
func TestRecordedReplicas(t *testing.T) {
	for record, says := range map[string]string{
		"1": "", "1000": "",
		"": `is "", which`, "two": `is "two", which`, "-1": `is "-1", which`, "0": `is "0", which`, "1.5": `is "1.5", which`, "1001": `is "1001", which`,
		"99999999999999999999":     "which is no number from 1 to 1000: give the number with --replicas",
		"1\n2":                     `is "1 2", which`,
		"\x1b[2J":                  `is "[2J", which`,
		strings.Repeat("9", 1<<18): "9…",
	} {
		f := adopted()
		f.job.Annotations = map[string]string{ReplicasAnnotation: record}
		todo, why := back(f, false)
		switch {
		case says == "" && todo != suspend:
			t.Errorf("%q: step %d, %s", record, todo, why)
		case says != "" && (todo != refuse || !strings.Contains(why, says) || strings.ContainsAny(why, "\n\x1b") || len(why) > 300):
			t.Errorf("%.40q: step %d, %.400s", record, todo, why)
		}
		f.replicas = 3
		if todo, why := back(f, false); todo != suspend {
			t.Errorf("%.40q and a given number: step %d, %s", record, todo, why)
		}
	}
	f := adopted()
	f.job.Annotations = nil
	if todo, why := back(f, false); todo != refuse || !strings.Contains(why, "lacks the annotation singletonjob.io/workload-replicas") {
		t.Errorf("no record: step %d, %s", todo, why)
	}
	f.workload.Replicas = 1 // then none is needed
	if todo, why := back(f, false); todo != suspend {
		t.Errorf("no record is needed: step %d, %s", todo, why)
	}
}

func TestKeeper(t *testing.T) {
	ref := given().ref
	flux := map[string]string{"app.kubernetes.io/managed-by": "Helm", "helm.toolkit.fluxcd.io/name": "shop", "helm.toolkit.fluxcd.io/namespace": "flux"}
	release := map[string]string{"meta.helm.sh/release-name": "shop", "meta.helm.sh/release-namespace": "prod"}
	for name, c := range map[string]struct {
		labels, annotations map[string]string
		says                []string
	}{
		"nothing": {says: []string{"set replicas to 0 in the source of Deployment/web, such as its chart's values"}},
		"Helm": {
			labels: map[string]string{"app.kubernetes.io/managed-by": "Helm"}, annotations: release,
			says: []string{"Helm release prod/shop", "--set replicaCount=0"},
		},
		"Helm, rendered": {
			labels: map[string]string{"app.kubernetes.io/managed-by": "Helm", "app.kubernetes.io/instance": "shop"}, says: []string{"Helm release shop"},
		},
		"Argo CD by annotation": {
			labels: map[string]string{"app.kubernetes.io/managed-by": "Helm"}, annotations: map[string]string{"argocd.argoproj.io/tracking-id": "shop:apps/Deployment:prod/web"},
			says: []string{"Argo CD Application shop ", "replicas: 0 in Git", "spec.ignoreDifferences"},
		},
		"Argo CD by label":                      {labels: map[string]string{"argocd.argoproj.io/instance": "shop"}, says: []string{"Argo CD Application shop "}},
		"Flux Kustomization":                    {labels: map[string]string{"kustomize.toolkit.fluxcd.io/name": "shop"}, says: []string{"Kustomization shop", "replicas: 0 in Git"}},
		"Flux HelmRelease":                      {labels: flux, annotations: release, says: []string{"HelmRelease flux/shop", "spec.values", "replicaCount: 0"}},
		"another manager":                       {labels: map[string]string{"app.kubernetes.io/managed-by": "somebody"}, says: []string{"in the source of"}},
		"an annotation with an escape sequence": {annotations: map[string]string{"argocd.argoproj.io/tracking-id": "\x1b[2J\nx:"}, says: []string{"Application [2J x sets"}},
	} {
		text := keeperOf(c.labels, c.annotations).set(ref, 0)
		for _, says := range c.says {
			if !strings.Contains(text, says) || strings.ContainsAny(text, "\n\x1b") {
				t.Errorf("%s: %q lacks %q", name, text, says)
			}
		}
	}
}
