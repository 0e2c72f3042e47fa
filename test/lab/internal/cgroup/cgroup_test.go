//go:build linux

package cgroup

import (
	"context"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"golang.org/x/sys/unix"

	"github.com/singletonjob/operator/test/lab/internal/proc"
	"github.com/singletonjob/operator/test/tier"
)

// trees lists what this machine can show: its own version, and version 2 beside version 1 where that is mounted (as a
// hierarchy without controllers it still freezes and kills).
func trees(t *testing.T) map[string]*Tree {
	t.Helper()
	if os.Geteuid() != 0 {
		tier.Needs(t, "it needs root: it makes control groups")
	}
	name := fmt.Sprintf("singletonjob-test-%d", os.Getpid())
	own, err := Open(name)
	if err != nil {
		tier.Needs(t, "%v", err)
	}
	found := map[string]*Tree{fmt.Sprintf("version %d", own.Version()): own}
	var at unix.Statfs_t
	hybrid := filepath.Join(mountPoint, "unified")
	if unix.Statfs(hybrid, &at) == nil && at.Type == unix.CGROUP2_SUPER_MAGIC {
		found["version 2"] = &Tree{name: name, hierarchies: []string{hybrid}, unified: true}
	}
	return found
}

func start(t *testing.T) proc.Process {
	t.Helper()
	cmd := exec.Command("sh", "-c", "while :; do :; done")
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = cmd.Process.Kill(); _ = cmd.Wait() })
	p, err := proc.Of(cmd.Process.Pid)
	if err != nil {
		t.Fatal(err)
	}
	return p
}

func ticks(t *testing.T, pid int) string {
	t.Helper()
	stat, err := os.ReadFile(fmt.Sprintf("/proc/%d/schedstat", pid))
	if err != nil {
		t.Fatal(err)
	}
	return string(stat)
}

func TestFreezeThawRemove(t *testing.T) {
	for name, tree := range trees(t) {
		t.Run(name, func(t *testing.T) {
			ctx, cancel := context.WithTimeout(t.Context(), 5*time.Minute)
			defer cancel()
			t.Cleanup(func() { must(t, tree.Remove(context.WithoutCancel(ctx))) })
			const group = "node1/pods/0123abcd"
			must(t, tree.Make(group))
			must(t, tree.Make(group)) // again does no harm
			busy := start(t)
			must(t, tree.Join(group, busy.PID))
			if got := tree.Processes("node1"); !slices.Equal(got, []int{busy.PID}) {
				t.Errorf("processes %v, want the one, %d", got, busy.PID)
			}
			if diff := cmp.Diff([]string{group}, tree.Find("node1", "123ab")); diff != "" {
				t.Errorf("groups found (-want +got):\n%s", diff)
			}
			freezeAndThaw(ctx, t, tree, group, busy)

			// Removing works on a frozen tree, and kills.
			must(t, tree.Freeze(ctx, group))
			must(t, tree.Remove(ctx))
			if busy.Alive() {
				t.Error("a process outlived its group")
			}
			for _, h := range tree.hierarchies {
				if left := groupsBelow(filepath.Join(h, tree.name)); len(left) > 0 {
					t.Errorf("left behind: %v", left)
				}
			}
		})
	}
}

func must(t *testing.T, err error) {
	t.Helper()
	if err != nil {
		t.Fatal(err)
	}
}

func freezeAndThaw(ctx context.Context, t *testing.T, tree *Tree, group string, busy proc.Process) {
	t.Helper()
	must(t, tree.Freeze(ctx, group))
	if diff := cmp.Diff([]string{group}, tree.Frozen("")); diff != "" {
		t.Errorf("frozen groups (-want +got):\n%s", diff)
	}
	before := ticks(t, busy.PID)
	time.Sleep(50 * time.Millisecond) // long enough to run, if it could
	if after := ticks(t, busy.PID); after != before {
		t.Errorf("a frozen process ran: %s then %s", before, after)
	}
	must(t, tree.ThawAll(ctx, ""))
	for ticks(t, busy.PID) == before {
		if ctx.Err() != nil {
			t.Fatal("the thawed process does not run")
		}
		time.Sleep(time.Millisecond)
	}
}

func TestHierarchiesV1(t *testing.T) {
	for name, tc := range map[string]struct {
		mountinfo string
		want      []string
	}{
		"hybrid": {
			mountinfo: "30 29 0:26 / /sys/fs/cgroup/unified rw - cgroup2 none rw\n" +
				"31 29 0:27 / /sys/fs/cgroup/freezer rw,nosuid shared:9 - cgroup none rw,freezer\n" +
				"32 29 0:28 / /sys/fs/cgroup/cpu,cpuacct rw - cgroup none rw,cpu,cpuacct\n",
			want: []string{"/sys/fs/cgroup/cpu,cpuacct", "/sys/fs/cgroup/freezer", "/sys/fs/cgroup/unified"},
		},
		"mounted twice": {
			mountinfo: "31 29 0:27 / /sys/fs/cgroup/pids rw - cgroup none rw,pids\n44 29 0:27 / /sys/fs/cgroup/pids rw - cgroup none rw,pids\n",
			want:      []string{"/sys/fs/cgroup/pids"},
		},
		"elsewhere":      {mountinfo: "31 29 0:27 / /mnt/freezer rw - cgroup none rw,freezer\n"},
		"version 2 only": {mountinfo: "30 29 0:26 / /sys/fs/cgroup rw - cgroup2 none rw\n"},
	} {
		t.Run(name, func(t *testing.T) {
			if diff := cmp.Diff(tc.want, hierarchiesV1(tc.mountinfo)); diff != "" {
				t.Errorf("hierarchies (-want +got):\n%s", diff)
			}
		})
	}
}
