package lease

import (
	"flag"
	"fmt"
	"go/ast"
	"go/parser"
	"go/token"
	"math"
	"os"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
)

var update = flag.Bool("update", false, "write testdata/transitions.golden anew")

// situation is a state that the table begins a row in, reached by steps like those of a real agent.
type situation struct {
	name  string
	reach func() *driver
}

func situations() []situation {
	c := testConfig()
	keep := c
	keep.KeepRunning = true
	handover := held(me, 100)
	handover.Token, handover.Handover = 10, Handover{To: "b", Reason: ReasonRollout}
	handover.History[0].Token = 10
	half := held(me, 100)
	half.Token, half.AcquireTime, half.Release = 10, 0, Release{Reason: ReasonSwitchover}
	return []situation{
		{"Waiting, nothing known", func() *driver { return drive(c).step(Ticked{}) }},
		{"Waiting for another holder", func() *driver { return waiting(c, held(other, 10)).after(time.Second) }},
		{"Waiting for an earlier agent of its pod", func() *driver {
			whole := c
			whole.EndProvesDeath = true
			return waiting(whole, held(Identity{me.Pod, me.PodUID, "0"}, 10)).after(time.Second)
		}},
		{"Waiting, watch down, polling", func() *driver {
			return waiting(c, held(other, 10)).step(WatchClosed{}).after(2 * time.Second).step(Ticked{})
		}},
		{"Waiting, another standby goes first", func() *driver {
			r := free(other, 10)
			r.Handover.To = "c"
			return waiting(c, r)
		}},
		{"Waiting, no Lease", func() *driver { return drive(c).step(WatchOpened{}).step(ReadDone{ID: 1, Absent: true}) }},
		{"Waiting, after its own tenure was lost", func() *driver {
			return holding(c).step(Watched{Record: held(other, 20)}).step(TreeGone{})
		}},
		{"Acquiring, sent", func() *driver { return acquiring(c) }},
		{"Acquiring, reply lost", func() *driver { return acquiring(c).done(Unknown) }},
		{"Acquiring, confirming", func() *driver {
			d := acquiring(c)
			stored := d.s.Write.Record
			stored.Revision++
			return d.done(Unknown).found(stored)
		}},
		{"Acquiring, told to stop", func() *driver { return acquiring(c).step(Terminated{Signal: 15}) }},
		{"Holding", func() *driver { return holding(c) }},
		{"Holding, renewing", func() *driver { return renewing(c) }},
		{"Holding, reply lost", func() *driver { return renewing(c).done(Unknown) }},
		{"Holding, after a conflict", func() *driver { return renewing(c).done(Conflict) }},
		{"Holding, half a release written by hand", func() *driver { return holding(c).step(Watched{Record: half}) }},
		{"Holding, cut off, KeepRunning", func() *driver {
			return holding(keep).after(time.Minute).step(Ticked{}).step(ReadDone{ID: 2})
		}},
		{"Stopping, asked to", func() *driver { return holding(c).step(Watched{Record: handover}) }},
		{"Stopping, renewals failed", func() *driver { return renewing(c).after(9 * time.Second).step(Ticked{}) }},
		{"Stopping, lost", func() *driver { return holding(c).step(Watched{Record: held(other, 20)}) }},
		{"Stopping, process exited, the rest being killed", func() *driver { return holding(c).step(ChildExited{Code: 1, Crashed: true}) }},
		{"Stopping, releasing", func() *driver { return holding(c).step(Watched{Record: handover}).step(ChildExited{}).step(TreeGone{}) }},
		{"Stopping, reply to the release lost", func() *driver {
			return holding(c).step(Watched{Record: handover}).step(TreeGone{}).done(Unknown)
		}},
		{"Waiting, exited", func() *driver { return waiting(c, held(other, 10)).step(Terminated{Signal: 15}) }},
	}
}

// happening is an event of the table, made to fit the state that it meets.
type happening struct {
	name string
	// kind is the event's type, outcome that of a WriteDone.
	kind, outcome string
	event         func(State) Event
}

