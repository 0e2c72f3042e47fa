package controller

import (
	"bytes"
	"context"
	"errors"
	"io"
	"strings"
	"testing"

	appsv1 "k8s.io/api/apps/v1"
	corev1 "k8s.io/api/core/v1"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/client/interceptor"

	"github.com/singletonjob/operator/api/v1alpha1"
	"github.com/singletonjob/operator/internal/adopt"
)

var errInterrupted = errors.New("interrupted")

// adoption adopts the Deployment web. It is interrupted at the write with this number, before or after it; -1 for no interruption.
type adoption struct {
	w       *world
	at      int
	after   bool
	waiting bool // interrupted at each wait
	writes  int
}

func (a *adoption) write(do func() error) error {
	n := a.writes
	a.writes++
	if n == a.at && !a.after {
		return errInterrupted
	}
	if err := do(); err != nil {
		return err
	}
	if n == a.at {
		return errInterrupted
	}
	return nil
}

func (a *adoption) run(dryRun bool) (string, error) {
	a.w.t.Helper()
	c := interceptor.NewClient(a.w.api, interceptor.Funcs{
		Create: func(ctx context.Context, c client.WithWatch, obj client.Object, opts ...client.CreateOption) error {
			return a.write(func() error { return c.Create(ctx, obj, opts...) })
		},
		SubResourcePatch: func(ctx context.Context, c client.Client, sub string, obj client.Object, patch client.Patch, opts ...client.SubResourcePatchOption) error {
			return a.write(func() error { return c.SubResource(sub).Patch(ctx, obj, patch, opts...) })
		},
	})
	var out bytes.Buffer
	rounds := 0
	err := adopt.Run(a.w.t.Context(), adopt.Options{
		Client: c, Namespace: a.w.key.Namespace, Kind: "deploy", Name: webRef.Name, JobName: a.w.key.Name, DryRun: dryRun,
		Out: &out, ErrOut: io.Discard,
		Wait: func(context.Context) error {
			a.w.round()
			if rounds++; a.waiting || rounds > 300 {
				return errInterrupted
			}
			return nil
		},
	})
	return out.String(), err
}

// adopted fails unless the job runs the Deployment's process, and it was started once.
func (w *world) adopted() {
	w.t.Helper()
	if web := w.web(); *web.Spec.Replicas != 0 || len(w.plain()) > 0 || len(w.tenures) != 1 || w.holder() == nil {
		w.t.Errorf("not adopted:\n%s", w.describe())
	}
}

// TestAdoptSurvivesInterruptions: adopt is interrupted before and after each write, and at each wait. Running it again continues.
// Each round checks that two processes never run.
func TestAdoptSurvivesInterruptions(t *testing.T) {
	t.Parallel()
	for name, a := range map[string]adoption{
		"before the job is made": {at: 0}, "after it": {at: 0, after: true},
		"before the Deployment is scaled": {at: 1}, "after that": {at: 1, after: true},
		"whenever it waits": {at: -1, waiting: true}, "never": {at: -1},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			w := newWorld(t)
			w.deployment(1)
			w.until("the Deployment's pod runs", func() bool { return len(w.plain()) == 1 })
			a.w = w
			runs, err := 0, errInterrupted
			for ; errors.Is(err, errInterrupted) && runs < 300; runs++ {
				if _, err = a.run(false); a.at >= 0 {
					a.at = -1
					for range 3 { // the others continue
						w.round()
					}
				}
			}
			w.must(err)
			if name != "never" && runs < 2 {
				t.Errorf("it was not interrupted")
			}
			w.adopted()
		})
	}
}

// TestAdoptChangesNothingIfImpossible: a dry run writes nothing, and adopt does not scale down a workload that the operator would
// refuse.
func TestAdoptChangesNothingIfImpossible(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	w.deployment(1)
	w.until("the Deployment's pod runs", func() bool { return len(w.plain()) == 1 })
	a := adoption{w: w, at: -1}
	out, err := a.run(true)
	if w.must(err); a.writes > 0 || !strings.Contains(out, "kind: SingletonJob\n") || !strings.Contains(out, "kind: Deployment\n    name: web\n") {
		t.Errorf("%d writes, and\n%s", a.writes, out)
	}
	w.editWeb(func(d *appsv1.DeploymentSpec) {
		d.Template.Spec.Containers[0].Env = []corev1.EnvVar{{Name: "FENCING_TOKEN", Value: "1"}}
	})
	if _, err := a.run(false); err == nil || !strings.Contains(err.Error(), "sets FENCING_TOKEN in env") || a.writes > 0 {
		t.Errorf("%d writes, %v", a.writes, err)
	}
	w.editWeb(func(d *appsv1.DeploymentSpec) { d.Template.Spec.Containers[0].Env = nil })
	w.jobOfWeb()
	w.edit(func(job *v1alpha1.SingletonJob) { job.Spec.Suspend = true })
	if _, err := a.run(false); err == nil || !strings.Contains(err.Error(), "suspended") || a.writes > 0 {
		t.Errorf("%d writes, %v", a.writes, err)
	}
	if replicas := *w.web().Spec.Replicas; replicas != 1 {
		t.Errorf("%d replicas", replicas)
	}
}
