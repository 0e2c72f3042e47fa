package plan

import (
	"cmp"
	"encoding/json"
	"time"

	corev1 "k8s.io/api/core/v1"

	"github.com/singletonjob/operator/internal/contract"
	"github.com/singletonjob/operator/internal/inject"
	"github.com/singletonjob/operator/internal/lease"
)

// holder is what the Lease says of who holds it.
type holder struct {
	// named: the Lease is not free. ours: it is held by an agent, in a tenure of this job. foreign: by no agent, such as an
	// elector of client-go. Candidates wait for its full duration, but it does not do as much for them: it compares
	// renewals by the second, and takes a Lease without a holder at once.
	named, ours, foreign bool
	lease.Identity
	node string
	// since is when the tenure was acquired, by the holder's clock, in milliseconds.
	since int64
	// limits are those of the holder, as far as known.
	limits limits
}

// limits are those of a tenure.
type limits struct {
	duration, renewDeadline, retryPeriod time.Duration
	keepRunning                          bool
}

// holderOf reads a record. before is the last token that is not of this job, pod the holder's, nil if it is not seen.
func holderOf(r lease.Record, before int64, pod *corev1.Pod, spec limits) holder {
	h := holder{named: r.Holder != "", limits: spec}
	id, agent := lease.ParseIdentity(r.Holder)
	h.foreign = h.named && !agent && r.Holder != lease.UnknownHolder
	h.limits.duration = min(max(h.limits.duration, r.Duration), lease.MaxDuration)
	if !agent {
		return h
	}
	h.Identity = id
	h.ours = r.Token > before
	h.since = r.AcquireTime / 1000
	if past := r.History; len(past) > 0 && past[0].Token == r.Token {
		h.node = past[0].Node
	}
	if pod != nil {
		// Where it runs is said by the pod, which nobody can write after it was bound; the history is the agent's word.
		h.node = cmp.Or(pod.Spec.NodeName, h.node)
		if l, _, ok := configured(pod); ok {
			l.duration = min(max(l.duration, r.Duration), lease.MaxDuration)
			h.limits = l
		}
	}
	return h
}

// podOf is the pod that an identity is of, nil if it is not seen.
func podOf(pods []*corev1.Pod, id lease.Identity) *corev1.Pod {
	for _, pod := range pods {
		if pod.Name == id.Pod && string(pod.UID) == id.PodUID {
			return pod
		}
	}
	return nil
}

// gated is the name of a pod's gated container, empty where that is not certain. It is for what nothing else may be taken for: proof of
// death, and that a pod acts by the Lease alone. All else goes by agents.
func gated(pod *corev1.Pod) string {
	if i := inject.Gated(pod); i >= 0 {
		return pod.Spec.Containers[i].Name
	}
	return ""
}

// agents is the container that a pod's agent runs in, also where a webhook has put a command of its own before the agent's, as those do
// that fetch secrets; nil where it can't be told.
func agents(pod *corev1.Pod) *corev1.Container {
	if i := inject.Gated(pod); i >= 0 {
		return &pod.Spec.Containers[i]
	}
	var found *corev1.Container
	for i := range pod.Spec.Containers {
		if c := &pod.Spec.Containers[i]; len(configs(c)) > 0 {
			if found != nil {
				return nil
			}
			found = c
		}
	}
	if found == nil || found.Name != pod.Annotations[contract.GatedAnnotation] {
		return nil
	}
	return found
}

// agentStatus is what the kubelet says of the container that a pod's agent runs in, empty where it says nothing, or it can't be told which
// one that is.
func agentStatus(pod *corev1.Pod) (s corev1.ContainerStatus) {
	if agent := agents(pod); agent != nil {
		for _, of := range pod.Status.ContainerStatuses {
			if of.Name == agent.Name {
				s = of
			}
		}
	}
	return s
}

// configuration is what a pod's agent is told, as far as it can be read. Unlike the agent it does not mind fields that it does not know: the
// pod may be of a newer operator.
func configuration(pod *corev1.Pod) (c contract.AgentConfig, ok bool) {
	agent := agents(pod)
	if agent == nil {
		return c, false
	}
	if all := configs(agent); len(all) > 0 {
		return all[0], true
	}
	return c, false
}

// configured reads the limits that a pod was made with, and whether its agent may say that its process is not ready.
func configured(pod *corev1.Pod) (l limits, probed, ok bool) {
	c, ok := configuration(pod)
	l = limits{time.Duration(c.LeaseDuration), time.Duration(c.RenewDeadline), time.Duration(c.RetryPeriod), c.KeepRunning}
	return l, c.PreActivate != nil || c.Probes != (contract.Probes{}), ok
}

// longest is the longest leaseDuration that an agent in a pod may have been given, by any of its containers: where it is
// not certain which one is gated, waiting too long is no harm.
func longest(pod *corev1.Pod) time.Duration {
	var d time.Duration
	for i := range pod.Spec.Containers {
		for _, c := range configs(&pod.Spec.Containers[i]) {
			d = max(d, time.Duration(c.LeaseDuration))
		}
	}
	return min(d, lease.MaxDuration)
}

// configs are what a container's environment says to an agent, as far as it can be read.
func configs(container *corev1.Container) []contract.AgentConfig {
	var all []contract.AgentConfig
	for _, e := range container.Env {
		var c contract.AgentConfig
		if e.Name == contract.ConfigEnv && json.Unmarshal([]byte(e.Value), &c) == nil {
			all = append(all, c)
		}
	}
	return all
}
