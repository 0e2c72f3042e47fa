package plugin

import (
	"bytes"
	"strings"
	"testing"

	"k8s.io/cli-runtime/pkg/genericiooptions"
)

func planned(t *testing.T, args ...string) (status int, out, errOut string) {
	t.Helper()
	t.Setenv("KUBECONFIG", "/nowhere")
	var o, e bytes.Buffer
	status = Run(t.Context(), append([]string{"plan"}, args...), genericiooptions.IOStreams{Out: &o, ErrOut: &e})
	return status, o.String(), e.String()
}

func TestPlanFlags(t *testing.T) {
	for args, want := range map[string]string{
		"--lease=3s/1.5s/500ms --jobs=3":           "When idle: 6 writes per second to the API server for 3 such jobs.",
		"--lock-delay=30s":                         "its node dies; the pod is frozen         43s to 45s",
		"--keep-running":                           "none: it keeps acting beside the next one; the sink refuses it",
		"--grace-period=5s":                        "as long as the process takes to stop, at most 5s",
		"--candidates=1":                           "With one candidate there is no standby",
		"--lease=1h/55m/30m -o json":               `"writesPerSecond": 0.000555`,
		"--lease=15s/10s":                          "error: --lease=15s/10s: expected leaseDuration/renewDeadline/retryPeriod, such as 15s/10s/2s",
		"--lease=15s/ten/2s":                       `error: --lease=15s/ten/2s: "ten" is not a duration such as 15s or 500ms`,
		"--lease=15s/10s/-2s":                      `"-2s" is not a duration`,
		"--lease=5s/4s/2s":                         "spec.lease.renewDeadline: Invalid value: \"4s\": 4s is too long for leaseDuration 5s: at most 3s",
		"--lock-delay=2s --keep-running":           "contradicts onRenewFailure KeepRunning",
		"--candidates=-1":                          "spec.candidates: Invalid value: -1",
		"--grace-period=1.5s":                      "error: --grace-period=1.5s: must be a whole number of seconds, 0s or more",
		"--jobs=0":                                 "error: --jobs=0: must be at least 1",
		"--lease=2562047h/2562046h/2562045h47m16s": "is not accepted: whole seconds, from 3s to 1h",
	} {
		t.Run(args, func(t *testing.T) {
			status, out, errOut := planned(t, strings.Fields(args)...)
			if wrong := strings.Contains(want, "error:") || strings.Contains(want, "Invalid") || errOut != ""; (status == ExitOK) == wrong ||
				!strings.Contains(out+errOut, want) {
				t.Errorf("ends with %d, prints\n%s%s", status, out, errOut)
			}
		})
	}
}
