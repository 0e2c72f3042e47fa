// Package contract holds what the operator and the agent share: names, the agent's configuration, exit codes, and the codec between a
// Lease's fields and lease.Record. It imports no Kubernetes library, so that the agent stays small.
package contract

import (
	"github.com/singletonjob/operator/fence"
	"github.com/singletonjob/operator/tenure"
)

// Labels. A Lease without ManagedByLabel=ManagedBy does not belong to the operator.
const (
	ManagedByLabel    = "app.kubernetes.io/managed-by"
	ManagedBy         = "singletonjob"
	NameLabel         = "singletonjob.io/name"
	RoleLabel         = "singletonjob.io/role"
	TemplateHashLabel = "singletonjob.io/template-hash"
	PodLabel          = "singletonjob.io/pod" // a candidate's own name, so that a Service can select it
)

// Values of RoleLabel on candidate Pods.
const (
	RoleActive  = "active"
	RoleStandby = "standby"
)

// GatedAnnotation of a candidate Pod names its gated container. The operator sets it when it creates the Pod. A user with the right to
// change Pods can change it later, so it can only invalidate a proof that a process has ended, never provide one.
const GatedAnnotation = "singletonjob.io/gated-container"

// AgentImageAnnotation of a candidate Pod is the image of its agent, as configured in the operator that created the Pod. It is
// informational, for users and metrics. It is not part of the template hash, so a new agent image alone causes no rollout.
const AgentImageAnnotation = "singletonjob.io/agent-image"

// ServiceAnnotationsAnnotation of a Service lists the annotations that come from spec.service, separated by commas.
const ServiceAnnotationsAnnotation = "singletonjob.io/annotations"

// Annotations of a SingletonJob with which a user requests a single action.
const (
	// RestartedAtAnnotation starts a rollout when its value changes. The value can be any text; a time is usual. Use it if the template
	// must stay unchanged. kubectl.kubernetes.io/restartedAt in the template has the same effect.
	RestartedAtAnnotation = "singletonjob.io/restartedAt"
	// SwitchoverAnnotation requests a handover: "POD@TOKEN" to that standby, "*@TOKEN" to any. It applies only to the tenure with that
	// token (status.fencingToken), so the operator follows it once and ignores it from then on. Until then, removing the annotation
	// withdraws the request.
	SwitchoverAnnotation = "singletonjob.io/switchover"
	// RunNowAnnotation requests a run outside the schedule: "NAME", or "NAME@TICK" for that tick. Each name is followed once.
	RunNowAnnotation = "singletonjob.io/run"
)

// Annotations of the Lease. LeaseDurationAnnotation repeats leaseDurationSeconds, because client-go's electors and users change that field;
// the longer duration counts. Agents write all of these except HandoverToAnnotation, HandoverReasonAnnotation and TokenBaseAnnotation,
// which the operator writes.
const (
	TokenAnnotation          = "singletonjob.io/fencing-token"
	ReleaseReasonAnnotation  = "singletonjob.io/release-reason"
	HandoverToAnnotation     = "singletonjob.io/handover-to"
	HandoverReasonAnnotation = "singletonjob.io/handover-reason"
	TokenBaseAnnotation      = "singletonjob.io/token-base"
	HistoryAnnotation        = "singletonjob.io/history"
	LeaseDurationAnnotation  = "singletonjob.io/lease-duration"
)

// Annotations of the Lease of a job that runs to completion. The operator writes ScheduleAnnotation and RunRequestAnnotation; the acquire
// that follows a request removes RunRequestAnnotation. Agents write the others. The operator also writes these when a schedule is changed,
// suspended or resumed.
const (
	ScheduleAnnotation   = "singletonjob.io/schedule"
	RunRequestAnnotation = "singletonjob.io/run-request" // NAME or NAME@TICK
	TickAnnotation       = "singletonjob.io/tick"        // all ticks up to here are accounted for; never decreases
	RunAnnotation        = "singletonjob.io/run"
)

