//go:build linux

package main

import (
	"fmt"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/util/intstr"

	"github.com/singletonjob/operator/api/v1alpha1"
	"github.com/singletonjob/operator/fence"
)

// port is where each writer answers, on the address of its own pod.
const port = 8080

func writer(job *v1alpha1.SingletonJob) *corev1.Container {
	return &job.Spec.Template.Spec.Containers[0]
}

// succeeds is a script that does.
const succeeds = "exit 0"

// fails is a script that fails in one of so many tenures.
func fails(of int) string { return fmt.Sprintf("exit $((%s %% %d == 0))", fence.EnvToken, of) }

func script(text string) corev1.ProbeHandler {
	return corev1.ProbeHandler{Exec: &corev1.ExecAction{Command: []string{"/bin/sh", "-c", text}}}
}

// answers asks the writer, which does not answer while it is stopped.
func answers() corev1.ProbeHandler {
	return corev1.ProbeHandler{HTTPGet: &corev1.HTTPGetAction{Path: "/", Port: intstr.FromInt32(port)}}
}

// connects asks the kernel, which accepts for a writer that is stopped, too.
func connects() corev1.ProbeHandler {
	return corev1.ProbeHandler{TCPSocket: &corev1.TCPSocketAction{Port: intstr.FromInt32(port)}}
}

// probe is patient enough for a busy machine, and finds a process that is stopped before the longer faults end.
func probe(how corev1.ProbeHandler) *corev1.Probe {
	return &corev1.Probe{ProbeHandler: how, PeriodSeconds: 1, TimeoutSeconds: 2, FailureThreshold: 3}
}

func hook(how corev1.ProbeHandler) *corev1.LifecycleHandler {
	return &corev1.LifecycleHandler{Exec: how.Exec}
}

func preActivates(job *v1alpha1.SingletonJob, text string) {
	job.Spec.PreActivate = &v1alpha1.PreActivate{Exec: v1alpha1.PreActivateExec{Command: script(text).Exec.Command}, TimeoutSeconds: 10}
}
