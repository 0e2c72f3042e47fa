package plan

import (
	"strings"
	"testing"
	"unicode/utf8"

	"github.com/singletonjob/operator/api/v1alpha1"
)

func TestShorten(t *testing.T) {
	for _, text := range []string{"", "short", strings.Repeat("x", 99), strings.Repeat("ü", 99), "\xff\xfe" + strings.Repeat("世", 99), strings.Repeat("\xff", 99)} {
		for limit := 3; limit < 120; limit++ {
			got := Shorten(text, limit)
			if len(got) > limit || !utf8.ValidString(got) || len(text) <= limit && utf8.ValidString(text) && got != text {
				t.Errorf("%q in %d bytes: %q", text, limit, got)
			}
		}
	}
}

// TestRepeatedRefusalHasTheSameText: a text that differs each time is written once.
func TestRepeatedRefusalHasTheSameText(t *testing.T) {
	for _, verb := range []Verb{Create, Update, Delete} {
		repeatedRefusal(t, verb)
	}
}

func repeatedRefusal(t *testing.T, verb Verb) {
	t.Helper()
	g := steady()
	g.Pods = g.Pods[:1]
	refuse := func(text string) (message string, written bool) {
		g.Refused = []Refusal{{Verb: verb, Text: text, Pods: true}}
		p := Decide(g.Observed)
		if p.Status != nil {
			g.Job.Status = *p.Status
		}
		for _, c := range g.Job.Status.Conditions {
			if c.Type == v1alpha1.ConditionProgressing {
				message = c.Message
			}
		}
		return message, p.Status != nil
	}
	refuse("read tcp 127.0.0.1:34567->10.0.0.1:443: connection reset by peer, request 6f7f2a0e-0000-4000")
	message, written := refuse("read tcp 127.0.0.1:34568->10.0.0.1:443: connection reset by peer, request 77aa2a0e-1111-5111")
	if written || !strings.Contains(message, "34567") {
		t.Errorf("another port is another text: %s", message)
	}
	refuse(`create pod a: failed calling webhook "w": EOF`)
	if message, written = refuse(`create pod a: failed calling webhook "w": connection reset`); written {
		t.Errorf("the same webhook is another text: %s", message)
	}
	if message, written = refuse(`create pod a: failed calling webhook "v": EOF`); !written || !strings.Contains(message, `"v"`) {
		t.Errorf("another webhook is not recorded: %s", message)
	}
	if message, written = refuse("exceeded quota: pods=2"); !written || !strings.Contains(message, "exceeded quota") {
		t.Errorf("another refusal is not recorded: %s", message)
	}
}

// TestLongTextsAreCut: the API server rejects a whole status or Event because of one text that is too long.
func TestLongTextsAreCut(t *testing.T) {
	g := steady()
	g.Pods = g.Pods[:1]
	g.Refused = []Refusal{{Text: strings.Repeat("a", 1<<20), Pods: true}, {Text: "the budget"}, {Text: strings.Repeat("ü", 1<<20)}}
	p := Decide(g.Observed)
	for _, c := range p.Status.Conditions {
		if len(c.Message) > 32768 {
			t.Errorf("%s: a message of %d bytes", c.Type, len(c.Message))
		}
		if c.Type == v1alpha1.ConditionProgressing && !strings.Contains(c.Message, "; the budget; ") {
			t.Errorf("a long refusal hides others: %s", c.Message)
		}
	}
	for _, e := range p.Events {
		if len(e.Message) > 1024 {
			t.Errorf("an Event of %d bytes", len(e.Message))
		}
	}
}
