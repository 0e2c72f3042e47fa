package plan

import (
	"maps"
	"strings"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/equality"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/labels"
	"k8s.io/apimachinery/pkg/util/intstr"

	"github.com/singletonjob/operator/api/v1alpha1"
	"github.com/singletonjob/operator/internal/contract"
	"github.com/singletonjob/operator/internal/lease"
)

// served is a steady job whose Service is in its desired state.
func served() *given {
	g := steady()
	g.Job.Spec.Service = &v1alpha1.ServiceSpec{Ports: []v1alpha1.ServicePort{{Name: "http", Port: 80, TargetPort: new(intstr.FromString("web"))}}}
	g.Children.Service = Decide(g.Observed).Service.Service
	g.Children.Service.UID, g.Children.Service.ResourceVersion = "service-uid", "7"
	return g
}

// endpoints returns the pods that a Service selects.
func (g *given) endpoints(service *corev1.Service) string {
	var names []string
	for _, pod := range g.Pods {
		if labels.SelectorFromSet(service.Spec.Selector).Matches(labels.Set(pod.Labels)) {
			names = append(names, pod.Name[strings.LastIndex(pod.Name, "-")+1:])
		}
	}
	return strings.Join(names, " ")
}

func TestServiceSelectsTheActivePod(t *testing.T) {
	for name, c := range map[string]struct {
		with func(*given)
		// write is the operation, none if nothing must be written.
		write string
		// want are the ordinals of the pods behind the Service afterwards.
		want string
	}{
		"steady":                    {want: "0"},
		"a standby on its way out":  {with: func(g *given) { g.terminating(1) }, want: "0"},
		"a holder on its way out":   {with: func(g *given) { g.terminating(0) }, want: "0"},
		"another holder":            {with: func(g *given) { g.held(1, 200, ago(time.Second)) }, write: "update", want: "1"},
		"just released":             {with: func(g *given) { released(g, time.Second-1) }, want: "0"},
		"released a while ago":      {with: func(g *given) { released(g, time.Second) }, write: "update"},
		"released to nobody":        {with: func(g *given) { released(g, 0); g.terminating(1) }, write: "update"},
		"released by another":       {with: func(g *given) { g.held(1, 200, ago(time.Second)); released(g, 0) }, write: "update"},
		"blanked":                   {with: func(g *given) { g.Lease.Record.Holder = "" }, write: "update"},
		"suspended and released":    {with: func(g *given) { released(g, 0); g.Job.Spec.Suspend = true }, write: "update"},
		"not renewing":              {with: func(g *given) { g.Lease.Unchanged = 10 * time.Second }, write: "update"},
		"dead":                      {with: func(g *given) { g.ended(0, ago(2*time.Hour), ago(time.Second)) }, write: "update"},
		"no Lease":                  {with: (*given).absent, write: "update"},
		"somebody else's Lease":     {with: func(g *given) { g.Lease = Lease{Presence: Foreign} }, write: "update"},
		"a holder that is no agent": {with: func(g *given) { g.Lease.Record.Holder = "elector_1" }, write: "update"},
		"suspended while it stops":  {with: func(g *given) { g.Job.Spec.Suspend = true }, want: "0"},
		"being deleted": {with: func(g *given) {
			g.Job.DeletionTimestamp = &metav1.Time{Time: now}
			g.released(lease.ReasonPodTerminating)
		}, want: "0"},
		"missing":                {with: func(g *given) { g.Children.Service = nil }, write: "create", want: "0"},
		"not asked for any more": {with: func(g *given) { g.Job.Spec.Service = nil }, write: "delete", want: "0"},
		"another type":           {with: func(g *given) { g.Job.Spec.Service.Type = corev1.ServiceTypeLoadBalancer }, write: "update", want: "0"},
		"a load balancer that has its own fields": {with: func(g *given) {
			g.Job.Spec.Service.Type, g.Job.Spec.Service.Annotations = corev1.ServiceTypeLoadBalancer, map[string]string{"pool": "a"}
			s := g.Children.Service
			s.Spec.Type, s.Spec.ExternalTrafficPolicy, s.Spec.HealthCheckNodePort = corev1.ServiceTypeLoadBalancer, corev1.ServiceExternalTrafficPolicyCluster, 31000
			s.Spec.IPFamilyPolicy, s.Spec.LoadBalancerClass = new(corev1.IPFamilyPolicyPreferDualStack), new("cloud/lb")
			s.Annotations = map[string]string{"pool": "a", contract.ServiceAnnotationsAnnotation: "pool", "cloud/id": "7"}
		}, want: "0"},
		"an annotation is changed": {with: func(g *given) {
			g.Job.Spec.Service.Annotations = map[string]string{"pool": "b"}
			g.Children.Service.Annotations = map[string]string{"pool": "a", contract.ServiceAnnotationsAnnotation: "pool"}
		}, write: "update", want: "0"},
		"headless from now on":         {with: func(g *given) { g.Job.Spec.Service.ClusterIP = corev1.ClusterIPNone }, write: "delete", want: "0"},
		"headless no longer":           {with: func(g *given) { g.Children.Service.Spec.ClusterIP = corev1.ClusterIPNone }, write: "delete", want: "0"},
		"never asked for":              {with: func(g *given) { g.Job.Spec.Service, g.Children.Service = nil, nil }},
		"a port is added":              {with: func(g *given) { addPort(g.Job) }, write: "update", want: "0"},
		"its owner was taken away":     {with: func(g *given) { g.Children.Service.OwnerReferences = nil }, write: "update", want: "0"},
		"somebody has turned it":       {with: func(g *given) { g.Children.Service.Spec.Selector = map[string]string{"app": "x"} }, write: "update", want: "0"},
		"the API server says more":     {with: func(g *given) { g.Children.Service.Spec.Ports[0].NodePort = 30000 }, want: "0"},
		"a previous job's":             {with: func(g *given) { g.Children.Service.OwnerReferences[0].UID = "x" }, write: "create", want: "0"},
		"not asked for, without owner": {with: func(g *given) { g.Job.Spec.Service = nil; g.Children.Service.OwnerReferences = nil }, want: "0"},
		"another holder, with a spec that breaks a rule": {
			with: func(g *given) {
				g.held(1, 200, ago(time.Second))
				g.Job.Spec.Service.Ports = nil
			},
			write: "update", want: "1",
		},
		"a target port of 0 is the port": {with: func(g *given) {
			for _, target := range []intstr.IntOrString{intstr.FromInt32(0), intstr.FromString("")} {
				g.Job.Spec.Service.Ports = append(g.Job.Spec.Service.Ports, v1alpha1.ServicePort{Name: target.String(), Port: 81, TargetPort: &target})
				g.Children.Service.Spec.Ports = append(g.Children.Service.Spec.Ports, corev1.ServicePort{
					Name: target.String(), Port: 81, TargetPort: intstr.FromInt32(81), Protocol: corev1.ProtocolTCP,
				})
			}
		}, want: "0"},
		"not asked for any more, while the spec breaks a rule": {
			with: func(g *given) {
				g.held(1, 200, ago(time.Second))
				g.Job.Spec.Service, g.Job.Spec.Template.Spec.HostPID = nil, true
			},
			write: "update", want: "1",
		},
		"missing, with a spec that breaks a rule": {
			with: func(g *given) { g.Children.Service, g.Job.Spec.Service.Ports = nil, nil },
		},
	} {
		t.Run(name, func(t *testing.T) {
			g := served()
			if c.with != nil {
				c.with(g)
			}
			before := g.Children.Service.DeepCopy()
			p := Decide(g.Observed)
			var write string
			service := g.Children.Service
			if p.Service != nil {
				write = []string{"create", "update", "delete"}[p.Service.Verb]
				service = p.Service.Service
				if p.Reasons.Of("Service", "job") == "" {
					t.Error("nothing says why it is written")
				}
			}
			if write != c.write {
				t.Errorf("%q, want %q: %+v", write, c.write, p.Service)
			}
			if service == nil {
				return
			}
			if got := g.endpoints(service); got != c.want || len(service.Spec.Selector) == 0 {
				t.Errorf("selects %q by %v, want %q", got, service.Spec.Selector, c.want)
			}
			isWritten(t, g, write, service, before)
			if !equality.Semantic.DeepEqual(before, g.Children.Service) {
				t.Error("what was observed is changed in place")
			}
		})
	}
}

