package plan

import (
	"fmt"
	"slices"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	corev1 "k8s.io/api/core/v1"
	policyv1 "k8s.io/api/policy/v1"
	rbacv1 "k8s.io/api/rbac/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/util/intstr"

	"github.com/singletonjob/operator/api/v1alpha1"
	"github.com/singletonjob/operator/internal/contract"
	"github.com/singletonjob/operator/internal/inject"
	"github.com/singletonjob/operator/internal/lease"
)

func names(refs []PodRef) []string {
	var out []string
	for _, r := range refs {
		out = append(out, r.Name)
	}
	return out
}

func created(pods []*corev1.Pod) []string {
	var out []string
	for _, pod := range pods {
		out = append(out, pod.Name)
	}
	return out
}

func TestPodsToDeleteAndCreate(t *testing.T) {
	g := steady()
	name := func(i int) string { return g.name(i) }
	for what, c := range map[string]struct {
		with           func(*given)
		deleted, added []string
		why            string
	}{
		"nothing": {with: func(*given) {}},
		"a standby is lost": {
			with: func(g *given) { g.Pods = g.Pods[:1] }, added: []string{name(1)}, why: "its name is free",
		},
		"a standby does not go": {
			with: func(g *given) { g.terminating(1) }, added: []string{name(2)}, why: "its name is taken for as long as its node is cut off",
		},
		"the holder goes": {
			with: func(g *given) { g.terminating(0) }, added: []string{name(2)}, why: "it is replaced before the standby has taken over",
		},
		"a standby was evicted": {
			with:  func(g *given) { g.Pods[1].Status.Phase = corev1.PodFailed },
			added: []string{name(2)}, why: "it will never run again, and says why",
		},
		"two standbys were evicted": {
			with: func(g *given) {
				g.Job.Spec.Candidates = 3
				g.pod(2, "c").CreationTimestamp = metav1.NewTime(ago(time.Hour))
				g.rejected(1, "Evicted", "")
				g.rejected(2, "Evicted", "")
			},
			deleted: []string{name(1)}, added: []string{name(3), name(4)}, why: "the newest says why",
		},
		"a standby was evicted and replaced": {
			with: func(g *given) { g.rejected(1, "Evicted", ""); g.pod(2, "b") }, deleted: []string{name(1)},
			why: "all has been well for long",
		},
		"a standby was evicted and replaced just now": {
			with: func(g *given) {
				g.rejected(1, "Evicted", "")
				g.Pods[1].CreationTimestamp = metav1.NewTime(ago(time.Minute))
				g.pod(2, "b")
			},
			why: "a person may want to know why",
		},
		"a standby of the old template was evicted": {
			with: func(g *given) {
				g.rejected(1, "Evicted", "")
				g.Job.Spec.Template.Spec.Containers[0].Image = "v2"
			},
			deleted: []string{name(1)}, added: []string{inject.PodName("job", "hbt97c5", 0)}, why: "the template was changed since",
		},
		"the holder was evicted": {
			with:  func(g *given) { g.Pods[0].Status.Phase = corev1.PodFailed },
			added: []string{name(2)}, why: "the pod is what proves the holder's end; it stays until the Lease is free",
		},
		"the first names are a stranger's": {
			with: func(g *given) {
				g.Pods = g.Pods[:1]
				g.pod(1, "b").OwnerReferences[0].UID = "earlier"
				g.pod(2, "b").OwnerReferences[0].UID = "earlier"
			},
			added: []string{name(3)}, why: "names are unique in a namespace",
		},
		"too many, one of them beside the holder": {
			with: func(g *given) { g.pod(2, "a"); g.pod(3, "c") }, deleted: []string{name(2), name(3)},
			why: "who would be lost with the holder goes first, then the youngest",
		},
		"two more asked for": {
			with: func(g *given) { g.Job.Spec.Candidates = 4 }, added: []string{name(2), name(3)},
		},
		"only one asked for": {
			with: func(g *given) { g.Job.Spec.Candidates = 1 }, deleted: []string{name(1)}, why: "never the holder",
		},
		"suspended": {
			with: func(g *given) { g.Job.Spec.Suspend = true }, deleted: []string{name(1)}, why: "standbys first, or one would take over",
		},
		"suspended, the standby goes": {
			with: func(g *given) { g.Job.Spec.Suspend = true; g.terminating(1) }, why: "it might still take over",
		},
		"suspended, the standby does not go": {
			with: func(g *given) {
				g.Job.Spec.Suspend = true
				g.terminating(1)
				g.Pods[1].DeletionTimestamp.Time = now.Add(30*time.Second - strayLimit)
			},
			deleted: []string{name(0)}, why: "a node that is cut off must not keep the job from being suspended",
		},
		"suspended, the standby is gone": {
			with: func(g *given) { g.Job.Spec.Suspend = true; g.Pods = g.Pods[:1] }, deleted: []string{name(0)},
		},
		"suspended, no holder": {
			with:    func(g *given) { g.Job.Spec.Suspend = true; g.released(lease.ReasonPodTerminating) },
			deleted: []string{name(0), name(1)},
		},
	} {
		t.Run(what, func(t *testing.T) {
			g := steady()
			c.with(g)
			p := Decide(g.Observed)
			if diff := cmp.Diff(c.deleted, names(p.Delete)); diff != "" {
				t.Errorf("deleted, %s (-want +got):\n%s", c.why, diff)
			}
			if diff := cmp.Diff(c.added, created(p.Create)); diff != "" {
				t.Errorf("created, %s (-want +got):\n%s", c.why, diff)
			}
			for _, ref := range p.Delete {
				if ref.UID == "" {
					t.Errorf("%s is deleted whichever pod it is", ref.Name)
				}
			}
			for _, pod := range p.Create {
				if pod.Labels[contract.RoleLabel] != contract.RoleStandby {
					t.Errorf("%s begins with the role %q", pod.Name, pod.Labels[contract.RoleLabel])
				}
			}
		})
	}
}

