// Command steps prints a rollout step by step, as the operator would do it. It simulates a small cluster, gets each step from plan.Next,
// and shows the pods after it. The document docs/rollout.md contains its output.
//
//	go run ./internal/plan/steps -candidates=2 -new=crashes
package main

import (
	"errors"
	"flag"
	"fmt"
	"io"
	"os"
)

func main() {
	switch err := run(os.Args[1:], os.Stdout); {
	case errors.Is(err, flag.ErrHelp):
	case err != nil:
		fmt.Fprintln(os.Stderr, "steps:", err)
		os.Exit(2)
	}
}

// most is the maximum of spec.candidates in the API.
const most = 16

// run simulates the rollout that the arguments describe.
func run(args []string, out io.Writer) error {
	flags := flag.NewFlagSet("steps", flag.ContinueOnError)
	flags.SetOutput(out)
	c := &cluster{}
	flags.IntVar(&c.candidates, "candidates", 2, "`number` of candidates, spec.candidates")
	before := flags.Int("before", -1, "`number` of candidates before the change; 0 for a new job; if negative, the value of -candidates")
	name := flags.String("new", "works", "`fate` of the new version: it works, crashes as soon as it acts, or its pods are never-ready")
	flags.IntVar(&c.room, "room", 0, "`number` of pods that fit into the cluster; 0 for no limit")
	flags.IntVar(&c.quota, "quota", 0, "`number` of pods that a quota allows; 0 for no limit")
	surge := flags.Int("surge", -1, "spec.strategy.maxSurge, 0 or 1; if negative, 0 for one candidate and 1 for more")
	flags.BoolVar(&c.paused, "paused", false, "spec.strategy.paused is set")
	flags.BoolVar(&c.same, "same", false, "the template does not change, only the number")
	flags.BoolVar(&c.together, "together", false, "all pods are on one node at first, and other nodes accept pods now; requires -same")
	if err := flags.Parse(args); err != nil {
		return err
	}
	if *before < 0 {
		*before = c.candidates
	}
	c.fate = fate(*name)
	c.inPlace = *surge == 0 || *surge < 0 && c.candidates == 1
	if flags.NArg() > 0 {
		return fmt.Errorf("%q is not a flag; write it as -flag=value (-help lists them)", flags.Arg(0))
	}
	if err := c.check(*before, *surge); err != nil {
		return err
	}
	c.begin(*before)
	return c.play(out)
}

// check returns what is wrong with the description of a rollout.
func (c *cluster) check(before, surge int) error {
	switch {
	case c.candidates < 1 || c.candidates > most:
		return fmt.Errorf("-candidates=%d: write a number from 1 to %d", c.candidates, most)
	case before > most:
		return fmt.Errorf("-before=%d: write a number from 0 to %d", before, most)
	case c.fate != works && c.fate != crashes && c.fate != neverReady:
		return fmt.Errorf("-new=%s: write works, crashes or never-ready", c.fate)
	case surge < -1 || surge > 1:
		return fmt.Errorf("-surge=%d: write 0 or 1", surge)
	}
	return c.checkRoom(before)
}

func (c *cluster) checkRoom(before int) error {
	switch {
	case c.room < 0 || c.room > 0 && c.room < before:
		return fmt.Errorf("-room=%d: write 0, or at least the %d pods that exist at first", c.room, before)
	case c.quota < 0 || c.quota > 0 && c.quota < max(before, c.candidates):
		return fmt.Errorf("-quota=%d: write 0, or at least the %d pods that are needed", c.quota, max(before, c.candidates))
	case c.together && (!c.same || before != c.candidates):
		return errors.New("-together: write -same too, and omit -before: the operator moves a pod only if there is nothing else to do")
	}
	return nil
}
