//go:build linux

package main

import (
	"encoding/json"
	"errors"
	"flag"
	"fmt"
	"math/bits"
	"net/http"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/singletonjob/operator/internal/contract"
	"github.com/singletonjob/operator/test/faultproxy"
)

// trouble is a row of docs/api-trouble.md: a fault of an API server, or of a proxy in front of it, that affects a holder.
type trouble struct {
	what string
	// does describes the agent's reaction, for the document.
	does string
	// says is the beginning of the line that the agent logs for the streak, and word is a word of its error. If says is empty, the agent
	// logs nothing.
	says, word string
	// by is the test that covers the row, if this one does not.
	by string

	// fault affects the first few requests, all except watches if when is nil. begin is for troubles that need more: it starts one and
	// returns the function that ends it.
	fault faultproxy.Fault
	when  faultproxy.Match
	begin func(c *candidate) (end func())
}

const (
	renews   = "continues: tries again beside, after 250 ms, then after twice as long each time"
	another  = "continues: tries again over a new connection, perhaps to another server"
	askedFor = "continues: reads what became of the write, and writes again"
	unharmed = "continues: it is no failure"
	failing  = "renew failing"
)

func says(code int, reason string) faultproxy.Fault {
	return faultproxy.Answer(code, nil, fmt.Sprintf(`{"kind":"Status","apiVersion":"v1","status":"Failure","message":"injected",`+
		`"reason":%q,"details":{"group":"coordination.k8s.io","kind":"leases","name":%q},"code":%d}`, reason, jobName, code))
}

func retryAfter(value string) faultproxy.Fault {
	return faultproxy.Answer(http.StatusTooManyRequests, http.Header{"Retry-After": {value}}, "Too many requests, please try again later.")
}

func redirect(code int) faultproxy.Fault {
	return faultproxy.Answer(code, http.Header{"Location": {elsewhere}}, "")
}

// elsewhere is an address that must get no request.
const elsewhere = "/elsewhere"

