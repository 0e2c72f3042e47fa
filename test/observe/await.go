// Package observe tells what a test saw: who lived when, by the sink's record, and what happened around it.
package observe

import (
	"context"
	"errors"
	"fmt"
	"time"
)

// poll is how often something awaited is looked at. No measured time depends on it.
const poll = 50 * time.Millisecond

// Await calls is until it is true. The error says what was awaited and what was seen last. If the last look met the end of the context,
// the error has the look before.
func Await(ctx context.Context, what string, is func() (done bool, seen any, err error)) error {
	var last any
	for {
		done, seen, err := is()
		if done {
			return nil
		}
		if err == nil || seen != nil {
			last = seen
		}
		select {
		case <-ctx.Done():
			return errors.Join(fmt.Errorf("waiting for %s: %w; last seen: %+v", what, context.Cause(ctx), last), err)
		case <-time.After(poll):
		}
	}
}
