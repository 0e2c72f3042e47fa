package sinks

import (
	"context"
	"database/sql"
	"errors"
	"fmt"
	"hash/fnv"
	"net/url"
	"strings"
	"sync"
	"testing"

	"github.com/jackc/pgx/v5/pgconn"

	"github.com/singletonjob/operator/fence"
	"github.com/singletonjob/operator/fence/fencesql"
	"github.com/singletonjob/operator/fence/fencetest"
)

// scripted is a PostgreSQL with fence.sql, and a role as programs have it, which owns nothing.
var scripted = sync.OnceValues(func() (*server, error) {
	s, err := postgres()
	if err != nil {
		return nil, err
	}
	db, err := sql.Open(s.driver, s.dsn)
	if err != nil {
		return nil, err
	}
	defer func() { _ = db.Close() }()
	for _, text := range []string{
		"CREATE ROLE fence_owner", "CREATE ROLE program LOGIN", "CREATE DATABASE scripted",
	} {
		if _, err := db.Exec(text); err != nil {
			return nil, err
		}
	}
	owner := &server{driver: s.driver, dsn: strings.Replace(s.dsn, "/postgres?", "/scripted?", 1)}
	if db, err = sql.Open(owner.driver, owner.dsn); err != nil {
		return nil, err
	}
	defer func() { _ = db.Close() }()
	for _, text := range []string{
		"GRANT CREATE ON DATABASE scripted TO fence_owner", "SET ROLE fence_owner; " + fencesql.Script + "; RESET ROLE",
		"SET ROLE fence_owner; " + fencesql.Script + "; RESET ROLE", // again
		"CREATE TABLE entries (n bigserial PRIMARY KEY, resource text, payload text)",
		"GRANT SELECT, INSERT, UPDATE, DELETE, TRUNCATE ON entries TO program; GRANT USAGE ON entries_n_seq TO program",
	} {
		if _, err := db.Exec(text); err != nil {
			return nil, fmt.Errorf("%.60s: %w", text, err)
		}
	}
	program, err := url.Parse(owner.dsn)
	program.User = url.User("program")
	return &server{driver: owner.driver, dsn: program.String()}, err
})

// byScript calls the functions as any program does.
type byScript struct {
	*adapter
	owner *sql.DB
}

func scriptedAdapter(t *testing.T, level sql.IsolationLevel) byScript {
	t.Helper()
	k := kind{server: scripted}
	s, err := postgres()
	must(t, err)
	owner, err := sql.Open(s.driver, strings.Replace(s.dsn, "/postgres?", "/scripted?", 1))
	must(t, err)
	owner.SetMaxOpenConns(4)
	t.Cleanup(func() { _ = owner.Close() })
	return byScript{owner: owner, adapter: &adapter{db: k.open(t), dialect: fencesql.PostgreSQL, level: level}}
}

// refusal is an error of the functions as the one of package fence that it stands for.
func refusal(err error, r fence.Resource, token string) error {
	e, ok := errors.AsType[*pgconn.PgError](err)
	if !ok {
		return err
	}
	switch e.Code {
	case "FE412":
		var presented, highest fence.Token
		if _, scan := fmt.Sscanf(strings.Replace(e.Message, string(r), "R", 1), "fencing token %d of R is stale: the highest is %d", &presented, &highest); scan != nil {
			return scan
		}
		return &fence.StaleError{Resource: r, Presented: presented, Highest: highest}
	case "FE425":
		return fmt.Errorf("%w: %w", fence.ErrAhead, err)
	case "FE428", "22P02", "22003": // the number is not one of SQL's either
		if token == "" {
			return fmt.Errorf("%w: %w", fence.ErrMissingToken, err)
		}
		return fmt.Errorf("%w: %w", fence.ErrMalformedToken, err)
	case "FE400", "22021": // a NUL is no text of SQL's
		if _, malformed := fence.ParseResource(string(r)); malformed != nil {
			return fmt.Errorf("%w: %w", malformed, err)
		}
		return fmt.Errorf("%w: %w", fence.ErrMalformedToken, err)
	}
	return err
}

func (a byScript) Write(ctx context.Context, r fence.Resource, token, payload string) error {
	if _, err := fence.ParseToken(token); err != nil && token != "" {
		return err // SQL reads 007 and 1e3 as numbers
	}
	if err := a.makeStrict(ctx, r); err != nil {
		return err
	}
	err := a.within(ctx, func(tx *sql.Tx) error {
		if _, err := tx.ExecContext(ctx, "SELECT fence.assert($1, $2)", string(r), sql.NullString{String: token, Valid: token != ""}); err != nil {
			return err
		}
		return a.append(ctx, tx, r, payload)
	})
	return refusal(err, r, token)
}

