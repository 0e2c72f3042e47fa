package plugin

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"sync"
	"time"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"

	"github.com/singletonjob/operator/internal/show"
)

// drain is how long the log of a holder is still read after another holder takes over, because its last lines can arrive late.
const drain = 5 * time.Second

// follower reads the logs of one job's holders. Each Pod has one reader, which continues when the Pod has another tenure, so that no line
// is printed twice.
type follower struct {
	*logger
	drain   time.Duration
	readers map[string]*podReader // by Pod name
	running sync.WaitGroup
	failed  chan error
	told    int64 // the token of the last tenure that was announced
}

// podReader reads the log of one Pod until it is stopped, or the Pod no longer exists.
type podReader struct {
	uid   types.UID
	place *place
	stop  context.CancelFunc
	late  *time.Timer // stops it after drain; nil while the Pod has the tenure
	ended chan struct{}
}

// followAll reads the log of each holder in turn.
func (l *logger) followAll(ctx context.Context, api *cluster, name string) error {
	ctx, cancel := context.WithCancel(ctx)
	f := &follower{logger: l, drain: drain, readers: map[string]*podReader{}, failed: make(chan error, 1)}
	defer f.running.Wait()
	defer cancel()
	changed := api.changes(ctx, name)
	for {
		select {
		case <-ctx.Done():
			return ctx.Err()
		case err := <-f.failed:
			return err
		case <-changed:
		}
		facts, err := api.facts(ctx, name)
		if err != nil {
			return err
		}
		f.look(ctx, facts)
	}
}

// look starts to read the logs of the tenures that began since the last look.
func (f *follower) look(ctx context.Context, facts show.Facts) {
	for pod, r := range f.readers { // another Pod can have the name
		if uid := f.inPod(target{pod: pod}, facts).uid; uid != "" && uid != r.uid {
			r.stop()
		}
	}
	now, ok := f.target(facts)
	if !ok || now.token == f.told {
		return
	}
	first := f.told == 0
	for _, t := range f.begun(now, facts) {
		fmt.Fprintf(f.ErrOut, "==> %s, token %d\n", t.pod, t.token)
		f.read(ctx, t, first)
	}
	f.told = now.token
	for pod, r := range f.readers {
		if pod != now.pod && r.late == nil {
			r.late = time.AfterFunc(f.drain, r.stop)
		}
	}
}

// begun lists the tenures after the last one that was announced, oldest first. A tenure can be over before the first look at it.
func (f *follower) begun(now target, facts show.Facts) (all []target) {
	for _, s := range slices.Backward(f.spans) {
		if f.told > 0 && s.Token > f.told && s.Token < now.token {
			all = append(all, f.inPod(target{pod: s.Pod, container: now.container, token: s.Token, since: s.From}, facts))
		}
	}
	return append(all, now)
}

// read reads the log of a tenure's Pod. The reader of the same Pod continues, if there is one.
func (f *follower) read(ctx context.Context, t target, first bool) {
	before, at := f.readers[t.pod], &place{}
	if before != nil && before.uid == t.uid {
		select {
		case <-before.ended:
		default:
			if before.late == nil || before.late.Stop() {
				before.late = nil
				return
			}
		}
		at = before.place
	}
	reading, stop := context.WithCancel(ctx)
	r := &podReader{uid: t.uid, place: at, stop: stop, ended: make(chan struct{})}
	f.readers[t.pod] = r
	f.running.Go(func() {
		defer close(r.ended)
		if before != nil {
			before.stop()
			<-before.ended // it moves the place
		}
		if err := f.followPod(reading, t, at, first); err != nil {
			select {
			case f.failed <- err:
			default:
			}
		}
	})
}

// followPod reads a Pod's log until ctx ends or the Pod no longer exists. Its container can restart, and its node's kubelet can be
// unreachable for a while. followPod then continues after the last line that it read.
func (l *logger) followPod(ctx context.Context, t target, p *place, first bool) error {
	options := l.options(t)
	if !first { // its whole tenure, and nothing from before, when it was a standby
		p.from(t.since)
		options.TailLines, options.SinceSeconds, options.SinceTime = nil, nil, &metav1.Time{Time: p.last}
	}
	for ctx.Err() == nil {
		err := l.readFrom(ctx, t.pod, options, p)
		if !isFinal(err) {
			select {
			case <-ctx.Done():
				return nil
			case <-time.After(again):
			}
		}
		if !p.last.IsZero() {
			options.TailLines, options.SinceSeconds, options.SinceTime = nil, nil, &metav1.Time{Time: p.last}
			if err != nil && !isFinal(err) { // the container can have ended meanwhile
				previous := *options
				previous.Follow, previous.Previous = false, true
				if lost := l.readFrom(ctx, t.pod, &previous, p); errors.Is(lost, errUnwritten) {
					return lost
				}
				options.SinceTime = &metav1.Time{Time: p.last}
			}
		}
		switch {
		case apierrors.IsNotFound(err):
			return nil
		case isFinal(err):
			return err
		}
	}
	return nil
}

// isFinal reports whether another attempt to read the log is useless.
func isFinal(err error) bool {
	return apierrors.IsNotFound(err) || apierrors.IsForbidden(err) || errors.Is(err, errUnwritten)
}

func (l *logger) readFrom(ctx context.Context, pod string, o *corev1.PodLogOptions, p *place) error {
	in, err := l.open(ctx, pod, o)
	if err != nil {
		return err
	}
	defer in.Close()
	return l.copy(in, pod, p)
}

// place is how far a log was read. A log that is opened again begins a moment earlier, because the API takes whole seconds. The stamps of
// its lines can be equal, and can go back with the clock of the node.
type place struct {
	last   time.Time // the stamp of the last line
	equal  int       // the number of lines that were read with that stamp
	skip   int       // of these, how many come again
	passed bool      // a line that was not read before has come since the log was opened
}

// from moves the place to an instant, if it is not there yet.
func (p *place) from(since time.Time) {
	if since.After(p.last) {
		p.last, p.equal = since, 0
	}
}

func (p *place) opened() { p.skip, p.passed = p.equal, false }

// isNew reports whether a line was not read before, and moves the place behind it.
func (p *place) isNew(at time.Time) bool {
	switch {
	case p.passed:
	case at.Before(p.last):
		return false
	case at.Equal(p.last) && p.skip > 0:
		p.skip--
		return false
	}
	p.passed = true
	if at.Equal(p.last) {
		p.equal++
	} else {
		p.last, p.equal = at, 1
	}
	return true
}
