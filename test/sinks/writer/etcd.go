package main

import (
	"context"
	"errors"
	"strings"

	clientv3 "go.etcd.io/etcd/client/v3"
	"go.uber.org/zap"

	"github.com/singletonjob/operator/fence/fenceetcd"
	"github.com/singletonjob/operator/test/bench/sinks/offer"
)

// inEtcd keeps each text under a key of its own; their order is that of their revisions.
type inEtcd struct {
	offer.Target

	client *clientv3.Client
}

func openEtcd(t offer.Target) (*inEtcd, error) {
	client, err := clientv3.New(clientv3.Config{Endpoints: []string{t.Address}, Logger: zap.NewNop()})
	return &inEtcd{Target: t, client: client}, err
}

func (s *inEtcd) folder() string { return "entries/" + string(s.Log) + "/" }

func (s *inEtcd) Write(ctx context.Context, text string) error {
	put := clientv3.OpPut(s.folder()+text, "")
	if !s.Fenced {
		_, err := s.client.Do(ctx, put)
		return err
	}
	answer, err := fenceetcd.Fence{Resource: s.Log}.Commit(ctx, s.client, s.Token, fenceetcd.Txn{Then: []clientv3.Op{put}})
	if err == nil && !answer.Succeeded {
		return errors.New("a transaction without a comparison was not applied")
	}
	return err
}

// Prepare sees that the server answers.
func (s *inEtcd) Prepare(ctx context.Context) error {
	_, err := s.client.Get(ctx, "none")
	return err
}

func (s *inEtcd) Stored(ctx context.Context) (all []string, err error) {
	answer, err := s.client.Get(ctx, s.folder(), clientv3.WithPrefix(), clientv3.WithSort(clientv3.SortByModRevision, clientv3.SortAscend))
	if err != nil {
		return nil, err
	}
	for _, entry := range answer.Kvs {
		all = append(all, strings.TrimPrefix(string(entry.Key), s.folder()))
	}
	return all, nil
}