// makeStrict is what an owner does before the first tenure.
func (a byScript) makeStrict(ctx context.Context, r fence.Resource) error {
	if !a.strict {
		return nil
	}
	_, err := a.owner.ExecContext(ctx, "SELECT fence.strict($1)", string(r))
	return refusal(err, r, "")
}

func (a byScript) Advance(ctx context.Context, r fence.Resource, token string) error {
	if err := a.makeStrict(ctx, r); err != nil {
		return err
	}
	_, err := a.owner.ExecContext(ctx, "SELECT fence.advance($1, $2)", string(r), token)
	return refusal(err, r, token)
}

func (a byScript) Strict() fencetest.Advancer {
	strict := *a.adapter
	strict.strict = true
	return byScript{&strict, a.owner}
}

func TestScriptConforms(t *testing.T) {
	for _, level := range everyLevel {
		t.Run(level.String(), func(t *testing.T) {
			t.Parallel()
			a := scriptedAdapter(t, level)
			fencetest.Run(t, func(*testing.T) fencetest.Adapter { return a })
		})
	}
}

// TestScriptThroughAPooler: a transaction's functions all run in one session, and the next transaction gets another one.
func TestScriptThroughAPooler(t *testing.T) {
	t.Parallel()
	pooled := func(a byScript) byScript {
		s, err := bouncer()
		must(t, err)
		dsn := strings.NewReplacer("/postgres?", "/scripted?", "//test@", "//program@").Replace(s.dsn)
		a.adapter = &adapter{db: connect(t, s.driver, dsn), dialect: a.dialect, level: a.level}
		return a
	}
	t.Run("assert", func(t *testing.T) {
		a := pooled(scriptedAdapter(t, sql.LevelReadCommitted))
		fencetest.Run(t, func(*testing.T) fencetest.Adapter { return a })
	})
	t.Run("guard", func(t *testing.T) {
		p := protectedTables(t, sql.LevelReadCommitted)
		p.byScript = pooled(p.byScript)
		fencetest.Run(t, func(*testing.T) fencetest.Adapter { return p })
	})
}

// protected writes to tables of their own, which refuse what comes without a token.
type protected struct {
	byScript
	made *sync.Map
}

func (p protected) Strict() fencetest.Advancer {
	strict := *p.adapter
	strict.strict = true
	return protected{byScript{&strict, p.owner}, p.made}
}

func (p protected) table(r fence.Resource) string {
	h := fnv.New64a()
	_, _ = fmt.Fprintf(h, "%p %s", p.made, r) // some resources are everybody's
	return fmt.Sprintf(`"t%016x"`, h.Sum64())
}

func (p protected) make(ctx context.Context, r fence.Resource) error {
	once, _ := p.made.LoadOrStore(r, sync.OnceValue(func() error {
		for _, text := range []string{
			"CREATE TABLE %[1]s (n bigserial PRIMARY KEY, payload text)", "GRANT ALL ON %[1]s TO program", `GRANT ALL ON SEQUENCE %[2]s TO program`,
			"SELECT fence.protect('%[1]s', '%[3]s')", "SELECT fence.protect('%[1]s', '%[3]s')",
		} {
			text = fmt.Sprintf(text, p.table(r), strings.TrimSuffix(p.table(r), `"`)+`_n_seq"`, r)
			if i := strings.Index(text, "%!"); i >= 0 {
				text = text[:i]
			}
			if _, err := p.owner.ExecContext(ctx, text); err != nil {
				return fmt.Errorf("%s: %w", text, err)
			}
		}
		return nil
	}))
	return once.(func() error)()
}

func (p protected) Write(ctx context.Context, r fence.Resource, token, payload string) error {
	if _, err := fence.ParseResource(string(r)); err != nil {
		return err // no table of it can be made
	}
	if err := errors.Join(p.make(ctx, r), p.makeStrict(ctx, r)); err != nil {
		return err
	}
	err := p.within(ctx, func(tx *sql.Tx) error {
		if token != "" { // as a text, which is what anybody can set
			if _, err := tx.ExecContext(ctx, "SELECT set_config('fence.token', $1, true)", token); err != nil {
				return err
			}
		}
		_, err := tx.ExecContext(ctx, "INSERT INTO "+p.table(r)+" (payload) VALUES ($1)", payload)
		return err
	})
	return refusal(err, r, token)
}

func (p protected) Stored(ctx context.Context, r fence.Resource) (all []string, err error) {
	if err := p.make(ctx, r); err != nil {
		return nil, err
	}
	var text sql.NullString
	err = p.db.QueryRowContext(ctx, "SELECT string_agg(payload, ' ' ORDER BY n) FROM "+p.table(r)).Scan(&text)
	return strings.Fields(text.String), err
}

