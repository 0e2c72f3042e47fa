package contract

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"math"
	"strings"
	"time"

	"github.com/singletonjob/operator/internal/lease"
)

// AgentConfig is the agent's configuration. The operator writes it as JSON into ConfigEnv. Durations have Go's format: 15s, 500ms.
type AgentConfig struct {
	// Name is the name of the SingletonJob and its Lease.
	Name string `json:"name"`
	// Pod is the name of the Pod that the configuration was written for. A copy of the Pod has another name but the same configuration, so
	// an agent in a Pod with another name refuses to run. Pod is empty if no operator created the Pod.
	Pod string `json:"pod,omitempty"`
	// RunID is an idempotency key, the same for every tenure of a run. If Run is set, each run has its own key instead.
	RunID string `json:"runID"`
	// TokenEnv is the name of the variable that gives the process its token.
	TokenEnv string `json:"tokenEnv"`

	// Marks is the secret of the marks (see MarkReferences) in the command and in the values of variables. It is empty if there are no
	// marks.
	Marks string `json:"marks,omitempty"`

	LeaseDuration Duration `json:"leaseDuration"`
	RenewDeadline Duration `json:"renewDeadline"`
	RetryPeriod   Duration `json:"retryPeriod"`
	LockDelay     Duration `json:"lockDelay,omitzero"`
	KeepRunning   bool     `json:"keepRunning,omitempty"`

	// GracePeriod is the pod's terminationGracePeriodSeconds.
	GracePeriod Duration `json:"gracePeriod"`
	// Jitter is this candidate's extra delay. It spreads candidates that would otherwise take over at the same instant.
	Jitter Duration `json:"jitter,omitzero"`
	// PreActivate is a command that runs before the process.
	PreActivate *PreActivate `json:"preActivate,omitempty"`
	// Hooks are the lifecycle hooks of the process.
	Hooks Hooks `json:"hooks,omitzero"`
	// StopSignal is the name of the signal that asks the process to end, one of StopSignals. If it is empty, the process gets the signal
	// that the agent received, or SIGTERM.
	StopSignal string `json:"stopSignal,omitempty"`
	// Port is the port for probes and metrics. 0 disables both.
	Port int `json:"port,omitempty"`
	// Probes are the user's probes.
	Probes Probes `json:"probes,omitzero"`
	// Run is nil if the process runs indefinitely.
	Run *RunConfig `json:"run,omitempty"`
}

// RunConfig makes the process run to completion, once for each run. The Lease says when runs are due.
type RunConfig struct {
	// JobUID is the UID of the SingletonJob. The IDs of its runs begin with it.
	JobUID string `json:"jobUID"`
	// BackoffLimit is the number of attempts of a run after the first.
	BackoffLimit int32 `json:"backoffLimit"`
	// ActiveDeadline is the time limit of a run, counted from its first attempt. 0 means no limit.
	ActiveDeadline Duration `json:"activeDeadline,omitzero"`
	// FailCodes are the exit codes that end a run without another attempt.
	FailCodes []int32 `json:"failCodes,omitempty"`
	// IgnoreCodes are the exit codes of attempts that do not count towards BackoffLimit.
	IgnoreCodes []int32 `json:"ignoreCodes,omitempty"`
	// Leaves makes the agent exit when the latest run of its Pod is over and no run is requested.
	Leaves bool `json:"leaves,omitempty"`
}

// Duration is a time.Duration that is encoded as text in JSON.
type Duration time.Duration

// MarshalText writes 1m30s.
func (d Duration) MarshalText() ([]byte, error) { return []byte(time.Duration(d).String()), nil }

// UnmarshalText reads 1m30s.
func (d *Duration) UnmarshalText(text []byte) error {
	parsed, err := time.ParseDuration(string(text))
	*d = Duration(parsed)
	return err
}

// Encode returns the value of ConfigEnv. Equal configurations have equal encodings.
func (c AgentConfig) Encode() string { return Encode(c) }

// Encode returns the encoding of a part of a configuration, the same as in the encoded whole.
func Encode(part any) string {
	var text strings.Builder
	e := json.NewEncoder(&text)
	e.SetEscapeHTML(false) // scripts contain many < and &, and the size of a variable is limited
	if err := e.Encode(part); err != nil {
		panic(err) // no field of it can fail to encode
	}
	// The kubelet also expands $(NAME) in the values of variables. In JSON, $ occurs only inside strings.
	return strings.ReplaceAll(strings.TrimSpace(text.String()), "$", `\u0024`)
}

// MaxConfig is the maximum size of AgentConfig.Encode in bytes. On Linux, exec fails if a variable has 128 KiB or more, including its name.
const MaxConfig = 120 << 10

// DecodeConfig decodes the value of ConfigEnv. Its errors name the field and the remedy. It refuses unknown fields, because safety can
// depend on them. The operator and the agent come from one image, so a valid configuration has none.
func DecodeConfig(text string) (AgentConfig, error) {
	var c AgentConfig
	if text == "" {
		return c, fmt.Errorf("%s is not set: run the agent in a container that the SingletonJob operator created", ConfigEnv)
	}
	d := json.NewDecoder(bytes.NewBufferString(text))
	d.DisallowUnknownFields()
	if err := d.Decode(&c); err != nil {
		return AgentConfig{}, fmt.Errorf("%s is not a valid configuration for this version of the agent: %w", ConfigEnv, err)
	}
	return c, c.validate()
}

