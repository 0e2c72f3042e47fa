package main

import (
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/singletonjob/operator/fence"
	"github.com/singletonjob/operator/test/bench/migration/row"
)

// done are steps that a process did in an attempt.
func done(process string, attempt, from, to int) (rows []row.Row) {
	for step := from; step <= to; step++ {
		rows = append(rows, row.Row{Subject: "m", Process: process, Step: step, Attempt: attempt, Token: fence.Token(attempt)})
	}
	return rows
}

func TestJudge(t *testing.T) {
	all := func(parts ...[]row.Row) (rows []row.Row) {
		for _, part := range parts {
			rows = append(rows, part...)
		}
		return rows
	}
	for name, c := range map[string]struct {
		rows []row.Row
		want Result
	}{
		"one process":         {done("a", 1, 1, row.Steps), Result{Executions: 1}},
		"one after another":   {all(done("a", 1, 1, 40), done("b", 2, 41, row.Steps)), Result{Executions: 2}},
		"a step twice":        {all(done("a", 1, 1, 40), done("b", 2, 40, row.Steps)), Result{Executions: 2, Twice: 1}},
		"a step never":        {all(done("a", 1, 1, 40), done("b", 2, 42, row.Steps)), Result{Executions: 2, Never: 1}},
		"side by side":        {all(done("a", 0, 1, 40), done("b", 0, 41, 60), done("a", 0, 41, 45), done("b", 0, 61, row.Steps)), Result{Executions: 2, Twice: 5, Interleaved: 1}},
		"attempts backwards":  {all(done("a", 2, 1, 40), done("b", 1, 41, row.Steps)), Result{Executions: 2, Unordered: 1}},
		"of others":           {append(done("a", 1, 1, row.Steps), row.Row{Subject: "other", Process: "b", Step: 1}), Result{Executions: 1}},
		"a write was refused": {append(done("a", 1, 1, row.Steps), row.Row{Subject: "m", Process: "b", Step: 1, Refused: true}), Result{Executions: 1, Refused: 1}},
	} {
		t.Run(name, func(t *testing.T) {
			got, want := Result{Kind: singleton}, c.want
			want.Kind, want.Migrations = singleton, 1
			got.judge("m", c.rows)
			if diff := cmp.Diff(want, got); diff != "" {
				t.Error(diff)
			}
			got.Complete = 1
			broken := want.Twice+want.Never+want.Interleaved+want.Unordered > 0
			if err := got.promised(); (err != nil) != broken {
				t.Errorf("promised: %v", err)
			}
		})
	}
}
