package fenceproxy

import (
	"bufio"
	"context"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"net"
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

	"go.etcd.io/bbolt"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/singletonjob/operator/fence"
	"github.com/singletonjob/operator/fence/fencehttp"
	"github.com/singletonjob/operator/fence/fencetest"
)

const (
	// patience is what a step may take on a busy machine.
	patience = 3 * time.Minute
	ledger   = fence.Resource("billing/ledger")
)

// service can't be changed: it appends what it is sent to lists.
type service struct {
	mu      sync.Mutex
	lists   map[string][]string
	headers []http.Header
}

func (s *service) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	if len(r.Header["Upgrade"]) > 0 {
		echo(w)
		return
	}
	body, err := io.ReadAll(r.Body)
	if err != nil {
		return
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.lists == nil {
		s.lists = make(map[string][]string)
	}
	name := r.Header.Get(fence.HeaderResource)
	s.lists[name] = append(s.lists[name], string(body))
	s.headers = append(s.headers, r.Header)
}

// echo is what a WebSocket comes down to.
func echo(w http.ResponseWriter) {
	conn, _, err := http.NewResponseController(w).Hijack()
	if err != nil {
		return
	}
	defer conn.Close()
	fmt.Fprint(conn, "HTTP/1.1 101 Switching Protocols\r\nConnection: Upgrade\r\nUpgrade: echo\r\n\r\n")
	_, _ = io.Copy(conn, conn)
}

func (s *service) stored(name string) []string {
	s.mu.Lock()
	defer s.mu.Unlock()
	return append([]string{}, s.lists[name]...)
}

func duration(d time.Duration) *metav1.Duration { return &metav1.Duration{Duration: d} }

// start has a proxy before a service.
func start(t *testing.T, s http.Handler, change func(*Config)) (*Proxy, *httptest.Server) {
	t.Helper()
	upstream := httptest.NewServer(s)
	t.Cleanup(upstream.Close)
	c := Config{
		Upstream: upstream.URL, Rules: []Rule{{Resource: ledger}}, Drain: duration(0), Settle: duration(patience), Patience: duration(3 * patience),
	}.With(Config{Store: Store{Bolt: filepath.Join(t.TempDir(), "marks")}})
	if change != nil {
		change(&c)
	}
	if err := c.Validate(); err != nil {
		t.Fatal(err)
	}
	store, closer, err := c.OpenStore(t.Context(), slog.Default())
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { closer.Close() })
	store.(*Bolt).quiet = time.Now() // nothing was before
	p, err := New(c, store, slog.New(slog.DiscardHandler))
	if err != nil {
		t.Fatal(err)
	}
	server := httptest.NewServer(p)
	t.Cleanup(server.Close)
	t.Cleanup(p.Close)
	return p, server
}

// send is a write; it returns its status, and an error where it had no answer.
func send(ctx context.Context, url string, resource fence.Resource, token, payload string) (int, error) {
	request, err := http.NewRequestWithContext(ctx, http.MethodPost, url, strings.NewReader(payload))
	if err != nil {
		return 0, err
	}
	request.Header.Set(fence.HeaderToken, token)
	if resource != "" {
		request.Header.Set(fence.HeaderResource, string(resource))
	}
	response, err := http.DefaultClient.Do(request)
	if err != nil {
		return 0, err
	}
	defer response.Body.Close()
	if err := fencehttp.Check(response); err != nil {
		return response.StatusCode, err
	}
	if response.StatusCode != http.StatusOK {
		return response.StatusCode, fmt.Errorf("status %s", response.Status)
	}
	return response.StatusCode, nil
}

func expect(t *testing.T, what string, got, want int) {
	t.Helper()
	if got != want {
		t.Errorf("%s: status %d, want %d", what, got, want)
	}
}

type adapter struct {
	*service
	url string
}

func (a adapter) Write(ctx context.Context, r fence.Resource, token, payload string) error {
	_, err := send(ctx, a.url, r, token, payload)
	return err
}

func (a adapter) Stored(_ context.Context, r fence.Resource) ([]string, error) {
	return a.stored(string(r)), nil
}

func TestConformance(t *testing.T) {
	fencetest.Run(t, func(t *testing.T) fencetest.Adapter {
		s := &service{}
		_, server := start(t, s, func(c *Config) { c.Rules, c.Drain = []Rule{{FromHeader: true}}, duration(patience) })
		return adapter{s, server.URL}
	})
}