// released makes the holder release the Lease, which has been unchanged for that long since.
func released(g *given, unchanged time.Duration) {
	g.released(lease.ReasonPodTerminating)
	g.Lease.Unchanged = unchanged
}

// TestServiceIsCheckedAgainAfterARelease: no other event shows that there is no successor.
func TestServiceIsCheckedAgainAfterARelease(t *testing.T) {
	g := served()
	released(g, 300*time.Millisecond)
	if p := Decide(g.Observed); p.Wake != 700*time.Millisecond {
		t.Errorf("looked at after %v", p.Wake)
	}
}

// TestServiceOfAnotherName: the Service with the old name is deleted before one with the new name is created. Services that do not belong
// to the job stay.
func TestServiceOfAnotherName(t *testing.T) {
	g := served()
	old := g.Children.Service
	strange, taken, other := old.DeepCopy(), old.DeepCopy(), old.DeepCopy()
	strange.Name, strange.OwnerReferences = "strange", nil
	taken.Name, taken.OwnerReferences = "other", nil
	other.Name = "other"
	for _, step := range []struct {
		name  string // spec.service.name
		there []*corev1.Service
		op    Verb
		of    string // empty: no write
	}{
		{"other", []*corev1.Service{strange, old}, Delete, "job"},
		{"other", []*corev1.Service{old, other}, Delete, "job"},
		{"other", []*corev1.Service{strange}, Create, "other"},
		{"other", []*corev1.Service{strange, taken}, Update, "other"}, // it has lost its owner
		{"other", []*corev1.Service{other}, 0, ""},
		{"", []*corev1.Service{other}, Delete, "other"},
		{"", []*corev1.Service{old}, 0, ""},
		{"none", []*corev1.Service{strange, other}, Delete, "other"},
		{"none", []*corev1.Service{strange}, 0, ""},
	} {
		g.Job.Spec.Service = &v1alpha1.ServiceSpec{Name: step.name, Ports: served().Job.Spec.Service.Ports}
		if step.name == "none" {
			g.Job.Spec.Service = nil
		}
		g.Children.Service, g.Children.OtherService = ServicesOf(g.Job, step.there)
		w := Decide(g.Observed).Service
		if (w == nil) != (step.of == "") || w != nil && (w.Verb != step.op || w.Service.Name != step.of) {
			t.Errorf("%+v: %+v", step, w)
		}
	}
}

