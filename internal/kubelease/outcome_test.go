//go:build linux

package kubelease

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/http/httptest"
	"path/filepath"
	"slices"
	"strings"
	"sync/atomic"
	"syscall"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"golang.org/x/sys/unix"

	"github.com/singletonjob/operator/internal/contract"
	"github.com/singletonjob/operator/internal/lease"
)

// say answers with a code and a body.
func say(code int, body string) http.HandlerFunc {
	return func(w http.ResponseWriter, r *http.Request) {
		_, _ = io.Copy(io.Discard, r.Body)
		w.Header().Set("Content-Type", "application/json")
		w.WriteHeader(code)
		_, _ = io.WriteString(w, body)
	}
}

// storedAs answers as an API server that stores what it was sent, with that code, and with parts of the answer replaced.
func storedAs(code int, replaced map[string]string) http.HandlerFunc {
	return func(w http.ResponseWriter, r *http.Request) {
		answer := httptest.NewRecorder()
		stored(answer, r)
		body := answer.Body.String()
		for was, is := range replaced {
			if !strings.Contains(body, was) {
				panic("the answer has no " + was)
			}
			body = strings.Replace(body, was, is, 1)
		}
		say(code, body)(w, r)
	}
}

// hangUp ends the connection after the request came in whole and after so much of an answer.
func hangUp(some string) http.HandlerFunc {
	return func(w http.ResponseWriter, r *http.Request) {
		_, _ = io.Copy(io.Discard, r.Body)
		conn, buffered, err := http.NewResponseController(w).Hijack()
		if err != nil {
			panic(err)
		}
		_, _ = buffered.WriteString(some)
		_ = buffered.Flush()
		_ = conn.Close()
	}
}

func TestUpdateOutcome(t *testing.T) {
	const ours = "coordination.k8s.io"
	tests := map[string]struct {
		answer http.HandlerFunc
		want   lease.Outcome
		why    string
	}{
		"stored":              {answer: stored, want: lease.Confirmed},
		"conflict":            {answer: say(409, statusJSON(409, "Conflict", ours, "leases", "job")), want: lease.Conflict},
		"conflict of another": {answer: say(409, statusJSON(409, "Conflict", "", "pods", "job")), want: lease.Unknown, why: "not about this Lease"},
		"already exists":      {answer: say(409, statusJSON(409, "AlreadyExists", ours, "leases", "job")), want: lease.Unknown, why: "no compare-and-swap failed"},
		"conflict by a proxy": {answer: say(409, "<html>conflict</html>"), want: lease.Unknown, why: "no Status: not the API server's word"},
		"gone":                {answer: say(404, statusJSON(404, "NotFound", ours, "leases", "job")), want: lease.Gone},
		"namespace gone":      {answer: say(404, statusJSON(404, "NotFound", "", "namespaces", "ns")), want: lease.Gone},
		"404 of another Lease": {
			answer: say(404, statusJSON(404, "NotFound", ours, "leases", "other")), want: lease.Unknown, why: "not about this Lease",
		},
		"404 by a proxy":  {answer: say(404, "404 page not found"), want: lease.Unknown, why: "a proxy that lost its way says nothing of the Lease"},
		"404 of an API":   {answer: say(404, statusJSON(404, "NotFound", "", "", "")), want: lease.Unknown, why: "an aggregated API that is not there yet"},
		"bad request":     {answer: say(400, "bad"), want: lease.Refused},
		"unauthorized":    {answer: say(401, statusJSON(401, "Unauthorized", "", "", "")), want: lease.Refused},
		"forbidden":       {answer: say(403, statusJSON(403, "Forbidden", ours, "leases", "job")), want: lease.Refused},
		"invalid":         {answer: say(422, statusJSON(422, "Invalid", ours, "Lease", "job")), want: lease.Refused},
		"throttled":       {answer: say(429, "Too many requests, please try again later."), want: lease.Refused, why: "priority and fairness answers in plain text"},
		"redirect":        {answer: say(307, ""), want: lease.Unknown, why: "followed it might be stored elsewhere"},
		"server error":    {answer: say(500, statusJSON(500, "InternalError", "", "", "")), want: lease.Unknown, why: "etcd may have stored it"},
		"bad gateway":     {answer: say(502, "bad gateway"), want: lease.Unknown},
		"gateway timeout": {answer: say(504, statusJSON(504, "Timeout", "", "", "")), want: lease.Unknown},
		"unavailable":     {answer: say(503, statusJSON(503, "ServiceUnavailable", "", "", "")), want: lease.Unknown, why: "etcd may have stored it"},
		"request timeout": {answer: say(408, "took too long"), want: lease.Unknown, why: "it says nothing of what was done meanwhile"},
		"created":         {answer: storedAs(201, nil), want: lease.Unknown, why: "nothing was to be created"},
		"another holder":  {answer: storedAs(200, map[string]string{`"a/u/n"`: `"b/u/n"`}), want: lease.Unknown, why: "the answer to another's write"},
		"another token":   {answer: storedAs(200, map[string]string{`"singletonjob.io/fencing-token":"7"`: `"singletonjob.io/fencing-token":"8"`}), want: lease.Unknown},
		"another UID":     {answer: storedAs(200, map[string]string{`"uid":"u1"`: `"uid":"u2"`}), want: lease.Unknown},
		"another name":    {answer: storedAs(200, map[string]string{`"name":"job"`: `"name":"other"`}), want: lease.Unknown},
		"elsewhere":       {answer: storedAs(200, map[string]string{`"namespace":"ns"`: `"namespace":"other"`}), want: lease.Unknown},
		"undecodable":     {answer: say(200, `{"kind":"Lease"`), want: lease.Unknown, why: "stored, by all appearance, but not known as what"},
		"another kind":    {answer: say(200, `{"kind":"Pod","metadata":{"name":"job","namespace":"ns"}}`), want: lease.Unknown},
		"something else":  {answer: say(200, leaseJSON(11)), want: lease.Unknown, why: "the reply holds another renewTime than was sent"},
		"empty":           {answer: say(200, ""), want: lease.Unknown},
		"hung up":         {answer: hangUp(""), want: lease.Unknown},
		"hung up in a header": {
			answer: hangUp("HTTP/1.1 200 OK\r\nContent-Le"), want: lease.Unknown,
		},
		"hung up in a body": {
			answer: hangUp("HTTP/1.1 200 OK\r\nContent-Length: 5000\r\n\r\n" + `{"kind":"Lease",`), want: lease.Unknown,
		},
		"not HTTP": {answer: hangUp("SSH-2.0-OpenSSH_9.9\r\n"), want: lease.Unknown},
	}
	for name, test := range tests {
		t.Run(name, func(t *testing.T) {
			c := serve(t, test.answer).client(t)
			o := object(t, c, 10)
			outcome, got, err := c.Update(within(t, 3*time.Minute), o, renewal(o))
			if outcome != test.want {
				t.Errorf("outcome %v, want %v (%s); error: %v", outcome, test.want, test.why, err)
			}
			if (got != nil) != (outcome == lease.Confirmed) || (err == nil) != (outcome == lease.Confirmed) {
				t.Errorf("outcome %v with object %v and error %v", outcome, got, err)
			}
			if got != nil && got.Record.Revision != 11 {
				t.Errorf("revision %d, want the stored one, 11", got.Record.Revision)
			}
		})
	}
}

