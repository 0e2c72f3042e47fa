//go:build linux

package main

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"math/rand/v2"
	"net/rpc"
	"os"
	"os/exec"
	"time"

	"k8s.io/apimachinery/pkg/types"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/singletonjob/operator/api/v1alpha1"
	"github.com/singletonjob/operator/test/observe"
	"github.com/singletonjob/operator/test/stack"
	"github.com/singletonjob/operator/test/subprocess"
)

// A process can have only so many open files, and an address so many connections. So the jobs are divided into shards. Each shard has a
// process for its agents and an API server for them. The process is asked by net/rpc on its standard input and output.

// shardLabel is at jobs and pods.
const shardLabel = "scale/shard"

// Shard is a process with the nodes and agents of some jobs. Its methods are called by net/rpc.
type Shard struct {
	fleet    *fleet
	client   client.Client
	patience time.Duration
	severed  []*candidate
}

// Tally is what a shard counts.
type Tally struct {
	// Settled jobs have a process that began after the time that was asked about, its label and all candidates ready.
	Settled, Tenures int
	// Sent are the requests of nodes and agents.
	Sent map[string]float64
	// Renewed are the holders that have renewed since the time that was asked about.
	Renewed int
	Faults  []string
}

// Taken is what became of jobs whose holders are cut off.
type Taken struct {
	Jobs, Done     int
	Acts, Labelled time.Time
}

// serveShard is the life of a shard's process.
func serveShard(ctx context.Context, text string, patience time.Duration) error {
	var at place
	if err := json.Unmarshal([]byte(text), &at); err != nil {
		return err
	}
	f, err := startFleet(ctx, at)
	if err != nil {
		return err
	}
	c, err := stack.NewClient(at.config())
	if err != nil {
		return err
	}
	server := rpc.NewServer()
	if err := server.Register(&Shard{fleet: f, client: c, patience: patience}); err != nil {
		return err
	}
	server.ServeConn(pipes{os.Stdin, os.Stdout})
	return nil
}

// pipes are both directions of a connection.
type pipes struct {
	io.ReadCloser
	to io.WriteCloser
}

func (p pipes) Write(b []byte) (int, error) { return p.to.Write(b) }

func (p pipes) Close() error { return errors.Join(p.ReadCloser.Close(), p.to.Close()) }

// Count tallies.
func (s *Shard) Count(since time.Time, t *Tally) error {
	f := s.fleet
	t.Settled = f.ledger.count(func(j *jobRecord) bool { return j.acts(since) && !j.right.IsZero() && len(j.ready) == candidates })
	t.Tenures = f.ledger.tenures()
	for _, c := range f.holders() {
		if c.renewedSince(since) {
			t.Renewed++
		}
	}
	t.Sent = f.requests()
	f.ledger.mu.Lock()
	defer f.ledger.mu.Unlock()
	t.Faults = append(t.Faults, f.ledger.faults...)
	return nil
}

// Renewals are how long the confirmed writes to Leases took since they were last asked for.
func (s *Shard) Renewals(_ bool, took *[]time.Duration) error {
	*took = s.fleet.takeRenewals()
	return nil
}

// Crash has a process crash, and says how long it took until the next one acted.
func (s *Shard) Crash(_ bool, took *time.Duration) error {
	holders := s.fleet.holders()
	if len(holders) == 0 {
		return errors.New("nobody holds a Lease")
	}
	c, ledger := holders[rand.IntN(len(holders))], s.fleet.ledger
	at := time.Now()
	c.crash()
	ctx, cancel := context.WithTimeout(s.fleet.ctx, s.patience)
	defer cancel()
	if err := observe.Await(ctx, c.job.String()+" to have another process", func() (bool, any, error) {
		ledger.mu.Lock()
		defer ledger.mu.Unlock()
		return ledger.of(c.job).acts(at), nil, nil
	}); err != nil {
		return err
	}
	acts, _ := ledger.taken([]types.NamespacedName{c.job})
	*took = acts.Sub(at)
	return nil
}

