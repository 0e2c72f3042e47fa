//go:build linux

package localnode_test

import (
	"bufio"
	"context"
	"crypto/tls"
	"flag"
	"fmt"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"sync"
	"testing"
	"time"

	authenticationv1 "k8s.io/api/authentication/v1"
	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/rest"

	"github.com/singletonjob/operator/test/controlplane"
	"github.com/singletonjob/operator/test/localnode"
	"github.com/singletonjob/operator/test/subprocess"
)

// patience with anything awaited: a machine that stands still for a while is slow, not broken.
const patience = 4 * time.Minute

// This test binary is also the programs of its containers, and a node in a process of its own.
func TestMain(m *testing.M) {
	localnode.Init()
	switch os.Getenv("LOCALNODE_TEST_PROGRAM") {
	case "whoami":
		whoami()
		return
	case "listen":
		listen()
		return
	case "owner":
		owner()
		return
	}
	flag.Parse()
	if parallel := flag.Lookup("test.parallel"); parallel.Value.String() == parallel.DefValue {
		_ = flag.Set("test.parallel", "8") // they wait more than they work
	}
	code := m.Run()
	if shared.cluster != nil {
		shared.cluster.Stop()
	}
	if shared.plane != nil {
		shared.plane.Stop()
	}
	if root, err := image(); err == nil {
		_ = os.RemoveAll(root)
	}
	os.Exit(code)
}

// whoami is a container's program that asks the API server who it is, as any program in a pod would.
func whoami() {
	config, err := rest.InClusterConfig()
	if err != nil {
		// The files are where the volume is and not at the path that is built into client-go.
		dir := os.Getenv("CREDENTIALS")
		config = &rest.Config{
			Host:            "https://" + net.JoinHostPort(os.Getenv("KUBERNETES_SERVICE_HOST"), os.Getenv("KUBERNETES_SERVICE_PORT")),
			BearerTokenFile: dir + "/token",
			TLSClientConfig: rest.TLSClientConfig{CAFile: dir + "/ca.crt"},
		}
	}
	client, err := kubernetes.NewForConfig(config)
	if err != nil {
		fmt.Println("error:", err)
		return
	}
	me, err := client.AuthenticationV1().SelfSubjectReviews().Create(context.Background(), &authenticationv1.SelfSubjectReview{}, metav1.CreateOptions{})
	if err != nil {
		fmt.Println("error:", err)
		return
	}
	fmt.Println(me.Status.UserInfo.Username, me.Status.UserInfo.Extra["authentication.kubernetes.io/pod-name"])
	select {}
}

// listen is a container's program that listens on its pod's address, at a port that others use too.
func listen() {
	l, err := net.Listen("tcp", net.JoinHostPort(os.Getenv("POD_IP"), "18999"))
	if err != nil {
		fmt.Println("error:", err)
		os.Exit(1)
	}
	for {
		if conn, err := l.Accept(); err == nil {
			_ = conn.Close()
		}
	}
}

// shared is the cluster of this test binary; each test has a namespace of its own.
var shared struct {
	sync.Mutex
	plane   *controlplane.ControlPlane
	cluster *localnode.Cluster
	err     error
}

type world struct {
	t       *testing.T
	plane   *controlplane.ControlPlane
	cluster *localnode.Cluster
	client  kubernetes.Interface
	ns      string
}

func newWorld(t *testing.T) *world {
	t.Helper()
	shared.Lock()
	defer shared.Unlock()
	if shared.plane == nil && shared.err == nil {
		// Not t.Context(): the control plane outlives this test.
		shared.plane, shared.err = controlplane.Start(context.Background(), controlplane.Options{Progress: os.Stderr})
	}
	if shared.err != nil {
		t.Fatal(shared.err)
	}
	if shared.cluster == nil {
		shared.cluster = startCluster(t, shared.plane, "a", "b")
	}
	return worldOf(t, shared.plane, shared.cluster)
}

func worldOf(t *testing.T, plane *controlplane.ControlPlane, cluster *localnode.Cluster) *world {
	t.Helper()
	client, err := kubernetes.NewForConfig(plane.Config())
	if err != nil {
		t.Fatal(err)
	}
	return &world{t: t, plane: plane, cluster: cluster, client: client, ns: plane.Namespace(t)}
}