// A reply that never comes, or only in part, takes no longer than the request's deadline, and the next request does not
// use that connection.
func TestDeadline(t *testing.T) {
	for name, some := range map[string]string{
		"nothing comes":     "",
		"a header comes":    "HTTP/1.1 200 OK\r\n",
		"half a body comes": "HTTP/1.1 200 OK\r\nContent-Length: 5000\r\n\r\n{",
	} {
		t.Run(name, func(t *testing.T) {
			inOneOfMany(t, func() error {
				released := make(chan struct{})
				var requests atomic.Int64
				f := serve(t, func(w http.ResponseWriter, r *http.Request) {
					if requests.Add(1) != 2 { // the first one is not late: its connection takes time
						stored(w, r)
						return
					}
					_, _ = io.Copy(io.Discard, r.Body)
					conn, buffered, err := http.NewResponseController(w).Hijack()
					if err != nil {
						panic(err)
					}
					_, _ = buffered.WriteString(some)
					_ = buffered.Flush()
					<-released
					_ = conn.Close()
				})
				defer close(released)
				c := f.client(t)
				o := object(t, c, 10)
				for i, want := range []lease.Outcome{lease.Confirmed, lease.Unknown, lease.Confirmed} {
					limit := 3 * time.Minute
					if want == lease.Unknown {
						limit = time.Second
					}
					if outcome, _, err := c.Update(within(t, limit), o, renewal(o)); outcome != want {
						return errors.Join(fmt.Errorf("outcome %d: %v, want %v", i, outcome, want), err)
					}
				}
				return f.connected(2) // a second one after the first was silent
			})
		})
	}
}

// An API server that can't serve is not asked again over the connection to it: behind the same address there may be others.
func TestUnhealthyServerIsReplaced(t *testing.T) {
	for name, test := range map[string]struct {
		answer      http.HandlerFunc
		first       lease.Outcome
		connections int64
	}{
		"it can't serve":             {say(503, statusJSON(503, "ServiceUnavailable", "", "", "")), lease.Unknown, 2},
		"it knows no new key":        {say(401, statusJSON(401, "Unauthorized", "", "", "")), lease.Refused, 2},
		"it knows no new right":      {say(403, statusJSON(403, "Forbidden", "", "", "")), lease.Refused, 2},
		"it says what was long over": {say(200, leaseJSON(9)), lease.Unknown, 2},
		"it is none":                 {say(200, "<html>"), lease.Unknown, 2},
		"it is busy":                 {say(429, "later"), lease.Refused, 1},
	} {
		t.Run(name, func(t *testing.T) {
			inOneOfMany(t, func() error {
				var said atomic.Bool
				f := serve(t, func(w http.ResponseWriter, r *http.Request) {
					if !said.Swap(true) {
						test.answer(w, r)
						return
					}
					stored(w, r)
				})
				c := f.client(t)
				o := object(t, c, 10)
				for _, want := range []lease.Outcome{test.first, lease.Confirmed, lease.Confirmed} {
					if outcome, _, err := c.Update(within(t, 3*time.Minute), o, renewal(o)); outcome != want {
						return fmt.Errorf("%v (%w), want %v", outcome, err, want)
					}
				}
				return f.connected(test.connections)
			})
		})
	}
}

