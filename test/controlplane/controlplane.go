//go:build linux

package controlplane

import (
	"bytes"
	"context"
	"crypto/rand"
	"crypto/tls"
	"errors"
	"fmt"
	"io"
	"maps"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"syscall"
	"time"

	"k8s.io/client-go/rest"
	"k8s.io/client-go/tools/clientcmd"
	clientcmdapi "k8s.io/client-go/tools/clientcmd/api"

	"github.com/singletonjob/operator/test/pki"
	"github.com/singletonjob/operator/test/subprocess"
)

const (
	// readyTimeout is generous: a busy machine is slow, not broken, and a program that has ended is noticed at once.
	readyTimeout = 5 * time.Minute
	// serverGrace is how long a restarted API server may take to finish its requests.
	serverGrace = 10 * time.Second
	// attempts to start, each on other ports: another process may take one between its choice and its use.
	attempts = 3
)

// Options of Start; the zero value is good.
type Options struct {
	// Binaries to run; by default what Find finds.
	Binaries Binaries
	// Dir keeps data, keys and logs. By default a temporary directory, which Stop removes.
	Dir string
	// APIServerFlags are added to the API server's own, as "--name=value".
	APIServerFlags []string
	// Environment is added to that of every program, as "NAME=value": of equal names the last one counts.
	Environment []string
	// Progress is told what takes time. By default nobody is.
	Progress io.Writer
}

// ControlPlane is a running etcd and kube-apiserver. Its methods may be called from any goroutine.
type ControlPlane struct {
	dir       string
	ownsDir   bool
	binaries  Binaries
	authority *pki.Authority
	token     string
	etcdPort  int
	peerPort  int
	port      int
	flags     []string
	environ   []string
	progress  io.Writer

	mu          sync.Mutex // guards the processes
	etcd        *subprocess.Process
	server      *subprocess.Process
	controllers map[string]*subprocess.Process // by name
	revive      map[string]func() (*subprocess.Process, error)
}

// Start starts a control plane on loopback and returns when its API answers and RBAC's own roles exist. Its processes end
// with Stop, and with the calling process however that ends.
func Start(ctx context.Context, o Options) (*ControlPlane, error) {
	if o.Progress == nil {
		o.Progress = io.Discard
	}
	if o.Binaries.Dir == "" {
		binaries, err := Find(ctx, o.Progress)
		if err != nil {
			return nil, err
		}
		o.Binaries = binaries
	}
	var tried error
	for range attempts {
		c, err := prepare(o)
		if err != nil {
			return nil, err
		}
		if err = c.start(ctx); err == nil {
			return c, nil
		}
		c.Stop()
		if !errors.Is(err, errAddressInUse) {
			return nil, err
		}
		tried = errors.Join(tried, err)
	}
	return nil, fmt.Errorf("other programs took each chosen port: %w", tried)
}

func prepare(o Options) (*ControlPlane, error) {
	c := &ControlPlane{
		dir: o.Dir, binaries: o.Binaries, flags: o.APIServerFlags, environ: o.Environment, progress: o.Progress, token: rand.Text(), controllers: map[string]*subprocess.Process{},
		revive: map[string]func() (*subprocess.Process, error){},
	}
	if c.dir == "" {
		dir, err := os.MkdirTemp("", "singletonjob-controlplane-")
		if err != nil {
			return nil, err
		}
		c.dir, c.ownsDir = dir, true
	}
	for _, port := range []*int{&c.etcdPort, &c.peerPort, &c.port} {
		p, err := FreePort()
		if err != nil {
			return nil, err
		}
		*port = p
	}
	if err := c.writeCredentials(); err != nil {
		c.Stop()
		return nil, err
	}
	return c, nil
}

// writeCredentials makes everything that the two programs and the administrator identify themselves with.
func (c *ControlPlane) writeCredentials() (err error) {
	if c.authority, err = pki.Open(c.dir); err != nil {
		return err
	}
	hosts := []string{"127.0.0.1", "localhost", "kubernetes", "kubernetes.default", "kubernetes.default.svc"}
	for file, subject := range map[string]pki.Subject{
		"etcd": {Name: "etcd", Hosts: hosts}, "apiserver": {Name: "kube-apiserver", Hosts: hosts}, "etcd-client": {Name: "kube-apiserver"},
	} {
		if err := c.authority.Issue(file, subject); err != nil {
			return err
		}
	}
	if err := c.authority.SigningKey("service-account"); err != nil {
		return err
	}
	// A token and not a client certificate: it passes through a proxy that ends TLS.
	if err := os.WriteFile(c.path("tokens.csv"), []byte(c.token+`,admin,admin,"system:masters"`+"\n"), 0o600); err != nil {
		return err
	}
	return WriteKubeconfig(c.Kubeconfig(), c.Config())
}

