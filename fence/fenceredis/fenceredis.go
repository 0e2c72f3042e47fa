// Package fenceredis is the fence for Redis and Valkey: the check and the caller's write are one script.
//
//	ledger := fenceredis.Fence{Resource: fence.ResourceOf(namespace, name)}
//	_, err := ledger.Do(ctx, client, token,
//		fenceredis.Command{"SET", ledger.Tag() + ":last", "invoice 17"},
//		fenceredis.Command{"RPUSH", ledger.Tag() + ":all", "invoice 17"},
//	)
//
// If you need to read before you write, use a [Script] in Lua. Programs in other languages send fence.lua ([Check]) followed by their own
// script.
//
// # What it guarantees
//
// On one server that keeps acknowledged writes: once a script with a token ran, or [Fence.Advance] has returned, no script with a lower
// token runs.
//
// # What it does not guarantee
//
// A server keeps acknowledged writes only with appendonly yes and appendfsync always. A failover promotes a replica that may lack the last
// writes, including the mark; a past tenure then passes until the mark is advanced again. WAIT does not help: it returns how many replicas
// have the write, not which replica is promoted, and undoes nothing. If stale writes must not pass after a failover, use etcd or SQL
// instead. The mark never expires. A maxmemory-policy of allkeys-* can evict it; noeviction and volatile-* do not. FLUSHALL deletes it. The
// fence guards only writes through it: use ACLs to deny programs access to the mark's key and to the data outside of scripts.
//
// # Errors
//
// Refusals are those of [fence.Gate]. If a command of the caller fails, the script ends there; the commands before it stay applied, as in
// every script. After any other error, the script may have run. The package never sends a script twice, regardless of MaxRetries: send it
// again only if running it twice does no harm.
package fenceredis

import (
	"cmp"
	"context"
	"crypto/sha1" //nolint:gosec // it is how Redis names scripts
	_ "embed"
	"encoding/hex"
	"errors"
	"fmt"
	"strings"

	"github.com/redis/go-redis/v9"

	"github.com/singletonjob/operator/fence"
)

// Check is fence.lua: the check that comes before a script in the same text.
//
//go:embed fence.lua
var Check string

// Fence guards one resource.
type Fence struct {
	Resource fence.Resource
	// Key holds the mark. Empty: "fence:" and Tag. In a cluster, all keys of a script must be in one slot, so they need the same hash tag.
	Key string
	// Strict lets only Advance raise the mark; see fence.Gate.
	Strict bool
}

// Tag returns the resource as a hash tag. Keys with it are in the same slot as the mark.
func (f Fence) Tag() string { return "{" + string(f.Resource) + "}" }

func (f Fence) key() string { return cmp.Or(f.Key, "fence:"+f.Tag()) }

// Client is the interface that a fence needs. Every client of go-redis has it. Do not use a pipeline: it returns a refusal too late.
type Client interface {
	Process(ctx context.Context, cmd redis.Cmder) error
}

// Script is the check followed by a writer's own script.
type Script struct{ text, sha string }

// NewScript puts the check before a script in Lua. The script finds its own KEYS and ARGV in the usual places.
func NewScript(lua string) *Script {
	text := Check + "\n" + lua
	sum := sha1.Sum([]byte(text)) //nolint:gosec // it is how Redis names scripts
	return &Script{text: text, sha: hex.EncodeToString(sum[:])}
}

// Command is a Redis command with its arguments.
type Command []any

// each runs the commands in ARGV. The number of its words precedes each command.
var each = NewScript(`
local answers, at = {}, 1
while ARGV[at] do
  local words = tonumber(ARGV[at])
  answers[#answers + 1] = redis.call(unpack(ARGV, at + 1, at + words))
  at = at + words + 1
end
return answers
`)

// Do runs commands in one step if the fence accepts the token, and returns their answers. A nil answer ends the slice, as in Lua tables.
// In a cluster, each key needs the mark's hash tag.
func (f Fence) Do(ctx context.Context, client Client, token fence.Token, commands ...Command) ([]any, error) {
	var args []any
	for _, c := range commands {
		if len(c) == 0 {
			return nil, errors.New("fenceredis: a command without a name")
		}
		args = append(append(args, len(c)), c...)
	}
	answers, err := f.Run(ctx, client, token, each, nil, args...)
	if err != nil {
		return nil, err
	}
	list, ok := answers.([]any)
	if !ok {
		return nil, fmt.Errorf("fence %s: the server answered %T, want a list", f.Resource, answers)
	}
	return list, nil
}

// Run runs a script if the fence accepts the token, and returns the script's result, or nil if it has none.
func (f Fence) Run(ctx context.Context, client Client, token fence.Token, s *Script, keys []string, args ...any) (any, error) {
	if _, err := fence.ParseResource(string(f.Resource)); err != nil {
		return nil, err
	}
	if _, err := (fence.Gate{Resource: f.Resource}).Accept(0, token); err != nil {
		return nil, err // the token is not valid
	}
	mode := "auto"
	if f.Strict {
		mode = "strict"
	}
	rest := []any{1 + len(keys), f.key()}
	for _, key := range keys {
		rest = append(rest, key)
	}
	rest = append(append(rest, token.String(), mode), args...)
	answer, err := send(ctx, client, append([]any{"EVALSHA", s.sha}, rest...))
	if redis.HasErrorPrefix(err, "NOSCRIPT") { // it did not run
		answer, err = send(ctx, client, append([]any{"EVAL", s.text}, rest...))
	}
	return answer, f.refusal(token, err)
}

// Advance raises the mark to a token. After it returns without an error, every lower token is refused. It is for the beginning of a tenure
// (spec.preActivate), and for use after a failover or a restore. It can be repeated.
func (f Fence) Advance(ctx context.Context, client Client, to fence.Token) error {
	f.Strict = false
	_, err := f.Do(ctx, client, to)
	return err
}

// once is a command that the client does not send again when its answer is lost, because it may have run.
type once struct{ *redis.Cmd }

// NoRetry implements the client's interface for commands without retry.
func (once) NoRetry() bool { return true }

func send(ctx context.Context, client Client, args []any) (any, error) {
	cmd := once{redis.NewCmd(ctx, args...)}
	if len(args) > keyAt {
		cmd.SetFirstKeyPos(keyAt)
	}
	err := client.Process(ctx, cmd)
	if errors.Is(err, redis.Nil) {
		return nil, nil
	}
	return cmd.Val(), err
}

// keyAt is the position of the first key of EVAL and EVALSHA. A cluster client needs it to find the server.
const keyAt = 3

// refusal converts an error of the script to the matching error of package fence.
func (f Fence) refusal(token fence.Token, err error) error {
	if err == nil {
		return nil
	}
	what, text, _ := strings.Cut(err.Error(), " ")
	switch what {
	case "FENCESTALE", "FENCEAHEAD":
		number, _, _ := strings.Cut(text, " ") // some servers add the script's name
		return f.refused(token, number)
	case "FENCEMARK":
		return fmt.Errorf("fence %s: %s", f.Resource, text)
	}
	return fmt.Errorf("fence %s: %w", f.Resource, err)
}

func (f Fence) refused(token fence.Token, number string) error {
	var mark fence.Token
	if number != "0" {
		var err error
		if mark, err = fence.ParseToken(number); err != nil {
			return fmt.Errorf("fence %s: the mark: %w", f.Resource, err)
		}
	}
	if _, err := (fence.Gate{Resource: f.Resource, Strict: f.Strict}).Accept(mark, token); err != nil {
		return err
	}
	return fmt.Errorf("fence %s: the server refused token %d at a mark of %d", f.Resource, int64(token), int64(mark))
}
