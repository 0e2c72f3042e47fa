// Package fenceredis is the fence for Redis and Valkey: the check and the caller's write are one script.
//
//	ledger := fenceredis.Fence{Resource: fence.ResourceOf(namespace, name)}
//	_, err := ledger.Do(ctx, client, token,
//		fenceredis.Command{"SET", ledger.Tag() + ":last", "invoice 17"},
//		fenceredis.Command{"RPUSH", ledger.Tag() + ":all", "invoice 17"},
//	)
//
// What needs to read before it writes is a [Script] in Lua. Programs in other languages send fence.lua ([Check]) with their own script after it.
//
// # What it guarantees
//
// On one server that keeps what it has acknowledged: once a script with a token ran, or [Fence.Advance] has returned, no script with a lower one runs.
//
// # What it can't
//
// A server keeps what it has acknowledged only with appendonly yes and appendfsync always. A failover takes a replica that may lack the last writes, the mark
// among them, and a past tenure passes until the mark is advanced again. WAIT does not mend it: it tells how many replicas
// had the write, not which of them is chosen, and takes nothing back. Where stale writes must not pass a failover, keep the mark elsewhere: etcd, SQL.
// The mark never expires, so a maxmemory-policy of allkeys-* may evict it: noeviction or volatile-* do not. FLUSHALL takes it.
// It guards what is written through it: have ACLs keep programs from the mark's key outside of scripts, and from the data.
//
// # Errors
//
// Refusals are those of [fence.Gate]. A command of the caller that fails ends the script there: what went before it stays written, as in every script.
// After any other error the script may have run: it is never sent twice by itself, whatever MaxRetries says, so send it again only if
// to run it twice does no harm.
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

// Check is fence.lua: the check that comes before a script, in the same text.
//
//go:embed fence.lua
var Check string

// Fence guards one resource.
type Fence struct {
	Resource fence.Resource
	// Key holds the mark: "fence:" and Tag if it is empty. In a cluster all keys of a script are in one slot, by a hash tag that they share.
	Key string
	// Strict has only Advance raise the mark; see fence.Gate.
	Strict bool
}

// Tag is the resource as a hash tag. Keys with it are in the slot of the mark.
func (f Fence) Tag() string { return "{" + string(f.Resource) + "}" }

func (f Fence) key() string { return cmp.Or(f.Key, "fence:"+f.Tag()) }

// Client is what a fence needs of a client: any of go-redis is one, but a pipeline, which could not tell a refusal in time.
type Client interface {
	Process(ctx context.Context, cmd redis.Cmder) error
}

// Script is a writer's own script, behind the check.
type Script struct{ text, sha string }

// NewScript puts the check before a script in Lua, which finds its own KEYS and ARGV as ever.
func NewScript(lua string) *Script {
	text := Check + "\n" + lua
	sum := sha1.Sum([]byte(text)) //nolint:gosec // it is how Redis names scripts
	return &Script{text: text, sha: hex.EncodeToString(sum[:])}
}

// Command is one of Redis, with its arguments.
type Command []any

// each runs commands that follow one another in ARGV, each behind the number of its words.
var each = NewScript(`
local answers, at = {}, 1
while ARGV[at] do
  local words = tonumber(ARGV[at])
  answers[#answers + 1] = redis.call(unpack(ARGV, at + 1, at + words))
  at = at + words + 1
end
return answers
`)

// Do runs commands if the fence lets the token pass, all in one step, and returns their answers. An answer of nil ends the slice, as Lua's tables do.
// In a cluster each key has the mark's hash tag.
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

// Run runs a script if the fence lets the token pass, and returns what it returns; nil where that is nothing.
func (f Fence) Run(ctx context.Context, client Client, token fence.Token, s *Script, keys []string, args ...any) (any, error) {
	if _, err := fence.ParseResource(string(f.Resource)); err != nil {
		return nil, err
	}
	if _, err := (fence.Gate{Resource: f.Resource}).Accept(0, token); err != nil {
		return nil, err // no token at all
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

// Advance raises the mark to a token. When it returns without an error every lower token is refused from then on. It is for the beginning of a
// tenure (spec.preActivate), and for the time after a failover or a restore. It may be repeated.
func (f Fence) Advance(ctx context.Context, client Client, to fence.Token) error {
	f.Strict = false
	_, err := f.Do(ctx, client, to)
	return err
}

// once is a command that the client does not send again when its answer is lost: it may have run.
type once struct{ *redis.Cmd }

// NoRetry says so to the client.
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

// keyAt is where EVAL and EVALSHA have their first key, by which a cluster's client finds the server.
const keyAt = 3

// refusal is the error of the script as the one of package fence that it stands for.
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
