package main

import (
	"context"

	"github.com/redis/go-redis/v9"

	"github.com/singletonjob/operator/fence/fenceredis"
	"github.com/singletonjob/operator/test/bench/sinks/offer"
)

// inRedis has a list for each log.
type inRedis struct {
	offer.Target

	client *redis.Client
	fence  fenceredis.Fence
}

func openRedis(t offer.Target) *inRedis {
	client := redis.NewClient(&redis.Options{Addr: t.Address, ContextTimeoutEnabled: true})
	return &inRedis{Target: t, client: client, fence: fenceredis.Fence{Resource: t.Log}}
}

func (s *inRedis) key() string { return s.fence.Tag() + ":entries" }

func (s *inRedis) Write(ctx context.Context, text string) error {
	push := fenceredis.Command{"RPUSH", s.key(), text}
	if !s.Fenced {
		return s.client.Do(ctx, push...).Err()
	}
	_, err := s.fence.Do(ctx, s.client, s.Token, push)
	return err
}

// Prepare sees that the server answers.
func (s *inRedis) Prepare(ctx context.Context) error { return s.client.Ping(ctx).Err() }

func (s *inRedis) Stored(ctx context.Context) ([]string, error) {
	return s.client.LRange(ctx, s.key(), 0, -1).Result()
}
