package v1alpha1

import (
	"fmt"
	"regexp"
	"slices"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/util/validation/field"

	"github.com/singletonjob/operator/internal/contract"
)

var (
	ours       = regexp.MustCompile(contract.OursPattern)
	goMemLimit = regexp.MustCompile(contract.GoMemLimitPattern)
)

// validateGoRuntime refuses variables of the gated container with which the agent, a Go program, could not start. Those that come from
// elsewhere (valueFrom, envFrom, the image) can't be seen. That of GODEBUG is the operator's alone: it is too much for a rule of a CRD.
func validateGoRuntime(c *corev1.Container, at *field.Path) field.ErrorList {
	var errs field.ErrorList
	refuse := func(name, value, remedy string) {
		errs = append(errs, field.Invalid(at, value, fmt.Sprintf("the gated container %q sets %s to ", c.Name, name)+
			`"`+value+`" in env, with which no Go program starts, nor does the agent: write `+remedy))
	}
	if value := literal(c.Env, contract.GoMemLimit); !goMemLimit.MatchString(value) {
		refuse(contract.GoMemLimit, value, contract.GoMemLimitRemedy)
	}
	if setting, remedy := contract.GoDebugFault(literal(c.Env, "GODEBUG")); setting != "" {
		refuse("GODEBUG", setting, remedy)
	}
	return errs
}

// literal is the value that a template's env gives to a variable; empty where it gives none, or one from elsewhere. Of equal names the last
// counts.
func literal(env []corev1.EnvVar, name string) string {
	for _, e := range slices.Backward(env) {
		if e.Name == name {
			return e.Value
		}
	}
	return ""
}
