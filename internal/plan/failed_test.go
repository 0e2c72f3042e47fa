package plan

import (
	"slices"
	"strings"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"

	"github.com/singletonjob/operator/api/v1alpha1"
	"github.com/singletonjob/operator/internal/inject"
)

// carryOutPods creates and deletes the pods of a plan. A kubelet rejects each created pod.
func (g *given) carryOutPods(p Plan) {
	g.Pods = slices.DeleteFunc(g.Pods, func(pod *corev1.Pod) bool {
		return slices.Contains(names(p.Delete), pod.Name)
	})
	for _, pod := range p.Create {
		pod.UID = types.UID(pod.Name + g.Now.String())
		pod.CreationTimestamp = metav1.NewTime(g.Now)
		g.Pods = append(g.Pods, pod)
		g.rejected(len(g.Pods)-1, "SysctlForbidden", "forbidden sysctl")
	}
}

// TestRejectedPodsAreRecreatedAfterAGrowingDelay: the decision has no memory, so an operator can be restarted at any time.
func TestRejectedPodsAreRecreatedAfterAGrowingDelay(t *testing.T) {
	for what, c := range map[string]struct {
		with func(*given)
		want []time.Duration
	}{
		"a standby": {
			with: func(g *given) { g.rejected(1, "SysctlForbidden", "forbidden sysctl") },
			want: []time.Duration{0, 10, 30, 70, 150, 310, 610, 910, 1210, 1510},
		},
		"all": {
			with: func(g *given) { g.Pods = nil; g.free() },
			want: []time.Duration{0, 0, 0, 0, 10, 10, 30, 30, 70, 70, 150, 150, 310, 310, 610, 610, 910, 910, 1210, 1210, 1510, 1510},
		},
	} {
		t.Run(what, func(t *testing.T) {
			g := steady()
			c.with(g)
			var made []time.Duration
			for start := g.Now; g.Now.Sub(start) < 30*time.Minute; {
				p := Decide(g.Observed)
				for range p.Create {
					made = append(made, g.Now.Sub(start)/time.Second)
				}
				g.carryOutPods(p)
				if len(g.Pods) > 4 {
					t.Fatalf("%d pods", len(g.Pods))
				}
				if len(p.Create)+len(p.Delete) > 0 {
					continue
				}
				if p.Status != nil {
					g.Job.Status = *p.Status
				}
				g.Now = g.Now.Add(min(p.Wake, 7*time.Second)) // it is also called if nothing is due
				g.Lease.Unchanged = time.Second
			}
			if !slices.Equal(made, c.want) {
				t.Errorf("pods were made after %d seconds, want %d", made, c.want)
			}
		})
	}
}

