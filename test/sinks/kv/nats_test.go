package kv

import (
	"context"
	"errors"
	"fmt"

	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/nats-io/nats.go"
	"github.com/nats-io/nats.go/jetstream"

	"github.com/singletonjob/operator/fence"
	"github.com/singletonjob/operator/fence/fencenats"
	"github.com/singletonjob/operator/fence/fencetest"
)

var natsServer = kind{
	name: "NATS", each: 2,
	command: func(addr, dir string) (*exec.Cmd, error) { return natsCommand(addr, dir, "") },
	open:    func(addr string) (sink, error) { return openNATS(streamConfig, addr) },
	ready: func(ctx context.Context, s sink) error {
		_, err := s.Stored(ctx, "none")
		return err
	},
}

// natsd is the server, which is a tool of this module.
var natsd = sync.OnceValues(func() (string, error) {
	out, err := exec.Command("go", "tool", "-n", "nats-server").Output()
	return strings.TrimSpace(string(out)), err
})

// natsCommand is a server that writes each message to its disk before it acknowledges it.
func natsCommand(addr, dir, more string) (*exec.Cmd, error) {
	program, err := natsd()
	if err != nil {
		return nil, err
	}
	file := filepath.Join(dir, "nats.conf")
	text := fmt.Sprintf("listen: %q\njetstream { store_dir: %q, sync_interval: always }\n%s", addr, dir, more)
	return exec.Command(program, "--config="+file), os.WriteFile(file, []byte(text), 0o600)
}

var streamConfig = jetstream.StreamConfig{Name: "sinks", Subjects: []string{"entries.>", "fence.marks.>"}, AllowDirect: true}

// inNATS has a subject for each resource.
type inNATS struct {
	*natsClient
	strict  bool
	publish func(ctx context.Context, s *inNATS, r fence.Resource, token fence.Token, msg *nats.Msg) error // a broken way
}

// natsClient is a client of one stream, which keeps the tenures that it has begun.
type natsClient struct {
	jetstream.JetStream
	config jetstream.StreamConfig

	mu      sync.Mutex // guards the rest
	made    jetstream.Stream
	tenures map[string]*fencenats.Tenure
	lost    chan struct{} // closed when the connection is lost
}

func openNATS(config jetstream.StreamConfig, addrs ...string) (*inNATS, error) {
	c := &natsClient{config: config, tenures: map[string]*fencenats.Tenure{}, lost: make(chan struct{})}
	conn, err := nats.Connect("nats://"+strings.Join(addrs, ",nats://"), nats.RetryOnFailedConnect(true), nats.MaxReconnects(-1), nats.ReconnectWait(20*time.Millisecond),
		nats.DisconnectErrHandler(func(*nats.Conn, error) {
			c.mu.Lock()
			defer c.mu.Unlock()
			close(c.lost)
			c.lost = make(chan struct{})
		}))
	if err != nil {
		return nil, err
	}
	c.JetStream, err = jetstream.New(conn, jetstream.WithDefaultTimeout(busy))
	return &inNATS{natsClient: c}, err
}

func (c *natsClient) Close() error {
	c.Conn().Close()
	return nil
}

// connected ends with the connection, whose client would wait for an answer that is lost.
func (c *natsClient) connected(ctx context.Context) (context.Context, context.CancelFunc) {
	ctx, cancel := context.WithCancel(ctx)
	c.mu.Lock()
	lost := c.lost
	c.mu.Unlock()
	go func() {
		select {
		case <-lost:
			cancel()
		case <-ctx.Done():
		}
	}()
	return ctx, cancel
}

// stream makes it if it does not exist.
func (c *natsClient) stream(ctx context.Context) (jetstream.Stream, error) {
	c.mu.Lock()
	defer c.mu.Unlock()
	var err error
	if c.made == nil {
		c.made, err = c.CreateOrUpdateStream(ctx, c.config)
	}
	return c.made, err
}

func (s *inNATS) fence(ctx context.Context, r fence.Resource) (fencenats.Fence, error) {
	stream, err := s.stream(ctx)
	return fencenats.Fence{Resource: r, Client: s, Stream: stream, Strict: s.strict}, err
}

