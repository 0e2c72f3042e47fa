package v1alpha1

import (
	"slices"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/singletonjob/operator/internal/lease"
)

// The condition types of a SingletonJob.
const (
	// ConditionReady: the process of the current spec is running and ready. Tools that wait for a job look at this condition.
	ConditionReady = "Ready"
	// ConditionActive: a tenure exists and its process runs.
	ConditionActive = "Active"
	// ConditionProtected: at least one warm standby is ready on another node than the active pod.
	ConditionProtected = "Protected"
	// ConditionProgressing: a rollout, handover or replacement is under way.
	ConditionProgressing = "Progressing"
	// ConditionTimely: the lease leaves enough time for the delay that a CPU limit causes, so that a kill comes before a takeover.
	ConditionTimely = "Timely"
	// ConditionStalled exists only while it is true: no time and nobody but a user of this job can make it ready. kstatus then reports
	// Failed.
	ConditionStalled = "Stalled"
	// ConditionComplete and ConditionFailed are those of a Kubernetes Job: they say how the run of a job without a schedule ended.
	ConditionComplete = "Complete"
	ConditionFailed   = "Failed"
	// ConditionScheduled: runs start at the ticks of spec.schedule.
	ConditionScheduled = "Scheduled"
)

// The reasons of conditions. ConditionReasons lists the conditions and the status that each reason goes with.
const (
	ReasonRunning             = "Running"
	ReasonNotReady            = "NotReady"
	ReasonElecting            = "Electing"
	ReasonHolderUnreachable   = "HolderUnreachable"
	ReasonForeignHolder       = "ForeignHolder"
	ReasonUnmanagedHolder     = "UnmanagedHolder"
	ReasonNoCandidates        = "NoCandidates"
	ReasonCandidatesNotReady  = "CandidatesNotReady"
	ReasonProcessBackOff      = "ProcessBackOff"
	ReasonFailedCreate        = "FailedCreate"
	ReasonFailedUpdate        = "FailedUpdate"
	ReasonFailedDelete        = "FailedDelete"
	ReasonEntrypointUnknown   = "EntrypointUnknown"
	ReasonRegistryUnreachable = "RegistryUnreachable"
	ReasonRegistryRefused     = "RegistryRefused"
	ReasonRegistryUntrusted   = "RegistryUntrusted"
	ReasonImageNotFound       = "ImageNotFound"
	ReasonNoEntrypoint        = "NoEntrypoint"
	ReasonEntrypointsDiffer   = "EntrypointsDiffer"
	ReasonPodsFailing         = "PodsFailing"
	ReasonAgentMisconfigured  = "AgentMisconfigured"
	ReasonSuspending          = "Suspending"
	ReasonSuspended           = "Suspended"
	ReasonLeaseConflict       = "LeaseConflict"
	ReasonInvalidSpec         = "InvalidSpec"
	ReasonStandbyReady        = "StandbyReady"
	ReasonNoStandby           = "NoStandby"
	ReasonStandbyOnSameNode   = "StandbyOnSameNode"
	ReasonVolumeNotShared     = "VolumeNotShared"
	ReasonSingleCandidate     = "SingleCandidate"
	ReasonNoHolder            = "NoHolder"
	ReasonProvisioning        = "Provisioning"
	ReasonRollingOut          = "RollingOut"
	ReasonHandingOver         = "HandingOver"
	ReasonSwitchoverBlocked   = "SwitchoverBlocked"
	ReasonReplacingCandidates = "ReplacingCandidates"
	ReasonScaling             = "Scaling"
	ReasonUpToDate            = "UpToDate"
	ReasonRolloutStalled      = "RolloutStalled"
	ReasonCandidateStuck      = "CandidateStuck"
	ReasonDeleting            = "Deleting"
	ReasonCPULimitTooSmall    = "CPULimitTooSmall"
	ReasonInTime              = "InTime"
	ReasonWorkloadMissing     = "WorkloadMissing"
	ReasonWorkloadDenied      = "WorkloadDenied"
	ReasonWorkloadTaken       = "WorkloadTaken"
	ReasonWorkloadRunning     = "WorkloadRunning"
	ReasonWorkloadSettling    = "WorkloadSettling"

	ReasonRolloutPaused            = "RolloutPaused"
	ReasonRolloutWaits             = "RolloutWaits"
	ReasonProgressDeadlineExceeded = "ProgressDeadlineExceeded"

	// The reasons of Complete and Failed are those of a Kubernetes Job. PodFailurePolicy stands for spec.failOnExitCodes.
	ReasonCompletionsReached   = "CompletionsReached"
	ReasonBackoffLimitExceeded = "BackoffLimitExceeded"
	ReasonDeadlineExceeded     = "DeadlineExceeded"
	ReasonPodFailurePolicy     = "PodFailurePolicy"

	ReasonCompleted         = "Completed"
	ReasonRunFailed         = "RunFailed"
	ReasonNotDue            = "NotDue"
	ReasonRetrying          = "Retrying"
	ReasonRunUnderWay       = "RunUnderWay"
	ReasonNotComplete       = "NotComplete"
	ReasonNotFailed         = "NotFailed"
	ReasonScheduled         = "Scheduled"
	ReasonAhead             = "Ahead"
	ReasonBadRun            = "BadRun"
	ReasonClocksDisagree    = "ClocksDisagree"
	ReasonResting           = "Resting"
	ReasonOverdue           = "Overdue"
	ReasonNoServerTime      = "NoServerTime"
	ReasonRunRequestInvalid = "RunRequestInvalid"
)