// seen is a record as the server may have it next, after what the state knows.
func seen(s State, change func(*Record)) Record {
	r := s.Observed.Record
	if r.UID == "" {
		r = held(other, r.Revision)
	}
	r.Revision += 5
	change(&r)
	return r
}

func happenings() []happening {
	heldBy := func(id Identity) func(*Record) {
		return func(r *Record) { r.Holder, r.Token, r.AcquireTime, r.Release = id.String(), r.Token+1, 9, Release{} }
	}
	release := func(r *Record) { *r = r.Released(Release{Reason: ReasonHolderTerminated, Unclean: true}, 1, 1) }
	emptied := func(r *Record) { r.Holder = "" }
	handover := func(r *Record) { r.Handover = Handover{To: AnyPod} }
	watched := func(change func(*Record)) func(State) Event {
		return func(s State) Event { return Watched{Record: seen(s, change)} }
	}
	read := func(change func(*Record)) func(State) Event {
		return func(s State) Event {
			r := seen(s, change)
			return ReadDone{ID: s.LastRead, Found: &r}
		}
	}
	attempt := func(s State) Record {
		switch {
		case s.Write != nil:
			return s.Write.Record
		case s.Pending != nil:
			return s.Pending.Record
		case len(s.Unsettled) > 0:
			return s.Unsettled[len(s.Unsettled)-1].Record
		}
		return s.Observed.Record
	}
	own := func(r *Record, s State) { *r = attempt(s); r.Revision++ }
	wrote := func(o Outcome) func(State) Event {
		return func(s State) Event {
			e := WriteDone{Nonce: s.LastNonce, Outcome: o}
			if o == Confirmed {
				r := attempt(s)
				r.Revision++
				e.Record = &r
			}
			return e
		}
	}
	return []happening{
		{"time passes: nothing", "Ticked", "", func(State) Event { return Ticked{} }},
		{"time passes: to Wake", "Ticked", "", func(State) Event { return nil }},
		{"WatchOpened", "WatchOpened", "", func(State) Event { return WatchOpened{} }},
		{"WatchClosed", "WatchClosed", "", func(State) Event { return WatchClosed{} }},
		{"Watched: edited, holder unchanged", "Watched", "", watched(func(*Record) {})},
		{"Watched: another holder", "Watched", "", watched(heldBy(Identity{"c", "uc", "1"}))},
		{"Watched: released by the operator", "Watched", "", watched(release)},
		{"Watched: holder cleared by hand", "Watched", "", watched(emptied)},
		{"Watched: handover asked for", "Watched", "", watched(handover)},
		{"Watched: its own write", "Watched", "", func(s State) Event {
			var r Record
			own(&r, s)
			return Watched{Record: r}
		}},
		{"Watched: something older", "Watched", "", func(s State) Event { return Watched{Record: held(other, s.Observed.Record.Revision-1)} }},
		{"Watched: deleted", "Watched", "", func(s State) Event { return Watched{Record: seen(s, func(*Record) {}), Deleted: true} }},
		{"ReadDone: failed", "ReadDone", "", func(s State) Event { return ReadDone{ID: s.LastRead} }},
		{"ReadDone: unchanged", "ReadDone", "", read(func(r *Record) { r.Revision -= 5 })},
		{"ReadDone: its own write", "ReadDone", "", func(s State) Event {
			var r Record
			own(&r, s)
			return ReadDone{ID: s.LastRead, Found: &r}
		}},
		{"ReadDone: another holder", "ReadDone", "", read(heldBy(Identity{"c", "uc", "1"}))},
		{"ReadDone: released by the operator", "ReadDone", "", read(release)},
		{"ReadDone: something older", "ReadDone", "", read(func(r *Record) { *r = held(other, r.Revision-6) })},
		{"ReadDone: no Lease", "ReadDone", "", func(s State) Event { return ReadDone{ID: s.LastRead, Absent: true} }},
		{"ReadDone: to an earlier read", "ReadDone", "", func(s State) Event { return ReadDone{ID: s.LastRead - 1, Absent: true} }},
		{"WriteDone: Unknown", "WriteDone", "Unknown", wrote(Unknown)},
		{"WriteDone: Confirmed", "WriteDone", "Confirmed", wrote(Confirmed)},
		{"WriteDone: Conflict", "WriteDone", "Conflict", wrote(Conflict)},
		{"WriteDone: Gone", "WriteDone", "Gone", wrote(Gone)},
		{"WriteDone: Refused", "WriteDone", "Refused", wrote(Refused)},
		{"WriteDone: to an earlier write", "WriteDone", "", func(State) Event { return WriteDone{Nonce: -1, Outcome: Gone} }},
		{"ChildExited: 0", "ChildExited", "", func(State) Event { return ChildExited{} }},
		{"ChildExited: 1", "ChildExited", "", func(State) Event { return ChildExited{Code: 1, Crashed: true} }},
		{"Unhealthy", "Unhealthy", "", func(State) Event { return Unhealthy{Reason: ReasonLivenessFailed, Grace: 3 * time.Second} }},
		{"TreeGone", "TreeGone", "", func(State) Event { return TreeGone{} }},
		{"Starved: a little", "Starved", "", func(State) Event { return Starved{Late: time.Second} }},
		{"Starved: beyond all measure", "Starved", "", func(State) Event { return Starved{Late: time.Duration(math.MaxInt64)} }},
		{"Starved: negative", "Starved", "", func(State) Event { return Starved{Late: -time.Hour} }},
		{"DeathSought: dead", "DeathSought", "", func(s State) Event { return DeathSought{Holder: s.Observed.Record.Holder, Dead: true} }},
		{"DeathSought: no evidence", "DeathSought", "", func(s State) Event { return DeathSought{Holder: s.Observed.Record.Holder} }},
		{"Terminated", "Terminated", "", func(State) Event { return Terminated{Signal: 2} }},
		{"GraceEnds: long ago", "GraceEnds", "", func(State) Event { return GraceEnds{At: t0.Add(-time.Second)} }},
		{"GraceEnds: never", "GraceEnds", "", func(State) Event { return GraceEnds{At: Never} }},
	}
}

