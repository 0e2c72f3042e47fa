package show

import (
	"cmp"
	"fmt"
	"slices"
	"strings"
	"time"

	"github.com/singletonjob/operator/api/v1alpha1"
)

// History is a table of the changes of a job's holder, newest first, and their sums. wide adds the time, both nodes and the previous
// token. If the terminal is too narrow, Pods are shown without the job's name.
func History(job *v1alpha1.SingletonJob, now time.Time, s Style, wide bool) string {
	changes := job.Status.History
	head := []string{"AGE", "TYPE", "REASON", "FROM", "TO", "TOKEN", "DOWN"}
	if wide {
		head = append(head, "FROM-TOKEN", "FROM-NODE", "TO-NODE", "TIME")
	}
	rows := [][]cell{nil}
	for _, name := range head {
		rows[0] = append(rows[0], cell{name, bold})
	}
	for _, c := range changes {
		down := "-"
		if c.Downtime != nil {
			down = c.Downtime.Round(time.Millisecond).String()
		}
		row := []cell{
			{Ago(now.Sub(c.Time.Time)), plain},
			{string(c.Type), changeColor(c.Type)},
			{c.Reason, plain},
			{dash(c.From), plain},
			{dash(c.To), plain},
			{itoa(c.Token), plain},
			{down, plain},
		}
		if wide {
			from := "-"
			if c.FromToken > 0 {
				from = itoa(c.FromToken)
			}
			row = append(row, cell{from, plain}, cell{dash(c.FromNode), plain}, cell{dash(c.ToNode), plain},
				cell{c.Time.UTC().Format(time.RFC3339Nano), plain})
		}
		rows = append(rows, row)
	}
	const from, to = 3, 4
	if s.Width > 0 && !wide && !s.fits(rows, s.Width) {
		for _, row := range rows[1:] {
			row[from].text, row[to].text = short(job.Name, row[from].text), short(job.Name, row[to].text)
		}
	}
	lines := append(s.columns(rows), "")
	return strings.Join(append(lines, wrapped(sums(&job.Status), s.Width, 0)...), "\n") + "\n"
}

// sums counts a job's changes of holder since it exists, and the time without a process in those that are listed.
func sums(status *v1alpha1.SingletonJobStatus) string {
	var longest, total time.Duration
	for _, c := range status.History {
		if c.Downtime != nil {
			longest = max(longest, c.Downtime.Duration)
			total += c.Downtime.Duration
		}
	}
	text := counted(status.Failovers, "failover") + ", " + counted(status.Handovers, "handover")
	if total > 0 {
		text += fmt.Sprintf("; in the changes above down for %s, at most %s at a time", total.Round(time.Millisecond), longest.Round(time.Millisecond))
	}
	return text
}

func dash(text string) string {
	if text == "" {
		return "-"
	}
	return text
}

// A Span is the start of a tenure. It has no end, because a process that outlives its tenure still writes with the tenure's token.
type Span struct {
	Pod   string
	Token int64
	From  time.Time
}

// Spans lists the known tenures, newest first. Those in the Lease's history come from agents, which write them before they start their
// processes. The job's status keeps tenures that the Lease no longer has.
func Spans(f Facts) (all []Span) {
	if f.Lease != nil {
		for _, past := range f.Lease.History {
			all = append(all, Span{past.Pod, past.Token, time.UnixMilli(past.Acquired)})
		}
	}
	for _, c := range f.Job.Status.History {
		if !slices.ContainsFunc(all, func(s Span) bool { return s.Token == c.Token }) {
			all = append(all, Span{c.To, c.Token, c.Time.Time})
		}
	}
	slices.SortStableFunc(all, func(a, b Span) int { return cmp.Compare(b.Token, a.Token) })
	return all
}

// TokenAt is the last token that a Pod's process had been given at a time; 0 if there is none, because a standby has no process.
// All times are by the clock of the Pod's node.
func TokenAt(spans []Span, pod string, at time.Time) int64 {
	for _, s := range spans {
		if s.Pod == pod && !s.From.After(at) {
			return s.Token
		}
	}
	return 0
}
