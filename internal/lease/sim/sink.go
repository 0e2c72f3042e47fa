package sim

import (
	"time"

	"github.com/singletonjob/operator/fence"
)

// Sink receives the writes of the processes. It decides from the arriving writes alone.
type Sink interface {
	// Write receives a write with a token. later schedules a call after a time. accepted means that the write is executed now,
	// refused that it never will be.
	Write(token int64, later func(most time.Duration, do func()), accepted, refused func())
	// Restart restarts the sink with the state that it keeps.
	Restart()
}

// fenced is a sink as package fence describes it: the check, the new mark and the write are one step, and the mark is as durable
// as the data.
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

// write passes one write to the sink. The result is judged by the writes alone. After an accepted write no lower token may be
// accepted. A write may be refused only if a higher token has arrived.
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

// restartSinks restarts the sink from time to time.
func (w *world) restartSinks() {
	w.after(w.between(time.Minute, 20*time.Minute), func() {
		w.sink.Restart()
		w.restartSinks()
	})
}
