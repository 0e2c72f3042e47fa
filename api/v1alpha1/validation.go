package v1alpha1

import (
	"fmt"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"time"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/util/validation/field"
)

// The limits of the API. The CEL rules beside the types check the same; one table of cases tests both.
const (
	// MaxNameLength leaves room for the suffixes of the objects that are created for a job. The name of a pod is also its host name,
	// which has at most 63 characters.
	MaxNameLength = 52

	MinCandidates int32 = 1
	// MaxCandidates limits the number of agents that watch one Lease and that a release wakes at once. More standbys than failure domains
	// add no safety.
	MaxCandidates int32 = 16

	MaxHistoryLimit int32 = 100

	MinLeaseDuration = 3 * time.Second
	MaxLeaseDuration = time.Hour
	MinRetryPeriod   = 200 * time.Millisecond
	MaxLockDelay     = time.Hour
	// StopBudget is the least time between SIGTERM, at renewDeadline, and SIGKILL, at leaseDuration - margin.
	StopBudget = time.Second

	// MaxTokenBase keeps tokens below 2^53, so that sinks that store numbers as doubles (JSON in JavaScript, Lua) still compare them
	// exactly.
	MaxTokenBase int64 = 1 << 52
)

// Names and values in a template that are reserved for the agent and the operator. Everything that they add to a pod is within these
// limits.
const (
	// ReservedEnvPrefix is the prefix of the environment variables that the agent reads and sets. No container of a template can set them.
	ReservedEnvPrefix = "SINGLETONJOB_"
	// ReservedNamePrefix is the prefix of the names of containers and volumes that the operator adds. No container of a template can mount
	// such a volume.
	ReservedNamePrefix = "singletonjob-"
	// ReservedMountPath is the directory of the gated container where the agent and its credentials are mounted.
	ReservedMountPath = "/singletonjob"
	// ReservedKeyPrefix is the prefix of the operator's labels and annotations.
	ReservedKeyPrefix = GroupName + "/"
)

var (
	dnsLabel = regexp.MustCompile(`^[a-z0-9]([-a-z0-9]*[a-z0-9])?$`)
	// takenEnv matches variables that a process needs to be found, or to run as it does without a token.
	takenEnv    = regexp.MustCompile(`^(PATH|HOME|HOSTNAME|PWD|KUBERNETES_.*|LD_.*)$`)
	cIdentifier = regexp.MustCompile(`^[A-Za-z_][A-Za-z0-9_]{0,62}$`)
)

// Validate returns what is wrong with job. It treats unset fields as their defaults. Validate checks the same rules as the API server does
// with the CRD, so it finds nothing wrong with an object that was stored under this CRD. It is for objects that were stored under another
// version of the CRD, and for programs that check an object before they send it.
func Validate(job *SingletonJob) field.ErrorList {
	job = job.DeepCopy()
	Default(job)
	spec := field.NewPath("spec")
	errs := validateName(job.Name)
	errs = append(errs, validateBounds(&job.Spec, spec)...)
	errs = append(errs, validateLease(&job.Spec.Lease, spec.Child("lease"))...)
	errs = append(errs, validateFencing(&job.Spec.Fencing, spec.Child("fencing"))...)
	errs = append(errs, validateRuns(&job.Spec, spec)...)
	errs = append(errs, validatePreActivate(job.Spec.PreActivate, spec.Child("preActivate"))...)
	errs = append(errs, validateStrategy(&job.Spec.Strategy, spec.Child("strategy"))...)
	errs = append(errs, validateService(job.Spec.Service, spec.Child("service"))...)
	errs = append(errs, validateSource(job, spec)...)
	if job.HasTemplate() {
		errs = append(errs, validateTemplate(job, spec.Child("template"))...)
	}
	return errs
}

func validateTemplate(job *SingletonJob, template *field.Path) field.ErrorList {
	errs := validateMetadata(&job.Spec.Template, template.Child("metadata"))
	errs = append(errs, validatePod(&job.Spec.Template.Spec, job.Spec.RunPolicy, template.Child("spec"))...)
	errs = append(errs, validateReservedNames(&job.Spec.Template.Spec, template.Child("spec"))...)
	containers := template.Child("spec", "containers")
	errs = append(errs, validateProbes(job.Spec.Template.Spec.Containers, containers)...)
	errs = append(errs, validateHooks(job.Spec.Template.Spec.Containers, containers)...)
	return append(errs, validateGated(job, containers)...)
}