func startCluster(t *testing.T, plane *controlplane.ControlPlane, nodes ...string) *localnode.Cluster {
	t.Helper()
	root, err := image()
	if err != nil {
		t.Fatal(err)
	}
	cluster, err := localnode.StartCluster(context.Background(), localnode.ClusterOptions{
		Plane: plane, Nodes: nodes,
		Images:        map[string]localnode.Image{"example.test/program": {Root: root, Entrypoint: []string{"/program"}}},
		PathVariables: map[string]string{"CREDENTIALS": "/var/run/secrets/kubernetes.io/serviceaccount"},
		BackOff:       200 * time.Millisecond, MaxBackOff: time.Second, NodeGrace: 20 * time.Second,
	})
	if err != nil {
		t.Fatal(err)
	}
	return cluster
}

// image is a directory with this test binary as its program.
var image = sync.OnceValues(func() (string, error) {
	root, err := os.MkdirTemp("", "localnode-test-image-")
	if err != nil {
		return "", err
	}
	self, err := os.Executable()
	if err != nil {
		return "", err
	}
	return root, os.Symlink(self, filepath.Join(root, "program"))
})

// shell is a pod whose container runs a shell script.
func shell(script string, change ...func(*corev1.Pod)) *corev1.Pod {
	pod := &corev1.Pod{
		ObjectMeta: metav1.ObjectMeta{Name: "p", Labels: map[string]string{"app": "x"}},
		Spec: corev1.PodSpec{
			TerminationGracePeriodSeconds: new(int64(60)),
			Containers:                    []corev1.Container{{Name: "c", Image: "busybox", Command: []string{"sh", "-c", script}}},
		},
	}
	for _, f := range change {
		f(pod)
	}
	return pod
}

func (w *world) create(pod *corev1.Pod) *corev1.Pod {
	w.t.Helper()
	created, err := w.client.CoreV1().Pods(w.ns).Create(w.t.Context(), pod, metav1.CreateOptions{})
	if err != nil {
		w.t.Fatal(err)
	}
	return created
}

// await waits until the pod is as wanted; a pod that is gone is nil.
func (w *world) await(name, what string, is func(*corev1.Pod) bool) *corev1.Pod {
	w.t.Helper()
	for deadline := time.Now().Add(patience); ; time.Sleep(10 * time.Millisecond) {
		pod, err := w.client.CoreV1().Pods(w.ns).Get(w.t.Context(), name, metav1.GetOptions{})
		if apierrors.IsNotFound(err) {
			pod, err = nil, nil
		}
		if err != nil {
			w.t.Fatal(err)
		}
		if is(pod) {
			return pod
		}
		if time.Now().After(deadline) {
			w.t.Fatalf("pod %s is not %s: %s", name, what, describe(pod))
		}
	}
}

func describe(pod *corev1.Pod) string {
	if pod == nil {
		return "it is gone"
	}
	return fmt.Sprintf("on node %q, %+v", pod.Spec.NodeName, pod.Status)
}

func isReady(pod *corev1.Pod) bool {
	if pod == nil {
		return false
	}
	for _, c := range pod.Status.Conditions {
		if c.Type == corev1.PodReady {
			return c.Status == corev1.ConditionTrue
		}
	}
	return false
}

// awaitLine waits until a container has printed a line that contains text.
func (w *world) awaitLine(pod *corev1.Pod, text string) string {
	w.t.Helper()
	for deadline := time.Now().Add(patience); ; time.Sleep(10 * time.Millisecond) {
		for _, n := range w.cluster.Nodes() {
			log, _ := os.ReadFile(n.Log(w.ns, pod.Name, pod.Spec.Containers[0].Name))
			for line := range strings.Lines(string(log)) {
				if strings.Contains(line, text) {
					return strings.TrimSpace(line)
				}
			}
		}
		if time.Now().After(deadline) {
			w.t.Fatalf("pod %s has not printed %q", pod.Name, text)
		}
	}
}

func (w *world) node(pod *corev1.Pod) *localnode.Node {
	w.t.Helper()
	node, err := w.cluster.NodeOf(w.ns, pod.Name)
	if err != nil {
		w.t.Fatal(err)
	}
	return node
}

