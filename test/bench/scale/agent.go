//go:build linux

package main

import (
	"context"
	"crypto/tls"
	"crypto/x509"
	"errors"
	"hash/fnv"
	"io"
	"maps"
	"math/rand/v2"
	"net/http"
	"os"
	"strconv"
	"strings"
	"sync"
	"syscall"
	"time"

	"github.com/singletonjob/operator/internal/agent"
	"github.com/singletonjob/operator/internal/kubelease"
	"github.com/singletonjob/operator/internal/lease"
	"github.com/singletonjob/operator/internal/supervise"
)

// An agent here is the real one, with its own token, and with its own connections if there can be so many. In place of the kernel it has a
// process that does nothing, a timer of Go's, and a link to the API server that can be cut.

// clock is one agent's. A benchmark's machine is not suspended, so Go's timers suffice.
type clock struct {
	mu    sync.Mutex
	timer *time.Timer
	c     chan struct{}
}

func newClock() *clock { return &clock{c: make(chan struct{}, 1)} }

// Now implements agent.Clock.
func (*clock) Now() lease.Time {
	return lease.Time{Boot: lease.Instant(supervise.BootTime()), Wall: time.Now().UnixMicro()}
}

// C implements agent.Clock.
func (k *clock) C() <-chan struct{} { return k.c }

// WakeAt implements agent.Clock.
func (k *clock) WakeAt(at lease.Instant) {
	k.mu.Lock()
	defer k.mu.Unlock()
	if k.timer != nil {
		k.timer.Stop()
	}
	if at != lease.Never {
		k.timer = time.AfterFunc(max(0, at.Sub(k.Now().Boot)), k.ring)
	}
}

func (k *clock) ring() {
	select {
	case k.c <- struct{}{}:
	default: // one wake-up is as good as two
	}
}

// process is what an agent starts: it acts from its start to its end, and ends at its deadline, as by a leash.
type process struct {
	ended func() // is told once

	mu      sync.Mutex
	leash   *time.Timer
	over    bool
	started chan error
	exited  chan supervise.Status
	gone    chan struct{}
}

func startProcess(spec supervise.Spec, ended func()) *process {
	p := &process{ended: ended, started: make(chan error, 1), exited: make(chan supervise.Status, 1), gone: make(chan struct{})}
	p.started <- nil
	_ = p.Extend(spec.Deadline)
	return p
}

// Extend implements agent.Process.
func (p *process) Extend(deadline int64) error {
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.leash != nil {
		p.leash.Stop()
	}
	if !p.over && deadline != supervise.Never {
		p.leash = time.AfterFunc(max(0, time.Duration(deadline-supervise.BootTime())), p.Kill)
	}
	return nil
}

// Signal implements agent.Process: any ends it, for nothing else is sent here.
func (p *process) Signal(syscall.Signal) error {
	p.end(supervise.Status{})
	return nil
}

// Kill implements agent.Process.
func (p *process) Kill() { p.end(supervise.Status{ExitCode: -1, Signal: syscall.SIGKILL}) }

// crash ends it by itself.
func (p *process) crash() { p.end(supervise.Status{ExitCode: 1}) }

func (p *process) end(s supervise.Status) {
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.over {
		return
	}
	p.over = true
	p.leash.Stop()
	p.ended()
	p.exited <- s
	close(p.exited)
	close(p.gone)
}

// Exec implements agent.Process.
func (*process) Exec(supervise.ExecSpec) (<-chan supervise.ExecResult, error) {
	return nil, os.ErrProcessDone
}

// Started implements agent.Process.
func (p *process) Started() <-chan error { return p.started }

// Exited implements agent.Process.
func (p *process) Exited() <-chan supervise.Status { return p.exited }

// Gone implements agent.Process.
func (p *process) Gone() <-chan struct{} { return p.gone }

// tokenIn is the fencing token that a process is given.
func tokenIn(environ []string) int64 {
	token, _ := strconv.ParseInt(agent.Lookup(environ)("FENCING_TOKEN"), 10, 64)
	return token
}

// link is an agent's way to the API server. While it is cut, nothing passes and nothing is said, as where a node has lost its network.
type link struct {
	agent.API
	count *counter
	pause time.Duration // the longest of the watch's pauses

	mu        sync.Mutex
	cut       chan struct{} // closed when healed; nil while there is no fault
	stopWatch context.CancelFunc
	renewed   time.Time // when the last write was confirmed
}

var errCut = errors.New("the link is cut")

func (l *link) broken() chan struct{} {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.cut
}

// sever cuts the link.
func (l *link) sever() {
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.cut != nil {
		return
	}
	l.cut = make(chan struct{})
	if l.stopWatch != nil {
		l.stopWatch()
	}
}

func (l *link) heal() {
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.cut != nil {
		close(l.cut)
		l.cut = nil
	}
}

