package rivals

import (
	"errors"
	"testing"
	"time"

	"github.com/singletonjob/operator/fence"
)

// at is an operation with the token, in these milliseconds.
func at(call, returned int, kind string, token fence.Token, value, outcome string) Operation {
	return Operation{
		Kind: kind, Call: time.Duration(call) * time.Millisecond, Return: time.Duration(returned) * time.Millisecond,
		Token: token, Value: value, Outcome: outcome,
	}
}

func TestLinearizable(t *testing.T) {
	first, successor := at(0, 1, Write, 33, "first", Stored), at(10, 11, Write, 34, "successor", Stored)
	for name, c := range map[string]struct {
		history []Operation
		want    bool
	}{
		"the late one is refused":    {[]Operation{first, at(5, 20, Write, 33, "late", Stale), successor, at(30, 31, Read, 0, "successor", Stored)}, true},
		"the late one is stored":     {[]Operation{first, at(5, 20, Write, 33, "late", Stored), successor, at(30, 31, Read, 0, "late", Stored)}, false},
		"it was stored before":       {[]Operation{first, at(5, 20, Write, 33, "late", Stored), successor, at(30, 31, Read, 0, "successor", Stored)}, true},
		"a later one is stored":      {[]Operation{first, successor, at(20, 21, Write, 33, "late", Stored)}, false},
		"refused without a reason":   {[]Operation{first, at(5, 6, Write, 33, "second", Stale), successor}, false},
		"an advance keeps it out":    {[]Operation{first, at(5, 6, Advance, 34, "", Stored), at(7, 8, Write, 33, "late", Stored)}, false},
		"an advance writes nothing":  {[]Operation{first, at(5, 6, Advance, 34, "", Stored), at(7, 8, Read, 0, "first", Stored)}, true},
		"unknown, and stored":        {[]Operation{first, at(5, 6, Write, 33, "x", Unknown), at(8, 9, Read, 0, "x", Stored)}, true},
		"unknown, and not":           {[]Operation{first, at(5, 6, Write, 33, "x", Unknown), at(8, 9, Read, 0, "first", Stored)}, true},
		"not stored, and read":       {[]Operation{first, at(5, 6, Write, 33, "x", Nothing), at(8, 9, Read, 0, "x", Stored)}, false},
		"stored when all had passed": {[]Operation{at(0, 1, Write, 33, "x", Unknown), successor, at(20, 21, Read, 0, "x", Stored)}, false},
	} {
		if got := Linearizable(c.history); got != c.want {
			t.Errorf("%s: %t", name, got)
		}
	}
}

func TestEnd(t *testing.T) {
	failed := errors.New("failed")
	for want, c := range map[string]struct{ err, commit error }{
		Stored: {nil, nil}, Stale: {&fence.StaleError{}, nil}, Nothing: {failed, nil}, Unknown: {nil, failed},
	} {
		op := Begin(Write, 33, "x")
		if op.End(c.err, c.commit); op.Outcome != want || op.Return < op.Call {
			t.Errorf("%+v, want it %s", op, want)
		}
	}
}
