package plan

import (
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/singletonjob/operator/internal/contract"
	"github.com/singletonjob/operator/internal/lease"
)

// watching is this process, which follows one Lease by its own clock. The dates of the pod and of the Lease only show whether the pod's
// readiness is that of the standby that it was.
type watching struct {
	*given
	Trials
	at time.Time
}

func (w *watching) see(after time.Duration) Trial {
	w.at = w.at.Add(after)
	all := w.See(&w.Lease, w.Pods, w.at)
	return all[len(all)-1]
}

// becomes sets the holder's Ready condition, dated by its node's clock.
func (w *watching) becomes(pod int, ready bool, at time.Time) {
	c := &w.Pods[pod].Status.Conditions[0]
	c.Status, c.LastTransitionTime = corev1.ConditionFalse, metav1.NewTime(at.Truncate(time.Second))
	if ready {
		c.Status = corev1.ConditionTrue
	}
}

// endsAfter ends the tenure when it has lasted for that long, by its node's clock.
func (w *watching) endsAfter(d time.Duration) {
	w.released(lease.ReasonProcessExited)
	last := &w.Lease.Record.History[0]
	last.Ended = last.Acquired + d.Milliseconds()
}

func watchingA(change func(*contract.AgentConfig)) *watching {
	w := &watching{given: steady(), at: now}
	w.released(lease.ReasonRollout)
	for i := range w.Pods {
		w.becomes(i, true, ago(time.Hour))
		w.configure(w.Pods[i], change)
	}
	w.at = w.at.Add(-time.Second)
	w.See(&w.Lease, w.Pods, w.at)
	w.at = w.at.Add(time.Second)
	w.again(1, now.Add(-200*time.Millisecond), lease.ReasonRollout)
	return w
}

func prepares(c *contract.AgentConfig) {
	c.PreActivate = &contract.PreActivate{Exec: []string{"x"}, Timeout: contract.Duration(time.Minute)}
}

// TestTimeReadyOfAPlainHolder: its process runs from the start of the tenure on, and its agent cannot report that it is not ready.
func TestTimeReadyOfAPlainHolder(t *testing.T) {
	w := watchingA(func(*contract.AgentConfig) {})
	w.see(0)
	if got := w.see(3 * time.Second); !got.Ready || got.For != 3*time.Second || got.Seen != 3*time.Second || got.Partly {
		t.Errorf("%+v", got)
	}
}

// TestTimeReadyIgnoresTheStandby: a Pod's readiness from its time as a standby does not count until the kubelet would have withdrawn it.
func TestTimeReadyIgnoresTheStandby(t *testing.T) {
	for name, change := range map[string]func(*contract.AgentConfig){
		"preActivate": prepares,
		"postStart":   func(c *contract.AgentConfig) { c.Hooks.PostStart = &contract.Hook{Exec: []string{"x"}} },
		"readiness": func(c *contract.AgentConfig) {
			c.Probes.Readiness = &contract.Probe{Check: contract.Check{Exec: []string{"x"}}, Period: contract.Duration(time.Second), Timeout: contract.Duration(time.Second), SuccessThreshold: 1, FailureThreshold: 1}
		},
		"startup": func(c *contract.AgentConfig) {
			c.Probes.Startup = &contract.Probe{Check: contract.Check{Exec: []string{"x"}}, Period: contract.Duration(time.Second), Timeout: contract.Duration(time.Second), SuccessThreshold: 1, FailureThreshold: 1}
		},
	} {
		w := watchingA(change)
		w.see(0)
		if got := w.see(9 * time.Second); !got.Ready || got.For >= 0 {
			t.Errorf("%s: %+v", name, got)
		}
		if got := w.see(4 * time.Second); got.For != 3*time.Second {
			t.Errorf("%s: %+v after 13s", name, got)
		}
	}
}

func TestTimeReadyOfACrashingHolder(t *testing.T) {
	for _, off := range clocksOff { // of the node
		w := watchingA(prepares)
		w.Lease.Record.AcquireTime += off.Microseconds()
		w.see(0)
		w.becomes(1, false, now.Add(off+6*time.Second))
		if got := w.see(6 * time.Second); got.Ready || got.ran() > 0 {
			t.Errorf("%v: %+v while it prepares", off, got)
		}
		w.becomes(1, true, now.Add(off+33*time.Second))
		w.see(27 * time.Second)
		w.see(2 * time.Second)
		w.endsAfter(35 * time.Second)
		if got := w.see(0); got.Ready || got.ran() != 2*time.Second || got.Seen != 35*time.Second {
			t.Errorf("%v: %+v in the end", off, got)
		}
	}
}

func TestTimeReadyAfterAnUnseenBreak(t *testing.T) {
	w := watchingA(prepares)
	w.becomes(1, true, now.Add(time.Second))
	w.see(time.Second)
	w.becomes(1, true, now.Add(25*time.Second))
	if got := w.see(25 * time.Second); got.For != 0 {
		t.Errorf("%+v", got)
	}
}

func TestTimeReadyWithALateEnd(t *testing.T) {
	w := watchingA(prepares)
	w.becomes(1, false, now)
	w.see(0)
	w.becomes(1, true, now.Add(33*time.Second))
	w.see(33 * time.Second)
	w.endsAfter(36 * time.Second)
	if got := w.see(time.Hour); got.ran() != 3*time.Second {
		t.Errorf("%+v", got)
	}
}

func TestTimeReadyAfterAnOperatorRestart(t *testing.T) {
	w := watchingA(func(*contract.AgentConfig) {})
	w.see(time.Hour)
	w.Trials = Trials{}
	w.see(0)
	if got := w.see(3 * time.Second); got.For != 3*time.Second || !got.Partly {
		t.Errorf("%+v", got)
	}
	w.again(0, w.at, lease.ReasonProcessExited)
	if got := w.see(0); got.Partly || got.Seen != 0 || got.For != 0 {
		t.Errorf("the next: %+v", got)
	}
}

func TestTimeReadyUsesTheRightLease(t *testing.T) {
	w := watchingA(func(*contract.AgentConfig) {})
	w.see(0)
	old := w.Lease
	old.Record.Token--
	if all := w.See(&old, w.Pods, w.at.Add(3*time.Second)); len(all) != 1 || all[0].For != 3*time.Second {
		t.Errorf("by an old state: %+v", all)
	}
	if all := w.See(&Lease{}, w.Pods, w.at); all != nil {
		t.Errorf("without a Lease: %+v", all)
	}
	w.Pods = w.Pods[:1]
	if got := w.see(3 * time.Second); got.Ready || got.ran() != 3*time.Second {
		t.Errorf("without its pod: %+v", got)
	}
	w.Lease.Record.UID = "another"
	if all := w.See(&w.Lease, w.Pods, w.at); len(all) != 1 || all[0].Seen != 0 {
		t.Errorf("of another Lease: %+v", all)
	}
}

func TestTimeReadyIsRemembered(t *testing.T) {
	w := watchingA(func(*contract.AgentConfig) {})
	for i := range 3 * lease.HistoryLimit {
		w.again(i%2, w.at, lease.ReasonRollout)
		w.see(time.Second)
	}
	all := w.See(&w.Lease, w.Pods, w.at)
	if len(all) != lease.HistoryLimit || all[len(all)-1].Token != w.Lease.Record.Token {
		t.Errorf("%d are remembered: %+v", len(all), all)
	}
}
