//go:build linux

package main

import (
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/singletonjob/operator/fence"
	"github.com/singletonjob/operator/test/observe"
	"github.com/singletonjob/operator/test/workload/ask"
)

const ms = time.Millisecond

func life(pod string, token fence.Token, first, last time.Duration) observe.Life {
	return observe.Life{Writer: pod + "@1", Tokens: []fence.Token{token}, First: first, Last: last, FirstStored: first, LastStored: last}
}

func answer(sent time.Duration, pod string, token fence.Token) ask.Asked {
	return ask.Asked{Sent: sent, Who: ask.Who{Pod: pod, Token: token}}
}

func lost(sent time.Duration, why ask.Failure) ask.Asked { return ask.Asked{Sent: sent, Failure: why} }

func kept(a ask.Asked) ask.Asked {
	a.Kept = true
	return a
}

func handover() facts {
	return facts{
		lives: []observe.Life{life("a", 5, 0, 100*ms), life("b", 8, 160*ms, 900*ms)},
		asked: []ask.Asked{
			answer(90*ms, "a", 5), answer(100*ms, "a", 5), lost(110*ms, ask.Refused), lost(150*ms, ask.TimedOut), lost(170*ms, ask.Refused),
			answer(180*ms, "b", 8), lost(300*ms, ask.Broken),
			kept(answer(100*ms, "a", 5)), kept(lost(110*ms, ask.Broken)), kept(answer(200*ms, "b", 8)),
		},
		leases: []leaseSeen{{10 * ms, 5}, {130 * ms, 8}},
		behind: []behindSeen{{20 * ms, []string{"a"}}, {140 * ms, nil}, {150 * ms, []string{"b"}}},
	}
}

func TestJudge(t *testing.T) {
	f := handover()
	got, err := judge("switchover", f.lives[0], f.lives[1], f)
	if err != nil {
		t.Fatal(err)
	}
	want := Change{
		Kind: "switchover", From: "a", To: "b", Client: 80 * ms, Kept: 100 * ms, Process: 60 * ms, Proxy: 20 * ms, Endpoint: 20 * ms, Empty: 10 * ms,
		Lost: map[ask.Failure]int{ask.Refused: 2, ask.TimedOut: 1},
	}
	if diff := cmp.Diff(want, got); diff != "" {
		t.Errorf("(-want +got):\n%s", diff)
	}
}

func TestJudgeFinds(t *testing.T) {
	for name, tc := range map[string]struct {
		with  func(*facts)
		check func(Change) bool
		err   string
	}{
		"an answer of the past": {with: func(f *facts) { f.asked = append(f.asked, answer(170*ms, "a", 5)) }, check: func(c Change) bool { return c.Wrong == 1 }},
		"one on the connection that is kept": {
			with: func(f *facts) { f.asked = append(f.asked, kept(answer(170*ms, "a", 5))) }, check: func(c Change) bool { return c.Wrong == 1 },
		},
		"the endpoint that is right already": {
			with:  func(f *facts) { f.behind = []behindSeen{{20 * ms, []string{"b"}}} },
			check: func(c Change) bool { return c.Endpoint == 0 && c.Empty == 0 && c.Proxy == 20*ms },
		},
		"an endpoint that was right too early": {
			with: func(f *facts) {
				f.behind = []behindSeen{{20 * ms, []string{"b"}}, {30 * ms, []string{"a"}}, {400 * ms, []string{"b"}}}
			},
			check: func(c Change) bool { return c.Endpoint == 270*ms && c.Proxy == 0 },
		},
		"a client's node that hears of it late": {
			with:  func(f *facts) { f.behind[2].at = 170 * ms },
			check: func(c Change) bool { return c.Endpoint == 40*ms && c.Proxy == 10*ms },
		},
		"two endpoints":       {with: func(f *facts) { f.behind = []behindSeen{{150 * ms, []string{"a", "b"}}} }, err: "never was the only endpoint"},
		"nobody who answers":  {with: func(f *facts) { f.asked = f.asked[:5] }, err: "never answered"},
		"a Lease not watched": {with: func(f *facts) { f.leases = f.leases[:1] }, err: "nobody saw"},
	} {
		t.Run(name, func(t *testing.T) {
			f := handover()
			tc.with(&f)
			got, err := judge("switchover", f.lives[0], f.lives[1], f)
			switch {
			case tc.err == "" && err != nil, tc.err != "" && (err == nil || !strings.Contains(err.Error(), tc.err)):
				t.Errorf("error %v, want %q", err, tc.err)
			case tc.err == "" && !tc.check(got):
				t.Errorf("it says %+v", got)
			}
		})
	}
}

func TestJudgeOutage(t *testing.T) {
	asked := []ask.Asked{
		answer(90*ms, "a", 5), lost(150*ms, ask.TimedOut), lost(170*ms, ask.Refused), lost(180*ms, ask.Refused), answer(190*ms, "a", 5),
		kept(answer(190*ms, "a", 5)), lost(310*ms, ask.Refused), answer(350*ms, "b", 8), answer(360*ms, "b", 8),
	}
	behind := []behindSeen{{20 * ms, []string{"a"}}, {150 * ms, nil}, {350 * ms, []string{"b"}}}
	got := judgeOutage("pod deleted", life("a", 5, 0, 100*ms), life("b", 8, 160*ms, 900*ms), facts{asked: asked, behind: behind}, 300*ms)
	want := Outage{
		Kind: "pod deleted", Process: 60 * ms, Moved: true, Watched: 140 * ms, Wrong: 1, Lost: map[ask.Failure]int{ask.Refused: 2}, Back: 50 * ms,
	}
	if diff := cmp.Diff(want, got); diff != "" {
		t.Errorf("(-want +got):\n%s", diff)
	}
}

func TestVerdict(t *testing.T) {
	for name, r := range map[string]Result{
		"two endpoints":                 {Several: 1},
		"a process of the past":         {Changes: []Change{{Wrong: 1}}},
		"the same, without an operator": {Outages: []Outage{{Wrong: 1}}},
	} {
		if r.verdict() == nil {
			t.Errorf("%s: all is well", name)
		}
	}
	if err := (Result{Changes: []Change{{Endpoint: time.Hour}}, Outages: []Outage{{}}}).verdict(); err != nil {
		t.Error(err)
	}
}

func TestSpread(t *testing.T) {
	var values []time.Duration
	for i := 10; i > 0; i-- {
		values = append(values, time.Duration(i)*ms)
	}
	for want, of := range map[string][]time.Duration{"-": nil, "10 / 10 / 10 / 10": values[:1], "1 / 5 / 9 / 10": values} {
		if got := spread(of); got != want {
			t.Errorf("spread %q, want %q", got, want)
		}
	}
}
