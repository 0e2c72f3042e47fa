package inject

import (
	"time"

	corev1 "k8s.io/api/core/v1"

	"github.com/singletonjob/operator/internal/contract"
)

// takeHooks takes the lifecycle hooks from a container, for its agent: a kubelet would run them in standbys, too.
func takeHooks(gated *corev1.Container) contract.Hooks {
	lifecycle := gated.Lifecycle
	gated.Lifecycle = nil
	if lifecycle == nil {
		return contract.Hooks{}
	}
	return contract.Hooks{PostStart: hookOf(lifecycle.PostStart), PreStop: hookOf(lifecycle.PreStop)}
}

func hookOf(handler *corev1.LifecycleHandler) *contract.Hook {
	switch {
	case handler == nil:
		return nil
	case handler.Exec != nil:
		return &contract.Hook{Exec: handler.Exec.Command}
	case handler.Sleep != nil:
		return &contract.Hook{Sleep: contract.Duration(time.Duration(handler.Sleep.Seconds) * time.Second)}
	}
	return nil // v1alpha1.Validate refuses it
}
