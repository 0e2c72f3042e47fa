package fence

import "fmt"

// Gate is the rule by which a resource accepts writes. It holds no state: the sink keeps the mark beside the
// data. The mark is the highest token that was accepted or announced, or zero if there is none.
//
// In one atomic step, the sink must read the mark, call the gate, store the returned mark and do the write.
// It must not write if the gate returns an error.
type Gate struct {
	Resource Resource

	// Strict decides what may raise the mark. If it is false, a write with a higher token raises the mark. Nothing
	// has to run before the first write of a tenure, but a writer with a forged token can lock all others out.
	// If it is true, a write must carry exactly the mark, and only Advance raises it. The past tenure is locked
	// out before the next one starts, and no writer can move the mark. This needs a step before activation that
	// waits for Advance and has its own credential.
	Strict bool
}

// Accept decides on one write. It returns the mark to store with the write, or an error and the unchanged mark.
// A token equal to the mark is accepted, because one tenure writes many times. The error is a [*StaleError] or
// an [*AheadError], or matches [ErrMissingToken] or [ErrMalformedToken].
func (g Gate) Accept(mark, presented Token) (Token, error) {
	if err := g.check(mark, presented); err != nil {
		return mark, err
	}
	if g.Strict && presented > mark {
		return mark, &AheadError{Resource: g.Resource, Presented: presented, Mark: mark}
	}
	return presented, nil
}

// Advance raises the mark without a write, so that every lower token is refused from now on. It can be
// repeated: advancing to the current mark succeeds.
func (g Gate) Advance(mark, to Token) (Token, error) {
	if err := g.check(mark, to); err != nil {
		return mark, err
	}
	return to, nil
}

// check refuses marks and tokens that are refused in both modes.
func (g Gate) check(mark, presented Token) error {
	if mark < 0 {
		return fmt.Errorf("the stored mark of fencing resource %s is %d: it must be 0 or a token; "+
			"set it to the highest token that was ever accepted", g.Resource, int64(mark))
	}
	if err := presented.check(); err != nil {
		return err
	}
	if presented < mark {
		return &StaleError{Resource: g.Resource, Presented: presented, Highest: mark}
	}
	return nil
}
