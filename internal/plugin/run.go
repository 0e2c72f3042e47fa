package plugin

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"time"

	"github.com/spf13/cobra"
	"k8s.io/apimachinery/pkg/util/rand"

	"github.com/singletonjob/operator/api/v1alpha1"
	"github.com/singletonjob/operator/internal/contract"
	"github.com/singletonjob/operator/internal/lease"
	"github.com/singletonjob/operator/internal/schedule"
	"github.com/singletonjob/operator/internal/show"
)

// asking holds the flags of run.
type asking struct {
	waiting
	name, tick string
}

func (c *cli) run() *cobra.Command {
	var a asking
	cmd := &cobra.Command{
		Use: "run NAME", Short: "Start a run of a job that runs to completion",
		Long: `Ask for a run outside the schedule, or for another run of a job that has run once. The run starts as soon as there is a candidate. It
counts like any other run and does not affect the schedule. With --tick, it is the run of that tick, for example of a missed one: the
process finds the tick in SINGLETONJOB_TICK. The command sets the job's annotation ` + contract.RunNowAnnotation + `, which starts one run for each name.`,
		Example: "  kubectl singleton run report --wait\n  kubectl singleton run report --tick 2026-11-23T02:30:00+01:00",
		Args:    jobNamed, ValidArgsFunction: c.completeJob,
		RunE: func(cmd *cobra.Command, args []string) error {
			api, f, err := c.one(cmd.Context(), args[0])
			if err != nil {
				return err
			}
			value, err := a.request(f)
			if err != nil {
				return err
			}
			c.noteTick(f, value)
			if err := api.patch(cmd.Context(), f.Job, annotate(contract.RunNowAnnotation, value)); err != nil {
				return err
			}
			name, _, _ := strings.Cut(value, "@")
			if err := c.changed(f.Job.Name, "asked to run, by the name "+name); err != nil || !a.wait {
				return err
			}
			return c.awaitRun(cmd.Context(), api, f.Job.Name, name, a.timeout)
		},
	}
	cmd.Flags().StringVar(&a.tick, "tick", "", "The tick that the run is for, as a `TIME` such as 2026-11-23T02:30:00Z; none if empty.")
	cmd.Flags().StringVar(&a.name, "name", "", "Name of the run, never used before; a name made from the current time if empty.")
	a.flags(cmd, "the run has ended; if the run fails, this command fails")
	return c.formatted(cmd, ofChanges)
}

// request returns the annotation's value, or an error that says why the run would not start now.
func (a *asking) request(f show.Facts) (string, error) {
	job := f.Job
	see := fmt.Sprintf("see kubectl singleton status %s -n %s", job.Name, job.Namespace)
	switch underWay, asked := show.UnderWay(f), show.Asked(f); {
	case job.Spec.RunPolicy != v1alpha1.RunPolicyRunToCompletion:
		return "", fmt.Errorf("%s runs continuously (spec.runPolicy is Continuous), so it has no runs: create a job with runPolicy RunToCompletion, or restart this one "+
			"with kubectl singleton restart", job.Name)
	case job.Spec.Suspend:
		return "", fmt.Errorf("%s is suspended: kubectl singleton resume %s -n %s, then ask again", job.Name, job.Name, job.Namespace)
	case underWay != nil && job.Spec.Schedule == nil:
		return "", fmt.Errorf("a run is in progress (%s, attempt %d), and another would be skipped: ask again when it has ended; %s",
			show.RunName(underWay), underWay.Attempts, see)
	case underWay != nil && job.Spec.Schedule.Overlap == string(schedule.OverlapSkip):
		return "", fmt.Errorf("a run is in progress (%s, attempt %d), and another would be skipped: ask again when it has ended, or set spec.schedule.overlap to "+
			"Queue; %s", show.RunName(underWay), underWay.Attempts, see)
	case asked != "":
		return "", fmt.Errorf("the run %s is already requested and has not started: wait for it, or withdraw it with kubectl annotate singletonjob %s "+
			"-n %s %s-", asked, job.Name, job.Namespace, contract.RunNowAnnotation)
	case job.Spec.Schedule == nil && len(job.Status.Runs) == 0 && underWay == nil:
		return "", fmt.Errorf("the run of %s has not started yet, and starts by itself; %s", job.Name, see)
	}
	name, err := a.runName(f)
	if err != nil || a.tick == "" {
		return name, err
	}
	tick, err := parseTick(a.tick, f.Now)
	return name + "@" + tick, err
}

// The limits of run names in the Lease.
const (
	maxRunName     = 63
	runNameLetters = "abcdefghijklmnopqrstuvwxyz0123456789-."
)

