package kv

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"sync"
	"testing"

	"github.com/aws/aws-sdk-go-v2/aws"
	"github.com/aws/aws-sdk-go-v2/service/s3"

	"github.com/singletonjob/operator/fence"
	"github.com/singletonjob/operator/fence/fences3"
	"github.com/singletonjob/operator/fence/fencetest"
)

// s3Store is Versity's gateway, which keeps objects as files: its writes are compared under a lock, and it is one process that can be
// killed.
var s3Store = kind{
	name: "S3", each: 2, writes: "PUT ",
	command: func(addr, dir string) (*exec.Cmd, error) {
		gateway, err := versitygw()
		c := exec.Command(gateway, "--port="+addr, "--access="+credential, "--secret="+credential, "--quiet", "--keep-alive", "posix", dir)
		return c, err
	},
	open: func(addr string) (sink, error) {
		return &inS3{API: s3.New(s3.Options{
			BaseEndpoint: aws.String("http://" + addr), UsePathStyle: true, Region: "us-east-1",
			Credentials: aws.CredentialsProviderFunc(func(context.Context) (aws.Credentials, error) {
				return aws.Credentials{AccessKeyID: credential, SecretAccessKey: credential}, nil
			}),
			HTTPClient: &http.Client{Transport: &http.Transport{MaxIdleConnsPerHost: writers}},
		})}, nil
	},
	ready: func(ctx context.Context, s sink) error {
		client, ok := s.(*inS3).API.(*s3.Client)
		if !ok {
			return errors.New("no client of S3")
		}
		_, err := client.CreateBucket(ctx, &s3.CreateBucketInput{Bucket: aws.String(bucket)})
		if err != nil && strings.Contains(err.Error(), "BucketAlreadyOwnedByYou") {
			return nil
		}
		return err
	},
}

const bucket, credential = "sinks", "kv-tests"

// versitygw is the gateway, built once into the cache of this user: its dependencies take minutes.
var versitygw = sync.OnceValues(func() (string, error) {
	cache, err := os.UserCacheDir()
	if err != nil {
		return "", err
	}
	sums, err := os.ReadFile(filepath.Join("versitygw", "go.mod"))
	if err != nil {
		return "", err
	}
	_, rest, _ := strings.Cut(string(sums), "github.com/versity/versitygw ")
	dir := filepath.Join(cache, "singletonjob", "versitygw-"+strings.Fields(rest)[0])
	built := filepath.Join(dir, "versitygw")
	if _, err := os.Stat(built); err == nil {
		return built, nil
	}
	if err := os.MkdirAll(dir, 0o755); err != nil {
		return "", err
	}
	scratch, err := os.MkdirTemp(dir, "building-")
	if err != nil {
		return "", err
	}
	defer func() { _ = os.RemoveAll(scratch) }()
	c := exec.Command("go", "build", "-ldflags=-s -w", "-o", filepath.Join(scratch, "versitygw"), "github.com/versity/versitygw/cmd/versitygw")
	c.Dir = "versitygw"
	if out, err := c.CombinedOutput(); err != nil {
		return "", fmt.Errorf("build versitygw: %w\n%s", err, out)
	}
	return built, os.Rename(filepath.Join(scratch, "versitygw"), built)
})

// inS3 has a manifest for each resource, with a line for each payload.
type inS3 struct {
	fences3.API
	strict bool
}

func (s *inS3) fence(r fence.Resource) fences3.Fence {
	return fences3.Fence{Resource: r, Client: s.API, Bucket: bucket, Strict: s.strict}
}

func (s *inS3) Write(ctx context.Context, r fence.Resource, text, payload string) error {
	token, err := fence.ParseToken(text)
	if err != nil {
		return err
	}
	_, err = s.fence(r).Update(ctx, token, func(m fences3.Manifest) ([]byte, error) {
		return append(m.Body, payload+"\n"...), nil
	})
	return err
}

func (s *inS3) Advance(ctx context.Context, r fence.Resource, text string) error {
	token, err := fence.ParseToken(text)
	if err != nil {
		return err
	}
	return s.fence(r).Advance(ctx, token)
}

func (s *inS3) Strict() fencetest.Advancer { return &inS3{API: s.API, strict: true} }

func (s *inS3) Verbatim() {}

func (s *inS3) Close() error { return nil }

func (s *inS3) Stored(ctx context.Context, r fence.Resource) ([]string, error) {
	m, err := s.fence(r).Read(ctx)
	return strings.Fields(string(m.Body)), err
}

// ignorant is a store that ignores conditions, as those do which do not know them.
type ignorant struct{ fences3.API }

