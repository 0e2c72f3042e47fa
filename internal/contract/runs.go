package contract

import (
	"encoding/json"
	"fmt"
	"maps"
	"math"
	"strings"
	"time"

	"github.com/singletonjob/operator/internal/lease"
	"github.com/singletonjob/operator/internal/schedule"
)

// A Lease stores the state of runs in annotations: the schedule, the request and the tick each have their own, and RunAnnotation holds the
// rest. Any text that cannot be parsed, or that this file would not write in the same form, is bad. Treating it as missing would make ticks
// due that have already run.

// Size limits in bytes. Written texts stay within them, and a longer text is bad. maxRuns has room for a run of maximum length and all
// facts.
const (
	maxRuns     = 2048
	maxSchedule = 512
	maxUID      = 64
	maxRequest  = 63
	maxRunID    = maxUID + len("/") + maxRequest
)

// lastStamp is the last second that has a name: the end of year 9999.
const lastStamp = schedule.Stamp(253402300799)

// runsText is the content of RunAnnotation. Instants have the format of ticks: RFC 3339, in seconds of UTC.
type runsText struct {
	Now      runText   `json:"now,omitzero"`
	Past     []runText `json:"past,omitempty"`
	Answered string    `json:"answered,omitempty"`
	Previous stampText `json:"previous,omitzero"`
	Missed   int64     `json:"missed,omitempty"`
	Skipped  int64     `json:"skipped,omitempty"`
	Local    stampText `json:"local,omitzero"`
	// PassedFrom and PassedTo are the ends of the span schedule.Facts.Passed.
	PassedFrom stampText `json:"passedFrom,omitzero"`
	PassedTo   stampText `json:"passedTo,omitzero"`
	Since      stampText `json:"since,omitzero"`
	Freed      stampText `json:"freed,omitzero"`
	Suspended  stampText `json:"suspended,omitzero"`
}

type runText struct {
	ID      string         `json:"id"`
	Tick    stampText      `json:"tick,omitzero"`
	Attempt int32          `json:"attempt"`
	Ignored int32          `json:"ignored,omitempty"`
	State   lease.RunState `json:"state"`
	Token   int64          `json:"token,omitempty"`
	Pod     string         `json:"pod,omitempty"`
	PodUID  string         `json:"podUID,omitempty"`
	Code    int            `json:"code,omitempty"`
	Reason  lease.Reason   `json:"reason,omitempty"`
	Began   int64          `json:"began,omitempty"`
	Ended   int64          `json:"ended,omitempty"`
	Until   stampText      `json:"until,omitzero"`
}

// scheduleText is the content of ScheduleAnnotation. All fields are always written, so that a new default in a later release cannot change
// the meaning of a stored schedule.
type scheduleText struct {
	Cron             string   `json:"cron"`
	TimeZone         string   `json:"timeZone"`
	StartingDeadline Duration `json:"startingDeadline"`
	CatchUp          string   `json:"catchUp"`
	Overlap          string   `json:"overlap"`
}

// stampText is an instant that is encoded as text.
type stampText schedule.Stamp

// MarshalText writes the name of an instant.
func (s stampText) MarshalText() ([]byte, error) { return []byte(schedule.Stamp(s).String()), nil }

// UnmarshalText reads the name of an instant.
func (s *stampText) UnmarshalText(text []byte) error {
	stamp, ok := schedule.ParseStamp(string(text))
	if !ok {
		return fmt.Errorf("%q is not an instant", text)
	}
	*s = stampText(stamp)
	return nil
}

// named returns the instant nearest to s that can be written.
func named(s schedule.Stamp) stampText { return stampText(min(max(s, 0), lastStamp)) }

// parseRuns decodes the run annotations of a Lease. Bad names the first bad annotation. The schedule is checked last: if it is the only bad
// annotation, which the operator can rewrite, everything else is usable.
func parseRuns(f Fields) lease.Runs {
	a := f.Annotations
	runs, good := decodeRuns(a[RunAnnotation])
	bad := ""
	check := func(good bool, name string) {
		if !good && bad == "" {
			bad = name + "=" + Cut(a[name], maxWord)
		}
	}
	check(good, RunAnnotation)
	runs.Facts.Settled, good = settled(f, runs)
	check(good, TickAnnotation)
	runs.Schedule, good = decodeSchedule(a[ScheduleAnnotation])
	check(good, ScheduleAnnotation)
	runs.Asked = ParseRequest(a[RunRequestAnnotation])
	runs.Bad = bad
	return runs
}

