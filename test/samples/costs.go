//go:build linux

package samples

import (
	"fmt"
	"io"
	"net/http"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"
)

// Costs is an API that counts who calls it.
type Costs struct {
	URL string

	mu    sync.Mutex
	calls Calls
	last  string          // caller
	past  map[string]bool // callers that another one has followed

	events []Event
}

// Calls are of all callers. Returned are those of one after another one had called: two ask at a time.
type Calls struct{ All, Callers, Returned int }

// NewCosts serves one until the test ends.
func NewCosts(t testing.TB) *Costs {
	t.Helper()
	c := &Costs{past: map[string]bool{}}
	c.URL = serve(t, c)
	return c
}

// Calls counts them.
func (c *Costs) Calls() Calls {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.calls
}

// Events are the calls.
func (c *Costs) Events() []Event {
	c.mu.Lock()
	defer c.mu.Unlock()
	return slices.Clone(c.events)
}

func (c *Costs) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	c.mu.Lock()
	defer c.mu.Unlock()
	who := r.UserAgent()
	c.events = append(c.events, Event{At: time.Now(), Writer: who})
	if c.calls.All++; who != c.last {
		if c.past[who] {
			c.calls.Returned++
		} else {
			c.calls.Callers++
		}
		c.past[c.last], c.last = true, who
	}
	_, _ = w.Write([]byte(`{"compute": 12.5, "storage": 3}`))
}

// Heard scrapes an exporter and says when it has heard what it tells, in seconds of Unix time.
func Heard(url string) (at float64, err error) {
	answer, err := (&http.Client{Timeout: 10 * time.Second}).Get(url)
	if err != nil {
		return 0, err
	}
	defer func() { _ = answer.Body.Close() }()
	text, err := io.ReadAll(answer.Body)
	if err != nil {
		return 0, err
	}
	_, value, _ := strings.Cut(string(text), "\ncloud_cost_heard_seconds ")
	if _, err := fmt.Sscan(value, &at); err != nil {
		return 0, fmt.Errorf("status %d, %q: %w", answer.StatusCode, text, err)
	}
	return at, nil
}
