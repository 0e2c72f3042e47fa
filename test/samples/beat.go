//go:build linux

package samples

import (
	"errors"
	"fmt"
	"net"
	"os/exec"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/singletonjob/operator/test/controlplane"
	"github.com/singletonjob/operator/test/debian"
)

// Ledger is a Redis with Celery's queue, and with the runs that a worker has done.
type Ledger struct {
	testing.TB
	// Broker is its address for Celery, URL the one for the client of Redis.
	Broker, URL string
	root        string
	socket      string
}

// interval is beat's in the sample.
const interval = time.Second

// NewLedger starts a server, and a worker in it, which end with the test.
func NewLedger(t testing.TB) *Ledger {
	t.Helper()
	root, err := unpack()
	if err != nil {
		t.Fatal(err)
	}
	l := &Ledger{TB: t, root: root, socket: filepath.Join(t.TempDir(), "redis")}
	port, err := controlplane.FreePort()
	if err != nil {
		t.Fatal(err)
	}
	l.URL = fmt.Sprintf("redis://%s/0", net.JoinHostPort(Host, strconv.Itoa(port)))
	l.Broker = l.URL
	server := debian.Command(root, "/usr/bin/redis-server")
	start(t, "", nil, server[0], append(server[1:], "--bind", Host, "--port", strconv.Itoa(port), "--protected-mode", "no", "--unixsocket", l.socket, "--save", "")...)
	for deadline := time.Now().Add(patience); ; time.Sleep(20 * time.Millisecond) {
		if _, err := l.redis("PING"); err == nil {
			break
		} else if time.Now().After(deadline) {
			t.Fatal(err)
		}
	}
	l.celery("0", "worker", "--pool=solo", "--without-gossip", "--without-mingle", "--without-heartbeat")
	return l
}

func (l *Ledger) redis(args ...string) (string, error) {
	cli := debian.Command(l.root, "/usr/bin/redis-cli")
	out, err := exec.Command(cli[0], append(cli[1:], append([]string{"-s", l.socket}, args...)...)...).CombinedOutput()
	if err != nil {
		err = fmt.Errorf("redis-cli %v: %w\n%s", args, err, out)
	}
	return strings.TrimSpace(string(out)), err
}

func (l *Ledger) must(args ...string) string {
	l.Helper()
	out, err := l.redis(args...)
	if err != nil {
		l.Fatal(err)
	}
	return out
}

// celery starts a program of the sample, with a token.
func (l *Ledger) celery(token string, args ...string) *program {
	l.Helper()
	env := []string{"BROKER_URL=" + l.Broker, "REDIS_URL=" + l.URL, "FENCING_TOKEN=" + token, "PYTHONDONTWRITEBYTECODE=1"}
	return start(l, filepath.Join(Dir, "beat"), env, python3(l), append([]string{"-m", "celery", "--app=tasks"}, args...)...)
}

// Runs is how many were done. Close are those that were due less than an interval after the one before, Longest is the longest time
// between two that were due one after the other.
type Runs struct {
	Done, Close int
	Longest     time.Duration
}

// Runs counts them.
func (l *Ledger) Runs() (r Runs) {
	l.Helper()
	var after []time.Time // what each was due after
	for name := range strings.FieldsSeq(l.must("HKEYS", "ledger")) {
		_, text, _ := strings.Cut(name, "@")
		at, err := time.Parse(time.RFC3339Nano, text)
		if err != nil {
			l.Fatal(err)
		}
		after = append(after, at)
	}
	slices.SortFunc(after, time.Time.Compare)
	r.Done = len(after)
	for i := 1; i < len(after); i++ {
		gap := after[i].Sub(after[i-1])
		r.Longest = max(r.Longest, gap)
		if gap < interval {
			r.Close++
		}
	}
	return r
}

// Events are the runs that were done. One that was due less than an interval after the one before repeats it. Expected are as many as there
// were intervals.
func (l *Ledger) Events() (events []Event, expected []string) {
	l.Helper()
	type run struct {
		after, done time.Time
	}
	var runs []run
	words := strings.Fields(l.must("HGETALL", "ledger"))
	for i := 0; i+1 < len(words); i += 2 {
		_, text, _ := strings.Cut(words[i], "@")
		after, err := time.Parse(time.RFC3339Nano, text)
		seconds, err2 := strconv.ParseFloat(words[i+1], 64)
		if err := errors.Join(err, err2); err != nil {
			l.Fatal(err)
		}
		runs = append(runs, run{after, time.UnixMicro(int64(seconds * 1e6))})
	}
	slices.SortFunc(runs, func(a, b run) int { return a.after.Compare(b.after) })
	slot := 0
	for i, r := range runs {
		if i > 0 {
			gap := r.after.Sub(runs[i-1].after)
			slot += int(gap / interval) // 0: the slot of the one before
		}
		events = append(events, Event{At: r.done, Unit: strconv.Itoa(slot)})
	}
	if len(runs) > 0 {
		for i := range slot + 1 {
			expected = append(expected, strconv.Itoa(i))
		}
	}
	return events, expected
}

// Next is the name of the run that is due next, by what beat has noted.
func (l *Ledger) Next() string {
	l.Helper()
	return "book@" + l.must("HGET", "beat:last", "book")
}

// Did reports whether a run was done.
func (l *Ledger) Did(name string) bool {
	l.Helper()
	return l.must("HEXISTS", "ledger", name) == "1"
}

// Queued is whether there are messages that no worker has taken yet.
func (l *Ledger) Queued() bool {
	l.Helper()
	return l.must("LLEN", "celery") != "0"
}
