package v1alpha1

import (
	"slices"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/singletonjob/operator/fence"
	"github.com/singletonjob/operator/internal/schedule"
)

// The defaults of the API, the same as in the CRD. They apply to objects that did not pass an API server.
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

// Default fills in what job leaves open, as the API server does. A zero candidates, envVar or duration counts as open.
// It does not fill in spec.container: that default follows the template, see GatedContainer.
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

// defaultRuns fills in what spec leaves open of its runs. backoffLimit has no default in the CRD: a job that runs for ever has none.
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

// DefaultContainerAnnotation of a pod template names the container that is meant where none is named.
const DefaultContainerAnnotation = "kubectl.kubernetes.io/default-container"

// GatedContainer returns the index in spec.template.spec.containers of the container whose process is gated: that of spec.container,
// else the only one, else that of DefaultContainerAnnotation. It returns -1 if none is chosen, or one that is not there: of several,
// any guess would have the others act in every candidate.
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
