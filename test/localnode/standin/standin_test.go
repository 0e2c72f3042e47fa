//go:build linux

package standin

import (
	"encoding/json"
	"fmt"
	"net/http"
	"net/http/httptest"
	"os"
	"slices"
	"strings"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	policyv1 "k8s.io/api/policy/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/apimachinery/pkg/util/intstr"
	"k8s.io/client-go/informers"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/rest"
	"k8s.io/client-go/tools/cache"

	"github.com/singletonjob/operator/test/controlplane"
)

func TestMain(m *testing.M) { os.Exit(controlplane.Main(m)) }

func node(name string, change ...func(*corev1.Node)) *corev1.Node {
	n := &corev1.Node{ObjectMeta: metav1.ObjectMeta{Name: name, Labels: map[string]string{corev1.LabelHostname: name, corev1.LabelTopologyZone: "z-" + name}}}
	n.Status.Conditions = []corev1.NodeCondition{{Type: corev1.NodeReady, Status: corev1.ConditionTrue}}
	for _, f := range change {
		f(n)
	}
	return n
}

func pod(name, on string, change ...func(*corev1.Pod)) *corev1.Pod {
	p := &corev1.Pod{ObjectMeta: metav1.ObjectMeta{Name: name, UID: types.UID(name), Labels: map[string]string{"app": "x"}}, Spec: corev1.PodSpec{NodeName: on}}
	for _, f := range change {
		f(p)
	}
	return p
}

func apart(topology string, required bool) func(*corev1.Pod) {
	term := corev1.PodAffinityTerm{TopologyKey: topology, LabelSelector: &metav1.LabelSelector{MatchLabels: map[string]string{"app": "x"}}}
	anti := &corev1.PodAntiAffinity{PreferredDuringSchedulingIgnoredDuringExecution: []corev1.WeightedPodAffinityTerm{{Weight: 100, PodAffinityTerm: term}}}
	if required {
		anti = &corev1.PodAntiAffinity{RequiredDuringSchedulingIgnoredDuringExecution: []corev1.PodAffinityTerm{term}}
	}
	return func(p *corev1.Pod) { p.Spec.Affinity = &corev1.Affinity{PodAntiAffinity: anti} }
}

// A pod that was bound a moment ago counts where it is, though the cache still has it without a node.
func TestBindingsCountBeforeTheCacheTells(t *testing.T) {
	var asked []string
	server := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		binding := &corev1.Binding{}
		if err := json.NewDecoder(r.Body).Decode(binding); err != nil {
			t.Error(err)
		}
		asked = append(asked, binding.Name+" to "+binding.Target.Name)
		w.Header().Set("Content-Type", "application/json")
		w.WriteHeader(http.StatusCreated)
		_, _ = w.Write([]byte(`{"kind":"Status","apiVersion":"v1","status":"Success"}`))
	}))
	defer server.Close()
	client, err := kubernetes.NewForConfig(&rest.Config{Host: server.URL, ContentConfig: rest.ContentConfig{ContentType: "application/json"}})
	if err != nil {
		t.Fatal(err)
	}
	factory := informers.NewSharedInformerFactory(client, 0) // never started: the test says what the caches show
	s := &StandIn{client: client, pods: factory.Core().V1().Pods().Informer(), nodes: factory.Core().V1().Nodes().Informer()}
	show := func(informer cache.SharedIndexInformer, o any) {
		t.Helper()
		if err := informer.GetStore().Add(o); err != nil {
			t.Fatal(err)
		}
	}
	show(s.nodes, node("a"))
	show(s.nodes, node("b"))
	byDefault := func(p *corev1.Pod) { p.Namespace, p.Spec.SchedulerName = "n", corev1.DefaultSchedulerName }
	for _, name := range []string{"p", "q"} {
		show(s.pods, pod(name, "", byDefault, apart(corev1.LabelHostname, false)))
		if err := s.bindPods(t.Context()); err != nil {
			t.Fatal(err)
		}
	}
	if want := []string{"p to a", "q to b"}; !slices.Equal(asked, want) {
		t.Errorf("asked %q, want %q", asked, want)
	}
	show(s.pods, pod("p", "a", byDefault))
	if err := s.bindPods(t.Context()); err != nil || len(s.bound) != 1 || len(asked) != 2 {
		t.Errorf("%v; asked %q; remembers %v once the cache tells of p", err, asked, s.bound)
	}
}