// inOneOfMany repeats what counts connections: net/http keeps none whose writer got no CPU for 50 ms when the answer had come.
func inOneOfMany(t *testing.T, attempt func() error) {
	t.Helper()
	var err error
	for range 20 {
		if err = attempt(); err == nil {
			return
		}
	}
	t.Error(err)
}

// connected is an error unless so many connections were made.
func (f *fake) connected(want int64) error {
	if n := f.connections.Load(); n != want {
		return fmt.Errorf("%d connections, want %d", n, want)
	}
	return nil
}

func TestConnectionIsKept(t *testing.T) {
	inOneOfMany(t, func() error {
		f := serve(t, stored)
		c := f.client(t)
		o := object(t, c, 10)
		for range 3 {
			if outcome, _, err := c.Update(within(t, 3*time.Minute), o, renewal(o)); outcome != lease.Confirmed {
				return fmt.Errorf("%v: %w", outcome, err)
			}
		}
		return f.connected(1)
	})
}

// A request that hangs continues beside others, each over a connection of its own. When it is finally given up, connections that have
// answered meanwhile stay open. If one API server of three is dead, another connection may lead to that server.
func TestHungRequestIsOvertaken(t *testing.T) { inOneOfMany(t, func() error { return overtake(t) }) }

func overtake(t *testing.T) error {
	t.Helper()
	hung := make(chan struct{})
	f := serve(t, func(w http.ResponseWriter, r *http.Request) {
		if r.Context().Value(connectionKey{}).(int64) == 1 {
			_, _ = io.Copy(io.Discard, r.Body)
			close(hung)
			<-r.Context().Done()
			return
		}
		stored(w, r)
	})
	c := f.client(t)
	o := object(t, c, 10)
	ctx, giveUp := context.WithCancel(t.Context())
	defer giveUp()
	first := make(chan lease.Outcome, 1)
	go func() {
		outcome, _, _ := c.Update(ctx, o, renewal(o))
		first <- outcome
	}()
	<-hung
	for i := range 3 {
		if outcome, _, err := c.Update(within(t, 3*time.Minute), o, renewal(o)); outcome != lease.Confirmed {
			return fmt.Errorf("%v: %w", outcome, err)
		}
		if i == 0 {
			giveUp()
			if outcome := <-first; outcome != lease.Unknown {
				return fmt.Errorf("the one that hung: %v", outcome)
			}
		}
	}
	return f.connected(2)
}

// Each attempt begins with another address of the host. If one refuses, the next one is tried at once.
func TestAddressesRotate(t *testing.T) {
	var port string
	var dead net.Listener // takes connections and is silent
	for taken := true; taken; {
		_, p, err := net.SplitHostPort(serve(t, stored).Listener.Addr().String())
		if err != nil {
			t.Fatal(err)
		}
		port = p
		dead, err = net.Listen("tcp", "127.0.0.2:"+port)
		if taken = errors.Is(err, syscall.EADDRINUSE); err != nil && !taken {
			t.Fatal(err) // Linux has all of 127.0.0.0/8
		}
	}
	d := newDialer()
	defer func() { _ = dead.Close() }()
	d.lookup = func(context.Context, string) ([]string, error) {
		return []string{"127.0.0.2", "127.0.0.1", "127.0.0.3"}, nil
	}
	var met []string
	for range 4 {
		conn, err := d.dial(t.Context(), "tcp", "api.example:"+port)
		if err != nil {
			t.Fatal(err)
		}
		host, _, _ := net.SplitHostPort(conn.RemoteAddr().String())
		met = append(met, host)
		_ = conn.Close()
	}
	if want := []string{"127.0.0.2", "127.0.0.1", "127.0.0.2", "127.0.0.2"}; !slices.Equal(met, want) { // the third refuses
		t.Errorf("connected to %v, want %v", met, want)
	}
}

func TestNotSent(t *testing.T) {
	good := serve(t, stored)
	other := serve(t, stored)
	nobody := "https://" + nobodyListens(t)
	otherCA := newAuthorityPEM(t)
	silent := silentListener(t)
	for name, test := range map[string]struct {
		config Config
		limit  time.Duration
	}{
		"nobody listens":        {config: Config{Server: nobody, Credentials: credentials(t, good.ca(), "x")}, limit: 3 * time.Minute},
		"no such host":          {config: Config{Server: "https://nowhere.invalid", Credentials: credentials(t, good.ca(), "x")}, limit: 5 * time.Second},
		"another authority":     {config: Config{Server: other.URL, Credentials: credentials(t, otherCA, "x")}, limit: 3 * time.Minute},
		"silent before TLS":     {config: Config{Server: "https://" + silent, Credentials: credentials(t, good.ca(), "x")}, limit: 100 * time.Millisecond},
		"deadline in the past":  {config: Config{Server: good.URL, Credentials: credentials(t, good.ca(), "x")}, limit: -time.Second},
		"a record of elsewhere": {config: Config{Server: good.URL, Credentials: credentials(t, good.ca(), "x")}, limit: 3 * time.Minute},
	} {
		t.Run(name, func(t *testing.T) {
			test.config.Namespace, test.config.Name = "ns", "job"
			c := newClient(t, test.config)
			o := object(t, c, 10)
			r := renewal(o)
			if name == "a record of elsewhere" {
				r.Revision++
			}
			outcome, _, err := c.Update(within(t, test.limit), o, r)
			if outcome != lease.Refused {
				t.Errorf("outcome %v (%v), want Refused: nothing can have been stored", outcome, err)
			}
		})
	}
}

