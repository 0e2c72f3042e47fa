// Package adopt turns a workload into a singleton without two processes of it ever running at the same time. It creates a
// SingletonJob, which waits until the workload has no Pods, scales the workload to 0, and waits until the job's own process runs.
//
// Each look at the cluster leads to one step ([next], and [back] for the way back). The step depends only on what the cluster shows, so
// the command can be interrupted anywhere and run again.
package adopt

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"slices"
	"strings"
	"time"

	appsv1 "k8s.io/api/apps/v1"
	autoscalingv1 "k8s.io/api/autoscaling/v1"
	corev1 "k8s.io/api/core/v1"
	policyv1 "k8s.io/api/policy/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/types"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/yaml"

	"github.com/singletonjob/operator/api/v1alpha1"
	"github.com/singletonjob/operator/internal/workload"
)

// AddToScheme adds the types that Options.Client needs.
func AddToScheme(s *runtime.Scheme) error {
	return errors.Join(v1alpha1.AddToScheme(s), appsv1.AddToScheme(s), autoscalingv1.AddToScheme(s), corev1.AddToScheme(s),
		policyv1.AddToScheme(s))
}

// Options describe the adoption.
type Options struct {
	// Client reads from the API server and writes to it. It needs to get and patch the scale of workloads of the kind, to get, list,
	// create and patch SingletonJobs, and to get workloads. If it may also list Services and PodDisruptionBudgets, Run warns of those
	// that do not suit the SingletonJob. Undo also needs to list Pods and to delete SingletonJobs.
	Client client.Client
	// Namespace, Kind (Deployment or StatefulSet, or kubectl's names for them) and Name of the workload.
	Namespace  string
	Kind, Name string
	// JobName of the SingletonJob. If it is empty, Run uses the workload's name, and Undo the SingletonJob that has the workload.
	JobName string
	// Undo goes the way back: the workload runs by itself again, and the SingletonJob is deleted. Replicas is the number to scale the
	// workload to; 0 for the recorded one.
	Undo     bool
	Replicas int32
	// Candidates of the SingletonJob; 0 for the API's default.
	Candidates int32
	// Container of the workload's template that is gated. If it is empty, the API chooses the container.
	Container string
	// DryRun only reports the steps, and writes the SingletonJob to Out.
	DryRun bool
	// ManifestOnly has a dry run write nothing but the SingletonJob.
	ManifestOnly bool
	// Out gets the result. ErrOut gets the progress and the notes.
	Out, ErrOut io.Writer
	// Wait waits between two looks. If it is nil, Run waits a second. An error from it ends Run.
	Wait func(context.Context) error
}

// kinds maps the names that kubectl knows to kinds of workloads.
var kinds = map[string]v1alpha1.WorkloadKind{
	"deployment": v1alpha1.WorkloadDeployment, "deployments": v1alpha1.WorkloadDeployment, "deploy": v1alpha1.WorkloadDeployment,
	"statefulset": v1alpha1.WorkloadStatefulSet, "statefulsets": v1alpha1.WorkloadStatefulSet, "sts": v1alpha1.WorkloadStatefulSet,
}

// ending are the kinds whose Pods end by themselves.
var ending = []string{"cronjob", "cronjobs", "cj", "job", "jobs"}

// Run returns when the SingletonJob's process runs, or with Undo when the workload runs by itself. It also returns when it can do nothing,
// and when ctx ends. An error from the API server ends it too. Running it again continues from there.
func Run(ctx context.Context, o Options) error {
	kind, known := kinds[strings.TrimSuffix(strings.ToLower(o.Kind), ".apps")]
	if slices.Contains(ending, strings.TrimSuffix(strings.ToLower(o.Kind), ".batch")) {
		return fmt.Errorf("%s %q cannot be adopted, because two things would start its runs: suspend it (kubectl patch %s %s -n %s -p '{\"spec\":{\"suspend\":true}}'), "+
			"and create a SingletonJob with runPolicy RunToCompletion and its Pod template: docs/from-cronjob.md lists each field",
			o.Kind, o.Name, o.Kind, o.Name, o.Namespace)
	}
	if !known {
		return fmt.Errorf("%s %q cannot be adopted: only a deployment or a statefulset can", o.Kind, o.Name)
	}
	if o.JobName == "" && !o.Undo {
		o.JobName = o.Name
	}
	if o.Wait == nil {
		o.Wait = aSecond
	}
	r := &run{Options: o, ref: v1alpha1.WorkloadRef{APIVersion: v1alpha1.WorkloadAPIVersion, Kind: kind, Name: o.Name}}
	for {
		done, err := r.step(ctx)
		if err != nil {
			return err
		}
		if done {
			return nil
		}
	}
}

