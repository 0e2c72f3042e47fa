//go:build linux

package agent

import (
	"fmt"
	"io"
	"strings"
	"sync/atomic"
	"time"
)

// Log writes lines to a stream that may block: a full pipe, a full disk. Its callers never wait; lines that find the
// buffer full are dropped, counted, and owned up to in the next line that gets through.
type Log struct {
	lines chan string
	// dropped lines since the last one that got through, and ever.
	dropped, droppedEver atomic.Int64
	done                 chan struct{}
}

// buffered lines; a line is about 100 bytes.
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

// Print logs an event and its values: pairs of a name and a value, as in name=value.
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

// Close waits for the lines to be written, but no longer than limit. Nothing may be printed after it.
func (l *Log) Close(limit time.Duration) {
	close(l.lines)
	select {
	case <-l.done:
	case <-time.After(limit):
	}
}
