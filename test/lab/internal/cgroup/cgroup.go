//go:build linux

// Package cgroup owns one subtree of the machine's control groups, in version 1 and in version 2. It makes groups, puts processes in
// them, freezes and thaws them, kills all that is in them and removes them.
package cgroup

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"syscall"
	"time"

	"golang.org/x/sys/unix"
	"k8s.io/apimachinery/pkg/util/sets"
)

const mountPoint = "/sys/fs/cgroup"

// A Tree is the same subtree in every hierarchy of the machine: one in version 2, one for each controller in version 1.
type Tree struct {
	name        string   // of the subtree's root group
	hierarchies []string // where each is mounted; the subtree lies directly below
	unified     bool     // version 2
}

// Open finds the machine's hierarchies. It makes nothing.
func Open(name string) (*Tree, error) {
	var at unix.Statfs_t
	if err := unix.Statfs(mountPoint, &at); err != nil {
		return nil, fmt.Errorf("look at %s: %w", mountPoint, err)
	}
	if at.Type == unix.CGROUP2_SUPER_MAGIC { // as the kubelet decides it
		return &Tree{name: name, hierarchies: []string{mountPoint}, unified: true}, nil
	}
	mounts, err := os.ReadFile("/proc/self/mountinfo")
	if err != nil {
		return nil, err
	}
	found := hierarchiesV1(string(mounts))
	if len(found) == 0 {
		return nil, fmt.Errorf("no control group is mounted below %s", mountPoint)
	}
	return &Tree{name: name, hierarchies: found}, nil
}

// hierarchiesV1 lists the mount points of version 1, and of the version 2 without controllers that may be beside them:
// container runtimes use both. A controller may be mounted twice, and two may share a mount.
func hierarchiesV1(mountinfo string) []string {
	var found []string
	for line := range strings.Lines(mountinfo) {
		before, after, ok := strings.Cut(line, " - ")
		at := strings.Fields(before)
		if !ok || len(at) < 5 || !strings.HasPrefix(at[4], mountPoint+"/") {
			continue
		}
		if kind, _, _ := strings.Cut(after, " "); kind != "cgroup" && kind != "cgroup2" {
			continue
		}
		found = append(found, at[4])
	}
	slices.Sort(found)
	return slices.Compact(found)
}

// Version is 1 or 2.
func (t *Tree) Version() int {
	if t.unified {
		return 2
	}
	return 1
}

// Root is the group's path as a container runtime writes it.
func (t *Tree) Root() string { return "/" + t.name }

// Make creates the group below the root, with its parents, in every hierarchy.
func (t *Tree) Make(group string) error {
	for _, h := range t.hierarchies {
		at := h
		for part := range strings.SplitSeq(filepath.Join(t.name, group), "/") {
			if err := t.prepareParent(at); err != nil {
				return err
			}
			parent := at
			at = filepath.Join(at, part)
			if err := os.Mkdir(at, 0o755); err != nil && !errors.Is(err, fs.ErrExist) {
				return err
			}
			if err := inheritCPUs(parent, at); err != nil {
				return err
			}
		}
	}
	return nil
}

// prepareParent gives the children of a version 2 group all controllers that it has itself.
func (t *Tree) prepareParent(group string) error {
	if !t.unified {
		return nil
	}
	controllers, err := os.ReadFile(filepath.Join(group, "cgroup.controllers"))
	if err != nil {
		return err
	}
	var enable strings.Builder
	for c := range strings.FieldsSeq(string(controllers)) {
		enable.WriteString("+" + c + " ")
	}
	if err := os.WriteFile(filepath.Join(group, "cgroup.subtree_control"), []byte(enable.String()), 0); err != nil {
		return fmt.Errorf("hand the controllers %s to the children of %s: %w (in a container, its processes must be in a child group of it)",
			strings.TrimSpace(string(controllers)), group, err)
	}
	return nil
}

