package main

import (
	"context"
	"errors"

	"github.com/nats-io/nats.go"
	"github.com/nats-io/nats.go/jetstream"

	"github.com/singletonjob/operator/fence/fencenats"
	"github.com/singletonjob/operator/test/bench/sinks/offer"
)

// inNATS has a subject for each log, in one stream.
type inNATS struct {
	offer.Target

	js     jetstream.JetStream
	stream jetstream.Stream
	tenure *fencenats.Tenure
}

func openNATS(t offer.Target) (*inNATS, error) {
	conn, err := nats.Connect(t.Address, nats.RetryOnFailedConnect(true), nats.MaxReconnects(-1))
	if err != nil {
		return nil, err
	}
	js, err := jetstream.New(conn)
	return &inNATS{Target: t, js: js}, err
}

func (s *inNATS) subject() string { return "entries." + string(s.Log) }

func (s *inNATS) Write(ctx context.Context, text string) error {
	msg := &nats.Msg{Subject: s.subject(), Data: []byte(text)}
	if !s.Fenced {
		_, err := s.js.PublishMsg(ctx, msg)
		return err
	}
	if s.tenure == nil {
		if err := s.Prepare(ctx); err != nil {
			return err
		}
		var err error
		if s.tenure, err = (fencenats.Fence{Resource: s.Log, Client: s.js, Stream: s.stream}).Begin(ctx, s.Token); err != nil {
			return err
		}
	}
	_, err := s.tenure.Publish(ctx, msg)
	return err
}

// Prepare makes the stream.
func (s *inNATS) Prepare(ctx context.Context) (err error) {
	s.stream, err = s.js.CreateOrUpdateStream(ctx, jetstream.StreamConfig{Name: "entries", Subjects: []string{"entries.>", fencenats.DefaultPrefix + ">"}, AllowDirect: true})
	return err
}

func (s *inNATS) Stored(ctx context.Context) (all []string, err error) {
	if err := s.Prepare(ctx); err != nil {
		return nil, err
	}
	for next := uint64(1); ; {
		msg, err := s.stream.GetMsg(ctx, next, jetstream.WithGetMsgSubject(s.subject()))
		if errors.Is(err, jetstream.ErrMsgNotFound) {
			return all, nil
		}
		if err != nil {
			return nil, err
		}
		all, next = append(all, string(msg.Data)), msg.Sequence+1
	}
}
