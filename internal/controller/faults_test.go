package controller

import (
	"fmt"
	"math/rand/v2"
	"slices"
	"strings"
	"testing"

	"k8s.io/utils/ptr"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/singletonjob/operator/api/v1alpha1"
	"github.com/singletonjob/operator/internal/lease"
	"github.com/singletonjob/operator/test/tier"
)

// aLife is what the tests of faults go through: made, failed over, rolled out, suspended, resumed, asked for a higher token
// base, its Lease deleted, itself deleted. It touches every kind of write.
func aLife(w *world) {
	w.t.Helper()
	liveThrough(w)
	for _, o := range w.operators { // which may have ended between the status and its Event, and must not again
		o.crashAt = 0
	}
	w.round()
	w.records("Elected Elected", "Failover ProcessExited", "Handover RolloutHandover", "Handover PodTerminating",
		"Handover TokenBaseRaised", "Failover LeaseDeleted")
	for _, o := range w.operators {
		if o.next != nil { // there is little to write still
			o.crashAt = o.writes + 1 + o.next.IntN(2)
		}
	}
	endLife(w)
}

func liveThrough(w *world) {
	w.t.Helper()
	w.job(withService)
	w.until("serving", w.serving)
	w.holder().exit(1)
	w.until("failed over", func() bool { return w.serving() && w.status().Failovers > 0 })
	w.image("v2")
	w.until("handed over to the new version", func() bool { return w.holderRuns("v2")() && w.status().Handovers > 0 })
	w.edit(func(job *v1alpha1.SingletonJob) { job.Spec.Suspend = true })
	w.until("suspended", func() bool {
		return len(w.pods()) == 0 && condition(w.status(), v1alpha1.ConditionActive).Reason == v1alpha1.ReasonSuspended
	})
	w.edit(func(job *v1alpha1.SingletonJob) { job.Spec.Suspend = false })
	w.until("resumed", w.serving)
	w.edit(func(job *v1alpha1.SingletonJob) { job.Spec.Fencing.TokenBase = 1_000_000 })
	w.until("a higher token", func() bool { return w.serving() && w.status().FencingToken > 1_000_000 })
	gone := w.lease().UID
	w.deleteLease()
	w.until("a tenure on another Lease", func() bool {
		l := w.lease()
		return l != nil && l.UID != gone && w.serving() && w.status().History[0].Reason == v1alpha1.ChangeLeaseDeleted
	})
	w.until("the Service points at the holder", func() bool { return w.behind(w.service()) == w.holder().name })
}

func endLife(w *world) {
	w.t.Helper()
	job := w.read()
	w.must(w.api.Delete(w.t.Context(), job))
	w.round()
	w.until("collected", func() bool {
		w.collectGarbage(job.UID) // what an operator with an old cache makes, too
		return w.lease() == nil
	})
}

// TestTheOperatorEndsAtEveryWrite: in these lives the operator ends right after a write, before it has the answer, first at
// another one in each life, and then at the first call of each kind and again and again, so that every kind of write is the last
// one of some process. A new process goes on with an empty memory. To end before the next write leaves the same behind. The gate has
// some of the lives; in each of them every kind of write is met.
func TestTheOperatorEndsAtEveryWrite(t *testing.T) {
	quiet := newWorld(t)
	aLife(quiet)
	if writes := quiet.operators[0].writes; writes < 40 {
		t.Fatalf("a life takes only %d writes: %v", writes, quiet.operators[0].log)
	}
	from := []int{1, 5, 9} // of the first writes, in which all that stands beside the pods is made
	if tier.IsDeep() {
		from = []int{1, 2, 3, 4, 5, 6, 7, 8, 9, 10}
	}
	lives := make([]*world, len(from))
	t.Run("lives", func(t *testing.T) {
		for i, write := range from {
			t.Run(fmt.Sprint("from write ", write), func(t *testing.T) {
				t.Parallel()
				lives[i] = newWorld(t)
				o := lives[i].operators[0]
				o.crashAt, o.next = write, rand.New(rand.NewPCG(uint64(write-1), 0))
				o.dies = func(call string) (ends, after bool) {
					another := o.crashAt != 0 && len(o.crashes) > 0 && !slices.Contains(o.crashes, call)
					return o.writes == o.crashAt || another, true
				}
				aLife(lives[i])
			})
		}
	})
	ended := map[string]int{}
	for _, w := range lives {
		for _, what := range w.operators[0].crashes {
			ended[what]++
		}
	}
	for _, what := range quiet.operators[0].log {
		if kind := kindOfWrite(what); ended[kind] == 0 {
			t.Errorf("no operator has ended at %q: %v", kind, ended)
		}
	}
}

