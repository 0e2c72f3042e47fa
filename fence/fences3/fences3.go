// Package fences3 is the fence for S3 and stores like it: one object, the manifest, is where a write takes effect.
//
// An object store has no transaction, and its ETags have no order. What it has is a conditional write: replace this object if it is still the one that I
// read (If-Match), or make it if there is none (If-None-Match). So the manifest holds the mark together with what is guarded: a small body itself, or the
// names of other objects, which were written before under names that nobody else uses, and mean nothing until the manifest names them.
//
//	ledger := fences3.Fence{Resource: fence.ResourceOf(namespace, name), Client: s3.NewFromConfig(config), Bucket: "billing"}
//	manifest, err := ledger.Update(ctx, token, func(m fences3.Manifest) ([]byte, error) {
//		return append(m.Body, "invoices/34/a81f…\n"...), nil
//	})
//
// # What it guarantees
//
// Once a manifest with a token is stored, none with a lower one is, and none that was made from an older manifest.
//
// # What it can't
//
// It guards the manifest, and what is reached through it: no write and no deletion of another object. So nobody reads objects by listing them, and programs have no
// right to delete: who deletes looks for what no manifest has named for days. Who deletes or restores the manifest takes the mark with it.
// The store must honour both conditions: many did not for long, and ignore the headers without a word. [Probe] asks it. A read beside a write may
// give the old ETag with the new content, as gateways to file systems do: what is made from it is refused. It must not give the new ETag with the old content.
//
// # Errors
//
// Refusals are those of [fence.Gate]; [ErrConflict] is another's write that came first. A lost answer looks like a lost race, since the repetition finds
// the object changed: so the manifest has the names of its last commits, and Commit reads it back. After any other error, [ErrUnknown] among
// them, the change may be stored, or be stored still: commit it again with the same ID, which [Manifest.Has] finds.
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

// remembered is how many commits a manifest names: so many others may come between a commit and the look whether it was stored.
const remembered = 64

// What can become of a commit besides the refusals of package fence.
var (
	// ErrConflict says that another write came first: decide anew, from the manifest that came with it.
	ErrConflict = errors.New("the manifest has changed")
	// ErrUnknown says that so many others came first that the manifest no longer tells whether this one is among them.
	ErrUnknown = errors.New("nobody knows whether the commit was stored")
)

// API is what a fence needs of an *s3.Client.
type API interface {
	GetObject(context.Context, *s3.GetObjectInput, ...func(*s3.Options)) (*s3.GetObjectOutput, error)
	PutObject(context.Context, *s3.PutObjectInput, ...func(*s3.Options)) (*s3.PutObjectOutput, error)
}

// Fence guards one resource.
type Fence struct {
	Resource fence.Resource
	Client   API
	Bucket   string
	// Key of the manifest: "fence/" and the resource if it is empty.
	Key string
	// Strict has only Advance raise the mark; see fence.Gate.
	Strict bool
}

// Manifest is what the store has of a resource.
type Manifest struct {
	// Token is the mark: 0 where there is no manifest yet.
	Token fence.Token
	// Body is the caller's.
	Body []byte

	commits int64    // how many there were
	recent  []string // the names of the last of them
	etag    string   // empty: there is no manifest
}

// Has reports whether a commit of that ID is among the last 64.
func (m Manifest) Has(id string) bool { return slices.Contains(m.recent, id) }

// Change is what to commit.
type Change struct {
	// ID names the change: another of the same ID is the same change, sent again. At random if it is empty, which also keeps a manifest from
	// having the ETag of an earlier one with the same content.
	ID   string
	Body []byte
}

// stored is a manifest as it is written.
type stored struct {
	Token   string   `json:"token"`
	Commits int64    `json:"commits"`
	Recent  []string `json:"recent"`
	Body    []byte   `json:"body"` // base64
}

func (f Fence) key() string { return cmp.Or(f.Key, "fence/"+string(f.Resource)) }

// Read gets the manifest, and an empty one where there is none.
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
		return Manifest{}, fmt.Errorf("fence %s: %s in bucket %s is no manifest; put there one with the highest token that was ever accepted: %w",
			f.Resource, f.key(), f.Bucket, err)
	}
	return Manifest{Token: mark, Body: s.Body, commits: s.Commits, recent: s.Recent, etag: etag}, nil
}

// Commit replaces the manifest base, as Read, Commit or Update returned it, by one with the token and the change. It returns the manifest as it is then: with
// ErrConflict and a refusal, too.
func (f Fence) Commit(ctx context.Context, token fence.Token, base Manifest, change Change) (Manifest, error) {
	return f.commit(ctx, token, base, change, fence.Gate{Resource: f.Resource, Strict: f.Strict}.Accept)
}

// Advance raises the mark to a token. When it returns without an error every lower token is refused from then on. It is for the beginning of a
// tenure (spec.preActivate), and may be repeated.
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

// Update commits what change makes of the manifest, and asks it again while others come first. change must have no effect but its result.
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
		if e := waits.wait(ctx); e != nil { // it was not stored so far: the same again can't be stored twice
			return base, fmt.Errorf("fence %s: %w: %w, and then: %w", f.Resource, ErrUnknown, err, e)
		}
	}
}

// outcome tells from the manifest that is there what became of one that was sent.
func (f Fence) outcome(now, sent Manifest, id string, token fence.Token, accept accept) (Manifest, error) {
	if now.Has(id) {
		return now, nil
	}
	if !follows(now, sent) {
		return now, fmt.Errorf("fence %s: the manifest there is, of %d commits, does not follow on the one of %d that was read: it was deleted or restored; advance the mark before anything is written",
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

// follows reports whether a manifest is the one that another was made from, which may have been read beside a write, or a later one: it names the
// last commit of that one unless too many came after. A first one has none before it.
func follows(now, sent Manifest) bool {
	before := sent.commits - 1
	if now.commits < before {
		return false
	}
	base := sent.recent[:len(sent.recent)-1]
	return len(base) == 0 || now.commits-before >= remembered || now.Has(base[len(base)-1])
}

// put stores a manifest if the one before is there still.
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

// status is that of an answer, 0 where there was none.
func status(err error) int {
	if answer, ok := errors.AsType[interface {
		error
		HTTPStatusCode() int
	}](err); ok {
		return answer.HTTPStatusCode()
	}
	return 0
}

// final: the store refuses, and not because of what another has written.
func final(err error) bool {
	switch code := status(err); code {
	case http.StatusNotFound, http.StatusConflict, http.StatusPreconditionFailed, http.StatusRequestTimeout, http.StatusTooManyRequests:
		return false
	default:
		return code >= http.StatusBadRequest && code < http.StatusInternalServerError
	}
}