// Fields that the protocol does not use are written back byte for byte, including fields of later Kubernetes versions.
func TestUpdateKeepsUnknownFields(t *testing.T) {
	var sent []byte
	f := serve(t, func(w http.ResponseWriter, r *http.Request) {
		sent, _ = io.ReadAll(r.Body)
		r.Body = io.NopCloser(strings.NewReader(string(sent)))
		stored(w, r)
	})
	c := f.client(t)
	o := object(t, c, 10)
	r := renewal(o)
	r.Holder, r.Token = "b/u/n", 10
	if outcome, _, err := c.Update(within(t, 3*time.Minute), o, r); outcome != lease.Confirmed {
		t.Fatal(outcome, err)
	}
	want := leaseJSON(10)
	for was, is := range map[string]string{
		`"holderIdentity":"a/u/n"`:                                             `"holderIdentity":"b/u/n"`,
		`"singletonjob.io/fencing-token":"7"`:                                  `"singletonjob.io/fencing-token":"10"`,
		`"renewTime":"2026-01-01T00:00:01.000001Z"`:                            `"renewTime":"2026-01-01T00:00:02.000001Z"`,
		`"theirs":"kept & \u003cunchanged>"`:                                   `"theirs":"kept & <unchanged>"`, // the map is ours to encode; its meaning is kept
		`{"manager":"m","fieldsV1":{"f:spec":{".":{},"f:holderIdentity":{}}}}`: `{}`,
	} {
		if !strings.Contains(want, was) {
			t.Fatalf("the example has no %s", was)
		}
		want = strings.Replace(want, was, is, 1)
	}
	if diff := cmp.Diff(parts(t, want), parts(t, string(sent))); diff != "" {
		t.Errorf("written (-want +got):\n%s", diff)
	}
}

// A Lease without a record of field managers is written unchanged.
func TestAnUntrackedLeaseIsWrittenAsItIs(t *testing.T) {
	c := serve(t, stored).client(t)
	for _, none := range []string{``, `"managedFields":null,`, `"managedFields":[{}],`} {
		text := strings.Replace(leaseJSON(10), `"managedFields":[{"manager":"m","fieldsV1":{"f:spec":{".":{},"f:holderIdentity":{}}}}],`, none, 1)
		o, err := c.decode([]byte(text))
		if err != nil {
			t.Fatal(err)
		}
		body, err := o.with(o.Record)
		if err != nil {
			t.Fatal(err)
		}
		if is, was := parts(t, string(body))["metadata.managedFields"], parts(t, text)["metadata.managedFields"]; is != was {
			t.Errorf("%q is written as %q", was, is)
		}
	}
}

// parts is the text of each field of a Lease, of metadata and of spec.
func parts(t *testing.T, text string) map[string]string {
	t.Helper()
	out := map[string]string{}
	var top map[string]json.RawMessage
	if err := json.Unmarshal([]byte(text), &top); err != nil {
		t.Fatal(err)
	}
	for name, raw := range top {
		if name != "metadata" && name != "spec" {
			out[name] = string(raw)
			continue
		}
		var inner map[string]json.RawMessage
		if err := json.Unmarshal(raw, &inner); err != nil {
			t.Fatal(err)
		}
		for field, raw := range inner {
			out[name+"."+field] = string(raw)
		}
	}
	return out
}

