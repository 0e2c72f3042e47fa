package plan

import (
	"fmt"
	"go/ast"
	"go/parser"
	"go/token"
	"maps"
	"slices"
	"strings"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/singletonjob/operator/api/v1alpha1"
	"github.com/singletonjob/operator/internal/contract"
	"github.com/singletonjob/operator/internal/lease"
)

// conditionsOf is what a user reads: the reasons of Active, Protected, Progressing, and the active pod.
func conditionsOf(p Plan, g *given) (reasons, active string) {
	status := &g.Job.Status
	if p.Status != nil {
		status = p.Status
	}
	var words []string
	for _, name := range []string{v1alpha1.ConditionActive, v1alpha1.ConditionProtected, v1alpha1.ConditionProgressing} {
		for _, c := range status.Conditions {
			if c.Type == name {
				words = append(words, c.Reason)
			}
		}
	}
	return strings.Join(words, " "), status.ActivePod
}

func TestConditions(t *testing.T) {
	for name, c := range map[string]struct {
		given  *given
		with   func(*given)
		want   string
		active bool
		says   string // somewhere in the messages
	}{
		"steady": {want: "Running StandbyReady UpToDate", active: true},
		"spec that breaks a rule": {
			with: func(g *given) { g.Job.Spec.Lease.RenewDeadline.Duration = time.Minute },
			want: "InvalidSpec InvalidSpec InvalidSpec", active: true, says: "spec.lease.renewDeadline",
		},
		"somebody else's Lease": {
			with: func(g *given) { g.Lease = Lease{Presence: Foreign} },
			want: "LeaseConflict LeaseConflict LeaseConflict", says: "the Lease ns/job exists and does not belong to this operator",
		},
		"a node that is called out of service and is not": {
			with: func(g *given) { g.OutOfService["a"] = true }, want: "Running StandbyReady UpToDate", active: true,
		},
		"just made": {given: fresh(), want: "NoCandidates NoHolder Provisioning"},
		"candidates that start": {
			given: fresh(), with: func(g *given) { g.pod(0, "a"); g.unready(0); g.free() },
			want: "CandidatesNotReady NoHolder Provisioning",
		},
		"candidates without an image": {
			given: fresh(), with: func(g *given) { g.pod(0, "a"); g.waiting(0, "ErrImagePull"); g.free() },
			want: "CandidatesNotReady NoHolder Provisioning", says: "-0: container app can't pull its image (ErrImagePull, ImagePullBackOff)",
		},
		"candidates that fit nowhere": {
			given: fresh(), with: func(g *given) {
				g.pod(0, "")
				g.unready(0)
				g.Pods[0].Status.Conditions = append(g.Pods[0].Status.Conditions, corev1.PodCondition{
					Type: corev1.PodScheduled, Status: corev1.ConditionFalse, Reason: corev1.PodReasonUnschedulable, Message: "0/3 nodes are available",
				})
				g.free()
			},
			want: "CandidatesNotReady NoHolder Provisioning", says: "it can't be scheduled: 0/3 nodes",
		},
		"refused": {
			given: fresh(), with: func(g *given) { g.free(); g.Refused = []Refusal{{Text: "exceeded quota", Pods: true}} },
			want: "FailedCreate NoHolder FailedCreate", says: "exceeded quota",
		},
		"refused while it runs": {
			with: func(g *given) { g.Pods = g.Pods[:1]; g.Refused = []Refusal{{Text: "exceeded quota"}} },
			want: "Running NoStandby FailedCreate", active: true,
		},
		"an update that pods need is refused": {
			given: fresh(), with: func(g *given) { g.free(); g.Refused = []Refusal{{Verb: Update, Text: "write the Lease", Pods: true}} },
			want: "FailedUpdate NoHolder FailedUpdate", says: "write the Lease",
		},
		"a deletion that pods need is refused": {
			given: fresh(), with: func(g *given) {
				g.free()
				g.Refused = []Refusal{{Verb: Delete, Text: "delete RoleBinding", Pods: true}}
			},
			want: "FailedDelete NoHolder FailedDelete", says: "delete RoleBinding",
		},
		"a label is refused while it runs": {
			with: func(g *given) { g.Refused = []Refusal{{Verb: Update, Text: "change pod"}} },
			want: "Running StandbyReady FailedUpdate", active: true,
		},
		"a deletion is refused while it runs": {
			with: func(g *given) {
				g.Refused = []Refusal{{Verb: Delete, Text: "delete pod"}, {Verb: Update, Text: "change pod"}}
			},
			want: "Running StandbyReady FailedDelete", active: true,
		},
		"new pods are refused, and a label before them": {
			with: func(g *given) {
				g.Pods = g.Pods[:1]
				g.Refused = []Refusal{{Verb: Update, Text: "change pod"}, {Text: "exceeded quota", Pods: true}}
			},
			want: "Running NoStandby FailedCreate", active: true,
		},
		"electing": {
			with: func(g *given) { g.released(lease.ReasonPodTerminating) },
			want: "Electing NoHolder UpToDate", says: "candidates compete",
		},
		"a tenure that may last": {
			with: func(g *given) { g.Lease.Record.Holder = lease.UnknownHolder },
			want: "Electing NoHolder UpToDate", says: "the last tenure may not be over",
		},
		"a holder of a previous job": {
			with: func(g *given) { g.Job.Status, g.Lease.Claim.Before = v1alpha1.SingletonJobStatus{}, 100 },
			want: "Electing NoHolder UpToDate", says: "a pod of a previous job with this name",
		},
		"renewing still": {
			with: func(g *given) { g.Lease.Unchanged = 10*time.Second - 1 },
			want: "Running StandbyReady UpToDate", active: true,
		},
		"not renewing": {
			with: func(g *given) { g.Lease.Unchanged = 10 * time.Second },
			want: "HolderUnreachable NoHolder UpToDate", says: "has stopped renewing; its process is dead when",
		},
		"not renewing under KeepRunning": {
			with: func(g *given) {
				g.Lease.Unchanged = 10 * time.Second
				g.Job.Spec.Lease.OnRenewFailure = v1alpha1.OnRenewFailureKeepRunning
			},
			want: "HolderUnreachable NoHolder RollingOut", says: "may keep running",
		},
		"not renewing for the whole duration": {
			with: func(g *given) { g.Lease.Unchanged = 15 * time.Second },
			want: "Electing NoHolder UpToDate", says: "has expired",
		},
		"dead": {
			with: func(g *given) { g.ended(0, ago(2*time.Hour), ago(time.Second)) },
			want: "HolderUnreachable NoHolder ReplacingCandidates", says: "is dead; the Lease is being released",
		},
		"the process keeps exiting": {
			with: func(g *given) { g.crashing(3) },
			want: "ProcessBackOff NoHolder ReplacingCandidates", says: "keeps exiting, last with status 3",
		},
		"the command is not in the image": {
			with: func(g *given) { g.crashing(127) },
			want: "ProcessBackOff NoHolder ReplacingCandidates", says: "last with status 127, command not found (CrashLoopBackOff)",
		},
		"agents that refuse their configuration": {
			with: func(g *given) {
				g.released(lease.ReasonPodTerminating)
				for i := range g.Pods {
					g.waiting(i, "CrashLoopBackOff")
					g.Pods[i].Status.ContainerStatuses[0].LastTerminationState.Terminated = &corev1.ContainerStateTerminated{ExitCode: contract.ExitConfig}
				}
			},
			want: "AgentMisconfigured NoHolder ReplacingCandidates", says: "rejects its configuration",
		},
		"no standby ready": {with: func(g *given) { g.unready(1) }, want: "Running NoStandby ReplacingCandidates", active: true},
		"a standby whose image takes long": {
			with: func(g *given) {
				g.waiting(1, "PodInitializing")
				g.Pods[1].Status.InitContainerStatuses = []corev1.ContainerStatus{{
					Name: "singletonjob-install", Ready: true, State: corev1.ContainerState{Terminated: &corev1.ContainerStateTerminated{}},
				}}
				g.since(1, twoMinutes)
			},
			want: "Running NoStandby CandidateStuck", active: true, says: "-1: container app waits: PodInitializing: it may be waiting for its image; see kubectl",
		},
		"a standby that takes long": {
			with: func(g *given) { g.waiting(1, "ContainerCreating"); g.since(1, twoMinutes) },
			want: "Running NoStandby CandidateStuck", active: true,
			says: "-1: none of its containers has started (ContainerCreating): it may be waiting for a volume, a ConfigMap, a Secret or an image; see kubectl describe pod job-",
		},
		"a standby that waits for an init container": {
			with: func(g *given) {
				g.waiting(1, "PodInitializing")
				g.since(1, twoMinutes)
				g.Pods[1].Status.InitContainerStatuses = []corev1.ContainerStatus{{Name: "prepare", State: corev1.ContainerState{Running: &corev1.ContainerStateRunning{}}}}
			},
			want: "Running NoStandby CandidateStuck", active: true, says: "container prepare runs but does not become ready",
		},
		"a standby without a Secret": {
			with: func(g *given) { g.waiting(1, "CreateContainerConfigError", `secret "key" not found`) },
			want: "Running NoStandby ReplacingCandidates", active: true, says: `container app waits: CreateContainerConfigError: secret "key" not found`,
		},
		"a standby without a Secret for long": {
			with: func(g *given) {
				g.waiting(1, "CreateContainerConfigError", `secret "key" not found`)
				g.since(1, twoMinutes)
			},
			want: "Running NoStandby CandidateStuck", active: true, says: `container app waits: CreateContainerConfigError: secret "key" not found`,
		},
		"a standby whose init container fails": {
			with: func(g *given) {
				g.waiting(1, "PodInitializing")
				g.Pods[1].Status.InitContainerStatuses = []corev1.ContainerStatus{{
					Name:                 "prepare",
					State:                corev1.ContainerState{Running: &corev1.ContainerStateRunning{}},
					LastTerminationState: corev1.ContainerState{Terminated: &corev1.ContainerStateTerminated{ExitCode: 4, Message: "no\nbucket\x00"}},
				}}
			},
			want: "Running NoStandby ReplacingCandidates", active: true, says: "container prepare does not stay up, it ended with status 4: no bucket",
		},
		"the active pod is not ready for long": {
			with: func(g *given) {
				g.unready(0)
				g.since(0, twoMinutes)
			},
			want: "Running StandbyReady CandidateStuck", active: true, says: "-0: container app runs but does not become ready",
		},
		"a standby that is lost for long": {
			with: func(g *given) {
				g.unready(1)
				g.since(1, twoMinutes)
				g.Pods[1].Status.ContainerStatuses[0].Ready = true
			},
			want: "Running NoStandby CandidateStuck", active: true, says: "-1: its containers are ready, but the pod is not: see kubectl describe pod",
		},
		"a standby that is not ready since tomorrow": {
			with: func(g *given) { g.unready(1); g.since(1, -24*time.Hour) },
			want: "Running NoStandby CandidateStuck", active: true, says: "runs but does not become ready",
		},
		"a standby that a kubelet rejected": {
			with: func(g *given) { g.rejected(1, "OutOfcpu", "Node didn't have enough resource: cpu") },
			want: "Running NoStandby ReplacingCandidates", active: true, says: "-1: failed: OutOfcpu: Node didn't have enough resource: cpu",
		},
		"a standby that a kubelet rejects again": {
			with: func(g *given) {
				g.rejected(1, "SysctlForbidden", "forbidden sysctl: \"kernel.msgmax\" not allowlisted")
				g.Pods[1].Annotations[FailuresAnnotation] = "1"
			},
			want: "Running NoStandby PodsFailing", active: true, says: `-1: failed: SysctlForbidden: forbidden sysctl: "kernel.msgmax" not allowlisted`,
		},
		"all candidates are rejected again": {
			given: fresh(), with: func(g *given) {
				g.pod(0, "a").Annotations[FailuresAnnotation] = "3"
				g.rejected(0, "SysctlForbidden", "forbidden sysctl")
				g.free()
			},
			want: "PodsFailing NoHolder PodsFailing", says: `-0: failed: SysctlForbidden: forbidden sysctl`,
		},
		"a new template that is rejected again": {
			with: func(g *given) {
				g.Job.Spec.Template.Spec.Containers[0].Image = "v2"
				g.pod(0, "c").Annotations[FailuresAnnotation] = "1"
				g.rejected(2, "SysctlForbidden", "forbidden sysctl")
			},
			want: "Running StandbyReady RolloutStalled", active: true, says: "the old version continues: pods fail one after another",
		},
		"standby on its way out": {with: func(g *given) { g.terminating(1) }, want: "Running NoStandby ReplacingCandidates", active: true},
		"standby beside the holder": {
			with: func(g *given) { g.Pods[1].Spec.NodeName = "a" }, want: "Running StandbyOnSameNode UpToDate", active: true,
		},
		"one candidate": {
			with: func(g *given) { g.Job.Spec.Candidates = 1; g.Pods = g.Pods[:1] },
			want: "Running SingleCandidate UpToDate", active: true,
		},
		"more candidates asked for": {
			with: func(g *given) { g.Job.Spec.Candidates = 3; g.Job.Generation++ },
			want: "Running StandbyReady Scaling", active: true,
		},
		"a new template": {
			with: func(g *given) { g.Job.Spec.Template.Spec.Containers[0].Image = "v2" },
			want: "Running StandbyReady RollingOut", active: true,
		},
		"a new template without an image": {
			with: func(g *given) {
				g.Job.Spec.Template.Spec.Containers[0].Image = "v2"
				g.pod(0, "c")
				g.waiting(2, "ImagePullBackOff")
			},
			want: "Running StandbyReady RolloutStalled", active: true, says: "the old version continues: job-hbt97c5-0: container app can't pull its image",
		},
		"a new template that takes long": {
			with: func(g *given) {
				g.Job.Spec.Template.Spec.Containers[0].Image = "v2"
				g.pod(0, "c").CreationTimestamp = metav1.NewTime(ago(twoMinutes))
				g.unready(2)
				g.since(2, twoMinutes)
			},
			want: "Running StandbyReady ProgressDeadlineExceeded", active: true, says: "does not become ready",
		},
		"a new template that was tried": {
			with: func(g *given) {
				g.Job.Spec.Template.Spec.Containers[0].Image = "v2"
				g.Lease.Record.History = append(g.Lease.Record.History, pastTenure(90, g.name(0), 0, 1, lease.ReasonProcessExited))
			},
			want: "Running StandbyReady RolloutStalled", active: true, says: "was tried and its process ended",
		},
		"handing over": {
			with: func(g *given) {
				g.Lease.Record.Handover = lease.Handover{To: lease.AnyPod, Reason: lease.ReasonTokenBaseRaised}
			},
			want: "Running StandbyReady HandingOver", active: true,
		},
		"suspending": {with: func(g *given) { g.Job.Spec.Suspend = true }, want: "Suspending Suspended Suspending", active: true},
		"suspended": {
			with: func(g *given) { g.Job.Spec.Suspend = true; g.Pods = nil; g.released(lease.ReasonPodTerminating) },
			want: "Suspended Suspended Suspended",
		},
		"suspended, and pods that an earlier job left contend": {
			with: func(g *given) { g.Job.Spec.Suspend = true; g.orphaned(); g.released(lease.ReasonPodTerminating) },
			want: "Suspending Suspended Suspending", says: "the candidates are being removed",
		},
		"suspended, and a pod that an earlier job left acts": {
			with: func(g *given) { g.Job.Spec.Suspend = true; g.orphaned() },
			want: "Suspending Suspended Suspending", active: true, says: "the candidates are being removed",
		},
		"suspended, the holder deleted by force before its lease expired": {
			with: func(g *given) { g.Job.Spec.Suspend = true; g.Pods = nil; g.Lease.Unchanged = 15*time.Second - 1 },
			want: "Suspending Suspended Suspending", says: "its process is dead 15s after its last renewal",
		},
		"suspended long ago, its holder deleted by force, as an operator finds it that has just started": {
			with: func(g *given) {
				g.Job.Spec.Suspend = true
				g.Pods = nil
				g.Lease.Renewed, g.Lease.Unchanged, g.Lease.Record.RenewTime = false, 4*time.Second, ago(time.Hour).UnixMicro()
			},
			want: "Suspended Suspended Suspended",
		},
		"suspended, its holder deleted by force under KeepRunning": {
			with: func(g *given) {
				g.Job.Spec.Suspend = true
				g.Job.Spec.Lease.OnRenewFailure = v1alpha1.OnRenewFailureKeepRunning
				g.Pods = nil
				g.Lease.Unchanged = time.Hour
			},
			want: "Suspending Suspended Suspending", says: "kubectl taint node a node.kubernetes.io/out-of-service=nodeshutdown:NoExecute",
		},
		"suspended under KeepRunning, and its pods do not go": {
			given: keptRunning(),
			with:  func(g *given) { g.Job.Spec.Suspend = true; g.terminating(0); g.Lease.Unchanged = time.Hour },
			want:  "Suspending Suspended Suspending", says: "nothing proves that its process is dead",
		},
		"suspended under KeepRunning": {
			given: keptRunning(),
			with:  func(g *given) { g.Job.Spec.Suspend = true },
			want:  "Suspending Suspended Suspending", active: true, says: "the candidates are being removed",
		},
		"suspended, and the last holder is unknown": {
			with: func(g *given) { g.Job.Spec.Suspend = true; g.Pods = nil; g.Lease.Record.Holder = lease.UnknownHolder },
			want: "Suspending Suspended Suspending", says: "it is over when the Lease has not changed for 15s",
		},
		"suspended, and it is unknown how long the last holder may act": {
			with: func(g *given) {
				g.Job.Spec.Suspend = true
				g.Pods = nil
				g.Lease.Record.Holder, g.Lease.Record.Duration, g.Lease.Unchanged = lease.UnknownHolder, time.Minute, 59*time.Second
			},
			want: "Suspending Suspended Suspending", says: "for 1m0s",
		},
		"suspended, and the holder's name was cleared": {
			with: func(g *given) { g.Job.Spec.Suspend = true; g.Pods = nil; g.Lease.Record.Holder = "" },
			want: "Suspending Suspended Suspending", says: "the last tenure may not be over",
		},
		"suspended, and another elector has the Lease": {
			with: func(g *given) { g.Job.Spec.Suspend = true; g.Pods = nil; g.Lease.Record.Holder = "web-0_6a1f6ee4" },
			want: "Suspending Suspended Suspending", says: "stop it, and wait until its lease has expired",
		},
		"suspended, and a pod of the earlier job has not ended": {
			with: func(g *given) {
				g.Job.Spec.Suspend = true
				g.Job.Status, g.Lease.Claim.Before = v1alpha1.SingletonJobStatus{}, 100
				for _, pod := range g.Pods {
					pod.OwnerReferences[0].UID = "earlier"
				}
			},
			want: "Suspending Suspended Suspending", says: "-0, which the operator does not see as a pod of this SingletonJob, holds the Lease",
		},
		"not ready by its own probes, with a command that a webhook has wrapped": {
			with: func(g *given) { g.unwell(0, time.Second); g.wrapped(0) }, want: "NotReady StandbyReady UpToDate", active: true,
		},
		"a standby whose readiness gate is not met, with a command that a webhook has wrapped": {
			with: func(g *given) { g.wrapped(1); g.unready(1); g.rest(1, "ReadinessGatesNotReady") }, want: "Running StandbyReady UpToDate", active: true,
		},
		"a standby whose readiness gate is not met": {
			with: func(g *given) { g.unready(1); g.rest(1, "ReadinessGatesNotReady") }, want: "Running StandbyReady UpToDate", active: true,
		},
		"a standby whose sidecar is not ready": {
			with: func(g *given) { g.unready(1); g.rest(1, "ContainersNotReady") }, want: "Running StandbyReady UpToDate", active: true,
		},
		"a standby whose sidecar was not ready before its node was lost": {
			with: func(g *given) { g.unready(1); g.rest(1, "ContainersNotReady"); g.NotReady = map[string]bool{"b": true} },
			want: "Running NoStandby ReplacingCandidates", active: true,
		},
		"a standby whose sidecar does not start": {
			with: func(g *given) {
				g.unready(1)
				g.rest(1, "ContainersNotReady")
				g.Pods[1].Status.ContainerStatuses = append(g.Pods[1].Status.ContainerStatuses, corev1.ContainerStatus{
					Name: "proxy", State: corev1.ContainerState{Waiting: &corev1.ContainerStateWaiting{Reason: "ImagePullBackOff"}},
				})
			},
			want: "Running NoStandby ReplacingCandidates", active: true,
		},
		"a standby whose agent is not ready": {
			with: func(g *given) {
				g.unready(1)
				g.rest(1, "ContainersNotReady")
				g.Pods[1].Status.ContainerStatuses[0].Ready = false
			},
			want: "Running NoStandby ReplacingCandidates", active: true,
		},
		"a standby whose node is lost": {
			with: func(g *given) { g.unready(1); g.rest(1, "") }, want: "Running NoStandby ReplacingCandidates", active: true,
		},
		"an active pod whose readiness gate is not met": {
			with: func(g *given) { g.unready(0); g.rest(0, "ReadinessGatesNotReady") }, want: "Running StandbyReady ReplacingCandidates", active: true,
		},
		"held by a pod that has lost its owner": {
			with: func(g *given) { g.Pods[0].OwnerReferences[0].UID = "another"; g.pod(2, "a") },
			want: "UnmanagedHolder StandbyReady UnmanagedHolder", active: true, says: "it lacks the label singletonjob.io/name=job",
		},
		"suspended but for a pod that has lost its owner": {
			with: func(g *given) {
				g.Job.Spec.Suspend = true
				g.Pods = g.Pods[:1]
				g.Pods[0].OwnerReferences[0].UID = "another"
			},
			want: "Suspending Suspended Suspending", active: true, says: "spec.suspend is set; but ",
		},
		"a pod that has lost its label and stopped renewing": {
			with: func(g *given) { g.Job.Spec.Suspend = true; g.Pods = nil; g.Lease.Unchanged = 15 * time.Second },
			want: "Suspended Suspended Suspended",
		},
		"a Lease that was deleted": {with: (*given).absent, want: "Electing NoHolder UpToDate"},
	} {
		t.Run(name, func(t *testing.T) {
			g := c.given
			if g == nil {
				g = steady()
			}
			if c.with != nil {
				c.with(g)
			}
			p := Decide(g.Observed)
			reasons, active := conditionsOf(p, g)
			if reasons != c.want || (active == g.Pods0()) != c.active || !c.active && active != "" {
				t.Errorf("got %q, active %q; want %q, active %v", reasons, active, c.want, c.active)
			}
			if p.Status != nil && !strings.Contains(fmt.Sprint(p.Status.Conditions), c.says) {
				t.Errorf("nothing says %q: %+v", c.says, p.Status.Conditions)
			}
			if p.Status != nil {
				g.Job.Status = *p.Status
				g.Now = g.Now.Add(time.Millisecond)
				if again := Decide(g.Observed); again.Status != nil && !strings.Contains(c.want, "Scaling") {
					t.Errorf("nothing has changed but the status is written again: %+v", again.Status)
				}
			}
		})
	}
}

