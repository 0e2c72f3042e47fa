package sim

import (
	"fmt"
	"math/rand/v2"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/singletonjob/operator/internal/lease"
	"github.com/singletonjob/operator/internal/lease/mistake"
	"github.com/singletonjob/operator/internal/schedule"
)

// runParams are the constants of an episode whose processes run to completion.
type runParams struct {
	policy lease.RunPolicy
	// schedule is the first schedule, nil for a job that runs once. Its ticks are a whole number of minutes apart, by UTC.
	schedule *schedule.Schedule
	// begin is the initial time, in seconds since 1970.
	begin schedule.Stamp
	// lasts is the mean duration of a run.
	lasts time.Duration
}

const (
	// firstDay is the earliest start of an episode; episodes start up to a day later.
	firstDay = schedule.Stamp(1_795_392_000)
	daySecs  = 24 * 60 * 60
)

func drawRuns(rng *rand.Rand) *runParams {
	r := &runParams{begin: firstDay + schedule.Stamp(rng.Int64N(daySecs))}
	r.policy = lease.RunPolicy{UID: "job", BackoffLimit: rng.Int32N(4), Leaves: rng.IntN(3) == 0}
	if rng.IntN(4) == 0 {
		r.policy.FailCodes = []int32{1}
	}
	if rng.IntN(3) == 0 {
		r.policy.ActiveDeadline = time.Duration(1+rng.IntN(10)) * time.Minute
	}
	minutes := periods[rng.IntN(len(periods))]
	r.lasts = [...]time.Duration{5 * time.Second, time.Minute, 5 * time.Minute, time.Duration(minutes) * 90 * time.Second}[rng.IntN(4)]
	if rng.IntN(5) > 0 {
		spec := schedule.Spec{
			Cron:             fmt.Sprintf("*/%d * * * *", minutes),
			StartingDeadline: [...]time.Duration{10 * time.Second, 90 * time.Second, 10 * time.Minute, time.Hour}[rng.IntN(4)],
			CatchUp:          [...]schedule.CatchUp{schedule.CatchUpSkip, schedule.CatchUpLatest, schedule.CatchUpAll}[rng.IntN(3)],
			Overlap:          [...]schedule.Overlap{schedule.OverlapSkip, schedule.OverlapQueue, schedule.OverlapReplace}[rng.IntN(3)],
		}
		if spec.CatchUp == schedule.CatchUpAll && spec.Overlap == schedule.OverlapReplace {
			spec.CatchUp = schedule.CatchUpLatest
		}
		s, err := schedule.Parse(spec)
		if err != nil {
			panic(err)
		}
		r.schedule = s
	}
	if rng.IntN(3) == 0 {
		r.policy.IgnoreCodes = []int32{ignoredCode}
	}
	return r
}

// periods are the periods of schedules, in minutes.
var periods = [...]int{1, 2, 5, 10, 30}

// periodOf returns a schedule's period, in seconds.
func periodOf(s *schedule.Schedule) schedule.Stamp {
	minutes, _, _ := strings.Cut(strings.TrimPrefix(s.Spec().Cron, "*/"), " ")
	n, err := strconv.Atoi(minutes)
	if err != nil {
		panic(err)
	}
	return schedule.Stamp(n * 60)
}

const (
	// ignoredCode is the exit code of some failures, which some policies ignore.
	ignoredCode = 2
	// longestBackoff is the longest time between two attempts.
	longestBackoff = 6 * time.Minute
	// Between faults there is time for that and a few ticks, and during faults for runs, too.
	moreCalm, moreTrouble = longestBackoff + 4*time.Minute, 10 * time.Minute
)

// policyOf returns the run policy of an agent.
func (r *runParams) policyOf() *lease.RunPolicy {
	if r == nil {
		return nil
	}
	policy := r.policy
	return &policy
}

// microseconds returns the start of the episode in microseconds since 1970.
func (r *runParams) microseconds() int64 {
	if r == nil {
		return 0
	}
	return int64(r.begin) * million
}

// firstWall returns the initial error of a machine's wall clock. Only runs depend on it.
func (w *world) firstWall() int64 {
	wrong := w.rng.Int64N(int64(time.Hour / time.Microsecond))
	if w.p.runs != nil {
		return 0
	}
	return wrong
}

// today returns the present time.
func (w *world) today() schedule.Stamp { return w.p.runs.begin + schedule.Stamp(w.now/time.Second) }

// setDates makes the first servers' clocks wrong, and the others' right.
func (s *server) setDates(by ...time.Duration) {
	s.dates, s.datesSet = [servers]time.Duration{}, s.w.now
	copy(s.dates[:], by)
}

// date returns the time that an answer contains.
func (s *server) date() int64 {
	if s.w.p.runs == nil || s.dateless {
		return 0
	}
	wrong := s.dates[s.w.rng.IntN(servers)]
	return int64(s.w.today()) + int64(wrong/time.Second)
}

func (w *world) firstRuns() lease.Runs {
	if w.p.runs == nil || w.p.runs.schedule == nil {
		return lease.Runs{}
	}
	return lease.Runs{Schedule: w.p.runs.schedule, Facts: schedule.Facts{Settled: w.today()}}
}

// keptRuns returns the runs kept in the operator's status, for a recreated Lease. Ticks until then are not caught up.
func (w *world) keptRuns() lease.Runs {
	if w.p.runs == nil {
		return lease.Runs{}
	}
	runs := w.api.lease.Runs
	runs.Facts.Settled = max(runs.Facts.Settled, w.today())
	runs.Facts.Passed = schedule.Span{}
	return runs
}

