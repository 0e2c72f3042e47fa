//go:build linux

package main

import (
	"fmt"
	"maps"
	"slices"
	"strings"
	"time"

	"github.com/singletonjob/operator/internal/lease"
	"github.com/singletonjob/operator/test/torture/judge"
)

// report is Markdown for a reader, also in a terminal.
type report struct {
	seed    uint64
	lasts   time.Duration
	began   time.Duration
	history *judge.History
	verdict *judge.Verdict
}

// proves is the reason why the run proves nothing, although nothing broke. It is empty if the run proves something, or is too short.
func (r *report) proves() string {
	if r.lasts < telling {
		return ""
	}
	stale, overlaps := 0, 0
	for _, s := range r.verdict.Subjects {
		if s.Control {
			overlaps += s.Overlaps
		} else {
			stale += s.StaleUnfenced
		}
	}
	switch {
	case stale == 0:
		return "the sink without a fence was offered nothing stale"
	case overlaps == 0:
		return "the control never overlapped"
	}
	return ""
}

func (r *report) held() bool { return len(r.verdict.Broken) == 0 && r.proves() == "" }

// String is the whole.
func (r *report) String() string {
	var out strings.Builder
	fmt.Fprintf(&out, "\nseed %d, %v\n\n", r.seed, r.lasts)
	r.table(&out)
	r.ends(&out)
	r.kinds(&out)
	r.invariants(&out)
	for _, b := range r.verdict.Broken {
		fmt.Fprintf(&out, "\nBROKEN, SAFETY, at %.3f s, %s: %s\n  %s\n", (b.At - r.began).Seconds(), b.Subject, b.Invariant, b.Text)
		_, _ = out.WriteString(timelineOf(r.history, b, r.began))
	}
	switch why := r.proves(); {
	case len(r.verdict.Broken) > 0:
		fmt.Fprintf(&out, "\n%d times an invariant broke: run it again with -seed=%d\n", len(r.verdict.Broken), r.seed)
	case why != "":
		fmt.Fprintf(&out, "\nno invariant broke, but the run proves nothing: %s\n", why)
	default:
		fmt.Fprintf(&out, "\nno invariant broke\n")
	}
	return out.String()
}

func (r *report) row(out *strings.Builder, what string, of func(s judge.SubjectVerdict) any) {
	cells := []string{what}
	for _, s := range r.verdict.Subjects {
		cells = append(cells, fmt.Sprint(of(s)))
	}
	fmt.Fprintf(out, "| %s |\n", strings.Join(cells, " | "))
}

func (r *report) table(out *strings.Builder) {
	done := map[string]int{}
	for _, f := range r.history.Faults {
		if f.Failed == "" {
			done[f.Subject]++
		}
	}
	r.row(out, "", func(s judge.SubjectVerdict) any { return s.Name + " " + s.Title })
	fmt.Fprintf(out, "|---%s|\n", strings.Repeat("|---", len(r.verdict.Subjects)))
	r.row(out, "faults of its own", func(s judge.SubjectVerdict) any { return done[s.Name] })
	r.row(out, "processes that wrote", func(s judge.SubjectVerdict) any { return s.Processes })
	r.row(out, "takeovers", func(s judge.SubjectVerdict) any { return s.Takeovers })
	r.row(out, "… by time: the lease had expired", func(s judge.SubjectVerdict) any { return s.ByTime })
	r.row(out, "gap, median", func(s judge.SubjectVerdict) any { return quantile(s.Gaps, 0.5) })
	r.row(out, "gap, longest", func(s judge.SubjectVerdict) any { return quantile(s.Gaps, 1) })
	r.row(out, "overlaps", func(s judge.SubjectVerdict) any { return s.Overlaps })
	r.row(out, "in sum", func(s judge.SubjectVerdict) any { return s.Acted.Round(time.Millisecond) })
	r.row(out, "… allowed: the process may outlive its lease", func(s judge.SubjectVerdict) any { return s.Allowed })
	r.row(out, "… not judged: the machine withheld its CPUs", func(s judge.SubjectVerdict) any { return s.Starved })
	r.row(out, "stale writes offered", func(s judge.SubjectVerdict) any { return s.StaleOffered })
	r.row(out, "… stored by the fenced sink", func(s judge.SubjectVerdict) any {
		if s.Control {
			return "no token"
		}
		return s.StaleFenced
	})
	r.row(out, "… stored by the sink without a fence", func(s judge.SubjectVerdict) any { return s.StaleUnfenced })
}

// ends counts the reasons for the ends of tenures, by the Leases.
func (r *report) ends(out *strings.Builder) {
	reasons := map[lease.Reason]bool{}
	fmt.Fprintf(out, "\n| why tenures ended")
	for _, s := range r.verdict.Subjects {
		fmt.Fprintf(out, " | %s", s.Name)
		for reason := range s.Ends {
			reasons[reason] = true
		}
	}
	fmt.Fprintf(out, " |\n|---%s|\n", strings.Repeat("|---", len(r.verdict.Subjects)))
	for _, reason := range slices.Sorted(maps.Keys(reasons)) {
		r.row(out, string(reason), func(s judge.SubjectVerdict) any { return s.Ends[reason] })
	}
}

func quantile(sorted []time.Duration, q float64) time.Duration {
	if len(sorted) == 0 {
		return 0
	}
	return sorted[int(q*float64(len(sorted)-1))].Round(10 * time.Millisecond)
}

// kinds counts the faults of each kind.
func (r *report) kinds(out *strings.Builder) {
	control := map[string]bool{}
	for _, s := range r.history.Subjects {
		control[s.Name] = s.Control
	}
	type count struct{ jobs, control, failed int }
	counts := map[string]count{}
	var sum count
	for _, f := range r.history.Faults {
		c := counts[f.Kind]
		switch {
		case f.Failed != "":
			c.failed++
			sum.failed++
		case control[f.Subject]:
			c.control++
			sum.control++
		default:
			c.jobs++
			sum.jobs++
		}
		counts[f.Kind] = c
	}
	fmt.Fprintf(out, "\n| fault | to the jobs, or to all | to the control | could not be done |\n|---|---|---|---|\n")
	for _, name := range slices.Sorted(maps.Keys(counts)) {
		c := counts[name]
		fmt.Fprintf(out, "| %s | %d | %d | %d |\n", name, c.jobs, c.control, c.failed)
	}
	fmt.Fprintf(out, "| in all | %d | %d | %d |\n", sum.jobs, sum.control, sum.failed)
}

func (r *report) invariants(out *strings.Builder) {
	broken := map[string]int{}
	for _, b := range r.verdict.Broken {
		broken[b.Invariant]++
	}
	fmt.Fprintf(out, "\n| invariant | broken |\n|---|---|\n")
	for _, name := range judge.Invariants() {
		fmt.Fprintf(out, "| %s | %d |\n", name, broken[name])
	}
	takeovers := 0
	for _, s := range r.verdict.Subjects {
		if !s.Control && !s.Outlives {
			takeovers += s.ByTime
		}
	}
	if takeovers > 0 && broken[judge.OneProcess] == 0 {
		fmt.Fprintf(out, "\n0 of %d takeovers by time had two processes: with 95 %% confidence fewer than 1 in %d do (3/N)\n", takeovers, max(1, takeovers/3))
	}
}
