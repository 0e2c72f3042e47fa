//go:build linux

package samples

import (
	"fmt"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/singletonjob/operator/test/bench/onlab"
	"github.com/singletonjob/operator/test/observe"
	"github.com/singletonjob/operator/test/samples"
)

// A Result is what became of a sample's work in one kind.
type Result struct {
	Sample string `json:"sample"`
	Kind   string `json:"kind"`
	samples.Sum
	// Lossy samples promise no unit.
	Lossy bool  `json:"lossy"`
	Hits  []Hit `json:"hits"`
}

// A Hit is what one fault did.
type Hit struct {
	Fault string `json:"fault"`
	// Twice is what was done twice until all was well again, Gap the longest time in which nothing was done.
	Twice int           `json:"twice"`
	Gap   time.Duration `json:"gap"`
}

// report counts, writes and judges.
func (b *bench) report(o *onlab.Options) {
	var results []Result
	expected := map[*subject][]string{}
	for _, s := range b.subjects {
		_, expected[s] = s.events()
	}
	b.must(onlab.Sleep(b.ctx, 20*time.Second)) // what is under way arrives
	for _, s := range b.subjects {
		events, _ := s.events()
		r := result(s, events, expected[s])
		results = append(results, r)
		if err := s.promised(&r); err != nil && s.kind == singleton {
			b.Error(err)
		}
	}
	b.must(o.Write(results))
	text := table(results)
	b.must(onlab.WriteFile(strings.TrimSuffix(o.JSON, ".json")+".md", []byte(text)))
	fmt.Print(text)
}

func result(s *subject, events []samples.Event, expected []string) Result {
	r := Result{Sample: s.name, Kind: s.kind, Sum: samples.Count(events, expected), Lossy: s.lossy}
	for _, h := range s.hits {
		end := h.by
		if s.runs { // which does nothing after its end
			end = last(events, h.by)
		}
		hit := Hit{Fault: h.fault, Twice: twice(events, h.by) - twice(events, h.struck), Gap: samples.Gap(events, h.struck, end)}
		if s.name == "nightly" { // a run does nothing until its end
			hit.Gap = next(events, h.struck).Sub(h.struck)
		}
		r.Hits = append(r.Hits, hit)
	}
	return r
}

// twice counts until a time.
func twice(events []samples.Event, until time.Time) int {
	var some []samples.Event
	for _, e := range events {
		if !e.At.After(until) {
			some = append(some, e)
		}
	}
	return samples.Count(some, nil).Twice
}

func last(events []samples.Event, until time.Time) (at time.Time) {
	for _, e := range events {
		if !e.At.After(until) && e.At.After(at) {
			at = e.At
		}
	}
	return at
}

func next(events []samples.Event, after time.Time) (at time.Time) {
	at = after
	for _, e := range events {
		if e.At.After(after) && (at.Equal(after) || e.At.Before(at)) {
			at = e.At
		}
	}
	return at
}

// promised is an error where more was done twice, or lost, than the sample's README allows.
func (s *sample) promised(r *Result) error {
	allowed := 0
	for _, h := range r.Hits {
		if h.Fault != "drain" {
			allowed += s.twice
		}
	}
	if r.Twice > allowed {
		return fmt.Errorf(observe.Safety+"%s: %d units of work were done twice, its README allows %d", s.name, r.Twice, allowed)
	}
	if r.Lost > 0 && !s.lossy {
		return fmt.Errorf("%s: %d units of work are lost", s.name, r.Lost)
	}
	if r.Done == 0 {
		return fmt.Errorf("%s has done nothing", s.name)
	}
	return nil
}

