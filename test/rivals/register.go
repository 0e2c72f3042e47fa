package rivals

import (
	"errors"
	"math"
	"time"

	"github.com/anishathalye/porcupine"

	"github.com/singletonjob/operator/fence"
	"github.com/singletonjob/operator/fence/fencetest"
)

// An Operation is one on a register, and its outcome as its process knows it. Times are CLOCK_BOOTTIME.
type Operation struct {
	Kind         string // Write, Advance or Read
	Call, Return time.Duration
	Token        fence.Token
	Value        string
	Outcome      string
	Err          string
}

// The kinds.
const (
	Write   = "write"
	Advance = "advance"
	Read    = "read"
)

// The outcomes. A write of unknown outcome may have been stored or not.
const (
	Stored  = "stored"
	Stale   = "stale"
	Nothing = "not stored"
	Unknown = "unknown"
)

// Begin is an operation that begins now.
func Begin(kind string, token fence.Token, value string) Operation {
	return Operation{Kind: kind, Call: fencetest.Boottime(), Token: token, Value: value}
}

// End notes what has become of it. After an error of its commit nobody knows.
func (op *Operation) End(err, commit error) {
	op.Return = fencetest.Boottime()
	switch failed := errors.Join(err, commit); {
	case errors.Is(err, fence.ErrStale):
		op.Outcome = Stale
	case err != nil:
		op.Outcome, op.Err = Nothing, failed.Error()
	case commit != nil:
		op.Outcome, op.Err = Unknown, failed.Error()
	default:
		op.Outcome = Stored
	}
}

// register is the state that operations must agree on: the mark and what was written last.
type register struct {
	mark  fence.Token
	value string
}

// registers says which histories a fenced register may have.
var registers = (&porcupine.NondeterministicModel{
	Init: func() []any { return []any{register{}} },
	Step: func(state, input, _ any) []any {
		now, op := state.(register), input.(Operation)
		next := register{op.Token, op.Value}
		if op.Kind == Advance {
			next.value = now.value
		}
		allowed := op.Token >= now.mark
		switch {
		case op.Kind == Read:
			return only(op.Value == now.value, now)
		case op.Outcome == Stored:
			return only(allowed, next)
		case op.Outcome == Stale:
			return only(!allowed, now)
		case op.Outcome == Unknown && allowed:
			return []any{now, next}
		}
		return []any{now}
	},
	Equal: func(a, b any) bool { return a == b },
}).ToModel()

func only(legal bool, next register) []any {
	if legal {
		return []any{next}
	}
	return nil
}

// Linearizable reports whether a fenced register can have this history.
func Linearizable(all []Operation) bool {
	history := make([]porcupine.Operation, len(all))
	for i, op := range all {
		history[i] = porcupine.Operation{Input: op, Call: int64(op.Call), Return: int64(op.Return)}
		if op.Outcome == Unknown {
			history[i].Return = math.MaxInt64
		}
	}
	return porcupine.CheckOperations(registers, history)
}
