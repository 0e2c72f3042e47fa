package v1alpha1

import corev1 "k8s.io/api/core/v1"

// maxHookSleep is in seconds.
const maxHookSleep = 3600

// badHooks says what is wrong with the gated container's lifecycle, as it goes on from its name; nothing if all is well.
func badHooks(l *corev1.Lifecycle) []string {
	if l == nil {
		return nil
	}
	var bad []string
	if l.StopSignal != nil {
		bad = append(bad, "sets lifecycle.stopSignal, which would be the agent's: remove it, the process is asked to stop by SIGTERM")
	}
	if !runnable(l.PostStart) {
		bad = append(bad, "has a postStart hook"+notRunnable)
	}
	if !runnable(l.PreStop) {
		bad = append(bad, "has a preStop hook"+notRunnable)
	}
	return bad
}

const notRunnable = " that the agent cannot run: set either exec.command, or sleep.seconds from 0 to 3600"

// runnable reports whether a hook is one that an agent can run, or none.
func runnable(h *corev1.LifecycleHandler) bool {
	switch {
	case h == nil:
		return true
	case h.HTTPGet != nil || h.TCPSocket != nil:
		return false
	case h.Exec != nil:
		return h.Sleep == nil && len(h.Exec.Command) > 0
	}
	return h.Sleep != nil && h.Sleep.Seconds >= 0 && h.Sleep.Seconds <= maxHookSleep
}