// ValidateUpdate returns what is wrong with job, and with the change from old to job.
func ValidateUpdate(old, job *SingletonJob) field.ErrorList {
	errs := append(Validate(job), validateSameRunPolicy(old.Spec.RunPolicy, job.Spec.RunPolicy, field.NewPath("spec", "runPolicy"))...)
	if was, is := old.Spec.Fencing.TokenBase, job.Spec.Fencing.TokenBase; is < was {
		errs = append(errs, field.Invalid(field.NewPath("spec", "fencing", "tokenBase"), is,
			fmt.Sprintf("%d is less than before: at least %d, because sinks have seen tokens above it", is, was)))
	}
	return errs
}

func validateName(name string) field.ErrorList {
	if len(name) <= MaxNameLength && dnsLabel.MatchString(name) {
		return nil
	}
	return field.ErrorList{field.Invalid(field.NewPath("metadata", "name"), name, fmt.Sprintf(
		"%q is not accepted: at most %d characters of a-z, 0-9 and - that begin and end with a letter or digit, because "+
			"the names and host names of the pods begin with it", name, MaxNameLength))}
}

func validateBounds(spec *SingletonJobSpec, at *field.Path) field.ErrorList {
	errs := outside(at.Child("candidates"), spec.Candidates, MinCandidates, MaxCandidates)
	return append(errs, outside(at.Child("historyLimit"), *spec.HistoryLimit, 0, MaxHistoryLimit)...)
}

func outside[T int32 | int64](at *field.Path, value, low, high T) field.ErrorList {
	switch {
	case value < low:
		return field.ErrorList{field.Invalid(at, value, fmt.Sprintf("%s in body should be greater than or equal to %d", at, low))}
	case value > high:
		return field.ErrorList{field.Invalid(at, value, fmt.Sprintf("%s in body should be less than or equal to %d", at, high))}
	}
	return nil
}

func validateLease(lease *LeaseSpec, at *field.Path) field.ErrorList {
	var errs field.ErrorList
	invalid := func(name string, value time.Duration, format string, args ...any) {
		errs = append(errs, field.Invalid(at.Child(name), value.String(), inSeconds(value)+" "+fmt.Sprintf(format, args...)))
	}
	duration, deadline := lease.LeaseDuration.Duration, lease.RenewDeadline.Duration
	retry, delay := lease.RetryPeriod.Duration, lease.LockDelay.Duration

	if duration%time.Second != 0 || duration < MinLeaseDuration || duration > MaxLeaseDuration {
		invalid("leaseDuration", duration, "is not accepted: whole seconds, from 3s to 1h")
	} else if most := MaxRenewDeadline(duration); deadline > most {
		invalid("renewDeadline", deadline, "is too long for leaseDuration %s: at most %s (leaseDuration less the safety "+
			"margin, less 1s for the process to stop), or a longer leaseDuration", inSeconds(duration), inSeconds(most))
	}
	if retry < MinRetryPeriod {
		invalid("retryPeriod", retry, "is too short: at least 200ms, because every renewal is a write to the API server")
	} else if retry*3 > deadline*2 {
		invalid("retryPeriod", retry, "is too long for renewDeadline %s: at most %s (renewDeadline / 1.5), so that a "+
			"renewal that failed can be repeated", inSeconds(deadline), inSeconds(time.Duration(deadline.Milliseconds()*2/3)*time.Millisecond))
	}
	if delay < 0 || delay > MaxLockDelay {
		invalid("lockDelay", delay, "is not accepted: from 0s to 1h")
	} else if delay > 0 && lease.OnRenewFailure == OnRenewFailureKeepRunning {
		invalid("lockDelay", delay, "contradicts onRenewFailure KeepRunning, which is for sinks that reject old tokens and need no "+
			"delay: set lockDelay 0s, or onRenewFailure Stop")
	}
	if modes := []OnRenewFailure{OnRenewFailureStop, OnRenewFailureKeepRunning}; !slices.Contains(modes, lease.OnRenewFailure) {
		errs = append(errs, field.NotSupported(at.Child("onRenewFailure"), lease.OnRenewFailure, modes))
	}
	return errs
}

// MaxRenewDeadline returns the longest renewDeadline that leaves a process StopBudget to stop before leaseDuration less the safety margin
// is over.
func MaxRenewDeadline(leaseDuration time.Duration) time.Duration {
	return leaseDuration - margin(leaseDuration) - StopBudget
}

// margin repeats lease.Margin of the agent's state machine, which this public package must not import; a test compares the two.
func margin(leaseDuration time.Duration) time.Duration {
	if leaseDuration < 5*time.Second {
		return 500 * time.Millisecond
	}
	return max(time.Second, leaseDuration/15)
}

