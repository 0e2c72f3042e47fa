//go:build linux

package kubelease

import (
	"net/http"
	"testing"
	"time"
)

// An answer tells the time of whoever gave it, as HTTP writes it, or none.
func TestDate(t *testing.T) {
	const noon = 1767960000 // 2026-01-09T12:00:00Z
	for name, test := range map[string]struct {
		dates []string
		want  int64
	}{
		"as Go writes it":   {[]string{"Fri, 09 Jan 2026 12:00:00 GMT"}, noon},
		"as RFC 850 has it": {[]string{"Friday, 09-Jan-26 12:00:00 GMT"}, noon},
		"as C has it":       {[]string{"Fri Jan  9 12:00:00 2026"}, noon},
		"twice":             {[]string{"Fri, 09 Jan 2026 12:00:00 GMT", "Fri, 09 Jan 2099 12:00:00 GMT"}, noon},
		"none":              {nil, 0},
		"empty":             {[]string{""}, 0},
		"in numbers":        {[]string{"1767960000"}, 0},
		"as RFC 3339":       {[]string{"2026-01-09T12:00:00Z"}, 0},
		"before 1970":       {[]string{"Fri, 09 Jan 1959 12:00:00 GMT"}, 0},
		"of no month":       {[]string{"Fri, 09 Foo 2026 12:00:00 GMT"}, 0},
		"of the 40th":       {[]string{"Fri, 40 Jan 2026 12:00:00 GMT"}, 0},
	} {
		t.Run(name, func(t *testing.T) {
			server := serve(t, func(w http.ResponseWriter, _ *http.Request) {
				w.Header()["Date"] = test.dates
				_, _ = w.Write([]byte(leaseJSON(10)))
			})
			answer, err := server.client(t).Get(within(t, time.Minute), 0)
			if err != nil || answer.Object == nil || answer.Date != test.want {
				t.Errorf("%d, %v; want %d", answer.Date, err, test.want)
			}
		})
	}
}

// A read that failed tells no time.
func TestDateOfTrouble(t *testing.T) {
	server := serve(t, func(w http.ResponseWriter, _ *http.Request) { http.Error(w, "busy", http.StatusServiceUnavailable) })
	if answer, err := server.client(t).Get(within(t, time.Minute), 0); err == nil || answer.Date != 0 {
		t.Errorf("%+v, %v", answer, err)
	}
}

func TestRealDate(t *testing.T) {
	c := newCluster(t)
	c.create()
	before := time.Now().Unix()
	answer, err := c.ours.Get(within(t, 3*time.Minute), 0)
	if err != nil {
		t.Fatal(err)
	}
	if answer.Date < before || answer.Date > time.Now().Unix() {
		t.Errorf("it was %d, and is %d; the API server of this machine says %d", before, time.Now().Unix(), answer.Date)
	}
	if created := answer.Object.Record.Runs.Facts.Settled; int64(created) > answer.Date || int64(created) < before-3600 {
		t.Errorf("created at %v", created)
	}
}
