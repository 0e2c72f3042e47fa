//go:build linux

package fault

import (
	"context"
	"fmt"
	"os"
	"strings"
	"syscall"

	"github.com/singletonjob/operator/test/lab/internal/proc"
)

// A container is the control group of one container.
type container struct {
	ref   string
	group string
}

// find takes NAMESPACE/POD, NAMESPACE/POD/CONTAINER or a part of a container's id that no other has. Names are asked from
// the API server; ids are found without it, and the containers of pods that the API server has forgotten too.
func (j Injector) find(ctx context.Context, ref string) (container, error) {
	id := ref
	if strings.Contains(ref, "/") {
		var err error
		if id, err = j.Lab.ContainerID(ctx, ref); err != nil {
			return container{}, err
		}
	}
	switch groups := j.Lab.Groups().Find("", id); {
	case id == "" || len(groups) == 0:
		return container{}, fmt.Errorf("no container %q runs in the lab", ref)
	case len(groups) > 1:
		return container{}, fmt.Errorf("%q may be any of %s: give more of the id", ref, strings.Join(groups, ", "))
	default:
		return container{ref: ref, group: groups[0]}, nil
	}
}

// Freeze stops all processes of the container, as a long pause does. Its clocks go on.
func (j Injector) Freeze(ctx context.Context, ref string) error {
	c, err := j.find(ctx, ref)
	if err != nil {
		return err
	}
	return j.Lab.Groups().Freeze(ctx, c.group)
}

// Thaw lets the container's processes go on.
func (j Injector) Thaw(ctx context.Context, ref string) error {
	c, err := j.find(ctx, ref)
	if err != nil {
		return err
	}
	return j.Lab.Groups().Thaw(ctx, c.group)
}

// Signal sends the signal to process 1 of the container, or, if a text is given, to every process whose command line
// begins with it.
func (j Injector) Signal(ctx context.Context, ref string, sig syscall.Signal, text string) error {
	c, err := j.find(ctx, ref)
	if err != nil {
		return err
	}
	sent := 0
	for _, pid := range j.Lab.Groups().Processes(c.group) {
		p, err := proc.Of(pid)
		if err != nil || !hit(pid, text) {
			continue // gone meanwhile, or not meant
		}
		if err := p.Signal(sig); err != nil {
			return err
		}
		sent++
	}
	if sent == 0 {
		return fmt.Errorf("container %s has no process to send the signal to", c.ref)
	}
	return nil
}

func hit(pid int, text string) bool {
	if text == "" {
		status, err := os.ReadFile(fmt.Sprintf("/proc/%d/status", pid))
		return err == nil && innermostPID(string(status)) == "1"
	}
	line, err := os.ReadFile(fmt.Sprintf("/proc/%d/cmdline", pid))
	return err == nil && strings.HasPrefix(strings.ReplaceAll(string(line), "\x00", " "), text)
}

// innermostPID is the pid as the process itself sees it, from the text of /proc/PID/status.
func innermostPID(status string) string {
	for line := range strings.Lines(status) {
		if rest, ok := strings.CutPrefix(line, "NSpid:"); ok {
			if pids := strings.Fields(rest); len(pids) > 0 {
				return pids[len(pids)-1]
			}
		}
	}
	return ""
}
