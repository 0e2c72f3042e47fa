package schedule

import (
	"testing"
	"time"
)

func mustParse(t *testing.T, spec Spec) *Schedule {
	t.Helper()
	s, err := Parse(spec)
	if err != nil {
		t.Fatal(err)
	}
	return s
}

func stamp(t *testing.T, text string) Stamp {
	t.Helper()
	at, err := time.Parse(time.RFC3339, text)
	if err != nil {
		t.Fatal(err)
	}
	return Stamp(at.Unix())
}

// Times that a clock skips and shows twice, as a person would write them down.
func TestNextAtClockChanges(t *testing.T) {
	t.Parallel()
	for _, c := range []struct {
		why, cron, zone, after string
		want                   []string
	}{
		{
			"fixed, skipped: at the end of the gap", "30 2 * * *", "Europe/Berlin", "2026-03-28T12:00:00Z",
			[]string{"2026-03-29T01:00:00Z", "2026-03-30T00:30:00Z"},
		},
		{
			"fixed, shown twice: the first time", "30 2 * * *", "Europe/Berlin", "2026-10-24T12:00:00Z",
			[]string{"2026-10-25T00:30:00Z", "2026-10-26T01:30:00Z"},
		},
		{
			"several that are skipped are one, with the one that is at the end", "0,15,30 2,3 * * *", "Europe/Berlin", "2026-03-28T12:00:00Z",
			[]string{"2026-03-29T01:00:00Z", "2026-03-29T01:15:00Z", "2026-03-29T01:30:00Z", "2026-03-30T00:00:00Z"},
		},
		{
			"real time, skipped: never", "*/30 2 * * *", "Europe/Berlin", "2026-03-28T12:00:00Z",
			[]string{"2026-03-30T00:00:00Z", "2026-03-30T00:30:00Z"},
		},
		{
			"real time, shown twice: twice", "*/30 2 * * *", "Europe/Berlin", "2026-10-24T12:00:00Z",
			[]string{"2026-10-25T00:00:00Z", "2026-10-25T00:30:00Z", "2026-10-25T01:00:00Z", "2026-10-25T01:30:00Z", "2026-10-26T01:00:00Z"},
		},
		{
			"every hour goes on through both", "0 * * * *", "Europe/Berlin", "2026-10-24T23:30:00Z",
			[]string{"2026-10-25T00:00:00Z", "2026-10-25T01:00:00Z", "2026-10-25T02:00:00Z"},
		},
		{
			"an hour without a star is fixed, though it is any", "0 0-23 * * *", "Europe/Berlin", "2026-10-24T23:30:00Z",
			[]string{"2026-10-25T00:00:00Z", "2026-10-25T02:00:00Z"},
		},
		{
			"half an hour", "15 2 * * *", "Australia/Lord_Howe", "2025-10-04T00:00:00Z",
			[]string{"2025-10-04T15:30:00Z", "2025-10-05T15:15:00Z"},
		},
		{
			"midnight is skipped", "0 0 * * *", "America/Sao_Paulo", "2018-11-03T12:00:00Z",
			[]string{"2018-11-04T03:00:00Z", "2018-11-05T02:00:00Z"},
		},
		{
			"a day that never was ends at once", "0 9 30 * *", "Pacific/Apia", "2011-12-01T00:00:00Z",
			[]string{"2011-12-30T10:00:00Z", "2012-01-29T19:00:00Z"},
		},
		{
			"a leap day, over a century without", "0 0 29 2 *", "Etc/UTC", "2096-03-01T00:00:00Z",
			[]string{"2104-02-29T00:00:00Z"},
		},
		{
			"minutes that began at 16 seconds by UTC's clock", "0 0 * * *", "Africa/Monrovia", "1972-01-04T12:00:00Z",
			[]string{"1972-01-05T00:44:30Z", "1972-01-06T00:44:30Z", "1972-01-07T00:44:30Z", "1972-01-08T00:00:00Z"},
		},
		{
			"either day, since neither is a star", "0 0 13 * 5", "Etc/UTC", "2026-11-07T00:00:00Z",
			[]string{"2026-11-13T00:00:00Z", "2026-11-20T00:00:00Z", "2026-11-27T00:00:00Z", "2026-12-04T00:00:00Z", "2026-12-11T00:00:00Z", "2026-12-13T00:00:00Z"},
		},
	} {
		s := mustParse(t, Spec{Cron: c.cron, TimeZone: c.zone})
		at := stamp(t, c.after)
		for _, want := range c.want {
			next, ok := s.Next(at)
			if !ok || next.String() != want {
				t.Errorf("%s: %q in %s after %s: %s, want %s", c.why, c.cron, c.zone, at, next, want)
			}
			at = next
		}
	}
}

