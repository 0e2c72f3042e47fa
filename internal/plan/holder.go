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
			h.limits = l
		}
	}
	h.limits.duration = min(max(h.limits.duration, r.Duration), lease.MaxDuration)
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

// gated is the name of a pod's gated container, empty where that is not certain.
func gated(pod *corev1.Pod) string {
	if i := inject.Gated(pod); i >= 0 {
		return pod.Spec.Containers[i].Name
	}
	return ""
}

// agents is the name of the container that a pod's agent runs in, also where a webhook has put a command of its own before the agent's, as those
// do that fetch secrets; empty where it can't be told. It is for what is told and waited for: who is dead follows from gated alone.
func agents(pod *corev1.Pod) string {
	if name := gated(pod); name != "" {
		return name
	}
	found := ""
	for i := range pod.Spec.Containers {
		if c := &pod.Spec.Containers[i]; len(configs(c)) > 0 {
			if found != "" {
				return ""
			}
			found = c.Name
		}
	}
	if found != pod.Annotations[contract.GatedAnnotation] {
		return ""
	}
	return found
}

// configured reads the limits that a pod was made with, and whether its agent may say that its process is not ready. Unlike the
// agent it does not mind fields that it does not know: the pod may be of a newer operator.
func configured(pod *corev1.Pod) (l limits, probed, ok bool) {
	name := agents(pod)
	for i := range pod.Spec.Containers {
		if pod.Spec.Containers[i].Name != name {
			continue
		}
		for _, c := range configs(&pod.Spec.Containers[i]) {
			l = limits{time.Duration(c.LeaseDuration), time.Duration(c.RenewDeadline), time.Duration(c.RetryPeriod), c.KeepRunning}
			return l, c.PreActivate != nil || c.Probes != (contract.Probes{}), true
		}
	}
	return limits{}, false, false
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