// Environment of the gated container that the operator sets for the agent.
const (
	// ConfigEnv holds the AgentConfig.
	ConfigEnv = "SINGLETONJOB_CONFIG"
	// PodEnv, PodUIDEnv, NodeEnv and NamespaceEnv come from the downward API.
	PodEnv       = "SINGLETONJOB_POD"
	PodUIDEnv    = "SINGLETONJOB_POD_UID"
	NodeEnv      = "SINGLETONJOB_NODE"
	NamespaceEnv = fence.EnvNamespace
	// PodIPEnv also comes from the downward API. It is the address of probes without a host, and is set only if there are such probes.
	PodIPEnv = "SINGLETONJOB_POD_IP"
	// APIHostEnv and APIPortEnv are the address of the API server. KUBERNETES_SERVICE_HOST and KUBERNETES_SERVICE_PORT belong to the user's
	// process, which can be configured to use another server, or none.
	APIHostEnv = "SINGLETONJOB_API_HOST"
	APIPortEnv = "SINGLETONJOB_API_PORT"
	// CredentialsEnv overrides CredentialsDir for agents that run outside a Pod.
	CredentialsEnv = "SINGLETONJOB_CREDENTIALS_DIR"
	// RuntimeReapsEnv is "true" if the runtime ends all processes of a container before it restarts the container, even if the agent is not
	// PID 1 in it.
	RuntimeReapsEnv = "SINGLETONJOB_RUNTIME_REAPS"
	// RuntimeAddressEnv is the only address that the agent's port may listen on, for Pods without a network namespace of their own. If it
	// is not set, as in Kubernetes, the port listens on all addresses.
	RuntimeAddressEnv = "SINGLETONJOB_RUNTIME_ADDRESS"
)

// AgentsEnv returns the variables that only the agent gets. The agent removes them from the environment of the process.
func AgentsEnv() []string {
	return []string{
		ConfigEnv, PodUIDEnv, NodeEnv, PodIPEnv, APIHostEnv, APIPortEnv, CredentialsEnv, RuntimeReapsEnv, RuntimeAddressEnv,
	}
}

// Environment that the agent adds for the user's process, besides the variable that fencing.envVar names, PodEnv and NamespaceEnv. Names
// that packages fence and tenure document for users are defined there.
const (
	NameEnv          = fence.EnvName
	TenureEnv        = "SINGLETONJOB_TENURE"         // the Lease's leaseTransitions
	LeaseDurationEnv = "SINGLETONJOB_LEASE_DURATION" // in Go's format: 15s
	RunIDEnv         = "SINGLETONJOB_RUN_ID"         // the same for all attempts of a run
	// For runs that end. The two variables with a tick are set only if there is a tick.
	TickEnv         = "SINGLETONJOB_TICK"          // the tick of this run
	PreviousTickEnv = "SINGLETONJOB_PREVIOUS_TICK" // the tick of the last completed run
	AttemptEnv      = "SINGLETONJOB_ATTEMPT"       // from 1
	SocketEnv       = tenure.EnvSocket             // path of the agent's Unix socket for status queries
)

// Places inside the gated container.
const (
	// VolumePrefix begins the names of the volumes that the operator adds.
	VolumePrefix = "singletonjob-"
	// AgentDir is the directory of the binary (see `agent install`). The gated container cannot write there.
	AgentDir  = "/singletonjob/bin"
	AgentPath = AgentDir + "/agent"
	// RunDir is the directory of the socket and of the agents' locks. It does not exist where the agent's image is a volume.
	RunDir = "/singletonjob/run"
	// AgentRun is the agent's subcommand that runs a command.
	AgentRun = "run"
	// CredentialsDir holds token, ca.crt and namespace of the agent's own identity, which is bound to the Pod. It is not below
	// /var/run/secrets: a user's Secret can be mounted there read-only, and a runtime cannot create a mount point in it.
	CredentialsDir = "/singletonjob/credentials"
	// InstallContainer is the name of the init container.
	InstallContainer = "singletonjob-install"
)

// The agent's HTTP port, for the kubelet's probes and for metrics.
const (
	DefaultPort = 18282
	PortName    = "singletonjob"
	ReadyPath   = "/readyz" // success for a candidate that has read the Lease and watches it
	LivePath    = "/livez"
	MetricsPath = "/metrics"
)

// Exit codes of the agent itself. All other codes come from the process: its exit code, or 128+n for signal n. As in a shell, 126 and 127
// mean that its command could not be executed or was not found.
const (
	// ExitUsage: a wrong command line.
	ExitUsage = 64
	// ExitConfig: a wrong configuration; a restart does not help. The operator reports it in a condition.
	ExitConfig = 78
	// ExitNoAgent: used by check and lease only; no agent answered.
	ExitNoAgent = 69
	// ExitInternal: a defect, or the operating system refused something.
	ExitInternal = 70
)
