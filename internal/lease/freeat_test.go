package lease

import (
	"math"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
)

func TestFreeAt(t *testing.T) {
	const (
		d  = 15 * time.Second
		rp = 2 * time.Second
		ld = 4 * time.Second
	)
	mine := &Past{Tenure: Tenure{UID: "lease", Token: 97, Transitions: 3, AcquireTime: 1}, At: t0.Add(-time.Minute), Clean: true}
	crashed := &Past{Tenure: mine.Tenure, At: mine.At}
	restarted := Identity{Pod: me.Pod, PodUID: me.PodUID, Nonce: "0"}
	replaced := Identity{Pod: me.Pod, PodUID: "older", Nonce: "1"}
	blank := func(r Record) Record { r.Holder = ""; return r }
	with := func(r Record, change func(*Record)) Record { change(&r); return r }
	for name, test := range map[string]struct {
		why     string
		record  Record
		past    *Past
		dead    string // who is proven to be
		whole   bool   // EndProvesDeath
		keep    bool   // KeepRunning
		back    Instant
		contact Instant
		want    time.Duration
	}{
		"held":            {record: held(other, 100), want: d + ld},
		"released":        {record: free(other, 100), want: 0},
		"released, crash": {record: held(other, 100).Released(Release{Reason: ReasonProcessExited, Unclean: true}, 1, 1), want: ld},
		"blanked": {
			why:    "emptying the holder without a release stops no process",
			record: blank(held(other, 100)), want: d + ld,
		},
		"blanked after a client-go elector took it over from a release": {
			why:    "the marker is of an earlier tenure",
			record: with(free(other, 100), func(r *Record) { r.AcquireTime = 5 }), want: d + ld,
		},
		"unknown holder":                 {record: with(held(other, 100), func(r *Record) { r.Holder = UnknownHolder }), want: d + ld},
		"longer lease":                   {record: with(held(other, 100), func(r *Record) { r.Duration = time.Minute }), want: time.Minute + ld},
		"shorter lease":                  {record: with(held(other, 100), func(r *Record) { r.Duration = time.Second }), want: d + ld},
		"absurd lease":                   {record: with(held(other, 100), func(r *Record) { r.Duration = 1000 * time.Hour }), want: time.Hour + ld},
		"restarted, the last agent dead": {record: held(restarted, 100), dead: restarted.String(), whole: true, want: ld},
		"restarted, no evidence": {
			why:    "the runtime may have lost a container that lives",
			record: held(restarted, 100), whole: true, want: d + ld,
		},
		"restarted, another one dead": {
			why:    "it may be the second that the runtime has lost",
			record: held(restarted, 100), dead: Identity{me.Pod, me.PodUID, "-1"}.String(), whole: true, want: d + ld,
		},
		"restarted, not PID 1": {why: "processes may have outlived the agent", record: held(restarted, 100), dead: restarted.String(), want: d + ld},
		"pod of the same name": {why: "the old pod may be on a node that is cut off", record: held(replaced, 100), whole: true, want: d + ld},
		"own tenure, never begun": {
			why:    "an acquire that was stored after its sender gave up",
			record: held(me, 100), want: ld,
		},
		"own tenure, not released": {record: held(me, 100), past: mine, want: 0},
		"own tenure, crashed":      {record: held(me, 100), past: crashed, want: ld},
		"own tenure, blanked":      {record: blank(held(me, 100)), past: mine, want: 0},
		"own tenure, blanked and counted down": {
			why:    "not certainly its own",
			record: with(blank(held(me, 100)), func(r *Record) { r.Transitions = 1 }), past: mine, want: d + ld,
		},
		"own release":             {why: "the others go first", record: free(me, 100), past: mine, want: rp},
		"release of another life": {why: "this agent has not just had it", record: free(me, 100), want: 0},
		"released to me":          {record: with(free(other, 100), func(r *Record) { r.Handover.To = me.Pod }), want: 0},
		"released to anyone":      {record: with(free(other, 100), func(r *Record) { r.Handover.To = AnyPod }), want: 0},
		"released to another":     {record: with(free(other, 100), func(r *Record) { r.Handover.To = "c" }), want: rp},
		"own release to another":  {record: with(free(me, 100), func(r *Record) { r.Handover.To = "c" }), past: mine, want: rp},
		"own release to anyone":   {record: with(free(me, 100), func(r *Record) { r.Handover.To = AnyPod }), past: mine, want: rp},
		"released crash to another": {
			record: with(held(other, 100).Released(Release{Reason: ReasonNodeLost, Unclean: true}, 1, 1), func(r *Record) { r.Handover.To = "c" }),
			want:   ld + rp,
		},
		"held, handover asked for": {record: with(held(other, 100), func(r *Record) { r.Handover.To = me.Pod }), want: d + ld},
		"released by a server that forgot": {
			why:    "a tenure that it forgot may last",
			record: free(other, 100), back: t0.Add(20 * time.Second), want: 20 * time.Second,
		},
		"back in touch": {
			why:    "a holder that keeps running gets the time to renew after an outage",
			record: held(other, 100), keep: true, contact: t0.Add(30 * time.Second), want: 30*time.Second + 2*8*time.Second/3 + rp,
		},
		"back in touch, no KeepRunning": {record: held(other, 100), contact: t0.Add(30 * time.Second), want: d + ld},
	} {
		t.Run(name, func(t *testing.T) {
			c := testConfig()
			c.LockDelay, c.EndProvesDeath, c.KeepRunning = ld, test.whole, test.keep
			if test.keep {
				c.LockDelay = 0
			}
			s := State{Observed: Observation{Known: true, Record: test.record, At: t0}, Past: test.past, NotBefore: test.back, ReconnectedAt: test.contact}
			s.Death = Death{Holder: test.dead, Proven: test.dead != "", From: t0}
			if got := c.FreeAt(s).Sub(t0); (got - test.want).Abs() > time.Microsecond {
				t.Errorf("free after %v, want %v: %s", got, test.want, test.why)
			}
		})
	}
}

