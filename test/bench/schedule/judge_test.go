package main

import (
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/singletonjob/operator/fence"
	"github.com/singletonjob/operator/test/workload/book"
)

func TestJudge(t *testing.T) {
	l := ledger{highest: map[string]fence.Token{}}
	add := func(process string, tick int64, token fence.Token, at int, kinds ...book.Kind) {
		for i, kind := range kinds {
			since := time.Duration(at+i) * time.Second
			l.book(book.Entry{Kind: kind, Subject: "s", Process: process, Tick: tick, Token: token}, since, time.Unix(0, 0).Add(since))
		}
	}
	add("a", 60, 5, 61, book.Begin, book.Work, book.End)
	add("b", 120, 6, 122, book.Begin, book.Work)           // is frozen
	add("c", 120, 7, 130, book.Begin, book.Work, book.End) // its second attempt
	add("b", 120, 6, 140, book.Work)                       // is thawed, and refused
	add("d", 180, 0, 181, book.Begin, book.Work, book.End) // without a token,
	add("e", 180, 0, 182, book.Begin, book.Work, book.End) // twice, at one time
	add("f", 300, 8, 301, book.Begin)                      // does not end
	l.all = append(l.all, arrival{Entry: book.Entry{Subject: "other", Process: "z", Tick: 240, Kind: book.End}})
	want := Result{
		Subject: "s", Ticks: 5, Once: 2, Twice: 1, Never: 2, Executions: 6, Overlaps: 1, Stale: 1,
		Delays: []time.Duration{time.Second, time.Second, time.Second, 2 * time.Second},
	}
	if diff := cmp.Diff(want, judge("s", []int64{60, 120, 180, 240, 300}, l.all)); diff != "" {
		t.Errorf("(-want +got):\n%s", diff)
	}
}
