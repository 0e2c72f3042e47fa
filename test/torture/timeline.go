//go:build linux

package main

import (
	"cmp"
	"fmt"
	"slices"
	"strings"
	"time"

	"github.com/singletonjob/operator/test/torture/judge"
)

// around is how much of the time before and after a broken invariant is printed.
const around = 20 * time.Second

// timeline lists the events around a moment.
type timeline struct {
	at    time.Duration
	lines []line
}

type line struct {
	at   time.Duration
	text string
}

// timelineOf lists the events of a subject around the moment in which an invariant broke, in seconds since the run began.
func timelineOf(h *judge.History, b judge.Broken, began time.Duration) string {
	t := &timeline{at: b.At}
	t.faults(h, b.Subject)
	t.leases(h, b.Subject)
	t.writers(h, b.Subject)
	slices.SortStableFunc(t.lines, func(a, b line) int { return cmp.Compare(a.at, b.at) })
	var out strings.Builder
	for _, l := range t.lines {
		fmt.Fprintf(&out, "  %9.3f  %s\n", (l.at - began).Seconds(), l.text)
	}
	return out.String()
}

func (t *timeline) note(at time.Duration, format string, args ...any) {
	if at >= t.at-around && at <= t.at+around {
		t.lines = append(t.lines, line{at, fmt.Sprintf(format, args...)})
	}
}

func (t *timeline) faults(h *judge.History, subject string) {
	for _, f := range h.Faults {
		if f.Subject == subject || f.Subject == "" {
			t.note(f.Begin, "FAULT  %s %s begins", f.Kind, f.Detail)
			t.note(f.End, "FAULT  %s %s has ended %s", f.Kind, f.Detail, f.Failed)
		}
	}
}

// leases leave out renewals.
func (t *timeline) leases(h *judge.History, subject string) {
	before := judge.LeaseVersion{}
	for _, v := range h.Leases {
		if v.Name != subject {
			continue
		}
		if v.Missing {
			t.note(v.Seen, "LEASE  versions of it may not have been recorded")
			continue
		}
		if v.Holder != before.Holder || v.Token != before.Token || v.Deleted || v.Foreign {
			t.note(v.Seen, "LEASE  holder %q token %d deleted %t edited %t", v.Holder, v.Token, v.Deleted, v.Foreign)
		}
		before = v
	}
}

func (t *timeline) writers(h *judge.History, subject string) {
	first, last := map[string]time.Duration{}, map[string]time.Duration{}
	for _, a := range h.Fenced {
		if string(a.Resource) != subject {
			continue
		}
		writer := fmt.Sprintf("%s token %d", a.Writer, a.Token)
		if _, seen := first[writer]; !seen {
			first[writer] = a.Sent
		}
		last[writer] = max(last[writer], a.Sent)
	}
	for writer, at := range first {
		t.note(at, "WRITER %s sends its first write", writer)
		t.note(last[writer], "WRITER %s has sent its last write", writer)
	}
}