// tenure begins once for each token, as a process does.
func (s *inNATS) tenure(ctx context.Context, r fence.Resource, token fence.Token) (*fencenats.Tenure, error) {
	key := fmt.Sprint(r, " ", token, s.strict)
	s.mu.Lock()
	begun := s.tenures[key]
	s.mu.Unlock()
	if begun != nil {
		return begun, nil
	}
	f, err := s.fence(ctx, r)
	if err != nil {
		return nil, err
	}
	begun, err = f.Begin(ctx, token)
	if err == nil {
		s.mu.Lock()
		s.tenures[key] = begun
		s.mu.Unlock()
	}
	return begun, err
}

// subject has no dots of the resource's.
func subject(r fence.Resource) string { return "entries." + strings.ReplaceAll(string(r), ".", "%") }

func (s *inNATS) Write(ctx context.Context, r fence.Resource, text, payload string) error {
	token, err := fence.ParseToken(text)
	if err != nil {
		return err
	}
	ctx, cancel := s.connected(ctx)
	defer cancel()
	msg := &nats.Msg{Subject: subject(r), Data: []byte(payload)}
	if s.publish != nil {
		return s.publish(ctx, s, r, token, msg)
	}
	tenure, err := s.tenure(ctx, r, token)
	if err == nil {
		_, err = tenure.Publish(ctx, msg)
	}
	return err
}

func (s *inNATS) Advance(ctx context.Context, r fence.Resource, text string) error {
	token, err := fence.ParseToken(text)
	if err != nil {
		return err
	}
	f, err := s.fence(ctx, r)
	if err != nil {
		return err
	}
	return f.Advance(ctx, token)
}

func (s *inNATS) Strict() fencetest.Advancer { return &inNATS{natsClient: s.natsClient, strict: true} }

func (s *inNATS) Verbatim() {}

func (s *inNATS) Stored(ctx context.Context, r fence.Resource) (all []string, err error) {
	ctx, cancel := s.connected(ctx)
	defer cancel()
	stream, err := s.stream(ctx)
	if err != nil {
		return nil, err
	}
	for next := uint64(1); ; {
		msg, err := stream.GetMsg(ctx, next, jetstream.WithGetMsgSubject(subject(r)))
		if errors.Is(err, jetstream.ErrMsgNotFound) {
			return all, nil
		}
		if err != nil {
			return nil, err
		}
		all, next = append(all, string(msg.Data)), msg.Sequence+1
	}
}

// publishPlainly has no condition.
func publishPlainly(ctx context.Context, s *inNATS, _ fence.Resource, _ fence.Token, msg *nats.Msg) error {
	_, err := s.PublishMsg(ctx, msg)
	return err
}

func natsSink(t *testing.T, server *server) *inNATS {
	t.Helper()
	s, ok := server.client(t).(*inNATS)
	if !ok {
		t.Fatal("no client of NATS")
	}
	return s
}

func TestNATSFaults(t *testing.T) {
	s := natsSink(t, run(t, natsServer))
	twoSteps := checkThenWrite(
		func(ctx context.Context, r fence.Resource, token fence.Token) error {
			return s.Advance(ctx, r, token.String())
		},
		func(ctx context.Context, msg *nats.Msg) error { return publishPlainly(ctx, s, "", 0, msg) })
	t.Run("broken", func(t *testing.T) {
		finds(t, map[string]broken{
			"no condition": {"StaleRefused", &inNATS{natsClient: s.natsClient, publish: publishPlainly}},
			"check, then publish": {"ConcurrentTenures", &inNATS{natsClient: s.natsClient, publish: func(ctx context.Context, _ *inNATS, r fence.Resource, token fence.Token, msg *nats.Msg) error {
				return twoSteps(ctx, r, token, msg)
			}}},
		})
	})
	t.Run("a damaged mark", func(t *testing.T) {
		for _, value := range []string{"", "nine", "007", "-7"} {
			f, err := s.fence(patience(t), fresh())
			must(t, err)
			_, err = s.Publish(patience(t), f.Subject(), []byte(value))
			must(t, err)
			if err := f.Advance(patience(t), 9); err == nil || errors.Is(err, fence.ErrStale) || !strings.Contains(err.Error(), f.Subject()) {
				t.Errorf("with a mark of %q: %v, want it to name the mark's subject", value, err)
			}
		}
	})
	t.Run("a deleted mark", func(t *testing.T) {
		ctx, r := patience(t), fresh()
		f, err := s.fence(ctx, r)
		must(t, err)
		tenure, err := f.Begin(ctx, 34)
		must(t, err)
		must(t, f.Stream.Purge(ctx, jetstream.WithPurgeSubject(f.Subject())))
		if _, err := tenure.Publish(ctx, &nats.Msg{Subject: subject(r)}); err == nil || errors.Is(err, fence.ErrStale) || !strings.Contains(err.Error(), f.Subject()) {
			t.Errorf("without its mark: %v, want it to name the mark's subject", err)
		}
	})
}