// ConditionReason is one row of the table of conditions: a reason, the condition and status that it goes with, and its meaning.
type ConditionReason struct {
	Condition string
	Status    metav1.ConditionStatus
	Reason    string
	// Meaning is one line for documentation.
	Meaning string
}

// ConditionReasons returns every combination of condition, status and reason that a SingletonJob can show. It is the only declaration of
// them: documentation and tests iterate over it.
func ConditionReasons() []ConditionReason { return slices.Clone(conditionReasons) }

var conditionReasons = slices.Concat(readyReasons(), activeReasons(), otherReasons(), runReasons())

// runReasons are the reasons of jobs that run to completion.
func runReasons() []ConditionReason {
	const yes, no = metav1.ConditionTrue, metav1.ConditionFalse
	return []ConditionReason{
		{ConditionReady, yes, ReasonCompleted, "the run is complete"},
		{ConditionReady, yes, ReasonNotDue, "no run is due; status.nextTick is the next tick"},
		{ConditionReady, no, ReasonRunUnderWay, "the run of a job without a schedule is under way; Ready is true when it is complete"},
		{ConditionReady, no, ReasonRetrying, "an attempt failed; the next one starts after its delay"},
		{ConditionReady, no, ReasonRunFailed, "the run failed, and no further attempt follows"},
		{ConditionReady, no, ReasonBadRun, "the record of runs in the Lease can't be read, so no run is started"},

		{ConditionActive, no, ReasonCompleted, "the run is complete"},
		{ConditionActive, no, ReasonNotDue, "no run is due; status.nextTick is the next tick"},
		{ConditionActive, no, ReasonRetrying, "an attempt failed; the next one starts after its delay"},
		{ConditionActive, no, ReasonRunFailed, "the run failed, and no further attempt follows"},
		{ConditionActive, no, ReasonBadRun, "the record of runs in the Lease can't be read, so no run is started"},

		{ConditionStalled, yes, ReasonRunFailed, "the run failed, and no further attempt follows"},

		{ConditionProtected, no, ReasonResting, "no run is under way, so there is nothing to protect"},
		{ConditionProgressing, no, ReasonRunRequestInvalid, "the requested name of a run is not valid; the message says what a valid name is"},

		{ConditionComplete, yes, ReasonCompletionsReached, "the process has exited with 0"},
		{ConditionComplete, no, ReasonNotComplete, "the process has not exited with 0 yet"},

		{ConditionFailed, yes, ReasonBackoffLimitExceeded, "the first attempt failed, and so did the spec.backoffLimit attempts after it; attempts that ended with one of spec.ignoreOnExitCodes do not count"},
		{ConditionFailed, yes, ReasonDeadlineExceeded, "the run took longer than spec.activeDeadlineSeconds"},
		{ConditionFailed, yes, ReasonPodFailurePolicy, "the process exited with one of spec.failOnExitCodes"},
		{ConditionFailed, no, ReasonNotFailed, "the run is under way or complete"},

		{ConditionScheduled, yes, ReasonScheduled, "runs start at the ticks of spec.schedule"},
		{ConditionScheduled, no, ReasonSuspended, "spec.suspend is set; times that come due during the suspension do not count as ticks"},
		{ConditionScheduled, no, ReasonAhead, "a clock was wrong: the Lease records ticks that are still in the future; no tick is due before then"},
		{ConditionScheduled, no, ReasonClocksDisagree, "the clocks of the operator and the API server differ; until they agree, a changed schedule or the end of a suspension has no effect"},
		{ConditionScheduled, no, ReasonNoServerTime, "ticks come due by the API server's clock, and no recent response contained its time, so no tick is started"},
		{ConditionScheduled, no, ReasonOverdue, "a tick is due and no candidate starts it, for example because clocks differ; the candidates' logs say why"},
		{ConditionScheduled, no, ReasonBadRun, "the record of runs in the Lease can't be read, so no run is started"},
		{ConditionScheduled, no, ReasonLeaseConflict, "a Lease with this name exists and does not belong to the operator; the operator changes nothing"},
		{ConditionScheduled, no, ReasonInvalidSpec, "the spec breaks a rule that only the operator can check"},
	}
}

