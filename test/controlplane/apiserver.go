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
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"time"

	"k8s.io/client-go/rest"
	"k8s.io/client-go/tools/clientcmd"
	clientcmdapi "k8s.io/client-go/tools/clientcmd/api"

	"github.com/singletonjob/operator/test/pki"
)

const (
	// readyTimeout is generous: a busy machine is slow, not broken, and a program that has ended is noticed at once.
	readyTimeout = 5 * time.Minute
	// attempts to start, each on other ports: another process may take one between its choice and its use.
	attempts = 3
)

// Options of Start and Serve; the zero value is good.
type Options struct {
	// Binaries to run; by default what Find finds.
	Binaries Binaries
	// Dir keeps data, keys and logs. By default a temporary directory, which is removed when they are stopped.
	Dir string
	// Servers is how many API servers Start starts, all on one etcd; by default one. Serve starts one.
	Servers int
	// APIServerFlags are added to the API server's own, as "--name=value".
	APIServerFlags []string
	// Environment is added to that of every program, as "NAME=value": of equal names the last one counts.
	Environment []string
	// Progress receives reports on slow steps. By default nobody is.
	Progress io.Writer
}

// APIServer is what clients of an API server need. It knows nothing of the processes: only a ControlPlane can stop, pause or kill them.
// Its methods may be called from any goroutine.
type APIServer struct {
	dir       string
	ownsDir   bool
	binaries  Binaries
	authority *pki.Authority
	token     string
	etcdPort  int
	peerPort  int
	ports     []int // of each API server
	flags     []string
	environ   []string
}

// Serve prepares an etcd and an API server as Start does, and leaves it to run to start them. It returns when the API answers and
// RBAC's own roles exist. stop ends both and removes the temporary directory.
//
// run gets the two programs with their flags, directory, environment and log. It returns when both answer, with what stops them. If it
// fails, it has stopped what it started.
func Serve(ctx context.Context, o Options, run func(a *APIServer, etcd, server *exec.Cmd) (stop func(), err error)) (a *APIServer, stop func(), err error) {
	err = o.prepared(ctx, func(prepared *APIServer) error {
		a = prepared
		end, err := a.runBy(run)
		if err != nil {
			return err
		}
		stop = func() {
			end()
			a.remove()
		}
		// The caller gets the server only after both answered.
		if err := a.waitReady(ctx, a.URL(), func() error { return nil }); err != nil {
			stop()
			return err
		}
		return nil
	})
	if err != nil {
		return nil, nil, err
	}
	return a, stop, nil
}

func (a *APIServer) runBy(run func(a *APIServer, etcd, server *exec.Cmd) (stop func(), err error)) (stop func(), err error) {
	etcd, etcdLog, err := a.command(a.binaries.Path("etcd"), a.etcdFlags()...)
	if err != nil {
		return nil, err
	}
	defer func() { _ = etcdLog.Close() }()
	server, serverLog, err := a.command(a.binaries.Path("kube-apiserver"), a.serverFlags(0)...)
	if err != nil {
		return nil, err
	}
	defer func() { _ = serverLog.Close() }()
	if stop, err = run(a, etcd, server); err != nil {
		return nil, errors.Join(a.ended("etcd", err), a.ended("kube-apiserver", err))
	}
	return stop, nil
}

// prepared has start run what it prepares. It does so again, on other ports, where another program took one. If start fails, it has
// stopped what it started.
func (o *Options) prepared(ctx context.Context, start func(*APIServer) error) (err error) {
	if o.Progress == nil {
		o.Progress = io.Discard
	}
	if o.Binaries.Dir == "" {
		if o.Binaries, err = Find(ctx, o.Progress); err != nil {
			return err
		}
	}
	var tried error
	for range attempts {
		a, err := prepare(*o)
		if err != nil {
			return err
		}
		if err = start(a); err == nil {
			return nil
		}
		a.remove()
		if !errors.Is(err, errAddressInUse) {
			return err
		}
		tried = errors.Join(tried, err)
	}
	return fmt.Errorf("other programs took each chosen port: %w", tried)
}

func prepare(o Options) (*APIServer, error) {
	a := &APIServer{dir: o.Dir, binaries: o.Binaries, flags: o.APIServerFlags, environ: o.Environment, token: rand.Text()}
	if a.dir == "" {
		dir, err := os.MkdirTemp("", "singletonjob-controlplane-")
		if err != nil {
			return nil, err
		}
		a.dir, a.ownsDir = dir, true
	}
	a.ports = make([]int, max(1, o.Servers))
	ports := []*int{&a.etcdPort, &a.peerPort}
	for i := range a.ports {
		ports = append(ports, &a.ports[i])
	}
	for _, port := range ports {
		p, err := FreePort()
		if err != nil {
			return nil, err
		}
		*port = p
	}
	if err := a.writeCredentials(); err != nil {
		a.remove()
		return nil, err
	}
	return a, nil
}

