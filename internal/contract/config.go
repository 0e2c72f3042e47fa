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

// AgentConfig is what the operator tells an agent, as JSON in ConfigEnv. Durations are Go's: 15s, 500ms.
type AgentConfig struct {
	// Name is the SingletonJob's and its Lease's.
	Name string `json:"name"`
	// Pod is the name of the pod that this was written for. A copy of the pod has it too, under a name of its own, so an agent that finds
	// itself in another pod refuses to run. Empty where no operator made the pod.
	Pod string `json:"pod,omitempty"`
	// RunID is an idempotency key: the same for every tenure of the same run. Runs that end have one each: see Run.
	RunID string `json:"runID"`
	// TokenEnv is the variable in which the process finds its token.
	TokenEnv string `json:"tokenEnv"`

	// Marks is the secret of the marks (MarkReferences) in the command, and in the values of variables; empty where there are none.
	Marks string `json:"marks,omitempty"`

	LeaseDuration Duration `json:"leaseDuration"`
	RenewDeadline Duration `json:"renewDeadline"`
	RetryPeriod   Duration `json:"retryPeriod"`
	LockDelay     Duration `json:"lockDelay,omitzero"`
	KeepRunning   bool     `json:"keepRunning,omitempty"`

	// GracePeriod is the pod's terminationGracePeriodSeconds.
	GracePeriod Duration `json:"gracePeriod"`
	// Jitter spreads candidates that would take over at one instant.
	Jitter Duration `json:"jitter,omitzero"`
	// PreActivate is what runs before the process.
	PreActivate *PreActivate `json:"preActivate,omitempty"`
	// Hooks of the process.
	Hooks Hooks `json:"hooks,omitzero"`
	// StopSignal is the name of the signal that asks the process to end, one of StopSignals; empty for SIGTERM, or the one that the agent got.
	StopSignal string `json:"stopSignal,omitempty"`
	// Port serves probes and metrics; 0 serves none.
	Port int `json:"port,omitempty"`
	// Probes are the user's own.
	Probes Probes `json:"probes,omitzero"`
	// Run is nil where the process is to run for ever.
	Run *RunConfig `json:"run,omitempty"`
}

// RunConfig has the process run to completion, once for each run. When runs are due stands in the Lease.
type RunConfig struct {
	// JobUID is the SingletonJob's, with which the IDs of its runs begin.
	JobUID string `json:"jobUID"`
	// BackoffLimit is how many attempts a run has after the first.
	BackoffLimit int32 `json:"backoffLimit"`
	// ActiveDeadline is how long a run may last from its first attempt on; 0 for ever.
	ActiveDeadline Duration `json:"activeDeadline,omitzero"`
	// FailCodes are exit codes after which no attempt follows.
	FailCodes []int32 `json:"failCodes,omitempty"`
	// Leaves has the agent end when the run that its pod ran last is over, and nothing is asked for.
	Leaves bool `json:"leaves,omitempty"`
}

// Duration is a time.Duration that is text in JSON.
type Duration time.Duration

// MarshalText writes 1m30s.
func (d Duration) MarshalText() ([]byte, error) { return []byte(time.Duration(d).String()), nil }

// UnmarshalText reads 1m30s.
func (d *Duration) UnmarshalText(text []byte) error {
	parsed, err := time.ParseDuration(string(text))
	*d = Duration(parsed)
	return err
}

// Encode is the value of ConfigEnv. Equal configurations have equal encodings.
func (c AgentConfig) Encode() string { return Encode(c) }

// Encode is a part of a configuration as it is in the whole.
func Encode(part any) string {
	var text strings.Builder
	e := json.NewEncoder(&text)
	e.SetEscapeHTML(false) // scripts are full of < and &, and there is an end to what a variable can hold
	if err := e.Encode(part); err != nil {
		panic(err) // no field of it can fail to encode
	}
	// The kubelet replaces $(NAME) in the values of variables, too. A $ is only ever within a string.
	return strings.ReplaceAll(strings.TrimSpace(text.String()), "$", `\u0024`)
}

// MaxConfig bounds AgentConfig.Encode, in bytes: Linux executes nothing that has a variable of 128 KiB or more, its name included.
const MaxConfig = 120 << 10

