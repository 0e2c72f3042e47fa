package plan

import (
	"os"
	"regexp"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/fluxcd/cli-utils/pkg/kstatus/status"
	lua "github.com/yuin/gopher-lua"
	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime"

	"github.com/singletonjob/operator/api/v1alpha1"
	"github.com/singletonjob/operator/internal/lease"
)

// TestReady: the value of Ready, and how tools that wait for it interpret it.
func TestReady(t *testing.T) {
	for name, c := range map[string]struct {
		given  *given
		with   func(*given)
		reason string
		kstatus,
		argo string
	}{
		"steady":         {reason: "Running", kstatus: "Current", argo: "Healthy"},
		"no standby":     {with: func(g *given) { g.unready(1) }, reason: "Running", kstatus: "Current", argo: "Healthy"},
		"just made":      {given: fresh(), reason: "NoCandidates", kstatus: "InProgress", argo: "Progressing"},
		"electing":       {with: func(g *given) { g.released(lease.ReasonPodTerminating) }, reason: "Electing", kstatus: "InProgress", argo: "Progressing"},
		"a new template": {with: newTemplate, reason: "RollingOut", kstatus: "InProgress", argo: "Progressing"},
		"a new template is refused": {
			with:   func(g *given) { newTemplate(g); g.Refused = []Refusal{{Text: "exceeded quota", Pods: true}} },
			reason: "FailedCreate", kstatus: "InProgress", argo: "Degraded",
		},
		"a new template without an image": {
			with:   func(g *given) { newTemplate(g); g.pod(0, "c"); g.waiting(2, "ErrImagePull") },
			reason: "RolloutStalled", kstatus: "InProgress", argo: "Degraded",
		},
		"a new template that is active and not proven": {
			with: func(g *given) {
				newTemplate(g)
				g.pod(0, "c")
				g.held(2, 200, ago(time.Second))
			},
			reason: "RollingOut", kstatus: "InProgress", argo: "Progressing",
		},
		"a pod is refused while another runs": {
			with: func(g *given) {
				g.Pods = g.Pods[:1]
				g.Refused = []Refusal{{Text: "exceeded quota", Pods: true}}
			},
			reason: "FailedCreate", kstatus: "InProgress", argo: "Degraded",
		},
		"a label is refused": {
			with:   func(g *given) { g.Refused = []Refusal{{Verb: Update, Text: "change pod"}} },
			reason: "FailedUpdate", kstatus: "InProgress", argo: "Degraded",
		},
		"a deletion is refused": {
			with:   func(g *given) { g.Refused = []Refusal{{Verb: Delete, Text: "delete pod"}} },
			reason: "FailedDelete", kstatus: "InProgress", argo: "Degraded",
		},
		"the active pod is deleted": {with: func(g *given) { g.terminating(0) }, reason: "ReplacingCandidates", kstatus: "InProgress", argo: "Progressing"},
		"the active pod is not seen": {
			with: func(g *given) { g.Pods = g.Pods[1:] }, reason: "UnmanagedHolder", kstatus: "InProgress", argo: "Degraded",
		},
		"the only pod is replaced": {
			with: func(g *given) {
				g.Job.Spec.Candidates, g.Pods = 1, g.Pods[:1]
				newTemplate(g)
				g.terminating(0)
			},
			reason: "ReplacingCandidates", kstatus: "InProgress", argo: "Progressing",
		},
		"not ready by its probes": {with: func(g *given) { g.unwell(0, time.Hour) }, reason: "NotReady", kstatus: "InProgress", argo: "Progressing"},
		"an invalid spec": {
			with: func(g *given) { g.Job.Spec.Lease.RenewDeadline.Duration = time.Minute }, reason: "InvalidSpec", kstatus: "Failed", argo: "Degraded",
		},
		"being suspended": {with: func(g *given) { g.Job.Spec.Suspend = true }, reason: "Suspending", kstatus: "InProgress", argo: "Progressing"},
		"suspended": {
			with: func(g *given) {
				g.Job.Spec.Suspend, g.Pods = true, nil
				g.released(lease.ReasonPodTerminating)
			},
			reason: "Suspended", kstatus: "Current", argo: "Suspended",
		},
		"being deleted": {
			with: func(g *given) {
				g.Job.DeletionTimestamp, g.Job.Finalizers = &metav1.Time{Time: now}, []string{"foregroundDeletion"}
			},
			reason: "Deleting", kstatus: "Terminating", argo: "Progressing",
		},
	} {
		t.Run(name, func(t *testing.T) {
			g := c.given
			if g == nil {
				g = steady()
			}
			if c.with != nil {
				c.with(g)
			}
			if p := Decide(g.Observed); p.Status != nil {
				g.Job.Status = *p.Status
			}
			ready := meta.FindStatusCondition(g.Job.Status.Conditions, v1alpha1.ConditionReady)
			if ready.Reason != c.reason || ready.ObservedGeneration != g.Job.Generation {
				t.Errorf("Ready says %+v, want %s", ready, c.reason)
			}
			if got := kstatus(t, g.Job); got != c.kstatus {
				t.Errorf("kstatus is %s, want %s", got, c.kstatus)
			}
			if got := argo(t, g.Job); got != c.argo {
				t.Errorf("Argo CD says %s, want %s", got, c.argo)
			}
			// A spec that the operator has not seen is never reported as running.
			g.Job.Generation++
			if got := kstatus(t, g.Job); got == "Current" {
				t.Errorf("kstatus of the next generation is %s", got)
			}
			if got := argo(t, g.Job); got != "Progressing" {
				t.Errorf("Argo CD says %s of the next generation", got)
			}
		})
	}
}

