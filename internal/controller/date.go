package controller

import (
	"net/http"
	"sync"
	"time"
)

// ServerClock is the API server's clock, by the Date of its answers. It is behind by a second at most, and by how long an answer takes.
type ServerClock struct {
	mu sync.Mutex
	// date is what the newest answer said, at when it came, by a clock that nobody sets.
	date, at time.Time
}

// Wrap has a client's answers noted.
func (c *ServerClock) Wrap(next http.RoundTripper) http.RoundTripper { return dated{next, c} }

type dated struct {
	http.RoundTripper
	clock *ServerClock
}

// RoundTrip notes when the answer's headers were written.
func (d dated) RoundTrip(request *http.Request) (*http.Response, error) {
	response, err := d.RoundTripper.RoundTrip(request)
	if err == nil {
		if date, wrong := http.ParseTime(response.Header.Get("Date")); wrong == nil {
			d.clock.note(date, time.Now())
		}
	}
	return response, err
}

// WrappedRoundTripper lets who needs more of a transport find it.
func (d dated) WrappedRoundTripper() http.RoundTripper { return d.RoundTripper }

func (c *ServerClock) note(date, at time.Time) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.date, c.at = date, at
}

// freshDate is how old what an answer said may be: a machine may have been paused since, and with it the clock that counts.
const freshDate = 10 * time.Second

// Now is the API server's time, zero if no answer has told it lately.
func (c *ServerClock) Now() time.Time {
	c.mu.Lock()
	defer c.mu.Unlock()
	since := time.Since(c.at)
	if c.date.IsZero() || since > freshDate {
		return time.Time{}
	}
	return c.date.Add(since).UTC()
}
