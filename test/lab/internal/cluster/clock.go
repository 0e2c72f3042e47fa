//go:build linux

package cluster

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"os/exec"
	"time"
)

// ShiftedRuntime is the runtime class whose containers have a time namespace of their own.
const ShiftedRuntime = "shifted-clock"

// spec is a container's base specification. The types have only fields that are used here.
type spec map[string]any

func (l *Lab) shiftedSpec(node string) string { return l.path(node, "shifted-clock.json") }

// writeShiftedSpec writes the runtime's base specification with no shift, unless there is one.
func (l *Lab) writeShiftedSpec(ctx context.Context, node string) error {
	if _, err := os.Stat(l.shiftedSpec(node)); err == nil {
		return nil
	}
	text, err := exec.CommandContext(ctx, l.bin.Path("ctr"), "oci", "spec").Output()
	if err != nil {
		return fmt.Errorf("ask ctr for containerd's default specification: %w", err)
	}
	var s spec
	if err := json.Unmarshal(text, &s); err != nil {
		return err
	}
	linux, _ := s["linux"].(map[string]any)
	namespaces, _ := linux["namespaces"].([]any)
	if len(namespaces) == 0 {
		return errors.New("containerd's default specification names no namespaces")
	}
	linux["namespaces"] = append(namespaces, map[string]string{"type": "time"})
	return l.writeSpec(node, s, 0)
}

func (l *Lab) writeSpec(node string, s spec, ahead time.Duration) error {
	linux, _ := s["linux"].(map[string]any)
	// The seconds may be negative; the nanoseconds may not.
	seconds, nanoseconds := int64(ahead/time.Second), int64(ahead%time.Second)
	if nanoseconds < 0 {
		seconds, nanoseconds = seconds-1, nanoseconds+int64(time.Second)
	}
	offset := map[string]int64{"secs": seconds, "nanosecs": nanoseconds}
	linux["timeOffsets"] = map[string]any{"monotonic": offset, "boottime": offset}
	text, err := json.Marshal(s)
	if err != nil {
		return err
	}
	return os.WriteFile(l.shiftedSpec(node), text, 0o644)
}

// ClockShift is by how much the clocks of new containers of ShiftedRuntime are ahead of the host's.
func (l *Lab) ClockShift(m Machine) (time.Duration, error) {
	text, err := os.ReadFile(l.shiftedSpec(m.Name))
	if errors.Is(err, fs.ErrNotExist) {
		return 0, nil
	}
	if err != nil {
		return 0, err
	}
	var s struct {
		Linux struct {
			TimeOffsets map[string]struct{ Secs, Nanosecs int64 }
		}
	}
	err = json.Unmarshal(text, &s)
	boottime := s.Linux.TimeOffsets["boottime"]
	return time.Duration(boottime.Secs)*time.Second + time.Duration(boottime.Nanosecs), err
}

// ShiftClock changes it. It takes effect when containerd starts again, for containers that start then.
func (l *Lab) ShiftClock(m Machine, ahead time.Duration) error {
	text, err := os.ReadFile(l.shiftedSpec(m.Name))
	if err != nil {
		return err
	}
	var s spec
	if err := json.Unmarshal(text, &s); err != nil {
		return err
	}
	return l.writeSpec(m.Name, s, ahead)
}
