package v1alpha1

import (
	"fmt"
	"slices"
	"strings"
	"time"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/util/validation/field"

	"github.com/singletonjob/operator/internal/schedule"
)

// The limits of runs.
const (
	MaxBackoffLimit          int32 = 100
	MaxActiveDeadlineSeconds int64 = 365 * 24 * 60 * 60
	MaxLeadTime                    = time.Hour

	maxExitCode = 255
	maxCron     = 256
	maxTimeZone = 64
)

const (
	onlyOfRuns = "valid only with runPolicy RunToCompletion, which you can set only when you create a job: remove it, or create a job with that policy"
	noTicks    = "the job would be deleted before its next tick: remove it, or remove schedule"
	notOfRuns  = "a Deployment or StatefulSet runs indefinitely, a job with runPolicy RunToCompletion does not: put the pod template into spec.template"
)

func validateRuns(spec *SingletonJobSpec, at *field.Path) field.ErrorList {
	errs := validateRunPolicy(spec, at)
	errs = append(errs, validateRunLimits(spec, at)...)
	return append(errs, validateSchedule(spec.Schedule, at.Child("schedule"))...)
}

// validateRunPolicy checks which fields can be combined with a run policy.
func validateRunPolicy(spec *SingletonJobSpec, at *field.Path) field.ErrorList {
	var errs field.ErrorList
	if policies := []RunPolicy{RunPolicyContinuous, RunPolicyRunToCompletion}; !slices.Contains(policies, spec.RunPolicy) {
		errs = append(errs, field.NotSupported(at.Child("runPolicy"), spec.RunPolicy, policies))
	}
	forbid := func(found bool, name, detail string) {
		if found {
			errs = append(errs, field.Forbidden(at.Child(name), detail))
		}
	}
	runs := spec.RunPolicy == RunPolicyRunToCompletion
	forbid(!runs && spec.Schedule != nil, "schedule", onlyOfRuns)
	forbid(!runs && spec.BackoffLimit != nil, "backoffLimit", onlyOfRuns)
	forbid(!runs && spec.ActiveDeadlineSeconds != nil, "activeDeadlineSeconds", onlyOfRuns)
	forbid(!runs && spec.TTLSecondsAfterFinished != nil, "ttlSecondsAfterFinished", onlyOfRuns)
	forbid(!runs && len(spec.FailOnExitCodes) > 0, "failOnExitCodes", onlyOfRuns)
	forbid(!runs && len(spec.IgnoreOnExitCodes) > 0, "ignoreOnExitCodes", onlyOfRuns)
	forbid(spec.Schedule != nil && spec.TTLSecondsAfterFinished != nil, "ttlSecondsAfterFinished", noTicks)
	forbid(runs && spec.WorkloadRef != nil, "workloadRef", notOfRuns)
	if runs && spec.Lease.OnRenewFailure == OnRenewFailureKeepRunning {
		errs = append(errs, field.Invalid(at.Child("lease", "onRenewFailure"), spec.Lease.OnRenewFailure,
			`"KeepRunning" is not accepted with runPolicy RunToCompletion, because two attempts of a run could run at once: set Stop, or remove it`))
	}
	return errs
}

func validateRunLimits(spec *SingletonJobSpec, at *field.Path) field.ErrorList {
	var errs field.ErrorList
	if n := spec.BackoffLimit; n != nil {
		errs = append(errs, outside(at.Child("backoffLimit"), *n, 0, MaxBackoffLimit)...)
	}
	if n := spec.ActiveDeadlineSeconds; n != nil {
		errs = append(errs, outside(at.Child("activeDeadlineSeconds"), *n, 1, MaxActiveDeadlineSeconds)...)
	}
	if n := spec.TTLSecondsAfterFinished; n != nil && *n < 0 {
		errs = append(errs, outside(at.Child("ttlSecondsAfterFinished"), *n, 0, *n)...)
	}
	errs = append(errs, validateExitCodes(spec.FailOnExitCodes, at.Child("failOnExitCodes"))...)
	errs = append(errs, validateExitCodes(spec.IgnoreOnExitCodes, at.Child("ignoreOnExitCodes"))...)
	if both := slices.IndexFunc(spec.IgnoreOnExitCodes, func(code int32) bool { return slices.Contains(spec.FailOnExitCodes, code) }); both >= 0 {
		code := spec.IgnoreOnExitCodes[both]
		errs = append(errs, field.Invalid(at.Child("ignoreOnExitCodes"), code, fmt.Sprintf("%d is in failOnExitCodes too: remove it from one of the lists", code)))
	}
	return errs
}

