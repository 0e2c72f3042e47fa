package controller

import (
	"context"
	"errors"
	"flag"
	"fmt"
	"math/rand/v2"
	"os"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/go-logr/logr"
	coordinationv1 "k8s.io/api/coordination/v1"
	corev1 "k8s.io/api/core/v1"
	rbacv1 "k8s.io/api/rbac/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/types"
	clocktesting "k8s.io/utils/clock/testing"
	"k8s.io/utils/ptr"
	ctrl "sigs.k8s.io/controller-runtime"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/client/interceptor"

	"github.com/singletonjob/operator/api/v1alpha1"
	"github.com/singletonjob/operator/internal/adopt"
	"github.com/singletonjob/operator/internal/contract"
	"github.com/singletonjob/operator/internal/inject"
	"github.com/singletonjob/operator/internal/lease"
	"github.com/singletonjob/operator/test/apiserver"
	"github.com/singletonjob/operator/test/controlplane"
	"github.com/singletonjob/operator/test/observe"
)

func TestMain(m *testing.M) {
	ctrl.SetLogger(logr.Discard())
	flag.Parse()
	if parallel := flag.Lookup("test.parallel"); parallel.Value.String() == parallel.DefValue {
		_ = flag.Set("test.parallel", "8") // a list waits up to a tenth of a second for a fresh cache of the API server
	}
	os.Exit(apiserver.Main(m))
}

// installed installs the definition of SingletonJobs once.
var installed struct {
	sync.Once
	err error
}

// world is one job in its own namespace on a real API server. No manager runs: the test calls operators directly, and acts as
// scheduler, kubelets and clock. The agents are the real state machine.
type world struct {
	t         *testing.T
	plane     *controlplane.APIServer
	key       types.NamespacedName
	api       client.WithWatch
	memo      *memo
	clock     *clocktesting.FakePassiveClock
	start     time.Time
	operators []*operator
	agents    map[types.UID]*agent
	nodes     []string

	// broken images never become ready.
	broken map[string]bool
	// rejected images are those of Pods that the kubelets refuse to run.
	rejected map[string]bool
	// crashing images end with a status at once.
	crashing map[string]bool
	// cutOff nodes reach nothing: their kubelets and agents do nothing that others see.
	cutOff map[string]bool
	// deployments: there are Deployments, and a controller for them.
	deployments bool
	// lagging: the controller of ReplicaSets does nothing.
	lagging bool
	// started is the number of agents that were started.
	started int
	// short images exit with 0 by themselves after this time.
	short map[string]time.Duration
	// prepares: the processes of these images are ready only this long after the start of their tenure, and their agents say so.
	prepares map[string]time.Duration
	// fails is the number of processes that still exit with 1 then.
	fails int
	// ran are the attempts of runs that were started; finished are the runs that were reported as over.
	ran      []lease.Run
	finished map[string]bool
	// alone: no node runs two Pods.
	alone bool
	// attached: all pods use one volume, which is attached to one node at a time.
	attached bool
	// full nodes accept no more Pods, for a reason that no object shows.
	full map[string]bool
	// tick is the time that a round takes.
	tick time.Duration
	// tenures are the tokens with which processes were started, in order.
	tenures []int64
	highest int64
	// store is how agents write the Lease; nil for the operator's way.
	store func(lease.Attempt) lease.WriteDone
	// acted is what the agents themselves know of these tenures.
	acted []tenure
}

func scheme(t *testing.T) *runtime.Scheme {
	t.Helper()
	s := runtime.NewScheme()
	for _, add := range []func(*runtime.Scheme) error{
		adopt.AddToScheme, coordinationv1.AddToScheme, rbacv1.AddToScheme,
	} {
		if err := add(s); err != nil {
			t.Fatal(err)
		}
	}
	return s
}

func newWorld(t *testing.T) *world {
	t.Helper()
	plane := apiserver.ForTest(t)
	installed.Do(func() { installed.err = plane.Apply(context.Background(), "../../config/crd") })
	if installed.err != nil {
		t.Fatal(installed.err)
	}
	api, err := client.NewWithWatch(plane.Config(), client.Options{Scheme: scheme(t)})
	if err != nil {
		t.Fatal(err)
	}
	now, memo := time.Now().Truncate(time.Second), newMemo()
	w := &world{
		t: t, plane: plane, api: memo.of(api), memo: memo, clock: clocktesting.NewFakePassiveClock(now), start: now,
		key:    types.NamespacedName{Namespace: plane.Namespace(t), Name: "job"},
		agents: map[types.UID]*agent{}, broken: map[string]bool{}, rejected: map[string]bool{}, crashing: map[string]bool{}, cutOff: map[string]bool{},
		short: map[string]time.Duration{}, prepares: map[string]time.Duration{}, finished: map[string]bool{},
		tick: 200 * time.Millisecond,
	}
	for _, name := range []string{"a", "b", "c"} {
		node := &corev1.Node{ObjectMeta: metav1.ObjectMeta{Name: "node-" + name + "-" + w.key.Namespace}}
		w.must(api.Create(t.Context(), node))
		w.nodes = append(w.nodes, node.Name)
	}
	w.operators = []*operator{w.newOperator()}
	return w
}

