package v1alpha1

import (
	"slices"
	"strings"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/utils/ptr"
)

func privilegeFaults(pod *corev1.PodSpec, c *corev1.Container) []string {
	if !cannotKill(pod, c) {
		return nil
	}
	return []string{"has SETUID without KILL: the process can change its user (CAP_SETUID), and without CAP_KILL the agent could not kill it after that: add " +
		"KILL to securityContext.capabilities of the container, or drop SETUID; if its image does not run as root, set runAsNonRoot"}
}

// cannotKill reports whether a container's agent would have CAP_SETUID but not CAP_KILL in effect; such an agent refuses to start. By
// default, runtimes give both capabilities to root and neither to another user. This function does not know whether an image runs as root,
// so it assumes that it does.
func cannotKill(pod *corev1.PodSpec, c *corev1.Container) bool {
	context := c.SecurityContext
	if context == nil || context.Capabilities == nil || ptr.Deref(context.Privileged, false) || !mayBeRoot(pod, context) {
		return false
	}
	add, drop := context.Capabilities.Add, context.Capabilities.Drop
	return has("SETUID", add, drop) && !has("KILL", add, drop)
}

func mayBeRoot(pod *corev1.PodSpec, context *corev1.SecurityContext) bool {
	user, not := context.RunAsUser, context.RunAsNonRoot
	if ofPod := pod.SecurityContext; ofPod != nil {
		if user == nil {
			user = ofPod.RunAsUser
		}
		if not == nil {
			not = ofPod.RunAsNonRoot
		}
	}
	if user != nil {
		return *user == 0
	}
	return !ptr.Deref(not, false)
}

// has reports whether root gets a capability that runtimes grant by default. A capability that is dropped by name is dropped. One that is
// added by name is granted even if all are dropped. Dropping all wins over adding all.
func has(name string, add, drop []corev1.Capability) bool {
	return !names(drop, name) && (names(add, name) || !names(drop, "ALL"))
}

// names reports whether a list contains a capability. Runtimes also accept lower case and the prefix CAP_.
func names(list []corev1.Capability, name string) bool {
	return slices.ContainsFunc(list, func(c corev1.Capability) bool {
		upper := strings.ToUpper(string(c))
		return upper == name || upper == "CAP_"+name
	})
}