func TestGet(t *testing.T) {
	const ours = "coordination.k8s.io"
	for name, test := range map[string]struct {
		answer http.HandlerFunc
		found  bool
		absent bool
	}{
		"found":             {answer: say(200, leaseJSON(10)), found: true},
		"absent":            {answer: say(404, statusJSON(404, "NotFound", ours, "leases", "job")), absent: true},
		"namespace absent":  {answer: say(404, statusJSON(404, "NotFound", "", "namespaces", "ns")), absent: true},
		"another namespace": {answer: say(404, statusJSON(404, "NotFound", "", "namespaces", "other"))},
		"lost proxy":        {answer: say(404, "404 page not found")},
		"server error":      {answer: say(500, "")},
		"somebody else's":   {answer: say(200, strings.Replace(leaseJSON(10), `"singletonjob"`, `"helm"`, 1))},
		"another name":      {answer: say(200, strings.Replace(leaseJSON(10), `"name":"job"`, `"name":"other"`, 1))},
		"elsewhere":         {answer: say(200, strings.Replace(leaseJSON(10), `"namespace":"ns"`, `"namespace":"other"`, 1))},
		"another kind":      {answer: say(200, strings.Replace(leaseJSON(10), `"kind":"Lease"`, `"kind":"Pod"`, 1))},
		"no UID":            {answer: say(200, strings.Replace(leaseJSON(10), `"uid":"u1",`, "", 1))},
		"no revision":       {answer: say(200, strings.Replace(leaseJSON(10), `"resourceVersion":"10"`, `"resourceVersion":"abc"`, 1))},
		"not JSON":          {answer: say(200, "<html>")},
		"broken off":        {answer: hangUp("HTTP/1.1 200 OK\r\nContent-Length: 5000\r\n\r\n{")},
	} {
		t.Run(name, func(t *testing.T) {
			answer, err := serve(t, test.answer).client(t).Get(within(t, 3*time.Minute), 0)
			if (answer.Object != nil) != test.found || answer.Absent != test.absent || (err == nil) != (test.found || test.absent) {
				t.Errorf("object %v, absent %t, error %v; want found %t, absent %t", answer.Object, answer.Absent, err, test.found, test.absent)
			}
		})
	}
}

// absentOn says that there is no Lease, over the connections that a condition holds for; others have it, as long as there are any.
func absentOn(is func(connection int64) bool) http.HandlerFunc {
	return func(w http.ResponseWriter, r *http.Request) {
		switch {
		case is(r.Context().Value(connectionKey{}).(int64)):
			say(404, statusJSON(404, "NotFound", "coordination.k8s.io", "leases", "job"))(w, r)
		case r.Method == http.MethodPut:
			stored(w, r)
		default:
			say(200, leaseJSON(10))(w, r)
		}
	}
}

// olderOn has the Lease in a state from before revision 10, and somebody else's, over the connections that a condition holds for.
func olderOn(is func(connection int64) bool) http.HandlerFunc {
	return func(w http.ResponseWriter, r *http.Request) {
		if n := r.Context().Value(connectionKey{}).(int64); !is(n) {
			say(200, leaseJSON(10))(w, r)
			return
		}
		say(200, strings.Replace(leaseJSON(5), `"a/u/n"`, `"b/u/n"`, 1))(w, r)
	}
}

// One of several API servers says that there is no Lease. If the Lease was known to exist, one answer is not believed, whatever showed that
// it existed. If it was not known, one answer is enough.
func TestAbsenceNeedsSeveralServers(t *testing.T) {
	for name, test := range map[string]struct {
		floor       int64
		liars       func(connection int64) bool
		update      lease.Outcome
		absent      bool
		connections int64
	}{
		"all say so":         {floor: 10, liars: func(int64) bool { return true }, update: lease.Gone, absent: true, connections: 3},
		"one says so":        {floor: 10, liars: func(n int64) bool { return n == 1 }, update: lease.Unknown, connections: 2},
		"two say so":         {floor: 10, liars: func(n int64) bool { return n <= 2 }, update: lease.Unknown, connections: 3},
		"it was never there": {liars: func(n int64) bool { return n == 1 }, absent: true, connections: 1},
	} {
		t.Run(name, func(t *testing.T) {
			inOneOfMany(t, func() error {
				f := serve(t, absentOn(test.liars))
				answer, err := f.client(t).Get(within(t, 3*time.Minute), test.floor)
				if err != nil || answer.Absent != test.absent || (answer.Object == nil) != test.absent {
					return fmt.Errorf("a read finds %+v, %w; want absent %t", answer, err, test.absent)
				}
				return f.connected(test.connections)
			})
			if test.floor == 0 { // a write replaces a Lease that was there
				return
			}
			inOneOfMany(t, func() error {
				f := serve(t, absentOn(test.liars))
				c := f.client(t)
				o := object(t, c, test.floor)
				if outcome, _, err := c.Update(within(t, 3*time.Minute), o, renewal(o)); outcome != test.update || err == nil {
					return fmt.Errorf("a write: %v, %w; want %v", outcome, err, test.update)
				}
				return f.connected(test.connections)
			})
		})
	}
}