func (w *world) must(err error) {
	w.t.Helper()
	if err != nil {
		w.t.Fatal(err)
	}
}

// job creates the job, with short lease times.
func (w *world) job(change func(*v1alpha1.SingletonJobSpec)) {
	w.t.Helper()
	spec := v1alpha1.SingletonJobSpec{
		Candidates: 2,
		Lease: v1alpha1.LeaseSpec{
			LeaseDuration: metav1.Duration{Duration: 5 * time.Second},
			RenewDeadline: metav1.Duration{Duration: 3 * time.Second},
			RetryPeriod:   metav1.Duration{Duration: time.Second},
		},
		Template: corev1.PodTemplateSpec{Spec: corev1.PodSpec{Containers: []corev1.Container{{
			Name: "app", Image: "v1", Command: []string{"run"},
		}}}},
	}
	if change != nil {
		change(&spec)
	}
	job := &v1alpha1.SingletonJob{ObjectMeta: metav1.ObjectMeta{Namespace: w.key.Namespace, Name: w.key.Name}, Spec: spec}
	w.must(w.api.Create(w.t.Context(), job))
}

func (w *world) edit(change func(*v1alpha1.SingletonJob)) {
	w.t.Helper()
	for {
		job := w.read()
		change(job)
		err := w.api.Update(w.t.Context(), job)
		if !apierrors.IsConflict(err) {
			w.must(err)
			return
		}
	}
}

func (w *world) read() *v1alpha1.SingletonJob {
	w.t.Helper()
	var job v1alpha1.SingletonJob
	w.must(w.api.Get(w.t.Context(), w.key, &job))
	return &job
}

func (w *world) status() v1alpha1.SingletonJobStatus { return w.read().Status }

// lease is the Lease; nil if there is none.
func (w *world) lease() *coordinationv1.Lease {
	w.t.Helper()
	l, err := get(w.t.Context(), w.api, w.key, &coordinationv1.Lease{})
	w.must(err)
	return l
}

func (w *world) pods() []corev1.Pod {
	w.t.Helper()
	var list corev1.PodList
	w.must(w.api.List(w.t.Context(), &list, client.InNamespace(w.key.Namespace)))
	slices.SortFunc(list.Items, func(a, b corev1.Pod) int { return strings.Compare(a.Name, b.Name) })
	return list.Items
}

func (w *world) events() []corev1.Event {
	w.t.Helper()
	var list corev1.EventList
	w.must(w.api.List(w.t.Context(), &list, client.InNamespace(w.key.Namespace)))
	return list.Items
}

// round lets every component act once, and advances time.
func (w *world) round() {
	w.t.Helper()
	for _, o := range w.operators {
		if o.cache != nil {
			o.cache.lag()
		}
		o.reconcile()
	}
	w.deploy()
	w.kubelets()
	w.runAgents()
	w.clock.SetTime(w.clock.Now().Add(w.tick))
	w.invariants()
}

// until runs rounds until a condition holds.
func (w *world) until(what string, holds func() bool) {
	w.t.Helper()
	for range 300 {
		if holds() {
			return
		}
		w.round()
	}
	w.t.Fatalf("%s: not within 300 rounds\n%s", what, w.describe())
}

// serving reports whether everything is as the spec asks.
func (w *world) serving() bool {
	s := w.status()
	job := w.read()
	return s.ActivePod != "" && s.Candidates.Ready == job.Spec.Candidates && s.Candidates.Total == job.Spec.Candidates &&
		s.Candidates.Updated == s.Candidates.Total && s.ObservedGeneration == job.Generation &&
		condition(s, v1alpha1.ConditionProgressing).Reason == v1alpha1.ReasonUpToDate
}

func condition(s v1alpha1.SingletonJobStatus, name string) metav1.Condition {
	if c := meta.FindStatusCondition(s.Conditions, name); c != nil {
		return *c
	}
	return metav1.Condition{}
}

