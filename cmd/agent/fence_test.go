//go:build linux

package main

import (
	"fmt"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"syscall"
	"testing"

	"github.com/prometheus/procfs"

	"github.com/singletonjob/operator/fence/fencesql"
	"github.com/singletonjob/operator/test/postgres"
	"github.com/singletonjob/operator/test/tier"
)

// ledger is a PostgreSQL database with fence.sql, and the command and address with which the program of examples/fence-python writes to it.
func ledger(t *testing.T) (db *postgres.Server, program []string, url string) {
	t.Helper()
	const python = "/usr/bin/python3"
	if out, err := exec.Command(python, "-c", "import psycopg2").CombinedOutput(); err != nil {
		tier.Needs(t, "no psycopg2 here (apt-get install python3-psycopg2): %v\n%s", err, out)
	}
	script, err := filepath.Abs("../../examples/fence-python/ledger.py")
	if err != nil {
		t.Fatal(err)
	}
	db = postgres.Start(t)
	schema := fencesql.Script + "CREATE TABLE entries (n bigserial PRIMARY KEY, token bigint, payload text);"
	if out, err := db.Psql(schema).CombinedOutput(); err != nil {
		t.Fatalf("%v\n%s", err, out)
	}
	return db, []string{python, script}, fmt.Sprintf("postgresql:///postgres?host=%s&user=%s", db.Dir, postgres.User)
}

// descendants are the children of a process, and their descendants.
func descendants(t *testing.T, pid int) (all []int) {
	t.Helper()
	processes, err := procfs.AllProcs()
	if err != nil {
		t.Fatal(err)
	}
	for _, p := range processes {
		if stat, err := p.Stat(); err == nil && stat.PPID == pid {
			all = append(append(all, p.PID), descendants(t, p.PID)...)
		}
	}
	return all
}

func signalAll(t *testing.T, pids []int, sig syscall.Signal) {
	t.Helper()
	for _, pid := range pids {
		if err := syscall.Kill(pid, sig); err != nil {
			t.Fatal(err)
		}
	}
}

// A program in another language, its agent and the rest of the tenure are frozen. Another candidate takes over. The first program's writes
// are refused when it wakes up. Only fence.sql stops them, because with KeepRunning nothing kills the program.
func TestAFrozenProgramIsFenced(t *testing.T) {
	tier.Deep(t, "takes Debian's PostgreSQL and psycopg2, and tenures that nothing but the freeze ends")
	t.Parallel()
	db, program, url := ledger(t)
	w, config := newWorld(t), testConfig()
	config.KeepRunning = true
	config.LeaseDuration, config.RenewDeadline = seconds(15), seconds(12) // no write must be lost before it is frozen
	begin := func(pod string) *candidate {
		c := w.prepare(pod, config)
		c.env = append(c.env, "DATABASE_URL="+url)
		c.run(program...)
		return c
	}
	hasWritten := func(token int64) {
		db.Until("t", fmt.Sprintf("SELECT count(*) > 2 FROM entries WHERE token = %d", token))
	}
	a := begin("a")
	first := a.acquired()
	hasWritten(first)
	b := begin("b")
	b.await("lease held")

	tree := append([]int{a.agent.Pid()}, descendants(t, a.agent.Pid())...)
	t.Cleanup(func() {
		for _, pid := range tree {
			_ = syscall.Kill(pid, syscall.SIGCONT)
		}
	})
	freezeBetweenTransactions(t, db, tree)
	second := b.acquired()
	hasWritten(second)
	if lives := descendants(t, a.agent.Pid()); !slices.Equal(lives, tree[1:]) {
		t.Fatalf("what was frozen has changed: %v, %v before", lives, tree[1:])
	}
	signalAll(t, tree[1:], syscall.SIGCONT) // its agent stays frozen and learns of nothing

	a.await(fmt.Sprintf("refused: fencing token %d of %s/%s is stale: the highest is %d", first, w.ns, jobName, second))
	signalAll(t, tree[:1], syscall.SIGCONT)
	a.await("lost")
	db.Says("0", fmt.Sprintf("SELECT count(*) FROM entries WHERE token = %d AND n > (SELECT min(n) FROM entries WHERE token = %d)", first, second))
}

// freezeBetweenTransactions stops the processes while they hold no lock. A process that holds the mark would block its successor, until
// idle_in_transaction_session_timeout ends that.
func freezeBetweenTransactions(t *testing.T, db *postgres.Server, tree []int) {
	t.Helper()
	for {
		signalAll(t, tree, syscall.SIGSTOP)
		state, err := db.Psql("SELECT state FROM pg_stat_activity WHERE backend_type = 'client backend' AND pid <> pg_backend_pid()").Output()
		if err != nil {
			t.Fatal(err)
		}
		if strings.TrimSpace(string(state)) == "idle" {
			return
		}
		signalAll(t, tree, syscall.SIGCONT)
	}
}
