// Package offer is the work of the programs that bench-sinks-lab runs as singletons. They write to a sink in a loop, each write with its
// token and a number, and report the outcome to a witness.
package offer

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"net/http"
	"os"
	"time"

	"github.com/singletonjob/operator/fence"
	"github.com/singletonjob/operator/fence/fencetest"
	"github.com/singletonjob/operator/test/workload/load"
)

// Variables of the programs, besides those of the agent.
const (
	AddressEnv = "SINK_ADDRESS" // of the sink
	WitnessEnv = "WITNESS"      // the URL that reports are posted to
)

// Unfenced is the second argument of a program that is to write without a fence.
const Unfenced = "unfenced"

const (
	every = 50 * time.Millisecond
	// first is the patience with a tenure's first write, which may wait for what is under way of the past one. Later ones are given up
	// soon: a process that comes back from a fault is to write before it is ended.
	first    = 30 * time.Second
	patience = 500 * time.Millisecond
	// hears is how long the witness may take, and heard how many reports it takes at once: one that is busy is not made busier.
	hears = 500 * time.Millisecond
	heard = 100
)

// A Write is what is written. Its text is what the sink stores.
type Write struct {
	Token  fence.Token `json:"token"`
	Writer string      `json:"writer"` // a process
	Seq    int         `json:"seq"`    // that process's count of its writes
}

func (w Write) String() string { return fmt.Sprintf("%d %s %d", int64(w.Token), w.Writer, w.Seq) }

// Parse is the opposite of String.
func Parse(text string) (w Write, err error) {
	var token int64
	if _, err = fmt.Sscanf(text, "%d %s %d", &token, &w.Writer, &w.Seq); err != nil {
		return w, fmt.Errorf("a sink has %q, want token, writer and number: %w", text, err)
	}
	w.Token = fence.Token(token)
	return w, nil
}

// An Outcome is what became of a write, as its writer knows it.
type Outcome string

// The outcomes. The sink may have stored a write that is Unknown, or may store it later.
const (
	Accepted Outcome = "accepted"
	Stale    Outcome = "stale"
	Unknown  Outcome = "unknown"
)

// A Report is a writer's report on a write. Times are CLOCK_BOOTTIME.
type Report struct {
	Write

	Log     fence.Resource `json:"log"`
	Sent    time.Duration  `json:"sentNanos"`
	At      time.Duration  `json:"atNanos"` // of the answer
	Outcome Outcome        `json:"outcome"`
}

// A Target is what to write to.
type Target struct {
	Kind, Address string
	Fenced        bool
	// Log is the resource, and what the sink's record of it is called.
	Log   fence.Resource
	Token fence.Token
}

// A Sink stores what it is given.
type Sink interface {
	// Write stores a text. An error that is fence.ErrStale is a refusal; after another the text may be stored.
	Write(ctx context.Context, text string) error
}

// A Store is a sink that its clients can make and read.
type Store interface {
	Sink
	// Prepare makes what all logs need. It may be repeated, and fails until the server answers.
	Prepare(ctx context.Context) error
	// Stored is the log, in the order in which its writes took effect.
	Stored(ctx context.Context) ([]string, error)
}

// The first arguments of a program that is to look after a store instead of writing to it.
const (
	Prepare = "prepare" // KIND
	List    = "list"    // KIND LOG: print it, as a list in JSON
)

// Main does what the arguments say.
func Main(open func(Target) (Sink, error)) {
	if err := run(load.Context(), open, os.Args[1:]); err != nil {
		fmt.Fprintln(os.Stderr, "writer:", err)
		os.Exit(1)
	}
}

func run(ctx context.Context, open func(Target) (Sink, error), args []string) error {
	if len(args) == 0 {
		return errors.New("name the kind of sink")
	}
	if args[0] == Prepare || args[0] == List {
		return lookAfter(ctx, open, args)
	}
	token, err := fence.ParseToken(os.Getenv(fence.EnvToken))
	if err != nil {
		return fmt.Errorf("%s: %w", fence.EnvToken, err)
	}
	w := writer{
		target: Target{
			Kind: args[0], Address: os.Getenv(AddressEnv), Fenced: len(args) == 1, Token: token,
			Log: fence.ResourceOf(os.Getenv(fence.EnvNamespace), os.Getenv(fence.EnvName)),
		},
		id:      fmt.Sprintf("%s@%d", load.Pod(), fencetest.Boottime().Milliseconds()),
		witness: os.Getenv(WitnessEnv),
	}
	if w.sink, err = open(w.target); err != nil {
		return err
	}
	w.loop(ctx)
	return nil
}

func lookAfter(ctx context.Context, open func(Target) (Sink, error), args []string) error {
	args = append(args, "", "")
	sink, err := open(Target{Kind: args[1], Address: os.Getenv(AddressEnv), Log: fence.Resource(args[2])})
	if err != nil {
		return err
	}
	store, ok := sink.(Store)
	if !ok {
		return fmt.Errorf("the sink %s is not looked after by this program", args[1])
	}
	if args[0] == Prepare {
		return store.Prepare(ctx)
	}
	texts, err := store.Stored(ctx)
	if err != nil {
		return err
	}
	return json.NewEncoder(os.Stdout).Encode(texts)
}

type writer struct {
	target      Target
	id, witness string
	sink        Sink
	begun       bool     // a write was stored
	untold      []Report // the witness has not heard of them
}

// loop continues whatever the answer is: the worst behaved writer is the one to test.
func (w *writer) loop(ctx context.Context) {
	tick := time.NewTicker(every)
	defer tick.Stop()
	for seq := 1; ctx.Err() == nil; seq++ {
		w.report(ctx, w.write(ctx, seq))
		select {
		case <-tick.C:
		case <-ctx.Done():
		}
	}
}

func (w *writer) write(ctx context.Context, seq int) Report {
	limit := patience
	if !w.begun {
		limit = first
	}
	ctx, cancel := context.WithTimeout(ctx, limit)
	defer cancel()
	r := Report{Write: Write{Token: w.target.Token, Writer: w.id, Seq: seq}, Log: w.target.Log, Sent: fencetest.Boottime()}
	err := w.sink.Write(ctx, r.String())
	r.At = fencetest.Boottime()
	switch {
	case err == nil:
		r.Outcome, w.begun = Accepted, true
	case errors.Is(err, fence.ErrStale):
		r.Outcome = Stale
	default:
		r.Outcome = Unknown
		fmt.Println(err)
	}
	return r
}

// report tells the witness what it has not heard, the oldest first. One that can't be reached hears it later.
func (w *writer) report(ctx context.Context, r Report) {
	w.untold = append(w.untold, r)
	batch := w.untold[:min(heard, len(w.untold))]
	body, err := json.Marshal(batch)
	if err != nil {
		fmt.Println(err)
		return
	}
	ctx, cancel := context.WithTimeout(ctx, hears)
	defer cancel()
	request, err := http.NewRequestWithContext(ctx, http.MethodPost, w.witness, bytes.NewReader(body))
	if err != nil {
		fmt.Println(err)
		return
	}
	response, err := http.DefaultClient.Do(request)
	if err != nil {
		return
	}
	_ = response.Body.Close()
	if response.StatusCode == http.StatusOK {
		w.untold = w.untold[len(batch):]
	}
}