func activeReasons() []ConditionReason {
	const yes, no = metav1.ConditionTrue, metav1.ConditionFalse
	return []ConditionReason{
		{ConditionActive, yes, ReasonRunning, "a tenure exists and its process runs"},
		{ConditionActive, yes, ReasonNotReady, "a tenure exists and its process runs, but is not ready by its own probes"},
		{ConditionActive, yes, ReasonUnmanagedHolder, "a tenure exists and its process runs, in a pod that does not belong to the SingletonJob, for example one that lost its label"},
		{ConditionActive, no, ReasonElecting, "no tenure exists; ready candidates compete for the Lease, or wait until the last tenure is certainly over"},
		{ConditionActive, no, ReasonHolderUnreachable, "the holder has stopped renewing; its process is being stopped or is dead, and a standby takes over when the lease expires"},
		{ConditionActive, no, ReasonForeignHolder, "the holder of the Lease is not an agent but, for example, another elector; this is not supported"},
		{ConditionActive, no, ReasonNoCandidates, "there is no candidate pod"},
		{ConditionActive, no, ReasonCandidatesNotReady, "candidate pods exist, but none is ready to take a tenure"},
		{ConditionActive, no, ReasonProcessBackOff, "the process keeps exiting; every candidate waits for its restart backoff"},
		{ConditionActive, no, ReasonFailedCreate, "the API server rejects new candidate pods, or new objects that they need: quota, Pod Security or another admission rule"},
		{ConditionActive, no, ReasonFailedUpdate, "the API server rejects changes of objects that candidate pods need, such as the Lease: an admission rule or a missing right"},
		{ConditionActive, no, ReasonFailedDelete, "the API server rejects the deletion of objects that must be recreated before candidate pods: an admission rule or a missing right"},
		{ConditionActive, no, ReasonEntrypointUnknown, "there is no candidate pod: the gated container sets no command, and the entrypoint of its image is unknown"},
		{ConditionActive, no, ReasonRegistryUnreachable, "there is no candidate pod: the registry of the image does not answer, or not with an image"},
		{ConditionActive, no, ReasonRegistryRefused, "there is no candidate pod: the registry of the image refuses the operator's credentials, or has no such image"},
		{ConditionActive, no, ReasonRegistryUntrusted, "there is no candidate pod: the operator's settings do not allow it to ask the registry of the image: its certificate, plain HTTP, or its address"},
		{ConditionActive, no, ReasonImageNotFound, "there is no candidate pod: the registry has no such image, or none for the architectures of the nodes"},
		{ConditionActive, no, ReasonNoEntrypoint, "there is no candidate pod: the image has neither ENTRYPOINT nor CMD, and the gated container sets no command"},
		{ConditionActive, no, ReasonEntrypointsDiffer, "there is no candidate pod: the image does not run the same command on all architectures of the nodes, and the gated container sets no command"},
		{ConditionActive, no, ReasonPodsFailing, "candidate pods fail one after another, for example because a kubelet rejects or evicts them; each is recreated after a growing delay"},
		{ConditionActive, no, ReasonAgentMisconfigured, "the agent rejected its configuration and did not start"},
		{ConditionActive, no, ReasonSuspending, "spec.suspend is set and the process is being stopped"},
		{ConditionActive, no, ReasonSuspended, "spec.suspend is set and nothing runs"},
		{ConditionActive, no, ReasonDeleting, "the SingletonJob is being deleted and nothing runs any more"},
		{ConditionActive, no, ReasonLeaseConflict, "a Lease with this name exists and does not belong to the operator; the operator changes nothing"},
		{ConditionActive, no, ReasonInvalidSpec, "the spec breaks a rule that only the operator can check"},
		{ConditionActive, no, ReasonWorkloadMissing, "the workload in spec.workloadRef does not exist or is being deleted; a running process continues, and no pod is created"},
		{ConditionActive, no, ReasonWorkloadDenied, "the operator has no permission to read the workload in spec.workloadRef; a running process continues, and no pod is created"},
		{ConditionActive, no, ReasonWorkloadTaken, "an older SingletonJob uses the same workload; a running process continues, and no pod is created"},
		{ConditionActive, no, ReasonWorkloadRunning, "the workload in spec.workloadRef is not scaled to 0, or some of its pods still exist, and no lease keeps those from acting; a running process continues, and nothing is started"},
		{ConditionActive, no, ReasonWorkloadSettling, "the workload in spec.workloadRef was scaled to 0 or changed, and its controllers have not acted on that yet; a running process continues, and nothing is started"},
	}
}