func TestSuspendWakesForAStuckStandby(t *testing.T) {
	g := steady()
	g.Job.Spec.Suspend = true
	g.terminating(1) // a moment ago
	g.Pods[1].DeletionTimestamp.Time = now.Add(30*time.Second - time.Second)
	if p := Decide(g.Observed); p.Wake != strayLimit-time.Second {
		t.Errorf("wakes after %v", p.Wake)
	}
}

func TestRoles(t *testing.T) {
	g := steady()
	g.held(1, 200, ago(time.Minute))
	want := []Relabel{
		{PodRef{g.Pods[0].Name, g.Pods[0].UID}, contract.RoleStandby},
		{PodRef{g.Pods[1].Name, g.Pods[1].UID}, contract.RoleActive},
	}
	if diff := cmp.Diff(want, Decide(g.Observed).Relabel); diff != "" {
		t.Errorf("the old one loses the role before the new one gets it (-want +got):\n%s", diff)
	}
	g = steady()
	g.Lease.Unchanged = time.Minute
	if diff := cmp.Diff(want[:1], Decide(g.Observed).Relabel); diff != "" {
		t.Errorf("one that does not renew loses the role (-want +got):\n%s", diff)
	}
}

// rollingOut is a job with three candidates whose standbys are all new: job-…-0 holds the Lease and is old.
func rollingOut() *given {
	g := steady()
	g.Job.Spec.Candidates = 3
	g.Job.Spec.Template.Spec.Containers[0].Image = "v2"
	g.Pods = g.Pods[:1]
	g.pod(0, "a")
	g.pod(1, "b")
	g.pod(2, "c")
	return g
}

