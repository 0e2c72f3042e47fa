package charts

import (
	"fmt"
	"slices"
	"strconv"
	"strings"
	"testing"
	"time"

	coordinationv1 "k8s.io/api/coordination/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/rest"

	"github.com/singletonjob/operator/internal/contract"
)

// BenchmarkGuard prints the time that the guard adds to a renewal. It renews a guarded Lease and one without the label in turns. It
// is one run, so b.N is not used. The ratios compare one machine with itself, so they are valid on a busy machine too.
func BenchmarkGuard(b *testing.B) {
	const rounds, batch = 10, 100
	w := newGuardWorld(b)
	w.guardOn()
	renew := map[string]func(){"guarded": w.renewal(contract.ManagedBy), "not guarded": w.renewal("another")}
	took, cpu := map[string][]time.Duration{}, map[string]float64{}
	for round := range rounds + 1 {
		for what, renew := range renew {
			before := w.cpuSeconds()
			for range batch {
				began := time.Now()
				renew()
				if round > 0 { // the first makes it warm
					took[what] = append(took[what], time.Since(began))
				}
			}
			if round > 0 {
				cpu[what] += w.cpuSeconds() - before
			}
		}
	}
	median := map[string]time.Duration{}
	for what, all := range took {
		slices.Sort(all)
		median[what] = all[len(all)/2]
		fmt.Printf("%s: median %v, p90 %v, %.2f ms of the API server's CPU time each\n", what,
			median[what].Round(time.Microsecond), all[len(all)*9/10].Round(time.Microsecond), cpu[what]*1000/rounds/batch)
	}
	fmt.Printf("guarded / not guarded: time %.2f, CPU time %.2f\n",
		float64(median["guarded"])/float64(median["not guarded"]), cpu["guarded"]/cpu["not guarded"])
}

// renewal renews a managed Lease as its holder.
func (w *guardWorld) renewal(managedBy string) func() {
	w.t.Helper()
	l := held()
	l.Name = "job-of-" + managedBy
	l.Labels[contract.ManagedByLabel] = managedBy
	own := pod(tenant, l.Name+"-hbt97c5-0")
	heldBy(identity(own, "n"))(l)
	l = w.set(l)
	leases := w.as(own).CoordinationV1().Leases(tenant)
	return func() {
		w.t.Helper()
		l.Spec.RenewTime = new(metav1.NowMicro())
		stored, err := leases.Update(w.t.Context(), l, metav1.UpdateOptions{})
		w.must(err)
		l = stored
	}
}

// large: the guard at most doubles the API server's CPU time for a request, however large the Lease is, and whatever the answer is. All
// requests are dry runs, so that nothing else differs between a guarded Lease and one without the label.
func (w *guardWorld) large(t *testing.T) {
	const requests, most = 10, 2.0
	labelled := func(n int) change {
		return func(l *coordinationv1.Lease) {
			for i := range n {
				l.Labels[fmt.Sprintf("l%d", i)] = ""
			}
		}
	}
	for size, was := range map[string]change{"20000 annotations": crowded(20_000), "40000 annotations": crowded(40_000), "20000 labels": labelled(20_000)} {
		for what, ask := range map[string]struct {
			verb    verb
			who     rest.ImpersonationConfig
			does    change
			refused bool
		}{
			"editor writes":      {who: editor, does: heldBy("me"), refused: true},
			"editor marks":       {who: editor, does: marked, refused: true},
			"editor deletes":     {verb: remove, who: editor, refused: true},
			"editor creates":     {verb: create, who: editor, does: named(tenant, "another"), refused: true},
			"holder fills":       {who: holder, does: annotated("another", "x"), refused: true},
			"holder renews":      {who: holder, does: renewed},
			"standby takes over": {who: standby, does: taken(standby, 0)},
		} {
			t.Run(size+"/"+what, func(t *testing.T) {
				w := w.in(t)
				cpu := map[bool]float64{}
				for _, guarded := range []bool{false, true} {
					l := held()
					if was(l); !guarded {
						l.Labels[contract.ManagedByLabel] = "another"
					}
					l = w.set(l)
					request := w.dry(ask.verb, ask.who, ask.does, l)
					before := w.cpuSeconds()
					for range requests {
						if err := request(); refusedByGuard(err) != (guarded && ask.refused) || err != nil && !guarded {
							t.Fatalf("guarded %v: %v", guarded, err)
						}
					}
					cpu[guarded] = w.cpuSeconds() - before
				}
				ratio := cpu[true] / cpu[false]
				t.Logf("guarded %.0f ms, not guarded %.0f ms of CPU time for each request: %.2f", cpu[true]*1000/requests, cpu[false]*1000/requests, ratio)
				if ratio > most {
					t.Errorf("the guard multiplies the CPU time of this request by %.2f, want at most %v", ratio, most)
				}
			})
		}
	}
}

// dry is a dry run of a request for a stored Lease.
func (w *guardWorld) dry(v verb, who rest.ImpersonationConfig, does change, l *coordinationv1.Lease) func() error {
	w.t.Helper()
	ctx, dry, leases := w.t.Context(), []string{metav1.DryRunAll}, w.as(who).CoordinationV1().Leases(tenant)
	if v == remove {
		return func() error { return leases.Delete(ctx, l.Name, metav1.DeleteOptions{DryRun: dry}) }
	}
	l = l.DeepCopy()
	does(l)
	if v == create {
		l.ResourceVersion = ""
		return func() error { _, err := leases.Create(ctx, l, metav1.CreateOptions{DryRun: dry}); return err }
	}
	return func() error { _, err := leases.Update(ctx, l, metav1.UpdateOptions{DryRun: dry}); return err }
}

// cpuSeconds is the CPU time of the API server since its start.
func (w *guardWorld) cpuSeconds() float64 {
	w.t.Helper()
	for line := range strings.Lines(w.mustKubectl("get", "--raw=/metrics")) {
		if text, is := strings.CutPrefix(line, "process_cpu_seconds_total "); is {
			seconds, err := strconv.ParseFloat(strings.TrimSpace(text), 64)
			w.must(err)
			return seconds
		}
	}
	w.t.Fatal("the API server does not tell of its CPU time")
	return 0
}
