package plan

import (
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/singletonjob/operator/internal/contract"
	"github.com/singletonjob/operator/internal/lease"
)

// watching is this process, which follows one Lease.
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

// TestForHowLongAHolderWasReady, by this process's clock. The dates of the pod and of the Lease only show whether its readiness is that of
// the standby that it was.
func TestForHowLongAHolderWasReady(t *testing.T) {
	const second = time.Second
	t.Run("a process that cannot say that it is not ready", func(t *testing.T) {
		w := watchingA(func(*contract.AgentConfig) {})
		w.see(0)
		if got := w.see(3 * second); !got.Ready || got.For != 3*second || got.Seen != 3*second || got.Partly {
			t.Errorf("%+v", got)
		}
	})
	t.Run("the readiness of the standby counts only once the kubelet would have withdrawn it", func(t *testing.T) {
		for name, change := range map[string]func(*contract.AgentConfig){
			"preActivate": prepares,
			"postStart":   func(c *contract.AgentConfig) { c.Hooks.PostStart = &contract.Hook{Exec: []string{"x"}} },
			"readiness": func(c *contract.AgentConfig) {
				c.Probes.Readiness = &contract.Probe{Check: contract.Check{Exec: []string{"x"}}, Period: contract.Duration(second), Timeout: contract.Duration(second), SuccessThreshold: 1, FailureThreshold: 1}
			},
			"startup": func(c *contract.AgentConfig) {
				c.Probes.Startup = &contract.Probe{Check: contract.Check{Exec: []string{"x"}}, Period: contract.Duration(second), Timeout: contract.Duration(second), SuccessThreshold: 1, FailureThreshold: 1}
			},
		} {
			w := watchingA(change)
			w.see(0)
			if got := w.see(9 * second); !got.Ready || got.For >= 0 {
				t.Errorf("%s: %+v", name, got)
			}
			if got := w.see(4 * second); got.For != 3*second {
				t.Errorf("%s: %+v after 13s", name, got)
			}
		}
	})
	t.Run("a long preparation and a crash", func(t *testing.T) {
		for _, off := range clocksOff { // of the node
			w := watchingA(prepares)
			w.Lease.Record.AcquireTime += off.Microseconds()
			w.see(0)
			w.becomes(1, false, now.Add(off+6*second))
			if got := w.see(6 * second); got.Ready || got.ran() > 0 {
				t.Errorf("%v: %+v while it prepares", off, got)
			}
			w.becomes(1, true, now.Add(off+33*second))
			w.see(27 * second)
			w.see(2 * second)
			w.endsAfter(35 * second)
			if got := w.see(0); got.Ready || got.ran() != 2*second || got.Seen != 35*second {
				t.Errorf("%v: %+v in the end", off, got)
			}
		}
	})
	t.Run("a break that was not observed", func(t *testing.T) {
		w := watchingA(prepares)
		w.becomes(1, true, now.Add(second))
		w.see(second)
		w.becomes(1, true, now.Add(25*second))
		if got := w.see(25 * second); got.For != 0 {
			t.Errorf("%+v", got)
		}
	})
	t.Run("the end is seen late", func(t *testing.T) {
		w := watchingA(prepares)
		w.becomes(1, false, now)
		w.see(0)
		w.becomes(1, true, now.Add(33*second))
		w.see(33 * second)
		w.endsAfter(36 * second)
		if got := w.see(time.Hour); got.ran() != 3*second {
			t.Errorf("%+v", got)
		}
	})
	t.Run("a process that begins in the middle", func(t *testing.T) {
		w := watchingA(func(*contract.AgentConfig) {})
		w.see(time.Hour)
		w.Trials = Trials{}
		w.see(0)
		if got := w.see(3 * second); got.For != 3*second || !got.Partly {
			t.Errorf("%+v", got)
		}
		w.again(0, w.at, lease.ReasonProcessExited)
		if got := w.see(0); got.Partly || got.Seen != 0 || got.For != 0 {
			t.Errorf("the next: %+v", got)
		}
	})
	t.Run("another Lease, an old one, none", func(t *testing.T) {
		w := watchingA(func(*contract.AgentConfig) {})
		w.see(0)
		old := w.Lease
		old.Record.Token--
		if all := w.See(&old, w.Pods, w.at.Add(3*second)); len(all) != 1 || all[0].For != 3*second {
			t.Errorf("by an old state: %+v", all)
		}
		if all := w.See(&Lease{}, w.Pods, w.at); all != nil {
			t.Errorf("without a Lease: %+v", all)
		}
		w.Pods = w.Pods[:1]
		if got := w.see(3 * second); got.Ready || got.ran() != 3*second {
			t.Errorf("without its pod: %+v", got)
		}
		w.Lease.Record.UID = "another"
		if all := w.See(&w.Lease, w.Pods, w.at); len(all) != 1 || all[0].Seen != 0 {
			t.Errorf("of another Lease: %+v", all)
		}
	})
	t.Run("many tenures", func(t *testing.T) {
		w := watchingA(func(*contract.AgentConfig) {})
		for i := range 3 * lease.HistoryLimit {
			w.again(i%2, w.at, lease.ReasonRollout)
			w.see(second)
		}
		all := w.See(&w.Lease, w.Pods, w.at)
		if len(all) != lease.HistoryLimit || all[len(all)-1].Token != w.Lease.Record.Token {
			t.Errorf("%d are remembered: %+v", len(all), all)
		}
	})
}