// table is the results for people: the longest gap of each fault.
func table(results []Result) string {
	order := []string{"kill", "drain", "freeze", "cut"}
	var out strings.Builder
	out.WriteString("| sample | as | done | twice | lost | gap: killed | drained | frozen for 40 s | cut off for 110 s |\n|---|---|---|---|---|---|---|---|---|\n")
	for _, r := range results {
		lost := fmt.Sprint(r.Lost)
		if r.Lossy {
			lost = "(" + lost + ")"
		}
		fmt.Fprintf(&out, "| %s | %s | %d | %d | %s |", r.Sample, r.Kind, r.Done, r.Twice, lost)
		for _, fault := range order {
			gap, twice, hit := time.Duration(0), 0, false
			for _, h := range r.Hits {
				if h.Fault == fault {
					gap, twice, hit = max(gap, h.Gap), twice+h.Twice, true
				}
			}
			switch {
			case !hit:
				out.WriteString(" – |")
			case twice > 0:
				fmt.Fprintf(&out, " %.1f s, %d twice |", gap.Seconds(), twice)
			default:
				fmt.Fprintf(&out, " %.1f s |", gap.Seconds())
			}
		}
		out.WriteString("\n")
	}
	return out.String()
}

func TestReport(t *testing.T) {
	at := func(second int) time.Time { return time.Unix(int64(second), 0) }
	var events []samples.Event
	for second, unit := range []string{0: "a", 1: "b", 10: "c", 11: "d", 12: "d", 13: "e", 30: "f", 31: "g"} {
		if unit != "" {
			events = append(events, samples.Event{At: at(second), Unit: unit})
		}
	}
	s := &subject{sample: sample{name: "s", twice: 1}, kind: singleton, hits: []hit{{"kill", at(2), at(11)}, {"kill", at(11), at(13)}, {"drain", at(14), at(31)}}}
	got := result(s, events, []string{"a", "b", "z"})
	want := Result{Sample: "s", Kind: singleton, Sum: samples.Sum{Done: 7, Twice: 1, Lost: 1}, Hits: []Hit{
		{"kill", 0, 9 * time.Second}, {"kill", 1, time.Second}, {"drain", 0, 17 * time.Second},
	}}
	if diff := cmp.Diff(want, got); diff != "" {
		t.Error(diff)
	}
	if row := "| s | SingletonJob | 7 | 1 | 1 | 9.0 s, 1 twice | 17.0 s | – | – |\n"; !strings.HasSuffix(table([]Result{got}), row) {
		t.Errorf("%s\nwant it to end with\n%s", table([]Result{got}), row)
	}
	s.runs, s.hits = true, []hit{{"kill", at(11), at(29)}}
	if gap := result(s, events, nil).Hits[0].Gap; gap != time.Second {
		t.Errorf("the gap of a run that ends: %v", gap)
	}
	nightly := &subject{sample: sample{name: "nightly"}, hits: []hit{{"kill", at(2), at(11)}}}
	if gap := result(nightly, events, nil).Hits[0].Gap; gap != 8*time.Second {
		t.Errorf("from the fault to the row: %v", gap)
	}
}

func TestPromised(t *testing.T) {
	hits := []Hit{{Fault: "kill"}, {Fault: "drain"}, {Fault: "cut"}}
	for name, c := range map[string]struct {
		sample sample
		counts samples.Sum
		fails  string
	}{
		"nothing twice, nothing lost": {sample{}, samples.Sum{Done: 9}, ""},
		"one twice":                   {sample{}, samples.Sum{Done: 9, Twice: 1}, "SAFETY: "},
		"as many as are allowed":      {sample{twice: 2}, samples.Sum{Done: 9, Twice: 4}, ""},
		"one more":                    {sample{twice: 2}, samples.Sum{Done: 9, Twice: 5}, "SAFETY: "},
		"one lost":                    {sample{}, samples.Sum{Done: 9, Lost: 1}, "lost"},
		"one lost, as is allowed":     {sample{lossy: true}, samples.Sum{Done: 9, Lost: 1}, ""},
		"nothing done":                {sample{lossy: true}, samples.Sum{}, "nothing"},
	} {
		err := c.sample.promised(&Result{Sum: c.counts, Hits: hits})
		if (err == nil) != (c.fails == "") || err != nil && !strings.Contains(err.Error(), c.fails) {
			t.Errorf("%s: %v, want %q", name, err, c.fails)
		}
	}
}
