package v1alpha1

// WorkloadKind is a kind of workload whose pod template a SingletonJob can use.
//
// +kubebuilder:validation:Enum=Deployment;StatefulSet
type WorkloadKind string

// The kinds of API group apps that a workloadRef can name.
const (
	WorkloadDeployment  WorkloadKind = "Deployment"
	WorkloadStatefulSet WorkloadKind = "StatefulSet"
)

// WorkloadAPIVersion is the API version of both kinds.
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

// String returns, for example, Deployment/web.
func (r WorkloadRef) String() string { return string(r.Kind) + "/" + r.Name }
