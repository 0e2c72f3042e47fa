package show

import (
	"encoding/json"
	"flag"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"
	"unicode"
	"unicode/utf8"

	"github.com/google/go-cmp/cmp"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/singletonjob/operator/api/v1alpha1"
	"github.com/singletonjob/operator/internal/contract"
	"github.com/singletonjob/operator/internal/lease"
)

var update = flag.Bool("update", false, "write what is shown into testdata")

var now = time.Date(2026, 3, 4, 12, 0, 0, 0, time.UTC)

func ago(d time.Duration) metav1.Time { return metav1.NewTime(now.Add(-d)) }

// steady is a job that is active and protected, after a failover and a handover.
func steady() Facts {
	job := &v1alpha1.SingletonJob{
		ObjectMeta: metav1.ObjectMeta{Namespace: "prod", Name: "billing", UID: "job", Generation: 3, CreationTimestamp: ago(50 * time.Hour)},
		Spec:       v1alpha1.SingletonJobSpec{Candidates: 2},
		Status: v1alpha1.SingletonJobStatus{
			ObservedGeneration: 3, ActivePod: "billing-752pq9t-1", ActiveNode: "node-b", ActiveSince: new(ago(26 * time.Minute)),
			FencingToken: 48213, Tenures: 3, Failovers: 1, Handovers: 1, LeaseSummary: "15s/10s/2s",
			Candidates: v1alpha1.CandidatesStatus{Total: 2, Ready: 2, Updated: 2, Summary: "2/2"},
			History: []v1alpha1.TenureChange{
				{
					Time: metav1.NewMicroTime(now.Add(-26 * time.Minute)), Type: v1alpha1.Failover, Reason: v1alpha1.ChangeLeaseExpired,
					From: "billing-752pq9t-0", FromNode: "node-a", FromToken: 41007, To: "billing-752pq9t-1", ToNode: "node-b", Token: 48213,
					Downtime: &metav1.Duration{Duration: 15043 * time.Millisecond},
				},
				{
					Time: metav1.NewMicroTime(now.Add(-30 * time.Hour)), Type: v1alpha1.Handover, Reason: v1alpha1.ChangeRolloutHandover,
					From: "billing-66f0fe5-1", FromNode: "node-b", FromToken: 254, To: "billing-752pq9t-0", ToNode: "node-a", Token: 41007,
					Downtime: &metav1.Duration{Duration: 12 * time.Millisecond},
				},
				{
					Time: metav1.NewMicroTime(now.Add(-50 * time.Hour)), Type: v1alpha1.Elected, Reason: v1alpha1.ChangeElected,
					To: "billing-66f0fe5-1", ToNode: "node-b", Token: 254,
				},
			},
			Conditions: []metav1.Condition{
				says(v1alpha1.ConditionActive, v1alpha1.ReasonRunning, "billing-752pq9t-1 holds the Lease and renews it"),
				says(v1alpha1.ConditionProtected, v1alpha1.ReasonStandbyReady, "a warm standby is ready on another node"),
				says(v1alpha1.ConditionProgressing, v1alpha1.ReasonUpToDate, "every candidate is created from the current template and ready"),
				says(v1alpha1.ConditionTimely, v1alpha1.ReasonInTime, "no CPU limit delays a kill by more than the time that the lease leaves for it"),
			},
		},
	}
	renewed := now.Add(-1200 * time.Millisecond)
	return Facts{
		Job: job, Now: now, Renewed: renewed,
		Lease: &lease.Record{
			Holder: "billing-752pq9t-1/pod-1/nonce", Token: 48213, Duration: 15 * time.Second, Transitions: 3,
			AcquireTime: now.Add(-26 * time.Minute).UnixMicro(), RenewTime: renewed.UnixMicro(),
		},
		Pods: []corev1.Pod{pod(0, "node-a"), pod(1, "node-b")},
	}
}

// says is a condition with the status of its reason.
func says(name, reason, message string) metav1.Condition {
	for _, r := range v1alpha1.ConditionReasons() {
		if r.Condition == name && r.Reason == reason {
			return metav1.Condition{Type: name, Status: r.Status, Reason: reason, Message: message}
		}
	}
	panic(name + " has no reason " + reason)
}

func pod(ordinal int, node string) corev1.Pod {
	name := fmt.Sprintf("billing-752pq9t-%d", ordinal)
	return corev1.Pod{
		ObjectMeta: metav1.ObjectMeta{
			Namespace: "prod", Name: name, CreationTimestamp: ago(30 * time.Hour),
			Labels:      map[string]string{contract.NameLabel: "billing", contract.TemplateHashLabel: "752pq9t"},
			Annotations: map[string]string{contract.GatedAnnotation: "app"},
			OwnerReferences: []metav1.OwnerReference{{
				APIVersion: v1alpha1.GroupVersion.String(), Kind: v1alpha1.Kind, Name: "billing", UID: "job", Controller: new(true),
			}},
		},
		Spec: corev1.PodSpec{NodeName: node, Containers: []corev1.Container{{Name: "sidecar"}, {Name: "app"}}},
		Status: corev1.PodStatus{
			Phase:             corev1.PodRunning,
			Conditions:        []corev1.PodCondition{{Type: corev1.PodReady, Status: corev1.ConditionTrue}},
			ContainerStatuses: []corev1.ContainerStatus{{Name: "app", Ready: true, State: corev1.ContainerState{Running: &corev1.ContainerStateRunning{}}}},
		},
	}
}

// waits makes a pod's gated container wait.
func waits(p *corev1.Pod, reason, message string) {
	p.Status.Conditions[0].Status = corev1.ConditionFalse
	p.Status.Phase = corev1.PodPending
	p.Status.ContainerStatuses[0].Ready = false
	p.Status.ContainerStatuses[0].Image = "billing:4.2"
	p.Status.ContainerStatuses[0].State = corev1.ContainerState{Waiting: &corev1.ContainerStateWaiting{Reason: reason, Message: message}}
}

