package fence_test

import (
	"encoding/json"
	"errors"
	"math"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/singletonjob/operator/fence"
)

// vectors reads a file of testdata/vectors. Unknown fields are an error: a misspelled one would test nothing.
func vectors[T any](t *testing.T, name string) []T {
	t.Helper()
	f, err := os.Open(filepath.Join("testdata", "vectors", name))
	if err != nil {
		t.Fatal(err)
	}
	defer f.Close()
	var cases []T
	dec := json.NewDecoder(f)
	dec.DisallowUnknownFields()
	if err := dec.Decode(&cases); err != nil {
		t.Fatalf("%s: %v", name, err)
	}
	if len(cases) == 0 {
		t.Fatalf("%s holds no case", name)
	}
	return cases
}

func TestParseTokenVectors(t *testing.T) {
	type vector struct {
		Input             *string
		Token, Error, Why string
	}
	want := map[string]error{"missing": fence.ErrMissingToken, "malformed": fence.ErrMalformedToken}
	for _, v := range vectors[vector](t, "tokens.json") {
		t.Run(v.Why, func(t *testing.T) {
			var input string
			if v.Input != nil {
				input = *v.Input
			}
			got, err := fence.ParseToken(input)
			if v.Error != "" {
				if want[v.Error] == nil || !errors.Is(err, want[v.Error]) || got != 0 {
					t.Fatalf("ParseToken(%q) = %d, %v; want 0 and a token that is %s", input, got, err, v.Error)
				}
				return
			}
			if err != nil || got.String() != v.Token {
				t.Fatalf("ParseToken(%q) = %s, %v; want %s", input, got, err, v.Token)
			}
		})
	}
}

func TestParseResourceVectors(t *testing.T) {
	type vector struct {
		Input, Why string
		Repeat     int
		Valid      bool
	}
	for _, v := range vectors[vector](t, "resources.json") {
		t.Run(v.Why, func(t *testing.T) {
			input := strings.Repeat(v.Input, max(v.Repeat, 1))
			got, err := fence.ParseResource(input)
			if v.Valid && (err != nil || string(got) != input) {
				t.Fatalf("ParseResource(%q) = %q, %v; want it accepted", input, got, err)
			}
			if !v.Valid && !errors.Is(err, fence.ErrMalformedResource) {
				t.Fatalf("ParseResource(%q) = %q, %v; want ErrMalformedResource", input, got, err)
			}
		})
	}
}

func TestGateVectors(t *testing.T) {
	type vector struct {
		Why    string
		Strict bool
		Steps  []struct{ Do, Token, Want, Mark string }
	}
	want := map[string]error{"ok": nil, "stale": fence.ErrStale, "ahead": fence.ErrAhead}
	for _, v := range vectors[vector](t, "gate.json") {
		t.Run(v.Why, func(t *testing.T) {
			gate := fence.Gate{Resource: "ledger", Strict: v.Strict}
			var mark fence.Token
			for i, step := range v.Steps {
				token, err := fence.ParseToken(step.Token)
				if err != nil {
					t.Fatal(err)
				}
				decide, known := map[string]func(mark, presented fence.Token) (fence.Token, error){
					"write": gate.Accept, "advance": gate.Advance,
				}[step.Do]
				wanted, named := want[step.Want]
				if !known || !named {
					t.Fatalf("step %d does %q and wants %q: neither is known", i, step.Do, step.Want)
				}
				if mark, err = decide(mark, token); !errors.Is(err, wanted) || mark.String() != step.Mark {
					t.Fatalf("step %d, %s %s: mark %s, %v; want mark %s, %s", i, step.Do, step.Token, mark, err, step.Mark, step.Want)
				}
			}
		})
	}
}

// A token that did not come from ParseToken, and a mark that the store damaged, must not open the gate.
func TestGateRefusesUnparsedTokens(t *testing.T) {
	for name, c := range map[string]struct {
		mark, presented fence.Token
		want            string
	}{
		"zero at a fresh mark":     {0, 0, "missing"},
		"zero":                     {7, 0, "missing"},
		"negative at a fresh mark": {0, -1, "malformed"},
		"negative":                 {7, -7, "malformed"},
		"a damaged mark":           {-1, 7, "stored mark"},
	} {
		t.Run(name, func(t *testing.T) {
			for _, gate := range []fence.Gate{{Resource: "ledger"}, {Resource: "ledger", Strict: true}} {
				for step, decide := range map[string]func(mark, presented fence.Token) (fence.Token, error){
					"accept": gate.Accept, "advance": gate.Advance,
				} {
					mark, err := decide(c.mark, c.presented)
					if err == nil || !strings.Contains(err.Error(), c.want) || mark != c.mark {
						t.Errorf("strict %t, %s(%d, %d) = %d, %v; want the mark unchanged and an error about %q",
							gate.Strict, step, c.mark, c.presented, mark, err, c.want)
					}
				}
			}
		})
	}
}

