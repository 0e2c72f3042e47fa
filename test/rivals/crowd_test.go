package rivals

import (
	"context"
	"encoding/json"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/singletonjob/operator/fence"
	"github.com/singletonjob/operator/test/tier"
)

// memory is a sink that can be built wrong.
type memory struct {
	mu    sync.Mutex
	marks map[fence.Resource]fence.Token
	lists map[fence.Resource][]string
	wrong func(m *memory, mark, token fence.Token, refusal error) (stores bool, answer error)
}

func newMemory() *memory {
	return &memory{marks: map[fence.Resource]fence.Token{}, lists: map[fence.Resource][]string{}}
}

func (m *memory) Write(_ context.Context, r fence.Resource, text, payload string) error {
	token, err := fence.ParseToken(text)
	if err != nil {
		return err
	}
	m.mu.Lock()
	defer m.mu.Unlock()
	mark, err := fence.Gate{Resource: r}.Accept(m.marks[r], token)
	stores := err == nil
	if m.wrong != nil {
		stores, err = m.wrong(m, m.marks[r], token, err)
	}
	m.marks[r] = mark
	if stores {
		m.lists[r] = append(m.lists[r], payload)
	}
	return err
}

func (m *memory) Stored(_ context.Context, r fence.Resource) ([]string, error) {
	m.mu.Lock()
	defer m.mu.Unlock()
	return slices.Clone(m.lists[r]), nil
}

// TestACrowdFindsMistakes: a crowd reports faults of a broken sink, and none of a correct one.
func TestACrowdFindsMistakes(t *testing.T) {
	for name, c := range map[string]struct {
		wrong     func(m *memory, mark, token fence.Token, refusal error) (bool, error)
		deadlocks int64
		want      string // empty: nothing is wrong
	}{
		"right":           {},
		"no fence":        {wrong: func(_ *memory, _, _ fence.Token, _ error) (bool, error) { return true, nil }, want: "is stored, after token"},
		"stores in spite": {wrong: func(_ *memory, _, _ fence.Token, err error) (bool, error) { return true, err }, want: "acknowledged: false"},
		"loses the last": {wrong: func(_ *memory, _, token fence.Token, err error) (bool, error) {
			return err == nil && token < Tenures, err
		}, want: "acknowledged and not stored"},
		"refuses the highest": {wrong: func(_ *memory, _, token fence.Token, err error) (bool, error) {
			if token == Tenures {
				return false, &fence.StaleError{Presented: token, Highest: token}
			}
			return err == nil, err
		}, want: "write 8:"},
		"has deadlocks": {deadlocks: 2, want: "2 deadlocks"},
	} {
		t.Run(name, func(t *testing.T) {
			m := newMemory()
			m.wrong = c.wrong
			f, err := Run(t.Context(), Subject{Name: name, Adapter: m, Deadlocks: func() int64 { return c.deadlocks }}, 3, 200*time.Millisecond, false)
			if c.want == "" && err != nil || c.want != "" && (err == nil || !strings.Contains(err.Error(), c.want)) {
				t.Errorf("%.300s, want %q", fmt.Sprint(err), c.want)
			}
			if f.Accepted == 0 {
				t.Error("nothing was accepted")
			}
		})
	}
}

// TestJudgeOfACrowd tests each fault alone, because a faulty sink shows several.
func TestJudgeOfACrowd(t *testing.T) {
	for name, c := range map[string]struct {
		stored, acked []string
		want          string // empty: nothing is wrong
	}{
		"in order":                            {stored: []string{"1:a", "1:b", "2:c"}, acked: []string{"1:b", "1:a", "2:c"}},
		"a past tenure's after a later one's": {stored: []string{"2:a", "1:b"}, acked: []string{"2:a", "1:b"}, want: "1:b is stored, after token 2"},
		"what was refused":                    {stored: []string{"1:a", "2:b"}, acked: []string{"1:a"}, want: "2:b is stored, after token 1, acknowledged: false"},
		"lost":                                {stored: []string{"1:a"}, acked: []string{"1:a", "2:b"}, want: "acknowledged and not stored: map[2:b:true]"},
	} {
		t.Run(name, func(t *testing.T) {
			m := newMemory()
			crowd := newCrowd(m, 1)
			crowd.places[0].acked, m.lists[crowd.places[0].resource] = c.acked, c.stored
			err := crowd.judge(t.Context())
			if c.want == "" && err != nil || c.want != "" && (err == nil || !strings.Contains(err.Error(), c.want)) {
				t.Errorf("%v, want %q", err, c.want)
			}
		})
	}
}

