//go:build linux

package main

import (
	"context"
	"encoding/json"
	"fmt"
	"hash/fnv"
	"io"
	"net/http"
	"net/http/httptest"
	"net/url"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"sync"
	"syscall"
	"time"

	authenticationv1 "k8s.io/api/authentication/v1"
	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/informers"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/rest"
	"k8s.io/client-go/tools/cache"

	"github.com/singletonjob/operator/internal/agent"
	"github.com/singletonjob/operator/internal/contract"
	"github.com/singletonjob/operator/internal/kubelease"
	"github.com/singletonjob/operator/internal/supervise"
)

const (
	// nodes is how many the pods are spread over.
	nodes = 20
	// tokenLife is longer than any run.
	tokenLife = 24 * time.Hour
)

// place is where a fleet is: its API server, and a directory for credentials.
type place struct {
	Host, Token string
	CA          []byte
	Dir         string
	// Shared is how many connections all agents share; 0: each has its own.
	Shared int
}

func (p *place) config() *rest.Config {
	return &rest.Config{Host: p.Host, BearerToken: p.Token, TLSClientConfig: rest.TLSClientConfig{CAData: p.CA}, QPS: -1}
}

// fleet is the nodes of some jobs: it schedules their pods, runs the agents, and tells the API server of them as kubelets do.
type fleet struct {
	place
	client kubernetes.Interface
	log    *agent.Log
	ledger *ledger
	counter
	slots  chan struct{}
	ctx    context.Context
	shared []shared

	mu   sync.Mutex
	pods map[types.UID]*candidate
}

// candidate is one pod and its agent.
type candidate struct {
	*fleet
	pod     *corev1.Pod
	job     types.NamespacedName
	link    *link
	signals chan os.Signal

	mu      sync.Mutex
	process *process
}

func startFleet(ctx context.Context, at place) (*fleet, error) {
	client, err := kubernetes.NewForConfig(at.config())
	if err != nil {
		return nil, err
	}
	f := &fleet{
		place: at, client: client, log: agent.NewLog(io.Discard), ledger: newLedger(), ctx: ctx,
		counter: counter{sent: map[string]float64{}}, slots: make(chan struct{}, starting), pods: map[types.UID]*candidate{},
	}
	factory := informers.NewSharedInformerFactoryWithOptions(client, 0, informers.WithTransform(withoutManagers))
	if err := f.connect(); err != nil {
		return nil, err
	}
	pods := factory.Core().V1().Pods().Informer()
	if _, err := pods.AddEventHandler(cache.ResourceEventHandlerFuncs{
		AddFunc:    f.changed,
		UpdateFunc: func(_, o any) { f.changed(o) },
		DeleteFunc: f.deleted,
	}); err != nil {
		return nil, err
	}
	factory.Start(ctx.Done())
	factory.WaitForCacheSync(ctx.Done())
	return f, ctx.Err()
}

// withoutManagers removes what nothing here reads.
func withoutManagers(o any) (any, error) {
	if object, is := o.(metav1.Object); is {
		object.SetManagedFields(nil)
	}
	return o, nil
}

func nodeName(i int) string { return fmt.Sprintf("node-%d", i%nodes) }

func (f *fleet) changed(o any) {
	pod, is := o.(*corev1.Pod)
	if !is || pod.Labels[contract.ManagedByLabel] != contract.ManagedBy {
		return
	}
	f.ledger.seen(jobOf(pod), pod.Name, pod.Labels[contract.RoleLabel] == contract.RoleActive, podReady(pod))
	f.mu.Lock()
	defer f.mu.Unlock()
	c := f.pods[pod.UID]
	switch {
	case c == nil && pod.DeletionTimestamp == nil:
		c = &candidate{fleet: f, pod: pod, job: jobOf(pod), signals: make(chan os.Signal, 1)}
		f.pods[pod.UID] = c
		go c.live()
	case c != nil && pod.DeletionTimestamp != nil:
		select {
		case c.signals <- syscall.SIGTERM:
		default:
		}
	}
}

func (f *fleet) deleted(o any) {
	if unknown, is := o.(cache.DeletedFinalStateUnknown); is {
		o = unknown.Obj
	}
	if pod, is := o.(*corev1.Pod); is && pod.Labels[contract.ManagedByLabel] == contract.ManagedBy {
		f.ledger.seen(jobOf(pod), pod.Name, false, false)
	}
}

func jobOf(pod *corev1.Pod) types.NamespacedName {
	return types.NamespacedName{Namespace: pod.Namespace, Name: pod.Labels[contract.NameLabel]}
}

func podReady(pod *corev1.Pod) bool {
	for _, c := range pod.Status.Conditions {
		if c.Type == corev1.PodReady {
			return c.Status == corev1.ConditionTrue
		}
	}
	return false
}