func (w *world) describe() string {
	var out strings.Builder
	job, err := get(context.Background(), w.api, w.key, &v1alpha1.SingletonJob{})
	if err != nil || job == nil {
		return fmt.Sprint("no job ", err)
	}
	fmt.Fprintf(&out, "status: %+v\n", job.Status)
	for _, pod := range w.pods() {
		fmt.Fprintf(&out, "pod %s node %s phase %s ready %v deleted %v labels %v\n", pod.Name, pod.Spec.NodeName, pod.Status.Phase,
			podReady(&pod), pod.DeletionTimestamp != nil, pod.Labels)
	}
	if l := w.lease(); l != nil {
		fmt.Fprintf(&out, "lease holder %q annotations %v\n", ptr.Deref(l.Spec.HolderIdentity, ""), l.Annotations)
	}
	for _, a := range w.agents {
		fmt.Fprintf(&out, "agent %s alive %v phase %v\n", a.config.Identity, a.alive, a.state.Phase)
	}
	return out.String()
}

func podReady(pod *corev1.Pod) bool {
	return slices.ContainsFunc(pod.Status.Conditions, func(c corev1.PodCondition) bool {
		return c.Type == corev1.PodReady && c.Status == corev1.ConditionTrue
	})
}

// invariants hold after every round of every test.
func (w *world) invariants() {
	w.t.Helper()
	var alive []string
	for _, a := range w.agents {
		if a.alive {
			alive = append(alive, a.config.Identity.String())
		}
	}
	if len(alive) > 1 {
		w.t.Fatalf(observe.Safety+"two processes run: %v\n%s", alive, w.describe())
	}
	if w.deployments {
		if alive = append(alive, w.plain()...); len(alive) > 1 {
			w.t.Fatalf(observe.Safety+"two run what the workload's template says: %v\n%s", alive, w.describe())
		}
	}
	var active []string
	for _, pod := range w.pods() {
		if pod.Labels[contract.RoleLabel] == contract.RoleActive {
			active = append(active, pod.Name)
		}
	}
	if len(active) > 1 {
		w.t.Fatalf(observe.Safety+"two pods are labelled active: %v", active)
	}
	if job, _ := get(w.t.Context(), w.api, w.key, &v1alpha1.SingletonJob{}); job != nil {
		checkStatus(w.t, job)
	}
}

func checkStatus(t *testing.T, job *v1alpha1.SingletonJob) {
	t.Helper()
	s := job.Status
	count := map[v1alpha1.TenureChangeType]int64{}
	for i, h := range s.History {
		if i > 0 && h.Token >= s.History[i-1].Token || h.Token > s.FencingToken {
			t.Fatalf("the history is not newest first, each token once, up to %d: %+v", s.FencingToken, s.History)
		}
		count[h.Type]++
	}
	if len(s.History) < int(*job.Spec.HistoryLimit) && (count[v1alpha1.Failover] != s.Failovers || count[v1alpha1.Handover] != s.Handovers) {
		t.Fatalf("%d failovers and %d handovers are counted, the history has %v", s.Failovers, s.Handovers, count)
	}
	checkConditions(t, s)
}

func checkConditions(t *testing.T, s v1alpha1.SingletonJobStatus) {
	t.Helper()
	reasons := v1alpha1.ConditionReasons()
	for _, c := range s.Conditions {
		if !slices.ContainsFunc(reasons, func(r v1alpha1.ConditionReason) bool {
			return r.Condition == c.Type && r.Status == c.Status && r.Reason == c.Reason
		}) {
			t.Fatalf("no such condition: %+v", c)
		}
	}
	if running := condition(s, v1alpha1.ConditionActive).Status == metav1.ConditionTrue; running && s.ActivePod == "" {
		t.Fatalf("active, but nobody is: %+v", s)
	}
	ready, active := condition(s, v1alpha1.ConditionReady), condition(s, v1alpha1.ConditionActive)
	if ready.Status == metav1.ConditionTrue && (ready.Reason != active.Reason || ready.ObservedGeneration != s.ObservedGeneration) {
		t.Fatalf("ready: %+v\nactive: %+v", ready, active)
	}
}

