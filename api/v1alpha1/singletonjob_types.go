package v1alpha1

import (
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
)

// SingletonJob keeps exactly one copy of a process running in the cluster, with warm standbys on other nodes. It gives each tenure of the
// process a fencing token that is greater than every earlier one.
//
// +kubebuilder:object:root=true
// +kubebuilder:resource:path=singletonjobs,singular=singletonjob,shortName=sj,categories=all,scope=Namespaced
// +kubebuilder:subresource:status
// +kubebuilder:subresource:scale:specpath=.spec.candidates,statuspath=.status.candidates.total,selectorpath=.status.selector
// +kubebuilder:printcolumn:name="Active",type=string,JSONPath=`.status.activePod`,description="The pod whose process runs."
// +kubebuilder:printcolumn:name="Token",type=integer,JSONPath=`.status.fencingToken`,description="The fencing token of the current or last tenure."
// +kubebuilder:printcolumn:name="Ready",type=string,JSONPath=`.status.candidates.summary`,description="Ready candidates and desired candidates."
// +kubebuilder:printcolumn:name="Failovers",type=integer,JSONPath=`.status.failovers`,description="Unplanned changes of holder."
// +kubebuilder:printcolumn:name="Last-Failover",type=date,JSONPath=`.status.lastFailoverTime`,description="Time since the last unplanned change of holder."
// +kubebuilder:printcolumn:name="Status",type=string,JSONPath=`.status.conditions[?(@.type=="Active")].reason`,description="The reason of the condition Active."
// +kubebuilder:printcolumn:name="Age",type=date,JSONPath=`.metadata.creationTimestamp`
// +kubebuilder:printcolumn:name="Node",type=string,priority=1,JSONPath=`.status.activeNode`,description="The node of the active pod."
// +kubebuilder:printcolumn:name="Since",type=date,priority=1,JSONPath=`.status.activeSince`,description="Time since the current tenure began."
// +kubebuilder:printcolumn:name="Lease",type=string,priority=1,JSONPath=`.status.leaseSummary`,description="leaseDuration/renewDeadline/retryPeriod."
// +kubebuilder:printcolumn:name="Handovers",type=integer,priority=1,JSONPath=`.status.handovers`,description="Planned changes of holder."
// +kubebuilder:printcolumn:name="Completions",type=string,priority=1,JSONPath=`.status.completions`,description="Complete runs and desired runs, of a job without a schedule."
// +kubebuilder:printcolumn:name="Last-Run",type=date,priority=1,JSONPath=`.status.lastRunTime`,description="Time since the newest run began."
// +kubebuilder:printcolumn:name="Next",type=string,priority=1,JSONPath=`.status.nextTick`,description="The next tick of the schedule."
type SingletonJob struct {
	metav1.TypeMeta `json:",inline"`
	// +optional
	metav1.ObjectMeta `json:"metadata,omitempty"`

	// The desired state.
	// +required
	Spec SingletonJobSpec `json:"spec"`

	// The observed state, written by the operator.
	// +kubebuilder:default={"observedGeneration":-1}
	// +optional
	Status SingletonJobStatus `json:"status,omitzero"`
}

// SingletonJobList is a list of SingletonJobs.
//
// +kubebuilder:object:root=true
type SingletonJobList struct {
	metav1.TypeMeta `json:",inline"`
	metav1.ListMeta `json:"metadata,omitempty"`
	Items           []SingletonJob `json:"items"`
}

