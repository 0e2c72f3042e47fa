//go:build linux

package samples

import (
	"context"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"
)

func eventually(t *testing.T, what string, is func() bool) {
	t.Helper()
	for deadline := time.Now().Add(patience); !is(); time.Sleep(10 * time.Millisecond) {
		if time.Now().After(deadline) {
			t.Fatalf("no %s", what)
		}
	}
}

// TestTwoBots: two at a time, without SingletonJob, tell each other to go, and one that ends in order leaves nothing to be answered twice.
func TestTwoBots(t *testing.T) {
	t.Parallel()
	api := NewTelegram(t)
	env := []string{"API_URL=" + api.URL, "BOT_TOKEN=" + Token}
	bot := func() *program { return start(t, "", env, "/usr/bin/python3", Dir+"/bot/bot.py") }
	answered := func(n int) func() bool { return func() bool { return api.Counts().Answered == n } }

	first := bot()
	api.Say()
	eventually(t, "answer", answered(1))
	_ = first.Process.Signal(syscall.SIGTERM)
	first.awaitEnd(t)

	bot()
	api.Say()
	eventually(t, "answer of the next", answered(2))
	if c := api.Counts(); c.Conflicts != 0 {
		t.Errorf("of one after the other: %+v", c)
	}
	bot()
	eventually(t, "conflict of two", func() bool { return api.Counts().Conflicts > 0 })
}

// TestTwoExporters: two at a time, without SingletonJob, spend the quota twice.
func TestTwoExporters(t *testing.T) {
	t.Parallel()
	api := NewCosts(t)
	for range 2 {
		start(t, "", []string{"API_URL=" + api.URL, "INTERVAL=0.2", "LISTEN=127.0.0.1:0"}, "/usr/bin/python3", Dir+"/exporter/exporter.py")
	}
	eventually(t, "call beside another caller", func() bool { return api.Calls().Returned > 0 })
}

// TestTwoRelays: two with one token, as without SingletonJob, store events twice. One of a past tenure stores nothing more.
func TestTwoRelays(t *testing.T) {
	t.Parallel()
	o := NewOutbox(t)
	relay := func(token string) *program {
		env := []string{"SOURCE_URL=" + o.Source, "TARGET_URL=" + o.Target, "FENCING_TOKEN=" + token}
		return start(t, "", env, python3(t), Dir+"/outbox/relay.py")
	}
	stop := o.Write()
	defer stop()
	first, second := relay("1"), relay("1")
	eventually(t, "event that is stored twice", func() bool { return o.Delivered().Extra > 0 })
	relay("2")
	for _, p := range []*program{first, second} {
		p.awaitEnd(t)
		if said := p.output.String(); said != "token 1 is of a past tenure\n" {
			t.Errorf("a relay of a past tenure says %q", said)
		}
	}
	extra := o.Delivered().Extra
	stop()
	eventually(t, "end of what is missing", func() bool { return len(o.Missing()) == 0 })
	if d := o.Delivered(); d.Extra != extra {
		t.Errorf("SAFETY: with one relay: %+v, and %d before it", d, extra)
	}
}

// TestTwoBeats: two with one token, as without SingletonJob, have more done than is due. One of a past tenure notes nothing more.
func TestTwoBeats(t *testing.T) {
	t.Parallel()
	l := NewLedger(t)
	first, second := l.celery("9", "beat", "--pidfile="), l.celery("9", "beat", "--pidfile=")
	eventually(t, "runs that are too close to each other", func() bool { return l.Runs().Close > 0 })
	l.celery("10", "beat", "--pidfile=")
	for _, p := range []*program{first, second} {
		p.awaitEnd(t)
		if said := p.output.String(); !strings.Contains(said, "token 9 is of a past tenure") {
			t.Errorf("a beat of a past tenure says %q", said)
		}
	}
	eventually(t, "end of what they have sent", func() bool { return !l.Queued() })
	// A worker takes four from the queue before it does them, in their order. So what they have sent is done before the fifth from here on.
	ended := l.Runs()
	eventually(t, "end of what was under way", func() bool { return l.Runs().Done > ended.Done+4 })
	before := l.Runs()
	eventually(t, "further runs", func() bool { return l.Runs().Done > before.Done+2 })
	if r := l.Runs(); r.Close != before.Close {
		t.Errorf("with one beat: %+v, and %+v before it", r, before)
	}
}

// TestTwoSigners: two at a time, without SingletonJob, sign a height twice. A signer in watch mode detects that another one signs.
func TestTwoSigners(t *testing.T) {
	t.Parallel()
	chain := NewChain(t)
	signer := func(args ...string) *program {
		args = append([]string{Dir + "/signer/signer.py"}, args...)
		return start(t, "", []string{"CHAIN_URL=" + chain.URL, "KEY=key"}, "/usr/bin/python3", args...)
	}
	alone := signer("watch")
	alone.awaitEnd(t)
	if said := alone.output.String(); said != "" || !alone.ProcessState.Success() {
		t.Errorf("the watching signer says %q while no other signs: %v", said, alone.ProcessState)
	}
	signer()
	eventually(t, "signatures", func() bool { return chain.Heights().Signed > 1 })
	eventually(t, "signer that the watching one detects", func() bool { // one that gets no CPU misses heights
		second := signer("watch")
		second.awaitEnd(t)
		return strings.HasSuffix(second.output.String(), "is signed by another with this key\n") && !second.ProcessState.Success()
	})
	if h := chain.Heights(); h.Double > 0 {
		t.Errorf("with one signer: %+v", h)
	}
	signer()
	eventually(t, "height that is signed twice", func() bool { return chain.Heights().Double > 0 })
}

