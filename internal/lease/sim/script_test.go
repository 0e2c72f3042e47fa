package sim

import (
	"cmp"
	"errors"
	"fmt"
	"math/rand/v2"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/cockroachdb/datadriven"

	"github.com/singletonjob/operator/internal/lease"
)

// script is a world in which things happen by the commands of a scenario, and nothing by chance.
type script struct {
	o     Options
	w     *world
	names []string
	// lines are what happened since they were last shown.
	lines []line
}

// theMiddle is what such a world throws in place of dice: the middle of every range, and the likelier of two.
type theMiddle struct{}

// Uint64 is just below one half to IntN, which multiplies by it, and just below one to Float64, which takes its lower bits.
func (theMiddle) Uint64() uint64 { return 1<<63 - 2 }

// command is one that a scenario may give.
type command struct {
	usage string
	do    func(*script, words) error
}

// commands are all that there are.
func commands() []command {
	return []command{
		{"candidates NAME… [lease=15s/10s/2s] [grace=5s] [lock-delay=0s] [stubborn] [keep-running] [no-operator] [not-pid-1]", (*script).candidates},
		{"run DURATION [all] [quiet]", (*script).run},
		{"lease", (*script).lease},
		{"crash NAME", onAgent((*agent).crash)},
		{"exit NAME [crashed]", (*script).exit},
		{"stop NAME", onAgent(func(a *agent) { a.deliver(lease.Terminated{Signal: 15}) })},
		{"unhealthy NAME GRACE", (*script).unhealthy},
		{"lose-node NAME", onAgent((*agent).loseNode)},
		{"partition NAME", onAgent((*agent).partition)},
		{"lose-answers NAME DURATION", (*script).loseAnswers},
		{"heal NAME", onAgent((*agent).reconnect)},
		{"freeze NAME DURATION", (*script).freeze},
		{"handover NAME", (*script).handover},
		{"delete-lease", onWorld(func(w *world) { w.api.remove() })},
		{"blank-holder", onWorld(func(w *world) { w.clearHolder(Fault{}) })},
	}
}

// play carries out one block of a scenario, a command on each line, and returns what happened.
func (s *script) play(d *datadriven.TestData) (string, error) {
	s.lines = nil
	for text := range strings.Lines(d.FullCmd() + "\n" + d.Input) {
		if text = strings.TrimSpace(text); text == "" || text[0] == '#' {
			continue
		}
		if err := s.obey(text); err != nil {
			return "", fmt.Errorf("%s: %q: %w", d.Pos, text, err)
		}
	}
	return s.shown(), nil
}

func (s *script) obey(text string) error {
	name, args, err := datadriven.ParseLine(text)
	if err != nil {
		return errors.New("no command reads like this; write NAME, NAME=VALUE or a single word for each argument")
	}
	var usages []string
	for _, c := range commands() {
		usages = append(usages, c.usage)
		if verb, _, _ := strings.Cut(c.usage, " "); verb != name {
			continue
		}
		if s.w == nil && name != "candidates" {
			return errors.New(`there is no candidate yet; begin the file with one, such as "candidates a b"`)
		}
		w, err := read(s, c.usage, args)
		if err == nil {
			err = c.do(s, w)
		}
		return err
	}
	return fmt.Errorf("no command is called %q; write one of\n  %s", name, strings.Join(usages, "\n  "))
}

// words are the arguments of a command.
type words struct {
	s     *script
	plain []string
	// options are those that the usage has in brackets.
	options map[string]string
}

// read sorts arguments by the usage of their command.
func read(s *script, usage string, args []datadriven.CmdArg) (words, error) {
	w := words{s: s, options: map[string]string{}}
	wanted, several := 0, strings.Contains(usage, "…")
	for _, field := range strings.Fields(usage)[1:] {
		if field[0] != '[' {
			wanted++
		}
	}
	for _, a := range args {
		switch {
		case len(a.Vals) == 1 && strings.Contains(usage, "["+a.Key+"="), len(a.Vals) == 0 && strings.Contains(usage, "["+a.Key+"]"):
			w.options[a.Key] = strings.Join(a.Vals, "")
		case len(a.Vals) > 0:
			return w, fmt.Errorf("it takes no %q; write %s", a.String(), usage)
		default:
			w.plain = append(w.plain, a.Key)
		}
	}
	if len(w.plain) < wanted || len(w.plain) > wanted && !several {
		return w, fmt.Errorf("it takes %d plain arguments and has %d; write %s", wanted, len(w.plain), usage)
	}
	return w, nil
}

func (w words) has(option string) bool {
	_, ok := w.options[option]
	return ok
}

// longestRun keeps a scenario from running forever.
const longestRun = 24 * time.Hour

func duration(text string, least time.Duration) (time.Duration, error) {
	d, err := time.ParseDuration(text)
	if err != nil || d < least || d > longestRun {
		return 0, fmt.Errorf("%q is not a duration from %v to %v; write a number and a unit, such as 5s or 500ms", text, least, longestRun)
	}
	return d, nil
}

