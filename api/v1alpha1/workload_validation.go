package v1alpha1

import (
	"fmt"
	"reflect"
	"slices"

	"k8s.io/apimachinery/pkg/util/validation/field"
)

// maxWorkloadName is the maximum length of a DNS name.
const maxWorkloadName = 253

// HasTemplate reports whether the job itself contains the pod template.
func (job *SingletonJob) HasTemplate() bool { return !reflect.ValueOf(job.Spec.Template).IsZero() }

// validateSource checks that the pod template has exactly one source.
func validateSource(job *SingletonJob, at *field.Path) field.ErrorList {
	ref := job.Spec.WorkloadRef
	switch has := job.HasTemplate(); {
	case !has && ref == nil:
		return field.ErrorList{field.Required(at.Child("template"), "set template, or workloadRef to use the template of a Deployment or "+
			"StatefulSet that is scaled to 0")}
	case ref == nil:
		return nil
	case has:
		return append(validateWorkloadRef(ref, at.Child("workloadRef")),
			field.Forbidden(at.Child("workloadRef"), "template is set as well: remove one of them"))
	}
	return validateWorkloadRef(ref, at.Child("workloadRef"))
}

func validateWorkloadRef(ref *WorkloadRef, at *field.Path) field.ErrorList {
	var errs field.ErrorList
	if ref.APIVersion != WorkloadAPIVersion {
		errs = append(errs, field.NotSupported(at.Child("apiVersion"), ref.APIVersion, []string{WorkloadAPIVersion}))
	}
	if kinds := []WorkloadKind{WorkloadDeployment, WorkloadStatefulSet}; !slices.Contains(kinds, ref.Kind) {
		errs = append(errs, field.NotSupported(at.Child("kind"), ref.Kind, kinds))
	}
	switch name := at.Child("name"); {
	case ref.Name == "":
		errs = append(errs, field.Invalid(name, ref.Name, fmt.Sprintf("%s in body should be at least 1 chars long", name)))
	case len(ref.Name) > maxWorkloadName:
		errs = append(errs, field.TooLong(name, "", maxWorkloadName))
	}
	return errs
}
