// Package fenceetcd is the fence for etcd: a transaction of a past tenure is not applied.
//
// A mark is a key, and the check is a comparison within the caller's own transaction, which raises the mark in the same step:
//
//	ledger := fenceetcd.Fence{Resource: fence.ResourceOf(namespace, name)}
//	answer, err := ledger.Commit(ctx, client, token, fenceetcd.Txn{
//		Then: []clientv3.Op{clientv3.OpPut("billing/last", "invoice 17")},
//	})
//
// Marks are stored with a fixed number of digits, since etcd compares values byte by byte.
//
// # What it guarantees
//
// Once a transaction with a token was applied, or [Fence.Advance] has returned, no transaction with a lower one is. Mark and data are one
// revision of one store: they are lost and restored together.
//
// # What it can't
//
// It guards what is written through it. Who may write or delete the mark's key may turn it back: give programs no right to more than their
// own prefix, and never delete a range that holds marks. A cluster that is restored from a snapshot has the mark of that snapshot: advance it.
//
// # Errors
//
// Refusals are those of [fence.Gate]. After any other error the transaction may have been applied, or be applied still: the client repeats
// none that it may have sent. Send the same again with a comparison that its first application makes false, such as the ModRevision of the key that
// it writes. If that comparison then fails, read the key: it tells who was first.
package fenceetcd

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"strings"

	clientv3 "go.etcd.io/etcd/client/v3"

	"github.com/singletonjob/operator/fence"
)

// DefaultPrefix is where the marks are.
const DefaultPrefix = "fence/marks/"

// digits of a mark: as many as the greatest token has.
const digits = 19

// Fence guards one resource.
type Fence struct {
	Resource fence.Resource
	// Prefix comes before the resource in the key of its mark: DefaultPrefix if it is empty.
	Prefix string
	// Strict has only Advance raise the mark; see fence.Gate.
	Strict bool
}

// Txn is a transaction of the caller, in etcd's words.
type Txn struct {
	If         []clientv3.Cmp
	Then, Else []clientv3.Op
}

// ErrNoMark says that the resource has no mark yet. Commit and Advance make it.
var ErrNoMark = errors.New("fencing mark is missing")

// Key is the key of the mark.
func (f Fence) Key() string { return cmp.Or(f.Prefix, DefaultPrefix) + string(f.Resource) }

// Commit applies a transaction of the caller if the fence lets its token pass, and returns etcd's answer to it: whether the caller's own
// comparisons held, and what its operations returned. It is one round trip, and two more at the first write to a resource.
func (f Fence) Commit(ctx context.Context, kv clientv3.KV, token fence.Token, txn Txn) (*clientv3.TxnResponse, error) {
	answer, err := f.apply(ctx, kv, token, txn)
	if errors.Is(err, ErrNoMark) && !f.Strict {
		if err := f.create(ctx, kv); err != nil {
			return nil, err
		}
		answer, err = f.apply(ctx, kv, token, txn)
	}
	return answer, err
}

// apply sends the caller's transaction as an operation of the one that checks.
func (f Fence) apply(ctx context.Context, kv clientv3.KV, token fence.Token, txn Txn) (*clientv3.TxnResponse, error) {
	comparisons, err := f.Compare(token)
	if err != nil {
		return nil, err
	}
	answer, err := kv.Txn(ctx).
		If(comparisons...).
		Then(clientv3.OpTxn(txn.If, txn.Then, txn.Else), f.Raise(token)).
		Else(f.Read()).
		Commit()
	if err != nil {
		return nil, fmt.Errorf("fence %s: commit: %w", f.Resource, err)
	}
	if !answer.Succeeded {
		return nil, f.Refusal(token, answer)
	}
	inner := answer.Responses[0].GetResponseTxn()
	inner.Header = answer.Header
	return (*clientv3.TxnResponse)(inner), nil
}

