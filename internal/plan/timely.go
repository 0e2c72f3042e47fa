package plan

import (
	"fmt"
	"strings"
	"time"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	"k8s.io/apimachinery/pkg/util/validation/field"

	"github.com/singletonjob/operator/internal/inject"
	"github.com/singletonjob/operator/internal/lease"
)

const (
	// limitPeriod is that of the CPU limits that a kubelet sets, leastLimit the least share that it makes of one.
	limitPeriod = 100 * time.Millisecond
	leastLimit  = 0.01
)

// cpuLimit is a limit that the gated container runs under, and where it stands.
type cpuLimit struct {
	where string
	resource.Quantity
}

// late is what the limit alone takes from a kill.
func (l cpuLimit) late() time.Duration {
	if l.MilliValue() <= 0 {
		return 0
	}
	return lease.LateUnder(max(leastLimit, float64(l.MilliValue())/1000), limitPeriod)
}

// cpuLimit is the tightest one, zero for none: the template's, for the container or the whole pod, or what a pod of it has been
// given besides.
func (f *facts) cpuLimit() cpuLimit {
	template := &f.job.Spec.Template.Spec
	index := f.job.GatedContainer()
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
	for _, c := range f.candidates {
		if i := inject.Gated(c.pod); c.live() && c.updated && i >= 0 {
			given := &c.pod.Spec.Containers[i]
			const by = "from a LimitRange, a webhook or a resize"
			consider(fmt.Sprintf("resources.limits.cpu of the pods' container %s, %s,", given.Name, by), &given.Resources)
			consider("resources.limits.cpu of the pods, "+by+",", c.pod.Spec.Resources)
		}
	}
	return tightest
}

// room is what the lease leaves a kill to be late by.
func (f *facts) room(duration time.Duration) time.Duration {
	return lease.Config{Duration: duration, RetryPeriod: f.job.Spec.Lease.RetryPeriod.Duration}.MaxLate()
}

// isLimited tells whether kills under the CPU limit may be later than the lease leaves time for.
func (s *situation) isLimited() bool {
	return s.cpuLimit().late() > s.room(s.job.Spec.Lease.LeaseDuration.Duration)
}

func (s *situation) limitText() string {
	limit, duration := s.cpuLimit(), s.job.Spec.Lease.LeaseDuration.Duration
	remedies := []string{"remove the limit (a request keeps the share)"}
	const step = 10 // milli-CPUs
	for milli := int64(step); milli <= 1000; milli += step {
		if (cpuLimit{Quantity: *resource.NewMilliQuantity(milli, resource.DecimalSI)}).late() <= s.room(duration) {
			remedies = append(remedies, fmt.Sprintf("raise it to %dm or more", milli))
			break
		}
	}
	for longer := duration.Truncate(time.Second) + time.Second; longer <= lease.MaxDuration; longer += time.Second {
		if limit.late() <= s.room(longer) {
			remedies = append(remedies, fmt.Sprintf("or set spec.lease.leaseDuration to %v or more", longer))
			break
		}
	}
	return fmt.Sprintf("%s is %s: a process that uses it up may be killed %v late, and spec.lease leaves %v for that, so that two may run for a "+
		"moment; %s", limit.where, &limit.Quantity, limit.late().Round(time.Millisecond), s.room(duration).Round(time.Millisecond),
		strings.Join(remedies, ", "))
}
