//go:build linux

package e2e

import (
	"cmp"
	"fmt"
	"maps"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/util/intstr"

	"github.com/singletonjob/operator/api/v1alpha1"
	"github.com/singletonjob/operator/fence"
	"github.com/singletonjob/operator/test/debian"
)

// A program is one that people run, as they run it, with the probes and hooks that are usual for it.
type program struct {
	container corev1.Container
	// asks is a command in the container that succeeds while the program serves.
	asks []string
	// main is how the command line of the process begins that has the others.
	main string
	// stopSignal is the STOPSIGNAL of its image; empty for none.
	stopSignal string
	// handedOver and stopped are what its log says when it is asked to end: before a handover, and when its Pod stops.
	handedOver, stopped string
	// writes says that it writes to the sink.
	writes bool
}

// sources is where containers find testdata/programs.
const sources = "/etc/programs"

// debianPackages are those of the image; compilers of queries, Perl for the packages' own scripts and other languages are not.
var debianPackages = debian.Packages{
	Release: "bookworm", Names: []string{"busybox-static", "nginx-light", "nodejs", "postgresql-15", "python3"},
	Without: []string{"libllvm*", "perl*", "locales*"},
}

// programFiles are what is taken of the packages.
var programFiles = []string{
	"/bin/busybox", "/usr/sbin/nginx", "/usr/bin/python3", "/usr/lib/python3.11",
	"/usr/bin/node", "/usr/share/nodejs/acorn", "/usr/share/nodejs/acorn-walk", "/usr/share/nodejs/cjs-module-lexer", "/usr/share/nodejs/undici",
	"/usr/lib/postgresql/15/bin", "/usr/lib/postgresql/15/lib/dict_snowball.so", "/usr/lib/postgresql/15/lib/plpgsql.so",
	"/usr/share/postgresql/15", "/usr/share/zoneinfo/Etc", "/usr/share/zoneinfo/UTC",
}

var (
	web  = intstr.FromString("web")
	ask  = []string{"busybox", "wget", "-q", "-O-", "http://127.0.0.1:8080/"}
	http = corev1.ProbeHandler{HTTPGet: &corev1.HTTPGetAction{Path: "/", Port: web, HTTPHeaders: []corev1.HTTPHeader{{Name: "Host", Value: "app.example"}}}}
)

func runs(command ...string) *corev1.ExecAction { return &corev1.ExecAction{Command: command} }