// TestMessagesAreBounded: the API server rejects a status with a message longer than 32 KiB.
func TestMessagesAreBounded(t *testing.T) {
	g := steady()
	g.Job.Spec.Container = strings.Repeat("é", 1<<19)
	p := Decide(g.Observed)
	if p.State != InvalidSpec {
		t.Fatalf("state %v", p.State)
	}
	for _, c := range p.Status.Conditions {
		if len(c.Message) > maxMessage || !strings.Contains(c.Message, "spec.container") {
			t.Errorf("%d bytes: %.200s", len(c.Message), c.Message)
		}
	}
}

// Pods0 is the name of the first pod, which holds the Lease in a steady job.
func (g *given) Pods0() string {
	if len(g.Pods) == 0 {
		return "no pod"
	}
	return g.Pods[0].Name
}

// orphaned removes the owner of the pods, as kubectl delete --cascade=orphan does.
func (g *given) orphaned() {
	for _, pod := range g.Pods {
		pod.OwnerReferences = nil
	}
}

// keptRunning is a steady job whose holder keeps running without its Lease.
func keptRunning() *given {
	g := steady()
	g.Job.Spec.Lease.OnRenewFailure = v1alpha1.OnRenewFailureKeepRunning
	g.Pods, g.Children = nil, Children{}
	g.pod(0, "a")
	g.pod(1, "b")
	g.held(0, 100, ago(time.Hour))
	g.Lease.Record.History = []lease.PastTenure{{Token: 100, Pod: g.name(0), Node: "a", Acquired: ago(time.Hour).UnixMilli()}}
	g.settle()
	return g
}

