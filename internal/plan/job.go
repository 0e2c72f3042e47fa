package plan

import (
	"cmp"
	"fmt"
	"math"
	"slices"
	"strings"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/apimachinery/pkg/util/validation/field"
	"k8s.io/utils/ptr"

	"github.com/singletonjob/operator/api/v1alpha1"
	"github.com/singletonjob/operator/internal/contract"
	"github.com/singletonjob/operator/internal/inject"
	"github.com/singletonjob/operator/internal/schedule"
)

// job is the desired state of a job and its last reported status, with what follows from these alone.
type job struct {
	// The object is a copy with its defaults and its effective template.
	*v1alpha1.SingletonJob
	// faults are the rules that the spec breaks.
	faults field.ErrorList
	// borrowed: only the workload's template breaks the rules, so the running process is kept, and the job can be suspended.
	borrowed bool
	// ref names the workload that provides the template; nil if the job has its own. The reason why nothing can be started is in blocked:
	// it is the workload, or an image whose entrypoint must be looked up.
	ref     *v1alpha1.WorkloadRef
	blocked verdict
	// awaits: it is blocked only because the entrypoint is not known yet.
	awaits bool
	// hash is the hash of the pods that the spec describes.
	hash     string
	hashed   Hashed
	settings inject.Settings
	// lookup is the result of the lookup of the image's entrypoint, if one is wanted.
	lookup Lookup
	// limits are the time limits of a tenure in the spec.
	limits limits
	// strategy is the rollout strategy.
	strategy strategy
	// schedule is spec.schedule, nil without one.
	schedule *schedule.Schedule
}

// Hashed is a template's hash and the state of the job that it was computed from. The caller keeps it between observations, because
// computing it takes longer than the rest of a decision.
type Hashed struct {
	of   hashedState
	hash string
	// earlier are the hashes of EarlierHashes, each followed by a space. They are computed only if there are pods with another hash than
	// the current one; compared says whether they were.
	earlier  string
	compared bool
}

// hashedState contains everything that can change a hash. Its inputs are in specs, except for the time of a requested restart.
type hashedState struct {
	job, workload                    types.UID
	generation, generationOfWorkload int64
	restartedAt                      string
}

func hashedStateOf(observed *v1alpha1.SingletonJob, w *Workload) hashedState {
	s := hashedState{
		job: observed.UID, generation: observed.Generation, restartedAt: observed.Annotations[contract.RestartedAtAnnotation],
	}
	if w != nil {
		s.workload, s.generationOfWorkload = w.UID, w.Generation
	}
	return s
}

// jobOf returns what is known of a job that exists.
func jobOf(o *Observed) *job {
	observed, w := o.Job, o.Workload
	j := &job{SingletonJob: Effective(observed, w), ref: observed.Spec.WorkloadRef, blocked: blockedBy(observed, w), settings: o.Settings}
	v1alpha1.Default(j.SingletonJob)
	j.faults = Faults(observed, w)
	j.borrowed = j.ref != nil && len(v1alpha1.Validate(observed)) == 0
	if len(j.faults) == 0 {
		j.schedule, j.faults = scheduleOf(j.Spec.Schedule)
	}
	if len(j.faults) == 0 {
		j.faults = inject.Validate(j.SingletonJob)
	}
	if len(j.faults) == 0 {
		j.faults = gatesAnother(j.SingletonJob, o.Pods)
	}
	if len(j.faults) == 0 && j.HasTemplate() {
		if j.hashed = o.Hashed; j.hashed.hash == "" || j.hashed.of != hashedStateOf(observed, w) {
			j.hashed = Hashed{of: hashedStateOf(observed, w), hash: o.Settings.Hash(j.SingletonJob)}
		}
		j.hash = j.hashed.hash
	}
	j.strategy = strategyOf(&j.Spec)
	l := j.Spec.Lease
	j.limits = limits{
		l.LeaseDuration.Duration, l.RenewDeadline.Duration, l.RetryPeriod.Duration,
		l.OnRenewFailure == v1alpha1.OnRenewFailureKeepRunning,
	}
	return j
}

