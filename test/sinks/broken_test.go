package sinks

import (
	"context"
	"database/sql"
	"fmt"
	"sync"
	"testing"
	"time"

	"github.com/singletonjob/operator/fence"
	"github.com/singletonjob/operator/fence/fencetest"
)

// homemade is a handwritten fence on a real PostgreSQL. newHomemade returns a correct one, and the tests change fields to break it.
type homemade struct {
	*adapter
	hold    string // added to the statement that reads the mark.
	stale   string // the condition for a stale token.
	lenient bool   // accepts an empty token as 0.
	outside bool   // reads the mark before the transaction.
	forgets bool   // keeps the marks in memory.
	pause   *pause

	mu    sync.Mutex
	marks map[fence.Resource]fence.Token
}

// number is the comparison as it is meant.
const number = "token::bigint > $1"

func newHomemade(t *testing.T, level sql.IsolationLevel) *homemade {
	t.Helper()
	h := &homemade{adapter: kinds[0].adapter(t, level), hold: " FOR SHARE", stale: number, pause: &pause{}, marks: map[fence.Resource]fence.Token{}}
	making.Lock()
	defer making.Unlock()
	_, err := h.db.ExecContext(t.Context(), `CREATE TABLE IF NOT EXISTS their_marks (resource text PRIMARY KEY, token text COLLATE "C" NOT NULL)`)
	must(t, err)
	return h
}

// asker is a transaction, or the database without one.
type asker interface {
	ExecContext(ctx context.Context, query string, args ...any) (sql.Result, error)
	QueryRowContext(ctx context.Context, query string, args ...any) *sql.Row
}

// check raises the mark where it is lower, and then looks at it.
func (h *homemade) check(ctx context.Context, in asker, r fence.Resource, token fence.Token) error {
	if h.forgets {
		return h.remembers(r, token)
	}
	_, err := in.ExecContext(ctx, "INSERT INTO their_marks VALUES ($1, '0') ON CONFLICT DO NOTHING", string(r))
	if err == nil && h.stale == number {
		_, err = in.ExecContext(ctx, "UPDATE their_marks SET token = $2::text WHERE resource = $1 AND token::bigint < $2::text::bigint", string(r), token.String())
	}
	if err != nil {
		return err
	}
	var mark fence.Token
	var stale bool
	look := "SELECT token, " + h.stale + " FROM (SELECT token FROM their_marks WHERE resource = $2" + h.hold + ") AS m"
	if err := in.QueryRowContext(ctx, look, token.String(), string(r)).Scan(&mark, &stale); err != nil {
		return err
	}
	if stale {
		return &fence.StaleError{Resource: r, Presented: token, Highest: mark}
	}
	if h.stale != number {
		_, err = in.ExecContext(ctx, "UPDATE their_marks SET token = $2 WHERE resource = $1", string(r), token.String())
	}
	return err
}

func (h *homemade) remembers(r fence.Resource, token fence.Token) error {
	h.mu.Lock()
	defer h.mu.Unlock()
	mark, err := fence.Gate{Resource: r}.Accept(h.marks[r], token)
	h.marks[r] = mark
	return err
}

func (h *homemade) Restart(context.Context) error {
	h.mu.Lock()
	defer h.mu.Unlock()
	clear(h.marks)
	return nil
}

func (h *homemade) Write(ctx context.Context, r fence.Resource, text, payload string) error {
	token, err := fence.ParseToken(text)
	if err != nil && (text != "" || !h.lenient) {
		return err
	}
	if err := h.pause.before(ctx, token); err != nil {
		return err
	}
	err = h.within(ctx, func(tx *sql.Tx) error {
		in := asker(tx)
		if h.outside {
			in = h.db
		}
		if err := h.check(ctx, in, r, token); err != nil {
			return err
		}
		if err := h.pause.between(ctx, h.db, tx, token); err != nil {
			return err
		}
		return h.append(ctx, tx, r, payload)
	})
	if err == nil {
		h.pause.after(token)
	}
	return err
}

