package v1alpha1

import (
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
)

// SingletonJob keeps exactly one copy of a process running in the cluster, with warm standbys on other nodes, and
// gives each tenure of that process a fencing token greater than every earlier one.
//
// +kubebuilder:object:root=true
// +kubebuilder:resource:path=singletonjobs,singular=singletonjob,shortName=sj,categories=all,scope=Namespaced
// +kubebuilder:subresource:status
// +kubebuilder:subresource:scale:specpath=.spec.candidates,statuspath=.status.candidates.total,selectorpath=.status.selector
// +kubebuilder:printcolumn:name="Active",type=string,JSONPath=`.status.activePod`,description="The pod whose process runs."
// +kubebuilder:printcolumn:name="Token",type=integer,JSONPath=`.status.fencingToken`,description="The fencing token of the current or last tenure."
// +kubebuilder:printcolumn:name="Ready",type=string,JSONPath=`.status.candidates.summary`,description="Candidates that are ready, of those asked for."
// +kubebuilder:printcolumn:name="Failovers",type=integer,JSONPath=`.status.failovers`,description="Unplanned changes of holder."
// +kubebuilder:printcolumn:name="Last-Failover",type=date,JSONPath=`.status.lastFailoverTime`,description="Time since the last unplanned change of holder."
// +kubebuilder:printcolumn:name="Status",type=string,JSONPath=`.status.conditions[?(@.type=="Active")].reason`,description="The reason of the condition Active."
// +kubebuilder:printcolumn:name="Age",type=date,JSONPath=`.metadata.creationTimestamp`
// +kubebuilder:printcolumn:name="Node",type=string,priority=1,JSONPath=`.status.activeNode`,description="The node of the active pod."
// +kubebuilder:printcolumn:name="Since",type=date,priority=1,JSONPath=`.status.activeSince`,description="Time since the current tenure began."
// +kubebuilder:printcolumn:name="Lease",type=string,priority=1,JSONPath=`.status.leaseSummary`,description="leaseDuration/renewDeadline/retryPeriod."
// +kubebuilder:printcolumn:name="Handovers",type=integer,priority=1,JSONPath=`.status.handovers`,description="Planned changes of holder."
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