// programs are five of them.
func programs() map[string]program {
	every := func(seconds int32, handler corev1.ProbeHandler) *corev1.Probe {
		return &corev1.Probe{ProbeHandler: handler, PeriodSeconds: seconds, TimeoutSeconds: 10, FailureThreshold: 600}
	}
	isReady := corev1.ProbeHandler{Exec: runs("sh", "-c", "exec pg_isready --username=app --host=127.0.0.1")}
	connects := corev1.ProbeHandler{TCPSocket: &corev1.TCPSocketAction{Port: web}}
	return map[string]program{
		// Its signal is the template's, and its image's. SIGTERM would end it at once, in the middle of answers.
		"nginx": {main: "nginx: master", asks: ask, stopSignal: "SIGQUIT", handedOver: "signal 3 (SIGQUIT) received", stopped: "signal 3 (SIGQUIT) received", container: corev1.Container{
			Command:       []string{"nginx", "-e", "stderr", "-c", sources + "/nginx.conf", "-g", "daemon off;"},
			LivenessProbe: every(5, http), ReadinessProbe: every(2, http),
			Lifecycle: &corev1.Lifecycle{StopSignal: new(corev1.SIGQUIT)},
		}},
		"postgres": {
			main: "postgres -k", asks: []string{"psql", "--username=app", "--host=127.0.0.1", "--command=SELECT 1", "postgres"},
			stopSignal: "SIGINT", handedOver: "received smart shutdown request", stopped: "received fast shutdown request", // as its usual image
			container: corev1.Container{
				Command:      []string{"sh", sources + "/postgres.sh"},
				StartupProbe: every(1, isReady), LivenessProbe: every(5, isReady), ReadinessProbe: every(2, isReady),
			},
		},
		// Its signal is the template's alone, and the runtime sends SIGTERM.
		"python": {main: "python3", asks: ask, writes: true, handedOver: "stopped by SIGUSR1", stopped: "stopped by SIGUSR1", container: corev1.Container{
			Command:       []string{"python3", sources + "/app.py"},
			LivenessProbe: every(5, http), ReadinessProbe: every(2, connects),
			Lifecycle: &corev1.Lifecycle{
				PostStart:  &corev1.LifecycleHandler{Exec: runs("python3", "-c", "open('/tmp/started', 'w')")},
				StopSignal: new(corev1.SIGUSR1),
			},
		}},
		"node": {main: "node", asks: ask, writes: true, stopSignal: "SIGINT", handedOver: "stopped by SIGTERM", stopped: "stopped by SIGINT", container: corev1.Container{
			Command:       []string{"node", sources + "/app.js"},
			LivenessProbe: every(5, http), ReadinessProbe: every(2, http),
			Lifecycle: &corev1.Lifecycle{PreStop: &corev1.LifecycleHandler{Sleep: &corev1.SleepAction{Seconds: 1}}},
		}},
		"slow": {main: "python3", asks: ask, writes: true, stopSignal: "SIGRTMIN+3", handedOver: "stopped by SIGTERM", stopped: "stopped by SIGRTMIN+3", container: corev1.Container{
			Command:      []string{"python3", sources + "/slow.py"},
			StartupProbe: every(1, http), LivenessProbe: every(5, http), ReadinessProbe: every(2, http),
		}},
	}
}

// image is the image of all programs, with the program's STOPSIGNAL.
func (p program) image() string {
	name, _, _ := strings.Cut(strings.ToLower("local/programs-"+p.stopSignal), "+")
	return strings.TrimSuffix(name, "-") + ":1"
}

// TestPrograms has programs that know nothing of SingletonJob go through rollouts, drains and failovers. They stop by signals of their own,
// and each that is asked to end does so in order: no stop is cut short.
func TestPrograms(t *testing.T) {
	x := beginBeside(t)
	x.needLab()
	x.must(x.loadPrograms())
	x.must(x.giveSources())
	all := fleet{}
	for name, p := range programs() {
		all[name] = &served{job: x.createNamed(name, patient, p.change(x.namespace, name)), program: p}
	}
	all.each(func(s *served) { s.settles() })
	all.rollOut()
	all.kill()
	all.drain(x)
	all.crash(x)
}

type fleet map[string]*served

func (f fleet) each(do func(*served)) {
	for _, name := range slices.Sorted(maps.Keys(f)) {
		do(f[name])
	}
}

func (f fleet) rollOut() {
	f.each(func(s *served) {
		s.log = s.follow(s.get().Status.ActivePod)
		s.update(func(o *v1alpha1.SingletonJob) {
			c := &o.Spec.Template.Spec.Containers[0]
			c.Env = append(c.Env, corev1.EnvVar{Name: "VERSION", Value: "2"})
		})
	})
	f.each(func(s *served) {
		if after := s.settles(); after.Status.Handovers != 1 || after.Status.Failovers != 0 {
			s.Errorf("%s: %d handovers and %d failovers, want one handover", s.name, after.Status.Handovers, after.Status.Failovers)
		}
		s.stoppedInOrder("a rollout", s.program.handedOver)
	})
}

func (f fleet) kill() {
	f.each(func(s *served) {
		before := s.get().Status
		s.await("a SIGKILL for "+s.name, func() (bool, any, error) {
			err := bed.Lab.Fault(s.ctx, "signal", s.container(before.ActivePod), "KILL", s.program.main)
			return err == nil, nil, err
		})
		s.token = before.FencingToken
	})
	f.each(func(s *served) { s.awaitActiveAfter(s.token) })
	f.each(func(s *served) { s.settles() })
}

