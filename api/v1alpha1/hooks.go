package v1alpha1

import (
	"slices"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/util/validation/field"

	"github.com/singletonjob/operator/internal/contract"
)

// maxHookSleep is in seconds.
const maxHookSleep = 3600

// StopSignals returns the valid values of lifecycle.stopSignal of the gated container.
func StopSignals() []corev1.Signal {
	var signals []corev1.Signal
	for _, name := range contract.StopSignals() {
		signals = append(signals, corev1.Signal(name))
	}
	return signals
}

// hookFaults returns what is wrong with the gated container's lifecycle, as text that follows the container's name in a sentence. It returns
// nothing if the lifecycle is valid.
func hookFaults(pod *corev1.PodSpec, l *corev1.Lifecycle) []string {
	if l == nil {
		return nil
	}
	grace := int64(corev1.DefaultTerminationGracePeriodSeconds)
	if pod.TerminationGracePeriodSeconds != nil {
		grace = *pod.TerminationGracePeriodSeconds
	}
	var bad []string
	if l.StopSignal != nil && !slices.Contains(StopSignals(), *l.StopSignal) {
		bad = append(bad, contract.NotHeard())
	}
	for _, h := range []struct {
		name string
		*corev1.LifecycleHandler
	}{{"postStart", l.PostStart}, {"preStop", l.PreStop}} {
		if !runnable(h.LifecycleHandler) {
			bad = append(bad, "has a "+h.name+" hook"+notRunnable)
		}
		if h.LifecycleHandler != nil && h.Sleep != nil && h.Sleep.Seconds > grace && h.Sleep.Seconds <= maxHookSleep {
			bad = append(bad, "has a "+h.name+" hook that sleeps for longer than the Pod has to stop: set sleep.seconds to at most "+
				"terminationGracePeriodSeconds (30 by default)")
		}
	}
	return bad
}

const notRunnable = " that the agent cannot run: set exactly one of exec.command, httpGet, and sleep.seconds (0 to 3600)"

// runnable reports whether an agent can run a hook. It is true if there is no hook.
func runnable(h *corev1.LifecycleHandler) bool {
	if h == nil {
		return true
	}
	ways := 0
	for _, set := range []bool{h.Exec != nil, h.HTTPGet != nil, h.Sleep != nil} {
		if set {
			ways++
		}
	}
	return ways == 1 && h.TCPSocket == nil && (h.Exec == nil || len(h.Exec.Command) > 0) &&
		(h.Sleep == nil || h.Sleep.Seconds >= 0 && h.Sleep.Seconds <= maxHookSleep)
}

// namedHook is a postStart or preStop hook that makes an HTTP request, with the name of its field.
type namedHook struct {
	name string
	get  *corev1.HTTPGetAction
}

func httpHooksOf(c *corev1.Container) []namedHook {
	if c.Lifecycle == nil {
		return nil
	}
	var found []namedHook
	for _, h := range []struct {
		name string
		*corev1.LifecycleHandler
	}{{"postStart", c.Lifecycle.PostStart}, {"preStop", c.Lifecycle.PreStop}} {
		if h.LifecycleHandler != nil && h.HTTPGet != nil {
			found = append(found, namedHook{h.name, h.HTTPGet})
		}
	}
	return found
}

// validateHooks checks all containers, as validateProbes does.
func validateHooks(containers []corev1.Container, at *field.Path) field.ErrorList {
	var errs field.ErrorList
	for i := range containers {
		for _, h := range httpHooksOf(&containers[i]) {
			for _, bad := range badHTTPGet(h.get) {
				errs = append(errs, field.Invalid(at.Index(i).Child("lifecycle", h.name), h.name, bad))
			}
		}
	}
	return errs
}
