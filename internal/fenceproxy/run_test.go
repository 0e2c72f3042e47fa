package fenceproxy

import (
	"context"
	"crypto/tls"
	"crypto/x509"
	"encoding/json"
	"fmt"
	"log/slog"
	"net/http"
	"net/http/httptest"
	"os"
	"os/exec"
	"os/signal"
	"path/filepath"
	"strconv"
	"sync/atomic"
	"syscall"
	"testing"
	"time"

	"github.com/singletonjob/operator/fence"
	"github.com/singletonjob/operator/test/controlplane"
	"github.com/singletonjob/operator/test/pki"
	"github.com/singletonjob/operator/test/subprocess"
)

// configVariable names the file of a proxy that the test's program is to be.
const configVariable = "FENCEPROXY_CONFIG"

func TestMain(m *testing.M) {
	file := os.Getenv(configVariable)
	if file == "" {
		os.Exit(m.Run())
	}
	reload := make(chan os.Signal, 1)
	signal.Notify(reload, syscall.SIGHUP)
	ctx, stop := signal.NotifyContext(context.Background(), syscall.SIGTERM)
	err := Run(ctx, func() (Config, error) { return Read(file) }, reload, slog.Default())
	stop()
	if err != nil {
		fmt.Fprintln(os.Stderr, err)
		os.Exit(1)
	}
	os.Exit(0)
}

func freeAddress(t *testing.T) string {
	t.Helper()
	port, err := controlplane.FreePort()
	if err != nil {
		t.Fatal(err)
	}
	return fmt.Sprint("127.0.0.1:", port)
}

func write(t *testing.T, file string, c Config) {
	t.Helper()
	text, err := json.Marshal(c)
	if err == nil {
		err = os.WriteFile(file, text, 0o600)
	}
	if err != nil {
		t.Fatal(err)
	}
}

// launch starts a proxy as a process, and waits until it is ready.
func launch(t *testing.T, file string, c Config) *subprocess.Process {
	t.Helper()
	command := exec.Command(os.Args[0])
	command.Env = append(os.Environ(), configVariable+"="+file)
	command.Stderr = os.Stderr
	process, err := subprocess.Start(command)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { process.Stop(0) })
	for deadline := time.Now().Add(patience); ; time.Sleep(10 * time.Millisecond) {
		response, err := http.Get("http://" + c.Admin + "/readyz")
		if err == nil {
			response.Body.Close()
			return process
		}
		if time.Now().After(deadline) {
			t.Fatal(err)
		}
	}
}

// TestTheHighestTokenSurvivesAKill: whatever token the service has seen when the proxy is killed, a lower one is refused afterwards.
func TestTheHighestTokenSurvivesAKill(t *testing.T) {
	var seen atomic.Int64
	upstream := httptest.NewServer(http.HandlerFunc(func(_ http.ResponseWriter, r *http.Request) {
		token, _ := strconv.ParseInt(r.Header.Get(fence.HeaderToken), 10, 64)
		seen.Store(max(seen.Load(), token))
	}))
	t.Cleanup(upstream.Close)
	dir := t.TempDir()
	file := filepath.Join(dir, "config.json")
	c := Config{
		Listen: freeAddress(t), Admin: freeAddress(t), Upstream: upstream.URL, Rules: []Rule{{Resource: ledger}},
		Store: Store{Bolt: filepath.Join(dir, "marks")}, Drain: duration(0),
	}
	write(t, file, c)
	for round := range 5 {
		process := launch(t, file, c)
		goal := seen.Load() + int64(5+round)
		stopped := make(chan struct{})
		go func() { // each write is of a new tenure, so that each is stored
			defer close(stopped)
			for token := seen.Load() + 1; ; token++ {
				if _, err := send(t.Context(), "http://"+c.Listen, "", fmt.Sprint(token), "x"); err != nil {
					return
				}
			}
		}()
		for deadline := time.Now().Add(patience); seen.Load() < goal; time.Sleep(time.Millisecond) {
			if time.Now().After(deadline) {
				t.Fatal("nothing is written")
			}
		}
		process.Stop(0)
		<-stopped
		process = launch(t, file, c)
		highest := seen.Load()
		status, err := send(t.Context(), "http://"+c.Listen, "", fmt.Sprint(highest-1), "x")
		if status == http.StatusOK {
			t.Errorf("SAFETY: round %d: a stale write was accepted after the kill", round)
		}
		expect(t, fmt.Sprint("round ", round, ", a stale write after the kill, ", err), status, http.StatusPreconditionFailed)
		process.Stop(0)
	}
}