// TestNATSStreamsThatLoseMarks: a tenure does not begin in a stream that can remove its mark before the messages after it.
func TestNATSStreamsThatLoseMarks(t *testing.T) {
	s := natsSink(t, run(t, natsServer))
	for name, c := range map[string]struct {
		config jetstream.StreamConfig
		want   string // none: it keeps them
	}{
		"age":                 {jetstream.StreamConfig{MaxAge: time.Hour}, "allow_msg_ttl"},
		"a number":            {jetstream.StreamConfig{MaxMsgs: 9}, "discard"},
		"a size":              {jetstream.StreamConfig{MaxBytes: 1 << 20}, "discard"},
		"interest":            {jetstream.StreamConfig{Retention: jetstream.InterestPolicy}, "retention"},
		"memory":              {jetstream.StreamConfig{Storage: jetstream.MemoryStorage}, "file storage"},
		"age, but not marks":  {jetstream.StreamConfig{MaxAge: time.Hour, AllowMsgTTL: true}, ""},
		"refuses what is new": {jetstream.StreamConfig{MaxMsgs: 9, Discard: jetstream.DiscardNew}, ""},
		"one of each subject": {jetstream.StreamConfig{MaxMsgsPerSubject: 1}, ""},
		"a queue":             {jetstream.StreamConfig{Retention: jetstream.WorkQueuePolicy}, ""},
	} {
		t.Run(name, func(t *testing.T) {
			c.config.Name, c.config.Subjects = "other", []string{"other.>"}
			stream, err := s.CreateStream(patience(t), c.config)
			must(t, err)
			defer func() { must(t, s.DeleteStream(patience(t), c.config.Name)) }()
			f := fencenats.Fence{Resource: fresh(), Client: s, Stream: stream, Prefix: "other.marks."}
			err = f.Advance(patience(t), 34)
			if c.want == "" && err != nil || c.want != "" && (err == nil || !strings.Contains(err.Error(), c.want)) {
				t.Errorf("%v, want %q", err, c.want)
			}
			if err := f.Advance(patience(t), 33); c.want == "" && !errors.Is(err, fence.ErrStale) {
				t.Errorf("with a lower token: %v", err)
			}
		})
	}
}

// TestNATSMarkOutlivesMessages: the mark is not removed with the messages that have become too old.
func TestNATSMarkOutlivesMessages(t *testing.T) {
	s := natsSink(t, run(t, natsServer))
	ctx := patience(t)
	stream, err := s.CreateStream(ctx, jetstream.StreamConfig{Name: "short", Subjects: []string{"short.>"}, MaxAge: time.Second, Duplicates: time.Second, AllowMsgTTL: true})
	must(t, err)
	f := fencenats.Fence{Resource: fresh(), Client: s, Stream: stream, Prefix: "short.marks."}
	tenure, err := f.Begin(ctx, 34)
	must(t, err)
	_, err = tenure.Publish(ctx, &nats.Msg{Subject: "short.entries"})
	must(t, err)
	for _, err = stream.GetLastMsgForSubject(ctx, "short.entries"); err == nil; _, err = stream.GetLastMsgForSubject(ctx, "short.entries") {
		time.Sleep(50 * time.Millisecond)
	}
	if !errors.Is(err, jetstream.ErrMsgNotFound) {
		t.Fatal(err)
	}
	if err := f.Advance(ctx, 33); !errors.Is(err, fence.ErrStale) {
		t.Errorf("a past tenure begins with: %v", err)
	}
	_, err = tenure.Publish(ctx, &nats.Msg{Subject: "short.entries"})
	must(t, err)
}

