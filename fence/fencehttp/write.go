package fencehttp

import (
	"bufio"
	"context"
	"io"
	"net"
	"net/http"
	"sync"
	"time"
)

// write is a request that passed the fence. It ends when its handler has returned. If the handler took over the connection, the connection
// must be closed too.
type write struct {
	lane   *lane
	hold   *Hold // guarded by the lane
	stream bool  // it lasts as long as its client likes; guarded by the lane
	detach bool  // a disconnected client does not end it
	ctx    context.Context
	cancel context.CancelCauseFunc
	client http.ResponseWriter

	mu       sync.Mutex // guards the fields below
	taken    net.Conn   // the connection, if the handler has taken it over
	open     int        // how many of handler and connection have not ended
	returned bool
	wasCut   bool
}

func newWrite(client http.ResponseWriter, r *http.Request, detach bool) *write {
	w := &write{stream: r.Method == http.MethodConnect, detach: detach, client: client, open: 1}
	ctx := r.Context()
	if detach {
		ctx = context.WithoutCancel(ctx)
	}
	w.ctx, w.cancel = context.WithCancelCause(ctx)
	return w
}

// upgrades reports whether a request asks to use its connection for another protocol than HTTP.
func upgrades(r *http.Request) bool {
	return r.Method == http.MethodConnect || len(r.Header["Upgrade"]) > 0
}

func (w *write) serve(next http.Handler, r *http.Request) {
	defer w.handlerReturned()
	if !w.broken() {
		next.ServeHTTP(&tracked{ResponseWriter: w.client, write: w}, r.WithContext(w.ctx))
	}
	if w.broken() { // the client must not take a partial response for a complete one
		panic(http.ErrAbortHandler)
	}
}

// deaf reports whether the handler must continue although its client may be disconnected.
func (w *write) deaf() bool {
	w.mu.Lock()
	defer w.mu.Unlock()
	return w.detach && !w.wasCut
}

// broken reports whether the write was cut and its connection was not taken over.
func (w *write) broken() bool {
	w.mu.Lock()
	defer w.mu.Unlock()
	return w.wasCut && w.taken == nil
}

// long is a deadline in the past: reads and writes with it fail at once.
var long = time.Unix(1, 0)

// cut ends the write from outside. Reads and writes that wait for a frozen client return too. It reports whether this is the first call.
func (w *write) cut() (first bool) {
	w.mu.Lock()
	defer w.mu.Unlock()
	first, w.wasCut = !w.wasCut, true // set before the handler can notice the cut and return
	w.cancel(ErrCut)
	switch {
	case w.taken != nil:
		_ = w.taken.Close()
	case !w.returned: // afterwards the connection belongs to the next request
		control := http.NewResponseController(w.client)
		_ = control.SetReadDeadline(long)
		_ = control.SetWriteDeadline(long)
	}
	return first
}

func (w *write) handlerReturned() {
	w.cancel(nil)
	w.mu.Lock()
	w.returned = true
	w.mu.Unlock()
	w.ended()
}

// ended counts down open.
func (w *write) ended() {
	w.mu.Lock()
	w.open--
	over := w.open == 0
	w.mu.Unlock()
	if over {
		w.lane.end(w)
	}
}

// tracked is the ResponseWriter of a write. It tracks whether the handler takes over the connection.
type tracked struct {
	http.ResponseWriter
	write *write
}

// Unwrap is for [http.ResponseController].
func (t *tracked) Unwrap() http.ResponseWriter { return t.ResponseWriter }

// Flush implements [http.Flusher].
func (t *tracked) Flush() { _ = http.NewResponseController(t.ResponseWriter).Flush() }

// Write reports success when the client is disconnected and the write must continue.
func (t *tracked) Write(p []byte) (int, error) {
	n, err := t.ResponseWriter.Write(p)
	if err != nil && t.write.deaf() {
		return len(p), nil
	}
	return n, err
}

// ReadFrom keeps the fast path for files of the wrapped ResponseWriter.
func (t *tracked) ReadFrom(r io.Reader) (int64, error) {
	if t.write.detach {
		return io.Copy(struct{ io.Writer }{t}, r)
	}
	return io.Copy(t.ResponseWriter, r)
}

// Hijack implements [http.Hijacker].
func (t *tracked) Hijack() (net.Conn, *bufio.ReadWriter, error) {
	conn, buffered, err := http.NewResponseController(t.ResponseWriter).Hijack()
	if err != nil {
		return nil, nil, err
	}
	w := t.write
	w.lane.streams(w)
	w.mu.Lock()
	defer w.mu.Unlock()
	if w.wasCut {
		_ = conn.Close()
		return nil, nil, ErrCut
	}
	w.taken = conn
	w.open++
	return &taken{Conn: conn, ended: sync.OnceFunc(w.ended)}, buffered, nil
}

// taken is a connection that a handler has taken over.
type taken struct {
	net.Conn
	ended func()
}

// Close implements [net.Conn].
func (t *taken) Close() error {
	err := t.Conn.Close()
	t.ended()
	return err
}

// CloseWrite closes the sending direction, if the connection supports it.
func (t *taken) CloseWrite() error {
	if half, ok := t.Conn.(interface{ CloseWrite() error }); ok {
		return half.CloseWrite()
	}
	return nil
}
