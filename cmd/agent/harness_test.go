//go:build linux

package main

import (
	"bufio"
	"context"
	"encoding/json"
	"errors"
	"flag"
	"fmt"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	authenticationv1 "k8s.io/api/authentication/v1"
	coordinationv1 "k8s.io/api/coordination/v1"
	corev1 "k8s.io/api/core/v1"
	rbacv1 "k8s.io/api/rbac/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/kubernetes"

	"github.com/singletonjob/operator/fence"
	"github.com/singletonjob/operator/internal/agent"
	"github.com/singletonjob/operator/internal/contract"
	"github.com/singletonjob/operator/internal/lease"
	"github.com/singletonjob/operator/internal/supervise"
	"github.com/singletonjob/operator/test/apiserver"
	"github.com/singletonjob/operator/test/controlplane"
	"github.com/singletonjob/operator/test/faultproxy"
	"github.com/singletonjob/operator/test/subprocess"
)

// This test binary is three programs: the tests, the agent (with its leash), and the process that the agents run.
const roleEnv = "SINGLETONJOB_TEST_ROLE"

func TestMain(m *testing.M) {
	supervise.MaybeLeash()
	if os.Args[0] == agent.AnewName { // its role is hidden with the rest
		main()
	}
	switch os.Getenv(roleEnv) {
	case "agent":
		main()
	case "elector":
		elect()
	case "process":
		process()
	case "spin":
		spin()
	default:
		flag.Parse()
		if parallel := flag.Lookup("test.parallel"); parallel.Value.String() == parallel.DefValue {
			_ = flag.Set("test.parallel", "20") // the tests wait much more than they use the CPU
		}
		os.Exit(apiserver.Main(m))
	}
}

// world is one namespace with one Lease and the agents that compete for it.
type world struct {
	t      testing.TB
	plane  *controlplane.APIServer
	ns     string
	client kubernetes.Interface
	diary  *diary
	// program is the agent: this test binary, or the real one.
	program string
}

const jobName = "job"

func newWorld(t testing.TB) *world {
	t.Helper()
	plane := apiserver.ForTest(t)
	client, err := kubernetes.NewForConfig(plane.Config())
	if err != nil {
		t.Fatal(err)
	}
	self, err := os.Executable()
	if err != nil {
		t.Fatal(err)
	}
	w := &world{t: t, plane: plane, ns: plane.Namespace(t), client: client, diary: newDiary(t), program: self}
	w.allow()
	w.createLease()
	return w
}

// allow gives the agents' service account exactly the rights that the operator gives it.
func (w *world) allow() {
	w.t.Helper()
	ctx := w.t.Context()
	meta := metav1.ObjectMeta{Name: "agents"}
	account := &corev1.ServiceAccount{ObjectMeta: meta}
	role := &rbacv1.Role{ObjectMeta: meta, Rules: []rbacv1.PolicyRule{{
		APIGroups: []string{"coordination.k8s.io"}, Resources: []string{"leases"}, ResourceNames: []string{jobName},
		Verbs: []string{"get", "watch", "update"},
	}, {
		APIGroups: []string{""}, Resources: []string{"pods"}, ResourceNames: []string{"a", "b"}, Verbs: []string{"get"},
	}}}
	_, err := w.client.CoreV1().ServiceAccounts(w.ns).Create(ctx, account, metav1.CreateOptions{})
	w.must(err)
	_, err = w.client.RbacV1().Roles(w.ns).Create(ctx, role, metav1.CreateOptions{})
	w.must(err)
	w.bind()
}

func (w *world) bind() {
	w.t.Helper()
	_, err := w.client.RbacV1().RoleBindings(w.ns).Create(w.t.Context(), &rbacv1.RoleBinding{
		ObjectMeta: metav1.ObjectMeta{Name: "agents"},
		RoleRef:    rbacv1.RoleRef{APIGroup: rbacv1.GroupName, Kind: "Role", Name: "agents"},
		Subjects:   []rbacv1.Subject{{Kind: "ServiceAccount", Name: "agents", Namespace: w.ns}},
	}, metav1.CreateOptions{})
	w.must(err)
}

func (w *world) must(err error) {
	w.t.Helper()
	if err != nil {
		w.t.Fatal(err)
	}
}