func TestTheSuccessor(t *testing.T) {
	for name, c := range map[string]struct {
		with func(*given)
		to   int // ordinal; -1 for nothing to write
		why  string
	}{
		"to the first on another node": {to: 1, why: "the holder's node may be the next to go"},
		"to one beside it": {
			with: func(g *given) { g.Pods[2].Spec.NodeName, g.Pods[3].Spec.NodeName = "a", "a" }, to: 0, why: "there is no other",
		},
		"only to one that is ready": {with: func(g *given) { g.unready(2) }, to: 2},
		"asked already": {
			with: func(g *given) {
				g.Lease.Record.Handover = lease.Handover{To: g.name(2), Reason: lease.ReasonRollout}
			},
			to: -1, why: "the wish does not change while it can be met",
		},
		"asked for one that is no longer ready": {
			with: func(g *given) {
				g.Lease.Record.Handover = lease.Handover{To: g.name(1), Reason: lease.ReasonRollout}
				g.unready(2)
			},
			to: 2,
		},
		"asked for a token base": {
			with: func(g *given) {
				g.Lease.Record.Handover = lease.Handover{To: lease.AnyPod, Reason: lease.ReasonTokenBaseRaised}
			},
			to: -1, why: "that is a handover too",
		},
		"asked for by somebody, for a standby": {
			with: func(g *given) {
				g.Lease.Record.Handover = lease.Handover{To: g.Pods[1].Name, Reason: lease.ReasonSwitchover}
			},
			to: -1, why: "that is a handover too",
		},
		"asked for by somebody, for nobody": {
			with: func(g *given) { g.Lease.Record.Handover = lease.Handover{To: "nobody"} }, to: 1, why: "it must not be in the way",
		},
		"asked for by somebody, for a pod that goes": {
			with: func(g *given) {
				g.Lease.Record.Handover = lease.Handover{To: g.Pods[3].Name, Reason: lease.ReasonSwitchover}
				g.terminating(3)
			},
			to: 1,
		},
		"nobody holds": {with: func(g *given) { g.released(lease.ReasonProcessExited) }, to: -1},
		"the one it was handed to did not take it": {
			with: func(g *given) { g.notTaken(ago(10 * time.Second)) }, to: -1, why: "it is cut off, and the process would only restart again",
		},
		"and that is long ago": {with: func(g *given) { g.notTaken(ago(notTakenFor)) }, to: 1},
	} {
		t.Run(name, func(t *testing.T) {
			g := rollingOut()
			if c.with != nil {
				c.with(g)
			}
			p := Decide(g.Observed)
			if c.to < 0 {
				if p.Lease != nil {
					t.Errorf("the Lease is written: %+v: %s", p.Lease, c.why)
				}
				return
			}
			if p.Lease == nil || p.Lease.Record.Handover != (lease.Handover{To: g.name(c.to), Reason: lease.ReasonRollout}) {
				t.Errorf("got %+v, want a handover to %s: %s", p.Lease, g.name(c.to), c.why)
			}
		})
	}
}

