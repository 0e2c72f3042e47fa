//go:build linux

package localnode

import (
	"bufio"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"reflect"
	"slices"
	"sync"
	"syscall"
	"time"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/utils/ptr"
)

const (
	// stopGrace is what containers get when their node is stopped, and at least when their pod is deleted by force.
	stopGrace = 2 * time.Second
	// startFailed is the exit code of a container whose program could not be started, as containerd reports it.
	startFailed = 128
)

// worker runs one pod on one node, from its binding to its end.
type worker struct {
	node    *Node
	uid     types.UID
	ip      string
	dir     string
	volumes *volumeSet
	life    context.Context // ends when the pod is to end, or its node
	end     context.CancelFunc

	mu        sync.Mutex
	pod       *corev1.Pod // as last seen; never changed
	gone      bool        // from the API server
	known     records
	processes map[string]*process
	changed   chan struct{} // closed and replaced when anything above changes
}

func (n *Node) newWorker(pod *corev1.Pod) *worker {
	w := &worker{
		node: n, uid: pod.UID, ip: newAddress(), pod: pod,
		dir:   filepath.Join(n.options.Dir, "pods", string(pod.UID)),
		known: records{}, processes: map[string]*process{}, changed: make(chan struct{}),
	}
	w.life, w.end = context.WithCancel(n.ctx)
	if pod.DeletionTimestamp != nil {
		w.end()
	}
	withIP := pod.DeepCopy()
	withIP.Status.PodIP, withIP.Status.HostIP = w.ip, hostIP
	w.pod = withIP
	w.volumes = newVolumes(w.dir, n.client, withIP)
	return w
}

func (w *worker) current() *corev1.Pod {
	w.mu.Lock()
	defer w.mu.Unlock()
	return w.pod
}

func (w *worker) process(container string) *process {
	w.mu.Lock()
	defer w.mu.Unlock()
	return w.processes[container]
}

// update is called with each new state of the pod at the API server.
func (w *worker) update(pod *corev1.Pod, gone bool) {
	pod = pod.DeepCopy()
	pod.Status.PodIP, pod.Status.HostIP = w.ip, hostIP
	w.mu.Lock()
	defer w.mu.Unlock()
	w.pod, w.gone = pod, w.gone || gone
	if gone || pod.DeletionTimestamp != nil {
		w.end()
	}
	w.tell()
}

// tell wakes those who wait for a change. The caller holds w.mu.
func (w *worker) tell() {
	close(w.changed)
	w.changed = make(chan struct{})
}

// record changes what is known of a container.
func (w *worker) record(name string, change func(*containerRecord)) {
	w.mu.Lock()
	defer w.mu.Unlock()
	r := w.known[name]
	change(&r)
	w.known[name] = r
	w.tell()
}

// run runs the pod to its end.
func (w *worker) run() {
	defer func() { _ = os.RemoveAll(w.dir) }()
	defer w.end()
	reporting, reported := context.WithCancel(w.node.ctx)
	var reporter sync.WaitGroup
	reporter.Go(func() { w.report(reporting) })
	if p := w.current().Status.Phase; p != corev1.PodSucceeded && p != corev1.PodFailed {
		if w.prepare() && w.runInitContainers() {
			w.runContainers()
		}
	}
	reported()
	reporter.Wait()
	w.finish()
}

// prepare makes directories and volumes, and keeps the volumes up to date from then on.
func (w *worker) prepare() bool {
	for {
		err := mkdirs(filepath.Join(w.dir, "tmp"), filepath.Join(w.node.options.Dir, "logs"))
		if err == nil {
			err = w.syncVolumes()
		}
		if err == nil {
			w.node.work.Go(w.refresh)
			return true
		}
		for _, c := range w.current().Spec.Containers {
			w.record(c.Name, func(r *containerRecord) { r.state = waiting("ContainerCreating", err.Error()) })
		}
		if !sleep(w.life, retryPause) {
			return false
		}
	}
}

func (w *worker) syncVolumes() error {
	ctx, cancel := context.WithTimeout(w.life, requestTimeout)
	defer cancel()
	return w.volumes.sync(ctx)
}

func (w *worker) refresh() {
	for sleep(w.life, refreshPeriod) {
		_ = w.syncVolumes() // what is there stays, and the next time comes
	}
}