// nobody removes the active process, with a reason.
func (f *Facts) nobody(reason, message string) {
	s := &f.Job.Status
	s.ActivePod, s.ActiveNode, s.ActiveSince = "", "", nil
	f.Lease.Holder, f.Lease.AcquireTime = "", 0
	f.Lease.Release = lease.Release{Reason: lease.ReasonProcessExited}
	f.set(v1alpha1.ConditionActive, reason, message)
	f.set(v1alpha1.ConditionProtected, v1alpha1.ReasonNoHolder, "nothing is active, so there is nothing to protect")
}

// ofDeployment takes the job's template from the Deployment web.
func (f *Facts) ofDeployment() {
	f.Job.Spec.Template = corev1.PodTemplateSpec{}
	f.Job.Spec.WorkloadRef = &v1alpha1.WorkloadRef{APIVersion: v1alpha1.WorkloadAPIVersion, Kind: v1alpha1.WorkloadDeployment, Name: "web"}
}

// blocked is a new job, for which nothing can be started.
func (f *Facts) blocked(reason, message string) {
	f.nobody(reason, message)
	f.set(v1alpha1.ConditionProgressing, reason, message)
	f.Pods, f.Job.Status.Candidates = nil, v1alpha1.CandidatesStatus{}
}

// rests makes the job idle: no run is in progress.
func (f *Facts) rests(reason, message string) {
	f.nobody(reason, message)
	f.set(v1alpha1.ConditionProtected, v1alpha1.ReasonResting, "no run is under way, so there is nothing to protect")
	f.set(v1alpha1.ConditionProgressing, v1alpha1.ReasonUpToDate, "no candidate is needed while there is no run")
}

func (f *Facts) set(name, reason, message string) {
	meta.SetStatusCondition(&f.Job.Status.Conditions, says(name, reason, message))
}

// next adds the first pod of another version, which has no process yet.
func (f *Facts) next() {
	p := pod(2, "node-c")
	p.Name, p.Labels[contract.TemplateHashLabel], p.CreationTimestamp = "billing-8rf2k0c-0", "8rf2k0c", ago(4*time.Second)
	waits(&p, "ContainerCreating", "")
	f.Pods = append(f.Pods, p)
}

func warning(of, reason, message string, before time.Duration) corev1.Event {
	return corev1.Event{
		Type: corev1.EventTypeWarning, Reason: reason, Message: message, LastTimestamp: ago(before),
		InvolvedObject: corev1.ObjectReference{Name: of},
	}
}

// nightly gives the job a schedule. Its last runs were completed, failed, and replaced by the next run.
func (f *Facts) nightly() {
	f.Job.Spec.RunPolicy = v1alpha1.RunPolicyRunToCompletion
	f.Job.Spec.Schedule = &v1alpha1.Schedule{Cron: "30 4 * * *", TimeZone: "Europe/Berlin"}
	s := &f.Job.Status
	s.NextTick, s.Missed, s.Skipped = new(ago(-15*time.Hour-30*time.Minute)), 2, 1
	run := func(days int, state string) v1alpha1.RunStatus {
		tick := metav1.NewTime(now.AddDate(0, 0, -days).Add(-8*time.Hour - 30*time.Minute))
		return v1alpha1.RunStatus{
			ID: "job/" + tick.UTC().Format(time.RFC3339), Tick: &tick, State: state, Attempts: 1, Token: 48213 - int64(days), Pod: "billing-752pq9t-1",
			StartTime: new(metav1.NewTime(tick.Add(time.Second))), EndTime: new(metav1.NewTime(tick.Add(252 * time.Second))),
		}
	}
	s.Runs = []v1alpha1.RunStatus{run(0, "Complete"), run(1, "GivenUp"), run(2, "Replaced"), run(3, "Complete")}
	s.Runs[1].Reason = "DeadlineExceeded"
}

