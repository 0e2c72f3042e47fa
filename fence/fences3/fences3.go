// Package fences3 is the fence for S3 and compatible stores: a write takes effect in one object, the manifest.
//
// An object store has no transactions, and its ETags have no order. It has conditional writes: replace this object if it is still the one
// that was read (If-Match), or create it if it does not exist (If-None-Match). The manifest therefore holds the mark together with the
// guarded data. This is either a small body, or the names of other objects. Write those objects first, under unique names: they have no
// effect until the manifest names them.
//
//	ledger := fences3.Fence{Resource: fence.ResourceOf(namespace, name), Client: s3.NewFromConfig(config), Bucket: "billing"}
//	manifest, err := ledger.Update(ctx, token, func(m fences3.Manifest) ([]byte, error) {
//		return append(m.Body, "invoices/34/a81f…\n"...), nil
//	})
//
// # What it guarantees
//
// Once a manifest with a token is stored, no manifest with a lower token is stored, and none that was derived from an older manifest.
//
// # What it does not guarantee
//
// It guards the manifest and the objects that are read through it, not writes and deletions of other objects. Programs must therefore not
// find objects by listing them, and need no permission to delete. A separate cleanup deletes objects that no manifest has named for days.
// Deleting or restoring the manifest loses the mark too. The store must honour both conditions: many stores did not for a long time, and
// ignored the headers silently. [Probe] tests it. During a write, a read can return the old ETag with the new content, as gateways to file
// systems do: a change derived from it is refused. A read must not return the new ETag with the old content.
//
// # Errors
//
// Refusals are those of [fence.Gate]. [ErrConflict] means that another write came first. A lost answer looks like a lost race, because the
// retry finds the object changed. The manifest therefore holds the IDs of its last commits, and Commit reads it back. After any other
// error, including [ErrUnknown], the change may be stored or may still be stored: commit it again with the same ID, which [Manifest.Has]
// finds.
package fences3

import (
	"bytes"
	"cmp"
	"context"
	"crypto/rand"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net/http"
	"slices"

	"github.com/aws/aws-sdk-go-v2/aws"
	"github.com/aws/aws-sdk-go-v2/service/s3"
	"github.com/aws/aws-sdk-go-v2/service/s3/types"

	"github.com/singletonjob/operator/fence"
)

// remembered is how many commits a manifest names. At most so many other commits can come between a commit and the check whether it was
// stored.
const remembered = 64

// The errors of a commit besides the refusals of package fence.
var (
	// ErrConflict says that another write came first: decide again from the manifest that was returned with the error.
	ErrConflict = errors.New("the manifest has changed")
	// ErrUnknown says that the outcome is unknown, for example because the manifest no longer names commits as old as this one.
	ErrUnknown = errors.New("it is unknown whether the commit was stored")
)

// API is the part of *s3.Client that a fence needs.
type API interface {
	GetObject(context.Context, *s3.GetObjectInput, ...func(*s3.Options)) (*s3.GetObjectOutput, error)
	PutObject(context.Context, *s3.PutObjectInput, ...func(*s3.Options)) (*s3.PutObjectOutput, error)
}

// Fence guards one resource.
type Fence struct {
	Resource fence.Resource
	Client   API
	Bucket   string
	// Key of the manifest. Empty: "fence/" and the resource.
	Key string
	// Strict lets only Advance raise the mark; see fence.Gate.
	Strict bool
}

// Manifest is the stored state of a resource.
type Manifest struct {
	// Token is the mark, 0 if there is no manifest yet.
	Token fence.Token
	// Body is the caller's data.
	Body []byte

	commits int64    // how many commits there were
	recent  []string // the IDs of the last commits
	etag    string   // empty: there is no manifest
}

// Has reports whether one of the last 64 commits has that ID.
func (m Manifest) Has(id string) bool { return slices.Contains(m.recent, id) }

// Change is a change to commit.
type Change struct {
	// ID identifies the change: a change with the same ID is the same change, sent again. Empty: a random ID. The ID also keeps a manifest
	// from having the ETag of an earlier one with the same content.
	ID   string
	Body []byte
}

