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
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

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
			var got *answered
			if !errors.As(err, &got) {
				t.Fatalf("the write returned %v, want a refusal", err)
			}
			if got.status != c.status || got.problem.Status != c.status || got.problem.Type != c.kind ||
				got.media != "application/problem+json" || got.problem.Detail == "" || got.problem.Title == "" {
				t.Errorf("answered %d, %s, %+v; want %d and a problem %s", got.status, got.media, got.problem, c.status, c.kind)
			}
			report := sink.Report()
			if ledger := report.Resource("ledger"); ledger.Accepted != 1 || ledger.Highest != 34 || ledger.Refused+report.Malformed != 1 {
				t.Errorf("the report is %+v, want the one good write, mark 34, and the other one counted", report)
			}
		})
	}
}

func TestWriterAndSink(t *testing.T) {
	sink := &Sink{}
	url := serve(t, sink)
	old := &Writer{URL: url, Resource: "default/billing", Token: 33, ID: "pod-0"}
	present := &Writer{URL: url, Resource: "default/billing", Token: 34, ID: "pod-1"}
	ctx := t.Context()
	for i, w := range []*Writer{old, old, present, present} {
		if err := w.Write(ctx); err != nil {
			t.Fatalf("write %d: %v", i, err)
		}
	}
	want := &fence.StaleError{Resource: "default/billing", Presented: 33, Highest: 34}
	var stale *fence.StaleError
	if err := old.Write(ctx); !errors.As(err, &stale) || *stale != *want {
		t.Fatalf("the stale write returned %v, want %v", err, want)
	}
	if err := (&Writer{URL: url, Resource: "default/billing", ID: "pod-2"}).Write(ctx); err == nil || errors.Is(err, fence.ErrStale) {
		t.Fatalf("a writer without a token got %v, want a refusal that is not about staleness", err)
	}

	var report Report
	get(t, url+"/report", &report)
	if diff := cmp.Diff(sink.Report(), report); diff != "" {
		t.Errorf("the report over HTTP differs (-sink +http):\n%s", diff)
	}
	ledger := report.Resource("default/billing")
	if ledger.Accepted != 4 || ledger.Refused != 1 || ledger.StaleAccepted != 0 || ledger.Highest != 34 || report.Malformed != 1 {
		t.Errorf("the report is %+v", report)
	}
	if first, second := ledger.Tenure(33), ledger.Tenure(34); first.Accepted != 2 || first.Refused != 1 || second.Accepted != 2 ||
		first.FirstAccepted > first.LastAccepted || first.LastAccepted > second.FirstAccepted || first.FirstRefused < second.LastAccepted {
		t.Errorf("the tenures are %+v and %+v", first, second)
	}

	var attempts []Attempt
	get(t, url+"/attempts?from=2", &attempts)
	if diff := cmp.Diff(sink.Attempts(2), attempts); diff != "" || len(attempts) != 3 {
		t.Errorf("attempts from 2 on: %+v (-sink +http):\n%s", attempts, diff)
	}
	for _, a := range attempts {
		if a.Sent == 0 || a.At < a.Sent {
			t.Errorf("attempt %+v: one clock, yet the sink decided before the writer sent", a)
		}
	}
}

// A sink that is down or answers nonsense must not look like a refusal, nor like success.
func TestWriterTellsFailureFromRefusal(t *testing.T) {
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
func TestUnfencedSinkCountsWhatItStores(t *testing.T) {
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