// TestUpstreamRequest: the service gets the token that was checked, whatever else the client sends.
func TestUpstreamRequest(t *testing.T) {
	s := &service{}
	_, server := start(t, s, nil)
	for _, headers := range []string{
		"Connection: X-Secret\r\nX-Secret: 1\r\nX-Original-URL: /admin\r\nX_Original_URL: /admin\r\nX-Forwarded-Host: other\r\nX-Forwarded-For: 1.2.3.4",
		"Transfer-Encoding: chunked\r\nContent-Length: 100",
	} {
		conn, err := net.Dial("tcp", server.Listener.Addr().String())
		if err != nil {
			t.Fatal(err)
		}
		fmt.Fprintf(conn, "POST / HTTP/1.1\r\nHost: a\r\nFencing-Token: 33\r\n%s\r\n\r\n0\r\n\r\n", headers)
		response, err := http.ReadResponse(bufio.NewReader(conn), nil)
		if err != nil {
			t.Fatal(err)
		}
		response.Body.Close()
		conn.Close()
		expect(t, headers, response.StatusCode, http.StatusOK)
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	for _, h := range s.headers {
		if h.Get(fence.HeaderToken) != "33" || h.Get("X-Original-Url") != "" || h.Get("X_original_url") != "" || h.Get("X-Secret") != "" || h.Get("X-Forwarded-Host") != "a" ||
			strings.Contains(h.Get("X-Forwarded-For"), "1.2.3.4") {
			t.Errorf("arrived: %v", h)
		}
	}
}

// TestStreamOfAnOldTenureIsCut: a stream is cut when the next tenure writes, and cannot be opened again.
func TestStreamOfAnOldTenureIsCut(t *testing.T) {
	_, server := start(t, &service{}, func(c *Config) { c.Drain = duration(patience) })
	open := func(token string) (net.Conn, *bufio.Reader, int) {
		conn, err := net.Dial("tcp", server.Listener.Addr().String())
		if err != nil {
			t.Fatal(err)
		}
		fmt.Fprintf(conn, "GET / HTTP/1.1\r\nHost: a\r\nConnection: Upgrade\r\nUpgrade: echo\r\nFencing-Token: %s\r\n\r\n", token)
		reader := bufio.NewReader(conn)
		response, err := http.ReadResponse(reader, nil)
		if err != nil {
			t.Fatal(err)
		}
		if response.StatusCode != http.StatusSwitchingProtocols {
			response.Body.Close()
		}
		return conn, reader, response.StatusCode
	}
	old, reader, status := open("33")
	defer old.Close()
	expect(t, "a stream", status, http.StatusSwitchingProtocols)
	fmt.Fprintln(old, "hello")
	if line, err := reader.ReadString('\n'); line != "hello\n" {
		t.Fatal(line, err)
	}
	status, err := send(t.Context(), server.URL, "", "34", "x")
	if expect(t, "the next tenure", status, http.StatusOK); err != nil {
		t.Error(err)
	}
	if _, err := reader.ReadByte(); err == nil {
		t.Error("the stream of the past tenure is open")
	}
	again, _, status := open("33")
	again.Close()
	expect(t, "a stale stream", status, http.StatusPreconditionFailed)
}

const clientVariable = "FENCEPROXY_CLIENT"

// TestClient is the client that TestAFrozenHolderIsRefused starts as a process: it sends half of a write, then the rest, and a write again.
func TestClient(t *testing.T) {
	address := os.Getenv(clientVariable)
	if address == "" {
		return // it is a part of TestAFrozenHolderIsRefused
	}
	conn, err := net.Dial("tcp", address)
	if err != nil {
		t.Fatal(err)
	}
	fmt.Fprint(conn, "POST / HTTP/1.1\r\nHost: a\r\nFencing-Token: 33\r\nContent-Length: 8\r\n\r\nhalf")
	fmt.Println("half")
	if _, err := io.ReadFull(os.Stdin, make([]byte, 1)); err != nil { // frozen and thawed meanwhile
		t.Fatal(err)
	}
	fmt.Fprint(conn, "half")
	response, err := http.ReadResponse(bufio.NewReader(conn), nil)
	if err == nil {
		response.Body.Close()
		t.Errorf("the write was answered with %s", response.Status)
	}
	status, err := send(t.Context(), "http://"+address, "", "33", "again")
	fmt.Println("answer", status, err)
}

// TestAFrozenHolderIsRefused: a process that is stopped in the midst of a write of the past tenure.
func TestAFrozenHolderIsRefused(t *testing.T) {
	s, began := &service{}, make(chan struct{})
	begin := sync.OnceFunc(func() { close(began) })
	_, server := start(t, http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		begin()
		s.ServeHTTP(w, r)
	}), nil)
	client := exec.CommandContext(t.Context(), os.Args[0], "-test.run=^TestClient$", "-test.v")
	client.Env = append(os.Environ(), clientVariable+"="+server.Listener.Addr().String())
	input, err := client.StdinPipe()
	if err != nil {
		t.Fatal(err)
	}
	output, err := client.StdoutPipe()
	if err != nil {
		t.Fatal(err)
	}
	if err := client.Start(); err != nil {
		t.Fatal(err)
	}
	lines := bufio.NewScanner(output)
	until := func(prefix string) string {
		for lines.Scan() {
			if strings.HasPrefix(lines.Text(), prefix) {
				return lines.Text()
			}
		}
		t.Fatalf("the client did not say %q: %v", prefix, client.Wait())
		return ""
	}
	until("half")
	<-began
	if err := client.Process.Signal(syscall.SIGSTOP); err != nil {
		t.Fatal(err)
	}
	for _, payload := range []string{"first", "second"} {
		status, err := send(t.Context(), server.URL, "", "34", payload)
		if expect(t, "the new tenure", status, http.StatusOK); err != nil {
			t.Error(err)
		}
	}
	if err := client.Process.Signal(syscall.SIGCONT); err != nil {
		t.Fatal(err)
	}
	fmt.Fprint(input, "x")
	if answer := until("answer"); !strings.HasPrefix(answer, "answer 412 ") {
		t.Error(answer)
	}
	if err := client.Wait(); err != nil {
		t.Error(err)
	}
	if got := strings.Join(s.stored(""), " "); got != "first second" {
		t.Errorf("stored is %q", got)
	}
}