// TestFallbackStaysUntilProven: the old holder stays until a new one is proven, even while it is not ready, as a draining pod is for a
// moment.
func TestFallbackStaysUntilProven(t *testing.T) {
	for name, c := range map[string]struct {
		with func(*given)
		goes bool
	}{
		"it has handed over":                   {with: func(g *given) { g.released(lease.ReasonRollout) }},
		"it has handed over, and is not ready": {with: func(g *given) { g.released(lease.ReasonRollout); g.unready(0) }},
		"another old one has, and this one is not ready": {with: func(g *given) {
			g.released(lease.ReasonRollout)
			g.Lease.Record.History[0].Pod = "job-old-7"
			g.unready(0)
		}},
		"it never ran": {with: func(g *given) { g.released(lease.ReasonProcessExited); g.waiting(0, "ImagePullBackOff") }, goes: true},
		"its process has ended, and it is not ready": {with: func(g *given) { g.released(lease.ReasonProcessExited); g.unready(0) }},
		"its process has ended":                      {with: func(g *given) { g.released(lease.ReasonProcessExited) }},
		"nobody has held":                            {with: func(g *given) { g.free() }},
		"a new one is tried":                         {with: func(g *given) { g.held(1, 101, ago(time.Second)) }},
		"a new one is tried, and it is not ready":    {with: func(g *given) { g.held(1, 101, ago(time.Second)); g.unready(0) }},
		"a new one has failed, and it is not ready": {with: func(g *given) {
			g.released(lease.ReasonRollout)
			g.unready(0)
			failed := g.Lease.Record.History[0]
			failed.Token, failed.Pod, failed.Acquired, failed.Ended, failed.Reason = 101, g.Pods[1].Name, failed.Ended, failed.Ended+1, lease.ReasonProcessExited
			g.Lease.Record.History = append([]lease.PastTenure{failed}, g.Lease.Record.History...)
			g.Lease.Record.Token = 101
		}},
		"a new one is proven": {with: func(g *given) { g.held(1, 101, ago(time.Hour)) }, goes: true},
		"one of no pod holds": {with: func(g *given) { g.Lease.Record.Holder = "an-elector" }, goes: true},
	} {
		t.Run(name, func(t *testing.T) {
			g := rollingOut()
			c.with(g)
			gone := names(Decide(g.Observed).Delete)
			if goes := slices.Contains(gone, g.Pods[0].Name); goes != c.goes || len(gone) > 1 {
				t.Errorf("deleted are %v of %v", gone, g.Pods[0].Name)
			}
		})
	}
}

// notTaken: the holder was asked to hand over, but has the Lease again.
func (g *given) notTaken(since time.Time) {
	g.Lease.Record.AcquireTime = since.UnixMicro()
	now := lease.PastTenure{Token: 100, Pod: g.Pods[0].Name, Node: "a", Acquired: since.UnixMilli()}
	before := now
	before.Token, before.Ended, before.Reason = 99, now.Acquired, lease.ReasonRollout
	g.Lease.Record.History = []lease.PastTenure{now, before}
	g.sees(func(t *Trial) { t.Seen = ago(0).Sub(since) })
}

func TestRevertedRolloutWithdrawsItsRequest(t *testing.T) {
	g := rollingOut()
	g.Job.Spec.Template.Spec.Containers[0].Image = "v1"
	g.Lease.Record.Handover = lease.Handover{To: g.Pods[1].Name, Reason: lease.ReasonRollout}
	if p := Decide(g.Observed); p.Lease == nil || p.Lease.Record.Handover != (lease.Handover{}) {
		t.Errorf("%+v", p.Lease)
	}
}