// pause is the interleaving that a fence is for, whatever the scheduler does. Tenure 1 pauses between the check and the write until a
// later one has committed or waits for it. Later ones do not begin before.
type pause struct {
	begun, overtaken chan struct{} // nil: there is none
	mu               sync.Mutex
	checks           int // of tenure 1
	once             sync.Once
}

func newPause() *pause { return &pause{begun: make(chan struct{}), overtaken: make(chan struct{})} }

func (p *pause) before(ctx context.Context, token fence.Token) error {
	if p.begun == nil || token == 1 {
		return nil
	}
	select {
	case <-p.begun:
		return nil
	case <-ctx.Done():
		return context.Cause(ctx)
	}
}

func (p *pause) between(ctx context.Context, db *sql.DB, tx *sql.Tx, token fence.Token) error {
	if p.begun == nil || token != 1 {
		return nil
	}
	p.mu.Lock()
	p.checks++
	second := p.checks == 2 // the first raises the mark, and so locks it in any case
	p.mu.Unlock()
	if !second {
		return nil
	}
	var pid int
	if err := tx.QueryRowContext(ctx, "SELECT pg_backend_pid()").Scan(&pid); err != nil {
		return err
	}
	close(p.begun)
	for tick := time.NewTicker(10 * time.Millisecond); ; {
		select {
		case <-p.overtaken:
			tick.Stop()
			return nil
		case <-ctx.Done():
			tick.Stop()
			return context.Cause(ctx)
		case <-tick.C:
		}
		var waits bool
		err := db.QueryRowContext(ctx, "SELECT EXISTS (SELECT FROM pg_stat_activity WHERE $1 = ANY (pg_blocking_pids(pid)))", pid).Scan(&waits)
		if err != nil || waits {
			tick.Stop()
			return err
		}
	}
}

func (p *pause) after(token fence.Token) {
	if p.begun != nil && token > 1 {
		p.once.Do(func() { close(p.overtaken) })
	}
}

// mistakes are what people do, and the case of the suite that is there for it.
var mistakes = map[string]struct {
	foundBy string
	levels  []sql.IsolationLevel
	make    func(h *homemade)
}{
	"the mark is looked at before the transaction": {"ConcurrentTenures", everyLevel, func(h *homemade) { h.outside = true }},
	"a plain SELECT of the mark":                   {"ConcurrentTenures", everyLevel, func(h *homemade) { h.hold = "" }},
	"FOR KEY SHARE":                                {"ConcurrentTenures", everyLevel, func(h *homemade) { h.hold = " FOR KEY SHARE" }},
	"above, not at least":                          {"EqualAccepted", everyLevel[:1], func(h *homemade) { h.stale = "token::bigint >= $1" }},
	"tokens as texts":                              {"NumbersNotStrings", everyLevel[:1], func(h *homemade) { h.stale = "token > $1" }},
	"no token is token 0":                          {"MalformedRefused", everyLevel[:1], func(h *homemade) { h.lenient = true }},
	"the mark in memory":                           {"RestartForgetsNothing", everyLevel[:1], func(h *homemade) { h.forgets = true }},
}

// TestTheSuiteFindsMistakes: each on a real server, and none where there is none.
func TestTheSuiteFindsMistakes(t *testing.T) {
	for name, m := range mistakes {
		for _, level := range m.levels {
			t.Run(fmt.Sprint(name, "/", level), func(t *testing.T) {
				t.Parallel()
				for _, wrong := range []bool{false, true} {
					h := newHomemade(t, level)
					if m.foundBy == "ConcurrentTenures" {
						h.pause = newPause()
					}
					if wrong {
						m.make(h)
					}
					if fault := fencetest.Fault(patience(t), h, m.foundBy); (fault != nil) != wrong {
						t.Errorf("with the mistake: %t; %s finds: %v", wrong, m.foundBy, fault)
					}
				}
			})
		}
	}
}
