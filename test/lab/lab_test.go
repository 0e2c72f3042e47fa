//go:build linux

package main

import (
	"bytes"
	"context"
	"crypto/tls"
	"encoding/json"
	"errors"
	"flag"
	"fmt"
	"io"
	"net"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/singletonjob/operator/build/gotool"
	"github.com/singletonjob/operator/test/lab/internal/cluster"
	"github.com/singletonjob/operator/test/lab/internal/fault"
	"github.com/singletonjob/operator/test/lab/internal/machine"
)

// These tests start a lab of their own and end it, so they run only when asked to, by the flag -lab.
var withLab = flag.Bool("lab", false, "start a lab on this machine, as root, and test it; no other may run")

func TestMain(m *testing.M) {
	// The lab starts this program again for its machines and proxies.
	if len(os.Args) > 1 && (os.Args[1] == machine.InitCommand || os.Args[1] == fault.ProxyCommand) {
		main()
		return
	}
	if len(os.Args) == 3 && os.Args[1] == askCommand {
		ask(os.Args[2])
		return
	}
	os.Exit(m.Run())
}

// askCommand is the argument with which this program asks for a URL and prints the answer, inside a pod's network.
const askCommand = "ask"

func ask(url string) {
	client := &http.Client{Timeout: patience, Transport: &http.Transport{TLSClientConfig: &tls.Config{InsecureSkipVerify: true}}}
	answer, err := client.Get(url)
	if err != nil {
		fmt.Println(err)
		os.Exit(1)
	}
	fmt.Println(answer.Status)
	_, _ = io.Copy(os.Stdout, answer.Body)
	_ = answer.Body.Close()
}

// probe is a small program in a pod on each node. It serves HTTP, and requests the URLs that it gets.
const (
	probeImage = "local/lab-probe:1"
	patience   = 4 * time.Minute
)

type labTest struct {
	*testing.T
	kubectl string
}

func TestLab(t *testing.T) {
	if !*withLab {
		t.Skip("starts a lab on this machine: run with -lab")
	}
	lab := &labTest{T: t}
	lab.ok("down") // of an earlier run that crashed
	before := footprint(t)
	t.Cleanup(func() {
		lab.T = t
		lab.ok("down")
		lab.ok("down")
		if diff := leftBehind(t, before); diff != "" {
			t.Errorf("the lab left something behind (-before +after):\n%s", diff)
		}
	})
	begin := time.Now()
	lab.ok("up", "-nodes=2")
	t.Logf("two nodes up in %v", time.Since(begin).Round(100*time.Millisecond))
	lab.ok("up", "-nodes=2") // changes nothing
	lab.ok("up", "-nodes=3") // adds one
	lab.fails("up", "-nodes=2")
	lab.fails("up", "-control-planes=3", "-nodes=3")
	lab.fails("run", "-wait=1s", "true") // which would end the lab
	lab.kubectl = strings.TrimSpace(lab.ok("program", "kubectl"))
	lab.startProbes()

	for _, test := range []struct {
		name string
		run  func(*labTest)
	}{
		{"cluster", (*labTest).testCluster},
		{"API cut", (*labTest).testAPICut},
		{"node and peers cut", (*labTest).testNodeCut},
		{"loss", (*labTest).testLoss},
		{"delay", (*labTest).testDelay},
		{"freeze", (*labTest).testFreeze},
		{"signal", (*labTest).testSignal},
		{"services", (*labTest).testServices},
		{"pause", (*labTest).testPause},
		{"crash", (*labTest).testCrash},
		{"proxy", (*labTest).testProxy},
		{"clock", (*labTest).testClock},
		{"misuse", (*labTest).testMisuse},
	} {
		t.Run(test.name, func(t *testing.T) {
			lab.T = t
			t.Cleanup(func() {
				lab.ok("fault", "heal")
				lab.eventually("all is healed", func() bool { // a container that ends is frozen for an instant
					found := lab.status().Faults
					if len(found) > 0 {
						t.Logf("not healed yet: %v", found)
					}
					return len(found) == 0
				})
				lab.allNodesReachAPI()
			})
			test.run(lab)
		})
	}
}