// runInitContainers runs them one after the other, each until it succeeds; false when the pod ended before.
func (w *worker) runInitContainers() bool {
	pod := w.current()
	for i := range pod.Spec.InitContainers {
		c := &pod.Spec.InitContainers[i]
		if c.RestartPolicy != nil {
			w.record(c.Name, func(r *containerRecord) {
				r.state = waiting("CreateContainerConfigError", "the local node has no sidecar containers")
			})
			<-w.life.Done()
			return false
		}
		ended := w.keep(c, func(code int32) bool { return code != 0 && pod.Spec.RestartPolicy != corev1.RestartPolicyNever })
		w.mu.Lock()
		well := ended && succeeded(w.known[c.Name])
		w.mu.Unlock()
		if !well {
			return false
		}
	}
	return true
}

// runContainers runs them side by side until all have ended for good.
func (w *worker) runContainers() {
	pod := w.current()
	var all sync.WaitGroup
	for i := range pod.Spec.Containers {
		c := &pod.Spec.Containers[i]
		all.Go(func() { w.keep(c, func(code int32) bool { return restarts(pod, code) }) })
	}
	all.Wait()
}

// keep runs a container again and again, with growing pauses, for as long as again asks for it and the pod lives.
// It is true when the container ended for good by itself.
func (w *worker) keep(c *corev1.Container, again func(code int32) bool) bool {
	pause := time.Duration(0) // the first restart is at once
	for w.life.Err() == nil {
		begin := time.Now()
		code, configured := w.runOnce(c)
		if w.life.Err() != nil {
			return false
		}
		if !configured {
			if !sleep(w.life, retryPause) {
				return false
			}
			continue
		}
		if !again(code) {
			return true
		}
		if time.Since(begin) > 2*w.node.options.MaxBackOff {
			pause = 0
		}
		if pause > 0 {
			w.record(c.Name, func(r *containerRecord) {
				r.last, r.state = r.state, waiting("CrashLoopBackOff", fmt.Sprintf("back-off %v restarting failed container=%s", pause, c.Name))
			})
			if !sleep(w.life, pause) {
				return false
			}
		}
		pause = min(max(2*pause, w.node.options.BackOff), w.node.options.MaxBackOff)
	}
	return false
}

// runOnce runs a container until it has ended. configured is false when it could not even be made.
func (w *worker) runOnce(c *corev1.Container) (code int32, configured bool) {
	ctx, cancel := context.WithTimeout(w.life, requestTimeout)
	e, m, err := w.execution(ctx, c)
	cancel()
	var output *output
	if err == nil {
		output, err = w.openOutput(c.Name)
	}
	if err != nil {
		w.record(c.Name, func(r *containerRecord) { r.state = waiting("CreateContainerConfigError", err.Error()) })
		return 0, false
	}
	defer output.close()
	started := time.Now()
	p, err := startProcess(e, output.writer, output.writer)
	if err != nil {
		w.recordExit(c.Name, started, exit{Code: startFailed, At: time.Now()}, "StartError", err.Error())
		return startFailed, true
	}
	w.recordStart(c, p, started)
	running, stopProbes := context.WithCancel(w.life)
	var probes sync.WaitGroup
	sick := make(chan string, 1)
	w.startProbes(running, &probes, c, target{ip: w.ip, container: c, run: e, mounts: m}, sick)
	w.awaitEnd(p, sick)
	stopProbes()
	probes.Wait()
	w.recordExit(c.Name, started, p.exit, "", "")
	return int32(p.exit.Code), true
}

// awaitEnd returns when the container has ended: by itself, or stopped because the pod ends or a probe says so.
func (w *worker) awaitEnd(p *process, sick <-chan string) {
	select {
	case <-p.done:
		return
	case <-sick:
		p.signal(syscall.SIGTERM)
		grace := time.Duration(ptr.Deref(w.current().Spec.TerminationGracePeriodSeconds, 30)) * time.Second
		select {
		case <-p.done:
			return
		case <-time.After(grace):
		case <-w.life.Done():
		}
	case <-w.life.Done():
	}
	w.terminate(p)
}

