package v1alpha1

// WorkloadKind is a kind of workload whose pod template a SingletonJob can be made from.
//
// +kubebuilder:validation:Enum=Deployment;StatefulSet
type WorkloadKind string

// The kinds of group apps that a workloadRef may name.
const (
	WorkloadDeployment  WorkloadKind = "Deployment"
	WorkloadStatefulSet WorkloadKind = "StatefulSet"
)

// WorkloadAPIVersion is that of both.
const WorkloadAPIVersion = "apps/v1"

// WorkloadRef names a workload in the namespace of the SingletonJob.
type WorkloadRef struct { //nolint:recvcheck // those of controller-gen have pointers; a value must print itself, too
	// +kubebuilder:validation:Enum=apps/v1
	// +required
	APIVersion string `json:"apiVersion"`

	// +required
	Kind WorkloadKind `json:"kind"`

	// +kubebuilder:validation:MinLength=1
	// +kubebuilder:validation:MaxLength=253
	// +required
	Name string `json:"name"`
}

// String is Deployment/web.
func (r WorkloadRef) String() string { return string(r.Kind) + "/" + r.Name }