// TestRun shows that a lab of a command's own ends with the command, however that ends.
func TestRun(t *testing.T) {
	if !*withLab {
		t.Skip("starts a lab on this machine: run with -lab")
	}
	lab := &labTest{T: t}
	lab.ok("down")
	before := footprint(t)
	said := filepath.Join(t.TempDir(), "said")
	lab.fails("run", "-nodes=1", "sh", "-c", "test -s $KUBECONFIG && echo there >"+said+"; false")
	if text, err := os.ReadFile(said); string(text) != "there\n" {
		t.Errorf("the command said %q (%v)", text, err)
	}
	lab.fails("run", "-nodes=0", "true")
	if diff := leftBehind(t, before); diff != "" {
		t.Errorf("something was left behind (-before +after):\n%s", diff)
	}
}

// TestKilledRun kills a run, and once all processes of its lab too. The next run still begins.
func TestKilledRun(t *testing.T) {
	if !*withLab {
		t.Skip("starts a lab on this machine: run with -lab")
	}
	lab := &labTest{T: t}
	lab.ok("down")
	before := footprint(t)
	binary := filepath.Join(t.TempDir(), "lab")
	if out, err := gotool.Command(t.Context(), "", "build", "-o", binary, ".").CombinedOutput(); err != nil {
		t.Fatalf("%v: %s", err, out)
	}
	kill := func(also string) {
		t.Helper()
		said := filepath.Join(t.TempDir(), "said")
		run := exec.CommandContext(t.Context(), binary, "run", "-nodes=2", "sh", "-c", "echo up >"+said+"; exec sleep 60")
		run.Stderr = os.Stderr
		if err := run.Start(); err != nil {
			t.Fatal(err)
		}
		for until := time.Now().Add(10 * time.Minute); ; time.Sleep(100 * time.Millisecond) {
			if _, err := os.Stat(said); err == nil {
				break
			}
			if time.Now().After(until) {
				t.Fatal("the lab does not come up")
			}
		}
		if err := run.Process.Kill(); err != nil {
			t.Fatal(err)
		}
		_ = run.Wait()
		if also != "" {
			if out, err := exec.Command("sh", "-c", also).CombinedOutput(); err != nil {
				t.Logf("kill all of the lab: %v: %s", err, out) // some die of the others' death
			}
		}
	}
	for _, also := range []string{"", "find /sys/fs/cgroup -path '*" + cluster.Group + "*' -name cgroup.procs -exec cat {} + | sort -u | xargs kill -9"} {
		kill(also)
		lab.ok("run", "-nodes=1", "true")
		if diff := leftBehind(t, before); diff != "" {
			t.Errorf("something was left behind (-before +after):\n%s", diff)
		}
	}
	// A lab that a user then starts belongs to no other command.
	kill("")
	lab.ok("down")
	lab.ok("up", "-nodes=1")
	lab.fails("run", "-wait=1s", "true")
	lab.ok("status")
	lab.ok("down")
}

// TestInterruptedUp kills 'up' at many moments: 'down' must always be able to clean up, and 'up' to continue.
func TestInterruptedUp(t *testing.T) {
	if !*withLab {
		t.Skip("starts a lab on this machine: run with -lab")
	}
	binary := filepath.Join(t.TempDir(), "lab")
	if out, err := gotool.Command(t.Context(), "", "build", "-o", binary, ".").CombinedOutput(); err != nil {
		t.Fatalf("%v: %s", err, out)
	}
	lab := &labTest{T: t}
	lab.ok("down")
	before := footprint(t)
	for _, after := range []int{100, 300, 400, 500, 600, 800, 1200, 2000, 4000} {
		ctx, cancel := context.WithTimeout(t.Context(), time.Duration(after)*time.Millisecond)
		out, err := exec.CommandContext(ctx, binary, "up", "-nodes=2").CombinedOutput() // SIGKILL
		cancel()
		if err == nil {
			t.Logf("up was done before %d ms", after)
		}
		if after == 800 {
			lab.ok("up", "-nodes=2") // continues from there
		}
		if after == 4000 { // and without the state too
			if err := os.WriteFile(cluster.DefaultDir+"/state.json", []byte("{"), 0o600); err != nil {
				t.Fatal(err)
			}
		}
		lab.ok("down")
		if diff := leftBehind(t, before); diff != "" {
			t.Fatalf("after SIGKILL at %d ms, 'down' left something behind (-before +after):\n%s\n%s", after, diff, out)
		}
	}
}

