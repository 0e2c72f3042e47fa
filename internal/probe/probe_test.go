package probe

import (
	"fmt"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/singletonjob/operator/internal/contract"
)

// with is a probe with Kubernetes' defaults but for what is changed.
func with(changes ...func(*contract.Probe)) *contract.Probe {
	p := &contract.Probe{Period: seconds(10), Timeout: seconds(1), SuccessThreshold: 1, FailureThreshold: 3}
	for _, change := range changes {
		change(p)
	}
	return p
}

func seconds(n int) contract.Duration { return contract.Duration(time.Duration(n) * time.Second) }

func every(n int) func(*contract.Probe) { return func(p *contract.Probe) { p.Period = seconds(n) } }
func after(n int) func(*contract.Probe) {
	return func(p *contract.Probe) { p.InitialDelay = seconds(n) }
}

func thresholds(success, failure int) func(*contract.Probe) {
	return func(p *contract.Probe) { p.SuccessThreshold, p.FailureThreshold = success, failure }
}

// answers are what a probe's checks find out, one letter each: + success, - failure, ? unknown, the last one forever. A digit
// before it is for how many seconds the check takes.
type answers string

func (a *answers) next() (took time.Duration, o Outcome) {
	text := string(*a)
	digits := text[:len(text)-len(strings.TrimLeft(text, "0123456789"))]
	seconds := 0
	_, _ = fmt.Sscan(digits, &seconds)
	rest := text[len(digits):]
	if len(rest) > 1 {
		*a = answers(rest[1:])
	}
	return time.Duration(seconds) * time.Second, map[byte]Outcome{'+': Success, '-': Failure, '?': Unknown}[rest[0]]
}

// course is a process whose probes are asked, and all that happens to it: "5 liveness?" is a check that begins after five
// seconds.
type course struct {
	begun, now time.Time
	s, before  State
	says       [kinds]answers
	pending    []answer
	events     []string
}

type answer struct {
	at time.Time
	Kind
	Outcome
}

func (c *course) tell(what string) {
	c.events = append(c.events, fmt.Sprintf("%v %s", c.now.Sub(c.begun).Seconds(), what))
}

// show tells what has changed.
func (c *course) show() {
	for _, news := range []struct {
		is, was bool
		word    string
	}{{c.s.Started(), c.before.Started(), "started"}, {c.s.Ready(), c.before.Ready(), "ready"}} {
		if news.is && !news.was {
			c.tell(news.word)
		}
		if news.was && !news.is {
			c.tell("not " + news.word)
		}
	}
	if k, failed := c.s.Failed(); failed {
		if _, was := c.before.Failed(); !was {
			c.tell(k.String() + " FAILED")
		}
	}
	c.before = c.s
}

// ask begins what is due, and returns when something happens next; zero if nothing does.
func (c *course) ask() time.Time {
	var due []Kind
	c.s, due = c.s.Due(c.now)
	for _, k := range due {
		c.tell(k.String() + "?")
		took, o := c.says[k].next()
		c.pending = append(c.pending, answer{c.now.Add(took), k, o})
	}
	slices.SortStableFunc(c.pending, func(a, b answer) int { return a.at.Compare(b.at) })
	next := c.s.Wake()
	if len(c.pending) > 0 && (next.IsZero() || !c.pending[0].at.After(next)) {
		next = c.pending[0].at
	}
	return next
}

// simulate runs probes for a number of seconds. stop is when the process is asked to end; never if 0.
func simulate(p contract.Probes, says [kinds]answers, until, stop int) string {
	begun := time.Unix(1000, 0)
	at := func(seconds int) time.Time { return begun.Add(time.Duration(seconds) * time.Second) }
	c := &course{begun: begun, now: begun, s: Begin(p, begun), says: says}
	for {
		c.show()
		next := c.ask()
		switch {
		case stop > 0 && (next.IsZero() || next.After(at(stop))):
			c.now, c.s, stop = at(stop), c.s.Stopping(), 0
			c.tell("asked to end")
			continue
		case next.IsZero() || next.After(at(until)):
			return strings.Join(c.events, ", ")
		}
		c.now = next
		if len(c.pending) > 0 && !c.pending[0].at.After(c.now) {
			c.s = c.s.Answered(c.pending[0].Kind, c.pending[0].Outcome, c.now)
			c.pending = c.pending[1:]
		}
	}
}

