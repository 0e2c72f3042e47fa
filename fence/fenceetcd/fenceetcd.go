// Package fenceetcd is the fence for etcd: a transaction of a past tenure is not applied.
//
// A mark is a key. The check is a comparison in the caller's own transaction, which raises the mark in the same step:
//
//	ledger := fenceetcd.Fence{Resource: fence.ResourceOf(namespace, name)}
//	answer, err := ledger.Commit(ctx, client, token, fenceetcd.Txn{
//		Then: []clientv3.Op{clientv3.OpPut("billing/last", "invoice 17")},
//	})
//
// Marks are stored with a fixed number of digits, because etcd compares values byte by byte.
//
// # What it guarantees
//
// Once a transaction with a token was applied, or [Fence.Advance] has returned, no transaction with a lower token is applied. Mark and data
// belong to one revision of one store: they are lost and restored together.
//
// # What it does not guarantee
//
// It guards only writes through it. A client that can write or delete the mark's key can lower the mark: give programs access to their own
// prefix only, and never delete a range that holds marks. A cluster restored from a snapshot has the mark of that snapshot: advance it.
//
// # Errors
//
// Refusals are those of [fence.Gate]. After any other error, the transaction may have been applied or may still be applied: the client does
// not repeat a transaction that it may have sent. Send it again with a comparison that fails once it was applied, such as the ModRevision of
// the key that it writes. If that comparison fails, read the key: its value shows which transaction was first.
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

// DefaultPrefix is the default prefix of the marks' keys.
const DefaultPrefix = "fence/marks/"

// digits is the length of a stored mark: that of the greatest token.
const digits = 19

// Fence guards one resource.
type Fence struct {
	Resource fence.Resource
	// Prefix comes before the resource in the key of its mark. Empty: DefaultPrefix.
	Prefix string
	// Strict lets only Advance raise the mark; see fence.Gate.
	Strict bool
}

// Txn is the caller's transaction, in etcd's terms.
type Txn struct {
	If         []clientv3.Cmp
	Then, Else []clientv3.Op
}

// ErrNoMark says that the resource has no mark yet. Commit and Advance create it.
var ErrNoMark = errors.New("fencing mark is missing")

// Key returns the key of the mark.
func (f Fence) Key() string { return cmp.Or(f.Prefix, DefaultPrefix) + string(f.Resource) }

// Commit applies the caller's transaction if the fence accepts its token. It returns etcd's response: whether the caller's own comparisons
// succeeded, and what its operations returned. It takes one round trip, and two more at the first write to a resource.
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

// apply sends the caller's transaction as an operation within the transaction that checks.
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

// Compare returns the comparisons that let a token pass, for a transaction that the caller builds. Its Then must contain [Fence.Raise], and
// its Else must end with [Fence.Read]. If it does not succeed, [Fence.Refusal] returns the reason. A comparison with a key that does not
// exist fails: [Fence.Advance] creates the key.
func (f Fence) Compare(token fence.Token) ([]clientv3.Cmp, error) {
	if _, err := fence.ParseResource(string(f.Resource)); err != nil {
		return nil, err
	}
	if _, err := (fence.Gate{Resource: f.Resource}).Accept(0, token); err != nil {
		return nil, err // the token is not valid
	}
	value := clientv3.Value(f.Key())
	if f.Strict {
		return []clientv3.Cmp{clientv3.Compare(value, "=", wide(uint64(token)))}, nil
	}
	return f.notAbove(token), nil
}

// notAbove checks that the mark is a number and not above the token. The first comparison excludes a value that lost its digits: it sorts
// before all numbers.
func (f Fence) notAbove(token fence.Token) []clientv3.Cmp {
	value := clientv3.Value(f.Key())
	return []clientv3.Cmp{
		clientv3.Compare(value, ">", strings.Repeat("0", digits-1)),
		clientv3.Compare(value, "<", wide(uint64(token)+1)),
	}
}

// Raise stores the token as the mark if the mark is lower.
func (f Fence) Raise(token fence.Token) clientv3.Op {
	next := wide(uint64(token))
	lower := clientv3.Compare(clientv3.Value(f.Key()), "<", next)
	return clientv3.OpTxn([]clientv3.Cmp{lower}, []clientv3.Op{clientv3.OpPut(f.Key(), next)}, nil)
}

// Read makes the response to a refused transaction contain the mark.
func (f Fence) Read() clientv3.Op { return clientv3.OpGet(f.Key()) }

// Refusal returns the reason why the fence refused a transaction whose Else ended with [Fence.Read]. Nil: the fence did not refuse it; one
// of the caller's own comparisons failed.
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

// Advance raises the mark to a token. After it returns without an error, every lower token is refused. It is for the beginning of a tenure
// (spec.preActivate), and can be repeated.
func (f Fence) Advance(ctx context.Context, kv clientv3.KV, to fence.Token) error {
	f.Strict = false
	_, err := f.Commit(ctx, kv, to, Txn{})
	return err
}

// create stores a mark of 0 if there is no mark.
func (f Fence) create(ctx context.Context, kv clientv3.KV) error {
	_, err := kv.Txn(ctx).
		If(clientv3.Compare(clientv3.CreateRevision(f.Key()), "=", 0)).
		Then(clientv3.OpPut(f.Key(), wide(0))).
		Commit()
	if err != nil {
		return fmt.Errorf("fence %s: create the mark: %w", f.Resource, err)
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