// TestAWriteOutlivesItsClient: what the client has given up is under way until the service has answered.
func TestAWriteOutlivesItsClient(t *testing.T) {
	began, let := make(chan struct{}), make(chan struct{})
	var mu sync.Mutex
	var order []string
	_, server := start(t, http.HandlerFunc(func(_ http.ResponseWriter, r *http.Request) {
		token := r.Header.Get(fence.HeaderToken)
		if token == "33" {
			_, _ = io.Copy(io.Discard, r.Body)
			close(began)
			<-let // it does not heed its context
		}
		if r.Header.Get(fence.HeaderResource) == string(ledger) {
			mu.Lock()
			defer mu.Unlock()
			order = append(order, token)
		}
	}), func(c *Config) { c.Rules, c.Drain = []Rule{{FromHeader: true}}, duration(patience) })
	ctx, hangUp := context.WithCancel(t.Context())
	gone := make(chan error, 1)
	go func() { _, err := send(ctx, server.URL, ledger, "33", "x"); gone <- err }()
	<-began
	hangUp()
	if err := <-gone; err == nil {
		t.Fatal("the client did not hang up")
	}
	next := make(chan error, 1)
	go func() { _, err := send(t.Context(), server.URL, ledger, "34", "x"); next <- err }()
	for token := range 20 { // meanwhile a tenure that need not wait begins as often: one that must, and did not, is through
		if _, err := send(t.Context(), server.URL, "other/job", fmt.Sprint(100+token), "x"); err != nil {
			t.Error(err)
		}
	}
	close(let)
	if err := <-next; err != nil {
		t.Error(err)
	}
	if got := strings.Join(order, " "); got != "33 34" {
		t.Errorf("SAFETY: the service saw %s", got)
	}
}

// TestResponseToAClosedConnection: the client disconnects in the middle of a response that the service continues.
func TestResponseToAClosedConnection(t *testing.T) {
	const chunk, more = 64 << 10, 1000 // more than the buffers on the way hold
	begun, gone, written := make(chan struct{}), make(chan struct{}), make(chan error, 1)
	var over atomic.Bool
	_, server := start(t, http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if r.Header.Get(fence.HeaderToken) != "33" {
			if !over.Load() {
				t.Error("SAFETY: the next tenure did not wait")
			}
			return
		}
		part := make([]byte, chunk)
		_, err := w.Write(part)
		err = errors.Join(err, http.NewResponseController(w).Flush())
		close(begun)
		<-gone
		for range more {
			if err == nil {
				_, err = w.Write(part)
			}
		}
		over.Store(true)
		written <- errors.Join(err, r.Context().Err())
	}), func(c *Config) { c.Drain = duration(patience) })
	conn, err := net.Dial("tcp", server.Listener.Addr().String())
	if err != nil {
		t.Fatal(err)
	}
	fmt.Fprint(conn, "POST / HTTP/1.1\r\nHost: a\r\nContent-Length: 0\r\nFencing-Token: 33\r\n\r\n")
	<-begun
	if _, err := bufio.NewReader(conn).ReadByte(); err != nil {
		t.Fatal(err)
	}
	conn.Close()
	next := make(chan error, 1)
	go func() { _, err := send(t.Context(), server.URL, "", "34", "x"); next <- err }()
	close(gone)
	if err := <-written; err != nil {
		t.Errorf("the service's answer was cut: %v", err)
	}
	if err := <-next; err != nil {
		t.Error(err)
	}
}

