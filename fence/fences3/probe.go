package fences3

import (
	"context"
	"fmt"
	"math/rand/v2"
	"net/http"
	"strings"
	"sync"
	"time"

	"github.com/aws/aws-sdk-go-v2/aws"
	"github.com/aws/aws-sdk-go-v2/service/s3"
)

// Probe tests whether a store honours the conditions that the fence relies on. It writes a few times to an object with that key, and does
// not delete it. A store that ignores the conditions can't fence, because it stores writes that it should refuse. Call Probe once before
// the first use of a store, or in a test. It reliably finds conditions that are ignored. It also tries concurrent writes with one
// condition, but can miss a race between them.
func Probe(ctx context.Context, client API, bucket, key string) error {
	p := probe{client, bucket, key}
	if _, err := p.put(ctx, "", "*"); err != nil && !refused(err) {
		return fmt.Errorf("fences3: probe %s in bucket %s: %w", key, bucket, err)
	}
	if _, err := p.put(ctx, "", "*"); !refused(err) {
		return p.ignored("If-None-Match: * on an object that exists", err)
	}
	if _, err := p.put(ctx, `"00000000000000000000000000000000"`, ""); !refused(err) {
		return p.ignored("If-Match with an ETag that the object does not have", err)
	}
	return p.race(ctx)
}

type probe struct {
	client      API
	bucket, key string
}

func (p probe) put(ctx context.Context, match, noneMatch string) (etag string, err error) {
	in := &s3.PutObjectInput{Bucket: &p.bucket, Key: &p.key, Body: strings.NewReader(fmt.Sprint(rand.Uint64()))}
	if match != "" {
		in.IfMatch = &match
	}
	if noneMatch != "" {
		in.IfNoneMatch = &noneMatch
	}
	out, err := p.client.PutObject(ctx, in)
	if err != nil {
		return "", err
	}
	return aws.ToString(out.ETag), nil
}

// race sends concurrent writes with the same condition. At most one of them may succeed.
func (p probe) race(ctx context.Context) error {
	const racers = 8
	etag, err := p.put(ctx, "", "")
	if err != nil {
		return fmt.Errorf("fences3: probe %s in bucket %s: %w", p.key, p.bucket, err)
	}
	failures := make([]error, racers)
	var all sync.WaitGroup
	for i := range racers {
		all.Go(func() { _, failures[i] = p.put(ctx, etag, "") })
	}
	all.Wait()
	stored := 0
	for _, err := range failures {
		if err == nil {
			stored++
		}
	}
	if stored > 1 {
		return p.ignored(fmt.Sprintf("If-Match between %d concurrent writes, of which it stored %d", racers, stored), nil)
	}
	return nil
}

func (p probe) ignored(what string, err error) error {
	if err != nil {
		return fmt.Errorf("fences3: probe %s in bucket %s, %s: %w", p.key, p.bucket, what, err)
	}
	return fmt.Errorf("fences3: the store of bucket %s ignores %s: it can't fence", p.bucket, what)
}

func refused(err error) bool { return err != nil && status(err) == http.StatusPreconditionFailed }

// pause is a backoff with jitter, so that concurrent writers spread out.
type pause struct{ tries int }

func (p *pause) wait(ctx context.Context) error {
	const first, doublings = 2 * time.Millisecond, 8
	p.tries = min(p.tries+1, doublings)
	timer := time.NewTimer(rand.N(first << p.tries))
	defer timer.Stop()
	select {
	case <-ctx.Done():
		return ctx.Err()
	case <-timer.C:
		return nil
	}
}
