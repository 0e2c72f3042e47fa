package sinks

import (
	"bytes"
	"context"
	"database/sql"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"runtime"
	"strings"
	"syscall"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/singletonjob/operator/fence"
	"github.com/singletonjob/operator/fence/fencesql"
	"github.com/singletonjob/operator/test/rivals"
	"github.com/singletonjob/operator/test/subprocess"
)

// roleEnv makes this test binary another program than the tests.
const (
	roleEnv  = "SINKS_TEST_ROLE"
	orderEnv = "SINKS_TEST_ORDER"
)

var roles = map[string]func(){"holder": holder, "sqlite": serveSQLite}

// order is what a holder is to do: a process that writes to a register, and is frozen once in the middle of a transaction.
type order struct {
	Driver, DSN string
	Dialect     fencesql.Dialect
	Level       sql.IsolationLevel
	Resource    fence.Resource
	Token       fence.Token
	Writes      int
	FrozenIn    int  // this write
	FrozenAt    step // before it continues from here
	Plain       bool // looks at the mark with a plain SELECT
}

// step is how far a transaction has come.
type step string

const (
	begun   step = "begun"   // and it has read
	checked step = "checked" // it holds the mark
	written step = "written" // and is to be committed
)

// holder prints its operations.
func holder() {
	var o order
	if err := json.Unmarshal([]byte(os.Getenv(orderEnv)), &o); err != nil {
		panic(err)
	}
	db, err := sql.Open(o.Driver, o.DSN)
	if err != nil {
		panic(err)
	}
	ctx, out := context.Background(), json.NewEncoder(os.Stdout)
	a := &adapter{db: db, dialect: o.Dialect, level: o.Level}
	begins := rivals.Begin(rivals.Advance, o.Token, "")
	f := a.fence(o.Resource)
	if o.Dialect == fencesql.PostgreSQL {
		f.Evict = 100 * time.Millisecond
	}
	begins.End(a.repeat(func() error { return f.Advance(ctx, db, o.Token) }), nil)
	_ = out.Encode(begins)
	for i := range o.Writes {
		op := rivals.Begin(rivals.Write, o.Token, fmt.Sprintf("%d:%d", o.Token, i))
		op.End(o.write(ctx, a, i, op.Value))
		_ = out.Encode(op)
	}
}

// write sets the register. It repeats transactions when the database requests that. It is frozen once.
func (o *order) write(ctx context.Context, a *adapter, i int, value string) (err, commit error) {
	reaches := func(s step) {
		if i == o.FrozenIn && s == o.FrozenAt {
			o.FrozenAt = ""
			freeze()
		}
	}
	_ = a.repeat(func() error {
		err, commit = o.transaction(ctx, a, value, reaches)
		return errors.Join(err, commit)
	})
	return err, commit
}

// freeze stops this process, all of its threads. The signal is sent to the calling thread: with another thread, this one would
// run until that one stops.
func freeze() {
	runtime.LockOSThread()
	defer runtime.UnlockOSThread()
	if err := unix.Tgkill(os.Getpid(), unix.Gettid(), unix.SIGSTOP); err != nil {
		panic(err)
	}
}

func (o *order) transaction(ctx context.Context, a *adapter, value string, reaches func(step)) (err, commit error) {
	tx, err := a.db.BeginTx(ctx, &sql.TxOptions{Isolation: a.level})
	if err != nil {
		return err, nil
	}
	defer func() { _ = tx.Rollback() }()
	var before string
	if err := tx.QueryRowContext(ctx, a.sql("SELECT value FROM registers WHERE resource = ?"), string(o.Resource)).Scan(&before); err != nil {
		return err, nil
	}
	reaches(begun)
	if err := o.check(ctx, a, tx); err != nil {
		return err, nil
	}
	reaches(checked)
	if err := a.append(ctx, tx, o.Resource, value); err != nil {
		return err, nil
	}
	if _, err := tx.ExecContext(ctx, a.sql("UPDATE registers SET value = ? WHERE resource = ?"), value, string(o.Resource)); err != nil {
		return err, nil
	}
	reaches(written)
	return nil, tx.Commit()
}

func (o *order) check(ctx context.Context, a *adapter, tx *sql.Tx) error {
	if !o.Plain {
		return a.fence(o.Resource).Check(ctx, tx, o.Token)
	}
	var mark fence.Token
	err := tx.QueryRowContext(ctx, a.sql("SELECT token FROM fence_marks WHERE resource = ?"), string(o.Resource)).Scan(&mark)
	if err == nil {
		_, err = fence.Gate{Resource: o.Resource}.Accept(mark, o.Token)
	}
	return err
}

// life is a holder's process.
type life struct {
	t       *testing.T
	process *subprocess.Process
	out     bytes.Buffer
}

func begin(t *testing.T, o order) *life {
	t.Helper()
	self, err := os.Executable()
	must(t, err)
	text, err := json.Marshal(o)
	must(t, err)
	l := &life{t: t}
	cmd := exec.Command(self)
	cmd.Env = append(os.Environ(), roleEnv+"=holder", orderEnv+"="+string(text))
	cmd.Stdout, cmd.Stderr = &l.out, os.Stderr
	l.process, err = subprocess.Start(cmd)
	must(t, err)
	t.Cleanup(func() { l.process.Stop(0) })
	return l
}

// frozen waits until the process has stopped.
func (l *life) frozen(ctx context.Context) {
	l.t.Helper()
	for {
		text, err := os.ReadFile(fmt.Sprintf("/proc/%d/stat", l.process.Pid()))
		must(l.t, err)
		if _, state, _ := strings.Cut(string(text), ") "); strings.HasPrefix(state, "T") {
			return
		}
		select {
		case <-time.After(5 * time.Millisecond):
		case <-l.process.Done():
			l.t.Fatalf("the holder has ended, and was not frozen: %s", &l.out)
		case <-ctx.Done():
			l.t.Fatal("the holder was not frozen")
		}
	}
}