func TestPlacement(t *testing.T) {
	cordoned := func(n *corev1.Node) { n.Spec.Unschedulable = true }
	lost := func(n *corev1.Node) { n.Status.Conditions[0].Status = corev1.ConditionUnknown }
	sameZone := func(n *corev1.Node) { n.Labels[corev1.LabelTopologyZone] = "z" }
	tainted := func(n *corev1.Node) {
		n.Spec.Taints = []corev1.Taint{{Key: "k", Value: "v", Effect: corev1.TaintEffectNoSchedule}}
	}
	tolerant := func(p *corev1.Pod) {
		p.Spec.Tolerations = []corev1.Toleration{{Key: "k", Value: "v", Effect: corev1.TaintEffectNoSchedule}}
	}
	selects := func(name string) func(*corev1.Pod) {
		return func(p *corev1.Pod) { p.Spec.NodeSelector = map[string]string{corev1.LabelHostname: name} }
	}
	notOn := func(name string) func(*corev1.Pod) {
		return func(p *corev1.Pod) {
			p.Spec.Affinity = &corev1.Affinity{NodeAffinity: &corev1.NodeAffinity{RequiredDuringSchedulingIgnoredDuringExecution: &corev1.NodeSelector{
				NodeSelectorTerms: []corev1.NodeSelectorTerm{{MatchExpressions: []corev1.NodeSelectorRequirement{
					{Key: corev1.LabelHostname, Operator: corev1.NodeSelectorOpNotIn, Values: []string{name}},
				}}},
			}}}
		}
	}
	spread := func(p *corev1.Pod) {
		p.Spec.TopologySpreadConstraints = []corev1.TopologySpreadConstraint{{
			MaxSkew: 1, TopologyKey: corev1.LabelHostname, WhenUnsatisfiable: corev1.ScheduleAnyway,
			LabelSelector: &metav1.LabelSelector{MatchLabels: map[string]string{"app": "x"}},
		}}
	}
	leaving := func(p *corev1.Pod) { p.DeletionTimestamp = new(metav1.Now()) }
	over := func(p *corev1.Pod) { p.Status.Phase = corev1.PodSucceeded }
	other := func(p *corev1.Pod) { p.Labels = nil }
	cases := map[string]struct {
		pod   *corev1.Pod
		nodes []*corev1.Node
		pods  []*corev1.Pod
		want  string
		why   string // part of the reason, where there is no node
	}{
		"no node":                 {pod: pod("p", ""), why: "0/0 nodes"},
		"equal nodes":             {pod: pod("p", ""), nodes: []*corev1.Node{node("b"), node("a")}, want: "a"},
		"fewer pods":              {pod: pod("p", ""), nodes: []*corev1.Node{node("a"), node("b")}, pods: []*corev1.Pod{pod("q", "a")}, want: "b"},
		"pods that are over":      {pod: pod("p", ""), nodes: []*corev1.Node{node("a"), node("b")}, pods: []*corev1.Pod{pod("q", "a", over)}, want: "a"},
		"cordoned":                {pod: pod("p", ""), nodes: []*corev1.Node{node("a", cordoned)}, why: "a is cordoned"},
		"not ready":               {pod: pod("p", ""), nodes: []*corev1.Node{node("a", lost)}, why: "a is not ready"},
		"tainted":                 {pod: pod("p", ""), nodes: []*corev1.Node{node("a", tainted)}, why: "a has the taint k"},
		"tainted and tolerated":   {pod: pod("p", "", tolerant), nodes: []*corev1.Node{node("a", tainted)}, want: "a"},
		"selected":                {pod: pod("p", "", selects("b")), nodes: []*corev1.Node{node("a"), node("b")}, want: "b"},
		"not selected":            {pod: pod("p", "", selects("c")), nodes: []*corev1.Node{node("a")}, why: "a is not selected"},
		"by required affinity":    {pod: pod("p", "", notOn("a")), nodes: []*corev1.Node{node("a"), node("b")}, want: "b"},
		"apart before few":        {pod: pod("p", "", apart(corev1.LabelHostname, false)), nodes: []*corev1.Node{node("a"), node("b")}, pods: []*corev1.Pod{pod("q", "a"), pod("r", "b", other), pod("s", "b", other)}, want: "b"},
		"spread before few":       {pod: pod("p", "", spread), nodes: []*corev1.Node{node("a"), node("b")}, pods: []*corev1.Pod{pod("q", "a"), pod("r", "b", other), pod("s", "b", other)}, want: "b"},
		"apart from who leaves":   {pod: pod("p", "", apart(corev1.LabelHostname, false)), nodes: []*corev1.Node{node("a"), node("b")}, pods: []*corev1.Pod{pod("q", "a"), pod("r", "b", leaving)}, want: "a"},
		"spread over who stays":   {pod: pod("p", "", spread), nodes: []*corev1.Node{node("a"), node("b")}, pods: []*corev1.Pod{pod("q", "a"), pod("r", "b", leaving)}, want: "b"},
		"together if it must be":  {pod: pod("p", "", apart(corev1.LabelHostname, false)), nodes: []*corev1.Node{node("a")}, pods: []*corev1.Pod{pod("q", "a")}, want: "a"},
		"not together if it must": {pod: pod("p", "", apart(corev1.LabelHostname, true)), nodes: []*corev1.Node{node("a")}, pods: []*corev1.Pod{pod("q", "a")}, why: "must not be with"},
		"one zone is one domain":  {pod: pod("p", "", apart(corev1.LabelTopologyZone, true)), nodes: []*corev1.Node{node("a", sameZone), node("b", sameZone)}, pods: []*corev1.Pod{pod("q", "a")}, why: "b has a pod"},
		"itself is no other":      {pod: pod("p", "", apart(corev1.LabelHostname, true)), nodes: []*corev1.Node{node("a")}, pods: []*corev1.Pod{pod("p", "a")}, want: "a"},
		"every reason is told":    {pod: pod("p", ""), nodes: []*corev1.Node{node("a", cordoned), node("b", lost)}, why: "a is cordoned, b is not ready"},
		"of another namespace": {
			pod: pod("p", "", apart(corev1.LabelHostname, true)), nodes: []*corev1.Node{node("a")},
			pods: []*corev1.Pod{pod("q", "a", func(p *corev1.Pod) { p.Namespace = "elsewhere" })}, want: "a",
		},
	}
	for name, c := range cases {
		t.Run(name, func(t *testing.T) {
			got, why := place(c.pod, c.nodes, c.pods)
			if got != c.want || !strings.Contains(why, c.why) || (got == "") != (why != "") {
				t.Errorf("placed on %q (%s), want %q (%s)", got, why, c.want, c.why)
			}
		})
	}
}