// inheritCPUs copies what a version 1 cpuset must have before a process may enter it.
func inheritCPUs(parent, group string) error {
	for _, file := range []string{"cpuset.cpus", "cpuset.mems"} {
		have, err := os.ReadFile(filepath.Join(group, file))
		if err != nil || len(strings.TrimSpace(string(have))) > 0 {
			continue // no cpuset hierarchy, or set already
		}
		value, err := os.ReadFile(filepath.Join(parent, file))
		if err != nil || len(strings.TrimSpace(string(value))) == 0 {
			continue // version 2, where empty means the parent's
		}
		if err := os.WriteFile(filepath.Join(group, file), value, 0); err != nil {
			return err
		}
	}
	return nil
}

// Join puts the process into the group. Everything it starts from then on is in it too.
func (t *Tree) Join(group string, pid int) error {
	for _, h := range t.hierarchies {
		procs := filepath.Join(h, t.name, group, "cgroup.procs")
		if err := os.WriteFile(procs, []byte(strconv.Itoa(pid)), 0); err != nil {
			return fmt.Errorf("put process %d into %s: %w", pid, procs, err)
		}
	}
	return nil
}

// Processes lists the pids in the group and below it.
func (t *Tree) Processes(group string) []int {
	found := sets.New[int]()
	for _, h := range t.hierarchies {
		for _, dir := range groupsBelow(filepath.Join(h, t.name, group)) {
			pids, err := os.ReadFile(filepath.Join(dir, "cgroup.procs"))
			if err != nil {
				continue // gone meanwhile
			}
			for field := range strings.FieldsSeq(string(pids)) {
				if pid, err := strconv.Atoi(field); err == nil && pid > 0 {
					found.Insert(pid)
				}
			}
		}
	}
	return sets.List(found)
}

// Find lists the groups below the given one whose name holds the text, as paths below the root, for use with Freeze and
// Processes.
func (t *Tree) Find(group, text string) []string {
	found := sets.New[string]()
	for _, h := range t.hierarchies {
		base := filepath.Join(h, t.name)
		for _, dir := range groupsBelow(filepath.Join(base, group)) {
			if !strings.Contains(filepath.Base(dir), text) {
				continue
			}
			if path, err := filepath.Rel(base, dir); err == nil {
				found.Insert(path)
			}
		}
	}
	return sets.List(found)
}

// Freeze stops every process in the group and below it, as a paused machine would, and returns when all have stopped.
func (t *Tree) Freeze(ctx context.Context, group string) error { return t.setFrozen(ctx, group, true) }

// Thaw lets the group's processes continue. It is no error if they were not frozen.
func (t *Tree) Thaw(ctx context.Context, group string) error { return t.setFrozen(ctx, group, false) }

// ThawAll thaws the group and every group below it, whatever it was that froze it.
func (t *Tree) ThawAll(ctx context.Context, group string) error {
	var errs []error
	for _, group := range t.Frozen(group) {
		errs = append(errs, t.Thaw(ctx, group))
	}
	return errors.Join(errs...)
}

// Frozen lists the groups that were frozen themselves, of the given one and those below it: not those that are frozen
// because their parent is.
func (t *Tree) Frozen(group string) []string {
	base := filepath.Join(t.freezer(), t.name)
	var frozen []string
	for _, dir := range groupsBelow(filepath.Join(base, group)) {
		self, err := os.ReadFile(filepath.Join(dir, t.file("cgroup.freeze", "freezer.self_freezing")))
		if err != nil || strings.TrimSpace(string(self)) != "1" {
			continue
		}
		if group, err := filepath.Rel(base, dir); err == nil {
			frozen = append(frozen, group)
		}
	}
	return frozen
}

func (t *Tree) file(v2, v1 string) string {
	if t.unified {
		return v2
	}
	return v1
}

func (t *Tree) freezer() string {
	for _, h := range t.hierarchies {
		if t.unified || filepath.Base(h) == "freezer" {
			return h
		}
	}
	return t.hierarchies[0]
}