// SingletonJobSpec is the desired state of a SingletonJob.
type SingletonJobSpec struct {
	// The number of candidate pods: one is active, the others are warm standbys. 1 to 16, default 2. With 1 there is no standby, so a
	// failover waits until a new pod runs. To stop the job use suspend, not 0.
	// +kubebuilder:default=2
	// +kubebuilder:validation:Minimum=1
	// +kubebuilder:validation:Maximum=16
	// +optional
	Candidates int32 `json:"candidates,omitempty"`

	// When a tenure ends and when the next one can begin.
	// +kubebuilder:default={leaseDuration: "15s", renewDeadline: "10s", retryPeriod: "2s", lockDelay: "0s", onRenewFailure: "Stop"}
	// +optional
	Lease LeaseSpec `json:"lease,omitzero"`

	// How the process learns its fencing token.
	// +kubebuilder:default={envVar: "FENCING_TOKEN", tokenBase: 0}
	// +optional
	Fencing FencingSpec `json:"fencing,omitzero"`

	// A command that runs at the beginning of each tenure, before the process. Use it to raise the high-water marks of sinks to the new
	// token, or to catch up on state. The process starts only if the command exits with 0. Default: none.
	// +optional
	PreActivate *PreActivate `json:"preActivate,omitempty"`

	// The gated container of the template: its process runs in the active pod only. Default: the only container. If there are several, the
	// template's annotation kubectl.kubernetes.io/default-container names the default. All other containers, including init containers and
	// sidecars, run in every candidate, also before its tenure.
	// +kubebuilder:validation:MinLength=1
	// +kubebuilder:validation:MaxLength=63
	// +optional
	Container string `json:"container,omitempty"`

	// How candidates of a changed template replace the earlier ones.
	// +optional
	Strategy Strategy `json:"strategy,omitzero"`

	// Stops the process and removes all candidates, gracefully. The Lease, the token and the history stay, so tokens continue to grow when
	// the job is resumed. Default false.
	// +optional
	Suspend bool `json:"suspend,omitempty"`

	// Continuous (the default): the process runs indefinitely, and is started again when it ends. RunToCompletion: the process runs once,
	// or once for each tick of schedule, until it exits with 0. You can't change this field.
	// +kubebuilder:default=Continuous
	// +optional
	RunPolicy RunPolicy `json:"runPolicy,omitempty"`

	// When runs begin. Only with runPolicy RunToCompletion. Default: one run, at once.
	// +optional
	Schedule *Schedule `json:"schedule,omitempty"`

	// The number of attempts of a run after the first. Only with runPolicy RunToCompletion. With 0 there is never a second attempt, even if
	// the first one may not have begun. 0 to 100, default 6.
	// +kubebuilder:validation:Minimum=0
	// +kubebuilder:validation:Maximum=100
	// +optional
	BackoffLimit *int32 `json:"backoffLimit,omitempty"`

	// The maximum duration of a run in seconds, including all attempts and the time between them. After that the run is stopped and has
	// failed. 1 to 31536000 (365 days). Default: no limit.
	// +kubebuilder:validation:Minimum=1
	// +kubebuilder:validation:Maximum=31536000
	// +optional
	ActiveDeadlineSeconds *int64 `json:"activeDeadlineSeconds,omitempty"`

	// The number of seconds after the end of its run after which a job without a schedule is deleted, with its pods. At least 0. Default:
	// never.
	// +kubebuilder:validation:Minimum=0
	// +optional
	TTLSecondsAfterFinished *int32 `json:"ttlSecondsAfterFinished,omitempty"`

	// Exit codes, from 1 to 255, that make a run fail without another attempt. An exit code of 128 + n stands for signal n. Default: none.
	// +kubebuilder:validation:MaxItems=255
	// +kubebuilder:validation:items:Minimum=1
	// +kubebuilder:validation:items:Maximum=255
	// +listType=set
	// +optional
	FailOnExitCodes []int32 `json:"failOnExitCodes,omitempty"`

	// Exit codes, from 1 to 255, of attempts that do not count towards backoffLimit. The delay before the next attempt still grows with each
	// attempt. Without activeDeadlineSeconds, nothing limits the number of such attempts. Default: none.
	// +kubebuilder:validation:MaxItems=255
	// +kubebuilder:validation:items:Minimum=1
	// +kubebuilder:validation:items:Maximum=255
	// +listType=set
	// +optional
	IgnoreOnExitCodes []int32 `json:"ignoreOnExitCodes,omitempty"`

	// A Service that routes to the active pod only.
	// +optional
	Service *ServiceSpec `json:"service,omitempty"`

	// The number of changes of holder in status.history. The newest come first. 0 to 100, default 10.
	// +kubebuilder:default=10
	// +kubebuilder:validation:Minimum=0
	// +kubebuilder:validation:Maximum=100
	// +optional
	HistoryLimit *int32 `json:"historyLimit,omitempty"`

	// The template of the candidate pods. Set either this or workloadRef. If the gated container sets no command, the operator looks up the
	// entrypoint of its image. The operator sets restartPolicy: Always, or with runPolicy RunToCompletion OnFailure; Never means the same
	// there. shareProcessNamespace and hostPID are rejected, because the agent could not guarantee that every process of the container is
	// dead. Init containers, sidecars and other containers run in every candidate, before and without a tenure: mount volumes in the gated
	// container only.
	// +optional
	Template corev1.PodTemplateSpec `json:"template,omitzero"`

	// A workload whose pod template is used instead of template. It must be scaled to 0: nothing is started while it has replicas or pods.
	// +optional
	WorkloadRef *WorkloadRef `json:"workloadRef,omitempty"`
}

