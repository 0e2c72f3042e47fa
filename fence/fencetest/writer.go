package fencetest

import (
	"bytes"
	"context"
	"encoding/json"
	"fmt"
	"io"
	"net/http"

	"github.com/singletonjob/operator/fence"
)

// Writer sends fenced writes to a toy sink over HTTP. It is not safe for concurrent use.
type Writer struct {
	URL      string // of the sink, as "http://127.0.0.1:8080"
	Resource fence.Resource
	Token    fence.Token
	ID       string       // the writer's name, such as that of a Pod or process
	Client   *http.Client // nil: http.DefaultClient

	seq int64
}

// Write sends the next write and waits for the sink's decision. If the tenure is over, the error is a
// [*fence.StaleError]. After any other error, the write may or may not have been stored.
func (w *Writer) Write(ctx context.Context) error {
	w.seq++
	body, err := json.Marshal(writeBody{Writer: w.ID, Seq: w.seq, Sent: Boottime()})
	if err != nil {
		return err
	}
	req, err := http.NewRequestWithContext(ctx, http.MethodPost, w.URL+"/write", bytes.NewReader(body))
	if err != nil {
		return err
	}
	req.Header.Set("Content-Type", mediaTypeJSON)
	req.Header.Set(fence.HeaderToken, w.Token.String())
	req.Header.Set(fence.HeaderResource, string(w.Resource))
	client := w.Client
	if client == nil {
		client = http.DefaultClient
	}
	resp, err := client.Do(req)
	if err != nil {
		return fmt.Errorf("write %d with token %s: %w", w.seq, w.Token, err)
	}
	defer resp.Body.Close()
	answer, err := io.ReadAll(io.LimitReader(resp.Body, maxWriteBody))
	if err != nil {
		return fmt.Errorf("write %d with token %s: read the answer: %w", w.seq, w.Token, err)
	}
	if resp.StatusCode == http.StatusOK {
		return nil
	}
	return refusal(resp.StatusCode, answer)
}

// refusal converts a problem to the error that the sink's gate returned.
func refusal(status int, body []byte) error {
	var p problem
	if err := json.Unmarshal(body, &p); err != nil {
		return fmt.Errorf("the sink answered %d: %q", status, body)
	}
	switch p.Type {
	case problemStale:
		return &fence.StaleError{Resource: p.Resource, Presented: p.Presented, Highest: p.Highest}
	case problemMissingToken:
		return fmt.Errorf("%w: the sink says: %s", fence.ErrMissingToken, p.Detail)
	}
	return fmt.Errorf("the sink answered %d: %s", status, p.Detail)
}