// drain drains the node of one of the programs, and of whatever else is active there.
func (f fleet) drain(x *trial) {
	x.Helper()
	node := f["postgres"].get().Status.ActiveNode
	moves := map[string]bool{}
	f.each(func(s *served) {
		status := s.get().Status
		if moves[s.name], s.token = status.ActiveNode == node, status.FencingToken; moves[s.name] {
			s.log = s.follow(status.ActivePod)
		}
	})
	x.kubectl("drain", node, "--ignore-daemonsets", "--delete-emptydir-data", "--force", "--timeout=15m", "--pod-selector=singletonjob.io/name")
	f.each(func(s *served) {
		if moves[s.name] {
			s.awaitActiveAfter(s.token)
			s.stoppedInOrder("a drain", s.program.stopped)
		}
	})
	x.restoreNodes(x.ctx)
	f.each(func(s *served) {
		if after := s.settles(); after.Status.Failovers != 1 {
			s.Errorf("%s: %d failovers after one SIGKILL and a drain, want one", s.name, after.Status.Failovers)
		}
		s.awaitSettled() // a drain has left the standby beside the active pod, from where the operator moves it
	})
}

// crash takes the power from a node, and asks for those whose standby is on another one.
func (f fleet) crash(x *trial) {
	x.Helper()
	node, lost := "", map[string]bool{}
	f.each(func(s *served) {
		status := s.get().Status
		if s.token = status.FencingToken; meta.IsStatusConditionTrue(status.Conditions, v1alpha1.ConditionProtected) {
			node = cmp.Or(node, status.ActiveNode)
			lost[s.name] = status.ActiveNode == node
		}
	})
	if node == "" {
		x.Fatal("no job has its two pods on two nodes")
	}
	x.fault("crash", node)
	f.each(func(s *served) {
		if lost[s.name] {
			s.serves(s.awaitActiveAfter(s.token).Status.ActivePod)
		}
		if s.program.writes {
			s.check(false)
		}
	})
}

// served is a job that runs a program.
type served struct {
	*job
	program program
	token   int64
	log     func() string // of a container that is about to end
}

// stoppedInOrder asks that the process whose log is followed was asked to end by its signal, and not killed.
func (s *served) stoppedInOrder(why, signal string) {
	s.Helper()
	log := s.log()
	if short := cutShort(log); short != 0 || !strings.Contains(log, signal) {
		s.Errorf("%s in %s: %d stops are cut short, want 0; its log must say %q:\n%s", s.name, why, short, signal, log)
	}
}

// cutShort counts the processes that an agent has killed before they ended, by its log.
func cutShort(log string) int { return strings.Count(log, "singletonjob: killing ") }

// settles waits until the program serves in the active pod, and asks that it does not in the others.
func (s *served) settles() *v1alpha1.SingletonJob {
	s.Helper()
	now := s.awaitStatus("active, with a standby", func(o *v1alpha1.SingletonJob) bool {
		protected := *o.DeepCopy()
		if c := meta.FindStatusCondition(protected.Status.Conditions, v1alpha1.ConditionProtected); c != nil && c.Reason == v1alpha1.ReasonStandbyOnSameNode {
			c.Status = metav1.ConditionTrue // ten pods on two nodes: the scheduler may put two of a job on one
		}
		return settled(&protected)
	})
	s.serves(now.Status.ActivePod)
	for _, p := range s.candidates() {
		if p.Name != now.Status.ActivePod && p.DeletionTimestamp == nil && s.answers(p.Name) == nil && s.get().Status.ActivePod == now.Status.ActivePod {
			s.Errorf("%s serves in %s, while %s is active", s.name, p.Name, now.Status.ActivePod)
		}
	}
	return now
}

func (s *served) serves(pod string) {
	s.Helper()
	s.await(fmt.Sprintf("%s serves in %s", s.name, pod), func() (bool, any, error) {
		err := s.answers(pod)
		return err == nil, nil, err
	})
}