// whole waits until the link is healed, if it is cut.
func (l *link) whole(ctx context.Context) {
	if cut := l.broken(); cut != nil {
		select {
		case <-cut:
		case <-ctx.Done():
		}
	}
}

// Get implements agent.API.
func (l *link) Get(ctx context.Context, floor int64) (kubelease.Answer, error) {
	if l.broken() != nil {
		<-ctx.Done()
		return kubelease.Answer{}, errCut
	}
	l.count.add("GET leases")
	return l.API.Get(ctx, floor)
}

// Update implements agent.API.
func (l *link) Update(ctx context.Context, base *kubelease.Object, r lease.Record) (lease.Outcome, *kubelease.Object, error) {
	if l.broken() != nil {
		<-ctx.Done()
		return lease.Unknown, nil, errCut
	}
	l.count.add("PUT leases")
	began := time.Now()
	outcome, stored, err := l.API.Update(ctx, base, r)
	if outcome == lease.Confirmed {
		l.count.confirmed(time.Since(began))
		l.mu.Lock()
		l.renewed = time.Now()
		l.mu.Unlock()
	}
	return outcome, stored, err
}

// Watch implements agent.API.
func (l *link) Watch(ctx context.Context, restart <-chan struct{}, emit func(kubelease.WatchEvent)) {
	for ctx.Err() == nil {
		l.whole(ctx)
		inner, stop := context.WithCancel(ctx)
		l.mu.Lock()
		l.stopWatch = stop
		cut := l.cut != nil
		l.mu.Unlock()
		if !cut {
			l.API.Watch(inner, restart, emit)
		}
		stop()
		l.whole(ctx)
		if ctx.Err() == nil {
			select { // the watch would be in a pause when the link heals
			case <-time.After(rand.N(l.pause)):
			case <-ctx.Done():
			}
			emit(kubelease.WatchEvent{Kind: kubelease.Closed, Err: errCut})
		}
	}
}

// shared is a connection over HTTP/2 that many agents share.
type shared struct{ http.RoundTripper }

// CloseIdleConnections implements kubelease.Transport. An agent closes what is its own.
func (shared) CloseIdleConnections() {}

// connect opens the connections that agents share, if they do.
func (f *fleet) connect() error {
	authorities := x509.NewCertPool()
	if f.Shared > 0 && !authorities.AppendCertsFromPEM(f.CA) {
		return errors.New("the API server's certificate authority is no PEM certificate")
	}
	for range f.Shared {
		protocols := new(http.Protocols)
		protocols.SetHTTP2(true)
		f.shared = append(f.shared, shared{&http.Transport{
			TLSClientConfig: &tls.Config{RootCAs: authorities, MinVersion: tls.VersionTLS13}, Protocols: protocols, DisableCompression: true,
			MaxConnsPerHost: 1, // else each request dials, when there is no API server
			HTTP2:           &http.HTTP2Config{SendPingTimeout: pingAfter, PingTimeout: pingAfter},
		}})
	}
	return nil
}

// pingAfter is when a silent connection is tested, and how long that may take.
const pingAfter = 15 * time.Second

// api is the agent's client.
func (c *candidate) api(o agent.Options) (agent.API, error) {
	if c.Shared == 0 {
		return o.API, nil
	}
	h := fnv.New32a()
	_, _ = io.WriteString(h, string(c.pod.UID))
	over := c.shared[int(h.Sum32())%c.Shared]
	return kubelease.New(kubelease.Config{
		Server: c.Host, Namespace: o.Namespace, Name: o.Config.Name, Credentials: c.folder(), RetryPeriod: time.Duration(o.Config.RetryPeriod),
		Connect: func(*x509.CertPool) kubelease.Transport { return over },
	})
}

// counter counts what the simulation itself sends, as "VERB resource".
type counter struct {
	mu       sync.Mutex
	sent     map[string]float64
	renewals []time.Duration
}

func (c *counter) add(what string) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.sent[what]++
}

func (c *counter) confirmed(took time.Duration) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.renewals = append(c.renewals, took)
}

func (c *counter) requests() map[string]float64 {
	c.mu.Lock()
	defer c.mu.Unlock()
	return maps.Clone(c.sent)
}

// takeRenewals are how long the confirmed writes to Leases took since it was last asked.
func (c *counter) takeRenewals() []time.Duration {
	c.mu.Lock()
	defer c.mu.Unlock()
	took := c.renewals
	c.renewals = nil
	return took
}

// verbOf is how the API server's metrics call a request to a resource.
func verbOf(verb string, resource ...string) string {
	return verb + " " + strings.Join(resource, "/")
}

func (p *process) alive() bool {
	p.mu.Lock()
	defer p.mu.Unlock()
	return !p.over
}
