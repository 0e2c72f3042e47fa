package kv

import (
	"bufio"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"math/rand/v2"
	"os"
	"os/exec"
	"strconv"
	"strings"
	"sync"
	"syscall"
	"testing"

	"github.com/singletonjob/operator/fence"
	"github.com/singletonjob/operator/fence/fencetest"
	"github.com/singletonjob/operator/test/rivals"
	"github.com/singletonjob/operator/test/subprocess"
)

func fresh() fence.Resource { return fence.Resource(fmt.Sprintf("test/%016x", rand.Uint64())) }

// TestConformance has the server killed during writes, too, and sees that the mark and all that was acknowledged are there again.
func TestConformance(t *testing.T) {
	each(t, func(t *testing.T, k kind) {
		server := run(t, k)
		s := crashing{server.client(t), server}
		fencetest.Run(t, func(*testing.T) fencetest.Adapter { return s })
	})
}

// broken is a sink that is built wrong, and the case of the suite that finds it.
type broken struct {
	foundBy string
	sink    fencetest.Adapter
}

func finds(t *testing.T, all map[string]broken) {
	for name, b := range all {
		t.Run(name, func(t *testing.T) {
			if fencetest.Fault(patience(t), b.sink, b.foundBy) == nil {
				t.Errorf("%s finds nothing wrong", b.foundBy)
			}
		})
	}
}

// checkThenWrite is a broken fence, because it checks and writes in two steps. The first write of token 1 pauses between them until a higher
// token has written. Higher tokens wait for that pause, so that the scheduler can't change the order. It is for ConcurrentTenures alone.
func checkThenWrite[W any](check func(context.Context, fence.Resource, fence.Token) error, write func(context.Context, W) error) func(context.Context, fence.Resource, fence.Token, W) error {
	var first, later sync.Once
	paused, written := make(chan struct{}), make(chan struct{})
	return func(ctx context.Context, r fence.Resource, token fence.Token, w W) error {
		if token > 1 {
			<-paused
		}
		if err := check(ctx, r, token); err != nil {
			return err
		}
		if token == 1 {
			first.Do(func() { close(paused); <-written })
			return write(ctx, w)
		}
		err := write(ctx, w)
		later.Do(func() { close(written) })
		return err
	}
}

// A holder is a separate process that writes what the test sends to it, and reports the results.
const asHolder = "KV_TEST_HOLDER" // kind, address, resource, token, and "unfenced" or nothing

func holder() {
	about := strings.Split(os.Getenv(asHolder), " ")
	for _, k := range kinds {
		if k.name != about[0] {
			continue
		}
		s, err := k.open(about[1])
		if err != nil {
			fmt.Fprintln(os.Stderr, "no client:", err)
			return
		}
		var writes fencetest.Adapter = s
		if about[4] != "" {
			writes = unfenced(s)
		}
		token, err := fence.ParseToken(about[3])
		if err != nil {
			panic(err)
		}
		out := json.NewEncoder(os.Stdout)
		for lines := bufio.NewScanner(os.Stdin); lines.Scan(); {
			op := rivals.Begin(rivals.Write, token, lines.Text())
			op.End(writes.Write(context.Background(), fence.Resource(about[2]), about[3], lines.Text()), nil)
			_ = out.Encode(op)
		}
	}
}

// frozen is a register, and what a holder that was frozen in the middle of a write and its successor have done to it.
type frozen struct {
	*testing.T
	direct sink
	r      fence.Resource
	all    []rivals.Operation
	in     io.Writer
	told   *json.Decoder
}

// orders the holder to write.
func (f *frozen) orders(payload string) {
	f.Helper()
	_, err := fmt.Fprintln(f.in, payload)
	must(f.T, err)
}

// hears what became of it.
func (f *frozen) hears() rivals.Operation {
	f.Helper()
	var op rivals.Operation
	must(f.T, f.told.Decode(&op))
	f.all = append(f.all, op)
	return op
}

// reads the register, which is what was written last, and returns all of it.
func (f *frozen) reads() []string {
	f.Helper()
	op := rivals.Begin(rivals.Read, 0, "")
	stored, err := f.direct.Stored(patience(f.T), f.r)
	must(f.T, err)
	if len(stored) > 0 {
		op.Value = stored[len(stored)-1]
	}
	op.End(nil, nil)
	f.all = append(f.all, op)
	return stored
}

// freezes has a holder's write on its way to the server when the holder is stopped and its successor writes; then both continue, and the
// holder writes again. It returns what is stored, and what became of the two writes.
func freezes(t *testing.T, k kind, how string) (f *frozen, stored []string, late [2]string) {
	server := run(t, k)
	link := hold(t, server.addr)
	f = &frozen{T: t, direct: server.client(t), r: fresh()}
	c := exec.Command(os.Args[0])
	c.Env = append(os.Environ(), asHolder+"="+strings.Join([]string{k.name, link.addr, string(f.r), "33", how}, " "))
	orders, in := io.Pipe()
	out, answers := io.Pipe()
	f.in, f.told = in, json.NewDecoder(out)
	c.Stdin, c.Stdout, c.Stderr = orders, answers, os.Stderr
	process, err := subprocess.Start(c)
	must(t, err)
	t.Cleanup(func() { _ = in.Close(); process.Stop(0) })
	f.orders("first")
	if op := f.hears(); op.Outcome != rivals.Stored {
		t.Fatalf("the first write: %+v", op)
	}
	f.reads()
	link.requests.closeAt(k.writes)
	f.orders("frozen")
	link.requests.waiting()
	must(t, process.Signal(syscall.SIGSTOP))
	successor := rivals.Begin(rivals.Write, 34, "successor")
	successor.End(f.direct.Write(patience(t), f.r, "34", "successor"), nil)
	f.all = append(f.all, successor)
	f.reads()
	link.requests.open() // what its kernel had sent arrives
	must(t, process.Signal(syscall.SIGCONT))
	late[0] = f.hears().Outcome
	f.orders("again")
	late[1] = f.hears().Outcome
	return f, f.reads(), late
}

