package fencesql

import (
	"cmp"
	_ "embed"
	"strings"
)

// Dialect is a kind of database.
type Dialect uint8

// The supported databases.
const (
	// PostgreSQL from version 12.
	PostgreSQL Dialect = iota + 1
	// MySQL from 8.0 and MariaDB from 10.5, with InnoDB.
	MySQL
	// SQLite from 3.35. It has one writer at a time: a transaction that checks waits for the others to end (busy_timeout).
	SQLite
)

// statements are the SQL statements of a fence. Their arguments are a resource and a token.
type statements struct {
	// both raises the mark if it is below the token, and holds it. Dialects without it use share first and then raise.
	both string
	// share holds the mark, so that others can't raise it.
	share, raise string
	// first stores a mark of 0 if there is no mark, for dialects whose both does not do that. firstAlways: it runs before the mark is held.
	// On MySQL, a locking read of a missing row locks the gap for everybody, and concurrent readers would prevent each other from inserting
	// the row forever.
	first       string
	firstAlways bool
	// advance raises the mark if it is below the token or missing. read reads it afterwards.
	advance, read string
	// once inserts into the table of steps.
	once string
	// evict ends the sessions that a session waits for, while the mark is below the token, so that only past tenures can hold it. Its
	// arguments are the session, a resource and a token.
	evict string
}

func (f Fence) statements() statements {
	in := strings.NewReplacer("MARKS", cmp.Or(f.Table, DefaultTable), "STEPS", stepsBeside(cmp.Or(f.Table, DefaultTable)))
	s := dialects[f.Dialect]
	for _, text := range []*string{&s.both, &s.share, &s.raise, &s.first, &s.advance, &s.read, &s.once, &s.evict} {
		*text = in.Replace(*text)
	}
	return s
}

// stepsBeside returns the table of steps in the schema of the table of marks.
func stepsBeside(marks string) string {
	schema, _, found := strings.Cut(marks, ".")
	if !found {
		return DefaultSteps
	}
	return schema + "." + DefaultSteps
}

// bounded is true, and has the server end the session if its transaction idles too long. Otherwise a process that is frozen in a
// transaction would keep all later tenures out. The setting ends with the transaction, so it does not leak through a pooler. A session that
// has a bound of its own keeps that.
const bounded = `set_config('idle_in_transaction_session_timeout',
coalesce(nullif(current_setting('idle_in_transaction_session_timeout'), '0'), '30s'), true) <> ''`