func (i ignorant) PutObject(ctx context.Context, in *s3.PutObjectInput, more ...func(*s3.Options)) (*s3.PutObjectOutput, error) {
	unconditional := *in
	unconditional.IfMatch, unconditional.IfNoneMatch = nil, nil
	return i.API.PutObject(ctx, &unconditional, more...)
}

// halting holds the first write until a second one was stored: the order that conditions are for.
type halting struct {
	fences3.API
	first, later *sync.Once
	stored       chan struct{}
}

func (h halting) PutObject(ctx context.Context, in *s3.PutObjectInput, more ...func(*s3.Options)) (*s3.PutObjectOutput, error) {
	mine := false
	h.first.Do(func() { mine = true })
	if mine {
		<-h.stored
		return h.API.PutObject(ctx, in, more...)
	}
	out, err := h.API.PutObject(ctx, in, more...)
	if err == nil {
		h.later.Do(func() { close(h.stored) })
	}
	return out, err
}

func s3Client(t *testing.T, server *server) *inS3 {
	t.Helper()
	s, ok := server.client(t).(*inS3)
	if !ok {
		t.Fatal("no client of S3")
	}
	return s
}

func TestS3Faults(t *testing.T) {
	s := s3Client(t, run(t, s3Store))
	halt := func(api fences3.API) *inS3 {
		return &inS3{API: halting{api, new(sync.Once), new(sync.Once), make(chan struct{})}}
	}
	t.Run("broken", func(t *testing.T) {
		finds(t, map[string]broken{"a store that ignores conditions": {"ConcurrentTenures", halt(ignorant{s})}})
	})
	t.Run("the same order at one that does not", func(t *testing.T) {
		must(t, fencetest.Fault(patience(t), halt(s.API), "ConcurrentTenures"))
	})
	t.Run("probe", func(t *testing.T) {
		for range 2 {
			must(t, fences3.Probe(patience(t), s.API, bucket, "probe"))
		}
		if err := fences3.Probe(patience(t), ignorant{s}, bucket, "probe"); err == nil || !strings.Contains(err.Error(), "it can't fence") {
			t.Errorf("a store that ignores conditions: %v", err)
		}
	})
	t.Run("a damaged manifest", func(t *testing.T) {
		for _, text := range []string{"", "{}", `{"token":"007"}`, `{"token":34}`} {
			f := s.fence(fresh())
			key := "fence/" + string(f.Resource)
			_, err := s.PutObject(patience(t), &s3.PutObjectInput{Bucket: aws.String(bucket), Key: &key, Body: strings.NewReader(text)})
			must(t, err)
			if err := f.Advance(patience(t), 9); err == nil || errors.Is(err, fence.ErrStale) || !strings.Contains(err.Error(), key) {
				t.Errorf("with a manifest of %q: %v, want it to name the object", text, err)
			}
		}
	})
}

// torn has each read begin before a write and end after it.
type torn struct {
	fences3.API
	write func()
}

func (t torn) GetObject(ctx context.Context, in *s3.GetObjectInput, more ...func(*s3.Options)) (*s3.GetObjectOutput, error) {
	before, err := t.API.GetObject(ctx, in, more...)
	if err != nil {
		return nil, err
	}
	t.write()
	after, err := t.API.GetObject(ctx, in, more...)
	if err == nil {
		after.ETag = before.ETag
	}
	return after, errors.Join(err, before.Body.Close())
}

// TestS3ReadDuringAWrite: nothing is stored from data that was read during another write. It does not count as a restored manifest.
func TestS3ReadDuringAWrite(t *testing.T) {
	s := s3Client(t, run(t, s3Store))
	ctx, r := patience(t), fresh()
	must(t, s.Write(ctx, r, "33", "first"))
	reader := s.fence(r)
	reader.Client = torn{s.API, func() { must(t, s.Write(ctx, r, "33", "meanwhile")) }}
	base, err := reader.Read(ctx)
	must(t, err)
	now, err := s.fence(r).Commit(ctx, 33, base, fences3.Change{Body: append(base.Body, "mine\n"...)})
	if !errors.Is(err, fences3.ErrConflict) || string(now.Body) != "first\nmeanwhile\n" {
		t.Fatalf("%v, and the manifest is %q", err, now.Body)
	}
	_, err = s.fence(r).Commit(ctx, 33, now, fences3.Change{Body: append(now.Body, "mine\n"...)})
	must(t, err)
	if stored, err := s.Stored(ctx, r); err != nil || strings.Join(stored, " ") != "first meanwhile mine" {
		t.Errorf("stored is %q, %v", stored, err)
	}
}

