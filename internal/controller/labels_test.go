package controller

import (
	"testing"
	"time"

	"k8s.io/apimachinery/pkg/types"

	"github.com/singletonjob/operator/internal/lease"
)

// TestNoneActive: the Pods that may have the label active are asked for, unless this process knows that none has it.
func TestNoneActive(t *testing.T) {
	key := types.NamespacedName{Namespace: "ns", Name: "job"}
	tenures := func(transitions int32, tokens ...int64) *lease.Record {
		r := lease.Record{UID: "lease", Transitions: transitions, Token: tokens[0]}
		for _, token := range tokens {
			r.History = append(r.History, lease.PastTenure{Token: token})
		}
		return &r
	}
	other := tenures(2, 7, 5)
	other.UID = "other"
	active := func(m *memory) { m.promoted(key, "p", tenures(1, 5)) }
	for name, c := range map[string]struct {
		before func(m *memory)
		now    *lease.Record
		want   bool
	}{
		"nothing is known":                         {now: tenures(2, 7, 5)},
		"the first tenure of a new Lease":          {before: func(m *memory) { m.startsAfresh(key) }, now: tenures(1, 5), want: true},
		"the first tenure of another's Lease":      {now: tenures(1, 5)},
		"tenures that the status records":          {before: func(m *memory) { m.startsAfresh(key) }, now: tenures(3, 9)},
		"the second tenure of a new Lease":         {before: func(m *memory) { m.startsAfresh(key) }, now: tenures(2, 7, 5)},
		"the label was taken":                      {before: func(m *memory) { active(m); m.demoted(key, "p", 5) }, now: tenures(2, 7, 5), want: true},
		"it is still there":                        {before: active, now: tenures(2, 7, 5)},
		"it was taken before the end":              {before: func(m *memory) { active(m); m.demoted(key, "p", 4) }, now: tenures(2, 7, 5)},
		"it was taken from another Pod":            {before: func(m *memory) { active(m); m.demoted(key, "q", 5) }, now: tenures(2, 7, 5)},
		"a tenure in between":                      {before: func(m *memory) { active(m); m.demoted(key, "p", 6) }, now: tenures(3, 7, 6, 5)},
		"one that left no record":                  {before: func(m *memory) { active(m); m.demoted(key, "p", 6) }, now: tenures(3, 7, 5)},
		"another record":                           {before: func(m *memory) { active(m); m.demoted(key, "p", 6) }, now: tenures(2, 7, 6)},
		"another Lease":                            {before: func(m *memory) { active(m); m.demoted(key, "p", 5) }, now: other},
		"another may have it since":                {before: func(m *memory) { active(m); m.demoted(key, "p", 5); m.promotes(key) }, now: tenures(2, 7, 5)},
		"the job was gone":                         {before: func(m *memory) { m.startsAfresh(key); m.jobGone(key, true, time.Time{}) }, now: tenures(1, 5)},
		"an acquire that the history does not say": {before: func(m *memory) { m.startsAfresh(key) }, now: &lease.Record{Transitions: 1, Token: 5}},
	} {
		t.Run(name, func(t *testing.T) {
			m := newMemory()
			if c.before != nil {
				c.before(m)
			}
			if got := m.noneActive(key, c.now); got != c.want {
				t.Errorf("%v, want %v", got, c.want)
			}
		})
	}
}