func isWritten(t *testing.T, g *given, write string, service, before *corev1.Service) {
	t.Helper()
	if ports := service.Spec.Ports; len(ports) == 0 || ports[0].Port != 80 || ports[0].TargetPort.StrVal != "web" || ports[0].Protocol != corev1.ProtocolTCP {
		t.Errorf("ports %+v", ports)
	}
	if write == "update" && service.ResourceVersion != before.ResourceVersion {
		t.Error("the write is not conditional on what was observed")
	}
	if write == "create" && (service.ResourceVersion != "" || !metav1.IsControlledBy(service, g.Job)) {
		t.Errorf("it is created as %+v", service.ObjectMeta)
	}
}

func addPort(job *v1alpha1.SingletonJob) {
	job.Spec.Service.Ports = append(job.Spec.Service.Ports, v1alpha1.ServicePort{Name: "metrics", Port: 9090})
}

// TestServiceFollowsAKeptTenure: with KeepRunning the process acts until there is another tenure.
func TestServiceFollowsAKeptTenure(t *testing.T) {
	g := steady()
	g.Job.Spec.Lease.OnRenewFailure = v1alpha1.OnRenewFailureKeepRunning
	g.Pods = nil
	g.pod(0, "a")
	g.pod(1, "b")
	g.held(0, 100, ago(time.Hour))
	g.Job.Spec.Service = served().Job.Spec.Service
	g.Lease.Unchanged = time.Minute
	if p := Decide(g.Observed); p.Service == nil || g.endpoints(p.Service.Service) != "0" {
		t.Errorf("%+v", p.Service)
	}
}

// TestPodsOfOlderOperatorsGetTheirName: without the name label no Service selects them.
func TestPodsOfOlderOperatorsGetTheirName(t *testing.T) {
	g := served()
	delete(g.Pods[0].Labels, contract.PodLabel)
	p := Decide(g.Observed)
	if len(p.Relabel) != 1 || p.Relabel[0].Name != g.name(0) || p.Relabel[0].Role != contract.RoleActive {
		t.Errorf("%+v", p.Relabel)
	}
	if len(p.Delete)+len(p.Create) > 0 {
		t.Error("an upgrade of the operator replaces pods")
	}
}

// TestAnnotationsOfTheService: annotations that come from spec.service go with it, and those of others stay.
func TestAnnotationsOfTheService(t *testing.T) {
	t.Parallel()
	s := &corev1.Service{ObjectMeta: metav1.ObjectMeta{Annotations: map[string]string{"cloud/id": "7"}}}
	for _, step := range []struct{ wanted, want map[string]string }{
		{nil, map[string]string{"cloud/id": "7"}},
		{map[string]string{"b": "1", "a": "1"}, map[string]string{"cloud/id": "7", "a": "1", "b": "1", contract.ServiceAnnotationsAnnotation: "a,b"}},
		{map[string]string{"a": "2"}, map[string]string{"cloud/id": "7", "a": "2", contract.ServiceAnnotationsAnnotation: "a"}},
		{map[string]string{contract.ServiceAnnotationsAnnotation: "cloud/id"}, map[string]string{
			"cloud/id": "7", contract.ServiceAnnotationsAnnotation: contract.ServiceAnnotationsAnnotation,
		}},
		{nil, map[string]string{"cloud/id": "7"}},
	} {
		annotateService(step.wanted, s)
		if !maps.Equal(s.Annotations, step.want) {
			t.Errorf("with %v, it has %v, want %v", step.wanted, s.Annotations, step.want)
		}
	}
}