// cases are the situations that users meet. The output for each is in testdata.
var cases = map[string]func(*Facts){
	"steady": func(*Facts) {},
	"new, and no operator": func(f *Facts) {
		f.Job.Status = v1alpha1.SingletonJobStatus{}
		f.Job.Generation, f.Job.CreationTimestamp = 1, ago(90*time.Second)
		f.Pods, f.Lease, f.NoLease = nil, nil, "there is no Lease"
	},
	"changed, and not yet seen": func(f *Facts) { f.Job.Generation++ },
	"the lease may not be read": func(f *Facts) { f.Lease, f.NoLease = nil, "unknown: you may not read Leases in this namespace" },
	"the holder's clock is ahead": func(f *Facts) {
		f.Renewed = now.Add(42 * time.Second)
	},
	"the holder vanished": func(f *Facts) {
		f.Renewed = now.Add(-11 * time.Second)
		f.set(v1alpha1.ConditionActive, v1alpha1.ReasonHolderUnreachable, "billing-752pq9t-1 has stopped renewing; a standby takes over when the lease expires")
		f.Pods[1].Status.Conditions[0].Status = corev1.ConditionFalse
	},
	"the status is stale": func(f *Facts) { f.Renewed = now.Add(-10 * time.Minute) },
	"suspended": func(f *Facts) {
		f.Job.Spec.Suspend = true
		f.nobody(v1alpha1.ReasonSuspended, "spec.suspend is set; nothing runs")
		f.set(v1alpha1.ConditionProtected, v1alpha1.ReasonSuspended, "spec.suspend is set; nothing runs")
		f.set(v1alpha1.ConditionProgressing, v1alpha1.ReasonSuspended, "spec.suspend is set; nothing runs")
		f.Pods, f.Job.Status.Candidates = nil, v1alpha1.CandidatesStatus{}
	},
	"one candidate": func(f *Facts) {
		f.Job.Spec.Candidates, f.Pods = 1, f.Pods[1:]
		f.Job.Status.Candidates = v1alpha1.CandidatesStatus{Total: 1, Ready: 1, Updated: 1}
		f.set(v1alpha1.ConditionProtected, v1alpha1.ReasonSingleCandidate, "spec.candidates is 1, so no standby can take over: set 2 or more")
	},
	"no image": func(f *Facts) {
		f.nobody(v1alpha1.ReasonCandidatesNotReady, `billing-752pq9t-0: container app can't pull its image (ErrImagePull, ImagePullBackOff): Back-off pulling image "billing:4.2"`)
		f.set(v1alpha1.ConditionProgressing, v1alpha1.ReasonCandidateStuck, "billing-752pq9t-0: container app can't pull its image (ErrImagePull, ImagePullBackOff)")
		f.Job.Status.Candidates.Ready = 0
		for i := range f.Pods {
			waits(&f.Pods[i], "ImagePullBackOff", `Back-off pulling image "billing:4.2"`)
			f.Events = append(f.Events, warning(f.Pods[i].Name, "Failed", `Failed to pull image "billing:4.2": not found`, time.Duration(i+1)*time.Minute))
		}
	},
	"the process crashes": func(f *Facts) {
		f.nobody(v1alpha1.ReasonProcessBackOff, "billing-752pq9t-0: the process keeps exiting, last with status 3 (CrashLoopBackOff)")
		f.Job.Status.Candidates.Ready = 0
		for i := range f.Pods {
			waits(&f.Pods[i], "CrashLoopBackOff", "back-off 40s restarting failed container")
			f.Pods[i].Status.ContainerStatuses[0].RestartCount = 7
			f.Pods[i].Status.ContainerStatuses[0].LastTerminationState.Terminated = &corev1.ContainerStateTerminated{
				ExitCode: 3, Reason: "Error", FinishedAt: ago(31 * time.Second),
			}
		}
	},
	"no room for a standby": func(f *Facts) {
		f.set(v1alpha1.ConditionProtected, v1alpha1.ReasonNoStandby, "no standby is ready to take over")
		f.set(v1alpha1.ConditionProgressing, v1alpha1.ReasonCandidateStuck, "billing-752pq9t-0: it can't be scheduled: 0/3 nodes are available: 3 Insufficient cpu")
		f.Job.Status.Candidates.Ready = 1
		f.Pods[0].Spec.NodeName = ""
		f.Pods[0].Status = corev1.PodStatus{Phase: corev1.PodPending, Conditions: []corev1.PodCondition{{
			Type: corev1.PodScheduled, Status: corev1.ConditionFalse, Reason: corev1.PodReasonUnschedulable, Message: "0/3 nodes are available: 3 Insufficient cpu.",
		}}}
	},
	"a volume is elsewhere": func(f *Facts) {
		f.set(v1alpha1.ConditionProtected, v1alpha1.ReasonNoStandby, "no standby is ready to take over")
		waits(&f.Pods[0], "ContainerCreating", "")
		f.Events = []corev1.Event{
			warning("billing-752pq9t-0", "FailedAttachVolume", `Multi-Attach error for volume "pvc-1": Volume is already used by pod(s) billing-752pq9t-1`, 20*time.Second),
			warning("billing-752pq9t-0", "FailedAttachVolume", `Multi-Attach error for volume "pvc-1": Volume is already used by pod(s) billing-752pq9t-1`, 140*time.Second),
			warning("billing-752pq9t-1", "Unhealthy", "of a pod that is ready now", time.Second),
			{Type: corev1.EventTypeNormal, Reason: "Scheduled", Message: "nothing amiss", LastTimestamp: ago(time.Second), InvolvedObject: corev1.ObjectReference{Name: "billing-752pq9t-0"}},
		}
	},
	"both on one node": func(f *Facts) {
		f.Pods[0].Spec.NodeName = "node-b"
		f.set(v1alpha1.ConditionProtected, v1alpha1.ReasonStandbyOnSameNode, "every ready standby is on the node of the active pod and would be lost with it: no other node can take one: each is cordoned, not ready or tainted, or does not match the node selector or affinity of the pods")
	},
	"a rollout": func(f *Facts) {
		f.set(v1alpha1.ConditionProgressing, v1alpha1.ReasonRollingOut, "candidates are being replaced by ones of the current template, standbys first")
		f.next()
		f.Pods[0].DeletionTimestamp, f.Pods[0].DeletionGracePeriodSeconds = new(ago(-25*time.Second)), new(int64(30))
		f.Job.Status.Candidates = v1alpha1.CandidatesStatus{Total: 3, Ready: 2, Updated: 1}
	},
	"a rollout past its deadline": func(f *Facts) {
		f.next()
		f.Job.Status.Candidates = v1alpha1.CandidatesStatus{Total: 3, Ready: 2, Updated: 1}
		f.set(v1alpha1.ConditionProgressing, v1alpha1.ReasonProgressDeadlineExceeded, "billing-8rf2k0c-0 does not get ready: ContainerCreating")
		f.Events = []corev1.Event{warning("billing-8rf2k0c-0", "FailedMount", `MountVolume.SetUp failed for volume "config": configmap "billing" not found`, 9*time.Second)}
	},
	"an image that is not known": func(f *Facts) {
		f.nobody(v1alpha1.ReasonImageNotFound, `the gated container "app" sets no command, and the entrypoint of its image "billing:4.2" is unknown: its registry has no such image`)
		f.Job.Spec.WorkloadRef = &v1alpha1.WorkloadRef{APIVersion: v1alpha1.WorkloadAPIVersion, Kind: v1alpha1.WorkloadStatefulSet, Name: "bills"}
		f.Pods, f.Job.Status.Candidates = nil, v1alpha1.CandidatesStatus{}
	},
	"a workload that is scaled up beside it": func(f *Facts) {
		f.ofDeployment()
		const text = "Deployment/web has 1 replicas, and no lease keeps them from acting: set replicas to 0 where it is set, in the chart's values or with " +
			"kubectl scale, and remove anything that sets it again; nothing is started until then, and a running process continues"
		f.set(v1alpha1.ConditionProtected, v1alpha1.ReasonWorkloadRunning, text)
		f.set(v1alpha1.ConditionProgressing, v1alpha1.ReasonWorkloadRunning, text)
	},
	"a workload that is deleted": func(f *Facts) {
		f.ofDeployment()
		f.set(v1alpha1.ConditionProgressing, v1alpha1.ReasonWorkloadMissing, "Deployment/web in spec.workloadRef does not exist or is being deleted: create it, with replicas: 0; "+
			"nothing is started until then, and a running process continues")
	},
	"a workload of the other kind": func(f *Facts) {
		f.ofDeployment()
		f.blocked(v1alpha1.ReasonWorkloadMissing, "Deployment/web in spec.workloadRef does not exist, but StatefulSet/web does: set spec.workloadRef.kind to StatefulSet, "+
			"or create the other; nothing is started until then, and a running process continues")
	},
	"a workload that the operator may not read": func(f *Facts) {
		f.ofDeployment()
		f.blocked(v1alpha1.ReasonWorkloadDenied, "the operator has no permission to read Deployment/web in spec.workloadRef, or what belongs to it: read Deployment/web in namespace prod: "+
			`deployments.apps "web" is forbidden: User "system:serviceaccount:singletonjob:singletonjob" cannot get resource "deployments" in API group "apps" in the namespace "prod"`+
			"; nothing is started until then, and a running process continues")
	},
	"refused by a quota": func(f *Facts) {
		f.nobody(v1alpha1.ReasonFailedCreate, `pods "billing-752pq9t-0" is forbidden: exceeded quota: pods, requested: pods=1, used: pods=10, limited: pods=10`)
		f.set(v1alpha1.ConditionProgressing, v1alpha1.ReasonFailedCreate, `pods "billing-752pq9t-0" is forbidden: exceeded quota: pods, requested: pods=1, used: pods=10, limited: pods=10`)
		f.Pods, f.Job.Status.Candidates = nil, v1alpha1.CandidatesStatus{}
		f.Events = []corev1.Event{warning("billing", "FailedCreate", "exceeded quota: pods", 10*time.Second)}
	},
	"a deletion is refused by a policy": func(f *Facts) {
		f.set(v1alpha1.ConditionProgressing, v1alpha1.ReasonFailedDelete, `the API server rejects requests of the operator: delete pod prod/billing-752pq9t-1: `+
			`pods "billing-752pq9t-1" is forbidden: ValidatingAdmissionPolicy 'keep' with binding 'keep' denied request: Pods here are not deleted`)
	},
	"a label is refused by a policy": func(f *Facts) {
		f.set(v1alpha1.ConditionProgressing, v1alpha1.ReasonFailedUpdate, `the API server rejects requests of the operator: change pod prod/billing-752pq9t-0: `+
			`pods "billing-752pq9t-0" is forbidden: ValidatingAdmissionPolicy 'labels' with binding 'labels' denied request: labels here do not change`)
	},
	"somebody else's elector": func(f *Facts) {
		f.nobody(v1alpha1.ReasonForeignHolder, "the Lease is held by an elector that is no agent")
		f.Lease.Holder = "some-elector_\x1b[31m1234"
	},
	"somebody else's lease": func(f *Facts) {
		f.nobody(v1alpha1.ReasonLeaseConflict, "the Lease prod/billing exists and is not this operator's")
		f.Lease, f.NoLease = nil, "the Lease of this name does not belong to this job"
	},
	"a schedule": func(f *Facts) {
		f.nightly()
	},
	"a schedule, and a run that fails": func(f *Facts) {
		f.nightly()
		f.Job.Spec.Schedule.TimeZone, f.Job.Status.NextTick = "Etc/UTC", new(ago(time.Second))
		f.Job.Annotations = map[string]string{contract.RunNowAnnotation: "manual-2"}
		f.Job.Status.Runs = append([]v1alpha1.RunStatus{{
			ID: "job/backfill", Tick: new(ago(33 * time.Hour)), State: "Failed", Attempts: 3, Token: 48213, Pod: "billing-752pq9t-1", Reason: "ProcessExited",
			ExitCode: new(int32(7)), StartTime: new(ago(3 * time.Minute)),
		}}, f.Job.Status.Runs...)
	},
	"a schedule at rest": func(f *Facts) {
		f.nightly()
		f.rests(v1alpha1.ReasonNotDue, "no run is due; status.nextTick is the next tick")
		f.set(v1alpha1.ConditionScheduled, v1alpha1.ReasonScheduled, "runs start at the ticks; status.nextTick is the next one")
		f.Pods, f.Job.Status.Candidates = nil, v1alpha1.CandidatesStatus{}
	},
	"asked by a bad name": func(f *Facts) {
		f.nightly()
		f.rests(v1alpha1.ReasonNotDue, "no run is due; status.nextTick is the next tick")
		f.Job.Annotations = map[string]string{contract.RunNowAnnotation: "Now!"}
		f.set(v1alpha1.ConditionProgressing, v1alpha1.ReasonRunRequestInvalid, `the annotation singletonjob.io/run is "Now!", which is not a valid request for a run`)
		f.Pods, f.Job.Status.Candidates = nil, v1alpha1.CandidatesStatus{}
	},
	"a tick is overdue": func(f *Facts) {
		f.nightly()
		f.nobody(v1alpha1.ReasonElecting, "candidates compete for the Lease")
		f.set(v1alpha1.ConditionScheduled, v1alpha1.ReasonOverdue, "a tick is due, and the candidates do not start it")
		f.Job.Status.Runs[0].State, f.Job.Status.Runs[0].EndTime = v1alpha1.RunUnknown, nil
	},
	"a schedule that is ahead": func(f *Facts) {
		f.nightly()
		f.nobody(v1alpha1.ReasonNotDue, "no run is due")
		f.set(v1alpha1.ConditionScheduled, v1alpha1.ReasonAhead, "the Lease records all ticks up to 2027-01-01T00:00:00Z, which is in the future")
	},
	"a run that has failed": func(f *Facts) {
		f.Job.Spec.RunPolicy = v1alpha1.RunPolicyRunToCompletion
		f.Job.Status.Runs = []v1alpha1.RunStatus{{
			ID: "job", State: "GivenUp", Attempts: 9, IgnoredAttempts: 2, Token: 48213, Pod: "billing-752pq9t-1", Reason: "ProcessExited", ExitCode: new(int32(3)),
			StartTime: new(ago(26 * time.Minute)), EndTime: new(ago(time.Minute)),
		}}
		f.nobody(v1alpha1.ReasonRunFailed, "the run failed, and no further attempt follows: it exited with status 3 in attempt 9")
		f.set(v1alpha1.ConditionFailed, v1alpha1.ReasonBackoffLimitExceeded, "the run failed, and no further attempt follows")
		f.set(v1alpha1.ConditionComplete, v1alpha1.ReasonNotComplete, "the run is not complete")
		f.Pods = f.Pods[1:]
		f.Pods[0].Status.Phase = corev1.PodSucceeded
		f.Pods[0].Status.Conditions[0].Status = corev1.ConditionFalse
	},
	"run once": func(f *Facts) {
		f.Job.Spec.RunPolicy = v1alpha1.RunPolicyRunToCompletion
		f.Job.Status.Runs = []v1alpha1.RunStatus{{
			ID: "job", State: "Running", Attempts: 1, Token: 48213, Pod: "billing-752pq9t-1", StartTime: new(ago(26 * time.Minute)),
		}}
	},
	"words of an enemy": func(f *Facts) {
		f.nobody(v1alpha1.ReasonCandidatesNotReady, "two\nlines, \x1b[2J a cleared screen, and \xff no UTF-8")
		waits(&f.Pods[0], "Evil\x1b[31m", "\r\x1b]0;title\a")
		f.Pods[1].DeletionTimestamp = new(ago(time.Minute))
	},
	"a hook fails each time": func(f *Facts) {
		f.Job.Status.ActivePod = ""
		f.set(v1alpha1.ConditionActive, v1alpha1.ReasonElecting, "no candidate holds the Lease")
		f.set(v1alpha1.ConditionProtected, v1alpha1.ReasonNoHolder, "nothing is active, so there is nothing to protect")
		f.Lease.Holder, f.Lease.Release = "", lease.Release{Reason: lease.ReasonPreActivateFailed}
		f.Job.Status.History[0].Reason = v1alpha1.ChangePreActivateFailed
		f.Pods[0].Status.ContainerStatuses = []corev1.ContainerStatus{{
			Name: "app", RestartCount: 3, LastTerminationState: corev1.ContainerState{Terminated: &corev1.ContainerStateTerminated{
				ExitCode: 1, Reason: "Error", FinishedAt: ago(26 * time.Minute),
			}},
		}}
	},
	"the guard refuses": func(f *Facts) {
		f.Job.Status.ActivePod = ""
		f.set(v1alpha1.ConditionActive, v1alpha1.ReasonElecting, "no candidate holds the Lease")
		f.set(v1alpha1.ConditionProtected, v1alpha1.ReasonNoHolder, "nothing is active, so there is nothing to protect")
		f.Lease.Holder = ""
		f.Complaints = map[string]string{"billing-752pq9t-0": Complaint("singletonjob: acquire failing failures=8 error=\"leases.coordination.k8s.io is " +
			"forbidden: ValidatingAdmissionPolicy 'singletonjob-guard' denied request: the fencing token is not the next one\"\n")}
	},
	"a node is cut off": func(f *Facts) {
		f.set(v1alpha1.ConditionActive, v1alpha1.ReasonHolderUnreachable, "billing-752pq9t-1 has stopped renewing the Lease")
		f.set(v1alpha1.ConditionProtected, v1alpha1.ReasonNoHolder, "nothing is active, so there is nothing to protect")
		f.Nodes = map[string]*corev1.Node{
			"node-a": {ObjectMeta: metav1.ObjectMeta{Name: "node-a"}},
			"node-b": {ObjectMeta: metav1.ObjectMeta{Name: "node-b", UID: "node"}, Status: corev1.NodeStatus{Conditions: []corev1.NodeCondition{{
				Type: corev1.NodeReady, Status: corev1.ConditionUnknown, Reason: "NodeStatusUnknown", Message: "Kubelet stopped posting node status.",
				LastTransitionTime: ago(40 * time.Second),
			}}}},
		}
	},
	"the operator is down": func(f *Facts) {
		operator := corev1.Pod{ObjectMeta: metav1.ObjectMeta{Namespace: "singletonjob-system", Name: "singletonjob-0"}, Spec: corev1.PodSpec{NodeName: "node-c"}}
		operator.Status.ContainerStatuses = []corev1.ContainerStatus{{Name: "manager", State: corev1.ContainerState{
			Waiting: &corev1.ContainerStateWaiting{Reason: "CrashLoopBackOff", Message: "back-off 5m0s restarting failed container"},
		}}}
		f.Operators, f.OperatorsKnown = []corev1.Pod{operator}, true
	},
	"a node's clock is behind": func(f *Facts) {
		f.Clock = Clock{Renewed: now.Add(-7 * time.Minute), Served: now, Since: 2 * time.Second}
	},
	"a node's clock is ahead of the API server's": func(f *Facts) {
		f.Clock = Clock{Renewed: now.Add(time.Hour), Served: now}
	},
	"zones": func(f *Facts) {
		f.Zones = map[string]string{"node-a": "eu-central-1a", "node-b": "eu-central-1b"}
	},
	"a reason of tomorrow": func(f *Facts) {
		f.Job.Status.Conditions = append(f.Job.Status.Conditions,
			metav1.Condition{Type: "Paid", Status: metav1.ConditionFalse, Reason: "Overdrawn", Message: "what this version has never heard of"},
			metav1.Condition{Type: "Ready", Status: metav1.ConditionFalse, Reason: "Overdrawn", Message: "sums up the others"})
		f.Job.Status.Conditions[1] = metav1.Condition{Type: v1alpha1.ConditionProtected, Status: metav1.ConditionUnknown, Reason: "Quantum"}
	},
}