// CutHalf cuts every second holder off.
func (s *Shard) CutHalf(bool, *bool) error {
	for i, c := range s.fleet.holders() {
		if i%2 == 0 {
			s.severed = append(s.severed, c)
			c.sever()
		}
	}
	return nil
}

// Heal heals what CutHalf cut.
func (s *Shard) Heal(bool, *bool) error {
	for _, c := range s.severed {
		c.heal()
	}
	return nil
}

// Taken says which of the jobs whose holders were cut off have another one, labelled active.
func (s *Shard) Taken(since time.Time, t *Taken) error {
	keys := make([]types.NamespacedName, 0, len(s.severed))
	ledger := s.fleet.ledger
	ledger.mu.Lock()
	for _, c := range s.severed {
		keys = append(keys, c.job)
		if j := ledger.of(c.job); j.acts(since) && !j.right.IsZero() {
			t.Done++
		}
	}
	ledger.mu.Unlock()
	t.Jobs = len(keys)
	t.Acts, t.Labelled = ledger.taken(keys)
	return nil
}

// Judge says which tenures the statuses of the shard's jobs do not tell.
func (s *Shard) Judge(_ bool, wrong *[]string) error {
	var all v1alpha1.SingletonJobList
	if err := s.client.List(s.fleet.ctx, &all, client.MatchingLabels{shardLabel: s.fleet.Shard}); err != nil {
		return err
	}
	for i := range all.Items {
		*wrong = append(*wrong, s.fleet.ledger.missing(&all.Items[i])...)
	}
	return nil
}

// shard is such a process, as its parent sees it.
type shard struct {
	*subprocess.Process
	*rpc.Client
}

// startShard runs this program again, for one shard.
func startShard(at place, patience time.Duration) (*shard, error) {
	text, err := json.Marshal(at)
	if err != nil {
		return nil, err
	}
	self, err := os.Executable()
	if err != nil {
		return nil, err
	}
	in, toIt, err := os.Pipe()
	if err != nil {
		return nil, err
	}
	fromIt, out, err := os.Pipe()
	if err != nil {
		return nil, err
	}
	cmd := exec.Command(self, "-shard="+string(text), "-patience="+patience.String())
	cmd.Stdin, cmd.Stdout, cmd.Stderr = in, out, os.Stderr
	p, err := subprocess.Start(cmd)
	_, _ = in.Close(), out.Close()
	if err != nil {
		return nil, err
	}
	return &shard{p, rpc.NewClient(pipes{fromIt, toIt})}, nil
}

// shards are all of them.
type shards []*shard

// ask calls a method of one shard.
func ask[Answer, Question any](ctx context.Context, s *shard, method string, question Question) (Answer, error) {
	answer := new(Answer)
	call := s.Go("Shard."+method, question, answer, make(chan *rpc.Call, 1))
	var err error
	select {
	case <-call.Done:
		err = call.Error
	case <-ctx.Done():
		err = ctx.Err()
	}
	if err != nil {
		return *new(Answer), fmt.Errorf("the process of agents, %s: %w", method, err)
	}
	return *answer, nil
}

// count adds up what all shards count.
func (all shards) count(ctx context.Context, since time.Time) (sum Tally, err error) {
	sum.Sent = map[string]float64{}
	for _, s := range all {
		t, err := ask[Tally](ctx, s, "Count", since)
		if err != nil {
			return sum, err
		}
		sum.Settled, sum.Tenures, sum.Renewed = sum.Settled+t.Settled, sum.Tenures+t.Tenures, sum.Renewed+t.Renewed
		for what, n := range t.Sent {
			sum.Sent[what] += n
		}
		sum.Faults = append(sum.Faults, t.Faults...)
	}
	return sum, nil
}

// collect calls a method of all shards, and joins what they answer.
func collect[Answer any](ctx context.Context, all shards, method string) (answers []Answer, err error) {
	for _, s := range all {
		answer, err := ask[[]Answer](ctx, s, method, false)
		if err != nil {
			return nil, err
		}
		answers = append(answers, answer...)
	}
	return answers, nil
}
