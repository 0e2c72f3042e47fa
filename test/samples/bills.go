//go:build linux

package samples

import (
	"encoding/json"
	"net/http"
	"slices"
	"strconv"
	"sync"
	"testing"
	"time"

	"github.com/singletonjob/operator/fence"
)

// Bills is an API that bills ticks, and refuses requests of past tenures.
type Bills struct {
	URL string

	mu      sync.Mutex
	mark    fence.Token
	first   int
	last    int
	refused int
	events  []Event
}

// NewBills serves one until the test ends.
func NewBills(t testing.TB) *Bills {
	t.Helper()
	b := &Bills{}
	b.URL = serve(t, b)
	return b
}

// Events are the ticks that were billed. Expected are all from the first to the last.
func (b *Bills) Events() (events []Event, expected []string) {
	b.mu.Lock()
	defer b.mu.Unlock()
	for tick := b.first; b.first != 0 && tick <= b.last; tick++ {
		expected = append(expected, strconv.Itoa(tick))
	}
	return slices.Clone(b.events), expected
}

// Refused is how many requests of past tenures were.
func (b *Bills) Refused() int {
	b.mu.Lock()
	defer b.mu.Unlock()
	return b.refused
}

func (b *Bills) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	b.mu.Lock()
	defer b.mu.Unlock()
	token, err := fence.ParseToken(r.Header.Get("Fencing-Token"))
	if err != nil {
		http.Error(w, err.Error(), http.StatusBadRequest)
		return
	}
	mark, err := fence.Gate{Resource: "bills"}.Accept(b.mark, token)
	if err != nil {
		b.refused++
		http.Error(w, err.Error(), http.StatusPreconditionFailed)
		return
	}
	b.mark = mark
	if r.Method == http.MethodPost {
		var in struct{ Tick int }
		if err := json.NewDecoder(r.Body).Decode(&in); err != nil || in.Tick == 0 {
			http.Error(w, "no tick", http.StatusBadRequest)
			return
		}
		if b.first == 0 {
			b.first = in.Tick
		}
		b.last = max(b.last, in.Tick)
		b.events = append(b.events, Event{At: time.Now(), Unit: strconv.Itoa(in.Tick), Writer: r.UserAgent()})
	}
	_ = json.NewEncoder(w).Encode(map[string]int{"last": b.last})
}