// TestShown compares all output for each case with its file.
func TestShown(t *testing.T) {
	for name, change := range cases {
		t.Run(name, func(t *testing.T) {
			f := steady()
			change(&f)
			v, found := View(f), Why(f)
			var out strings.Builder
			for _, part := range []struct{ what, text string }{
				{"status", Tree(v, now, Style{}, false)},
				{"status on a terminal of 80", Tree(v, now, Style{Width: 80}, false)},
				{"status -o wide", Tree(v, now, Style{}, true)},
				{"why on a terminal of 80", Explain(v, found, Failover(f), Style{Width: 80})},
			} {
				if part.what == "why on a terminal of 80" && v.Runs != nil {
					part.text += "--- runs\n" + RunHistory(f.Job, now, Style{}, false) + "--- runs -o wide\n" + RunHistory(f.Job, now, Style{}, true)
				}
				if strings.ContainsAny(part.text, "\x1b\a\r") || !utf8.ValidString(part.text) {
					t.Errorf("%s obeys others' control characters: %q", part.what, part.text)
				}
				fmt.Fprintf(&out, "--- %s\n%s", part.what, part.text)
			}
			golden(t, strings.NewReplacer(",", "", "'", "", " ", "-").Replace(name)+".txt", out.String())
		})
	}
}