// troubles are in groups. The troubles of a group affect one holder, one after the other.
var troubles = []struct {
	group string
	rows  []trouble
}{
	{"Answers", []trouble{
		{what: "401 Unauthorized", does: another, says: failing, word: "401", fault: says(401, "Unauthorized")},
		{what: "403 Forbidden", does: another, says: failing, word: "403", fault: says(403, "Forbidden")},
		{what: "404 by a proxy that lost its way", does: another, says: failing, word: "404", fault: faultproxy.Answer(404, nil, "404 page not found")},
		{what: "409 Conflict, though nobody else wrote", does: askedFor, says: failing, word: "409", fault: says(409, "Conflict"), when: isWrite},
		{what: "409 by something else", does: another, says: failing, word: "409", fault: faultproxy.Answer(409, nil, "<html>"), when: isWrite},
		{what: "410 Gone", does: another, says: failing, word: "410", fault: says(410, "Expired")},
		{what: "500 Internal Server Error", does: another, says: failing, word: "500", fault: faultproxy.Fail(500)},
		{what: "502 Bad Gateway", does: another, says: failing, word: "502", fault: faultproxy.Answer(502, nil, "<html>")},
		{what: "503 Service Unavailable", does: another, says: failing, word: "503", fault: faultproxy.Fail(503)},
		{what: "504 Gateway Timeout", does: another, says: failing, word: "504", fault: says(504, "Timeout")},
	}},
	{"Requests to wait", []trouble{
		{what: "429 without Retry-After", does: renews, says: failing, word: "429", fault: faultproxy.Answer(429, nil, "later")},
		{what: "429, Retry-After: 3600", does: renews + "; it does not wait for the time in Retry-After", says: failing, word: "429", fault: retryAfter("3600")},
		{what: "429, Retry-After: -1", does: renews, says: failing, word: "429", fault: retryAfter("-1")},
		{what: "429, Retry-After: 1000000000", does: renews, says: failing, word: "429", fault: retryAfter("1000000000")},
		{what: "429, Retry-After: a date", does: renews, says: failing, word: "429", fault: retryAfter("Wed, 21 Oct 2099 07:28:00 GMT")},
		{what: "503, Retry-After: 3600", does: another, says: failing, word: "503", fault: faultproxy.Answer(503, http.Header{"Retry-After": {"3600"}}, "")},
	}},
	{"What is no answer", []trouble{
		{what: "301, a redirect", does: another + "; it follows none", says: failing, word: "301", fault: redirect(301)},
		{what: "307, a redirect", does: another + "; it follows none", says: failing, word: "307", fault: redirect(307)},
		{what: "200, and not JSON", does: another, says: failing, word: "not a Lease", fault: faultproxy.Answer(200, nil, "<html>")},
		{what: "200, and half of the JSON", does: another, says: failing, word: "not a Lease", fault: faultproxy.Alter(half), when: isWrite},
		{what: "200, and a Lease of another name", does: another, says: failing, word: "not asked for", fault: faultproxy.Alter(renamed)},
		{what: "200, and no body", does: another, says: failing, word: "not a Lease", fault: faultproxy.Answer(200, nil, "")},
		{what: "200, and the right JSON as text/html", does: unharmed, fault: faultproxy.Alter(asHTML)},
		{what: "a body or a header without end", does: "keeps 4 MiB of a body, 64 KiB of headers, and tries again elsewhere", by: "TestHugeAnswers"},
	}},
	{"The network", []trouble{
		{what: "a reset before the request arrives", does: askedFor, says: failing, word: "EOF", fault: faultproxy.Reset()},
		{what: "a reset instead of the reply", does: askedFor, says: failing, word: "EOF", fault: faultproxy.ResetReply(), when: isWrite},
		{what: "a reset in the middle of the reply", does: askedFor, says: failing, word: "broke off", fault: faultproxy.BreakOff(), when: isWrite},
		{what: "a connection that is ended after each reply", does: unharmed, fault: faultproxy.Alter(lastReply)},
		{what: "each write delivered twice", does: unharmed, fault: faultproxy.Duplicate(0), when: isWrite},
		{what: "GOAWAY", does: "does not arise: the agent speaks HTTP/1.1", by: "TestReadsAreConsistentAndUseHTTP1"},
	}},
	{"Silence", []trouble{
		{what: "requests swallowed", does: renews + "; the silent one stays under way", by: "TestTenureContinues"},
		{what: "replies swallowed", does: askedFor, by: "TestTenureContinues"},
		{what: "connections that are half open", does: renews, says: failing, word: "no answer for", begin: cutOff},
		{what: "connections refused, as while a server restarts", does: renews, says: failing, word: "refused", begin: refused},
		{what: "replies that are slow", does: "continues: a slow answer counts from when its request was sent", by: "TestTenureContinues"},
	}},
	{"Credentials", []trouble{
		{what: "the token has expired, and is renewed", does: "continues with the token that the file holds at each request", says: failing, word: "401", begin: expired},
		{what: "the token's file is missing for a while", does: renews, says: failing, word: "no such file", begin: tokenMissing},
		{what: "the authority's certificate is replaced", does: "continues with what the file holds at each request", by: "TestAuthorityRotated"},
		{what: "the right to the Lease is taken, and given back", does: "ends the tenure after renewDeadline, and takes over when it may", by: "TestRBACRemovedAndRestored"},
	}},
	{"One of three servers", []trouble{
		{what: "says that there is no Lease", does: "continues: a Lease that was there is gone when three answers over three connections say so", says: failing, word: "one API server has it", begin: lies(says(404, "NotFound"))},
		{what: "can't serve", does: another, says: failing, word: "503", begin: lies(faultproxy.Fail(503))},
		{what: "knows the agent's token not yet", does: another, says: failing, word: "401", begin: lies(says(401, "Unauthorized"))},
		{what: "answers writes with an old Lease, and stores nothing", does: another, says: failing, word: "not what was written", begin: liesOfThePast},
		{what: "is silent", does: "continues: tries again over another connection", by: "TestTenureSurvives"},
		{what: "lags in what it reads", does: "continues: what is older than what was seen counts when three answers over three connections are older", by: "TestKeptTenureOutlastsALaggingServer"},
		{what: "makes up another holder, of a later revision, and is read", does: "**kills at once**: the agent cannot tell this from a true answer", by: "TestFalseReportOfAnotherHolder"},
	}},
	{"Watches", []trouble{
		{what: "silent for 150 s, or not answered for 10 s", does: "opens another; reads every retryPeriod meanwhile", by: "TestIdleWatch"},
		{what: "silent, while another takes over or releases", does: "finds out by its next write, and opens another", by: "TestWatchStallsSilently"},
		{what: "410, or ERROR in the stream", does: "opens another, from the state of now", by: "TestWatch"},
		{what: "of another Lease, not JSON, an unknown event, larger than 4 MiB", does: "opens another, from the state of now", by: "TestWatch"},
		{what: "of revisions that were seen before", does: "nothing: it is no news", by: "TestStaleWatchEventIsIgnored"},
		{what: "fails again and again", does: "pauses for half to all of 100 ms, doubled with each failure up to 10 s; longer with a retryPeriod above 2 s", by: "TestWatchBacksOff"},
	}},
	{"What is certain", []trouble{
		{what: "the Lease is gone, by three answers or a watch", does: "**kills at once**; makes none of its own", by: "TestLeaseDeleted"},
		{what: "another holds it", does: "**kills at once**", by: "TestForeignHolder"},
		{what: "it is released by hand", does: "**kills at once**, and waits for as long as any candidate", by: "TestHolderCleared"},
		{what: "no renewal for renewDeadline", does: "SIGTERM; SIGKILL at the deadline; takes over again when it may", by: "TestCutOff"},
	}},
}

