package lease

import (
	"math"
	"math/rand/v2"
	"reflect"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/singletonjob/operator/internal/schedule"
)

// FuzzStep feeds any events, true and false ones, and asks of every step what must hold in every state.
func FuzzStep(f *testing.F) {
	f.Add([]byte{0, 1, 1, 2, 20, 4, 60, 9, 80, 120, 5, 14, 15})
	f.Add([]byte("a tenure, a loss, another tenure, and so on until the bytes are used up"))
	rng := rand.NewChaCha8([32]byte{2})
	for mode := range byte(16) { // each with a life long enough to meet every phase
		mode = mode%8 | mode/8*runsMode
		life := make([]byte, 500)
		_, _ = rng.Read(life)
		life[0] = mode
		f.Add(life)
	}
	f.Fuzz(anyLife)
}

// TestStepUnderAnyEvents is FuzzStep with bytes of its own, for every test run.
func TestStepUnderAnyEvents(t *testing.T) {
	rng := rand.NewChaCha8([32]byte{1})
	phases := map[Phase]int{}
	for range 2000 {
		in := make([]byte, 500)
		_, _ = rng.Read(in)
		for phase, n := range anyLives(t, in) {
			phases[phase] += n
		}
	}
	for phase := Waiting; phase <= Stopping; phase++ {
		if phases[phase] < 1000 {
			t.Errorf("only %d steps in phase %v", phases[phase], phase)
		}
	}
}

// runsMode is a life of runs that end, unhurriedMode one with a long retryPeriod.
const runsMode, unhurriedMode = 64, 128

func anyLife(t *testing.T, in []byte) { anyLives(t, in) }

// anyLives has an agent live through what the bytes say, and another in its place if it exits. It counts steps.
func anyLives(t *testing.T, in []byte) map[Phase]int {
	t.Helper()
	b := &bytes{in: in}
	phases := map[Phase]int{}
	for len(b.in) > 0 {
		c := testConfig()
		mode := b.next()
		c.KeepRunning, c.EndProvesDeath = mode&1 != 0, mode&2 != 0
		if mode&4 != 0 && !c.KeepRunning {
			c.LockDelay = 3 * time.Second
		}
		if mode&unhurriedMode != 0 {
			c.Duration, c.RenewDeadline, c.RetryPeriod = lasting().Duration, lasting().RenewDeadline, lasting().RetryPeriod
		}
		if mode&runsMode != 0 {
			c.KeepRunning, c.Runs = false, &RunPolicy{UID: "job", BackoffLimit: int32(mode & 1), ActiveDeadline: time.Minute * time.Duration(mode/2&1), IgnoreCodes: []int32{1}}
		}
		d := drive(c)
		for len(b.in) > 0 && !d.s.Done {
			d.now = d.now.Add(b.pause(d))
			b.now = int64(d.now / second)
			checkedStep(t, d, b.event(d.s))
			phases[d.s.Phase]++
		}
		if mode&56 == 0 {
			unanswered(t, d)
		}
	}
	return phases
}

// checkedStep steps and checks.
func checkedStep(t *testing.T, d *driver, e Event) {
	t.Helper()
	before := d.s
	d.step(e)
	after := d.s
	if after.Wake <= d.now {
		t.Fatalf("wake %v ago after %T", d.now.Sub(after.Wake), e)
	}
	writes := 0
	for _, action := range d.actions {
		if w, ok := action.(SendWrite); ok {
			writes++
			checkLine(t, d, before, e, w.Attempt)
			checkWrite(t, d, before, w.Attempt)
			checkEvidence(t, d, w.Attempt)
			checkRun(t, d, w.Attempt)
		}
		checkProcess(t, d, before, action)
	}
	if writes > 1 {
		t.Fatalf("%d writes in one step", writes)
	}
	if len(after.Unsettled) > maxUnsettled || len(after.Overdue) > maxUnsettled {
		t.Fatalf("%d replies are remembered as lost", len(after.Unsettled))
	}
	if after.Tree.Alive && after.Phase != Holding && after.Phase != Stopping {
		t.Fatalf("processes live in phase %v", after.Phase)
	}
	checkTwice(t, d, e)
}

