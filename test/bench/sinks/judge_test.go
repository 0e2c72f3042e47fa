package main

import (
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/singletonjob/operator/fence"
	"github.com/singletonjob/operator/test/bench/sinks/offer"
)

func write(token fence.Token, seq int) offer.Write {
	return offer.Write{Token: token, Writer: map[fence.Token]string{5: "old", 8: "new"}[token], Seq: seq}
}

// told is a report of a write, which was answered at so many milliseconds, one after it was sent.
func told(token fence.Token, seq, at int, outcome offer.Outcome) offer.Report {
	t := time.Duration(at) * time.Millisecond
	return offer.Report{Write: write(token, seq), Sent: t - time.Millisecond, At: t, Outcome: outcome}
}

func TestCount(t *testing.T) {
	const ms = time.Millisecond
	for name, c := range map[string]struct {
		why     string
		before  int
		stored  []offer.Write
		reports []offer.Report
		want    Result
	}{
		"refused": {
			why:     "what a past tenure offers and the sink refuses is stale, and the gap is from one tenure's last write to the next one's first",
			stored:  []offer.Write{write(5, 1), write(5, 2), write(8, 1), write(8, 2)},
			reports: []offer.Report{told(5, 1, 10, offer.Accepted), told(5, 2, 30, offer.Accepted), told(8, 1, 130, offer.Accepted), told(5, 3, 140, offer.Stale), told(8, 2, 150, offer.Accepted)},
			want:    Result{Offered: 5, Accepted: 4, StaleOffered: 1, Gap: 100 * ms},
		},
		"stored": {
			why:     "the sink's order decides, not when the writers heard of it",
			stored:  []offer.Write{write(5, 1), write(8, 1), write(5, 2)},
			reports: []offer.Report{told(5, 1, 10, offer.Accepted), told(5, 2, 30, offer.Accepted), told(8, 1, 130, offer.Accepted)},
			want:    Result{Offered: 3, Accepted: 3, StaleOffered: 1, StaleAccepted: 1, Gap: 100 * ms},
		},
		"stored, and nobody was told": {
			why:     "what a kernel sends after its process has given up is offered, too",
			stored:  []offer.Write{write(5, 1), write(8, 1), write(5, 2)},
			reports: []offer.Report{told(5, 1, 10, offer.Accepted), told(5, 2, 30, offer.Unknown), told(8, 1, 130, offer.Accepted)},
			want:    Result{Offered: 3, Accepted: 3, StaleOffered: 1, StaleAccepted: 1, Gap: 120 * ms},
		},
		"never heard of again": {
			why:     "a write of which nobody knows is no proof of a fence",
			stored:  []offer.Write{write(5, 1), write(8, 1)},
			reports: []offer.Report{told(5, 1, 10, offer.Accepted), told(5, 2, 30, offer.Unknown), told(8, 1, 60, offer.Accepted)},
			want:    Result{Offered: 3, Accepted: 2, Gap: 50 * ms},
		},
		"lost": {
			why:     "what was acknowledged is stored",
			stored:  []offer.Write{write(5, 1)},
			reports: []offer.Report{told(5, 1, 10, offer.Accepted), told(5, 2, 30, offer.Accepted)},
			want:    Result{Offered: 2, Accepted: 1, Lost: 1, Gap: 20 * ms},
		},
		"refused too early": {
			why:     "without a later tenure nothing is stale",
			stored:  []offer.Write{write(5, 1)},
			reports: []offer.Report{told(5, 1, 10, offer.Accepted), told(5, 2, 30, offer.Stale)},
			want:    Result{Offered: 2, Accepted: 1, WronglyRefused: 1},
		},
		"before the fault": {
			why:    "what was before the fault is not its work, but stale is what is lower than that",
			before: 3,
			stored: []offer.Write{write(5, 1), write(8, 1), write(5, 2), write(5, 3), write(8, 2)},
			reports: []offer.Report{
				told(8, 1, -500, offer.Accepted), told(5, 2, -20, offer.Accepted), told(5, 9, -10, offer.Stale), told(8, 2, 20, offer.Accepted), told(5, 3, 30, offer.Accepted),
			},
			want: Result{Offered: 2, Accepted: 2, StaleOffered: 1, StaleAccepted: 1, Gap: 40 * ms},
		},
	} {
		t.Run(name, func(t *testing.T) {
			if diff := cmp.Diff(c.want, count(c.stored, c.before, c.reports, 0)); diff != "" {
				t.Errorf("%s (-want +got):\n%s", c.why, diff)
			}
		})
	}
}

