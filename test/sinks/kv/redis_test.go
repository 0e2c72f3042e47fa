package kv

import (
	"context"
	"errors"
	"fmt"
	"net"
	"os/exec"
	"strings"
	"testing"
	"time"

	"github.com/redis/go-redis/v9"

	"github.com/singletonjob/operator/fence"
	"github.com/singletonjob/operator/fence/fenceredis"
	"github.com/singletonjob/operator/fence/fencetest"
)

var redisServer = kind{
	name: "Redis", each: 8,
	command: func(addr, dir string) (*exec.Cmd, error) {
		return redisCommand(addr, dir, "--appendonly", "yes", "--appendfsync", "always")
	},
	open: func(addr string) (sink, error) {
		// It repeats what may be repeated; the fence keeps it from repeating writes.
		return &inRedis{Client: redis.NewClient(&redis.Options{
			Addr: addr, MaxRetries: 3, PoolSize: writers, PoolTimeout: busy, ReadTimeout: busy, WriteTimeout: busy,
		})}, nil
	},
	ready: func(ctx context.Context, s sink) error {
		_, err := s.Stored(ctx, "none")
		return err
	},
}

// busy is what a machine with a lot to do may take to answer.
const busy = 2 * time.Minute

func redisCommand(addr, dir string, more ...string) (*exec.Cmd, error) {
	host, port, err := net.SplitHostPort(addr)
	if err != nil {
		return nil, err
	}
	args := append([]string{"--bind", host, "--port", port, "--dir", dir, "--save", "", "--loglevel", "warning"}, more...)
	return exec.Command("redis-server", args...), nil
}

// inRedis has a list for each resource.
type inRedis struct {
	*redis.Client
	strict bool
	write  func(ctx context.Context, r fence.Resource, token fence.Token, push fenceredis.Command) error // a broken one
}

func entries(r fence.Resource) string { return fenceredis.Fence{Resource: r}.Tag() + ":entries" }

func (s *inRedis) Write(ctx context.Context, r fence.Resource, text, payload string) error {
	token, err := fence.ParseToken(text)
	if err != nil {
		return err
	}
	command := fenceredis.Command{"RPUSH", entries(r), payload}
	if s.write != nil {
		return s.write(ctx, r, token, command)
	}
	_, err = fenceredis.Fence{Resource: r, Strict: s.strict}.Do(ctx, s, token, command)
	return err
}

func (s *inRedis) Advance(ctx context.Context, r fence.Resource, text string) error {
	token, err := fence.ParseToken(text)
	if err != nil {
		return err
	}
	return fenceredis.Fence{Resource: r, Strict: s.strict}.Advance(ctx, s, token)
}

func (s *inRedis) Strict() fencetest.Advancer { return &inRedis{Client: s.Client, strict: true} }

func (s *inRedis) Verbatim() {}

func (s *inRedis) Stored(ctx context.Context, r fence.Resource) ([]string, error) {
	return s.LRange(ctx, entries(r), 0, -1).Result()
}

// brokenRedis are ways to build it wrong, each with the case of the suite that finds it.
func brokenRedis(s *inRedis) map[string]broken {
	numbers := redis.NewScript(`
local mark = redis.call('GET', KEYS[1]) or '0'
if tonumber(ARGV[1]) < tonumber(mark) then return redis.error_reply('STALE ' .. mark) end
redis.call('SET', KEYS[1], ARGV[1])
return redis.call(unpack(ARGV, 2))`)
	return map[string]broken{
		"no check": {"StaleRefused", &inRedis{Client: s.Client, write: func(ctx context.Context, _ fence.Resource, _ fence.Token, c fenceredis.Command) error {
			return s.Client.Do(ctx, c...).Err()
		}}},
		"tokens as Lua's numbers": {"BeyondDoubles", &inRedis{Client: s.Client, write: func(ctx context.Context, r fence.Resource, token fence.Token, c fenceredis.Command) error {
			err := numbers.Run(ctx, s, []string{"numbers:" + string(r)}, append([]any{token.String()}, c...)...).Err()
			if err == nil || !strings.HasPrefix(err.Error(), "STALE") {
				return err
			}
			var highest fence.Token
			if _, e := fmt.Sscanf(err.Error(), "STALE %d", &highest); e != nil {
				return e
			}
			return &fence.StaleError{Resource: r, Presented: token, Highest: highest}
		}}},
		"check, then write": {"ConcurrentTenures", &inRedis{Client: s.Client, write: checkThenWrite(
			func(ctx context.Context, r fence.Resource, token fence.Token) error {
				return fenceredis.Fence{Resource: r}.Advance(ctx, s, token)
			},
			func(ctx context.Context, c fenceredis.Command) error { return s.Client.Do(ctx, c...).Err() })}},
	}
}

