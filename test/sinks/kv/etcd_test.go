package kv

import (
	"context"
	"errors"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
	"time"

	clientv3 "go.etcd.io/etcd/client/v3"
	"go.uber.org/zap"

	"github.com/singletonjob/operator/fence"
	"github.com/singletonjob/operator/fence/fenceetcd"
	"github.com/singletonjob/operator/fence/fencetest"
)

var etcd = kind{
	name: "etcd", each: 2,
	command: func(addr, dir string) (*exec.Cmd, error) {
		programs, err := kubernetes()
		if err != nil {
			return nil, err
		}
		peer, err := free()
		if err != nil {
			return nil, err
		}
		// No fsync: it is the process that is killed here, not the machine.
		return exec.Command(filepath.Join(programs, "etcd"), "--name=only", "--data-dir="+dir, "--unsafe-no-fsync", "--log-level=error",
			"--listen-client-urls=http://"+addr, "--advertise-client-urls=http://"+addr,
			"--listen-peer-urls=http://"+peer, "--initial-advertise-peer-urls=http://"+peer, "--initial-cluster=only=http://"+peer), nil
	},
	open: func(addr string) (sink, error) {
		client, err := clientv3.New(clientv3.Config{Endpoints: []string{addr}, Logger: zap.NewNop()})
		return &inEtcd{Client: client}, err
	},
	ready: func(ctx context.Context, s sink) error {
		_, err := s.Stored(ctx, "none")
		return err
	},
}

// inEtcd keeps each payload under a key of its own; their order is that of their revisions.
type inEtcd struct {
	*clientv3.Client
	strict  bool
	between func(ctx context.Context, r fence.Resource, token fence.Token, txn fenceetcd.Txn) error // a broken way to commit
}

func folder(r fence.Resource) string { return "entries/" + string(r) + "/" }

func (s *inEtcd) Write(ctx context.Context, r fence.Resource, text, payload string) error {
	token, err := fence.ParseToken(text)
	if err != nil {
		return err
	}
	key := folder(r) + payload
	txn := fenceetcd.Txn{
		If:   []clientv3.Cmp{clientv3.Compare(clientv3.CreateRevision(key), "=", 0)},
		Then: []clientv3.Op{clientv3.OpPut(key, "")},
	}
	if s.between != nil {
		return s.between(ctx, r, token, txn)
	}
	answer, err := fenceetcd.Fence{Resource: r, Strict: s.strict}.Commit(ctx, s, token, txn)
	if err == nil && !answer.Succeeded {
		return errors.New("it is there already")
	}
	return err
}

func (s *inEtcd) Advance(ctx context.Context, r fence.Resource, text string) error {
	token, err := fence.ParseToken(text)
	if err != nil {
		return err
	}
	return fenceetcd.Fence{Resource: r, Strict: s.strict}.Advance(ctx, s, token)
}

func (s *inEtcd) Strict() fencetest.Advancer { return &inEtcd{Client: s.Client, strict: true} }

func (s *inEtcd) Verbatim() {}

func (s *inEtcd) Stored(ctx context.Context, r fence.Resource) (all []string, err error) {
	answer, err := s.Get(ctx, folder(r), clientv3.WithPrefix(), clientv3.WithSort(clientv3.SortByModRevision, clientv3.SortAscend))
	if err != nil {
		return nil, err
	}
	for _, entry := range answer.Kvs {
		all = append(all, strings.TrimPrefix(string(entry.Key), folder(r)))
	}
	return all, nil
}

// brokenEtcd are ways to build it wrong, each with the case of the suite that finds it.
func brokenEtcd(s *inEtcd) map[string]broken {
	plain := func(ctx context.Context, txn fenceetcd.Txn, more ...clientv3.Op) error {
		_, err := s.Txn(ctx).If(txn.If...).Then(append(txn.Then, more...)...).Commit()
		return err
	}
	return map[string]broken{
		"no comparison": {"StaleRefused", &inEtcd{Client: s.Client, between: func(ctx context.Context, _ fence.Resource, _ fence.Token, txn fenceetcd.Txn) error {
			return plain(ctx, txn)
		}}},
		"values without leading zeros": {"NumbersNotStrings", &inEtcd{Client: s.Client, between: func(ctx context.Context, r fence.Resource, token fence.Token, txn fenceetcd.Txn) error {
			key, value := "unpadded/"+string(r), token.String()
			if _, err := s.Txn(ctx).If(clientv3.Compare(clientv3.CreateRevision(key), "=", 0)).Then(clientv3.OpPut(key, value)).Commit(); err != nil {
				return err
			}
			answer, err := s.Txn(ctx).If(clientv3.Compare(clientv3.Value(key), ">", value)).
				Else(append(txn.Then, clientv3.OpPut(key, value))...).Commit()
			if err == nil && answer.Succeeded {
				return &fence.StaleError{Resource: r, Presented: token, Highest: token + 1}
			}
			return err
		}}},
		"check, then write": {"ConcurrentTenures", &inEtcd{Client: s.Client, between: checkThenWrite(
			func(ctx context.Context, r fence.Resource, token fence.Token) error {
				return fenceetcd.Fence{Resource: r}.Advance(ctx, s, token)
			}, plainly(plain))}},
	}
}

