package fencetest

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"net/http/httptest"
	"slices"
	"strconv"
	"sync"
	"testing"

	"github.com/singletonjob/operator/fence"
)

// memory is a sink whose every rule can be broken.
type memory struct {
	mu    sync.Mutex
	moved *sync.Cond // broadcast when a mark moves; its lock is mu
	marks map[fence.Resource]fence.Token
	lists map[fence.Resource][]string

	parse   func(string) (fence.Token, error)
	decide  func(r fence.Resource, mark, presented fence.Token) (fence.Token, error)
	between func(r fence.Resource, token fence.Token) // runs after the check, before the write, mu held
	crash   func()                                    // what a restart loses
	raise   func(r fence.Resource, mark, to fence.Token) (fence.Token, error)
	strict  func(m *memory) // makes it strict
	anyName bool            // takes any text for a resource
	keepAll bool            // all resources share one mark
	sloppy  bool            // stores what it refuses
	lossy   bool            // acknowledges without storing
}

func newMemory() *memory {
	m := &memory{
		marks: make(map[fence.Resource]fence.Token),
		lists: make(map[fence.Resource][]string),
		parse: fence.ParseToken,
		decide: func(r fence.Resource, mark, presented fence.Token) (fence.Token, error) {
			return fence.Gate{Resource: r}.Accept(mark, presented)
		},
		between: func(fence.Resource, fence.Token) {},
		crash:   func() {},
		raise: func(r fence.Resource, mark, to fence.Token) (fence.Token, error) {
			return fence.Gate{Resource: r}.Advance(mark, to)
		},
		strict: func(m *memory) {
			m.decide = func(r fence.Resource, mark, presented fence.Token) (fence.Token, error) {
				return fence.Gate{Resource: r, Strict: true}.Accept(mark, presented)
			}
		},
	}
	m.moved = sync.NewCond(&m.mu)
	return m
}

func (m *memory) Write(_ context.Context, r fence.Resource, token, payload string) error {
	presented, err := m.parse(token)
	if _, malformed := fence.ParseResource(string(r)); malformed != nil && !m.anyName {
		err = malformed
	}
	if err != nil {
		return err
	}
	m.mu.Lock()
	defer m.mu.Unlock()
	guard := r
	if m.keepAll {
		guard = "all"
	}
	mark, err := m.decide(r, m.marks[guard], presented)
	if err == nil {
		m.between(guard, presented)
	}
	if err == nil && !m.lossy || err != nil && m.sloppy {
		m.lists[r] = append(m.lists[r], payload)
	}
	m.marks[guard] = mark
	m.moved.Broadcast()
	return err
}

func (m *memory) Stored(_ context.Context, r fence.Resource) ([]string, error) {
	m.mu.Lock()
	defer m.mu.Unlock()
	return append([]string{}, m.lists[r]...), nil
}

func (m *memory) Verbatim() {}

func (m *memory) Advance(_ context.Context, r fence.Resource, token string) error {
	to, err := m.parse(token)
	if err != nil {
		return err
	}
	m.mu.Lock()
	defer m.mu.Unlock()
	m.marks[r], err = m.raise(r, m.marks[r], to)
	return err
}

func (m *memory) Strict() Advancer {
	strict := newMemory()
	strict.raise = m.raise
	m.strict(strict)
	return strict
}

func (m *memory) Restart(context.Context) error {
	m.mu.Lock()
	defer m.mu.Unlock()
	m.crash()
	return nil
}

func TestConformanceOfMemory(t *testing.T) {
	Run(t, func(*testing.T) Adapter { return newMemory() })
}