func TestChildren(t *testing.T) {
	g := steady()
	budget := g.Children.Budget.Spec
	want := policyv1.PodDisruptionBudgetSpec{
		MaxUnavailable:             new(intstr.FromInt32(1)),
		Selector:                   &metav1.LabelSelector{MatchLabels: map[string]string{contract.ManagedByLabel: contract.ManagedBy, contract.NameLabel: "job"}},
		UnhealthyPodEvictionPolicy: new(policyv1.AlwaysAllow),
	}
	if diff := cmp.Diff(want, budget); diff != "" {
		t.Errorf("the budget (-want +got):\n%s", diff)
	}
	rules := []rbacv1.PolicyRule{{
		APIGroups: []string{"coordination.k8s.io"}, Resources: []string{"leases"}, ResourceNames: []string{"job"}, Verbs: []string{"get", "watch", "update"},
	}, {
		APIGroups: []string{""}, Resources: []string{"pods"}, ResourceNames: []string{g.name(0), g.name(1), g.name(2), g.name(3)}, Verbs: []string{"get"},
	}}
	if diff := cmp.Diff(rules, g.Children.Role.Rules); diff != "" {
		t.Errorf("the role (-want +got):\n%s", diff)
	}
	if mounts := g.Children.ServiceAccount.AutomountServiceAccountToken; mounts == nil || *mounts {
		t.Error("the process gets its agent's right to the Lease")
	}
	for what, c := range map[string]struct {
		with   func(*given)
		kind   string
		needed bool
	}{
		"edited role":                 {func(g *given) { g.Children.Role.Rules[0].Verbs = []string{"*"} }, "Role", true},
		"role of an earlier operator": {func(g *given) { g.Children.Role.Rules = g.Children.Role.Rules[:1] }, "Role", false},
		"role for one more verb":      {func(g *given) { g.Children.Role.Rules[1].Verbs = []string{"get", "delete"} }, "Role", false},
		"role for all pods":           {func(g *given) { g.Children.Role.Rules[1].ResourceNames = nil }, "Role", false},
		"role for a strange pod": {func(g *given) {
			g.Children.Role.Rules[1].ResourceNames = append(g.Children.Role.Rules[1].ResourceNames, "other-5d5f7c6b8-0")
		}, "Role", false},
		"role without a pod": {func(g *given) {
			g.Children.Role.Rules[1].ResourceNames = g.Children.Role.Rules[1].ResourceNames[1:]
		}, "Role", false},
		"edited binding":          {func(g *given) { g.Children.RoleBinding.Subjects = nil }, "RoleBinding", true},
		"binding to another role": {func(g *given) { g.Children.RoleBinding.RoleRef.Name = "theirs" }, "RoleBinding", true},
		"edited budget":           {func(g *given) { g.Children.Budget.Spec.MaxUnavailable = nil }, "PodDisruptionBudget", false},
		"budget lost":             {func(g *given) { g.Children.Budget = nil }, "PodDisruptionBudget", false},
		"account lost":            {func(g *given) { g.Children.ServiceAccount = nil }, "ServiceAccount", true},
		"account has no owner":    {func(g *given) { g.Children.ServiceAccount.OwnerReferences = nil }, "ServiceAccount", false},
		"role of the job alone": {func(g *given) {
			g.Children.Role.OwnerReferences = g.Children.Role.OwnerReferences[:1]
		}, "Role", false},
		"binding of an earlier Lease": {func(g *given) { g.Children.RoleBinding.OwnerReferences[1].UID = "earlier" }, "RoleBinding", false},
		"label lost":                  {func(g *given) { g.Children.Role.Labels = nil }, "Role", true},
		"account of another job":      {func(g *given) { g.Children.ServiceAccount.OwnerReferences[0].UID = "earlier" }, "ServiceAccount", true},
	} {
		g := steady()
		g.Children = Children{
			ServiceAccount: g.Children.ServiceAccount.DeepCopy(), Role: g.Children.Role.DeepCopy(),
			RoleBinding: g.Children.RoleBinding.DeepCopy(), Budget: g.Children.Budget.DeepCopy(),
		}
		c.with(g)
		var kinds []string
		p := Decide(g.Observed)
		if len(p.Also) > 0 == c.needed {
			t.Errorf("%s: pods wait for it: %v, want %v", what, !c.needed, c.needed)
		}
		for _, child := range append(p.Apply, p.Also...) {
			kinds = append(kinds, child.GetObjectKind().GroupVersionKind().Kind)
		}
		if !slices.Equal(kinds, []string{c.kind}) {
			t.Errorf("%s: applied %v", what, kinds)
		}
	}
}

