package fencetest

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"slices"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"testing"

	"github.com/singletonjob/operator/fence"
)

// Adapter is a fenced sink as the conformance suite sees it: for each resource, it has a list to which fenced writes
// append. All methods must be safe for concurrent use.
type Adapter interface {
	// Write appends payload to the resource, or refuses it. The token is the text that a writer presents, valid or not.
	// An adapter whose API takes a [fence.Token] parses it first, as its users do.
	// A nil error means that the write is stored. A refusal matches [fence.ErrMissingToken] or
	// [fence.ErrMalformedToken], or is a [*fence.StaleError] with all its fields. Any other error fails the suite, so
	// the adapter must retry errors after which its store asks for a retry, such as a serialization failure.
	Write(ctx context.Context, resource fence.Resource, token, payload string) error
	// Stored returns the payloads of the resource in the order in which they took effect.
	Stored(ctx context.Context, resource fence.Resource) ([]string, error)
}

// Run tests that an adapter fences. Every case opens its own adapter and uses resources that no other run
// uses, so the store behind it can be shared and need not be empty.
//
// What an adapter cannot do is not tested: the case is skipped, or a test below it that names the missing method, such as
// GateVectors/WithoutStrict.
func Run(t *testing.T, open func(t *testing.T) Adapter) {
	for _, c := range conformance {
		t.Run(c.name, func(t *testing.T) {
			s := &subject{Adapter: open(t), ctx: t.Context()}
			err := c.judge(s)
			if lacking, ok := errors.AsType[lack](err); ok {
				t.Skip(lacking.Error())
			}
			if err != nil {
				t.Error(err)
			}
			for _, lacking := range s.left {
				t.Run("Without"+lacking.method, func(t *testing.T) { t.Skip(lacking.Error()) })
			}
		})
	}
}

// Fault runs one case of the suite and returns the fault that it finds. [Run] is for adapters that must conform. Fault is for tests
// of broken adapters, whose mistake the suite must find. It panics if the adapter cannot run the case.
func Fault(ctx context.Context, adapter Adapter, name string) error {
	i := slices.IndexFunc(conformance, func(c conformanceCase) bool { return c.name == name })
	if i < 0 {
		panic("the suite has no case " + name)
	}
	err := conformance[i].judge(&subject{Adapter: adapter, ctx: ctx})
	if lacking, ok := errors.AsType[lack](err); ok {
		panic(name + ": " + lacking.Error())
	}
	return err
}

// conformanceCase is a case of the suite. It returns the fault of the adapter, so that the suite's own tests can check that it finds one.
type conformanceCase struct {
	name, why string
	check     func(*subject) error
}

func (c conformanceCase) judge(s *subject) error {
	if err := c.check(s); err != nil {
		return fmt.Errorf("%w\n(%s)", err, c.why)
	}
	return nil
}

// lack is a method that an adapter does not have. A case that needs it returns the lack. A case of which only a part needs it continues
// without that part: see [subject.leave].
type lack struct{ method, untested string }

func (l lack) Error() string {
	return fmt.Sprintf("the adapter has no method %s, so this is not tested: %s", l.method, l.untested)
}

// conformance is the suite.
var conformance = []conformanceCase{
	{"EqualAccepted", "one tenure writes many times with its one token", equalAccepted},
	{"StaleRefused", "the past tenure wakes up after the present one has written", staleRefused},
	{"RefusalChangesNothing", "a refused write must not move the mark, neither down nor up", refusalChangesNothing},
	{"NumbersNotStrings", `as a string, "9" sorts after "10"`, numbersNotStrings},
	{"BeyondDoubles", "in a sink whose numbers are doubles, 2^53 and 2^53+1 are equal", beyondDoubles},
	{"MalformedRefused", "a missing or malformed token must not count as zero, and must not damage the mark", malformedRefused},
	{"ResourcesIndependent", "tokens of different jobs are not comparable", resourcesIndependent},
	{"ConcurrentTenures", "check and write are one step, whatever falls between them", concurrentTenures},
	{"ConcurrentWritersOfOneTenure", "a tenure can write from many threads at the same time", concurrentWritersOfOneTenure},
	{"TokenVectors", "testdata/vectors/tokens.json holds for every adapter", tokenVectors},
	{"ResourceVectors", "testdata/vectors/resources.json holds for every adapter", resourceVectors},
	{"GateVectors", "testdata/vectors/gate.json holds for every adapter", gateVectors},
	{"RestartForgetsNothing", "a mark is as durable as the data it guards", restartForgetsNothing},
	{"CrashDuringWrites", "acknowledged writes and their mark are stored, whenever the sink crashes", crashDuringWrites},
}

