package plugin

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"strings"
	"sync"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/cli-runtime/pkg/genericclioptions"
	"k8s.io/cli-runtime/pkg/genericiooptions"

	"github.com/singletonjob/operator/api/v1alpha1"
	"github.com/singletonjob/operator/internal/show"
)

// kubelets serve the logs of Pods: each request gets the next part of the log.
type kubelets struct {
	mu    sync.Mutex
	parts map[string][]string
	asked []corev1.PodLogOptions
}

func (k *kubelets) open(ctx context.Context, pod string, o *corev1.PodLogOptions) (io.ReadCloser, error) {
	k.mu.Lock()
	defer k.mu.Unlock()
	k.asked = append(k.asked, *o)
	parts := k.parts[pod]
	if len(parts) == 0 {
		<-ctx.Done()
		return nil, ctx.Err()
	}
	k.parts[pod] = parts[1:]
	if parts[0] == "gone" {
		return nil, apierrors.NewNotFound(schema.GroupResource{Resource: "pods"}, pod)
	}
	return io.NopCloser(strings.NewReader(parts[0])), nil
}

const day = "2026-03-04T12:00:0"

// TestLogContinues: after a container restart or a broken connection, the log continues with the line after the last one, although
// some lines arrive twice. It ends when the Pod no longer exists.
func TestLogContinues(t *testing.T) {
	k := &kubelets{parts: map[string][]string{"a": {
		day + "1.000000001Z one\n" + day + "2.5Z two\n",
		day + "2.5Z two\n" + day + "3Z three\n" + day + "4Z an unfinished",
		"failed to watch the file: of a kubelet, without a time\n",
		"gone",
	}}}
	var out bytes.Buffer
	l := &logger{cli: &cli{IOStreams: genericiooptions.IOStreams{Out: &out, ErrOut: io.Discard}}, open: k.open, logOptions: logOptions{follow: true, prefix: true, tail: 7}}
	l.spans = []show.Span{{Pod: "a", Token: 9, From: time.Date(2026, 3, 4, 12, 0, 2, 0, time.UTC)}}
	if err := l.followPod(t.Context(), target{pod: "a", container: "app", token: 9}, &place{}, true); err != nil {
		t.Fatal(err)
	}
	want := "[a -] one\n[a 9] two\n[a 9] three\n[a 9] an unfinished\n[a 9] failed to watch the file: of a kubelet, without a time\n"
	if out.String() != want {
		t.Errorf("it printed\n%swant\n%s", &out, want)
	}
	first, second := k.asked[0], k.asked[1]
	if first.Container != "app" || *first.TailLines != 7 || first.SinceTime != nil || !first.Follow || !first.Timestamps {
		t.Errorf("at first it asked for %+v", first)
	}
	if second.TailLines != nil || second.SinceTime == nil || second.SinceTime.Second() != 2 {
		t.Errorf("then it asked for %+v", second)
	}
}

// TestLogOfNextHolder: the log contains the holder's whole tenure, and nothing from its time as a standby.
func TestLogOfNextHolder(t *testing.T) {
	k := &kubelets{parts: map[string][]string{"b": {day + "1Z stands by\n" + day + "2Z acts\n", "gone"}}}
	var out bytes.Buffer
	l := &logger{cli: &cli{IOStreams: genericiooptions.IOStreams{Out: &out, ErrOut: io.Discard}}, open: k.open, logOptions: logOptions{follow: true, tail: 0, timestamps: true}}
	if err := l.followPod(t.Context(), target{pod: "b", since: time.Date(2026, 3, 4, 12, 0, 2, 0, time.UTC)}, &place{}, false); err != nil {
		t.Fatal(err)
	}
	if want := day + "2Z acts\n"; out.String() != want {
		t.Errorf("it printed %q, want %q", &out, want)
	}
	if o := k.asked[0]; o.TailLines != nil || o.SinceTime == nil {
		t.Errorf("it asked for %+v", o)
	}
}