func TestNextEndsWithTime(t *testing.T) {
	t.Parallel()
	s := mustParse(t, Spec{Cron: "30 2 * * *"})
	for _, c := range []struct {
		after Stamp
		want  string
	}{
		{-1 << 63, "1970-01-01T02:30:00Z"},
		{-1, "1970-01-01T02:30:00Z"},
		{0, "1970-01-01T02:30:00Z"},
		{1<<31 - 1, "2038-01-20T02:30:00Z"},
		{maxStamp - daySeconds, "9999-12-31T02:30:00Z"},
		{maxStamp, ""},
		{1<<63 - 1, ""},
	} {
		next, ok := s.Next(c.after)
		if ok != (c.want != "") || ok && next.String() != c.want {
			t.Errorf("after %d: %s, %v; want %q", c.after, next, ok, c.want)
		}
	}
}

// A tick's name identifies it completely, and each tick has one name.
func TestStampsAreNames(t *testing.T) {
	t.Parallel()
	for name, want := range map[string]bool{
		"2026-10-25T00:30:00Z": true, "9999-12-31T23:59:59Z": true, "1970-01-01T00:00:01Z": true,
		"1970-01-01T00:00:00Z": false, "1969-12-31T23:59:59Z": false, "0001-01-01T00:00:00Z": false, "": false,
		"2026-10-25T02:30:00+02:00": false, "2026-10-25T00:30:00.5Z": false, "2026-10-25T00:30:00.0Z": false, "2026-10-25": false,
		"2026-10-25T00:30:00+00:00": false, "10000-01-01T00:00:00Z": false, "2026-10-25T00:30:60Z": false,
	} {
		s, ok := ParseStamp(name)
		if ok != want || ok && s.String() != name {
			t.Errorf("%q: %s, %v; want %v", name, s, ok, want)
		}
	}
	for _, at := range []time.Time{{}, time.Unix(-1, 0), time.Unix(0, 0), time.Unix(1<<62, 0), time.Unix(-1<<62, 0), maxStamp.Time().Add(time.Second)} {
		if s, ok := StampOf(at); ok {
			t.Errorf("%s is taken for %s", at, s)
		}
	}
}

// Long periods are counted, not walked over tick by tick.
func TestCountingIsBounded(t *testing.T) {
	t.Parallel()
	all := ticks{Schedule: mustParse(t, Spec{Cron: "* * * * *", TimeZone: "Europe/Berlin"})}
	if got, want := all.count(0, maxStamp), int64(maxStamp/minuteSeconds); got != want {
		t.Errorf("%d minutes from 1970 to 9999, want %d", got, want)
	}
	daily := ticks{Schedule: mustParse(t, Spec{Cron: "30 2 * * *", TimeZone: "Europe/Berlin"})}
	if got, want := daily.count(0, maxStamp), int64(maxStamp/daySeconds)+1; got != want {
		t.Errorf("%d days from 1970 to 9999, want %d", got, want)
	}
	if got := all.last(0, maxStamp); got != maxStamp/minuteSeconds*minuteSeconds {
		t.Errorf("the last minute is %s", got)
	}
}
