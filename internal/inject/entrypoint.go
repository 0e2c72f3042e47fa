package inject

import (
	"cmp"
	"fmt"
	"strings"

	corev1 "k8s.io/api/core/v1"

	"github.com/singletonjob/operator/api/v1alpha1"
)

// Unknown reports whether job's gated container sets no command and job.Status does not say what its image runs. The operator
// cannot create a Pod then. A result for another template does not count. The hash of Pods does not depend on the result: an image
// that changes under its tag causes no rollout.
func Unknown(job *v1alpha1.SingletonJob) bool {
	index := job.GatedContainer()
	if index < 0 || len(job.Spec.Template.Spec.Containers[index].Command) > 0 {
		return false
	}
	return !fits(job.Status.Entrypoint, EntrypointHash(job), &job.Spec.Template.Spec.Containers[index])
}

// fits reports whether an entrypoint belongs to the template with this hash and runs something.
func fits(found *v1alpha1.Entrypoint, hash string, gated *corev1.Container) bool {
	return found != nil && found.TemplateHash == hash && len(found.Command)+len(found.Args)+len(gated.Args) > 0
}

// takeEntrypoint gives a container without a command what its image would run, with a runtime's rules: args replace the image's
// CMD, and without an ENTRYPOINT they are the command. The image's STOPSIGNAL applies if the template sets none.
func takeEntrypoint(gated *corev1.Container, job *v1alpha1.SingletonJob) error {
	if len(gated.Command) > 0 {
		return nil
	}
	found := job.Status.Entrypoint
	if !fits(found, EntrypointHash(job), gated) {
		return fmt.Errorf("the gated container %q sets no command, and the entrypoint of its image is unknown", gated.Name)
	}
	gated.Command = literal(found.Command)
	if len(gated.Args) == 0 {
		gated.Args = literal(found.Args)
	}
	if len(gated.Command) == 0 {
		gated.Command, gated.Args = gated.Args, nil
	}
	if found.StopSignal != "" {
		if gated.Lifecycle == nil {
			gated.Lifecycle = &corev1.Lifecycle{}
		}
		gated.Lifecycle.StopSignal = cmp.Or(gated.Lifecycle.StopSignal, new(corev1.Signal(found.StopSignal)))
	}
	return nil
}

// literal quotes an image's arguments for a Pod, because a kubelet expands what looks like a variable reference. It turns $$ into
// $.
func literal(args []string) []string {
	var quoted []string
	for _, arg := range args {
		quoted = append(quoted, strings.ReplaceAll(arg, "$", "$$"))
	}
	return quoted
}
