// Package once runs the SQL of docs/runs.md on a PostgreSQL: each step of a run once, however many attempts it has.
package once

import (
	"os"
	"regexp"
	"strings"
	"testing"

	"github.com/singletonjob/operator/test/postgres"
)

// documented are the blocks of SQL in docs/runs.md: the table, and the statement of a step.
func documented(t *testing.T) (table, step string) {
	t.Helper()
	raw, err := os.ReadFile("../../docs/runs.md")
	if err != nil {
		t.Fatal(err)
	}
	blocks := regexp.MustCompile("(?s)```sql\n(.*?)```").FindAllStringSubmatch(string(raw), -1)
	if len(blocks) != 2 {
		t.Fatalf("docs/runs.md has %d blocks of SQL, want 2", len(blocks))
	}
	return blocks[0][1], blocks[1][1]
}

// TestOnce plays the attempts of a run: one that is cut off before its end, one that is done and not recorded, one beside another.
func TestOnce(t *testing.T) {
	table, step := documented(t)
	p := postgres.Start(t)
	p.Says("CREATE TABLE", table)
	p.Says("CREATE TABLE\nINSERT 0 1", "CREATE TABLE account (balance bigint); INSERT INTO account VALUES (1000);")
	balance := func(want string) {
		t.Helper()
		p.Says(want, "SELECT balance FROM account")
	}

	p.Says("BEGIN\nUPDATE 1\nROLLBACK", "BEGIN; "+step+" ROLLBACK;", "run=uid/1", "token=7")
	balance("1000")
	p.Says("UPDATE 1", step, "run=uid/1", "token=8")
	balance("1010")
	p.Says("UPDATE 0", step, "run=uid/1", "token=9")
	balance("1010")
	p.Says("interest 8", "SELECT step || ' ' || token FROM run_step")
	p.Says("UPDATE 1", step, "run=it's another; DROP TABLE account; --", "token=10")
	balance("1020")

	for _, c := range []struct{ end, second, balance string }{{"ROLLBACK", "UPDATE 1", "1030"}, {"COMMIT", "UPDATE 0", "1040"}} {
		t.Run("beside one that is about to "+c.end, func(t *testing.T) {
			run := "run=uid/" + c.end
			first := hold(t, p, "BEGIN; "+step, run, "token=11")
			second := make(chan string)
			go func() {
				out, _ := p.Psql(step, run, "token=12").CombinedOutput()
				second <- strings.TrimSpace(string(out))
			}()
			p.Until("1", "SELECT count(*) FROM pg_stat_activity WHERE wait_event_type = 'Lock'")
			first(c.end + ";")
			if out := <-second; out != c.second {
				t.Errorf("the second attempt says %q, want %q", out, c.second)
			}
			balance(c.balance)
		})
	}
}

// hold begins a session. The function that it returns sends the session its last input, and the session ends.
func hold(t *testing.T, p *postgres.Server, sql string, variables ...string) func(string) {
	t.Helper()
	cmd := p.Psql("", variables...)
	cmd.Stdin = nil
	in, err := cmd.StdinPipe()
	if err != nil {
		t.Fatal(err)
	}
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	write := func(text string) {
		if _, err := in.Write([]byte(text + "\n")); err != nil {
			t.Error(err)
		}
	}
	write(sql)
	p.Until("1", "SELECT count(*) FROM pg_stat_activity WHERE state = 'idle in transaction'")
	return func(end string) {
		write(end)
		_ = in.Close()
		if err := cmd.Wait(); err != nil {
			t.Error(err)
		}
	}
}
