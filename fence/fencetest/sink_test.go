package fencetest

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net/http"
	"net/http/httptest"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"github.com/google/go-cmp/cmp/cmpopts"

	"github.com/singletonjob/operator/fence"
)

// answered is a response that was no 200.
type answered struct {
	status  int
	media   string
	problem problem
}

func (a *answered) Error() string { return fmt.Sprintf("%d: %s", a.status, a.problem.Detail) }

func (a *answered) Unwrap() error {
	switch a.problem.Type {
	case problemStale:
		return &fence.StaleError{Resource: a.problem.Resource, Presented: a.problem.Presented, Highest: a.problem.Highest}
	case problemMissingToken:
		return fence.ErrMissingToken
	}
	return fence.ErrMalformedToken
}

// post sends a write with the headers as they are given, so also such that Writer would never send.
func post(ctx context.Context, url string, tokens, resources []string, body string) error {
	req, err := http.NewRequestWithContext(ctx, http.MethodPost, url+"/write", strings.NewReader(body))
	if err != nil {
		return err
	}
	for _, token := range tokens {
		req.Header.Add(fence.HeaderToken, token)
	}
	for _, resource := range resources {
		req.Header.Add(fence.HeaderResource, resource)
	}
	resp, err := http.DefaultClient.Do(req)
	if err != nil {
		return err
	}
	defer resp.Body.Close()
	if resp.StatusCode == http.StatusOK {
		return nil
	}
	a := &answered{status: resp.StatusCode, media: resp.Header.Get("Content-Type")}
	if err := json.NewDecoder(resp.Body).Decode(&a.problem); err != nil {
		return err
	}
	return a
}

func get(t *testing.T, url string, into any) {
	t.Helper()
	resp, err := http.Get(url)
	if err != nil {
		t.Fatal(err)
	}
	defer resp.Body.Close()
	body, err := io.ReadAll(resp.Body)
	if err != nil || resp.StatusCode != http.StatusOK {
		t.Fatalf("GET %s: %s %v %s", url, resp.Status, err, body)
	}
	if err := json.Unmarshal(body, into); err != nil {
		t.Fatalf("GET %s: %v in %s", url, err, body)
	}
}

func serve(t *testing.T, sink *Sink) string {
	t.Helper()
	server := httptest.NewServer(sink.Handler())
	t.Cleanup(server.Close)
	return server.URL
}

func TestSinkRefusals(t *testing.T) {
	const good = `{"writer":"a","seq":1}`
	for name, c := range map[string]struct {
		tokens, resources []string
		body              string
		status            int
		kind              string
	}{
		"stale":                  {[]string{"33"}, []string{"ledger"}, good, http.StatusPreconditionFailed, problemStale},
		"no token":               {nil, []string{"ledger"}, good, http.StatusPreconditionRequired, problemMissingToken},
		"an empty token":         {[]string{""}, []string{"ledger"}, good, http.StatusPreconditionRequired, problemMissingToken},
		"a malformed token":      {[]string{"34.0"}, []string{"ledger"}, good, http.StatusBadRequest, problemMalformed},
		"zero":                   {[]string{"0"}, []string{"ledger"}, good, http.StatusBadRequest, problemMalformed},
		"two tokens, one stale":  {[]string{"34", "33"}, []string{"ledger"}, good, http.StatusBadRequest, problemMalformed},
		"the same token twice":   {[]string{"34", "34"}, []string{"ledger"}, good, http.StatusBadRequest, problemMalformed},
		"no resource":            {[]string{"34"}, nil, good, http.StatusBadRequest, problemMalformed},
		"two resources":          {[]string{"34"}, []string{"ledger", "other"}, good, http.StatusBadRequest, problemMalformed},
		"a malformed resource":   {[]string{"34"}, []string{"the ledger"}, good, http.StatusBadRequest, problemMalformed},
		"no body":                {[]string{"34"}, []string{"ledger"}, "", http.StatusBadRequest, problemMalformed},
		"a body that never ends": {[]string{"34"}, []string{"ledger"}, `{"writer":"` + strings.Repeat("x", 1<<17), http.StatusBadRequest, problemMalformed},
	} {
		t.Run(name, func(t *testing.T) {
			sink := &Sink{}
			url := serve(t, sink)
			if err := post(t.Context(), url, []string{"34"}, []string{"ledger"}, good); err != nil {
				t.Fatal(err)
			}
			err := post(t.Context(), url, c.tokens, c.resources, c.body)
			got, ok := errors.AsType[*answered](err)
			if !ok {
				t.Fatalf("the write returned %v, want a refusal", err)
			}
			if got.problem.Detail == "" || got.problem.Title == "" {
				t.Errorf("the problem %+v does not say what is wrong", got.problem)
			}
			want := &answered{status: c.status, media: "application/problem+json", problem: problem{Type: c.kind, Status: c.status}}
			if diff := cmp.Diff(want, got, cmp.AllowUnexported(answered{}),
				cmpopts.IgnoreFields(problem{}, "Title", "Detail", "Resource", "Presented", "Highest")); diff != "" {
				t.Errorf("the answer differs (-want +got):\n%s", diff)
			}
			report := sink.Report()
			if ledger := report.Resource("ledger"); ledger.Accepted != 1 || ledger.Highest != 34 || ledger.Refused+report.Malformed != 1 {
				t.Errorf("the report is %+v, want the one good write, mark 34, and the other one counted", report)
			}
		})
	}
}

