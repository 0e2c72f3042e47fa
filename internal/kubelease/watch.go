package kubelease

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"math/rand/v2"
	"net/http"
	"net/url"
	"strconv"
	"time"
)

// WatchEvent is what a watch emits.
type WatchEvent struct {
	Kind WatchKind
	// Object is set with Changed and Deleted.
	Object *Object
	// Err is the reason, with Closed and NotOpened.
	Err error
}

// WatchKind is the kind of a WatchEvent.
type WatchKind uint8

// The kinds of events that a watch emits.
const (
	// Opened: changes from now on are emitted.
	Opened WatchKind = iota
	// Closed: changes can be missed until the next Opened.
	Closed
	// NotOpened: another attempt to open failed while the watch was closed.
	NotOpened
	// Changed: the Lease exists, and Object is its state.
	Changed
	// Deleted: the Lease was deleted. Object is its last state, at the revision of the deletion.
	Deleted
)

const (
	// A watch asks to last this long, plus up to as much again at random, so that watches that began together do not end
	// together. The API server ends it. Resuming it then costs one request and loses no event.
	watchDuration = 5 * time.Minute
	// openTimeout bounds the time to the answer's header. The API server sends it before any event.
	openTimeout = 10 * time.Second
	// idleTimeout ends a watch that delivers nothing, though the API server sends bookmarks every minute.
	idleTimeout = 150 * time.Second
	// shortest is the least duration of a watch that ended normally. A shorter one counts as failed, so that a server that ends
	// each watch at once does not receive requests without a pause.
	shortest = 5 * time.Second

	// The first pause after a watch that broke is a part of retryPeriod, between firstPause and longestFirst. A later pause is up to lastPause,
	// or five times the first one if that is longer.
	pauseShare   = 20
	firstPause   = 100 * time.Millisecond
	longestFirst = 5 * time.Second
	lastPause    = 10 * time.Second
)

// Watch emits the Lease's changes until ctx ends. Whenever the watch breaks, or the API server ends it early, it reopens it after a
// pause that grows and has jitter. A value from restart makes it open a new watch at once. One goroutine calls emit. emit can block,
// and the watch reads no further until it returns.
func (c *Client) Watch(ctx context.Context, restart <-chan struct{}, emit func(WatchEvent)) {
	w := &watch{client: c, emit: emit}
	for ctx.Err() == nil {
		err := w.untilRestart(ctx, restart)
		switch {
		case ctx.Err() != nil:
			return
		case errors.Is(err, errEarly): // resume
			if first, _ := Pauses(c.config.RetryPeriod); first > firstPause && w.pause(ctx, restart) {
				w.failed(errRestart)
			}
		case err == nil: // ended normally: resume
		case errors.Is(err, errRestart):
			w.failed(err)
		default:
			w.failed(err)
			w.pause(ctx, restart)
			w.failures++
		}
	}
}

// errRestart ends a stream on request. errEarly means that the stream can be resumed, but ended earlier than it was asked to. An API server
// that stops does that to the watches of all agents.
var (
	errRestart = errors.New("a restart was requested")
	errEarly   = errors.New("the watch ended early")
)

type watch struct {
	client *Client
	emit   func(WatchEvent)

	up bool // Opened was emitted
	// version is the newest emitted resourceVersion, from which a watch that ended normally is resumed; empty: from the present
	// state.
	version  string
	failures int
	asked    time.Duration // how long the present stream is to last
}

// failed makes the next stream start from the present state.
func (w *watch) failed(err error) {
	kind := NotOpened
	if w.up {
		kind, w.up = Closed, false
	}
	w.version = ""
	w.emit(WatchEvent{Kind: kind, Err: fmt.Errorf("watch Lease %s: %w", w.client, err)})
}

// Pauses returns the longest pauses of a watch after its first failure, and after many, for a retryPeriod.
//
// When an API server stops, the watches of all agents break together. If they were all opened again at once, the next API server might not
// keep up, or not even start. So agents with a long retryPeriod, which are those of clusters with many jobs, take their time.
func Pauses(retryPeriod time.Duration) (first, last time.Duration) {
	first = min(max(firstPause, retryPeriod/pauseShare), longestFirst)
	return first, max(lastPause, 5*first)
}

// pause waits for between half and all of a duration that doubles with each earlier failure. It reports whether a restart was requested.
func (w *watch) pause(ctx context.Context, restart <-chan struct{}) (restarts bool) {
	first, last := Pauses(w.client.config.RetryPeriod)
	d := min(first<<min(w.failures, 10), last)
	timer := time.NewTimer(d/2 + rand.N(d/2))
	defer timer.Stop()
	select {
	case <-timer.C:
	case <-restart:
		return true
	case <-ctx.Done():
	}
	return false
}

// untilRestart runs one stream. nil means that it can be resumed.
func (w *watch) untilRestart(ctx context.Context, restart <-chan struct{}) error {
	ctx, cancel := context.WithCancelCause(ctx)
	defer cancel(nil)
	ended := make(chan error, 1)
	go func() { ended <- w.stream(ctx, cancel) }()
	select {
	case err := <-ended:
		return err
	case <-restart:
		cancel(errRestart)
		if err := <-ended; err != nil && !errors.Is(err, errEarly) {
			return err
		}
		return errRestart
	}
}