// The error of a refused writer contains all three facts and the remedy.
func TestRefusalMessages(t *testing.T) {
	stale := &fence.StaleError{Resource: "default/billing", Presented: 33, Highest: 34}
	ahead := &fence.AheadError{Resource: "default/billing", Presented: 35, Mark: 34}
	for _, c := range []struct {
		err   error
		parts []string
	}{
		{stale, []string{"stale", "default/billing", "33", "34", "stop writing"}},
		{ahead, []string{"ahead", "default/billing", "35", "34", "advance"}},
	} {
		for _, part := range c.parts {
			if !strings.Contains(c.err.Error(), part) {
				t.Errorf("%q does not say %q", c.err, part)
			}
		}
	}
	if errors.Is(stale, fence.ErrAhead) || errors.Is(ahead, fence.ErrStale) {
		t.Error("a stale token and one that is ahead must be told apart")
	}
}

func TestErrorsDoNotRepeatAllInput(t *testing.T) {
	long := strings.Repeat("x", 1<<20)
	_, tokenErr := fence.ParseToken(long)
	_, digitsErr := fence.ParseToken(strings.Repeat("9", 1<<20))
	_, resourceErr := fence.ParseResource(long)
	for _, err := range []error{tokenErr, digitsErr, resourceErr} {
		if err == nil || len(err.Error()) > 300 {
			t.Errorf("an error of %d bytes for 1 MiB of input", len(err.Error()))
		}
	}
}

func FuzzParseToken(f *testing.F) {
	for _, s := range []string{"", "0", "1", "48213", "-1", "+1", "01", " 1", "1_0", "9223372036854775807", "9223372036854775808", "0x1", "1e3", "٣", "1\n", strings.Repeat("9", 64)} {
		f.Add(s)
	}
	f.Fuzz(func(t *testing.T, s string) {
		token, err := fence.ParseToken(s)
		if err != nil {
			if token != 0 {
				t.Fatalf("ParseToken(%q) = %d and an error", s, token)
			}
			return
		}
		if !token.Valid() || token.String() != s {
			t.Fatalf("ParseToken(%q) = %d, which spells %q: a token has one spelling", s, token, token)
		}
	})
}

// In every order of writes, the mark never falls. An accepted write leaves the mark at its token, and a refused one changes nothing.
func FuzzGate(f *testing.F) {
	f.Add(int64(0), int64(1), false)
	f.Add(int64(34), int64(33), false)
	f.Add(int64(34), int64(35), true)
	f.Add(int64(-1), int64(1), true)
	f.Add(int64(34), int64(34), true)
	f.Add(int64(0), int64(0), false)
	f.Add(int64(math.MaxInt64), int64(math.MaxInt64), false)
	f.Add(int64(math.MaxInt64), int64(math.MinInt64), false)
	f.Fuzz(func(t *testing.T, mark, presented int64, strict bool) {
		gate := fence.Gate{Resource: "ledger", Strict: strict}
		before, token := fence.Token(mark), fence.Token(presented)
		after, err := gate.Accept(before, token)
		if err != nil && after != before {
			t.Fatalf("refused with %v, but the mark went from %d to %d", err, before, after)
		}
		if err == nil && (after != token || after < before || !token.Valid()) {
			t.Fatalf("SAFETY: accepted %d at mark %d, the mark is now %d", token, before, after)
		}
		if err == nil && strict && token != before {
			t.Fatalf("SAFETY: a strict gate at %d accepted %d", before, token)
		}
		if stale, ok := errors.AsType[*fence.StaleError](err); ok && stale.Highest <= stale.Presented {
			t.Fatalf("%v: %d is not below %d", err, stale.Presented, stale.Highest)
		}
	})
}

func FuzzParseResource(f *testing.F) {
	for _, s := range []string{"", "billing", "default/billing", "a b", "a,b", "\x00", "\xff", "é", "a\r\nb", `"`, strings.Repeat("x", fence.MaxResourceLen+1)} {
		f.Add(s)
	}
	f.Fuzz(func(t *testing.T, s string) {
		resource, err := fence.ParseResource(s)
		if err == nil && (string(resource) != s || strings.ContainsAny(s, " \t\r\n\x00,\"'\\") || len(s) > fence.MaxResourceLen) {
			t.Fatalf("ParseResource(%q) accepted what cannot travel in a header", s)
		}
	})
}
