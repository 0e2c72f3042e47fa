package lease

import (
	"testing"
	"time"
)

// earlier is another agent process of this pod.
var earlier = Identity{Pod: me.Pod, PodUID: me.PodUID, Nonce: "0"}

// inOnePod is an agent that has found the Lease held by another process of its pod.
func inOnePod() *driver {
	c := testConfig()
	c.EndProvesDeath = true
	return waiting(c, held(earlier, 10))
}

func TestRestartAloneProvesNothing(t *testing.T) {
	d := inOnePod()
	hasNo[SendWrite](t, d)
	if ask := has[SeekDeath](t, d); ask.Holder != earlier.String() {
		t.Errorf("asks after %s", ask.Holder)
	}
	d.after(14 * time.Second).step(Ticked{})
	hasNo[SendWrite](t, d)
	d.after(time.Second).step(Ticked{}).found(held(earlier, 10))
	if w := has[SendWrite](t, d); w.Attempt.Record.History[1].Reason != ReasonLeaseExpired {
		t.Errorf("the last tenure ended by %s: nobody has seen it dead", w.Attempt.Record.History[1].Reason)
	}
}

func TestEvidenceOfDeathFreesTheLease(t *testing.T) {
	d := inOnePod().step(DeathSought{Holder: earlier.String(), Dead: true})
	if w := has[SendWrite](t, d); w.Attempt.Kind != Acquire || w.Attempt.Record.History[1].Reason != ReasonHolderTerminated {
		t.Errorf("%v, and the last tenure ended by %s", w.Attempt.Kind, w.Attempt.Record.History[1].Reason)
	}
}

// One that was seen alive has been killed just now.
func TestRecentDeathIsGivenTime(t *testing.T) {
	d := inOnePod().step(DeathSought{Holder: earlier.String()})
	hasNo[SendWrite](t, d)
	d.after(d.c.RetryPeriod - 1).step(Ticked{})
	hasNo[SeekDeath](t, d)
	d.after(1).step(Ticked{})
	has[SeekDeath](t, d)
	d.step(DeathSought{Holder: earlier.String(), Dead: true})
	hasNo[SendWrite](t, d)
	d.after(time.Second - 1).step(Ticked{})
	hasNo[SendWrite](t, d)
	if d.s.Wake != d.now.Add(1) {
		t.Errorf("wakes after %v", d.s.Wake.Sub(d.now))
	}
	d.wake()
	has[SendWrite](t, d)
}

// Evidence is of one holder. The Lease may name the next of the same pod by the time that it comes.
func TestEvidenceConcernsOneHolder(t *testing.T) {
	next := held(Identity{me.Pod, me.PodUID, "2"}, 20)
	next.Token++
	d := inOnePod().step(Watched{Record: next}).step(DeathSought{Holder: earlier.String(), Dead: true})
	hasNo[SendWrite](t, d)
	d.step(DeathSought{Holder: next.Holder, Dead: true})
	has[SendWrite](t, d)
}

func TestForeignHoldersAreNotLookedUp(t *testing.T) {
	c := testConfig()
	c.EndProvesDeath = true
	for _, holder := range []Identity{other, {me.Pod, "another pod of the name", "1"}, me} {
		hasNo[SeekDeath](t, waiting(c, held(holder, 10)))
	}
	c.EndProvesDeath = false
	hasNo[SeekDeath](t, waiting(c, held(earlier, 10)))
}