// listed formats names as CEL does.
func listed(names []string) string {
	if len(names) == 0 {
		return "[]"
	}
	return `["` + strings.Join(names, `", "`) + `"]`
}

// inSeconds formats d as CEL does.
func inSeconds(d time.Duration) string {
	return strconv.FormatFloat(d.Seconds(), 'f', -1, 64) + "s"
}

func validatePreActivate(pre *PreActivate, at *field.Path) field.ErrorList {
	if pre == nil {
		return nil
	}
	errs := outside(at.Child("timeoutSeconds"), pre.TimeoutSeconds, 1, 3600)
	if command := at.Child("exec", "command"); len(pre.Exec.Command) == 0 {
		errs = append(errs, field.Invalid(command, 0, fmt.Sprintf("%s in body should have at least 1 items", command)))
	}
	return errs
}

func validateFencing(fencing *FencingSpec, at *field.Path) field.ErrorList {
	var errs field.ErrorList
	if name := fencing.EnvVar; !cIdentifier.MatchString(name) || strings.HasPrefix(name, ReservedEnvPrefix) {
		errs = append(errs, field.Invalid(at.Child("envVar"), name, fmt.Sprintf("%q is not accepted: a C identifier of at "+
			"most 63 characters (letters, digits and _, not beginning with a digit) that does not begin with SINGLETONJOB_", name)))
	}
	if takenEnv.MatchString(fencing.EnvVar) {
		errs = append(errs, field.Invalid(at.Child("envVar"), fencing.EnvVar, fmt.Sprintf("%q is not accepted: other programs read it, and would find the token "+
			"in it: choose a name of your own, such as FENCING_TOKEN, that is not PATH, HOME, HOSTNAME or PWD and does not begin with KUBERNETES_ or LD_", fencing.EnvVar)))
	}
	if base := fencing.TokenBase; base < 0 || base > MaxTokenBase {
		errs = append(errs, field.Invalid(at.Child("tokenBase"), base, fmt.Sprintf("%d is not accepted: from 0 to %d (2^52)",
			base, MaxTokenBase)))
	}
	return errs
}

func validateMetadata(template *corev1.PodTemplateSpec, at *field.Path) field.ErrorList {
	var errs field.ErrorList
	check := func(name string, keys map[string]string) {
		var reserved []string
		for key := range keys {
			if strings.HasPrefix(key, ReservedKeyPrefix) {
				reserved = append(reserved, key)
			}
		}
		if len(reserved) > 0 {
			slices.Sort(reserved)
			errs = append(errs, field.Forbidden(at.Child(name), "keys that begin with singletonjob.io/ are reserved for the operator: remove "+
				listed(reserved)))
		}
	}
	check("labels", template.Labels)
	check("annotations", template.Annotations)
	return errs
}

func validatePod(pod *corev1.PodSpec, runs RunPolicy, at *field.Path) field.ErrorList {
	var errs field.ErrorList
	forbid := func(found bool, name, detail string) {
		if found {
			errs = append(errs, field.Forbidden(at.Child(name), detail))
		}
	}
	const notOurs = "the agent must be PID 1 of the gated container and see only its own processes, or it could not guarantee " +
		"that all are dead: remove it"
	forbid(pod.HostPID, "hostPID", notOurs)
	forbid(pod.ShareProcessNamespace != nil && *pod.ShareProcessNamespace, "shareProcessNamespace", notOurs)
	forbid(pod.ActiveDeadlineSeconds != nil, "activeDeadlineSeconds", "a candidate lives through many tenures: remove it")
	forbid(len(pod.EphemeralContainers) > 0, "ephemeralContainers", "no pod can be created with ephemeral containers: remove it, and use "+
		"kubectl debug")
	forbid(pod.OS != nil && pod.OS.Name != corev1.Linux, "os", "the agent runs on Linux only: remove it, or set name: linux")
	if grace := pod.TerminationGracePeriodSeconds; grace != nil && *grace < 1 {
		errs = append(errs, field.Invalid(at.Child("terminationGracePeriodSeconds"), *grace, fmt.Sprintf("%d is not accepted: at "+
			"least 1, because with 0 a deleted pod no longer exists in the API before it is stopped, and no handover is clean", *grace)))
	}
	return append(errs, validateRestarts(pod.RestartPolicy, runs, at.Child("restartPolicy"))...)
}

