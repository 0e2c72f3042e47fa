//go:build linux

package fault

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"syscall"

	"github.com/singletonjob/operator/test/lab/internal/cluster"
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

// Freeze stops all processes of the container, as a long pause does. Its clocks continue.
func (j Injector) Freeze(ctx context.Context, ref string) error {
	c, err := j.find(ctx, ref)
	if err != nil {
		return err
	}
	return j.Lab.Groups().Freeze(ctx, c.group)
}

// Thaw lets the container's processes continue.
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

// tasks is where containerd keeps what it needs to find its running containers again when it is started.
const tasks = "/run/containerd/io.containerd.runtime.v2.task/k8s.io"

// Lose has the runtime lose the pod of the container: it is killed, its state of the pod's containers is taken away, and it is started
// again. Their processes live on, unknown to it, and the kubelet starts others in the same pod. Nothing undoes that.
func (j Injector) Lose(ctx context.Context, ref string) error {
	c, err := j.find(ctx, ref)
	if err != nil {
		return err
	}
	machines, err := j.Lab.Machines()
	if err != nil {
		return err
	}
	at := slices.IndexFunc(machines, func(m cluster.Machine) bool { return strings.HasPrefix(c.group, m.Group()+"/") })
	if at < 0 {
		return fmt.Errorf("container %s is in no node's control group: %s", ref, c.group)
	}
	node := machines[at]
	if err := node.Services().Stop(ctx, cluster.Containerd, 0); err != nil {
		return err
	}
	lost := 0
	for _, group := range j.Lab.Groups().Find(filepath.Dir(c.group), "") {
		id := filepath.Base(group)
		// The containers' file systems are mounted in there, so it is moved, not removed.
		switch err := os.Rename(node.Path(filepath.Join(tasks, id)), node.Path("/run/lost-"+id)); {
		case err == nil:
			lost++
		case !errors.Is(err, os.ErrNotExist): // the pod's own group is no container
			return err
		}
	}
	if lost == 0 {
		return fmt.Errorf("containerd keeps nothing of container %s in %s", ref, tasks)
	}
	return j.Lab.StartService(ctx, node, cluster.Containerd)
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
