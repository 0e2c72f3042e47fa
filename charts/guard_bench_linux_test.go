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

// BenchmarkGuardRefusesLarge measures what a refused editor costs the API server whose Lease has as many annotations as fit. It compares
// dry runs of a guarded Lease with those of one without the label, which are not refused, and fails if they take more than twice the CPU
// time. A client may send dry runs as fast as it likes.
func BenchmarkGuardRefusesLarge(b *testing.B) {
	const rounds, batch, most = 6, 10, 2
	w := newGuardWorld(b)
	w.guardOn()
	for _, annotations := range []int{20_000, 40_000} {
		cpu := map[bool]float64{}
		try := map[bool]func(){}
		for _, guarded := range []bool{true, false} {
			l := held()
			l.Name = fmt.Sprintf("large-%d-%t", annotations, guarded)
			if !guarded {
				l.Labels[contract.ManagedByLabel] = "another"
			}
			crowded(annotations)(l)
			l = w.set(l)
			leases := w.as(editor).CoordinationV1().Leases(tenant)
			try[guarded] = func() {
				next := l.DeepCopy()
				next.Annotations["another"] = "one"
				_, err := leases.Update(b.Context(), next, metav1.UpdateOptions{DryRun: []string{metav1.DryRunAll}})
				if refusedByGuard(err) != guarded || !guarded && err != nil {
					b.Fatalf("guarded %t: %v", guarded, err)
				}
			}
		}
		for round := range rounds + 1 {
			for guarded, try := range try {
				before := w.cpuSeconds()
				for range batch {
					try()
				}
				if round > 0 { // the first makes it warm
					cpu[guarded] += w.cpuSeconds() - before
				}
			}
		}
		ratio := cpu[true] / cpu[false]
		fmt.Printf("%d annotations: a refused dry run takes %.0f ms of the API server's CPU time, one that is not guarded %.0f ms: %.2f times as much\n",
			annotations, cpu[true]*1000/rounds/batch, cpu[false]*1000/rounds/batch, ratio)
		if ratio > most {
			b.Errorf("with %d annotations the guard multiplies the cost of a refused request by %.2f, want at most %d", annotations, ratio, most)
		}
	}
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