func (s *served) answers(pod string) error {
	_, err := bed.Kubectl(s.ctx, append([]string{"--namespace", s.namespace, "exec", pod, "--container=app", "--"}, s.program.asks...)...)
	return err
}

// change makes a job run the program.
func (p program) change(namespace, name string) func(*v1alpha1.SingletonJob) {
	return func(o *v1alpha1.SingletonJob) {
		spec := &o.Spec.Template.Spec
		spec.TerminationGracePeriodSeconds = new(int64(180)) // for the release too, while five end at a time
		c := &spec.Containers[0]
		c.Image, c.Command, c.Lifecycle = p.image(), p.container.Command, p.container.Lifecycle
		c.StartupProbe, c.LivenessProbe, c.ReadinessProbe = p.container.StartupProbe, p.container.LivenessProbe, p.container.ReadinessProbe
		c.Ports = []corev1.ContainerPort{{Name: "web", ContainerPort: 8080}}
		c.Env = []corev1.EnvVar{
			{Name: "PATH", Value: "/usr/lib/postgresql/15/bin:/usr/sbin:/usr/bin:/bin"},
			{Name: "PGDATA", Value: "/data/cluster"},
			{Name: "HOME", Value: "/tmp"},
			{Name: "LC_ALL", Value: "C"},
			{Name: "SINK", Value: bed.SinkURL()},
			{Name: "RESOURCE", Value: string(fence.ResourceOf(namespace, name))},
		}
		c.VolumeMounts = []corev1.VolumeMount{{Name: "sources", MountPath: sources}, {Name: "data", MountPath: "/data"}}
		spec.Volumes = []corev1.Volume{
			{Name: "sources", VolumeSource: corev1.VolumeSource{ConfigMap: &corev1.ConfigMapVolumeSource{LocalObjectReference: corev1.LocalObjectReference{Name: "programs"}}}},
			{Name: "data", VolumeSource: corev1.VolumeSource{EmptyDir: &corev1.EmptyDirVolumeSource{}}},
		}
	}
}

// loadPrograms makes an image of Debian's packages, and loads it into the lab once for each STOPSIGNAL. All have the same layer.
func (x *trial) loadPrograms() error {
	root, err := debian.Unpack(x.ctx, os.Stderr, debianPackages)
	if err != nil {
		return err
	}
	files := x.TempDir()
	if err := debian.Stage(root, files, programFiles...); err != nil {
		return err
	}
	if err := os.Symlink("busybox", filepath.Join(files, "bin/sh")); err != nil {
		return err
	}
	passwd := filepath.Join(files, "etc/passwd") // PostgreSQL wants its user to have a name
	if err := os.MkdirAll(filepath.Dir(passwd), 0o755); err != nil {
		return err
	}
	if err := os.WriteFile(passwd, []byte("app:x:65532:65532::/tmp:/bin/sh\n"), 0o600); err != nil {
		return err
	}
	// A test beside this one may have just crashed a node.
	signals := map[string]string{} // by image
	for _, p := range programs() {
		signals[p.image()] = p.stopSignal
	}
	for image, signal := range signals {
		text := image + "=" + files + ":/"
		if signal != "" {
			text += "!" + signal
		}
		x.await("the image "+image+" to be on every node", func() (bool, any, error) {
			err := bed.Lab.Image(x.ctx, text)
			return err == nil, nil, err
		})
	}
	return nil
}

// giveSources makes the ConfigMap of testdata/programs.
func (x *trial) giveSources() error {
	config := &corev1.ConfigMap{ObjectMeta: metav1.ObjectMeta{Namespace: x.namespace, Name: "programs"}, Data: map[string]string{}}
	files, err := filepath.Glob("testdata/programs/*")
	if err != nil {
		return err
	}
	for _, name := range files {
		text, err := os.ReadFile(name)
		if err != nil {
			return err
		}
		config.Data[filepath.Base(name)] = string(text)
	}
	return bed.Client.Create(x.ctx, config)
}
