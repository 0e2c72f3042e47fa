package plan

import (
	"time"

	"github.com/singletonjob/operator/internal/lease"
)

// conflictPeriod is how often a Lease that is somebody else's is looked at: those are not watched.
const conflictPeriod = 30 * time.Second

// wake is when the next thing happens by time alone; 0 for never. What happens by a write is heard.
func (f *facts) wake(p Plan) time.Duration {
	var soonest time.Duration
	at := func(left time.Duration) {
		if left > 0 && (soonest == 0 || left < soonest) {
			soonest = left
		}
	}
	switch p.State {
	case LeaseConflict:
		at(conflictPeriod)
	case Collecting:
		if f.Lease.Presence == Ours && len(f.Pods) == 0 {
			at(Left(f.record, f.Lease.Unchanged))
		}
		at(f.Remembered)
	case Suspending:
		at(f.strayLeft())
	case Serving:
		f.wakeForRollout(at)
		f.wakeForTardy(at)
		f.wakeForFailed(at)
	case Deleting, InvalidSpec, LeaseMissing, LeaseUnclaimed, HolderDead, Suspended:
	}
	f.wakeForHolder(p, at)
	return soonest
}

func (f *facts) wakeForHolder(p Plan, at func(time.Duration)) {
	if f.job == nil || !f.holder.named {
		return
	}
	at(f.holder.settings.renewDeadline - f.Lease.Unchanged)
	if f.putOff(p.State) { // renewals wake nobody
		at(f.holder.settings.retryPeriod / 2)
	}
	at(f.holder.settings.duration - f.Lease.Unchanged)
	if f.seemsOver() {
		at(f.unheard())
	}
	if f.death != nil {
		at(f.death.patience - f.Lease.Unchanged)
	}
}

func (f *facts) wakeForRollout(at func(time.Duration)) {
	if _, left := f.vetted(); f.fleet().outdated() && f.holder.ours {
		at(left)
	}
}

// wakeForTardy is when a candidate that is not ready has not been for long.
func (f *facts) wakeForTardy(at func(time.Duration)) {
	for _, c := range f.candidates {
		if c.live() && !c.ready {
			at(patience - f.unready(c))
		}
	}
}

// duration is how long a record's holder may act after its last renewal; one that does not say may for the longest.
func duration(r lease.Record) time.Duration {
	if r.Duration <= 0 || r.Duration > lease.MaxDuration {
		return lease.MaxDuration
	}
	return r.Duration
}