func aSecond(ctx context.Context) error {
	select {
	case <-ctx.Done():
		return fmt.Errorf("interrupted, without harm; run it again to continue: %w", ctx.Err())
	case <-time.After(time.Second):
		return nil
	}
}

// run holds the state of one call of Run.
type run struct {
	Options
	ref v1alpha1.WorkloadRef
	// scaled: this call has scaled the workload.
	scaled bool
	// said is the last message.
	said string
}

// step looks at the cluster and does the next step.
func (r *run) step(ctx context.Context) (done bool, err error) {
	f, err := r.look(ctx)
	if err != nil {
		return false, err
	}
	decide := next
	if r.Undo {
		decide = back
	}
	todo, why := decide(f, r.scaled)
	switch {
	case todo == refuse:
		return false, errors.New(why)
	case r.DryRun && r.Undo:
		return true, r.previewUndo(ctx, f, todo, why)
	case r.DryRun:
		return true, r.preview(ctx, f, todo)
	case todo == report:
		r.notes(ctx, f)
		_, err := fmt.Fprintln(r.Out, why)
		return true, err
	}
	r.say(why)
	return false, r.do(ctx, f, todo)
}

// do carries out a step.
func (r *run) do(ctx context.Context, f facts, todo step) error {
	switch todo {
	case create:
		if err := r.Client.Create(ctx, f.desired); err != nil && !apierrors.IsAlreadyExists(err) {
			return fmt.Errorf("create the SingletonJob %s: %w", r.JobName, err)
		}
	case record:
		return r.patch(ctx, f.job, map[string]any{"metadata": map[string]any{"annotations": recordOf(f.workload)}})
	case scale:
		return r.scaleTo(ctx, 0)
	case suspend:
		return r.patch(ctx, f.job, map[string]any{"spec": map[string]any{"suspend": true}})
	case restore:
		replicas, _ := f.recorded() // otherwise the step is another
		return r.scaleTo(ctx, replicas)
	case remove:
		err := r.Client.Delete(ctx, f.job, client.Preconditions{UID: &f.job.UID})
		if err != nil && !apierrors.IsNotFound(err) {
			return fmt.Errorf("delete the SingletonJob %s: %w", f.job.Name, err)
		}
	default:
		return r.Wait(ctx)
	}
	return nil
}

// look reads everything that next depends on.
func (r *run) look(ctx context.Context) (facts, error) {
	f := facts{ref: r.ref, desired: r.job(), replicas: r.Replicas}
	object, err := workload.Get(ctx, r.Client, r.Namespace, r.ref)
	if err != nil {
		return f, err
	}
	w, _ := workload.Of(object)
	f.workload = w
	if object != nil {
		f.keeper = keeperOf(object.GetLabels(), object.GetAnnotations())
	}
	var jobs v1alpha1.SingletonJobList
	if err := r.Client.List(ctx, &jobs, client.InNamespace(r.Namespace)); err != nil {
		return f, fmt.Errorf("list the SingletonJobs of namespace %s: %w", r.Namespace, err)
	}
	f.job, f.other = pick(jobs.Items, r.ref, r.JobName)
	if !r.Undo {
		f.desired.Annotations = recordOf(w)
		return f, nil
	}
	if f.job != nil {
		r.JobName = f.job.Name // after its deletion, too
	}
	f.pods, err = r.candidates(ctx, f.job)
	return f, err
}