// remove removes the directory, if it is a temporary one.
func (a *APIServer) remove() {
	if a.ownsDir {
		_ = os.RemoveAll(a.dir)
	}
}

// writeCredentials makes everything that the two programs and the administrator identify themselves with.
func (a *APIServer) writeCredentials() (err error) {
	if a.authority, err = pki.Open(a.dir); err != nil {
		return err
	}
	hosts := []string{"127.0.0.1", "localhost", "kubernetes", "kubernetes.default", "kubernetes.default.svc"}
	for file, subject := range map[string]pki.Subject{
		"etcd": {Name: "etcd", Hosts: hosts}, "apiserver": {Name: "kube-apiserver", Hosts: hosts}, "etcd-client": {Name: "kube-apiserver"},
	} {
		if err := a.authority.Issue(file, subject); err != nil {
			return err
		}
	}
	if err := a.authority.SigningKey("service-account"); err != nil {
		return err
	}
	// A token and not a client certificate: it passes through a proxy that ends TLS.
	if err := os.WriteFile(a.path("tokens.csv"), []byte(a.token+`,admin,admin,"system:masters"`+"\n"), 0o600); err != nil {
		return err
	}
	return WriteKubeconfig(a.Kubeconfig(), a.Config())
}

func (a *APIServer) path(name string) string { return filepath.Join(a.dir, name) }

func (a *APIServer) etcdFlags() []string {
	client, peer := fmt.Sprintf("https://127.0.0.1:%d", a.etcdPort), fmt.Sprintf("https://127.0.0.1:%d", a.peerPort)
	return []string{
		"--data-dir=" + a.path("etcd"), "--unsafe-no-fsync", "--log-level=warn",
		"--listen-client-urls=" + client, "--advertise-client-urls=" + client,
		"--listen-peer-urls=" + peer, "--initial-advertise-peer-urls=" + peer, "--initial-cluster=default=" + peer,
		"--cert-file=" + a.path("etcd.crt"), "--key-file=" + a.path("etcd.key"),
		"--client-cert-auth", "--trusted-ca-file=" + a.path("ca.crt"),
		// Its gateway, which Stored asks, is a client of its own.
		"--client-cert-file=" + a.path("etcd-client.crt"), "--client-key-file=" + a.path("etcd-client.key"),
		"--peer-cert-file=" + a.path("etcd.crt"), "--peer-key-file=" + a.path("etcd.key"),
		"--peer-client-cert-auth", "--peer-trusted-ca-file=" + a.path("ca.crt"),
	}
}

func (a *APIServer) serverFlags(server int) []string {
	return append([]string{
		fmt.Sprintf("--etcd-servers=https://127.0.0.1:%d", a.etcdPort), "--etcd-cafile=" + a.path("ca.crt"),
		"--etcd-certfile=" + a.path("etcd-client.crt"), "--etcd-keyfile=" + a.path("etcd-client.key"),
		"--bind-address=127.0.0.1", "--advertise-address=127.0.0.1", fmt.Sprintf("--secure-port=%d", a.ports[server]),
		"--tls-cert-file=" + a.path("apiserver.crt"), "--tls-private-key-file=" + a.path("apiserver.key"),
		"--token-auth-file=" + a.path("tokens.csv"), "--authorization-mode=RBAC",
		"--service-account-issuer=https://kubernetes.default.svc.cluster.local",
		"--service-account-signing-key-file=" + a.path("service-account.key"),
		"--service-account-key-file=" + a.path("service-account.pub"),
		"--service-cluster-ip-range=10.96.0.0/16", "--allow-privileged=true",
		// Endpoints may not be loopback addresses, and nothing here uses the Service "kubernetes".
		"--endpoint-reconciler-type=none",
	}, a.flags...)
}

// command is a program as all are run. Its output is appended to the log, which the caller closes after the start.
func (a *APIServer) command(program string, args ...string) (cmd *exec.Cmd, log *os.File, err error) {
	log, err = os.OpenFile(a.path(filepath.Base(program)+".log"), os.O_CREATE|os.O_WRONLY|os.O_APPEND, 0o600)
	if err != nil {
		return nil, nil, err
	}
	cmd = exec.Command(program, args...)
	cmd.Dir, cmd.Stdout, cmd.Stderr = a.dir, log, log
	// They collect garbage more seldom than by default, which is for servers that share a machine's memory with much else: a
	// quarter of their work in tests is that.
	cmd.Env = append(append(os.Environ(), "GOGC=400", "GOMEMLIMIT=1GiB"), a.environ...)
	return cmd, log, nil
}