// TestS3ManifestWrittenByHand: a manifest that a user stored counts like any other, even if a commit has just found none.
func TestS3ManifestWrittenByHand(t *testing.T) {
	s := s3Client(t, run(t, s3Store))
	ctx, f := patience(t), s.fence(fresh())
	_, err := s.PutObject(ctx, &s3.PutObjectInput{Bucket: aws.String(bucket), Key: aws.String("fence/" + string(f.Resource)), Body: strings.NewReader(`{"token":"34"}`)})
	must(t, err)
	for token, want := range map[fence.Token]error{33: fence.ErrStale, 34: fences3.ErrConflict} {
		if _, err := f.Commit(ctx, token, fences3.Manifest{}, fences3.Change{Body: []byte("mine\n")}); !errors.Is(err, want) {
			t.Errorf("with token %v: %v, want %v", token, err, want)
		}
	}
}

// TestS3RestoredManifest: a manifest that goes back in time is reported, and nothing is written to it.
func TestS3RestoredManifest(t *testing.T) {
	s := s3Client(t, run(t, s3Store))
	ctx, f := patience(t), s.fence(fresh())
	key := aws.String("fence/" + string(f.Resource))
	must(t, s.Write(ctx, f.Resource, "33", "first"))
	backup, err := s.GetObject(ctx, &s3.GetObjectInput{Bucket: aws.String(bucket), Key: key})
	must(t, err)
	text, err := io.ReadAll(backup.Body)
	must(t, err)
	must(t, s.Write(ctx, f.Resource, "34", "second"))
	base, err := f.Read(ctx)
	must(t, err)
	_, err = s.PutObject(ctx, &s3.PutObjectInput{Bucket: aws.String(bucket), Key: key, Body: bytes.NewReader(text)})
	must(t, err)
	for commits := 1; commits <= 3; commits++ { // of a past tenure, which the mark lets in again
		_, err := f.Commit(ctx, 34, base, fences3.Change{Body: []byte("mine\n")})
		if want := fmt.Sprintf("with %d commits, does not follow the one with 2", commits); err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("after it was restored: %v, want %q", err, want)
		}
		must(t, s.Write(ctx, f.Resource, "33", "late"))
	}
}

// deaf does not hear that its write was stored, and then has others write.
type deaf struct {
	fences3.API
	then func()
}

func (d *deaf) PutObject(ctx context.Context, in *s3.PutObjectInput, more ...func(*s3.Options)) (*s3.PutObjectOutput, error) {
	out, err := d.API.PutObject(ctx, in, more...)
	if err == nil && d.then != nil {
		d.then()
		d.then = nil
		// The answer to the SDK, which sent the request again by itself.
		return d.API.PutObject(ctx, in, more...)
	}
	return out, err
}

// TestS3LosesAReply: a write whose answer was lost looks like one that another came before. The names in the manifest tell them apart.
func TestS3LosesAReply(t *testing.T) {
	s := s3Client(t, run(t, s3Store))
	for name, c := range map[string]struct {
		others int
		want   error
	}{
		"nobody came after": {0, nil},
		"others came after": {10, nil},
		"too many came":     {80, fences3.ErrUnknown},
	} {
		t.Run(name, func(t *testing.T) {
			ctx, r := patience(t), fresh()
			must(t, s.Write(ctx, r, "33", "first"))
			base, err := s.fence(r).Read(ctx)
			must(t, err)
			lossy := s.fence(r)
			lossy.Client = &deaf{s.API, func() {
				for i := range c.others {
					must(t, s.Write(ctx, r, "34", fmt.Sprint(i)))
				}
			}}
			now, err := lossy.Commit(ctx, 33, base, fences3.Change{ID: "mine", Body: append(base.Body, "mine\n"...)})
			if !errors.Is(err, c.want) || err == nil && !now.Has("mine") || c.want != nil && !errors.Is(err, fence.ErrStale) {
				t.Errorf("%v, want %v", err, c.want)
			}
			stored, err := s.Stored(ctx, r)
			must(t, err)
			if strings.Count(strings.Join(stored, " "), "mine") != 1 || len(stored) != 2+c.others {
				t.Errorf("stored is %q", stored)
			}
		})
	}
	t.Run("another came first", func(t *testing.T) {
		ctx, r := patience(t), fresh()
		base, err := s.fence(r).Read(ctx)
		must(t, err)
		must(t, s.Write(ctx, r, "33", "other"))
		if now, err := s.fence(r).Commit(ctx, 33, base, fences3.Change{Body: []byte("mine\n")}); !errors.Is(err, fences3.ErrConflict) || string(now.Body) != "other\n" {
			t.Errorf("%v, and the manifest is %q", err, now.Body)
		}
		must(t, s.Write(ctx, r, "34", "successor"))
		if _, err := s.fence(r).Commit(ctx, 33, base, fences3.Change{Body: []byte("mine\n")}); !errors.Is(err, fence.ErrStale) {
			t.Errorf("from an old manifest, with an old token: %v", err)
		}
	})
}
