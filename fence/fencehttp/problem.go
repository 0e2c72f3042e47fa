package fencehttp

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"mime"
	"net/http"
	"strconv"
	"time"

	"github.com/singletonjob/operator/fence"
)

// The types of problems: names, not addresses.
const (
	ProblemStale       = "tag:singletonjob.io,2026:stale-token"
	ProblemAhead       = "tag:singletonjob.io,2026:ahead-token"
	ProblemMissing     = "tag:singletonjob.io,2026:missing-token"
	ProblemMalformed   = "tag:singletonjob.io,2026:malformed-write"
	ProblemUnavailable = "tag:singletonjob.io,2026:fence-unavailable"
)

const (
	mediaTypeProblem = "application/problem+json" // RFC 9457
	maxProblem       = 64 << 10
	// retryAfter is when a write may be repeated that could not be decided.
	retryAfter = time.Second
)

// Problem is the body of a refusal.
type Problem struct {
	Type     string         `json:"type"`
	Title    string         `json:"title"`
	Status   int            `json:"status"`
	Detail   string         `json:"detail"`
	Resource fence.Resource `json:"resource,omitempty"`
	// Presented is the token of the request, if it had one. Detail has the numbers as text, for readers whose numbers are doubles (exact to
	// 2^53 only).
	Presented fence.Token `json:"presented,omitempty"`
	// Highest is the mark, if it decided.
	Highest fence.Token `json:"highest,omitempty"`
}

func problemOf(resource fence.Resource, presented fence.Token, err error) Problem {
	p := Problem{Detail: err.Error(), Resource: resource, Presented: presented}
	stale, isStale := errors.AsType[*fence.StaleError](err)
	ahead, isAhead := errors.AsType[*fence.AheadError](err)
	switch {
	case isStale:
		p.Type, p.Title, p.Status = ProblemStale, "Stale fencing token", http.StatusPreconditionFailed
		p.Highest = stale.Highest
	case isAhead:
		p.Type, p.Title, p.Status = ProblemAhead, "Fencing token ahead of its mark", http.StatusTooEarly
		p.Highest = ahead.Mark
	case errors.Is(err, fence.ErrMissingToken):
		p.Type, p.Title, p.Status = ProblemMissing, "Fencing token required", http.StatusPreconditionRequired
	case errors.Is(err, fence.ErrMalformedToken), errors.Is(err, fence.ErrMalformedResource):
		p.Type, p.Title, p.Status = ProblemMalformed, "Malformed write", http.StatusBadRequest
	default:
		p.Type, p.Title, p.Status = ProblemUnavailable, "The fence can't decide now", http.StatusServiceUnavailable
	}
	return p
}

func refuse(w http.ResponseWriter, resource fence.Resource, presented fence.Token, err error) {
	p := problemOf(resource, presented, err)
	h := w.Header()
	h.Set("Content-Type", mediaTypeProblem)
	h.Set("Cache-Control", "no-store")
	if p.Status == http.StatusServiceUnavailable {
		h.Set("Retry-After", strconv.Itoa(int(retryAfter/time.Second)))
	}
	w.WriteHeader(p.Status)
	// The status is sent already: an error could not be reported to the client.
	_ = json.NewEncoder(w).Encode(p)
}

// Check returns the error of a response by which a fence refused the request. It reads the body for that. A [*fence.StaleError] says that
// the tenure is over and the program must stop. For any other response it returns nil and leaves the body readable, even if it is a problem
// of another sender.
func Check(response *http.Response) error {
	mediaType, _, _ := mime.ParseMediaType(response.Header.Get("Content-Type"))
	if response.StatusCode < http.StatusBadRequest || mediaType != mediaTypeProblem {
		return nil
	}
	body, err := io.ReadAll(io.LimitReader(response.Body, maxProblem))
	if err != nil {
		return fmt.Errorf("read the problem that came with status %d: %w", response.StatusCode, err)
	}
	var p Problem
	if err := json.Unmarshal(body, &p); err == nil && p.err() != nil {
		return p.err()
	}
	response.Body = struct {
		io.Reader
		io.Closer
	}{io.MultiReader(bytes.NewReader(body), response.Body), response.Body}
	return nil
}

// err is nil if the problem is not a refusal of a fence.
func (p Problem) err() error {
	switch p.Type {
	case ProblemStale:
		return &fence.StaleError{Resource: p.Resource, Presented: p.Presented, Highest: p.Highest}
	case ProblemAhead:
		return &fence.AheadError{Resource: p.Resource, Presented: p.Presented, Mark: p.Highest}
	case ProblemMissing:
		return fmt.Errorf("%w: the server says: %s", fence.ErrMissingToken, p.Detail)
	case ProblemMalformed:
		return fmt.Errorf("%w: the server says: %s", fence.ErrMalformedToken, p.Detail)
	case ProblemUnavailable:
		return fmt.Errorf("%w: the server says: %s", ErrUnavailable, p.Detail)
	}
	return nil
}
