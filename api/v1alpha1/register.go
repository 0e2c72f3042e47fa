package v1alpha1

import (
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
)

// GroupName is the API group of every resource in this package.
const GroupName = "singletonjob.io"

// Kind is the kind of the only resource in this package.
const Kind = "SingletonJob"

// GroupVersion is the group and version of this package.
var GroupVersion = schema.GroupVersion{Group: GroupName, Version: "v1alpha1"}

// Resource is the plural name under which the API server serves SingletonJobs.
var Resource = GroupVersion.WithResource("singletonjobs")

// AddToScheme registers the types of this package. It depends on apimachinery only, so that a program that only reads SingletonJobs does
// not have to link controller-runtime.
func AddToScheme(scheme *runtime.Scheme) error {
	scheme.AddKnownTypes(GroupVersion, &SingletonJob{}, &SingletonJobList{})
	metav1.AddToGroupVersion(scheme, GroupVersion)
	return nil
}