// settled returns the instant up to which all ticks are accounted for. No tick is before the creation of the Lease. A tick whose run is
// recorded must not run again, even if a client has deleted the annotation.
func settled(f Fields, runs lease.Runs) (at schedule.Stamp, good bool) {
	at, good = said(f)
	for _, run := range append([]lease.Run{runs.Now}, runs.Past...) {
		if run.OfSchedule() {
			at = max(at, run.Tick)
		}
	}
	return at, good
}

// said returns the later of the annotation's instant and the Lease's creation.
func said(f Fields) (at schedule.Stamp, good bool) {
	created, _ := schedule.ParseStamp(f.CreationTimestamp)
	text := f.Annotations[TickAnnotation]
	tick, good := schedule.ParseStamp(text)
	return max(tick, created), good || text == ""
}

// tickText returns the new text of the annotation. A lost annotation is restored only in a write that changes the current run. In a write
// that neither begins nor ends a tenure, the guard rejects a change of the annotation.
func tickText(r lease.Runs, f Fields) string {
	before, _ := decodeRuns(f.Annotations[RunAnnotation])
	was, good := settled(f, before)
	says, _ := said(f)
	another := before.Now.ID != r.Now.ID || before.Now.Attempt != r.Now.Attempt
	if good && was == r.Facts.Settled && !(another && says < was) {
		return f.Annotations[TickAnnotation]
	}
	return schedule.Stamp(named(r.Facts.Settled)).String()
}

// formatRuns returns the annotations that change because of a record's runs. It leaves out those that keep their text, and returns nothing
// if the runs are bad.
func formatRuns(r lease.Runs, f Fields) map[string]string {
	a := f.Annotations
	if r.Bad != "" {
		return nil
	}
	asked := a[RunRequestAnnotation]
	if ParseRequest(asked) != r.Asked {
		asked = formatRequest(r.Asked)
	}
	changes := map[string]string{
		ScheduleAnnotation: encodeSchedule(r.Schedule), RunRequestAnnotation: asked, TickAnnotation: tickText(r, f), RunAnnotation: encodeRuns(r),
	}
	maps.DeleteFunc(changes, func(name, value string) bool { return value == a[name] })
	return changes
}

// decodeRuns decodes RunAnnotation. Only a text that encodeRuns would write is good.
func decodeRuns(text string) (runs lease.Runs, good bool) {
	if text == "" {
		return lease.Runs{}, true
	}
	var t runsText
	if len(text) > maxRuns || json.Unmarshal([]byte(text), &t) != nil {
		return lease.Runs{}, false
	}
	runs = lease.Runs{
		Now: t.Now.run(), Answered: t.Answered, Previous: schedule.Stamp(t.Previous), Missed: t.Missed, Skipped: t.Skipped,
		Facts: schedule.Facts{
			Local:   schedule.Stamp(t.Local),
			Passed:  schedule.Span{From: schedule.Stamp(t.PassedFrom), To: schedule.Stamp(t.PassedTo)},
			Running: t.Now.run().Open(),
			Since:   schedule.Stamp(t.Since), Freed: schedule.Stamp(t.Freed), Suspended: schedule.Stamp(t.Suspended),
		},
	}
	for _, past := range t.Past {
		runs.Past = append(runs.Past, past.run())
	}
	if encodeRuns(runs) != text {
		return lease.Runs{}, false
	}
	return runs, true
}

// encodeRuns encodes RunAnnotation. It leaves out the oldest runs if there is no room for all of them.
func encodeRuns(r lease.Runs) string {
	t := runsText{
		Now: textOf(r.Now), Answered: requestName(r.Answered), Previous: named(r.Previous), Missed: max(0, r.Missed), Skipped: max(0, r.Skipped),
		Local: named(r.Facts.Local), PassedFrom: named(r.Facts.Passed.From), PassedTo: named(r.Facts.Passed.To),
		Since: named(r.Facts.Since), Freed: named(r.Facts.Freed), Suspended: named(r.Facts.Suspended),
	}
	for _, past := range r.Past[:min(len(r.Past), lease.PastRunsLimit)] {
		past.PodUID = ""
		final := textOf(past)
		if final.ID == "" || final.run().Open() {
			break
		}
		t.Past = append(t.Past, final)
	}
	for {
		text := Encode(t)
		switch {
		case text == "{}":
			return ""
		case len(text) <= maxRuns || len(t.Past) == 0:
			return text
		}
		t.Past = t.Past[:len(t.Past)-1]
	}
}

