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
		Ticks: 5, Once: 2, Twice: 1, Never: 2, Executions: 6, Overlaps: 1, Stale: 1,
		Delays: []time.Duration{time.Second, time.Second, time.Second, 2 * time.Second},
	}
	for i, row := range []Row{{Executions: 1, Ends: 1}, {Executions: 2, Ends: 1}, {Executions: 2, Ends: 2}, {}, {Executions: 1}} {
		row.Job, row.Tick = "s", time.Unix(int64(60*(i+1)), 0).UTC()
		want.Rows = append(want.Rows, row)
	}
	var got Result
	got.judge("s", []int64{60, 120, 180, 240, 300}, l.all)
	if diff := cmp.Diff(want, got); diff != "" {
		t.Errorf("(-want +got):\n%s", diff)
	}
	got.judge("other", []int64{240}, l.all) // what the ledger has of another job of the kind
	if got.Ticks != 6 || got.Once != 3 || len(got.Rows) != 6 {
		t.Errorf("of two jobs: %+v", got)
	}
}