func protectedTables(t *testing.T, level sql.IsolationLevel) protected {
	t.Helper()
	a := scriptedAdapter(t, level)
	return protected{a, &sync.Map{}}
}

func TestProtectedTablesConform(t *testing.T) {
	for _, level := range everyLevel {
		t.Run(level.String(), func(t *testing.T) {
			t.Parallel()
			p := protectedTables(t, level)
			fencetest.Run(t, func(*testing.T) fencetest.Adapter { return p })
		})
	}
}

// TestGuardRefusesOtherStatements: the guard refuses every other way to change a protected table.
func TestGuardRefusesOtherStatements(t *testing.T) {
	p, r, ctx := protectedTables(t, sql.LevelReadCommitted), fresh(), patience(t)
	must(t, p.Write(ctx, r, "34", "a"))
	table := p.table(r)
	for _, text := range []string{
		"UPDATE TABLE SET payload = 'x'", "DELETE FROM TABLE", "TRUNCATE TABLE", "INSERT INTO TABLE (payload) VALUES ('x')",
		"INSERT INTO TABLE (n, payload) VALUES (1, 'x') ON CONFLICT (n) DO UPDATE SET payload = 'x'", "WITH d AS (DELETE FROM TABLE RETURNING 1) SELECT count(*) FROM d",
		"MERGE INTO TABLE USING (VALUES (1)) AS v (n) ON TABLE.n = v.n WHEN MATCHED THEN DELETE",
		"ALTER TABLE TABLE DISABLE TRIGGER ALL", "DROP TRIGGER \"00_fence\" ON TABLE", "SET session_replication_role = replica",
		"UPDATE fence.marks SET token = 0", "DELETE FROM fence.marks", "SELECT fence.advance('" + string(r) + "', 99)",
		"SET search_path = evil; CREATE FUNCTION fence.assert(text, integer) RETURNS void LANGUAGE sql AS ''",
	} {
		for _, token := range []string{"", "33", "nonsense"} {
			text := strings.ReplaceAll(strings.ReplaceAll(text, "ALTER TABLE TABLE", "ALTER TABLE "+table), "TABLE", table)
			text = strings.ReplaceAll(text, "ALTER "+table+" "+table, "ALTER TABLE "+table)
			err := p.within(ctx, func(tx *sql.Tx) error {
				if token != "" {
					if _, err := tx.ExecContext(ctx, "SELECT set_config('fence.token', $1, true)", token); err != nil {
						return err
					}
				}
				_, err := tx.ExecContext(ctx, text)
				return err
			})
			if e, ok := errors.AsType[*pgconn.PgError](err); !ok || e.Code == "42601" { // a syntax error proves nothing
				t.Errorf("%s with token %q: %v", text, token, err)
			}
		}
	}
	if stored, err := p.Stored(ctx, r); err != nil || strings.Join(stored, " ") != "a" {
		t.Errorf("stored is %q, %v", stored, err)
	}
}

// TestATokenStaysInItsTransaction: the next user of a pooled connection does not get the token.
func TestATokenStaysInItsTransaction(t *testing.T) {
	p, r, ctx := protectedTables(t, sql.LevelReadCommitted), fresh(), patience(t)
	must(t, p.make(ctx, r))
	p.db.SetMaxOpenConns(1)
	must(t, p.within(ctx, func(tx *sql.Tx) error {
		if _, err := tx.ExecContext(ctx, "SELECT fence.use(34)"); err != nil {
			return err
		}
		_, err := tx.ExecContext(ctx, "INSERT INTO "+p.table(r)+" (payload) VALUES ('a')")
		return err
	}))
	_, err := p.db.ExecContext(ctx, "INSERT INTO "+p.table(r)+" (payload) VALUES ('b')")
	if e, ok := errors.AsType[*pgconn.PgError](err); !ok || e.Code != "FE428" {
		t.Errorf("the next transaction of the connection, without a token: %v", err)
	}
}

func TestScriptStrictAndOnce(t *testing.T) {
	p, r, ctx := protectedTables(t, sql.LevelReadCommitted), fresh(), patience(t)
	advance := func(token int) error {
		_, err := p.owner.ExecContext(ctx, "SELECT fence.advance($1, $2, true)", string(r), token)
		return refusal(err, r, "")
	}
	must(t, advance(33))
	must(t, p.byScript.Write(ctx, r, "33", "a"))
	err := p.byScript.Write(ctx, r, "34", "b")
	if e, ok := errors.AsType[*pgconn.PgError](err); !ok || e.Code != "FE425" {
		t.Errorf("ahead: %v", err)
	}
	must(t, advance(34))
	if err := p.byScript.Write(ctx, r, "33", "c"); !errors.Is(err, fence.ErrStale) {
		t.Errorf("stale: %v", err)
	}
	if err := advance(33); !errors.Is(err, fence.ErrStale) {
		t.Errorf("a stale advance: %v", err)
	}
	for i, want := range []bool{true, false, false} {
		var first bool
		must(t, p.db.QueryRowContext(ctx, "SELECT fence.once($1, 'step')", string(r)).Scan(&first))
		if first != want {
			t.Errorf("call %d says %v", i, first)
		}
	}
}

