package model

import (
	"fmt"
	"reflect"
	"slices"
	"testing"
	"time"

	"github.com/singletonjob/operator/internal/lease"
	"github.com/singletonjob/operator/internal/schedule"
)

// immaterial are the parts of an agent's memory on which no decision rests, and why. They are no part of a key.
var immaterial = map[string]string{
	"LastNonce":              "the next one differs from all others, whatever it is",
	"Past.Reason":            "for people",
	"Past.Tenure.Confirmed":  "that tenure is over",
	"Record.Handover.Reason": "for people",
	"Tenure.RunUntil":        noLimit, "Now.Until": noLimit, "Runs.Asked.Name": noRequest, "Runs.Asked.Tick": noRequest, "Runs.Answered": noRequest,
	"Stop.Ending.At": noSchedule, "Server.Date": noSchedule, "Server.At": noSchedule, "Server.Asked": noSchedule, "Runs.Now.Tick": noSchedule,
	"Runs.Missed": noSchedule, "Runs.Skipped": noSchedule, "Runs.Previous": noSchedule,
	"Now.Pod": "nobody leaves in these worlds", "Now.PodUID": "nobody leaves in these worlds",
	"Now.Token": "for people", "Now.Code": "for people", "Now.Began": "for people", "Now.Ended": "for people", "Stop.Ending.Wall": "for people",
	"Record.History[0].Pod":   "for people",
	"Record.History[0].Node":  "for people",
	"Record.History[0].Ended": "for people", "Record.History[0].Acquired": "for people",
}

// Values that runs can have, but not in these worlds.
const (
	noSchedule = "no world has a schedule"
	noRequest  = "no world has runs that are asked for"
	noLimit    = "no world has runs of limited time"
)

// TestKeyHasAllThatAnAgentRemembers changes every field of lease.State, one by one, in each phase: some key must tell. So a new
// field can't be forgotten.
func TestKeyHasAllThatAnAgentRemembers(t *testing.T) {
	t.Parallel()
	seen := map[string]bool{}
	for _, phase := range []lease.Phase{lease.Waiting, lease.Acquiring, lease.Holding, lease.Stopping} {
		eachField(reflect.ValueOf(remembers(phase)).Elem(), "", func(path string, change func(s *lease.State) bool) {
			w := worldOf(remembers(phase))
			before := w.key()
			s := remembers(phase)
			if change(s) && worldOf(s).key() != before {
				seen[path] = true
			} else if _, known := seen[path]; !known {
				seen[path] = false
			}
		})
	}
	if len(seen) < 100 {
		t.Fatalf("only %d fields were tried", len(seen))
	}
	for path, told := range seen {
		_, excused := excuse(path)
		if told == excused {
			t.Errorf("%s: a key tells: %v; nothing rests on it: %v", path, told, excused)
		}
	}
}

// excuse finds a reason why a field is no part of a key, where its path ends in one.
func excuse(path string) (string, bool) {
	for end, why := range immaterial {
		if endsIn(path, end) {
			return why, true
		}
	}
	return "", false
}

func endsIn(path, end string) bool {
	return path == end || len(path) > len(end) && path[len(path)-len(end)-1:] == "."+end
}

const testNow = lease.Instant(began) * lease.Instant(tick)