func TestJitterDoesNotDelayAProvenDeath(t *testing.T) {
	c := testConfig()
	c.Jitter = 50 * time.Millisecond
	s := State{Observed: Observation{Known: true, Record: free(other, 100), At: t0}}
	if got := c.FreeAt(s); got != t0 {
		t.Errorf("a released Lease is free %v later", got.Sub(t0))
	}
	s.Observed.Record = held(other, 100)
	if got := c.FreeAt(s).Sub(t0); got != c.Duration+c.Jitter {
		t.Errorf("a Lease that ran out is free after %v", got)
	}
}

// The first of the standbys waits for nobody, also where the holder that stopped renewing goes before it.
func TestFirstStandbyHasNoJitter(t *testing.T) {
	const step = 15 * time.Millisecond
	pod := func(n string) Identity { return Identity{Pod: "job-x-" + n, PodUID: "u", Nonce: "1"} }
	for _, test := range []struct {
		me, holder string
		jitter     time.Duration
		want       time.Duration
	}{
		{"0", "1", 0, 0},
		{"1", "0", step, 0},
		{"2", "0", 2 * step, step},
		{"2", "1", 2 * step, step},
		{"1", "2", step, step},
		{"1", "other", step, step},
	} {
		c := testConfig()
		c.Identity, c.Jitter = pod(test.me), test.jitter
		s := State{Observed: Observation{Known: true, Record: held(pod(test.holder), 100), At: t0}}
		if got := c.FreeAt(s).Sub(t0) - c.Duration; got != test.want {
			t.Errorf("%s waits %v for %s, want %v", test.me, got, test.holder, test.want)
		}
	}
}

// Lowering the duration in the Lease takes nothing from the holder's right, which the longest one seen bounds.
func TestWaitCoversTheLongestDuration(t *testing.T) {
	long := held(other, 10)
	long.Duration = time.Minute
	lowered := long
	lowered.Revision, lowered.Duration = 20, time.Second
	retold := lowered
	retold.Revision, retold.Token = 25, lowered.Token+1
	anew := held(other, 30)
	anew.UID, anew.Holder, anew.Duration = "another", UnknownHolder, 5*time.Second
	next := held(Identity{"c", "uc", "1"}, 40)
	for name, test := range map[string]struct {
		events []Event
		want   time.Duration
	}{
		"lowered":                        {[]Event{Watched{Record: lowered}}, time.Minute},
		"lowered, and the token edited":  {[]Event{Watched{Record: lowered}, Watched{Record: retold}}, time.Minute},
		"recreated with less":            {[]Event{Watched{Record: lowered, Deleted: true}, Watched{Record: anew}}, time.Minute},
		"another tenure with its own":    {[]Event{Watched{Record: lowered}, Watched{Record: next}}, 15 * time.Second},
		"went back to before the tenure": {[]Event{ReadDone{Found: new(held(other, 5))}}, time.Minute},
	} {
		d := waiting(testConfig(), long)
		for _, e := range test.events {
			if read, ok := e.(ReadDone); ok {
				d.step(WatchClosed{}).wake()
				read.ID = d.s.LastRead
				e = read
			}
			d.after(time.Second).step(e)
		}
		if got := d.c.FreeAt(d.s).Sub(d.now); got != test.want {
			t.Errorf("%s: free after %v, want %v", name, got, test.want)
		}
	}
}

