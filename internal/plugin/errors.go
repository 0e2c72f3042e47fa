package plugin

import (
	"errors"
	"net/http"
	"regexp"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/tools/clientcmd"

	"github.com/singletonjob/operator/internal/show"
)

// refused matches the API server's message for a forbidden request.
var refused = regexp.MustCompile(`User "([^"]*)" cannot (\w+) resource "([^"]*)" in API group "([^"]*)"(?: in the namespace "([^"]*)")?`)

// explain returns one line: what went wrong, and the remedy if there is one.
func explain(err error) string {
	text := show.Clean(err.Error())
	switch {
	case noSuchKind(err):
		return "this cluster has no SingletonJob definition: install the operator first (helm install singletonjob …), or choose another cluster with --context"
	case clientcmd.IsEmptyConfig(err):
		return errNowhere.Error()
	case apierrors.IsForbidden(err):
		if m := refused.FindStringSubmatch(text); m != nil {
			resource, place := m[3], "the whole cluster"
			if m[4] != "" {
				resource += "." + m[4]
			}
			if m[5] != "" {
				place = "namespace " + m[5]
			}
			return m[1] + " may not " + m[2] + " " + resource + " in " + place + ": ask for a role with that verb on that resource"
		}
	case apierrors.IsUnauthorized(err):
		return "the API server does not accept your credentials: log in again, or choose another user with --user or --context"
	}
	return text
}

// noSuchKind reports whether the cluster lacks the definition of SingletonJobs.
func noSuchKind(err error) bool {
	if meta.IsNoMatchError(err) {
		return true
	}
	var status apierrors.APIStatus
	if !errors.As(err, &status) || status.Status().Code != http.StatusNotFound {
		return false
	}
	// An error for a missing object names the object. An error for a resource that is not served does not.
	d := status.Status().Details
	return d == nil || d.Name == "" || hasCause(d, metav1.CauseTypeUnexpectedServerResponse)
}

func hasCause(d *metav1.StatusDetails, cause metav1.CauseType) bool {
	for _, c := range d.Causes {
		if c.Type == cause {
			return true
		}
	}
	return false
}
