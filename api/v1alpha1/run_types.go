package v1alpha1

import metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

// RunPolicy says whether the process is to end.
//
// +kubebuilder:validation:Enum=Continuous;RunToCompletion
type RunPolicy string

const (
	// RunPolicyContinuous keeps the process running for ever.
	RunPolicyContinuous RunPolicy = "Continuous"
	// RunPolicyRunToCompletion runs it until it exits with 0.
	RunPolicyRunToCompletion RunPolicy = "RunToCompletion"
)

// The values of Schedule.Standby.
const (
	StandbyOnDemand = "OnDemand"
	StandbyWarm     = "Warm"
)

// Schedule says when runs begin: at each tick one, once.
type Schedule struct {
	// Five fields, each separated from the next by one space: minute, hour, day (1 to 31), month, day of week, as in crontab(5).
	// No seconds, no macros as @daily, no TZ=.
	// +kubebuilder:validation:MaxLength=256
	// +required
	Cron string `json:"cron"`

	// The zone whose clock cron is of, by its name in the IANA tables, as Europe/Berlin. A time that the clock skips comes at the
	// gap's end, one that it shows twice the first time; with * in minute or hour real time counts. Default Etc/UTC.
	// +kubebuilder:default="Etc/UTC"
	// +kubebuilder:validation:MaxLength=64
	// +optional
	TimeZone string `json:"timeZone,omitempty"`

	// How long after its instant a tick may be started; later it is missed. 10s to 168h, default 1h.
	// +kubebuilder:default="1h"
	// +optional
	StartingDeadline metav1.Duration `json:"startingDeadline,omitzero"`

	// Which ticks are made up for that were due while nobody could start them. Skip: none, a tick is started within a minute or
	// never. Latest: the newest. All: all, the oldest first; of more than 100 the oldest are missed. Default Latest.
	// +kubebuilder:default=Latest
	// +kubebuilder:validation:Enum=Skip;Latest;All
	// +optional
	CatchUp string `json:"catchUp,omitempty"`

	// What becomes of a tick that comes due during a run. Skip: it is passed over. Queue: it waits for the run's end. Replace: the
	// run is stopped for it, and all its processes are dead before the next begins. Not Replace with catchUp All. Default Skip.
	// +kubebuilder:default=Skip
	// +kubebuilder:validation:Enum=Skip;Queue;Replace
	// +optional
	Overlap string `json:"overlap,omitempty"`

	// OnDemand: candidates exist from leadTime before a tick until its run has ended. Warm: always. Default OnDemand.
	// +kubebuilder:default=OnDemand
	// +kubebuilder:validation:Enum=OnDemand;Warm
	// +optional
	Standby string `json:"standby,omitempty"`

	// How long before a tick its candidates are made, with standby OnDemand: what it takes to pull images and start pods. 0s to 1h,
	// default 60s.
	// +kubebuilder:default="60s"
	// +optional
	LeadTime *metav1.Duration `json:"leadTime,omitempty"`
}

// RunUnknown is the state of a run whose end nobody has told: the Lease keeps the last ones only.
const RunUnknown = "Unknown"

// RunStatus is one run.
type RunStatus struct {
	// Its idempotency key, which the process finds in SINGLETONJOB_RUN_ID.
	// +required
	ID string `json:"id"`

	// The tick that it is for.
	// +optional
	Tick *metav1.Time `json:"tick,omitempty"`

	// Running, Failed (another attempt follows), Complete, GivenUp (it has failed, and none follows), Replaced, or Unknown: it has
	// ended while no operator looked, and the Lease no longer tells how.
	// +required
	State string `json:"state"`

	// How many attempts there were.
	// +optional
	Attempts int32 `json:"attempts,omitempty"`

	// The fencing token of the last attempt.
	// +optional
	Token int64 `json:"token,omitempty"`

	// The pod of the last attempt.
	// +optional
	Pod string `json:"pod,omitempty"`

	// The exit code of the last attempt that has ended.
	// +optional
	ExitCode *int32 `json:"exitCode,omitempty"`

	// Why that attempt ended.
	// +optional
	Reason string `json:"reason,omitempty"`

	// When the first attempt began.
	// +optional
	StartTime *metav1.Time `json:"startTime,omitempty"`

	// When the last attempt ended, of a run that is over.
	// +optional
	EndTime *metav1.Time `json:"endTime,omitempty"`
}