// lookAtRuns is the operator's part: it writes a user's changes of the schedule, as package plan does.
func (o *operator) lookAtRuns(r lease.Record) {
	was := r.Runs
	at := schedule.Stamp(o.w.api.date())
	if at == 0 || was.Schedule == nil || !o.reschedule(&r.Runs, at) || !o.suspend(&r.Runs, at) {
		return
	}
	if r.Runs.Schedule != was.Schedule || r.Runs.Facts != was.Facts {
		o.write(r)
	}
}

// reschedule and suspend report whether the time is known well enough for their write.
func (o *operator) reschedule(r *lease.Runs, at schedule.Stamp) bool {
	was, is := r.Schedule.Spec(), o.w.wanted.Spec()
	if was == is {
		return true
	}
	if was.Cron != is.Cron && o.w.o.Broken != mistake.OperatorSettlesNothing {
		if !o.agrees(at) {
			return false
		}
		r.Facts = r.Facts.ChangedAt(at)
	}
	r.Schedule = o.w.wanted
	return true
}

func (o *operator) suspend(r *lease.Runs, at schedule.Stamp) bool {
	switch suspended := r.Facts.Suspended != 0; {
	case suspended == o.w.suspended:
	case !suspended:
		r.Facts = r.Facts.SuspendedAt(at)
	case !o.agrees(at):
		return false
	default:
		var tally schedule.Tally
		r.Facts, tally = r.Facts.Resumed(r.Schedule, at)
		r.Missed += tally.Missed()
		r.Skipped += tally.Skipped()
	}
	return true
}

// agrees reports whether the operator's own clock, which is right, agrees with a server's time.
func (o *operator) agrees(at schedule.Stamp) bool {
	clocks := schedule.Clocks{Wall: o.w.today().Time(), Server: at.Time()}
	return o.w.o.Broken == mistake.OperatorBelievesDate || !clocks.Disagree()
}

// completes lets the process end by itself, or occasionally only when it is asked to end.
func (t *tree) completes() {
	w := t.w
	if w.p.runs == nil || w.chance(0.05) {
		return
	}
	lasts := time.Duration(w.rng.ExpFloat64() * float64(w.p.runs.lasts))
	failed := w.chance(0.3)
	w.after(lasts, func() { t.exit(failed) })
}

// exitCode returns the exit code of a process that ends by itself.
func (w *world) exitCode(fails bool) int {
	switch {
	case !fails:
		return 0
	case w.p.runs != nil && w.chance(0.3):
		return ignoredCode
	}
	return 1
}

// ignores reports whether an attempt does not count whose process ends by itself with an exit code.
func (t *tree) ignores(code int) bool {
	runs := t.w.p.runs
	return runs != nil && slices.Contains(runs.policy.IgnoreCodes, int32(code)) && !t.signalled && !t.preparing
}

// wrong returns the error of a clock.
func wrong(f Fault) time.Duration {
	by := [...]time.Duration{time.Second, 20 * time.Second, 2 * time.Minute, 11 * time.Minute, 24 * time.Hour}[int(f.X*5)]
	if f.Y < 0.5 {
		return -by
	}
	return by
}

// wrongWall makes one machine's wall clock wrong, or all of them, and the servers' as well.
func (w *world) wrongWall(f Fault) func() {
	by := wrong(f)
	for _, s := range w.slots {
		if m := s.agent.machine; m == w.target(f).machine || f.Y > 0.9 {
			m.wall = int64(by / time.Microsecond)
		}
	}
	if f.Y > 0.95 {
		w.api.setDates(by, by, by)
	}
	return func() {
		w.api.setDates()
		for _, s := range w.slots {
			s.agent.machine.wall = 0
		}
	}
}

func (w *world) wrongDate(f Fault) func() {
	w.api.setDates(slices.Repeat([]time.Duration{wrong(f)}, 1+w.rng.IntN(servers))...)
	return func() { w.api.setDates() }
}

func (w *world) noDate(Fault) func() {
	w.api.dateless = true
	return func() { w.api.dateless = false }
}

// askRun is a user's request for a run, for any tick or none, which the operator copies.
func (w *world) askRun(f Fault) {
	w.requests++
	o := w.operators[0]
	read := o.read()
	if read.absent || read.unlabelled {
		return
	}
	read.lease.Runs.Asked = lease.Request{Name: fmt.Sprintf("by-hand-%d", w.requests)}
	if f.X < 0.5 {
		read.lease.Runs.Asked.Tick = w.today()/3600*3600 + 3600
	}
	o.write(read.lease)
	if f.Y < 0.3 { // by an operator that has not seen that the request was answered
		w.after(w.between(0, time.Minute), func() {
			if r := w.api.state(); !r.absent && !r.unlabelled {
				asked := read.lease.Runs.Asked
				r.lease.Runs.Asked = asked
				o.write(r.lease)
			}
		})
	}
}

// changeSchedule is a user's edit of spec.schedule: of cron, or of a policy. Occasionally servers report another time just then.
func (w *world) changeSchedule(f Fault) func() {
	if w.wanted == nil {
		return nil
	}
	spec := w.wanted.Spec()
	if f.Y < 0.7 {
		spec.Cron = fmt.Sprintf("*/%d * * * *", periods[int(f.X*float64(len(periods)))])
	} else {
		spec.Overlap = [...]schedule.Overlap{schedule.OverlapSkip, schedule.OverlapQueue}[int(f.X*2)]
	}
	var err error
	if w.wanted, err = schedule.Parse(spec); err != nil {
		panic(err)
	}
	if w.chance(0.4) {
		return w.wrongDate(f)
	}
	return nil
}

func (w *world) suspend(Fault) func() {
	w.suspended = true
	return func() { w.suspended = false }
}
