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
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/kubernetes"

	"github.com/singletonjob/operator/internal/show"
)

// logOptions holds the flags of logs.
type logOptions struct {
	follow, previous, prefix, timestamps bool
	tail                                 int64
	since                                time.Duration
	container                            string
}

func (c *cli) logs() *cobra.Command {
	var o logOptions
	cmd := &cobra.Command{
		Use: "logs NAME", Short: "Print the active Pod's log, or follow it across failovers with -f",
		Long: `Print the log of the active Pod's gated container. With -f, keep reading, and continue after each failover with the next holder, from
the beginning of its tenure. The command prints the new holder to stderr. With --prefix, each line begins with the Pod that wrote it
and the token that its process had at that time. A line of a Pod that was not active yet has no token.`,
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
			switch {
			case o.follow && o.previous:
				return errors.New("use --follow or --previous, not both: a container that has ended writes nothing more")
			case o.follow:
				return l.followAll(cmd.Context(), api, bare(args[0]))
			}
			return l.once(cmd.Context(), api, bare(args[0]))
		},
	}
	cmd.Flags().BoolVarP(&o.follow, "follow", "f", false, "Keep reading, across failovers, until interrupted.")
	cmd.Flags().BoolVarP(&o.previous, "previous", "p", false, "Print the log of the container before its last restart.")
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
	uid            types.UID // of the Pod; "" if it does not exist
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
	l.mu.Lock()
	l.spans = show.Spans(f)
	l.mu.Unlock()
	return l.inPod(t, f), true
}

// inPod adds what the tenure's Pod says.
func (l *logger) inPod(t target, f show.Facts) target {
	for i := range f.Pods {
		if f.Pods[i].Name == t.pod {
			t.uid, t.container = f.Pods[i].UID, cmp.Or(l.container, show.GatedName(&f.Pods[i]))
		}
	}
	return t
}

func (l *logger) options(t target) *corev1.PodLogOptions {
	o := &corev1.PodLogOptions{Container: t.container, Follow: l.follow, Previous: l.previous, Timestamps: true}
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
	f, err := api.facts(ctx, name)
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
	return l.copy(in, t.pod, &place{})
}

// errUnwritten reports that the output could not be written.
var errUnwritten = errors.New("cannot write")

// copy writes the lines that were not read yet, and moves the place. Each line begins with its timestamp, because the request asks the
// API server for timestamps.
func (l *logger) copy(in io.Reader, pod string, p *place) error {
	p.opened()
	reader := bufio.NewReader(in)
	for {
		line, err := reader.ReadString('\n')
		if line != "" {
			stamp, text, _ := strings.Cut(line, " ")
			at, wrong := time.Parse(time.RFC3339Nano, stamp)
			isNew := true
			if wrong != nil {
				text, at = line, p.last // for example a message from the kubelet itself
			} else {
				isNew = p.isNew(at)
			}
			if isNew {
				if err := l.write(pod, at, stamp, text); err != nil {
					return fmt.Errorf("%w: %w", errUnwritten, err)
				}
			}
		}
		switch {
		case errors.Is(err, io.EOF):
			return nil
		case err != nil:
			return err
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