func otherReasons() []ConditionReason {
	const yes, no = metav1.ConditionTrue, metav1.ConditionFalse
	return []ConditionReason{
		{ConditionProtected, yes, ReasonStandbyReady, "a warm standby is ready on another node"},
		{ConditionProtected, no, ReasonNoStandby, "no standby is ready"},
		{ConditionProtected, no, ReasonStandbyOnSameNode, "every ready standby is on the node of the active pod and would be lost with it"},
		{ConditionProtected, no, ReasonVolumeNotShared, "no standby is ready on another node, and one of the pods' volume claims can't be used on two nodes at once"},
		{ConditionProtected, no, ReasonSingleCandidate, "spec.candidates is 1, so there is never a standby"},
		{ConditionProtected, no, ReasonNoHolder, "nothing is active, so there is nothing to protect"},
		{ConditionProtected, no, ReasonSuspended, "spec.suspend is set and nothing runs"},
		{ConditionProtected, no, ReasonLeaseConflict, "a Lease with this name exists and does not belong to the operator; the operator changes nothing"},
		{ConditionProtected, no, ReasonInvalidSpec, "the spec breaks a rule that only the operator can check"},
		{ConditionProtected, no, ReasonWorkloadRunning, "pods of the workload in spec.workloadRef may act at the same time as the active pod: no lease keeps them from acting"},

		{ConditionProgressing, yes, ReasonProvisioning, "the first candidates are being created"},
		{ConditionProgressing, yes, ReasonRollingOut, "candidates are being replaced by ones of the current template, standbys first"},
		{ConditionProgressing, yes, ReasonHandingOver, "the holder was asked to hand over and has not done so yet"},
		{ConditionProgressing, yes, ReasonReplacingCandidates, "a lost candidate is being replaced"},
		{ConditionProgressing, yes, ReasonScaling, "the number of candidates follows a changed spec.candidates"},
		{ConditionProgressing, yes, ReasonSuspending, "spec.suspend is set and candidates are being removed"},
		{ConditionProgressing, yes, ReasonDeleting, "the SingletonJob is being deleted; the operator creates no more pods"},
		{ConditionProgressing, no, ReasonUpToDate, "every candidate is created from the current template and ready"},
		{ConditionProgressing, no, ReasonUnmanagedHolder, "a pod that does not belong to the SingletonJob holds the Lease and renews it, so no change of the template or the operator reaches the active process"},
		{ConditionProgressing, no, ReasonRolloutStalled, "no candidate of the current template becomes ready; the old candidates continue"},
		{ConditionProgressing, no, ReasonProgressDeadlineExceeded, "a rollout waits for a candidate that has not become ready within spec.strategy.progressDeadlineSeconds; the message says why"},
		{ConditionProgressing, no, ReasonRolloutPaused, "spec.strategy.paused is set, and the current template is not rolled out"},
		{ConditionProgressing, no, ReasonRolloutWaits, "what the operator adds to pods has changed, and it is not this job's turn yet; nothing changes until then"},
		{ConditionProgressing, no, ReasonSwitchoverBlocked, "a handover was requested that is not possible; the message says why"},
		{ConditionProgressing, no, ReasonSuspended, "spec.suspend is set and nothing runs"},
		{ConditionProgressing, no, ReasonFailedCreate, "the API server rejects new candidate pods or other new objects of the job: quota, Pod Security or another admission rule"},
		{ConditionProgressing, no, ReasonFailedUpdate, "the API server rejects changes of the job's objects, such as a pod's role label: an admission rule or a missing right"},
		{ConditionProgressing, no, ReasonFailedDelete, "the API server rejects the deletion of pods or other objects of the job: an admission rule or a missing right"},
		{ConditionProgressing, no, ReasonEntrypointUnknown, "the gated container sets no command, and the entrypoint of its image is unknown; existing pods stay, and no pod is created"},
		{ConditionProgressing, no, ReasonRegistryUnreachable, "the registry of the image does not answer, or not with an image; existing pods stay, and no pod is created"},
		{ConditionProgressing, no, ReasonRegistryRefused, "the registry of the image refuses the operator's credentials, or has no such image; existing pods stay, and no pod is created"},
		{ConditionProgressing, no, ReasonRegistryUntrusted, "the operator's settings do not allow it to ask the registry of the image: its certificate, plain HTTP, or its address; existing pods stay, and no pod is created"},
		{ConditionProgressing, no, ReasonImageNotFound, "the registry has no such image, or none for the architectures of the nodes; existing pods stay, and no pod is created"},
		{ConditionProgressing, no, ReasonNoEntrypoint, "the image has neither ENTRYPOINT nor CMD, and the gated container sets no command; existing pods stay, and no pod is created"},
		{ConditionProgressing, no, ReasonEntrypointsDiffer, "the image does not run the same command on all architectures of the nodes, and the gated container sets no command; existing pods stay, and no pod is created"},
		{ConditionProgressing, no, ReasonPodsFailing, "candidate pods fail one after another, for example because a kubelet rejects or evicts them; each is recreated after a growing delay"},
		{ConditionProgressing, no, ReasonCandidateStuck, "a candidate has not been ready for spec.strategy.progressDeadlineSeconds; the message says what it waits for"},
		{ConditionProgressing, no, ReasonLeaseConflict, "a Lease with this name exists and does not belong to the operator; the operator changes nothing"},
		{ConditionStalled, yes, ReasonInvalidSpec, "the spec breaks a rule that only the operator can check"},
		{ConditionProgressing, no, ReasonInvalidSpec, "the spec breaks a rule that only the operator can check"},
		{ConditionProgressing, no, ReasonWorkloadMissing, "the workload in spec.workloadRef does not exist or is being deleted; a running process continues, and no pod is created"},
		{ConditionProgressing, no, ReasonWorkloadDenied, "the operator has no permission to read the workload in spec.workloadRef; a running process continues, and no pod is created"},
		{ConditionProgressing, no, ReasonWorkloadTaken, "an older SingletonJob uses the same workload; a running process continues, and no pod is created"},
		{ConditionProgressing, no, ReasonWorkloadRunning, "the workload in spec.workloadRef is not scaled to 0, or some of its pods still exist, and no lease keeps those from acting; a running process continues, and nothing is started"},
		{ConditionProgressing, no, ReasonWorkloadSettling, "the workload in spec.workloadRef was scaled to 0 or changed, and its controllers have not acted on that yet; a running process continues, and nothing is started"},

		{ConditionTimely, yes, ReasonInTime, "no CPU limit delays a kill by more than the time that the lease leaves for it"},
		{ConditionTimely, no, ReasonCPULimitTooSmall, "because of its CPU limit, the gated container may be killed only after the next one has started"},
		{ConditionTimely, no, ReasonInvalidSpec, "the spec breaks a rule that only the operator can check"},
	}
}