func newTemplate(g *given) { g.Job.Spec.Template.Spec.Containers[0].Image = "v2" }

// TestReadyBeforeAnyOperator: the API server gives a new job this status, without which kstatus would call it Current.
func TestReadyBeforeAnyOperator(t *testing.T) {
	job := fresh().Job
	job.Status = v1alpha1.SingletonJobStatus{ObservedGeneration: -1}
	if k, a := kstatus(t, job), argo(t, job); k != "InProgress" || a != "Progressing" {
		t.Errorf("kstatus is %s, Argo CD says %s", k, a)
	}
	g := fresh()
	g.Job.Status = job.Status
	g.Job.Spec.Candidates = 3
	if reasons, _ := conditionsOf(Decide(g.Observed), g); !strings.HasSuffix(reasons, v1alpha1.ReasonProvisioning) {
		t.Errorf("a job that was never looked at is %s", reasons)
	}
}

// TestToolsWaitForARun: Argo CD and kstatus treat a job that is run once like a Job, and one with a schedule like a workload that always
// runs.
func TestToolsWaitForARun(t *testing.T) {
	for name, c := range map[string]struct {
		given *given
		with  func(*given)
		want  string
		also  string // of kstatus
	}{
		"under way": {given: toCompletion(), with: func(*given) {}, want: "Progressing", also: "InProgress"},
		"retrying":  {given: toCompletion(), with: func(g *given) { g.over(lease.RunFailed, lease.ReasonProcessExited, 3) }, want: "Progressing", also: "InProgress"},
		"complete":  {given: toCompletion(), with: (*given).complete, want: "Healthy", also: "Current"},
		"suspended": {given: toCompletion(), with: func(g *given) { g.Job.Spec.Suspend, g.Pods = true, nil; g.released(lease.ReasonPodTerminating) }, want: "Suspended", also: "Current"},
		"given up":  {given: toCompletion(), with: func(g *given) { g.complete(); g.Lease.Record.Runs.Now.State = lease.RunGivenUp }, want: "Degraded", also: "Failed"},
		"asked again": {given: toCompletion(), with: func(g *given) {
			g.Job.Status.Conditions = append(g.Job.Status.Conditions, metav1.Condition{Type: "Stalled", Status: "True", Reason: "RunFailed"})
		}, want: "Progressing", also: "InProgress"},
		"no tick due": {given: onSchedule("0 9 * * *", nil).idle(), with: func(*given) {}, want: "Healthy", also: "Current"},
		"a run fails": {given: onSchedule("0 9 * * *", nil), with: func(g *given) { g.complete(); g.Lease.Record.Runs.Now.State = lease.RunGivenUp }, want: "Healthy", also: "Current"},
	} {
		t.Run(name, func(t *testing.T) {
			g := c.given
			c.with(g)
			g.Job.Status = *g.told(Decide(g.Observed))
			if got := argo(t, g.Job); got != c.want {
				t.Errorf("Argo CD says %s, want %s, of %+v", got, c.want, g.Job.Status.Conditions)
			}
			if got := kstatus(t, g.Job); got != c.also {
				t.Errorf("kstatus says %s, want %s, of %+v", got, c.also, g.Job.Status.Conditions)
			}
		})
	}
}

