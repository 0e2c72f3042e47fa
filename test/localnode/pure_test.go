//go:build linux

package localnode

import (
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
)

func TestMountPathsAreRewritten(t *testing.T) {
	m := sortedMounts([]mount{{"/data", "/v/data"}, {"/data/inner/", "/v/inner"}, {"/var/run/secrets", "/v/s"}})
	cases := map[string]struct{ text, want, why string }{
		"whole":            {"/data", "/v/data", ""},
		"a file below":     {"/data/x", "/v/data/x", ""},
		"longest first":    {"/data/inner/x", "/v/inner/x", "a volume mounted within another hides it"},
		"a longer name":    {"/database", "/database", "it is another path"},
		"a dotted name":    {"/data.old", "/data.old", "it is another path"},
		"a relative path":  {"my/data", "my/data", "no mount path"},
		"a deeper path":    {"/srv/data", "/srv/data", "it is another path"},
		"after a double /": {"//data", "//data", "left alone rather than guessed"},
		"an option":        {"--dir=/data --other=/data/inner", "--dir=/v/data --other=/v/inner", ""},
		"JSON":             {`{"a":"/data","b":["/var/run/secrets/t"]}`, `{"a":"/v/data","b":["/v/s/t"]}`, ""},
		"a list":           {"/data:/data/inner:/usr", "/v/data:/v/inner:/usr", "as in PATH"},
		"not twice":        {"/v/data", "/v/data", "what was put in is not rewritten again"},
		"unicode name":     {"/dataß", "/dataß", "it is another path"},
		"empty":            {"", "", ""},
	}
	for name, c := range cases {
		t.Run(name, func(t *testing.T) {
			if got := m.rewrite(c.text); got != c.want {
				t.Errorf("%q becomes %q, want %q (%s)", c.text, got, c.want, c.why)
			}
		})
	}
}

func TestReferencesAreExpanded(t *testing.T) {
	v := variables{"A": "1", "B": "$(A)"}
	cases := map[string]struct{ text, want string }{
		"known": {"x$(A)y", "x1y"}, "twice": {"$(A)$(A)", "11"}, "unknown": {"$(C)", "$(C)"},
		"escaped": {"$$(A)", "$(A)"}, "escaped and meant": {"$$$(A)", "$1"}, "not again": {"$(B)", "$(A)"},
		"alone": {"$", "$"}, "a shell's": {"$A ${A}", "$A ${A}"}, "unclosed": {"$(A", "$(A"}, "two dollars": {"$$", "$"},
	}
	for name, c := range cases {
		t.Run(name, func(t *testing.T) {
			if got := v.expand(c.text); got != c.want {
				t.Errorf("%q becomes %q, want %q", c.text, got, c.want)
			}
		})
	}
}

var (
	running = containerRecord{state: corev1.ContainerState{Running: &corev1.ContainerStateRunning{}}, started: true, ready: true}
	unready = containerRecord{state: corev1.ContainerState{Running: &corev1.ContainerStateRunning{}}, started: true}
	well    = ended(0)
	badly   = ended(3)
	backOff = containerRecord{state: waiting("CrashLoopBackOff", ""), last: ended(3).state}
)

func ended(code int32) containerRecord {
	return containerRecord{state: corev1.ContainerState{Terminated: &corev1.ContainerStateTerminated{ExitCode: code}}}
}