// operator is one process of the operator.
type operator struct {
	w *world
	r *Reconciler
	// api is its client for the API server; nil for the world's client with all rights.
	api client.WithWatch
	// cache is what it reads instead of the API server; nil for an operator that does not lag.
	cache *laggingCache
	// writes counts its writes. It ends at the crashAt-th write: before the write, or after it without the response. If next is
	// set, it ends again some writes later.
	writes, crashAt int
	next            *rand.Rand
	// stored counts the successful writes.
	stored int
	after  bool
	// always: it ends at every kind of write at which it has not ended before.
	always  bool
	endedAt map[string]bool
	crashes []string // kinds of calls
	// loses is a verb. The responses to these writes are lost.
	loses string
	// dies decides for each call to the API server whether the operator ends at it, and whether the server executes the call; nil
	// for never.
	dies func(call string) (ends, after bool)
	// around replaces each write and may execute it. asks runs before each read from the API server itself.
	around func(verb string, obj client.Object, do func() error) error
	asks   func(obj client.Object)
	// refuses decides which writes the API server refuses; nil for none.
	refuses func(verb string, obj client.Object) bool
	log     []string
	// wake is when it wants to reconcile again.
	wake time.Duration
	// injection is the version of what it puts into Pods; 0 for the current one.
	injection int
	// lookedUp are the jobs whose look-ups have ended.
	lookedUp chan types.NamespacedName
}

// crash is the end of an operator at a call to the API server.
type crash struct{ call string }

var errAnswerLost = errors.New("the answer was lost")

func (w *world) newOperator() *operator {
	o := &operator{w: w, endedAt: map[string]bool{}}
	o.restart()
	return o
}

// restart turns it into a new process with an empty memory.
func (o *operator) restart() {
	api := o.w.api
	if o.api != nil {
		api = o.api
	}
	live := jobLister{api}
	c := interceptor.NewClient(api, interceptor.Funcs{
		Get: func(ctx context.Context, _ client.WithWatch, key client.ObjectKey, obj client.Object, opts ...client.GetOption) error {
			return o.reader(live).Get(ctx, key, obj, opts...)
		},
		List: func(ctx context.Context, _ client.WithWatch, list client.ObjectList, opts ...client.ListOption) error {
			return o.reader(live).List(ctx, list, opts...)
		},
		Create: func(ctx context.Context, c client.WithWatch, obj client.Object, opts ...client.CreateOption) error {
			return o.write("create", obj, func() error { return c.Create(ctx, obj, opts...) })
		},
		Update: func(ctx context.Context, c client.WithWatch, obj client.Object, opts ...client.UpdateOption) error {
			return o.write("update", obj, func() error { return c.Update(ctx, obj, opts...) })
		},
		Delete: func(ctx context.Context, c client.WithWatch, obj client.Object, opts ...client.DeleteOption) error {
			return o.write("delete", obj, func() error { return c.Delete(ctx, obj, opts...) })
		},
		Patch: func(ctx context.Context, c client.WithWatch, obj client.Object, patch client.Patch, opts ...client.PatchOption) error {
			return o.write("patch", obj, func() error { return c.Patch(ctx, obj, patch, opts...) })
		},
		SubResourceUpdate: func(ctx context.Context, c client.Client, sub string, obj client.Object, opts ...client.SubResourceUpdateOption) error {
			return o.write("update "+sub, obj, func() error { return c.SubResource(sub).Update(ctx, obj, opts...) })
		},
	})
	o.r = New(c, asking{live, o}, o.w.clock, inject.Settings{AgentImage: "agent", InjectionVersion: o.injection})
	o.r.ServerTime = o.w.now
}

func (o *operator) reader(live client.Reader) client.Reader {
	if o.cache != nil {
		return o.cache
	}
	return live
}

func (o *operator) write(verb string, obj client.Object, do func() error) error {
	o.writes++
	o.log = append(o.log, fmt.Sprintf("%s %T %s", verb, obj, obj.GetName()))
	what := fmt.Sprintf("%s %T %s at %s", verb, obj, obj.GetName(), obj.GetResourceVersion())
	if l, ok := obj.(*coordinationv1.Lease); ok { // an operator that waits for a renewal needs a new version each time
		what = fmt.Sprintf("%s %T %s %s", verb, obj, ptr.Deref(l.Spec.HolderIdentity, ""), l.Annotations)
	}
	call := kindOfWrite(o.log[len(o.log)-1])
	ends, after := o.writes == o.crashAt || o.always && !o.endedAt[what], o.after
	if o.dies != nil {
		ends, after = o.dies(call)
	}
	if ends && !after {
		o.endedAt[what] = true
		panic(crash{call})
	}
	if o.refuses != nil && o.refuses(verb, obj) {
		return apierrors.NewForbidden(schema.GroupResource{Resource: fmt.Sprintf("%T", obj)}, obj.GetName(), errors.New("a policy says no"))
	}
	if carryOut := do; o.around != nil {
		do = func() error { return o.around(verb, obj, carryOut) }
	}
	err := do()
	if err == nil {
		o.stored++
	}
	if ends {
		o.endedAt[what] = true
		panic(crash{call})
	}
	if verb == o.loses {
		return errAnswerLost
	}
	return err
}

