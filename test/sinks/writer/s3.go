package main

import (
	"context"
	"net/http"
	"strings"

	"github.com/aws/aws-sdk-go-v2/aws"
	"github.com/aws/aws-sdk-go-v2/service/s3"

	"github.com/singletonjob/operator/fence/fences3"
	"github.com/singletonjob/operator/test/bench/sinks/offer"
)

const bucket = "entries"

// inS3 has an object for each log, with a line for each text: the manifest, where it is fenced.
type inS3 struct {
	offer.Target

	client   *s3.Client
	manifest fences3.Fence
}

// openS3 takes an address with the credential that is user and password at once.
func openS3(t offer.Target) *inS3 {
	credential, address, _ := strings.Cut(t.Address, "@")
	client := s3.New(s3.Options{
		BaseEndpoint: aws.String("http://" + address), UsePathStyle: true, Region: "us-east-1",
		Credentials: aws.CredentialsProviderFunc(func(context.Context) (aws.Credentials, error) {
			return aws.Credentials{AccessKeyID: credential, SecretAccessKey: credential}, nil
		}),
		HTTPClient: &http.Client{Transport: &http.Transport{}},
	})
	return &inS3{Target: t, client: client, manifest: fences3.Fence{Resource: t.Log, Client: client, Bucket: bucket}}
}

// Write adds a line. Without a fence the last of those who do it at one time wins.
func (s *inS3) Write(ctx context.Context, text string) error {
	added := func(m fences3.Manifest) ([]byte, error) { return append(m.Body, text+"\n"...), nil }
	if s.Fenced {
		_, err := s.manifest.Update(ctx, s.Token, added)
		return err
	}
	present, err := s.manifest.Read(ctx)
	if err != nil {
		return err
	}
	unconditional := s.manifest
	unconditional.Client = ignorant{s.client}
	_, err = unconditional.Commit(ctx, max(s.Token, present.Token), present, fences3.Change{Body: append(present.Body, text+"\n"...)})
	return err
}

// ignorant is a store that ignores conditions.
type ignorant struct{ fences3.API }

func (i ignorant) PutObject(ctx context.Context, in *s3.PutObjectInput, more ...func(*s3.Options)) (*s3.PutObjectOutput, error) {
	plain := *in
	plain.IfMatch, plain.IfNoneMatch = nil, nil
	return i.API.PutObject(ctx, &plain, more...)
}

// Prepare makes the bucket.
func (s *inS3) Prepare(ctx context.Context) error {
	_, err := s.client.CreateBucket(ctx, &s3.CreateBucketInput{Bucket: aws.String(bucket)})
	if err != nil && strings.Contains(err.Error(), "BucketAlreadyOwnedByYou") {
		return nil
	}
	return err
}

func (s *inS3) Stored(ctx context.Context) ([]string, error) {
	m, err := s.manifest.Read(ctx)
	return strings.FieldsFunc(string(m.Body), func(r rune) bool { return r == '\n' }), err
}