func readyReasons() []ConditionReason {
	const yes, no = metav1.ConditionTrue, metav1.ConditionFalse
	return []ConditionReason{
		{ConditionReady, yes, ReasonRunning, "the process of the current template is running and ready"},
		{ConditionReady, yes, ReasonSuspended, "spec.suspend is set and nothing runs, as requested"},
		{ConditionReady, no, ReasonRollingOut, "candidates are being replaced by ones of the current template, standbys first"},
		{ConditionReady, no, ReasonRolloutPaused, "spec.strategy.paused is set, and the current template is not rolled out"},
		{ConditionReady, no, ReasonRolloutStalled, "no candidate of the current template becomes ready; the old candidates continue"},
		{ConditionReady, no, ReasonReplacingCandidates, "the active pod is being removed, and another one takes over"},
		{ConditionReady, no, ReasonNotReady, "a tenure exists and its process runs, but is not ready by its own probes"},
		{ConditionReady, no, ReasonUnmanagedHolder, "a tenure exists and its process runs, in a pod that does not belong to the SingletonJob, for example one that lost its label"},
		{ConditionReady, no, ReasonElecting, "no tenure exists; ready candidates compete for the Lease, or wait until the last tenure is certainly over"},
		{ConditionReady, no, ReasonHolderUnreachable, "the holder has stopped renewing; its process is being stopped or is dead, and a standby takes over when the lease expires"},
		{ConditionReady, no, ReasonForeignHolder, "the holder of the Lease is not an agent but, for example, another elector; this is not supported"},
		{ConditionReady, no, ReasonNoCandidates, "there is no candidate pod"},
		{ConditionReady, no, ReasonCandidatesNotReady, "candidate pods exist, but none is ready to take a tenure"},
		{ConditionReady, no, ReasonProcessBackOff, "the process keeps exiting; every candidate waits for its restart backoff"},
		{ConditionReady, no, ReasonFailedCreate, "the API server rejects new candidate pods or other new objects of the job: quota, Pod Security or another admission rule"},
		{ConditionReady, no, ReasonFailedUpdate, "the API server rejects changes of the job's objects, such as a pod's role label: an admission rule or a missing right"},
		{ConditionReady, no, ReasonFailedDelete, "the API server rejects the deletion of pods or other objects of the job: an admission rule or a missing right"},
		{ConditionReady, no, ReasonEntrypointUnknown, "the gated container sets no command, and the entrypoint of its image is unknown; existing pods stay, and no pod is created"},
		{ConditionReady, no, ReasonRegistryUnreachable, "the registry of the image does not answer, or not with an image; existing pods stay, and no pod is created"},
		{ConditionReady, no, ReasonRegistryRefused, "the registry of the image refuses the operator's credentials, or has no such image; existing pods stay, and no pod is created"},
		{ConditionReady, no, ReasonRegistryUntrusted, "the operator's settings do not allow it to ask the registry of the image: its certificate, plain HTTP, or its address; existing pods stay, and no pod is created"},
		{ConditionReady, no, ReasonImageNotFound, "the registry has no such image, or none for the architectures of the nodes; existing pods stay, and no pod is created"},
		{ConditionReady, no, ReasonNoEntrypoint, "the image has neither ENTRYPOINT nor CMD, and the gated container sets no command; existing pods stay, and no pod is created"},
		{ConditionReady, no, ReasonEntrypointsDiffer, "the image does not run the same command on all architectures of the nodes, and the gated container sets no command; existing pods stay, and no pod is created"},
		{ConditionReady, no, ReasonPodsFailing, "candidate pods fail one after another, for example because a kubelet rejects or evicts them; each is recreated after a growing delay"},
		{ConditionReady, no, ReasonAgentMisconfigured, "the agent rejected its configuration and did not start"},
		{ConditionReady, no, ReasonSuspending, "spec.suspend is set and the process is being stopped"},
		{ConditionReady, no, ReasonDeleting, "the SingletonJob is being deleted; the operator creates no more pods"},
		{ConditionReady, no, ReasonLeaseConflict, "a Lease with this name exists and does not belong to the operator; the operator changes nothing"},
		{ConditionReady, no, ReasonInvalidSpec, "the spec breaks a rule that only the operator can check"},
		{ConditionReady, no, ReasonWorkloadMissing, "the workload in spec.workloadRef does not exist or is being deleted; a running process continues, and no pod is created"},
		{ConditionReady, no, ReasonWorkloadDenied, "the operator has no permission to read the workload in spec.workloadRef; a running process continues, and no pod is created"},
		{ConditionReady, no, ReasonWorkloadTaken, "an older SingletonJob uses the same workload; a running process continues, and no pod is created"},
		{ConditionReady, no, ReasonWorkloadRunning, "the workload in spec.workloadRef is not scaled to 0, or some of its pods still exist, and no lease keeps those from acting; a running process continues, and nothing is started"},
		{ConditionReady, no, ReasonWorkloadSettling, "the workload in spec.workloadRef was scaled to 0 or changed, and its controllers have not acted on that yet; a running process continues, and nothing is started"},
	}
}