func plainly(write func(context.Context, fenceetcd.Txn, ...clientv3.Op) error) func(context.Context, fenceetcd.Txn) error {
	return func(ctx context.Context, txn fenceetcd.Txn) error { return write(ctx, txn) }
}

func TestEtcdFaults(t *testing.T) {
	s, ok := run(t, etcd).client(t).(*inEtcd)
	if !ok {
		t.Fatal("no client of etcd")
	}
	t.Run("broken", func(t *testing.T) { finds(t, brokenEtcd(s)) })
	t.Run("a damaged mark", func(t *testing.T) {
		for _, value := range []string{"", "7", "nine", "-000000000000000007"} {
			f := fenceetcd.Fence{Resource: fresh()}
			_, err := s.Put(t.Context(), f.Key(), value)
			must(t, err)
			_, err = f.Commit(patience(t), s, 9, fenceetcd.Txn{})
			if err == nil || errors.Is(err, fence.ErrStale) || !strings.Contains(err.Error(), f.Key()) {
				t.Errorf("with a mark of %q: %v, want it to name the mark's key", value, err)
			}
		}
	})
	t.Run("the caller's own comparison", func(t *testing.T) { etcdComparisons(t, s) })
}

// etcdComparisons: a comparison of the caller that fails is no refusal, and a stale token runs neither branch.
func etcdComparisons(t *testing.T, s *inEtcd) {
	f := fenceetcd.Fence{Resource: fresh()}
	key := folder(f.Resource)
	txn := fenceetcd.Txn{
		If:   []clientv3.Cmp{clientv3.Compare(clientv3.ModRevision(key), "=", 0)},
		Then: []clientv3.Op{clientv3.OpPut(key, "then")},
		Else: []clientv3.Op{clientv3.OpPut(key+"else", "else"), clientv3.OpGet(key)},
	}
	first, err := f.Commit(patience(t), s, 33, txn)
	must(t, err)
	again, err := f.Commit(patience(t), s, 33, txn) // as who lost the answer sends it again
	must(t, err)
	if !first.Succeeded || again.Succeeded || string(again.Responses[1].GetResponseRange().Kvs[0].Value) != "then" {
		t.Errorf("first %v, again %v: want the second to tell that the first was applied", first, again)
	}
	must(t, f.Advance(patience(t), s, 34))
	before, err := s.Get(patience(t), key+"else")
	must(t, err)
	_, err = f.Commit(patience(t), s, 33, txn)
	after, e := s.Get(patience(t), key+"else")
	must(t, e)
	if !errors.Is(err, fence.ErrStale) || after.Kvs[0].ModRevision != before.Kvs[0].ModRevision {
		t.Errorf("a stale transaction ended with %v, and ran its Else: %v", err, after.Kvs)
	}
}

// TestEtcdLosesAReply: the server applies a transaction whose answer never comes.
func TestEtcdLosesAReply(t *testing.T) {
	server := run(t, etcd)
	direct, ok := server.client(t).(*inEtcd)
	if !ok {
		t.Fatal("no client of etcd")
	}
	link := hold(t, server.addr)
	client, err := clientv3.New(clientv3.Config{
		Endpoints: []string{link.addr}, Logger: zap.NewNop(),
	})
	must(t, err)
	defer func() { _ = client.Close() }()
	f := fenceetcd.Fence{Resource: fresh()}
	must(t, f.Advance(patience(t), client, 33))
	link.answers.close()
	ctx, cancel := context.WithTimeout(t.Context(), time.Second)
	defer cancel()
	key := folder(f.Resource)
	txn := fenceetcd.Txn{If: []clientv3.Cmp{clientv3.Compare(clientv3.ModRevision(key), "=", 0)}, Then: []clientv3.Op{clientv3.OpPut(key, "mine")}}
	if _, err := f.Commit(ctx, client, 33, txn); err == nil || errors.Is(err, fence.ErrStale) {
		t.Fatalf("without an answer: %v", err)
	}
	link.answers.open()
	txn.Else = []clientv3.Op{clientv3.OpGet(key)}
	for { // the first may be under way still: one of both is applied
		answer, err := f.Commit(patience(t), direct, 33, txn)
		must(t, err)
		if answer.Succeeded {
			continue
		}
		if entry := answer.Responses[0].GetResponseRange().Kvs[0]; entry.Version != 1 || string(entry.Value) != "mine" {
			t.Errorf("it was applied %d times: %v", entry.Version, entry)
		}
		return
	}
}