// leftBehind compares with the footprint from before. A command that 'up' was running when it was killed, such as a build,
// ends by itself, and is waited for.
func leftBehind(t *testing.T, before []string) string {
	t.Helper()
	for deadline := time.Now().Add(patience); ; time.Sleep(100 * time.Millisecond) {
		diff := cmp.Diff(before, footprint(t))
		if diff == "" || time.Now().After(deadline) {
			return diff
		}
	}
}

// footprint lists what a lab could leave on the host.
func footprint(t *testing.T) []string {
	t.Helper()
	var found []string
	add := func(kind, text string, keep func(string) bool) {
		for line := range strings.Lines(text) {
			if keep(line) {
				found = append(found, kind+": "+strings.TrimSpace(line))
			}
		}
	}
	mine := func(line string) bool {
		return strings.Contains(line, "singletonjob-lab") || strings.Contains(line, "sjlab")
	}
	all := func(string) bool { return true }
	for kind, command := range map[string]string{ // tables: only those of faults and of kube-proxy, whatever others do to theirs
		"mount": "cat /proc/self/mounts", "namespace": "ip netns list", "link": "ip -o link", "route": "ip route", "group": "find /sys/fs/cgroup -type d -name '" + cluster.Group + "*'",
		"table": "nft list tables | grep -e sjlab -e kube", "forwarding": "cat /proc/sys/net/ipv4/ip_forward",
		"file": "ls -d /var/lib/singletonjob* /var/lib/kubelet /var/lib/cni /var/lib/containerd /run/containerd /run/netns /var/log/pods /var/log/containers /etc/cni 2>/dev/null",
	} {
		out, err := exec.Command("sh", "-c", command+" || true").Output()
		if err != nil {
			t.Fatalf("%s: %v", command, err)
		}
		add(kind, string(out), all)
	}
	lines, _ := filepath.Glob("/proc/[0-9]*/cmdline")
	for _, f := range lines {
		line, _ := os.ReadFile(f)
		add("process", strings.ReplaceAll(string(line), "\x00", " "), mine)
	}
	for i, line := range found { // what other programs do to their links is not ours
		if strings.HasPrefix(line, "link: ") && !mine(line) {
			found[i] = "link: other"
		}
	}
	return sorted(found)
}

func sorted(lines []string) []string {
	slices.Sort(lines)
	return lines
}

// ok runs a command of the lab.
func (l *labTest) ok(args ...string) string {
	l.Helper()
	var out bytes.Buffer
	if err := run(l.context(), args, &out); err != nil {
		l.Fatalf("lab %s: %v", strings.Join(args, " "), err)
	}
	return out.String()
}

func (l *labTest) fails(args ...string) {
	l.Helper()
	if err := run(l.context(), args, &bytes.Buffer{}); err == nil {
		l.Errorf("lab %s was accepted", strings.Join(args, " "))
	}
}

// context outlives the test, for clean-up.
func (l *labTest) context() context.Context { return context.WithoutCancel(l.Context()) }

func (l *labTest) try(argv ...string) (string, error) {
	out, err := exec.CommandContext(l.context(), argv[0], argv[1:]...).CombinedOutput()
	if err != nil {
		err = fmt.Errorf("%s: %w: %s", strings.Join(argv, " "), err, out)
	}
	return string(out), err
}

func (l *labTest) status() status {
	l.Helper()
	var s status
	if err := json.Unmarshal([]byte(l.ok("status", "-json")), &s); err != nil {
		l.Fatal(err)
	}
	return s
}

func (l *labTest) eventually(what string, done func() bool) {
	l.Helper()
	for deadline := time.Now().Add(patience); !done(); time.Sleep(100 * time.Millisecond) {
		if time.Now().After(deadline) {
			l.Fatalf("never: %s; faults: %v", what, l.status().Faults)
		}
	}
}

