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

// aLife is the sequence for the tests of faults: the job is created, failed over, rolled out, suspended, resumed, given a higher
// token base, loses its Lease, and is deleted. It uses every kind of write.
func aLife(w *world) {
	w.t.Helper()
	liveThrough(w)
	for _, o := range w.operators { // an operator may have ended between the status and its Event, and must not end again
		o.crashAt = 0
	}
	w.round()
	w.records("Elected Elected", "Failover ProcessExited", "Handover RolloutHandover", "Handover PodTerminating",
		"Handover TokenBaseRaised", "Failover LeaseDeleted")
	for _, o := range w.operators {
		if o.next != nil { // few writes are left
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
		w.collectGarbage(job.UID) // including objects that an operator with a stale cache created
		return w.lease() == nil
	})
}

// TestTheOperatorEndsAtEveryWrite: in these lives the operator ends right after a write, before it gets the response. First it ends
// at a different write in each life, then at the first call of each kind and repeatedly. So every kind of write is the last one of some
// process. A new process starts with an empty memory. An end before the next write leaves the same state. The gate runs some
// of the lives; each of them has every kind of write.
func TestTheOperatorEndsAtEveryWrite(t *testing.T) {
	quiet := newWorld(t)
	aLife(quiet)
	if writes := quiet.operators[0].writes; writes < 40 {
		t.Fatalf("a life takes only %d writes: %v", writes, quiet.operators[0].log)
	}
	from := []int{1, 5, 9} // among the first writes, which create everything except the Pods
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

// kindOfWrite is a line of the operator's log without the object's name.
func kindOfWrite(what string) string { return what[:strings.LastIndex(what, " ")] }

// TestTheOperatorEndsAtAllWrites: each process of the operator makes only one write.
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

// TestOperatorWithAStaleCache: it sees each kind of object in its state of some rounds ago.
func TestOperatorWithAStaleCache(t *testing.T) {
	for _, seed := range seeds(t) {
		t.Run(fmt.Sprint("seed ", seed), func(t *testing.T) {
			t.Parallel()
			w := newWorld(t)
			w.operators[0].cache = newLaggingCache(w, rand.New(rand.NewPCG(seed, 0)))
			aLife(w)
		})
	}
}

// twoThatLag adds an operator. Both see old states.
func (w *world) twoThatLag(seed uint64) {
	w.operators = append(w.operators, w.newOperator())
	for i, o := range w.operators {
		o.cache = newLaggingCache(w, rand.New(rand.NewPCG(seed, uint64(i))))
	}
}

// TestTwoOperatorsWithStaleCaches: two operators act at the same time, as if one did not know yet that it is deposed. They may
// cost one more handover than one operator would. They never start two processes, and report exactly what happened, once.
func TestTwoOperatorsWithStaleCaches(t *testing.T) {
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

// seeds is one fixed seed in the gate, and two more in the deep tier.
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

// TestLeaseCreatedFromAStaleCacheIsNotFree: a new process of the operator, with a cache from before the first tenure, finds no Lease and
// creates one. It must consider what the API server knows of that tenure, even if only the job's status or only its Pods show it.
func TestLeaseCreatedFromAStaleCacheIsNotFree(t *testing.T) {
	for name, forget := range map[string]func(*world){
		"only the status records it": func(w *world) {
			for _, pod := range w.pods() { // like a forced deletion while their nodes are cut off
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