// TestMarksFileWaitsAfterOpening: writes wait after a start, because the previous process may have left some in progress.
func TestMarksFileWaitsAfterOpening(t *testing.T) {
	file := filepath.Join(t.TempDir(), "marks")
	open := func() *Bolt {
		b, err := OpenBolt(file, patience, time.Hour)
		if err != nil {
			t.Fatal(err)
		}
		return b
	}
	raise := func(b *Bolt, r fence.Resource, to fence.Token, within time.Duration) error {
		ctx, cancel := context.WithTimeout(t.Context(), within)
		defer cancel()
		return b.Raise(ctx, r, to)
	}
	b := open()
	if err := raise(b, ledger, 33, patience); err != nil {
		t.Errorf("the first mark: %v", err)
	}
	if err := raise(b, ledger, 34, 50*time.Millisecond); err == nil { // by a process that is as young
		t.Error("a mark was raised at once")
	}
	b.Close()
	b = open()
	defer b.Close()
	if err := raise(b, ledger, 33, patience); err != nil {
		t.Errorf("the mark that stands: %v", err)
	}
	if err := raise(b, ledger, 34, 50*time.Millisecond); !errors.Is(err, context.DeadlineExceeded) {
		t.Errorf("the next one: %v", err)
	}
	b.quiet = time.Now()
	if err := b.Raise(t.Context(), ledger, 34); err != nil {
		t.Error(err)
	}
}

// TestMarksAreSyncedTogether: many jobs begin their tenures at one time, and a disk syncs a few times a second.
func TestMarksAreSyncedTogether(t *testing.T) {
	const resources = 64
	store, err := OpenBolt(filepath.Join(t.TempDir(), "marks"), patience, 0)
	if err != nil {
		t.Fatal(err)
	}
	defer store.Close()
	store.db.MaxBatchSize, store.db.MaxBatchDelay = resources, patience // one is made when all have come
	commits := func() (n int) {
		_ = store.db.View(func(tx *bbolt.Tx) error { n = tx.ID(); return nil })
		return n
	}
	before := commits()
	var all sync.WaitGroup
	for i := range resources {
		all.Go(func() {
			if err := store.Raise(t.Context(), fence.Resource(fmt.Sprint("r", i)), fence.Token(i+1)); err != nil {
				t.Error(err)
			}
		})
	}
	all.Wait()
	if n := commits() - before; n != 1 {
		t.Errorf("%d marks took %d commits", resources, n)
	}
	for i := range resources {
		if mark, err := store.Mark(t.Context(), fence.Resource(fmt.Sprint("r", i))); err != nil || mark != fence.Token(i+1) {
			t.Errorf("the mark of r%d is %d, %v", i, mark, err)
		}
	}
}

// TestAdmin: health, metrics, and who may advance.
// TestMonitor: the service gets everything, and the counters say what a fence would have refused.
func TestMonitor(t *testing.T) {
	s := &service{}
	p, server := start(t, s, func(c *Config) { c.Monitor = true })
	admin := httptest.NewServer(p.Admin())
	t.Cleanup(admin.Close)
	// A decision can come after its answer. So it is awaited before the next write, or 33 may be decided before 34.
	var text string
	await := func(line string) {
		t.Helper()
		for deadline := time.Now().Add(patience); ; time.Sleep(5 * time.Millisecond) {
			response, err := http.Get(admin.URL + "/metrics")
			if err != nil {
				t.Fatal(err)
			}
			body, _ := io.ReadAll(response.Body)
			response.Body.Close()
			if text = string(body); strings.Contains(text, line+"\n") {
				return
			}
			if time.Now().After(deadline) {
				t.Fatalf("metrics lack %s:\n%s", line, text)
			}
		}
	}
	for i, token := range []string{"34", "33", "", "007"} {
		status, err := send(t.Context(), server.URL, "", token, "with "+token)
		if err != nil {
			t.Error(err)
		}
		expect(t, "token "+token, status, http.StatusOK)
		await(fmt.Sprintf("fence_proxy_decision_seconds_count %d", i+1))
	}
	if got, want := fmt.Sprint(s.stored("")), "[with 34 with 33 with  with 007]"; got != want {
		t.Errorf("the service has %s, want %s", got, want)
	}
	for _, outcome := range []string{"passed", "stale", "missing", "malformed"} {
		await(`fence_proxy_requests_total{enforced="false",outcome="` + outcome + `",resource="billing/ledger"} 1`)
	}
}

