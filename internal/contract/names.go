// Package contract is what the operator and the agent share: names, the agent's configuration, exit codes, and the one
// codec between a Lease's fields and lease.Record. It imports no Kubernetes library, so that the agent stays small.
package contract

import (
	"github.com/singletonjob/operator/fence"
	"github.com/singletonjob/operator/tenure"
)

// Labels. A Lease without ManagedByLabel=ManagedBy is somebody else's.
const (
	ManagedByLabel    = "app.kubernetes.io/managed-by"
	ManagedBy         = "singletonjob"
	NameLabel         = "singletonjob.io/name"
	RoleLabel         = "singletonjob.io/role"
	TemplateHashLabel = "singletonjob.io/template-hash"
	PodLabel          = "singletonjob.io/pod" // a candidate's own name, by which a Service selects one
)

// Values of RoleLabel on candidate pods.
const (
	RoleActive  = "active"
	RoleStandby = "standby"
)

// GatedAnnotation of a candidate pod names its gated container. The operator sets it when it makes the pod; those who may
// change pods can change it later, so it may only take proof away, never give any.
const GatedAnnotation = "singletonjob.io/gated-container"

// AgentImageAnnotation of a candidate pod is the image that its agent is of, as the operator that made the pod has it. It is for people and
// for metrics, and outside of the hash, so that another image of the agent alone is no rollout.
const AgentImageAnnotation = "singletonjob.io/agent-image"

// Annotations of a SingletonJob, by which people ask for something once.
const (
	// RestartedAtAnnotation makes a rollout of its change. Its value may be any text; a time is usual. It is for jobs whose
	// template is not to be changed for it; kubectl.kubernetes.io/restartedAt in the template does the same.
	RestartedAtAnnotation = "singletonjob.io/restartedAt"
	// SwitchoverAnnotation asks for a handover: "POD@TOKEN" to that standby, "*@TOKEN" to any, in the tenure with that token
	// (status.fencingToken) and in no other. So it is followed once, and means nothing from then on; until it is
	// followed, removing it withdraws it.
	SwitchoverAnnotation = "singletonjob.io/switchover"
	// RunNowAnnotation asks for a run beside the schedule: "NAME", or "NAME@TICK" for that tick. It is followed once for each name.
	RunNowAnnotation = "singletonjob.io/run"
)

// Annotations of the Lease. LeaseDurationAnnotation repeats leaseDurationSeconds, which client-go's electors and people
// change; the longer one counts. Agents write all but HandoverTo, HandoverReason and TokenBase, which are the operator's.
const (
	TokenAnnotation          = "singletonjob.io/fencing-token"
	ReleaseReasonAnnotation  = "singletonjob.io/release-reason"
	HandoverToAnnotation     = "singletonjob.io/handover-to"
	HandoverReasonAnnotation = "singletonjob.io/handover-reason"
	TokenBaseAnnotation      = "singletonjob.io/token-base"
	HistoryAnnotation        = "singletonjob.io/history"
	LeaseDurationAnnotation  = "singletonjob.io/lease-duration"
)

// Annotations of the Lease of a job that runs to completion. ScheduleAnnotation and RunRequestAnnotation are the operator's, but that
// the acquire that follows a request takes it away; the others are the agents', and the operator's where a schedule is changed,
// suspended or resumed.
const (
	ScheduleAnnotation   = "singletonjob.io/schedule"
	RunRequestAnnotation = "singletonjob.io/run-request" // NAME or NAME@TICK
	TickAnnotation       = "singletonjob.io/tick"        // up to when all ticks are accounted for; only grows
	RunAnnotation        = "singletonjob.io/run"
)

