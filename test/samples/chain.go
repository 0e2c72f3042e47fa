//go:build linux

package samples

import (
	"encoding/json"
	"maps"
	"net/http"
	"slices"
	"strconv"
	"sync"
	"testing"
	"time"
)

// Chain grows, and keeps what is signed at each height by the one validator that there is.
type Chain struct {
	URL string

	mu     sync.Mutex
	height int
	signed map[int][]string // the blocks
	events []Event
}

// NewChain serves one that grows until the test ends.
func NewChain(t testing.TB) *Chain {
	t.Helper()
	c := &Chain{signed: map[int][]string{}}
	c.URL = serve(t, c)
	grow := time.NewTicker(200 * time.Millisecond)
	end := make(chan struct{})
	t.Cleanup(func() { close(end); grow.Stop() })
	go func() {
		for {
			select {
			case <-grow.C:
				c.mu.Lock()
				c.height++
				c.mu.Unlock()
			case <-end:
				return
			}
		}
	}()
	return c
}

// Heights are those with a signature, those with two, and those without one between the first that was signed and the last.
type Heights struct{ Signed, Double, Missed int }

// Heights counts them.
func (c *Chain) Heights() (h Heights) {
	c.mu.Lock()
	defer c.mu.Unlock()
	first, last := 0, 0
	for height, blocks := range c.signed {
		if first == 0 || height < first {
			first = height
		}
		last = max(last, height)
		h.Signed++
		if len(blocks) > 1 {
			h.Double++
		}
	}
	if h.Signed > 0 {
		h.Missed = last - first + 1 - h.Signed
	}
	return h
}

// Events are the signatures. Expected are the heights between the first that was signed and the last.
func (c *Chain) Events() (events []Event, expected []string) {
	c.mu.Lock()
	defer c.mu.Unlock()
	heights := slices.Sorted(maps.Keys(c.signed))
	if len(heights) == 0 {
		return nil, nil
	}
	for height := heights[0]; height <= heights[len(heights)-1]; height++ {
		expected = append(expected, strconv.Itoa(height))
	}
	return slices.Clone(c.events), expected
}

func (c *Chain) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	c.mu.Lock()
	defer c.mu.Unlock()
	var answer any
	switch {
	case r.URL.Path == "/head":
		answer = map[string]int{"height": c.height}
	case r.Method == http.MethodPost:
		var in struct {
			Height int
			Block  string
		}
		if err := json.NewDecoder(r.Body).Decode(&in); err != nil || in.Block == "" {
			http.Error(w, "no block", http.StatusBadRequest)
			return
		}
		c.events = append(c.events, Event{At: time.Now(), Unit: strconv.Itoa(in.Height)})
		c.signed[in.Height] = append(c.signed[in.Height], in.Block)
		answer = struct{}{}
	default:
		height, _ := strconv.Atoi(r.URL.Query().Get("height"))
		answer = append([]string{}, c.signed[height]...)
	}
	_ = json.NewEncoder(w).Encode(answer)
}