// TestJSON: scripts depend on the names of fields.
func TestJSON(t *testing.T) {
	f := steady()
	cases["no room for a standby"](&f)
	raw, err := json.MarshalIndent(map[string]any{"status": View(f), "why": Why(f)}, "", "  ")
	if err != nil {
		t.Fatal(err)
	}
	golden(t, "view.json", string(raw)+"\n")
}

func golden(t *testing.T, name, text string) {
	t.Helper()
	path := filepath.Join("testdata", name)
	if *update {
		if err := os.WriteFile(path, []byte(text), 0o644); err != nil {
			t.Fatal(err)
		}
		return
	}
	want, err := os.ReadFile(path)
	if err != nil {
		t.Fatal(err)
	}
	if diff := cmp.Diff(string(want), text); diff != "" {
		t.Errorf("%s (go test ./internal/show -update rewrites it; -file +shown):\n%s", path, diff)
	}
}

// TestEveryReasonHasARemedy: for each reason why a job is not active or not protected, there is a finding, and a remedy that names
// the job or its Pods.
func TestEveryReasonHasARemedy(t *testing.T) {
	for _, r := range v1alpha1.ConditionReasons() {
		if r.Condition == v1alpha1.ConditionReady || r.Status != metav1.ConditionFalse || r.Condition == v1alpha1.ConditionProgressing && r.Reason == v1alpha1.ReasonUpToDate {
			continue
		}
		f := steady()
		f.set(r.Condition, r.Reason, r.Meaning)
		found := Why(f)
		silent := []string{v1alpha1.ReasonCompleted, v1alpha1.ReasonNotDue, v1alpha1.ReasonNotComplete, v1alpha1.ReasonNotFailed, v1alpha1.ReasonNoHolder, v1alpha1.ReasonResting}
		if quiet := slices.Contains(silent, r.Reason) || r.Condition == v1alpha1.ConditionProgressing && r.Reason == v1alpha1.ReasonSuspended; quiet {
			if len(found) != 0 {
				t.Errorf("%s %s is told twice: %+v", r.Condition, r.Reason, found)
			}
			continue
		}
		if len(found) != 1 || len(found[0].Do) == 0 || found[0].What == "" || strings.HasPrefix(found[0].Do[0], "kubectl describe singletonjob") {
			t.Errorf("%s %s: want one finding with a remedy of its own, got %+v", r.Condition, r.Reason, found)
		}
	}
}