func emptyDir(pod *corev1.Pod) {
	pod.Spec.Volumes = []corev1.Volume{{Name: "v", VolumeSource: corev1.VolumeSource{EmptyDir: &corev1.EmptyDirVolumeSource{}}}}
	for i := range pod.Spec.InitContainers {
		pod.Spec.InitContainers[i].VolumeMounts = []corev1.VolumeMount{{Name: "v", MountPath: "/data"}}
	}
	for i := range pod.Spec.Containers {
		pod.Spec.Containers[i].VolumeMounts = []corev1.VolumeMount{{Name: "v", MountPath: "/data"}}
	}
}

func TestInitContainersVolumesAndEnvironment(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	pod := w.create(shell(`. /data/greeting; echo "$GREETING from $ME on $ON at $IP, $REF and $(X) and $LITERAL, file $FILE, restarts $0"; exec sleep 600`, func(pod *corev1.Pod) {
		pod.Spec.InitContainers = []corev1.Container{{Name: "init", Image: "busybox", Command: []string{"sh", "-c", "echo GREETING=hello > /data/greeting"}}}
		from := func(path string) *corev1.EnvVarSource {
			return &corev1.EnvVarSource{FieldRef: &corev1.ObjectFieldSelector{FieldPath: path}}
		}
		pod.Spec.Containers[0].Command = append(pod.Spec.Containers[0].Command, "$(NUMBER)")
		pod.Spec.Containers[0].Env = []corev1.EnvVar{
			{Name: "ME", ValueFrom: from("metadata.name")},
			{Name: "ON", ValueFrom: from("spec.nodeName")},
			{Name: "IP", ValueFrom: from("status.podIP")},
			{Name: "APP", ValueFrom: from("metadata.labels['app']")},
			{Name: "REF", Value: "app-$(APP)"},
			{Name: "X", Value: "seven"},
			{Name: "LITERAL", Value: "$$(X)"},
			{Name: "FILE", Value: "/data/greeting"},
			{Name: "NUMBER", Value: "42"},
		}
		emptyDir(pod)
	}))
	running := w.await("p", "ready", isReady)
	line := w.awaitLine(pod, "hello")
	want := fmt.Sprintf("hello from p on %s at %s, app-x and seven and $(X), file ", running.Spec.NodeName, running.Status.PodIP)
	if !strings.HasPrefix(line, want) || !strings.HasSuffix(line, "/volumes/v/greeting, restarts 42") {
		t.Errorf("printed %q, want %q…", line, want)
	}
	if s := running.Status.InitContainerStatuses[0]; s.State.Terminated == nil || s.State.Terminated.ExitCode != 0 {
		t.Errorf("the init container's status is %+v", s)
	}
	if running.Status.Phase != corev1.PodRunning {
		t.Errorf("phase %s", running.Status.Phase)
	}
}

func TestACrashKillsTheWholeContainerBeforeItsRestart(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	// The daemon leaves its group and session and outlives its parent, as far as that goes.
	pod := w.create(shell(`echo run; setsid sh -c ': '` + w.ns + `'; trap "" TERM; while :; do sleep 0.01; done' & echo daemon $!; sleep 0.2; exit 3`))
	after := w.await("p", "restarted twice", func(p *corev1.Pod) bool {
		return p != nil && len(p.Status.ContainerStatuses) > 0 && p.Status.ContainerStatuses[0].RestartCount >= 2
	})
	last := after.Status.ContainerStatuses[0].LastTerminationState.Terminated
	if last == nil || last.ExitCode != 3 || last.Reason != "Error" || after.Status.Phase != corev1.PodRunning {
		t.Errorf("the last end is told as %+v, phase %s", last, after.Status.Phase)
	}
	pid, err := strconv.Atoi(strings.Fields(w.awaitLine(pod, "daemon"))[1])
	if err != nil {
		t.Fatal(err)
	}
	// Its command line has the name of this test's namespace. The PID may belong to another process by now.
	if args, err := os.ReadFile(fmt.Sprintf("/proc/%d/cmdline", pid)); err == nil && strings.Contains(string(args), w.ns) {
		t.Errorf("process %d of the first run is alive in a later one", pid)
	}
	w.await("p", "in back-off", func(p *corev1.Pod) bool {
		s := p.Status.ContainerStatuses[0]
		return s.State.Waiting != nil && s.State.Waiting.Reason == "CrashLoopBackOff"
	})
}

