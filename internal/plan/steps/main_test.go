package main

import (
	"fmt"
	"strings"
	"testing"

	"github.com/singletonjob/operator/docs/commands"
)

// TestPage runs the examples of docs/rollout.md.
func TestPage(t *testing.T) {
	typist := &commands.Typist{TB: t, Test: "internal/plan/steps TestPage", Top: "../../..", Exactly: true, Run: func(command string) string {
		var out strings.Builder
		if err := run(strings.Fields(strings.TrimPrefix(command, "go run ./internal/plan/steps")), &out); err != nil {
			t.Errorf("%s: %v", command, err)
		}
		return out.String()
	}}
	typist.Page("docs/rollout.md")
	typist.End()
}

// TestEveryRolloutEnds runs many combinations whose output is not documented.
func TestEveryRolloutEnds(t *testing.T) {
	for candidates := 1; candidates <= 5; candidates++ {
		for before := range 6 {
			for _, more := range []string{
				"-new=works", "-new=crashes", "-new=never-ready", "-same", "-surge=0", "-surge=1", "-paused",
				fmt.Sprintf("-room=%d", max(before, candidates)), fmt.Sprintf("-quota=%d", max(before, candidates)),
			} {
				args := []string{fmt.Sprintf("-candidates=%d", candidates), fmt.Sprintf("-before=%d", before), more}
				var out strings.Builder
				if err := run(args, &out); err != nil {
					t.Errorf("%v: %v\n%s", args, err, &out)
				}
				lines := strings.Split(strings.TrimSpace(out.String()), "\n")
				end := strings.TrimSpace(lines[len(lines)-1])
				works := more == "-new=works" || strings.HasPrefix(more, "-surge") || strings.HasPrefix(more, "-room") || strings.HasPrefix(more, "-quota")
				if works && end != "done" || more == "-new=crashes" && before > 0 && candidates > 1 && !strings.HasPrefix(end, "stalled: old-") {
					t.Errorf("%v ends with %q:\n%s", args, end, &out)
				}
				if n := strings.Count(out.String(), "ask "); n > 1 {
					t.Errorf("%v: %d handovers:\n%s", args, n, &out)
				}
			}
		}
	}
}

// TestAStandbyIsMoved: one standby on the holder's node is moved, but none if there is no room, or no surge pod is allowed.
func TestAStandbyIsMoved(t *testing.T) {
	for args, ends := range map[string]string{
		"-candidates=2":          "done",
		"-candidates=4":          "done",
		"-candidates=2 -room=2":  "not protected",
		"-candidates=2 -surge=0": "not protected",
	} {
		var out strings.Builder
		if err := run(append(strings.Fields(args), "-same", "-together"), &out); err != nil {
			t.Errorf("%s: %v\n%s", args, err, &out)
		}
		lines := strings.Split(strings.TrimSpace(out.String()), "\n")
		made := strings.Count(out.String(), "→ create ")
		if end := strings.TrimSpace(lines[len(lines)-1]); !strings.HasPrefix(end, ends) || made > 1 || strings.Contains(out.String(), "hand over") {
			t.Errorf("%s ends with %q:\n%s", args, end, &out)
		}
	}
}

func TestBadFlagsNameTheRemedy(t *testing.T) {
	for args, says := range map[string]string{
		"-candidates=0":    "-candidates=0: write a number from 1 to 16",
		"-candidates=17":   "-candidates=17: write",
		"-before=17":       "-before=17: write",
		"-new=breaks":      "-new=breaks: write works, crashes or never-ready",
		"-room=1":          "-room=1: write 0, or at least the 2",
		"-room=-1":         "-room=-1: write 0",
		"-quota=1":         "-quota=1: write 0, or at least the 2",
		"-surge=2":         "-surge=2: write 0 or 1",
		"2":                `"2" is not a flag`,
		"-together":        "-together: write -same too",
		"-candidates=many": `invalid value "many" for flag -candidates`,
	} {
		var out strings.Builder
		if err := run([]string{args}, &out); err == nil || !strings.Contains(err.Error(), says) {
			t.Errorf("%s: got %v, want %q", args, err, says)
		}
	}
}
