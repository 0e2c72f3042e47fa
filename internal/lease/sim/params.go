package sim

import (
	"fmt"
	"math/rand/v2"
	"time"

	"github.com/singletonjob/operator/internal/lease"
)

// Profile says which faults an episode has, and so what may be asked of it.
type Profile uint8

// The profiles.
const (
	// AnyProfile leaves the choice to the seed.
	AnyProfile Profile = iota
	// Mixed has every fault that leaves the promise of one process whole.
	Mixed
	// Replies has only lost, late and doubled messages, too few of them in a row to end a tenure.
	Replies
	// KeepRunning is Mixed with holders that run on while they are cut off.
	KeepRunning
	// Foreign is Mixed with a client-go elector as a contender.
	Foreign
	// Restore is Mixed with etcd restored from a snapshot, after an outage longer than the lease.
	Restore
	// FastRestore has only that fault, so quick that holders of the time before are still alive.
	FastRestore
	profiles
)

func (p Profile) String() string {
	return [...]string{"any", "mixed", "replies", "keep-running", "foreign", "restore", "fast-restore"}[p]
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
	// config is what the candidates share; Identity and RestartProvesDeath are missing.
	config lease.Config
	// restartProvesDeath is whether agents start in a pod only after the last one's processes are dead.
	restartProvesDeath bool
	// initialEvents is whether a watch that opens begins with the Lease as it is.
	initialEvents bool
	// calm and trouble alternate, beginning with calm. Nothing begins in the last part of a trouble, the outage that a
	// restore takes.
	calm, trouble, outage time.Duration
}

// timings are leaseDuration, renewDeadline and retryPeriod in milliseconds. The default is there most often.
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
}

// draw makes the parameters of a seed.
func draw(seed uint64, profile Profile) params {
	rng := rand.New(rand.NewPCG(seed, 1))
	p := params{seed: seed, length: time.Hour}
	p.profile = [...]Profile{
		Mixed, Mixed, Mixed, Mixed, Mixed, Mixed, Mixed, Mixed, Replies, KeepRunning, KeepRunning, Foreign, Restore, FastRestore,
	}[rng.IntN(14)]
	if profile != AnyProfile {
		p.profile = profile
	}
	t := timings[rng.IntN(len(timings))]
	p.candidates = 3 + rng.IntN(3)
	p.config = lease.Config{
		Duration:      time.Duration(t[0]) * time.Millisecond,
		RenewDeadline: time.Duration(t[1]) * time.Millisecond,
		RetryPeriod:   time.Duration(t[2]) * time.Millisecond,
		GracePeriod:   time.Duration(t[0]/2) * time.Millisecond,
		KeepRunning:   p.profile == KeepRunning,
	}
	if rng.IntN(3) == 0 && !p.config.KeepRunning {
		p.config.LockDelay = p.config.Duration / 3
	}
	p.restartProvesDeath = rng.IntN(4) > 0
	p.initialEvents = rng.IntN(2) == 0
	p.trouble = p.config.Duration * time.Duration(2+rng.IntN(5))
	if p.profile == Restore { // longer than any tenure lasts, as the runbook says
		p.outage = slowest.lasts(p.config.Duration*3/2) + time.Second
		p.trouble += p.outage
	}
	p.calm = p.bound() + p.config.Duration/2
	return p
}

// requestTimeout is what the state machine allows one request; see lease.Config.
func (p params) requestTimeout() time.Duration {
	return (p.config.RenewDeadline - p.config.RetryPeriod) / 3
}

// bound is how soon after the end of all faults there must be a holder that stays: the tenure that was may have to be
// stopped or waited for, and then lockDelay, by slow clocks, and a few requests may hang before.
func (p params) bound() time.Duration {
	c := p.config
	wait := max(c.Duration, c.GracePeriod) + c.LockDelay
	return slowest.lasts(wait+3*p.requestTimeout()+2*c.RetryPeriod) + operatorPeriod
}
