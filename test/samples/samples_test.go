//go:build linux

package samples

import (
	"strings"
	"syscall"
	"testing"
	"time"
)

func eventually(t *testing.T, what string, is func() bool) {
	t.Helper()
	for deadline := time.Now().Add(patience); !is(); time.Sleep(10 * time.Millisecond) {
		if time.Now().After(deadline) {
			t.Fatalf("no %s", what)
		}
	}
}

// TestTwoBots: two at a time, without SingletonJob, tell each other to go, and one that ends in order leaves nothing to be answered twice.
func TestTwoBots(t *testing.T) {
	t.Parallel()
	api := NewTelegram(t)
	env := []string{"API_URL=" + api.URL, "BOT_TOKEN=" + Token}
	bot := func() *program { return start(t, "", env, "/usr/bin/python3", Dir+"/bot/bot.py") }
	answered := func(n int) func() bool { return func() bool { return api.Counts().Answered == n } }

	first := bot()
	api.Say()
	eventually(t, "answer", answered(1))
	_ = first.Process.Signal(syscall.SIGTERM)
	first.awaitEnd(t)

	bot()
	api.Say()
	eventually(t, "answer of the next", answered(2))
	if c := api.Counts(); c.Conflicts != 0 {
		t.Errorf("of one after the other: %+v", c)
	}
	bot()
	eventually(t, "conflict of two", func() bool { return api.Counts().Conflicts > 0 })
}

// TestTwoExporters: two at a time, without SingletonJob, spend the quota twice.
func TestTwoExporters(t *testing.T) {
	t.Parallel()
	api := NewCosts(t)
	for range 2 {
		start(t, "", []string{"API_URL=" + api.URL, "INTERVAL=0.2", "LISTEN=127.0.0.1:0"}, "/usr/bin/python3", Dir+"/exporter/exporter.py")
	}
	eventually(t, "call beside another caller", func() bool { return api.Calls().Returned > 0 })
}

// TestTwoRelays: two with one token, as without SingletonJob, store events twice. One of a past tenure stores nothing more.
func TestTwoRelays(t *testing.T) {
	t.Parallel()
	o := NewOutbox(t)
	relay := func(token string) *program {
		env := []string{"SOURCE_URL=" + o.Source, "TARGET_URL=" + o.Target, "FENCING_TOKEN=" + token}
		return start(t, "", env, python3(t), Dir+"/outbox/relay.py")
	}
	stop := o.Write()
	defer stop()
	first, second := relay("1"), relay("1")
	eventually(t, "event that is stored twice", func() bool { return o.Delivered().Extra > 0 })
	relay("2")
	for _, p := range []*program{first, second} {
		p.awaitEnd(t)
		if said := p.output.String(); said != "token 1 is of a past tenure\n" {
			t.Errorf("a relay of a past tenure says %q", said)
		}
	}
	extra := o.Delivered().Extra
	stop()
	eventually(t, "end of what is missing", func() bool { return len(o.Missing()) == 0 })
	if d := o.Delivered(); d.Extra != extra {
		t.Errorf("SAFETY: with one relay: %+v, and %d before it", d, extra)
	}
}

// TestTwoBeats: two with one token, as without SingletonJob, have more done than is due. One of a past tenure notes nothing more.
func TestTwoBeats(t *testing.T) {
	t.Parallel()
	l := NewLedger(t)
	first, second := l.celery("9", "beat", "--pidfile="), l.celery("9", "beat", "--pidfile=")
	eventually(t, "runs that are too close to each other", func() bool { return l.Runs().Close > 0 })
	l.celery("10", "beat", "--pidfile=")
	for _, p := range []*program{first, second} {
		p.awaitEnd(t)
		if said := p.output.String(); !strings.Contains(said, "token 9 is of a past tenure") {
			t.Errorf("a beat of a past tenure says %q", said)
		}
	}
	eventually(t, "end of what they have sent", func() bool { return !l.Queued() })
	// A worker takes four from the queue before it does them, in their order. So what they have sent is done before the fifth from here on.
	ended := l.Runs()
	eventually(t, "end of what was under way", func() bool { return l.Runs().Done > ended.Done+4 })
	before := l.Runs()
	eventually(t, "further runs", func() bool { return l.Runs().Done > before.Done+2 })
	if r := l.Runs(); r.Close != before.Close {
		t.Errorf("with one beat: %+v, and %+v before it", r, before)
	}
}

// TestTwoSigners: two at a time, without SingletonJob, sign a height twice. A signer in watch mode detects that another one signs.
func TestTwoSigners(t *testing.T) {
	t.Parallel()
	chain := NewChain(t)
	signer := func(args ...string) *program {
		args = append([]string{Dir + "/signer/signer.py"}, args...)
		return start(t, "", []string{"CHAIN_URL=" + chain.URL, "KEY=key"}, "/usr/bin/python3", args...)
	}
	alone := signer("watch")
	alone.awaitEnd(t)
	if said := alone.output.String(); said != "" || !alone.ProcessState.Success() {
		t.Errorf("the watching signer says %q while no other signs: %v", said, alone.ProcessState)
	}
	signer()
	eventually(t, "signatures", func() bool { return chain.Heights().Signed > 1 })
	eventually(t, "signer that the watching one detects", func() bool { // one that gets no CPU misses heights
		second := signer("watch")
		second.awaitEnd(t)
		return strings.HasSuffix(second.output.String(), "is signed by another with this key\n") && !second.ProcessState.Success()
	})
	if h := chain.Heights(); h.Double > 0 {
		t.Errorf("with one signer: %+v", h)
	}
	signer()
	eventually(t, "height that is signed twice", func() bool { return chain.Heights().Double > 0 })
}