// kindOfWrite is a line of an operator's log without the object's name.
func kindOfWrite(what string) string { return what[:strings.LastIndex(what, " ")] }

// TestTheOperatorEndsAtAllWrites: it gets no further than one write in all its life.
func TestTheOperatorEndsAtAllWrites(t *testing.T) {
	for _, after := range []bool{false, true} {
		t.Run(fmt.Sprintf("after %v", after), func(t *testing.T) {
			t.Parallel()
			w := newWorld(t)
			o := w.operators[0]
			o.always, o.after = true, after
			aLife(w)
		})
	}
}

// TestAnOperatorThatSeesOldStates: it sees each kind of object as it was some rounds ago.
func TestAnOperatorThatSeesOldStates(t *testing.T) {
	for _, seed := range seeds(t) {
		t.Run(fmt.Sprint("seed ", seed), func(t *testing.T) {
			t.Parallel()
			w := newWorld(t)
			w.operators[0].cache = newLaggingCache(w, rand.New(rand.NewPCG(seed, 0)))
			aLife(w)
		})
	}
}

// twoThatLag adds an operator, and both see old states.
func (w *world) twoThatLag(seed uint64) {
	w.operators = append(w.operators, w.newOperator())
	for i, o := range w.operators {
		o.cache = newLaggingCache(w, rand.New(rand.NewPCG(seed, uint64(i))))
	}
}

// TestTwoOperatorsThatSeeOldStates: two act at once, as while one does not know yet that it is deposed. They may cost a
// handover more than one would; they start no two processes, and what they tell is what happened, once.
func TestTwoOperatorsThatSeeOldStates(t *testing.T) {
	for _, seed := range seeds(t) {
		t.Run(fmt.Sprint("seed ", seed), func(t *testing.T) {
			t.Parallel()
			w := newWorld(t)
			w.twoThatLag(seed)
			liveThrough(w)
			w.until("all is recorded", func() bool { return w.status().FencingToken == w.highest })
			for range 10 {
				w.round() // the caches catch up
			}
			w.recordsWhatHappened()
			endLife(w)
		})
	}
}

func firstSeed(t *testing.T) uint64 {
	t.Helper()
	if *seed != 0 {
		return *seed
	}
	return tier.Seed(t, 1)
}

// seeds is one in the gate, the same always, and two more in the deep tier.
func seeds(t *testing.T) []uint64 {
	t.Helper()
	first := firstSeed(t)
	switch {
	case *seed != 0, !tier.IsDeep():
		return []uint64{first}
	default:
		return []uint64{1, first, first + 1}
	}
}

// TestALeaseMadeOnAnOldStateIsNotFree: a new process of the operator, whose cache is from before the first tenure, finds no
// Lease and makes one. What the API server knows of that tenure, by the job's status or by its pods alone, must count.
func TestALeaseMadeOnAnOldStateIsNotFree(t *testing.T) {
	for name, forget := range map[string]func(*world){
		"only the status records it": func(w *world) {
			for _, pod := range w.pods() { // as by force, while their nodes are cut off
				w.must(w.api.Delete(w.t.Context(), &pod, client.GracePeriodSeconds(0)))
			}
		},
		"only pods tell": func(w *world) {
			job := w.read()
			job.Status = v1alpha1.SingletonJobStatus{}
			w.must(w.api.Status().Update(w.t.Context(), job))
		},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			w := newWorld(t)
			w.job(nil)
			old := newLaggingCache(w, nil)
			old.lag()
			w.until("serving", w.serving)
			forget(w)
			w.deleteLease()
			o := w.operators[0]
			o.cache = old
			o.restart()
			o.reconcile()
			if l := w.lease(); l == nil || ptr.Deref(l.Spec.HolderIdentity, "") != lease.UnknownHolder {
				t.Errorf("the Lease is %+v, and a process runs", l)
			}
		})
	}
}
