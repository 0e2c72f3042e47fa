//go:build linux

package samples

import (
	"encoding/json"
	"net/http"
	"os/exec"
	"strconv"
	"strings"
	"sync"
	"testing"
	"time"
)

// Meter has readings, which the sample stores in SQLite. What was stored is counted there.
type Meter struct {
	testing.TB
	URL string
	// File is the database.
	File string

	python string
	begun  time.Time
	every  time.Duration
	mu     sync.Mutex
	stored int // by what it was asked for
	last   time.Time
}

// NewMeter serves one until the test ends. It has a new reading each time that passes.
func NewMeter(t testing.TB, file string, every time.Duration) *Meter {
	t.Helper()
	m := &Meter{TB: t, File: file, python: python3(t), begun: time.Now(), every: every}
	m.URL = serve(t, m)
	return m
}

func (m *Meter) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	after, err := strconv.Atoi(r.URL.Query().Get("after"))
	if err != nil {
		http.Error(w, err.Error(), http.StatusBadRequest)
		return
	}
	m.mu.Lock()
	if after > m.stored {
		m.stored, m.last = after, time.Now()
	}
	m.mu.Unlock()
	readings := []map[string]any{}
	for id := after + 1; id <= m.readings() && len(readings) < 100; id++ {
		readings = append(readings, map[string]any{"id": id, "value": float64(id)})
	}
	_ = json.NewEncoder(w).Encode(readings)
}

func (m *Meter) readings() int { return int(time.Since(m.begun) / m.every) }

// Last is when it was last asked for what follows a reading that was new then: all before it were stored.
func (m *Meter) Last() time.Time {
	m.mu.Lock()
	defer m.mu.Unlock()
	return m.last
}

// dump prints the readings of a database, as a reader that changes nothing.
const dump = `
import sqlite3, sys
for id, at in sqlite3.connect(f"file:{sys.argv[1]}?mode=ro", uri=True, timeout=30).execute("SELECT id, at FROM readings ORDER BY n"):
    print(id, int(at * 1e6))`

// Events are what the database has. Expected are the readings that were stored by what was asked for, and those between.
func (m *Meter) Events() (events []Event, expected []string) {
	m.Helper()
	m.mu.Lock()
	stored := m.stored
	m.mu.Unlock()
	out, err := exec.Command(m.python, "-c", dump, m.File).CombinedOutput()
	if err != nil {
		m.Fatalf("%s: %v\n%s", m.File, err, out)
	}
	for line := range strings.Lines(string(out)) {
		id, at, _ := strings.Cut(strings.TrimSpace(line), " ")
		micros, err := strconv.ParseInt(at, 10, 64)
		if err != nil {
			m.Fatal(err)
		}
		events = append(events, Event{At: time.UnixMicro(micros), Unit: id})
	}
	for id := range stored {
		expected = append(expected, strconv.Itoa(id+1))
	}
	return events, expected
}
