//go:build linux

package main

import (
	"slices"
	"strings"
	"testing"
	"time"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"

	"github.com/singletonjob/operator/api/v1alpha1"
)

var key = types.NamespacedName{Namespace: "scale-0", Name: "job-0"}

func TestLedgerFindsViolations(t *testing.T) {
	for name, c := range map[string]struct {
		do   func(*ledger)
		says string
	}{
		"one after the other":  {do: func(l *ledger) { l.began(key, "a", 1); l.ended(key, 1); l.began(key, "b", 2) }},
		"the same pod again":   {do: func(l *ledger) { l.began(key, "a", 1); l.ended(key, 1); l.began(key, "a", 2) }},
		"two at once":          {do: func(l *ledger) { l.began(key, "a", 1); l.began(key, "b", 2) }, says: "b acts beside a"},
		"a token twice":        {do: func(l *ledger) { l.began(key, "a", 1); l.ended(key, 1); l.began(key, "b", 1) }, says: "token 1 after 1"},
		"a token turned back":  {do: func(l *ledger) { l.began(key, "a", 7); l.ended(key, 7); l.began(key, "b", 3) }, says: "token 3 after 7"},
		"what a pod complains": {do: func(l *ledger) { l.fault("no configuration") }, says: "no configuration"},
	} {
		t.Run(name, func(t *testing.T) {
			l := newLedger()
			c.do(l)
			if said := strings.Join(l.faults, "; "); !strings.Contains(said, c.says) || (said == "") != (c.says == "") {
				t.Errorf("faults %q, want %q", said, c.says)
			}
		})
	}
}

func TestLabelBelongsToTheNewestHolder(t *testing.T) {
	l := newLedger()
	right := func() bool { return !l.of(key).right.IsZero() }
	l.began(key, "a", 1)
	l.seen(key, "a", true, true)
	if !right() {
		t.Error("the holder is labelled")
	}
	l.ended(key, 1)
	l.began(key, "b", 2)
	if right() {
		t.Error("the one before is labelled")
	}
	l.seen(key, "b", true, true)
	if right() {
		t.Error("both are labelled")
	}
	l.seen(key, "a", false, true)
	if !right() {
		t.Error("the newest is labelled alone")
	}
}

func TestMissingEntriesOfAStatus(t *testing.T) {
	l := newLedger()
	for token := int64(1); token <= 12; token++ {
		l.began(key, "a", token)
		l.ended(key, token)
	}
	job := &v1alpha1.SingletonJob{ObjectMeta: metav1.ObjectMeta{Namespace: key.Namespace, Name: key.Name}}
	job.Status.Failovers, job.Status.Handovers = 8, 3
	for token := int64(12); token > 2; token-- {
		job.Status.History = append(job.Status.History, v1alpha1.TenureChange{Token: token})
	}
	if wrong := l.missing(job); len(wrong) > 0 {
		t.Errorf("all is told, and missing is %q", wrong)
	}
	for what, forget := range map[string]func(*v1alpha1.SingletonJobStatus){
		"a count":       func(s *v1alpha1.SingletonJobStatus) { s.Failovers-- },
		"the newest":    func(s *v1alpha1.SingletonJobStatus) { s.History = s.History[1:] },
		"another token": func(s *v1alpha1.SingletonJobStatus) { s.History[4].Token = 99 },
	} {
		told := job.DeepCopy()
		forget(&told.Status)
		if len(l.missing(told)) == 0 {
			t.Errorf("%s is not told, and nothing is missing", what)
		}
	}
	// Of a short history, in which token 3 began no process.
	short := job.DeepCopy()
	l.of(key).tenures = slices.Delete(l.of(key).tenures[:4], 2, 3)
	short.Status.Failovers, short.Status.Handovers, short.Status.History = 3, 0, nil
	for token := int64(4); token > 0; token-- {
		short.Status.History = append(short.Status.History, v1alpha1.TenureChange{Token: token})
	}
	if wrong := l.missing(short); len(wrong) > 0 {
		t.Errorf("a tenure without a process is told, and missing is %q", wrong)
	}
	short.Status.Failovers++
	if len(l.missing(short)) == 0 {
		t.Error("one more failover is counted than is told, and nothing is missing")
	}
}

