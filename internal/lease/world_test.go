package lease

import (
	"testing"
	"time"
)

const second = Instant(time.Second)

// t0 is when the tests begin.
const t0 = 1000 * second

// me and other are two candidates.
var (
	me    = Identity{Pod: "a", PodUID: "ua", Nonce: "1"}
	other = Identity{Pod: "b", PodUID: "ub", Nonce: "1"}
)

func testConfig() Config {
	return Config{
		Identity:      me,
		Node:          "node-a",
		Duration:      15 * time.Second,
		RenewDeadline: 10 * time.Second,
		RetryPeriod:   2 * time.Second,
		GracePeriod:   5 * time.Second,
	}
}

// held is a Lease that a candidate holds, won three revisions ago.
func held(by Identity, revision int64) Record {
	won := revision - 3
	return Record{
		UID: "lease", Revision: revision, Holder: by.String(), Token: won, Transitions: 3, Duration: 15 * time.Second,
		AcquireTime: 1, RenewTime: 2,
		History: []PastTenure{{Token: won, Pod: by.Pod, Node: "node-" + by.Pod, Acquired: 1}},
	}
}

// free is a Lease that a candidate has released.
func free(by Identity, revision int64) Record {
	return held(by, revision).Released(Release{Reason: ReasonSwitchover}, 3, 3)
}

// driver steps one state machine through time and collects what it wants done.
type driver struct {
	c       Config
	s       State
	now     Instant
	actions []Action // of the last step
}

func drive(c Config) *driver { return &driver{c: c, now: t0} }

func (d *driver) step(e Event) *driver {
	d.s, d.actions = Step(d.c, d.s, Time{Boot: d.now, Wall: int64(d.now/1000) + setAhead()}, e)
	return d
}

// setAhead is by how many microseconds somebody has set the wall clock whenever a driver looks at it.
var setAhead = func() int64 { return 0 }

func (d *driver) after(t time.Duration) *driver {
	d.now = d.now.Add(t)
	return d
}

// wake lets time pass until the machine wants to be called.
func (d *driver) wake() *driver {
	d.now = d.s.Wake
	return d.step(Ticked{})
}

func (d *driver) found(r Record) *driver { return d.step(ReadDone{ID: d.s.LastRead, Found: &r}) }

func (d *driver) readFails() *driver { return d.step(ReadDone{ID: d.s.LastRead}) }

// confirmed answers the write under way: stored, at the next revision.
func (d *driver) confirmed() *driver {
	w := *d.s.Write
	r := w.Record
	r.Revision++
	return d.step(WriteDone{Nonce: w.Nonce, Outcome: Confirmed, Record: &r})
}

func (d *driver) done(o Outcome) *driver {
	return d.step(WriteDone{Nonce: d.s.LastNonce, Outcome: o})
}

// waiting has seen a Lease, and watches it. Its requests have been slow, so that it is patient.
func waiting(c Config, r Record) *driver {
	d := drive(c)
	d.s.RoundTrip = time.Second
	return d.step(WatchOpened{}).found(r)
}

// acquiring has sent an acquire of a free Lease, a second ago.
func acquiring(c Config) *driver {
	return waiting(c, free(other, 10)).after(time.Second)
}

// holding has held the Lease for a moment. The acquire was sent a second before that.
func holding(c Config) *driver {
	return acquiring(c).confirmed().after(500 * time.Millisecond)
}

// renewing has a renewal under way since half a second.
func renewing(c Config) *driver {
	return holding(c).wake().after(500 * time.Millisecond)
}

// has returns the one action of a type that the last step wants done, and fails if there is none.
func has[A Action](t *testing.T, d *driver) A {
	t.Helper()
	var found []A
	for _, action := range d.actions {
		if a, ok := action.(A); ok {
			found = append(found, a)
		}
	}
	if len(found) != 1 {
		var want A
		t.Fatalf("%d times %T in %+v; the state is %v", len(found), want, d.actions, facts(d))
	}
	return found[0]
}

// hasNo fails if the last step wants an action of a type done.
func hasNo[A Action](t *testing.T, d *driver) {
	t.Helper()
	for _, action := range d.actions {
		if a, ok := action.(A); ok {
			t.Fatalf("unwanted %T %+v; the state is %v", a, a, facts(d))
		}
	}
}
