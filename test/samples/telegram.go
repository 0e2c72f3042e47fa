//go:build linux

package samples

import (
	"encoding/json"
	"net/http"
	"slices"
	"strconv"
	"strings"
	"sync"
	"testing"
	"time"
)

// Telegram has of Telegram's API what a bot needs: updates by long polling, for one poller, and messages. Each update is a message whose
// text is its number, so that what the bot says tells what it answers.
type Telegram struct {
	URL string

	mu        sync.Mutex
	changed   chan struct{} // closed at the next change
	last      int           // update
	forgotten int           // is the update up to which all were received
	answers   map[int]int
	poller    chan struct{} // of who polls: closed when another one does
	conflicts int
	events    []Event
}

// Token is the bot's.
const Token = "123:token"

// NewTelegram serves one until the test ends.
func NewTelegram(t testing.TB) *Telegram {
	t.Helper()
	a := &Telegram{answers: map[int]int{}, changed: make(chan struct{})}
	a.URL = serve(t, a)
	return a
}

// Say has somebody say something to the bot.
func (a *Telegram) Say() {
	a.mu.Lock()
	defer a.mu.Unlock()
	a.last++
	close(a.changed)
	a.changed = make(chan struct{})
}

// Counts are of updates, and of polls that were refused beside another.
type Counts struct{ Said, Answered, Twice, Conflicts int }

// Counts tells what was counted until now.
func (a *Telegram) Counts() Counts {
	a.mu.Lock()
	defer a.mu.Unlock()
	c := Counts{Said: a.last, Answered: len(a.answers), Conflicts: a.conflicts}
	for _, n := range a.answers {
		if n > 1 {
			c.Twice++
		}
	}
	return c
}

// Events are the answers. Expected are the updates.
func (a *Telegram) Events() (events []Event, expected []string) {
	a.mu.Lock()
	defer a.mu.Unlock()
	for update := 1; update <= a.last; update++ {
		expected = append(expected, strconv.Itoa(update))
	}
	return slices.Clone(a.events), expected
}

func (a *Telegram) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	var in struct {
		Offset, Limit, Timeout int
		Text                   json.Number
	}
	method, ours := strings.CutPrefix(r.URL.Path, "/bot"+Token+"/")
	if err := json.NewDecoder(r.Body).Decode(&in); err != nil || !ours {
		http.Error(w, `{"ok":false}`, http.StatusBadRequest)
		return
	}
	switch method {
	case "getUpdates":
		result, alone := a.poll(r, in.Offset, in.Limit, time.Duration(in.Timeout)*time.Second)
		if !alone {
			http.Error(w, `{"ok":false,"description":"Conflict: terminated by other getUpdates request"}`, http.StatusConflict)
			return
		}
		_ = json.NewEncoder(w).Encode(map[string]any{"ok": true, "result": result})
	case "sendMessage":
		n, err := in.Text.Int64()
		if err != nil {
			http.Error(w, `{"ok":false}`, http.StatusBadRequest)
			return
		}
		a.mu.Lock()
		a.answers[int(n)]++
		a.events = append(a.events, Event{At: time.Now(), Unit: strconv.FormatInt(n, 10)})
		a.mu.Unlock()
		_, _ = w.Write([]byte(`{"ok":true,"result":{}}`))
	}
}

// noticed is for how long a poller that is gone may seem to be there: its connection is closed, and this server busy.
const noticed = 5 * time.Second

// poll waits for updates from an offset on, and forgets those before it. It ends when another one polls.
func (a *Telegram) poll(r *http.Request, offset, limit int, timeout time.Duration) (updates []any, alone bool) {
	a.mu.Lock()
	defer a.mu.Unlock()
	if a.poller != nil {
		close(a.poller)
	}
	mine := make(chan struct{})
	a.poller = mine
	defer func() {
		if a.poller == mine {
			a.poller = nil
		}
	}()
	a.forgotten = max(a.forgotten, offset-1)
	for deadline := time.After(timeout); a.last == a.forgotten; {
		changed := a.changed
		a.mu.Unlock()
		select {
		case <-changed:
			a.mu.Lock()
		case <-mine:
			select {
			case <-r.Context().Done(): // it has ended, which this server had yet to notice
				a.mu.Lock()
				return nil, false
			case <-time.After(noticed):
			}
			a.mu.Lock()
			a.conflicts++
			return nil, false
		case <-deadline:
			a.mu.Lock()
			return []any{}, true
		case <-r.Context().Done():
			a.mu.Lock()
			return nil, false
		}
	}
	for id := a.forgotten + 1; id <= a.last && len(updates) < limit; id++ {
		text, _ := json.Marshal(id)
		updates = append(updates, map[string]any{"update_id": id, "message": map[string]any{"chat": map[string]int{"id": 1}, "text": string(text)}})
	}
	return updates, true
}