func TestRestartPolicies(t *testing.T) {
	t.Parallel()
	cases := map[string]struct {
		policy corev1.RestartPolicy
		script string
		want   corev1.PodPhase
		again  int32
	}{
		"never, well":              {corev1.RestartPolicyNever, "exit 0", corev1.PodSucceeded, 0},
		"never, badly":             {corev1.RestartPolicyNever, "exit 4", corev1.PodFailed, 0},
		"never, killed":            {corev1.RestartPolicyNever, "kill -9 $$$$", corev1.PodFailed, 0},
		"on failure, second time ": {corev1.RestartPolicyOnFailure, "test -e /data/x && exit 0; : > /data/x; exit 5", corev1.PodSucceeded, 1},
	}
	for name, c := range cases {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			w := newWorld(t)
			w.create(shell(c.script, emptyDir, func(p *corev1.Pod) { p.Spec.RestartPolicy = c.policy }))
			pod := w.await("p", string(c.want), func(p *corev1.Pod) bool { return p != nil && p.Status.Phase == c.want })
			if got := pod.Status.ContainerStatuses[0].RestartCount; got != c.again {
				t.Errorf("restarted %d times, want %d", got, c.again)
			}
			if c.script == "kill -9 $$$$" && pod.Status.ContainerStatuses[0].State.Terminated.ExitCode != 137 {
				t.Errorf("a killed container ended as %+v", pod.Status.ContainerStatuses[0].State.Terminated)
			}
		})
	}
}

func TestDeletionGivesGraceAndThenKills(t *testing.T) {
	t.Parallel()
	cases := map[string]struct {
		script string
		grace  int64
		line   string
	}{
		"polite":   {script: `trap 'echo asked; exit 0' TERM; echo up; while :; do sleep 0.02; done`, grace: 60, line: "asked"},
		"stubborn": {script: `trap 'echo refused' TERM; echo up; while :; do sleep 0.02; done`, grace: 10, line: "refused"},
	}
	for name, c := range cases {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			w := newWorld(t)
			pod := w.create(shell(c.script, func(p *corev1.Pod) { p.Spec.TerminationGracePeriodSeconds = &c.grace }))
			w.await("p", "ready", isReady)
			w.awaitLine(pod, "up")
			processes, err := w.node(pod).Processes(w.ns, "p")
			if err != nil || len(processes) == 0 {
				t.Fatalf("processes %v: %v", processes, err)
			}
			process := hold(t, processes[0].Pid)
			begin := time.Now()
			if err := w.client.CoreV1().Pods(w.ns).Delete(t.Context(), "p", metav1.DeleteOptions{}); err != nil {
				t.Fatal(err)
			}
			w.await("p", "gone", func(p *corev1.Pod) bool { return p == nil })
			if took := time.Since(begin); name == "stubborn" && took < 10*time.Second {
				t.Errorf("killed after %v, before its grace period was over", took)
			}
			w.awaitLine(pod, c.line)
			if !process.Ended() {
				t.Error("the pod is gone and its process is not")
			}
		})
	}
}

func TestReadinessAndLivenessProbes(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	test := func(args ...string) *corev1.Probe {
		return &corev1.Probe{PeriodSeconds: 1, TimeoutSeconds: 60, FailureThreshold: 1, ProbeHandler: corev1.ProbeHandler{Exec: &corev1.ExecAction{Command: append([]string{"test"}, args...)}}}
	}
	pod := w.create(shell(`echo up; while ! test -e /data/go; do sleep 0.02; done; : > /data/ready; exec sleep 600`, emptyDir, func(p *corev1.Pod) {
		p.Spec.TerminationGracePeriodSeconds = new(int64(1))
		p.Spec.Containers[0].ReadinessProbe = test("-e", "/data/ready")
		p.Spec.Containers[0].LivenessProbe = test("!", "-e", "/data/dead") // alive however late the script begins
		p.Spec.Containers[0].Env = []corev1.EnvVar{{Name: "DATA", Value: "/data"}}
	}))
	w.awaitLine(pod, "up")
	running := w.await("p", "running", func(p *corev1.Pod) bool { return p.Status.Phase == corev1.PodRunning })
	if isReady(running) {
		t.Fatal("ready before its probe succeeded")
	}
	dir := w.dataDir(pod)
	if err := os.WriteFile(filepath.Join(dir, "go"), nil, 0o600); err != nil {
		t.Fatal(err)
	}
	w.await("p", "ready", isReady)
	if err := os.Remove(filepath.Join(dir, "ready")); err != nil {
		t.Fatal(err)
	}
	w.await("p", "not ready", func(p *corev1.Pod) bool { return !isReady(p) })
	if err := os.WriteFile(filepath.Join(dir, "dead"), nil, 0o600); err != nil {
		t.Fatal(err)
	}
	w.await("p", "restarted", func(p *corev1.Pod) bool { return p.Status.ContainerStatuses[0].RestartCount > 0 })
}

