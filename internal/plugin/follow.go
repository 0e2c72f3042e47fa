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

// again is how long to wait before a watch that ended, or could not be had, is asked for anew.
const again = time.Second

// changes tells on a channel that a job, its Lease or its pods may have changed: at first, and later each time. What has changed
// is for the reader to look at.
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

// watch calls tell at each change of what it watches, until ctx ends. A watch that begins without a version begins with all
// there is, so nothing is missed between two.
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
			tell() // of what may not be watched, too
		}
	}
}

// watchStatus shows a job again whenever something changes: on a terminal in place, with its times going on; else one
// after the other.
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
			now, err := api.facts(ctx, name, false)
			if err != nil {
				return err
			}
			f = now
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

// screen is where a status is shown again and again.
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
	timeless := v // what passes by itself is no change
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

// redraw writes text over what stands on a terminal of so many lines, without a moment in which it is empty. What there is no room for,
// more stands for.
func redraw(out io.Writer, text string, lines int, more string) error {
	const home, restOfLine, restOfScreen = "\x1b[H", "\x1b[K", "\x1b[J"
	const cutLines, breakLines = "\x1b[?7l", "\x1b[?7h" // a line that is broken would take two
	all := strings.Split(strings.TrimSuffix(text, "\n"), "\n")
	if lines > 1 && len(all) > lines-1 {
		all = append(all[:lines-2], more)
	}
	_, err := io.WriteString(out, cutLines+home+strings.Join(all, restOfLine+"\n")+restOfLine+"\n"+restOfScreen+breakLines)
	return err
}

// await looks at a job until done reports true. progress tells what it waits for, whenever that changes.
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
			return fmt.Errorf("not within %s; see kubectl singleton why %s -n %s", limit, name, api.namespace)
		case <-changed:
		}
		f, err := api.facts(ctx, name, false)
		switch {
		case ctx.Err() != nil:
			continue
		case err != nil && over(ctx):
			<-ctx.Done() // a connection's clock may be the first to say so
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

// over reports whether a context's time is up.
func over(ctx context.Context) bool {
	until, limited := ctx.Deadline()
	return limited && !time.Now().Before(until)
}
