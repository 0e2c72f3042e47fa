//go:build linux

package main

import (
	"fmt"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/util/intstr"

	"github.com/singletonjob/operator/api/v1alpha1"
	"github.com/singletonjob/operator/fence"
)

// port is the port on which each writer answers, at the address of its own pod.
const port = 8080

func writer(job *v1alpha1.SingletonJob) *corev1.Container {
	return &job.Spec.Template.Spec.Containers[0]
}

// succeeds is a script that does.
const succeeds = "exit 0"

// fails returns a script that fails once in the given number of tenures.
func fails(of int) string { return fmt.Sprintf("exit $((%s %% %d == 0))", fence.EnvToken, of) }

func script(text string) corev1.ProbeHandler {
	return corev1.ProbeHandler{Exec: &corev1.ExecAction{Command: []string{"/bin/sh", "-c", text}}}
}

// answers sends a request to the writer, which does not answer while it is stopped.
func answers() corev1.ProbeHandler {
	return corev1.ProbeHandler{HTTPGet: &corev1.HTTPGetAction{Path: "/", Port: intstr.FromInt32(port)}}
}

// connects opens a connection, which the kernel accepts even if the writer is stopped.
func connects() corev1.ProbeHandler {
	return corev1.ProbeHandler{TCPSocket: &corev1.TCPSocketAction{Port: intstr.FromInt32(port)}}
}

// probe allows for a busy machine, and still detects a stopped process before the longer faults end.
func probe(how corev1.ProbeHandler) *corev1.Probe {
	return &corev1.Probe{ProbeHandler: how, PeriodSeconds: 1, TimeoutSeconds: 2, FailureThreshold: 3}
}

func hook(how corev1.ProbeHandler) *corev1.LifecycleHandler {
	return &corev1.LifecycleHandler{Exec: how.Exec}
}

func preActivates(job *v1alpha1.SingletonJob, text string) {
	job.Spec.PreActivate = &v1alpha1.PreActivate{Exec: v1alpha1.PreActivateExec{Command: script(text).Exec.Command}, TimeoutSeconds: 10}
}