func (l *life) thaw() { must(l.t, l.process.Signal(syscall.SIGCONT)) }

// ends waits for the process, and returns what it did.
func (l *life) ends(ctx context.Context) (all []rivals.Operation) {
	l.t.Helper()
	select {
	case <-l.process.Done():
	case <-ctx.Done():
		l.t.Fatal("the holder does not end")
	}
	must(l.t, l.process.Err())
	for from := json.NewDecoder(&l.out); ; {
		var op rivals.Operation
		if err := from.Decode(&op); errors.Is(err, io.EOF) {
			return all
		} else if err != nil {
			l.t.Fatal(err)
		}
		all = append(all, op)
	}
}

// frozen is a register, and what was done to it.
type frozen struct {
	*testing.T
	*adapter
	order order
	ctx   context.Context
	all   []rivals.Operation
}

func newFrozen(t *testing.T, k kind, level sql.IsolationLevel) *frozen {
	t.Helper()
	driver, dsn := k.address(t)
	f := &frozen{T: t, ctx: patience(t), adapter: &adapter{db: connect(t, driver, dsn), dialect: k.dialect, level: level}}
	f.order = order{Driver: driver, DSN: dsn, Dialect: k.dialect, Level: level, Resource: fresh()}
	f.makeTables(t)
	making.Lock()
	defer making.Unlock()
	for _, text := range []string{
		"CREATE TABLE IF NOT EXISTS registers (resource VARCHAR(200) PRIMARY KEY, value VARCHAR(200))",
		"INSERT INTO registers VALUES ('" + string(f.order.Resource) + "', '')",
	} {
		_, err := f.db.ExecContext(f.ctx, text)
		must(t, err)
	}
	return f
}

func (f *frozen) read() {
	op := rivals.Begin(rivals.Read, 0, "")
	row := f.db.QueryRowContext(f.ctx, f.sql("SELECT value FROM registers WHERE resource = ?"), string(f.order.Resource))
	must(f.T, row.Scan(&op.Value))
	op.End(nil, nil)
	f.all = append(f.all, op)
}

// tenures has the old tenure's process freeze in its third write, and the next one's take over.
func (f *frozen) tenures(at step, blocks bool) {
	old, present := f.order, f.order
	old.Token, old.Writes, old.FrozenIn, old.FrozenAt = 33, 5, 2, at
	if old.Dialect == fencesql.MySQL {
		old.DSN += "?idle_transaction_timeout=5" // s: the server's own way to end who stalls; more than a busy machine does between two statements
	}
	present.Token, present.Writes, present.Plain = 34, 3, false
	first := begin(f.T, old)
	first.frozen(f.ctx)
	f.read()
	second := begin(f.T, present)
	if blocks { // nobody can write before the old one continues; let the present one have tried, if it can
		time.Sleep(200 * time.Millisecond)
		first.thaw()
	}
	f.all = append(f.all, second.ends(f.ctx)...)
	f.read()
	first.thaw()
	f.all = append(f.all, first.ends(f.ctx)...)
	f.read()
}

func (f *frozen) payloads() string {
	all, err := f.Stored(f.ctx, f.order.Resource)
	must(f.T, err)
	return strings.Join(all, " ")
}

const (
	withoutTheStale = "33:0 33:1 34:0 34:1 34:2"
	committedAfter  = "33:0 33:1 34:0 34:1 34:2 33:2"
)

// TestAFrozenProcess: a process is stopped in the middle of a transaction, loses its tenure, and continues when the next one has
// written. The database is as if it had not continued.
func TestAFrozenProcess(t *testing.T) {
	for _, k := range kinds {
		for _, level := range k.levels {
			for _, at := range []step{begun, checked, written} {
				t.Run(fmt.Sprint(k.name, "/", level, "/", at), func(t *testing.T) {
					t.Parallel()
					f := newFrozen(t, k, level)
					// SQLite has one writer at a time, and no way to end it: who is frozen in a write holds all up, and is not overtaken.
					blocks := k.dialect == fencesql.SQLite && at != begun
					f.tenures(at, blocks)
					got, overtaken := f.payloads(), f.all[len(f.all)-2].Outcome == rivals.Stale
					if !blocks && (got != withoutTheStale || !overtaken) {
						t.Errorf("SAFETY: stored is %q, want %q, and the old tenure's last write refused", got, withoutTheStale)
					}
					if blocks && !(strings.HasPrefix(got, "33:0 33:1 33:2 ") && strings.HasSuffix(got, " 34:0 34:1 34:2")) {
						t.Errorf("SAFETY: stored is %q, want the old tenure's writes before the next one's", got)
					}
					if !rivals.Linearizable(f.all) {
						t.Error("SAFETY: no fenced register has this history")
					}
					if t.Failed() {
						t.Logf("%+v", f.all)
					}
				})
			}
		}
	}
}

// TestAFrozenProcessPassesAPlainSelect: what the tests above would see if the fence were one.
func TestAFrozenProcessPassesAPlainSelect(t *testing.T) {
	for _, level := range everyLevel {
		t.Run(level.String(), func(t *testing.T) {
			t.Parallel()
			f := newFrozen(t, kinds[0], level)
			f.order.Plain = true
			f.tenures(checked, false)
			stale := f.payloads() == committedAfter
			if level == sql.LevelReadCommitted && !stale {
				t.Errorf("stored is %q, want %q", f.payloads(), committedAfter)
			}
			if rivals.Linearizable(f.all) == stale {
				t.Errorf("a stale write was stored: %t, and the history is taken for the opposite: %+v", stale, f.all)
			}
		})
	}
}
