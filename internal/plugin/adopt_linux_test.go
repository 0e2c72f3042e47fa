package plugin

import (
	"context"
	"io"
	"strings"
	"testing"

	appsv1 "k8s.io/api/apps/v1"
	autoscalingv1 "k8s.io/api/autoscaling/v1"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/cli-runtime/pkg/genericiooptions"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/singletonjob/operator/api/v1alpha1"
)

// TestAdopt tests the command line. The adoption itself is tested in the controller's package.
func TestAdopt(t *testing.T) {
	w := newWorld(t)
	labels := map[string]string{"app": "billing"}
	w.must(w.api.Create(t.Context(), &appsv1.Deployment{
		ObjectMeta: metav1.ObjectMeta{Namespace: w.namespace, Name: "billing"},
		Spec: appsv1.DeploymentSpec{Replicas: new(int32(1)), Selector: &metav1.LabelSelector{MatchLabels: labels}, Template: corev1.PodTemplateSpec{
			ObjectMeta: metav1.ObjectMeta{Labels: labels},
			Spec:       corev1.PodSpec{Containers: []corev1.Container{{Name: "app", Image: "billing:1", Command: []string{"run"}}}},
		}},
	}))
	w.says(ExitOK, "kind: SingletonJob", "adopt", "deploy/billing", "--dry-run", "--name=mail", "--candidates=3")
	w.says(ExitOK, "  container: app\n", "adopt", "deploy/billing", "--dry-run", "--name=mail", "--container=app")
	if _, out, errOut := w.run("adopt", "deploy/billing", "--dry-run=server", "-o", "yaml", "--name=mail"); !strings.HasPrefix(out, "apiVersion: ") || errOut != "" {
		t.Errorf("-o yaml prints more than the SingletonJob:\n%s%s", out, errOut)
	}
	w.says(ExitError, "spec.candidates: Invalid value: 101", "adopt", "deploy/billing", "--dry-run=server", "--candidates=101")
	w.says(ExitUsage, "use it with --dry-run", "adopt", "deploy/billing", "-o", "yaml")
	w.says(ExitUsage, "adopt accepts yaml", "adopt", "deploy/billing", "--dry-run", "-o", "json")
	job := &v1alpha1.SingletonJob{ObjectMeta: metav1.ObjectMeta{Namespace: w.namespace, Name: "mail"}}
	if err := w.api.Get(t.Context(), client.ObjectKeyFromObject(job), job); client.IgnoreNotFound(err) != nil || err == nil {
		t.Errorf("a dry run has made a job: %v", err)
	}
	w.says(ExitUsage, `expected one workload, as deployment/NAME or statefulset/NAME, got "billing"`, "adopt", "billing")
	w.says(ExitError, `daemonset "billing" cannot be adopted`, "adopt", "daemonset/billing")
	for _, kind := range []string{"cronjob", "cj", "Jobs.batch"} {
		w.says(ExitError, kind+` "report" cannot be adopted, because two things would start its runs: suspend it (kubectl patch `+kind+" report -n "+w.namespace,
			"adopt", kind+"/report")
		w.says(ExitError, "docs/from-cronjob.md", "adopt", kind+"/report")
	}
	w.says(ExitError, "does not exist", "adopt", "deployment/nothing")

	ctx, interrupt := context.WithCancel(t.Context())
	defer interrupt()
	reader, writer := io.Pipe()
	ended := make(chan int)
	go func() {
		args := []string{"adopt", "deployment/billing", "--name=mail", "--candidates=3", "--kubeconfig=" + w.kubeconfig, "-n", w.namespace}
		status := Run(ctx, args, genericiooptions.IOStreams{In: strings.NewReader(""), Out: io.Discard, ErrOut: writer})
		writer.Close()
		ended <- status
	}()
	seen := newReader(reader)
	seen.until(t, "waiting for the operator to see the SingletonJob mail")
	interrupt()
	seen.until(t, "run it again to continue")
	go seen.drain()
	if status := <-ended; status != ExitInterrupted {
		t.Errorf("interrupted, it ended with %d", status)
	}
	w.must(w.api.Get(t.Context(), client.ObjectKeyFromObject(job), job))
	if job.Spec.Candidates != 3 || job.Spec.WorkloadRef == nil || job.Spec.WorkloadRef.Name != "billing" {
		t.Errorf("it made %+v", job.Spec)
	}

	for _, wrong := range [][]string{{"--undo", "--replicas=0"}, {"--undo", "--replicas=-3"}, {"--replicas=2"}, {"--undo", "--candidates=2"}, {"--undo", "--container=app"}} {
		w.says(ExitUsage, "", append([]string{"adopt", "deployment/billing"}, wrong...)...)
	}
	w.says(ExitOK, "would suspend the SingletonJob mail, then wait until its Pods no longer exist, then delete the SingletonJob mail",
		"adopt", "deployment/billing", "--undo", "--dry-run")
	job.Annotations = map[string]string{"singletonjob.io/workload-replicas": "many"}
	w.must(w.api.Update(t.Context(), job))
	w.must(w.api.SubResource("scale").Patch(t.Context(), &appsv1.Deployment{ObjectMeta: metav1.ObjectMeta{Namespace: w.namespace, Name: "billing"}},
		client.RawPatch(types.MergePatchType, []byte(`{"spec":{"replicas":0}}`)), client.WithSubResourceBody(&autoscalingv1.Scale{})))
	w.says(ExitError, `the annotation singletonjob.io/workload-replicas of the SingletonJob mail is "many", which is no number from 1 to 1000: give the number with --replicas`,
		"adopt", "deployment/billing", "--undo")
	w.says(ExitOK, "then scale Deployment/billing to 2, then delete the SingletonJob mail", "adopt", "deployment/billing", "--undo", "--dry-run", "--replicas=2")
}