// stream opens a watch and emits its events. nil means that it can be resumed.
func (w *watch) stream(ctx context.Context, cancel context.CancelCauseFunc) error {
	response, drop, err := w.open(ctx, cancel)
	if err != nil {
		return cause(ctx, err)
	}
	defer func() { _ = response.Body.Close() }()
	if !w.up {
		w.up = true
		w.emit(WatchEvent{Kind: Opened})
	}
	opened := time.Now()
	watchdog := time.AfterFunc(idleTimeout, func() { cancel(fmt.Errorf("idle for %v", idleTimeout)) })
	defer watchdog.Stop()
	err = w.read(response.Body, func() { watchdog.Reset(idleTimeout) })
	took := time.Since(opened)
	lasted := took >= shortest
	if lasted {
		w.failures = 0
	}
	if err == nil && lasted && w.version != "" {
		if took < w.asked-openTimeout { // the API server counts from before the header
			return errEarly
		}
		return nil
	}
	drop()
	if err == nil {
		err = io.EOF
	}
	return cause(ctx, err)
}

// open returns an answer whose body is the stream, and a function to call when the stream breaks.
func (w *watch) open(ctx context.Context, cancel context.CancelCauseFunc) (*http.Response, func(), error) {
	watchdog := time.AfterFunc(openTimeout, func() { cancel(fmt.Errorf("not answered within %v", openTimeout)) })
	defer watchdog.Stop()
	request, err := http.NewRequestWithContext(ctx, http.MethodGet, w.address(), nil)
	if err != nil {
		return nil, nil, err
	}
	response, drop, err := w.client.watches.send(request)
	if err != nil || response.StatusCode == http.StatusOK {
		return response, drop, err
	}
	defer drop()
	defer func() { _ = response.Body.Close() }()
	body, err := io.ReadAll(io.LimitReader(response.Body, largest))
	if err != nil {
		return nil, nil, err
	}
	return nil, nil, reply{code: response.StatusCode, body: body}.failure()
}

// cause returns the cause of the end of ctx if there is one, else the error that resulted.
func cause(ctx context.Context, err error) error {
	if why := context.Cause(ctx); why != nil {
		return why
	}
	return err
}

func (w *watch) address() string {
	w.asked = (watchDuration + rand.N(watchDuration)).Truncate(time.Second)
	query := url.Values{
		"watch":               {"true"},
		"allowWatchBookmarks": {"true"},
		"fieldSelector":       {"metadata.name=" + w.client.config.Name},
		"timeoutSeconds":      {strconv.Itoa(int(w.asked.Seconds()))},
	}
	if w.version != "" {
		query.Set("resourceVersion", w.version)
	}
	return w.client.leases + "?" + query.Encode()
}

// read emits events until the stream ends, and calls alive for each. nil means that the stream ended normally.
func (w *watch) read(stream io.Reader, alive func()) error {
	from := &bounded{Reader: stream, left: largest}
	events := json.NewDecoder(from)
	for {
		var e struct {
			Type   string          `json:"type"`
			Object json.RawMessage `json:"object"`
		}
		if err := events.Decode(&e); err != nil {
			if errors.Is(err, io.EOF) {
				return nil
			}
			return fmt.Errorf("the stream broke off: %w", err)
		}
		alive()
		from.left = largest
		if err := w.event(e.Type, e.Object); err != nil {
			return err
		}
	}
}

// bounded fails if an event is larger than any Lease can be, because the decoder keeps a whole event in memory.
type bounded struct {
	io.Reader
	left int
}

func (b *bounded) Read(into []byte) (int, error) {
	if b.left <= 0 {
		return 0, fmt.Errorf("an event has more than %d bytes", largest)
	}
	n, err := b.Reader.Read(into[:min(len(into), b.left)])
	b.left -= n
	return n, err
}

func (w *watch) event(kind string, body json.RawMessage) error {
	if kind == "ERROR" { // for example 410 Gone when the version is too old
		s := parseStatus(body)
		return fmt.Errorf("the API server sent an error %d %s: %s", s.Code, s.Reason, s.Message)
	}
	var versioned struct {
		Metadata struct {
			ResourceVersion string `json:"resourceVersion"`
		} `json:"metadata"`
	}
	if err := json.Unmarshal(body, &versioned); err != nil || versioned.Metadata.ResourceVersion == "" {
		return fmt.Errorf("event %s is not of a Lease", kind)
	}
	if kind != "BOOKMARK" {
		o, err := w.client.decode(body)
		if err != nil {
			return fmt.Errorf("event %s: %w", kind, err)
		}
		switch kind {
		case "ADDED", "MODIFIED":
			w.emit(WatchEvent{Kind: Changed, Object: o})
		case "DELETED":
			w.emit(WatchEvent{Kind: Deleted, Object: o})
		default:
			return fmt.Errorf("event %q is unknown", kind)
		}
	}
	w.version = versioned.Metadata.ResourceVersion
	return nil
}