// duration is the value of an option.
func (w words) duration(option string, otherwise time.Duration) (time.Duration, error) {
	if !w.has(option) {
		return otherwise, nil
	}
	return duration(w.options[option], 0)
}

// agent is the one that runs in a candidate's place.
func (w words) agent() (*agent, error) {
	i := slices.Index(w.s.names, w.plain[0])
	if i < 0 {
		return nil, fmt.Errorf("no candidate is called %q; there are %s", w.plain[0], strings.Join(w.s.names, ", "))
	}
	a := w.s.w.slots[i].agent
	if !a.alive {
		return nil, fmt.Errorf("%s runs no agent at %v; run on until it does, or take another", w.plain[0], w.s.w.now)
	}
	return a, nil
}

// holder is an agent whose process runs.
func (w words) holder() (*agent, error) {
	a, err := w.agent()
	if err == nil && (a.tree == nil || !a.tree.alive) {
		return nil, fmt.Errorf("%s runs no process at %v; take the holder, or run on until it is that", w.plain[0], w.s.w.now)
	}
	return a, err
}

func onAgent(do func(*agent)) func(*script, words) error {
	return func(_ *script, w words) error {
		a, err := w.agent()
		if err == nil {
			do(a)
		}
		return err
	}
}

func onWorld(do func(*world)) func(*script, words) error {
	return func(s *script, _ words) error {
		do(s.w)
		return nil
	}
}

var candidateName = regexp.MustCompile(`^[a-z]+$`)

// candidates makes the world.
func (s *script) candidates(w words) error {
	if s.w != nil {
		return errors.New("there are candidates already; write another file for others")
	}
	for i, name := range w.plain {
		if !candidateName.MatchString(name) || slices.Contains(w.plain[:i], name) {
			return fmt.Errorf("%q is not a name for a candidate; write another one of the letters a to z for each", name)
		}
	}
	c, err := w.config()
	if err != nil {
		return err
	}
	p := params{
		seed: 1, length: horizon, candidates: len(w.plain), config: c, configs: []lease.Config{c},
		endProvesDeath: !w.has("not-pid-1"), initialEvents: true,
	}
	s.names = w.plain
	s.w = newWorld(p, s.o, func(l line) { s.lines = append(s.lines, l) })
	s.w.rng, s.w.stubborn = rand.New(theMiddle{}), w.has("stubborn")
	s.w.sink = &audible{s.w.sink, s.w}
	s.w.build()
	for _, o := range s.w.operators {
		if w.has("no-operator") {
			o.down++
		}
	}
	return nil
}

// config is that of the candidates, within what the API accepts.
func (w words) config() (lease.Config, error) {
	c := lease.Config{KeepRunning: w.has("keep-running")}
	if !w.has("lease") {
		w.options["lease"] = "15s/10s/2s"
	}
	timing := strings.Split(w.options["lease"], "/")
	if len(timing) != 3 {
		return c, fmt.Errorf("lease=%s is not leaseDuration/renewDeadline/retryPeriod; write them like lease=15s/10s/2s", w.options["lease"])
	}
	var errs [5]error
	c.Duration, errs[0] = duration(timing[0], lease.MinDuration)
	c.RenewDeadline, errs[1] = duration(timing[1], 0)
	c.RetryPeriod, errs[2] = duration(timing[2], lease.MinRetryPeriod)
	c.GracePeriod, errs[3] = w.duration("grace", 5*time.Second)
	c.LockDelay, errs[4] = w.duration("lock-delay", 0)
	if err := errors.Join(errs[:]...); err != nil {
		return c, err
	}
	if most := lease.MaxRenewDeadline(c.Duration); c.RenewDeadline > most {
		return c, fmt.Errorf("a renewDeadline of %v is too long for a leaseDuration of %v; write %v or less", c.RenewDeadline, c.Duration, most)
	}
	if most := lease.MaxRetryPeriod(c.RenewDeadline); c.RetryPeriod > most {
		return c, fmt.Errorf("a retryPeriod of %v is too long for a renewDeadline of %v; write %v or less", c.RetryPeriod, c.RenewDeadline, most)
	}
	return c, nil
}

// run lets time pass.
func (s *script) run(w words) error {
	d, err := duration(w.plain[0], time.Millisecond)
	if err != nil {
		return err
	}
	before, over := len(s.lines), false
	s.w.after(d, func() { over = true })
	for !over && s.w.next() {
	}
	switch {
	case w.has("quiet"):
		s.lines = slices.DeleteFunc(s.lines, func(l line) bool { return l.who != "checker" })
	case !w.has("all"):
		s.summarise(before)
	}
	return nil
}

