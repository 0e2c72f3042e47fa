//go:build linux

package agent

import (
	"context"
	"errors"
	"io"
	"math"
	"os"
	"sync"
	"syscall"
	"testing"
	"testing/synctest"
	"time"

	"github.com/singletonjob/operator/internal/contract"
	"github.com/singletonjob/operator/internal/kubelease"
	"github.com/singletonjob/operator/internal/lease"
	"github.com/singletonjob/operator/internal/supervise"
)

// The tests of the loop run it on a fake clock, between an API server and processes that do as they are told. The tests in cmd/agent use
// real ones.

// world is one agent under test.
type world struct {
	*testing.T
	api     *fakeAPI
	clock   *fakeClock
	signals chan os.Signal
	log     *transcript
	agent   *Agent
	// starts tells of each start that the agent asks for; nothing starts before it is told to.
	starts chan start
	// exited is the agent's exit code.
	exited chan int
}

type start struct {
	supervise.Spec
	process *fakeProcess
}

func testOptions() Options {
	return Options{
		Config: contract.AgentConfig{
			Name: "job", RunID: "run", TokenEnv: "TOKEN", Marks: marks,
			LeaseDuration: dur(15 * time.Second), RenewDeadline: dur(10 * time.Second), RetryPeriod: dur(2 * time.Second), GracePeriod: dur(8 * time.Second),
		},
		Identity:  lease.Identity{Pod: "pod", PodUID: "uid", Nonce: "nonce"},
		Namespace: "ns",
		Argv:      []string{"program", marked("--token=$(TOKEN)")},
	}
}

// marks is the secret of the marks in what the operator gives the agents of these tests.
const marks = "secret"

func marked(text string) string {
	return contract.MarkReferences(text, marks, func(name string) bool { return contract.AgentAlone("TOKEN", name) })
}

func dur(d time.Duration) contract.Duration { return contract.Duration(d) }

// inBubble runs a test of an agent that contends for a free Lease.
func inBubble(t *testing.T, f func(*world)) {
	t.Helper()
	inBubbleWith(t, func(*Options) {}, f)
}

func inBubbleWith(t *testing.T, change func(*Options), f func(*world)) {
	t.Helper()
	synctest.Test(t, func(t *testing.T) {
		w := &world{
			T: t, api: newFakeAPI(), clock: newFakeClock(), signals: make(chan os.Signal, 1), log: &transcript{},
			starts: make(chan start, 100), exited: make(chan int, 1),
		}
		o := testOptions()
		change(&o)
		o.API, o.Clock, o.Log = w.api, w.clock, NewLog(w.log)
		o.Start = func(spec supervise.Spec) (Process, error) {
			p := newFakeProcess(spec)
			t.Cleanup(p.end)
			w.starts <- start{spec, p}
			return p, nil
		}
		w.agent = New(o)
		ctx, cancel := context.WithCancel(t.Context())
		go func() { w.exited <- w.agent.Run(ctx, w.signals) }()
		f(w)
		// An agent whose context ends does not end by itself: it has no reason to. A process that is killed from
		// outside needs none.
		w.stop()
		cancel()
		synctest.Wait()
		o.Log.Close(time.Second)
		synctest.Wait()
	})
}

// stop ends an agent that is still running.
func (w *world) stop() {
	w.Helper()
	w.api.heal()
	select {
	case <-w.exited:
		return
	default:
	}
	w.signals <- syscall.SIGTERM
	for {
		select {
		case <-w.exited:
			return
		case s := <-w.starts:
			s.process.begin(errors.New("the test is over"))
		case <-time.After(time.Hour):
			w.Fatalf("the agent does not end; its log:\n%s", w.log)
		}
	}
}

// holding brings the agent into its tenure.
func (w *world) holding() *fakeProcess {
	w.Helper()
	s := <-w.starts
	s.process.begin(nil)
	synctest.Wait()
	return s.process
}

func (w *world) phase() string { return w.agent.snapshot.Load().Phase }

// fakeClock is the bubble's, and can jump ahead of it, as CLOCK_BOOTTIME does of Go's timers during suspend.
type fakeClock struct {
	mu    sync.Mutex
	ahead time.Duration
	timer *time.Timer
	lag   time.Duration // how late it wakes
	c     chan struct{}
}

func newFakeClock() *fakeClock { return &fakeClock{c: make(chan struct{}, 1)} }

func (f *fakeClock) Now() lease.Time {
	f.mu.Lock()
	defer f.mu.Unlock()
	now := time.Now()
	return lease.Time{Boot: lease.Instant(now.Add(f.ahead).UnixNano()), Wall: now.UnixMicro()}
}

func (f *fakeClock) C() <-chan struct{} { return f.c }

func (f *fakeClock) WakeAt(at lease.Instant) {
	f.mu.Lock()
	defer f.mu.Unlock()
	if f.timer != nil {
		f.timer.Stop()
	}
	if at == lease.Never {
		return
	}
	f.timer = time.AfterFunc(time.Unix(0, int64(at)).Sub(time.Now().Add(f.ahead))+f.lag, f.ring)
}

