package controller

import (
	"strings"
	"testing"

	"github.com/go-logr/logr"
	"github.com/go-logr/logr/funcr"
	ctrl "sigs.k8s.io/controller-runtime"

	"github.com/singletonjob/operator/api/v1alpha1"
)

// TestEveryWriteIsLogged: each write is one line with its reason, and there are no other lines.
func TestEveryWriteIsLogged(t *testing.T) {
	w := newWorld(t)
	var lines []string
	ctx := logr.NewContext(t.Context(), funcr.New(func(_, args string) { lines = append(lines, args) }, funcr.Options{}))
	o := w.operators[0]
	w.operators = nil
	reconcile := func() {
		if _, err := o.r.Reconcile(ctx, ctrl.Request{NamespacedName: w.key}); err != nil {
			t.Fatal(err)
		}
	}
	until := func(what string, holds func() bool) {
		t.Helper()
		w.until(what, func() bool {
			for range 5 {
				reconcile()
			}
			return holds()
		})
	}
	w.job(nil)
	until("serving", w.serving)
	w.edit(func(job *v1alpha1.SingletonJob) { job.Spec.Suspend = true })
	until("suspended", func() bool { return len(w.pods()) == 0 })
	if len(lines) != o.stored {
		t.Errorf("%d writes and %d lines:\n%s", o.stored, len(lines), strings.Join(lines, "\n"))
	}
	all := strings.Join(lines, "\n")
	for _, want := range []string{
		`"created" "kind"="Lease" "object"="` + w.key.String() + `" "why"="there is none"`,
		`"why"="there are 0 of 2 candidates"`, `"status updated" "kind"="SingletonJob"`, "Active is True, Running: ",
		`"deleted" "kind"="Pod"`, `"why"="spec.suspend is set"`, `"created" "kind"="Role"`, `"created" "kind"="Event"`, `"why"="its role is active"`,
	} {
		if !strings.Contains(all, want) {
			t.Errorf("nothing says %s", want)
		}
	}
	if strings.Contains(all, `"why"=""`) || strings.Contains(all, `"kind"="?"`) {
		t.Error("a line lacks its reason or kind")
	}
	if t.Failed() {
		t.Log(all)
	}
	before := len(lines)
	for range 3 {
		reconcile()
	}
	if len(lines) != before {
		t.Errorf("nothing was to be done, and it is recorded: %v", lines[before:])
	}
}