func TestJudge(t *testing.T) {
	for name, c := range map[string]struct {
		result Result
		silent bool
		want   string // empty: nothing is wrong
	}{
		"refused":                {Result{Fenced: true, StaleOffered: 3}, false, ""},
		"stored":                 {Result{Fenced: true, StaleOffered: 3, StaleAccepted: 1}, false, "1 stale writes were stored"},
		"stored of a lost node":  {Result{Fenced: true, StaleOffered: 1, StaleAccepted: 1}, true, "1 stale writes were stored"},
		"none offered":           {Result{Fenced: true}, false, "proves nothing"},
		"none can be offered":    {Result{Fenced: true}, true, ""},
		"lost":                   {Result{Fenced: true, StaleOffered: 1, Lost: 2}, false, "2 acknowledged writes are not stored"},
		"refused too early":      {Result{Fenced: true, StaleOffered: 1, WronglyRefused: 2}, false, "2 writes were refused"},
		"no fence":               {Result{StaleOffered: 3, StaleAccepted: 3, Lost: 1}, false, ""},
		"no fence, none stored":  {Result{StaleOffered: 3}, false, "nothing would refuse one"},
		"no fence, none offered": {Result{}, false, "proves nothing"},
	} {
		err := c.result.judge(c.silent)
		if c.want == "" && err != nil || c.want != "" && (err == nil || !strings.Contains(err.Error(), c.want)) {
			t.Errorf("%s: %v, want %q", name, err, c.want)
		}
	}
}

func TestWritesAreRead(t *testing.T) {
	want := offer.Write{Token: 1 << 62, Writer: "job-1@77", Seq: 3}
	got, err := offer.Parse(want.String())
	if err != nil || got != want {
		t.Errorf("%+v, %v, want %+v", got, err, want)
	}
	if _, err := offer.Parse("5 old"); err == nil {
		t.Error("a text without a number was read")
	}
}

func TestMarkdown(t *testing.T) {
	got := markdown([]Result{
		{Fault: "freeze", Sink: "postgres", Fenced: true, Offered: 1000, Accepted: 990, StaleOffered: 7, Gap: 15_200 * time.Millisecond},
		{Fault: "freeze", Sink: "postgres-unfenced", Offered: 900, Accepted: 890, StaleOffered: 6, StaleAccepted: 6, Gap: 800 * time.Millisecond},
	})
	for _, want := range []string{"| PostgreSQL, `fencesql` | 1000 | 990 | 7 | **0** | 15.2 s |\n", "| PostgreSQL, no fence | 900 | 890 | 6 | 6 | 0.8 s |\n"} {
		if !strings.Contains(got, want) {
			t.Errorf("%s\nlacks %s", got, want)
		}
	}
}

func TestChosenKinds(t *testing.T) {
	for list, want := range map[string]string{
		"etcd":                           "etcd",
		"s3,etcd,s3":                     "s3 etcd",
		"":                               `-sinks has "": there are postgres, mariadb, http, handlers, kubernetes, etcd, redis, nats, s3`,
		"kubernetes,kubernetes-unfenced": `-sinks has "kubernetes-unfenced": there are postgres, mariadb, http, handlers, kubernetes, etcd, redis, nats, s3`,
	} {
		asked, err := chosenKinds(list)
		got := strings.Join(asked, " ")
		if err != nil {
			got = err.Error()
		}
		if got != want {
			t.Errorf("%q: %s, want %s", list, got, want)
		}
	}
}
