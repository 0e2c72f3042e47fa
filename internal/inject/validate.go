package inject

import (
	"cmp"
	"fmt"
	"math"
	"slices"

	"k8s.io/apimachinery/pkg/util/validation/field"

	"github.com/singletonjob/operator/api/v1alpha1"
	"github.com/singletonjob/operator/internal/contract"
)

// Validate returns the reason why no Pod of a job could start even though its spec is valid (v1alpha1.Validate). The agent's
// configuration is one environment variable, and the kernel limits its size. A CEL rule cannot check this, because CEL cannot
// encode the configuration.
func Validate(job *v1alpha1.SingletonJob) field.ErrorList {
	job = job.DeepCopy()
	v1alpha1.Default(job)
	index := job.GatedContainer()
	if index < 0 {
		return nil // v1alpha1.Validate reports it
	}
	config := agentConfig(job, &job.Spec.Template.Spec.Containers[index], math.MaxInt16, math.MaxUint16)
	size := len(config.Encode())
	if size <= contract.MaxConfig {
		return nil
	}
	most := largest(config, field.NewPath("spec", "template", "spec", "containers").Index(index))
	return field.ErrorList{field.Invalid(most.at, fmt.Sprintf("%d bytes", most.size), fmt.Sprintf(
		"the probes, hooks and preActivate of the gated container take %d bytes of the agent's configuration, and the kernel "+
			"allows at most %d: put this script into a file in the image or in a ConfigMap, and run that file", size, contract.MaxConfig))}
}

// part is one field of the configuration that a user wrote.
type part struct {
	at   *field.Path
	size int
}

func largest(c contract.AgentConfig, gated *field.Path) part {
	of := func(at *field.Path, what any) part { return part{at, len(contract.Encode(what))} }
	return slices.MaxFunc([]part{
		of(field.NewPath("spec", "preActivate"), c.PreActivate),
		of(gated.Child("lifecycle", "postStart"), c.Hooks.PostStart), of(gated.Child("lifecycle", "preStop"), c.Hooks.PreStop),
		of(gated.Child("startupProbe"), c.Probes.Startup), of(gated.Child("livenessProbe"), c.Probes.Liveness),
		of(gated.Child("readinessProbe"), c.Probes.Readiness),
	}, func(a, b part) int { return cmp.Compare(a.size, b.size) })
}
