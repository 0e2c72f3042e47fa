package v1alpha1

import (
	"strings"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/util/validation/field"
)

// of returns a change to a job with a workload instead of a template.
func of(ref WorkloadRef) func(*SingletonJob) {
	return func(job *SingletonJob) {
		job.Spec.Template, job.Spec.WorkloadRef = corev1.PodTemplateSpec{}, &ref
	}
}

var workloadCases = map[string]validationCase{
	"workload, a Deployment":  {change: of(WorkloadRef{WorkloadAPIVersion, WorkloadDeployment, "web"})},
	"workload, a StatefulSet": {change: of(WorkloadRef{WorkloadAPIVersion, WorkloadStatefulSet, strings.Repeat("x", 253)})},
	"workload in place of a template": {
		from: func(*SingletonJob) {}, change: of(WorkloadRef{WorkloadAPIVersion, WorkloadDeployment, "web"}),
	},
	"workload with a container": {change: func(job *SingletonJob) {
		of(WorkloadRef{WorkloadAPIVersion, WorkloadDeployment, "web"})(job)
		job.Spec.Container = "app"
	}},
	"neither template nor workload": {
		change: func(job *SingletonJob) { job.Spec.Template = corev1.PodTemplateSpec{} },
		want:   missing("spec.template", "set template, or workloadRef to use the template of a Deployment or StatefulSet that is scaled to 0"),
	},
	"template and workload": {
		change: func(job *SingletonJob) {
			job.Spec.WorkloadRef = &WorkloadRef{WorkloadAPIVersion, WorkloadDeployment, "web"}
		},
		want: forbidden("spec.workloadRef", "template is set as well: remove one of them"),
	},
	"workload of another kind": {
		change: of(WorkloadRef{WorkloadAPIVersion, "DaemonSet", "web"}),
		want:   []problem{{field.ErrorTypeNotSupported, "spec.workloadRef.kind", `supported values: "Deployment", "StatefulSet"`}},
	},
	"workload of another group": {
		change: of(WorkloadRef{"argoproj.io/v1alpha1", WorkloadDeployment, "web"}),
		want:   []problem{{field.ErrorTypeNotSupported, "spec.workloadRef.apiVersion", `supported values: "apps/v1"`}},
	},
	"workload without a name": {
		change: of(WorkloadRef{WorkloadAPIVersion, WorkloadDeployment, ""}),
		want:   invalid("spec.workloadRef.name", "should be at least 1 chars long"),
	},
	"workload with a long name": {
		change: of(WorkloadRef{WorkloadAPIVersion, WorkloadDeployment, strings.Repeat("x", 254)}),
		want:   []problem{{field.ErrorTypeTooLong, "spec.workloadRef.name", "may not be more than 253 bytes"}},
	},
}
