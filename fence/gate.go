package fence

import "fmt"

// Gate is the rule by which a resource accepts writes. It holds no state: the mark (the highest token that
// was accepted or announced, zero for none) is kept by the sink beside the data.
//
// The sink must read the mark, call the gate, store the returned mark and do the write in one atomic step,
// and must not write when the gate returns an error.
type Gate struct {
	Resource Resource

	// Strict decides who may raise the mark. False: a write with a higher token raises it by itself; nothing
	// has to run before the first write of a tenure, but a writer with a forged token can lock all others out.
	// True: a write must carry exactly the mark, and only Advance raises it; the past tenure is locked out
	// before the present one starts, and no writer can move the mark. It needs a step before activation
	// that waits for Advance, under a credential of its own.
	Strict bool
}

// Accept decides on one write: it returns the mark to store with it, or an error and the mark unchanged.
// A token equal to the mark is accepted, because one tenure writes many times. The error is a [*StaleError],
// a [*AheadError], or matches [ErrMissingToken] or [ErrMalformedToken].
func (g Gate) Accept(mark, presented Token) (Token, error) {
	if err := g.check(mark, presented); err != nil {
		return mark, err
	}
	if g.Strict && presented > mark {
		return mark, &AheadError{Resource: g.Resource, Presented: presented, Mark: mark}
	}
	return presented, nil
}

// Advance raises the mark without a write, so that every lower token is refused from now on. It may be
// repeated: advancing to the present mark succeeds.
func (g Gate) Advance(mark, to Token) (Token, error) {
	if err := g.check(mark, to); err != nil {
		return mark, err
	}
	return to, nil
}

// check refuses what passes in no mode.
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
