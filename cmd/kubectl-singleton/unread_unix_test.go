//go:build unix

package main

import (
	"os"
	"testing"
)

// TestUnread checks that unread reports a pipe that lost its reader, but not a pipe with a reader and not a file.
func TestUnread(t *testing.T) {
	reader, writer, err := os.Pipe()
	if err != nil {
		t.Fatal(err)
	}
	defer writer.Close()
	gone := make(chan struct{})
	go unread(writer, func() { close(gone) })
	if _, err := writer.WriteString("line\n"); err != nil {
		t.Fatal(err)
	}
	select {
	case <-gone:
		t.Fatal("a pipe with a reader is reported as unread")
	default:
	}
	reader.Close()
	<-gone

	file, err := os.Create(t.TempDir() + "/file")
	if err != nil {
		t.Fatal(err)
	}
	defer file.Close()
	unread(file, func() { t.Error("a file is reported as unread") })
}
