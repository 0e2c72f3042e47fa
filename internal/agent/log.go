//go:build linux

package agent

import (
	"fmt"
	"io"
	"strings"
	"sync/atomic"
	"time"
)

// Log writes lines to a stream that can block, such as a full pipe or disk. Its callers never wait. If the buffer is full, a line is
// dropped and counted, and the next written line reports the number.
type Log struct {
	lines chan string
	// dropped counts the lines since the last written one, droppedEver all of them.
	dropped, droppedEver atomic.Int64
	done                 chan struct{}
}

// buffered is the size of the buffer in lines. A line has about 100 bytes.
const buffered = 256

// NewLog starts a log. Close ends it.
func NewLog(w io.Writer) *Log {
	l := &Log{lines: make(chan string, buffered), done: make(chan struct{})}
	go func() {
		defer close(l.done)
		for line := range l.lines {
			if n := l.dropped.Swap(0); n > 0 {
				line = prefix + fmt.Sprintf("dropped lines=%d\n", n) + line
			}
			_, _ = io.WriteString(w, line)
		}
	}()
	return l
}

const prefix = "singletonjob: "

// Print logs an event and pairs of a name and a value, as name=value.
func (l *Log) Print(event string, pairs ...any) {
	var line strings.Builder
	line.WriteString(prefix)
	line.WriteString(event)
	for i := 0; i+1 < len(pairs); i += 2 {
		text := fmt.Sprint(pairs[i+1])
		if text == "" || strings.ContainsAny(text, " \"=\n\t") {
			text = fmt.Sprintf("%q", text)
		}
		fmt.Fprintf(&line, " %v=%s", pairs[i], text)
	}
	line.WriteByte('\n')
	select {
	case l.lines <- line.String():
	default:
		l.dropped.Add(1)
		l.droppedEver.Add(1)
	}
}

// Close waits until all lines are written, at most for limit. Do not call Print after it.
func (l *Log) Close(limit time.Duration) {
	close(l.lines)
	select {
	case <-l.done:
	case <-time.After(limit):
	}
}