// TestBetween: what a process counted since its start is all that there is of one that was started meanwhile.
func TestBetween(t *testing.T) {
	at := time.Now()
	counts := func(n float64) map[string]float64 { return map[string]float64{"PUT leases": n} }
	before := sample{at: at, pids: map[string][]int{"kube-apiserver": {1, 4}, "operator": {2}}, server: counts(100), operator: counts(50), own: counts(90), cpu: map[string]float64{"operator": 9}}
	after := sample{at: at.Add(10 * time.Second), pids: map[string][]int{"kube-apiserver": {1, 4}, "operator": {3}}, server: counts(130), operator: counts(7), own: counts(115), cpu: map[string]float64{"operator": 1}}
	p := between("x", before, after, []time.Duration{time.Second, time.Millisecond})
	if p.Requests["PUT leases"] != 30 || p.Others["PUT leases"] != 5 || p.Operator["PUT leases"] != 7 || p.CPU["operator"] != 0.1 || p.Renewals != 2.5 || p.RenewalP99 != 1 {
		t.Errorf("got %+v", p)
	}
}

// TestProgress: a number is told each minute, and given up if it stays below nine tenths of what it was.
func TestProgress(t *testing.T) {
	for name, c := range map[string]struct {
		numbers []int // one for each 30 seconds
		want    []outlook
	}{
		"grows":             {[]int{0, 5, 10, 20}, []outlook{told, quiet, told, quiet}},
		"waits":             {[]int{0, 10, 10, 10, 10, 10, 10}, []outlook{told, quiet, told, quiet, told, quiet, told}},
		"falls":             {[]int{100, 89, 80, 70, 60, 50}, []outlook{told, quiet, told, quiet, told, falls}},
		"falls and returns": {[]int{100, 50, 50, 50, 90, 50}, []outlook{told, quiet, told, quiet, told, quiet}},
		"falls a little":    {[]int{100, 95, 91, 90, 90, 90}, []outlook{told, quiet, told, quiet, told, quiet}},
	} {
		t.Run(name, func(t *testing.T) {
			var p progress
			for i, n := range c.numbers {
				if got := p.look(time.Duration(i)*30*time.Second, n); got != c.want[i] {
					t.Errorf("%d, %d: %v, want %v", i, n, got, c.want[i])
				}
			}
		})
	}
}

// TestWith: a run replaces an earlier one of its kind, but one that ended early replaces no complete one.
func TestWith(t *testing.T) {
	run := func(took float64, jobs, shared int, ended string) Result {
		return Result{Took: took, Jobs: jobs, Shared: shared, Ended: ended, Phases: []*Phase{{}}}
	}
	for name, c := range map[string]struct {
		before []Result
		add    Result
		want   []float64
	}{
		"first":                {nil, run(1, 10, 0, ""), []float64{1}},
		"again":                {[]Result{run(1, 10, 0, "")}, run(2, 10, 0, ""), []float64{2}},
		"more jobs":            {[]Result{run(1, 10, 0, "")}, run(2, 20, 0, ""), []float64{1, 2}},
		"shared connections":   {[]Result{run(1, 10, 0, "")}, run(2, 10, 20, ""), []float64{1, 2}},
		"ended early":          {[]Result{run(1, 10, 0, "")}, run(2, 10, 0, "no CPU"), []float64{1}},
		"both ended early":     {[]Result{run(1, 10, 0, "no CPU")}, run(2, 10, 0, "no CPU"), []float64{2}},
		"nothing was measured": {[]Result{run(1, 10, 0, "no CPU")}, Result{Took: 2, Jobs: 10, Ended: "no CPU"}, []float64{1}},
	} {
		t.Run(name, func(t *testing.T) {
			var got []float64
			for _, r := range with(c.before, c.add) {
				got = append(got, r.Took)
			}
			if !slices.Equal(got, c.want) {
				t.Errorf("%v, want %v", got, c.want)
			}
		})
	}
}

// TestARunThatEnded: the table and the chart have no number for what was not measured.
func TestARunThatEnded(t *testing.T) {
	all := []Result{{Jobs: 10, Phases: []*Phase{{Name: created, Facts: map[string]float64{"all settled": 5}}}, Ended: "no CPU"}}
	text := markdown(all)
	for _, line := range []string{
		"| all created, elected and with a standby, s | 5 |", "| operator's memory while idle, MiB | - |", "| API server killed: time until all jobs renew again, s | - |",
		"| Lease of a new job in etcd, bytes | - |", "| two processes at the same time, tokens that did not grow, tenures missing from the history | - |",
	} {
		if !strings.Contains(text, line) {
			t.Errorf("no line %q in\n%s", line, text)
		}
	}
	if strings.Contains(chart(all), "NaN") {
		t.Error("the chart has no number")
	}
}
