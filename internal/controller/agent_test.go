package controller

import (
	"cmp"
	"encoding/json"
	"fmt"
	"slices"
	"time"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/singletonjob/operator/internal/contract"
	"github.com/singletonjob/operator/internal/inject"
	"github.com/singletonjob/operator/internal/lease"
	"github.com/singletonjob/operator/internal/plan"
	"github.com/singletonjob/operator/test/observe"
)

// agent is a Pod's agent: the real state machine on the world's clock, with a process that is a flag.
type agent struct {
	w       *world
	name    string
	node    string
	image   string
	started time.Time
	config  lease.Config
	state   lease.State
	// alive: the process runs. stopped: the agent has ended. frozen: the agent does nothing, but its process keeps running.
	alive, stopped, frozen bool
	code                   int
	begun, ended           time.Time
	restarts               int32
	// number counts the agents of the world.
	number int
}

func (w *world) startAgent(pod *corev1.Pod, restarts int32) *agent {
	w.t.Helper()
	var config contract.AgentConfig
	gated := &pod.Spec.Containers[0]
	for _, e := range gated.Env {
		if e.Name == contract.ConfigEnv {
			w.must(json.Unmarshal([]byte(e.Value), &config))
		}
	}
	id := lease.Identity{Pod: pod.Name, PodUID: string(pod.UID), Nonce: fmt.Sprintf("n%d", restarts)}
	a := &agent{
		w: w, name: pod.Name, node: pod.Spec.NodeName, image: gated.Image, started: w.clock.Now(),
		config: config.Lease(id, pod.Spec.NodeName, true), restarts: restarts, number: w.started,
	}
	w.started++
	w.agents[pod.UID] = a
	a.feed(lease.WatchOpened{})
	return a
}

func (a *agent) feed(e lease.Event) {
	now := a.w.clock.Now()
	at := lease.Time{Boot: lease.Instant(now.Sub(a.w.start)), Wall: now.UnixMicro()}
	var actions []lease.Action
	a.state, actions = lease.Step(a.config, a.state, at, e)
	for _, action := range actions {
		a.do(action)
	}
}

func (a *agent) do(action lease.Action) {
	switch action := action.(type) {
	case lease.SendRead:
		a.read(action)
	case lease.SendWrite:
		a.feed(a.write(action.Attempt))
	case lease.StartChild:
		a.w.begun(action.Token)
		a.w.starts(action.Run)
		a.w.acted = append(a.w.acted, tenure{token: action.Token, pod: a.name, node: a.node})
		a.alive, a.begun = true, a.w.clock.Now()
		if a.w.crashing[a.image] {
			a.exit(1)
		}
	case lease.SignalChild, lease.KillTree:
		if a.alive {
			a.exit(143)
		}
	case lease.TenureEnded:
		a.w.ended(action)
		a.w.ends(action)
	case lease.Exit:
		a.stopped, a.code, a.ended = true, action.Code, a.w.clock.Now()
	}
}

func (a *agent) exit(code int) {
	a.alive = false
	a.feed(lease.ChildExited{Code: code, Crashed: code != 0 && code != 143})
	a.feed(lease.TreeGone{})
}

// begun records that a process was started.
func (w *world) begun(token int64) {
	w.t.Helper()
	if token <= w.highest {
		w.t.Fatalf(observe.Safety+"token %d after %d", token, w.highest)
	}
	w.highest = token
	w.tenures = append(w.tenures, token)
}

func (a *agent) read(r lease.SendRead) {
	if a.w.cutOff[a.node] {
		a.feed(lease.ReadDone{ID: r.ID})
		return
	}
	l := a.w.lease()
	if l == nil {
		a.feed(lease.ReadDone{ID: r.ID, Absent: true, Date: a.w.now().Unix()})
		return
	}
	decoded, err := decode(l)
	a.w.must(err)
	a.feed(lease.ReadDone{ID: r.ID, Found: &decoded.Record, Date: a.w.now().Unix()})
}