func TestEvictionAfterTheTolerationsTime(t *testing.T) {
	at := func(ago time.Duration) *corev1.Node {
		return node("a", func(n *corev1.Node) {
			n.Spec.Taints = []corev1.Taint{{Key: "k", Effect: corev1.TaintEffectNoExecute, TimeAdded: new(metav1.NewTime(time.Now().Add(-ago)))}}
		})
	}
	tolerates := func(seconds *int64) *corev1.Pod {
		return pod("p", "a", func(p *corev1.Pod) {
			p.Spec.Tolerations = []corev1.Toleration{{Key: "k", Operator: corev1.TolerationOpExists, Effect: corev1.TaintEffectNoExecute, TolerationSeconds: seconds}}
		})
	}
	cases := map[string]struct {
		pod  *corev1.Pod
		node *corev1.Node
		want bool
	}{
		"no taint": {pod("p", "a"), node("a"), false}, "not tolerated": {pod("p", "a"), at(0), true},
		"tolerated for ever": {tolerates(nil), at(time.Hour), false}, "tolerated still": {tolerates(new(int64(60))), at(30 * time.Second), false},
		"tolerated no longer": {tolerates(new(int64(60))), at(90 * time.Second), true},
	}
	for name, c := range cases {
		t.Run(name, func(t *testing.T) {
			if got := mustLeave(c.pod, c.node); got != c.want {
				t.Errorf("got %v", got)
			}
		})
	}
}

func TestDisruptionsAllowed(t *testing.T) {
	ready := func(p *corev1.Pod) {
		p.Status.Conditions = []corev1.PodCondition{{Type: corev1.PodReady, Status: corev1.ConditionTrue}}
	}
	leaving := func(p *corev1.Pod) { p.DeletionTimestamp = new(metav1.Now()) }
	two := []*corev1.Pod{pod("p", "a", ready), pod("q", "b", ready)}
	cases := map[string]struct {
		spec policyv1.PodDisruptionBudgetSpec
		pods []*corev1.Pod
		want int32
	}{
		"one of two may go":        {policyv1.PodDisruptionBudgetSpec{MinAvailable: new(intstr.FromInt32(1))}, two, 1},
		"none may go":              {policyv1.PodDisruptionBudgetSpec{MinAvailable: new(intstr.FromInt32(2))}, two, 0},
		"one is not ready":         {policyv1.PodDisruptionBudgetSpec{MinAvailable: new(intstr.FromInt32(1))}, []*corev1.Pod{two[0], pod("q", "b")}, 0},
		"one is leaving":           {policyv1.PodDisruptionBudgetSpec{MinAvailable: new(intstr.FromInt32(1))}, []*corev1.Pod{two[0], pod("q", "b", ready, leaving)}, 0},
		"at most one unavailable":  {policyv1.PodDisruptionBudgetSpec{MaxUnavailable: new(intstr.FromInt32(1))}, two, 1},
		"half, of an odd number":   {policyv1.PodDisruptionBudgetSpec{MinAvailable: new(intstr.FromString("50%"))}, append(two, pod("r", "c", ready)), 1},
		"somebody else's pods":     {policyv1.PodDisruptionBudgetSpec{MinAvailable: new(intstr.FromInt32(1))}, []*corev1.Pod{pod("p", "a", ready, func(p *corev1.Pod) { p.Labels = nil })}, 0},
		"nothing is said about it": {policyv1.PodDisruptionBudgetSpec{}, two, 2},
	}
	for name, c := range cases {
		t.Run(name, func(t *testing.T) {
			c.spec.Selector = &metav1.LabelSelector{MatchLabels: map[string]string{"app": "x"}}
			status, err := disruptions(&policyv1.PodDisruptionBudget{Spec: c.spec}, c.pods)
			if err != nil || status.DisruptionsAllowed != c.want {
				t.Errorf("allows %d, %v; want %d", status.DisruptionsAllowed, err, c.want)
			}
		})
	}
}

