package plugin

import (
	"bufio"
	"cmp"
	"context"
	"errors"
	"fmt"
	"io"
	"strings"
	"sync"
	"time"

	"github.com/spf13/cobra"
	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/kubernetes"

	"github.com/singletonjob/operator/internal/show"
)

// logOptions holds the flags of logs.
type logOptions struct {
	follow, prefix, timestamps bool
	tail                       int64
	since                      time.Duration
	container                  string
}

func (c *cli) logs() *cobra.Command {
	var o logOptions
	cmd := &cobra.Command{
		Use: "logs NAME", Short: "Print the active Pod's log, or follow it across failovers with -f",
		Long: `Print the log of the active Pod's gated container. With -f, keep reading, and continue after each failover with the next holder, from
the beginning of its tenure. The command prints the new holder to stderr. With --prefix, each line begins with the Pod that wrote it
and the token that its process had at that time. A line of a standby has no token.`,
		Example: "  kubectl singleton logs billing -f --prefix", Args: jobNamed, ValidArgsFunction: c.completeJob,
		RunE: func(cmd *cobra.Command, args []string) error {
			api, err := c.connect()
			if err != nil {
				return err
			}
			core, err := kubernetes.NewForConfig(api.config)
			if err != nil {
				return err
			}
			l := &logger{logOptions: o, cli: c, open: func(ctx context.Context, pod string, o *corev1.PodLogOptions) (io.ReadCloser, error) {
				return core.CoreV1().Pods(api.namespace).GetLogs(pod, o).Stream(ctx)
			}}
			if o.follow {
				return l.followAll(cmd.Context(), api, bare(args[0]))
			}
			return l.once(cmd.Context(), api, bare(args[0]))
		},
	}
	cmd.Flags().BoolVarP(&o.follow, "follow", "f", false, "Keep reading, across failovers, until interrupted.")
	cmd.Flags().BoolVar(&o.prefix, "prefix", false, "Begin each line with its Pod and token.")
	cmd.Flags().BoolVar(&o.timestamps, "timestamps", false, "Begin each line with its time.")
	cmd.Flags().Int64Var(&o.tail, "tail", -1, "Number of the last lines to begin with; all if negative.")
	cmd.Flags().DurationVar(&o.since, "since", 0, "Begin with lines no older than this; 0 for all.")
	cmd.Flags().StringVarP(&o.container, "container", "c", "", "Use this container instead of the gated one.")
	return cmd
}

// logger prints the logs of several Pods, in whole lines.
type logger struct {
	logOptions
	*cli
	open func(ctx context.Context, pod string, o *corev1.PodLogOptions) (io.ReadCloser, error)

	mu    sync.Mutex
	spans []show.Span
}

// target is the container to which a tenure's process writes.
type target struct {
	pod, container string
	token          int64
	since          time.Time // by the clock of its node
}

func (l *logger) target(f show.Facts) (target, bool) {
	v := show.View(f)
	if v.Active == nil {
		return target{}, false
	}
	t := target{pod: v.Active.Pod, token: v.Active.Token, container: l.container}
	if v.Active.Since != nil {
		t.since = *v.Active.Since
	}
	for i := range f.Pods {
		if t.container == "" && f.Pods[i].Name == t.pod {
			t.container = show.GatedName(&f.Pods[i])
		}
	}
	l.mu.Lock()
	l.spans = show.Spans(f)
	l.mu.Unlock()
	return t, true
}

func (l *logger) options(t target) *corev1.PodLogOptions {
	o := &corev1.PodLogOptions{Container: t.container, Follow: l.follow, Timestamps: true}
	if l.tail >= 0 {
		o.TailLines = &l.tail
	}
	if l.since > 0 {
		o.SinceSeconds = new(int64((l.since + time.Second - 1) / time.Second))
	}
	return o
}

// lastRun is the container of the newest run's last attempt, while its Pod exists.
func (l *logger) lastRun(f show.Facts) (target, bool) {
	if len(f.Job.Status.Runs) == 0 {
		return target{}, false
	}
	t := target{pod: f.Job.Status.Runs[0].Pod, token: f.Job.Status.Runs[0].Token, container: l.container}
	for i := range f.Pods {
		if f.Pods[i].Name == t.pod {
			t.container = cmp.Or(t.container, show.GatedName(&f.Pods[i]))
			return t, true
		}
	}
	return target{}, false
}