// startProbes runs a pod with a small web server on every node.
func (l *labTest) startProbes() {
	l.Helper()
	busybox, err := exec.LookPath("busybox")
	if err != nil {
		l.Fatal("install busybox-static: ", err)
	}
	image := probeImage + "=" + busybox + ":/bin/busybox"
	for _, applet := range []string{"sh", "wget", "nslookup", "cat", "sleep", "httpd", "nc"} {
		image += ",->/bin/busybox:/bin/" + applet
	}
	l.ok("image", image+"@/bin/sh")
	var manifest strings.Builder
	for i := 1; i <= 3; i++ {
		fmt.Fprintf(&manifest, probePod, fmt.Sprintf("probe%d", i), cluster.NodeName(i), "")
	}
	manifest.WriteString("apiVersion: v1\nkind: Service\nmetadata: {name: probes}\nspec: {selector: {app: probe}, ports: [{port: 80}]}\n")
	l.apply(manifest.String())
	l.kube("wait", "--for=condition=Ready", "--timeout="+patience.String(), "pod/probe1", "pod/probe2", "pod/probe3")
}

const probePod = `apiVersion: v1
kind: Pod
metadata: {name: %s, labels: {app: probe}}
spec:
  nodeName: %s
  terminationGracePeriodSeconds: 0
  %s
  containers:
  - {name: probe, image: ` + probeImage + `, imagePullPolicy: Never, args: [-c, "mkdir -p /tmp/www; echo hello > /tmp/www/index.html; exec httpd -f -h /tmp/www"]}
---
`

func (l *labTest) apply(manifest string) {
	l.Helper()
	cmd := exec.Command(l.kubectl, "--kubeconfig="+l.status().Kubeconfig, "apply", "-f", "-")
	cmd.Stdin = strings.NewReader(manifest)
	if out, err := cmd.CombinedOutput(); err != nil {
		l.Fatalf("%v: %s", err, out)
	}
}

func (l *labTest) kube(args ...string) string {
	l.Helper()
	out, err := l.try(append([]string{l.kubectl, "--kubeconfig=" + cluster.DefaultDir + "/admin.kubeconfig"}, args...)...)
	if err != nil {
		l.Fatal(err)
	}
	return out
}

// inPod runs a command in the network of the pod on the node, without asking the API server.
func (l *labTest) inPod(node int, command string) (string, error) {
	l.Helper()
	return l.try("nsenter", "--target", strconv.Itoa(l.podPID(node)), "--net", "--", "sh", "-c", command)
}

// podPID finds the host's pid of a process of the probe on the node.
func (l *labTest) podPID(node int) int {
	l.Helper()
	lab, err := cluster.Open(cluster.DefaultDir, os.Stderr)
	if err != nil {
		l.Fatal(err)
	}
	for _, pid := range lab.Groups().Processes(cluster.NodeName(node)) {
		if line, _ := os.ReadFile(fmt.Sprintf("/proc/%d/cmdline", pid)); strings.HasPrefix(string(line), "httpd\x00-f\x00-h") {
			return pid
		}
	}
	l.Fatalf("no probe runs on node %d", node)
	return 0
}

// reaches reports whether the pod on the node can open a connection within a second.
func (l *labTest) reaches(node int, address string, port int) bool {
	l.Helper()
	return l.connect(node, address, port, time.Second) == nil
}

// connect opens a connection from the pod on the node. The error holds what became of it.
func (l *labTest) connect(node int, address string, port int, wait time.Duration) error {
	l.Helper()
	_, err := l.inPod(node, fmt.Sprintf("busybox nc -w %.0f %s %d < /dev/null", wait.Seconds(), address, port))
	return err
}

func (l *labTest) podIP(node int) string {
	return l.kube("get", "pod", fmt.Sprintf("probe%d", node), "-o", "jsonpath={.status.podIP}")
}

func (l *labTest) allNodesReachAPI() {
	l.Helper()
	l.eventually("all nodes are ready again", func() bool {
		ready, err := l.try(l.kubectl, "--kubeconfig="+l.status().Kubeconfig, "get", "nodes", "-o", `jsonpath={.items[*].status.conditions[?(@.type=="Ready")].status}`)
		return err == nil && strings.Count(ready, "True") == 3
	})
	l.kube("wait", "--for=condition=Ready", "--timeout="+patience.String(), "pod/probe1", "pod/probe2", "pod/probe3")
}

