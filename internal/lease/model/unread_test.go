package model

import (
	"math/rand/v2"
	"reflect"
	"slices"
	"strings"
	"testing"

	"github.com/singletonjob/operator/internal/lease"
)

// TestImmaterialIsUnread goes through every world with one fault, and at random with all of its faults, beside a twin. In the twin, each agent's memory is changed before each
// move, wherever it is no part of a key. After each move both worlds have one key, so nothing that happens rests on what was changed.
// What is no part of a key because no world has it is not changed, and must never be there.
func TestImmaterialIsUnread(t *testing.T) {
	t.Parallel()
	changed := map[string]int{}
	for _, p := range profiles {
		steps(p, func(w *world, m move) bool {
			twin := changeIn(w, changed, isImmaterial)
			if w.after(m).key() == twin.after(m).key() {
				return true
			}
			for path := range immaterial { // which one was it?
				one := changeIn(w, map[string]int{}, func(p string) bool { return endsIn(p, path) })
				if w.after(m).key() != one.after(m).key() {
					t.Errorf("%s: a decision rests on %s, of which is said %q: %+v", p.name, path, immaterial[path], m)
				}
			}
			t.Errorf("%s: a decision rests on what is no part of a key: %+v", p.name, m)
			return false
		})
	}
	for path, why := range immaterial {
		if changed[path] < 100 && !isNowhere(why) {
			t.Errorf("%s was changed %d times only", path, changed[path])
		} else if changed[path] > 0 && isNowhere(why) {
			t.Errorf("%s is somewhere, and %s", path, why)
		}
	}
}

// TestTwinsShowWhatIsRead has the twins differ in fields that are parts of a key: that must show.
func TestTwinsShowWhatIsRead(t *testing.T) {
	t.Parallel()
	for _, path := range []string{"Tenure.AcquireTime", "Tenure.Token", "Past.Clean", "Observed.Longest", "RenewAt"} {
		shown := false
		for _, p := range profiles {
			if shown {
				break
			}
			walks(p, func(w *world, m move) bool {
				twin := changeIn(w, map[string]int{}, func(p string) bool { return endsIn(p, path) })
				shown = w.after(m).key() != twin.after(m).key()
				return !shown
			})
		}
		if !shown {
			t.Errorf("%s was changed, and no key shows it", path)
		}
	}
}

// steps calls try with each step of a world with at most one fault, then with those of some walks.
func steps(p profile, try func(w *world, m move) bool) {
	m := *p.model
	m.budget = 1
	first := m.first(nil)
	seen, queue := map[key]bool{first.key(): true}, []*world{first}
	for len(queue) > 0 {
		w := queue[0]
		queue = queue[1:]
		for _, m := range w.moves() {
			if !try(w, m) {
				return
			}
			if f := w.after(m); !seen[f.key()] {
				seen[f.key()] = true
				queue = append(queue, f)
			}
		}
	}
	walks(p, try)
}

// walks calls try with each step of some walks through a world.
func walks(p profile, try func(w *world, m move) bool) {
	rng := rand.New(rand.NewPCG(1, 2))
	for range 4 {
		w := p.model.first(nil)
		for range 100 {
			next := w.moves()
			if len(next) == 0 {
				break
			}
			m := next[0]
			if rng.IntN(3) == 0 {
				m = next[rng.IntN(len(next))]
			}
			if !try(w, m) {
				return
			}
			w = w.after(m)
		}
	}
}

// isNowhere reports whether the reason is that no world has such a thing.
func isNowhere(why string) bool { return why == noSchedule || why == noRequest || why == noLimit }

func isImmaterial(path string) bool {
	_, excused := excuse(path)
	return excused
}

// changeIn returns a world in which some parts of all agents' memories have changed, and counts them.
func changeIn(w *world, changed map[string]int, which func(path string) bool) *world {
	twin := w.fork()
	for slot := range w.candidates() {
		a := twin.agent(slot)
		v := reflect.New(reflect.TypeFor[lease.State]()).Elem()
		v.Set(reflect.ValueOf(*a.state))
		alter(v, "", changed, which)
		s := v.Interface().(lease.State)
		a.state = &s
	}
	return twin
}

// alter changes what is beneath v, of which it makes a copy where others share it.
func alter(v reflect.Value, path string, changed map[string]int, which func(path string) bool) {
	switch v.Kind() {
	case reflect.Pointer:
		if !v.IsNil() && isOurs(v.Type().Elem()) {
			mine := reflect.New(v.Type().Elem())
			mine.Elem().Set(v.Elem())
			v.Set(mine)
			alter(v.Elem(), path, changed, which)
		}
	case reflect.Slice:
		mine := reflect.MakeSlice(v.Type(), v.Len(), v.Len())
		reflect.Copy(mine, v)
		v.Set(mine)
		for i := range v.Len() {
			alter(v.Index(i), path+"[0]", changed, which)
		}
	case reflect.Struct:
		for i := range v.NumField() {
			if isOurs(v.Type()) {
				alter(v.Field(i), strings.TrimPrefix(path+"."+v.Type().Field(i).Name, "."), changed, which)
			}
		}
	default:
		if which(path) && counts(v, path, changed) {
			another(v)
		}
	}
}

// counts counts a field by its excuse. What must not be there is counted only if it is there.
func counts(v reflect.Value, path string, changed map[string]int) bool {
	for end, why := range immaterial {
		switch {
		case !endsIn(path, end):
		case isNowhere(why) && v.IsZero():
			return false
		default:
			changed[end]++
		}
	}
	return true
}

// isOurs reports whether a type is one of package lease.
func isOurs(t reflect.Type) bool { return t.PkgPath() == reflect.TypeFor[lease.State]().PkgPath() }

// another gives a field another value. A number grows, since no nonce is used twice.
func another(v reflect.Value) {
	reasons := []string{string(lease.ReasonProcessExited), string(lease.ReasonNotBegun), string(lease.ReasonPodTerminating)}
	switch v.Kind() {
	case reflect.Bool:
		v.SetBool(!v.Bool())
	case reflect.String:
		v.SetString(reasons[(slices.Index(reasons, v.String())+1)%len(reasons)])
	case reflect.Uint8:
		v.SetUint(v.Uint() ^ 1)
	default:
		v.SetInt(v.Int() + 12_345_678)
	}
}