// One of several API servers lags. A state that is older than the known one is believed only if several servers report it.
func TestOlderStateNeedsSeveralServers(t *testing.T) {
	for name, test := range map[string]struct {
		answers     http.HandlerFunc
		floor       int64
		revision    int64 // 0 for no answer
		connections int64
	}{
		"all lag, or are restored":       {olderOn(func(int64) bool { return true }), 10, 5, 3},
		"one lags":                       {olderOn(func(n int64) bool { return n == 1 }), 10, 10, 2},
		"two lag":                        {olderOn(func(n int64) bool { return n <= 2 }), 10, 10, 3},
		"nothing newer is known":         {olderOn(func(n int64) bool { return n == 1 }), 5, 5, 1},
		"one has nothing, another lags":  {inTurn(absentOn(func(int64) bool { return true }), olderOn(func(n int64) bool { return n == 2 })), 10, 10, 3},
		"one lags, others have nothing":  {inTurn(say(200, leaseJSON(5)), absentOn(func(int64) bool { return true })), 10, 5, 3},
		"all lag, one less than another": {inTurn(say(200, leaseJSON(5)), say(200, leaseJSON(7)), say(200, leaseJSON(6))), 10, 7, 3},
		"one lags, others are in trouble": {inTurn(say(200, leaseJSON(5)),
			say(503, statusJSON(503, "ServiceUnavailable", "coordination.k8s.io", "leases", "job"))), 10, 0, 2},
	} {
		t.Run(name, func(t *testing.T) {
			inOneOfMany(t, func() error {
				f := serve(t, test.answers)
				answer, err := f.client(t).Get(within(t, 3*time.Minute), test.floor)
				got := int64(0)
				if answer.Object != nil {
					got = answer.Object.Record.Revision
				}
				if got != test.revision || answer.Absent || (err != nil) != (test.revision == 0) {
					return fmt.Errorf("a read finds %+v, %w; want revision %d", answer, err, test.revision)
				}
				return f.connected(test.connections)
			})
		})
	}
}

// inTurn answers over the first connection by the first, over the second by the second and so on, and by the last over all further ones.
func inTurn(answers ...http.HandlerFunc) http.HandlerFunc {
	return func(w http.ResponseWriter, r *http.Request) {
		n := r.Context().Value(connectionKey{}).(int64)
		answers[min(n, int64(len(answers)))-1](w, r)
	}
}

// A holder that keeps running while it is cut off does not end its tenure after the outage for what one server says that lags. If all
// say so, their data was restored, and others may hold the Lease.
func TestKeptTenureOutlastsALaggingServer(t *testing.T) {
	for name, test := range map[string]struct {
		answers http.HandlerFunc
		ends    bool
	}{
		"one lags":                 {olderOn(func(n int64) bool { return n == 1 }), false},
		"two lag":                  {olderOn(func(n int64) bool { return n <= 2 }), false},
		"all lag, or are restored": {olderOn(func(int64) bool { return true }), true},
		"one lags, others are in trouble": {inTurn(olderOn(func(int64) bool { return true }),
			say(503, statusJSON(503, "ServiceUnavailable", "coordination.k8s.io", "leases", "job"))), false},
		"another holds it": {say(200, strings.Replace(leaseJSON(11), `"a/u/n"`, `"b/u/n"`, 1)), true},
	} {
		t.Run(name, func(t *testing.T) {
			k := keptRunning(t)
			ask := k.reads(lease.Ticked{})
			answer, _ := serve(t, test.answers).client(t).Get(within(t, 3*time.Minute), ask.Floor)
			done := lease.ReadDone{ID: ask.ID, Absent: answer.Absent}
			if answer.Object != nil {
				done.Found = &answer.Object.Record
			}
			killed := false
			for _, action := range k.step(done) {
				_, kills := action.(lease.KillTree)
				killed = killed || kills
			}
			if killed != test.ends {
				t.Errorf("killed: %t, want %t", killed, test.ends)
			}
		})
	}
}

// kept is a holder that has been cut off for an hour, as its state machine knows it.
type kept struct {
	t      *testing.T
	config lease.Config
	state  lease.State
	now    lease.Instant
}

// keptRunning is the holder of leaseJSON(10).
func keptRunning(t *testing.T) *kept {
	t.Helper()
	k := &kept{t: t, now: lease.Instant(time.Hour), config: lease.Config{
		Identity: lease.Identity{Pod: "a", PodUID: "u", Nonce: "n"}, KeepRunning: true,
		Duration: 15 * time.Second, RenewDeadline: 10 * time.Second, RetryPeriod: 2 * time.Second,
	}}
	free := lease.Record{UID: "u1", Revision: 7, Release: lease.Release{Reason: lease.ReasonCreated}}
	actions := k.step(lease.ReadDone{ID: k.reads(lease.WatchOpened{}).ID, Found: &free})
	stored := actions[0].(lease.SendWrite).Attempt.Record
	stored.Revision = 10
	actions = k.step(lease.WriteDone{Nonce: stored.RenewTime, Outcome: lease.Confirmed, Record: &stored})
	if start, ok := actions[0].(lease.StartChild); !ok || start.Token != 7 {
		t.Fatalf("it does not begin the tenure of leaseJSON: %+v", actions)
	}
	k.now = k.now.Add(time.Hour)
	return k
}

func (k *kept) step(e lease.Event) []lease.Action {
	var actions []lease.Action
	k.state, actions = lease.Step(k.config, k.state, lease.Time{Boot: k.now, Wall: int64(k.now)}, e)
	return actions
}

// reads is a step that asks for the Lease.
func (k *kept) reads(e lease.Event) lease.SendRead {
	k.t.Helper()
	actions := k.step(e)
	for _, action := range actions {
		if ask, ok := action.(lease.SendRead); ok {
			return ask
		}
	}
	k.t.Fatalf("it reads nothing: %+v", actions)
	return lease.SendRead{}
}

