package main

import (
	"strings"
	"testing"
	"time"
)

const s = time.Second

// samples are of a kernel that sends again when 25 and 51 s are over, and then no more.
var samples = []Sample{
	{Cut: 16 * s, Arrived: []time.Duration{25 * s}},
	{Cut: 24 * s, Arrived: []time.Duration{24 * s, 25*s + s/2}},
	{Cut: 29 * s, Arrived: []time.Duration{51 * s}},
	{Cut: 31 * s, Arrived: []time.Duration{51 * s}},
	{Cut: 60 * s},
}

func TestRows(t *testing.T) {
	want := []row{
		{from: 15 * s, to: 30 * s, connections: 3, arrived: 3, least: 11 * s, median: 11*s + s/2, most: 37 * s, latest: 22 * s},
		{from: 30 * s, to: 45 * s, connections: 1, arrived: 1, least: 37 * s, median: 37 * s, most: 37 * s, latest: 20 * s},
		{from: 60 * s, to: 75 * s, connections: 1},
	}
	got := rows(samples, 14*s, 15*s)
	if len(got) != len(want) {
		t.Fatalf("%+v", got)
	}
	for i := range want {
		if got[i] != want[i] {
			t.Errorf("row %d is %+v, want %+v", i, got[i], want[i])
		}
	}
}

func TestPasses(t *testing.T) {
	for delay, want := range map[time.Duration]int{0: 4, 10 * s: 4, 11 * s: 2, 30 * s: 2, 36 * s: 2, 37 * s: 0} {
		if got := passes(samples, 15*s, delay); got != want {
			t.Errorf("with a delay of %v %d pass, want %d", delay, got, want)
		}
	}
}

func TestMarkdown(t *testing.T) {
	text := markdown(samples, 14*s, 15*s)
	for _, want := range []string{"| 15 to 30 s | 3 | 3 | 11.0 s | 11.5 s | 37.0 s | 22.0 s |\n", "| 60 to 75 s | 1 | 0 | | | | |\n", "| 30s | 2 of 5 |\n"} {
		if !strings.Contains(text, want) {
			t.Errorf("%s\nlacks %s", text, want)
		}
	}
}