// checkTwice is for a decision that is made again at the same time: nothing changes.
func checkTwice(t *testing.T, d *driver, e Event) {
	t.Helper()
	after := d.s
	again, actions := Step(d.c, after, Time{Boot: d.now, Wall: int64(d.now / 1000)}, Ticked{})
	if again.Wake > after.Wake { // a deadline that the first decision has made void
		again.Wake = after.Wake
	}
	if len(actions) > 0 || !reflect.DeepEqual(after, again) {
		t.Fatalf("deciding twice after %T does %v and changes\n%s", e, actions, cmp.Diff(after, again, cmp.Exporter(func(reflect.Type) bool { return true })))
	}
}

// checkEvidence is for what frees the Lease of another agent of the same pod: its lease has run out, or it is proven to be dead.
func checkEvidence(t *testing.T, d *driver, w Attempt) {
	t.Helper()
	seen, proof := d.s.Observed, d.s.Death
	if id, ok := ParseIdentity(seen.Record.Holder); w.Kind != Acquire || !ok || id == me || id.Pod != me.Pod || id.PodUID != me.PodUID {
		return
	}
	if d.now < seen.At.Add(d.c.Duration) && !(d.c.EndProvesDeath && proof.Proven && proof.Holder == seen.Record.Holder && d.now >= proof.From) {
		t.Fatalf("SAFETY: takes the Lease of %s %v after it was seen, and what is known of its death is %+v", seen.Record.Holder, d.now.Sub(seen.At), proof)
	}
}

// checkProcess is for what is done to the process.
func checkProcess(t *testing.T, d *driver, before State, action Action) {
	t.Helper()
	switch a := action.(type) {
	case StartChild:
		if before.Tree.Alive {
			t.Fatal("started while processes live")
		}
		if a.Deadline < d.now || a.Deadline > d.now.Add(d.c.Duration) {
			t.Fatalf("started with %v to live", a.Deadline.Sub(d.now))
		}
	case ExtendLeash:
		if a.Deadline != d.s.Deadline(d.c) || !d.s.Tree.Alive {
			t.Fatalf("leash %d, deadline %d, tree %+v", a.Deadline, d.s.Deadline(d.c), d.s.Tree)
		}
	case KillTree, SignalChild:
		if !d.s.Tree.Alive {
			t.Fatalf("%T without processes", a)
		}
	}
}

// checkLine is for the one write at a time. A holder that begins to stop does not wait any longer.
func checkLine(t *testing.T, d *driver, before State, e Event, w Attempt) {
	t.Helper()
	if before.Write == nil || d.now >= before.Write.Patience || before.Phase == Holding && d.s.Phase == Stopping && d.now >= before.Write.Again {
		return
	}
	if done, ok := e.(WriteDone); !ok || done.Nonce != before.Write.Nonce {
		t.Fatalf("%v sent while %v is under way", w.Kind, before.Write.Kind)
	}
}

// checkWrite is for a write and what is remembered of it.
func checkWrite(t *testing.T, d *driver, before State, w Attempt) {
	t.Helper()
	if d.s.Write == nil || d.s.Write.Nonce != w.Nonce || w.Nonce <= before.LastNonce {
		t.Fatalf("sent %+v, remembers %+v", w, d.s.Write)
	}
	was := d.s.Observed.Record
	if w.Record.Revision != was.Revision || w.Record.UID != was.UID || d.s.Observed.Absent {
		t.Fatalf("%v replaces revision %d of %q, known is %d of %q", w.Kind, w.Record.Revision, w.Record.UID, was.Revision, was.UID)
	}
	if w.Patience <= d.now || w.Deadline < w.Patience {
		t.Fatalf("%v sent with %v to answer, waited for %v", w.Kind, w.Deadline.Sub(d.now), w.Patience.Sub(d.now))
	}
	if living := d.s.Tree.Alive; living != (w.Kind == Renew) {
		t.Fatalf("%v sent, processes live: %v", w.Kind, living)
	}
	checkRecord(t, d, w)
}

// checkRun is for what a write says of runs.
func checkRun(t *testing.T, d *driver, w Attempt) {
	t.Helper()
	was, is := d.s.Observed.Record.Runs, w.Record.Runs
	switch {
	case d.c.Runs == nil || w.Kind == Renew || w.Kind == Confirm || was.Bad != "":
		diff := cmp.Diff(was, is, cmp.Comparer(sameSchedule))
		if diff != "" || w.Kind == Acquire && d.c.Runs != nil {
			t.Fatalf("%v changes what was run:\n%s", w.Kind, diff)
		}
	case is.Facts.Settled < was.Facts.Settled:
		t.Fatalf("%v settles %d after %d", w.Kind, is.Facts.Settled, was.Facts.Settled)
	case !follows(w.Kind, was.Now, is.Now):
		t.Fatalf("%v says %+v after %+v", w.Kind, is.Now, was.Now)
	}
}