// TestUnwrittenLogEnds: if output fails, reading stops.
func TestUnwrittenLogEnds(t *testing.T) {
	k := &kubelets{parts: map[string][]string{"a": {day + "1Z one\n"}}}
	reader, writer := io.Pipe()
	reader.Close()
	l := &logger{cli: &cli{IOStreams: genericiooptions.IOStreams{Out: writer, ErrOut: io.Discard}}, open: k.open, logOptions: logOptions{follow: true, tail: -1}}
	if err := l.followPod(t.Context(), target{pod: "a"}, &place{}, true); !errors.Is(err, errUnwritten) {
		t.Errorf("want that it can't be written, got %v", err)
	}
}

// TestLogsFollowTheHolder follows from one holder to the next, with statuses on a real API server.
func TestLogsFollowTheHolder(t *testing.T) {
	w := newWorld(t)
	job := w.job("billing")
	future := time.Now().Add(time.Hour).UTC().Format(time.RFC3339)
	line := func(text string) string { return future + " " + text + "\n" }
	k := &kubelets{parts: map[string][]string{
		"billing-752pq9t-1": {line("of the first")}, "billing-752pq9t-0": {line("of the second")},
	}}
	reader, writer := io.Pipe()
	flags := genericclioptions.NewConfigFlags(false)
	flags.KubeConfig, flags.Namespace = &w.kubeconfig, &w.namespace
	c := &cli{IOStreams: genericiooptions.IOStreams{Out: writer, ErrOut: writer}, flags: flags, now: time.Now}
	api, err := c.connect()
	w.must(err)
	l := &logger{cli: c, open: k.open, logOptions: logOptions{follow: true, prefix: true, tail: -1}}
	ctx, interrupt := context.WithCancel(t.Context())
	defer interrupt()
	ended := make(chan error)
	go func() {
		err := l.followAll(ctx, api, "billing")
		writer.Close()
		ended <- err
	}()
	seen := newReader(reader)
	seen.until(t, "==> billing-752pq9t-1, token 7001")
	seen.until(t, "[billing-752pq9t-1 ") // its token is in the Lease's history, which this Lease lacks
	w.took("billing-752pq9t-0", job, 8002)
	w.status(job, func(s *v1alpha1.SingletonJobStatus) { s.ActivePod, s.FencingToken = "billing-752pq9t-0", 8002 })
	seen.until(t, "==> billing-752pq9t-0, token 8002")
	seen.until(t, "] of the second")
	interrupt()
	go seen.drain()
	if err := <-ended; !errors.Is(err, context.Canceled) {
		t.Errorf("interrupted, it ended with %v", err)
	}
	w.status(job, func(s *v1alpha1.SingletonJobStatus) { s.ActivePod = "" })
	for _, args := range [][]string{{"logs", "billing"}, {"exec", "billing", "--", "true"}} {
		status, _, errOut := w.run(args...)
		if want := fmt.Sprintf("error: no process is active; see kubectl singleton why billing -n %s\n", w.namespace); status != ExitError || errOut != want {
			t.Errorf("%q ended with %d and %q, want %q", args, status, errOut, want)
		}
	}
	w.says(ExitUsage, "--copy-to: a Pod of a SingletonJob cannot be copied", "debug", "billing", "--copy-to=x", "--image=y")
	w.says(ExitUsage, "expected the NAME of one SingletonJob, --, and the command", "exec", "billing", "true")
}

// TestLogOfTheLastRun: if no process is active, the command prints the log of the newest run's last attempt, while its Pod exists.
func TestLogOfTheLastRun(t *testing.T) {
	f := show.Facts{Job: &v1alpha1.SingletonJob{}}
	f.Pods = []corev1.Pod{{}, {}}
	for i, name := range []string{"a", "b"} {
		f.Pods[i].Name, f.Pods[i].Spec.Containers = name, []corev1.Container{{Name: "app"}}
	}
	var l logger
	if _, ok := l.lastRun(f); ok {
		t.Error("there is a log without a run")
	}
	f.Job.Status.Runs = []v1alpha1.RunStatus{{Pod: "b", Token: 7}, {Pod: "a", Token: 5}}
	if got, ok := l.lastRun(f); !ok || got != (target{pod: "b", container: "app", token: 7}) {
		t.Errorf("the log is that of %+v", got)
	}
	f.Pods = f.Pods[:1]
	if got, ok := l.lastRun(f); ok {
		t.Errorf("of a pod that is gone there is %+v", got)
	}
}