// late has the clock wake late from now on.
func (f *fakeClock) late(by time.Duration) {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.lag = by
}

func (f *fakeClock) ring() {
	select {
	case f.c <- struct{}{}:
	default:
	}
}

// suspend is a sleep of the machine: the clock is ahead when it wakes, and the timer on it fires if it is due.
func (f *fakeClock) suspend(d time.Duration) {
	f.mu.Lock()
	f.ahead += d
	f.mu.Unlock()
	f.ring()
}

// fakeAPI is one Lease behind compare-and-swap, and a network that can be cut.
type fakeAPI struct {
	mu      sync.Mutex
	record  lease.Record
	changed chan struct{}
	cut     chan struct{} // closed when healed; nil while there is no fault
	writes  int
	hung    int
	wrong   time.Duration // by how much its clock is ahead
	gone    chan struct{} // closed when the Lease is deleted
	blind   chan struct{} // closed when the watch breaks for good
	floor   int64         // of the last read
}

func newFakeAPI() *fakeAPI {
	return &fakeAPI{
		record:  lease.Record{UID: "lease-uid", Revision: 10, Release: lease.Release{Reason: lease.ReasonCreated}},
		changed: make(chan struct{}),
		gone:    make(chan struct{}),
		blind:   make(chan struct{}),
	}
}

func (f *fakeAPI) store(change func(*lease.Record)) {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.storeLocked(change)
}

func (f *fakeAPI) storeLocked(change func(*lease.Record)) {
	change(&f.record)
	f.record.Revision++
	close(f.changed)
	f.changed = make(chan struct{})
}

func (f *fakeAPI) present() lease.Record {
	f.mu.Lock()
	defer f.mu.Unlock()
	return f.record
}

// hang has every request hang until its deadline.
func (f *fakeAPI) hang() {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.cut = make(chan struct{})
}

func (f *fakeAPI) heal() {
	f.mu.Lock()
	defer f.mu.Unlock()
	if f.cut != nil {
		close(f.cut)
		f.cut = nil
	}
}

func (f *fakeAPI) counts() (writes, hung int) {
	f.mu.Lock()
	defer f.mu.Unlock()
	return f.writes, f.hung
}

// pass takes the time of a request. It fails while the network is cut.
func (f *fakeAPI) pass(ctx context.Context) error {
	select {
	case <-time.After(time.Millisecond):
	case <-ctx.Done():
	}
	f.mu.Lock()
	cut := f.cut
	if cut != nil {
		f.hung++
	}
	f.mu.Unlock()
	if cut == nil {
		return ctx.Err()
	}
	<-ctx.Done()
	f.mu.Lock()
	defer f.mu.Unlock()
	f.hung--
	return ctx.Err()
}

func (f *fakeAPI) Get(ctx context.Context, floor int64) (kubelease.Answer, error) {
	f.mu.Lock()
	f.floor = floor
	f.mu.Unlock()
	if err := f.pass(ctx); err != nil {
		return kubelease.Answer{}, err
	}
	answer := kubelease.Answer{Object: &kubelease.Object{Record: f.present()}}
	f.mu.Lock()
	defer f.mu.Unlock()
	if f.wrong != noDate {
		answer.Date = time.Now().Add(f.wrong).Unix()
	}
	return answer, nil
}

// noDate is for answers that tell no time.
const noDate time.Duration = math.MinInt64

// ahead has the API server's clock be ahead by so much.
func (f *fakeAPI) ahead(by time.Duration) {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.wrong = by
}

func (f *fakeAPI) Update(ctx context.Context, base *kubelease.Object, r lease.Record) (lease.Outcome, *kubelease.Object, error) {
	f.mu.Lock()
	f.writes++
	f.mu.Unlock()
	if err := f.pass(ctx); err != nil {
		return lease.Unknown, nil, err
	}
	f.mu.Lock()
	defer f.mu.Unlock()
	if base.Record.Revision != r.Revision {
		return lease.Refused, nil, errors.New("the agent replaces another object than it has seen")
	}
	if r.Revision != f.record.Revision || r.UID != f.record.UID {
		return lease.Conflict, nil, errors.New("conflict")
	}
	f.storeLocked(func(stored *lease.Record) { *stored = r })
	return lease.Confirmed, &kubelease.Object{Record: f.record}, nil
}

func (f *fakeAPI) Watch(ctx context.Context, _ <-chan struct{}, emit func(kubelease.WatchEvent)) {
	emit(kubelease.WatchEvent{Kind: kubelease.NotOpened, Err: errors.New("a first attempt that fails")})
	emit(kubelease.WatchEvent{Kind: kubelease.Opened})
	for {
		f.mu.Lock()
		r, changed := f.record, f.changed
		f.mu.Unlock()
		emit(kubelease.WatchEvent{Kind: kubelease.Changed, Object: &kubelease.Object{Record: r}})
		select {
		case <-changed:
		case <-f.gone:
			r.Revision++ // of the deletion
			emit(kubelease.WatchEvent{Kind: kubelease.Deleted, Object: &kubelease.Object{Record: r}})
			return
		case <-f.blind:
			emit(kubelease.WatchEvent{Kind: kubelease.Closed, Err: errors.New("it broke off")})
			return
		case <-ctx.Done():
			return
		}
	}
}

