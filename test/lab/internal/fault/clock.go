//go:build linux

package fault

import (
	"context"
	"time"

	"github.com/singletonjob/operator/test/lab/internal/cluster"
)

// SetClock makes CLOCK_MONOTONIC and CLOCK_BOOTTIME of containers that start on the node from now on differ from the host's, if their
// pods are of the runtime class cluster.ShiftedRuntime. It is a time namespace, and the kernel allows no more. The clocks of a running
// process can't be stepped, and no clock can be made to run faster or slower. CLOCK_REALTIME is the host's for everyone.
func (j Injector) SetClock(ctx context.Context, node string, ahead time.Duration) error {
	m, err := j.node(node)
	if err != nil {
		return err
	}
	if err := j.Lab.ShiftClock(m, ahead); err != nil {
		return err
	}
	// containerd reads a runtime's base specification when it starts. Containers continue meanwhile.
	return j.RestartService(ctx, m.Name, cluster.Containerd)
}

func (j Injector) clockOffset(m cluster.Machine) time.Duration {
	offset, err := j.Lab.ClockShift(m)
	if err != nil {
		return 0
	}
	return offset
}

func (j Injector) resetClock(ctx context.Context, m cluster.Machine) error {
	if !m.Init.Alive() || j.clockOffset(m) == 0 {
		return nil
	}
	return j.SetClock(ctx, m.Name, 0)
}