func (c *ControlPlane) path(name string) string { return filepath.Join(c.dir, name) }

func (c *ControlPlane) start(ctx context.Context) error {
	c.mu.Lock()
	defer c.mu.Unlock()
	if err := c.startEtcd(); err != nil {
		return err
	}
	return c.startServer(ctx)
}

func (c *ControlPlane) startEtcd() (err error) {
	client, peer := fmt.Sprintf("https://127.0.0.1:%d", c.etcdPort), fmt.Sprintf("https://127.0.0.1:%d", c.peerPort)
	c.etcd, err = c.run(c.binaries.Path("etcd"),
		"--data-dir="+c.path("etcd"), "--unsafe-no-fsync", "--log-level=warn",
		"--listen-client-urls="+client, "--advertise-client-urls="+client,
		"--listen-peer-urls="+peer, "--initial-advertise-peer-urls="+peer, "--initial-cluster=default="+peer,
		"--cert-file="+c.path("etcd.crt"), "--key-file="+c.path("etcd.key"),
		"--client-cert-auth", "--trusted-ca-file="+c.path("ca.crt"),
		// Its gateway, which Stored asks, is a client of its own.
		"--client-cert-file="+c.path("etcd-client.crt"), "--client-key-file="+c.path("etcd-client.key"),
		"--peer-cert-file="+c.path("etcd.crt"), "--peer-key-file="+c.path("etcd.key"),
		"--peer-client-cert-auth", "--peer-trusted-ca-file="+c.path("ca.crt"))
	return err
}

func (c *ControlPlane) startServer(ctx context.Context) (err error) {
	flags := []string{
		fmt.Sprintf("--etcd-servers=https://127.0.0.1:%d", c.etcdPort), "--etcd-cafile=" + c.path("ca.crt"),
		"--etcd-certfile=" + c.path("etcd-client.crt"), "--etcd-keyfile=" + c.path("etcd-client.key"),
		"--bind-address=127.0.0.1", "--advertise-address=127.0.0.1", fmt.Sprintf("--secure-port=%d", c.port),
		"--tls-cert-file=" + c.path("apiserver.crt"), "--tls-private-key-file=" + c.path("apiserver.key"),
		"--token-auth-file=" + c.path("tokens.csv"), "--authorization-mode=RBAC",
		"--service-account-issuer=https://kubernetes.default.svc.cluster.local",
		"--service-account-signing-key-file=" + c.path("service-account.key"),
		"--service-account-key-file=" + c.path("service-account.pub"),
		"--service-cluster-ip-range=10.96.0.0/16", "--allow-privileged=true",
		// Endpoints may not be loopback addresses, and nothing here uses the Service "kubernetes".
		"--endpoint-reconciler-type=none",
	}
	if c.server, err = c.run(c.binaries.Path("kube-apiserver"), append(flags, c.flags...)...); err != nil {
		return err
	}
	return c.waitReady(ctx)
}

// run starts a program whose output goes to a log of its own, after what earlier runs of it have said.
func (c *ControlPlane) run(program string, args ...string) (*subprocess.Process, error) {
	log, err := os.OpenFile(c.path(filepath.Base(program)+".log"), os.O_CREATE|os.O_WRONLY|os.O_APPEND, 0o600)
	if err != nil {
		return nil, err
	}
	defer func() { _ = log.Close() }()
	cmd := exec.Command(program, args...)
	cmd.Dir, cmd.Stdout, cmd.Stderr = c.dir, log, log
	// They collect garbage more seldom than by default, which is for servers that share a machine's memory with much else: a
	// quarter of their work in tests is that.
	cmd.Env = append(append(os.Environ(), "GOGC=400", "GOMEMLIMIT=1GiB"), c.environ...)
	// A terminal's Ctrl-C is for the program that owns the control plane; it decides in which order to stop.
	cmd.SysProcAttr = &syscall.SysProcAttr{Setpgid: true}
	return subprocess.Start(cmd)
}

// errAddressInUse is a start on other ports away from success.
var errAddressInUse = errors.New("address already in use")

func (c *ControlPlane) waitReady(ctx context.Context) error {
	ctx, cancel := context.WithTimeout(ctx, readyTimeout)
	defer cancel()
	transport, err := rest.TransportFor(c.Config())
	if err != nil {
		return err
	}
	tick := time.NewTicker(50 * time.Millisecond)
	defer tick.Stop()
	for {
		if ready(ctx, transport, c.URL()+"/readyz") {
			return nil
		}
		select {
		case <-c.etcd.Done():
			return c.ended("etcd", c.etcd)
		case <-c.server.Done():
			return c.ended("kube-apiserver", c.server)
		case <-ctx.Done():
			return fmt.Errorf("the API server on %s is not ready after %v: %w\n%s", c.URL(), readyTimeout, ctx.Err(), c.logTail("kube-apiserver"))
		case <-tick.C:
		}
	}
}

