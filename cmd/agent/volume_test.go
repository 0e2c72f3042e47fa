//go:build linux

package main

import (
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/singletonjob/operator/api/v1alpha1"
	"github.com/singletonjob/operator/internal/contract"
	"github.com/singletonjob/operator/internal/inject"
)

// The process can write to the volume with the agent's socket and lock, and cannot replace the agent, which the next start of the container
// would execute.
func TestTheProcessCannotReplaceItsAgent(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	pod, err := inject.Pod(&v1alpha1.SingletonJob{
		ObjectMeta: metav1.ObjectMeta{Name: jobName, Namespace: w.ns},
		Spec: v1alpha1.SingletonJobSpec{Template: corev1.PodTemplateSpec{Spec: corev1.PodSpec{
			Containers: []corev1.Container{{Name: "app", Image: "app", Command: []string{"app"}}},
		}}},
	}, 0, inject.Settings{AgentImage: "operator"})
	w.must(err)
	config := steadyConfig()
	a := w.prepare("a", config)
	a.inside(pod)
	result := filepath.Join(t.TempDir(), "result")
	a.run("sh", "-c", `
try() { if sh -c "$1" 2>/dev/null; then echo "can: $1"; else echo "cannot: $1"; fi; }
{
	try ': >>/singletonjob/bin/agent'
	try 'rm -f /singletonjob/bin/agent'
	try 'mv /singletonjob/bin/agent /singletonjob/bin/other'
	try 'ln /singletonjob/bin/agent /singletonjob/bin/other'
	try 'chmod 777 /singletonjob/bin/agent'
	try 'cp /bin/sh /singletonjob/bin/other'
	try 'mv /singletonjob/run/agent.sock /singletonjob/bin/agent'
	try 'test -x /singletonjob/bin/agent'
	try ': >/singletonjob/run/of-the-process'
	try 'test -S /singletonjob/run/agent.sock'
	try 'ls -a /singletonjob/run | grep -q singletonjob-lives'
	try '/singletonjob/bin/agent check >/dev/null'
} >"$0.part"
mv "$0.part" "$0"
exec sleep 3600`, result)
	a.acquired()
	w.eventually("the process has tried everything", func() bool { _, err := os.Stat(result); return err == nil })
	got, err := os.ReadFile(result)
	w.must(err)
	want := `cannot: : >>/singletonjob/bin/agent
cannot: rm -f /singletonjob/bin/agent
cannot: mv /singletonjob/bin/agent /singletonjob/bin/other
cannot: ln /singletonjob/bin/agent /singletonjob/bin/other
cannot: chmod 777 /singletonjob/bin/agent
cannot: cp /bin/sh /singletonjob/bin/other
cannot: mv /singletonjob/run/agent.sock /singletonjob/bin/agent
can: test -x /singletonjob/bin/agent
can: : >/singletonjob/run/of-the-process
can: test -S /singletonjob/run/agent.sock
can: ls -a /singletonjob/run | grep -q singletonjob-lives
can: /singletonjob/bin/agent check >/dev/null
`
	if string(got) != want {
		t.Errorf("the process found:\n%s\nwant:\n%s\nlog of the agent:\n%s", got, want, a.lines)
	}
}

// inside makes the agent PID 1 of what looks like the gated container: the init container has installed it, and the Pod's emptyDirs are
// where the Pod mounts them.
func (c *candidate) inside(pod *corev1.Pod) {
	c.w.t.Helper()
	c.contained()
	gated, install := pod.Spec.Containers[inject.Gated(pod)], pod.Spec.InitContainers[0]
	empty := func(name string) bool {
		return slices.ContainsFunc(pod.Spec.Volumes, func(v corev1.Volume) bool { return v.Name == name && v.EmptyDir != nil })
	}
	var script strings.Builder
	fmt.Fprintf(&script, `mount -t tmpfs tmpfs "$0"
for at in /*; do
	if test -L "$at"; then cp -P "$at" "$0"; continue; fi
	test -d "$at" || continue
	mkdir "$0$at"
	test "$at" = /proc || mount --rbind "$at" "$0$at"
done
mount -t proc proc /proc
mount -t proc proc "$0/proc"
mkdir -p "$0/volumes/%s"
%s install "$0/volumes/%[1]s"
`, install.VolumeMounts[0].Name, c.w.program)
	for _, m := range gated.VolumeMounts {
		if !empty(m.Name) {
			continue
		}
		fmt.Fprintf(&script, "mkdir -p \"$0/volumes/%s\" \"$0%s\"\nmount --bind \"$0/volumes/%[1]s\" \"$0%[2]s\"\n", m.Name, m.MountPath)
		if m.ReadOnly {
			fmt.Fprintf(&script, "mount -o remount,bind,ro \"$0%s\"\n", m.MountPath)
		}
	}
	script.WriteString(`exec chroot "$0" "$@"`)
	c.by = []string{"sh", "-ec", script.String(), c.w.t.TempDir()}
	c.w.program = gated.Command[0]
	for _, e := range gated.Env {
		if e.Name == contract.SocketEnv {
			c.env = append(c.env, e.Name+"="+e.Value)
		}
	}
}
