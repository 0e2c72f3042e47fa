package sim

import (
	"time"

	"github.com/singletonjob/operator/internal/lease"
	"github.com/singletonjob/operator/internal/lease/mistake"
)

// theOperator is the author of the operator's writes.
const theOperator = "operator"

// operatorPeriod bounds the time between two reads of the operator.
const operatorPeriod = 3 * time.Second

// operator does what the real operator does to a Lease. Each write is a compare-and-swap on the state that it read, possibly from
// a cache that lags. It recreates a deleted Lease, releases the Lease of a holder that is proven dead, corrects the token base,
// and requests handovers.
type operator struct {
	w *world
	// down counts the reasons why it does nothing.
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
	read := o.read()
	switch {
	case read.absent:
		// It writes a moment after the read; another writer may have been faster.
		w.after(w.between(0, 50*time.Millisecond), o.create)
	case read.unlabelled && w.o.Broken != mistake.OperatorHeedsNoLabel: // LeaseConflict: nothing is touched
	case o.provenDead(read.lease.Holder):
		why := lease.Release{Reason: lease.ReasonHolderTerminated, Unclean: true}
		o.write(read.lease.Released(why, 1, read.lease.RenewTime+1))
	case read.lease.TokenBase != w.base || read.lease.BadTokenBase != "":
		r := read.lease
		r.TokenBase, r.BadTokenBase = w.base, ""
		o.write(r)
	case w.p.runs != nil:
		o.lookAtRuns(read.lease)
	}
}

// read returns the Lease from its cache. In times of trouble the cache can lag.
func (o *operator) read() stored {
	api := o.w.api
	if api.turn > 0 && o.w.troubled && o.w.chance(0.3) {
		return api.older[o.w.rng.IntN(min(api.turn, len(api.older)))]
	}
	return api.state()
}

func (o *operator) create() {
	w := o.w
	if !w.api.absent || w.api.now() != up {
		return
	}
	// There is always a sign of an earlier tenure here: any of the candidates' pods.
	r := lease.Record{Holder: lease.UnknownHolder, Duration: w.p.longest(), TokenBase: w.base, AcquireTime: 1}
	if w.o.Broken == mistake.OperatorCreatesFree {
		r = lease.Record{Duration: w.p.longest(), TokenBase: w.base, Release: lease.Release{Reason: lease.ReasonCreated}}
	}
	r.Runs = w.keptRuns()
	w.api.create(r)
	if w.trace != nil {
		w.note(theOperator, "makes the Lease anew, revision %d, holder %q", w.api.revision, r.Holder)
	}
}

// write is a compare-and-swap a moment later.
func (o *operator) write(r lease.Record) {
	w := o.w
	w.after(w.between(0, 50*time.Millisecond), func() {
		if w.o.Broken == mistake.OperatorOverwrites && !w.api.absent {
			r.UID, r.Revision = w.api.lease.UID, w.api.lease.Revision
		}
		if got := w.api.put(theOperator, r); got.outcome == lease.Confirmed && w.trace != nil {
			w.note(theOperator, "writes holder %q, token base %d, handover to %q", r.Holder, r.TokenBase, r.Handover.To)
		}
	})
}

// provenDead reports whether the kubelet has reported that this container is dead, with all its processes.
func (o *operator) provenDead(holder string) bool {
	if a := o.w.byID[holder]; a != nil && a.slot.agent.machine != a.machine {
		return o.w.o.Broken == mistake.OperatorBelievesAbsence // the pod and its object no longer exist
	}
	for _, s := range o.w.slots {
		if a := s.agent; a.id == holder {
			l := a.machine.link
			return !a.alive && (a.tree == nil || !a.tree.alive) && l.cutUp == 0 && l.cutDown == 0 && o.w.p.endProvesDeath
		}
	}
	return false
}