func validateExitCodes(codes []int32, at *field.Path) field.ErrorList {
	var errs field.ErrorList
	for i, code := range codes {
		errs = append(errs, outside(at.Index(i), code, 1, maxExitCode)...)
		if slices.Contains(codes[:i], code) {
			errs = append(errs, field.Duplicate(at.Index(i), code))
		}
	}
	return errs
}

// validateSchedule checks the same as the CRD, and also what no CRD rule can check: the contents of cron's fields, and whether the time
// zone exists. The operator reports such an error with the reason InvalidSpec.
func validateSchedule(s *Schedule, at *field.Path) field.ErrorList {
	if s == nil {
		return nil
	}
	errs := validateTicks(s, at)
	if d := s.StartingDeadline.Duration; d < schedule.MinStartingDeadline || d > schedule.MaxStartingDeadline {
		errs = append(errs, field.Invalid(at.Child("startingDeadline"), d.String(), inSeconds(d)+" is not accepted: from 10s to 168h"))
	}
	if d := s.LeadTime.Duration; d < 0 || d > MaxLeadTime {
		errs = append(errs, field.Invalid(at.Child("leadTime"), d.String(), inSeconds(d)+" is not accepted: from 0s to 1h"))
	}
	for _, f := range []struct {
		name, value string
		values      []string
	}{
		{"catchUp", s.CatchUp, []string{string(schedule.CatchUpSkip), string(schedule.CatchUpLatest), string(schedule.CatchUpAll)}},
		{"overlap", s.Overlap, []string{string(schedule.OverlapSkip), string(schedule.OverlapQueue), string(schedule.OverlapReplace)}},
		{"standby", s.Standby, []string{StandbyOnDemand, StandbyWarm}},
	} {
		if !slices.Contains(f.values, f.value) {
			errs = append(errs, field.NotSupported(at.Child(f.name), f.value, f.values))
		}
	}
	if s.Overlap == string(schedule.OverlapReplace) && s.CatchUp == string(schedule.CatchUpAll) {
		errs = append(errs, field.Invalid(at.Child("overlap"), s.Overlap,
			`"Replace" is not accepted with catchUp All, because its runs would stop each other: set Queue, or catchUp Latest`))
	}
	return errs
}

func validateTicks(s *Schedule, at *field.Path) field.ErrorList {
	var errs field.ErrorList
	for _, f := range []struct {
		name, value string
		most        int
		alone       schedule.Spec
	}{
		{"cron", s.Cron, maxCron, schedule.Spec{Cron: s.Cron}},
		{"timeZone", s.TimeZone, maxTimeZone, schedule.Spec{Cron: "* * * * *", TimeZone: s.TimeZone}},
	} {
		at := at.Child(f.name)
		if len(f.value) > f.most {
			errs = append(errs, field.TooLong(at, "", f.most))
		} else if _, err := schedule.Parse(f.alone); err != nil {
			errs = append(errs, field.Invalid(at, f.value, strings.TrimPrefix(err.Error(), at.String()+": ")))
		}
	}
	return errs
}

// validateRestarts checks a field that the operator sets itself. A template can have the values that a Deployment or a Job would have.
func validateRestarts(policy corev1.RestartPolicy, runs RunPolicy, at *field.Path) field.ErrorList {
	accepted, detail := []corev1.RestartPolicy{"", corev1.RestartPolicyAlways},
		"is not accepted: set Always, or remove it, because a candidate lives through many tenures"
	if runs == RunPolicyRunToCompletion {
		accepted, detail = []corev1.RestartPolicy{"", corev1.RestartPolicyOnFailure, corev1.RestartPolicyNever},
			"is not accepted with runPolicy RunToCompletion: set OnFailure or Never, or remove it; in each case attempts follow as spec.backoffLimit allows"
	}
	if slices.Contains(accepted, policy) {
		return nil
	}
	return field.ErrorList{field.Invalid(at, policy, fmt.Sprintf("%q %s", policy, detail))}
}

func validateSameRunPolicy(was, is RunPolicy, at *field.Path) field.ErrorList {
	setDefault(&was, RunPolicyContinuous)
	setDefault(&is, RunPolicyContinuous)
	if was == is {
		return nil
	}
	return field.ErrorList{field.Invalid(at, is, fmt.Sprintf("%q can't replace %q: create a job with another name, or delete this one first", is, was))}
}
