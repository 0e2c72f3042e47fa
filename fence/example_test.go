package fence_test

import (
	"errors"
	"fmt"
	"sync"

	"github.com/singletonjob/operator/fence"
)

// A process reads its token once, when it starts: each tenure is a new process with a new token.
func ExampleParseToken() {
	getenv := func(string) string { return "48213" } // os.Getenv in a program
	token, err := fence.ParseToken(getenv(fence.EnvToken))
	fmt.Println(token, err)

	_, err = fence.ParseToken("")
	fmt.Println(errors.Is(err, fence.ErrMissingToken))
	// Output:
	// 48213 <nil>
	// true
}

// A ledger in memory: the lock makes check and write one step, and mark and data are lost together.
func ExampleGate() {
	var (
		mu   sync.Mutex
		gate = fence.Gate{Resource: "default/billing"}
		mark fence.Token
		rows []string
	)
	write := func(token fence.Token, row string) error {
		mu.Lock()
		defer mu.Unlock()
		next, err := gate.Accept(mark, token)
		if err != nil {
			return err
		}
		mark, rows = next, append(rows, row)
		return nil
	}

	fmt.Println(write(33, "invoice 1"))
	fmt.Println(write(34, "invoice 2")) // a new tenure
	fmt.Println(write(33, "invoice 2 again"))
	fmt.Println(rows)
	// Output:
	// <nil>
	// <nil>
	// fencing token is stale: default/billing has seen token 34, the write carries 33: a later tenure has taken over, stop writing
	// [invoice 1 invoice 2]
}

// At a strict gate, only Advance raises the mark. The tenure's process starts after Advance has finished.
func ExampleGate_Advance() {
	gate := fence.Gate{Resource: "default/billing", Strict: true}
	mark, err := gate.Advance(0, 33)
	fmt.Println(mark, err)

	_, err = gate.Accept(mark, 9_000_000)
	fmt.Println(errors.Is(err, fence.ErrAhead))
	// Output:
	// 33 <nil>
	// true
}

func ExampleStaleError() {
	_, err := fence.Gate{Resource: "default/billing"}.Accept(34, 33)
	if stale, ok := errors.AsType[*fence.StaleError](err); ok {
		fmt.Println(stale.Resource, stale.Presented, stale.Highest)
	}
	// Output: default/billing 33 34
}