// summarise counts what is everyday in place of showing each.
func (s *script) summarise(from int) {
	var kept []line
	renewals, reads := map[string]int{}, map[string]int{}
	for _, l := range s.lines[from:] {
		switch {
		case strings.HasPrefix(l.what, "sends Renew"):
			renewals[l.who]++
		case l.what == "reads":
			reads[l.who]++
		case !leashed(l) && l.what != "watch opened":
			kept = append(kept, l)
		}
	}
	for _, a := range s.w.agents {
		if w, r := renewals[a.id], reads[a.id]; w+r > 0 {
			kept = append(kept, line{s.w.now, a.id, fmt.Sprintf("(renewals sent: %d, reads: %d)", w, r)})
		}
	}
	s.lines = append(s.lines[:from], kept...)
}

// lease shows what the API server has.
func (s *script) lease(words) error {
	api, r := s.w.api, s.w.api.lease
	var what string
	switch {
	case api.absent:
		what = "there is none"
	case r.Holder == "" && r.Free():
		what = fmt.Sprintf("no holder, released: %s", r.Release.Reason)
	case r.Holder == "":
		what = "no holder, and nothing says that the last one is dead"
	default:
		what = "holder " + r.Holder
	}
	if !api.absent {
		what += fmt.Sprintf(", token %d, revision %d, duration %v", r.Token, r.Revision, r.Duration)
	}
	if r.Handover.To != "" {
		what += fmt.Sprintf(", to be handed over to %q", r.Handover.To)
	}
	s.w.note("Lease", "%s", what)
	return nil
}

func (a *agent) crash() {
	a.dies()
	a.slot.restart(a)
}

// loseNode is a power cut: nothing runs any more, and nobody can tell.
func (a *agent) loseNode() {
	a.partition()
	a.dies()
}

func (a *agent) partition() {
	a.machine.link.cutUp++
	a.machine.link.cutDown++
}

func (a *agent) reconnect() {
	a.machine.link.heal()
	a.conn.recovers()
}

func (s *script) exit(w words) error {
	a, err := w.holder()
	if err == nil {
		a.tree.exit(w.has("crashed"))
	}
	return err
}

func (s *script) unhealthy(w words) error {
	a, grace, err := w.agentFor()
	if err == nil {
		a.deliver(lease.Unhealthy{Reason: lease.ReasonLivenessFailed, Grace: grace})
	}
	return err
}

func (s *script) freeze(w words) error {
	a, d, err := w.agentFor()
	if err == nil {
		s.w.after(d, s.w.freeze(Fault{Target: a.slot.index}))
	}
	return err
}

func (s *script) loseAnswers(w words) error {
	a, d, err := w.agentFor()
	if err == nil {
		a.machine.link.lossDown = 1
		s.w.after(d, func() { a.machine.link.lossDown = 0 })
	}
	return err
}

// agentFor is an agent, and for how long something happens to it.
func (w words) agentFor() (*agent, time.Duration, error) {
	a, err := w.agent()
	if err != nil {
		return nil, 0, err
	}
	d, err := duration(w.plain[1], time.Millisecond)
	return a, d, err
}

func (s *script) handover(w words) error {
	a, err := w.agent()
	if err == nil {
		s.w.askHandover(Fault{Target: a.slot.index})
	}
	return err
}

// audible shows what a sink refuses.
type audible struct {
	Sink
	w *world
}

func (s *audible) Write(token int64, later func(time.Duration, func()), accepted, refused func()) {
	s.Sink.Write(token, later, accepted, func() {
		s.w.note("sink", "refuses a write with token %d", token)
		refused()
	})
}

var precise = regexp.MustCompile(`\b[0-9hms]*\.[0-9]+m?s\b`)

// shown is what happened, in the names of the scenario: b2 is the second agent process in b's place.
func (s *script) shown() string {
	var ids []string
	name := map[string]string{}
	count := map[*slot]int{}
	for _, a := range s.w.agents {
		count[a.slot]++
		name[a.id] = s.names[a.slot.index]
		if n := count[a.slot]; n > 1 {
			name[a.id] += strconv.Itoa(n)
		}
		pod := strconv.Quote(a.machine.pod)
		name[pod] = strconv.Quote(s.names[a.slot.index])
		ids = append(ids, a.id, pod)
	}
	slices.SortFunc(ids, func(x, y string) int { return cmp.Compare(len(y), len(x)) }) // n1 begins n10
	var pairs []string
	for _, id := range ids {
		pairs = append(pairs, id, name[id])
	}
	names := strings.NewReplacer(pairs...)
	var b strings.Builder
	for _, l := range s.lines {
		what, _, _ := strings.Cut(l.what, " (clock")
		what = precise.ReplaceAllStringFunc(names.Replace(what), func(text string) string {
			d, _ := time.ParseDuration(text)
			return d.Round(time.Millisecond).String()
		})
		fmt.Fprintf(&b, "%8.3fs  %-8s %s\n", l.at.Seconds(), names.Replace(l.who), what)
	}
	return cmp.Or(b.String(), fmt.Sprintf("%8.3fs  nothing has happened\n", s.w.now.Seconds()))
}