// OnRenewFailure says what happens to the process while its tenure cannot be renewed.
//
// +kubebuilder:validation:Enum=Stop;KeepRunning
type OnRenewFailure string

const (
	// OnRenewFailureStop stops the process before the lease can expire.
	OnRenewFailureStop OnRenewFailure = "Stop"
	// OnRenewFailureKeepRunning keeps the process running until its agent learns of another tenure.
	OnRenewFailureKeepRunning OnRenewFailure = "KeepRunning"
)

// LeaseSpec holds the time limits of a tenure. Write durations as 15s, 500ms or 1m30s.
type LeaseSpec struct {
	// How long a tenure is valid after its last confirmed renewal. This is also how long a standby waits for a holder that vanished. Whole
	// seconds (the Lease API has no finer unit), 3s to 1h, default 15s. The process is killed a safety margin before the end. The margin is
	// leaseDuration/15, but at least 1s (500ms for leases below 5s). leaseDuration - margin - renewDeadline, the time a process has to
	// stop, must be at least 1s.
	// +kubebuilder:default="15s"
	// +optional
	LeaseDuration metav1.Duration `json:"leaseDuration,omitzero"`

	// How long the process keeps running without a confirmed renewal. After that it gets SIGTERM. If it still runs leaseDuration - margin
	// after the last confirmed renewal, it is killed. At least 1.5 times retryPeriod, at most leaseDuration - margin - 1s, default 10s.
	// +kubebuilder:default="10s"
	// +optional
	RenewDeadline metav1.Duration `json:"renewDeadline,omitzero"`

	// The time between two renewals. Each renewal is one write to the API server. At least 200ms, at most renewDeadline / 1.5, default 2s.
	// +kubebuilder:default="2s"
	// +optional
	RetryPeriod metav1.Duration `json:"retryPeriod,omitzero"`

	// An extra wait before the next tenure if the last one ended uncleanly (the holder vanished). Use it for sinks that cannot reject old
	// tokens, so that requests of the old process that are still on their way arrive first. It makes such a failover longer by this time;
	// clean releases are not delayed. 0s to 1h, default 0s.
	// +kubebuilder:default="0s"
	// +optional
	LockDelay metav1.Duration `json:"lockDelay,omitzero"`

	// What happens to the process when renewals fail. Stop (the default): it is stopped before the lease can expire, so that no two
	// processes run at once. KeepRunning: it runs until its agent learns that another tenure began. An outage of the control plane then
	// stops nothing, but two processes can run at once: use it only if all sinks reject old tokens. It can't be combined with a lockDelay,
	// which promises the opposite.
	// +kubebuilder:default=Stop
	// +optional
	OnRenewFailure OnRenewFailure `json:"onRenewFailure,omitempty"`
}

// FencingSpec configures how the process learns its token.
type FencingSpec struct {
	// The environment variable that holds the token: a decimal number. The command and arguments of the process can use it too, as
	// $(FENCING_TOKEN). A C identifier of at most 63 characters that does not begin with SINGLETONJOB_. Do not use a variable that other
	// programs read, such as PATH. Default FENCING_TOKEN.
	// +kubebuilder:default=FENCING_TOKEN
	// +optional
	EnvVar string `json:"envVar,omitempty"`

	// This number is added to every token. Raise it after you restore etcd from a backup, or when you move the job to another cluster. New
	// tokens are then greater than those that sinks have already seen. 0 to 4503599627370496 (2^52), default 0. You can't lower it. Raising
	// it costs one handover.
	// +kubebuilder:default=0
	// +optional
	TokenBase int64 `json:"tokenBase,omitempty"`
}