// Environment of the gated container, set by the operator for the agent.
const (
	// ConfigEnv holds the AgentConfig.
	ConfigEnv = "SINGLETONJOB_CONFIG"
	// PodEnv, PodUIDEnv, NodeEnv and NamespaceEnv come from the downward API.
	PodEnv       = "SINGLETONJOB_POD"
	PodUIDEnv    = "SINGLETONJOB_POD_UID"
	NodeEnv      = "SINGLETONJOB_NODE"
	NamespaceEnv = fence.EnvNamespace
	// PodIPEnv, from there too, is where probes without a host ask. It is set where there are such.
	PodIPEnv = "SINGLETONJOB_POD_IP"
	// APIHostEnv and APIPortEnv are where the API server is. KUBERNETES_SERVICE_HOST and PORT are the user's, who may want the
	// process to find another one, or none.
	APIHostEnv = "SINGLETONJOB_API_HOST"
	APIPortEnv = "SINGLETONJOB_API_PORT"
	// CredentialsEnv overrides CredentialsDir, for agents that run outside of a pod.
	CredentialsEnv = "SINGLETONJOB_CREDENTIALS_DIR"
	// RuntimeReapsEnv set to "true" says that whatever runs the container ends all its processes before it starts the
	// container anew, though the agent is not PID 1 there.
	RuntimeReapsEnv = "SINGLETONJOB_RUNTIME_REAPS"
	// RuntimeAddressEnv is the only address that the agent's port may listen on, where pods have no network namespace
	// of their own. Unset, as in Kubernetes: all.
	RuntimeAddressEnv = "SINGLETONJOB_RUNTIME_ADDRESS"
)

// AgentsEnv are the variables that are the agent's alone: no process finds them.
func AgentsEnv() []string {
	return []string{
		ConfigEnv, PodUIDEnv, NodeEnv, PodIPEnv, APIHostEnv, APIPortEnv, CredentialsEnv, RuntimeReapsEnv, RuntimeAddressEnv,
	}
}

// Environment that the agent adds for the user's process, besides the variable that fencing.envVar names, PodEnv and
// NamespaceEnv. What packages fence and tenure tell users of has its name from there.
const (
	NameEnv          = fence.EnvName
	TenureEnv        = "SINGLETONJOB_TENURE"         // leaseTransitions
	LeaseDurationEnv = "SINGLETONJOB_LEASE_DURATION" // as Go writes a duration: 15s
	RunIDEnv         = "SINGLETONJOB_RUN_ID"         // the same for all attempts of a run
	// Of runs that end. The two ticks are there where there is one.
	TickEnv         = "SINGLETONJOB_TICK"          // what the run is for
	PreviousTickEnv = "SINGLETONJOB_PREVIOUS_TICK" // that of the last run that was completed
	AttemptEnv      = "SINGLETONJOB_ATTEMPT"       // from 1
	SocketEnv       = tenure.EnvSocket             // path of the Unix socket that tells of the tenure
)

// Places inside the gated container.
const (
	// VolumePrefix begins the names of the volumes that the operator adds.
	VolumePrefix = "singletonjob-"
	// AgentDir is where `agent install` puts the binary and where the socket is.
	AgentDir  = "/singletonjob/bin"
	AgentPath = AgentDir + "/agent"
	// AgentRun is the agent's subcommand that runs a command.
	AgentRun = "run"
	// CredentialsDir holds token, ca.crt and namespace of the agent's own, pod-bound identity. It is not below /var/run/secrets, where
	// a user's Secret may be mounted, read-only, into which no runtime can mount it.
	CredentialsDir = "/singletonjob/credentials"
	// InstallContainer is the name of the init container.
	InstallContainer = "singletonjob-install"
)

// The agent's HTTP port, for the kubelet's probes and for metrics.
const (
	DefaultPort = 18282
	PortName    = "singletonjob"
	ReadyPath   = "/readyz" // a candidate that knows the Lease and hears of its changes
	LivePath    = "/livez"
	MetricsPath = "/metrics"
)

// Exit codes of the agent's own. All others are the process's: its exit status, or 128+n for signal n; 126 and 127 say,
// as in a shell, that its command could not be run or found.
const (
	// ExitUsage: a wrong command line.
	ExitUsage = 64
	// ExitConfig: a wrong configuration; running it again cannot help. The operator turns it into a condition.
	ExitConfig = 78
	// ExitNoAgent: of the agent's own questions (check, lease), that nobody could be asked.
	ExitNoAgent = 69
	// ExitInternal: a defect or a refusal of the operating system.
	ExitInternal = 70
)