func half(_ *http.Response, body []byte) []byte { return body[:len(body)/2] }

func renamed(_ *http.Response, body []byte) []byte {
	return []byte(strings.Replace(string(body), `"name":"`+jobName+`"`, `"name":"other"`, 1))
}

func asHTML(reply *http.Response, body []byte) []byte {
	reply.Header.Set("Content-Type", "text/html")
	return body
}

func lastReply(reply *http.Response, body []byte) []byte {
	reply.Close = true
	return body
}

func cutOff(c *candidate) func() {
	c.proxy.Cut()
	return func() { healProxy(c) }
}

func refused(c *candidate) func() {
	c.proxy.Refuse()
	return func() { healProxy(c) }
}

func expired(c *candidate) func() {
	c.setToken("expired")
	return func() { c.setToken(c.w.newToken()) }
}

func tokenMissing(c *candidate) func() {
	c.w.must(os.Remove(filepath.Join(c.credentials, "token")))
	return func() { c.setToken(c.w.newToken()) }
}

// lies makes one of three servers give false answers. The agent is connected to that server.
func lies(fault faultproxy.Fault, when ...faultproxy.Match) func(*candidate) func() {
	return func(c *candidate) func() { return c.proxy.Inject(fault, append(when, oneOfThree())...) }
}

// oneOfThree matches the requests, not watches, of the next request's connection and of every third connection after it.
func oneOfThree() faultproxy.Match {
	var mu sync.Mutex
	at := map[string]int{}
	return func(r *http.Request) bool {
		if faultproxy.Watches()(r) {
			return false
		}
		mu.Lock()
		defer mu.Unlock()
		if _, known := at[r.RemoteAddr]; !known {
			at[r.RemoteAddr] = len(at) % servers
		}
		return at[r.RemoteAddr] == 0
	}
}

func liesOfThePast(c *candidate) func() {
	past := c.w.lease()
	past.Kind, past.APIVersion = "Lease", "coordination.k8s.io/v1"
	body, err := json.Marshal(past)
	c.w.must(err)
	return lies(faultproxy.Answer(http.StatusOK, nil, string(body)), isWrite)(c)
}

// TestTrouble exposes a holder to one trouble after the other. Its lease lasts for an hour, so that a busy machine does not end it. The
// test judges what the agent logs, what it requests, and that it renews again.
func TestTrouble(t *testing.T) {
	t.Parallel()
	for _, g := range troubles {
		t.Run(g.group, func(t *testing.T) {
			t.Parallel()
			var w *world
			var a *candidate
			var began int32 // for tenures: on a busy machine the first acquire can need a second attempt
			for _, row := range g.rows {
				if row.by != "" {
					continue
				}
				if w == nil {
					w = newWorld(t)
					a = w.holder("a", hourConfig())
					w.renewedTwice()
					began = *w.lease().Spec.LeaseTransitions
				}
				if err := a.meets(row); err != nil {
					t.Errorf("%s: %v; log:\n%s", row.what, err, a.lines)
				}
			}
			if w == nil {
				return
			}
			if lives := w.checkLives(); len(lives) != 1 || *w.lease().Spec.LeaseTransitions != began {
				t.Errorf("the tenure did not go on: %+v; log:\n%s", lives, a.lines)
			}
		})
	}
}