// TestTheProcess serves by TLS, takes over certificate and configuration, and ends by request.
func TestTheProcess(t *testing.T) {
	upstream := httptest.NewServer(&service{})
	t.Cleanup(upstream.Close)
	dir := t.TempDir()
	file := filepath.Join(dir, "config.json")
	cert := TLS{Cert: filepath.Join(dir, "cert"), Key: filepath.Join(dir, "key")}
	first := certificate(t, cert)
	c := Config{
		Listen: freeAddress(t), Admin: freeAddress(t), Upstream: upstream.URL, Rules: []Rule{{Resource: ledger}},
		Store: Store{Bolt: filepath.Join(dir, "marks")}, TLS: &cert, ShutdownDelay: duration(0),
	}
	write(t, file, c)
	process := launch(t, file, c)
	status := func(roots *x509.CertPool) (int, error) {
		client := http.Client{Transport: &http.Transport{TLSClientConfig: &tls.Config{RootCAs: roots}, ForceAttemptHTTP2: true, DisableKeepAlives: true}}
		response, err := client.Post("https://"+c.Listen, "", nil)
		if err != nil {
			return 0, err
		}
		response.Body.Close()
		if response.ProtoMajor != 2 {
			t.Errorf("it speaks %s", response.Proto)
		}
		return response.StatusCode, nil
	}
	got, err := status(first)
	expect(t, fmt.Sprint("without a token: ", err), got, http.StatusPreconditionRequired)
	second := certificate(t, cert)
	c.Rules = []Rule{{Unfenced: true}}
	write(t, file, c)
	if err := process.Signal(syscall.SIGHUP); err != nil {
		t.Fatal(err)
	}
	for deadline := time.Now().Add(patience); got != http.StatusOK; time.Sleep(10 * time.Millisecond) {
		if got, err = status(second); time.Now().After(deadline) {
			t.Fatalf("after the change: %d %v", got, err)
		}
	}
	if err := process.Signal(syscall.SIGTERM); err != nil {
		t.Fatal(err)
	}
	<-process.Done()
	if err := process.Err(); err != nil {
		t.Error(err)
	}
}

// TestServesDuringShutdownDelay: after SIGTERM the proxy reports that it is not ready, and still serves for the delay.
func TestServesDuringShutdownDelay(t *testing.T) {
	upstream := httptest.NewServer(&service{})
	t.Cleanup(upstream.Close)
	dir := t.TempDir()
	file := filepath.Join(dir, "config.json")
	c := Config{
		Listen: freeAddress(t), Admin: freeAddress(t), Upstream: upstream.URL, Rules: []Rule{{Resource: ledger}},
		Store: Store{Bolt: filepath.Join(dir, "marks")}, ShutdownDelay: duration(patience),
	}
	write(t, file, c)
	process := launch(t, file, c)
	if err := process.Signal(syscall.SIGTERM); err != nil {
		t.Fatal(err)
	}
	for deadline, status := time.Now().Add(patience), 0; status != http.StatusServiceUnavailable; time.Sleep(10 * time.Millisecond) {
		response, err := http.Get("http://" + c.Admin + "/readyz")
		if err != nil || time.Now().After(deadline) {
			t.Fatal("it does not say that it is about to end: ", err)
		}
		response.Body.Close()
		status = response.StatusCode
	}
	if _, err := send(t.Context(), "http://"+c.Listen, "", "33", "x"); err != nil {
		t.Errorf("a client that has not heard: %v", err)
	}
}

// certificate writes a new one, and returns its authority.
func certificate(t *testing.T, files TLS) *x509.CertPool {
	t.Helper()
	dir := t.TempDir()
	authority, err := pki.Open(dir)
	if err == nil {
		err = authority.Issue("proxy", pki.Subject{Name: "proxy", Hosts: []string{"127.0.0.1"}})
	}
	if err != nil {
		t.Fatal(err)
	}
	for from, to := range map[string]string{"proxy.key": files.Key, "proxy.crt": files.Cert} {
		text, err := os.ReadFile(filepath.Join(dir, from))
		if err == nil {
			err = os.WriteFile(to, text, 0o600)
		}
		if err != nil {
			t.Fatal(err)
		}
	}
	roots := x509.NewCertPool()
	roots.AppendCertsFromPEM(authority.PEM())
	return roots
}
