package model

import (
	"slices"
	"strconv"

	"github.com/singletonjob/operator/fence"
)

// sink receives the writes of the processes, and records the results. It decides from the writes that arrive alone.
type sink struct {
	mark int64
	// arrived is the highest token that arrived, accepted the highest that the sink accepted.
	arrived, accepted int64
	// late are writes that it has accepted and not executed yet, as a mistake has it.
	late []int64
}

// Sink is the kind of decision that a sink makes.
type Sink uint8

// A sink as package fence describes it, and mistakes.
const (
	Fenced Sink = iota
	ChecksThenWrites
	Forgets
	RefusesEqual
	ComparesText
)

func (s *sink) write(w *world, token int64) {
	s.arrived = max(s.arrived, token)
	pass := false
	switch w.m.sink {
	case RefusesEqual:
		pass = token > s.mark
	case ComparesText:
		pass = strconv.FormatInt(token, 10) >= strconv.FormatInt(s.mark, 10)
	case ChecksThenWrites:
		if token >= s.mark && !slices.Contains(s.late, token) {
			s.late = append(slices.Clip(s.late), token)
		}
		return
	case Fenced, Forgets:
		_, err := fence.Gate{}.Accept(fence.Token(s.mark), fence.Token(token))
		pass = err == nil
	}
	if pass {
		s.accept(w, token)
	} else if token >= s.arrived {
		w.violated(FreshRefused, "the sink refuses token %d, and has seen none that is higher", token)
	}
}

func (s *sink) accept(w *world, token int64) {
	if token < s.accepted {
		w.violated(StaleAccepted, "the sink accepts token %d after token %d", token, s.accepted)
	}
	s.mark, s.accepted = token, max(s.accepted, token)
}

// lands executes a write that was accepted before.
func (s *sink) lands(w *world, i int) {
	token := s.late[i]
	s.late = append(s.late[:i:i], s.late[i+1:]...)
	s.accept(w, token)
}

// restart restarts the sink with the state that it keeps.
func (s *sink) restart(w *world) {
	if w.m.sink == Forgets {
		s.mark = 0
	}
}
