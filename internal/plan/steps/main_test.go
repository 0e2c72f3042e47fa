package main

import (
	"flag"
	"fmt"
	"os"
	"regexp"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
)

var update = flag.Bool("update", false, "write the output of the command into docs/rollout.md")

const page = "../../../docs/rollout.md"

var example = regexp.MustCompile("(?s)```\n\\$ go run ./internal/plan/steps ([^\n]*)\n(.*?)```\n")

// TestPage compares docs/rollout.md with the output of the command.
func TestPage(t *testing.T) {
	text, err := os.ReadFile(page)
	if err != nil {
		t.Fatal(err)
	}
	examples := 0
	printed := example.ReplaceAllStringFunc(string(text), func(block string) string {
		examples++
		args := example.FindStringSubmatch(block)[1]
		var out strings.Builder
		if err := run(strings.Fields(args), &out); err != nil {
			t.Errorf("%s: %v", args, err)
		}
		return fmt.Sprintf("```\n$ go run ./internal/plan/steps %s\n%s```\n", args, &out)
	})
	if commands := strings.Count(string(text), "\n$ "); examples != commands || examples < 5 {
		t.Errorf("%s has %d commands, of which %d are examples of this one", page, commands, examples)
	}
	if *update {
		if err := os.WriteFile(page, []byte(printed), 0o644); err != nil {
			t.Fatal(err)
		}
		return
	}
	if diff := cmp.Diff(string(text), printed); diff != "" {
		t.Errorf("%s shows what the command does not print (go test ./internal/plan/steps -update rewrites it; -page +command):\n%s", page, diff)
	}
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
