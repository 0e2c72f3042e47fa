package entrypoint

import (
	"context"
	"errors"
	"fmt"
	"runtime"
	"testing"
	"time"

	"k8s.io/apimachinery/pkg/types"
	clocktesting "k8s.io/utils/clock/testing"

	"github.com/singletonjob/operator/api/v1alpha1"
)

// asked is a look-up in progress. The test decides how it ends.
type asked struct {
	ctx  context.Context
	want Want
	end  chan error
}

// office has Lookups whose look-ups a test observes and ends.
type office struct {
	*Lookups
	t     *testing.T
	clock *clocktesting.FakePassiveClock
	asked chan asked
	done  chan types.NamespacedName
}

func newOffice(t *testing.T) *office {
	t.Helper()
	o := &office{
		t: t, clock: clocktesting.NewFakePassiveClock(time.Now()), asked: make(chan asked, 100), done: make(chan types.NamespacedName, 100),
	}
	o.Lookups = New(func(ctx context.Context, want Want) (*v1alpha1.Entrypoint, error) {
		a := asked{ctx: ctx, want: want, end: make(chan error)}
		o.asked <- a
		select {
		case err := <-a.end:
			if err != nil {
				return nil, err
			}
			return &v1alpha1.Entrypoint{Image: want.Image}, nil
		case <-ctx.Done():
			return nil, ctx.Err()
		}
	}, o.clock)
	o.Start(t.Context(), func(job types.NamespacedName) { o.done <- job })
	return o
}

var aJob = types.NamespacedName{Namespace: "ns", Name: "job"}

func TestLookUp(t *testing.T) {
	o := newOffice(t)
	want := Want{Namespace: "ns", Image: "a", Architectures: []string{"amd64"}}
	for range 3 {
		if answer := o.Ask(aJob, want); answer != (Answer{}) {
			t.Fatalf("at first there is %+v", answer)
		}
	}
	(<-o.asked).end <- nil
	if got := <-o.done; got != aJob {
		t.Fatalf("%v is woken", got)
	}
	if answer := o.Ask(aJob, want); answer.Found == nil || answer.Found.Image != "a" || answer.Retry != 0 {
		t.Fatalf("then there is %+v", answer)
	}
	want.Architectures = []string{"amd64", "arm64"}
	if answer := o.Ask(aJob, want); answer.Found != nil {
		t.Fatalf("for other nodes there is %+v", answer)
	}
	if again := <-o.asked; len(again.want.Architectures) != 2 || len(o.asked) > 0 {
		t.Errorf("then %+v was looked up, and %d more", again.want, len(o.asked))
	}
}

// TestRetries: each retry comes later, Ask returns the last problem in between, and another template is looked up at once.
func TestRetries(t *testing.T) {
	o := newOffice(t)
	want := Want{Namespace: "ns", Image: "a"}
	problem := FindError{}
	for i, wait := range []time.Duration{10 * time.Second, 20 * time.Second, 40 * time.Second, 80 * time.Second, 160 * time.Second, lastRetry, lastRetry} {
		if answer := o.Ask(aJob, want); answer != (Answer{Problem: problem}) {
			t.Fatalf("the %d. time there is %+v", i, answer)
		}
		problem = FindError{v1alpha1.ReasonImageNotFound, fmt.Sprint("trouble ", i)}
		if i%2 == 0 {
			problem.Reason = v1alpha1.ReasonEntrypointUnknown
			(<-o.asked).end <- errors.New(problem.Text)
		} else {
			(<-o.asked).end <- fmt.Errorf("look up: %w", problem)
		}
		<-o.done
		if answer := o.Ask(aJob, want); answer != (Answer{Problem: problem, Retry: wait}) {
			t.Fatalf("the %d. time there is %+v, want a wait of %v", i, answer, wait)
		}
		o.clock.SetTime(o.clock.Now().Add(wait))
	}
	o.Ask(aJob, want)
	before := <-o.asked
	if answer := o.Ask(aJob, Want{Namespace: "ns", Image: "a", TemplateHash: "another"}); answer != (Answer{}) {
		t.Errorf("for another template there is %+v", answer)
	}
	<-before.ctx.Done() // it is of no use any more
	(<-o.asked).end <- nil
	<-o.done
	if len(o.done) > 0 {
		t.Error("the job is woken for what it does not ask for any more")
	}
}

func TestForget(t *testing.T) {
	o := newOffice(t)
	o.Ask(aJob, Want{Namespace: "ns"})
	under := <-o.asked
	o.Forget(aJob)
	<-under.ctx.Done()
	o.Forget(aJob) // twice is no harm
	o.Ask(aJob, Want{Namespace: "ns"})
	(<-o.asked).end <- nil
	<-o.done
}

// TestNamespacesDoNotWaitForEachOther: a namespace whose registries do not answer delays only itself.
func TestNamespacesDoNotWaitForEachOther(t *testing.T) {
	o := newOffice(t)
	for i := range 20 {
		o.Ask(types.NamespacedName{Namespace: "stuck", Name: fmt.Sprint(i)}, Want{Namespace: "stuck"})
	}
	stuck := []asked{<-o.asked, <-o.asked}
	for range 1000 { // a third of them would have started by then
		runtime.Gosched()
	}
	if len(o.asked) > 0 {
		t.Fatalf("more than %d look-ups of one namespace are under way", parallelEach)
	}
	o.Ask(aJob, Want{Namespace: "ns"})
	next := <-o.asked
	if next.want.Namespace != "ns" {
		t.Fatalf("a look-up of the namespace %s has begun", next.want.Namespace)
	}
	next.end <- nil
	if got := <-o.done; got != aJob {
		t.Errorf("%v is woken", got)
	}
	for range 18 {
		stuck[0].end <- nil
		<-o.done
		stuck[0] = <-o.asked
	}
	stuck[0].end <- nil
	stuck[1].end <- nil
	<-o.done
	<-o.done
	if len(o.namespaces) > 0 {
		t.Errorf("%d namespaces are remembered", len(o.namespaces))
	}
}

// TestConcurrencyIsBounded: the number of look-ups is bounded, whatever the number of namespaces.
func TestConcurrencyIsBounded(t *testing.T) {
	o := newOffice(t)
	for i := range 2 * parallel {
		space := fmt.Sprint(i)
		o.Ask(types.NamespacedName{Namespace: space, Name: "job"}, Want{Namespace: space})
	}
	var under []chan error
	defer func() {
		for _, end := range under {
			close(end)
		}
	}()
	for range parallel {
		under = append(under, (<-o.asked).end)
	}
	if len(o.slots) != parallel || len(o.asked) > 0 {
		t.Errorf("%d are under way, and %d more", len(o.slots), len(o.asked))
	}
}

// TestTimeIsLimited: a look-up has a deadline, and ends with the operator.
func TestTimeIsLimited(t *testing.T) {
	o := newOffice(t)
	ctx, cancel := context.WithCancel(t.Context())
	o.Start(ctx, func(job types.NamespacedName) { o.done <- job })
	o.Ask(aJob, Want{Namespace: "ns"})
	under := <-o.asked
	if until, limited := under.ctx.Deadline(); !limited || time.Until(until) > timeout {
		t.Errorf("it may take until %v", until)
	}
	cancel()
	<-under.ctx.Done()
	<-o.done
}