// fakeProcess does what it is told, except by SIGTERM.
type fakeProcess struct {
	spec     supervise.Spec
	mu       sync.Mutex
	deadline int64
	signals  []syscall.Signal
	killed   bool
	never    bool // once it runs, no deadline
	immortal bool // as one that waits in the kernel
	ended    bool // the main process
	reaped   bool // all
	begun    bool
	execs    chan *fakeExec // in the order of their beginning
	started  chan error
	exited   chan supervise.Status
	gone     chan struct{}
}

func newFakeProcess(spec supervise.Spec) *fakeProcess {
	return &fakeProcess{spec: spec, deadline: spec.Deadline, execs: make(chan *fakeExec, 16), started: make(chan error, 1), exited: make(chan supervise.Status, 1), gone: make(chan struct{})}
}

// begin ends the start of the process.
func (p *fakeProcess) begin(err error) {
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.begun {
		return
	}
	p.begun = true
	p.started <- err
	if err != nil && !p.ended {
		p.ended, p.reaped = true, true
		close(p.gone)
	}
}

func (p *fakeProcess) Started() <-chan error { return p.started }

func (p *fakeProcess) Extend(deadline int64) error {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.deadline = deadline
	p.never = p.never || deadline == supervise.Never
	return nil
}

func (p *fakeProcess) Signal(s syscall.Signal) error {
	p.mu.Lock()
	defer p.mu.Unlock()
	if s != 0 {
		p.signals = append(p.signals, s)
	} else if p.ended {
		return os.ErrProcessDone
	}
	return nil
}

// die ends the main process, which nobody is told before tell.
func (p *fakeProcess) die() {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.ended = true
}

func (p *fakeProcess) tell(s supervise.Status) {
	p.mu.Lock()
	p.ended = false
	p.mu.Unlock()
	p.finish(s)
}

func (p *fakeProcess) Kill() {
	p.mu.Lock()
	p.killed = true
	immortal := p.immortal
	p.mu.Unlock()
	if immortal {
		return
	}
	p.begin(supervise.ErrStopped)
	p.finish(supervise.Status{ExitCode: -1, Signal: syscall.SIGKILL})
}

// fakeExec is a command that runs until the test has it end.
type fakeExec struct {
	supervise.ExecSpec
	result chan supervise.ExecResult
}

func (p *fakeProcess) Exec(spec supervise.ExecSpec) (<-chan supervise.ExecResult, error) {
	p.mu.Lock()
	defer p.mu.Unlock()
	if !p.begun || p.ended {
		return nil, os.ErrProcessDone
	}
	x := &fakeExec{spec, make(chan supervise.ExecResult, 1)}
	p.execs <- x
	return x.result, nil
}

func (p *fakeProcess) end() {
	p.begin(errors.New("the test is over"))
	p.finish(supervise.Status{})
}

func (p *fakeProcess) finish(s supervise.Status) {
	p.exit(s)
	p.mu.Lock()
	defer p.mu.Unlock()
	if !p.reaped {
		p.reaped = true
		close(p.gone)
	}
}

// exit ends the main process; what it has left behind lives on.
func (p *fakeProcess) exit(s supervise.Status) {
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.ended {
		return
	}
	p.ended = true
	p.exited <- s
	close(p.exited)
}

func (p *fakeProcess) Exited() <-chan supervise.Status { return p.exited }
func (p *fakeProcess) Gone() <-chan struct{}           { return p.gone }

func (p *fakeProcess) state() (deadline int64, signals []syscall.Signal, killed bool) {
	p.mu.Lock()
	defer p.mu.Unlock()
	return p.deadline, p.signals, p.killed
}

// transcript is a log that is kept.
type transcript struct {
	mu   sync.Mutex
	text []byte
	full chan struct{} // not nil: nothing is taken until it is closed
}

// block has writers wait, as a full pipe does.
func (l *transcript) block() (unblock func()) {
	l.mu.Lock()
	defer l.mu.Unlock()
	full := make(chan struct{})
	l.full = full
	return func() {
		l.mu.Lock()
		defer l.mu.Unlock()
		l.full = nil
		close(full)
	}
}

func (l *transcript) Write(line []byte) (int, error) {
	l.mu.Lock()
	full := l.full
	l.mu.Unlock()
	if full != nil {
		<-full
	}
	l.mu.Lock()
	defer l.mu.Unlock()
	l.text = append(l.text, line...)
	return len(line), nil
}

func (l *transcript) String() string {
	l.mu.Lock()
	defer l.mu.Unlock()
	return string(l.text)
}

var _ io.Writer = (*transcript)(nil)