// dataDir reads the DATA variable, which was rewritten, from the container's main process.
func (w *world) dataDir(pod *corev1.Pod) string {
	w.t.Helper()
	processes, err := w.node(pod).Processes(w.ns, pod.Name)
	if err != nil || len(processes) == 0 {
		w.t.Fatalf("processes %v: %v", processes, err)
	}
	env, err := os.ReadFile(fmt.Sprintf("/proc/%d/environ", processes[0].Pid))
	if err != nil {
		w.t.Fatal(err)
	}
	for kv := range strings.SplitSeq(string(env), "\x00") {
		if dir, ok := strings.CutPrefix(kv, "DATA="); ok {
			return dir
		}
	}
	w.t.Fatalf("no DATA in %q", env)
	return ""
}

func TestATokenBoundToThePod(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	pod := w.create(program("whoami"))
	if got, want := w.awaitLine(pod, "system:"), "system:serviceaccount:"+w.ns+":default [p]"; got != want {
		t.Errorf("the program is %q, want %q", got, want)
	}
	seen := w.node(pod).Proxy().Seen()
	count := 0
	for _, r := range seen {
		if r.Pod == "p" {
			count++
		}
	}
	if count == 0 {
		t.Error("the pod's request did not go through its node's proxy")
	}
}

// program is a pod that runs a program of this test binary.
func program(name string) *corev1.Pod {
	return &corev1.Pod{ObjectMeta: metav1.ObjectMeta{Name: "p"}, Spec: corev1.PodSpec{Containers: []corev1.Container{{
		Name: "c", Image: "example.test/program:1", Env: []corev1.EnvVar{
			{Name: "LOCALNODE_TEST_PROGRAM", Value: name},
			{Name: "POD_IP", ValueFrom: &corev1.EnvVarSource{FieldRef: &corev1.ObjectFieldSelector{FieldPath: "status.podIP"}}},
		},
	}}}}
}

func TestPodsMayUseEqualPorts(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	for _, name := range []string{"p", "q"} {
		pod := program("listen")
		pod.Name = name
		pod.Spec.Containers[0].ReadinessProbe = &corev1.Probe{PeriodSeconds: 1, ProbeHandler: corev1.ProbeHandler{TCPSocket: &corev1.TCPSocketAction{}}}
		pod.Spec.Containers[0].ReadinessProbe.TCPSocket.Port.IntVal = 18999
		w.create(pod)
	}
	w.await("p", "ready", isReady)
	w.await("q", "ready", isReady)
}

func TestStartErrorsAreReported(t *testing.T) {
	t.Parallel()
	cases := map[string]struct {
		change func(*corev1.Pod)
		want   string
	}{
		"no program":     {func(p *corev1.Pod) { p.Spec.Containers[0].Command = []string{"no-such-program"} }, "no-such-program"},
		"no command":     {func(p *corev1.Pod) { p.Spec.Containers[0].Command = nil }, "names no command"},
		"missing config": {func(p *corev1.Pod) { p.Spec.Containers[0].EnvFrom = fromMap("absent") }, `"absent"`},
		"unknown volume": {func(p *corev1.Pod) { emptyDir(p); p.Spec.Volumes[0].VolumeSource = nfs }, "emptyDir"},
		"missing account": {func(p *corev1.Pod) {
			p.Spec.Containers[0].Image = "x"
			emptyDir(p)
			p.Spec.Volumes[0].VolumeSource = config("none")
		}, `"none"`},
	}
	for name, c := range cases {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			w := newWorld(t)
			w.create(shell("exit 0", c.change))
			w.await("p", "waiting with a reason", func(p *corev1.Pod) bool {
				return p != nil && len(p.Status.ContainerStatuses) > 0 && p.Status.ContainerStatuses[0].State.Waiting != nil &&
					strings.Contains(p.Status.ContainerStatuses[0].State.Waiting.Message, c.want)
			})
		})
	}
}