func TestAdmin(t *testing.T) {
	file := filepath.Join(t.TempDir(), "token")
	if err := os.WriteFile(file, []byte("secret\n"), 0o600); err != nil {
		t.Fatal(err)
	}
	p, server := start(t, &service{}, func(c *Config) { c.Strict, c.AdvanceTokenFile = true, file })
	admin := httptest.NewServer(p.Admin())
	t.Cleanup(admin.Close)
	advance := func(bearer string) int {
		request, _ := http.NewRequestWithContext(t.Context(), http.MethodPost, admin.URL+"/advance", nil)
		request.Header = http.Header{fence.HeaderToken: {"33"}, fence.HeaderResource: {string(ledger)}, "Authorization": {bearer}}
		response, err := http.DefaultClient.Do(request)
		if err != nil {
			t.Fatal(err)
		}
		response.Body.Close()
		return response.StatusCode
	}
	write := func() int {
		status, _ := send(t.Context(), server.URL, "", "33", "x")
		return status
	}
	expect(t, "ahead", write(), http.StatusTooEarly)
	expect(t, "nobody", advance(""), http.StatusForbidden)
	expect(t, "somebody else", advance("Bearer secre"), http.StatusForbidden)
	expect(t, "still ahead", write(), http.StatusTooEarly)
	expect(t, "who may", advance("Bearer secret"), http.StatusNoContent)
	expect(t, "the mark", write(), http.StatusOK)
	get := func(path string) (int, string) {
		response, err := http.Get(admin.URL + path)
		if err != nil {
			t.Fatal(err)
		}
		defer response.Body.Close()
		body, _ := io.ReadAll(response.Body)
		return response.StatusCode, string(body)
	}
	status, _ := get("/readyz")
	expect(t, "ready", status, http.StatusOK)
	_, text := get("/metrics")
	for _, line := range []string{
		`fence_proxy_requests_total{enforced="true",outcome="ahead",resource="billing/ledger"} 2`,
		`fence_proxy_requests_total{enforced="true",outcome="passed",resource="billing/ledger"} 1`,
		`fence_proxy_highest_token{resource="billing/ledger"} 33`,
	} {
		if !strings.Contains(text, line) {
			t.Errorf("metrics lack %s", line)
		}
	}
	p.NotReady()
	status, _ = get("/readyz")
	expect(t, "about to end", status, http.StatusServiceUnavailable)
}

// TestReload: rules are taken over while marks stay; what is wrong changes nothing.
func TestReload(t *testing.T) {
	p, server := start(t, &service{}, nil)
	status, _ := send(t.Context(), server.URL, "", "34", "x")
	expect(t, "before", status, http.StatusOK)
	c := p.config
	c.Rules = []Rule{{Path: "/open", Unfenced: true}, {Path: "/ledger", Resource: ledger}}
	p.takeOver(func() (Config, error) { return c, nil })
	for path, want := range map[string]int{"/open": http.StatusOK, "/ledger": http.StatusPreconditionFailed, "/": http.StatusBadRequest} {
		status, _ := send(t.Context(), server.URL+path, "", "33", "x")
		expect(t, path, status, want)
	}
	bad := c
	bad.Rules = []Rule{{Path: "/ledger"}}
	p.takeOver(func() (Config, error) { return bad, nil })
	status, _ = send(t.Context(), server.URL+"/open", "", "33", "x")
	expect(t, "after a bad one", status, http.StatusOK)
}

// slow is a store that answers when it may.
type slow struct {
	fencehttp.Memory

	once           sync.Once
	asked, answers chan struct{}
}

