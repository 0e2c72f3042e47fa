package fencetest

import (
	"encoding/json"
	"errors"
	"fmt"
	"net/http"
	"strconv"
	"time"

	"github.com/singletonjob/operator/fence"
)

const (
	maxWriteBody      = 64 << 10
	attemptsPerAnswer = 10_000

	mediaTypeJSON    = "application/json"
	mediaTypeProblem = "application/problem+json" // RFC 9457

	// The types of problems: names, not addresses.
	problemStale        = "tag:singletonjob.io,2026:stale-token"
	problemMissingToken = "tag:singletonjob.io,2026:missing-token"
	problemMalformed    = "tag:singletonjob.io,2026:malformed-write"
)

// problem is the body of a refusal.
type problem struct {
	Type     string         `json:"type"`
	Title    string         `json:"title"`
	Status   int            `json:"status"`
	Detail   string         `json:"detail"`
	Resource fence.Resource `json:"resource,omitempty"`
	// Set for stale tokens only.
	Presented fence.Token `json:"presented,omitempty"`
	Highest   fence.Token `json:"highest,omitempty"`
}

// writeBody is the body of a write.
type writeBody struct {
	Writer string        `json:"writer"`
	Seq    int64         `json:"seq"`
	Sent   time.Duration `json:"sentNanos"`
}

// Handler serves the sink:
//
//	POST /write            a fenced write: headers Fencing-Token and Fencing-Resource, body {"writer","seq","sentNanos"};
//	                       200 with the [Attempt]; 412 stale; 428 without a token; 400 malformed; the refusals
//	                       are problem+json
//	GET  /report           the [Report]
//	GET  /attempts?from=N  the recorded attempts from the N-th on, at most 10 000
func (s *Sink) Handler() http.Handler {
	mux := http.NewServeMux()
	mux.HandleFunc("POST /write", s.serveWrite)
	mux.HandleFunc("GET /report", func(w http.ResponseWriter, _ *http.Request) {
		answer(w, mediaTypeJSON, http.StatusOK, s.Report())
	})
	mux.HandleFunc("GET /attempts", s.serveAttempts)
	return mux
}

func (s *Sink) serveWrite(w http.ResponseWriter, r *http.Request) {
	attempt, err := readAttempt(w, r)
	if err != nil {
		s.countMalformed()
		refuse(w, attempt, err)
		return
	}
	attempt, err = s.Write(attempt)
	if err != nil {
		refuse(w, attempt, err)
		return
	}
	answer(w, mediaTypeJSON, http.StatusOK, attempt)
}

func readAttempt(w http.ResponseWriter, r *http.Request) (Attempt, error) {
	var a Attempt
	token, err := single(r.Header, fence.HeaderToken)
	if err != nil {
		return a, fmt.Errorf("%w: %w", fence.ErrMalformedToken, err)
	}
	if a.Token, err = fence.ParseToken(token); err != nil {
		return a, err
	}
	resource, err := single(r.Header, fence.HeaderResource)
	if err != nil {
		return a, fmt.Errorf("%w: %w", fence.ErrMalformedResource, err)
	}
	if a.Resource, err = fence.ParseResource(resource); err != nil {
		return a, err
	}
	var body writeBody
	if err := json.NewDecoder(http.MaxBytesReader(w, r.Body, maxWriteBody)).Decode(&body); err != nil {
		return a, fmt.Errorf(`read the body, want {"writer":"…","seq":1}: %w`, err)
	}
	a.Writer, a.Seq, a.Sent = body.Writer, body.Seq, body.Sent
	return a, nil
}

// single refuses a repeated header, because a sender and a proxy could each mean another of its values.
func single(h http.Header, name string) (string, error) {
	values := h.Values(name)
	switch len(values) {
	case 0:
		return "", nil
	case 1:
		return values[0], nil
	}
	return "", fmt.Errorf("header %s is sent %d times, want it once", name, len(values))
}

func (s *Sink) serveAttempts(w http.ResponseWriter, r *http.Request) {
	from := 0
	if value := r.URL.Query().Get("from"); value != "" {
		var err error
		if from, err = strconv.Atoi(value); err != nil || from < 0 {
			refuse(w, Attempt{}, fmt.Errorf("query parameter from is %q, want an index from 0", value))
			return
		}
	}
	attempts := s.Attempts(from)
	answer(w, mediaTypeJSON, http.StatusOK, attempts[:min(len(attempts), attemptsPerAnswer)])
}

func refuse(w http.ResponseWriter, a Attempt, err error) {
	p := problem{
		Type: problemMalformed, Title: "Malformed write", Status: http.StatusBadRequest,
		Detail: err.Error(), Resource: a.Resource,
	}
	stale, isStale := errors.AsType[*fence.StaleError](err)
	switch {
	case isStale:
		p.Type, p.Title, p.Status = problemStale, "Stale fencing token", http.StatusPreconditionFailed
		p.Presented, p.Highest = stale.Presented, stale.Highest
	case errors.Is(err, fence.ErrMissingToken):
		p.Type, p.Title, p.Status = problemMissingToken, "Fencing token required", http.StatusPreconditionRequired
	}
	answer(w, mediaTypeProblem, p.Status, p)
}

func answer(w http.ResponseWriter, mediaType string, status int, body any) {
	w.Header().Set("Content-Type", mediaType)
	w.WriteHeader(status)
	// The status is sent already: an error could not be reported to the client.
	_ = json.NewEncoder(w).Encode(body)
}