func (l *logger) once(ctx context.Context, api *cluster, name string) error {
	f, err := api.facts(ctx, name, false)
	if err != nil {
		return err
	}
	t, ok := l.target(f)
	if !ok {
		t, ok = l.lastRun(f)
	}
	if !ok {
		return fmt.Errorf("no process is active; see kubectl singleton why %s -n %s", name, api.namespace)
	}
	in, err := l.open(ctx, t.pod, l.options(t))
	if err != nil {
		return err
	}
	defer in.Close()
	_, err = l.copy(in, t.pod, time.Time{})
	return err
}

// drain is how long the log of a holder is still read after another holder takes over, because its last lines can arrive late.
const drain = 5 * time.Second

// followAll reads the log of each holder in turn.
func (l *logger) followAll(ctx context.Context, api *cluster, name string) error {
	ctx, cancel := context.WithCancel(ctx)
	var readers sync.WaitGroup
	defer readers.Wait()
	defer cancel()
	failed := make(chan error, 1)
	var now target
	end := func() {}
	changed := api.changes(ctx, name)
	for {
		select {
		case <-ctx.Done():
			end()
			return ctx.Err()
		case err := <-failed:
			end()
			return err
		case <-changed:
		}
		f, err := api.facts(ctx, name, false)
		if err != nil {
			end()
			return err
		}
		t, ok := l.target(f)
		if !ok || t.pod == now.pod && t.token == now.token {
			continue
		}
		fmt.Fprintf(l.ErrOut, "==> %s, token %d\n", t.pod, t.token)
		if t.pod != now.pod {
			first := now.pod == ""
			end()
			reading, stop := context.WithCancel(ctx)
			end = func() { time.AfterFunc(drain, stop) }
			readers.Go(func() {
				if err := l.followPod(reading, t, first); err != nil {
					select {
					case failed <- err:
					default:
					}
				}
			})
		}
		now = t
	}
}

// followPod reads a Pod's log until ctx ends or the Pod no longer exists. Its container can restart, and its node's kubelet can be
// unreachable for a while. followPod then continues after the last line that it read.
func (l *logger) followPod(ctx context.Context, t target, first bool) error {
	options, last := l.options(t), time.Time{}
	if !first { // its whole tenure, and nothing from before, when it was a standby
		options.TailLines, options.SinceSeconds = nil, nil
		last = t.since.Add(-time.Nanosecond)
		options.SinceTime = &metav1.Time{Time: t.since}
	}
	for ctx.Err() == nil {
		in, err := l.open(ctx, t.pod, options)
		if err == nil {
			last, err = l.copy(in, t.pod, last)
			_ = in.Close()
		}
		switch {
		case apierrors.IsNotFound(err):
			return nil
		case apierrors.IsForbidden(err):
			return err
		case errors.Is(err, errUnwritten):
			return err
		}
		if !last.IsZero() {
			options.TailLines, options.SinceSeconds, options.SinceTime = nil, nil, &metav1.Time{Time: last}
		}
		select {
		case <-ctx.Done():
		case <-time.After(again):
		}
	}
	return nil
}

// errUnwritten reports that the output could not be written.
var errUnwritten = errors.New("cannot write")

// copy writes the lines that are later than last, and returns the time of the latest line. Each line begins with its timestamp,
// because the request asks the API server for timestamps.
func (l *logger) copy(in io.Reader, pod string, last time.Time) (time.Time, error) {
	reader := bufio.NewReader(in)
	for {
		line, err := reader.ReadString('\n')
		if line != "" {
			stamp, text, _ := strings.Cut(line, " ")
			at, wrong := time.Parse(time.RFC3339Nano, stamp)
			if wrong != nil {
				text, at = line, last.Add(1) // for example a message from the kubelet itself
			}
			if at.After(last) {
				last = at
				if err := l.write(pod, at, stamp, text); err != nil {
					return last, fmt.Errorf("%w: %w", errUnwritten, err)
				}
			}
		}
		switch {
		case errors.Is(err, io.EOF):
			return last, nil
		case err != nil:
			return last, err
		}
	}
}

// write writes one line.
func (l *logger) write(pod string, at time.Time, stamp, text string) error {
	l.mu.Lock()
	defer l.mu.Unlock()
	head := ""
	if l.prefix {
		token := "-"
		if n := show.TokenAt(l.spans, pod, at); n > 0 {
			token = fmt.Sprint(n)
		}
		head = "[" + pod + " " + token + "] "
	}
	if l.timestamps {
		head += stamp + " "
	}
	if !strings.HasSuffix(text, "\n") {
		text += "\n"
	}
	_, err := io.WriteString(l.Out, head+text)
	return err
}