// PreActivate is a command that runs in the gated container, in each tenure, before the process.
type PreActivate struct {
	// The command, executed directly and not by a shell. It gets the environment of the process, including the token, and can use it as
	// $(FENCING_TOKEN). All processes that it starts are dead before the process starts.
	// +required
	Exec PreActivateExec `json:"exec"`

	// The number of seconds after which the command is killed and has failed. 1 to 3600, default 60.
	// +kubebuilder:default=60
	// +kubebuilder:validation:Minimum=1
	// +kubebuilder:validation:Maximum=3600
	// +optional
	TimeoutSeconds int32 `json:"timeoutSeconds,omitempty"`
}

// PreActivateExec is a command line.
type PreActivateExec struct {
	// The program and its arguments.
	// +kubebuilder:validation:MinItems=1
	// +required
	// +listType=atomic
	Command []string `json:"command"`
}

// SingletonJobStatus is what the operator observed.
type SingletonJobStatus struct {
	// The generation of the spec that this status describes. -1: the operator has not seen the object yet.
	// +optional
	ObservedGeneration int64 `json:"observedGeneration,omitempty"`

	// The pod whose process runs. Empty if there is none.
	// +optional
	ActivePod string `json:"activePod,omitempty"`

	// The node of the active pod.
	// +optional
	ActiveNode string `json:"activeNode,omitempty"`

	// When the current tenure was acquired. Empty if there is none.
	// +optional
	ActiveSince *metav1.Time `json:"activeSince,omitempty"`

	// The token of the current or last tenure. It grows with every tenure, with gaps. Sinks reject lower tokens.
	// +optional
	FencingToken int64 `json:"fencingToken,omitempty"`

	// The number of tenures so far.
	// +optional
	Tenures int64 `json:"tenures,omitempty"`

	// The number of candidate pods, by state.
	// +optional
	Candidates CandidatesStatus `json:"candidates,omitzero"`

	// This job's place in a fleet-wide rollout: Waiting, UnderWay or empty. Such a rollout starts when what the operator adds to pods
	// changes, for example with a new version of the operator. A limited number of jobs are UnderWay at a time, each until all its
	// candidates are new and ready.
	// +optional
	FleetRollout FleetRollout `json:"fleetRollout,omitempty"`

	// The number of unplanned changes of holder: it crashed, vanished or was cut off.
	// +optional
	Failovers int64 `json:"failovers"`

	// The number of planned changes of holder: rollouts, drains, switchovers.
	// +optional
	Handovers int64 `json:"handovers"`

	// When the last unplanned change of holder was complete.
	// +optional
	LastFailoverTime *metav1.Time `json:"lastFailoverTime,omitempty"`

	// The longest time until a standby takes over from a holder that vanished: leaseDuration + lockDelay. The time to start the process is
	// not included.
	// +optional
	WorstCaseFailover *metav1.Duration `json:"worstCaseFailover,omitempty"`

	// leaseDuration/renewDeadline/retryPeriod in one string, for display: 15s/10s/2s.
	// +optional
	LeaseSummary string `json:"leaseSummary,omitempty"`

	// The last changes of holder, newest first, at most spec.historyLimit of them.
	// +kubebuilder:validation:MaxItems=100
	// +listType=atomic
	// +optional
	History []TenureChange `json:"history,omitempty"`

	// The entrypoint of the gated container's image, if the template sets no command.
	// +optional
	Entrypoint *Entrypoint `json:"entrypoint,omitempty"`

	// The runs of a job that runs to completion, newest first: at most spec.historyLimit, and always the newest.
	// +kubebuilder:validation:MaxItems=100
	// +listType=atomic
	// +optional
	Runs []RunStatus `json:"runs,omitempty"`

	// The run of a job without a schedule, counted as in the status of a Job. Empty for other jobs, and until the first attempt.
	// +optional
	RunSummary `json:",inline"`

	// The next tick of the schedule. Empty without a schedule, while the job is suspended, and if no next tick is known.
	// +optional
	NextTick *metav1.Time `json:"nextTick,omitempty"`

	// When the newest run began.
	// +optional
	LastRunTime *metav1.Time `json:"lastRunTime,omitempty"`

	// When a run was last completed.
	// +optional
	LastCompletionTime *metav1.Time `json:"lastCompletionTime,omitempty"`

	// The number of ticks that should have had a run and had none.
	// +optional
	Missed int64 `json:"missed,omitempty"`

	// The number of ticks that the overlap policy skipped.
	// +optional
	Skipped int64 `json:"skipped,omitempty"`

	// The conditions Ready, Active, Protected, Progressing and Timely. A job that runs to completion also has Complete and Failed, or, with
	// a schedule, Scheduled. Stalled exists only while it is true.
	// +listType=map
	// +listMapKey=type
	// +patchMergeKey=type
	// +patchStrategy=merge
	// +kubebuilder:validation:MaxItems=16
	// +optional
	Conditions []metav1.Condition `json:"conditions,omitempty" patchStrategy:"merge" patchMergeKey:"type"`

	// The label selector of the candidate pods, for the scale subresource.
	// +optional
	Selector string `json:"selector,omitempty"`
}