// befallen is the number of requests that a fault affects.
const befallen = 3

// errOtherwise means that the machine was also too busy to answer in time.
var errOtherwise = errors.New("the machine was in trouble of its own")

// meets exposes the agent to a trouble, and repeats that if the machine causes another one at the same time.
func (c *candidate) meets(row trouble) (err error) {
	for end := time.Now().Add(5 * patience); err == nil || time.Now().Before(end); {
		if err = c.meetsOnce(row); !errors.Is(err, errOtherwise) {
			return err
		}
		c.w.t.Logf("%s: %v", row.what, err)
	}
	return err
}

func (c *candidate) meetsOnce(row trouble) error {
	c.w.t.Helper()
	from, began := c.lines.len(), time.Now()
	end, err := c.brings(row, from)
	if err != nil {
		return err
	}
	if row.says != "" {
		c.awaitSince(from, "writing again")
	}
	c.w.renewedTwice()
	end()
	requests := len(c.proxy.Seen(func(r faultproxy.Request) bool { return !r.Watch && r.Time.After(began) }))
	if most := 20 + 4*int(time.Since(began)/time.Duration(hourConfig().RetryPeriod)); requests > most {
		return fmt.Errorf("%d requests in %v, want at most %d", requests, time.Since(began), most)
	}
	if n := len(c.proxy.Seen(func(r faultproxy.Request) bool { return r.Path == elsewhere })); n > 0 {
		return fmt.Errorf("%d redirects were followed", n)
	}
	return row.judge(c.lines.since(from))
}

// brings starts a trouble, and returns when it has affected the agent. The trouble can last until it is ended.
func (c *candidate) brings(row trouble, from int) (end func(), err error) {
	if row.begin != nil {
		end = sync.OnceFunc(row.begin(c))
		// A single fault can be the third failure of a streak that the machine began, and then it is not logged.
		if !c.saidSince(from, row.says, row.word) {
			end()
			return nil, fmt.Errorf("%w: it did not say %q, %q", errOtherwise, row.says, row.word)
		}
		if !strings.HasPrefix(row.does, "continues: a Lease") { // a server that gives false answers continues to do so
			end()
		}
		return end, nil
	}
	var met atomic.Int64
	end = c.proxy.Inject(row.fault, func(r *http.Request) bool {
		concerned := !faultproxy.Watches()(r) && (row.when == nil || row.when(r))
		return concerned && met.Add(1) <= befallen
	})
	c.w.eventually("the trouble has befallen "+fmt.Sprint(befallen), func() bool { return met.Load() >= befallen })
	return end, nil
}

// judge checks the agent's log: the 1st, the 2nd, the 4th and so on of each streak of failures, and the end of the streak. It ignores lines
// about reads and about a machine that is too slow.
func (row trouble) judge(lines []string) error {
	found, logged := false, 0
	for _, line := range lines {
		switch {
		case strings.Contains(line, "writing again"):
			if failures := numberIn(line, "failures"); logged > bits.Len(uint(failures)) {
				return fmt.Errorf("%d lines of %d failures", logged, failures)
			}
			logged = 0
		case !strings.Contains(line, failing):
		case strings.Contains(line, "no answer for") && !strings.Contains(row.word, "no answer"): // from a machine that is too slow
		case row.begin != nil && strings.Contains(line, "409 Conflict"): // with its own write, for which it had no answer
		case row.says == "" || !strings.Contains(line, row.word):
			return fmt.Errorf("%w: %q", errOtherwise, line)
		default:
			logged++
			found = true
		}
	}
	if row.says != "" && !found {
		return fmt.Errorf("it did not say %q, %q", row.says, row.word)
	}
	return nil
}

func numberIn(line, name string) (n int) {
	_, rest, _ := strings.Cut(line, " "+name+"=")
	_, _ = fmt.Sscan(rest, &n)
	return n
}

// hourConfig is for tenures that must not end, even if no renewal succeeds for minutes.
func hourConfig() (config contract.AgentConfig) {
	config = testConfig()
	config.LeaseDuration, config.RenewDeadline = seconds(3600), seconds(3000)
	return config
}