// subject is an adapter under test, with the steps that the cases use.
type subject struct {
	Adapter
	ctx  context.Context
	left []lack // parts that were not tested
}

// leave notes that a part of the case is not tested, once for each method.
func (s *subject) leave(lacking lack) {
	if !slices.ContainsFunc(s.left, func(l lack) bool { return l.method == lacking.method }) {
		s.left = append(s.left, lacking)
	}
}

func (s *subject) fresh() fence.Resource {
	return fence.Resource(fmt.Sprintf("fencetest/%016x", rand.Uint64()))
}

func (s *subject) accepted(r fence.Resource, token, payload string) error {
	if err := s.Write(s.ctx, r, token, payload); err != nil {
		return fmt.Errorf("the write of %q with token %s failed, want it stored: %w", payload, token, err)
	}
	return nil
}

func (s *subject) stale(r fence.Resource, token, payload, highest string) error {
	err := s.Write(s.ctx, r, token, payload)
	if err == nil {
		return fmt.Errorf("SAFETY: the write of %q with token %s after %s was stored, want it refused", payload, token, highest)
	}
	stale, ok := errors.AsType[*fence.StaleError](err)
	if !ok {
		return fmt.Errorf("the write of %q with token %s after %s failed, want a *fence.StaleError: %w", payload, token, highest, err)
	}
	if stale.Resource != r || stale.Presented.String() != token || stale.Highest.String() != highest {
		return fmt.Errorf("the refusal says resource %s, presented %d, highest %d; want %s, %s, %s",
			stale.Resource, stale.Presented, stale.Highest, r, token, highest)
	}
	return nil
}

func (s *subject) stored(r fence.Resource, want ...string) error {
	got, err := s.Stored(s.ctx, r)
	if err != nil {
		return fmt.Errorf("read what is stored: %w", err)
	}
	if strings.Join(got, " ") != strings.Join(want, " ") {
		return fmt.Errorf("the stored payloads are %q, want %q", got, want)
	}
	return nil
}

func equalAccepted(s *subject) error {
	r := s.fresh()
	return errors.Join(
		s.accepted(r, "7", "a"), s.accepted(r, "7", "b"), s.accepted(r, "7", "c"),
		s.stored(r, "a", "b", "c"),
	)
}

func staleRefused(s *subject) error {
	r := s.fresh()
	return errors.Join(
		s.accepted(r, "33", "a"), s.accepted(r, "34", "b"),
		s.stale(r, "33", "x", "34"),
		s.accepted(r, "48213", "c"), // tokens have gaps
		s.stale(r, "48212", "y", "48213"), s.stale(r, "1", "z", "48213"),
		s.stored(r, "a", "b", "c"),
	)
}

func refusalChangesNothing(s *subject) error {
	r := s.fresh()
	return errors.Join(
		s.accepted(r, "34", "a"),
		s.stale(r, "32", "x", "34"), s.stale(r, "33", "y", "34"), s.stale(r, "33", "z", "34"),
		s.accepted(r, "34", "b"),
		s.stored(r, "a", "b"),
	)
}

func numbersNotStrings(s *subject) error {
	r := s.fresh()
	return errors.Join(
		s.accepted(r, "9", "a"), s.accepted(r, "10", "b"), s.stale(r, "9", "x", "10"),
		s.accepted(r, "100", "c"), s.stale(r, "99", "y", "100"),
		s.stored(r, "a", "b", "c"),
	)
}

func beyondDoubles(s *subject) error {
	const (
		even     = "9007199254740992" // 2^53
		odd      = "9007199254740993"
		greatest = "9223372036854775807" // 2^63-1
		second   = "9223372036854775806"
	)
	r := s.fresh()
	return errors.Join(
		s.accepted(r, odd, "a"), s.stale(r, even, "x", odd),
		s.accepted(r, greatest, "b"), s.accepted(r, greatest, "c"), s.stale(r, second, "y", greatest),
		s.stored(r, "a", "b", "c"),
	)
}

func malformedRefused(s *subject) error {
	used, unused := s.fresh(), s.fresh()
	failures := []error{s.accepted(used, "5", "a")}
	refused := func(token string, want error) {
		for _, r := range []fence.Resource{used, unused} {
			switch err := s.Write(s.ctx, r, token, "x"); {
			case err == nil:
				failures = append(failures, fmt.Errorf("SAFETY: a write with token %q was stored, want: %w", token, want))
			case !errors.Is(err, want):
				failures = append(failures, fmt.Errorf("a write with token %q failed, want an error that says %q: %w", token, want.Error(), err))
			}
		}
	}
	refused("", fence.ErrMissingToken)
	for _, token := range []string{
		"0", "-1", "+7", "007", "7.0", "1e3", "0x10", "7,8", "nil", "9223372036854775808", "18446744073709551617",
	} {
		refused(token, fence.ErrMalformedToken)
	}
	return errors.Join(append(failures,
		s.stored(used, "a"), s.stored(unused),
		s.accepted(used, "5", "b"), s.accepted(unused, "1", "c"), // neither mark has moved
		s.stored(used, "a", "b"), s.stored(unused, "c"),
	)...)
}