// RunSummary has the fields of a Job's status.
type RunSummary struct {
	// Complete runs and desired runs, for display: 0/1 or 1/1.
	// +optional
	Completions string `json:"completions,omitempty"`

	// When the first attempt began.
	// +optional
	StartTime *metav1.Time `json:"startTime,omitempty"`

	// When the run was completed.
	// +optional
	CompletionTime *metav1.Time `json:"completionTime,omitempty"`

	// 1 if the run is complete.
	// +optional
	Succeeded int32 `json:"succeeded,omitempty"`

	// The number of attempts that failed.
	// +optional
	Failed int32 `json:"failed,omitempty"`
}

// FleetRollout is a job's place in a fleet-wide rollout.
//
// +kubebuilder:validation:Enum=Waiting;UnderWay
type FleetRollout string

const (
	// FleetRolloutWaiting means that the job's pods are outdated only because the operator changed, and it is the turn of other jobs.
	FleetRolloutWaiting FleetRollout = "Waiting"
	// FleetRolloutUnderWay means that it is the job's turn.
	FleetRolloutUnderWay FleetRollout = "UnderWay"
)

// CandidatesStatus counts candidate pods.
type CandidatesStatus struct {
	// Pods that exist and have not ended.
	// +optional
	Total int32 `json:"total"`

	// Pods that are ready: the active one, and standbys that can take over at once.
	// +optional
	Ready int32 `json:"ready"`

	// Pods created from the current template.
	// +optional
	Updated int32 `json:"updated"`

	// Ready pods and desired pods, for display: 2/2.
	// +optional
	Summary string `json:"summary,omitempty"`
}

// TenureChange is one entry of the history: the beginning of a tenure and the end of the previous one.
type TenureChange struct {
	// When the new tenure was acquired.
	// +required
	Time metav1.MicroTime `json:"time"`

	// Elected: the first tenure. Handover: planned. Failover: unplanned.
	// +required
	Type TenureChangeType `json:"type"`

	// Why the earlier tenure ended.
	// +kubebuilder:validation:MaxLength=64
	// +required
	Reason string `json:"reason"`

	// The pod that held the earlier tenure.
	// +optional
	From string `json:"from,omitempty"`

	// The node of that pod.
	// +optional
	FromNode string `json:"fromNode,omitempty"`

	// The token of the earlier tenure.
	// +optional
	FromToken int64 `json:"fromToken,omitempty"`

	// The pod that holds the new tenure.
	// +optional
	To string `json:"to,omitempty"`

	// The node of that pod.
	// +optional
	ToNode string `json:"toNode,omitempty"`

	// The token of the new tenure.
	// +optional
	Token int64 `json:"token,omitempty"`

	// The time from the last proof that the earlier holder acted to the acquisition of the new tenure. Empty if there was no earlier
	// holder, or if the time is unknown.
	// +optional
	Downtime *metav1.Duration `json:"downtime,omitempty"`
}

// TenureChangeType distinguishes planned from unplanned changes of holder.
//
// +kubebuilder:validation:Enum=Failover;Handover;Elected
type TenureChangeType string

const (
	// Failover is an unplanned change: the holder crashed, vanished or was cut off.
	Failover TenureChangeType = "Failover"
	// Handover is a planned change: the holder stopped, then released.
	Handover TenureChangeType = "Handover"
	// Elected is the first tenure: there was no holder before.
	Elected TenureChangeType = "Elected"
)
