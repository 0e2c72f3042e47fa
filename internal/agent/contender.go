//go:build linux

package agent

import (
	"context"

	"github.com/singletonjob/operator/internal/kubelease"
	"github.com/singletonjob/operator/internal/lease"
)

// contender contends for one Lease. It owns the state, the objects and the requests, and knows nothing of processes: what
// is decided about those is for its agent to carry out. All of it but what deliver is given runs in the agent's goroutine.
type contender struct {
	config  lease.Config
	api     API
	now     func() lease.Time
	metrics *metrics
	journal journal
	// deliver hands over what happened elsewhere. The function runs in the agent's goroutine, which steps with the event
	// that it returns, if any, before anything else happens to this contender.
	deliver func(happened func() lease.Event)
	ctx     context.Context // from run on

	state lease.State
	// underWay is the run that the present tenure is an attempt of, if it is one.
	underWay lease.Run
	// met is the newest object that came in, base the one that state.Observed was read from: writes replace it.
	met, base *kubelease.Object
	// writes by nonce, and reads by ID, that are under way, each with what cancels it.
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
		state:        lease.State{Wake: lease.Never}, // nothing is late before run
		writes:       map[int64]context.CancelFunc{},
		reads:        map[int64]context.CancelFunc{},
		restartWatch: make(chan struct{}, 1),
	}
}

// run has changes of the Lease come in until the context ends, which ends the requests too.
func (c *contender) run(ctx context.Context) {
	c.ctx = ctx
	go c.api.Watch(ctx, c.restartWatch, c.watched)
}

// step has the state machine decide on an event. The requests that it has no more use for are cancelled before the actions
// that it returns, which the caller must carry out, send new ones.
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
		c.journal.unanswered(w.Kind, w.Patience.Sub(w.SentAt)) // a single one is soon made good
	}
	cancelUnless(next.Awaits, c.writes)
	cancelUnless(next.AwaitsRead, c.reads)
	return actions
}

// setAside reports whether a write is waited for no longer, though its answer may come still.
func setAside(nonce int64, now lease.State, e lease.Event) bool {
	done, answered := e.(lease.WriteDone)
	return now.Awaits(nonce) && (now.Write == nil || now.Write.Nonce != nonce) && !(answered && done.Nonce == nonce)
}

// cancelUnless cancels the requests whose answers are not awaited.
func cancelUnless(awaited func(int64) bool, underWay map[int64]context.CancelFunc) {
	for id, cancel := range underWay {
		if !awaited(id) {
			cancel()
			delete(underWay, id)
		}
	}
}

// until bounds a request. Instants are of another clock than a context's, which stands still during suspend; there the
// state machine forgets the request after others in vain, and step cancels it.
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
				c.journal.wrote(attempt.Kind, outcome, err) // of interest, and not merely overtaken
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
		answer, err := c.api.Get(ctx)
		cancel()
		c.deliver(func() lease.Event {
			delete(c.reads, r.ID)
			c.metrics.read(answer, err)
			if c.state.AwaitsRead(r.ID) || c.now().Boot >= r.Deadline {
				c.journal.read(err) // of interest, and not merely overtaken
			}
			done := lease.ReadDone{ID: r.ID, Absent: answer.Absent, Date: answer.Date}
			if answer.Object != nil {
				c.met, done.Found = answer.Object, &answer.Object.Record
			}
			return done
		})
	}()
}

// watchAnew has the watch end and another one open.
func (c *contender) watchAnew() {
	select {
	case c.restartWatch <- struct{}{}:
	default: // one is asked for already
	}
}

// watched is called by the watch's goroutine.
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
		default: // a failed attempt changes nothing; WatchClosed again would put off the reads that stand in for it
			return nil
		}
	})
}

// seekDeath finds out whether another agent of this pod is dead.
func (c *contender) seekDeath(dead func(nonce string) bool, holder string) {
	id, ok := lease.ParseIdentity(holder)
	is := ok && dead != nil && dead(id.Nonce)
	c.deliver(func() lease.Event {
		c.journal.soughtDeath(c.state.Death, holder, is)
		return lease.DeathSought{Holder: holder, Dead: is}
	})
}