// free is a Lease that was never held.
func (g *given) free() {
	g.Lease = Lease{Presence: Ours, Claim: Claim{JobUID: "job-uid"}, Record: lease.Record{
		UID: "lease-uid", Revision: 1, Token: g.Job.Status.FencingToken, Duration: 15 * time.Second, Release: lease.Release{Reason: lease.ReasonCreated},
	}}
}

// wrapped puts a webhook's program before the agent.
func (g *given) wrapped(pod int) {
	c := &g.Pods[pod].Spec.Containers[0]
	c.Command, c.Args = []string{"/vault/vault-env"}, append(slices.Clone(c.Command), c.Args...)
}

// rest makes a pod not ready for a reason other than its gated container.
func (g *given) rest(pod int, reason string) {
	g.Pods[pod].Status.Conditions[0].Reason = reason
	g.Pods[pod].Status.ContainerStatuses[0].Ready = true
}

// TestEveryConditionReasonIsReachedOrNamedHere: the API declares each verdict in the code for its condition, and the other way round.
func TestEveryConditionReasonIsReachedOrNamedHere(t *testing.T) {
	verdicts := map[string]*ast.FuncDecl{}
	for _, name := range []string{"conditions.go", "entrypoint.go", "ready.go", "runstatus.go", "timely.go", "workload.go"} {
		file, err := parser.ParseFile(token.NewFileSet(), name, nil, 0)
		if err != nil {
			t.Fatal(err)
		}
		for _, d := range file.Decls {
			if f, ok := d.(*ast.FuncDecl); ok {
				verdicts[f.Name.Name] = f
			}
		}
	}
	used := map[string]bool{}
	for name, f := range map[string]string{
		v1alpha1.ConditionActive: "active", v1alpha1.ConditionProtected: "protected", v1alpha1.ConditionProgressing: "progressing",
		v1alpha1.ConditionTimely: "timely", v1alpha1.ConditionReady: "ready", v1alpha1.ConditionStalled: "stalled",
		v1alpha1.ConditionComplete: "complete", v1alpha1.ConditionFailed: "givenUp", v1alpha1.ConditionScheduled: "scheduled",
	} {
		reasons := reasonsIn(verdicts, f)
		if f == "active" || f == "progressing" || f == "ready" { // these report why a job is blocked
			maps.Copy(reasons, reasonsIn(verdicts, "blockedBy"))
			maps.Copy(reasons, reasonsIn(verdicts, "unknownEntrypoint"))
		}
		for reason := range reasons {
			verdict{reason: reason}.condition(name) // panics on one that the API does not declare
			used[name+" "+reason] = true
		}
	}
	for _, r := range v1alpha1.ConditionReasons() {
		if !used[r.Condition+" "+r.Reason] {
			t.Errorf("the API declares %s %s, which is never reported", r.Condition, r.Reason)
		}
	}
}