// A client without an answer does not report that the Lease is gone.
func TestErrorsDoNotProveAbsence(t *testing.T) {
	f := serve(t, func(w http.ResponseWriter, r *http.Request) {
		switch n := r.Context().Value(connectionKey{}).(int64); {
		case n%2 == 0: // each other one lies, and those beside it are in trouble
			absentOn(func(int64) bool { return true })(w, r)
		case n > 1:
			say(503, statusJSON(503, "ServiceUnavailable", "coordination.k8s.io", "leases", "job"))(w, r)
		default:
			say(200, leaseJSON(10))(w, r)
		}
	})
	c := f.client(t)
	answer, err := c.Get(within(t, 3*time.Minute), 0)
	if err != nil || answer.Object == nil {
		t.Fatal(answer, err)
	}
	lied := false
	for range 10 {
		c.requests.leave()
		found, err := c.Get(within(t, 3*time.Minute), 10)
		if found.Absent || err == nil {
			t.Fatalf("a read finds %+v, %v", found, err)
		}
		lied = lied || strings.Contains(err.Error(), "reports that the Lease does not exist")
		c.requests.leave()
		if outcome, _, err := c.Update(within(t, 3*time.Minute), answer.Object, renewal(answer.Object)); outcome != lease.Unknown || err == nil {
			t.Fatalf("a write: %v, %v; want Unknown", outcome, err)
		}
	}
	if !lied {
		t.Error("nobody was asked who lies")
	}
}

// A Lease that was recreated is another one: the tenure of the first is over at once.
func TestAbsentAndRecreated(t *testing.T) {
	f := serve(t, func(w http.ResponseWriter, r *http.Request) {
		if r.Method == http.MethodPut {
			absentOn(func(int64) bool { return true })(w, r)
			return
		}
		say(200, strings.Replace(leaseJSON(20), `"uid":"u1"`, `"uid":"u2"`, 1))(w, r)
	})
	c := f.client(t)
	o := object(t, c, 10)
	if outcome, _, err := c.Update(within(t, 3*time.Minute), o, renewal(o)); outcome != lease.Gone {
		t.Errorf("%v, %v; want Gone", outcome, err)
	}
}

// An endless answer is not kept.
func TestHugeAnswers(t *testing.T) {
	for name, answer := range map[string]http.HandlerFunc{
		"a body": endless,
		"a header": func(w http.ResponseWriter, _ *http.Request) {
			w.Header().Set("X", strings.Repeat("x", 1<<20))
			w.WriteHeader(http.StatusOK)
		},
	} {
		c := serve(t, answer).client(t)
		if found, err := c.Get(within(t, 5*time.Minute), 0); err == nil {
			t.Errorf("%s without an end: %+v", name, found)
		}
		o := object(t, c, 10)
		if outcome, _, err := c.Update(within(t, 5*time.Minute), o, renewal(o)); outcome != lease.Unknown || err == nil {
			t.Errorf("%s without an end: %v, %v; want Unknown", name, outcome, err)
		}
	}
}

// Whether a Lease may be acquired depends on what is stored, not on a cache of the API server. And a request without an answer must close
// its connection, which a request of HTTP/2 does not.
func TestReadsAreConsistentAndUseHTTP1(t *testing.T) {
	var asked []*http.Request
	f := &fake{Server: httptest.NewUnstartedServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		asked = append(asked, r)
		if r.Method == http.MethodGet {
			say(200, leaseJSON(10))(w, r)
			return
		}
		stored(w, r)
	}))}
	f.EnableHTTP2 = true
	f.StartTLS()
	t.Cleanup(f.Close)
	c := f.client(t)
	answer, err := c.Get(within(t, 3*time.Minute), 0)
	if err != nil {
		t.Fatal(err)
	}
	if outcome, _, err := c.Update(within(t, 3*time.Minute), answer.Object, renewal(answer.Object)); outcome != lease.Confirmed {
		t.Fatal(outcome, err)
	}
	for i, query := range []string{"", "fieldManager=" + fieldManager} {
		if r := asked[i]; r.ProtoMajor != 1 || r.URL.RawQuery != query {
			t.Errorf("%s %s by %s, want the query %q by HTTP/1", r.Method, r.URL, r.Proto, query)
		}
	}
}

// HTTPS_PROXY is in many a pod for its program's sake. (The address of the test's own servers is never asked of a proxy, so
// no request can show it.)
func TestNoProxyOfTheEnvironment(t *testing.T) {
	if transport, ok := newDialer().transport(nil).(*http.Transport); !ok || transport.Proxy != nil {
		t.Error("requests to the API server may go by a proxy")
	}
}

// Fields that the record does not have must not stay in the Lease. A free Lease has no acquire time.
func TestReleaseLeavesNoAcquireTime(t *testing.T) {
	c := serve(t, stored).client(t)
	o := object(t, c, 10)
	body, err := o.with(o.Record.Released(lease.Release{Reason: lease.ReasonSwitchover}, 1, o.Record.RenewTime+1))
	if err != nil {
		t.Fatal(err)
	}
	if at, stays := parts(t, string(body))["spec.acquireTime"]; stays {
		t.Errorf("acquireTime is still %s", at)
	}
	if back, err := c.decode(body); err != nil || !back.Record.Free() {
		t.Errorf("what was released is not free: %v, %v", back, err)
	}
}