// The reasons of tenure changes: why the earlier tenure ended, as recorded by the component that ended it. ChangeReasons says which type
// each reason belongs to.
const (
	ChangeElected             = "Elected"
	ChangeLeaseExpired        = string(lease.ReasonLeaseExpired)
	ChangeProcessExited       = string(lease.ReasonProcessExited)
	ChangeHolderTerminated    = string(lease.ReasonHolderTerminated)
	ChangeNodeLost            = string(lease.ReasonNodeLost)
	ChangeRenewFailed         = string(lease.ReasonRenewFailed)
	ChangeLeaseDeleted        = string(lease.ReasonLeaseDeleted)
	ChangeLeaseLost           = string(lease.ReasonLeaseLost)
	ChangePreActivateFailed   = string(lease.ReasonPreActivateFailed)
	ChangePostStartFailed     = string(lease.ReasonPostStartFailed)
	ChangeStartupFailed       = string(lease.ReasonStartupFailed)
	ChangeLivenessFailed      = string(lease.ReasonLivenessFailed)
	ChangePodTerminating      = string(lease.ReasonPodTerminating)
	ChangeRolloutHandover     = string(lease.ReasonRollout)
	ChangeSwitchoverRequested = string(lease.ReasonSwitchover)
	ChangeTokenBaseRaised     = string(lease.ReasonTokenBaseRaised)
)

