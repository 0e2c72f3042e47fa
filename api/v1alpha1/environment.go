package v1alpha1

import (
	"regexp"
	"slices"

	corev1 "k8s.io/api/core/v1"

	"github.com/singletonjob/operator/internal/contract"
)

var (
	ours       = regexp.MustCompile(contract.OursPattern)
	goMemLimit = regexp.MustCompile(contract.GoMemLimitPattern)
)

// goFaults are variables of the gated container with which the agent, a Go program, could not start. It cannot see values that come from
// elsewhere (valueFrom, envFrom, the image). Only the operator checks GODEBUG: that check is too complex for a CRD rule.
func goFaults(c *corev1.Container) []string {
	var faults []string
	refuse := func(name, value, remedy string) {
		faults = append(faults, "sets "+name+" to \""+value+"\" in env, but no Go program, including the agent, starts with that value: write "+remedy)
	}
	if value := literal(c.Env, contract.GoMemLimit); !goMemLimit.MatchString(value) {
		refuse(contract.GoMemLimit, value, contract.GoMemLimitRemedy)
	}
	if setting, remedy := contract.GoDebugFault(literal(c.Env, "GODEBUG")); setting != "" {
		refuse("GODEBUG", setting, remedy)
	}
	return faults
}

// literal returns the value that a template's env gives to a variable. It is empty if env sets no value, or takes it from elsewhere. If a
// name occurs more than once, the last one counts.
func literal(env []corev1.EnvVar, name string) string {
	for _, e := range slices.Backward(env) {
		if e.Name == name {
			return e.Value
		}
	}
	return ""
}
