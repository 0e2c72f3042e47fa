//go:build linux

package agent

import (
	"context"

	"github.com/singletonjob/operator/internal/kubelease"
	"github.com/singletonjob/operator/internal/lease"
)

// contender competes for one Lease. It owns the state, the objects and the requests. It does not handle processes: it returns the actions
// for its agent to carry out. All of it runs in the agent's goroutine, except the callers of deliver.
type contender struct {
	config  lease.Config
	api     API
	now     func() lease.Time
	metrics *metrics
	journal journal
	// deliver passes an event from another goroutine. The function runs in the agent's goroutine. If it returns an event, the agent steps
	// with it before anything else happens to this contender.
	deliver func(happened func() lease.Event)
	ctx     context.Context // set by run

	state lease.State
	// underWay is the run of the current tenure, if the tenure is an attempt of a run.
	underWay lease.Run
	// met is the latest object that was received. base is the object that state.Observed was decoded from; writes replace it.
	met, base *kubelease.Object
	// writes (by nonce) and reads (by ID) hold the cancel functions of the requests in progress.
	writes, reads map[int64]context.CancelFunc
	restartWatch  chan struct{}
}

func newContender(o Options, m *metrics) *contender {
	return &contender{
		config:       o.Config.Lease(o.Identity, o.Node, o.EndProvesDeath),
		api:          o.API,
		now:          func() lease.Time { return o.Clock.Now() },
		metrics:      m,
		journal:      journal{log: o.Log},
		state:        lease.State{Wake: lease.Never}, // no wake-up is due before run
		writes:       map[int64]context.CancelFunc{},
		reads:        map[int64]context.CancelFunc{},
		restartWatch: make(chan struct{}, 1),
	}
}

// run watches the Lease until ctx ends, which also ends the requests.
func (c *contender) run(ctx context.Context) {
	c.ctx = ctx
	go c.api.Watch(ctx, c.restartWatch, c.watched)
}

// step passes an event to the state machine and returns its actions for the caller to carry out. It first cancels the requests that are no
// longer needed, because the actions can send new ones.
func (c *contender) step(now lease.Time, e lease.Event) []lease.Action {
	before := c.state
	next, actions := lease.Step(c.config, before, now, e)
	c.state = next
	if seen := next.Observed; c.met != nil && c.met.Record.UID == seen.Record.UID && c.met.Record.Revision == seen.Record.Revision {
		c.base = c.met
	}
	c.journal.observed(before.Observed, next.Observed, c.config.Identity)
	c.journal.barred(before.Observed, next.Observed)
	if c.config.Runs != nil {
		c.journal.badRuns(before.Observed, next.Observed)
		c.journal.unstarted(next.Unstarted(c.config, now), next.Apart(now), next.Observed.Record.Runs.Now.Open())
	}
	if w := before.Write; w != nil && before.Backoff > 0 && setAside(w.Nonce, next, e) {
		c.journal.unanswered(w.Kind, min(w.Patience, now.Boot).Sub(w.SentAt)) // without a backoff it is the first write without an answer, and the next one usually succeeds
	}
	cancelUnless(next.Awaits, c.writes)
	cancelUnless(next.AwaitsRead, c.reads)
	return actions
}

// setAside reports whether the write is no longer the current one, although its answer can still arrive.
func setAside(nonce int64, now lease.State, e lease.Event) bool {
	done, answered := e.(lease.WriteDone)
	return now.Awaits(nonce) && (now.Write == nil || now.Write.Nonce != nonce) && !(answered && done.Nonce == nonce)
}

// cancelUnless cancels the requests whose answers are no longer awaited.
func cancelUnless(awaited func(int64) bool, underWay map[int64]context.CancelFunc) {
	for id, cancel := range underWay {
		if !awaited(id) {
			cancel()
			delete(underWay, id)
		}
	}
}

// until returns a context for a request with a deadline. A context's clock stops while the machine sleeps, unlike the clock of instants. In
// that case the state machine drops the request after later ones have failed, and step cancels it.
func (c *contender) until(deadline lease.Instant, now lease.Time) (context.Context, context.CancelFunc) {
	return context.WithTimeout(c.ctx, deadline.Sub(now.Boot))
}

func (c *contender) write(attempt lease.Attempt, now lease.Time) {
	ctx, cancel := c.until(attempt.Deadline, now)
	c.writes[attempt.Nonce] = cancel
	base := c.base
	go func() {
		outcome, stored, err := c.api.Update(ctx, base, attempt.Record)
		cancel()
		c.deliver(func() lease.Event {
			delete(c.writes, attempt.Nonce)
			c.metrics.wrote(attempt.Kind, outcome, c.now().Boot.Sub(attempt.SentAt))
			if w := c.state.Write; w != nil && w.Nonce == attempt.Nonce || outcome != lease.Unknown && c.state.Awaits(attempt.Nonce) {
				c.journal.wrote(attempt.Kind, outcome, err) // log it unless a later request has replaced it
			}
			if attempt.Kind == lease.Close && outcome == lease.Confirmed {
				c.journal.closed(attempt.Record.Runs.Now)
				c.metrics.runs.add(string(attempt.Record.Runs.Now.State))
			}
			done := lease.WriteDone{Nonce: attempt.Nonce, Outcome: outcome}
			if stored != nil {
				c.met, done.Record = stored, &stored.Record
			}
			return done
		})
	}()
}

func (c *contender) read(r lease.SendRead, now lease.Time) {
	ctx, cancel := c.until(r.Deadline, now)
	c.reads[r.ID] = cancel
	go func() {
		answer, err := c.api.Get(ctx, r.Floor)
		cancel()
		c.deliver(func() lease.Event {
			delete(c.reads, r.ID)
			c.metrics.read(answer, err)
			if c.state.AwaitsRead(r.ID) || c.now().Boot >= r.Deadline {
				c.journal.read(err) // log it unless a later request has replaced it
			}
			done := lease.ReadDone{ID: r.ID, Absent: answer.Absent, Date: answer.Date}
			if answer.Object != nil {
				c.met, done.Found = answer.Object, &answer.Object.Record
			}
			return done
		})
	}()
}

// watchAnew closes the watch and opens a new one.
func (c *contender) watchAnew() {
	select {
	case c.restartWatch <- struct{}{}:
	default: // a restart is already pending
	}
}

// watched is called by the goroutine of the watch.
func (c *contender) watched(e kubelease.WatchEvent) {
	c.deliver(func() lease.Event {
		c.journal.watch(e)
		switch e.Kind {
		case kubelease.Opened:
			return lease.WatchOpened{}
		case kubelease.Closed:
			return lease.WatchClosed{}
		case kubelease.Changed, kubelease.Deleted:
			c.met = e.Object
			return lease.Watched{Record: e.Object.Record, Deleted: e.Kind == kubelease.Deleted}
		default: // a failed attempt changes nothing; another WatchClosed would delay the reads that replace the watch
			return nil
		}
	})
}

// seekDeath finds out whether another agent of this Pod is dead.
func (c *contender) seekDeath(dead func(nonce string) bool, holder string) {
	id, ok := lease.ParseIdentity(holder)
	is := ok && dead != nil && dead(id.Nonce)
	c.deliver(func() lease.Event {
		c.journal.soughtDeath(c.state.Death, holder, is)
		return lease.DeathSought{Holder: holder, Dead: is}
	})
}
