package controller

import (
	"cmp"
	"math/rand/v2"
	"slices"
	"strings"
	"testing"

	coordinationv1 "k8s.io/api/coordination/v1"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/util/intstr"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/singletonjob/operator/api/v1alpha1"
	"github.com/singletonjob/operator/internal/contract"
	"github.com/singletonjob/operator/internal/lease"
)

func withService(spec *v1alpha1.SingletonJobSpec) {
	spec.Service = &v1alpha1.ServiceSpec{Ports: []v1alpha1.ServicePort{{Name: "http", Port: 80, TargetPort: new(intstr.FromInt32(8080))}}}
}

// service is the job's Service; nil if there is none.
func (w *world) service() *corev1.Service {
	w.t.Helper()
	s, err := get(w.t.Context(), w.api, w.key, &corev1.Service{})
	w.must(err)
	return s
}

// behind are the Pods that a Service selects.
func (w *world) behind(s *corev1.Service) string {
	w.t.Helper()
	var list corev1.PodList
	w.must(w.api.List(w.t.Context(), &list, client.InNamespace(w.key.Namespace), client.MatchingLabels(s.Spec.Selector)))
	names := make([]string, 0, len(list.Items))
	for i := range list.Items {
		names = append(names, list.Items[i].Name)
	}
	return strings.Join(names, " ")
}

// TestTheServiceFollows goes through a failover, a handover and a suspension. After each reconcile the Service selects at most the
// holder's Pod, or the Pod of the last holder, which has released the Lease.
func TestTheServiceFollows(t *testing.T) {
	w := served(t, withService)
	if s := w.service(); s == nil || !metav1.IsControlledBy(s, w.read()) || s.Spec.Type != corev1.ServiceTypeClusterIP || s.Spec.ClusterIP == corev1.ClusterIPNone {
		t.Fatalf("%+v", s)
	}
	ip := w.service().Spec.ClusterIP
	until := func(what string, holds func() bool) {
		t.Helper()
		w.until(what, func() bool {
			w.operators[0].reconcile()
			record, err := contract.DecodeLease(fields(w.lease()))
			w.must(err)
			id, _ := lease.ParseIdentity(record.Holder)
			may := cmp.Or(id.Pod, record.History[0].Pod)
			if got := w.behind(w.service()); got != may && got != "" {
				t.Fatalf("behind the Service is %q, the holder is %q\n%s", got, id.Pod, w.describe())
			}
			return holds()
		})
	}
	active := func() bool { return w.serving() && w.behind(w.service()) == w.holder().name }
	until("the holder is behind the Service", active)
	w.holder().exit(3)
	until("the standby has taken over", func() bool { return active() && w.status().Failovers == 1 })
	w.deletePod(w.holder().name)
	until("handed over", func() bool { return active() && w.status().Handovers == 1 })
	w.edit(func(job *v1alpha1.SingletonJob) { job.Spec.Service.Ports[0].Port = 81 })
	until("the port has changed", func() bool { return active() && w.service().Spec.Ports[0].Port == 81 })
	w.edit(func(job *v1alpha1.SingletonJob) { job.Spec.Suspend = true })
	until("suspended", func() bool { return len(w.pods()) == 0 && w.behind(w.service()) == "" })
	if now := w.service().Spec.ClusterIP; now != ip {
		t.Errorf("its address was %s and is %s", ip, now)
	}
	w.edit(func(job *v1alpha1.SingletonJob) { job.Spec.Service = nil })
	w.until("it is deleted", func() bool { return w.service() == nil })
}

func isBalanced(s *corev1.Service) bool {
	return s.Spec.Type == corev1.ServiceTypeLoadBalancer && *s.Spec.LoadBalancerClass == "example.com/lb" && s.Spec.Ports[0].NodePort != 0 &&
		s.Spec.ExternalTrafficPolicy == corev1.ServiceExternalTrafficPolicyLocal && s.Spec.SessionAffinity == corev1.ServiceAffinityClientIP &&
		s.Annotations["example.com/pool"] == "a" && *s.Spec.Ports[0].AppProtocol == "kubernetes.io/h2c"
}

func isInside(s *corev1.Service) bool {
	return s.Spec.Type == corev1.ServiceTypeClusterIP && s.Spec.LoadBalancerClass == nil && s.Spec.Ports[0].NodePort == 0 &&
		s.Spec.SessionAffinity == corev1.ServiceAffinityNone && s.Annotations["example.com/pool"] == "" && s.Annotations["other"] == "b" &&
		s.Annotations["cloud/id"] == "7"
}