// SingletonJobSpec is what the user asks for.
type SingletonJobSpec struct {
	// How many pods stand for election: one active, the others warm standbys. 1 to 16, default 2. With 1 there is no
	// standby: a failover then waits until a new pod runs. To stop the job use suspend, not 0.
	// +kubebuilder:default=2
	// +kubebuilder:validation:Minimum=1
	// +kubebuilder:validation:Maximum=16
	// +optional
	Candidates int32 `json:"candidates,omitempty"`

	// When a tenure ends and when the next may begin.
	// +kubebuilder:default={leaseDuration: "15s", renewDeadline: "10s", retryPeriod: "2s", lockDelay: "0s", onRenewFailure: "Stop"}
	// +optional
	Lease LeaseSpec `json:"lease,omitzero"`

	// How the process learns its fencing token.
	// +kubebuilder:default={envVar: "FENCING_TOKEN", tokenBase: 0}
	// +optional
	Fencing FencingSpec `json:"fencing,omitzero"`

	// A command that runs at the beginning of each tenure, before the process: to raise the marks of sinks to the new token,
	// or to catch up on state. The process starts only if it exits with 0. Default: none.
	// +optional
	PreActivate *PreActivate `json:"preActivate,omitempty"`

	// The container of the template that is gated: its process runs in the active pod only. Default: the only container, or of
	// several the one that the template's annotation kubectl.kubernetes.io/default-container names. The other containers, init
	// containers and sidecars run in every candidate, before its tenure too.
	// +kubebuilder:validation:MinLength=1
	// +kubebuilder:validation:MaxLength=63
	// +optional
	Container string `json:"container,omitempty"`

	// How candidates of a changed template replace the others.
	// +optional
	Strategy Strategy `json:"strategy,omitzero"`

	// Stops the process and removes all candidates, gracefully. The Lease, the token and the history stay, so tokens
	// go on growing when the job is resumed. Default false.
	// +optional
	Suspend bool `json:"suspend,omitempty"`

	// Continuous (the default): the process is to run for ever, and what ends is started again. RunToCompletion: it is to be run
	// once, or once for each tick of schedule, until it exits with 0. It can't be changed.
	// +kubebuilder:default=Continuous
	// +optional
	RunPolicy RunPolicy `json:"runPolicy,omitempty"`

	// When runs begin, for runPolicy RunToCompletion. Default: one run, at once.
	// +optional
	Schedule *Schedule `json:"schedule,omitempty"`

	// How many attempts a run has after the first, for runPolicy RunToCompletion. 0: never a second, even if the first may not
	// have begun. 0 to 100, default 6.
	// +kubebuilder:validation:Minimum=0
	// +kubebuilder:validation:Maximum=100
	// +optional
	BackoffLimit *int32 `json:"backoffLimit,omitempty"`

	// How many seconds a run may last, its attempts and the time between them included. Then it is stopped, and has failed. 1 to
	// 31536000 (365 days). Default: no limit.
	// +kubebuilder:validation:Minimum=1
	// +kubebuilder:validation:Maximum=31536000
	// +optional
	ActiveDeadlineSeconds *int64 `json:"activeDeadlineSeconds,omitempty"`

	// How many seconds after its run has ended a job without a schedule is deleted, with its pods. At least 0. Default: never.
	// +kubebuilder:validation:Minimum=0
	// +optional
	TTLSecondsAfterFinished *int32 `json:"ttlSecondsAfterFinished,omitempty"`

	// Exit codes, from 1 to 255, after which a run has failed, and no attempt follows. Default: none.
	// +kubebuilder:validation:MaxItems=255
	// +kubebuilder:validation:items:Minimum=1
	// +kubebuilder:validation:items:Maximum=255
	// +listType=set
	// +optional
	FailOnExitCodes []int32 `json:"failOnExitCodes,omitempty"`

	// A Service behind which only the active pod stands.
	// +optional
	Service *ServiceSpec `json:"service,omitempty"`

	// How many changes of holder status.history keeps, newest first. 0 to 100, default 10.
	// +kubebuilder:default=10
	// +kubebuilder:validation:Minimum=0
	// +kubebuilder:validation:Maximum=100
	// +optional
	HistoryLimit *int32 `json:"historyLimit,omitempty"`

	// The pod that every candidate is made from; this or workloadRef. Where the gated container sets no command, its image's is
	// looked up. restartPolicy is the operator's: Always, and with runPolicy RunToCompletion OnFailure; Never means the same there.
	// shareProcessNamespace and hostPID are refused: the agent could not vouch for every process of the container.
	// Init containers, sidecars and other containers run in every candidate, before and without a tenure: leave volumes to the
	// gated one.
	// +optional
	Template corev1.PodTemplateSpec `json:"template,omitzero"`

	// A workload whose pod template is taken in place of template. It must be scaled to 0: nothing is started while it has
	// replicas or pods.
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
	// OnRenewFailureKeepRunning lets the process run until its agent learns of another tenure.
	OnRenewFailureKeepRunning OnRenewFailure = "KeepRunning"
)

