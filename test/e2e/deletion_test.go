//go:build linux

package e2e

import (
	"maps"
	"slices"
	"testing"
	"time"

	coordinationv1 "k8s.io/api/coordination/v1"
	corev1 "k8s.io/api/core/v1"
	rbacv1 "k8s.io/api/rbac/v1"
	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/watch"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/singletonjob/operator/api/v1alpha1"
	"github.com/singletonjob/operator/internal/contract"
	"github.com/singletonjob/operator/test/cluster"
	"github.com/singletonjob/operator/test/observe"
)

// lingers is how long a process works on after SIGTERM. Under the lease of an ending job that must be renewed meanwhile.
const lingers = 30 * time.Second

var ending = cluster.LeaseSetting{Duration: 24 * time.Second, Deadline: 16 * time.Second, Retry: time.Second}

// TestDeletedJobEndsGracefully deletes jobs whose processes take long to stop, in every way that there is, side by side:
// what their pods need to renew stays until the pods are gone. Pods that are orphaned continue.
func TestDeletedJobEndsGracefully(t *testing.T) {
	x := beginBeside(t)
	whole := x.beside("whole")
	slow := func(o *v1alpha1.SingletonJob) {
		lingerFor(lingers)(o)
		o.Spec.Template.Spec.TerminationGracePeriodSeconds = new(int64(60))
	}
	orphan := x.createNamed("orphan", steady, slow)
	jobs := []*job{x.createNamed("background", ending, slow), x.createNamed("foreground", ending, slow), whole.createNamed("namespace", ending, slow)}
	before := map[*job]observe.Life{}
	for _, j := range append(slices.Clone(jobs), orphan) {
		j.awaitSettled()
		j.awaitWriteAfter(0)
		lives := j.lives()
		before[j] = lives[len(lives)-1]
	}
	released := x.watchReleases(whole)

	for _, how := range []string{"background", "foreground", "orphan"} {
		x.kubectl("delete", "singletonjob", how, "--cascade="+how, "--wait=false")
	}
	x.kubectl("delete", "namespace", whole.namespace, "--wait=false")
	before[orphan] = orphan.lifeOf(before[orphan].Writer)
	x.await("the pods to end, and then what they needed", func() (bool, any, error) {
		left := map[string]int{}
		for _, j := range jobs {
			// Looked at before its pods are: what was written after they were told is not from before.
			if life := j.lifeOf(before[j].Writer); !j.isToldToStop() {
				before[j] = life
			}
			left[j.name] = j.remains()
		}
		return slices.Max(slices.Collect(maps.Values(left))) == 0, left, nil
	})
	for _, j := range jobs {
		j.endedGracefully(before[j])
		x.await("the Lease of "+j.name+" to be seen released", func() (bool, any, error) {
			seen := released()
			return seen[j.key], seen, nil
		})
	}
	orphan.goesOn(before[orphan])
}

// isToldToStop reports whether no pod of the job may stay.
func (j *job) isToldToStop() bool {
	j.Helper()
	return !slices.ContainsFunc(j.candidates(), func(p corev1.Pod) bool { return p.DeletionTimestamp == nil })
}

// remains counts what is left of the job's pods and of what they need, which may not go before them.
func (j *job) remains() int {
	j.Helper()
	own := []client.ListOption{client.InNamespace(j.namespace), client.MatchingLabels{contract.NameLabel: j.name}}
	needs, gone := 0, ""
	for kind, list := range map[string]client.ObjectList{
		"ServiceAccount": &corev1.ServiceAccountList{}, "Role": &rbacv1.RoleList{}, "RoleBinding": &rbacv1.RoleBindingList{},
	} {
		j.must(bed.Client.List(j.ctx, list, own...))
		needs += meta.LenList(list)
		if meta.LenList(list) == 0 {
			gone = kind
		}
	}
	pods := j.candidates() // asked for last: what is gone went before these
	if gone != "" && len(pods) > 0 {
		j.Fatalf("%s: the %s is gone before pod %s", j.name, gone, pods[0].Name)
	}
	return needs + len(pods)
}

// endedGracefully asks that the process worked on for as long as it needed, and that nobody followed it.
func (j *job) endedGracefully(before observe.Life) {
	j.Helper()
	after := j.lifeOf(before.Writer)
	worked := after.Last - before.Last
	j.Logf("%s: wrote on for %v after its pod was told to stop", j.name, worked.Round(time.Millisecond))
	if worked < lingers-2*time.Second || after.Refused > 0 {
		j.Errorf("%s: the process wrote on for %v, want %v; %d writes were refused", j.name, worked, lingers, after.Refused)
	}
	if lives := j.lives(); lives[len(lives)-1].Writer != before.Writer {
		j.Errorf("%s: another process followed: %+v", j.name, lives)
	}
}

// goesOn asks that the process outlives its job for longer than one that can't renew would, and has a standby still.
func (j *job) goesOn(before observe.Life) {
	j.Helper()
	j.await("writes for longer than a lease", func() (bool, any, error) {
		lives := j.lives()
		return len(lives) > 1 || lives[0].Last-before.Last > shows, lives, nil
	})
	if lives := j.lives(); len(lives) != 1 {
		j.Errorf("%s: %d processes wrote, want one that goes on", j.name, len(lives))
	}
	var pods []corev1.Pod
	j.await("the candidates to be ready", func() (bool, any, error) {
		ready := map[string]bool{}
		pods = j.candidates()
		for _, p := range pods {
			ready[p.Name] = cluster.PodReady(p)
		}
		return !slices.Contains(slices.Collect(maps.Values(ready)), false), ready, nil
	})
	for _, p := range pods {
		if owner := metav1.GetControllerOf(&p); owner != nil || p.DeletionTimestamp != nil {
			j.Errorf("%s: pod %s is owned by %+v, deleted at %v", j.name, p.Name, owner, p.DeletionTimestamp)
		}
	}
	if len(pods) != 2 {
		j.Errorf("%s: %d candidates are left, want 2", j.name, len(pods))
	}
}

// watchReleases tells which Leases of its namespace and another trial's are seen released by their holders from now on.
func (x *trial) watchReleases(other *trial) func() map[client.ObjectKey]bool {
	x.Helper()
	seen := make(chan client.ObjectKey, 16)
	for _, namespace := range []string{x.namespace, other.namespace} {
		w, err := bed.Client.Watch(x.ctx, &coordinationv1.LeaseList{}, client.InNamespace(namespace))
		x.must(err)
		x.Cleanup(w.Stop)
		go func() {
			for event := range w.ResultChan() {
				l, ok := event.Object.(*coordinationv1.Lease)
				if ok && event.Type == watch.Modified && l.Annotations[contract.ReleaseReasonAnnotation] != "" {
					seen <- client.ObjectKeyFromObject(l)
				}
			}
		}()
	}
	released := map[client.ObjectKey]bool{}
	return func() map[client.ObjectKey]bool {
		for len(seen) > 0 {
			released[<-seen] = true
		}
		return released
	}
}