// TestARolloutWritesTheRoleOnce: the Role names the Pods of both templates before the first of them is created, and stays as it is when those
// of the old one are gone.
func TestARolloutWritesTheRoleOnce(t *testing.T) {
	g := steady()
	g.Children.Role = g.Children.Role.DeepCopy()
	role := func() *rbacv1.Role {
		t.Helper()
		for _, child := range Decide(g.Observed).Also {
			if role, ok := child.(*rbacv1.Role); ok {
				return role
			}
		}
		return nil
	}
	old := []string{g.name(0), g.name(1)}
	g.Job.Spec.Template.Spec.Containers[0].Image = "v2"
	g.Job.Generation++
	written := role()
	want := slices.Sorted(slices.Values(append(old, g.name(0), g.name(1), g.name(2), g.name(3))))
	if written == nil || !slices.Equal(written.Rules[1].ResourceNames, want) {
		t.Fatalf("the Role %+v, want Pods %v", written, want)
	}
	g.apply(written)
	g.pod(0, "c")
	if again := role(); again != nil {
		t.Errorf("written again when the first new Pod exists: %+v", again.Rules)
	}
	g.Pods = g.Pods[1:]
	if again := role(); again != nil {
		t.Errorf("written again when an old Pod is gone: %+v", again.Rules)
	}
	g.Job.Spec.Candidates = 5
	g.Job.Generation++
	if written = role(); written == nil || slices.Contains(written.Rules[1].ResourceNames, old[0]) || len(written.Rules[1].ResourceNames) != 8 {
		t.Errorf("for five candidates, and an old Pod: %+v", written)
	}
}

func TestTheTemplatesOwnServiceAccount(t *testing.T) {
	g := steady()
	g.Pods, g.Children = nil, Children{}
	g.Job.Spec.Template.Spec.ServiceAccountName = "theirs"
	for _, child := range Decide(g.Observed).Apply {
		switch child := child.(type) {
		case *corev1.ServiceAccount:
			t.Errorf("%s is created although the template names another account", child.Name)
		case *rbacv1.RoleBinding:
			if child.Subjects[0].Name != "theirs" {
				t.Errorf("the role goes to %s", child.Subjects[0].Name)
			}
		}
	}
}

func TestAgentsKeepTheirLeaseWhenTheAccountChanges(t *testing.T) {
	g := steady()
	g.wrapped(0)
	g.wrapped(1)
	g.Job.Spec.Template.Spec.ServiceAccountName = "theirs"
	var got []string
	for _, child := range Decide(g.Observed).Apply {
		if binding, ok := child.(*rbacv1.RoleBinding); ok {
			for _, s := range binding.Subjects {
				got = append(got, s.Name)
			}
		}
	}
	if want := []string{"job-singletonjob", "theirs"}; !slices.Equal(got, want) {
		t.Errorf("the role goes to %v, want %v: the holder renews as the old one", got, want)
	}
}

// TestAccountOutlivesTheJob: the account and its permissions have the Lease as their second owner, which stays until no pod is left.
// Pods of a previous job keep theirs.
func TestAccountOutlivesTheJob(t *testing.T) {
	g := steady()
	c := g.Children
	for _, child := range []Child{c.ServiceAccount, c.Role, c.RoleBinding, c.Budget} {
		owners := child.GetOwnerReferences()
		if len(owners) != 2 || !metav1.IsControlledBy(child, g.Job) || owners[1].Kind != "Lease" || owners[1].UID != "lease-uid" ||
			owners[1].Controller != nil || owners[1].BlockOwnerDeletion != nil {
			t.Errorf("%T has the owners %+v", child, owners)
		}
	}
	g.Pods[0].OwnerReferences[0].UID, g.Pods[0].Spec.ServiceAccountName = "earlier", "former"
	g.Pods[1].OwnerReferences[0].UID, g.Pods[1].Spec.ServiceAccountName = "earlier", "nobody"
	g.withoutAgent(1)
	var got []string
	for _, child := range Decide(g.Observed).Apply {
		if binding, ok := child.(*rbacv1.RoleBinding); ok {
			for _, s := range binding.Subjects {
				got = append(got, s.Name)
			}
		}
	}
	if want := []string{"former", "job-singletonjob"}; !slices.Equal(got, want) {
		t.Errorf("the role goes to %v, want %v: a previous job's pod renews while it stops, a pod without an agent never", got, want)
	}
}

// withoutAgent removes the operator's parts from a pod.
func (g *given) withoutAgent(pod int) {
	c := &g.Pods[pod].Spec.Containers[0]
	c.Command, c.Env = []string{"no", "agent"}, nil
}