// TestComparisonCountsBothSides: one tenure writes, so nothing is refused.
func TestComparisonCountsBothSides(t *testing.T) {
	unfenced := newMemory()
	unfenced.wrong = func(*memory, fence.Token, fence.Token, error) (bool, error) { return true, nil }
	f, err := Run(t.Context(), Subject{Adapter: newMemory(), Unfenced: unfenced}, 1, 20*time.Millisecond, true)
	if err != nil || f.Fenced <= 0 || f.Unfenced <= 0 || f.Ratio <= 0 {
		t.Errorf("%v, %+v", err, f)
	}
}

// TestNoWriteIsRepeated: a sink may find a write by its payload, so a comparison must not write the same in two of its turns.
func TestNoWriteIsRepeated(t *testing.T) {
	once := newMemory()
	c := newCrowd(once, 1)
	for range 3 {
		c.write(t.Context(), time.Millisecond, 1)
	}
	seen := map[string]bool{}
	for _, payload := range once.lists[c.places[0].resource] {
		if seen[payload] {
			t.Fatalf("%s was written again", payload)
		}
		seen[payload] = true
	}
	if len(seen) < 3*Writers {
		t.Errorf("%d writes, want at least %d", len(seen), 3*Writers)
	}
}

// TestEachCrowdHasItsTime: the two crowds do not share it, and the deep tier gives each a minute.
func TestEachCrowdHasItsTime(t *testing.T) {
	each, file := 100*time.Millisecond, filepath.Join(t.TempDir(), "figures.json")
	unfenced := newMemory()
	unfenced.wrong = func(*memory, fence.Token, fence.Token, error) (bool, error) { return true, nil }
	Options{each: &each, file: &file}.Test(t, Subject{Name: "memory", Adapter: newMemory(), Unfenced: unfenced})
	var rows []Figures
	text, err := os.ReadFile(file)
	if err == nil {
		err = json.Unmarshal(text, &rows)
	}
	if err != nil || len(rows) != 2 || rows[0].Seconds != each.Seconds() || rows[1].Seconds != each.Seconds() {
		t.Errorf("want %v for each of two crowds: %v, %s", each, err, text)
	}
	for value, want := range map[string]time.Duration{"": sample, "1": time.Minute} {
		t.Setenv(tier.Variable, value)
		if got := usual(); got != want {
			t.Errorf("%s=%q: %v, want %v", tier.Variable, value, got, want)
		}
	}
}

func TestFiguresAreMerged(t *testing.T) {
	file := filepath.Join(t.TempDir(), "figures.json")
	for _, f := range []Figures{{Sink: "a", Resources: 1, Ratio: 1}, {Sink: "b", Resources: 1}, {Sink: "a", Resources: 1, Ratio: 2}} {
		if err := f.addTo(file); err != nil {
			t.Fatal(err)
		}
	}
	text, err := os.ReadFile(file)
	if got := string(text); err != nil || strings.Count(got, `"sink"`) != 2 || !strings.Contains(got, `"timeFencedToUnfenced": 2`) || strings.Contains(got, `"timeFencedToUnfenced": 1`) {
		t.Errorf("%v, %s", err, text)
	}
	if err := os.WriteFile(file, []byte("no figures"), 0o600); err != nil {
		t.Fatal(err)
	}
	if err := (Figures{}).addTo(file); err == nil {
		t.Error("a file of something else was replaced")
	}
}