// Each row has the behaviour of a kubelet, by pkg/kubelet/prober/worker.go of Kubernetes 1.37.
func TestCourseMatchesAKubelet(t *testing.T) {
	type probes = contract.Probes
	for name, row := range map[string]struct {
		probes
		startup, liveness, readiness answers
		until, stop                  int
		want                         string
	}{
		"none": {until: 100, want: "0 started, 0 ready"},
		"liveness that fails as often as its threshold says": {
			probes: probes{Liveness: with()}, liveness: "+--+---", until: 100,
			want: "0 started, 0 ready, 0 liveness?, 10 liveness?, 20 liveness?, 30 liveness?, 40 liveness?, 50 liveness?, 60 liveness?, 60 liveness FAILED",
		},
		"liveness is asked no more after it failed": {
			probes: probes{Liveness: with(thresholds(1, 1))}, liveness: "-", until: 100,
			want: "0 started, 0 ready, 0 liveness?, 0 liveness FAILED",
		},
		"initial delay": {
			probes: probes{Liveness: with(after(25))}, liveness: "+", until: 40,
			want: "0 started, 0 ready, 25 liveness?, 35 liveness?",
		},
		"readiness begins as not ready": {
			probes: probes{Readiness: with(every(5))}, readiness: "--+", until: 12,
			want: "0 started, 0 readiness?, 5 readiness?, 10 readiness?, 10 ready",
		},
		"readiness by its thresholds": {
			probes: probes{Readiness: with(every(1), thresholds(2, 2))}, readiness: "+++-+--+-++", until: 10,
			want: "0 started, 0 readiness?, 1 readiness?, 1 ready, 2 readiness?, 3 readiness?, 4 readiness?, 5 readiness?, " +
				"6 readiness?, 6 not ready, 7 readiness?, 8 readiness?, 9 readiness?, 10 readiness?, 10 ready",
		},
		"nothing else before startup": {
			probes:  probes{Startup: with(every(5), thresholds(1, 4)), Liveness: with(), Readiness: with()},
			startup: "--+", liveness: "+", readiness: "+", until: 25,
			want: "0 startup?, 5 startup?, 10 startup?, 10 started, 10 readiness?, 10 ready, 15 liveness?, 20 readiness?, 25 liveness?",
		},
		"a delay that is longer than the start": {
			probes:  probes{Startup: with(every(5)), Liveness: with(after(12))},
			startup: "+", liveness: "+", until: 15,
			want: "0 startup?, 0 started, 0 ready, 12 liveness?",
		},
		"startup fails": {
			probes:  probes{Startup: with(every(1), thresholds(1, 3)), Liveness: with(), Readiness: with()},
			startup: "-", liveness: "-", readiness: "-", until: 100,
			want: "0 startup?, 1 startup?, 2 startup?, 2 startup FAILED",
		},
		"what could not be asked counts for nothing, and breaks no row": {
			probes: probes{Liveness: with(thresholds(1, 2))}, liveness: "-?-", until: 100,
			want: "0 started, 0 ready, 0 liveness?, 10 liveness?, 20 liveness?, 20 liveness FAILED",
		},
		"startup that can't be asked": {
			probes: probes{Startup: with(thresholds(1, 1))}, startup: "?", until: 25, want: "0 startup?, 10 startup?, 20 startup?",
		},
		"a slow answer keeps the beat": {
			probes: probes{Liveness: with()}, liveness: "4+", until: 25,
			want: "0 started, 0 ready, 0 liveness?, 10 liveness?, 20 liveness?",
		},
		"one that took longer than the period is followed at once": {
			probes: probes{Liveness: with()}, liveness: "15+4+", until: 35,
			want: "0 started, 0 ready, 0 liveness?, 15 liveness?, 20 liveness?, 30 liveness?",
		},
		"what was missed is not made up for": {
			probes: probes{Liveness: with()}, liveness: "47+4+", until: 62,
			want: "0 started, 0 ready, 0 liveness?, 47 liveness?, 51 liveness?, 60 liveness?",
		},
		"one that is asked to end may stop being alive, and says whether it is ready": {
			probes: probes{Liveness: with(), Readiness: with()}, liveness: "+-", readiness: "+-", until: 35, stop: 8,
			want: "0 started, 0 readiness?, 0 ready, 5 liveness?, 8 asked to end, 10 readiness?, 20 readiness?, 30 readiness?, 30 not ready",
		},
		"liveness comes between checks of readiness": {
			probes: probes{Liveness: with(), Readiness: with(every(5))}, liveness: "+", readiness: "+", until: 15,
			want: "0 started, 0 readiness?, 0 ready, 2.5 liveness?, 5 readiness?, 10 readiness?, 12.5 liveness?, 15 readiness?",
		},
		"no check of liveness meets one of readiness later": {
			probes: probes{Liveness: with(every(4), after(3)), Readiness: with(every(6), after(1))}, liveness: "+", readiness: "+", until: 16,
			want: "0 started, 1 readiness?, 1 ready, 4 liveness?, 7 readiness?, 8 liveness?, 12 liveness?, 13 readiness?, 16 liveness?",
		},
		"delays that keep the two apart are kept": {
			probes: probes{Liveness: with(after(15)), Readiness: with()}, liveness: "+", readiness: "+", until: 25,
			want: "0 started, 0 readiness?, 0 ready, 10 readiness?, 15 liveness?, 20 readiness?, 25 liveness?",
		},
		"no check comes before its delay": {
			probes: probes{Liveness: with(), Readiness: with(after(4))}, liveness: "+", readiness: "+", until: 20,
			want: "0 started, 4 readiness?, 4 ready, 9 liveness?, 14 readiness?, 19 liveness?",
		},
		"apart after a startup of any length, too": {
			probes:  probes{Startup: with(every(3)), Liveness: with(), Readiness: with(after(1))},
			startup: "2-+", liveness: "+", readiness: "+", until: 18,
			want: "0 startup?, 3 startup?, 3 started, 3 readiness?, 3 ready, 8 liveness?, 13 readiness?, 18 liveness?",
		},
		"an answer that comes after it was asked to end": {
			probes: probes{Liveness: with(thresholds(1, 1))}, liveness: "8-", until: 35, stop: 5,
			want: "0 started, 0 ready, 0 liveness?, 5 asked to end",
		},
		"asked to end while it starts": {
			probes: probes{Startup: with(thresholds(1, 1)), Readiness: with()}, startup: "8-", readiness: "+", until: 35, stop: 5,
			want: "0 startup?, 5 asked to end",
		},
	} {
		t.Run(name, func(t *testing.T) {
			got := simulate(row.probes, [kinds]answers{row.startup, row.liveness, row.readiness}, row.until, row.stop)
			if got != row.want {
				t.Errorf("got  %s\nwant %s", got, row.want)
			}
		})
	}
}

