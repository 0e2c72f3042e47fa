package sim

import (
	"fmt"
	"math/rand/v2"
	"time"

	"github.com/singletonjob/operator/internal/lease"
	"github.com/singletonjob/operator/internal/lease/mistake"
)

// Profile selects the faults of an episode, and thus the promises that can be judged.
type Profile uint8

// The profiles.
const (
	// AnyProfile leaves the choice to the seed.
	AnyProfile Profile = iota
	// Mixed has every fault under which the promise of one process still holds.
	Mixed
	// Replies has only lost, late and doubled messages, too few of them in a row to end a tenure.
	Replies
	// KeepRunning is Mixed with holders that keep running while they are cut off.
	KeepRunning
	// Foreign is Mixed with a client-go elector as a contender.
	Foreign
	// Restore is Mixed with etcd restored from a snapshot, after an outage longer than the lease.
	Restore
	// FastRestore has only that fault, so quickly that holders from before are still alive.
	FastRestore
	// Settings is Mixed with candidates with any settings side by side, including KeepRunning and lockDelay.
	Settings
	// Starved is Mixed with CPU limits that are too small, and with starts that hang and fail, most of the time.
	Starved
	// Edited is Mixed with users who edit the Lease's label and every field. They do not make the edits of Forged and History.
	// Nor do they name a candidate as the holder: a user with that permission could as well start the process.
	Edited
	// Forged is Mixed with users who write releases, whole or in part, under any holder of the Lease.
	Forged
	// History is Mixed with users who edit the Lease's history and its tokens.
	History
	// Outages has only outages of the API server, each shorter than a tenure must survive.
	Outages
	// Outdated has one candidate, which is told what was before its tenure, and whose wall clock stands still.
	Outdated
	// Hooks is Mixed with preActivate, and with probes that fail.
	Hooks
	// Runs is Restore with processes that run to completion, once or by a schedule that users change, and with wrong clocks.
	Runs
	profiles
)

func (p Profile) String() string {
	return [...]string{"any", "mixed", "replies", "keep-running", "foreign", "restore", "fast-restore", "settings", "starved", "edited", "forged", "history", "outages", "outdated", "hooks", "runs"}[p]
}

// ParseProfile is the inverse of String.
func ParseProfile(name string) (Profile, error) {
	for p := range profiles {
		if p.String() == name {
			return p, nil
		}
	}
	return AnyProfile, fmt.Errorf("no profile is called %q", name)
}

// params are an episode's constants, all drawn from its seed.
type params struct {
	seed       uint64
	profile    Profile
	length     time.Duration
	candidates int
	// configs are the candidates' configurations, without Identity and EndProvesDeath. config is the one that most of them share.
	configs []lease.Config
	config  lease.Config
	// slew bounds in ppm how much NTP slews the clocks that timers run on.
	slew int64
	// endProvesDeath means that an agent starts in a pod only after the previous agent's processes are dead.
	endProvesDeath bool
	// initialEvents means that a watch that opens begins with the present Lease.
	initialEvents bool
	// calm and trouble alternate, beginning with calm. No fault begins in the last part of a trouble, which is as long as the
	// outage of a restore.
	calm, trouble, outage time.Duration
	// runs is nil if processes run indefinitely.
	runs *runParams
}

// timings are leaseDuration, renewDeadline and retryPeriod in milliseconds. The default occurs most often.
var timings = [][3]int{
	{15_000, 10_000, 2_000},
	{15_000, 10_000, 2_000},
	{15_000, 10_000, 2_000},
	{30_000, 20_000, 5_000},
	{60_000, 40_000, 10_000},
	{10_000, 7_000, 1_000},
	{5_000, 3_000, 500},
	{3_000, 2_000, 400},
	{15_000, 10_000, 5_000},
	{3_000, 1_500, 500},
	{300_000, 200_000, 100_000},
	{3_600_000, 2_400_000, 600_000},
}

// shortTimings is the number of timings of at most a minute, which come first.
const shortTimings = 10

