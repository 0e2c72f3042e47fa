package controller

import (
	"testing"

	"github.com/singletonjob/operator/api/v1alpha1"
)

func TestElects(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	w.job(nil)
	w.until("serving", w.serving)
	s := w.status()
	if len(s.History) != 1 || s.History[0].Type != v1alpha1.Elected {
		t.Errorf("history %+v", s.History)
	}
	t.Log(w.describe(), w.operators[0].log)
}
