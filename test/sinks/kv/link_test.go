package kv

import (
	"bytes"
	"io"
	"net"
	"sync"
	"testing"
)

// link is a way to a server on which bytes can be held.
type link struct {
	addr              string
	requests, answers *gate
}

// gate holds bytes from the first on that contain a text, once it is closed for that.
type gate struct {
	mu    sync.Mutex
	moved *sync.Cond
	from  []byte // nil: it is open
	shut  bool   // the text has come
	gone  bool   // the test is over
	held  bool   // bytes wait
}

func newGate() *gate {
	g := &gate{}
	g.moved = sync.NewCond(&g.mu)
	return g
}

// close holds everything from now on.
func (g *gate) close() { g.closeAt("") }

// closeAt holds everything from the first bytes on that contain a text.
func (g *gate) closeAt(text string) {
	g.mu.Lock()
	defer g.mu.Unlock()
	g.from, g.shut, g.held = []byte(text), false, false
}

func (g *gate) open() {
	g.mu.Lock()
	defer g.mu.Unlock()
	g.from, g.shut = nil, false
	g.moved.Broadcast()
}

// waiting returns when there is something that is held.
func (g *gate) waiting() {
	g.mu.Lock()
	defer g.mu.Unlock()
	for !g.held {
		g.moved.Wait()
	}
}

func (g *gate) pass(chunk []byte) bool {
	g.mu.Lock()
	defer g.mu.Unlock()
	g.shut = g.shut || g.from != nil && bytes.Contains(chunk, g.from)
	for g.shut && !g.gone {
		g.held = true
		g.moved.Broadcast()
		g.moved.Wait()
	}
	return !g.gone
}

// hold makes a link that ends with the test.
func hold(t *testing.T, to string) *link {
	t.Helper()
	l, err := net.Listen("tcp", "127.0.0.1:0")
	must(t, err)
	k := &link{addr: l.Addr().String(), requests: newGate(), answers: newGate()}
	t.Cleanup(func() {
		_ = l.Close()
		for _, g := range []*gate{k.requests, k.answers} {
			g.mu.Lock()
			g.gone = true
			g.moved.Broadcast()
			g.mu.Unlock()
		}
	})
	go func() {
		for {
			near, err := l.Accept()
			if err != nil {
				return
			}
			far, err := net.Dial("tcp", to)
			if err != nil {
				_ = near.Close()
				continue
			}
			go carry(far, near, k.requests)
			go carry(near, far, k.answers)
		}
	}()
	return k
}

func carry(to io.WriteCloser, from io.ReadCloser, g *gate) {
	defer func() { _, _ = to.Close(), from.Close() }()
	buffer := make([]byte, 64<<10)
	for {
		n, err := from.Read(buffer)
		if n > 0 && !g.pass(buffer[:n]) {
			return
		}
		if _, e := to.Write(buffer[:n]); err != nil || e != nil {
			return
		}
	}
}