func TestReportOfAFailedPod(t *testing.T) {
	ran := func(from, to time.Duration) func(*corev1.Pod) {
		return func(pod *corev1.Pod) {
			pod.Status.ContainerStatuses = []corev1.ContainerStatus{{Name: "app", State: corev1.ContainerState{
				Terminated: &corev1.ContainerStateTerminated{StartedAt: metav1.NewTime(ago(from)), FinishedAt: metav1.NewTime(ago(to))},
			}}}
		}
	}
	changed := func(at time.Duration) func(*corev1.Pod) {
		return func(pod *corev1.Pod) {
			pod.Status.Conditions = []corev1.PodCondition{{Type: corev1.PodReady, LastTransitionTime: metav1.NewTime(ago(at))}}
		}
	}
	for what, c := range map[string]struct {
		failures string
		with     func(*corev1.Pod)
		waits    time.Duration
	}{
		"the first":                     {waits: 0},
		"the second":                    {failures: "1", waits: 9 * time.Second},
		"the third":                     {failures: "2", waits: 19 * time.Second},
		"the hundredth":                 {failures: "99", waits: maxDelay - time.Second},
		"a number without end":          {failures: "99999999999999999999999999", waits: 0},
		"a huge number":                 {failures: "9223372036854775807", waits: maxDelay - time.Second},
		"a negative number":             {failures: "-9223372036854775808", waits: 0},
		"no number":                     {failures: strings.Repeat("x", 1<<20), waits: 0},
		"it ran for long":               {failures: "9", with: ran(20*time.Minute, 10*time.Minute), waits: 0},
		"it ran for a while":            {failures: "1", with: ran(10*time.Minute, time.Second), waits: 9 * time.Second},
		"its kubelet's clock is ahead":  {failures: "1", with: ran(-time.Hour, -time.Hour-time.Minute), waits: 9 * time.Second},
		"its kubelet's clock is behind": {failures: "1", with: ran(time.Hour, time.Hour-time.Minute), waits: 9 * time.Second},
		"it is known when it ended":     {failures: "1", with: changed(0), waits: 10 * time.Second},
		"nothing of it is known":        {failures: "1", with: func(pod *corev1.Pod) { pod.Status.Reason, pod.Status.Message = "", "" }, waits: 9 * time.Second},
	} {
		t.Run(what, func(t *testing.T) {
			g := steady()
			g.rejected(1, "Evicted", "")
			g.Pods[1].CreationTimestamp = metav1.NewTime(ago(time.Second))
			if c.failures != "" {
				g.Pods[1].Annotations[FailuresAnnotation] = c.failures
			}
			if c.with != nil {
				c.with(g.Pods[1])
			}
			p := Decide(g.Observed)
			if now := len(p.Create) == 1; now != (c.waits == 0) {
				t.Errorf("replaced at once: %v, want a wait of %v", now, c.waits)
			}
			if c.waits > 0 && c.waits < g.Job.Spec.Lease.RenewDeadline.Duration && p.Wake != min(c.waits, 9*time.Second) {
				t.Errorf("wakes after %v, want %v", p.Wake, c.waits)
			}
			g.Now = g.Now.Add(c.waits)
			if p := Decide(g.Observed); len(p.Create) != 1 || len(p.Delete) != 0 {
				t.Errorf("after %v it makes %v and deletes %v", c.waits, created(p.Create), names(p.Delete))
			}
		})
	}
}

// TestOtherPodsAreReplacedAtOnce: only the replacement of the failed pod is delayed.
func TestOtherPodsAreReplacedAtOnce(t *testing.T) {
	g := steady()
	g.rejected(1, "SysctlForbidden", "forbidden sysctl")
	g.Pods[1].Annotations[FailuresAnnotation] = "5"
	g.Pods[1].CreationTimestamp = metav1.NewTime(ago(time.Second))
	if p := Decide(g.Observed); len(p.Create) != 0 {
		t.Fatalf("makes %v", created(p.Create))
	}
	g.terminating(0)
	p := Decide(g.Observed)
	if len(p.Create) != 1 {
		t.Fatalf("the active pod is drained, and %d are created", len(p.Create))
	}
	if got := p.Create[0].Annotations[FailuresAnnotation]; got != "6" {
		t.Errorf("it names %q failures before it", got)
	}
	g.Job.Spec.Template.Spec.Containers[0].Image = "v2"
	p = Decide(g.Observed)
	if len(p.Create) != 2 {
		t.Fatalf("the template was changed, and %d are created", len(p.Create))
	}
	if got, counted := p.Create[0].Annotations[FailuresAnnotation]; counted {
		t.Errorf("it names %q failures before it", got)
	}
}

