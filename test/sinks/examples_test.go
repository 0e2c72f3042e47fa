package sinks

import (
	"bytes"
	"context"
	"database/sql"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"

	"github.com/singletonjob/operator/fence/fencesql"
)

// example is a program of another language than Go.
type example struct {
	prepare func(t *testing.T) []string // the command
}

const examples = "../../examples/"

var inOtherLanguages = map[string]example{
	"python": {func(*testing.T) []string { return []string{"/usr/bin/python3", examples + "fence-python/ledger.py"} }},
	"node": {func(t *testing.T) []string {
		t.Helper()
		dir := t.TempDir()
		must(t, os.CopyFS(dir, os.DirFS(examples+"fence-node")))
		install := exec.CommandContext(patience(t), "npm", "ci", "--fetch-retries=5", "--no-audit", "--no-fund", "--ignore-scripts")
		install.Dir = dir
		if out, err := install.CombinedOutput(); err != nil {
			t.Fatalf("npm ci: %v\n%s", err, out)
		}
		return []string{"node", filepath.Join(dir, "ledger.js")}
	}},
}

// ledger is a database with fence.sql and the table of the examples, and the address of a role that owns neither.
func ledger(t *testing.T, name string) (owner *sql.DB, program string) {
	t.Helper()
	s, err := scripted()
	must(t, err)
	shared, err := postgres()
	must(t, err)
	_, err = connect(t, shared.driver, shared.dsn).ExecContext(t.Context(), "CREATE DATABASE "+name)
	must(t, err)
	owner = connect(t, shared.driver, strings.Replace(shared.dsn, "/postgres?", "/"+name+"?", 1))
	for _, text := range []string{
		fencesql.Script, "CREATE TABLE entries (n bigserial PRIMARY KEY, token bigint, payload text)",
		"GRANT SELECT, INSERT ON entries TO program; GRANT USAGE ON entries_n_seq TO program",
	} {
		_, err := owner.ExecContext(t.Context(), text)
		must(t, err)
	}
	return owner, strings.Replace(s.dsn, "/scripted?", "/"+name+"?", 1)
}

// tenure runs a program as an agent does.
func tenure(ctx context.Context, command []string, dsn, token string) (status int, stdout, stderr string) {
	cmd := exec.CommandContext(ctx, command[0], command[1:]...)
	cmd.Env = append(os.Environ(), "DATABASE_URL="+dsn, "ENTRIES=2",
		"FENCING_TOKEN="+token, "SINGLETONJOB_NAMESPACE=default", "SINGLETONJOB_NAME=ledger")
	var out, problems bytes.Buffer
	cmd.Stdout, cmd.Stderr = &out, &problems
	err := cmd.Run()
	if exit, ok := errors.AsType[*exec.ExitError](err); ok {
		status = exit.ExitCode()
	} else if err != nil {
		status, problems = -1, *bytes.NewBufferString(err.Error())
	}
	return status, out.String(), problems.String()
}

// TestExamplesInOtherLanguages: accepted, then stale and refused with words that say so.
func TestExamplesInOtherLanguages(t *testing.T) {
	for language, example := range inOtherLanguages {
		t.Run(language, func(t *testing.T) {
			t.Parallel()
			owner, dsn := ledger(t, "ledger_"+language)
			command, ctx := example.prepare(t), patience(t)
			const odd, even = "9007199254740993", "9007199254740992" // one double
			for _, c := range []struct {
				token, out, problem string
				status              int
			}{
				{"33", "stored 33:0\nstored 33:1\n", "", 0},
				{"34", "stored 34:0\nstored 34:1\n", "", 0},
				{"33", "", "refused: fencing token 33 of default/ledger is stale: the highest is 34; a later tenure has begun: end this process\n", 3},
				{"", "", "FENCING_TOKEN is not set: run this as the command of a SingletonJob\n", 1},
				{"0", "", "refused: fencing token 0 is malformed; pass the number in $FENCING_TOKEN\n", 1},
				{odd, fmt.Sprintf("stored %[1]s:0\nstored %[1]s:1\n", odd), "", 0},
				{even, "", fmt.Sprintf("refused: fencing token %s of default/ledger is stale: the highest is %s; a later tenure has begun: end this process\n", even, odd), 3},
			} {
				status, out, problem := tenure(ctx, command, dsn, c.token)
				if status != c.status || out != c.out || problem != c.problem {
					t.Errorf("with token %q: status %d, %q, %q; want %d, %q, %q", c.token, status, out, problem, c.status, c.out, c.problem)
				}
			}
			var stored string
			must(t, owner.QueryRowContext(ctx, "SELECT string_agg(payload, ' ' ORDER BY n) FROM entries").Scan(&stored))
			if want := fmt.Sprintf("33:0 33:1 34:0 34:1 %[1]s:0 %[1]s:1", odd); stored != want {
				t.Errorf("stored is %q, want %q", stored, want)
			}
		})
	}
}