// stored is the stored form of a manifest.
type stored struct {
	Token   string   `json:"token"`
	Commits int64    `json:"commits"`
	Recent  []string `json:"recent"`
	Body    []byte   `json:"body"` // base64
}

func (f Fence) key() string { return cmp.Or(f.Key, "fence/"+string(f.Resource)) }

// Read returns the manifest, or an empty one if it does not exist.
func (f Fence) Read(ctx context.Context) (Manifest, error) {
	if _, err := fence.ParseResource(string(f.Resource)); err != nil {
		return Manifest{}, err
	}
	got, err := f.Client.GetObject(ctx, &s3.GetObjectInput{Bucket: &f.Bucket, Key: aws.String(f.key())})
	if _, none := errors.AsType[*types.NoSuchKey](err); none {
		return Manifest{}, nil
	}
	if err != nil {
		return Manifest{}, fmt.Errorf("fence %s: read the manifest: %w", f.Resource, err)
	}
	defer func() { _ = got.Body.Close() }()
	text, err := io.ReadAll(got.Body)
	if err != nil {
		return Manifest{}, fmt.Errorf("fence %s: read the manifest: %w", f.Resource, err)
	}
	return f.decode(text, aws.ToString(got.ETag))
}

func (f Fence) decode(text []byte, etag string) (Manifest, error) {
	var s stored
	err := json.Unmarshal(text, &s)
	mark, e := fence.ParseToken(s.Token)
	if err = errors.Join(err, e); err != nil {
		return Manifest{}, fmt.Errorf("fence %s: %s in bucket %s is not a manifest; replace it by one with the highest token that was ever accepted: %w",
			f.Resource, f.key(), f.Bucket, err)
	}
	return Manifest{Token: mark, Body: s.Body, commits: s.Commits, recent: s.Recent, etag: etag}, nil
}

// Commit replaces the manifest base, as returned by Read, Commit or Update, by one with the token and the change. It returns the current
// manifest, also with ErrConflict and with a refusal.
func (f Fence) Commit(ctx context.Context, token fence.Token, base Manifest, change Change) (Manifest, error) {
	return f.commit(ctx, token, base, change, fence.Gate{Resource: f.Resource, Strict: f.Strict}.Accept)
}

// Advance raises the mark to a token. After it returns without an error, every lower token is refused. It is for the beginning of a tenure
// (spec.preActivate), and can be repeated.
func (f Fence) Advance(ctx context.Context, to fence.Token) error {
	gate := fence.Gate{Resource: f.Resource}
	for waits := (pause{}); ; {
		m, err := f.Read(ctx)
		if err != nil {
			return err
		}
		if _, err := gate.Advance(m.Token, to); err != nil || m.Token == to {
			return err
		}
		if _, err = f.commit(ctx, to, m, Change{Body: m.Body}, gate.Advance); !errors.Is(err, ErrConflict) {
			return err
		}
		if err := waits.wait(ctx); err != nil {
			return err
		}
	}
}

// Update commits the body that change returns for the manifest. It calls change again if another write came first, so change must have no
// side effects.
func (f Fence) Update(ctx context.Context, token fence.Token, change func(Manifest) (body []byte, err error)) (Manifest, error) {
	m, err := f.Read(ctx)
	for waits := (pause{}); err == nil; err = waits.wait(ctx) {
		if _, err := (fence.Gate{Resource: f.Resource, Strict: f.Strict}).Accept(m.Token, token); err != nil {
			return m, err
		}
		body, err := change(m)
		if err != nil {
			return m, err
		}
		if m, err = f.Commit(ctx, token, m, Change{Body: body}); !errors.Is(err, ErrConflict) {
			return m, err
		}
	}
	return m, err
}

// accept decides on a token.
type accept func(mark, presented fence.Token) (fence.Token, error)

