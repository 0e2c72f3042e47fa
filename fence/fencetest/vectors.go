package fencetest

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"math"
	"strings"

	"github.com/singletonjob/operator/fence"
	"github.com/singletonjob/operator/fence/testdata/vectors"
)

// Advancer is an [Adapter] whose mark can be raised without a write. The suite then also runs the vectors that do so.
type Advancer interface {
	Adapter
	// Advance raises the resource's mark to the token, or refuses as Write does.
	Advance(ctx context.Context, resource fence.Resource, token string) error
}

// Stricter is an [Advancer] with a strict mode, in which only Advance raises marks.
type Stricter interface {
	Advancer
	// Strict returns the same sink in strict mode. It refuses tokens that were not announced with a [*fence.AheadError].
	Strict() Advancer
}

// Verbatim is an [Adapter] that carries any text as a token and a resource. Other adapters, such as those with headers, cannot carry a line
// break or a trailing space: to them the suite presents visible characters only.
type Verbatim interface {
	Adapter
	Verbatim()
}

// read returns the cases of one file of vectors.
func read[T any](name string) (cases []T, err error) {
	text, err := vectors.Files.ReadFile(name)
	if err == nil {
		err = json.Unmarshal(text, &cases)
	}
	if err == nil && len(cases) == 0 {
		err = fmt.Errorf("%s has no cases", name)
	}
	return cases, err
}

// visible reports whether every transport carries a text unchanged.
func visible(s string) bool {
	return strings.TrimSpace(s) == s && !strings.ContainsFunc(s, func(c rune) bool { return c < ' ' || c > '~' })
}

func outcome(err error) string {
	if err == nil {
		return "ok"
	}
	return err.Error()
}

func (s *subject) carries(text string) bool {
	_, verbatim := s.Adapter.(Verbatim)
	return verbatim || visible(text)
}

func tokenVectors(s *subject) error {
	type vector struct {
		Input             *string
		Token, Error, Why string
	}
	cases, err := read[vector]("tokens.json")
	if err != nil {
		return err
	}
	wants := map[string]error{"": nil, "missing": fence.ErrMissingToken, "malformed": fence.ErrMalformedToken}
	var failures []error
	for _, v := range cases {
		var input string
		if v.Input != nil {
			input = *v.Input
		}
		want, known := wants[v.Error]
		if !known {
			return fmt.Errorf("tokens.json has the unknown error %q", v.Error)
		}
		if !s.carries(input) {
			s.leave(lack{"Verbatim", "tokens with other than visible characters"})
			continue
		}
		r, stored := s.fresh(), []string{}
		if want == nil {
			stored = []string{"x"}
		}
		if err := s.Write(s.ctx, r, input, "x"); !errors.Is(err, want) {
			failures = append(failures, fmt.Errorf("%s: a write with token %q ended with: %s, want: %s", v.Why, input, outcome(err), outcome(want)))
		}
		failures = append(failures, s.stored(r, stored...))
	}
	return errors.Join(failures...)
}

func resourceVectors(s *subject) error {
	type vector struct {
		Input, Why string
		Repeat     int
		Valid      bool
	}
	cases, err := read[vector]("resources.json")
	if err != nil {
		return err
	}
	if _, verbatim := s.Adapter.(Verbatim); !verbatim {
		return lack{"Verbatim", "names that a header, a path or a key can refuse in its own way"}
	}
	var failures []error
	for _, v := range cases {
		r := fence.Resource(strings.Repeat(v.Input, max(v.Repeat, 1)))
		// Other runs use the same names, so the write has the greatest token, which is never stale.
		err := s.Write(s.ctx, r, fence.Token(math.MaxInt64).String(), "x")
		if v.Valid && err != nil || !v.Valid && !errors.Is(err, fence.ErrMalformedResource) {
			failures = append(failures, fmt.Errorf("%s: a write to %.40q ended with: %s, want valid: %t", v.Why, r, outcome(err), v.Valid))
		}
	}
	return errors.Join(failures...)
}

// gateStep is a step in gate.json.
type gateStep struct{ Do, Token, Want, Mark string }

func gateVectors(s *subject) error {
	type vector struct {
		Why    string
		Strict bool
		Steps  []gateStep
	}
	cases, err := read[vector]("gate.json")
	if err != nil {
		return err
	}
	var failures []error
	for _, v := range cases {
		a := s.Adapter
		if v.Strict {
			strict, ok := a.(Stricter)
			if !ok {
				s.leave(lack{"Strict", "vectors of the strict mode"})
				continue
			}
			a = strict.Strict()
		}
		on := &subject{Adapter: a, ctx: s.ctx}
		err := on.steps(v.Steps)
		for _, lacking := range on.left {
			s.leave(lacking)
		}
		if err != nil {
			failures = append(failures, fmt.Errorf("%s: %w", v.Why, err))
		}
	}
	return errors.Join(failures...)
}

// steps runs the steps of one vector, up to the first one that this adapter does not support.
func (s *subject) steps(steps []gateStep) error {
	wants := map[string]error{"ok": nil, "stale": fence.ErrStale, "ahead": fence.ErrAhead}
	r := s.fresh()
	var stored []string
	for i, step := range steps {
		var err error
		switch advancer, advances := s.Adapter.(Advancer); {
		case step.Do == "write":
			err = s.Write(s.ctx, r, step.Token, fmt.Sprint(i))
		case step.Do != "advance":
			return fmt.Errorf("step %d has the unknown action %q", i, step.Do)
		case !advances:
			s.leave(lack{"Advance", "vectors from their first advance on"})
			return s.stored(r, stored...)
		default:
			err = advancer.Advance(s.ctx, r, step.Token)
		}
		if want, known := wants[step.Want]; !known || !errors.Is(err, want) {
			return fmt.Errorf("step %d, %s %s, ended with: %s, want %s", i, step.Do, step.Token, outcome(err), step.Want)
		}
		if step.Do == "write" && step.Want == "ok" {
			stored = append(stored, fmt.Sprint(i))
		}
		if err := s.markIs(r, step.Mark); err != nil {
			return fmt.Errorf("after step %d, %s %s: %w", i, step.Do, step.Token, err)
		}
	}
	return s.stored(r, stored...)
}

// markIs finds out the mark from the refusal of a stale write.
func (s *subject) markIs(r fence.Resource, mark string) error {
	if mark == "0" || mark == "1" {
		return nil // no token is stale
	}
	token, err := fence.ParseToken(mark)
	if err != nil {
		return err
	}
	return s.stale(r, (token - 1).String(), "looks", mark)
}
