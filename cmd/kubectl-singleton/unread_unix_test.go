//go:build unix

package main

import (
	"os"
	"testing"
)

// TestUnread: it is told that a pipe has lost its reader, and nothing of one that has not, nor of a file.
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
		t.Fatal("a pipe with a reader is told as unread")
	default:
	}
	reader.Close()
	<-gone

	file, err := os.Create(t.TempDir() + "/file")
	if err != nil {
		t.Fatal(err)
	}
	defer file.Close()
	unread(file, func() { t.Error("a file is told as unread") })
}