// TestOtherPodsAreNotAdopted: otherwise anyone with permission to label pods could cause their deletion.
func TestOtherPodsAreNotAdopted(t *testing.T) {
	g := steady()
	g.Pods[1].OwnerReferences = nil
	g.withoutAgent(1)
	if p := Decide(g.Observed); len(p.Adopt)+len(p.Delete) > 0 {
		t.Errorf("adopted %v, deleted %v", p.Adopt, p.Delete)
	}
}

// TestLabelCausesNoRollout: otherwise anyone with permission to label pods could cause a handover.
func TestLabelCausesNoRollout(t *testing.T) {
	g := steady()
	for _, pod := range g.Pods {
		pod.Labels[contract.TemplateHashLabel] = "bbbbbbb"
	}
	if p := Decide(g.Observed); len(p.Create)+len(p.Delete) > 0 || p.Lease != nil {
		t.Errorf("%+v", p)
	}
}

func TestActivePod(t *testing.T) {
	keeps := func(g *given) {
		g.Job.Spec.Lease.OnRenewFailure = v1alpha1.OnRenewFailureKeepRunning
		g.Pods = nil
		g.pod(0, "a")
		g.pod(1, "b")
		since := g.Lease.Record.AcquireTime
		g.held(0, 100, time.UnixMicro(since))
		g.Pods[0].Labels[contract.RoleLabel] = contract.RoleActive
		g.Lease.Unchanged, g.Lease.SinceRenewal = time.Hour, time.Hour
	}
	for name, c := range map[string]struct {
		with func(*given)
		want []string
	}{
		"as it should be": {with: func(*given) {}},
		"the holder does not renew": {
			with: func(g *given) { g.Lease.Unchanged, g.Lease.SinceRenewal = 10*time.Second, 10*time.Second }, want: []string{"0 standby"},
		},
		"the holder does not renew, and runs on": {with: keeps},
		"the holder ran on, and is dead": {
			with: func(g *given) { keeps(g); g.ended(0, ago(2*time.Hour), ago(500*time.Millisecond)) }, want: []string{"0 standby"},
		},
		"the holder ran on, and there is another tenure": {
			with: func(g *given) { keeps(g); g.held(1, 101, ago(time.Second)) }, want: []string{"0 standby", "1 active"},
		},
		"the standby took over, and the job is being deleted": {
			with: func(g *given) { g.held(1, 101, ago(time.Second)); g.Job.DeletionTimestamp = &metav1.Time{Time: now} },
			want: []string{"0 standby", "1 active"},
		},
	} {
		t.Run(name, func(t *testing.T) {
			g := steady()
			c.with(g)
			var got []string
			for _, r := range Decide(g.Observed).Relabel {
				got = append(got, fmt.Sprint(slices.IndexFunc(g.Pods, func(p *corev1.Pod) bool { return p.UID == r.UID }), " ", r.Role))
			}
			if !slices.Equal(got, c.want) {
				t.Errorf("relabelled %v, want %v", got, c.want)
			}
		})
	}
}