// draw derives the parameters from a seed.
func draw(seed uint64, o Options) params {
	rng := rand.New(rand.NewPCG(seed, 1))
	p := params{seed: seed}
	p.profile = [...]Profile{
		Mixed, Mixed, Mixed, Mixed, Mixed, Mixed, Mixed, Mixed, Replies, KeepRunning, KeepRunning, Foreign, Restore, FastRestore,
		Settings, Settings, Replies, Starved, Edited, Edited, Forged, History, Outages, Runs, Runs, Runs, Outdated, Hooks,
	}[rng.IntN(28)]
	if o.Profile != AnyProfile {
		p.profile = o.Profile
	}
	p.candidates = 3 + rng.IntN(3)
	if p.profile == Outdated {
		p.candidates = 1
	}
	p.config = p.settings(rng)
	p.configs = []lease.Config{p.config}
	for len(p.configs) < p.candidates && (p.profile == Settings || p.profile == Edited) {
		p.configs = append(p.configs, p.settings(rng))
	}
	p.slew = [...]int64{0, 40_000, maxSlew}[rng.IntN(3)]
	if o.Slew != 0 {
		p.slew = o.Slew
	}
	p.endProvesDeath = rng.IntN(4) > 0
	p.initialEvents = rng.IntN(2) == 0
	if o.Timing[0] != 0 {
		p.config.Duration, p.config.RenewDeadline, p.config.RetryPeriod = o.Timing[0], o.Timing[1], o.Timing[2]
		p.config.GracePeriod, p.config.LockDelay = o.Timing[0]/2, min(p.config.LockDelay, o.Timing[0]/3)
		p.configs = []lease.Config{p.config}
	}
	p.trouble = p.config.Duration * time.Duration(2+rng.IntN(5))
	if p.profile == Restore || p.profile == Runs { // as long as any tenure and its lockDelay last, as the runbook says
		p.outage = slowest.lasts(p.longest()+p.config.LockDelay) + time.Second
		if o.Broken == mistake.RestoreTooSoon {
			p.outage = p.config.RetryPeriod
		}
		p.trouble += p.outage
	}
	p.calm = p.bound() + p.longest()/2
	if p.profile == Runs {
		p.runs = drawRuns(rng)
		p.calm, p.trouble = p.calm+moreCalm, p.trouble+moreTrouble
	}
	p.length = max(time.Hour, 8*(p.calm+p.trouble))
	return p
}

// settings draws the settings of one candidate.
func (p params) settings(rng *rand.Rand) lease.Config {
	t := timings[rng.IntN(len(timings))]
	if p.profile == Runs { // so that an episode has many runs
		t = timings[rng.IntN(shortTimings)]
	}
	c := lease.Config{
		Duration:      time.Duration(t[0]) * time.Millisecond,
		RenewDeadline: time.Duration(t[1]) * time.Millisecond,
		RetryPeriod:   time.Duration(t[2]) * time.Millisecond,
		GracePeriod:   time.Duration(t[0]/2) * time.Millisecond,
		KeepRunning:   p.profile == KeepRunning || p.profile == Settings && rng.IntN(4) == 0,
	}
	if rng.IntN(3) == 0 && (p.profile == Settings || !c.KeepRunning) {
		c.LockDelay = c.Duration / 3
	}
	return c
}

// longest returns the longest leaseDuration of any candidate. This includes candidates with the settings of another version of
// the job, and durations that somebody writes.
func (p params) longest() time.Duration {
	d := time.Duration(0)
	for _, c := range p.configs {
		d = max(d, c.Duration)
	}
	if p.profile == Mixed {
		d = min(d*3/2, time.Hour) // what the API accepts
	}
	if p.profile == Edited {
		d = min(d*2, time.Hour)
	}
	return d
}

// lossless reports whether only a handover may end a tenure.
func (p params) lossless() bool { return p.profile == Replies || p.profile == Outages }

// bound returns the time after the end of all faults within which there must be a stable holder. It covers stopping or waiting
// for the old tenure, then lockDelay, with slow clocks and timers that sleep a tenth longer. A few requests can hang before.
func (p params) bound() time.Duration {
	var wait, requests time.Duration
	for _, c := range p.configs {
		wait = max(wait, max(c.Duration, p.longest(), c.GracePeriod)+c.LockDelay)
		requests = max(requests, c.RenewDeadline+2*c.RetryPeriod)
	}
	timers := clock{ppm: -p.slew}
	return timers.lasts(slowest.lasts(wait+requests)) + operatorPeriod + longestKill
}

// patience returns the scale of slow requests: about as long as an agent waits for one.
func (p params) patience() time.Duration {
	return (p.config.RenewDeadline - p.config.RetryPeriod) / 3
}