// terminate asks the main process to end and kills the container when its grace period is over. The API server may
// shorten that period meanwhile, and the node's own end does.
func (w *worker) terminate(p *process) {
	asked, nodeEnds := time.Now(), w.node.ctx.Done()
	p.signal(syscall.SIGTERM)
	for {
		w.mu.Lock()
		grace, changed := w.grace(), w.changed
		w.mu.Unlock()
		left := time.Until(asked.Add(grace))
		if left <= 0 {
			p.kill()
			<-p.done
			return
		}
		select {
		case <-p.done:
			return
		case <-changed:
		case <-time.After(left):
		case <-nodeEnds:
			asked, nodeEnds = time.Now(), nil
		}
	}
}

// grace is how long containers may take to end. The caller holds w.mu.
func (w *worker) grace() time.Duration {
	if errors.Is(context.Cause(w.node.ctx), errStopped) {
		return stopGrace
	}
	seconds := ptr.Deref(w.pod.Spec.TerminationGracePeriodSeconds, 30)
	if w.pod.DeletionGracePeriodSeconds != nil {
		seconds = *w.pod.DeletionGracePeriodSeconds
	}
	return max(time.Duration(seconds)*time.Second, stopGrace)
}

func (w *worker) recordStart(c *corev1.Container, p *process, at time.Time) {
	w.mu.Lock()
	w.processes[c.Name] = p
	w.mu.Unlock()
	w.record(c.Name, func(r *containerRecord) {
		if r.state.Terminated != nil {
			r.last = r.state
		}
		if r.last.Terminated != nil {
			r.restarts++
		}
		r.state = corev1.ContainerState{Running: &corev1.ContainerStateRunning{StartedAt: metav1.NewTime(at)}}
		r.started = c.StartupProbe == nil
		r.ready = r.started && c.ReadinessProbe == nil
		r.id = fmt.Sprintf("localnode://%s/%s/%d", w.uid, c.Name, r.restarts)
	})
}

func (w *worker) recordExit(name string, started time.Time, e exit, reason, message string) {
	if reason == "" {
		reason = "Completed"
		if e.Code != 0 {
			reason = "Error"
		}
	}
	w.mu.Lock()
	delete(w.processes, name)
	w.mu.Unlock()
	w.record(name, func(r *containerRecord) {
		r.started, r.ready = false, false
		r.state = corev1.ContainerState{Terminated: &corev1.ContainerStateTerminated{
			ExitCode: int32(e.Code), Signal: int32(e.Signal), Reason: reason, Message: message,
			StartedAt: metav1.NewTime(started), FinishedAt: metav1.NewTime(e.At), ContainerID: r.id,
		}}
	})
}

// startProbes runs a container's probes. The others wait for the startup probe; sick gets the reason to end the container.
func (w *worker) startProbes(ctx context.Context, group *sync.WaitGroup, c *corev1.Container, t target, sick chan<- string) {
	fail := func(healthy bool, why string) {
		if !healthy {
			select {
			case sick <- why:
			default:
			}
		}
	}
	others := func() {
		if c.ReadinessProbe != nil {
			group.Go(func() {
				watchProbe(ctx, c.ReadinessProbe, t, func(healthy bool, _ string) {
					w.record(c.Name, func(r *containerRecord) { r.ready = healthy })
				})
			})
		}
		if c.LivenessProbe != nil {
			group.Go(func() { watchProbe(ctx, c.LivenessProbe, t, fail) })
		}
	}
	if c.StartupProbe == nil {
		others()
		return
	}
	group.Go(func() {
		startup, done := context.WithCancel(ctx)
		defer done()
		watchProbe(startup, c.StartupProbe, t, func(healthy bool, why string) {
			if !healthy {
				fail(false, why)
				return
			}
			done()
			w.record(c.Name, func(r *containerRecord) { r.started, r.ready = true, c.ReadinessProbe == nil })
			others()
		})
	})
}

// output is where a container's lines go: a file, and those who listen.
type output struct {
	writer *os.File
	done   chan struct{}
}

func (w *worker) openOutput(container string) (*output, error) {
	pod := w.current()
	log, err := os.OpenFile(w.node.Log(pod.Namespace, pod.Name, container), os.O_CREATE|os.O_APPEND|os.O_WRONLY, 0o644)
	if err != nil {
		return nil, err
	}
	reader, writer, err := os.Pipe()
	if err != nil {
		_ = log.Close()
		return nil, err
	}
	o := &output{writer: writer, done: make(chan struct{})}
	line := Line{Node: w.node.options.Name, Namespace: pod.Namespace, Pod: pod.Name, Container: container}
	go func() {
		defer close(o.done)
		defer func() { _ = errors.Join(log.Close(), reader.Close()) }()
		for lines := bufio.NewReader(reader); ; {
			text, err := lines.ReadString('\n')
			if text != "" {
				_, _ = log.WriteString(text)
				line.Time, line.Text = time.Now(), text[:len(text)-len(lineEnd(text))]
				w.node.options.Output(line)
			}
			if err != nil {
				return
			}
		}
	}()
	return o, nil
}

