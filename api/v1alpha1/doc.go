// Package v1alpha1 is the SingletonJob API: the types, their defaults, the names of conditions and reasons, and
// validation. It describes and checks; what happens is decided elsewhere.
//
// +kubebuilder:object:generate=true
// +groupName=singletonjob.io
package v1alpha1