func TestColours(t *testing.T) {
	f := steady()
	coloured := Tree(View(f), now, Style{Color: true, Width: 80}, false)
	if !strings.Contains(coloured, "\x1b[32mRunning\x1b[0m") {
		t.Errorf("Running is not green:\n%q", coloured)
	}
	bare := coloured
	for _, c := range []color{green, yellow, red, faint, bold} {
		bare = strings.ReplaceAll(bare, "\x1b["+string(c)+"m", "")
	}
	if bare = strings.ReplaceAll(bare, "\x1b[0m", ""); bare != Tree(View(f), now, Style{Width: 80}, false) {
		t.Errorf("colours move something:\n%s", bare)
	}
}

// TestASCII: a terminal without UTF-8 gets ASCII characters, in columns.
func TestASCII(t *testing.T) {
	f := steady()
	v := View(f)
	golden(t, "ascii.txt", Tree(v, now, Style{ASCII: true}, false)+History(f.Job, now, Style{ASCII: true, Width: 70}, false))
	if text := Tree(v, now, Style{ASCII: true}, true); strings.ContainsFunc(text, func(r rune) bool { return r > unicode.MaxASCII }) {
		t.Errorf("not ASCII:\n%s", text)
	}
}

// TestNarrow: names of the maximum length, and words longer than a line, fit the terminal.
func TestNarrow(t *testing.T) {
	f := steady()
	long := "invoices-of-the-northern-subsidiary-and-its-partners"
	f.Job.Name = long
	f.Job.Status.ActivePod = long + f.Job.Status.ActivePod[len("billing"):]
	for i := range f.Pods {
		f.Pods[i].Name = long + f.Pods[i].Name[len("billing"):]
		f.Pods[i].Spec.NodeName += ".eu-central-1.compute.internal"
	}
	f.Lease.Holder = long + f.Lease.Holder[len("billing"):]
	for i := range f.Job.Status.History {
		c := &f.Job.Status.History[i]
		if c.To = long + c.To[len("billing"):]; c.From != "" {
			c.From = long + c.From[len("billing"):]
		}
	}
	c := meta.FindStatusCondition(f.Job.Status.Conditions, v1alpha1.ConditionProtected)
	c.Status, c.Reason = metav1.ConditionFalse, v1alpha1.ReasonNoStandby
	c.Message = "no standby is ready: cannot pull registry.example.com/" + strings.Repeat("a-long-path/", 9) + "image:tag"
	v := View(f)
	s := Style{Width: 80}
	text := Tree(v, now, s, false) + History(f.Job, now, s, false) + Explain(v, Why(f), Failover(f), s)
	golden(t, "narrow.txt", text)
	for line := range strings.Lines(text) {
		if n := utf8.RuneCountInString(line) - 1; n > s.Width {
			t.Errorf("%d characters: %s", n, line)
		}
	}
}

