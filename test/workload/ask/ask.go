// Package ask is a client that writes to a singleton through its Service. Every 10 ms it sends one write, on a new connection each time,
// and also on one connection that it keeps. The answer says which process took the write. Writes are POST requests, which no library
// between client and process repeats.
package ask

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"syscall"
	"time"

	"github.com/singletonjob/operator/fence"
	"github.com/singletonjob/operator/fence/fencetest"
)

const (
	// Every is the time between two requests of a kind.
	Every = 10 * time.Millisecond
	// patience with one request, its connection included.
	patience = 200 * time.Millisecond
	// reports is the time between two reports.
	reports = 200 * time.Millisecond
	// reported bounds a report, of which more may follow.
	reported = 10 * time.Second
)

// A Who is a singleton's process.
type Who struct {
	Pod   string      `json:"pod"`
	Token fence.Token `json:"token"`
}

// taken is the answer to a write.
type taken struct {
	Who

	Write int64 `json:"write"` // the number that was written
}

// Failure is why a request has no answer.
type Failure string

// Failures. Refused is what a Service without endpoints, or a pod on which nobody listens, does.
const (
	Refused  Failure = "refused"
	TimedOut Failure = "timed out"
	Broken   Failure = "broken"
)

// An Asked is one request. Its times are CLOCK_BOOTTIME.
type Asked struct {
	Kept    bool          `json:"kept,omitempty"` // on the connection that is kept
	Sent    time.Duration `json:"sent"`
	Done    time.Duration `json:"done"`
	Who     Who           `json:"who"` // who answered; zero if nobody did
	Failure Failure       `json:"failure,omitempty"`
}

// longest is the longest number that is written.
const longest = len("-9223372036854775808")

// Handler takes writes, each number once: 409 answers a write that arrives again. A GET, such as that of a probe, writes nothing.
func Handler(me Who) http.Handler {
	var seen sync.Map
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if r.Method == http.MethodGet {
			_ = json.NewEncoder(w).Encode(me)
			return
		}
		body, err := io.ReadAll(http.MaxBytesReader(w, r.Body, int64(longest)))
		if err != nil {
			http.Error(w, err.Error(), http.StatusBadRequest)
			return
		}
		number, err := strconv.ParseInt(string(body), 10, 64)
		if r.Method != http.MethodPost || err != nil {
			http.Error(w, "POST a number", http.StatusBadRequest)
			return
		}
		if _, again := seen.LoadOrStore(number, true); again {
			http.Error(w, "this write has arrived before", http.StatusConflict)
			return
		}
		_ = json.NewEncoder(w).Encode(taken{me, number})
	})
}

// A Client asks, and reports.
type Client struct {
	URL    string // of the Service
	Report string // URL to which all that was asked is posted, as a list of Asked

	writes atomic.Int64
	mu     sync.Mutex
	unsent []Asked
}

// Run returns when the context ends.
func (c *Client) Run(ctx context.Context) {
	var parts sync.WaitGroup
	for _, part := range []func(context.Context){c.askAnew, c.askOnOne, c.report} {
		parts.Go(func() { part(ctx) })
	}
	parts.Wait()
}

// askAnew does not wait for an answer to send the next request: one that is lost hides none of those after it.
func (c *Client) askAnew(ctx context.Context) {
	client := &http.Client{Transport: &http.Transport{DialContext: dial, DisableKeepAlives: true}}
	each(ctx, Every, func() { go c.ask(ctx, client, false) })
}

// dial has the patience of a request: net/http keeps dialling without it, for minutes where no packet is answered.
var dial = (&net.Dialer{Timeout: patience}).DialContext

// askOnOne has another Transport after each failure, so that nothing of what failed is waited for.
func (c *Client) askOnOne(ctx context.Context) {
	var client *http.Client
	each(ctx, Every, func() {
		if client == nil {
			client = &http.Client{Transport: &http.Transport{DialContext: dial, MaxIdleConnsPerHost: 1}}
		}
		if c.ask(ctx, client, true) != "" {
			client.CloseIdleConnections()
			client = nil
		}
	})
}

func each(ctx context.Context, d time.Duration, do func()) {
	tick := time.NewTicker(d)
	defer tick.Stop()
	for {
		select {
		case <-ctx.Done():
			return
		case <-tick.C:
			do()
		}
	}
}

func (c *Client) ask(ctx context.Context, client *http.Client, kept bool) Failure {
	ctx, cancel := context.WithTimeout(ctx, patience)
	defer cancel()
	a := Asked{Kept: kept, Sent: fencetest.Boottime()}
	who, err := write(ctx, client, c.URL, c.writes.Add(1))
	a.Done, a.Who, a.Failure = fencetest.Boottime(), who, failureOf(err)
	c.mu.Lock()
	defer c.mu.Unlock()
	c.unsent = append(c.unsent, a)
	return a.Failure
}

// write returns who took the write.
func write(ctx context.Context, client *http.Client, url string, number int64) (Who, error) {
	request, err := http.NewRequestWithContext(ctx, http.MethodPost, url, strings.NewReader(strconv.FormatInt(number, 10)))
	if err != nil {
		return Who{}, err
	}
	request.GetBody = nil // so that net/http cannot send it again
	answer, err := client.Do(request)
	if err != nil {
		return Who{}, err
	}
	defer func() { _ = answer.Body.Close() }()
	if answer.StatusCode != http.StatusOK {
		return Who{}, fmt.Errorf("%s answers %s", url, answer.Status)
	}
	var t taken
	if err := json.NewDecoder(answer.Body).Decode(&t); err != nil {
		return Who{}, err
	}
	if t.Write != number {
		return Who{}, fmt.Errorf("write %d has the answer to write %d", number, t.Write)
	}
	_, err = io.Copy(io.Discard, answer.Body) // else the connection is not used again
	return t.Who, err
}

func failureOf(err error) Failure {
	var network net.Error
	switch {
	case err == nil:
		return ""
	case errors.Is(err, syscall.ECONNREFUSED):
		return Refused
	case errors.Is(err, context.DeadlineExceeded), errors.As(err, &network) && network.Timeout():
		return TimedOut
	}
	return Broken
}

func (c *Client) report(ctx context.Context) {
	each(ctx, reports, func() {
		c.mu.Lock()
		batch := c.unsent
		c.unsent = nil
		c.mu.Unlock()
		if err := c.post(ctx, batch); err != nil {
			fmt.Println("report again:", err)
			c.mu.Lock()
			c.unsent = append(batch, c.unsent...)
			c.mu.Unlock()
		}
	})
}

func (c *Client) post(ctx context.Context, batch []Asked) error {
	body, err := json.Marshal(batch)
	if err != nil {
		return err
	}
	ctx, cancel := context.WithTimeout(ctx, reported)
	defer cancel()
	request, err := http.NewRequestWithContext(ctx, http.MethodPost, c.Report, bytes.NewReader(body))
	if err != nil {
		return err
	}
	answer, err := http.DefaultClient.Do(request)
	if err != nil {
		return err
	}
	if answer.StatusCode != http.StatusOK {
		err = fmt.Errorf("%s answers %s", c.Report, answer.Status)
	}
	return errors.Join(err, answer.Body.Close())
}
