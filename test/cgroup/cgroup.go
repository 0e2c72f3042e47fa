//go:build linux

// Package cgroup makes control groups for tests, of version 1 or 2 as the machine has them.
package cgroup

import (
	"errors"
	"fmt"
	"io/fs"
	"maps"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"sync/atomic"
	"syscall"
	"testing"
	"time"

	"github.com/singletonjob/operator/test/tier"
)

const (
	mount    = "/sys/fs/cgroup"
	patience = 5 * time.Minute
)

// Group is a control group of a test.
type Group struct {
	t testing.TB
	// Parent is the directory of the group that this one is in, and Dir its own.
	Parent, Dir string
}

var made atomic.Int64 // groups of this process

// New makes a group of a controller's hierarchy of version 1, or one of version 2. If it can make neither, it skips the test, or fails it
// where CI is set. Processes in it are killed when the test ends.
func New(t testing.TB, controller string) *Group {
	t.Helper()
	for _, parent := range []string{filepath.Join(mount, controller), mount} {
		if _, err := os.Stat(filepath.Join(parent, "cgroup.procs")); err != nil {
			continue // not a hierarchy
		}
		dir := filepath.Join(parent, fmt.Sprintf("singletonjob-test-%d-%d", os.Getpid(), made.Add(1)))
		err := os.Mkdir(dir, 0o755)
		switch {
		case errors.Is(err, fs.ErrPermission), errors.Is(err, syscall.EROFS):
			continue
		case err != nil:
			t.Fatal(err)
		default:
			g := &Group{t: t, Parent: parent, Dir: dir}
			if !g.IsVersion1() { // has only what its parent passes on; the freezer is always there
				_ = os.WriteFile(filepath.Join(parent, "cgroup.subtree_control"), []byte("+"+controller), 0o600)
			}
			t.Cleanup(g.remove)
			return g
		}
	}
	tier.Needs(t, "no %s cgroup can be made here: it takes root", controller)
	return nil
}

func (g *Group) remove() {
	_, _ = g.write(thawed)
	for end := time.Now().Add(patience); os.Remove(g.Dir) != nil && time.Now().Before(end); time.Sleep(20 * time.Millisecond) {
		for pid := range strings.FieldsSeq(g.Read("cgroup.procs")) {
			if pid, err := strconv.Atoi(pid); err == nil && pid > 0 {
				_ = syscall.Kill(pid, syscall.SIGKILL)
			}
		}
	}
}

// IsVersion1 reports whether the group is of version 1, where what is frozen does not die of SIGKILL.
func (g *Group) IsVersion1() bool { return g.Parent != mount }

// Execute is the beginning of a command line that puts a program into the group. A script for sh, if there is any, runs
// before the program, with the group's directory and its parent's as $1 and $2.
func (g *Group) Execute(script string) []string {
	return []string{"sh", "-ec", `echo 0 >"$1/cgroup.procs"; ` + script + ` shift 2; exec "$@"`, "sh", g.Dir, g.Parent}
}

// Add puts a process into the group.
func (g *Group) Add(pid int) {
	g.t.Helper()
	if err := g.TryAdd(pid); err != nil {
		g.t.Fatal(err)
	}
}

// TryAdd is Add for a process that may have ended. The error is the kernel's.
func (g *Group) TryAdd(pid int) error {
	return os.WriteFile(filepath.Join(g.Dir, "cgroup.procs"), []byte(strconv.Itoa(pid)), 0o600)
}

// Set writes to whichever of the files the group has; they are those of version 1 and of version 2. A group that has none
// lacks the controller, and the test is skipped.
func (g *Group) Set(values map[string]string) {
	g.t.Helper()
	if written, err := g.write(values); err != nil {
		g.t.Fatal(err)
	} else if !written {
		tier.Needs(g.t, "%s has none of %v", g.Dir, slices.Sorted(maps.Keys(values)))
	}
}

func (g *Group) write(values map[string]string) (written bool, err error) {
	for name, value := range values {
		file := filepath.Join(g.Dir, name)
		if _, err := os.Stat(file); err == nil {
			return true, os.WriteFile(file, []byte(value), 0o600)
		}
	}
	return false, nil
}

// Read is the content of a file of the group; empty where there is none.
func (g *Group) Read(name string) string {
	text, _ := os.ReadFile(filepath.Join(g.Dir, name))
	return string(text)
}

// LimitCPU limits the group to so many thousandths of a CPU, over the kubelet's period. Other programs of the machine wait, and are not
// part of the measurement.
func (g *Group) LimitCPU(milli int) {
	g.t.Helper()
	const period = 100_000 // µs
	quota := strconv.Itoa(milli * period / 1000)
	g.Set(map[string]string{"cpu.cfs_quota_us": quota, "cpu.max": quota + " " + strconv.Itoa(period)})
	g.Set(map[string]string{"cpu.shares": "262144", "cpu.weight": "10000"})
}

var thawed = map[string]string{"freezer.state": "THAWED", "cgroup.freeze": "0"}

// Freeze freezes all that is in the group, and returns what thaws it.
func (g *Group) Freeze() (thaw func()) {
	g.t.Helper()
	g.Set(map[string]string{"freezer.state": "FROZEN", "cgroup.freeze": "1"})
	for end := time.Now().Add(patience); ; time.Sleep(time.Millisecond) {
		if strings.HasPrefix(g.Read("freezer.state"), "FROZEN") || strings.Contains(g.Read("cgroup.events"), "frozen 1") {
			break
		}
		if time.Now().After(end) {
			g.t.Fatalf("%s does not freeze", g.Dir)
		}
	}
	return func() {
		g.t.Helper()
		g.Set(thawed)
	}
}