// TestWrapped: no line is too long, and no text is lost, whatever the length of a word.
func TestWrapped(t *testing.T) {
	text := "one " + strings.Repeat("x", 45) + " two three four five six"
	want := []string{"one", strings.Repeat("x", 22), strings.Repeat("x", 22), "x two three four five", "six"}
	if diff := cmp.Diff(want, wrapped(text, 24, 2)); diff != "" {
		t.Errorf("lines of 24, all but the first with an indent of 2 (-want +got):\n%s", diff)
	}
	if got := Reflow("a b\nc\n\nd", 20); got != "a b c\n\nd" {
		t.Errorf("paragraphs became %q", got)
	}
}

func TestHistory(t *testing.T) {
	job := steady().Job
	golden(t, "history.txt", History(job, now, Style{}, false)+"--- wide\n"+History(job, now, Style{}, true))
}

func TestTokenAt(t *testing.T) {
	f := steady()
	f.Lease.History = []lease.PastTenure{
		{Token: 30, Pod: "a", Acquired: 3000}, {Token: 20, Pod: "b", Acquired: 2000, Ended: 2900}, {Token: 10, Pod: "a", Acquired: 1000, Ended: 1900},
	}
	spans := Spans(f)
	for _, c := range []struct {
		pod  string
		at   int64
		want int64
	}{{"a", 999, 0}, {"a", 1000, 10}, {"b", 1500, 0}, {"b", 2000, 20}, {"b", 9000, 20}, {"a", 2999, 10}, {"a", 3000, 30}, {"c", 5000, 0}} {
		if got := TokenAt(spans, c.pod, time.UnixMilli(c.at)); got != c.want {
			t.Errorf("%s at %d writes with token %d, want %d", c.pod, c.at, got, c.want)
		}
	}
	f.Job.Status.History = []v1alpha1.TenureChange{{Token: 20, To: "b", Time: metav1.NewMicroTime(time.UnixMilli(2000))}, {Token: 5, To: "a", Time: metav1.NewMicroTime(time.UnixMilli(500))}}
	f.Lease.History = f.Lease.History[:1]
	for at, want := range map[int64]int64{499: 0, 999: 5, 2999: 5, 3000: 30} {
		if got := TokenAt(Spans(f), "a", time.UnixMilli(at)); got != want {
			t.Errorf("what the Lease has forgotten: a at %d writes with token %d, want %d", at, got, want)
		}
	}
	f = steady()
	f.Lease = nil
	if got := TokenAt(Spans(f), "billing-752pq9t-0", now.Add(-time.Hour)); got != 41007 {
		t.Errorf("without a Lease, the job's history gives token %d", got)
	}
}

// TestFailoverHasARemedy: for each reason of a failover there is something to look at.
func TestFailoverHasARemedy(t *testing.T) {
	for _, r := range v1alpha1.ChangeReasons() {
		f := steady()
		f.Job.Status.History = f.Job.Status.History[:1]
		f.Job.Status.History[0].Type, f.Job.Status.History[0].Reason = r.Type, r.Reason
		found := Failover(f)
		if r.Type != v1alpha1.Failover {
			if found != nil {
				t.Errorf("%s is no failover: %+v", r.Reason, found)
			}
			continue
		}
		if found == nil || len(found.Do) == 0 || strings.HasPrefix(found.Do[0], "kubectl singleton history") || !strings.Contains(found.What, r.Meaning) {
			t.Errorf("%s: want a remedy of its own, got %+v", r.Reason, found)
		}
	}
}

// TestComplaint: a complaint counts until the agent says that it is over.
func TestComplaint(t *testing.T) {
	const failing = `singletonjob: acquire failing failures=2 error="no answer"`
	for log, want := range map[string]string{
		"":                      "",
		"an error=1 failing \n": "",
		failing + "\n":          `acquire failing failures=2 error="no answer"`,
		failing + "\nmine\n":    `acquire failing failures=2 error="no answer"`,
		failing + "\nsingletonjob: writing again failures=2\n":      "",
		failing + "\nsingletonjob: acquired token=7 tenure=1\n":     "",
		"singletonjob: tick not started reason=\"clocks differ\"\n": `tick not started reason="clocks differ"`,
	} {
		if got := Complaint(log); got != want {
			t.Errorf("%q: %q, want %q", log, got, want)
		}
	}
}

