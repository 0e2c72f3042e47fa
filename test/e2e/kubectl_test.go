//go:build linux

package e2e

import (
	"bufio"
	"bytes"
	"context"
	"fmt"
	"io"
	"strings"
	"testing"

	"k8s.io/cli-runtime/pkg/genericiooptions"

	"github.com/singletonjob/operator/internal/plugin"
)

// TestKubectlSingleton: what needs a kubelet. Its log is followed from one holder to the next with the token of each, and a
// command runs where the process does, with its own exit status.
func TestKubectlSingleton(t *testing.T) {
	x := beginBeside(t)
	j := x.createNamed("billing", patient)
	j.awaitSettled()
	j.awaitWriteAfter(0)
	before := j.get().Status

	reader, writer := io.Pipe()
	ctx, cancel := context.WithCancel(x.ctx)
	defer cancel()
	ended := make(chan int, 1)
	go func() {
		ended <- x.singleton(ctx, writer, io.Discard, "logs", j.name, "-f", "--prefix")
		writer.Close()
	}()
	lines := bufio.NewScanner(reader)
	until := func(pod string, token int64) {
		t.Helper()
		want := fmt.Sprintf("[%s %d] writing with token %d", pod, token, token)
		for lines.Scan() {
			x.note("log: %s", lines.Text())
			if lines.Text() == want {
				return
			}
		}
		t.Fatalf("the log ended before %q", want)
	}
	until(before.ActivePod, before.FencingToken)

	var out, errOut bytes.Buffer
	agent := []string{"exec", j.name, "--", "/singletonjob/bin/agent"}
	if status := x.singleton(x.ctx, &out, &errOut, append(agent, "check", "-token", fmt.Sprint(before.FencingToken))...); status != 0 {
		t.Errorf("the active pod's agent knows nothing of its tenure: exec ended with %d\n%s%s", status, &out, &errOut)
	}
	if status := x.singleton(x.ctx, &out, &errOut, append(agent, "check", "-token", "1")...); status != 1 {
		t.Errorf("exec ended with %d, want 1, the status of the command\n%s%s", status, &out, &errOut)
	}
	if status := x.singleton(x.ctx, &out, &errOut, "debug", j.name, "--image=busybox:1.37", "--profile=restricted", "--", "sleep", "1"); status != 0 {
		t.Errorf("debug ended with %d\n%s%s", status, &out, &errOut)
	}
	if debuggers := j.pod(before.ActivePod).Spec.EphemeralContainers; len(debuggers) != 1 || debuggers[0].TargetContainerName != "app" {
		t.Errorf("want one debug container beside the gated one, got %+v", debuggers)
	}
	if status := x.singleton(x.ctx, &out, &errOut, "switchover", j.name, "--wait"); status != 0 {
		t.Fatalf("switchover ended with %d\n%s%s", status, &out, &errOut)
	}
	after := j.awaitActiveAfter(before.FencingToken).Status
	if after.ActivePod == before.ActivePod {
		t.Errorf("%s is active after a switchover from it", after.ActivePod)
	}
	until(after.ActivePod, after.FencingToken)
	cancel()
	go func() { _, _ = io.Copy(io.Discard, reader) }()
	if status := <-ended; status != plugin.ExitInterrupted {
		t.Errorf("logs -f was interrupted and ended with %d", status)
	}
	j.check(false)
}

// singleton runs kubectl singleton.
func (x *trial) singleton(ctx context.Context, out, errOut io.Writer, args ...string) int {
	x.note("kubectl singleton %s", strings.Join(args, " "))
	where := []string{"--kubeconfig=" + bed.Kubeconfig, "--namespace=" + x.namespace}
	return plugin.Run(ctx, append(where, args...), genericiooptions.IOStreams{In: strings.NewReader(""), Out: out, ErrOut: errOut})
}