func (a *asking) runName(f show.Facts) (string, error) {
	const tail = 4 // two users may ask in the same second
	name := cmp.Or(a.name, "manual-"+f.Now.UTC().Format("20060102-150405")+"-"+rand.String(tail))
	switch {
	case len(name) > maxRunName || strings.Trim(name, runNameLetters) != "":
		return "", fmt.Errorf("--name=%s: a run's name has at most %d characters from a-z, 0-9, - and the dot", show.Clean(name), maxRunName)
	case show.RunOf(f, name) != nil || show.PassedOver(f, name):
		return "", fmt.Errorf("--name=%s: this name was used before, and each name starts only one run: use another name", name)
	}
	return name, nil
}

// parseTick returns the name of a tick: a time in UTC, in whole seconds.
func parseTick(text string, now time.Time) (string, error) {
	at, err := time.Parse(time.RFC3339, text)
	if err != nil {
		return "", fmt.Errorf("--tick=%s: not a time with an offset from UTC, such as 2026-11-23T02:30:00Z or 2026-11-23T03:30:00+01:00", show.Clean(text))
	}
	tick, ok := schedule.StampOf(at)
	switch {
	case !ok || at.Nanosecond() != 0:
		return "", fmt.Errorf("--tick=%s: a tick must be a whole second in the years 1970 to 9999", show.Clean(text))
	case at.After(now):
		return "", fmt.Errorf("--tick=%s: this tick is %s in the future, and the schedule will run it; omit --tick to start a run now", show.Clean(text), show.Ago(at.Sub(now)))
	}
	return tick.String(), nil
}

// noteTick prints a note for common mistakes with a tick: the wrong time zone, and a tick that already has a complete run.
func (c *cli) noteTick(f show.Facts, value string) {
	_, name, found := strings.Cut(value, "@")
	tick, ok := schedule.ParseStamp(name)
	if !found || !ok {
		return
	}
	for i := range f.Job.Status.Runs {
		if run := &f.Job.Status.Runs[i]; run.Tick != nil && run.Tick.Unix() == int64(tick) && run.State == string(lease.RunComplete) {
			fmt.Fprintf(c.ErrOut, "note: this tick has already run: %s is Complete; the new run has another SINGLETONJOB_RUN_ID and the same SINGLETONJOB_TICK\n", show.RunName(run))
			break
		}
	}
	s := f.Job.Spec.Schedule
	if s == nil {
		return
	}
	parsed, err := schedule.Parse(schedule.Spec{Cron: s.Cron, TimeZone: s.TimeZone})
	if err != nil {
		return
	}
	if next, ok := parsed.Next(tick - 1); !ok || next != tick {
		fmt.Fprintf(c.ErrOut, "note: %s is not a tick of %s in %s; the run gets it anyway\n", name, s.Cron, s.TimeZone)
	}
}

// awaitRun returns when the run of this name has ended, with an error unless the run is complete.
func (c *cli) awaitRun(ctx context.Context, api *cluster, job, name string, limit time.Duration) error {
	var failed error
	err := c.await(ctx, api, job, limit, func(f show.Facts) (bool, string) {
		run := show.RunOf(f, name)
		switch {
		case run == nil && show.PassedOver(f, name):
			failed = fmt.Errorf("the run %s was skipped, because another run was in progress: ask again when that run has ended", name)
			return true, ""
		case run == nil:
			return false, "for the run to start; " + waitsFor(show.View(f))
		case !show.Final(run):
			return false, fmt.Sprintf("the run is %s, attempt %d on %s", run.State, run.Attempts, run.Pod)
		case !told(f, run.ID):
			return false, "for the operator to see that the run has ended"
		case run.State == string(lease.RunComplete):
			return true, ""
		}
		failed = fmt.Errorf("the run %s ended as %s, not as Complete: %s in attempt %d on %s, exit status %d; see kubectl logs %s -n %s",
			name, run.State, run.Reason, run.Attempts, run.Pod, exitCode(run), run.Pod, f.Job.Namespace)
		return true, ""
	})
	return errors.Join(err, failed)
}

// told reports whether the job's status, which other commands show, records that a run has ended. The Lease records it first.
func told(f show.Facts, id string) bool {
	return slices.ContainsFunc(f.Job.Status.Runs, func(r v1alpha1.RunStatus) bool { return r.ID == id && show.Final(&r) })
}

func exitCode(run *v1alpha1.RunStatus) int32 {
	if run.ExitCode == nil {
		return 0
	}
	return *run.ExitCode
}

func (c *cli) runs() *cobra.Command {
	return listed(c, &cobra.Command{
		Use: "runs NAME", Short: "List the runs of a job that runs to completion, newest first", Example: "  kubectl singleton runs report -o wide",
	}, "run", func(s *v1alpha1.SingletonJobStatus) []v1alpha1.RunStatus { return s.Runs }, show.RunHistory)
}