func TestRedisFaults(t *testing.T) {
	s, ok := run(t, redisServer).client(t).(*inRedis)
	if !ok {
		t.Fatal("no client of Redis")
	}
	t.Run("broken", func(t *testing.T) { finds(t, brokenRedis(s)) })
	t.Run("a damaged mark", func(t *testing.T) {
		for _, value := range []string{"", "nine", "007", "-7", "12345678901234567890"} {
			f := fenceredis.Fence{Resource: fresh()}
			must(t, s.Set(t.Context(), "fence:"+f.Tag(), value, 0).Err())
			if err := f.Advance(patience(t), s, 9); err == nil || errors.Is(err, fence.ErrStale) || !strings.Contains(err.Error(), f.Tag()) {
				t.Errorf("with a mark of %q: %v, want it to name the mark's key", value, err)
			}
		}
	})
	t.Run("text of any language", func(t *testing.T) { redisTexts(t, s) })
	t.Run("a script", func(t *testing.T) { redisScript(t, s) })
}

// redisTexts: a client that passes a malformed text to the script gets an error that says what is wrong.
func redisTexts(t *testing.T, s *inRedis) {
	for token, want := range map[string]string{
		"": "FENCEMISSING", "0": "FENCEMALFORMED", "-1": "FENCEMALFORMED", "007": "FENCEMALFORMED", "7.0": "FENCEMALFORMED", "1e3": "FENCEMALFORMED",
		"9223372036854775808": "FENCEMALFORMED", "18446744073709551617": "FENCEMALFORMED", "9223372036854775807": "",
	} {
		err := s.Eval(patience(t), fenceredis.Check, []string{"fence:" + string(fresh())}, token, "auto").Err()
		if want == "" && !errors.Is(err, redis.Nil) || want != "" && (err == nil || !strings.HasPrefix(err.Error(), want)) {
			t.Errorf("token %q: %v, want %s", token, err, want)
		}
	}
}

// redisScript: a script of the caller finds its own keys and arguments, and a stale one does not run.
func redisScript(t *testing.T, s *inRedis) {
	f := fenceredis.Fence{Resource: fresh()}
	script := fenceredis.NewScript(`return redis.call('INCRBY', KEYS[1], ARGV[1]) + #KEYS * 100 + #ARGV * 1000`)
	key := []string{f.Tag() + ":sum"}
	got, err := f.Run(patience(t), s, 34, script, key, 5)
	if err != nil || got != int64(1105) {
		t.Errorf("the script returned %v, %v; want 1105", got, err)
	}
	if _, err := f.Run(patience(t), s, 33, script, key, 5); !errors.Is(err, fence.ErrStale) {
		t.Errorf("a stale script: %v", err)
	}
	if sum, err := s.Get(patience(t), key[0]).Int(); err != nil || sum != 5 {
		t.Errorf("the sum is %d, %v; want 5", sum, err)
	}
	if _, err := f.Do(patience(t), s, 34, fenceredis.Command{"INCR", entries(f.Resource)}, fenceredis.Command{"RPUSH", entries(f.Resource), "x"}); err == nil || errors.Is(err, fence.ErrStale) {
		t.Errorf("a command that fails: %v", err)
	}
}

// TestRedisLosesAReply: the client does not send again by itself what the server may have run.
func TestRedisLosesAReply(t *testing.T) {
	server := run(t, redisServer)
	link, r := hold(t, server.addr), fresh()
	client := redis.NewClient(&redis.Options{Addr: link.addr, MaxRetries: 3, ReadTimeout: busy, WriteTimeout: busy})
	defer func() { _ = client.Close() }()
	s, impatient := &inRedis{Client: client}, &inRedis{Client: client.WithTimeout(time.Second)} // on the same connections
	must(t, s.Write(patience(t), r, "33", "first"))
	link.answers.close()
	if err := impatient.Write(patience(t), r, "33", "second"); err == nil || errors.Is(err, fence.ErrStale) {
		t.Errorf("without an answer: %v", err)
	}
	link.answers.open()
	must(t, s.Write(patience(t), r, "33", "third"))
	if stored, err := s.Stored(patience(t), r); err != nil || strings.Join(stored, " ") != "first second third" {
		t.Errorf("stored is %q, %v", stored, err)
	}
}

// TestRedisWithoutAFile: the suite finds a server that keeps nothing.
func TestRedisWithoutAFile(t *testing.T) {
	forgetful := redisServer
	forgetful.command = func(addr, dir string) (*exec.Cmd, error) { return redisCommand(addr, dir, "--appendonly", "no") }
	server := run(t, forgetful)
	if fencetest.Fault(patience(t), crashing{server.client(t), server}, "RestartForgetsNothing") == nil {
		t.Error("nothing is missing")
	}
}