// reasonsIn returns the reasons of the verdicts in a function and in the functions that it calls.
func reasonsIn(functions map[string]*ast.FuncDecl, name string) map[string]bool {
	reasons := map[string]bool{}
	ast.Inspect(functions[name].Body, func(n ast.Node) bool {
		switch n := n.(type) {
		case *ast.CompositeLit:
			if id, ok := n.Type.(*ast.Ident); ok && id.Name == "verdict" {
				constant, _ := n.Elts[0].(*ast.SelectorExpr)
				reasons[strings.TrimPrefix(constant.Sel.Name, "Reason")] = true
			}
		case *ast.CallExpr:
			if id, ok := n.Fun.(*ast.Ident); ok && functions[id.Name] != nil {
				maps.Copy(reasons, reasonsIn(functions, id.Name))
			}
		}
		return true
	})
	return reasons
}

func TestConditionTimeChangesWithItsStatus(t *testing.T) {
	at := func(s v1alpha1.SingletonJobStatus, name string) time.Time {
		for _, c := range s.Conditions {
			if c.Type == name {
				return c.LastTransitionTime.Time
			}
		}
		return time.Time{}
	}
	g := steady()
	g.Lease.Unchanged, g.Now = 10*time.Second, now.Add(time.Minute)
	silent := *Decide(g.Observed).Status
	if got := at(silent, v1alpha1.ConditionActive); !got.Equal(g.Now) {
		t.Errorf("it turned false at %v, not at %v", got, g.Now)
	}
	g.Job.Status = silent
	g.Lease.Unchanged, g.Now = 15*time.Second, now.Add(2*time.Minute)
	electing := *Decide(g.Observed).Status
	if got := at(electing, v1alpha1.ConditionActive); !got.Equal(now.Add(time.Minute)) {
		t.Errorf("it has another reason, and is false since %v, not since %v", now.Add(time.Minute), got)
	}
}