func (t *Tree) setFrozen(ctx context.Context, group string, frozen bool) error {
	dir := filepath.Join(t.freezer(), t.name, group)
	file, order := "freezer.state", "THAWED"
	if frozen {
		order = "FROZEN"
	}
	if t.unified {
		file, order = "cgroup.freeze", map[bool]string{true: "1", false: "0"}[frozen]
	}
	if err := os.WriteFile(filepath.Join(dir, file), []byte(order), 0); err != nil {
		return fmt.Errorf("set %s of %s to %s: %w", file, dir, order, err)
	}
	for !t.settled(dir, order) {
		select {
		case <-ctx.Done():
			return fmt.Errorf("%s of %s did not become %s: %w", file, dir, order, ctx.Err())
		case <-time.After(time.Millisecond):
		}
	}
	return nil
}

// settled reports whether the kernel has carried the order out. In version 1 a process in an uninterruptible sleep keeps
// the group FREEZING, and writing the order again makes the kernel look again.
func (t *Tree) settled(dir, order string) bool {
	if t.unified {
		events, err := os.ReadFile(filepath.Join(dir, "cgroup.events"))
		return err != nil || order == "0" || strings.Contains(string(events), "frozen 1")
	}
	state, err := os.ReadFile(filepath.Join(dir, "freezer.state"))
	if err != nil || strings.TrimSpace(string(state)) == order {
		return true
	}
	// A thawed group below a frozen one stays frozen: that is the parent's doing.
	if order == "THAWED" {
		above, err := os.ReadFile(filepath.Join(dir, "freezer.parent_freezing"))
		return err == nil && strings.TrimSpace(string(above)) == "1"
	}
	_ = os.WriteFile(filepath.Join(dir, "freezer.state"), []byte(order), 0)
	return false
}

// Remove kills every process in the tree and removes its groups, from every hierarchy. It may be called at any time and
// again.
func (t *Tree) Remove(ctx context.Context) error {
	// A frozen process of version 1 does not die before it is thawed.
	if err := t.ThawAll(ctx, ""); err != nil {
		return err
	}
	for {
		pids := t.Processes("")
		for _, pid := range pids {
			t.kill(pid)
		}
		left := t.removeGroups()
		if len(left) == 0 {
			return nil
		}
		select {
		case <-ctx.Done():
			return fmt.Errorf("control groups %v are still there, with processes %v: %w", left, pids, ctx.Err())
		case <-time.After(20 * time.Millisecond):
		}
	}
}

// kill ends the process if it is still in the tree. It takes the handle first and reads the membership after, so that it does not hit a
// stranger who got the pid meanwhile.
func (t *Tree) kill(pid int) {
	handle, err := os.FindProcess(pid) // a pidfd on Linux
	if err != nil {
		return
	}
	defer func() { _ = handle.Release() }()
	membership, err := os.ReadFile(fmt.Sprintf("/proc/%d/cgroup", pid))
	if err == nil && strings.Contains(string(membership), ":"+t.Root()+"/") {
		_ = handle.Signal(syscall.SIGKILL)
	}
}

// removeGroups removes what is empty and returns what is left.
func (t *Tree) removeGroups() []string {
	var left []string
	for _, h := range t.hierarchies {
		groups := groupsBelow(filepath.Join(h, t.name))
		for _, dir := range slices.Backward(groups) { // children before their parents
			if err := syscall.Rmdir(dir); err != nil && !errors.Is(err, fs.ErrNotExist) {
				left = append(left, dir)
			}
		}
	}
	return left
}

// groupsBelow lists the group's directory and those below it, parents first; nothing if there is none.
func groupsBelow(dir string) []string {
	var found []string
	_ = filepath.WalkDir(dir, func(path string, d fs.DirEntry, err error) error {
		if err == nil && d.IsDir() { // else it is gone meanwhile
			found = append(found, path)
		}
		return nil
	})
	return found
}