// validateReservedNames rejects, in all containers of a template, the names with which the operator adds containers and volumes, and
// configures the gated container.
func validateReservedNames(pod *corev1.PodSpec, at *field.Path) field.ErrorList {
	var errs field.ErrorList
	check := func(at *field.Path, name, prefix, detail string) {
		if strings.HasPrefix(name, prefix) {
			errs = append(errs, field.Forbidden(at.Child("name"), detail+name))
		}
	}
	const operators = "names that begin with singletonjob- are reserved for the operator: rename "
	inside := func(list string, containers []corev1.Container) {
		for i := range containers {
			at := at.Child(list).Index(i)
			check(at, containers[i].Name, ReservedNamePrefix, operators)
			for j, e := range containers[i].Env {
				check(at.Child("env").Index(j), e.Name, ReservedEnvPrefix, "variables that begin with SINGLETONJOB_ are reserved for the agent: remove ")
			}
			for j, m := range containers[i].VolumeMounts {
				check(at.Child("volumeMounts").Index(j), m.Name, ReservedNamePrefix,
					"volumes whose names begin with singletonjob- are reserved for the agent: remove the mount of ")
			}
		}
	}
	inside("containers", pod.Containers)
	inside("initContainers", pod.InitContainers)
	for i := range pod.Volumes {
		check(at.Child("volumes").Index(i), pod.Volumes[i].Name, ReservedNamePrefix, operators)
	}
	return errs
}

func containerNames(containers []corev1.Container) []string {
	var names []string
	for i := range containers {
		names = append(names, containers[i].Name)
	}
	return names
}

func validateGated(job *SingletonJob, at *field.Path) field.ErrorList {
	containers := job.Spec.Template.Spec.Containers
	if len(containers) == 0 {
		return field.ErrorList{field.Required(at, "a pod needs at least one container")}
	}
	gated := job.GatedContainer()
	if gated < 0 {
		return field.ErrorList{notChosen(job)}
	}
	c := &containers[gated]
	var errs field.ErrorList
	forbid := func(fault string) {
		errs = append(errs, field.Forbidden(at, fmt.Sprintf("the gated container %q %s", c.Name, fault)))
	}
	if faults := slices.Concat(hookFaults(&job.Spec.Template.Spec, c.Lifecycle), policyFaults(c), envFaults(c, job.Spec.Fencing.EnvVar),
		privilegeFaults(&job.Spec.Template.Spec, c)); len(faults) > 0 {
		forbid("is not accepted; it " + strings.Join(faults, "; it "))
	}
	for _, fault := range slices.Concat(mountFaults(c), goFaults(c), portFaults(c)) {
		forbid(fault)
	}
	return errs
}

func policyFaults(c *corev1.Container) []string {
	if (c.RestartPolicy == nil || *c.RestartPolicy == corev1.ContainerRestartPolicyAlways) && len(c.RestartPolicyRules) == 0 {
		return nil
	}
	return []string{"has a restart policy of its own: remove restartPolicy and restartPolicyRules, because a candidate lives through many tenures"}
}

func envFaults(c *corev1.Container, token string) []string {
	if !slices.ContainsFunc(c.Env, func(e corev1.EnvVar) bool { return e.Name == token }) {
		return nil
	}
	return []string{fmt.Sprintf("sets %s in env: the agent sets it, remove it or choose another spec.fencing.envVar", token)}
}

func mountFaults(c *corev1.Container) []string {
	if !slices.ContainsFunc(c.VolumeMounts, func(m corev1.VolumeMount) bool { return ours.MatchString(m.MountPath) }) {
		return nil
	}
	return []string{"mounts a volume at or below /singletonjob, where the agent and its credentials are: choose another mountPath"}
}

// notChosen returns why no container is gated although the job has some.
func notChosen(job *SingletonJob) *field.Error {
	at, names := field.NewPath("spec", "container"), listed(containerNames(job.Spec.Template.Spec.Containers))
	named, annotated := job.Spec.Template.Annotations[DefaultContainerAnnotation]
	switch {
	case job.Spec.Container != "":
		return field.Invalid(at, job.Spec.Container, fmt.Sprintf("%q is not a container of spec.template: one of %s", job.Spec.Container, names))
	case annotated:
		return field.Invalid(field.NewPath("spec", "template", "metadata", "annotations"), named, fmt.Sprintf(
			"%s is %q, which is not a container of spec.template: one of %s, or set spec.container", DefaultContainerAnnotation, named, names))
	}
	return field.Required(at, fmt.Sprintf("one of several containers is gated, and the others run in every candidate: set it to one of %s, or name that in "+
		"spec.template.metadata.annotations as %s", names, DefaultContainerAnnotation))
}