// try does what a kubelet does until it is done: the API server may be away.
func (f *fleet) try(what string, do func(context.Context) error) {
	for pause := 200 * time.Millisecond; f.ctx.Err() == nil; pause = min(2*pause, 5*time.Second) {
		f.add(what)
		err := do(f.ctx)
		if err == nil || apierrors.IsNotFound(err) {
			return
		}
		select {
		case <-time.After(pause):
		case <-f.ctx.Done():
		}
	}
}

// live is the life of a pod: it is bound to a node, its agent runs, again if it ends, until the pod is deleted.
func (c *candidate) live() {
	c.slots <- struct{}{}
	c.bind(c.node())
	c.credentials()
	<-c.slots
	for restarts := int32(0); c.ctx.Err() == nil; restarts++ {
		code, err := c.run(restarts)
		if err != nil {
			c.ledger.fault(fmt.Sprintf("%s: %v", c.pod.Name, err))
			return
		}
		c.link.whole(c.ctx)
		if c.leaves() {
			c.remove()
			return
		}
		if restarts > 0 {
			time.Sleep(time.Second) // a kubelet waits longer
		}
		c.report(restarts+1, &code)
	}
}

// node has the pods of a job on nodes side by side.
func (c *candidate) node() string {
	h := fnv.New32a()
	_, _ = io.WriteString(h, c.job.String())
	ordinal, _ := strconv.Atoi(c.pod.Name[strings.LastIndexByte(c.pod.Name, '-')+1:])
	return nodeName(int(h.Sum32()%nodes) + ordinal)
}

func (c *candidate) bind(node string) {
	c.pod = c.pod.DeepCopy()
	c.pod.Spec.NodeName = node
	c.try(verbOf("POST", "pods", "binding"), func(ctx context.Context) error {
		err := c.client.CoreV1().Pods(c.pod.Namespace).Bind(ctx, &corev1.Binding{
			ObjectMeta: metav1.ObjectMeta{Namespace: c.pod.Namespace, Name: c.pod.Name, UID: c.pod.UID},
			Target:     corev1.ObjectReference{Kind: "Node", Name: node},
		}, metav1.CreateOptions{})
		if apierrors.IsConflict(err) { // an answer was lost, and it is bound
			return nil
		}
		return err
	})
}

// credentials has the agent's token and authority in the pod's folder, as its volume would.
func (c *candidate) credentials() {
	dir := c.folder()
	c.try(verbOf("POST", "serviceaccounts", "token"), func(ctx context.Context) error {
		seconds := int64(tokenLife / time.Second)
		answer, err := c.client.CoreV1().ServiceAccounts(c.pod.Namespace).CreateToken(ctx, c.pod.Spec.ServiceAccountName, &authenticationv1.TokenRequest{
			Spec: authenticationv1.TokenRequestSpec{
				ExpirationSeconds: &seconds,
				BoundObjectRef:    &authenticationv1.BoundObjectReference{APIVersion: "v1", Kind: "Pod", Name: c.pod.Name, UID: c.pod.UID},
			},
		}, metav1.CreateOptions{})
		if err != nil {
			return err
		}
		if err := os.MkdirAll(dir, 0o700); err != nil {
			return err
		}
		if err := os.WriteFile(filepath.Join(dir, "ca.crt"), c.CA, 0o600); err != nil {
			return err
		}
		return os.WriteFile(filepath.Join(dir, "token"), []byte(answer.Status.Token), 0o600)
	})
}

func (c *candidate) folder() string { return filepath.Join(c.Dir, string(c.pod.UID)) }

// environ is what the gated container is started with.
func (c *candidate) environ() []string {
	server, _ := url.Parse(c.Host)
	var environ []string
	fields := map[string]string{
		"metadata.name": c.pod.Name, "metadata.uid": string(c.pod.UID), "metadata.namespace": c.pod.Namespace, "spec.nodeName": c.pod.Spec.NodeName,
	}
	for _, e := range c.pod.Spec.Containers[0].Env {
		if e.ValueFrom != nil && e.ValueFrom.FieldRef != nil {
			e.Value = fields[e.ValueFrom.FieldRef.FieldPath]
		}
		environ = append(environ, e.Name+"="+e.Value)
	}
	return append(environ, // what is no node of Kubernetes knows better
		contract.APIHostEnv+"="+server.Hostname(), contract.APIPortEnv+"="+server.Port(), contract.CredentialsEnv+"="+c.folder())
}

