package controller

import (
	"net/http"
	"sync"
	"time"
)

// ServerClock is the API server's clock, from the Date header of its responses. It is behind by at most a second plus the duration
// of a response.
type ServerClock struct {
	mu sync.Mutex
	// date is the newest response's Date, and at is when that response arrived, by a monotonic clock.
	date, at time.Time
}

// Wrap records the dates of a client's responses.
func (c *ServerClock) Wrap(next http.RoundTripper) http.RoundTripper { return dated{next, c} }

type dated struct {
	http.RoundTripper
	clock *ServerClock
}

// RoundTrip records the Date of the response's headers.
func (d dated) RoundTrip(request *http.Request) (*http.Response, error) {
	response, err := d.RoundTripper.RoundTrip(request)
	if err == nil {
		if date, wrong := http.ParseTime(response.Header.Get("Date")); wrong == nil {
			d.clock.note(date, time.Now())
		}
	}
	return response, err
}

// WrappedRoundTripper gives access to the wrapped transport.
func (d dated) WrappedRoundTripper() http.RoundTripper { return d.RoundTripper }

func (c *ServerClock) note(date, at time.Time) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.date, c.at = date, at
}

// freshDate is the maximum age of a date: the machine may have been paused since, and its monotonic clock with it.
const freshDate = 10 * time.Second

// Now is the API server's time; zero if no recent response contained it.
func (c *ServerClock) Now() time.Time {
	c.mu.Lock()
	defer c.mu.Unlock()
	since := time.Since(c.at)
	if c.date.IsZero() || since > freshDate {
		return time.Time{}
	}
	return c.date.Add(since).UTC()
}
