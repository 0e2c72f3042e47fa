//go:build linux

package controlplane

import (
	"errors"
	"fmt"
	"math/rand/v2"
	"net"
	"os"
	"sync"
)

// Ports are taken from below the range that the kernel uses for outgoing connections. A port from that range can be in use by another
// connection when a server is restarted.
const lowestPort = 10000

var (
	portsMu   sync.Mutex
	portsUsed = map[int]bool{}
)

// FreePort returns a TCP port of 127.0.0.1 that nothing listens on, never the same one twice in this process. Another
// process may still take it first; who listens must be ready to ask again.
func FreePort() (int, error) {
	portsMu.Lock()
	defer portsMu.Unlock()
	highest := ephemeralStart()
	for range 1000 {
		port := lowestPort + rand.IntN(highest-lowestPort)
		if portsUsed[port] {
			continue
		}
		listener, err := net.Listen("tcp", fmt.Sprintf("127.0.0.1:%d", port))
		if err != nil {
			continue
		}
		_ = listener.Close()
		portsUsed[port] = true
		return port, nil
	}
	return 0, errors.New("no free TCP port on 127.0.0.1")
}

func ephemeralStart() int {
	const usual = 32768
	text, err := os.ReadFile("/proc/sys/net/ipv4/ip_local_port_range")
	if err != nil {
		return usual
	}
	var low, high int
	if _, err := fmt.Sscan(string(text), &low, &high); err != nil || low < lowestPort+1000 {
		return usual
	}
	return low
}