// TestNATSLosesAReply: a message whose acknowledgement is lost is stored once, although it is published again.
func TestNATSLosesAReply(t *testing.T) {
	server := run(t, natsServer)
	link := hold(t, server.addr)
	s, err := openNATS(streamConfig, link.addr)
	must(t, err)
	defer func() { must(t, s.Close()) }()
	ctx, r := patience(t), fresh()
	tenure, err := s.tenure(ctx, r, 33)
	must(t, err)
	publish := func(ctx context.Context) (*jetstream.PubAck, error) {
		return tenure.Publish(ctx, &nats.Msg{Subject: subject(r), Data: []byte("mine")}, jetstream.WithMsgID(string(r)))
	}
	link.answers.close()
	impatient, cancel := context.WithTimeout(ctx, time.Second)
	defer cancel()
	if _, err := publish(impatient); err == nil || errors.Is(err, fence.ErrStale) {
		t.Errorf("without an answer: %v", err)
	}
	link.answers.open()
	if ack, err := publish(ctx); err != nil || !ack.Duplicate {
		t.Errorf("once more: %+v, %v, want it to be there", ack, err)
	}
	if stored, err := s.Stored(ctx, r); err != nil || strings.Join(stored, " ") != "mine" {
		t.Errorf("stored is %q, %v", stored, err)
	}
}

// trio is a cluster of three servers with three copies of the stream.
type trio struct {
	*inNATS
	servers map[string]*server
}

func startTrio(t *testing.T) *trio {
	t.Helper()
	const of = 3
	c := &trio{servers: map[string]*server{}}
	var routes, addrs []string
	for range of {
		addr, err := free()
		must(t, err)
		routes = append(routes, addr)
	}
	for i, route := range routes {
		name := fmt.Sprint("n", i)
		k := natsServer
		k.command = func(addr, dir string) (*exec.Cmd, error) {
			return natsCommand(addr, dir, fmt.Sprintf("server_name: %s\ncluster { name: trio, listen: %q, routes: [nats://%s] }\n", name, route, strings.Join(routes, ", nats://")))
		}
		k.ready = func(context.Context, sink) error { return nil }
		c.servers[name] = run(t, k)
		addrs = append(addrs, c.servers[name].addr)
	}
	config := streamConfig
	config.Replicas, config.AllowDirect = of, false // a replica can tell an older mark, and a refusal then names that
	var err error
	c.inNATS, err = openNATS(config, addrs...)
	must(t, err)
	t.Cleanup(func() { _ = c.Close() })
	must(t, c.ready(patience(t)))
	return c
}

// ready waits until the cluster has elected who answers.
func (c *trio) ready(ctx context.Context) error {
	for {
		try, cancel := context.WithTimeout(ctx, 10*time.Second)
		_, err := c.stream(try)
		if err == nil {
			_, err = c.leader(try)
		}
		cancel()
		if err == nil || ctx.Err() != nil {
			return errors.Join(err, ctx.Err())
		}
		time.Sleep(100 * time.Millisecond)
	}
}

func (c *trio) leader(ctx context.Context) (*server, error) {
	stream, err := c.stream(ctx)
	if err != nil {
		return nil, err
	}
	info, err := stream.Info(ctx)
	if err != nil {
		return nil, err
	}
	if info.Cluster == nil || c.servers[info.Cluster.Leader] == nil {
		return nil, errors.New("the stream has no leader")
	}
	return c.servers[info.Cluster.Leader], nil
}

// Restart kills the leader of the stream, and starts it again once another one leads.
func (c *trio) Restart(ctx context.Context) error {
	leads, err := c.leader(ctx)
	if err != nil {
		return err
	}
	leads.kill()
	return errors.Join(c.ready(ctx), leads.start(), c.ready(ctx))
}

// Write does not wait for the answer of a leader that has died. It publishes again if no server has taken the message.
func (c *trio) Write(ctx context.Context, r fence.Resource, token, payload string) error {
	const answers = 15 * time.Second
	ctx, cancel := context.WithTimeout(ctx, answers)
	defer cancel()
	for {
		err := c.inNATS.Write(ctx, r, token, payload)
		if !errors.Is(err, jetstream.ErrNoStreamResponse) || ctx.Err() != nil {
			return err
		}
	}
}

// TestNATSOfThree: the suite passes on a stream with three copies, whose leader is killed.
func TestNATSOfThree(t *testing.T) {
	t.Parallel()
	c := startTrio(t)
	fencetest.Run(t, func(*testing.T) fencetest.Adapter { return c })
}
