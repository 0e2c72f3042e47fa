//go:build linux

package agent

import (
	"io"
	"strings"
	"syscall"
	"testing"
	"testing/synctest"
	"time"

	"github.com/singletonjob/operator/internal/supervise"
)

func TestLogLine(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		out := &transcript{}
		l := NewLog(out)
		l.Print("acquired", "token", int64(7), "error", io.EOF, "empty", "", "text", `a "b" c`, "lines", "a\nb")
		l.Close(time.Second)
		want := `singletonjob: acquired token=7 error=EOF empty="" text="a \"b\" c" lines="a\nb"` + "\n"
		if got := out.String(); got != want {
			t.Errorf("got  %s\nwant %s", got, want)
		}
	})
}

// A log that nobody reads holds up nobody, and says later what it has left out.
func TestLogBlocked(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		reader, writer := io.Pipe()
		l := NewLog(writer)
		began := time.Now()
		const extra = 5
		for range 1 + buffered + extra { // one is stuck in the pipe
			l.Print("line")
			synctest.Wait()
		}
		if took := time.Since(began); took != 0 {
			t.Errorf("printing took %v", took)
		}
		if n := l.droppedEver.Load(); n != extra {
			t.Errorf("%d dropped, want %d", n, extra)
		}
		text := make(chan string)
		go func() {
			all, _ := io.ReadAll(reader)
			text <- string(all)
		}()
		synctest.Wait()
		l.Close(time.Second)
		_ = writer.Close()
		if got := <-text; strings.Count(got, "line\n") != 1+buffered || strings.Count(got, "dropped lines=5\n") != 1 {
			t.Errorf("got %d lines and %d notes of what was dropped", strings.Count(got, "line\n"), strings.Count(got, "dropped"))
		}
	})
}

func TestLogCloseIsBounded(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		reader, writer := io.Pipe()
		l := NewLog(writer)
		l.Print("line")
		began := time.Now()
		l.Close(200 * time.Millisecond)
		if took := time.Since(began); took != 200*time.Millisecond {
			t.Errorf("closing took %v", took)
		}
		_ = reader.Close() // ends the writer
	})
}

// The tenure does not depend on anybody's reading the log.
func TestTenureWithBlockedLog(t *testing.T) {
	inBubble(t, func(w *world) {
		p := w.holding()
		unblock := w.log.block()
		defer unblock()
		for range 2 * buffered {
			w.signals <- syscall.SIGHUP
			w.agent.log.Print("noise")
		}
		time.Sleep(10 * time.Minute)
		synctest.Wait()
		if _, signals, killed := p.state(); killed || len(signals) != 2*buffered {
			t.Errorf("killed %t, %d signals; want the tenure to go on", killed, len(signals))
		}
		w.signals <- syscall.SIGTERM
		synctest.Wait()
		p.finish(supervise.Status{ExitCode: 0})
		if code := <-w.exited; code != 0 {
			t.Errorf("exit code %d", code)
		}
		w.exited <- 0
	})
}