// TestTheServiceIsExposed: it becomes a load balancer to which a cloud adds what it knows, then one inside, then a headless one, and back.
func TestTheServiceIsExposed(t *testing.T) {
	w := served(t, func(spec *v1alpha1.SingletonJobSpec) {
		withService(spec)
		s := spec.Service
		s.Type, s.ExternalTrafficPolicy = corev1.ServiceTypeLoadBalancer, corev1.ServiceExternalTrafficPolicyLocal
		s.LoadBalancerClass, s.SessionAffinity = "example.com/lb", corev1.ServiceAffinityClientIP
		s.Annotations, s.Ports[0].AppProtocol = map[string]string{"example.com/pool": "a"}, "kubernetes.io/h2c"
	})
	follows := func(is func(*corev1.Service) bool) func() bool {
		return func() bool {
			s := w.service()
			return s != nil && w.serving() && w.behind(s) == w.holder().name && is(s)
		}
	}
	w.until("it is a load balancer", follows(isBalanced))
	s := w.service()
	s.Annotations["cloud/id"], s.Finalizers = "7", []string{"service.kubernetes.io/load-balancer-cleanup"}
	w.must(w.api.Update(t.Context(), s))
	before := w.service()
	w.until("it follows", follows(func(*corev1.Service) bool { return true }))
	if now := w.service(); now.ResourceVersion != before.ResourceVersion {
		t.Errorf("what the cloud has added is written over: %+v", now)
	}
	w.edit(func(job *v1alpha1.SingletonJob) {
		job.Spec.Service = &v1alpha1.ServiceSpec{Ports: job.Spec.Service.Ports, Annotations: map[string]string{"other": "b"}}
	})
	w.until("it is one inside", follows(func(s *corev1.Service) bool { return s.UID == before.UID && isInside(s) }))
	s = w.service()
	s.Finalizers = nil
	w.must(w.api.Update(t.Context(), s))
	w.edit(func(job *v1alpha1.SingletonJob) { job.Spec.Service.ClusterIP = corev1.ClusterIPNone })
	w.until("it is headless", follows(func(s *corev1.Service) bool { return s.UID != before.UID && s.Spec.ClusterIP == corev1.ClusterIPNone }))
	w.edit(func(job *v1alpha1.SingletonJob) { job.Spec.Service.ClusterIP = "" })
	w.until("it has an address again", follows(func(s *corev1.Service) bool { return s.Spec.ClusterIP != corev1.ClusterIPNone }))
	w.edit(func(job *v1alpha1.SingletonJob) {
		job.Spec.Service.IPFamilyPolicy = corev1.IPFamilyPolicyRequireDualStack
	})
	w.until("it says what this cluster has not", func() bool {
		c := condition(w.status(), v1alpha1.ConditionReady)
		return c.Reason == v1alpha1.ReasonFailedUpdate && strings.Contains(c.Message, "ipFamilyPolicy")
	})
}

// TestTheServiceHasAnotherName: the name changes, changes again, and then names a foreign Service. None of the earlier Services is
// left.
func TestTheServiceHasAnotherName(t *testing.T) {
	w := served(t, func(spec *v1alpha1.SingletonJobSpec) {
		withService(spec)
		spec.Service.Name = "first"
	})
	var all corev1.ServiceList
	only := func(names ...string) func() bool {
		return func() bool {
			w.must(w.api.List(t.Context(), &all, client.InNamespace(w.key.Namespace)))
			var got []string
			for i := range all.Items {
				if s := &all.Items[i]; w.behind(s) == w.holder().name || s.Spec.Selector["app"] == "x" {
					got = append(got, s.Name)
				}
			}
			return w.serving() && len(all.Items) == len(got) && slices.Equal(got, names)
		}
	}
	w.until("there is one of that name", only("first"))
	w.edit(func(job *v1alpha1.SingletonJob) { job.Spec.Service.Name = "second" })
	w.until("there is one of the second name", only("second"))
	w.deletePod(w.holder().name)
	w.until("it follows", only("second"))
	w.must(w.api.Create(t.Context(), &corev1.Service{
		ObjectMeta: metav1.ObjectMeta{Namespace: w.key.Namespace, Name: "foreign"},
		Spec:       corev1.ServiceSpec{Ports: []corev1.ServicePort{{Port: 1}}, Selector: map[string]string{"app": "x"}},
	}))
	w.edit(func(job *v1alpha1.SingletonJob) { job.Spec.Service.Name = "foreign" })
	w.until("it says what is wrong", func() bool {
		c := condition(w.status(), v1alpha1.ConditionReady)
		return c.Reason == v1alpha1.ReasonFailedCreate && strings.Contains(c.Message, "/foreign exists and does not belong to this SingletonJob: delete it, or set another spec.service.name")
	})
	w.edit(func(job *v1alpha1.SingletonJob) { job.Spec.Service.Name = "" })
	w.until("it is the job's own", only("foreign", "job"))
	w.edit(func(job *v1alpha1.SingletonJob) { job.Spec.Service = nil })
	w.until("nothing is left but what is somebody else's", only("foreign"))
}

