package model

import (
	"fmt"
	"slices"
	"strings"
	"time"

	"github.com/singletonjob/operator/internal/lease"
)

// node is a state that was reached, and the way to it.
type node struct {
	from int32
	move move
	// calm is the next state if nothing goes wrong any more; -1 if it is not known.
	calm int32
	// used is the least number of faults that lead here. ticks says whether time passes in the move to calm.
	used, expanded int8
	ticks, held    bool
}

// pending is a state that must still be expanded: a world, or the world before it and the fault that leads from there to the
// state. States after a fault wait long in the queue and are many; the states before the faults are few.
type pending struct {
	id    int32
	w     *world
	fault move
}

// Result is the result of a search.
type Result struct {
	// States counts the distinct worlds, Moves the moves between them. ByFaults counts the states by the least number of faults
	// that lead to them.
	States, Moves int
	ByFaults      []int
	// Depth is the greatest length of a shortest path to a state, in moves.
	Depth int
	// Recovery is the longest time from any state to a holder after the end of all faults.
	Recovery time.Duration
	// Complete is false if the search ended because it reached its limit of states.
	Complete bool
	Took     time.Duration
	// Violation is the first violation. Scenario is the shortest path to it with the fewest faults, Faults their number.
	Violation *Violation
	Scenario  string
	Faults    int
}

// search explores all worlds, those with the fewest faults first.
type search struct {
	m     *model
	seen  map[key]int32
	nodes []node
	depth []int32
	// queues holds the states to expand, by the number of faults.
	queues [][]pending
	result Result
}

// explore visits up to most states.
func (m *model) explore(most int) Result {
	s := &search{m: m, seen: map[key]int32{}, queues: make([][]pending, m.budget+1)}
	began := time.Now()
	s.add(m.first(nil), nil, -1, move{})
	complete := s.run(most)
	s.result.States, s.result.Complete = len(s.nodes), complete
	s.result.ByFaults = make([]int, m.budget+1)
	for i, n := range s.nodes {
		s.result.ByFaults[n.used]++
		s.result.Depth = max(s.result.Depth, int(s.depth[i]))
	}
	if complete && s.result.Violation == nil {
		s.recovers()
	}
	s.result.Took = time.Since(began)
	return s.result
}

func (s *search) run(most int) bool {
	for used := range s.queues {
		next := 0
		for next < len(s.queues[used]) { // the queue grows during the loop
			p := s.queues[used][next]
			s.queues[used][next].w = nil
			next++
			if s.nodes[p.id].expanded != 0 {
				continue
			}
			if s.expand(p); s.result.Violation != nil {
				return false
			}
			if len(s.nodes) > most {
				return false
			}
		}
		s.queues[used] = nil
	}
	return true
}

// add records a world and returns the ID of its state.
func (s *search) add(w, before *world, from int32, m move) int32 {
	k := w.key()
	id, known := s.seen[k]
	switch {
	case !known:
		id = int32(len(s.nodes))
		s.seen[k] = id
		s.nodes = append(s.nodes, node{from: from, move: m, calm: -1, used: w.used, held: w.held()})
		depth := int32(0)
		if from >= 0 {
			depth = s.depth[from] + 1
		}
		s.depth = append(s.depth, depth)
	case w.used < s.nodes[id].used:
		n := &s.nodes[id]
		n.from, n.move, n.used = from, m, w.used
		s.depth[id] = s.depth[from] + 1
	default:
		return id
	}
	p := pending{id: id, w: w}
	if m.fault != none {
		p.w, p.fault = before, m
	}
	s.queues[w.used] = append(s.queues[w.used], p)
	if w.broken != nil {
		s.found(id, *w.broken)
	}
	return id
}

