package v1alpha1

import (
	"slices"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/singletonjob/operator/fence"
	"github.com/singletonjob/operator/internal/schedule"
)

// The defaults of the API, the same as in the CRD. They apply to objects that did not pass through an API server.
const (
	DefaultCandidates         int32 = 2
	DefaultHistoryLimit       int32 = 10
	DefaultLeaseDuration            = 15 * time.Second
	DefaultRenewDeadline            = 10 * time.Second
	DefaultRetryPeriod              = 2 * time.Second
	DefaultEnvVar                   = fence.EnvToken
	DefaultPreActivateSeconds int32 = 60
	DefaultBackoffLimit       int32 = 6
	DefaultLeadTime                 = time.Minute
)

// Default sets the unset fields of job, as the API server does. A zero candidates, envVar or duration counts as unset. Default does not set
// spec.container: that default follows the template, see GatedContainer.
func Default(job *SingletonJob) {
	spec := &job.Spec
	setDefault(&spec.Candidates, DefaultCandidates)
	setDefault(&spec.Lease.LeaseDuration, metav1.Duration{Duration: DefaultLeaseDuration})
	setDefault(&spec.Lease.RenewDeadline, metav1.Duration{Duration: DefaultRenewDeadline})
	setDefault(&spec.Lease.RetryPeriod, metav1.Duration{Duration: DefaultRetryPeriod})
	setDefault(&spec.Lease.OnRenewFailure, OnRenewFailureStop)
	setDefault(&spec.Fencing.EnvVar, DefaultEnvVar)
	defaultRuns(spec)
	if spec.PreActivate != nil {
		setDefault(&spec.PreActivate.TimeoutSeconds, DefaultPreActivateSeconds)
	}
	if spec.Service != nil {
		for i := range spec.Service.Ports {
			setDefault(&spec.Service.Ports[i].Protocol, corev1.ProtocolTCP)
		}
	}
	if spec.HistoryLimit == nil {
		spec.HistoryLimit = new(DefaultHistoryLimit)
	}
}

// defaultRuns sets the unset fields of runs. backoffLimit has no default in the CRD, because a job that runs indefinitely has no
// backoffLimit.
func defaultRuns(spec *SingletonJobSpec) {
	setDefault(&spec.RunPolicy, RunPolicyContinuous)
	if spec.RunPolicy == RunPolicyRunToCompletion && spec.BackoffLimit == nil {
		spec.BackoffLimit = new(DefaultBackoffLimit)
	}
	if s := spec.Schedule; s != nil {
		setDefault(&s.TimeZone, schedule.DefaultTimeZone)
		setDefault(&s.StartingDeadline, metav1.Duration{Duration: schedule.DefaultStartingDeadline})
		setDefault(&s.CatchUp, string(schedule.CatchUpLatest))
		setDefault(&s.Overlap, string(schedule.OverlapSkip))
		setDefault(&s.Standby, StandbyOnDemand)
		if s.LeadTime == nil {
			s.LeadTime = &metav1.Duration{Duration: DefaultLeadTime}
		}
	}
}

func setDefault[T comparable](field *T, value T) {
	var zero T
	if *field == zero {
		*field = value
	}
}

// DefaultContainerAnnotation on a pod template names the container to use if no other setting names one.
const DefaultContainerAnnotation = "kubectl.kubernetes.io/default-container"

// GatedContainer returns the index in spec.template.spec.containers of the gated container: the one in spec.container, else the only one,
// else the one in DefaultContainerAnnotation. It returns -1 if no container is chosen, or if the chosen one does not exist. It does not
// guess among several containers, because the others would act in every candidate.
func (job *SingletonJob) GatedContainer() int {
	containers := job.Spec.Template.Spec.Containers
	name := job.Spec.Container
	if name == "" && len(containers) == 1 {
		return 0
	}
	if name == "" {
		name = job.Spec.Template.Annotations[DefaultContainerAnnotation]
	}
	return slices.IndexFunc(containers, func(c corev1.Container) bool { return name != "" && c.Name == name })
}
