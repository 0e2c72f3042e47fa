package contract

import (
	"maps"
	"math"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/singletonjob/operator/internal/lease"
)

func TestLeaseRoundTrip(t *testing.T) {
	for name, r := range map[string]lease.Record{
		"never held": {UID: "u", Revision: 1, Duration: 15 * time.Second, Release: lease.Release{Reason: lease.ReasonCreated}},
		"held": {
			UID: "u", Revision: 1 << 60, Holder: "p/u/n", Token: 1<<62 + 3, Transitions: 7, Duration: time.Hour,
			AcquireTime: 1_700_000_000_000_001, RenewTime: 1_700_000_000_000_002, TokenBase: 9,
			Handover: lease.Handover{To: "q", Reason: lease.ReasonRollout},
			History: []lease.PastTenure{
				{Token: 5, Pod: "p", Node: "n", Acquired: 10},
				{Token: 4, Pod: "q", Acquired: 1, Ended: 9, Reason: lease.ReasonLeaseExpired},
			},
		},
		"released uncleanly": {UID: "u", Revision: 3, Token: 2, Release: lease.Release{Reason: lease.ReasonRenewFailed, Unclean: true}},
	} {
		t.Run(name, func(t *testing.T) {
			before := Fields{Annotations: map[string]string{"other": "kept", HandoverToAnnotation: "stale"}}
			given := maps.Clone(before.Annotations)
			got := EncodeLease(r, before)
			if diff := cmp.Diff(given, before.Annotations); diff != "" {
				t.Errorf("EncodeLease changed its argument: %s", diff)
			}
			if got.Annotations["other"] != "kept" {
				t.Error("EncodeLease lost an annotation that is not its own")
			}
			back, err := DecodeLease(got)
			if err != nil {
				t.Fatal(err)
			}
			if diff := cmp.Diff(r, back); diff != "" {
				t.Errorf("round trip (-want +got):\n%s", diff)
			}
		})
	}
}

func TestMalformedLeaseIsRefusedOrReadAsMissing(t *testing.T) {
	for _, rv := range []string{"", "abc", "-1", "9223372036854775808"} {
		if _, err := DecodeLease(Fields{UID: "u", ResourceVersion: rv}); err == nil || !strings.Contains(err.Error(), rv) {
			t.Errorf("resourceVersion %q: got %v", rv, err)
		}
	}
	if _, err := DecodeLease(Fields{ResourceVersion: "1"}); err == nil {
		t.Error("a Lease without a UID was accepted")
	}
	got, err := DecodeLease(Fields{
		UID: "u", ResourceVersion: "1", LeaseDurationSeconds: -4, LeaseTransitions: -1, RenewTime: "yesterday",
		Annotations: map[string]string{TokenAnnotation: "12x", HandoverToAnnotation: "no pod", HandoverReasonAnnotation: "a;b", LeaseDurationAnnotation: "-1s", HistoryAnnotation: "a,b"},
	})
	if err != nil {
		t.Fatal(err)
	}
	if diff := cmp.Diff(lease.Record{UID: "u", Revision: 1}, got); diff != "" {
		t.Errorf("malformed values were not read as missing: %s", diff)
	}
}

func TestHistoryStaysWithinItsBound(t *testing.T) {
	long := strings.Repeat("x", 63)
	past := make([]lease.PastTenure, lease.HistoryLimit)
	for i := range past {
		past[i] = lease.PastTenure{Token: 1 << 62, Pod: long, Node: long, Acquired: 1 << 41, Ended: 1 << 41, Reason: lease.ReasonHolderTerminated}
	}
	text := formatHistory(past)
	if len(text) > maxHistory {
		t.Fatalf("%d bytes", len(text))
	}
	kept := parseHistory(text)
	if len(kept) < 4 {
		t.Fatalf("only %d tenures fit", len(kept))
	}
	if diff := cmp.Diff(past[:len(kept)], kept); diff != "" {
		t.Error(diff)
	}
}

