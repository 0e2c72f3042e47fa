package plugin

import (
	"bufio"
	"context"
	"io"
	"sync"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/cli-runtime/pkg/genericiooptions"

	"github.com/singletonjob/operator/api/v1alpha1"
	"github.com/singletonjob/operator/internal/lease"
	"github.com/singletonjob/operator/internal/show"
)

// journal is the logs of Pods as kubelets serve them: from a whole second on, and further while they are written.
type journal struct {
	mu    sync.Mutex
	lines map[string][]entry
	pods  map[string]int // how many Pods have had the name before
	grown chan struct{}  // closed when something has changed
	opens map[string]int
}

type entry struct {
	at   time.Time
	text string
}

func newJournal() *journal {
	return &journal{lines: map[string][]entry{}, pods: map[string]int{}, grown: make(chan struct{}), opens: map[string]int{}}
}

func (j *journal) write(pod string, second int, text string) {
	j.change(func() { j.lines[pod] = append(j.lines[pod], entry{at(second), text}) })
}

// forget ends the log of a Pod that no longer exists.
func (j *journal) forget(pod string) {
	j.change(func() {
		delete(j.lines, pod)
		j.pods[pod]++
	})
}

func (j *journal) change(do func()) {
	j.mu.Lock()
	defer j.mu.Unlock()
	do()
	close(j.grown)
	j.grown = make(chan struct{})
}

func at(second int) time.Time { return time.Date(2026, 3, 4, 12, 0, second, 0, time.UTC) }

// next returns the entries of a Pod from the n-th on, the number of Pods that had its name before, and what is closed when there are more.
func (j *journal) next(pod string, n int) (more []entry, before int, grown chan struct{}) {
	j.mu.Lock()
	defer j.mu.Unlock()
	all := j.lines[pod]
	return all[min(n, len(all)):], j.pods[pod], j.grown
}

func (j *journal) open(ctx context.Context, pod string, o *corev1.PodLogOptions) (io.ReadCloser, error) {
	j.mu.Lock()
	j.opens[pod]++
	_, exists := j.lines[pod]
	this := j.pods[pod]
	j.mu.Unlock()
	if !exists {
		return nil, apierrors.NewNotFound(schema.GroupResource{Resource: "pods"}, pod)
	}
	reader, writer := io.Pipe()
	go func() {
		defer writer.Close()
		for n := 0; ; {
			more, before, grown := j.next(pod, n)
			if before != this {
				return
			}
			for _, e := range more {
				if o.SinceTime == nil || !e.at.Before(o.SinceTime.Truncate(time.Second)) {
					_, _ = io.WriteString(writer, e.at.Format(time.RFC3339Nano)+" "+e.text+"\n")
				}
			}
			n += len(more)
			select {
			case <-ctx.Done():
				return
			case <-grown:
			}
		}
	}()
	return reader, nil
}

// followed is a follower with what it prints.
type followed struct {
	*follower
	*journal
	t     *testing.T
	lines *bufio.Reader
	facts show.Facts
}

func newFollowed(t *testing.T) *followed {
	reader, writer := io.Pipe()
	j := newJournal()
	l := &logger{cli: &cli{IOStreams: genericiooptions.IOStreams{Out: writer, ErrOut: writer}}, open: j.open, logOptions: logOptions{follow: true, tail: -1}}
	f := &follower{logger: l, drain: time.Hour, readers: map[string]*podReader{}, failed: make(chan error, 1)}
	t.Cleanup(func() {
		reader.Close() // what cannot be written ends every reader
		for _, r := range f.readers {
			r.stop()
		}
		f.running.Wait()
	})
	facts := show.Facts{Job: &v1alpha1.SingletonJob{}, Lease: &lease.Record{}}
	return &followed{follower: f, journal: j, t: t, lines: bufio.NewReader(reader), facts: facts}
}

// took makes a Pod the holder.
func (f *followed) took(pod string, uid types.UID, token int64, second int) {
	s := &f.facts.Job.Status
	s.ActivePod, s.FencingToken, s.ActiveSince = pod, token, new(metav1.NewTime(at(second)))
	f.facts.Lease.History = append([]lease.PastTenure{{Token: token, Pod: pod, Acquired: at(second).UnixMilli()}}, f.facts.Lease.History...)
	f.facts.Pods = []corev1.Pod{{}}
	f.facts.Pods[0].Name, f.facts.Pods[0].UID, f.facts.Pods[0].Spec.Containers = pod, uid, []corev1.Container{{Name: "app"}}
}

// looks lets the follower look, and expects lines.
func (f *followed) looks(want ...string) {
	f.t.Helper()
	looked := make(chan struct{})
	go func() {
		f.look(f.t.Context(), f.facts)
		close(looked)
	}()
	f.prints(want...)
	<-looked
}