// A second observation of an earlier state does not shorten the wait of the first.
func TestWaitAfterARollbackIsNotShortened(t *testing.T) {
	long := held(other, 100)
	long.Duration = time.Hour
	d := waiting(testConfig(), long).step(WatchClosed{}).wake().found(free(other, 50))
	until := d.s.NotBefore
	next := free(other, 60)
	next.Token = 70
	d.step(Watched{Record: next}).wake().found(free(other, 55))
	if d.s.NotBefore < until {
		t.Errorf("%v sooner", until.Sub(d.s.NotBefore))
	}
}

// A restored server may have forgotten a holder that nobody released. It may run for as long as any that is known of.
func TestWaitAfterARestoreCoversEveryHolder(t *testing.T) {
	with := func(r Record, d time.Duration) Record {
		r.Duration = d
		return r
	}
	for name, test := range map[string]struct{ own, seen, restored time.Duration }{
		"own":      {time.Hour, time.Minute, time.Minute},
		"seen":     {time.Minute, time.Hour, time.Minute},
		"restored": {time.Minute, time.Minute, time.Hour},
	} {
		c := testConfig()
		c.Duration, c.LockDelay = test.own, 10*time.Second
		d := waiting(c, with(held(other, 100), test.seen)).step(WatchClosed{}).wake().found(with(free(other, 50), test.restored))
		if got := c.FreeAt(d.s).Sub(d.now); got != time.Hour+c.LockDelay {
			t.Errorf("%s: free after %v", name, got)
		}
	}
}

func TestLastTenureBelongsToItsLease(t *testing.T) {
	c := testConfig()
	r := held(other, 100)
	r.Holder = "" // by hand
	s := State{Observed: Observation{Known: true, Record: r, At: t0}, Past: &Past{Tenure: tenureOf(r, t0), At: t0, Clean: true}}
	if got := c.FreeAt(s); got != t0 {
		t.Errorf("the own last tenure, blanked by hand, is waited for: %v", got.Sub(t0))
	}
	s.Observed.Record.UID = "another"
	if got := c.FreeAt(s).Sub(t0); got != c.Duration {
		t.Errorf("the holder of another Lease may run, and it is free after %v", got)
	}
}

func TestWaitingCountsFromOwnEndToo(t *testing.T) {
	c := testConfig()
	s := State{
		Observed: Observation{Known: true, Record: held(other, 100), At: t0},
		Past:     &Past{Tenure: Tenure{UID: "lease", Token: 50}, At: t0.Add(3 * time.Second)},
	}
	if got := c.FreeAt(s).Sub(t0); got != c.Duration+3*time.Second {
		t.Errorf("free after %v", got)
	}
}

func TestNextToken(t *testing.T) {
	for name, test := range map[string]struct {
		record Record
		want   int64 // 0: none
	}{
		"first":                         {Record{Revision: 5}, 5},
		"revision":                      {Record{Revision: 500, Token: 20}, 500},
		"base":                          {Record{Revision: 500, Token: 20, TokenBase: 1000}, 1500},
		"previous, after a restore":     {Record{Revision: 10, Token: 20}, 21},
		"same revision as the previous": {Record{Revision: 20, Token: 20}, 21},
		"base too large":                {Record{Revision: 10, Token: 20, TokenBase: math.MaxInt64 - 5}, 0},
		"largest but one":               {Record{Revision: 10, Token: math.MaxInt64 - 1}, math.MaxInt64},
		"forged":                        {Record{Revision: 10, Token: math.MaxInt64}, 0},
		"bad base":                      {Record{Revision: 10, BadTokenBase: "x"}, 0},
		"token lowered by hand":         {Record{Revision: 10, Token: 1, History: []PastTenure{{Token: 30}}}, 31},
		"absurd history":                {Record{Revision: 10, Token: 1, History: []PastTenure{{Token: math.MaxInt64}}}, 10},
	} {
		if got, ok := test.record.NextToken(); got != test.want || ok != (test.want != 0) {
			t.Errorf("%s: %d, %v, want %d", name, got, ok, test.want)
		}
	}
}

func TestMargin(t *testing.T) {
	for d, want := range map[time.Duration]time.Duration{
		time.Second:      500 * time.Millisecond,
		4 * time.Second:  500 * time.Millisecond,
		5 * time.Second:  time.Second,
		15 * time.Second: time.Second,
		time.Minute:      4 * time.Second,
		MaxDuration:      4 * time.Minute,
	} {
		if got := Margin(d); got != want {
			t.Errorf("Margin(%v) = %v, want %v", d, got, want)
		}
	}
}

// TestMarginCoversClocks leaves time to kill: the holder's clock may run 1 % slow, the candidate's 1 % fast.
func TestMarginCoversClocks(t *testing.T) {
	for d := time.Second; d <= MaxDuration; d += time.Second {
		dead := time.Duration(float64(d-Margin(d)) / 0.99)
		taken := time.Duration(float64(d) / 1.01)
		if left := taken - dead; left < 400*time.Millisecond {
			t.Fatalf("with leaseDuration %v only %v are left for the kill", d, left)
		}
	}
}