func (f Fence) commit(ctx context.Context, token fence.Token, base Manifest, change Change, accept accept) (Manifest, error) {
	if _, err := fence.ParseResource(string(f.Resource)); err != nil {
		return base, err
	}
	mark, err := accept(base.Token, token)
	if err != nil {
		return base, err
	}
	id := cmp.Or(change.ID, rand.Text())
	if base.Has(id) {
		return base, nil
	}
	next := Manifest{Token: mark, Body: change.Body, commits: base.commits + 1, recent: append(slices.Clone(base.recent), id)}
	next.recent = next.recent[max(0, len(next.recent)-remembered):]
	for waits := (pause{}); ; {
		next.etag, err = f.put(ctx, base, next)
		if err == nil {
			return next, nil
		}
		if final(err) {
			return base, fmt.Errorf("fence %s: write the manifest: %w", f.Resource, err)
		}
		now, e := f.Read(ctx)
		if e != nil {
			return base, fmt.Errorf("fence %s: %w: %w, and then: %w", f.Resource, ErrUnknown, err, e)
		}
		if now.etag != base.etag {
			return f.outcome(now, next, id, token, accept)
		}
		if e := waits.wait(ctx); e != nil { // it is not stored yet: the repetition has the same condition, so at most one of them is stored
			return base, fmt.Errorf("fence %s: %w: %w, and then: %w", f.Resource, ErrUnknown, err, e)
		}
	}
}

// outcome finds out from the current manifest whether one that was sent was stored.
func (f Fence) outcome(now, sent Manifest, id string, token fence.Token, accept accept) (Manifest, error) {
	if now.Has(id) {
		return now, nil
	}
	if !follows(now, sent) {
		return now, fmt.Errorf("fence %s: the current manifest, with %d commits, does not follow the one with %d that was read: it was deleted or restored; advance the mark before the next write",
			f.Resource, now.commits, sent.commits-1)
	}
	_, refusal := accept(now.Token, token)
	switch {
	case now.commits-sent.commits >= int64(len(now.recent)):
		return now, errors.Join(refusal, fmt.Errorf("fence %s: %w", f.Resource, ErrUnknown))
	case refusal != nil:
		return now, refusal
	}
	return now, fmt.Errorf("fence %s: %w", f.Resource, ErrConflict)
}

// follows reports whether the manifest now is the one that sent was derived from, or a later one. It then names the last commit of that
// one, unless too many commits came after it. The first manifest has no earlier one. The one that sent was derived from may have been read
// during a write.
func follows(now, sent Manifest) bool {
	before := sent.commits - 1
	if now.commits < before {
		return false
	}
	base := sent.recent[:len(sent.recent)-1]
	return len(base) == 0 || now.commits-before >= remembered || now.Has(base[len(base)-1])
}

// put stores a manifest if the base is still the stored one.
func (f Fence) put(ctx context.Context, base, next Manifest) (etag string, err error) {
	text, err := json.Marshal(stored{Token: next.Token.String(), Commits: next.commits, Recent: next.recent, Body: next.Body})
	if err != nil {
		return "", err
	}
	in := &s3.PutObjectInput{Bucket: &f.Bucket, Key: aws.String(f.key()), Body: bytes.NewReader(text), ContentType: aws.String("application/json")}
	if in.IfMatch = &base.etag; base.etag == "" {
		in.IfMatch, in.IfNoneMatch = nil, aws.String("*")
	}
	out, err := f.Client.PutObject(ctx, in)
	if err != nil {
		return "", err
	}
	return aws.ToString(out.ETag), nil
}

// status returns the HTTP status of an error, 0 if there was no response.
func status(err error) int {
	if answer, ok := errors.AsType[interface {
		error
		HTTPStatusCode() int
	}](err); ok {
		return answer.HTTPStatusCode()
	}
	return 0
}

// final reports whether the store refused the request for another reason than a write that came first.
func final(err error) bool {
	switch code := status(err); code {
	case http.StatusNotFound, http.StatusConflict, http.StatusPreconditionFailed, http.StatusRequestTimeout, http.StatusTooManyRequests:
		return false
	default:
		return code >= http.StatusBadRequest && code < http.StatusInternalServerError
	}
}