// follows reports whether a run may stand in a Lease after another.
func follows(k Kind, was, is Run) bool {
	same := is.ID == was.ID
	switch {
	case k == Acquire && same:
		return was.Open() && is.State == RunRunning && (is.Attempt == was.Attempt || is.Attempt == was.Attempt+1)
	case k == Acquire:
		return is.State == RunRunning && is.Attempt == 1
	case k == Close:
		return same && was.Open() && is.State == RunGivenUp
	default:
		return same && is.State != RunRunning && (was.Open() || is == was)
	}
}

func sameSchedule(a, b *schedule.Schedule) bool { return a == b }

// checkRecord is for what a write stores.
func checkRecord(t *testing.T, d *driver, w Attempt) {
	t.Helper()
	was := d.s.Observed.Record
	switch {
	case w.Kind == ReleaseLease, w.Kind == Close:
		if !w.Record.Free() || w.Record.Token != was.Token {
			t.Fatalf("%v frees nothing: %+v", w.Kind, w.Record)
		}
	case w.Record.Holder != d.c.Identity.String():
		t.Fatalf("%v makes %q the holder", w.Kind, w.Record.Holder)
	case w.Kind == Acquire:
		if w.Record.Token <= was.Token {
			t.Fatalf("acquires token %d after %d", w.Record.Token, was.Token)
		}
	case w.Record.Token != was.Token:
		t.Fatalf("%v makes token %d of %d", w.Kind, w.Record.Token, was.Token)
	}
}

// unanswered has nothing answer for a while: the machine must neither spin nor sleep forever, unless only an event can help.
func unanswered(t *testing.T, d *driver) {
	t.Helper()
	const long = 2 * time.Minute
	end := d.now.Add(long)
	for steps := 0; !d.s.Done && d.s.Wake < end; steps++ {
		if steps > int(long/time.Second)*20 {
			t.Fatalf("%d steps in %v; state %+v", steps, long, d.s)
		}
		d.now = d.s.Wake
		checkedStep(t, d, Ticked{})
	}
	waitsForDeath := d.s.Tree.Alive && d.s.Stop.Killed || d.c.Runs != nil // or for something to run
	if !d.s.Done && d.s.Wake == Never && !waitsForDeath {
		t.Fatalf("nothing will ever happen in state %+v", d.s)
	}
}

// bytes are a fuzzer's choices.
type bytes struct {
	in []byte
	// now is the time, in seconds.
	now int64
}

func (b *bytes) next() byte {
	if len(b.in) == 0 {
		return 0
	}
	first := b.in[0]
	b.in = b.in[1:]
	return first
}

// pause is often none, or just as long as the machine wants.
func (b *bytes) pause(d *driver) time.Duration {
	switch x := b.next(); {
	case x < 64:
		return 0
	case x < 128 && d.s.Wake != Never && d.s.Wake > d.now:
		return d.s.Wake.Sub(d.now)
	default:
		return time.Duration(x-128) * time.Duration(x-128) * 10 * time.Millisecond
	}
}

func (b *bytes) event(s State) Event {
	switch b.next() % 20 {
	default:
		return b.honest(s)
	case 0:
		return Ticked{}
	case 1:
		return WatchOpened{}
	case 2:
		return WatchClosed{}
	case 3, 4:
		return Watched{Record: b.record(s), Deleted: b.next()%8 == 0}
	case 5, 6:
		return b.readDone(s)
	case 7, 8, 9:
		return b.writeDone(s)
	case 10:
		if b.next()%2 == 0 {
			return TreeGone{}
		}
		return ChildExited{Code: int(b.next()), Crashed: b.next()%2 == 0}
	case 11:
		return b.rare(s)
	}
}

// rare is an event that most agents meet seldom or never, or none.
func (b *bytes) rare(s State) Event {
	switch b.next() % 16 {
	case 0:
		return Terminated{Signal: 15}
	case 1:
		return Starved{Late: time.Duration(int8(b.next())) * 100 * time.Millisecond}
	case 5:
		return GraceEnds{At: (Instant(b.now) * second).Add(time.Duration(int8(b.next())) * 100 * time.Millisecond)}
	case 3, 4:
		return DeathSought{Holder: s.Observed.Record.Holder, Dead: b.next()%2 == 0}
	case 2:
		return Unhealthy{Reason: ReasonLivenessFailed, Grace: time.Duration(int8(b.next())) * 100 * time.Millisecond}
	}
	return nil
}

