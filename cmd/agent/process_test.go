//go:build linux

package main

import (
	"syscall"
	"testing"
)

func TestHandoverOnSIGTERM(t *testing.T) {
	w := newWorld(t)
	w.createLease()
	a := w.candidate("a", testConfig())
	first := a.acquired()
	w.awaitBeat(first)
	b := w.candidate("b", testConfig())
	b.await("lease held", "holder=a/")
	a.signal(syscall.SIGTERM)
	a.await("released", "reason=PodTerminating")
	second := b.acquired()
	w.awaitBeat(second)
	if code := a.exit(); code != 0 {
		t.Errorf("exit code %d, want the process's, 0", code)
	}
	w.checkLives()
}