// LeaseSpec holds the time limits of a tenure. Durations are written as 15s, 500ms or 1m30s.
type LeaseSpec struct {
	// How long a tenure is valid after its last confirmed renewal, and so how long a standby waits for a holder that
	// vanished. Whole seconds (the Lease API has no finer unit), 3s to 1h, default 15s. A safety margin of
	// leaseDuration/15, at least 1s (500ms for leases below 5s), is taken off its end: there the process is killed.
	// leaseDuration - margin - renewDeadline, the time a process has to stop, must be at least 1s.
	// +kubebuilder:default="15s"
	// +optional
	LeaseDuration metav1.Duration `json:"leaseDuration,omitzero"`

	// No confirmed renewal for this long: the process gets SIGTERM. It is killed leaseDuration - margin after the last
	// confirmed renewal if it still runs. At least 1.5 times retryPeriod, at most leaseDuration - margin - 1s,
	// default 10s.
	// +kubebuilder:default="10s"
	// +optional
	RenewDeadline metav1.Duration `json:"renewDeadline,omitzero"`

	// Time between two renewals. Each is one write to the API server. At least 200ms, at most renewDeadline / 1.5,
	// default 2s.
	// +kubebuilder:default="2s"
	// +optional
	RetryPeriod metav1.Duration `json:"retryPeriod,omitzero"`

	// Extra wait before the next tenure after one that ended uncleanly (the holder vanished), for sinks that cannot
	// reject old tokens: requests of the old process that are still on their way arrive first. 0s to 1h, default 0s.
	// Adds to the time of such a failover; clean releases are not delayed.
	// +kubebuilder:default="0s"
	// +optional
	LockDelay metav1.Duration `json:"lockDelay,omitzero"`

	// What happens to the process when renewals fail. Stop (the default): it is stopped before the lease can expire,
	// so that no two run at once. KeepRunning: it runs until its agent learns that another tenure began, so an outage
	// of the control plane stops nothing, but two processes may run at once: only for sinks that all reject old
	// tokens. Not together with a lockDelay, which promises the opposite.
	// +kubebuilder:default=Stop
	// +optional
	OnRenewFailure OnRenewFailure `json:"onRenewFailure,omitempty"`
}

// FencingSpec says how the process learns its token.
type FencingSpec struct {
	// The environment variable in which the process finds its token: a decimal number. Its command and arguments may name
	// it too, as $(FENCING_TOKEN). A C identifier of at most 63 characters, not beginning with SINGLETONJOB_, and none that
	// others read, such as PATH. Default FENCING_TOKEN.
	// +kubebuilder:default=FENCING_TOKEN
	// +optional
	EnvVar string `json:"envVar,omitempty"`

	// Added to every token. Raise it after etcd was restored from a backup, or when the job moves to another cluster,
	// so that tokens go on growing past those the sinks have already seen. 0 to 4503599627370496 (2^52), can never
	// be lowered, default 0. Raising it costs one handover.
	// +kubebuilder:default=0
	// +optional
	TokenBase int64 `json:"tokenBase,omitempty"`
}

// PreActivate is a command that runs in the gated container, in each tenure, before the process.
type PreActivate struct {
	// The command, which is executed directly and not by a shell. It finds what the process would find, the token too, and may
	// name it as $(FENCING_TOKEN). All that it starts is dead before the process starts.
	// +required
	Exec PreActivateExec `json:"exec"`

	// After how many seconds it is killed, and has failed. 1 to 3600, default 60.
	// +kubebuilder:default=60
	// +kubebuilder:validation:Minimum=1
	// +kubebuilder:validation:Maximum=3600
	// +optional
	TimeoutSeconds int32 `json:"timeoutSeconds,omitempty"`
}

// PreActivateExec is what is executed.
type PreActivateExec struct {
	// The program and its arguments.
	// +kubebuilder:validation:MinItems=1
	// +required
	// +listType=atomic
	Command []string `json:"command"`
}

