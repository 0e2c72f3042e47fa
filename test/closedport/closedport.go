//go:build unix

// Package closedport gives tests a port that refuses connections for as long as they run. One that was listened on and closed may be
// another process's the next moment.
package closedport

import (
	"fmt"
	"net"
	"os"
	"syscall"
	"testing"
)

// On127 is a TCP port of 127.0.0.1 that nobody listens on, and that nobody else is given: a socket that does not listen has it.
func On127(t testing.TB) int {
	t.Helper()
	fd, err := syscall.Socket(syscall.AF_INET, syscall.SOCK_STREAM, 0)
	if err != nil {
		t.Fatal(os.NewSyscallError("socket", err))
	}
	t.Cleanup(func() { _ = syscall.Close(fd) })
	if err := syscall.Bind(fd, &syscall.SockaddrInet4{Addr: [4]byte{127, 0, 0, 1}}); err != nil {
		t.Fatal(os.NewSyscallError("bind", err))
	}
	bound, err := syscall.Getsockname(fd)
	if err != nil {
		t.Fatal(os.NewSyscallError("getsockname", err))
	}
	address, _ := bound.(*syscall.SockaddrInet4)
	return address.Port
}

// Address is that port with its host.
func Address(t testing.TB) string {
	t.Helper()
	return net.JoinHostPort("127.0.0.1", fmt.Sprint(On127(t)))
}