// waitReady waits until the API server at url answers and RBAC's own roles exist, or until ended tells why they never will.
func (a *APIServer) waitReady(ctx context.Context, url string, ended func() error) error {
	ctx, cancel := context.WithTimeout(ctx, readyTimeout)
	defer cancel()
	transport, err := rest.TransportFor(a.Config())
	if err != nil {
		return err
	}
	tick := time.NewTicker(50 * time.Millisecond)
	defer tick.Stop()
	for !ready(ctx, transport, url+"/readyz") {
		if err := ended(); err != nil {
			return err
		}
		select {
		case <-ctx.Done():
			return fmt.Errorf("the API server on %s is not ready after %v: %w\n%s", url, readyTimeout, ctx.Err(), a.logTail("kube-apiserver"))
		case <-tick.C:
		}
	}
	return nil
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

// errAddressInUse is a start on other ports away from success.
var errAddressInUse = errors.New("address already in use")

// ended is why a program does not run that should.
func (a *APIServer) ended(name string, err error) error {
	tail := a.logTail(name)
	if strings.Contains(tail, errAddressInUse.Error()) {
		return fmt.Errorf("%s: %w", name, errAddressInUse)
	}
	return fmt.Errorf("%s: %w; its last words:\n%s", name, err, tail)
}

func (a *APIServer) logTail(name string) string {
	const lines = 15
	log, err := os.ReadFile(a.path(name + ".log"))
	if err != nil {
		return err.Error()
	}
	all := bytes.Split(bytes.TrimSpace(log), []byte("\n"))
	return string(bytes.Join(all[max(0, len(all)-lines):], []byte("\n")))
}

// URL is the API server's address: of several, the first one's.
func (a *APIServer) URL() string { return a.URLs()[0] }

// URLs are the addresses of all API servers.
func (a *APIServer) URLs() []string {
	urls := make([]string, 0, len(a.ports))
	for _, port := range a.ports {
		urls = append(urls, fmt.Sprintf("https://127.0.0.1:%d", port))
	}
	return urls
}

// Kubeconfig is a file for kubectl, as the administrator.
func (a *APIServer) Kubeconfig() string { return a.path("admin.kubeconfig") }

// Dir holds the logs, etcd.log and kube-apiserver.log, and the keys.
func (a *APIServer) Dir() string { return a.dir }

// Binaries are the programs that run.
func (a *APIServer) Binaries() Binaries { return a.binaries }

// CA is the PEM certificate that clients trust: the content of the ConfigMap kube-root-ca.crt.
func (a *APIServer) CA() []byte { return a.authority.PEM() }

// NextCA makes another certificate authority for the control plane, and a certificate of the API server's by it: what a
// rotation brings. The control plane itself continues with its own.
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
func (a *APIServer) ServerCertificate(hosts ...string) (tls.Certificate, error) {
	if len(hosts) == 0 {
		hosts = []string{"127.0.0.1"}
	}
	return a.authority.Certificate("serving-"+strings.Join(hosts, "_"), pki.Subject{Name: hosts[0], Hosts: hosts})
}

// Config is a client's configuration as the administrator, without client-side rate limits. To act as somebody else, set
// its Impersonate: unlike a client certificate, that passes through a proxy.
func (a *APIServer) Config() *rest.Config {
	return &rest.Config{
		Host:            a.URL(),
		BearerToken:     a.token,
		TLSClientConfig: rest.TLSClientConfig{CAData: a.CA()},
		QPS:             -1,
	}
}

// Kubectl runs kubectl as the administrator and returns what it prints.
func (a *APIServer) Kubectl(ctx context.Context, args ...string) (string, error) {
	cmd := exec.CommandContext(ctx, a.binaries.Path("kubectl"), args...)
	cmd.Env = append(os.Environ(), "KUBECONFIG="+a.Kubeconfig(), "GOGC=400") // it ends before garbage is a matter
	out, err := cmd.Output()
	if err != nil {
		return string(out), fmt.Errorf("kubectl %s: %w", strings.Join(args, " "), withStderr(err))
	}
	return string(out), nil
}

// Apply applies the manifests in the given files and directories, and waits until the definitions among them are served.
func (a *APIServer) Apply(ctx context.Context, paths ...string) error {
	args := []string{"apply", "--server-side", "--force-conflicts", "-o", "name"}
	for _, path := range paths {
		args = append(args, "-f", path)
	}
	out, err := a.Kubectl(ctx, args...)
	if err != nil {
		return err
	}
	for name := range strings.Lines(out) {
		if strings.HasPrefix(name, "customresourcedefinition.apiextensions.k8s.io/") {
			if err := a.waitServed(ctx, strings.TrimSpace(name)); err != nil {
				return err
			}
		}
	}
	return nil
}

// waitServed waits for a definition, and until the next who asks learns about it. kubectl fails instead of waiting while a new one has null
// for its conditions.
func (a *APIServer) waitServed(ctx context.Context, definition string) error {
	for {
		_, err := a.Kubectl(ctx, "wait", "--for=condition=Established", "--timeout=60s", definition)
		if err == nil {
			break
		}
		if !strings.Contains(err.Error(), ".status.conditions accessor error") {
			return err
		}
	}
	_, name, _ := strings.Cut(definition, "/")
	for {
		names, err := a.Kubectl(ctx, "api-resources", "--cached=false", "--output=name")
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
