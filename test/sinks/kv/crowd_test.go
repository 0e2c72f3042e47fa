package kv

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"testing"

	"github.com/singletonjob/operator/fence"
	"github.com/singletonjob/operator/fence/fenceetcd"
	"github.com/singletonjob/operator/fence/fenceredis"
	"github.com/singletonjob/operator/fence/fences3"
	"github.com/singletonjob/operator/fence/fencetest"
	"github.com/singletonjob/operator/test/rivals"
)

var crowds = rivals.Flags()

// unfenced is the same write without its fence.
func unfenced(s sink) fencetest.Adapter {
	switch s := s.(type) {
	case *inEtcd:
		return &inEtcd{Client: s.Client, between: func(ctx context.Context, _ fence.Resource, _ fence.Token, txn fenceetcd.Txn) error {
			_, err := s.Txn(ctx).If(txn.If...).Then(txn.Then...).Commit()
			return err
		}}
	case *inRedis:
		return &inRedis{Client: s.Client, write: func(ctx context.Context, _ fence.Resource, _ fence.Token, c fenceredis.Command) error {
			return s.Client.Do(ctx, c...).Err()
		}}
	case *inS3:
		return overwriting{s}
	case *inNATS:
		return &inNATS{natsClient: s.natsClient, publish: publishPlainly}
	}
	panic(fmt.Sprintf("no %T without a fence", s))
}

// overwriting reads an object and replaces it, whoever has written meanwhile.
type overwriting struct{ *inS3 }

func (s overwriting) Write(ctx context.Context, r fence.Resource, _, payload string) error {
	present, err := s.fence(r).Read(ctx)
	if err != nil {
		return err
	}
	change := fences3.Change{Body: append(present.Body, payload+"\n"...)}
	f := s.fence(r)
	f.Client = ignorant{s.API}
	_, err = f.Commit(ctx, max(1, present.Token), present, change)
	return err
}

// asking repeats a write whose outcome is unknown, unless the manifest has it. With so many writers to one manifest, more than 64 commits
// can come between a write and the look whether it was stored.
type asking struct{ *inS3 }

func (s asking) Write(ctx context.Context, r fence.Resource, text, payload string) error {
	err := s.inS3.Write(ctx, r, text, payload)
	for errors.Is(err, fences3.ErrUnknown) {
		stored, e := s.Stored(ctx, r)
		if e != nil {
			return e
		}
		if slices.Contains(stored, payload) {
			return nil
		}
		err = s.inS3.Write(ctx, r, text, payload)
	}
	return err
}

// TestCrowd: for as long as is wanted, and beside writes without a fence.
func TestCrowd(t *testing.T) {
	fmt.Println(rivals.Header)
	for _, k := range kinds {
		t.Run(k.name, func(t *testing.T) {
			s := run(t, k).client(t)
			subject := rivals.Subject{Name: k.name, Adapter: s, Unfenced: unfenced(s)}
			if s, is := s.(*inS3); is {
				subject.Adapter = asking{s}
			}
			crowds.Test(t, subject)
		})
	}
}
