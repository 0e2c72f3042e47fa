package inject

import (
	"bytes"
	"fmt"
	"os"
	"os/exec"
	"strings"
	"testing"

	corev1 "k8s.io/api/core/v1"

	"github.com/singletonjob/operator/api/v1alpha1"
	"github.com/singletonjob/operator/internal/contract"
)

// A script that is too long for the kernel is refused in its field; a shorter one starts. Characters that HTML escapes do not make
// a script longer.
func TestValidateConfig(t *testing.T) {
	shell := func(n int) []string { return []string{"sh", "-c", strings.Repeat("&", n)} }
	exec := func(n int) corev1.ProbeHandler {
		return corev1.ProbeHandler{Exec: &corev1.ExecAction{Command: shell(n)}}
	}
	lifecycle := func(n int) *corev1.LifecycleHandler {
		return &corev1.LifecycleHandler{Exec: &corev1.ExecAction{Command: shell(n)}}
	}
	const most, half = contract.MaxConfig, contract.MaxConfig/2 + 10
	container := "spec.template.spec.containers[0]."
	for name, row := range map[string]struct {
		change func(*v1alpha1.SingletonJob, *corev1.Container)
		at     string
	}{
		"short of it": {change: func(job *v1alpha1.SingletonJob, _ *corev1.Container) {
			job.Spec.PreActivate = &v1alpha1.PreActivate{Exec: v1alpha1.PreActivateExec{Command: shell(most - 1000)}}
		}},
		"preActivate": {change: func(job *v1alpha1.SingletonJob, _ *corev1.Container) {
			job.Spec.PreActivate = &v1alpha1.PreActivate{Exec: v1alpha1.PreActivateExec{Command: shell(most)}}
		}, at: "spec.preActivate"},
		"startup": {change: func(_ *v1alpha1.SingletonJob, c *corev1.Container) {
			c.StartupProbe = &corev1.Probe{ProbeHandler: exec(most)}
		}, at: container + "startupProbe"},
		"liveness": {change: func(_ *v1alpha1.SingletonJob, c *corev1.Container) {
			c.LivenessProbe = &corev1.Probe{ProbeHandler: exec(most)}
		}, at: container + "livenessProbe"},
		"readiness": {change: func(_ *v1alpha1.SingletonJob, c *corev1.Container) {
			c.ReadinessProbe = &corev1.Probe{ProbeHandler: exec(most)}
		}, at: container + "readinessProbe"},
		"postStart": {change: func(_ *v1alpha1.SingletonJob, c *corev1.Container) {
			c.Lifecycle = &corev1.Lifecycle{PostStart: lifecycle(most)}
		}, at: container + "lifecycle.postStart"},
		"two together": {change: func(_ *v1alpha1.SingletonJob, c *corev1.Container) {
			c.LivenessProbe, c.Lifecycle = &corev1.Probe{ProbeHandler: exec(half - 100)}, &corev1.Lifecycle{PreStop: lifecycle(half)}
		}, at: container + "lifecycle.preStop"},
		"references": {change: func(_ *v1alpha1.SingletonJob, c *corev1.Container) {
			c.LivenessProbe = &corev1.Probe{ProbeHandler: corev1.ProbeHandler{Exec: &corev1.ExecAction{Command: []string{strings.Repeat("$", most/3)}}}}
		}, at: container + "livenessProbe"},
	} {
		job := jobs(t)["minimal"]
		row.change(job, &job.Spec.Template.Spec.Containers[0])
		errs := Validate(job)
		switch {
		case row.at == "" && len(errs) == 0:
			starts(t, gatedOf(t, mustPod(t, job, 0, settings)).Env[0])
		case row.at == "" || len(errs) != 1 || errs[0].Field != row.at:
			t.Errorf("%s: %v, want one at %q", name, errs, row.at)
		case !strings.Contains(errs[0].Error(), fmt.Sprintf("and the kernel allows at most %d", most)) || len(errs[0].Error()) > 500:
			t.Errorf("%s: it says %s", name, errs[0])
		}
	}
}

// starts executes a program with a variable.
func starts(t *testing.T, e corev1.EnvVar) {
	t.Helper()
	self, err := os.Executable()
	if err != nil {
		t.Fatal(err)
	}
	cmd := exec.CommandContext(t.Context(), self, "-test.run=^$")
	cmd.Env = []string{e.Name + "=" + e.Value}
	var out bytes.Buffer
	cmd.Stdout, cmd.Stderr = &out, &out
	if err := cmd.Run(); err != nil {
		t.Errorf("with %d bytes: %v\n%s", len(e.Value), err, &out)
	}
}