// textOf returns the written form of a run, with only values that can be read back. It is empty if the run has no valid ID.
func textOf(r lease.Run) runText {
	if runID(r.ID) == "" {
		return runText{}
	}
	switch r.State {
	case lease.RunRunning, lease.RunFailed, lease.RunComplete, lease.RunGivenUp, lease.RunReplaced:
	default:
		r.State = lease.RunRunning
	}
	attempt := max(1, r.Attempt)
	return runText{
		ID: r.ID, Tick: named(r.Tick), Attempt: attempt, Ignored: min(max(0, r.Ignored), attempt), State: r.State, Token: max(0, r.Token), Pod: parsePod(r.Pod), PodUID: uid(r.PodUID),
		Code: min(max(0, r.Code), math.MaxInt32), Reason: parseReason(string(r.Reason)), Began: r.Began, Ended: r.Ended, Until: named(r.Until),
	}
}

func (t runText) run() lease.Run {
	return lease.Run{
		ID: t.ID, Tick: schedule.Stamp(t.Tick), Attempt: t.Attempt, Ignored: t.Ignored, State: t.State, Token: t.Token, Pod: t.Pod, PodUID: t.PodUID,
		Code: t.Code, Reason: t.Reason, Began: t.Began, Ended: t.Ended, Until: schedule.Stamp(t.Until),
	}
}

// decodeSchedule decodes ScheduleAnnotation. Only a text that encodeSchedule would write is good.
func decodeSchedule(text string) (s *schedule.Schedule, good bool) {
	if text == "" {
		return nil, true
	}
	var t scheduleText
	if len(text) > maxSchedule || json.Unmarshal([]byte(text), &t) != nil {
		return nil, false
	}
	s, err := schedule.Parse(schedule.Spec{
		Cron: t.Cron, TimeZone: t.TimeZone, StartingDeadline: time.Duration(t.StartingDeadline),
		CatchUp: schedule.CatchUp(t.CatchUp), Overlap: schedule.Overlap(t.Overlap),
	})
	if err != nil || encodeSchedule(s) != text {
		return nil, false
	}
	return s, true
}

func encodeSchedule(s *schedule.Schedule) string {
	if s == nil {
		return ""
	}
	spec := s.Spec()
	return Encode(scheduleText{
		Cron: spec.Cron, TimeZone: spec.TimeZone, StartingDeadline: Duration(spec.StartingDeadline),
		CatchUp: string(spec.CatchUp), Overlap: string(spec.Overlap),
	})
}

// ParseRequest parses NAME or NAME@TICK. Any other text requests nothing.
func ParseRequest(text string) lease.Request {
	name, tick, ofTick := strings.Cut(text, "@")
	at, ok := schedule.ParseStamp(tick)
	if name = requestName(name); name == "" || ofTick && !ok {
		return lease.Request{}
	}
	return lease.Request{Name: name, Tick: at}
}

func formatRequest(r lease.Request) string {
	name, tick := requestName(r.Name), schedule.Stamp(named(r.Tick)).String()
	if name == "" || tick == "" {
		return name
	}
	return name + "@" + tick
}

const (
	lowerAndDigits = "abcdefghijklmnopqrstuvwxyz0123456789"
	upper          = "ABCDEFGHIJKLMNOPQRSTUVWXYZ"
)

// requestName returns the name of a request, or "" if s is not a valid name. A valid name is never the name of a tick.
func requestName(s string) string { return within(s, maxRequest, lowerAndDigits+"-.") }

func runID(s string) string { return within(s, maxRunID, lowerAndDigits+upper+"-.:/") }

func uid(s string) string { return within(s, maxUID, lowerAndDigits+upper+"-") }

// within returns s if it has no more than most bytes and consists of these characters, otherwise "".
func within(s string, most int, characters string) string {
	if len(s) > most || strings.Trim(s, characters) != "" {
		return ""
	}
	return s
}