// createLease creates the Lease as the operator does for a new job.
func (w *world) createLease() {
	w.t.Helper()
	_, err := w.client.CoordinationV1().Leases(w.ns).Create(w.t.Context(), &coordinationv1.Lease{ObjectMeta: metav1.ObjectMeta{
		Name:        jobName,
		Labels:      map[string]string{contract.ManagedByLabel: contract.ManagedBy, contract.NameLabel: jobName},
		Annotations: map[string]string{contract.ReleaseReasonAnnotation: string(lease.ReasonCreated)},
	}}, metav1.CreateOptions{})
	w.must(err)
}

func (w *world) lease() *coordinationv1.Lease {
	w.t.Helper()
	l, err := w.client.CoordinationV1().Leases(w.ns).Get(w.t.Context(), jobName, metav1.GetOptions{})
	w.must(err)
	return l
}

func (w *world) annotate(values map[string]any) {
	w.t.Helper()
	w.patch(map[string]any{"metadata": map[string]any{"annotations": values}})
}

func (w *world) patch(change any) {
	w.t.Helper()
	body, err := json.Marshal(change)
	w.must(err)
	_, err = w.client.CoordinationV1().Leases(w.ns).Patch(w.t.Context(), jobName, "application/merge-patch+json", body, metav1.PatchOptions{})
	w.must(err)
}

// newToken returns a token of the agents' service account.
func (w *world) newToken() string {
	w.t.Helper()
	r, err := w.client.CoreV1().ServiceAccounts(w.ns).CreateToken(w.t.Context(), "agents", &authenticationv1.TokenRequest{}, metav1.CreateOptions{})
	w.must(err)
	return r.Status.Token
}

// testConfig has times that are as short as a busy machine allows.
func testConfig() contract.AgentConfig {
	return contract.AgentConfig{
		Name: jobName, RunID: "run", TokenEnv: fence.EnvToken,
		LeaseDuration: seconds(6), RenewDeadline: seconds(4), RetryPeriod: seconds(0.5), GracePeriod: seconds(30),
	}
}

// steadyConfig is for tenures that must not end, however busy the machine is.
func steadyConfig() contract.AgentConfig {
	config := testConfig()
	config.LeaseDuration, config.RenewDeadline = seconds(3600), seconds(3000)
	return config
}

func seconds(s float64) contract.Duration { return contract.Duration(s * float64(time.Second)) }

// candidate is a running agent, and the network between it and the API server.
type candidate struct {
	w           *world
	pod         string
	proxy       *faultproxy.Proxy
	service     *service // between the agent and the proxy, if it is not nil
	credentials string
	agent       *subprocess.Process
	lines       *lines
	stderr      *os.File // instead of lines
	by          []string // a program that executes the agent; nil for none
	attr        *syscall.SysProcAttr
	env         []string
}

// candidate starts an agent whose process does what the arguments say.
func (w *world) candidate(pod string, config contract.AgentConfig, process ...string) *candidate {
	w.t.Helper()
	c := w.prepare(pod, config)
	c.start(process...)
	return c
}

// holder starts a candidate and waits until its process acts.
func (w *world) holder(pod string, config contract.AgentConfig, process ...string) *candidate {
	w.t.Helper()
	c := w.candidate(pod, config, process...)
	w.acts(c)
	return c
}

// standby starts a candidate and waits until it has found the Lease held.
func (w *world) standby(pod string, config contract.AgentConfig) *candidate {
	w.t.Helper()
	c := w.candidate(pod, config)
	c.await("lease held")
	return c
}

// acts waits for the candidate's next tenure and for its process, and returns its token.
func (w *world) acts(c *candidate) int64 {
	w.t.Helper()
	token := c.acquired()
	w.awaitBeat(token)
	return token
}

// prepare creates everything that an agent needs.
func (w *world) prepare(pod string, config contract.AgentConfig) *candidate {
	w.t.Helper()
	proxy := w.network()
	c := &candidate{w: w, pod: pod, proxy: proxy, credentials: w.t.TempDir()}
	w.must(os.WriteFile(filepath.Join(c.credentials, "ca.crt"), w.plane.CA(), 0o600))
	c.setToken(w.newToken())
	host, port, _ := strings.Cut(proxy.Addr(), ":")
	c.env = []string{
		"GORACE=atexit_sleep_ms=0", // otherwise, with the race detector, every process lingers for a second
		roleEnv + "=agent", "PATH=" + os.Getenv("PATH"), "TMPDIR=" + os.TempDir(),
		contract.ConfigEnv + "=" + config.Encode(), contract.PodEnv + "=" + pod, contract.PodUIDEnv + "=uid-of-" + pod + "-in-" + w.ns,
		contract.NodeEnv + "=node-of-" + pod, contract.NamespaceEnv + "=" + w.ns, contract.CredentialsEnv + "=" + c.credentials,
		contract.APIHostEnv + "=" + host, contract.APIPortEnv + "=" + port,
		contract.SocketEnv + "=" + filepath.Join(c.credentials, "agent.sock"),
	}
	return c
}