// TestForeignService: a foreign Service is never changed, neither when the job asks for one of that name, nor when it no
// longer asks.
func TestForeignService(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	foreign := &corev1.Service{
		ObjectMeta: metav1.ObjectMeta{Namespace: w.key.Namespace, Name: w.key.Name},
		Spec:       corev1.ServiceSpec{Ports: []corev1.ServicePort{{Port: 1}}, Selector: map[string]string{"app": "x"}},
	}
	w.must(w.api.Create(t.Context(), foreign))
	w.job(withService)
	w.until("it runs all the same, and says so", func() bool {
		active, ready := condition(w.status(), v1alpha1.ConditionActive), condition(w.status(), v1alpha1.ConditionReady)
		return active.Reason == v1alpha1.ReasonRunning && ready.Reason == v1alpha1.ReasonFailedCreate &&
			strings.Contains(ready.Message, "Service "+w.key.Namespace+"/job exists and does not belong to this SingletonJob")
	})
	w.edit(func(job *v1alpha1.SingletonJob) { job.Spec.Service = nil })
	w.until("it serves", w.serving)
	if s := w.service(); s == nil || s.ResourceVersion != foreign.ResourceVersion {
		t.Errorf("it was touched: %+v", s)
	}
	w.edit(func(job *v1alpha1.SingletonJob) { withService(&job.Spec) })
	w.must(w.api.Delete(t.Context(), foreign))
	w.until("there is one once that is gone", func() bool { return w.serving() && w.service() != nil && w.behind(w.service()) == w.holder().name })
}

// TestAServiceWithoutLabels: the operator does not see it, reports that, and continues with everything else.
func TestAServiceWithoutLabels(t *testing.T) {
	for _, label := range []string{contract.ManagedByLabel, contract.NameLabel} {
		t.Run(label, func(t *testing.T) {
			w := served(t, withService)
			o := w.operators[0]
			o.cache = newLaggingCache(w, rand.New(rand.NewPCG(1, 1))) // like the operator's cache, it holds only objects with the label
			s := w.service()
			value := s.Labels[label]
			delete(s.Labels, label)
			w.must(w.api.Update(t.Context(), s))
			w.deletePod(w.holder().name)
			w.until("the pod is replaced, and it says what is wrong", func() bool {
				c := condition(w.status(), v1alpha1.ConditionReady)
				return w.status().Candidates.Ready == 2 && w.status().Handovers == 1 && c.Reason == v1alpha1.ReasonFailedCreate &&
					strings.Contains(c.Message, "exists without the label "+label)
			})
			s = w.service()
			s.Labels[label] = value
			w.must(w.api.Update(t.Context(), s))
			w.until("it is known again", func() bool { return w.serving() && w.behind(w.service()) == w.holder().name })
		})
	}
}

// TestStaleOperatorDoesNotRevertTheService: a lagging operator overwrites no newer change, and checks the holder.
func TestStaleOperatorDoesNotRevertTheService(t *testing.T) {
	turn := func(w *world) {
		s := w.service()
		s.Spec.Selector[contract.PodLabel] = "newer"
		w.must(w.api.Update(t.Context(), s))
	}
	t.Run("another has turned it", func(t *testing.T) {
		w := served(t, withService)
		w.holder().exit(3)
		w.during("update", &corev1.Service{}, func(_ string, do func() error) error {
			turn(w)
			err := do()
			if got := w.service().Spec.Selector[contract.PodLabel]; got != "newer" {
				t.Errorf("it is turned back to %s", got)
			}
			return err
		})
	})
	t.Run("another holds by now", func(t *testing.T) {
		w := served(t, withService)
		turn(w)
		o := w.operators[0]
		o.asks = func(obj client.Object) {
			if sameType(obj, &coordinationv1.Lease{}) {
				o.asks = nil
				w.holdBy("somebody")
				o.around = func(_ string, obj client.Object, do func() error) error {
					if sameType(obj, &corev1.Service{}) && obj.(*corev1.Service).Spec.Selector[contract.PodLabel] != "none" {
						t.Errorf("it is turned to %v", obj.(*corev1.Service).Spec.Selector)
					}
					return do()
				}
			}
		}
		for range 3 {
			o.reconcile()
		}
		if o.asks != nil {
			t.Error("the API server was not asked who holds")
		}
	})
}
