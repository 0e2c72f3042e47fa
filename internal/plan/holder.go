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

// holder is what the Lease says about its holder.
type holder struct {
	// named: the Lease is not free. ours: an agent holds it, in a tenure of this job. foreign: another component holds it, such as an
	// elector of client-go. Candidates wait for the full duration of such an elector. An elector does not wait for theirs: it compares
	// renewals by the second, and takes a Lease without a holder at once.
	named, ours, foreign bool
	lease.Identity
	node string
	// since is when the tenure was acquired, by the holder's clock, in milliseconds.
	since int64
	// limits are those of the holder, if known.
	limits limits
}

// limits are the time limits of a tenure.
type limits struct {
	duration, renewDeadline, retryPeriod time.Duration
	keepRunning                          bool
}

// holderOf reads a record. before is the last token that does not belong to this job. pod is the holder's pod, nil if it was not observed.
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
		// The pod says where it runs, and nothing can change that after it was bound. The history is only what the agent reported.
		h.node = cmp.Or(pod.Spec.NodeName, h.node)
		if l, _, ok := configured(pod); ok {
			l.duration = min(max(l.duration, r.Duration), lease.MaxDuration)
			h.limits = l
		}
	}
	return h
}

// podOf returns the pod of an identity, nil if it was not observed.
func podOf(pods []*corev1.Pod, id lease.Identity) *corev1.Pod {
	for _, pod := range pods {
		if pod.Name == id.Pod && string(pod.UID) == id.PodUID {
			return pod
		}
	}
	return nil
}

// gated returns the name of a pod's gated container, empty if that is not certain. Use it where a wrong container would be dangerous: for
// proof of death, and to decide that a pod acts by the Lease alone. Use agents for everything else.
func gated(pod *corev1.Pod) string {
	if i := inject.Gated(pod); i >= 0 {
		return pod.Spec.Containers[i].Name
	}
	return ""
}

// agents returns the container of a pod's agent. It also finds the container if a webhook put its own command before the agent's, for
// example to fetch secrets. It returns nil if the container can't be determined.
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

// agentStatus returns the kubelet's status of the agent's container. It is empty if there is none, or if the container can't be determined.
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

// configuration returns the configuration of a pod's agent, if it can be parsed. Unlike the agent, it ignores unknown fields, because a
// newer operator may have created the pod.
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

// configured returns the limits that a pod was created with, and whether its agent can report that its process is not ready.
func configured(pod *corev1.Pod) (l limits, probed, ok bool) {
	c, ok := configuration(pod)
	l = limits{time.Duration(c.LeaseDuration), time.Duration(c.RenewDeadline), time.Duration(c.RetryPeriod), c.KeepRunning}
	return l, c.PreActivate != nil || c.Hooks.PostStart != nil || c.Probes != (contract.Probes{}), ok
}

// longest returns the longest leaseDuration in the agent configuration of any of a pod's containers. If it is not certain which container
// is gated, waiting too long does no harm.
func longest(pod *corev1.Pod) time.Duration {
	var d time.Duration
	for i := range pod.Spec.Containers {
		for _, c := range configs(&pod.Spec.Containers[i]) {
			d = max(d, time.Duration(c.LeaseDuration))
		}
	}
	return min(d, lease.MaxDuration)
}

// configs returns the agent configurations in a container's environment that can be parsed.
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