func (l *labTest) testCluster() {
	l.eventually("names resolve in pods", func() bool {
		out, err := l.inPod(1, "busybox nslookup probes.default.svc.cluster.local "+cluster.DNSService)
		if err != nil {
			l.Logf("%v: %s", err, out)
		}
		return err == nil && strings.Contains(out, "Name:")
	})
	l.eventually("a service by its name", func() bool {
		inside, err := l.try(l.kubectl, "--kubeconfig="+l.status().Kubeconfig, "exec", "probe1", "--", "wget", "-q", "-O-", "http://probes")
		if err != nil {
			l.Log(err)
		}
		return inside == "hello\n"
	})
	for node := 1; node <= 3; node++ {
		l.eventually(fmt.Sprintf("a pod of node %d reaches the API server and another node's pod", node), func() bool {
			return l.reaches(node, cluster.APIService, cluster.APIServicePort) && l.reaches(node, l.podIP(node%3+1), 80)
		})
	}
	// The control plane reaches pods, so webhooks work.
	l.eventually("the control plane reaches a pod", func() bool { return l.answers(2) })
	if got := l.ok("exec", "node2", "hostname"); got != "node2\n" {
		l.Errorf("inside node2 the host name is %q", got)
	}
	// Pod Security is enforced where a namespace asks for it.
	l.apply("apiVersion: v1\nkind: Namespace\nmetadata: {name: strict, labels: {pod-security.kubernetes.io/enforce: restricted}}\n")
	if out, err := l.try(l.kubectl, "--kubeconfig="+l.status().Kubeconfig, "-n", "strict", "run", "x", "--image=x", "--privileged"); err == nil {
		l.Errorf("a privileged pod was accepted: %s", out)
	}
}

// hostListener is something on the host that stays reachable while the API server is cut off.
func (l *labTest) hostListener() int {
	l.Helper()
	listener, err := net.Listen("tcp", cluster.APIAddress(1)+":0")
	if err != nil {
		l.Fatal(err)
	}
	l.Cleanup(func() { _ = listener.Close() })
	_, text, err := net.SplitHostPort(listener.Addr().String())
	if err != nil {
		l.Fatal(err)
	}
	port, err := strconv.Atoi(text)
	if err != nil {
		l.Fatal(err)
	}
	go func() {
		for {
			conn, err := listener.Accept()
			if errors.Is(err, net.ErrClosed) {
				return
			}
			if err == nil {
				_ = conn.Close()
			}
		}
	}()
	return port
}

func (l *labTest) testAPICut() {
	sink := l.hostListener()
	for _, cut := range fault.APICuts {
		l.ok("fault", "api", "node1", string(cut))
		wait := time.Second
		if cut == fault.Refuse {
			wait = time.Minute // only one whose packets vanish takes that long
		}
		for _, api := range []struct {
			address string
			port    int
		}{{cluster.APIService, cluster.APIServicePort}, {cluster.APIAddress(1), cluster.APIPort}} {
			err := l.connect(1, api.address, api.port, wait)
			if err == nil {
				l.Errorf("%s: the pod reaches the API server at %s", cut, api.address)
			} else if cut == fault.Refuse && !strings.Contains(err.Error(), "refused") && !strings.Contains(err.Error(), "reset") {
				l.Errorf("refuse: it was not refused: %v", err)
			}
		}
		l.eventually(string(cut)+": the node reaches all but the API server", func() bool {
			return l.reaches(1, cluster.APIAddress(1), sink) && l.reaches(1, l.podIP(2), 80)
		})
		l.eventually(string(cut)+": another node reaches the API server", func() bool {
			return l.reaches(2, cluster.APIService, cluster.APIServicePort)
		})
	}
}

func (l *labTest) testNodeCut() {
	sink, peer := l.hostListener(), l.podIP(2)
	l.ok("fault", "node", "node1")
	if l.reaches(1, cluster.APIAddress(1), sink) || l.reaches(1, peer, 80) {
		l.Error("the node that was cut off reaches others")
	}
	l.ok("fault", "heal")
	l.eventually("the pod reaches the host again", func() bool { return l.reaches(1, cluster.APIAddress(1), sink) })
	l.ok("fault", "api", "node1")
	l.ok("fault", "node", "node1")
	l.ok("fault", "mend", "node1", "node")
	l.eventually("the pod reaches the host, once the link is mended", func() bool { return l.reaches(1, cluster.APIAddress(1), sink) })
	if l.reaches(1, cluster.APIService, cluster.APIServicePort) {
		l.Error("to mend the link has mended the other fault, too")
	}
	l.ok("fault", "mend", "node1", "api")
	l.eventually("the pod reaches the API server, once that is mended", func() bool { return l.reaches(1, cluster.APIService, cluster.APIServicePort) })
	l.ok("fault", "mend", "node1", "api") // which is no fault any more
	l.ok("fault", "peers", "node1", "node2")
	if l.reaches(1, peer, 80) {
		l.Error("the peer that was cut off is reached")
	}
	l.eventually("all but the peer are reached", func() bool {
		return l.reaches(1, l.podIP(3), 80) && l.reaches(1, cluster.APIService, cluster.APIServicePort)
	})
}