func (a *agent) write(attempt lease.Attempt) lease.WriteDone {
	done := lease.WriteDone{Nonce: attempt.Nonce}
	if a.w.cutOff[a.node] {
		return done
	}
	if a.w.store != nil {
		return a.w.store(attempt)
	}
	l := a.w.lease()
	if l == nil {
		done.Outcome = lease.Gone
		return done
	}
	next := written(l, attempt.Record, plan.ParseClaim(l.Annotations[plan.ClaimAnnotation]))
	switch err := a.w.api.Update(a.w.t.Context(), next); {
	case apierrors.IsConflict(err):
		done.Outcome = lease.Conflict
	default:
		a.w.must(err)
		stored, err := decode(next)
		a.w.must(err)
		done.Outcome, done.Record = lease.Confirmed, &stored.Record
	}
	return done
}

// now is the time by the API server's clock, which the world's takes the place of.
func (w *world) now() time.Time { return w.clock.Now() }

// runAgents shows every agent the Lease and the time.
func (w *world) runAgents() {
	w.t.Helper()
	ordered := make([]*agent, 0, len(w.agents))
	for _, a := range w.agents {
		if !a.stopped && !a.frozen {
			ordered = append(ordered, a)
		}
	}
	// The names of Pods contain a hash, which is another one in each run. So the oldest agent comes first, and a restarted one last.
	slices.SortFunc(ordered, func(a, b *agent) int { return cmp.Compare(a.number, b.number) })
	// Processes end first, so that each standby sees a released Lease before a kubelet has restarted the container.
	ordered = slices.DeleteFunc(ordered, func(a *agent) bool {
		life := w.short[a.image]
		over := life > 0 && a.alive && w.clock.Now().Sub(a.begun) >= life
		if over && w.fails > 0 {
			w.fails--
			a.exit(1)
		} else if over {
			a.exit(0)
		}
		return over
	})
	for _, a := range ordered {
		if !w.cutOff[a.node] {
			if l := w.lease(); l == nil {
				a.feed(lease.Watched{Deleted: true, Record: lease.Record{Revision: a.state.Observed.Record.Revision + 1}})
			} else {
				decoded, err := decode(l)
				w.must(err)
				a.feed(lease.Watched{Record: decoded.Record})
			}
		}
		a.feed(lease.Ticked{})
	}
}

// restartTime is the time that a kubelet takes to restart a container. A standby is faster.
const restartTime = time.Second

// cutOffNode disconnects a node. The node controller marks its Pods as not ready.
func (w *world) cutOffNode(name string) {
	w.t.Helper()
	w.cutOff[name] = true
	for _, pod := range w.pods() {
		if pod.Spec.NodeName == name {
			pod.Status.Conditions = []corev1.PodCondition{{Type: corev1.PodReady, Status: corev1.ConditionFalse}}
			w.must(w.api.Status().Update(w.t.Context(), &pod))
		}
	}
}

// reachNode ends cutOffNode.
func (w *world) reachNode(name string) {
	w.t.Helper()
	delete(w.cutOff, name)
	for _, pod := range w.pods() {
		if pod.Spec.NodeName == name {
			pod.Status.Conditions = []corev1.PodCondition{{Type: corev1.PodReady, Status: corev1.ConditionTrue}}
			w.must(w.api.Status().Update(w.t.Context(), &pod))
		}
	}
}

// force deletes a Pod by force. If its kubelet learns of it, it ends what is left of the Pod.
func (w *world) force(pod *corev1.Pod) {
	w.t.Helper()
	w.must(client.IgnoreNotFound(w.api.Delete(w.t.Context(), pod, client.GracePeriodSeconds(0))))
	if !w.cutOff[pod.Spec.NodeName] {
		delete(w.agents, pod.UID)
	}
}