// DecodeConfig reads the value of ConfigEnv. Errors name the field and the remedy. Unknown fields are refused: they may
// be what safety depends on, and operator and agent come from one image.
func DecodeConfig(text string) (AgentConfig, error) {
	var c AgentConfig
	if text == "" {
		return c, fmt.Errorf("%s is not set: the agent runs in a container that the SingletonJob operator made", ConfigEnv)
	}
	d := json.NewDecoder(bytes.NewBufferString(text))
	d.DisallowUnknownFields()
	if err := d.Decode(&c); err != nil {
		return AgentConfig{}, fmt.Errorf("%s is not a configuration of this version of the agent: %w", ConfigEnv, err)
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
	refuse(d%time.Second != 0, "leaseDuration %v is not in whole seconds", d)
	refuse(p < lease.MinRetryPeriod, "retryPeriod %v is less than %v", p, lease.MinRetryPeriod)
	refuse(p > lease.MaxRetryPeriod(r), "retryPeriod %v leaves no time to repeat a renewal within renewDeadline %v: at most %v", p, r, lease.MaxRetryPeriod(r))
	refuse(r > lease.MaxRenewDeadline(d), "renewDeadline %v leaves no time to stop within leaseDuration %v: at most %v", r, d, lease.MaxRenewDeadline(d))
	refuse(c.LockDelay < 0, "lockDelay %v is negative", time.Duration(c.LockDelay))
	refuse(c.Jitter < 0, "jitter %v is negative", time.Duration(c.Jitter))
	refuse(c.GracePeriod < 0, "gracePeriod %v is negative", time.Duration(c.GracePeriod))
	refuse(c.KeepRunning && c.LockDelay > 0, "keepRunning and lockDelay contradict each other")
	pre := c.PreActivate
	refuse(pre != nil && (len(pre.Exec) == 0 || pre.Timeout <= 0), "preActivate needs a command and a positive timeout")
	for name, hook := range map[string]*Hook{"postStart": c.Hooks.PostStart, "preStop": c.Hooks.PreStop} {
		err := hook.validate()
		refuse(err != nil, "hooks.%s: %v", name, err)
	}
	refuse(c.StopSignal != "" && SignalNumber(c.StopSignal) == 0, "stopSignal %q is not one of %v", c.StopSignal, StopSignals())
	refuse(c.Port < 0 || c.Port > math.MaxUint16, "port %d is not a port", c.Port)
	refuse(c.KeepRunning && c.Run != nil, "keepRunning and run contradict each other: two runs could act at once")
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
	refuse(uid(r.JobUID) == "", "jobUID %q is no UID: %d letters, digits and dashes at most", Cut(r.JobUID, maxWord), maxUID)
	refuse(r.BackoffLimit < 0, "backoffLimit %d is negative", r.BackoffLimit)
	refuse(r.ActiveDeadline < 0, "activeDeadline %v is negative", time.Duration(r.ActiveDeadline))
	for _, code := range r.FailCodes {
		refuse(code < 1 || code > math.MaxUint8, "failCodes %d is not an exit code of a failure: from 1 to %d", code, math.MaxUint8)
	}
	return errors.Join(errs...)
}

// lease is what the state machine is told of it.
func (r *RunConfig) lease() *lease.RunPolicy {
	if r == nil {
		return nil
	}
	return &lease.RunPolicy{
		UID:            r.JobUID,
		BackoffLimit:   r.BackoffLimit,
		ActiveDeadline: time.Duration(r.ActiveDeadline),
		FailCodes:      r.FailCodes,
		Leaves:         r.Leaves,
	}
}

// Lease is the state machine's configuration for an agent process.
func (c AgentConfig) Lease(id lease.Identity, node string, endProvesDeath bool) lease.Config {
	return lease.Config{
		Identity:       id,
		Node:           node,
		Duration:       time.Duration(c.LeaseDuration),
		RenewDeadline:  time.Duration(c.RenewDeadline),
		RetryPeriod:    time.Duration(c.RetryPeriod),
		LockDelay:      time.Duration(c.LockDelay),
		KeepRunning:    c.KeepRunning,
		GracePeriod:    usableGrace(time.Duration(c.GracePeriod)),
		Jitter:         time.Duration(c.Jitter),
		EndProvesDeath: endProvesDeath,
		Runs:           c.Run.lease(),
		StopSignal:     SignalNumber(c.StopSignal),
	}
}

// usableGrace leaves the agent a part of the pod's grace period in which to kill, reap and release, before the kubelet
// kills the agent itself.
func usableGrace(pod time.Duration) time.Duration {
	return pod - min(2*time.Second, pod/4)
}