func lineEnd(text string) string {
	if text[len(text)-1] == '\n' {
		return "\n"
	}
	return ""
}

// close waits until all that was printed is written: the container is gone, so nobody else holds the pipe.
func (o *output) close() {
	_ = o.writer.Close()
	<-o.done
}

// report keeps the pod's status at the API server as it is here, until ctx ends.
func (w *worker) report(ctx context.Context) {
	var sent *corev1.PodStatus
	for {
		w.mu.Lock()
		pod, gone, changed := w.pod, w.gone, w.changed
		status := podStatus(pod, w.known, w.ip, time.Now())
		w.mu.Unlock()
		if gone {
			return
		}
		// Others write conditions too: what marked the pod of a lost node is undone when the node is back.
		if sent == nil || !sameStatus(*sent, status) || !hasConditions(pod.Status, status) {
			if err := w.send(ctx, status); err != nil {
				if !sleep(ctx, retryPause) {
					return
				}
				continue
			}
			sent = &status
		}
		select {
		case <-changed:
		case <-ctx.Done():
			return
		}
	}
}

// hasConditions says whether all conditions of want are in status.
func hasConditions(status, want corev1.PodStatus) bool {
	return !slices.ContainsFunc(want.Conditions, func(w corev1.PodCondition) bool {
		return !slices.ContainsFunc(status.Conditions, func(c corev1.PodCondition) bool { return c.Type == w.Type && c.Status == w.Status })
	})
}

// sameStatus disregards when a condition changed: a condition that did not keeps its time at the API server only.
func sameStatus(a, b corev1.PodStatus) bool {
	return reflect.DeepEqual(withoutTimes(a), withoutTimes(b))
}

func withoutTimes(s corev1.PodStatus) corev1.PodStatus {
	s = *s.DeepCopy()
	s.StartTime = nil
	for i := range s.Conditions {
		s.Conditions[i].LastTransitionTime = metav1.Time{}
	}
	return s
}

// send writes the status; conditions of others are left alone.
func (w *worker) send(ctx context.Context, status corev1.PodStatus) error {
	pod := w.current()
	body, err := json.Marshal(map[string]any{"metadata": map[string]any{"uid": w.uid}, "status": status})
	if err != nil {
		return err
	}
	ctx, cancel := context.WithTimeout(ctx, requestTimeout)
	defer cancel()
	_, err = w.node.client.CoreV1().Pods(pod.Namespace).Patch(ctx, pod.Name, types.StrategicMergePatchType, body, metav1.PatchOptions{}, "status")
	if apierrors.IsNotFound(err) || apierrors.IsConflict(err) {
		return nil // this pod is gone, or another has its name
	}
	return err
}

// finish reports how the pod ended. One that is being deleted is then removed; one that completed is kept until it is.
func (w *worker) finish() {
	ctx := w.node.ctx
	for ctx.Err() == nil {
		w.mu.Lock()
		pod, gone, changed := w.pod, w.gone, w.changed
		status := podStatus(pod, w.known, w.ip, time.Now())
		w.mu.Unlock()
		if gone {
			return
		}
		err := w.send(ctx, status)
		if err == nil && pod.DeletionTimestamp != nil {
			if err = w.remove(ctx, pod); err == nil {
				return
			}
		}
		if err != nil {
			sleep(ctx, retryPause)
			continue
		}
		select {
		case <-changed:
		case <-ctx.Done():
		}
	}
}

func (w *worker) remove(ctx context.Context, pod *corev1.Pod) error {
	ctx, cancel := context.WithTimeout(ctx, requestTimeout)
	defer cancel()
	now := metav1.DeleteOptions{GracePeriodSeconds: new(int64(0)), Preconditions: &metav1.Preconditions{UID: &w.uid}}
	err := w.node.client.CoreV1().Pods(pod.Namespace).Delete(ctx, pod.Name, now)
	if apierrors.IsNotFound(err) || apierrors.IsConflict(err) {
		return nil
	}
	return err
}