var dialects = map[Dialect]statements{
	PostgreSQL: {
		// In this statement the mark is raised before it is held. Otherwise two transactions with the same new token could both hold it and
		// then wait for each other.
		both: `WITH raised AS (UPDATE MARKS SET token = $2 WHERE resource = $1 AND token < $2 RETURNING token)
SELECT token FROM (
SELECT token FROM raised
UNION ALL
SELECT token FROM (SELECT token FROM MARKS WHERE resource = $1 AND NOT EXISTS (SELECT FROM raised) FOR SHARE) AS held
) AS mark WHERE ` + bounded,
		share:   `SELECT token FROM (SELECT token FROM MARKS WHERE resource = $1 FOR SHARE) AS mark WHERE ` + bounded,
		first:   `INSERT INTO MARKS (resource, token) VALUES ($1, 0) ON CONFLICT (resource) DO NOTHING`,
		advance: `INSERT INTO MARKS AS m (resource, token) VALUES ($1, $2) ON CONFLICT (resource) DO UPDATE SET token = GREATEST(m.token, excluded.token)`,
		read:    `SELECT token FROM MARKS WHERE resource = $1`,
		once:    `INSERT INTO STEPS (run, step) VALUES ($1, $2) ON CONFLICT (run, step) DO NOTHING`,
		evict: `SELECT pg_terminate_backend(p) FROM unnest(pg_blocking_pids($1)) AS p
WHERE NOT EXISTS (SELECT FROM MARKS WHERE resource = $2 AND token >= $3)`,
	},
	MySQL: {
		share: `SELECT token FROM MARKS WHERE resource = ? LOCK IN SHARE MODE`,
		raise: `UPDATE MARKS SET token = ? WHERE resource = ? AND token < ?`,
		first: `INSERT IGNORE INTO MARKS (resource, token) VALUES (?, 0)`, firstAlways: true,
		advance: `INSERT INTO MARKS (resource, token) VALUES (?, ?) ON DUPLICATE KEY UPDATE token = GREATEST(token, VALUES(token))`,
		read:    `SELECT token FROM MARKS WHERE resource = ? LOCK IN SHARE MODE`,
		once:    `INSERT IGNORE INTO STEPS (run, step) VALUES (?, ?)`,
	},
	SQLite: {
		// The first statement writes, because a transaction that has read can't become a writer after another one has written.
		both: `INSERT INTO MARKS (resource, token) VALUES (?1, ?2)
ON CONFLICT (resource) DO UPDATE SET token = max(token, excluded.token) RETURNING token`,
		share:   `UPDATE MARKS SET token = token WHERE resource = ?1 RETURNING token`,
		advance: `INSERT INTO MARKS (resource, token) VALUES (?1, ?2) ON CONFLICT (resource) DO UPDATE SET token = max(token, excluded.token)`,
		read:    `SELECT token FROM MARKS WHERE resource = ?1`,
		once:    `INSERT INTO STEPS (run, step) VALUES (?1, ?2) ON CONFLICT (run, step) DO NOTHING`,
	},
}

var schemas = map[Dialect][]string{
	PostgreSQL: {
		`CREATE TABLE IF NOT EXISTS MARKS (
  resource text COLLATE "C" PRIMARY KEY CHECK (length(resource) BETWEEN 1 AND 200),
  token bigint NOT NULL CHECK (token >= 0)
)`,
		`CREATE TABLE IF NOT EXISTS STEPS (
  run text COLLATE "C", step text COLLATE "C", at timestamptz NOT NULL DEFAULT now(), PRIMARY KEY (run, step)
)`,
	},
	MySQL: {
		`CREATE TABLE IF NOT EXISTS MARKS (
  resource VARCHAR(200) CHARACTER SET ascii COLLATE ascii_bin PRIMARY KEY,
  token BIGINT NOT NULL CHECK (token >= 0)
) ENGINE=InnoDB`,
		`CREATE TABLE IF NOT EXISTS STEPS (
  run VARCHAR(128) CHARACTER SET utf8mb4 COLLATE utf8mb4_bin, step VARCHAR(200) CHARACTER SET utf8mb4 COLLATE utf8mb4_bin,
  at TIMESTAMP NOT NULL DEFAULT CURRENT_TIMESTAMP, PRIMARY KEY (run, step)
) ENGINE=InnoDB`,
	},
	SQLite: {
		`CREATE TABLE IF NOT EXISTS MARKS (resource TEXT PRIMARY KEY, token INTEGER NOT NULL CHECK (token >= 0)) STRICT, WITHOUT ROWID`,
		`CREATE TABLE IF NOT EXISTS STEPS (
  run TEXT, step TEXT, at TEXT NOT NULL DEFAULT CURRENT_TIMESTAMP, PRIMARY KEY (run, step)
) STRICT, WITHOUT ROWID`,
	},
}

// Schema returns the statements that create the tables of marks and steps if they do not exist. They can be run again.
func (f Fence) Schema() ([]string, error) {
	if err := f.validate(); err != nil {
		return nil, err
	}
	marks := cmp.Or(f.Table, DefaultTable)
	in := strings.NewReplacer("MARKS", marks, "STEPS", stepsBeside(marks))
	var all []string
	for _, text := range schemas[f.Dialect] {
		all = append(all, in.Replace(text))
	}
	return all, nil
}

// Script is fence.sql: the same fence for PostgreSQL and programs in any language, as functions and a trigger for tables.
//
//go:embed fence.sql
var Script string
