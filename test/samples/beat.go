//go:build linux

package samples

import (
	"fmt"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

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
	l.Broker, l.URL = "redis+socket://"+l.socket, "unix://"+l.socket
	server := debian.Command(root, "/usr/bin/redis-server")
	start(t, "", nil, server[0], append(server[1:], "--port", "0", "--unixsocket", l.socket, "--save", "")...)
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