// pick returns the SingletonJob of a name, or without a name the first one that has the workload. other is another one that has it.
func pick(jobs []v1alpha1.SingletonJob, ref v1alpha1.WorkloadRef, name string) (job *v1alpha1.SingletonJob, other string) {
	for i := range jobs {
		has := jobs[i].Spec.WorkloadRef != nil && *jobs[i].Spec.WorkloadRef == ref
		switch {
		case jobs[i].Name == name, name == "" && has && job == nil:
			job = &jobs[i]
		case has:
			other = jobs[i].Name
		}
	}
	return job, other
}

func (r *run) job() *v1alpha1.SingletonJob {
	return &v1alpha1.SingletonJob{
		TypeMeta:   metav1.TypeMeta{APIVersion: v1alpha1.GroupVersion.String(), Kind: v1alpha1.Kind},
		ObjectMeta: metav1.ObjectMeta{Namespace: r.Namespace, Name: r.JobName},
		Spec:       v1alpha1.SingletonJobSpec{Candidates: r.Candidates, Container: r.Container, WorkloadRef: &r.ref},
	}
}

func (r *run) scaleTo(ctx context.Context, replicas int32) error {
	object := workload.Object(r.ref.Kind)
	object.SetNamespace(r.Namespace)
	object.SetName(r.ref.Name)
	patch := client.RawPatch(types.MergePatchType, fmt.Appendf(nil, `{"spec":{"replicas":%d}}`, replicas))
	if err := r.Client.SubResource("scale").Patch(ctx, object, patch, client.WithSubResourceBody(&autoscalingv1.Scale{})); err != nil {
		return fmt.Errorf("scale %s to %d: %w", r.ref, replicas, err)
	}
	r.scaled = true
	return nil
}

func (r *run) patch(ctx context.Context, job *v1alpha1.SingletonJob, fields map[string]any) error {
	raw, err := json.Marshal(fields)
	if err != nil {
		return err
	}
	if err := r.Client.Patch(ctx, job, client.RawPatch(types.MergePatchType, raw)); err != nil {
		return fmt.Errorf("patch the SingletonJob %s: %w", job.Name, err)
	}
	return nil
}

func (r *run) say(what string) {
	if what != r.said {
		_, _ = fmt.Fprintln(r.ErrOut, what)
	}
	r.said = what
}

// preview reports what Run would do.
func (r *run) preview(ctx context.Context, f facts, todo step) error {
	if r.ManifestOnly && todo != create {
		return fmt.Errorf("the SingletonJob %s exists already: kubectl get singletonjob %[1]s -n %s -o yaml", r.JobName, r.Namespace)
	}
	if todo == create {
		out, err := manifest(f.desired)
		if err != nil {
			return err
		}
		if _, err := r.Out.Write(out); err != nil || r.ManifestOnly {
			return err
		}
		r.say("would create this SingletonJob, which starts no process while " + r.ref.String() + " runs")
	}
	if f.workload.Replicas != 0 {
		r.say(fmt.Sprintf("would scale %s from %d to 0, and wait until its Pods no longer exist and the SingletonJob's process runs", r.ref, f.workload.Replicas))
	}
	r.notes(ctx, f)
	return nil
}

// manifest is the job's YAML as a user would write it.
func manifest(job *v1alpha1.SingletonJob) ([]byte, error) {
	type metadata struct {
		Name        string            `json:"name"`
		Namespace   string            `json:"namespace"`
		Annotations map[string]string `json:"annotations,omitempty"`
	}
	type spec struct {
		Candidates  int32                 `json:"candidates,omitempty"`
		Container   string                `json:"container,omitempty"`
		WorkloadRef *v1alpha1.WorkloadRef `json:"workloadRef"`
	}
	return yaml.Marshal(struct {
		metav1.TypeMeta `json:",inline"`
		Metadata        metadata `json:"metadata"`
		Spec            spec     `json:"spec"`
	}{job.TypeMeta, metadata{job.Name, job.Namespace, job.Annotations}, spec{job.Spec.Candidates, job.Spec.Container, job.Spec.WorkloadRef}})
}
