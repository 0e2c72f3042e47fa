package sim

import (
	"time"

	"github.com/singletonjob/operator/internal/lease"
)

// operatorPeriod bounds the time between two looks of the operator.
const operatorPeriod = 3 * time.Second

// theOperator is by whom its writes are.
const theOperator = "operator"

// operator does what the operator does to a Lease: makes it anew when it is gone, and releases it for a holder that is
// proven dead.
type operator struct {
	w *world
	// base is spec.fencing.tokenBase.
	base int64
	// down counts the reasons for which it does nothing.
	down int
}

func newOperator(w *world) *operator {
	o := &operator{w: w}
	w.after(w.between(0, operatorPeriod), o.look)
	return o
}

func (o *operator) look() {
	w := o.w
	w.after(w.between(operatorPeriod/3, operatorPeriod), o.look)
	if o.down > 0 || w.api.now() != up {
		return
	}
	if w.api.absent {
		// Something always speaks for an earlier tenure here: any of the candidates' pods.
		w.api.create(lease.Record{
			Holder:      lease.UnknownHolder,
			Duration:    o.longest(),
			TokenBase:   o.base,
			AcquireTime: 1,
		})
		if w.trace != nil {
			w.note("operator", "makes the Lease anew, revision %d, holder unknown", w.api.revision)
		}
		return
	}
	if read := w.api.lease; o.provenDead(read.Holder) {
		// It acts on what it read, a moment ago.
		w.after(w.between(0, 50*time.Millisecond), func() {
			why := lease.Release{Reason: lease.ReasonHolderTerminated, Unclean: true}
			if r := w.api.put(theOperator, read.Released(why, 1, read.RenewTime+1)); r.outcome == lease.Confirmed && w.trace != nil {
				w.note("operator", "releases the Lease: %s is dead", read.Holder)
			}
		})
	}
}

// longest is the longest leaseDuration that any pod is configured with.
func (o *operator) longest() time.Duration {
	d := o.w.p.longest()
	for _, a := range o.w.agents {
		d = max(d, a.config.Duration)
	}
	return d
}

// provenDead tells whether the kubelet has reported that the very container is dead, with all its processes.
func (o *operator) provenDead(holder string) bool {
	for _, s := range o.w.slots {
		if a := s.agent; a.id == holder {
			l := a.machine.link
			return !a.alive && (a.tree == nil || !a.tree.alive) && l.cutUp == 0 && l.cutDown == 0 && o.w.p.restartProvesDeath
		}
	}
	return false
}