// defects are all the ways to build a fence wrong that we know of, each with the case that is there for it.
var defects = map[string]struct {
	foundBy string
	breakIt func(*memory)
}{
	"no fence at all": {"StaleRefused", func(m *memory) {
		m.decide = func(_ fence.Resource, mark, presented fence.Token) (fence.Token, error) {
			return max(mark, presented), nil
		}
	}},
	"equal is refused": {"EqualAccepted", func(m *memory) {
		m.decide = func(r fence.Resource, mark, presented fence.Token) (fence.Token, error) {
			if presented == mark {
				return mark, &fence.StaleError{Resource: r, Presented: presented, Highest: mark}
			}
			return fence.Gate{Resource: r}.Accept(mark, presented)
		}
	}},
	"the last token counts, not the highest": {"RefusalChangesNothing", func(m *memory) {
		m.decide = func(r fence.Resource, mark, presented fence.Token) (fence.Token, error) {
			if _, err := (fence.Gate{Resource: r}).Accept(mark, presented); err != nil {
				return presented, err
			}
			return presented, nil
		}
	}},
	"tokens compared as strings": {"NumbersNotStrings", func(m *memory) {
		m.decide = func(r fence.Resource, mark, presented fence.Token) (fence.Token, error) {
			if mark != 0 && presented.String() < mark.String() {
				return mark, &fence.StaleError{Resource: r, Presented: presented, Highest: mark}
			}
			return presented, nil
		}
	}},
	"tokens compared as doubles": {"BeyondDoubles", func(m *memory) {
		m.decide = func(r fence.Resource, mark, presented fence.Token) (fence.Token, error) {
			if float64(presented) < float64(mark) {
				return mark, &fence.StaleError{Resource: r, Presented: presented, Highest: mark}
			}
			return presented, nil
		}
	}},
	"malformed is zero, and zero passes": {"MalformedRefused", func(m *memory) {
		m.parse = func(s string) (fence.Token, error) {
			n, _ := strconv.ParseInt(s, 10, 64)
			return fence.Token(n), nil
		}
		m.decide = func(r fence.Resource, mark, presented fence.Token) (fence.Token, error) {
			if presented < mark {
				return mark, &fence.StaleError{Resource: r, Presented: presented, Highest: mark}
			}
			return presented, nil
		}
	}},
	"NULL is zero, and zero passes": {"TokenVectors", func(m *memory) {
		m.parse = func(s string) (fence.Token, error) {
			if s == "" {
				return 1, nil
			}
			return fence.ParseToken(s)
		}
	}},
	"a resource may be any text": {"ResourceVectors", func(m *memory) { m.anyName = true }},
	"an advance lowers the mark": {"GateVectors", func(m *memory) {
		m.raise = func(_ fence.Resource, _, to fence.Token) (fence.Token, error) { return to, nil }
	}},
	"a writer raises a strict mark":    {"GateVectors", func(m *memory) { m.strict = func(*memory) {} }},
	"the highest token in memory only": {"RestartForgetsNothing", func(m *memory) { m.crash = func() { clear(m.marks) } }},
	"acknowledged before it is stored": {"CrashDuringWrites", func(m *memory) {
		m.crash = func() {
			for r, list := range m.lists {
				m.lists[r] = list[:len(list)-1]
			}
		}
	}},
	"one mark for all resources":    {"ResourcesIndependent", func(m *memory) { m.keepAll = true }},
	"a refused write is stored":     {"StaleRefused", func(m *memory) { m.sloppy = true }},
	"an acknowledged write is lost": {"ConcurrentWritersOfOneTenure", func(m *memory) { m.lossy = true }},
	"check, then write": {"ConcurrentTenures", func(m *memory) {
		// Token 1 pauses once between its check and its write until a higher one has written. The higher ones wait until it pauses. This is
		// the interleaving that the fence is for, whatever the scheduler does.
		paused := false
		m.between = func(r fence.Resource, token fence.Token) {
			first := token == 1 && !paused
			paused = paused || first
			m.moved.Broadcast()
			for !paused || first && m.marks[r] <= token {
				m.moved.Wait()
			}
		}
	}},
}

func TestConformanceFindsBrokenSinks(t *testing.T) {
	for name, d := range defects {
		t.Run(name, func(t *testing.T) {
			m := newMemory()
			d.breakIt(m)
			if Fault(t.Context(), m, d.foundBy) == nil {
				t.Errorf("%s found nothing wrong", d.foundBy)
			}
		})
	}
}

// overHTTP is the toy sink behind its handler, at the other end of real connections.
type overHTTP struct {
	sink *Sink
	url  string
}

func (o overHTTP) Write(ctx context.Context, r fence.Resource, token, payload string) error {
	// Not through Writer: a typed token could not carry what the suite presents.
	return post(ctx, o.url, []string{token}, []string{string(r)}, fmt.Sprintf(`{"writer":%q}`, payload))
}

func (o overHTTP) Stored(_ context.Context, r fence.Resource) ([]string, error) {
	var stored []string
	for _, a := range o.sink.Attempts(0) {
		if a.Resource == r && a.Accepted {
			stored = append(stored, a.Writer)
		}
	}
	return stored, nil
}

func TestConformanceOfSink(t *testing.T) {
	Run(t, func(t *testing.T) Adapter {
		sink := &Sink{}
		server := httptest.NewServer(sink.Handler())
		t.Cleanup(server.Close)
		return overHTTP{sink: sink, url: server.URL}
	})
}

// listed is a sink without any of the optional methods.
type listed struct{ Adapter }

// A part of the suite that an adapter cannot run must not look as if it had passed.
func TestWhatAnAdapterLacksIsNamed(t *testing.T) {
	left := map[string][]string{}
	for _, c := range conformance {
		s := &subject{Adapter: listed{newMemory()}, ctx: t.Context()}
		err := c.judge(s)
		lacking, whole := errors.AsType[lack](err)
		if err != nil && !whole {
			t.Error(err)
		}
		if whole {
			left[c.name] = append(left[c.name], "all: "+lacking.method)
		}
		for _, l := range s.left {
			left[c.name] = append(left[c.name], l.method)
		}
	}
	want := map[string][]string{
		"TokenVectors": {"Verbatim"}, "ResourceVectors": {"all: Verbatim"}, "GateVectors": {"Advance", "Strict"},
		"RestartForgetsNothing": {"all: Restart"}, "CrashDuringWrites": {"all: Restart"},
	}
	if !maps.EqualFunc(left, want, slices.Equal) {
		t.Errorf("left out is %v, want %v", left, want)
	}
	for _, c := range conformance {
		s := &subject{Adapter: newMemory(), ctx: t.Context()}
		if err := c.judge(s); err != nil || len(s.left) > 0 {
			t.Errorf("%s: %v, left out: %v, although the adapter has every method", c.name, err, s.left)
		}
	}
}