func (c AgentConfig) validate() error {
	d, r, p := time.Duration(c.LeaseDuration), time.Duration(c.RenewDeadline), time.Duration(c.RetryPeriod)
	var errs []error
	refuse := func(bad bool, format string, args ...any) {
		if bad {
			errs = append(errs, fmt.Errorf(ConfigEnv+": "+format, args...))
		}
	}
	refuse(c.Name == "", "name is empty")
	refuse(c.TokenEnv == "", "tokenEnv is empty: name the variable that holds the fencing token")
	refuse(d < lease.MinDuration || d > lease.MaxDuration, "leaseDuration %v is not between %v and %v", d, lease.MinDuration, lease.MaxDuration)
	refuse(d%time.Second != 0, "leaseDuration %v is not a whole number of seconds", d)
	refuse(p < lease.MinRetryPeriod, "retryPeriod %v is less than %v", p, lease.MinRetryPeriod)
	refuse(p > lease.MaxRetryPeriod(r), "retryPeriod %v leaves no time to retry a renewal within renewDeadline %v: use at most %v", p, r, lease.MaxRetryPeriod(r))
	refuse(r > lease.MaxRenewDeadline(d), "renewDeadline %v leaves no time to stop within leaseDuration %v: use at most %v", r, d, lease.MaxRenewDeadline(d))
	refuse(c.LockDelay < 0, "lockDelay %v is negative", time.Duration(c.LockDelay))
	refuse(c.Jitter < 0, "jitter %v is negative", time.Duration(c.Jitter))
	refuse(c.GracePeriod < 0, "gracePeriod %v is negative", time.Duration(c.GracePeriod))
	refuse(c.KeepRunning && c.LockDelay > 0, "keepRunning and lockDelay cannot be combined")
	pre := c.PreActivate
	refuse(pre != nil && (len(pre.Exec) == 0 || pre.Timeout <= 0), "preActivate needs a command and a positive timeout")
	for name, hook := range map[string]*Hook{"postStart": c.Hooks.PostStart, "preStop": c.Hooks.PreStop} {
		err := hook.validate()
		refuse(err != nil, "hooks.%s: %v", name, err)
	}
	refuse(c.StopSignal != "" && SignalNumber(c.StopSignal) == 0, "stopSignal %q is not one of %v", c.StopSignal, StopSignals())
	refuse(c.Port < 0 || c.Port > math.MaxUint16, "port %d is not between 0 and 65535", c.Port)
	refuse(c.KeepRunning && c.Run != nil, "keepRunning and run cannot be combined: two runs could act at once")
	return errors.Join(append(errs, c.Probes.validate(), c.Run.validate())...)
}

func (r *RunConfig) validate() error {
	if r == nil {
		return nil
	}
	var errs []error
	refuse := func(bad bool, format string, args ...any) {
		if bad {
			errs = append(errs, fmt.Errorf(ConfigEnv+": run."+format, args...))
		}
	}
	refuse(uid(r.JobUID) == "", "jobUID %q is not a UID of at most %d letters, digits and dashes", Cut(r.JobUID, maxWord), maxUID)
	refuse(r.BackoffLimit < 0, "backoffLimit %d is negative", r.BackoffLimit)
	refuse(r.ActiveDeadline < 0, "activeDeadline %v is negative", time.Duration(r.ActiveDeadline))
	for name, codes := range map[string][]int32{"failCodes": r.FailCodes, "ignoreCodes": r.IgnoreCodes} {
		for _, code := range codes {
			refuse(code < 1 || code > math.MaxUint8, "%s %d is not an exit code of a failure: from 1 to %d", name, code, math.MaxUint8)
		}
	}
	return errors.Join(errs...)
}

// lease returns the part that the state machine needs.
func (r *RunConfig) lease() *lease.RunPolicy {
	if r == nil {
		return nil
	}
	return &lease.RunPolicy{
		UID:            r.JobUID,
		BackoffLimit:   r.BackoffLimit,
		ActiveDeadline: time.Duration(r.ActiveDeadline),
		FailCodes:      r.FailCodes,
		IgnoreCodes:    r.IgnoreCodes,
		Leaves:         r.Leaves,
	}
}

// Lease returns the state machine's configuration for an agent process.
func (c AgentConfig) Lease(id lease.Identity, node string, endProvesDeath bool) lease.Config {
	return lease.Config{
		Identity:       id,
		Node:           node,
		Duration:       time.Duration(c.LeaseDuration),
		RenewDeadline:  time.Duration(c.RenewDeadline),
		RetryPeriod:    time.Duration(c.RetryPeriod),
		LockDelay:      time.Duration(c.LockDelay),
		KeepRunning:    c.KeepRunning,
		GracePeriod:    UsableGrace(time.Duration(c.GracePeriod)),
		Jitter:         time.Duration(c.Jitter),
		EndProvesDeath: endProvesDeath,
		Runs:           c.Run.lease(),
		StopSignal:     SignalNumber(c.StopSignal),
	}
}

// UsableGrace is the part of the Pod's grace period that the process can use. The agent needs the rest to kill, to reap and to release the
// Lease before the kubelet kills the agent itself.
func UsableGrace(pod time.Duration) time.Duration {
	return pod - min(2*time.Second, pod/4)
}
