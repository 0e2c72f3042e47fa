package sim

import (
	"time"

	"github.com/singletonjob/operator/fence"
)

// Sink is what the processes write to. It decides by what arrives alone.
type Sink interface {
	// Write takes a write with a token. later has something happen after a time; accepted says that the write is done
	// now, refused that it never will be.
	Write(token int64, later func(most time.Duration, do func()), accepted, refused func())
	// Restart has it begin anew with what it keeps.
	Restart()
}

// fenced is a sink as package fence describes it: the check, the new mark and the write are one step, and the mark is as
// durable as the data.
type fenced struct {
	gate fence.Gate
	mark fence.Token
}

func newFenced() Sink { return &fenced{} }

func (f *fenced) Write(token int64, _ func(time.Duration, func()), accepted, refused func()) {
	mark, err := f.gate.Accept(f.mark, fence.Token(token))
	if err != nil {
		refused()
		return
	}
	f.mark = mark
	accepted()
}

func (f *fenced) Restart() {}

// write is one write that arrives at the sink. What it may do with it is judged by the writes alone: once one was
// accepted no lower one may be, and none may be refused unless a higher one has arrived.
func (w *world) arrives(token int64) {
	c := &w.check
	c.result.Writes++
	highest := max(c.arrived, token)
	if token < c.arrived {
		c.result.Stale++
	}
	c.arrived = highest
	later := func(most time.Duration, do func()) { w.after(w.between(0, most), do) }
	w.sink.Write(token, later, func() {
		if token < c.accepted {
			c.violated(StaleAccepted, "the sink accepts token %d after token %d", token, c.accepted)
		}
		c.accepted = max(c.accepted, token)
	}, func() {
		c.result.Refused++
		if token >= c.arrived {
			c.violated(FreshRefused, "the sink refuses token %d, and has seen none that is higher", token)
		}
	})
}

// restartSinks has the sink restart now and then.
func (w *world) restartSinks() {
	w.after(w.between(time.Minute, 20*time.Minute), func() {
		w.sink.Restart()
		w.restartSinks()
	})
}
