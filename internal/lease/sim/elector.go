package sim

import (
	"fmt"
	"time"

	"github.com/singletonjob/operator/internal/lease"
)

// elector is a contender that behaves like client-go's leaderelection, with the same timings and the same faults. It waits only
// for its own leaseDuration. It treats an empty holder as free. It keeps leading for up to renewDeadline after it has seen
// another holder. When it stops, it clears the holder after a fresh read, but decides that by its own older record.
type elector struct {
	w     *world
	clock clock
	link  *link
	runs  int
	id    string
	// observed is the record last seen, at observedAt by its clock. An update replaces observed's Revision.
	observed   lease.Record
	known      bool
	observedAt lease.Instant
	leading    bool
	stopped    int
	// attempt numbers the attempts. An answer to an earlier attempt is ignored.
	attempt int
	renewed lease.Instant
}

func newElector(w *world) *elector {
	e := &elector{w: w, link: &link{w: w}, clock: clock{offset: 1, ppm: w.rng.Int64N(2*maxPPM+1) - maxPPM}}
	e.start()
	return e
}

func (e *elector) start() {
	e.runs++
	e.id = fmt.Sprintf("client-go-%d", e.runs)
	e.link.name = e.id
	e.known, e.leading = false, false
	e.attempt++
	e.w.after(e.w.between(0, e.w.p.config.RetryPeriod), e.try)
}

func (e *elector) now() lease.Instant { return e.clock.at(e.w.now) }

// valid reports whether the observed record has not run out.
func (e *elector) valid() bool { return e.now() < e.observedAt.Add(e.w.p.config.Duration) }

// mine is client-go's IsLeader.
func (e *elector) mine() bool { return e.known && e.observed.Holder == e.id }

// try is client-go's tryAcquireOrRenew, repeated after retryPeriod.
func (e *elector) try() {
	if e.stopped > 0 {
		e.w.after(50*time.Millisecond, e.try)
		return
	}
	if e.leading && e.now() >= e.renewed.Add(e.w.p.config.RenewDeadline) {
		e.stop()
		return
	}
	e.attempt++
	id := e.attempt
	e.w.after(e.w.p.config.RetryPeriod, func() {
		if e.attempt == id { // also if the attempt has no answer yet: its context has ended
			e.try()
		}
	})
	if e.mine() && e.valid() {
		e.update(id)
		return
	}
	e.link.call(func() reply { return e.w.api.get(e.link) }, func(r reply) {
		if e.attempt != id || r.record == nil {
			return
		}
		e.observe(*r.record)
		if e.observed.Holder != "" && e.valid() && !e.mine() {
			return
		}
		e.update(id)
	})
}

func (e *elector) observe(r lease.Record) {
	// client-go compares the record, not the revision.
	was := e.observed
	was.Revision, was.History = r.Revision, r.History
	if e.known && same(was, r) {
		e.observed.Revision = r.Revision
		return
	}
	e.observed, e.known, e.observedAt = r, true, e.now()
}

// seconds is the precision of times in client-go.
func seconds(micro int64) int64 { return micro / million }

// same compares the fields that client-go keeps of a Lease.
func same(a, b lease.Record) bool {
	return a.Holder == b.Holder && seconds(a.AcquireTime) == seconds(b.AcquireTime) && seconds(a.RenewTime) == seconds(b.RenewTime) &&
		a.Transitions == b.Transitions && a.Duration == b.Duration
}

// update writes the record with itself as the holder.
func (e *elector) update(id int) {
	r := e.observed
	wall := int64(e.now() / lease.Instant(time.Microsecond))
	r.RenewTime, r.Duration = wall, e.w.p.config.Duration
	if !e.mine() {
		r.Transitions++
		r.AcquireTime = wall
	}
	r.Holder = e.id
	e.link.call(func() reply { return e.put(r) }, func(got reply) {
		if e.attempt != id {
			return
		}
		if got.outcome != lease.Confirmed {
			// The next attempt reads: no fast path.
			e.observedAt = min(e.observedAt, e.now().Add(-e.w.p.config.Duration))
			if e.mine() {
				e.known = false
			}
			return
		}
		e.observed, e.known, e.observedAt = *got.record, true, e.now()
		e.renewed = e.now()
		if !e.leading {
			e.leading = true
		}
	})
}

func (e *elector) put(r lease.Record) reply {
	was := e.w.api.lease
	got := e.w.api.put(e.id, r)
	if got.outcome != lease.Confirmed || was.Holder == r.Holder {
		return got
	}
	if r.Holder == e.id {
		e.w.check.foreignHolder(e, was)
	}
	if e.w.trace != nil {
		e.w.note(e.id, "stores holder %q over %q at revision %d", r.Holder, was.Holder, got.record.Revision)
	}
	return got
}

// stop ends its leadership: it releases the Lease, and a new process starts later.
func (e *elector) stop() {
	e.leading = false
	e.attempt++
	if e.w.trace != nil {
		e.w.note(e.id, "stops leading")
	}
	id := e.attempt
	e.w.after(e.w.between(e.w.p.config.RetryPeriod, e.w.p.config.Duration), func() {
		if e.attempt == id {
			e.start()
		}
	})
	wasMine := e.observed.Holder == e.id
	e.link.call(func() reply { return e.w.api.get(e.link) }, func(r reply) {
		if r.record == nil || !wasMine {
			return
		}
		blank := *r.record
		wall := int64(e.now() / lease.Instant(time.Microsecond))
		blank.Holder, blank.Duration = "", time.Second
		blank.AcquireTime, blank.RenewTime = wall, wall
		e.link.call(func() reply { return e.put(blank) }, func(reply) {})
	})
}

// heal ends all faults around it.
func (e *elector) heal() {
	e.link.heal()
	e.stopped = 0
}

// cancel cancels its context.
func (e *elector) cancel() {
	if e.leading {
		e.stop()
	}
}
