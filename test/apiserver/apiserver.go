//go:build linux

// Package apiserver shares one API server among the tests of a package, for those that need nothing else. controller-runtime's envtest
// starts it, with the flags of package controlplane. That package is for tests that need a scheduler or a controller manager, several API
// servers, or one that they stop, pause or kill.
package apiserver

import (
	"context"
	"fmt"
	"net/url"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"sync"
	"testing"
	"time"

	"sigs.k8s.io/controller-runtime/pkg/envtest"

	"github.com/singletonjob/operator/test/controlplane"
	"github.com/singletonjob/operator/test/subprocess"
)

const (
	// startTimeout is for each of the two programs. It is generous: a busy machine is slow, not broken.
	startTimeout = 5 * time.Minute
	// stopTimeout is after how long they are killed: the data is thrown away, so there is nothing to finish.
	stopTimeout = 50 * time.Millisecond
)

// shared is the API server of a test binary. It is started by the first test that asks.
var shared struct {
	sync.Mutex
	inMain bool
	failed error
	server *controlplane.APIServer
	stop   func()
}

// Main runs the tests of a package that uses ForTest, then ends what else the package shares (last), and stops the shared API server:
//
//	func TestMain(m *testing.M) { os.Exit(apiserver.Main(m)) }
func Main(m *testing.M, last ...func()) int {
	shared.Lock()
	shared.inMain = true
	shared.Unlock()
	code := m.Run()
	for _, end := range last {
		end()
	}
	shared.Lock()
	defer shared.Unlock()
	if shared.stop != nil {
		shared.stop()
	}
	return code
}

// ForTest returns the API server that the tests of this binary share. Each test should work in a namespace of its own (Namespace).
// It ends with Main, and with this process however that ends.
func ForTest(t testing.TB) *controlplane.APIServer {
	t.Helper()
	shared.Lock()
	defer shared.Unlock()
	if !shared.inMain {
		t.Fatal("this package needs: func TestMain(m *testing.M) { os.Exit(apiserver.Main(m)) }")
	}
	if shared.server == nil && shared.failed == nil {
		// Not t.Context(): the API server outlives this test.
		shared.server, shared.stop, shared.failed = start(context.Background(), controlplane.Options{Progress: os.Stderr})
	}
	if shared.failed != nil {
		t.Fatalf("no API server: %v", shared.failed)
	}
	return shared.server
}

func start(ctx context.Context, o controlplane.Options) (server *controlplane.APIServer, stop func(), err error) {
	return controlplane.Serve(ctx, o, run)
}

// run has envtest run them. It is envtest's ControlPlane and not its Environment, which gives the default namespace 5 s, and takes an
// existing cluster if the environment says so.
func run(a *controlplane.APIServer, etcd, server *exec.Cmd) (stop func(), err error) {
	health, err := controlplane.FreePort()
	if err != nil {
		return nil, err
	}
	address, err := url.Parse(a.URL())
	if err != nil {
		return nil, err
	}
	plane := &envtest.ControlPlane{
		Etcd: &envtest.Etcd{
			// Where envtest asks for its health. Its clients need a certificate, which envtest has not.
			URL:     &url.URL{Scheme: "http", Host: fmt.Sprintf("127.0.0.1:%d", health)},
			DataDir: a.Dir(), Out: etcd.Stdout, Err: etcd.Stderr, StartTimeout: startTimeout, StopTimeout: stopTimeout,
		},
		APIServer: &envtest.APIServer{
			SecureServing: envtest.SecureServing{
				ListenAddr: envtest.ListenAddr{Address: address.Hostname(), Port: address.Port()},
				CA:         a.CA(), // of the certificate that envtest finds in CertDir
			},
			CertDir: a.Dir(), Out: server.Stdout, Err: server.Stderr, StartTimeout: startTimeout, StopTimeout: stopTimeout,
		},
	}
	configure(plane.Etcd.Configure(), etcd.Args[1:])
	plane.Etcd.Configure().Set("listen-metrics-urls", plane.Etcd.URL.String())
	configure(plane.APIServer.Configure().Disable("disable-admission-plugins"), server.Args[1:])
	for path, cmd := range map[*string]*exec.Cmd{&plane.Etcd.Path: etcd, &plane.APIServer.Path: server} {
		*path = filepath.Join(a.Dir(), "tethered-"+filepath.Base(cmd.Path))
		if err := subprocess.Tether(*path, cmd); err != nil {
			return nil, err
		}
	}
	stop = func() {
		// It fails, without having waited, for what did not end in time and was killed: once for each program. Killed processes end.
		for range 100 {
			if plane.Stop() == nil {
				return
			}
		}
	}
	if err := subprocess.OnLastingThread(plane.Start); err != nil {
		stop()
		return nil, err
	}
	return stop, nil
}

// configure sets flags in place of envtest's own.
func configure(arguments *envtest.Arguments, flags []string) {
	for _, flag := range flags {
		if name, value, valued := strings.Cut(strings.TrimPrefix(flag, "--"), "="); valued {
			arguments.Set(name, value)
		} else {
			arguments.Enable(name)
		}
	}
}