// scheduleOf parses a schedule. The API's own rules have already checked that it can be parsed.
func scheduleOf(s *v1alpha1.Schedule) (*schedule.Schedule, field.ErrorList) {
	if s == nil {
		return nil, nil
	}
	parsed, err := schedule.Parse(schedule.Spec{
		Cron: s.Cron, TimeZone: s.TimeZone, StartingDeadline: s.StartingDeadline.Duration,
		CatchUp: schedule.CatchUp(s.CatchUp), Overlap: schedule.Overlap(s.Overlap),
	})
	if err != nil {
		return nil, field.ErrorList{field.Invalid(field.NewPath("spec", "schedule"), s.Cron, err.Error())}
	}
	return parsed, nil
}

// gatesAnother prevents that a changed annotation of the template changes the gated container by itself. Pods that were created before the
// annotation was read or changed gate another one of the same containers, and that container would then run in every candidate.
func gatesAnother(j *v1alpha1.SingletonJob, pods []*corev1.Pod) field.ErrorList {
	containers := j.Spec.Template.Spec.Containers
	if j.Spec.Container != "" || len(containers) < 2 {
		return nil
	}
	chosen := containers[j.GatedContainer()].Name
	for _, pod := range pods {
		gates := pod.Annotations[contract.GatedAnnotation]
		there := slices.ContainsFunc(containers, func(c corev1.Container) bool { return c.Name == gates })
		if gates != chosen && there && metav1.IsControlledBy(pod, j) {
			return field.ErrorList{field.Required(field.NewPath("spec", "container"), fmt.Sprintf("the existing pods gate %q, and %s in spec.template names %q: set "+
				"it to %q to keep that container, or to %q to roll out the other one", gates, v1alpha1.DefaultContainerAnnotation, chosen, gates, chosen))}
		}
	}
	return nil
}

// leases returns the names of the job's Leases, one for each group of its pods.
func (j *job) leases() []string { return []string{j.Name} }

// updated returns the prefix of the names of pods with the current template. Unlike a label, a name can't change.
func (j *job) updated() string { return inject.PodPrefix(j.Name, j.hash) }

// wasOf reports whether a pod was created from the current spec by an operator that added something else to pods.
func (j *job) wasOf(pod string) bool {
	if j.hash == "" {
		return false
	}
	if !j.hashed.compared {
		j.hashed.compared = true
		for _, hash := range j.settings.EarlierHashes(j.SingletonJob) {
			j.hashed.earlier += hash + " "
		}
	}
	return slices.ContainsFunc(strings.Fields(j.hashed.earlier), func(hash string) bool {
		return strings.HasPrefix(pod, inject.PodPrefix(j.Name, hash))
	})
}

// grace returns the maximum time that a process has to end when it fails its liveness probe.
func (j *job) grace() time.Duration {
	pod := &j.Spec.Template.Spec
	grace := ptr.Deref(pod.TerminationGracePeriodSeconds, corev1.DefaultTerminationGracePeriodSeconds)
	if i := j.GatedContainer(); i >= 0 && pod.Containers[i].LivenessProbe != nil {
		grace = ptr.Deref(pod.Containers[i].LivenessProbe.TerminationGracePeriodSeconds, grace)
	}
	return time.Duration(min(max(0, grace), math.MaxInt32)) * time.Second
}

// preparation returns the maximum time in a tenure before its process counts as started: preActivate runs first, and the startup probe then
// reports the start.
func (j *job) preparation() time.Duration {
	var seconds int64
	if pre := j.Spec.PreActivate; pre != nil {
		seconds = int64(pre.TimeoutSeconds)
	}
	if i := j.GatedContainer(); i >= 0 {
		if p := j.Spec.Template.Spec.Containers[i].StartupProbe; p != nil {
			seconds += int64(p.InitialDelaySeconds) + int64(cmp.Or(p.PeriodSeconds, 10))*int64(cmp.Or(p.FailureThreshold, 3))
		}
	}
	return time.Duration(min(seconds, math.MaxInt32)) * time.Second
}

// OwnerReference returns the reference that makes job the controller of an object.
func OwnerReference(job *v1alpha1.SingletonJob) metav1.OwnerReference {
	return *metav1.NewControllerRef(job, v1alpha1.GroupVersion.WithKind(v1alpha1.Kind))
}
