package contract

import (
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/singletonjob/operator/internal/lease"
)

// FuzzLife makes an agent meet a Lease of any content, as a candidate and as its holder. Either the agent writes nothing, or its write has
// a greater token than the one that it found, and a history within its bound.
func FuzzLife(f *testing.F) {
	long := strings.Repeat("x", 1<<20)
	largest := "9223372036854775807"
	now := "2026-01-02T03:04:05.000006Z"
	f.Add("7", "p/u/n", int32(15), int32(3), now, now, "7", "", "", "", "", "1m0s", "5,p,n,1,2,X;4,p,n,1,2,Y")
	f.Add("7", "", int32(15), int32(3), "", now, "7", "", "NodeLost", "", "", "", "7,p,n,1,0,")
	f.Add("7", "", int32(0), int32(-1), "", "9999-12-31T23:59:59Z", largest, largest, "NodeLost,x", long, long, largest, long)
	f.Add(largest, "", int32(-1), int32(2147483647), "", "0000-01-01T00:00:00Z", "-1", "", "Created", "*", "a,b", "", largest+",p,n,1,0,")
	f.Add("9", "me/uid/1", int32(2147483647), int32(0), "1970-01-01T00:00:00Z", "", "12x", "4503599627370497", long, "me", ";", "-1s", "a,b")
	f.Fuzz(func(t *testing.T, rv, holder string, seconds, transitions int32, acquired, renewed, token, base, release, to, why, duration, history string) {
		fields := Fields{
			UID: "u", ResourceVersion: rv, HolderIdentity: holder, LeaseDurationSeconds: seconds, LeaseTransitions: transitions,
			AcquireTime: acquired, RenewTime: renewed,
			Annotations: map[string]string{
				TokenAnnotation: token, TokenBaseAnnotation: base, ReleaseReasonAnnotation: release, HandoverToAnnotation: to,
				HandoverReasonAnnotation: why, LeaseDurationAnnotation: duration, HistoryAnnotation: history,
			},
		}
		r, err := DecodeLease(fields)
		if err != nil {
			return
		}
		meets(t, fields, r)
	})
}

// meets is one life: it waits for the Lease, takes it if it can, holds it, meets the same content again, and ends.
func meets(t *testing.T, fields Fields, r lease.Record) {
	t.Helper()
	c := lease.Config{
		Identity: lease.Identity{Pod: "me", PodUID: "uid", Nonce: "1"}, Duration: 15 * time.Second, RenewDeadline: 10 * time.Second,
		RetryPeriod: 2 * time.Second, GracePeriod: time.Second,
	}
	var s lease.State
	now := lease.Instant(1)
	stored, tokens := r, []int64{}
	events := []lease.Event{lease.WatchOpened{}}
	for range 300 {
		var e lease.Event = lease.Ticked{}
		if len(events) > 0 {
			e, events = events[0], events[1:]
		} else if s.Wake != lease.Never {
			now = max(now, s.Wake)
		}
		var actions []lease.Action
		s, actions = lease.Step(c, s, lease.Time{Boot: now, Wall: int64(now / 1000)}, e)
		for _, action := range actions {
			switch a := action.(type) {
			case lease.SendRead:
				found := stored
				events = append(events, lease.ReadDone{ID: a.ID, Found: &found})
			case lease.SendWrite:
				wrote := written(t, fields, a.Attempt)
				if a.Attempt.Kind == lease.Acquire && wrote.Token <= stored.Token {
					t.Fatalf("token %d follows %d", wrote.Token, stored.Token)
				}
				if wrote.Revision < 1<<62 {
					wrote.Revision++
				}
				stored = wrote
				events = append(events, lease.WriteDone{Nonce: a.Attempt.Nonce, Outcome: lease.Confirmed, Record: &wrote})
			case lease.StartChild:
				tokens = append(tokens, a.Token)
				again := r // the content once more, under the holder
				again.Revision, again.Holder, again.Token = stored.Revision+1, stored.Holder, stored.Token
				events = append(events, lease.Watched{Record: again})
				stored = again
			case lease.KillTree, lease.SignalChild:
				events = append(events, lease.TreeGone{})
			}
		}
	}
	for i := 1; i < len(tokens); i++ {
		if tokens[i] <= tokens[i-1] {
			t.Fatalf("tokens %v", tokens)
		}
	}
}

// written is what a write stores, by way of the Lease's fields.
func written(t *testing.T, before Fields, a lease.Attempt) lease.Record {
	t.Helper()
	f := EncodeLease(a.Record, before)
	if n := len(f.Annotations[HistoryAnnotation]); n > maxHistory {
		t.Fatalf("%d bytes of history", n)
	}
	for _, name := range []string{ReleaseReasonAnnotation, HandoverReasonAnnotation, HandoverToAnnotation, LeaseDurationAnnotation} {
		if n := len(f.Annotations[name]); n > maxName+len(unclean)+1 {
			t.Fatalf("%s of %d bytes", name, n)
		}
	}
	if f.LeaseDurationSeconds < 0 || f.LeaseTransitions < 0 {
		t.Fatalf("the API server refuses %+v", f)
	}
	if a.Kind != lease.ReleaseLease && f.LeaseDurationSeconds != 15 {
		t.Fatalf("others are told to wait for %d s", f.LeaseDurationSeconds)
	}
	back, err := DecodeLease(f)
	if err != nil {
		t.Fatal(err)
	}
	if back.Token != a.Record.Token || strconv.FormatInt(a.Record.Token, 10) != f.Annotations[TokenAnnotation] || back.RenewTime != a.Nonce {
		t.Fatalf("%v reads back as %+v", a, back)
	}
	return back
}
