// Package fencenats is the fence for NATS JetStream: a stream does not store messages of a past tenure.
//
// A mark is the last message of a subject in the stream that it guards. A tenure begins with such a message. Each message that it publishes
// names the sequence of its mark, and the server stores the message only if that is still the last mark:
//
//	ledger := fencenats.Fence{Resource: fence.ResourceOf(namespace, name), Client: js, Stream: stream}
//	tenure, err := ledger.Begin(ctx, token)
//	…
//	ack, err := tenure.Publish(ctx, &nats.Msg{Subject: "billing.invoices", Data: invoice}) // errors.Is(err, fence.ErrStale): stop
//
// It needs nats-server 2.11 or later.
//
// # What it guarantees
//
// Once [Fence.Begin] or [Fence.Advance] has returned, the stream stores no message that a [Tenure] with a lower token publishes. Mark and
// messages belong to one stream: they are lost and restored together.
//
// # What it does not guarantee
//
// It guards only messages through it. The server can't require the header, so any client that can publish to the subject can leave it out.
// A client that can delete messages, or publish to the mark's subject, can lower the mark. A sequence means the same only in one life of a
// stream. A stream that was restored, created again or truncated by a loss of power gives out its sequences again. A past tenure can then
// have the sequence of the present mark.
//
// # Errors
//
// Refusals are those of [fence.Gate]. After any other error, the message may have been stored, or may still be stored. Publish it again with
// the same [jetstream.WithMsgID]: the server stores it once within the stream's duplicate window.
package fencenats

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"strings"
	"time"

	"github.com/nats-io/nats.go"
	"github.com/nats-io/nats.go/jetstream"

	"github.com/singletonjob/operator/fence"
)

// DefaultPrefix is the default prefix of the marks' subjects.
const DefaultPrefix = "fence.marks."

// Fence guards one resource in one stream.
type Fence struct {
	Resource fence.Resource
	Client   jetstream.Publisher
	// Stream has the marks' subjects and those that the job publishes to. See [Fence.Begin] for what it must not do.
	Stream jetstream.Stream
	// Prefix comes before the resource in the subject of its mark. Empty: DefaultPrefix.
	Prefix string
	// Strict lets only Advance raise the mark; see fence.Gate.
	Strict bool
}

// mark is the last message of a mark's subject. It is zero if there is none.
type mark struct {
	token    fence.Token
	sequence uint64
}

// Tenure publishes messages with the token of one tenure. It is safe for concurrent use.
type Tenure struct {
	fence Fence
	mark  mark
}

// Subject returns the subject of the mark. A dot of the resource is a percent sign in it, so that the resource is one part of the subject.
func (f Fence) Subject() string {
	return cmp.Or(f.Prefix, DefaultPrefix) + strings.ReplaceAll(string(f.Resource), ".", "%")
}

// Begin raises the mark to a token, and returns what publishes with it. It takes two round trips, or one if the mark is there already. It
// returns an error for a stream that can lose a mark before the messages that the mark guards. Such a stream removes messages by age or by
// limits, keeps only what a consumer waits for, or is in memory.
func (f Fence) Begin(ctx context.Context, token fence.Token) (*Tenure, error) {
	if _, err := fence.ParseResource(string(f.Resource)); err != nil {
		return nil, err
	}
	config := f.Stream.CachedInfo().Config
	if err := keepsMarks(config); err != nil {
		return nil, fmt.Errorf("fence %s: stream %s: %w", f.Resource, config.Name, err)
	}
	for {
		present, err := f.read(ctx)
		if err != nil {
			return nil, err
		}
		if _, err := (fence.Gate{Resource: f.Resource, Strict: f.Strict}).Accept(present.token, token); err != nil {
			return nil, err
		}
		if present.token == token {
			return &Tenure{fence: f, mark: present}, nil
		}
		text := &nats.Msg{Subject: f.Subject(), Data: []byte(token.String()), Header: nats.Header{}}
		if config.AllowMsgTTL {
			text.Header.Set(jetstream.MsgTTLHeader, "never")
		}
		ack, err := f.Client.PublishMsg(ctx, text, jetstream.WithExpectStream(config.Name), jetstream.WithExpectLastSequencePerSubject(present.sequence))
		if err == nil {
			return &Tenure{fence: f, mark: mark{token, ack.Sequence}}, nil
		}
		if !isOvertaken(err) {
			return nil, fmt.Errorf("fence %s: raise the mark: %w", f.Resource, err)
		}
		if err := pause(ctx); err != nil {
			return nil, err
		}
	}
}