// kubelets acts for every Pod as its node's kubelet and as the scheduler.
func (w *world) kubelets() {
	w.t.Helper()
	for _, pod := range w.pods() {
		switch {
		case w.cutOff[pod.Spec.NodeName]:
		case w.deployments && inject.Gated(&pod) < 0:
			w.runPlain(&pod)
		default:
			w.kubelet(&pod, w.agents[pod.UID])
		}
	}
}

func (w *world) kubelet(pod *corev1.Pod, a *agent) {
	w.t.Helper()
	switch {
	case pod.Spec.NodeName == "":
		w.schedule(pod)
	case pod.DeletionTimestamp != nil && a != nil && !a.stopped:
		a.feed(lease.Terminated{Signal: 15})
	case pod.DeletionTimestamp != nil:
		w.removePod(pod)
	case isOver(pod):
	case w.isFinal(pod, a):
		w.must(w.api.Status().Update(w.t.Context(), pod))
	case w.waitsFor(pod, a) != "":
		w.setState(pod, corev1.ContainerState{Waiting: &corev1.ContainerStateWaiting{Reason: w.waitsFor(pod, a)}}, 0)
	case a == nil:
		w.run(pod, 0)
	case a.stopped && !a.frozen && w.clock.Now().Sub(a.ended) >= restartTime:
		w.run(pod, a.restarts+1)
	case w.prepares[a.image] > 0 && a.alive:
		w.setReady(pod, a)
	}
}

// waitsFor is why the Pod's container cannot start, as a kubelet says it.
func (w *world) waitsFor(pod *corev1.Pod, a *agent) string {
	switch {
	case w.broken[pod.Spec.Containers[0].Image]:
		return "ImagePullBackOff"
	case a == nil && w.attachedElsewhere(pod):
		return "ContainerCreating"
	}
	return ""
}

// attachedElsewhere reports whether the Pods' volume is attached to another node.
func (w *world) attachedElsewhere(pod *corev1.Pod) bool {
	return w.attached && slices.ContainsFunc(w.pods(), func(other corev1.Pod) bool {
		return w.agents[other.UID] != nil && other.Spec.NodeName != pod.Spec.NodeName
	})
}

// isFinal sets the status of a Pod that has succeeded, or that the kubelet rejects.
func (w *world) isFinal(pod *corev1.Pod, a *agent) bool {
	switch {
	case a.succeeded(pod):
		pod.Status.Phase = corev1.PodSucceeded
		pod.Status.Conditions = []corev1.PodCondition{{Type: corev1.PodReady, Status: corev1.ConditionFalse}}
	case w.rejected[pod.Spec.Containers[0].Image]:
		pod.Status.Phase, pod.Status.Reason = corev1.PodFailed, "SysctlForbidden"
		pod.Status.Message = `forbidden sysctl: "kernel.msgmax" not allowlisted`
	default:
		return false
	}
	return true
}

// setReady reports whether the Pod of a process that prepares is ready: a kubelet withdraws the standby's readiness only after a while.
func (w *world) setReady(pod *corev1.Pod, a *agent) {
	w.t.Helper()
	const withdraws = 6 * time.Second
	lasted, status := w.clock.Now().Sub(a.begun), corev1.ConditionTrue
	if lasted < withdraws {
		return
	}
	if lasted < w.prepares[a.image] {
		status = corev1.ConditionFalse
	}
	if c := &pod.Status.Conditions[0]; c.Status != status {
		c.Status, c.LastTransitionTime = status, metav1.NewTime(w.clock.Now())
		pod.Status.ContainerStatuses[0].Ready = status == corev1.ConditionTrue
		w.must(w.api.Status().Update(w.t.Context(), pod))
	}
}

func isOver(pod *corev1.Pod) bool {
	return pod.Status.Phase == corev1.PodFailed || pod.Status.Phase == corev1.PodSucceeded
}

