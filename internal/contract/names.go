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
)

// Values of RoleLabel on candidate pods.
const (
	RoleActive  = "active"
	RoleStandby = "standby"
)

// GatedAnnotation of a candidate pod names its gated container. The operator sets it when it makes the pod; those who may
// change pods can change it later, so it may only take proof away, never give any.
const GatedAnnotation = "singletonjob.io/gated-container"

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
	// RuntimeReapsEnv set to "true" says that whatever runs the container ends all its processes before it starts the
	// container anew, though the agent is not PID 1 there.
	RuntimeReapsEnv = "SINGLETONJOB_RUNTIME_REAPS"
	// RuntimeAddressEnv is the only address that the agent's port may listen on, where pods have no network namespace
	// of their own. Unset, as in Kubernetes: all.
	RuntimeAddressEnv = "SINGLETONJOB_RUNTIME_ADDRESS"
)

// Environment that the agent adds for the user's process, besides the variable that fencing.envVar names, PodEnv and
// NamespaceEnv. What packages fence and tenure tell users of has its name from there.
const (
	NameEnv          = fence.EnvName
	TenureEnv        = "SINGLETONJOB_TENURE"         // leaseTransitions
	LeaseDurationEnv = "SINGLETONJOB_LEASE_DURATION" // as Go writes a duration: 15s
	RunIDEnv         = "SINGLETONJOB_RUN_ID"
	SocketEnv        = tenure.EnvSocket // path of the Unix socket that tells of the tenure
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
	// CredentialsDir holds token, ca.crt and namespace of the agent's own, pod-bound identity.
	CredentialsDir = "/var/run/secrets/singletonjob.io/serviceaccount"
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