func ready(ctx context.Context, transport http.RoundTripper, url string) bool {
	ctx, cancel := context.WithTimeout(ctx, 5*time.Second)
	defer cancel()
	request, err := http.NewRequestWithContext(ctx, http.MethodGet, url, nil)
	if err != nil {
		return false
	}
	response, err := transport.RoundTrip(request)
	if err != nil {
		return false
	}
	_ = response.Body.Close()
	return response.StatusCode == http.StatusOK
}

func (c *ControlPlane) ended(name string, p *subprocess.Process) error {
	tail := c.logTail(name)
	if strings.Contains(tail, errAddressInUse.Error()) {
		return fmt.Errorf("%s: %w", name, errAddressInUse)
	}
	return fmt.Errorf("%s ended: %w; its last words:\n%s", name, p.Err(), tail)
}

func (c *ControlPlane) logTail(name string) string {
	const lines = 15
	log, err := os.ReadFile(c.path(name + ".log"))
	if err != nil {
		return err.Error()
	}
	all := bytes.Split(bytes.TrimSpace(log), []byte("\n"))
	return string(bytes.Join(all[max(0, len(all)-lines):], []byte("\n")))
}

// Stop ends all programs at once and removes the temporary directory. It may be called twice.
func (c *ControlPlane) Stop() {
	c.mu.Lock()
	defer c.mu.Unlock()
	for _, p := range append(slices.Collect(maps.Values(c.controllers)), c.server, c.etcd) {
		if p != nil {
			p.Stop(0) // the data is thrown away, so there is nothing to finish
		}
	}
	if c.ownsDir {
		_ = os.RemoveAll(c.dir)
	}
}

// StopAPIServer ends the API server; clients are refused until StartAPIServer.
func (c *ControlPlane) StopAPIServer() {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.server.Stop(serverGrace)
}

// KillAPIServer ends it at once: one that is asked to end waits for its watches, for a minute at most.
func (c *ControlPlane) KillAPIServer() {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.server.Stop(0)
}

// StartAPIServer starts a stopped API server on the address and with the data it had, and returns when it is ready.
func (c *ControlPlane) StartAPIServer(ctx context.Context) error {
	c.mu.Lock()
	defer c.mu.Unlock()
	select {
	case <-c.server.Done():
	default:
		return errors.New("the API server runs already")
	}
	return c.startServer(ctx)
}

// StopEtcd kills etcd, and StartEtcd starts it again with the data that it had.
func (c *ControlPlane) StopEtcd() {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.etcd.Stop(0)
}

// StartEtcd starts a stopped etcd; it does not wait for it.
func (c *ControlPlane) StartEtcd() error {
	c.mu.Lock()
	defer c.mu.Unlock()
	select {
	case <-c.etcd.Done():
		return c.startEtcd()
	default:
		return errors.New("etcd runs already")
	}
}

// SignalEtcd sends sig to etcd: SIGSTOP pauses it, SIGCONT lets it go on.
func (c *ControlPlane) SignalEtcd(sig syscall.Signal) error {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.etcd.Signal(sig)
}

// SignalAPIServer sends sig to the API server, as SignalEtcd does to etcd. A killed one stays down until StartAPIServer.
func (c *ControlPlane) SignalAPIServer(sig syscall.Signal) error {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.server.Signal(sig)
}

// Pids are the processes that run, by the names of their programs.
func (c *ControlPlane) Pids() map[string]int {
	c.mu.Lock()
	defer c.mu.Unlock()
	pids := map[string]int{"etcd": c.etcd.Pid(), "kube-apiserver": c.server.Pid()}
	for name, p := range c.controllers {
		pids[name] = p.Pid()
	}
	return pids
}

// URL is the API server's address.
func (c *ControlPlane) URL() string { return fmt.Sprintf("https://127.0.0.1:%d", c.port) }

// Kubeconfig is a file for kubectl, as the administrator.
func (c *ControlPlane) Kubeconfig() string { return c.path("admin.kubeconfig") }

// Dir holds the logs, etcd.log and kube-apiserver.log, and the keys.
func (c *ControlPlane) Dir() string { return c.dir }

// Binaries are the programs that run.
func (c *ControlPlane) Binaries() Binaries { return c.binaries }

// CA is the PEM certificate that clients trust: the content of the ConfigMap kube-root-ca.crt.
func (c *ControlPlane) CA() []byte { return c.authority.PEM() }