// network is one connection path to the API server.
func (w *world) network() *faultproxy.Proxy {
	w.t.Helper()
	certificate, err := w.plane.ServerCertificate()
	w.must(err)
	proxy, err := faultproxy.Start(faultproxy.Options{Listen: "127.0.0.1:0", Certificate: &certificate, Upstream: w.plane.URL(), UpstreamCA: w.plane.CA()})
	w.must(err)
	w.t.Cleanup(proxy.Close)
	return proxy
}

// start starts the agent, also again after it has ended.
func (c *candidate) start(process ...string) {
	c.w.t.Helper()
	exe, err := os.Executable()
	c.w.must(err)
	// env sets the process's role and keeps the variables that only the agent knows
	c.run(append([]string{"env", roleEnv + "=process", exe, c.w.diary.path}, process...)...)
}

// run starts the agent with any command.
func (c *candidate) run(command ...string) {
	c.w.t.Helper()
	argv := slices.Concat(c.by, []string{c.w.program, "run", "--"}, command)
	cmd := exec.Command(argv[0], argv[1:]...)
	cmd.Env, cmd.SysProcAttr = c.env, c.attr
	stderr := c.stderr
	if stderr == nil {
		reader, writer, err := os.Pipe()
		c.w.must(err)
		defer writer.Close()
		c.lines, stderr = follow(reader), writer
	}
	cmd.Stderr = stderr
	var err error
	c.agent, err = subprocess.Start(cmd)
	c.w.must(err)
	p := c.agent
	wrote := c.lines
	c.w.t.Cleanup(func() {
		if c.w.t.Failed() {
			c.w.t.Logf("agent %s, with the processes below it:\n%s", c.pod, below(p.Pid()))
			wrote.log(c.w.t)
		}
		_ = p.Signal(syscall.SIGCONT)
		p.Stop(0)
	})
}

// below describes a process and its descendants, for a test that has failed. It knows those whose PIDs are higher than their parents'.
func below(pid int) string {
	all, err := exec.Command("ps", "-eo", "pid,ppid,stat,wchan:24,etimes,args", "--sort=pid").Output()
	if err != nil {
		return err.Error()
	}
	var tree strings.Builder
	known := map[string]bool{strconv.Itoa(pid): true}
	for line := range strings.Lines(string(all)) {
		if f := strings.Fields(line); known[f[0]] || known[f[1]] {
			known[f[0]] = true
			tree.WriteString(line)
		}
	}
	return tree.String()
}

// log logs the latest lines. l can be nil.
func (l *lines) log(t testing.TB) {
	if l == nil {
		return
	}
	l.mu.Lock()
	defer l.mu.Unlock()
	for _, line := range l.all[max(0, len(l.all)-40):] {
		t.Log(line)
	}
}

func (c *candidate) setToken(token string) {
	c.w.t.Helper()
	temp := filepath.Join(c.credentials, ".token")
	c.w.must(os.WriteFile(temp, []byte(token), 0o600))
	c.w.must(os.Rename(temp, filepath.Join(c.credentials, "token")))
}

func (c *candidate) signal(sig os.Signal) {
	c.w.t.Helper()
	c.w.must(c.agent.Signal(sig))
}

// exit waits for the agent to end and returns its exit status, 128+n for signal n.
func (c *candidate) exit() int {
	c.w.t.Helper()
	select {
	case <-c.agent.Done():
	case <-time.After(patience):
		c.w.t.Fatalf("the agent of %s has not ended; its log:\n%s", c.pod, c.lines)
	}
	err := c.agent.Err()
	if err == nil {
		return 0
	}
	var exit *exec.ExitError
	if !errors.As(err, &exit) {
		c.w.t.Fatal(err)
	}
	status, _ := exit.Sys().(syscall.WaitStatus)
	if status.Signaled() {
		return 128 + int(status.Signal())
	}
	return status.ExitStatus()
}

