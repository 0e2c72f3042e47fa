package plan

import (
	"strings"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/singletonjob/operator/api/v1alpha1"
	"github.com/singletonjob/operator/internal/inject"
)

func dropCommand(g *given) { g.Job.Spec.Template.Spec.Containers[0].Command = nil }

func found(g *given, command ...string) *v1alpha1.Entrypoint {
	return &v1alpha1.Entrypoint{TemplateHash: inject.Hash(g.Job), Image: "v1", Digest: "sha256:x", Command: command}
}

// TestNoPodBeforeTheEntrypointIsKnown: until then no pod is created or removed. Then the entrypoint is recorded, and after that pods are
// created from it.
func TestNoPodBeforeTheEntrypointIsKnown(t *testing.T) {
	for name, c := range map[string]struct {
		given  *given
		lookup Lookup
		want   string
		says   string
		wake   time.Duration
	}{
		"a new job, at first":    {given: fresh(), want: "EntrypointUnknown NoHolder EntrypointUnknown", says: `the entrypoint of its image "v1" is unknown: the operator is asking its registry`},
		"a new job, in trouble":  {given: fresh(), lookup: Lookup{Reason: "ImageNotFound", Problem: "the registry r has no such image", Retry: 7 * time.Second}, want: "ImageNotFound NoHolder ImageNotFound", says: "the registry r has no such image; set command to the ENTRYPOINT", wake: 7 * time.Second},
		"an image of nothing":    {given: fresh(), lookup: Lookup{Reason: "NoEntrypoint", Problem: "it runs nothing by itself", Retry: 7 * time.Second}, want: "NoEntrypoint NoHolder NoEntrypoint", says: "it runs nothing by itself; set command to a program in the image; existing", wake: 7 * time.Second},
		"a rollout, at first":    {given: steady(), want: "Running StandbyReady EntrypointUnknown", says: "the operator is asking its registry"},
		"a rollout, in trouble":  {given: steady(), lookup: Lookup{Reason: "RegistryUnreachable", Problem: "trouble", Retry: 7 * time.Second}, want: "Running StandbyReady RegistryUnreachable", says: "existing pods stay as they are", wake: 7 * time.Second},
		"a long text is cut off": {given: steady(), lookup: Lookup{Reason: "no reason", Problem: strings.Repeat("x", 1<<20)}, want: "Running StandbyReady EntrypointUnknown", says: "xxx ..."},
	} {
		t.Run(name, func(t *testing.T) {
			g := c.given
			if len(g.Pods) == 0 {
				g.free()
			}
			dropCommand(g)
			g.Entrypoint = c.lookup
			if AsksForEntrypoint(&g.Observed) == nil {
				t.Fatal("it does not ask")
			}
			p := Decide(g.Observed)
			if len(p.Create)+len(p.Delete) > 0 || p.State != EntrypointUnknown || p.Lease != nil {
				t.Errorf("%v creates %d pods, deletes %d, writes %v", p.State, len(p.Create), len(p.Delete), p.Lease)
			}
			reasons, _ := conditionsOf(p, g)
			if reasons != c.want {
				t.Errorf("conditions are %s, want %s", reasons, c.want)
			}
			if text := messages(p.Status); !strings.Contains(text, c.says) {
				t.Errorf("conditions say %s", text)
			}
			if c.wake > 0 && (p.Wake == 0 || p.Wake > c.wake) {
				t.Errorf("it wakes after %v", p.Wake)
			}
			isRecordedFirst(t, g)
		})
	}
}

// isRecordedFirst: the result is in the status before a pod is created from it.
func isRecordedFirst(t *testing.T, g *given) {
	t.Helper()
	g.Entrypoint = Lookup{Found: found(g, "/found")}
	p := Decide(g.Observed)
	if len(p.Create)+len(p.Delete) > 0 || p.Status == nil || p.Status.Entrypoint == nil || p.Wake == 0 || p.Wake > time.Second {
		t.Fatalf("before it is recorded there are %d pods to be made, the status is %+v, it wakes after %v", len(p.Create), p.Status, p.Wake)
	}
	g.Job.Status = *p.Status
	g.Entrypoint = Lookup{}
	if p = Decide(g.Observed); len(p.Create) == 0 || AsksForEntrypoint(&g.Observed) != nil {
		t.Fatalf("no pod is created, in %v", p.State)
	}
	if got := p.Create[0].Spec.Containers[0].Command; got[len(got)-1] != "/found" {
		t.Errorf("it runs %v", got)
	}
}

func messages(status *v1alpha1.SingletonJobStatus) string {
	var text []string
	for _, c := range status.Conditions {
		text = append(text, c.Message)
	}
	return strings.Join(text, "\n")
}

// TestEntrypointRecordStays: a later result, one for another template, or one for a job with a command, changes nothing.
func TestEntrypointRecordStays(t *testing.T) {
	g := steady()
	dropCommand(g)
	g.Job.Status.Entrypoint = found(g, "/first")
	g.Entrypoint = Lookup{Found: found(g, "/second")}
	if p := Decide(g.Observed); p.Status != nil && p.Status.Entrypoint.Command[0] != "/first" {
		t.Errorf("it was recorded as %v", p.Status.Entrypoint)
	}
	stale := found(g, "/stale")
	g.Job.Spec.Template.Spec.Containers[0].Image = "v2"
	g.Entrypoint = Lookup{Found: stale}
	if p := Decide(g.Observed); p.State != EntrypointUnknown || p.Status != nil && p.Status.Entrypoint.Command[0] == "/stale" {
		t.Errorf("in %v, what was found for another template is recorded: %v", p.State, p.Status)
	}
}

func TestJobsThatNeedALookUp(t *testing.T) {
	for name, c := range map[string]struct {
		change func(*given)
		want   bool
	}{
		"without a command":  {func(*given) {}, true},
		"with a command":     {func(g *given) { g.Job.Spec.Template.Spec.Containers[0].Command = []string{"x"} }, false},
		"suspended":          {func(g *given) { g.Job.Spec.Suspend = true }, false},
		"being deleted":      {func(g *given) { g.Job.DeletionTimestamp = &metav1.Time{Time: now} }, false},
		"not valid":          {func(g *given) { g.Job.Spec.Lease.RenewDeadline.Duration = time.Minute }, false},
		"without containers": {func(g *given) { g.Job.Spec.Template.Spec.Containers = nil }, false},
		"another has a command": {func(g *given) {
			g.Job.Spec.Container = "app"
			g.Job.Spec.Template.Spec.Containers = append([]corev1.Container{{Name: "proxy", Command: []string{"x"}}}, g.Job.Spec.Template.Spec.Containers...)
		}, true},
	} {
		t.Run(name, func(t *testing.T) {
			g := steady()
			dropCommand(g)
			c.change(g)
			if got := AsksForEntrypoint(&g.Observed) != nil; got != c.want {
				t.Errorf("asks: %v", got)
			}
		})
	}
}

// TestChildrenStayDuringALookUp: the existing pods keep the objects that they need to renew.
func TestChildrenStayDuringALookUp(t *testing.T) {
	g := steady()
	dropCommand(g)
	g.Children.RoleBinding = nil
	if p := Decide(g.Observed); len(p.Apply) != 1 {
		t.Errorf("in %v %d objects are applied", p.State, len(p.Apply))
	}
}