func TestPhaseAndReadiness(t *testing.T) {
	always, onFailure, never := corev1.RestartPolicyAlways, corev1.RestartPolicyOnFailure, corev1.RestartPolicyNever
	cases := map[string]struct {
		policy   corev1.RestartPolicy
		known    records
		deleting bool
		gated    bool
		phase    corev1.PodPhase
		ready    bool
		why      string
	}{
		"nothing yet":             {policy: always, phase: corev1.PodPending},
		"init container failed":   {policy: always, known: records{"i": badly}, phase: corev1.PodPending, why: "it is run again"},
		"init failed for good":    {policy: never, known: records{"i": badly}, phase: corev1.PodFailed},
		"init over":               {policy: always, known: records{"i": well}, phase: corev1.PodPending},
		"one of two runs":         {policy: always, known: records{"i": well, "a": running}, phase: corev1.PodRunning},
		"both run":                {policy: always, known: records{"i": well, "a": running, "b": running}, phase: corev1.PodRunning, ready: true},
		"a gate is shut":          {policy: always, gated: true, known: records{"i": well, "a": running, "b": running}, phase: corev1.PodRunning},
		"one is not ready":        {policy: always, known: records{"i": well, "a": running, "b": unready}, phase: corev1.PodRunning},
		"ended, to be restarted":  {policy: always, known: records{"i": well, "a": well, "b": badly}, phase: corev1.PodRunning},
		"in back-off":             {policy: always, known: records{"i": well, "a": backOff, "b": backOff}, phase: corev1.PodRunning},
		"ended well":              {policy: onFailure, known: records{"i": well, "a": well, "b": well}, phase: corev1.PodSucceeded},
		"ended badly, goes on":    {policy: onFailure, known: records{"i": well, "a": well, "b": badly}, phase: corev1.PodRunning},
		"ended badly":             {policy: never, known: records{"i": well, "a": well, "b": badly}, phase: corev1.PodFailed},
		"deleted, ended well":     {policy: always, deleting: true, known: records{"i": well, "a": well, "b": well}, phase: corev1.PodSucceeded},
		"deleted, ended badly":    {policy: always, deleting: true, known: records{"i": well, "a": badly, "b": well}, phase: corev1.PodFailed},
		"deleted, one still runs": {policy: always, deleting: true, known: records{"i": well, "a": badly, "b": running}, phase: corev1.PodRunning},
	}
	for name, c := range cases {
		t.Run(name, func(t *testing.T) {
			pod := &corev1.Pod{Spec: corev1.PodSpec{
				RestartPolicy: c.policy, InitContainers: []corev1.Container{{Name: "i"}}, Containers: []corev1.Container{{Name: "a"}, {Name: "b"}},
			}}
			if c.deleting {
				pod.DeletionTimestamp = new(metav1.Now())
			}
			if c.gated {
				pod.Spec.ReadinessGates = []corev1.PodReadinessGate{{ConditionType: "gate"}}
			}
			status := podStatus(pod, c.known, "127.1.2.3", time.Unix(100, 0))
			if status.Phase != c.phase {
				t.Errorf("phase %s, want %s (%s)", status.Phase, c.phase, c.why)
			}
			with := pod.DeepCopy()
			with.Status = status
			if isTrue(with, corev1.PodReady) != c.ready {
				t.Errorf("ready %v, want %v", !c.ready, c.ready)
			}
			if len(status.ContainerStatuses) != 2 || status.PodIP != "127.1.2.3" {
				t.Errorf("incomplete: %+v", status)
			}
		})
	}
}

func TestConditionsKeepTheTimeOfTheirChange(t *testing.T) {
	pod := &corev1.Pod{Spec: corev1.PodSpec{Containers: []corev1.Container{{Name: "a"}}}}
	pod.Status = podStatus(pod, records{"a": running}, "", time.Unix(100, 0))
	same, changed := podStatus(pod, records{"a": running}, "", time.Unix(200, 0)), podStatus(pod, records{"a": unready}, "", time.Unix(200, 0))
	if diff := cmp.Diff(pod.Status.Conditions, same.Conditions); diff != "" {
		t.Errorf("nothing changed, and yet (-before +after):\n%s", diff)
	}
	for _, c := range changed.Conditions {
		if want := map[bool]int64{true: 100, false: 200}[c.Type == corev1.PodInitialized]; c.LastTransitionTime.Unix() != want {
			t.Errorf("%s says that it changed at %d, want %d", c.Type, c.LastTransitionTime.Unix(), want)
		}
	}
	if !hasConditions(pod.Status, same) || hasConditions(pod.Status, changed) {
		t.Error("a status whose readiness another has changed must be written again, and no other")
	}
}