func fromMap(name string) []corev1.EnvFromSource {
	return []corev1.EnvFromSource{{ConfigMapRef: &corev1.ConfigMapEnvSource{LocalObjectReference: corev1.LocalObjectReference{Name: name}}}}
}

var nfs = corev1.VolumeSource{NFS: &corev1.NFSVolumeSource{Server: "x", Path: "/"}}

func config(name string) corev1.VolumeSource {
	return corev1.VolumeSource{ConfigMap: &corev1.ConfigMapVolumeSource{LocalObjectReference: corev1.LocalObjectReference{Name: name}}}
}

func TestFreezeThawAndKill(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	pod := w.create(shell(`sh -c 'while :; do echo tick; sleep 0.01; done' & wait; echo child gone; exec sleep 600`))
	w.await("p", "ready", isReady)
	w.awaitLine(pod, "tick")
	node := w.node(pod)
	if err := node.Freeze(w.ns, "p"); err != nil {
		t.Fatal(err)
	}
	all, err := node.Processes(w.ns, "p")
	if err != nil {
		t.Fatal(err)
	}
	for _, p := range all {
		if p.State != 'T' && p.State != 'Z' && p.State != 'D' {
			t.Errorf("%v is in state %c after Freeze", p.Args, p.State)
		}
	}
	if err := node.Thaw(w.ns, "p"); err != nil {
		t.Fatal(err)
	}
	shells := func(_ int, all []localnode.Process) []localnode.Process {
		return all[min(1, len(all)):min(2, len(all))]
	}
	if killed, err := node.Kill(w.ns, "p", shells); err != nil || len(killed) != 1 {
		t.Fatalf("killed %v: %v", killed, err)
	}
	w.awaitLine(pod, "child gone")
	if _, err := node.Kill(w.ns, "p", localnode.MainProcess); err != nil {
		t.Fatal(err)
	}
	w.await("p", "restarted", func(p *corev1.Pod) bool { return p.Status.ContainerStatuses[0].RestartCount == 1 })
	if _, err := node.Kill(w.ns, "nobody", localnode.MainProcess); err == nil {
		t.Error("killed a pod that is not there")
	}
}

func TestACutNodeRunsOnAndIsMarkedLost(t *testing.T) {
	t.Parallel()
	plane, err := controlplane.Start(t.Context(), controlplane.Options{})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(plane.Stop)
	cluster := startCluster(t, plane, "c", "d")
	t.Cleanup(cluster.Stop)
	w := worldOf(t, plane, cluster)
	pod := w.create(shell(`test -e /data/x && echo second; : > /data/x; exec sleep 600`, emptyDir, func(p *corev1.Pod) {
		p.Spec.NodeSelector = map[string]string{corev1.LabelHostname: "c"}
		p.Spec.Tolerations = []corev1.Toleration{{Key: corev1.TaintNodeUnreachable, Operator: corev1.TolerationOpExists, Effect: corev1.TaintEffectNoExecute, TolerationSeconds: new(int64(2))}}
	}))
	w.await("p", "ready", isReady)
	node := cluster.Node("c")
	node.Cut()
	w.awaitNode("c", "Unknown and tainted", func(n *corev1.Node) bool {
		return nodeReady(n) == corev1.ConditionUnknown && len(n.Spec.Taints) == 2
	})
	w.await("p", "not ready", func(p *corev1.Pod) bool { return !isReady(p) })
	if _, err := node.Kill(w.ns, "p", localnode.MainProcess); err != nil {
		t.Fatal(err)
	}
	w.awaitLine(pod, "second") // restarted behind the partition
	w.create(shell(`exec sleep 600`, func(p *corev1.Pod) {
		p.Name, p.Spec.NodeName = "stays", "c"
		p.Spec.Tolerations = []corev1.Toleration{{Operator: corev1.TolerationOpExists}}
	}))
	w.await("p", "evicted, and not yet gone", func(p *corev1.Pod) bool { return p != nil && p.DeletionTimestamp != nil })
	if err := cluster.Heal(); err != nil {
		t.Fatal(err)
	}
	w.await("p", "gone", func(p *corev1.Pod) bool { return p == nil })
	w.awaitNode("c", "ready again", func(n *corev1.Node) bool {
		return nodeReady(n) == corev1.ConditionTrue && len(n.Spec.Taints) == 0
	})
}

