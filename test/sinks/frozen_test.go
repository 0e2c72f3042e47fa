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

	"github.com/jackc/pgx/v5/pgxpool"
	"golang.org/x/sys/unix"

	"github.com/singletonjob/operator/fence"
	"github.com/singletonjob/operator/fence/fencepgx"
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
	By          means
}

// means is with what a holder writes to its database.
type means string

const (
	byFencesql means = "" // and database/sql
	byFencepgx means = "pgx"
	byFenceSQL means = "fence.sql"
)

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
	advance, transactions, err := o.use(ctx, a)
	if err != nil {
		panic(err)
	}
	begins.End(a.repeat(func() error { return advance(ctx) }), nil)
	_ = out.Encode(begins)
	for i := range o.Writes {
		op := rivals.Begin(rivals.Write, o.Token, fmt.Sprintf("%d:%d", o.Token, i))
		op.End(o.write(ctx, a, transactions, i, op.Value))
		_ = out.Encode(op)
	}
}

// use prepares what the holder writes with. Only fencesql and fencepgx can evict; with fence.sql, the server must end who stalls.
func (o *order) use(ctx context.Context, a *adapter) (advance func(context.Context) error, transactions session, err error) {
	const evict = 100 * time.Millisecond
	if o.By == byFencepgx {
		pool, err := pgxpool.New(ctx, o.DSN)
		f := fencepgx.Fence{Resource: o.Resource, Evict: evict}
		return func(ctx context.Context) error { return f.Advance(ctx, pool, o.Token) }, func(ctx context.Context) (transaction, error) {
			tx, err := pool.Begin(ctx)
			return nativeTx{tx, byPgx{adapter: a, pool: pool}}, err
		}, err
	}
	transactions = func(ctx context.Context) (transaction, error) {
		tx, err := a.db.BeginTx(ctx, &sql.TxOptions{Isolation: a.level})
		return standardTx{tx, a, o.By == byFenceSQL}, err
	}
	if o.By == byFenceSQL {
		return func(ctx context.Context) error {
			_, err := a.db.ExecContext(ctx, "SELECT fence.advance($1, $2)", string(o.Resource), int64(o.Token))
			return err
		}, transactions, nil
	}
	f := a.fence(o.Resource)
	if o.Dialect == fencesql.PostgreSQL {
		f.Evict = evict
	}
	return func(ctx context.Context) error { return f.Advance(ctx, a.db, o.Token) }, transactions, nil
}

// write sets the register. It repeats transactions when the database requests that. It is frozen once.
func (o *order) write(ctx context.Context, a *adapter, begin session, i int, value string) (err, commit error) {
	reaches := func(s step) {
		if i == o.FrozenIn && s == o.FrozenAt {
			o.FrozenAt = ""
			freeze()
		}
	}
	_ = a.repeat(func() error {
		err, commit = o.transaction(ctx, begin, value, reaches)
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

func (o *order) transaction(ctx context.Context, begin session, value string, reaches func(step)) (err, commit error) {
	tx, err := begin(ctx)
	if err != nil {
		return err, nil
	}
	defer tx.rollback(ctx)
	if _, err := tx.read(ctx, "SELECT value FROM registers WHERE resource = ?", string(o.Resource)); err != nil {
		return err, nil
	}
	reaches(begun)
	if err := o.check(ctx, tx); err != nil {
		return err, nil
	}
	reaches(checked)
	if err := tx.exec(ctx, insertEntry, string(o.Resource), value); err != nil {
		return err, nil
	}
	if err := tx.exec(ctx, "UPDATE registers SET value = ? WHERE resource = ?", value, string(o.Resource)); err != nil {
		return err, nil
	}
	reaches(written)
	return nil, tx.commit(ctx)
}

func (o *order) check(ctx context.Context, tx transaction) error {
	if !o.Plain {
		return tx.check(ctx, o.Resource, o.Token)
	}
	text, err := tx.read(ctx, "SELECT token FROM fence_marks WHERE resource = ?", string(o.Resource))
	if err != nil {
		return err
	}
	mark, err := fence.ParseToken(text)
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
	if old.By == byFenceSQL {
		old.DSN += "&idle_in_transaction_session_timeout=5000"
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
					f.judge(at, k.dialect == fencesql.SQLite && at != begun)
				})
			}
		}
	}
}

// judge has a tenure freeze at a step, and compares what is stored and what the processes were told with what a fence allows.
func (f *frozen) judge(at step, blocks bool) {
	f.tenures(at, blocks)
	got, overtaken := f.payloads(), f.all[len(f.all)-2].Outcome == rivals.Stale
	if !blocks && (got != withoutTheStale || !overtaken) {
		f.Errorf("SAFETY: stored is %q, want %q, and the old tenure's last write refused", got, withoutTheStale)
	}
	if blocks && !(strings.HasPrefix(got, "33:0 33:1 33:2 ") && strings.HasSuffix(got, " 34:0 34:1 34:2")) {
		f.Errorf("SAFETY: stored is %q, want the old tenure's writes before the next one's", got)
	}
	if !rivals.Linearizable(f.all) {
		f.Error("SAFETY: no fenced register has this history")
	}
	if f.Failed() {
		f.Logf("%+v", f.all)
	}
}

// TestAFrozenProcessWithoutFencesql: the same with pgx, and with the functions that programs in any language call.
func TestAFrozenProcessWithoutFencesql(t *testing.T) {
	for _, by := range []means{byFencepgx, byFenceSQL} {
		for _, at := range []step{begun, checked, written} {
			t.Run(fmt.Sprint(by, "/", at), func(t *testing.T) {
				t.Parallel()
				f := newFrozen(t, kinds[0], sql.LevelReadCommitted)
				f.order.By = by
				f.installScript()
				f.judge(at, false)
			})
		}
	}
}

func (f *frozen) installScript() {
	f.Helper()
	making.Lock()
	defer making.Unlock()
	_, err := f.db.ExecContext(f.ctx, fencesql.Script)
	must(f.T, err)
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