// TestTheScriptIsRunAgain, as an upgrade does, while a program writes: marks, strict ones too, rights and protected tables are as before.
func TestTheScriptIsRunAgain(t *testing.T) {
	owner, dsn := ledger(t, "again")
	program, ctx, r := connect(t, "pgx", dsn), patience(t), string(fresh())
	as := func(db *sql.DB, text string, args ...any) error {
		_, err := db.ExecContext(ctx, text, args...)
		return err
	}
	must(t, errors.Join(
		as(owner, "GRANT EXECUTE ON FUNCTION fence.advance(text, bigint, boolean) TO program"),
		as(owner, "SELECT fence.protect('entries', '"+r+"')"), as(owner, "SELECT fence.advance($1, 34)", r),
		as(owner, "SELECT fence.advance('strict', 34, true)"), as(program, "SELECT fence.once($1, 'step')", r),
	))
	begun, err := program.BeginTx(ctx, nil)
	must(t, err)
	for _, text := range []string{"SELECT fence.use(34)", "INSERT INTO entries (token, payload) VALUES (34, 'a')"} {
		_, err := begun.ExecContext(ctx, text)
		must(t, err)
	}
	must(t, as(owner, "SET lock_timeout = '1min'; "+fencesql.Script)) // it waits for no program
	must(t, begun.Commit())
	for text, want := range map[string]string{
		"SELECT fence.assert('" + r + "', 33)":                  "FE412",
		"SELECT fence.assert('strict', 35)":                     "FE425",
		"INSERT INTO entries (token, payload) VALUES (33, 'b')": "FE428",
		"UPDATE fence.marks SET token = 0":                      "42501",
		"SELECT fence.strict('" + r + "')":                      "42501",
		"SELECT 1 / (NOT fence.once('" + r + "', 'step'))::int": "",
		"SELECT fence.advance('" + r + "', 35)":                 "",
	} {
		err := as(program, text)
		if e, ok := errors.AsType[*pgconn.PgError](err); want == "" && err != nil || want != "" && (!ok || e.Code != want) {
			t.Errorf("%s: %v, want %q", text, err, want)
		}
	}
}

// TestTokensOfEveryType: a token reaches the fence as a number, however a driver presents it, or the database refuses it. No text is compared.
// The function has no overload for texts: with one, a driver that asks the server for the types of parameters would have to send texts.
func TestTokensOfEveryType(t *testing.T) {
	a, ctx := scriptedAdapter(t, sql.LevelReadCommitted), patience(t)
	const noFunction, notANumber, tooGreat = "42883", "22P02", "22003"
	for token, want := range map[string]string{
		"34": "", "34::bigint": "", "34::int": "", "34::smallint": "", "'34'": "", "'9223372036854775807'": "",
		"' 34'": "", "'0034'": "", // SQL reads them as 34
		"NULL": "FE428", "NULL::bigint": "FE428", "0": "FE400", "-1": "FE400", "'0'": "FE400", "'-1'": "FE400",
		"''": notANumber, "'7.0'": notANumber, "'1e3'": notANumber, "'nil'": notANumber, "'9223372036854775808'": tooGreat,
		"'34'::text": noFunction, "NULL::text": noFunction, "'34'::varchar": noFunction, "34.0": noFunction, "34::float8": noFunction, "true": noFunction,
	} {
		_, err := a.db.ExecContext(ctx, "SELECT fence.assert($1, "+token+")", string(fresh()))
		code := ""
		if e, ok := errors.AsType[*pgconn.PgError](err); ok {
			code = e.Code
		} else {
			must(t, err)
		}
		if code != want {
			t.Errorf("fence.assert(…, %s) ended with %q, want %q: %v", token, code, want, err)
		}
	}
	r := string(fresh())
	for _, text := range []string{"SELECT fence.assert($1, '10')", "SELECT fence.assert($1, 10)"} {
		_, err := a.db.ExecContext(ctx, text, r)
		must(t, err)
	}
	if _, err := a.db.ExecContext(ctx, "SELECT fence.assert($1, '9')", r); refusal(err, fence.Resource(r), "9") == nil {
		t.Error("SAFETY: '9' passed after 10, so texts were compared")
	}
}
