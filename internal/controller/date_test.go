package controller

import (
	"errors"
	"net/http"
	"testing"
	"testing/synctest"
	"time"
)

// answers are a transport's responses, one after another.
type answers struct {
	header http.Header
	err    error
}

func (a *answers) RoundTrip(*http.Request) (*http.Response, error) {
	if a.err != nil {
		return nil, a.err
	}
	return &http.Response{StatusCode: http.StatusConflict, Header: a.header, Body: http.NoBody}, nil
}

// TestServerClock: each row sends one request, and later reads the time.
func TestServerClock(t *testing.T) {
	date := time.Date(2026, 3, 29, 1, 0, 0, 0, time.UTC)
	says := func(at string) *answers { return &answers{header: http.Header{"Date": {at}}} }
	right := says(date.Format(http.TimeFormat))
	for name, row := range map[string]struct {
		first, then *answers // a second before; nil for none
		after       time.Duration
		want        time.Time
	}{
		"nobody was asked":          {},
		"just told":                 {then: right, want: date},
		"told a while ago":          {then: right, after: freshDate, want: date.Add(freshDate)},
		"told too long ago":         {then: right, after: freshDate + time.Millisecond},
		"no Date":                   {then: &answers{}},
		"a Date that is none":       {then: says("yesterday")},
		"no answer":                 {then: &answers{err: errors.New("refused")}},
		"no Date, but one before":   {first: right, then: &answers{}, want: date.Add(time.Second)},
		"none now, but one before":  {first: right, then: &answers{err: errors.New("refused")}, want: date.Add(time.Second)},
		"another server is behind":  {first: says(date.Add(time.Hour).Format(http.TimeFormat)), then: right, after: time.Second, want: date.Add(time.Second)},
		"the only one is too old":   {first: right, then: &answers{}, after: freshDate},
		"a zone that is not GMT's":  {then: says("Sun, 29 Mar 2026 01:00:00 CET")},
		"as older servers wrote it": {then: says(date.Format(time.ANSIC)), want: date},
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				clock := &ServerClock{}
				for _, a := range []*answers{row.first, row.then} {
					time.Sleep(time.Second)
					if a != nil {
						request, _ := http.NewRequestWithContext(t.Context(), http.MethodGet, "http://api", nil)
						response, err := clock.Wrap(a).RoundTrip(request)
						if !errors.Is(err, a.err) || err == nil && response.Body.Close() != nil {
							t.Errorf("the answer is %v, %v", response, err)
						}
					}
				}
				time.Sleep(row.after)
				if got := clock.Now(); !got.Equal(row.want) || got.Location() != time.UTC {
					t.Errorf("it is %v, want %v", got, row.want)
				}
			})
		})
	}
}