// takeover lets two tenures write to a sink through HTTP: twice the old one, twice the present one, and the old one
// once more.
func takeover(t *testing.T, url string) (stale error) {
	t.Helper()
	old := &Writer{URL: url, Resource: "default/billing", Token: 33, ID: "pod-0"}
	present := &Writer{URL: url, Resource: "default/billing", Token: 34, ID: "pod-1"}
	for i, w := range []*Writer{old, old, present, present} {
		if err := w.Write(t.Context()); err != nil {
			t.Fatalf("write %d: %v", i, err)
		}
	}
	return old.Write(t.Context())
}

func TestWriterSeesTheRefusal(t *testing.T) {
	url := serve(t, &Sink{})
	want := &fence.StaleError{Resource: "default/billing", Presented: 33, Highest: 34}
	if stale, ok := errors.AsType[*fence.StaleError](takeover(t, url)); !ok || *stale != *want {
		t.Errorf("the stale write returned %v, want %v", stale, want)
	}
	err := (&Writer{URL: url, Resource: "default/billing", ID: "pod-2"}).Write(t.Context())
	if err == nil || errors.Is(err, fence.ErrStale) {
		t.Errorf("a writer without a token got %v, want a refusal that is not about staleness", err)
	}
}

func TestSinkReportsOverHTTP(t *testing.T) {
	ticks := time.Duration(0)
	sink := &Sink{Now: func() time.Duration { ticks++; return ticks }}
	url := serve(t, sink)
	_ = takeover(t, url)
	want := Report{Resources: []ResourceReport{{
		Resource: "default/billing", Highest: 34, Accepted: 4, Refused: 1,
		Tenures: []TenureReport{
			{Token: 33, Writers: []string{"pod-0"}, Accepted: 2, Refused: 1, FirstAccepted: 1, LastAccepted: 2, FirstRefused: 5, LastRefused: 5},
			{Token: 34, Writers: []string{"pod-1"}, Accepted: 2, FirstAccepted: 3, LastAccepted: 4},
		},
		Changes: []Change{{From: 33, To: 34, Gap: 1, Overlap: 2}},
	}}}
	var got Report
	get(t, url+"/report", &got)
	if diff := cmp.Diff(want, got); diff != "" {
		t.Errorf("GET /report differs (-want +got):\n%s", diff)
	}
}

func TestSinkRecordsEveryAttempt(t *testing.T) {
	sink := &Sink{}
	url := serve(t, sink)
	before := Boottime()
	_ = takeover(t, url)
	var attempts []Attempt
	get(t, url+"/attempts?from=3", &attempts)
	if diff := cmp.Diff(sink.Attempts(3), attempts); diff != "" {
		t.Errorf("GET /attempts differs (-sink +http):\n%s", diff)
	}
	last := before
	for i, a := range sink.Attempts(0) {
		if a.Sent < last || a.At < a.Sent {
			t.Errorf("attempt %d, sent at %d and decided at %d: want both after %d, in this order", i, a.Sent, a.At, last)
		}
		last = a.At
	}
	want := []Attempt{
		{Resource: "default/billing", Token: 34, Writer: "pod-1", Seq: 2, Accepted: true},
		{Resource: "default/billing", Token: 33, Writer: "pod-0", Seq: 3, Accepted: false},
	}
	if diff := cmp.Diff(want, attempts, cmpopts.IgnoreFields(Attempt{}, "Sent", "At")); diff != "" {
		t.Errorf("the attempts from 3 on are wrong (-want +got):\n%s", diff)
	}
}

