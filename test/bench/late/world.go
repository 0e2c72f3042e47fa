//go:build linux

package main

import (
	"bufio"
	"context"
	"errors"
	"fmt"
	"net"
	"os"
	"os/exec"
	"strings"
	"sync"
	"time"

	"github.com/singletonjob/operator/fence/fencetest"
	"github.com/singletonjob/operator/test/subprocess"
)

// A sink is the other end of one connection. It notes when each line arrives.
type sink struct {
	listener net.Listener
	mu       sync.Mutex
	arrived  []time.Duration // CLOCK_BOOTTIME
}

func (s *sink) serve() {
	for {
		conn, err := s.listener.Accept()
		if err != nil {
			return
		}
		go func() {
			defer func() { _ = conn.Close() }()
			for lines := bufio.NewScanner(conn); lines.Scan(); {
				s.mu.Lock()
				s.arrived = append(s.arrived, fencetest.Boottime())
				s.mu.Unlock()
				if _, err := fmt.Fprintln(conn, "stored"); err != nil {
					return
				}
			}
		}()
	}
}

// since are the arrivals after a time.
func (s *sink) since(t time.Duration) (all []time.Duration) {
	s.mu.Lock()
	defer s.mu.Unlock()
	for _, at := range s.arrived {
		if at > t {
			all = append(all, at)
		}
	}
	return all
}

// every is how often a connection is written to.
const every = 50 * time.Millisecond

// write continues until it is killed.
func write(addresses []string) error {
	failed := make(chan error)
	for _, address := range addresses {
		go func() {
			conn, err := net.Dial("tcp", address)
			if err != nil {
				failed <- err
				return
			}
			answers := bufio.NewReader(conn)
			for seq := 0; ; seq++ {
				_, err := fmt.Fprintln(conn, "write", seq)
				if err == nil {
					_, err = answers.ReadString('\n')
				}
				if err != nil {
					failed <- err
					return
				}
				time.Sleep(every)
			}
		}()
	}
	return <-failed
}

// cutRules drop what arrives, from whichever side. The sender would notice a drop on its own machine, and would send again soon.
const cutRules = `table inet late {
	set cut { type inet_service; elements = { %s } }
	chain prerouting {
		type filter hook prerouting priority -300
		tcp dport @cut drop
		tcp sport @cut drop
	}
}
`

// nft does what its text says.
func nft(text string) error {
	cmd := exec.Command("nft", "-f", "-")
	cmd.Stdin = strings.NewReader(text)
	if out, err := cmd.CombinedOutput(); err != nil {
		return fmt.Errorf("nft: %w: %s", err, out)
	}
	return nil
}

// measure cuts all connections, and mends one after the other.
func (o *options) measure(ctx context.Context) ([]Sample, error) {
	if out, err := exec.Command("ip", "link", "set", "lo", "up").CombinedOutput(); err != nil {
		return nil, fmt.Errorf("ip: %w: %s", err, out)
	}
	sinks, addresses, ports, err := listen(o.connections)
	if err != nil {
		return nil, err
	}
	process, err := subprocess.Start(exec.Command("/proc/self/exe", "-writer="+strings.Join(addresses, ",")))
	if err != nil {
		return nil, err
	}
	defer process.Stop(0)
	if err := awaitAll(ctx, sinks, 0); err != nil {
		return nil, err
	}
	if err := nft(fmt.Sprintf(cutRules, strings.Join(ports, ", "))); err != nil {
		return nil, err
	}
	cut := fencetest.Boottime()
	fmt.Fprintf(os.Stderr, "%d connections are cut; the last is mended in %v\n", len(sinks), o.most)
	if err := until(ctx, cut+o.dies); err != nil {
		return nil, err
	}
	process.Stop(0)
	died := fencetest.Boottime()
	samples := make([]Sample, len(sinks))
	for i := range sinks {
		length := o.least + (o.most-o.least)*time.Duration(i)/time.Duration(max(1, len(sinks)-1))
		if err := until(ctx, cut+length); err != nil {
			return nil, err
		}
		if err := nft("delete element inet late cut { " + ports[i] + " }\n"); err != nil {
			return nil, err
		}
		samples[i] = Sample{Cut: fencetest.Boottime() - cut}
	}
	if err := until(ctx, fencetest.Boottime()+o.watch); err != nil {
		return nil, err
	}
	for i, s := range sinks {
		for _, at := range s.since(died) {
			samples[i].Arrived = append(samples[i].Arrived, at-cut)
		}
	}
	return samples, nil
}

func listen(n int) (sinks []*sink, addresses, ports []string, err error) {
	for range n {
		listener, err := net.Listen("tcp", "127.0.0.1:0")
		if err != nil {
			return nil, nil, nil, err
		}
		s := &sink{listener: listener}
		go s.serve()
		_, port, err := net.SplitHostPort(listener.Addr().String())
		if err != nil {
			return nil, nil, nil, err
		}
		sinks, addresses, ports = append(sinks, s), append(addresses, listener.Addr().String()), append(ports, port)
	}
	return sinks, addresses, ports, nil
}

// awaitAll waits until each connection has been written to after a time.
func awaitAll(ctx context.Context, sinks []*sink, after time.Duration) error {
	for deadline := time.Now().Add(time.Minute); ; {
		missing := 0
		for _, s := range sinks {
			if len(s.since(after)) == 0 {
				missing++
			}
		}
		if missing == 0 {
			return nil
		}
		if time.Now().After(deadline) {
			return errors.New("not all connections are written to")
		}
		if err := until(ctx, fencetest.Boottime()+every); err != nil {
			return err
		}
	}
}

// until waits for a time by CLOCK_BOOTTIME.
func until(ctx context.Context, t time.Duration) error {
	timer := time.NewTimer(t - fencetest.Boottime())
	defer timer.Stop()
	select {
	case <-timer.C:
		return nil
	case <-ctx.Done():
		return context.Cause(ctx)
	}
}
