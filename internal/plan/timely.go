package plan

import (
	"fmt"
	"strings"
	"time"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	"k8s.io/apimachinery/pkg/util/validation/field"

	"github.com/singletonjob/operator/api/v1alpha1"
	"github.com/singletonjob/operator/internal/lease"
)

const (
	// limitPeriod is the period of the CPU limits that a kubelet sets. leastLimit is the smallest share that it sets.
	limitPeriod = 100 * time.Millisecond
	leastLimit  = 0.01
)

// cpuLimit is a CPU limit that applies to the gated container, and the field that sets it.
type cpuLimit struct {
	where string
	resource.Quantity
}

// late returns the delay of a kill that the limit alone can cause.
func (l cpuLimit) late() time.Duration {
	if l.MilliValue() <= 0 {
		return 0
	}
	return lease.LateUnder(max(leastLimit, float64(l.MilliValue())/1000), limitPeriod)
}

// cpuLimitOf returns the tightest limit; zero if there is none. It considers the template's limits for the container and the whole pod, and
// limits that were set on a pod in another way.
func cpuLimitOf(j *job, m *members) cpuLimit {
	template := &j.Spec.Template.Spec
	index := j.GatedContainer()
	if index < 0 {
		return cpuLimit{}
	}
	at := field.NewPath("spec", "template", "spec")
	tightest := cpuLimit{at.Child("containers").Index(index).Child("resources", "limits", "cpu").String(), *template.Containers[index].Resources.Limits.Cpu()}
	consider := func(where string, r *corev1.ResourceRequirements) {
		if r == nil {
			return
		}
		if l := (cpuLimit{where, *r.Limits.Cpu()}); l.late() > tightest.late() {
			tightest = l
		}
	}
	consider(at.Child("resources", "limits", "cpu").String(), template.Resources)
	for _, c := range m.candidates {
		if given := agents(c.pod); c.live() && c.updated && given != nil {
			const by = "from a LimitRange, a webhook or a resize"
			consider(fmt.Sprintf("resources.limits.cpu of the pods' container %s, %s,", given.Name, by), &given.Resources)
			consider("resources.limits.cpu of the pods, "+by+",", c.pod.Spec.Resources)
		}
	}
	return tightest
}

// room returns the delay of a kill that the lease allows for.
func room(j *job, duration time.Duration) time.Duration {
	return lease.Config{Duration: duration, RetryPeriod: j.Spec.Lease.RetryPeriod.Duration}.MaxLate()
}

// timely is the verdict on whether a CPU limit can delay kills by more than the lease allows for.
func timely(state State, j *job, m *members) verdict {
	if state == InvalidSpec {
		return invalidSpec(j)
	}
	limit, duration := cpuLimitOf(j, m), j.Spec.Lease.LeaseDuration.Duration
	if limit.late() > room(j, duration) {
		return verdict{v1alpha1.ReasonCPULimitTooSmall, limitText(j, limit, duration)}
	}
	return verdict{v1alpha1.ReasonInTime, "no CPU limit delays a kill by more than the time that spec.lease leaves for it"}
}

func limitText(j *job, limit cpuLimit, duration time.Duration) string {
	remedies := []string{"remove the limit (a request keeps the share)"}
	const step = 10 // milli-CPUs
	for milli := int64(step); milli <= 1000; milli += step {
		if (cpuLimit{Quantity: *resource.NewMilliQuantity(milli, resource.DecimalSI)}).late() <= room(j, duration) {
			remedies = append(remedies, fmt.Sprintf("raise it to %dm or more", milli))
			break
		}
	}
	for longer := duration.Truncate(time.Second) + time.Second; longer <= lease.MaxDuration; longer += time.Second {
		if limit.late() <= room(j, longer) {
			remedies = append(remedies, fmt.Sprintf("or set spec.lease.leaseDuration to %v or more", longer))
			break
		}
	}
	return fmt.Sprintf("%s is %s: a process that uses it up may be killed %v late, and spec.lease leaves %v for that, so two processes may run at once for a "+
		"moment; %s", limit.where, &limit.Quantity, limit.late().Round(time.Millisecond), room(j, duration).Round(time.Millisecond),
		strings.Join(remedies, ", "))
}