func resourcesIndependent(s *subject) error {
	one, other := s.fresh(), s.fresh()
	return errors.Join(
		s.accepted(one, "900", "a"), s.accepted(other, "1", "b"), s.accepted(other, "2", "c"),
		s.stale(other, "1", "x", "2"), s.accepted(one, "900", "d"),
		s.stored(one, "a", "d"), s.stored(other, "b", "c"),
	)
}

// concurrentTenures lets several tenures, each of which believes that it is the current one, write at the same time. Whichever wins, the
// stored writes must be in an order that a correct sink can produce.
func concurrentTenures(s *subject) error {
	const tenures, writesEach = 8, 25
	var (
		r       = s.fresh()
		highest atomic.Int64 // the greatest token of a write that has returned as stored
		mu      sync.Mutex   // guards the two below
		acked   = make(map[string]bool)
		faults  []error
		done    sync.WaitGroup
	)
	write := func(token int64, seq int) error {
		before := highest.Load()
		payload := fmt.Sprintf("%d:%d", token, seq)
		err := s.Write(s.ctx, r, strconv.FormatInt(token, 10), payload)
		if err != nil && !errors.Is(err, fence.ErrStale) {
			return fmt.Errorf("write %s: %w", payload, err)
		}
		if err != nil && token == tenures {
			return fmt.Errorf("write %s was refused although no token is higher: %w", payload, err)
		}
		if err != nil {
			return nil
		}
		if token < before {
			return fmt.Errorf("SAFETY: write %s was stored although a write with token %d had returned before it began", payload, before)
		}
		raise(&highest, token)
		mu.Lock()
		defer mu.Unlock()
		acked[payload] = true
		return nil
	}
	// A tenure continues until it has written everything or has found a fault.
	tenure := func(token int64) {
		var err error
		for seq := 0; seq < writesEach && err == nil; seq++ {
			err = write(token, seq)
		}
		mu.Lock()
		defer mu.Unlock()
		faults = append(faults, err)
	}
	for token := int64(1); token <= tenures; token++ {
		done.Go(func() { tenure(token) })
	}
	done.Wait()
	stored, err := s.Stored(s.ctx, r)
	return errors.Join(append(faults, err, ascending(stored), sameSet(stored, acked))...)
}

func concurrentWritersOfOneTenure(s *subject) error {
	const writers = 16
	var (
		r      = s.fresh()
		acked  = make(map[string]bool)
		faults = make([]error, writers)
		done   sync.WaitGroup
	)
	for i := range writers {
		payload := "7:" + strconv.Itoa(i)
		acked[payload] = true
		done.Go(func() { faults[i] = s.accepted(r, "7", payload) })
	}
	done.Wait()
	stored, err := s.Stored(s.ctx, r)
	return errors.Join(append(faults, err, sameSet(stored, acked))...)
}

func raise(highest *atomic.Int64, token int64) {
	for {
		seen := highest.Load()
		if token <= seen || highest.CompareAndSwap(seen, token) {
			return
		}
	}
}

// ascending: once a token has written, no lower one may follow.
func ascending(stored []string) error {
	var highest int64
	for i, payload := range stored {
		number, _, _ := strings.Cut(payload, ":")
		token, err := strconv.ParseInt(number, 10, 64)
		if err != nil {
			return fmt.Errorf("stored payload %q was never written", payload)
		}
		if token < highest {
			return fmt.Errorf("entry %d, %q, was stored after a write with token %d", i, payload, highest)
		}
		highest = token
	}
	return nil
}

// sameSet checks that each acknowledged write is stored once, and no refused write is stored.
func sameSet(stored []string, acked map[string]bool) error {
	seen := make(map[string]bool, len(stored))
	for _, payload := range stored {
		if !acked[payload] {
			return fmt.Errorf("%q was refused and is stored", payload)
		}
		if seen[payload] {
			return fmt.Errorf("%q is stored twice", payload)
		}
		seen[payload] = true
	}
	for payload := range acked {
		if !seen[payload] {
			return fmt.Errorf("%q was acknowledged and is not stored", payload)
		}
	}
	return nil
}