// TestAFrozenHolder: a frozen holder is refused and gets the refusal. The stored state is as if its pending write had never been sent.
func TestAFrozenHolder(t *testing.T) {
	each(t, func(t *testing.T, k kind) {
		f, stored, late := freezes(t, k, "")
		if got := strings.Join(stored, " "); got != "first successor" {
			t.Errorf("stored is %q", got)
		}
		if late != [2]string{rivals.Stale, rivals.Stale} {
			t.Errorf("the holder was told %q", late)
		}
		if !rivals.Linearizable(f.all) {
			t.Errorf("SAFETY: no fenced register has this history: %+v", f.all)
		}
	})
}

// TestAFrozenHolderPassesWithoutAFence: what the test above would see if the fence were none.
func TestAFrozenHolderPassesWithoutAFence(t *testing.T) {
	each(t, func(t *testing.T, k kind) {
		f, stored, late := freezes(t, k, "unfenced")
		if late != [2]string{rivals.Stored, rivals.Stored} || !strings.HasSuffix(strings.Join(stored, " "), " frozen again") {
			t.Errorf("stored is %q, and the holder was told %q", stored, late)
		}
		if rivals.Linearizable(f.all) {
			t.Errorf("this history is taken for that of a fenced register: %+v", f.all)
		}
	})
}

// journal is what writers know of their writes to one resource.
type journal struct {
	mu      sync.Mutex
	acked   map[string]bool // true: stored; false: nobody knows
	highest fence.Token     // of those that are stored
}

func newJournal() *journal {
	return &journal{acked: make(map[string]bool)}
}

func (j *journal) write(ctx context.Context, s fencetest.Adapter, r fence.Resource, token fence.Token, seq int) error {
	j.mu.Lock()
	before := j.highest
	j.mu.Unlock()
	payload := fmt.Sprintf("%d:%d", token, seq)
	err := s.Write(ctx, r, token.String(), payload)
	if errors.Is(err, fence.ErrStale) {
		return err
	}
	j.mu.Lock()
	defer j.mu.Unlock()
	j.acked[payload] = err == nil
	if err != nil {
		return err
	}
	if token < before {
		return fmt.Errorf("SAFETY: %s was stored after one with token %d had been acknowledged", payload, before)
	}
	j.highest = max(j.highest, token)
	return nil
}

// judge compares what is stored to it.
func (j *journal) judge(t *testing.T, s fencetest.Adapter, r fence.Resource) {
	t.Helper()
	if err := j.faults(patience(t), s, r); err != nil {
		t.Error(err)
	}
}

func (j *journal) faults(ctx context.Context, s fencetest.Adapter, r fence.Resource) error {
	stored, err := s.Stored(ctx, r)
	if err != nil {
		return err
	}
	var highest int64
	seen := make(map[string]bool)
	var faults []error
	for _, payload := range stored {
		_, sent := j.acked[payload]
		if !sent || seen[payload] {
			faults = append(faults, fmt.Errorf("SAFETY: %s has %q, refused or twice", r, payload))
		}
		seen[payload] = true
		number, _, _ := strings.Cut(payload, ":")
		token, err := strconv.ParseInt(number, 10, 64)
		if err != nil || token < highest {
			faults = append(faults, fmt.Errorf("SAFETY: %s has %q after token %d", r, payload, highest))
		}
		highest = max(highest, token)
	}
	for payload, acked := range j.acked {
		if acked && !seen[payload] {
			faults = append(faults, fmt.Errorf("%s has lost %q", r, payload))
		}
	}
	return errors.Join(faults...)
}

// TestACrowd: 64 writers of 8 tenures, on one resource and on 1 000.
func TestACrowd(t *testing.T) {
	each(t, func(t *testing.T, k kind) {
		s := run(t, k).client(t)
		t.Run("one resource", func(t *testing.T) { crowd(t, s, 1, writers, 4) })
		t.Run("1000 resources", func(t *testing.T) { crowd(t, s, 1000, k.each, 1) })
	})
}

const (
	writers = 64
	tenures = 8
)

// crowd has `each` of the writers write `times` times to each resource: all, or as many of different tenures. Writer i has token 1 + i mod
// 8.
func crowd(t *testing.T, s fencetest.Adapter, resources, each, times int) {
	t.Helper()
	names, journals := make([]fence.Resource, resources), make([]*journal, resources)
	for i := range resources {
		names[i], journals[i] = fresh(), newJournal()
	}
	ctx := patience(t)
	var all sync.WaitGroup
	for w := range writers {
		token := fence.Token(1 + w%tenures)
		all.Go(func() {
			for i := range resources {
				if each < writers && (w/tenures != i%(writers/tenures) || (w+i/tenures)%(tenures/each) != 0) {
					continue
				}
				for n := range times {
					err := journals[i].write(ctx, s, names[i], token, w*times+n)
					if err != nil && (!errors.Is(err, fence.ErrStale) || token == tenures) {
						t.Errorf("%s, token %d: %v", names[i], token, err)
						return
					}
				}
			}
		})
	}
	all.Wait()
	for i, j := range journals {
		j.judge(t, s, names[i])
	}
}