func TestInstantSaturates(t *testing.T) {
	if got := Never.Add(time.Second); got != Never {
		t.Errorf("Never and a second is %d", got)
	}
	if got := (Never - 1).Add(time.Hour); got != Never {
		t.Errorf("almost Never and an hour is %d", got)
	}
	if got := Instant(5).Add(-3); got != 2 {
		t.Errorf("5 less 3 is %d", got)
	}
}

func TestIdentity(t *testing.T) {
	if got, ok := ParseIdentity(me.String()); !ok || got != me {
		t.Errorf("%q became %+v", me.String(), got)
	}
	for _, foreign := range []string{"", "unknown", "host_uuid", "a/b", "a/b/c/d", "a//c", "/b/c", "a/b/"} {
		if got, ok := ParseIdentity(foreign); ok {
			t.Errorf("%q was taken for %+v", foreign, got)
		}
	}
}

func TestHistory(t *testing.T) {
	const wall = 1_700_000_000_000_000
	past := func(tokens ...int64) []PastTenure {
		var out []PastTenure
		for _, token := range tokens {
			out = append(out, PastTenure{Token: token, Pod: "b", Reason: ReasonProcessExited})
		}
		return out
	}
	lasting := held(other, 100)
	lasting.RenewTime = wall
	full := free(other, 100)
	full.History = past(97, 9, 8, 7, 6, 5, 4, 3, 2, 1)
	for name, test := range map[string]struct {
		record   Record
		presumed Reason
		want     []PastTenure // after an acquire at wall + 1 s
	}{
		"first": {
			record: Record{UID: "lease", Revision: 5, Release: Release{Reason: ReasonCreated}},
			want:   []PastTenure{{Token: 5, Pod: "a", Node: "node-a", Acquired: wall/1000 + 1000}},
		},
		"stopped renewing": {
			record: lasting, presumed: ReasonLeaseExpired,
			want: []PastTenure{
				{Token: 100, Pod: "a", Node: "node-a", Acquired: wall/1000 + 1000},
				{Token: 97, Pod: "b", Node: "node-b", Acquired: 1, Ended: wall / 1000, Reason: ReasonLeaseExpired},
			},
		},
		"released": {
			record: lasting.Released(Release{Reason: ReasonRollout}, wall+500_000, 1), presumed: ReasonLeaseExpired,
			want: []PastTenure{
				{Token: 100, Pod: "a", Node: "node-a", Acquired: wall/1000 + 1000},
				{Token: 97, Pod: "b", Node: "node-b", Acquired: 1, Ended: wall/1000 + 500, Reason: ReasonRollout},
			},
		},
		"full": {
			record: full,
			want:   append([]PastTenure{{Token: 100, Pod: "a", Node: "node-a", Acquired: wall/1000 + 1000}}, past(97, 9, 8, 7, 6, 5, 4, 3, 2)...),
		},
	} {
		t.Run(name, func(t *testing.T) {
			before := append([]PastTenure(nil), test.record.History...)
			got := test.record.acquired(testConfig(), test.presumed, wall+1_000_000, wall+1_000_000)
			if diff := cmp.Diff(test.want, got.History); diff != "" {
				t.Error(diff)
			}
			if diff := cmp.Diff(before, test.record.History); diff != "" {
				t.Errorf("the record acquired from was changed:\n%s", diff)
			}
		})
	}
}

func TestReleaseOfAnotherTenureLeavesHistoryAlone(t *testing.T) {
	r := held(other, 100)
	r.Token++ // a foreign tenure in between
	if diff := cmp.Diff(held(other, 100).History, r.Released(Release{Reason: ReasonNodeLost}, 1, 1).History); diff != "" {
		t.Error(diff)
	}
}

func TestTransitionsDoNotOverflow(t *testing.T) {
	r := held(other, 100)
	r.Transitions = math.MaxInt32
	if got := r.acquired(testConfig(), "", 1, 1).Transitions; got != math.MaxInt32 {
		t.Errorf("transitions became %d, which the API refuses", got)
	}
}

// After a restore of etcd, candidates that have seen the forgotten holder wait for it. A candidate that restarts cannot know about it. So
// the API servers stay down until it is dead.
func TestOnlyOldCandidatesWaitForAForgottenHolder(t *testing.T) {
	restored := free(other, 50)
	knows := waiting(testConfig(), held(other, 100)).step(WatchClosed{}).wake().found(restored)
	hasNo[SendWrite](t, knows)
	if got := knows.c.FreeAt(knows.s).Sub(knows.now); got != knows.c.Duration {
		t.Errorf("it waits %v", got)
	}
	has[SendWrite](t, waiting(testConfig(), restored))
}