// ChangeReason is one row of the table of tenure changes.
type ChangeReason struct {
	Type   TenureChangeType
	Reason string
	// Meaning is one line for documentation.
	Meaning string
}

// ChangeReasons returns every reason that an entry of status.history can show, with its type. It is the only declaration of them:
// documentation, metrics and tests iterate over it.
func ChangeReasons() []ChangeReason {
	return []ChangeReason{
		{Elected, ChangeElected, "the first tenure: the Lease had no holder before"},
		{Failover, ChangeLeaseExpired, "the holder stopped renewing and its lease ran out"},
		{Failover, ChangeProcessExited, "the process exited by itself and its agent released the Lease"},
		{Failover, ChangePreActivateFailed, "spec.preActivate failed, so the process was not started"},
		{Failover, ChangePostStartFailed, "the process's postStart hook failed, and the process was asked to stop"},
		{Failover, ChangeStartupFailed, "the process failed its startup probe and was stopped"},
		{Failover, ChangeLivenessFailed, "the process failed its liveness probe and was stopped"},
		{Failover, ChangeHolderTerminated, "the holder's container was reported as terminated before it could release the Lease"},
		{Failover, ChangeNodeLost, "the holder's node was removed or declared out of service"},
		{Failover, ChangeRenewFailed, "the holder could not renew, stopped its process and released the Lease in time"},
		{Failover, ChangeLeaseDeleted, "the Lease was deleted during the tenure"},
		{Failover, ChangeLeaseLost, "something other than the holder changed the Lease during the tenure"},
		{Handover, ChangePodTerminating, "the active pod was deleted, evicted or drained and stopped gracefully"},
		{Handover, ChangeRolloutHandover, "a changed template was rolled out"},
		{Handover, ChangeSwitchoverRequested, "another holder was requested"},
		{Handover, ChangeTokenBaseRaised, "spec.fencing.tokenBase was raised, which needs a new token"},
	}
}