func TestTokenIsReadAgain(t *testing.T) {
	f := serve(t, func(w http.ResponseWriter, r *http.Request) {
		if r.Header.Get("Authorization") != "Bearer new" {
			say(401, statusJSON(401, "Unauthorized", "", "", ""))(w, r)
			return
		}
		stored(w, r)
	})
	dir := credentials(t, f.ca(), "old")
	c := newClient(t, Config{Server: f.URL, Namespace: "ns", Name: "job", Credentials: dir})
	o := object(t, c, 10)
	if outcome, _, err := c.Update(within(t, 3*time.Minute), o, renewal(o)); outcome != lease.Refused {
		t.Fatalf("with the old token: %v, %v", outcome, err)
	}
	put(t, filepath.Join(dir, "token"), []byte("new"))
	if outcome, _, err := c.Update(within(t, 3*time.Minute), o, renewal(o)); outcome != lease.Confirmed {
		t.Fatalf("with the new token: %v, %v", outcome, err)
	}
}

func TestAuthorityIsReadAgain(t *testing.T) {
	f := serve(t, stored)
	dir := credentials(t, newAuthorityPEM(t), "secret")
	c := newClient(t, Config{Server: f.URL, Namespace: "ns", Name: "job", Credentials: dir})
	o := object(t, c, 10)
	if outcome, _, err := c.Update(within(t, 3*time.Minute), o, renewal(o)); outcome != lease.Refused {
		t.Fatalf("with another authority: %v, %v", outcome, err)
	}
	put(t, filepath.Join(dir, "ca.crt"), f.ca())
	if outcome, _, err := c.Update(within(t, 3*time.Minute), o, renewal(o)); outcome != lease.Confirmed {
		t.Fatalf("with the server's: %v, %v", outcome, err)
	}
}

// A connection that an authority no longer vouches for is not used any more.
func TestAuthorityIsWithdrawn(t *testing.T) {
	f := serve(t, stored)
	dir := credentials(t, f.ca(), "secret")
	c := newClient(t, Config{Server: f.URL, Namespace: "ns", Name: "job", Credentials: dir})
	o := object(t, c, 10)
	if outcome, _, err := c.Update(within(t, 3*time.Minute), o, renewal(o)); outcome != lease.Confirmed {
		t.Fatal(outcome, err)
	}
	put(t, filepath.Join(dir, "ca.crt"), newAuthorityPEM(t))
	if outcome, _, err := c.Update(within(t, 3*time.Minute), o, renewal(o)); outcome != lease.Refused {
		t.Fatalf("outcome %v (%v), want Refused", outcome, err)
	}
}

func TestNewRefuses(t *testing.T) {
	f := serve(t, stored)
	for name, config := range map[string]Config{
		"no URL":         {Server: "10.0.0.1:443", Credentials: credentials(t, f.ca(), "x")},
		"no credentials": {Server: f.URL, Credentials: t.TempDir()},
		"no certificate": {Server: f.URL, Credentials: credentials(t, []byte("nothing"), "x")},
	} {
		t.Run(name, func(t *testing.T) {
			if _, err := New(config); err == nil {
				t.Error("no error")
			}
		})
	}
}

func TestInCluster(t *testing.T) {
	for name, test := range map[string]struct {
		host, port, want string
	}{
		"IPv4":    {host: "10.0.0.1", port: "443", want: "https://10.0.0.1:443"},
		"IPv6":    {host: "fd00::1", port: "443", want: "https://[fd00::1]:443"},
		"no host": {port: "443"},
		"no port": {host: "10.0.0.1"},
		// A kubelet leaves what it does not know.
		"no Service": {host: "$(KUBERNETES_SERVICE_HOST)", port: "$(KUBERNETES_SERVICE_PORT)"},
	} {
		t.Run(name, func(t *testing.T) {
			env := map[string]string{
				contract.APIHostEnv: test.host, contract.APIPortEnv: test.port,
				"KUBERNETES_SERVICE_HOST": "the-users", "KUBERNETES_SERVICE_PORT": "1",
			}
			got, err := InCluster(func(name string) string { return env[name] })
			if got != test.want || (err == nil) != (test.want != "") {
				t.Errorf("%q, %v; want %q", got, err, test.want)
			}
		})
	}
}

// nobodyListens is an address that is taken, so that nobody can come to listen on it.
func nobodyListens(t *testing.T) string {
	t.Helper()
	fd, err := unix.Socket(unix.AF_INET, unix.SOCK_STREAM|unix.SOCK_CLOEXEC, 0)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = unix.Close(fd) })
	if err := unix.Bind(fd, &unix.SockaddrInet4{Addr: [4]byte{127, 0, 0, 1}}); err != nil {
		t.Fatal(err)
	}
	address, err := unix.Getsockname(fd)
	if err != nil {
		t.Fatal(err)
	}
	return fmt.Sprintf("127.0.0.1:%d", address.(*unix.SockaddrInet4).Port)
}

// silentListener takes connections and says nothing.
func silentListener(t *testing.T) string {
	t.Helper()
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = l.Close() })
	return l.Addr().String()
}
