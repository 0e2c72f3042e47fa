package sinks

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net/http"
	"net/http/httptest"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"sync"
	"sync/atomic"
	"syscall"
	"testing"
	"time"

	"github.com/singletonjob/operator/fence"
	"github.com/singletonjob/operator/fence/fencehttp"
	"github.com/singletonjob/operator/fence/fencetest"
	"github.com/singletonjob/operator/test/subprocess"
)

// proxyBinary is the fence-proxy as users get it.
var proxyBinary = sync.OnceValues(func() (string, error) {
	dir, err := os.MkdirTemp("", "sinks-proxy-")
	if err != nil {
		return "", err
	}
	file := filepath.Join(dir, "fence-proxy")
	build := exec.Command("go", "build", "-o", file, "./cmd/fence-proxy")
	build.Dir = "../.."
	if out, err := build.CombinedOutput(); err != nil {
		return "", fmt.Errorf("%w: %s", err, out)
	}
	servers = append(servers, &server{data: dir}) // removed at the end
	return file, nil
})

// replicas are proxies on one PostgreSQL, before one service.
type replicas struct {
	t         *testing.T
	configs   []map[string]any
	processes []*subprocess.Process
	next      atomic.Int64
	client    *http.Client

	mu    sync.Mutex // guards urls and lists
	urls  []string
	lists map[string][]string
	began chan string   // tokens of writes to /slow
	let   chan struct{} // lets them end
	end   func()        // closes let
}