// run runs the agent until it ends.
func (c *candidate) run(restarts int32) (code int, err error) {
	const init = 1 // its own PID
	o, err := agent.FromEnv(c.environ(), init)
	if err != nil {
		return 0, err
	}
	if o.API, err = c.api(o); err != nil {
		return 0, err
	}
	_, pause := kubelease.Pauses(time.Duration(o.Config.RetryPeriod))
	l := &link{API: o.API, count: &c.counter, pause: pause}
	c.register(l)
	o.API, o.Clock, o.Log, o.Argv, o.Start = l, newClock(), c.log, []string{"run"}, c.start
	a := agent.New(o)
	ctx, cancel := context.WithCancel(c.ctx)
	defer cancel()
	if restarts == 0 {
		go c.awaitReady(ctx, a.Handler())
	}
	return a.Run(ctx, c.signals), nil
}

// register lets others cut the link.
func (c *candidate) register(l *link) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.link = l
}

func (c *candidate) start(spec supervise.Spec) (agent.Process, error) {
	token := tokenIn(spec.Env)
	c.ledger.began(c.job, c.pod.Name, token)
	p := startProcess(spec, func() { c.ledger.ended(c.job, token) })
	c.mu.Lock()
	defer c.mu.Unlock()
	c.process = p
	return p, nil
}

// awaitReady reports the pod as running and ready once its agent says so.
func (c *candidate) awaitReady(ctx context.Context, h http.Handler) {
	for ctx.Err() == nil {
		answer := httptest.NewRecorder()
		h.ServeHTTP(answer, httptest.NewRequestWithContext(ctx, http.MethodGet, contract.ReadyPath, nil))
		if answer.Code == http.StatusOK {
			c.report(0, nil)
			return
		}
		time.Sleep(50 * time.Millisecond)
	}
}

// report writes the pod's status: it runs, after so many restarts.
func (c *candidate) report(restarts int32, code *int) {
	now := metav1.Now()
	running := corev1.ContainerStatus{
		Name: c.pod.Spec.Containers[0].Name, Image: "app", ContainerID: fmt.Sprintf("stub://%s/%d", c.pod.UID, restarts), Ready: true, Started: new(true),
		RestartCount: restarts, State: corev1.ContainerState{Running: &corev1.ContainerStateRunning{StartedAt: now}},
	}
	if code != nil {
		running.LastTerminationState.Terminated = &corev1.ContainerStateTerminated{ExitCode: int32(*code), Reason: "Error", StartedAt: now, FinishedAt: now}
	}
	status := corev1.PodStatus{Phase: corev1.PodRunning, StartTime: &now, PodIP: "10.0.0.1", ContainerStatuses: []corev1.ContainerStatus{running}}
	for _, kind := range []corev1.PodConditionType{corev1.PodInitialized, corev1.ContainersReady, corev1.PodReady} {
		status.Conditions = append(status.Conditions, corev1.PodCondition{Type: kind, Status: corev1.ConditionTrue, LastTransitionTime: now})
	}
	patch, err := json.Marshal(map[string]any{"metadata": map[string]any{"uid": c.pod.UID}, "status": status})
	if err != nil {
		c.ledger.fault(err.Error())
		return
	}
	c.try(verbOf("PATCH", "pods", "status"), func(ctx context.Context) error {
		_, err := c.client.CoreV1().Pods(c.pod.Namespace).Patch(ctx, c.pod.Name, types.StrategicMergePatchType, patch, metav1.PatchOptions{}, "status")
		return err
	})
}

// leaves reports whether the pod is being deleted.
func (c *candidate) leaves() bool {
	leaves := false
	c.try(verbOf("GET", "pods"), func(ctx context.Context) error {
		pod, err := c.client.CoreV1().Pods(c.pod.Namespace).Get(ctx, c.pod.Name, metav1.GetOptions{})
		leaves = apierrors.IsNotFound(err) || err == nil && (pod.UID != c.pod.UID || pod.DeletionTimestamp != nil)
		return err
	})
	return leaves
}

func (c *candidate) remove() {
	c.try(verbOf("DELETE", "pods"), func(ctx context.Context) error {
		return c.client.CoreV1().Pods(c.pod.Namespace).Delete(ctx, c.pod.Name, metav1.DeleteOptions{
			GracePeriodSeconds: new(int64(0)), Preconditions: &metav1.Preconditions{UID: &c.pod.UID},
		})
	})
	_ = os.RemoveAll(c.folder())
}

// holders are the candidates whose processes act.
func (f *fleet) holders() []*candidate {
	f.mu.Lock()
	defer f.mu.Unlock()
	var all []*candidate
	for _, c := range f.pods {
		c.mu.Lock()
		p := c.process
		c.mu.Unlock()
		if p != nil && p.alive() {
			all = append(all, c)
		}
	}
	return all
}

// crash has its process end by itself.
func (c *candidate) crash() {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.process.crash()
}

func (c *candidate) path() *link {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.link
}

func (c *candidate) sever() { c.path().sever() }
func (c *candidate) heal()  { c.path().heal() }

// renewedSince reports whether a write of its was confirmed since.
func (c *candidate) renewedSince(at time.Time) bool {
	l := c.path()
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.renewed.After(at)
}
