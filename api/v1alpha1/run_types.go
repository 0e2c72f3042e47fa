package v1alpha1

import metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

// RunPolicy says whether the process is expected to end.
//
// +kubebuilder:validation:Enum=Continuous;RunToCompletion
type RunPolicy string

const (
	// RunPolicyContinuous keeps the process running indefinitely.
	RunPolicyContinuous RunPolicy = "Continuous"
	// RunPolicyRunToCompletion runs the process until it exits with 0.
	RunPolicyRunToCompletion RunPolicy = "RunToCompletion"
)

// The values of Schedule.Standby.
const (
	StandbyOnDemand = "OnDemand"
	StandbyWarm     = "Warm"
)

// Schedule says when runs begin: one run per tick.
type Schedule struct {
	// Five fields, each separated from the next by one space: minute, hour, day (1 to 31), month, day of week, as in crontab(5). No
	// seconds, no macros such as @daily, no TZ=.
	// +kubebuilder:validation:MaxLength=256
	// +required
	Cron string `json:"cron"`

	// The time zone of cron, by its name in the IANA database, such as Europe/Berlin. A time that the clock skips is due at the end of the
	// gap. A time that occurs twice is due the first time; with * in minute or hour, elapsed time counts. Default Etc/UTC.
	// +kubebuilder:default="Etc/UTC"
	// +kubebuilder:validation:MaxLength=64
	// +optional
	TimeZone string `json:"timeZone,omitempty"`

	// How long after its time a tick can still be started; after that it is missed. 10s to 168h, default 1h.
	// +kubebuilder:default="1h"
	// +optional
	StartingDeadline metav1.Duration `json:"startingDeadline,omitzero"`

	// Which ticks are run late, after a time in which nothing could start them. Skip: none; a tick is started within a minute or never.
	// Latest: the newest. All: all, oldest first; of more than 100 ticks the oldest are missed. Default Latest.
	// +kubebuilder:default=Latest
	// +kubebuilder:validation:Enum=Skip;Latest;All
	// +optional
	CatchUp string `json:"catchUp,omitempty"`

	// What happens to a tick that comes due during a run. Skip: it has no run and counts as skipped. Queue: it waits for the end of the
	// run. Replace: the run is stopped, and all its processes are dead before the next run begins. Replace can't be combined with catchUp
	// All. Default Skip.
	// +kubebuilder:default=Skip
	// +kubebuilder:validation:Enum=Skip;Queue;Replace
	// +optional
	Overlap string `json:"overlap,omitempty"`

	// OnDemand: candidates exist from leadTime before a tick until its run has ended. Warm: candidates always exist. Default OnDemand.
	// +kubebuilder:default=OnDemand
	// +kubebuilder:validation:Enum=OnDemand;Warm
	// +optional
	Standby string `json:"standby,omitempty"`

	// With standby OnDemand: how long before a tick its candidates are created. Allow the time to pull images and start pods. 0s to 1h,
	// default 60s.
	// +kubebuilder:default="60s"
	// +optional
	LeadTime *metav1.Duration `json:"leadTime,omitempty"`
}

// RunUnknown is the state of a run whose end was not observed: the Lease keeps only the last runs.
const RunUnknown = "Unknown"

// RunStatus is the status of one run.
type RunStatus struct {
	// The idempotency key of the run. The process gets it in SINGLETONJOB_RUN_ID.
	// +required
	ID string `json:"id"`

	// The tick that the run is for.
	// +optional
	Tick *metav1.Time `json:"tick,omitempty"`

	// Running; Failed (another attempt follows); Complete; GivenUp (the run failed, and no attempt follows); Replaced; or Unknown. Unknown
	// means that the run ended while no operator was watching, and the Lease no longer records how.
	// +required
	State string `json:"state"`

	// The number of attempts.
	// +optional
	Attempts int32 `json:"attempts,omitempty"`

	// The number of attempts that ended with one of spec.ignoreOnExitCodes, and so do not count towards spec.backoffLimit.
	// +optional
	IgnoredAttempts int32 `json:"ignoredAttempts,omitempty"`

	// The fencing token of the last attempt.
	// +optional
	Token int64 `json:"token,omitempty"`

	// The pod of the last attempt.
	// +optional
	Pod string `json:"pod,omitempty"`

	// The exit code of the last attempt that ended.
	// +optional
	ExitCode *int32 `json:"exitCode,omitempty"`

	// Why that attempt ended.
	// +optional
	Reason string `json:"reason,omitempty"`

	// When the first attempt began.
	// +optional
	StartTime *metav1.Time `json:"startTime,omitempty"`

	// When the last attempt ended, if the run is over.
	// +optional
	EndTime *metav1.Time `json:"endTime,omitempty"`
}