// SingletonJobStatus is what the operator observed.
type SingletonJobStatus struct {
	// The generation of the spec that this status describes. -1: the operator has not seen the object.
	// +optional
	ObservedGeneration int64 `json:"observedGeneration,omitempty"`

	// The pod whose process runs. Empty while there is none.
	// +optional
	ActivePod string `json:"activePod,omitempty"`

	// The node of the active pod.
	// +optional
	ActiveNode string `json:"activeNode,omitempty"`

	// When the current tenure was acquired. Empty while there is none.
	// +optional
	ActiveSince *metav1.Time `json:"activeSince,omitempty"`

	// The token of the current or last tenure. It grows with every tenure, with gaps. Sinks reject lower ones.
	// +optional
	FencingToken int64 `json:"fencingToken,omitempty"`

	// How many tenures there have been.
	// +optional
	Tenures int64 `json:"tenures,omitempty"`

	// How many candidate pods there are, and in what state.
	// +optional
	Candidates CandidatesStatus `json:"candidates,omitzero"`

	// Waiting, UnderWay or empty: the job's part in a rollout of all jobs, which an operator causes that puts something else into pods
	// than the one before it. A limited number of jobs are UnderWay at a time, until all their candidates are new and ready.
	// +optional
	FleetRollout FleetRollout `json:"fleetRollout,omitempty"`

	// Unplanned changes of holder: it crashed, vanished or was cut off.
	// +optional
	Failovers int64 `json:"failovers"`

	// Planned changes of holder: rollouts, drains, switchovers.
	// +optional
	Handovers int64 `json:"handovers"`

	// When the last unplanned change of holder was complete.
	// +optional
	LastFailoverTime *metav1.Time `json:"lastFailoverTime,omitempty"`

	// The longest time until a standby takes over from a holder that vanished, as the lease settings imply:
	// leaseDuration + lockDelay. The start of the process itself comes on top.
	// +optional
	WorstCaseFailover *metav1.Duration `json:"worstCaseFailover,omitempty"`

	// leaseDuration/renewDeadline/retryPeriod in one string, for people: 15s/10s/2s.
	// +optional
	LeaseSummary string `json:"leaseSummary,omitempty"`

	// The last changes of holder, newest first, at most spec.historyLimit of them.
	// +kubebuilder:validation:MaxItems=100
	// +listType=atomic
	// +optional
	History []TenureChange `json:"history,omitempty"`

	// What the gated container's image runs by itself, if the template sets no command.
	// +optional
	Entrypoint *Entrypoint `json:"entrypoint,omitempty"`

	// The runs of a job that runs to completion, newest first, at most spec.historyLimit of them, and always the newest.
	// +kubebuilder:validation:MaxItems=100
	// +listType=atomic
	// +optional
	Runs []RunStatus `json:"runs,omitempty"`

	// The first tick of the schedule after now. Empty without a schedule, while it is suspended, and where none is known.
	// +optional
	NextTick *metav1.Time `json:"nextTick,omitempty"`

	// When the newest run began.
	// +optional
	LastRunTime *metav1.Time `json:"lastRunTime,omitempty"`

	// When a run was last completed.
	// +optional
	LastCompletionTime *metav1.Time `json:"lastCompletionTime,omitempty"`

	// How many ticks should have had a run, and had none.
	// +optional
	Missed int64 `json:"missed,omitempty"`

	// How many ticks were passed over by the overlap policy.
	// +optional
	Skipped int64 `json:"skipped,omitempty"`

	// The conditions Ready, Active, Protected, Progressing and Timely; where runs end Complete and Failed, or Scheduled.
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

// FleetRollout is a job's part in a rollout of all jobs.
//
// +kubebuilder:validation:Enum=Waiting;UnderWay
type FleetRollout string

const (
	// FleetRolloutWaiting is of a job whose pods are outdated by the operator alone, and others have their turn.
	FleetRolloutWaiting FleetRollout = "Waiting"
	// FleetRolloutUnderWay is of a job whose turn it is.
	FleetRolloutUnderWay FleetRollout = "UnderWay"
)

// CandidatesStatus counts candidate pods.
type CandidatesStatus struct {
	// Pods that exist and have not ended.
	// +optional
	Total int32 `json:"total"`

	// Pods that are ready: the active one, and standbys that could take over at once.
	// +optional
	Ready int32 `json:"ready"`

	// Pods made from the current template.
	// +optional
	Updated int32 `json:"updated"`

	// Ready pods of those asked for, for people: 2/2.
	// +optional
	Summary string `json:"summary,omitempty"`
}

// TenureChange is one entry of the history: the beginning of a tenure and the end of the one before.
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

	// From the last proof that the earlier holder acted to the acquisition of the new tenure. Empty when there was no
	// earlier one, or when nobody knows.
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
