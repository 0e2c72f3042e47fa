package v1alpha1

import "k8s.io/apimachinery/pkg/util/validation/field"

// The limits and the defaults of a Strategy.
const (
	MaxMinReadySeconds         int32 = 3600
	MaxProgressDeadlineSeconds int32 = 86400

	DefaultMinReadySeconds         int32 = 30
	DefaultProgressDeadlineSeconds int32 = 120
)

// Strategy says how candidates of a changed template replace the earlier ones. A change of Strategy starts no rollout.
type Strategy struct {
	// The number of pods beyond candidates that can exist during a rollout. Default 1, or 0 if candidates is 1.
	// +kubebuilder:validation:Minimum=0
	// +kubebuilder:validation:Maximum=1
	// +optional
	MaxSurge *int32 `json:"maxSurge,omitempty"`

	// How many seconds the active pod of a new version must be ready before the last standby of the old version is removed. Default 30.
	// +kubebuilder:validation:Minimum=0
	// +kubebuilder:validation:Maximum=3600
	// +optional
	MinReadySeconds *int32 `json:"minReadySeconds,omitempty"`

	// The number of seconds after which a candidate that is not ready makes Progressing false. Default 120.
	// +kubebuilder:validation:Minimum=1
	// +kubebuilder:validation:Maximum=86400
	// +optional
	ProgressDeadlineSeconds *int32 `json:"progressDeadlineSeconds,omitempty"`

	// Pauses a rollout. Default false.
	// +optional
	Paused bool `json:"paused,omitempty"`
}

func validateStrategy(s *Strategy, at *field.Path) field.ErrorList {
	var errs field.ErrorList
	for _, f := range []struct {
		name      string
		value     *int32
		low, high int32
	}{
		{"maxSurge", s.MaxSurge, 0, 1},
		{"minReadySeconds", s.MinReadySeconds, 0, MaxMinReadySeconds},
		{"progressDeadlineSeconds", s.ProgressDeadlineSeconds, 1, MaxProgressDeadlineSeconds},
	} {
		if f.value != nil {
			errs = append(errs, outside(at.Child(f.name), *f.value, f.low, f.high)...)
		}
	}
	return errs
}