func TestOutOfServiceTaintWakes(t *testing.T) {
	g := steady()
	g.OutOfService["a"] = true
	if p := Decide(g.Observed); p.Wake != 3*time.Second {
		t.Errorf("wakes after %v, want when two renewals are missing", p.Wake)
	}
}

func TestNoPodIsActiveAfterItsLease(t *testing.T) {
	g := steady()
	g.Pods, g.Job.Spec.Lease.RenewDeadline.Duration = nil, time.Hour // stored under an older definition
	g.Lease.Unchanged = 15 * time.Second
	if p := Decide(g.Observed); p.State != InvalidSpec || p.Status.ActivePod != "" {
		t.Errorf("state %v, active %q", p.State, p.Status.ActivePod)
	}
}

// A job with several containers that was stored before one had to be chosen keeps its running process. It reports the possible choices, and
// continues with the same pods once the container that they gate is named.
func TestNoContainerIsChosen(t *testing.T) {
	two := func(annotation string) *given {
		g := fresh()
		g.Job.Spec.Container = "app"
		pod := &g.Job.Spec.Template
		pod.Spec.Containers = append(pod.Spec.Containers, corev1.Container{Name: "proxy", Image: "v1", Command: []string{"proxy"}})
		if annotation != "" {
			pod.Annotations = map[string]string{v1alpha1.DefaultContainerAnnotation: annotation}
		}
		g.pod(0, "a")
		g.pod(1, "b")
		g.held(0, 100, ago(time.Hour))
		g.Lease.Claim = Claim{JobUID: "job-uid"}
		g.settle()
		g.Job.Spec.Container = ""
		return g
	}
	for name, c := range map[string]struct {
		annotation, says string
	}{
		"none":                      {"", `one of ["app", "proxy"]`},
		"one that is not there":     {"web", `one of ["app", "proxy"]`},
		"another than the pods'":    {"proxy", `set it to "app" to keep that container, or to "proxy" to roll out the other one`},
		"that of the pods, by name": {"app", ""},
	} {
		t.Run(name, func(t *testing.T) {
			g := two(c.annotation)
			p := Decide(g.Observed)
			if invalid := p.State == InvalidSpec; invalid != (c.says != "") || !strings.Contains(texts(p), c.says) {
				t.Errorf("%v, without %q: %s", p.State, c.says, texts(p))
			}
			if len(p.Create)+len(p.Delete)+len(p.Relabel)+len(p.Apply) > 0 || p.Lease != nil {
				t.Errorf("something is done: %+v", p)
			}
			g.Job.Spec.Container = "app"
			if p := Decide(g.Observed); p.State != Serving || len(p.Create)+len(p.Delete) > 0 {
				t.Errorf("%v with the container named, %d pods made, %d deleted", p.State, len(p.Create), len(p.Delete))
			}
			g.Job.Spec.Container = "proxy"
			if p := Decide(g.Observed); p.State != Serving || len(p.Create) == 0 {
				t.Errorf("%v with another container named, %d pods made", p.State, len(p.Create))
			}
		})
	}
}

// A setting with which no agent could start is reported like any other fault of the spec. No pod is created that would fail because of it.
func TestAgentsThatCannotStart(t *testing.T) {
	g := steady()
	g.Job.Spec.Template.Spec.Containers[0].Lifecycle = &corev1.Lifecycle{PreStop: &corev1.LifecycleHandler{
		Exec: &corev1.ExecAction{Command: []string{"sh", "-c", strings.Repeat("x", 128<<10)}},
	}}
	p := Decide(g.Observed)
	if p.State != InvalidSpec || len(p.Create) > 0 {
		t.Errorf("%s, %d pods made", p.State, len(p.Create))
	}
	for _, c := range p.Status.Conditions {
		if len(c.Message) > 1000 || !strings.Contains(c.Message, "containers[0].lifecycle.preStop") {
			t.Errorf("%s: %s", c.Type, c.Message)
		}
	}
}