func (s *slow) Mark(ctx context.Context, r fence.Resource) (fence.Token, error) {
	s.once.Do(func() { close(s.asked) })
	<-s.answers
	return s.Memory.Mark(ctx, r)
}

// TestReloadWhileAWriteWaits: it goes where the configuration sends it by which it was decided, not to a service that is fenced as another
// resource, and to none at all.
func TestReloadWhileAWriteWaits(t *testing.T) {
	before, after := &service{}, &service{}
	was, is := httptest.NewServer(before), httptest.NewServer(after)
	t.Cleanup(was.Close)
	t.Cleanup(is.Close)
	store := &slow{asked: make(chan struct{}), answers: make(chan struct{})}
	p, err := New(Config{Upstream: was.URL, Rules: []Rule{{Resource: ledger}}}.With(Config{}), store, slog.New(slog.DiscardHandler))
	if err != nil {
		t.Fatal(err)
	}
	server := httptest.NewServer(p)
	t.Cleanup(server.Close)
	t.Cleanup(p.Close)
	status := make(chan int)
	go func() {
		got, _ := send(t.Context(), server.URL, "", "7", "x")
		status <- got
	}()
	<-store.asked
	if err := p.Reload(Config{Upstream: is.URL, Rules: []Rule{{Resource: "another"}}}.With(Config{})); err != nil {
		t.Fatal(err)
	}
	close(store.answers)
	expect(t, "a write across the reload", <-status, http.StatusOK)
	if got := append(before.stored(""), after.stored("")...); len(before.stored("")) != 1 || len(got) != 1 {
		t.Errorf("the service before has %q, the one after %q", before.stored(""), after.stored(""))
	}
}

func TestInvalidConfig(t *testing.T) {
	good := Config{Upstream: "http://a", Rules: []Rule{{Resource: ledger}}, Store: Store{Bolt: "x"}}.With(Config{})
	if err := good.Validate(); err != nil {
		t.Fatal(err)
	}
	for name, c := range map[string]struct {
		change func(*Config)
		says   string
	}{
		"no store":      {func(c *Config) { c.Store.Bolt = "" }, "store"},
		"two stores":    {func(c *Config) { c.Store.Postgres = &PostgresConfig{URLFile: "x"} }, "store"},
		"no file":       {func(c *Config) { c.Store = Store{Postgres: &PostgresConfig{}} }, "urlFile"},
		"no rules":      {func(c *Config) { c.Rules = nil }, "rules"},
		"a bad rule":    {func(c *Config) { c.Rules[0].Unfenced = true }, "rules[0]"},
		"no upstream":   {func(c *Config) { c.Upstream = "" }, "rules[0]: upstream"},
		"a bad one":     {func(c *Config) { c.Upstream = "ftp://a" }, "ftp://a"},
		"no credential": {func(c *Config) { c.Strict = true }, "advanceTokenFile"},
		"half TLS":      {func(c *Config) { c.TLS = &TLS{Cert: "x"} }, "tls"},
		"negative":      {func(c *Config) { c.Drain = duration(-1) }, "drain"},
		"no patience":   {func(c *Config) { c.Patience = duration(0) }, "patience: 0s is not longer than drain (5s) and settle (5s) together"},
		"too little":    {func(c *Config) { c.Drain = duration(25 * time.Second) }, "patience: 30s is not longer than drain (25s)"},
		"too soon": {func(c *Config) {
			c.Store = Store{Postgres: &PostgresConfig{URLFile: "x", EvictAfter: *duration(10 * time.Second)}}
		}, "store.postgres.evictAfter: 10s is not longer than drain (5s) and settle (5s) together"},
		"a port":     {func(c *Config) { c.Rules[0].Host = "a:80" }, "rules[0]: host \"a:80\" never matches"},
		"lower case": {func(c *Config) { c.UnfencedMethods = []string{"get"} }, "unfencedMethods"},
	} {
		wrong := good
		wrong.Rules = append([]Rule{}, good.Rules...)
		c.change(&wrong)
		if err := wrong.Validate(); err == nil || !strings.Contains(err.Error(), c.says) {
			t.Errorf("%s: %v, want it to name %s", name, err, c.says)
		}
	}
	file := filepath.Join(t.TempDir(), "c.yaml")
	if err := os.WriteFile(file, []byte("upstraem: x\n"), 0o600); err != nil {
		t.Fatal(err)
	}
	if _, err := Read(file); err == nil || !strings.Contains(err.Error(), "upstraem") {
		t.Errorf("a misspelt field: %v", err)
	}
}