// Between the look at the mark and the write nothing may come, or the past tenure's write follows the present one's.
func TestSinkChecksAndWritesInOneStep(t *testing.T) {
	t.Parallel()
	sink, written := &Sink{}, make(chan error, 1)
	var looked atomic.Bool
	sink.Now = func() time.Duration {
		if looked.Swap(true) {
			return Boottime()
		}
		go func() { // the first write is decided, and not recorded yet
			_, err := sink.Write(Attempt{Resource: "default/billing", Token: 34})
			written <- err
		}()
		select {
		case err := <-written:
			written <- err
		case <-time.After(100 * time.Millisecond): // it has to wait
		}
		return Boottime()
	}
	if _, err := sink.Write(Attempt{Resource: "default/billing", Token: 33}); err != nil {
		t.Fatal(err)
	}
	if err := <-written; err != nil {
		t.Fatal(err)
	}
	if report := sink.Report().Resource("default/billing"); report.StaleAccepted != 0 || report.Highest != 34 {
		t.Errorf("SAFETY: the past tenure's write was stored after the present one's: %+v", sink.Attempts(0))
	}
}

// A sink that is down or answers nonsense must not look like a refusal, nor like success.
func TestWriterDistinguishesFailureFromRefusal(t *testing.T) {
	for name, handler := range map[string]http.HandlerFunc{
		"a proxy's page": func(w http.ResponseWriter, _ *http.Request) {
			http.Error(w, "<h1>Bad gateway</h1>", http.StatusBadGateway)
		},
		"412 of somebody else": func(w http.ResponseWriter, _ *http.Request) { w.WriteHeader(http.StatusPreconditionFailed) },
		"a reset":              func(http.ResponseWriter, *http.Request) { panic(http.ErrAbortHandler) },
	} {
		t.Run(name, func(t *testing.T) {
			server := httptest.NewServer(handler)
			t.Cleanup(server.Close)
			err := (&Writer{URL: server.URL, Resource: "ledger", Token: 1}).Write(t.Context())
			if err == nil || errors.Is(err, fence.ErrStale) {
				t.Fatalf("the write returned %v, want an error that is no refusal", err)
			}
		})
	}
}

// Only an unfenced sink stores stale writes, and it says so.
func TestUnfencedSinkCountsStaleWrites(t *testing.T) {
	sink := &Sink{Unfenced: true}
	for _, token := range []fence.Token{33, 34, 33, 33, 34} {
		if _, err := sink.Write(Attempt{Resource: "ledger", Token: token, Writer: "a"}); err != nil {
			t.Fatal(err)
		}
	}
	if _, err := sink.Write(Attempt{Resource: "ledger"}); !errors.Is(err, fence.ErrMissingToken) {
		t.Errorf("a write without token returned %v, want it refused: there is no tenure to count it to", err)
	}
	if got := sink.Report().Resource("ledger"); got.StaleAccepted != 2 || got.Accepted != 5 || got.Highest != 34 {
		t.Errorf("the report is %+v, want 2 of 5 accepted to be stale", got)
	}
}

func TestSummarize(t *testing.T) {
	at := func(ms int) time.Duration { return time.Duration(ms) * time.Millisecond }
	attempts := []Attempt{
		{Resource: "ledger", Token: 5, Writer: "a", At: at(100), Accepted: true},
		{Resource: "other", Token: 900, Writer: "z", At: at(110), Accepted: true},
		{Resource: "ledger", Token: 5, Writer: "a", At: at(200), Accepted: true},
		{Resource: "ledger", Token: 9, Writer: "b", At: at(450), Accepted: true},
		{Resource: "ledger", Token: 5, Writer: "a", At: at(500), Accepted: false},
		{Resource: "ledger", Token: 5, Writer: "c", At: at(520), Accepted: false},
		{Resource: "ledger", Token: 9, Writer: "b", At: at(530), Accepted: true},
		{Resource: "ledger", Token: 12, Writer: "a", At: at(600), Accepted: true},
	}
	want := Report{Resources: []ResourceReport{
		{
			Resource: "ledger", Highest: 12, Accepted: 5, Refused: 2,
			Tenures: []TenureReport{
				{
					Token: 5, Writers: []string{"a", "c"}, Accepted: 2, Refused: 2,
					FirstAccepted: at(100), LastAccepted: at(200), FirstRefused: at(500), LastRefused: at(520),
				},
				{Token: 9, Writers: []string{"b"}, Accepted: 2, FirstAccepted: at(450), LastAccepted: at(530)},
				{Token: 12, Writers: []string{"a"}, Accepted: 1, FirstAccepted: at(600), LastAccepted: at(600)},
			},
			Changes: []Change{
				{From: 5, To: 9, Gap: at(250), Overlap: at(70)},
				{From: 9, To: 12, Gap: at(70)},
			},
		},
		{
			Resource: "other", Highest: 900, Accepted: 1,
			Tenures: []TenureReport{{Token: 900, Writers: []string{"z"}, Accepted: 1, FirstAccepted: at(110), LastAccepted: at(110)}},
			Changes: []Change{},
		},
	}}
	if diff := cmp.Diff(want, Summarize(attempts)); diff != "" {
		t.Errorf("the report is wrong (-want +got):\n%s", diff)
	}
}