// Advance raises the mark to a token. After it returns without an error, every lower token is refused. It is for the beginning of a tenure
// (spec.preActivate), and can be repeated.
func (f Fence) Advance(ctx context.Context, to fence.Token) error {
	f.Strict = false
	_, err := f.Begin(ctx, to)
	return err
}

// keepsMarks returns an error if a stream can remove a mark by itself.
func keepsMarks(c jetstream.StreamConfig) error {
	switch {
	case c.MaxAge > 0 && !c.AllowMsgTTL:
		return fmt.Errorf("it removes marks after %v: set allow_msg_ttl, and they stay", c.MaxAge)
	case c.Discard == jetstream.DiscardOld && (c.MaxMsgs > 0 || c.MaxBytes > 0):
		return errors.New("it removes the oldest messages, and so the marks, when it is full: set discard to new")
	case c.Retention == jetstream.InterestPolicy:
		return errors.New("it removes marks, because no consumer waits for them: use another retention")
	case c.Storage == jetstream.MemoryStorage:
		return errors.New("it forgets marks when the server ends: use file storage")
	}
	return nil
}

// read returns the present mark. It may be older than the last one: what is published on the strength of it is then refused.
func (f Fence) read(ctx context.Context) (mark, error) {
	last, err := f.Stream.GetLastMsgForSubject(ctx, f.Subject())
	if errors.Is(err, jetstream.ErrMsgNotFound) {
		return mark{}, nil
	}
	if err != nil {
		return mark{}, fmt.Errorf("fence %s: read the mark: %w", f.Resource, err)
	}
	token, err := fence.ParseToken(string(last.Data))
	if err != nil {
		return mark{}, fmt.Errorf("fence %s: the last message of %s is %.40q, which is no mark: publish there the highest token that was ever accepted",
			f.Resource, f.Subject(), last.Data)
	}
	return mark{token, last.Sequence}, nil
}

// Publish publishes a message if the tenure's mark is still the last one, and adds the token to its headers. It takes one round trip. The
// options can't contain another expected sequence of a subject, because a message has only one.
func (t *Tenure) Publish(ctx context.Context, msg *nats.Msg, options ...jetstream.PublishOpt) (*jetstream.PubAck, error) {
	f := t.fence
	if msg.Header == nil {
		msg.Header = nats.Header{}
	}
	msg.Header.Set(fence.HeaderToken, t.mark.token.String())
	options = append(options[:len(options):len(options)],
		jetstream.WithExpectStream(f.Stream.CachedInfo().Config.Name), jetstream.WithExpectLastSequenceForSubject(t.mark.sequence, f.Subject()))
	for {
		ack, err := f.Client.PublishMsg(ctx, msg, options...)
		if err == nil {
			return ack, nil
		}
		if !isOvertaken(err) {
			return nil, fmt.Errorf("fence %s: publish: %w", f.Resource, err)
		}
		if err := t.overtaken(ctx); err != nil {
			return nil, err
		}
		if err := pause(ctx); err != nil {
			return nil, err
		}
	}
}

// overtaken returns the reason why a message was refused. Nil: another message with the same mark is under way between the replicas of the
// stream, or the mark that was read is not the last one. The message was not stored and can be sent again.
func (t *Tenure) overtaken(ctx context.Context) error {
	present, err := t.fence.read(ctx)
	if err != nil || present == t.mark {
		return err
	}
	if present.token > t.mark.token {
		return &fence.StaleError{Resource: t.fence.Resource, Presented: t.mark.token, Highest: present.token}
	}
	return fmt.Errorf("fence %s: the mark of token %d, sequence %d, is gone, and %s has token %d, sequence %d: the stream was restored, or messages were deleted; begin again with a new tenure",
		t.fence.Resource, t.mark.token, t.mark.sequence, t.fence.Subject(), present.token, present.sequence)
}

// isOvertaken reports whether the server refused a message because of the sequence that it names.
func isOvertaken(err error) bool {
	refusal, ok := errors.AsType[*jetstream.APIError](err)
	return ok && (refusal.ErrorCode == jetstream.JSErrCodeStreamWrongLastSequence || refusal.ErrorCode == jetstream.JSErrCodeStreamWrongLastSequenceConstant)
}

// pause waits before a further attempt.
func pause(ctx context.Context) error {
	const most = 10 * time.Millisecond
	select {
	case <-ctx.Done():
		return context.Cause(ctx)
	case <-time.After(rand.N(most)):
		return nil
	}
}
