package sim

import (
	"slices"
	"time"

	"github.com/singletonjob/operator/internal/lease"
)

// conn is one watch of an agent.
type conn struct {
	a *agent
	// accepted is true once the server has it, open once the agent knows, over from the break on.
	accepted, open, over bool
	// stalled keeps events back without a word.
	stalled bool
	buffer  []lease.Event
	// late bounds what an event may take, and last is when the last one arrives: a connection keeps their order.
	late time.Duration
	last time.Duration
}

// watch opens a watch, and tries again until one is open.
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

// accept is the request for the watch at the server, which may get there twice.
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

// opened is the answer at the agent. What was buffered until now follows.
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

// failed is a refusal, or no answer within a time.
func (c *conn) failed() {
	a := c.a
	if c.open || c.over || a.conn != c {
		return
	}
	c.forget()
	if a.w.chance(0.2) { // an agent may say so again
		a.deliver(lease.WatchClosed{})
	}
	a.w.after(a.w.between(100*time.Millisecond, 2*time.Second), a.watch)
}

// send is an event at the server.
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

// flush sends what was kept back.
func (c *conn) flush() {
	kept := c.buffer
	c.buffer = nil
	for _, e := range kept {
		c.send(e)
	}
}

// forget takes the watch from the server.
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

// breaks ends the connection, with a word to the agent. What is on its way still arrives, even after the next one opened.
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

// recovers is the end of a silence: what was kept back comes late, or the connection breaks.
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
