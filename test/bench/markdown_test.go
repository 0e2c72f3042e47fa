//go:build linux

package main

import (
	"encoding/json"
	"os"
	"strings"
	"testing"
	"time"
)

func TestWorst(t *testing.T) {
	for want, runs := range map[string][]Run{
		"59 ms":       {{Gap: 59 * time.Millisecond}, {Gap: 20 * time.Millisecond}},
		"over 40.0 s": {{Gap: 40 * time.Second, Unresolved: true}},
		"5.9 min, 2 × for 300 ms, 7 stale stored": {{Gap: 5*time.Minute + 54*time.Second}, {Gap: time.Second, Overlap: 300 * time.Millisecond, StaleOffered: 9, StaleAccepted: 7}},
	} {
		c := &Cell{Runs: runs}
		c.sum()
		if got := worst(c); got != want {
			t.Errorf("%+v come to %q, want %q", runs, got, want)
		}
	}
}

// TestMeasured compares the table in docs/measured.md with the result in docs/bench.json.
func TestMeasured(t *testing.T) {
	text, err := os.ReadFile("../../docs/bench.json")
	if err != nil {
		t.Fatal(err)
	}
	var kept Result
	if err := json.Unmarshal(text, &kept); err != nil {
		t.Fatal(err)
	}
	page, err := os.ReadFile("../../docs/measured.md")
	if err != nil {
		t.Fatal(err)
	}
	if table := markdown(kept); !strings.Contains(string(page), table) {
		t.Errorf("the table in docs/measured.md is not the one of docs/bench.json, which is:\n%s", table)
	}
}