// Servers report another holder falsely, and the holder reads that. This ends the tenure at once, although its lease is valid for another
// hour.
func TestFalseReportOfAnotherHolder(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	a := w.holder("a", hourConfig(), "stubborn")
	w.renewedTwice()
	a.proxy.Inject(faultproxy.Alter(func(_ *http.Response, body []byte) []byte {
		text := strings.Replace(string(body), `"holderIdentity":"a/`, `"holderIdentity":"liar/`, 1)
		return []byte(strings.Replace(text, `"resourceVersion":"`, `"resourceVersion":"9`, 1))
	}), isRead)
	a.proxy.Inject(faultproxy.Fail(http.StatusServiceUnavailable), isWrite) // so that it reads
	a.await("killing", "reason=LeaseLost")
	a.await("lost", "reason=LeaseLost")
	w.checkLives()
}

// len returns the number of lines.
func (l *lines) len() int {
	l.mu.Lock()
	defer l.mu.Unlock()
	return len(l.all)
}

// since returns the lines from the given one on.
func (l *lines) since(from int) []string {
	l.mu.Lock()
	defer l.mu.Unlock()
	return append([]string(nil), l.all[from:]...)
}

// awaitSince waits for a line with all the words, from the given line on.
func (c *candidate) awaitSince(from int, words ...string) {
	c.w.t.Helper()
	c.w.eventually(fmt.Sprintf("the agent said %q", words), func() bool { return c.said(from, words) })
}

// saidSince waits for such a line, at most for patience, and reports whether there is one.
func (c *candidate) saidSince(from int, words ...string) bool {
	for end := time.Now().Add(patience); !c.said(from, words); time.Sleep(20 * time.Millisecond) {
		if time.Now().After(end) {
			return false
		}
	}
	return true
}

func (c *candidate) said(from int, words []string) bool {
	return slices.ContainsFunc(c.lines.since(from), func(line string) bool {
		return !slices.ContainsFunc(words, func(word string) bool { return !strings.Contains(line, word) })
	})
}

var rewrite = flag.Bool("rewrite", false, "write the tables of docs/api-trouble.md anew")

// The document describes exactly the tested rows.
func TestTroubleIsDocumented(t *testing.T) {
	const path, from = "../../docs/api-trouble.md", "## What an agent does\n"
	text, err := os.ReadFile(path)
	if err != nil {
		t.Fatal(err)
	}
	before, _, found := strings.Cut(string(text), from)
	if !found {
		t.Fatalf("%s has no part %q", path, from)
	}
	want := before + from + described()
	if *rewrite {
		if err := os.WriteFile(path, []byte(want), 0o600); err != nil {
			t.Fatal(err)
		}
		return
	}
	if string(text) != want {
		t.Errorf("%s differs from the table of this test: go test ./cmd/agent -run TestTroubleIsDocumented -rewrite", path)
	}
	there := testNames(t, ".", "../../internal/kubelease", "../../internal/lease")
	for _, g := range troubles {
		for _, row := range g.rows {
			if row.by != "" && !there[row.by] {
				t.Errorf("%s: there is no %s that shows it", row.what, row.by)
			}
		}
	}
}

// described returns the table in the form of the document.
func described() string {
	var out strings.Builder
	for _, g := range troubles {
		fmt.Fprintf(&out, "\n### %s\n\n| trouble | the tenure, the agent | it logs | shown by |\n|---|---|---|---|\n", g.group)
		for _, row := range g.rows {
			logs, by := "", "TestTrouble"
			if row.says != "" {
				logs = "`" + row.says + "`: " + row.word
			}
			if row.by != "" {
				by = row.by
			}
			fmt.Fprintf(&out, "| %s | %s | %s | %s |\n", row.what, row.does, logs, by)
		}
	}
	return out.String()
}

func testNames(t *testing.T, dirs ...string) map[string]bool {
	t.Helper()
	declared, names := regexp.MustCompile(`(?m)^func (Test\w+)\(`), map[string]bool{}
	for _, dir := range dirs {
		files, err := filepath.Glob(filepath.Join(dir, "*_test.go"))
		if err != nil {
			t.Fatal(err)
		}
		for _, file := range files {
			text, err := os.ReadFile(file)
			if err != nil {
				t.Fatal(err)
			}
			for _, match := range declared.FindAllStringSubmatch(string(text), -1) {
				names[match[1]] = true
			}
		}
	}
	return names
}