// NextCA makes another certificate authority for the control plane, and a certificate of the API server's by it: what a
// rotation brings. The control plane itself goes on with its own.
func NextCA(hosts ...string) (ca []byte, certificate tls.Certificate, err error) {
	dir, err := os.MkdirTemp("", "singletonjob-authority-")
	if err != nil {
		return nil, tls.Certificate{}, err
	}
	defer func() { _ = os.RemoveAll(dir) }()
	next, err := pki.Open(dir)
	if err != nil {
		return nil, tls.Certificate{}, err
	}
	certificate, err = next.Certificate("apiserver", pki.Subject{Name: "kube-apiserver", Hosts: hosts})
	return next.PEM(), certificate, err
}

// ServerCertificate is one that clients of this control plane trust for hosts (names or addresses): for proxies before it.
func (c *ControlPlane) ServerCertificate(hosts ...string) (tls.Certificate, error) {
	if len(hosts) == 0 {
		hosts = []string{"127.0.0.1"}
	}
	return c.authority.Certificate("serving-"+strings.Join(hosts, "_"), pki.Subject{Name: hosts[0], Hosts: hosts})
}

// Config is a client's configuration as the administrator, without client-side rate limits. To act as somebody else, set
// its Impersonate: unlike a client certificate, that passes through a proxy.
func (c *ControlPlane) Config() *rest.Config {
	return &rest.Config{
		Host:            c.URL(),
		BearerToken:     c.token,
		TLSClientConfig: rest.TLSClientConfig{CAData: c.CA()},
		QPS:             -1,
	}
}

// Kubectl runs kubectl as the administrator and returns what it prints.
func (c *ControlPlane) Kubectl(ctx context.Context, args ...string) (string, error) {
	cmd := exec.CommandContext(ctx, c.binaries.Path("kubectl"), args...)
	cmd.Env = append(os.Environ(), "KUBECONFIG="+c.Kubeconfig(), "GOGC=400") // it ends before garbage is a matter
	out, err := cmd.Output()
	if err != nil {
		return string(out), fmt.Errorf("kubectl %s: %w", strings.Join(args, " "), withStderr(err))
	}
	return string(out), nil
}

// Apply applies the manifests in the given files and directories, and waits until the definitions among them are served.
func (c *ControlPlane) Apply(ctx context.Context, paths ...string) error {
	args := []string{"apply", "--server-side", "--force-conflicts", "-o", "name"}
	for _, path := range paths {
		args = append(args, "-f", path)
	}
	out, err := c.Kubectl(ctx, args...)
	if err != nil {
		return err
	}
	for name := range strings.Lines(out) {
		if strings.HasPrefix(name, "customresourcedefinition.apiextensions.k8s.io/") {
			if err := c.waitServed(ctx, strings.TrimSpace(name)); err != nil {
				return err
			}
		}
	}
	return nil
}

// waitServed waits for a definition, and until the next who asks hears of it. kubectl fails instead of waiting while a new one has null
// for its conditions.
func (c *ControlPlane) waitServed(ctx context.Context, definition string) error {
	for {
		_, err := c.Kubectl(ctx, "wait", "--for=condition=Established", "--timeout=60s", definition)
		if err == nil {
			break
		}
		if !strings.Contains(err.Error(), ".status.conditions accessor error") {
			return err
		}
	}
	_, name, _ := strings.Cut(definition, "/")
	for {
		names, err := c.Kubectl(ctx, "api-resources", "--cached=false", "--output=name")
		if err == nil && slices.Contains(strings.Fields(names), name) {
			return nil
		}
		select {
		case <-ctx.Done():
			return fmt.Errorf("%s is not served: %w", name, errors.Join(ctx.Err(), err))
		case <-time.After(50 * time.Millisecond):
		}
	}
}

// WriteKubeconfig writes a kubeconfig file for a client that identifies itself by a bearer token.
func WriteKubeconfig(path string, config *rest.Config) error {
	const name = "singletonjob-test"
	file := clientcmdapi.NewConfig()
	file.Clusters[name] = &clientcmdapi.Cluster{Server: config.Host, CertificateAuthorityData: config.CAData}
	file.AuthInfos[name] = &clientcmdapi.AuthInfo{Token: config.BearerToken, Impersonate: config.Impersonate.UserName, ImpersonateGroups: config.Impersonate.Groups}
	file.Contexts[name] = &clientcmdapi.Context{Cluster: name, AuthInfo: name}
	file.CurrentContext = name
	if err := clientcmd.WriteToFile(*file, path); err != nil {
		return fmt.Errorf("writing the kubeconfig %s: %w", path, err)
	}
	return nil
}