func (l *labTest) testLoss() {
	sink := l.hostListener()
	l.ok("fault", "loss", "node1", "100%")
	if l.reaches(1, cluster.APIAddress(1), sink) {
		l.Error("reached though all packets are lost")
	}
	l.ok("fault", "loss", "node1", "20")
	l.eventually("reached though some packets are lost", func() bool { return l.reaches(1, cluster.APIAddress(1), sink) })
}

func (l *labTest) testDelay() {
	if err := run(l.context(), []string{"fault", "delay", "node1", "300ms"}, &bytes.Buffer{}); err != nil {
		if !strings.Contains(err.Error(), "lab fault proxy node1 delay") {
			l.Errorf("the error does not say what to do instead: %v", err)
		}
		l.Skip(err)
	}
	begin := time.Now()
	if !l.reaches(1, l.podIP(2), 80) || time.Since(begin) < 300*time.Millisecond {
		l.Errorf("a connection took %v, want 300 ms or more", time.Since(begin))
	}
}

// answers reports whether the probe on the node answers within a second.
func (l *labTest) answers(node int) bool {
	answer, err := (&http.Client{Timeout: time.Second, Transport: &http.Transport{DisableKeepAlives: true}}).Get("http://" + l.podIP(node))
	if err != nil {
		return false
	}
	_ = answer.Body.Close()
	return answer.StatusCode == http.StatusOK
}

func (l *labTest) testFreeze() {
	l.ok("fault", "freeze", "default/probe1")
	if l.answers(1) {
		l.Error("a frozen container answers")
	}
	l.eventually("another container answers", func() bool { return l.answers(2) })
	l.ok("fault", "thaw", "default/probe1/probe")
	l.eventually("the thawed container answers", func() bool { return l.answers(1) })
	l.ok("fault", "freeze", "default/probe1") // and left to heal
}

func (l *labTest) restarts(pod string) string {
	return l.kube("get", "pod", pod, "-o", "jsonpath={.status.containerStatuses[0].restartCount}")
}

func (l *labTest) testSignal() {
	before := l.restarts("probe2")
	l.ok("fault", "signal", "default/probe2", "STOP")
	if l.answers(2) {
		l.Error("a stopped process answers")
	}
	l.ok("fault", "heal")
	l.eventually("it goes on after the heal", func() bool { return l.answers(2) })
	if after := l.restarts("probe2"); after != before {
		l.Errorf("restarts %s, want %s as before", after, before)
	}
	l.fails("fault", "signal", "default/probe2", "KILL", "no such argument")
	l.ok("fault", "signal", "default/probe2", "KILL")
	l.eventually("the container was restarted", func() bool { return l.restarts("probe2") != before })
}

func (l *labTest) testServices() {
	before := l.restarts("probe1")
	l.ok("fault", "stop", "node1", "kubelet")
	l.ok("fault", "restart", "node1", "containerd")
	l.eventually("the pod survives the restart of containerd", func() bool { return l.answers(1) })
	l.ok("fault", "suspend", "control", "etcd-1")
	if _, err := l.try(l.kubectl, "--kubeconfig="+l.status().Kubeconfig, "--request-timeout=2s", "create", "namespace", "no"); err == nil {
		l.Error("a write succeeded without etcd")
	}
	l.ok("fault", "heal")
	l.ok("fault", "stop", "control", "apiserver-1")
	if l.reaches(2, cluster.APIAddress(1), cluster.APIPort) {
		l.Error("the API server was stopped and is reached")
	}
	want := []string{"not running: apiserver-1 on control"}
	if diff := cmp.Diff(want, l.status().Faults); diff != "" {
		l.Errorf("faults (-want +got):\n%s", diff)
	}
	l.ok("fault", "heal")
	l.allNodesReachAPI()
	if after := l.restarts("probe1"); after != before {
		l.Errorf("restarts %s, want %s as before", after, before)
	}
}