// ServeHTTP is the service: it does not heed its clients' hanging up.
func (s *replicas) ServeHTTP(_ http.ResponseWriter, r *http.Request) {
	body, err := io.ReadAll(r.Body)
	if err != nil {
		return
	}
	if r.URL.Path == "/slow" {
		s.began <- r.Header.Get(fence.HeaderToken)
		<-s.let
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	name := r.Header.Get(fence.HeaderResource)
	s.lists[name] = append(s.lists[name], string(body))
}

func (s *replicas) Stored(_ context.Context, r fence.Resource) ([]string, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	return append([]string{}, s.lists[string(r)]...), nil
}

// Write sends to one replica after the other.
func (s *replicas) Write(ctx context.Context, r fence.Resource, token, payload string) error {
	return s.send(ctx, int(s.next.Add(1))%s.count(), "/", r, token, payload)
}

func (s *replicas) send(ctx context.Context, replica int, path string, r fence.Resource, token, payload string) error {
	s.mu.Lock()
	url := s.urls[replica]
	s.mu.Unlock()
	return sendTo(ctx, s.client, url, path, r, token, payload)
}

func (s *replicas) count() int {
	s.mu.Lock()
	defer s.mu.Unlock()
	return len(s.urls)
}

func sendTo(ctx context.Context, client *http.Client, url, path string, r fence.Resource, token, payload string) error {
	request, err := http.NewRequestWithContext(ctx, http.MethodPost, url+path, strings.NewReader(payload))
	if err != nil {
		return err
	}
	request.Header.Set(fence.HeaderToken, token)
	request.Header.Set(fence.HeaderResource, string(r))
	response, err := client.Do(request)
	if err != nil {
		return err
	}
	defer func() { _ = response.Body.Close() }()
	if err := fencehttp.Check(response); err != nil {
		return err
	}
	if response.StatusCode != http.StatusOK {
		return fmt.Errorf("status %s", response.Status)
	}
	return nil
}

// decided sends until the write has passed or is refused for good: a busy machine may take longer than a replica with little patience.
func (s *replicas) decided(replica int, r fence.Resource, token, payload string) (err error) {
	for deadline := time.Now().Add(3 * time.Minute); time.Now().Before(deadline); {
		if err = s.send(patience(s.t), replica, "/", r, token, payload); err == nil || errors.Is(err, fence.ErrStale) {
			break
		}
	}
	return err
}

func (s *replicas) later(replica int, path string, r fence.Resource, token, payload string) <-chan error {
	done := make(chan error, 1)
	go func() { done <- s.send(patience(s.t), replica, path, r, token, payload) }()
	return done
}

// The time that a busy machine may need to answer running requests and to end those that were cut. A write waits for both.
const (
	drains  = 20 * time.Second
	settles = 3 * time.Minute
	waits   = 4 * time.Minute
)

func newService(t *testing.T) *replicas {
	s := &replicas{t: t, client: http.DefaultClient, lists: map[string][]string{}, began: make(chan string, 100), let: make(chan struct{})}
	s.end = sync.OnceFunc(func() { close(s.let) })
	return s
}

// serve serves a service until the test ends. Closing the server waits for requests under way, so they are released first.
func (s *replicas) serve() (url string) {
	server := httptest.NewServer(s)
	s.t.Cleanup(server.Close)
	s.t.Cleanup(s.end)
	return server.URL
}

// behindReplicas starts two. The settings are of their configuration.
func behindReplicas(t *testing.T, settings map[string]any) *replicas {
	t.Helper()
	return behind(t, 2, settings)
}

func behind(t *testing.T, n int, settings map[string]any) *replicas {
	t.Helper()
	database, err := postgres()
	must(t, err)
	return on(t, database, n, settings)
}

// on starts replicas whose marks are in a database.
func on(t *testing.T, database *server, n int, settings map[string]any) *replicas {
	t.Helper()
	s := newService(t)
	upstream := s.serve()
	dir := t.TempDir()
	url := filepath.Join(dir, "url")
	must(t, os.WriteFile(url, []byte(database.dsn+"&application_name="+t.Name()+"\n"), 0o600))
	s.processes, s.urls = make([]*subprocess.Process, n), make([]string, n)
	for i := range n {
		c := map[string]any{
			"upstream": upstream, "rules": []any{map[string]any{"fromHeader": true}},
			"store": map[string]any{"postgres": map[string]any{"urlFile": url}},
			"drain": drains.String(), "settle": settles.String(), "patience": waits.String(), // after the start no mark is raised for as long as drain
		}
		for name, value := range settings {
			c[name] = value
		}
		if onPostgres, ok := c["store"].(map[string]any)["postgres"].(map[string]any); ok {
			onPostgres["urlFile"] = url
		}
		s.configs = append(s.configs, c)
		s.launch(i)
	}
	return s
}

// launch starts a replica, and waits until it is ready. The ports that it gets may be others' by then: it is tried again.
func (s *replicas) launch(replica int) {
	t, c, file := s.t, s.configs[replica], filepath.Join(s.t.TempDir(), "config")
	t.Helper()
	binary, err := proxyBinary()
	must(t, err)
	const attempts = 3
	for range attempts {
		clients, err := freePort()
		must(t, err)
		admins, err := freePort()
		must(t, err)
		c["listen"], c["admin"] = "127.0.0.1:"+clients, "127.0.0.1:"+admins
		text, err := json.Marshal(c)
		must(t, err)
		must(t, os.WriteFile(file, text, 0o600))
		command := exec.Command(binary, "-config", file)
		command.Stderr = os.Stderr
		process, err := subprocess.Start(command)
		must(t, err)
		t.Cleanup(func() { process.Stop(0) })
		if ready(t, process, "http://127.0.0.1:"+admins+"/readyz") {
			s.mu.Lock()
			defer s.mu.Unlock()
			s.processes[replica], s.urls[replica] = process, "http://127.0.0.1:"+clients
			return
		}
	}
	t.Fatal("no replica stays")
}

// ready waits until a process answers. It is false of one that has ended.
func ready(t *testing.T, process *subprocess.Process, url string) bool {
	t.Helper()
	for deadline := time.Now().Add(3 * time.Minute); ; time.Sleep(10 * time.Millisecond) {
		response, err := http.Get(url)
		select {
		case <-process.Done():
			return false
		default:
		}
		if err == nil {
			_ = response.Body.Close()
			return true
		}
		if time.Now().After(deadline) {
			t.Fatal(err)
		}
	}
}

func (s *replicas) expect(r fence.Resource, want string) {
	s.t.Helper()
	stored, _ := s.Stored(s.t.Context(), r)
	if got := strings.Join(stored, " "); got != want {
		s.t.Errorf("stored is %q, want %q", got, want)
	}
}

func refused(t *testing.T, what string, err, want error) {
	t.Helper()
	if err == nil || want != nil && !strings.Contains(err.Error(), want.Error()) {
		t.Errorf("%s: %v, want %v", what, err, want)
	}
}

func TestProxiesConformance(t *testing.T) {
	t.Parallel()
	s := behindReplicas(t, nil)
	fencetest.Run(t, func(*testing.T) fencetest.Adapter { return s })
}

// TestOneProxyWaitsForTheOther: a write of the past tenure is under way at one replica when the present one writes at the other.
func TestOneProxyWaitsForTheOther(t *testing.T) {
	t.Parallel()
	s, r := behindReplicas(t, nil), fresh()
	old := s.later(0, "/slow", r, "33", "old")
	<-s.began
	must(t, s.send(patience(t), 1, "/", r, "33", "beside")) // equal tokens need not wait
	next := s.later(1, "/", r, "34", "new")
	select {
	case err := <-next:
		t.Fatalf("the new tenure's first write did not wait: %v", err)
	case <-time.After(time.Second): // for a fence that does not wait to show it; nothing is wrong with a slower machine
	}
	s.end()
	must(t, <-old)
	must(t, <-next)
	for replica := range s.urls {
		refused(t, "the past tenure", s.send(patience(t), replica, "/", r, "33", "stale"), fence.ErrStale)
	}
	s.expect(r, "beside old new")
}

// TestOneProxyCutsForTheOther: the replica that has the write cuts it if it does not end.
func TestOneProxyCutsForTheOther(t *testing.T) {
	t.Parallel()
	s, r := behindReplicas(t, map[string]any{"drain": "0s"}), fresh()
	old := s.later(0, "/slow", r, "33", "old")
	<-s.began
	must(t, s.send(patience(t), 1, "/", r, "34", "new"))
	refused(t, "what was under way", <-old, nil)
	s.end()
	refused(t, "the past tenure", s.send(patience(t), 0, "/", r, "33", "stale"), fence.ErrStale)
}

// TestFrozenProxyBlocksTheNextTenure: a frozen replica delays the next tenure until the replica is dead.
func TestFrozenProxyBlocksTheNextTenure(t *testing.T) {
	t.Parallel()
	s, r := behindReplicas(t, map[string]any{"drain": "0s", "settle": "1s", "patience": "2s"}), fresh()
	var old <-chan error
	for began, deadline := false, time.Now().Add(3*time.Minute); !began; { // whose own patience is as short
		old = s.later(0, "/slow", r, "33", "old")
		select {
		case <-s.began:
			began = true
		case err := <-old:
			if !errors.Is(err, fencehttp.ErrUnavailable) || time.Now().After(deadline) {
				t.Fatal(err)
			}
		}
	}
	must(t, s.processes[0].Signal(syscall.SIGSTOP))
	refused(t, "beside a frozen replica", s.send(patience(t), 1, "/", r, "34", "new"), fencehttp.ErrUnavailable)
	s.processes[0].Stop(0)
	refused(t, "what was under way", <-old, nil)
	must(t, s.decided(1, r, "34", "new"))
	refused(t, "the past tenure", s.decided(1, r, "33", "stale"), fence.ErrStale)
}

// TestAProxyThatLosesItsSessionCuts: PostgreSQL has ended the session by which a write of the past tenure was held.
func TestAProxyThatLosesItsSessionCuts(t *testing.T) {
	t.Parallel()
	s, r := behindReplicas(t, nil), fresh()
	old := s.later(0, "/slow", r, "33", "old")
	<-s.began
	database := kinds[0].open(t)
	for ended := false; !ended; {
		must(t, database.QueryRowContext(patience(t), `SELECT coalesce(bool_or(pg_terminate_backend(pid)), false) FROM pg_stat_activity
WHERE application_name = $1`, t.Name()).Scan(&ended))
	}
	refused(t, "what was under way", <-old, nil)
	s.end()
	must(t, s.send(patience(t), 0, "/", r, "34", "new"))
}

// TestAFrozenProxyIsEvicted, however impatient clients are, and lets nothing of the past pass when it thaws.
func TestAFrozenProxyIsEvicted(t *testing.T) {
	t.Parallel()
	s, r := behindReplicas(t, map[string]any{
		"drain": "0s", "settle": "1s", "patience": "1500ms",
		"store": map[string]any{"postgres": map[string]any{"evictAfter": "4s"}},
	}), fresh()
	must(t, s.decided(0, r, "33", "old"))
	must(t, s.processes[0].Signal(syscall.SIGSTOP))
	must(t, s.decided(1, r, "34", "new"))
	must(t, s.processes[0].Signal(syscall.SIGCONT))
	var all []<-chan error
	for range 20 {
		all = append(all, s.later(0, "/", r, "33", "stale"))
	}
	for _, done := range all {
		refused(t, "the past tenure at a replica that thaws", <-done, nil)
	}
	s.expect(r, "old new")
}