func (w *world) awaitNode(name, what string, is func(*corev1.Node) bool) {
	w.t.Helper()
	for deadline := time.Now().Add(patience); ; time.Sleep(20 * time.Millisecond) {
		node, err := w.client.CoreV1().Nodes().Get(w.t.Context(), name, metav1.GetOptions{})
		if err != nil {
			w.t.Fatal(err)
		}
		if is(node) {
			return
		}
		if time.Now().After(deadline) {
			w.t.Fatalf("node %s is not %s: %+v", name, what, node)
		}
	}
}

func nodeReady(n *corev1.Node) corev1.ConditionStatus {
	for _, c := range n.Status.Conditions {
		if c.Type == corev1.NodeReady {
			return c.Status
		}
	}
	return ""
}

// owner runs a node in a process of its own until that is killed.
func owner() {
	config := &rest.Config{Host: os.Getenv("API"), BearerToken: os.Getenv("TOKEN")}
	config.CAData = []byte(os.Getenv("CA"))
	certificate, err := tls.LoadX509KeyPair(os.Getenv("DIR")+"/apiserver.crt", os.Getenv("DIR")+"/apiserver.key")
	if err != nil {
		panic(err)
	}
	_, err = localnode.Start(context.Background(), localnode.Options{
		Name: "owned", Config: config, Certificate: certificate, Dir: os.Getenv("NODE_DIR"),
		Output: func(l localnode.Line) { fmt.Println(l.Text) },
	})
	if err != nil {
		panic(err)
	}
	select {}
}

func TestAKilledNodeLeavesNoProcess(t *testing.T) {
	t.Parallel()
	plane, err := controlplane.Start(t.Context(), controlplane.Options{})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(plane.Stop)
	cluster := startCluster(t, plane) // without nodes
	t.Cleanup(cluster.Stop)
	w := worldOf(t, plane, cluster)
	config := plane.Config()
	self := exec.Command(os.Args[0])
	self.Env = append(os.Environ(), "LOCALNODE_TEST_PROGRAM=owner", "API="+config.Host, "TOKEN="+config.BearerToken,
		"CA="+string(config.CAData), "DIR="+plane.Dir(), "NODE_DIR="+t.TempDir())
	self.Stderr = os.Stderr
	out, err := self.StdoutPipe()
	if err != nil {
		t.Fatal(err)
	}
	if err := self.Start(); err != nil {
		t.Fatal(err)
	}
	w.create(shell(`trap '' TERM HUP; setsid sh -c 'trap "" TERM HUP; while :; do sleep 0.01; done' & echo $$$$ $!; while :; do sleep 0.01; done`))
	line, err := bufio.NewReader(out).ReadString('\n')
	if err != nil {
		t.Fatal(err)
	}
	processes := map[int]*subprocess.Handle{}
	for field := range strings.FieldsSeq(line) {
		pid, err := strconv.Atoi(field)
		if err != nil {
			t.Fatal(err)
		}
		processes[pid] = hold(t, pid)
	}
	_ = self.Process.Kill()
	_ = self.Wait()
	for pid, process := range processes {
		for deadline := time.Now().Add(patience); !process.Ended(); time.Sleep(5 * time.Millisecond) {
			if time.Now().After(deadline) {
				_ = process.Kill()
				t.Fatalf("process %d outlived its node", pid)
			}
		}
	}
}

func hold(t *testing.T, pid int) *subprocess.Handle {
	t.Helper()
	process, err := subprocess.Hold(pid)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = process.Close() })
	return process
}