// No probe runs twice at the same time, in every order of checks. State says when the next check is due.
func TestNeverTwoAtATime(t *testing.T) {
	now := time.Unix(1000, 0)
	s := Begin(contract.Probes{Liveness: with()}, now)
	s, first := s.Due(now)
	later := now.Add(time.Hour)
	s, second := s.Due(later)
	if len(first) != 1 || len(second) != 0 || !s.Wake().IsZero() {
		t.Errorf("due %v, then %v while the first is under way; wake %v", first, second, s.Wake())
	}
	s = s.Answered(Liveness, Success, later)
	if _, due := s.Due(later); len(due) != 1 {
		t.Errorf("due %v after an hour's check, want the next at once", due)
	}
}

// Liveness never begins before its delay, nor later than a kubelet may, and its checks stay as far from those of readiness as the periods
// allow.
func TestChecksAreSpaced(t *testing.T) {
	now := time.Unix(1000, 0)
	for n := range 8 * 8 * 8 * 8 {
		liveness := with(every(1+n%8), after(n/8%8))
		readiness := with(every(1+n/64%8), after(n/512))
		s := Begin(contract.Probes{Liveness: liveness, Readiness: readiness}, now)
		delay := s.runs[Liveness].due.Sub(now.Add(time.Duration(liveness.InitialDelay)))
		if delay < 0 || delay >= time.Duration(liveness.Period) || !s.runs[Readiness].due.Equal(now.Add(time.Duration(readiness.InitialDelay))) {
			t.Fatalf("liveness %+v begins %v late, readiness %+v at %v", liveness, delay, readiness, s.runs[Readiness].due.Sub(now))
		}
		nearest := time.Hour
		for i := range 8 { // longer than it takes until the pattern repeats
			for j := range 8 {
				at := s.runs[Liveness].due.Add(time.Duration(i) * time.Duration(liveness.Period))
				other := s.runs[Readiness].due.Add(time.Duration(j) * time.Duration(readiness.Period))
				nearest = min(nearest, at.Sub(other).Abs())
			}
		}
		if want := greatestDivisor(time.Duration(liveness.Period), time.Duration(readiness.Period)) / 2; nearest < want {
			t.Fatalf("liveness %+v comes %v from readiness %+v, want %v", liveness, nearest, readiness, want)
		}
	}
}