func (f *followed) prints(want ...string) {
	f.t.Helper()
	for _, w := range want {
		if got, err := f.lines.ReadString('\n'); err != nil || got != w+"\n" {
			f.t.Fatalf("it printed %q (%v), want %q", got, err, w)
		}
	}
}

func TestFollower(t *testing.T) {
	t.Parallel()
	t.Run("takes over again", func(t *testing.T) {
		t.Parallel()
		f := newFollowed(t)
		f.write("a", 1, "a1")
		f.took("a", "1", 7, 1)
		f.looks("==> a, token 7", "a1")
		f.write("b", 2, "b stands by")
		f.write("b", 3, "b1")
		f.took("b", "2", 8, 3)
		f.looks("==> b, token 8", "b1")
		f.took("a", "1", 9, 4)
		f.looks("==> a, token 9")
		f.write("a", 4, "a2") // a second reader would print it, too
		f.prints("a2")
		f.write("a", 5, "a3")
		f.prints("a3")
		if f.opens["a"] != 1 {
			t.Errorf("the log of a was opened %d times", f.opens["a"])
		}
	})
	t.Run("after its reader was stopped", func(t *testing.T) {
		t.Parallel()
		f := newFollowed(t)
		f.write("a", 1, "a1")
		f.took("a", "1", 7, 1)
		f.looks("==> a, token 7", "a1")
		f.drain = 0
		f.write("b", 3, "b1")
		f.took("b", "2", 8, 3)
		f.looks("==> b, token 8", "b1")
		<-f.readers["a"].ended
		f.write("a", 1, "a of the same second")
		f.write("a", 4, "a2")
		f.took("a", "1", 9, 4)
		f.looks("==> a, token 9", "a2")
	})
	t.Run("between two looks", func(t *testing.T) {
		t.Parallel()
		f := newFollowed(t)
		f.write("a", 1, "a1")
		f.took("a", "1", 7, 1)
		f.looks("==> a, token 7", "a1")
		f.write("b", 3, "b1")
		f.took("b", "2", 8, 3)
		f.write("c", 4, "c1")
		f.took("c", "3", 9, 4)
		looked := make(chan struct{})
		go func() { f.look(t.Context(), f.facts); close(looked) }()
		seen := map[string]bool{}
		for range 4 { // of two Pods in any order
			line, _ := f.lines.ReadString('\n')
			seen[line] = true
		}
		<-looked
		for _, want := range []string{"==> b, token 8\n", "b1\n", "==> c, token 9\n", "c1\n"} {
			if !seen[want] {
				t.Errorf("it printed %v, without %q", seen, want)
			}
		}
	})
	t.Run("another Pod of the name", func(t *testing.T) {
		t.Parallel()
		f := newFollowed(t)
		f.write("a", 5, "of the first")
		f.took("a", "1", 7, 5)
		f.looks("==> a, token 7", "of the first")
		f.forget("a")
		f.write("a", 1, "stands by") // by the clock of another node
		f.write("a", 2, "of the second")
		f.took("a", "2", 8, 2)
		f.looks("==> a, token 8", "of the second")
	})
}

// TestPositionInALog: each line is new once, though a log that is opened again begins with lines that were read.
func TestPositionInALog(t *testing.T) {
	t.Parallel()
	for name, c := range map[string]struct{ read, again, want []int }{
		"what was read comes again":    {[]int{1, 2, 3}, []int{2, 3, 4}, []int{4}},
		"two lines of one instant":     {[]int{1, 2, 2}, []int{2, 2, 2, 3}, []int{2, 3}},
		"the clock was set back":       {[]int{5, 6, 2, 3}, []int{3, 4}, []int{4}},
		"and then the log goes on":     {[]int{1, 2}, []int{2, 3, 1, 2}, []int{3, 1, 2}},
		"nothing was read":             {nil, []int{1, 1}, []int{1, 1}},
		"nothing comes again":          {[]int{1}, []int{2}, []int{2}},
		"all of it is read, and again": {[]int{1, 1}, []int{1, 1}, nil},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			p := &place{}
			p.opened()
			for _, s := range c.read {
				if !p.isNew(at(s)) {
					t.Errorf("at first, the line of second %d is not new", s)
				}
			}
			p.opened()
			var got []int
			for _, s := range c.again {
				if p.isNew(at(s)) {
					got = append(got, s)
				}
			}
			if len(got) != len(c.want) {
				t.Fatalf("new are those of %d, want %d", got, c.want)
			}
			for i := range got {
				if got[i] != c.want[i] {
					t.Errorf("new are those of %d, want %d", got, c.want)
				}
			}
		})
	}
}