// past waits for the end of programs of a past tenure, and compares the last line that they say.
func past(t *testing.T, said string, programs ...*program) {
	t.Helper()
	for _, p := range programs {
		p.awaitEnd(t)
		if got := p.output.String(); !strings.HasSuffix(got, said+"\n") {
			t.Errorf("one of a past tenure says %q, want %q at the end", got, said)
		}
	}
}

// TestTwoSchedulers: two with one token, as without SingletonJob, bill twice. One of a past tenure bills nothing more, and the next one
// leaves no tick out.
func TestTwoSchedulers(t *testing.T) {
	t.Parallel()
	api := NewBills(t)
	scheduler := func(token string) *program {
		return start(t, "", []string{"API_URL=" + api.URL, "FENCING_TOKEN=" + token}, python3(t), Dir+"/scheduler/scheduler.py")
	}
	count := func() Sum { return Count(api.Events()) }
	first, second := scheduler("9"), scheduler("9")
	eventually(t, "tick that is billed twice", func() bool { return count().Twice > 0 })
	scheduler("10")
	past(t, "this token is of a past tenure", first, second)
	before := count()
	eventually(t, "further ticks", func() bool { return count().Done > before.Done+1 })
	if c := count(); c.Twice != before.Twice || c.Lost != 0 {
		t.Errorf("SAFETY: with one scheduler: %+v, and %+v before it", c, before)
	}
}

// TestTwoCollectors: two with one token, as without SingletonJob, store readings twice, although one file has them all. One of a past tenure
// stores nothing more.
func TestTwoCollectors(t *testing.T) {
	t.Parallel()
	meter := NewMeter(t, t.TempDir()+"/readings.db", 50*time.Millisecond)
	collector := func(token string) *program {
		env := []string{"METER_URL=" + meter.URL, "DATABASE=" + meter.File, "FENCING_TOKEN=" + token}
		return start(t, "", env, "/usr/bin/python3", Dir+"/sqlite/collector.py")
	}
	works := func() func() bool {
		last := meter.Last()
		return func() bool { return meter.Last().After(last) }
	}
	first := collector("9")
	eventually(t, "collector that works", works())
	second := collector("9")
	eventually(t, "reading that is stored twice", func() bool { return Count(meter.Events()).Twice > 0 })
	collector("10")
	past(t, "token 9 is of a past tenure", first, second)
	before := Count(meter.Events())
	eventually(t, "collector that works alone", works())
	if c := Count(meter.Events()); c.Twice != before.Twice || c.Lost != 0 {
		t.Errorf("SAFETY: with one collector: %+v, and %+v before it", c, before)
	}
}

// meet has programs start while no step can be stored, and waits until so many of them wait for that, or for each other.
func meet(t *testing.T, address string, waiting int, start func()) {
	t.Helper()
	ask(t, address, func(ctx context.Context, db *pgx.Conn) error {
		return pgx.BeginFunc(ctx, db, func(tx pgx.Tx) error {
			if _, err := tx.Exec(ctx, "LOCK TABLE steps IN SHARE MODE"); err != nil {
				return err
			}
			start()
			eventually(t, "meeting", func() bool {
				var n int
				one(t, address, "SELECT count(*) FROM pg_stat_activity WHERE datname = current_database() AND wait_event_type = 'Lock'", &n)
				return n == waiting
			})
			return nil
		})
	})
}

// TestTwoMigrations: two with one token, as in Pods of one Job, do steps twice. One of a past attempt does no step more, and the next one does
// those that are left.
func TestTwoMigrations(t *testing.T) {
	t.Parallel()
	address := NewDatabases(t).New("migrated", "migration/schema.sql")
	migrate := func(token, steps string) *program {
		env := []string{"DATABASE_URL=" + address, "SINGLETONJOB_NAME=m", "STEPS=" + steps, "FENCING_TOKEN=" + token}
		return start(t, "", env, python3(t), Dir+"/migration/migrate.py")
	}
	count := func() Sum { return Count(Steps(t, address, "m"), []string{"1", "2", "3", "4"}) }
	var first, second *program
	meet(t, address, 2, func() { first, second = migrate("9", "1000"), migrate("9", "1000") })
	eventually(t, "step that is done twice", func() bool { return count().Twice > 0 })
	third := migrate("10", "4")
	past(t, "token 9 is of a past tenure", first, second)
	before := count()
	third.awaitEnd(t)
	if c := count(); c.Lost != 0 || c.Twice != before.Twice || !third.ProcessState.Success() {
		t.Errorf("SAFETY: with one migration: %+v, and %+v before it", c, before)
	}
}

// TestTwoBookings: two with one token, as in Pods of one Job, book a tick twice. After an attempt that has booked it, the next books nothing,
// and one of a past attempt neither.
func TestTwoBookings(t *testing.T) {
	t.Parallel()
	address := NewDatabases(t).New("booked", "nightly/schema.sql")
	book := func(tick, token string) *program {
		env := []string{"DATABASE_URL=" + address, "SINGLETONJOB_TICK=" + tick, "WORK=1", "FENCING_TOKEN=" + token}
		return start(t, "", env, python3(t), Dir+"/nightly/book.py")
	}
	tick := ""
	eventually(t, "tick that is booked twice", func() bool { // one that gets no CPU for a second finds the other one's row
		tick += "a"
		first, second := book(tick, "9"), book(tick, "9")
		first.awaitEnd(t)
		second.awaitEnd(t)
		return Count(Booked(t, address), nil).Twice > 0
	})
	past(t, tick+" is booked already", book(tick, "10"))
	past(t, "token 9 is of a past tenure", book("b", "9"))
	book("b", "10").awaitEnd(t)
	if c := Count(Booked(t, address), []string{tick, "b"}); c.Twice != 1 || c.Lost != 0 {
		t.Errorf("SAFETY: with one attempt at a time: %+v", c)
	}
}
