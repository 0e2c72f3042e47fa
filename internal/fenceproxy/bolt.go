package fenceproxy

import (
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"time"

	"go.etcd.io/bbolt"

	"github.com/singletonjob/operator/fence"
)

// Bolt keeps marks in a bbolt file, which is synced to disk before Raise returns. Only one process at a time can have it open.
type Bolt struct {
	db    *bbolt.DB
	quiet time.Time // no mark is raised before this time
}

var marksBucket = []byte("marks")

// OpenBolt opens or creates the file. It waits up to wait for another process to close it. Requests of the previous process may still be in
// progress in the service, so no mark of the file is raised for the duration drain.
func OpenBolt(file string, wait, drain time.Duration) (*Bolt, error) {
	db, err := bbolt.Open(file, 0o600, &bbolt.Options{Timeout: wait})
	if err != nil {
		return nil, fmt.Errorf("open %s, which only one process at a time can have open: %w", file, err)
	}
	err = db.Update(func(tx *bbolt.Tx) error {
		_, err := tx.CreateBucketIfNotExists(marksBucket)
		return err
	})
	// The name of a new file is durable only after its directory is synced too.
	if err = errors.Join(err, syncFolder(filepath.Dir(file))); err != nil {
		return nil, errors.Join(fmt.Errorf("prepare %s: %w", file, err), db.Close())
	}
	return &Bolt{db, time.Now().Add(drain)}, nil
}

func syncFolder(name string) error {
	folder, err := os.Open(name)
	if err != nil {
		return err
	}
	return errors.Join(folder.Sync(), folder.Close())
}

// Close closes the file.
func (b *Bolt) Close() error { return b.db.Close() }

// Mark implements fencehttp.Store.
func (b *Bolt) Mark(_ context.Context, resource fence.Resource) (mark fence.Token, err error) {
	err = b.db.View(func(tx *bbolt.Tx) error {
		mark, err = readMark(tx, resource)
		return err
	})
	return mark, err
}

// Raise implements fencehttp.Store.
func (b *Bolt) Raise(ctx context.Context, resource fence.Resource, to fence.Token) error {
	mark, err := b.Mark(ctx, resource)
	if err != nil || mark >= to {
		return err
	}
	if mark > 0 && !pause(ctx, time.Until(b.quiet)) {
		return fmt.Errorf("wait for requests that were in progress before the start: %w", ctx.Err())
	}
	// Marks of other resources that are raised at the same time are synced together. bbolt can call the function more than once.
	return b.db.Batch(func(tx *bbolt.Tx) error {
		mark, err := readMark(tx, resource)
		if err != nil || mark >= to {
			return err
		}
		return tx.Bucket(marksBucket).Put([]byte(resource), binary.BigEndian.AppendUint64(nil, uint64(to)))
	})
}

// pause waits for d, and reports whether ctx has not ended by then.
func pause(ctx context.Context, d time.Duration) bool {
	timer := time.NewTimer(d)
	defer timer.Stop()
	select {
	case <-ctx.Done():
		return false
	case <-timer.C:
		return true
	}
}

func readMark(tx *bbolt.Tx, resource fence.Resource) (fence.Token, error) {
	value := tx.Bucket(marksBucket).Get([]byte(resource))
	if value == nil {
		return 0, nil
	}
	if len(value) != binary.Size(fence.Token(0)) || !fence.Token(binary.BigEndian.Uint64(value)).Valid() {
		return 0, fmt.Errorf("the file's mark of %s is %x, which is not a token: restore the file, or advance the mark in a new file", resource, value)
	}
	return fence.Token(binary.BigEndian.Uint64(value)), nil
}
