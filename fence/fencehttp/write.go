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

// write is a request that was let pass, from then until its handler has returned and its connection, where the handler has taken that over,
// is closed.
type write struct {
	lane   *lane
	hold   *Hold // guarded by the lane
	stream bool  // it goes on for as long as its client likes; guarded by the lane
	detach bool  // what becomes of its client does not end it
	ctx    context.Context
	cancel context.CancelCauseFunc
	client http.ResponseWriter

	mu       sync.Mutex // guards what follows
	taken    net.Conn   // the connection, where the handler has taken it over
	open     int        // what has not ended of it: handler and connection
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

// upgrades: its connection is to become something else than HTTP.
func upgrades(r *http.Request) bool {
	return r.Method == http.MethodConnect || len(r.Header["Upgrade"]) > 0
}

func (w *write) serve(next http.Handler, r *http.Request) {
	defer w.handlerReturned()
	if !w.broken() {
		next.ServeHTTP(&tracked{ResponseWriter: w.client, write: w}, r.WithContext(w.ctx))
	}
	if w.broken() { // what the client would read is not all there was to say
		panic(http.ErrAbortHandler)
	}
}

// deaf: nobody hears what its handler says, which is to go on all the same.
func (w *write) deaf() bool {
	w.mu.Lock()
	defer w.mu.Unlock()
	return w.detach && !w.wasCut
}

// broken: it was cut, and the connection is still that of a request.
func (w *write) broken() bool {
	w.mu.Lock()
	defer w.mu.Unlock()
	return w.wasCut && w.taken == nil
}

// long is in the past, so that what waits for it has waited too long.
var long = time.Unix(1, 0)

// cut ends the write from outside: also what waits for a client that is frozen returns. It reports whether that is the first time.
func (w *write) cut() (first bool) {
	w.mu.Lock()
	defer w.mu.Unlock()
	first, w.wasCut = !w.wasCut, true // before the handler can know of it, and return
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

// ended counts down what has not ended.
func (w *write) ended() {
	w.mu.Lock()
	w.open--
	over := w.open == 0
	w.mu.Unlock()
	if over {
		w.lane.end(w)
	}
}

// tracked is the client's end of a write, by which its handler may take over the connection.
type tracked struct {
	http.ResponseWriter
	write *write
}

// Unwrap is for [http.ResponseController].
func (t *tracked) Unwrap() http.ResponseWriter { return t.ResponseWriter }

// Flush implements [http.Flusher].
func (t *tracked) Flush() { _ = http.NewResponseController(t.ResponseWriter).Flush() }

// Write has what the client does not take any more pass for written, where the write is to go on.
func (t *tracked) Write(p []byte) (int, error) {
	n, err := t.ResponseWriter.Write(p)
	if err != nil && t.write.deaf() {
		return len(p), nil
	}
	return n, err
}

// ReadFrom lets files be sent as without it.
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

// CloseWrite tells the client that nothing more comes, where the connection can.
func (t *taken) CloseWrite() error {
	if half, ok := t.Conn.(interface{ CloseWrite() error }); ok {
		return half.CloseWrite()
	}
	return nil
}
