package judge

import (
	"cmp"
	"slices"
	"time"

	"github.com/anishathalye/porcupine"

	"github.com/singletonjob/operator/fence"
)

const (
	// window is how many operations are checked at once: what a check costs grows with the square of them.
	window = 500
	// checkTime bounds the check of one window. One that takes longer is not judged; it takes milliseconds.
	checkTime = time.Minute
)

// linearizable judges what the clients were answered against the sequential rule of a fence. The operations of a resource are cut
// into windows where none was under way: there, the mark is the highest token that was accepted.
func (j *judgement) linearizable() {
	var own []Operation
	for _, o := range j.Operations {
		if o.Resource == j.resource() {
			own = append(own, o)
		}
	}
	var mark fence.Token
	for _, part := range windows(own) {
		if !fits(part, mark) {
			j.breaks(Linearizable, part[0].Call, "no order of the %d writes from %v to %v, each between its call and its return, "+
				"explains what was accepted and refused after token %d", len(part), part[0].Call, part[len(part)-1].Return, mark)
		}
		for _, o := range part {
			if o.Accepted {
				mark = max(mark, o.Token)
			}
		}
	}
}

// windows cuts operations where none is under way, once there are enough of them.
func windows(all []Operation) (parts [][]Operation) {
	slices.SortFunc(all, func(a, b Operation) int { return cmp.Compare(a.Call, b.Call) })
	var part []Operation
	var busy time.Duration
	for _, o := range all {
		if len(part) >= window && o.Call > busy {
			parts, part = append(parts, part), nil
		}
		part, busy = append(part, o), max(busy, o.Return)
	}
	if len(part) > 0 {
		parts = append(parts, part)
	}
	return parts
}

// fits reports whether some order of the operations follows the rule of a fence.
func fits(part []Operation, mark fence.Token) bool {
	model := porcupine.Model{
		Init: func() any { return mark },
		Step: func(state, input, output any) (bool, any) {
			at, _ := state.(fence.Token)
			token, _ := input.(fence.Token)
			if token >= at {
				return output == true, token
			}
			return output == false, at
		},
	}
	operations := make([]porcupine.Operation, 0, len(part))
	for i, o := range part {
		operations = append(operations, porcupine.Operation{
			ClientId: i, Input: o.Token, Output: o.Accepted, Call: int64(o.Call), Return: int64(o.Return),
		})
	}
	return porcupine.CheckOperationsTimeout(model, operations, checkTime) != porcupine.Illegal
}