// TestReadyIsNotRewritten: a rejection that differs only in numbers is not written again.
func TestReadyIsNotRewritten(t *testing.T) {
	g := steady()
	g.Refused = []Refusal{{Text: "request 4f2a took 12ms: denied", Pods: true}}
	g.Job.Status = *Decide(g.Observed).Status
	g.Refused[0].Text = "request 91bc took 340ms: denied"
	g.Now = now.Add(time.Hour)
	g.Lease.Record.RenewTime = ago(-time.Hour).UnixMicro()
	if p := Decide(g.Observed); p.Status != nil {
		t.Errorf("the status is written again: %s", whyStatus(&g.Job.Status, p.Status))
	}
}

func kstatus(t *testing.T, job *v1alpha1.SingletonJob) string {
	t.Helper()
	result, err := status.Compute(&unstructured.Unstructured{Object: asMap(t, job)})
	if err != nil {
		t.Fatal(err)
	}
	return result.Status.String()
}

func asMap(t *testing.T, job *v1alpha1.SingletonJob) map[string]any {
	t.Helper()
	job = job.DeepCopy()
	job.APIVersion, job.Kind = v1alpha1.GroupVersion.String(), v1alpha1.Kind
	object, err := runtime.DefaultUnstructuredConverter.ToUnstructured(job)
	if err != nil {
		t.Fatal(err)
	}
	return object
}

// argo is the result of the documented script.
func argo(t *testing.T, job *v1alpha1.SingletonJob) string {
	t.Helper()
	state := lua.NewState()
	defer state.Close()
	state.SetGlobal("obj", luaValue(state, asMap(t, job)))
	if err := state.DoString(argoScript(t)); err != nil {
		t.Fatal(err)
	}
	health, ok := state.Get(-1).(*lua.LTable)
	if !ok {
		t.Fatal("the script returns no table")
	}
	return health.RawGetString("status").String()
}

func argoScript(t *testing.T) string {
	t.Helper()
	page, err := os.ReadFile("../../docs/ready.md")
	if err != nil {
		t.Fatal(err)
	}
	_, script, _ := strings.Cut(string(page), "```lua\n")
	script, _, found := strings.Cut(script, "```")
	if !found {
		t.Fatal("docs/ready.md has no script")
	}
	return script
}

func luaValue(state *lua.LState, value any) lua.LValue {
	switch v := value.(type) {
	case map[string]any:
		table := state.NewTable()
		for key, child := range v {
			table.RawSetString(key, luaValue(state, child))
		}
		return table
	case []any:
		table := state.NewTable()
		for _, child := range v {
			table.Append(luaValue(state, child))
		}
		return table
	case string:
		return lua.LString(v)
	case int64:
		return lua.LNumber(v)
	case bool:
		return lua.LBool(v)
	}
	return lua.LNil
}

// TestReadyTroublesAreReasons: the script names only reasons that exist.
func TestReadyTroublesAreReasons(t *testing.T) {
	table, _, _ := strings.Cut(argoScript(t), "}")
	named := regexp.MustCompile(`(\w+) = true`).FindAllStringSubmatch(table, -1)
	if len(named) == 0 {
		t.Fatal("the script names no trouble")
	}
	for _, name := range named {
		if !slices.ContainsFunc(v1alpha1.ConditionReasons(), func(r v1alpha1.ConditionReason) bool {
			return r.Condition == v1alpha1.ConditionReady && r.Status == metav1.ConditionFalse && r.Reason == name[1]
		}) {
			t.Errorf("%s is no reason for which a job is not ready", name[1])
		}
	}
}
