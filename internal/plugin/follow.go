package plugin

import (
	"context"
	"fmt"
	"io"
	"strings"
	"time"

	coordinationv1 "k8s.io/api/coordination/v1"
	corev1 "k8s.io/api/core/v1"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/singletonjob/operator/api/v1alpha1"
	"github.com/singletonjob/operator/internal/contract"
	"github.com/singletonjob/operator/internal/show"
)

// again is the wait before a retry of a watch that ended or failed.
const again = time.Second

// changes sends on a channel whenever a job, its Lease or its Pods may have changed, and once at the start. The receiver has to
// look at what has changed.
func (c *cluster) changes(ctx context.Context, name string) <-chan struct{} {
	changed := make(chan struct{}, 1)
	tell := func() {
		select {
		case changed <- struct{}{}:
		default:
		}
	}
	tell()
	one := client.MatchingFields{"metadata.name": name}
	go c.watch(ctx, &v1alpha1.SingletonJobList{}, tell, one)
	go c.watch(ctx, &coordinationv1.LeaseList{}, tell, one)
	go c.watch(ctx, &corev1.PodList{}, tell, client.MatchingLabels{contract.NameLabel: name})
	return changed
}

// watch calls tell at each change until ctx ends. A watch that starts without a resource version starts with all existing objects,
// so no change between two watches is missed.
func (c *cluster) watch(ctx context.Context, list client.ObjectList, tell func(), what client.ListOption) {
	for ctx.Err() == nil {
		if w, err := c.Watch(ctx, list, client.InNamespace(c.namespace), what); err == nil {
			for range w.ResultChan() {
				tell()
			}
			w.Stop()
		}
		select {
		case <-ctx.Done():
		case <-time.After(again):
			tell() // this also covers objects that the user may not watch
		}
	}
}

// watchStatus shows a job again whenever it changes. On a terminal it updates in place, with its times running; otherwise it prints
// one status after the other.
func (c *cli) watchStatus(ctx context.Context, api *cluster, name string) error {
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	changed := api.changes(ctx, name)
	screen := c.screen()
	ticks := time.NewTicker(time.Second)
	defer ticks.Stop()
	var f show.Facts
	for {
		select {
		case <-ctx.Done():
			return ctx.Err()
		case <-changed:
			job, err := api.job(ctx, name)
			if err != nil {
				return err
			}
			if f, err = api.withZones(ctx, job); err != nil {
				return err
			}
		case <-ticks.C:
			if f.Job == nil || !screen.inPlace {
				continue
			}
			f.Now = api.now()
		}
		if err := screen.show(f); err != nil {
			return err
		}
	}
}

// screen shows a status repeatedly.
type screen struct {
	*cli
	inPlace bool
	last    string
}

func (c *cli) screen() *screen {
	_, is := c.terminal()
	return &screen{cli: c, inPlace: is && (c.output == "" || c.output == "wide")}
}

func (s *screen) show(f show.Facts) error {
	v := show.View(f)
	if s.inPlace {
		lines, _ := s.terminal()
		style := s.style()
		return redraw(s.Out, show.Tree(v, f.Now, style, s.output == "wide"), lines, style.Draw("…"))
	}
	timeless := v // the passing of time is not a change
	timeless.Lease.Renewed, timeless.Lease.Left = nil, nil
	if now := show.Tree(timeless, time.Time{}, show.Style{}, true); now != s.last {
		if s.last != "" && s.output != "name" {
			fmt.Fprintln(s.Out)
		}
		s.last = now
		return s.print(v.Name, v, func(wide bool) string { return show.Tree(v, f.Now, s.style(), wide) })
	}
	return nil
}

// redraw writes text over the contents of a terminal of the given height, without clearing it first, so that it does not flicker.
// If text is too long, the last line is more.
func redraw(out io.Writer, text string, lines int, more string) error {
	const home, restOfLine, restOfScreen = "\x1b[H", "\x1b[K", "\x1b[J"
	const cutLines, breakLines = "\x1b[?7l", "\x1b[?7h" // a wrapped line would take two rows
	all := strings.Split(strings.TrimSuffix(text, "\n"), "\n")
	if lines > 1 && len(all) > lines-1 {
		all = append(all[:lines-2], more)
	}
	_, err := io.WriteString(out, cutLines+home+strings.Join(all, restOfLine+"\n")+restOfLine+"\n"+restOfScreen+breakLines)
	return err
}

// await watches a job until done reports true, and prints what it waits for whenever that changes.
func (c *cli) await(ctx context.Context, api *cluster, name string, limit time.Duration, done func(show.Facts) (bool, string)) error {
	if limit > 0 {
		var cancel context.CancelFunc
		ctx, cancel = context.WithTimeout(ctx, limit)
		defer cancel()
	}
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	changed := api.changes(ctx, name)
	last := ""
	for {
		select {
		case <-ctx.Done():
			return fmt.Errorf("timed out after %s; see kubectl singleton why %s -n %s", limit, name, api.namespace)
		case <-changed:
		}
		f, err := api.facts(ctx, name)
		switch {
		case ctx.Err() != nil:
			continue
		case err != nil && over(ctx):
			<-ctx.Done() // a connection can time out just before ctx does
			continue
		case err != nil:
			return err
		}
		ok, waits := done(f)
		if ok {
			return nil
		}
		if waits != last {
			fmt.Fprintln(c.ErrOut, "waiting: "+waits)
			last = waits
		}
	}
}

// over reports whether a context's deadline has passed.
func over(ctx context.Context) bool {
	until, limited := ctx.Deadline()
	return limited && !time.Now().Before(until)
}
