// Package v1alpha1 is the SingletonJob API: the types, their defaults, the names of conditions and reasons, and validation. It describes
// and checks; other packages decide what happens.
//
// +kubebuilder:object:generate=true
// +groupName=singletonjob.io
package v1alpha1