// A written history is read completely and has no room for one more entry, whatever the length of its lines.
func TestHistoryOfAnyLengthIsRead(t *testing.T) {
	full := false
	for n := range 200 {
		past := make([]lease.PastTenure, 100)
		for i := range past {
			past[i] = lease.PastTenure{Token: 7, Pod: "p", Node: "n", Acquired: 1, Ended: 2, Reason: "X"}
		}
		past[0].Pod = strings.Repeat("x", 1+n)
		text := formatHistory(past)
		full = full || len(text) == maxHistory
		if kept := parseHistory(text); len(text) > maxHistory || len(kept) != strings.Count(text, ";")+1 || len(text)+len(";7,p,n,1,2,X") <= maxHistory {
			t.Fatalf("%d bytes, of which %d tenures are read", len(text), len(kept))
		}
	}
	if !full {
		t.Error("no history had the full length")
	}
}

// A foreign write of leaseDurationSeconds lowers no wait: the longer of the two counts, and both are written.
func TestLongerDurationCounts(t *testing.T) {
	for name, test := range map[string]struct {
		seconds    int32
		annotation string
		want       time.Duration
	}{
		"as written":        {60, "1m0s", time.Minute},
		"lowered":           {1, "1m0s", time.Minute},
		"removed":           {0, "1m0s", time.Minute},
		"raised":            {90, "1m0s", 90 * time.Second},
		"without ours":      {60, "", time.Minute},
		"garbage":           {60, strings.Repeat("9", 1<<20), time.Minute},
		"negative":          {60, "-5m", time.Minute},
		"too long for us":   {60, "999999h", time.Hour},
		"largest":           {math.MaxInt32, "", math.MaxInt32 * time.Second},
		"nothing, negative": {-1, "", 0},
	} {
		r, err := DecodeLease(Fields{
			UID: "u", ResourceVersion: "1", LeaseDurationSeconds: test.seconds,
			Annotations: map[string]string{LeaseDurationAnnotation: test.annotation},
		})
		if err != nil || r.Duration != test.want {
			t.Errorf("%s: %v, %v; want %v", name, r.Duration, err, test.want)
		}
		back := EncodeLease(r, Fields{})
		if got := time.Duration(back.LeaseDurationSeconds) * time.Second; got != test.want {
			t.Errorf("%s: written as %v", name, got)
		}
	}
	half := EncodeLease(lease.Record{UID: "u", Duration: 1500 * time.Millisecond}, Fields{})
	if half.LeaseDurationSeconds != 2 || half.Annotations[LeaseDurationAnnotation] != "1.5s" {
		t.Errorf("1.5s is written as %d and %q", half.LeaseDurationSeconds, half.Annotations[LeaseDurationAnnotation])
	}
}

// A token base that no operator wrote stays what it is until one resets it.
func TestBadTokenBase(t *testing.T) {
	for value, bad := range map[string]string{
		"":                         "",
		"0":                        "",
		"4503599627370496":         "",
		"4503599627370497":         "4503599627370497",
		"9223372036854775807":      "9223372036854775807",
		"-1":                       "-1",
		"1e6":                      "1e6",
		strings.Repeat("7", 1<<20): strings.Repeat("7", 64) + "…",
	} {
		f := Fields{UID: "u", ResourceVersion: "1", Annotations: map[string]string{TokenBaseAnnotation: value}}
		r, err := DecodeLease(f)
		if err != nil || r.BadTokenBase != bad {
			t.Errorf("%.30q: %q, %v", value, r.BadTokenBase, err)
		}
		if bad == "" {
			continue
		}
		if got := EncodeLease(r, f).Annotations[TokenBaseAnnotation]; got != value {
			t.Errorf("%.30q is written back as %.30q", value, got)
		}
		r.BadTokenBase, r.TokenBase = "", 5
		if got := EncodeLease(r, f).Annotations[TokenBaseAnnotation]; got != "5" {
			t.Errorf("%.30q is reset to %.30q", value, got)
		}
	}
}

// A release reason that is not a word does not free the Lease. Every acquire time counts as set.
func TestInvalidMarkers(t *testing.T) {
	for name, f := range map[string]Fields{
		"1 MiB":                {Annotations: map[string]string{ReleaseReasonAnnotation: strings.Repeat("x", 1<<20)}},
		"no word":              {Annotations: map[string]string{ReleaseReasonAnnotation: "set free;by hand"}},
		"acquired at no time":  {AcquireTime: "0000", Annotations: map[string]string{ReleaseReasonAnnotation: "NodeLost"}},
		"acquired at the dawn": {AcquireTime: "1970-01-01T00:00:00.000000Z", Annotations: map[string]string{ReleaseReasonAnnotation: "NodeLost"}},
	} {
		f.UID, f.ResourceVersion = "u", "1"
		if r, err := DecodeLease(f); err != nil || r.Free() {
			t.Errorf("%s: free, %v", name, err)
		}
	}
}