func (l *labTest) testPause() {
	l.ok("fault", "pause", "node2")
	l.ok("fault", "pause", "node3")
	if l.answers(3) {
		l.Error("a pod of a paused node answers")
	}
	l.ok("fault", "heal", "node3")
	l.eventually("it goes on", func() bool { return l.answers(3) })
	if l.answers(2) {
		l.Error("healing a node healed another one too")
	}
}

func (l *labTest) testCrash() {
	l.ok("fault", "crash", "node3")
	if l.answers(3) {
		l.Error("a pod of a crashed node answers")
	}
	l.fails("fault", "api", "node3")
	before := l.restarts("probe3")
	l.ok("fault", "heal")
	l.eventually("the pod was restarted with the node", func() bool { return l.restarts("probe3") != before })
}

func (l *labTest) testProxy() {
	self, err := os.Executable()
	if err != nil {
		l.Fatal(err)
	}
	version := func() (string, error) {
		return l.inPod(1, self+" "+askCommand+" https://"+cluster.APIService+"/version")
	}
	if out, err := version(); err != nil || !strings.Contains(out, "gitVersion") {
		l.Fatalf("without a proxy: %v %s", err, out)
	}
	l.ok("fault", "proxy", "node1", "delay", "-after=1s", "-path=/version")
	begin := time.Now()
	if out, err := version(); err != nil || !strings.Contains(out, "gitVersion") || time.Since(begin) < time.Second {
		l.Errorf("through the proxy, after %v: %v %s", time.Since(begin), err, out)
	}
	l.ok("fault", "proxy", "node1", "fail", "-path=/version")
	if out, err := version(); err != nil || !strings.HasPrefix(out, "500") {
		l.Errorf("with a proxy that fails: %v %s", err, out)
	}
	l.ok("fault", "proxy", "node2", "reset")
	l.ok("fault", "heal", "node2")
	if out, err := version(); err != nil || !strings.HasPrefix(out, "500") {
		l.Errorf("with a proxy that fails, after another node's came and went: %v %s", err, out)
	}
	l.ok("fault", "heal")
	if out, err := version(); err != nil || !strings.HasPrefix(out, "200") {
		l.Errorf("after the heal: %v %s", err, out)
	}
}

func (l *labTest) testClock() {
	uptime := func(pod string) float64 {
		text, _, _ := strings.Cut(l.kube("exec", pod, "--", "cat", "/proc/uptime"), " ")
		seconds, err := strconv.ParseFloat(text, 64)
		if err != nil {
			l.Fatal(err)
		}
		return seconds
	}
	host, begin := uptime("probe1"), time.Now()
	l.ok("fault", "clock", "node1", "1h")
	l.apply(fmt.Sprintf(probePod, "shifted", "node1", "runtimeClassName: "+cluster.ShiftedRuntime))
	defer l.kube("delete", "pod", "shifted", "--now")
	l.kube("wait", "--for=condition=Ready", "--timeout="+patience.String(), "pod/shifted")
	if ahead := uptime("shifted") - host; ahead < 3600 || ahead > 3601+time.Since(begin).Seconds() {
		l.Errorf("the shifted container's clock is ahead by %.0f s, of which %v have passed; want 3600", ahead, time.Since(begin))
	}
}

func (l *labTest) testMisuse() {
	for _, args := range [][]string{
		{"fault", "api", "node9"},
		{"fault", "heal", "node9"},
		{"fault", "mend", "node9", "api"},
		{"fault", "mend", "node1", "clock"},
		{"fault", "api", "control"},
		{"fault", "api", "node1", "sideways"},
		{"fault", "freeze", "default/none"},
		{"fault", "freeze", "a"},
		{"fault", "loss", "node1", "0"},
		{"fault", "stop", "node1", "etcd"},
		{"fault", "peers", "node1", "node1"},
		{"fault", "signal", "default/probe1", "NONE"},
		{"fault", "nonsense"},
		{"fault", "clock", "node1", "soon"},
		{"fault", "proxy", "node1", "gremlins"},
		{"exec", "node9", "true"},
		{"image", "/no/such/archive"},
		{"image", "x=y"},
		{"program", "emacs"},
		{"nonsense"},
		{},
	} {
		l.fails(args...)
	}
}