func (s *search) expand(p pending) {
	s.nodes[p.id].expanded = 1
	if p.fault.fault != none {
		p.w = p.w.after(p.fault)
	}
	next := p.w.moves()
	wanted := p.w.nextCalm(next)
	for _, m := range next {
		f := p.w.after(m)
		s.result.Moves++
		id := s.add(f, p.w, p.id, m)
		if m == wanted {
			s.nodes[p.id].calm, s.nodes[p.id].ticks = id, m.op == passes
		}
		if s.result.Violation != nil {
			return
		}
	}
}

// nextCalm returns the move that leads towards an idle world: messages arrive, what is wrong ends, then time passes.
func (w *world) nextCalm(moves []move) move {
	if i := slices.IndexFunc(moves, func(m move) bool { return m.fault == none && m.op == calm }); i >= 0 {
		return moves[i]
	}
	if len(moves) == 0 {
		return move{}
	}
	return moves[0]
}

// held reports whether a process runs under the Lease that its agent holds, and continues if nothing goes wrong.
func (w *world) held() bool {
	if w.foreign > 0 {
		return false
	}
	if now := w.api.lease.Runs.Now; w.m.runs && now.ID != "" && !now.Open() {
		return true // there is nothing left to do
	}
	for slot := range w.candidates() {
		a := w.agents[slot]
		if a.alive && a.acts() && !a.tree.dying && a.state.Phase == lease.Holding && w.api.lease.Holder == a.id && w.api.lease.Token == a.tree.token {
			return true
		}
	}
	return false
}

// recovers computes how long it takes from each state until there is a holder if nothing goes wrong from then on. It follows the
// calm moves through the graph of states.
func (s *search) recovers() {
	const unknown, walking = -1, -2
	takes := make([]int32, len(s.nodes))
	for i := range takes {
		takes[i] = unknown
	}
	for i := range s.nodes {
		var way []int32
		at := int32(i)
		for takes[at] == unknown && !s.nodes[at].held {
			takes[at] = walking
			way = append(way, at)
			if at = s.nodes[at].calm; at < 0 {
				break
			}
		}
		if at < 0 || takes[at] == walking {
			s.found(int32(i), Violation{NoHolder, "all faults are over, and nobody will ever hold the Lease"})
			return
		}
		left := max(0, takes[at])
		takes[at] = left
		for _, back := range slices.Backward(way) {
			if s.nodes[back].ticks {
				left++
			}
			takes[back] = left
		}
		if d := time.Duration(takes[i]) * tick; d > s.result.Recovery {
			s.result.Recovery = d
			if d > s.m.bound() {
				s.found(int32(i), Violation{NoHolder, fmt.Sprintf("all faults are over, and there is a holder only %v later", d)})
				return
			}
		}
	}
}

// found records a broken promise and the scenario that leads to it.
func (s *search) found(id int32, v Violation) {
	var way []move
	for at := id; s.nodes[at].from >= 0; at = s.nodes[at].from {
		way = append(way, s.nodes[at].move)
	}
	slices.Reverse(way)
	s.result.Violation, s.result.Faults = &v, int(s.nodes[id].used)
	s.result.Scenario = s.m.scenario(way, v)
}

// scenario repeats a path in a new world and describes what happens.
func (m *model) scenario(way []move, v Violation) string {
	var b strings.Builder
	var w *world
	now := func() int32 {
		if w == nil {
			return 0
		}
		return w.now
	}
	tell := func(who, what string) {
		fmt.Fprintf(&b, "%8.2fs  %-10s %s\n", float64(now())*tick.Seconds(), who, what)
	}
	w = m.first(tell)
	for _, step := range way {
		w = w.fork()
		w.move(step)
	}
	if v.Kind == NoHolder {
		for range 3 * ticksOf(m.bound()) {
			w = w.fork()
			w.move(w.nextCalm(w.moves()))
		}
		tell("checker", v.Kind+": "+v.Text)
	} else if w.broken == nil || w.broken.Kind != v.Kind {
		tell("checker", fmt.Sprintf("told apart wrongly: this way breaks %v, not %v", w.broken, v))
	}
	return b.String()
}
