//go:build linux

package main

import (
	"fmt"
	"io"
	"os"
	"strings"
	"sync"
	"time"

	"github.com/singletonjob/operator/test/observe"
)

// terminal prints the demo. Colours carry no information of their own.
type terminal struct {
	mu     sync.Mutex
	out    io.Writer
	colour bool
	begin  time.Time
	scenes int
}

func newTerminal(out *os.File) *terminal {
	info, err := out.Stat()
	isTerminal := err == nil && info.Mode()&os.ModeCharDevice != 0
	return &terminal{out: out, colour: isTerminal && os.Getenv("NO_COLOR") == "" && os.Getenv("TERM") != "dumb", begin: time.Now()}
}

const (
	bold  = "1"
	dim   = "2"
	red   = "31"
	green = "32"
	cyan  = "36"
)

func (t *terminal) mark(style, text string) string {
	if !t.colour {
		return text
	}
	return "\x1b[" + style + "m" + text + "\x1b[0m"
}

// print writes whole lines.
func (t *terminal) print(text string) {
	t.mu.Lock()
	defer t.mu.Unlock()
	_, _ = fmt.Fprintln(t.out, text)
}

// scene begins a new part with a title and a description.
func (t *terminal) scene(title, about string) {
	t.scenes++
	t.print("\n" + t.mark(bold, fmt.Sprintf("%d  %s", t.scenes, title)))
	for line := range strings.Lines(about) {
		t.print("   " + strings.TrimSpace(line))
	}
	t.print("")
}

// say prints what happens, with the seconds since the demo began.
func (t *terminal) say(style, format string, args ...any) {
	at := t.mark(dim, fmt.Sprintf("%6.2fs", time.Since(t.begin).Seconds()))
	t.print(at + "  " + t.mark(style, fmt.Sprintf(format, args...)))
}

func (t *terminal) note(format string, args ...any) { t.say("0", format, args...) }

// block prints the output of another program, indented.
func (t *terminal) block(text string) {
	for line := range strings.Lines(strings.TrimRight(text, "\n")) {
		t.print("   " + strings.TrimRight(line, "\n"))
	}
}

// Write prints the progress of long operations, line by line.
func (t *terminal) Write(text []byte) (int, error) {
	for line := range strings.Lines(string(text)) {
		t.say(dim, "%s", strings.TrimRight(line, "\n"))
	}
	return len(text), nil
}

// claim is a statement that the demo has checked.
type claim struct {
	text, evidence string
	holds          bool
}

type claims []claim

// check prints a claim with its evidence and keeps it for the final table.
func (d *demo) check(holds bool, text, format string, args ...any) {
	c := claim{text: text, evidence: fmt.Sprintf(format, args...), holds: holds}
	d.claims = append(d.claims, c)
	if holds {
		d.say(green, "✓ %s: %s", c.text, c.evidence)
	} else {
		d.say(red, "✗ DOES NOT HOLD: %s: %s", c.text, c.evidence)
	}
}

// safe is check for claims of safety: one process acts, tokens grow, and no stale write is stored. If such a claim does not hold, it prints
// a word that makes the gate fail whatever a second run says.
func (d *demo) safe(holds bool, text, format string, args ...any) {
	if !holds {
		text = observe.Safety + text
	}
	d.check(holds, text, format, args...)
}

// table prints all claims. It returns true if there is at least one and all hold.
func (d *demo) table() bool {
	good := len(d.claims) > 0
	width := 0
	for _, c := range d.claims {
		width = max(width, len([]rune(c.text)))
	}
	for _, c := range d.claims {
		mark := d.mark(green, "✓")
		if !c.holds {
			mark, good = d.mark(red, "✗"), false
		}
		d.print(fmt.Sprintf("   %s %s%s  %s", mark, c.text, strings.Repeat(" ", width-len([]rune(c.text))), d.mark(dim, c.evidence)))
	}
	return good
}