// TestForeignTextsAreBounded: text from a kubelet differs each time and can have any length.
func TestForeignTextsAreBounded(t *testing.T) {
	progressing := func(g *given) string {
		for _, c := range g.Job.Status.Conditions {
			if c.Type == v1alpha1.ConditionProgressing {
				return c.Message
			}
		}
		return ""
	}
	g := steady()
	g.waiting(1, "CreateContainerError", "cannot make 1f3a\n"+strings.Repeat("é", 1<<20))
	g.settle()
	first := progressing(g)
	if len(first) > 2*maxDetail || !strings.Contains(first, "CreateContainerError: cannot make 1f3a é") || !strings.HasSuffix(first, " ...") {
		t.Fatalf("%d bytes: %.300s", len(first), first)
	}
	g.waiting(1, "CreateContainerError", "cannot make 77ab")
	if p := Decide(g.Observed); p.Status != nil {
		t.Errorf("an id makes a write: %+v", p.Status.Conditions)
	}
	g.waiting(1, "ErrImagePull", "not found")
	g.settle()
	pull := progressing(g)
	if !strings.HasSuffix(pull, "container app can't pull its image (ErrImagePull, ImagePullBackOff): not found") {
		t.Errorf("says %s", pull)
	}
	g.waiting(1, "ImagePullBackOff", `Back-off pulling image "v1" for 20s`)
	if p := Decide(g.Observed); p.Status != nil {
		t.Errorf("a back-off makes a write: %+v", p.Status.Conditions)
	}
	g.waiting(1, "CreateContainerError", "cannot make 88cd")
	g.settle()
	if again := progressing(g); !strings.HasSuffix(again, "cannot make 88cd") {
		t.Errorf("another reason keeps the text %s", again)
	}
}

func TestAStuckStandbyIsReportedOnce(t *testing.T) {
	g := steady()
	g.waiting(1, "ContainerCreating")
	g.settle()
	p := Decide(g.Observed)
	if p.Wake > twoMinutes {
		t.Errorf("wakes after %v", p.Wake)
	}
	g.Now = g.Now.Add(twoMinutes)
	p = Decide(g.Observed)
	if len(p.Events) != 2 || p.Events[0].Reason != v1alpha1.ReasonCandidateStuck || p.Events[0].Type != corev1.EventTypeWarning || p.Events[1].Reason != eventUnprotected {
		t.Fatalf("events %+v", p.Events)
	}
	g.settle()
	if p = Decide(g.Observed); len(p.Events) != 0 {
		t.Errorf("and again: %+v", p.Events)
	}
}

// TestAnActivePodThatFailsAgainWaits: it waits even while the Lease names it.
func TestAnActivePodThatFailsAgainWaits(t *testing.T) {
	for failures, want := range map[string]int{"0": 1, "3": 0} {
		g := steady()
		g.rejected(0, "Evicted", "low on memory")
		g.Pods[0].CreationTimestamp = metav1.NewTime(ago(time.Second))
		g.Pods[0].Annotations[FailuresAnnotation] = failures
		p := Decide(g.Observed)
		if len(p.Create) != want || len(p.Delete) > 0 {
			t.Errorf("after %s failures it makes %v and deletes %v", failures, created(p.Create), names(p.Delete))
		}
	}
}

// TestAnIssueIsReportedOnce: two conditions begin to report it at the same time, although they changed at different times.
func TestAnIssueIsReportedOnce(t *testing.T) {
	g := fresh()
	g.free()
	g.Now = ago(time.Minute)
	g.settle()
	g.Now = now
	g.pod(0, "a").Annotations[FailuresAnnotation] = "1"
	g.rejected(0, "SysctlForbidden", "forbidden sysctl")
	p := Decide(g.Observed)
	if reasons, _ := conditionsOf(p, g); reasons != "PodsFailing NoHolder PodsFailing" || len(p.Events) != 1 {
		t.Errorf("%s, events %+v", reasons, p.Events)
	}
}

func TestFailedPodsDoNotBlockNames(t *testing.T) {
	g := steady()
	g.rejected(1, "Evicted", "")
	p := Decide(g.Observed)
	if got, want := created(p.Create), inject.PodName("job", inject.Hash(g.Job), 2); len(got) != 1 || got[0] != want {
		t.Errorf("makes %v, want %s", got, want)
	}
}