// reconcile calls the Reconciler until it does not want to run again at once.
func (o *operator) reconcile() {
	if o.cache == nil { // one with a stale cache also waits before it stores a status
		o.r.StatusDelay = 0
	}
	o.w.t.Helper()
	defer func() {
		if p := recover(); p != nil {
			c, ok := p.(crash)
			if !ok {
				panic(p)
			}
			o.crashes = append(o.crashes, c.call)
			o.wake = 0 // the next process reconciles at once
			o.endLater()
			o.restart()
		}
	}()
	looks := 10
	if o.cache != nil {
		looks = 2 // its cache shows the same until the next round, and the writes would be the same each time
	}
	for range looks {
		before := o.writes
		result, err := o.r.Reconcile(o.w.t.Context(), ctrl.Request{NamespacedName: o.w.key})
		if err != nil && !errors.Is(err, errAnswerLost) {
			o.w.t.Fatalf("reconcile: %v", err)
		}
		o.wake = result.RequeueAfter
		if o.writes == before && (result.RequeueAfter == 0 || result.RequeueAfter > staleRetry) {
			return
		}
	}
}

// endLater chooses the next write at which it ends.
func (o *operator) endLater() {
	if o.next != nil {
		o.crashAt = o.writes + 1 + o.next.IntN(11)
	}
}

// jobLister answers queries of the cache's index on an API server.
type jobLister struct{ client.Reader }

func (l jobLister) List(ctx context.Context, list client.ObjectList, opts ...client.ListOption) error {
	for i, opt := range opts {
		if fields, ok := opt.(client.MatchingFields); ok {
			opts = slices.Clone(opts)
			_, ofWorkload := fields[workloadIndex]
			_, ofFleet := fields[fleetIndex]
			if ofWorkload || ofFleet {
				opts = slices.Delete(opts, i, i+1) // the response may contain others
				break
			}
			if node, on := fields[nodeIndex]; on {
				opts[i] = client.MatchingFields{"spec.nodeName": node}
				break
			}
			opts[i] = client.MatchingLabels{contract.NameLabel: fields[jobIndex], contract.ManagedByLabel: contract.ManagedBy}
		}
	}
	err := l.Reader.List(ctx, list, opts...)
	if pods, ok := list.(*corev1.PodList); ok {
		for i := range pods.Items {
			lean, transformed := leanPod(&pods.Items[i])
			pods.Items[i], err = *lean.(*corev1.Pod), errors.Join(err, transformed)
		}
	}
	return err
}

// leanAll is a list as the operator's cache stores it.
func leanAll(t *testing.T, list client.ObjectList) {
	t.Helper()
	var all []runtime.Object
	for _, o := range objects(t, list) {
		transform := leanChild
		if _, pod := o.(*corev1.Pod); pod {
			transform = leanPod
		}
		lean, err := transform(o)
		if err != nil {
			t.Fatal(err)
		}
		all = append(all, lean.(runtime.Object))
	}
	if err := meta.SetList(list, all); err != nil {
		t.Fatal(err)
	}
}

// asking records reads that the cache may not answer, and can end the operator at them.
type asking struct {
	client.Reader
	o *operator
}

func (a asking) Get(ctx context.Context, key client.ObjectKey, obj client.Object, opts ...client.GetOption) error {
	if a.o.asks != nil {
		a.o.asks(obj)
	}
	a.end(fmt.Sprintf("get %T", obj))
	return a.Reader.Get(ctx, key, obj, opts...)
}

func (a asking) List(ctx context.Context, list client.ObjectList, opts ...client.ListOption) error {
	a.end(fmt.Sprintf("list %T", list))
	return a.Reader.List(ctx, list, opts...)
}

func (a asking) end(call string) {
	if a.o.dies == nil {
		return
	}
	if ends, _ := a.o.dies(call); ends {
		panic(crash{call})
	}
}

func sameType(a, b any) bool { return fmt.Sprintf("%T", a) == fmt.Sprintf("%T", b) }

// objects are the items of a list.
func objects(t *testing.T, list client.ObjectList) []client.Object {
	t.Helper()
	items, err := meta.ExtractList(list)
	if err != nil {
		t.Fatal(err)
	}
	var out []client.Object
	for _, item := range items {
		out = append(out, item.(client.Object))
	}
	return out
}