// TestOrphansAreAdopted: pods without an owner are adopted in every state in which the job changes pods, before anything else is done to
// them. They count as candidates until then.
func TestOrphansAreAdopted(t *testing.T) {
	for name, c := range map[string]struct {
		given *given
		with  func(*given)
		state State
		next  string // the ordinals of the pods that are removed after the adoption
	}{
		"a job that runs":            {given: steady(), state: Serving},
		"with more than it asks for": {given: steady(), with: func(g *given) { g.Job.Spec.Candidates = 1 }, state: Serving, next: "1"},
		"a standby is lost":          {given: steady(), with: func(g *given) { g.Pods = g.Pods[:1] }, state: Serving},
		"suspended":                  {given: steady(), with: func(g *given) { g.Job.Spec.Suspend = true }, state: Suspending, next: "1"},
		"suspended, and no process acts": {
			given: steady(), with: func(g *given) { g.Job.Spec.Suspend = true; g.released(lease.ReasonPodTerminating) }, state: Suspending, next: "0 1",
		},
		"behind a webhook's program": {given: steady(), with: func(g *given) { g.wrapped(0); g.wrapped(1) }, state: Serving},
		"a workload runs":            {given: steady(), with: func(g *given) { g.ofWorkload(); g.Workload.Replicas = 1 }, state: Blocked},
		"complete":                   {given: toCompletion(), with: (*given).complete, state: Resting, next: "1"},
		"no tick is near":            {given: onSchedule("0 9 * * *", nil), with: (*given).complete, state: Resting, next: "1"},
		"suspended, on a schedule": {
			given: onSchedule("0 9 * * *", nil), with: func(g *given) { g.complete(); g.Job.Spec.Suspend = true }, state: Suspending, next: "0 1",
		},
	} {
		t.Run(name, func(t *testing.T) {
			g := c.given
			if c.with != nil {
				c.with(g)
			}
			owners := make([][]metav1.OwnerReference, len(g.Pods))
			for i, pod := range g.Pods {
				owners[i] = pod.OwnerReferences
			}
			g.orphaned()
			p := Decide(g.Observed)
			if p.State != c.state || len(p.Adopt) != len(g.Pods) || len(p.Delete)+len(p.Create)+len(p.Relabel) > 0 || p.Move != nil {
				t.Errorf("%v: adopts %v, deletes %v, makes %d", p.State, names(p.Adopt), names(p.Delete), len(p.Create))
			}
			if total := g.told(p).Candidates.Total; int(total) != len(g.Pods) {
				t.Errorf("%d of %d are counted", total, len(g.Pods))
			}
			for i, pod := range g.Pods {
				pod.OwnerReferences = owners[i]
			}
			if p := Decide(g.Observed); len(p.Adopt) > 0 || ordinals(p.Delete, g) != c.next {
				t.Errorf("%v: adopts %v then, and deletes %q, want %q", p.State, names(p.Adopt), ordinals(p.Delete, g), c.next)
			}
		})
	}
}

func TestTokenNeverDecreases(t *testing.T) {
	g := steady()
	g.Job.Status.FencingToken, g.Job.Status.Tenures = 500, 9
	if p := Decide(g.Observed); p.Status != nil && (p.Status.FencingToken != 500 || p.Status.Tenures != 9) {
		t.Errorf("the Lease was edited, and the status follows it: %+v", p.Status)
	}
}

// TestPodWithTheHoldersNameIsNotActive: the holder was deleted by force, and another pod now has its name.
func TestPodWithTheHoldersNameIsNotActive(t *testing.T) {
	g := steady()
	g.Pods[0].UID, g.Pods[0].Labels[contract.RoleLabel] = "another", contract.RoleStandby
	if p := Decide(g.Observed); len(p.Relabel) > 0 {
		t.Errorf("gets a role: %+v", p.Relabel)
	}
}

// TestADeadHolderOfASuspendedJobIsReleased: otherwise, after the job is resumed, it waits for a tenure that is over.
func TestADeadHolderOfASuspendedJobIsReleased(t *testing.T) {
	g := steady()
	g.Job.Spec.Suspend = true
	g.ended(0, ago(2*time.Hour), ago(time.Second))
	if p := Decide(g.Observed); p.Lease == nil || !p.Lease.Record.Free() {
		t.Errorf("%v: writes %+v", p.State, p.Lease)
	}
	// If time proves nothing, an administrator's declaration does.
	g = keptRunning()
	g.Job.Spec.Suspend = true
	g.Pods, g.Lease.Unchanged, g.OutOfService["a"] = nil, time.Hour, true
	p := Decide(g.Observed)
	if p.Lease == nil || !p.Lease.Record.Free() {
		t.Fatalf("%v: writes %+v", p.State, p.Lease)
	}
	g.Lease.Record = p.Lease.Record
	if p := Decide(g.Observed); p.State != Suspended {
		t.Errorf("it is %v when that is stored", p.State)
	}
}