// transitions is the table, and which phase, event and outcome it has.
func transitions() (table string, covered map[[3]string]bool) {
	var text strings.Builder
	text.WriteString("Every situation, every event: what changes, and → what is to be done. Instants are relative to the event's.\n" +
		"leaseDuration 15s, renewDeadline 10s, retryPeriod 2s, grace period 5s. Written by go test -run Transitions -update.\n")
	covered = map[[3]string]bool{}
	for _, in := range situations() {
		fmt.Fprintf(&text, "\n%s\n    %s\n", in.name, strings.Join(facts(in.reach()), "; "))
		for _, h := range happenings() {
			d := in.reach()
			before := facts(d)
			phase := d.s.Phase.String()
			if e := h.event(d.s); e != nil {
				d.step(e)
			} else if d.actions = nil; d.s.Wake != Never {
				before = facts(d.after(d.s.Wake.Sub(d.now)))
				d.step(Ticked{})
			}
			covered[[3]string{phase, h.kind, h.outcome}] = true
			fmt.Fprintf(&text, "  %-36s %s\n", h.name, row(before, facts(d), d))
		}
	}
	return text.String(), covered
}

// TestTransitions compares every transition with the table, and the table with the code: no phase, event or outcome
// may be without a row.
func TestTransitions(t *testing.T) {
	table, covered := transitions()
	for _, phase := range constants(t, "Phase") {
		for _, kind := range eventKinds(t) {
			outcomes := []string{""}
			if kind == "WriteDone" {
				outcomes = constants(t, "Outcome")
			}
			for _, outcome := range outcomes {
				if !covered[[3]string{phase, kind, outcome}] {
					t.Errorf("no row for %s %s in phase %s", kind, outcome, phase)
				}
			}
		}
	}
	const file = "testdata/transitions.golden"
	if *update {
		if err := os.WriteFile(file, []byte(table), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	want, err := os.ReadFile(file)
	if err != nil {
		t.Fatal(err)
	}
	if diff := cmp.Diff(strings.Split(string(want), "\n"), strings.Split(table, "\n")); diff != "" {
		t.Errorf("transitions differ from %s (-want +got):\n%s", file, diff)
	}
}

// No decision depends on the wall clock, however often and however far it is set.
func TestWallClockHasNoEffect(t *testing.T) {
	table, _ := transitions()
	undisturbed := setAhead
	t.Cleanup(func() { setAhead = undisturbed })
	const hour = int64(time.Hour / time.Microsecond)
	looks := int64(0)
	for name, set := range map[string]func() int64{
		"an hour ahead":                func() int64 { return hour },
		"on by an hour at each look":   func() int64 { looks++; return looks * hour },
		"back by an hour at each look": func() int64 { looks++; return 1_000_000*hour - looks*hour },
		"to and fro":                   func() int64 { looks++; return hour + looks%2*hour },
	} {
		setAhead = set
		got, _ := transitions()
		if diff := cmp.Diff(strings.Split(table, "\n"), strings.Split(got, "\n")); diff != "" {
			t.Errorf("the wall clock is set %s (-undisturbed +got):\n%s", name, diff)
		}
	}
}

func row(before, after []string, d *driver) string {
	changed := slices.DeleteFunc(slices.Clone(after), func(f string) bool { return slices.Contains(before, f) })
	for _, f := range before {
		name, _, _ := strings.Cut(f, " ")
		if !slices.ContainsFunc(after, func(g string) bool { return g == name || strings.HasPrefix(g, name+" ") }) {
			changed = append(changed, "no "+name)
		}
	}
	out := strings.Join(changed, "; ")
	if len(changed) == 0 {
		out = "-"
	}
	if len(d.actions) > 0 {
		var actions []string
		for _, a := range d.actions {
			actions = append(actions, d.action(a))
		}
		out += " → " + strings.Join(actions, ", ")
	}
	return out
}

// facts is a state in words, each fact beginning with its name.
func facts(d *driver) []string {
	s := d.s
	var out []string
	add := func(shown bool, format string, args ...any) {
		if shown {
			out = append(out, fmt.Sprintf(format, args...))
		}
	}
	add(true, "%v", s.Phase)
	add(s.Done, "done")
	add(s.Observed.Known && !s.Observed.Absent, "seen r%d %s since %s", s.Observed.Record.Revision, recordWords(s.Observed.Record), d.at(s.Observed.At))
	add(s.Observed.Absent, "absent r%d since %s", s.Observed.Record.Revision, d.at(s.Observed.At))
	add(s.WatchUp, "watching")
	add(s.Write != nil, "writing %v", attemptWords(d, s.Write))
	add(s.Read != nil, "reading %v", readWords(d, s.Read))
	for i := range s.Overdue {
		add(true, "overdue %v", readWords(d, &s.Overdue[i]))
	}
	add(s.Pending != nil, "pending %v", attemptWords(d, s.Pending))
	for i := range s.Unsettled {
		add(true, "unsettled %v", attemptWords(d, &s.Unsettled[i]))
	}
	add(s.MustRead, "must-read")
	add(s.Stale, "stale")
	add(s.NotBefore > d.now, "not-before %s", d.at(s.NotBefore))
	add(s.Death != Death{}, "death of %s%s", s.Death.Holder, flags("asked", s.Death.Asked, "proven", s.Death.Proven, "seen-alive", s.Death.Seen))
	add(s.Late != 0, "late %v", s.Late)
	add(s.Tenure != Tenure{}, "tenure %d confirmed %s", s.Tenure.Token, d.at(s.Tenure.Confirmed))
	add(s.Stop.Reason != "", "stop %s kill %s%s", s.Stop.Reason, d.at(s.Stop.KillAt), flags(
		"lost", s.Stop.Lost, "signalled", s.Stop.Signalled, "killed", s.Stop.Killed, "exits", s.Stop.Exits))
	add(s.Tree != Tree{}, "tree%s", flags("alive", s.Tree.Alive, "exited", s.Tree.Exited, "crashed", s.Tree.Crashed))
	add(s.Terminating, "terminating")
	add(s.Past != nil, "past%s", pastWords(s.Past))
	add(true, "wake %s", d.at(s.Wake))
	return out
}

func pastWords(p *Past) string {
	if p == nil {
		return ""
	}
	return fmt.Sprintf(" %d %s%s", p.Tenure.Token, p.Reason, flags("clean", p.Clean))
}

func flags(pairs ...any) string {
	var out string
	for i := 0; i < len(pairs); i += 2 {
		if on, _ := pairs[i+1].(bool); on {
			out += fmt.Sprintf(" %v", pairs[i])
		}
	}
	return out
}

func recordWords(r Record) string {
	holder := r.Holder
	if holder == "" {
		holder = "nobody"
	}
	text := fmt.Sprintf("%s token %d", holder, r.Token)
	if r.Release.Reason != "" {
		text += fmt.Sprintf(" released %s%s", r.Release.Reason, flags("unclean", r.Release.Unclean))
	}
	if r.Holder != "" && r.AcquireTime == 0 {
		text += " no acquire time"
	}
	if r.Handover.To != "" {
		text += " handover to " + r.Handover.To
	}
	return text
}

func attemptWords(d *driver, a *Attempt) string {
	if a == nil {
		return ""
	}
	return fmt.Sprintf("%v on r%d (%s) sent %s, waits until %s", a.Kind, a.Record.Revision, recordWords(a.Record), d.at(a.SentAt), d.at(a.Patience))
}

func readWords(d *driver, r *Reading) string {
	if r == nil {
		return ""
	}
	return fmt.Sprintf("%d sent %s, waits until %s", r.ID, d.at(r.SentAt), d.at(r.Patience))
}

// at is an instant relative to now.
func (d *driver) at(i Instant) string {
	if i == Never {
		return "never"
	}
	return fmt.Sprintf("%+.3gs", i.Sub(d.now).Seconds())
}

func (d *driver) action(a Action) string {
	switch a := a.(type) {
	case SendWrite:
		return "SendWrite " + a.Attempt.Kind.String()
	case SendRead:
		return fmt.Sprintf("SendRead %d", a.ID)
	case StartChild:
		return fmt.Sprintf("StartChild token %d until %s", a.Token, d.at(a.Deadline))
	case ExtendLeash:
		return "ExtendLeash to " + d.at(a.Deadline)
	default:
		return strings.TrimPrefix(fmt.Sprintf("%T%+v", a, a), "lease.")
	}
}

// eventKinds are the types that are events, as the source has them.
func eventKinds(t *testing.T) []string {
	t.Helper()
	var kinds []string
	for _, decl := range parse(t, "event.go").Decls {
		f, ok := decl.(*ast.FuncDecl)
		if !ok || f.Name.Name != "event" {
			continue
		}
		if receiver, ok := f.Recv.List[0].Type.(*ast.Ident); ok {
			kinds = append(kinds, receiver.Name)
		}
	}
	if len(kinds) < 9 {
		t.Fatalf("found only the events %q", kinds)
	}
	return kinds
}

// constants are the names of the constants of a type, as the source has them.
func constants(t *testing.T, of string) []string {
	t.Helper()
	var names []string
	for _, file := range []string{"event.go", "state.go"} {
		for _, decl := range parse(t, file).Decls {
			group, ok := decl.(*ast.GenDecl)
			if !ok || group.Tok != token.CONST {
				continue
			}
			first, ok := group.Specs[0].(*ast.ValueSpec)
			if !ok {
				continue
			}
			if kind, ok := first.Type.(*ast.Ident); !ok || kind.Name != of {
				continue
			}
			for _, spec := range group.Specs {
				if value, ok := spec.(*ast.ValueSpec); ok {
					names = append(names, value.Names[0].Name)
				}
			}
		}
	}
	if len(names) < 4 {
		t.Fatalf("found only the constants %q of %s", names, of)
	}
	return names
}

func parse(t *testing.T, file string) *ast.File {
	t.Helper()
	f, err := parser.ParseFile(token.NewFileSet(), file, nil, 0)
	if err != nil {
		t.Fatal(err)
	}
	return f
}
