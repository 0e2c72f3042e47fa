package sim

import (
	"slices"
	"time"

	"github.com/singletonjob/operator/internal/lease"
)

// conn is one watch of an agent.
type conn struct {
	a *agent
	// accepted is true once the server has the watch, open once the agent knows, over from the break on.
	accepted, open, over bool
	// stalled holds events back silently.
	stalled bool
	buffer  []lease.Event
	// late bounds the time that an event takes. last is when the last one arrives, because a connection preserves their order.
	late time.Duration
	last time.Duration
}

// watch opens a watch, and retries until one is open.
func (a *agent) watch() {
	if !a.alive {
		return
	}
	c := &conn{a: a}
	a.conn = c
	a.w.after(10*time.Second, c.failed)
	a.machine.link.call(c.accept, func(r reply) {
		if r.failed {
			c.failed()
		} else {
			c.opened()
		}
	})
}

// accept is called when the request for the watch arrives at the server, which can happen twice.
func (c *conn) accept() reply {
	api := c.a.w.api
	if api.noWatches > 0 {
		return reply{watch: true, failed: true}
	}
	if !c.over && !c.accepted {
		c.accepted = true
		api.conns = append(api.conns, c)
		if c.a.w.p.initialEvents && !api.absent {
			c.buffer = append(c.buffer, api.event(lease.Watched{Record: api.lease}))
		}
	}
	return reply{watch: true}
}

// opened is called when the answer reaches the agent. The events buffered until now follow.
func (c *conn) opened() {
	a := c.a
	if c.open || c.over || a.conn != c {
		return
	}
	c.open = true
	if a.w.trace != nil {
		a.w.note(a.id, "watch opened")
	}
	a.deliver(lease.WatchOpened{})
	c.last = a.w.now
	c.flush()
}

// failed is called after a refusal, or when no answer came in time.
func (c *conn) failed() {
	a := c.a
	if c.open || c.over || a.conn != c {
		return
	}
	c.forget()
	if a.w.chance(0.2) { // an agent can report this again
		a.deliver(lease.WatchClosed{})
	}
	a.w.after(a.w.between(100*time.Millisecond, 2*time.Second), a.watch)
}

// send delivers an event of the server.
func (c *conn) send(e lease.Event) {
	if c.stalled || c.a.machine.link.cutDown > 0 || !c.open {
		c.buffer = append(c.buffer, e)
		return
	}
	w := c.a.w
	d := w.between(200*time.Microsecond, 3*time.Millisecond)
	if c.late > 0 {
		d += w.between(0, c.late)
	}
	c.last = max(c.last, w.now+d)
	w.at(c.last, func() {
		if _, foreign := e.(unreadable); foreign {
			c.breaks()
		} else {
			c.a.deliver(e)
		}
	})
}

// flush sends the events that were held back.
func (c *conn) flush() {
	kept := c.buffer
	c.buffer = nil
	for _, e := range kept {
		c.send(e)
	}
}

// forget removes the watch from the server.
func (c *conn) forget() {
	if c == nil {
		return
	}
	c.over = true
	conns := c.a.w.api.conns
	if i := slices.Index(conns, c); i >= 0 {
		c.a.w.api.conns = slices.Delete(conns, i, i+1)
	}
}

// breaks ends the connection, and the agent notices. Events in flight still arrive, even after the next watch has opened.
func (c *conn) breaks() {
	if c == nil || c.over {
		return
	}
	c.forget()
	a := c.a
	if !a.alive {
		return
	}
	if a.w.trace != nil {
		a.w.note(a.id, "watch broke")
	}
	a.deliver(lease.WatchClosed{})
	a.w.after(a.w.between(0, time.Second), a.watch)
}

// recovers ends a stall: the events that were held back arrive late, or the connection breaks.
func (c *conn) recovers() {
	if c == nil || c.over {
		return
	}
	c.stalled, c.late = false, 0
	if c.a.w.chance(0.5) {
		c.flush()
	} else {
		c.breaks()
	}
}