func eventually(t *testing.T, what string, is func() error) {
	t.Helper()
	for deadline := time.Now().Add(time.Minute); ; time.Sleep(20 * time.Millisecond) {
		err := is()
		if err == nil {
			return
		}
		if time.Now().After(deadline) {
			t.Fatalf("%s: %v", what, err)
		}
	}
}

func TestGarbageAndNamespaces(t *testing.T) {
	plane := controlplane.ForTest(t)
	client, err := kubernetes.NewForConfig(plane.Config())
	if err != nil {
		t.Fatal(err)
	}
	s, err := Start(Options{Config: plane.Config(), CA: plane.CA(), Failed: func(err error) { t.Log(err) }})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(s.Stop)
	ctx := t.Context()
	const ns = "garbage"
	if _, err := client.CoreV1().Namespaces().Create(ctx, &corev1.Namespace{ObjectMeta: metav1.ObjectMeta{Name: ns}}, metav1.CreateOptions{}); err != nil {
		t.Fatal(err)
	}
	maps := client.CoreV1().ConfigMaps(ns)
	eventually(t, "the namespace is filled", func() error {
		_, err := client.CoreV1().ServiceAccounts(ns).Get(ctx, "default", metav1.GetOptions{})
		if err != nil {
			return err
		}
		ca, err := maps.Get(ctx, "kube-root-ca.crt", metav1.GetOptions{})
		if err == nil && ca.Data["ca.crt"] != string(plane.CA()) {
			t.Error("kube-root-ca.crt does not hold the authority's certificate")
		}
		return err
	})
	create := func(name string, owners ...*corev1.ConfigMap) *corev1.ConfigMap {
		o := &corev1.ConfigMap{ObjectMeta: metav1.ObjectMeta{Name: name}}
		for _, owner := range owners {
			o.OwnerReferences = append(o.OwnerReferences, metav1.OwnerReference{APIVersion: "v1", Kind: "ConfigMap", Name: owner.Name, UID: owner.UID})
		}
		o, err := maps.Create(ctx, o, metav1.CreateOptions{})
		if err != nil {
			t.Fatal(err)
		}
		return o
	}
	first, second := create("first"), create("second")
	create("of-first", first)
	create("of-both", first, second)
	if err := maps.Delete(ctx, "first", metav1.DeleteOptions{}); err != nil {
		t.Fatal(err)
	}
	create("first") // of another UID: not the owner
	gone := func(name string) func() error {
		return func() error {
			if _, err := maps.Get(ctx, name, metav1.GetOptions{}); !apierrors.IsNotFound(err) {
				return fmt.Errorf("%s is there (%w)", name, err)
			}
			return nil
		}
	}
	eventually(t, "the dependent of the deleted owner is collected", gone("of-first"))
	if _, err := maps.Get(ctx, "of-both", metav1.GetOptions{}); err != nil {
		t.Errorf("what has an owner left was collected: %v", err)
	}
	if err := maps.Delete(ctx, "second", metav1.DeleteOptions{}); err != nil {
		t.Fatal(err)
	}
	eventually(t, "what has no owner left is collected", gone("of-both"))

	if err := client.CoreV1().Namespaces().Delete(ctx, ns, metav1.DeleteOptions{}); err != nil {
		t.Fatal(err)
	}
	eventually(t, "the namespace is emptied and gone", func() error {
		if _, err := client.CoreV1().Namespaces().Get(ctx, ns, metav1.GetOptions{}); !apierrors.IsNotFound(err) {
			return fmt.Errorf("it is there (%w)", err)
		}
		return nil
	})
}
