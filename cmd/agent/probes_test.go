//go:build linux

package main

import (
	"net"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/singletonjob/operator/internal/contract"
	"github.com/singletonjob/operator/internal/lease"
	"github.com/singletonjob/operator/test/controlplane"
)

// often is a probe with the shortest allowed period. Its timeout is long enough for a starved machine.
func often(check contract.Check) *contract.Probe {
	return &contract.Probe{Check: check, Period: seconds(1), Timeout: contract.Duration(patience), SuccessThreshold: 1, FailureThreshold: 2, GracePeriod: seconds(1)}
}

// A process that hangs fails its liveness probe, an exec probe, and ignores SIGTERM. It is dead before the next process starts, and its
// agent exits with its status.
func TestLivenessProbeFails(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	config := steadyConfig()
	config.GracePeriod = seconds(3600) // the Pod's grace period, which differs from the probe's
	alive := filepath.Join(t.TempDir(), "alive")
	w.must(os.WriteFile(alive, nil, 0o600))
	probed := config
	probed.Probes = contract.Probes{
		Startup:  often(contract.Check{Exec: []string{"test", "-f", "$(ALIVE)"}}),
		Liveness: often(contract.Check{Exec: []string{"sh", "-c", "test -f $ALIVE || { echo is gone; exit 1; }"}}),
	}
	a := w.prepare("a", probed)
	a.env = append(a.env, "ALIVE="+alive)
	a.start("stubborn")
	w.acts(a)
	a.await("ready")
	b := w.standby("b", config)
	w.must(os.Remove(alive))
	a.await("liveness probe failed", `error="is gone"`)
	a.await("stopping", "reason=LivenessProbeFailed", "grace=1s")
	a.await("killing")
	if code := a.exit(); code != 128+9 {
		t.Errorf("exit code %d; its log:\n%s", code, a.lines)
	}
	w.acts(b)
	w.checkLives()
	if past := w.lease().Annotations[contract.HistoryAnnotation]; !strings.Contains(past, string(lease.ReasonLivenessFailed)) {
		t.Errorf("the Lease tells of %s", past)
	}
}

// The kubelet gets the readiness of the process, and of a standby that it can take over. A probe without a host uses the Pod's address.
func TestReadinessProbe(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	var code atomic.Int64
	code.Store(http.StatusServiceUnavailable)
	process := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) { w.WriteHeader(int(code.Load())) }))
	defer process.Close()
	address, _ := process.Listener.Addr().(*net.TCPAddr)
	ready := map[*candidate]func() int{}
	contend := func(pod string) *candidate {
		config := steadyConfig()
		port, err := controlplane.FreePort()
		w.must(err)
		config.Port = port
		config.Probes.Readiness = often(contract.Check{HTTPGet: &contract.HTTPGet{Port: address.Port, Path: "/"}})
		c := w.prepare(pod, config)
		c.env = append(c.env, contract.RuntimeAddressEnv+"=127.0.0.1", contract.PodIPEnv+"="+address.IP.String())
		c.start()
		ready[c] = func() int { return status(t, port) }
		return c
	}
	a := contend("a")
	w.acts(a)
	a.await("readiness probe failed", "503")
	if got := ready[a](); got != http.StatusServiceUnavailable {
		t.Errorf("the holder answers %d", got)
	}
	b := contend("b")
	b.await("lease held")
	w.eventually("a standby is ready though no process says so", func() bool { return ready[b]() == http.StatusOK })
	code.Store(http.StatusOK)
	a.await("ready")
	w.eventually("the holder is ready", func() bool { return ready[a]() == http.StatusOK })
	code.Store(http.StatusInternalServerError)
	a.await("not ready")
	w.eventually("the holder is not ready again", func() bool { return ready[a]() == http.StatusServiceUnavailable })
	w.renewedTwice()
	w.checkLives()
}

// status returns the agent's answer to the kubelet on a port.
func status(t *testing.T, port int) int {
	t.Helper()
	request, err := http.NewRequestWithContext(t.Context(), http.MethodGet, "http://"+net.JoinHostPort("127.0.0.1", strconv.Itoa(port))+contract.ReadyPath, nil)
	if err != nil {
		t.Fatal(err)
	}
	response, err := (&http.Client{Timeout: time.Minute}).Do(request)
	if err != nil {
		return 0 // it does not listen yet
	}
	_ = response.Body.Close()
	return response.StatusCode
}

// Anyone who reaches the Pod can connect to the agent's port. Many open connections with half a header add little to the agent's memory.
// The kubelet is answered, and the tenure continues.
func TestPortWithManyConnections(t *testing.T) {
	t.Parallel()
	const strangers, most = 2300, 3 // MiB
	w := newWorld(t)
	w.program = shipped(t)
	config := steadyConfig()
	port, err := controlplane.FreePort()
	w.must(err)
	config.Port = port
	a := w.prepare("a", config)
	a.env = append(a.env, contract.RuntimeAddressEnv+"=127.0.0.1")
	a.run("sleep", "infinity")
	a.acquired()
	w.renewedTwice()
	w.eventually("the holder is ready", func() bool { return status(t, port) == http.StatusOK })
	before, peak := rss(t, a.agent.Pid()), 0.0
	for n := range strangers {
		conn, err := net.Dial("tcp", net.JoinHostPort("127.0.0.1", strconv.Itoa(port)))
		w.must(err)
		t.Cleanup(func() { _ = conn.Close() })
		_, _ = conn.Write([]byte("GET / HTTP/1.1\r\nX: " + strings.Repeat("x", 3000))) // fails if it has made room already
		if n%100 != 0 {
			continue
		}
		if got := status(t, port); got != http.StatusOK {
			t.Errorf("beside %d strangers the kubelet gets %d", n, got)
		}
		peak = max(peak, rss(t, a.agent.Pid()))
	}
	t.Logf("%d connections take the agent from %.1f MiB to %.1f MiB", strangers, before, peak)
	if peak-before > most {
		t.Errorf("%d connections take the agent from %.1f MiB to %.1f MiB, want at most %d MiB more", strangers, before, peak, most)
	}
	w.renewedTwice()
}
