package charts

import (
	"fmt"
	"slices"
	"strconv"
	"strings"
	"testing"
	"time"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

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
