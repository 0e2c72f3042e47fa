package controller

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"strings"
	"testing"

	appsv1 "k8s.io/api/apps/v1"
	corev1 "k8s.io/api/core/v1"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/client/interceptor"

	"github.com/singletonjob/operator/api/v1alpha1"
	"github.com/singletonjob/operator/internal/adopt"
	"github.com/singletonjob/operator/test/tier"
)

var errInterrupted = errors.New("interrupted")

// adoption adopts the Deployment web, or goes back. It is killed at a point, which is before or after a write;
// -1 for never.
type adoption struct {
	w       *world
	undo    bool
	at      int
	reads   bool // each read is a point, too
	waiting bool // interrupted at each wait
	points  int
	writes  int
}

// point is one where it can be killed.
func (a *adoption) point() error {
	a.points++
	if a.points-1 == a.at {
		return errInterrupted
	}
	return nil
}

func (a *adoption) read(do func() error) error {
	if err := do(); err != nil || !a.reads {
		return err
	}
	return a.point()
}

func (a *adoption) write(do func() error) error {
	if err := a.point(); err != nil {
		return err
	}
	a.writes++
	if err := do(); err != nil {
		return err
	}
	return a.point()
}

// api is the API server as adopt sees it.
func (a *adoption) api() client.Client {
	return interceptor.NewClient(a.w.api, interceptor.Funcs{
		Get: func(ctx context.Context, c client.WithWatch, key client.ObjectKey, obj client.Object, opts ...client.GetOption) error {
			return a.read(func() error { return c.Get(ctx, key, obj, opts...) })
		},
		List: func(ctx context.Context, c client.WithWatch, list client.ObjectList, opts ...client.ListOption) error {
			return a.read(func() error { return c.List(ctx, list, opts...) })
		},
		Create: func(ctx context.Context, c client.WithWatch, obj client.Object, opts ...client.CreateOption) error {
			return a.write(func() error { return c.Create(ctx, obj, opts...) })
		},
		Patch: func(ctx context.Context, c client.WithWatch, obj client.Object, patch client.Patch, opts ...client.PatchOption) error {
			return a.write(func() error { return c.Patch(ctx, obj, patch, opts...) })
		},
		Delete: func(ctx context.Context, c client.WithWatch, obj client.Object, opts ...client.DeleteOption) error {
			return a.write(func() error { return c.Delete(ctx, obj, opts...) })
		},
		SubResourcePatch: func(ctx context.Context, c client.Client, sub string, obj client.Object, patch client.Patch, opts ...client.SubResourcePatchOption) error {
			return a.write(func() error { return c.SubResource(sub).Patch(ctx, obj, patch, opts...) })
		},
	})
}

func (a *adoption) run(dryRun bool) (string, error) {
	a.w.t.Helper()
	var out bytes.Buffer
	rounds := 0
	err := adopt.Run(a.w.t.Context(), adopt.Options{
		Client: a.api(), Namespace: a.w.key.Namespace, Kind: "deploy", Name: webRef.Name, JobName: a.w.key.Name, DryRun: dryRun, Undo: a.undo,
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

// through runs it again until it is not interrupted any more, and reports whether it was.
func (a *adoption) through() (interrupted bool) {
	a.w.t.Helper()
	for range 300 {
		_, err := a.run(false)
		if !errors.Is(err, errInterrupted) {
			a.w.must(err)
			return interrupted
		}
		interrupted = true
		if a.at >= 0 {
			a.at = -1
			for range 3 { // the others continue
				a.w.round()
			}
		}
	}
	a.w.t.Fatalf("it does not end:\n%s", a.w.describe())
	return
}

// adopted fails unless the job runs the Deployment's process, and it was started once.
func (w *world) adopted() {
	w.t.Helper()
	if web := w.web(); *web.Spec.Replicas != 0 || len(w.plain()) > 0 || len(w.tenures) != 1 || w.holder() == nil {
		w.t.Errorf("not adopted:\n%s", w.describe())
	}
}

// returned waits until the Deployment runs its process again, and fails if the job is left.
func (w *world) returned() {
	w.t.Helper()
	w.until("the Deployment's pod runs", func() bool { return len(w.plain()) == 1 })
	job, err := get(w.t.Context(), w.api, w.key, &v1alpha1.SingletonJob{})
	if w.must(err); job != nil || *w.web().Spec.Replicas != 1 || w.holder() != nil {
		w.t.Errorf("not undone:\n%s", w.describe())
	}
}

// TestAdoptSurvivesInterruptions: adopt and the way back are killed before and after each write in turn, and at each wait. Running them
// again continues. Each round checks that two processes never run. Reads change nothing, so only the deep tier kills at each of them, too.
func TestAdoptSurvivesInterruptions(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	w.deployment(1)
	w.until("the Deployment's pod runs", func() bool { return len(w.plain()) == 1 })
	n := 0
	thereAndBack := func(at int, waiting bool) (interrupted bool) {
		w.key.Name, w.tenures = fmt.Sprintf("job%d", n), nil // a name is used once, because nothing collects garbage
		n++
		there := (&adoption{w: w, at: at, reads: tier.IsDeep(), waiting: waiting}).through()
		w.adopted()
		back := (&adoption{w: w, at: at, reads: tier.IsDeep(), waiting: waiting, undo: true}).through()
		w.returned()
		return there || back
	}
	if thereAndBack(-1, false) || !thereAndBack(-1, true) {
		t.Error("the interruptions are not those that are meant")
	}
	at := 0
	for thereAndBack(at, false) {
		at++
	}
	if at < 6 { // the three writes of the way back
		t.Errorf("killed at %d points only", at)
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