// await waits for a log line that contains all the given words, after those that were waited for before.
func (c *candidate) await(words ...string) string {
	c.w.t.Helper()
	line, _ := c.awaitAt(words...)
	return line
}

// awaitEither waits for a log line that contains any of the given texts, and leaves it to be waited for again.
func (c *candidate) awaitEither(texts ...string) {
	c.w.t.Helper()
	c.w.eventually(fmt.Sprintf("the agent of %s said one of %q", c.pod, texts), func() bool {
		log := c.lines.String()
		return slices.ContainsFunc(texts, func(text string) bool { return strings.Contains(log, text) })
	})
}

// awaitAt also returns when the line was logged, by CLOCK_BOOTTIME.
func (c *candidate) awaitAt(words ...string) (line string, at int64) {
	c.w.t.Helper()
	line, at, ok := c.lines.await(words)
	if !ok {
		c.w.t.Fatalf("the agent of %s did not say %q; its log:\n%s", c.pod, words, c.lines)
	}
	return line, at
}

// acquired waits until the candidate holds the Lease, and returns its token.
func (c *candidate) acquired() int64 {
	c.w.t.Helper()
	return number(c.w.t, c.await("acquired "), "token")
}

func number(t testing.TB, line, name string) int64 {
	t.Helper()
	for word := range strings.FieldsSeq(line) {
		if text, ok := strings.CutPrefix(word, name+"="); ok {
			var n int64
			if _, err := fmt.Sscan(text, &n); err == nil {
				return n
			}
		}
	}
	t.Fatalf("%q has no %s=", line, name)
	return 0
}

// patience is the timeout for every expected event. It is longer than a busy machine needs.
const patience = 3 * time.Minute

// lines collects the log of an agent.
type lines struct {
	mu    sync.Mutex
	all   []string
	at    []int64 // CLOCK_BOOTTIME of each line
	next  int     // the first line that no test has waited for
	ended bool
	more  chan struct{} // closed and replaced with each line
}

func follow(r io.ReadCloser) *lines {
	l := &lines{more: make(chan struct{})}
	go func() {
		defer r.Close()
		for s := bufio.NewScanner(r); s.Scan(); {
			l.add(s.Text())
		}
		l.mu.Lock()
		defer l.mu.Unlock()
		l.ended = true
		close(l.more)
	}()
	return l
}

func (l *lines) add(line string) {
	now := supervise.BootTime()
	l.mu.Lock()
	defer l.mu.Unlock()
	l.all, l.at = append(l.all, line), append(l.at, now)
	close(l.more)
	l.more = make(chan struct{})
}

// await returns the next line that contains the words, and when it was logged.
func (l *lines) await(words []string) (line string, at int64, ok bool) {
	limit := time.After(patience)
	for {
		l.mu.Lock()
		for ; l.next < len(l.all); l.next++ {
			line, at := l.all[l.next], l.at[l.next]
			if !slices.ContainsFunc(words, func(word string) bool { return !strings.Contains(line, word) }) {
				l.next++
				l.mu.Unlock()
				return line, at, true
			}
		}
		more, ended := l.more, l.ended
		l.mu.Unlock()
		if ended {
			return "", 0, false
		}
		select {
		case <-more:
		case <-limit:
			return "", 0, false
		}
	}
}

func (l *lines) String() string {
	l.mu.Lock()
	defer l.mu.Unlock()
	var out strings.Builder
	for i, line := range l.all {
		fmt.Fprintf(&out, "%8.3f %s\n", time.Duration(l.at[i]).Seconds(), line)
	}
	return out.String()
}

// eventually waits for a condition that is not logged.
func (w *world) eventually(what string, holds func() bool) {
	w.t.Helper()
	w.looking(20*time.Millisecond, what, holds)
}

// looking is eventually with a pause between two checks.
func (w *world) looking(pause time.Duration, what string, holds func() bool) {
	w.t.Helper()
	ctx, cancel := context.WithTimeout(w.t.Context(), patience)
	defer cancel()
	tick := time.NewTicker(pause)
	defer tick.Stop()
	for !holds() {
		select {
		case <-ctx.Done():
			w.t.Fatalf("it never was so that %s", what)
		case <-tick.C:
		}
	}
}
