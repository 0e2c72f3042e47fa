package inject

import (
	"time"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/utils/ptr"

	"github.com/singletonjob/operator/internal/contract"
)

// hooksOf are a container's lifecycle hooks for its agent to run. A kubelet would run them in standbys too.
func hooksOf(c *corev1.Container) contract.Hooks {
	if c.Lifecycle == nil {
		return contract.Hooks{}
	}
	return contract.Hooks{PostStart: hookOf(c, c.Lifecycle.PostStart), PreStop: hookOf(c, c.Lifecycle.PreStop)}
}

func hookOf(c *corev1.Container, handler *corev1.LifecycleHandler) *contract.Hook {
	switch {
	case handler == nil:
		return nil
	case handler.Exec != nil:
		return &contract.Hook{Exec: handler.Exec.Command}
	case handler.HTTPGet != nil:
		return &contract.Hook{HTTPGet: httpGetOf(c, handler.HTTPGet)}
	case handler.Sleep != nil:
		return &contract.Hook{Sleep: contract.Duration(time.Duration(handler.Sleep.Seconds) * time.Second)}
	}
	return nil // v1alpha1.Validate refuses it
}

// stopSignalOf is the name of the signal that asks the process to end; empty if the template names none.
func stopSignalOf(c *corev1.Container) string {
	if c.Lifecycle == nil {
		return ""
	}
	return string(ptr.Deref(c.Lifecycle.StopSignal, ""))
}