// TestClock: a clock is wrong only if no delay explains the difference.
func TestClock(t *testing.T) {
	for _, c := range []struct {
		ahead, since, want time.Duration
	}{
		{0, 0, 0},
		{5 * time.Second, 0, 0},
		{6 * time.Second, 0, 6 * time.Second},
		{-time.Hour, 0, 0}, // nobody knows how old the renewal is
		{-6 * time.Second, 2 * time.Second, 0},
		{-8 * time.Second, 2 * time.Second, -6 * time.Second},
	} {
		if got := (Clock{Renewed: now.Add(c.ahead), Served: now, Since: c.since}).difference(); got != c.want {
			t.Errorf("%v ahead, stored within %v: %v, want %v", c.ahead, c.since, got, c.want)
		}
	}
	if got := (Clock{Renewed: now}).difference(); got != 0 {
		t.Errorf("without the API server's time: %v", got)
	}
}

// TestVersions: versions that are more than one minor version apart are reported.
func TestVersions(t *testing.T) {
	for _, c := range []struct {
		mine, operator string
		skew           bool
	}{
		{"v0.2.0", "0.2.7", false},
		{"v0.2.0", "0.3.0", false},
		{"v0.2.0", "0.4.0", true},
		{"v0.4.0", "0.2.0", true},
		{"v1.2.0", "0.2.0", true},
		{"(devel)", "0.2.0", false},
		{"v0.2.0", "latest", false},
	} {
		pod := corev1.Pod{ObjectMeta: metav1.ObjectMeta{Labels: map[string]string{"app.kubernetes.io/version": c.operator}}}
		v := VersionsOf(c.mine, []corev1.Pod{pod, pod}, true)
		if (v.Skew != "") != c.skew || len(v.Operators) != 1 || !strings.Contains(v.Text(), c.operator) {
			t.Errorf("%s and %s: %+v", c.mine, c.operator, v)
		}
	}
	if text := VersionsOf("v1", nil, false).Text(); !strings.Contains(text, "unknown") {
		t.Errorf("a user who may not look: %s", text)
	}
	if text := VersionsOf("v1", nil, true).Text(); !strings.Contains(text, "none was found") {
		t.Errorf("no operator: %s", text)
	}
}

func TestAgo(t *testing.T) {
	for d, want := range map[time.Duration]string{
		-time.Second: "0s", 1999 * time.Millisecond: "1s", 119 * time.Second: "119s", 125 * time.Second: "2m5s", 10 * time.Minute: "10m",
		179*time.Minute + 59*time.Second: "179m", 5*time.Hour + 30*time.Minute: "5h30m", 30 * time.Hour: "30h", 50 * time.Hour: "2d2h", 300 * time.Hour: "12d",
	} {
		if got := Ago(d); got != want {
			t.Errorf("%v is written %s, want %s", d, got, want)
		}
	}
}

func TestNotFound(t *testing.T) {
	for _, c := range []struct {
		name            string
		here, elsewhere []string
		want            string
	}{
		{"billing", nil, nil, `there is no SingletonJob "billing" in namespace prod, and no other either: select another namespace with -n`},
		{"biling", []string{"mail", "billing"}, nil, `there is no SingletonJob "biling" in namespace prod; did you mean billing?`},
		{"bill", []string{"billing"}, nil, `there is no SingletonJob "bill" in namespace prod; did you mean billing?`},
		{"x", []string{"g", "f", "e", "d", "c", "bb", "aa"}, nil, `there is no SingletonJob "x" in namespace prod; did you mean c, d, e, f, g?`},
		{"billing", []string{"mail", "report"}, nil, `there is no SingletonJob "billing" in namespace prod; the namespace has mail, report`},
		{"billing", []string{"billings"}, []string{"test", "dev"}, `there is no SingletonJob "billing" in namespace prod, but there is one in namespace dev, test: select it with -n`},
	} {
		if got := NotFound(c.name, "prod", c.here, c.elsewhere); got != c.want {
			t.Errorf("%s among %q and %q:\n%s\nwant\n%s", c.name, c.here, c.elsewhere, got, c.want)
		}
	}
}

// TestLeaseIsNewerThanTheStatus: the Lease shows the current run, and a request that was skipped. The status shows these later or never.
func TestLeaseIsNewerThanTheStatus(t *testing.T) {
	f := steady()
	f.nightly()
	f.Job.Annotations = map[string]string{contract.RunNowAnnotation: "mine@2026-03-01T03:30:00Z"}
	if UnderWay(f) != nil || Asked(f) != "mine" || RunOf(f, "mine") != nil || PassedOver(f, "mine") {
		t.Errorf("before it has begun: %+v, %q", UnderWay(f), Asked(f))
	}
	f.Lease.Runs = lease.Runs{Answered: "mine", Now: lease.Run{ID: "job/mine", State: lease.RunFailed, Attempt: 2, Tick: 1772335800}}
	if run := UnderWay(f); run == nil || RunName(run) != "mine of 2026-03-01T03:30:00Z" || run.Attempts != 2 || Asked(f) != "" || PassedOver(f, "mine") {
		t.Errorf("while it is under way: %+v, %q", run, Asked(f))
	}
	f.Lease.Runs.Now.State = lease.RunComplete
	if run := RunOf(f, "mine"); UnderWay(f) != nil || run == nil || !Final(run) {
		t.Errorf("once it is over: %+v", run)
	}
	f.Lease.Runs.Now.ID = "job/2026-03-04T03:30:00Z"
	if !PassedOver(f, "mine") || Asked(f) != "" {
		t.Error("it was answered by no run, and that is not seen")
	}
}