// succeeded reports whether an agent has ended with 0 for good.
func (a *agent) succeeded(pod *corev1.Pod) bool {
	return a != nil && a.stopped && !a.frozen && a.code == 0 && pod.Spec.RestartPolicy == corev1.RestartPolicyOnFailure
}

func (w *world) schedule(pod *corev1.Pod) {
	w.t.Helper()
	used := map[string]int{}
	for _, other := range w.pods() {
		if other.DeletionTimestamp == nil { // like topology spread constraints
			used[other.Spec.NodeName]++
		}
	}
	nodes := w.takers(pod)
	if len(nodes) == 0 {
		w.unplaced(pod, "0/3 nodes are available")
		return
	}
	node := slices.MinFunc(nodes, func(a, b string) int {
		if w.cutOff[a] != w.cutOff[b] {
			if w.cutOff[a] {
				return 1
			}
			return -1
		}
		return used[a] - used[b]
	})
	if w.alone && used[node] > 0 {
		w.unplaced(pod, "0/2 nodes are available: 2 node(s) didn't match pod anti-affinity rules.")
		return
	}
	binding := &corev1.Binding{ObjectMeta: metav1.ObjectMeta{Namespace: pod.Namespace, Name: pod.Name}, Target: corev1.ObjectReference{Kind: "Node", Name: node}}
	w.must(w.api.SubResource("binding").Create(w.t.Context(), pod, binding))
}

func (w *world) run(pod *corev1.Pod, restarts int32) {
	w.t.Helper()
	w.startAgent(pod, restarts)
	w.setState(pod, corev1.ContainerState{Running: &corev1.ContainerStateRunning{StartedAt: metav1.NewTime(w.clock.Now())}}, restarts)
}

// setState reports the gated container's state. The Pod is ready if it runs.
func (w *world) setState(pod *corev1.Pod, state corev1.ContainerState, restarts int32) {
	w.t.Helper()
	ready := corev1.ConditionFalse
	if state.Running != nil {
		ready = corev1.ConditionTrue
	}
	fresh := &corev1.Pod{}
	w.must(w.api.Get(w.t.Context(), client.ObjectKeyFromObject(pod), fresh))
	status := corev1.ContainerStatus{Name: "app", Ready: state.Running != nil, State: state, RestartCount: restarts}
	if old := fresh.Status.ContainerStatuses; len(old) > 0 {
		status.LastTerminationState = old[0].LastTerminationState
		if old[0].State.Terminated != nil {
			status.LastTerminationState = old[0].State
		}
		if old[0].State == state || old[0].State.Waiting != nil && state.Waiting != nil {
			return
		}
	}
	fresh.Status.Phase = corev1.PodRunning
	fresh.Status.Conditions = []corev1.PodCondition{{Type: corev1.PodReady, Status: ready}}
	fresh.Status.ContainerStatuses = []corev1.ContainerStatus{status}
	fresh.ResourceVersion = "" // an operator may change its labels at the same time
	w.must(w.api.Status().Update(w.t.Context(), fresh))
}

// kill ends an agent and its process at once. The kubelet reports it and does not restart it.
func (w *world) kill(a *agent) {
	w.t.Helper()
	a.alive, a.stopped, a.frozen = false, true, true
	for _, pod := range w.pods() {
		if w.agents[pod.UID] == a {
			w.setState(&pod, corev1.ContainerState{Terminated: &corev1.ContainerStateTerminated{
				ExitCode: 137, StartedAt: metav1.NewTime(a.started), FinishedAt: metav1.NewTime(w.clock.Now()),
			}}, a.restarts)
		}
	}
}

func (w *world) removePod(pod *corev1.Pod) {
	w.t.Helper()
	delete(w.agents, pod.UID)
	w.must(client.IgnoreNotFound(w.api.Delete(w.t.Context(), pod, client.GracePeriodSeconds(0))))
}

// holder is the agent whose process runs.
func (w *world) holder() *agent {
	for _, a := range w.agents {
		if a.alive {
			return a
		}
	}
	return nil
}