func FuzzDecodeLease(f *testing.F) {
	const (
		largest, smallest = "9223372036854775807", "-9223372036854775808"
		now               = "2026-01-02T03:04:05.000006Z"
	)
	long := strings.Repeat("x", 1<<13)
	history := strings.TrimSuffix(strings.Repeat("9,p,n,1,2,X;", 85), ";") // 1019 bytes
	f.Add("u", "7", "p/u/n", int32(15), int32(3), now, now, "12", "5", "ProcessExited,unclean", "p-1", "Rollout", "15s", "5,p,n,1,2,X;4,p,n,1,2,Y")
	f.Add("u", "7", "", int32(0), int32(-1), "", "9999-12-31T23:59:59Z", largest, largest, "NodeLost,x", long, long, largest, long)
	f.Add("u", largest, long, int32(math.MaxInt32), int32(math.MaxInt32), "0000-01-01T00:00:00+23:59", "0000-01-01T00:00:00Z", smallest, smallest, ",", "*", ",,", "-1ns", largest+",p,n,1,0,")
	f.Add("u", "0", "unknown", int32(math.MinInt32), int32(math.MinInt32), "yesterday", "9999-12-31T23:59:59-23:59", "-1", "4503599627370496", "", "", "", "1.5s", history+",p")
	f.Add("u", "1", "p//n", int32(1), int32(0), "1970-01-01T00:00:00Z", "1970-01-01T00:00:00.0000001Z", "0012", "4503599627370497", "A;B", "../etc", "a b", "999999h", "5,,,,,;5,;")
	f.Add("u", "+1", " p ", int32(1), int32(0), now, now, "1e3", "0x10", "Créé", "-", "X\n", "1h0m0.000000001s", strings.Repeat(";", 1024))
	f.Add("", "", "", int32(0), int32(0), "", "", "", "", "", "", "", "", "")
	f.Fuzz(func(t *testing.T, uid, rv, holder string, seconds, transitions int32, acquired, renewed, token, base, release, to, why, duration, history string) {
		fields := Fields{
			UID: uid, ResourceVersion: rv, HolderIdentity: holder, LeaseDurationSeconds: seconds, LeaseTransitions: transitions,
			AcquireTime: acquired, RenewTime: renewed,
			Annotations: map[string]string{
				TokenAnnotation: token, TokenBaseAnnotation: base, LeaseDurationAnnotation: duration, ReleaseReasonAnnotation: release,
				HandoverToAnnotation: to, HandoverReasonAnnotation: why, HistoryAnnotation: history,
			},
		}
		r, err := DecodeLease(fields)
		if err != nil {
			return
		}
		again, err := DecodeLease(EncodeLease(r, fields))
		if err != nil {
			t.Fatal(err)
		}
		if diff := cmp.Diff(r, rounded(t, r, again)); diff != "" {
			t.Errorf("not the same when it is written and read again:\n%s", diff)
		}
		if r.Token < 0 || r.TokenBase < 0 || r.TokenBase > lease.MaxTokenBase || r.Transitions < 0 || r.Duration < 0 {
			t.Errorf("read as %+v", r)
		}
		if r.Free() && (holder != "" || acquired != "" || release == "") {
			t.Errorf("free, but holder %q, acquired %q, released %q", holder, acquired, release)
		}
	})
}

// rounded restores in a record that was read again what writing may change. A duration is rounded up. A time in a year that the API cannot
// write is kept only as "set". If a history grows when it is written, its oldest entries are dropped.
func rounded(t *testing.T, r, again lease.Record) lease.Record {
	t.Helper()
	if d := again.Duration - r.Duration; d < 0 || d >= time.Second {
		t.Errorf("a duration of %v is read again as %v", r.Duration, again.Duration)
	}
	if formatHistory(again.History) != formatHistory(r.History) {
		t.Errorf("history %v is read again as %v", r.History, again.History)
	}
	again.Duration, again.History = r.Duration, r.History
	odd := func(micros int64) bool { year := time.UnixMicro(micros).UTC().Year(); return year < 0 || year > 9999 }
	if odd(r.RenewTime) {
		again.RenewTime = r.RenewTime
	}
	if odd(r.AcquireTime) && again.AcquireTime != 0 {
		again.AcquireTime = r.AcquireTime
	}
	return again
}
