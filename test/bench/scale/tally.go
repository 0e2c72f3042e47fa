//go:build linux

package main

import (
	"context"
	"errors"
	"math/rand/v2"
	"time"

	"k8s.io/apimachinery/pkg/types"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/singletonjob/operator/api/v1alpha1"
	"github.com/singletonjob/operator/test/observe"
)

// settled is how many jobs have a process that began after since, its label and all candidates ready.
func (f *fleet) settled(since time.Time) int {
	return f.ledger.count(func(j *jobRecord) bool { return j.acts(since) && !j.right.IsZero() && len(j.ready) == candidates })
}

// renewed is how many holders have renewed since.
func (f *fleet) renewed(since time.Time) (n int) {
	for _, c := range f.holders() {
		if c.renewedSince(since) {
			n++
		}
	}
	return n
}

// crashOne has a process crash, and says how long it took until the next one acted.
func (f *fleet) crashOne(ctx context.Context) (time.Duration, error) {
	holders := f.holders()
	if len(holders) == 0 {
		return 0, errors.New("nobody holds a Lease")
	}
	c := holders[rand.IntN(len(holders))]
	at := time.Now()
	c.crash()
	if err := observe.Await(ctx, c.job.String()+" to have another process", func() (bool, any, error) {
		f.ledger.mu.Lock()
		defer f.ledger.mu.Unlock()
		return f.ledger.of(c.job).acts(at), nil, nil
	}); err != nil {
		return 0, err
	}
	acts, _ := f.ledger.taken([]types.NamespacedName{c.job})
	return acts.Sub(at), nil
}

// severHalf cuts every second holder off.
func (f *fleet) severHalf() (severed []*candidate) {
	for i, c := range f.holders() {
		if i%2 == 0 {
			severed = append(severed, c)
			c.sever()
		}
	}
	return severed
}

// taken is how many of the jobs whose holders were cut off have another one, labelled active, and when the last one acted and was labelled.
func (f *fleet) taken(severed []*candidate, since time.Time) (done int, acts, labelled time.Time) {
	keys := make([]types.NamespacedName, 0, len(severed))
	f.ledger.mu.Lock()
	for _, c := range severed {
		keys = append(keys, c.job)
		if j := f.ledger.of(c.job); j.acts(since) && !j.right.IsZero() {
			done++
		}
	}
	f.ledger.mu.Unlock()
	acts, labelled = f.ledger.taken(keys)
	return done, acts, labelled
}

// untold are the tenures that statuses do not tell.
func (f *fleet) untold(ctx context.Context, c client.Client) (wrong []string, err error) {
	var all v1alpha1.SingletonJobList
	if err := c.List(ctx, &all); err != nil {
		return nil, err
	}
	for i := range all.Items {
		wrong = append(wrong, f.ledger.missing(&all.Items[i])...)
	}
	return wrong, nil
}