// remembers is a state in which all is there that can be.
func remembers(phase lease.Phase) *lease.State {
	past := testNow.Add(-tick)
	record := func(revision int64) lease.Record {
		return lease.Record{
			UID: "uid1", Revision: revision, Holder: "a/u0/1", Token: 500, Transitions: 7, Duration: duration, AcquireTime: 3, RenewTime: 40,
			TokenBase: 2, History: []lease.PastTenure{{Token: 400, Pod: "a", Node: "n"}},
			Runs: lease.Runs{Now: lease.Run{Attempt: 3, State: lease.RunFailed, Reason: lease.ReasonProcessExited}},
		}
	}
	attempt := lease.Attempt{Record: record(600), Nonce: 40, SentAt: past, Patience: past, Again: past, Deadline: past}
	second := attempt
	second.Nonce, second.Record.RenewTime = 41, 41
	third := attempt
	third.Nonce, third.Record.RenewTime = 42, 42
	reading := lease.Reading{ID: 3, SentAt: past, Patience: past, Again: past, Deadline: past, Floor: 610}
	tenure := lease.Tenure{UID: "uid1", Token: 500, Transitions: 7, AcquireTime: 3, Confirmed: past}
	return &lease.State{
		Phase:    phase,
		Observed: lease.Observation{Known: true, Record: record(620), At: past, Fresh: past, Longest: duration},
		Write:    &attempt, Read: &reading, Unsettled: []lease.Attempt{second}, Pending: &third, Overdue: []lease.Reading{reading},
		Since: 2, ReadAfter: past, WriteAfter: past, RenewAt: past, Answered: past, ReconnectedAt: past, NotBefore: past,
		WatchFrom: 630, WatchBy: past, Tenure: tenure, Stop: lease.Stop{KillAt: past, Reason: lease.ReasonProcessExited},
		Tree: lease.Tree{Unhealthy: lease.ReasonLivenessFailed, Grace: tick},
		Past: &lease.Past{Tenure: tenure, At: past}, LastNonce: 42, LastRead: 4, Wake: past,
	}
}

// worldOf is a world with an agent that remembers this, and others to compare with.
func worldOf(s *lease.State) *world {
	m := standard(1).with(func(m *model) { m.keepRunning, m.lockDelay, m.history, m.runs = true, 1, 1, true })
	w := m.first(nil)
	w.now = 0
	w.agents[0].state = s
	w.store().lease = lease.Record{UID: "uid1", Holder: "a/u0/1", Revision: 605, Token: 505, Transitions: 8, AcquireTime: 3}
	w.sink.mark = 615
	return w
}

// eachField calls try for every field beneath v, with a change of it, in a state of the same form.
func eachField(v reflect.Value, path string, try func(path string, change func(*lease.State) bool)) {
	walk(v, path, nil, try)
}

// walk follows steps: fields, elements and what pointers point to.
func walk(v reflect.Value, path string, steps []int, try func(string, func(*lease.State) bool)) {
	if v.Type() == reflect.TypeFor[schedule.Facts]() {
		return // no world has a schedule
	}
	switch v.Kind() {
	case reflect.Pointer:
		if v.IsNil() && v.Type() == reflect.TypeFor[*schedule.Schedule]() {
			return
		}
		walk(v.Elem(), path, append(slices.Clip(steps), -1), try)
	case reflect.Slice:
		if v.Len() == 0 && v.Type() == reflect.TypeFor[[]lease.Run]() {
			return // nothing rests on runs that are over, but whether a request was followed
		}
		walk(v.Index(0), path+"[0]", append(slices.Clip(steps), -2), try)
	case reflect.Struct:
		for i := range v.NumField() {
			name := v.Type().Field(i).Name
			if path != "" {
				name = path + "." + name
			}
			walk(v.Field(i), name, append(slices.Clip(steps), i), try)
		}
	default:
		for value := range 3 {
			try(path, func(s *lease.State) bool { return set(follow(reflect.ValueOf(s).Elem(), steps), value) })
		}
	}
}

func follow(v reflect.Value, steps []int) reflect.Value {
	for _, step := range steps {
		switch step {
		case -1:
			v = v.Elem()
		case -2:
			v = v.Index(0)
		default:
			v = v.Field(step)
		}
	}
	return v
}

// set gives a field another value, of a few kinds, and reports whether there is such a kind.
func set(v reflect.Value, kind int) bool {
	switch v.Kind() {
	case reflect.Bool:
		v.SetBool(!v.Bool())
	case reflect.String:
		v.SetString("other")
	case reflect.Int64, reflect.Int32, reflect.Int:
		switch {
		case v.Type() == reflect.TypeFor[lease.Instant]():
			v.SetInt(int64(testNow.Add(2 * tick)))
		case v.Type() == reflect.TypeFor[time.Duration]():
			v.SetInt(v.Int() + int64(tick))
		default:
			v.SetInt([]int64{1, 5, 1 << 30}[kind])
		}
	case reflect.Uint8:
		v.SetUint(v.Uint() ^ 1)
	default:
		panic(fmt.Sprint("no way to change a ", v.Kind()))
	}
	return true
}