// Compare are the comparisons that let a token pass, for a transaction that the caller makes by itself. Its Then has [Fence.Raise] and its Else
// ends with [Fence.Read]; when it has not succeeded [Fence.Refusal] tells why. A comparison with a key that does not exist fails: [Fence.Advance] makes it.
func (f Fence) Compare(token fence.Token) ([]clientv3.Cmp, error) {
	if _, err := fence.ParseResource(string(f.Resource)); err != nil {
		return nil, err
	}
	if _, err := (fence.Gate{Resource: f.Resource}).Accept(0, token); err != nil {
		return nil, err // no token at all
	}
	value := clientv3.Value(f.Key())
	if f.Strict {
		return []clientv3.Cmp{clientv3.Compare(value, "=", wide(uint64(token)))}, nil
	}
	return f.notAbove(token), nil
}

// notAbove: the mark is a number, and none above the token. The first keeps out a value that lost its digits, which sorts before all numbers.
func (f Fence) notAbove(token fence.Token) []clientv3.Cmp {
	value := clientv3.Value(f.Key())
	return []clientv3.Cmp{
		clientv3.Compare(value, ">", strings.Repeat("0", digits-1)),
		clientv3.Compare(value, "<", wide(uint64(token)+1)),
	}
}

// Raise stores the token as the mark, unless it is that already.
func (f Fence) Raise(token fence.Token) clientv3.Op {
	next := wide(uint64(token))
	lower := clientv3.Compare(clientv3.Value(f.Key()), "<", next)
	return clientv3.OpTxn([]clientv3.Cmp{lower}, []clientv3.Op{clientv3.OpPut(f.Key(), next)}, nil)
}

// Read has the answer to a transaction that was refused say what the mark is.
func (f Fence) Read() clientv3.Op { return clientv3.OpGet(f.Key()) }

// Refusal tells why the fence refused a transaction whose Else ended with [Fence.Read]. Nil: it did not, another comparison of the caller failed.
func (f Fence) Refusal(token fence.Token, answer *clientv3.TxnResponse) error {
	if answer.Succeeded {
		return nil
	}
	if len(answer.Responses) == 0 {
		return fmt.Errorf("fence %s: the transaction was refused, and its Else does not end with Read", f.Resource)
	}
	read := answer.Responses[len(answer.Responses)-1].GetResponseRange()
	if read == nil {
		return fmt.Errorf("fence %s: the transaction was refused, and its Else does not end with Read", f.Resource)
	}
	gate := fence.Gate{Resource: f.Resource, Strict: f.Strict}
	if len(read.Kvs) == 0 && f.Strict {
		_, err := gate.Accept(0, token)
		return err
	}
	if len(read.Kvs) == 0 {
		return fmt.Errorf("fence %s: %w: advance it", f.Resource, ErrNoMark)
	}
	mark, err := f.parse(string(read.Kvs[0].Value))
	if err != nil {
		return err
	}
	_, err = gate.Accept(mark, token)
	return err
}

// Advance raises the mark to a token. When it returns without an error every lower token is refused from then on. It is for the beginning of a tenure
// (spec.preActivate), and may be repeated.
func (f Fence) Advance(ctx context.Context, kv clientv3.KV, to fence.Token) error {
	f.Strict = false
	_, err := f.Commit(ctx, kv, to, Txn{})
	return err
}

// create makes a mark of 0 unless there is one.
func (f Fence) create(ctx context.Context, kv clientv3.KV) error {
	_, err := kv.Txn(ctx).
		If(clientv3.Compare(clientv3.CreateRevision(f.Key()), "=", 0)).
		Then(clientv3.OpPut(f.Key(), wide(0))).
		Commit()
	if err != nil {
		return fmt.Errorf("fence %s: make the mark: %w", f.Resource, err)
	}
	return nil
}

func wide(n uint64) string { return fmt.Sprintf("%0*d", digits, n) }

func (f Fence) parse(value string) (fence.Token, error) {
	if value == wide(0) {
		return 0, nil
	}
	mark, err := fence.ParseToken(strings.TrimLeft(value, "0"))
	if err != nil || len(value) != digits {
		return 0, fmt.Errorf("fence %s: the mark in key %s is %.40q: it must have %d digits; put there the highest token that was ever accepted",
			f.Resource, f.Key(), value, digits)
	}
	return mark, nil
}
