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

// job is what is asked for and what was reported of it before, with what follows from that alone.
type job struct {
	// The object is a copy with its defaults and its effective template.
	*v1alpha1.SingletonJob
	// faults are the rules that the spec breaks.
	faults field.ErrorList
	// borrowed: it is only the workload's template that breaks them, so what runs is kept, and can be suspended.
	borrowed bool
	// ref names the workload whose template it has, nil for its own. blocked is why nothing may be started because of it, or
	// of an image that has to be looked up.
	ref     *v1alpha1.WorkloadRef
	blocked verdict
	// hash is that of the pods that the spec asks for.
	hash     string
	hashed   Hashed
	settings inject.Settings
	// lookup is what is known of the image's entrypoint, where that is asked for.
	lookup Lookup
	// limits are those that the spec sets to a tenure.
	limits limits
	// strategy is that of a rollout.
	strategy strategy
	// schedule is spec.schedule, nil without one.
	schedule *schedule.Schedule
}

// Hashed is a template's hash and the state of the job that it is of, kept by who observes from one look to the next: to compute it takes
// longer than all else that is decided.
type Hashed struct {
	of   hashedState
	hash string
	// earlier are the hashes of EarlierHashes, a space after each. They are computed when there are pods of another hash than the
	// present one, which compared says.
	earlier  string
	compared bool
}

// hashedState is all that a hash can change with: what it is made of stands in specs, but for when a restart was asked for.
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

// jobOf is what is known of a job that there is.
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

// scheduleOf reads a schedule. That it can be read, the API's own rules have found.
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

// gatesAnother keeps an annotation of the template from moving the gate by itself: pods that were made before it was heeded, or was
// changed, gate another of the same containers, and that one would act in every candidate.
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

// leases are the names of the job's Leases, one for each group of its pods.
func (j *job) leases() []string { return []string{j.Name} }

// updated is how the names of the pods begin that the spec asks for. Unlike a label, a name stays.
func (j *job) updated() string { return inject.PodPrefix(j.Name, j.hash) }

// wasOf reports whether a pod was made from what the spec asks for, by an operator that put something else into pods.
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

// grace is what a process has at most to end when it fails its liveness probe.
func (j *job) grace() time.Duration {
	pod := &j.Spec.Template.Spec
	grace := ptr.Deref(pod.TerminationGracePeriodSeconds, corev1.DefaultTerminationGracePeriodSeconds)
	if i := j.GatedContainer(); i >= 0 && pod.Containers[i].LivenessProbe != nil {
		grace = ptr.Deref(pod.Containers[i].LivenessProbe.TerminationGracePeriodSeconds, grace)
	}
	return time.Duration(min(max(0, grace), math.MaxInt32)) * time.Second
}

// preparation is how long a tenure may last at most before its process has started by its own account: preActivate comes first, and
// the startup probe says when.
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

// OwnerReference makes a job the controller of what carries it.
func OwnerReference(job *v1alpha1.SingletonJob) metav1.OwnerReference {
	return *metav1.NewControllerRef(job, v1alpha1.GroupVersion.WithKind(v1alpha1.Kind))
}