func (b *bytes) readDone(s State) Event {
	e := ReadDone{ID: s.LastRead - int64(b.next()%8/7)}
	switch b.next() % 8 {
	case 0:
	case 1:
		e.Absent = true
	default:
		r := b.record(s)
		e.Found = &r
	}
	if x := b.next(); x%4 != 0 {
		e.Date = b.now + int64(x%8/7)*int64(int8(x))
	}
	return e
}

func (b *bytes) writeDone(s State) Event {
	e := WriteDone{Nonce: s.LastNonce - int64(b.next()%8/7), Outcome: Outcome(b.next() % 7)}
	if b.next()%8 > 0 && s.Write != nil {
		r := s.Write.Record
		r.Revision += int64(b.next() % 4)
		e.Record = &r
	}
	return e
}

// honest is what a server that works would say next.
func (b *bytes) honest(s State) Event {
	r := s.Observed.Record
	switch {
	case s.Tree.Alive && s.Stop.Killed:
		return TreeGone{}
	case s.Write != nil:
		w := s.Write.Record
		w.Revision++
		return WriteDone{Nonce: s.Write.Nonce, Outcome: Confirmed, Record: &w}
	case s.Read != nil && s.Observed.Known && !s.Observed.Absent:
		return ReadDone{ID: s.Read.ID, Found: &r, Date: b.now}
	case s.Phase == Waiting:
		r.Revision++
		return Watched{Record: r.Released(Release{Reason: ReasonNodeLost}, 1, 1)}
	default:
		return Ticked{}
	}
}

// record is what was seen, or what was written, changed in any way.
func (b *bytes) record(s State) Record {
	r := s.Observed.Record
	if x := b.next(); x%4 == 0 && s.Write != nil {
		r = s.Write.Record
	} else if x%4 == 1 && s.Pending != nil {
		r = s.Pending.Record
	}
	if r.UID == "" {
		r.UID = "lease"
	}
	r.Revision += int64(b.next()%16) - 3
	r.Holder = [...]string{r.Holder, r.Holder, r.Holder, me.String(), other.String(), "", UnknownHolder, "a/ua/0"}[b.next()%8]
	if x := b.next(); int(x) < 16*len(forgeries) {
		forgeries[x/16](&r, b.next())
	}
	return r
}

// forgeries are single changes of a record.
var forgeries = []func(r *Record, x byte){
	func(r *Record, _ byte) { r.UID = "another" },
	func(r *Record, x byte) { r.Token = int64(x) - 100 },
	func(r *Record, _ byte) { r.Token = math.MaxInt64 },
	func(r *Record, _ byte) { r.Transitions = -5 },
	func(r *Record, x byte) { r.Duration = time.Duration(int8(x)) * time.Second },
	func(r *Record, x byte) {
		r.Release = Release{Reason: ReasonNodeLost, Unclean: x%2 == 0}
		r.AcquireTime = int64(x / 2 % 2)
	},
	func(r *Record, x byte) { r.Handover.To = [...]string{"", AnyPod, "a", "b"}[x%4] },
	func(r *Record, x byte) { r.TokenBase = math.MaxInt64 - int64(x) },
	func(r *Record, x byte) { r.RenewTime += int64(x) - 100 },
	func(r *Record, _ byte) { r.History = nil },
	func(r *Record, x byte) {
		r.Runs.Now = Run{ID: "job/" + string('0'+x%4), Attempt: int32(x/4%4) - 1, State: []RunState{"", RunRunning, RunFailed, RunComplete, RunGivenUp}[x%5], Until: schedule.Stamp(x)}
	},
	func(r *Record, x byte) {
		r.Runs.Schedule = minutes[x%4]
	},
	func(r *Record, x byte) {
		r.Runs.Asked, r.Runs.Bad = Request{Name: string('0' + x%8)}, []string{"", "", "", "x"}[x/64]
	},
	func(r *Record, x byte) {
		r.Runs.Facts = schedule.Facts{Settled: 900 + schedule.Stamp(x), Since: schedule.Stamp(x) * 8}
	},
}

var minutes = [4]*schedule.Schedule{nil, minutely(schedule.OverlapSkip), minutely(schedule.OverlapQueue), minutely(schedule.OverlapReplace)}

func minutely(overlap schedule.Overlap) *schedule.Schedule {
	s, err := schedule.Parse(schedule.Spec{Cron: "* * * * *", Overlap: overlap})
	if err != nil {
		panic(err)
	}
	return s
}
