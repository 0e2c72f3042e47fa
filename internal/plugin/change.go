package plugin

import (
	"context"
	"encoding/json"
	"fmt"
	"time"

	"github.com/spf13/cobra"
	"k8s.io/apimachinery/pkg/types"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/singletonjob/operator/api/v1alpha1"
	"github.com/singletonjob/operator/internal/show"
)

// waiting holds the flags of commands that can wait for their effect.
type waiting struct {
	wait    bool
	timeout time.Duration
}

func (w *waiting) flags(cmd *cobra.Command, until string) {
	const patience = 5 * time.Minute
	cmd.Flags().BoolVar(&w.wait, "wait", false, "Return when "+until+".")
	cmd.Flags().DurationVar(&w.timeout, "timeout", patience, "Maximum time that --wait waits; 0 for no limit.")
}

// patch changes some fields of a job.
func (c *cluster) patch(ctx context.Context, job *v1alpha1.SingletonJob, fields map[string]any) error {
	raw, err := json.Marshal(fields)
	if err != nil {
		return err
	}
	return c.Patch(ctx, job, client.RawPatch(types.MergePatchType, raw))
}

// changed prints what a command did, as kubectl does.
func (c *cli) changed(name, what string) error {
	if c.output == "name" {
		what = ""
	} else {
		what = " " + what
	}
	_, err := fmt.Fprintln(c.Out, object(name)+what)
	return err
}

func (c *cli) suspend() *cobra.Command {
	return c.suspending("suspend NAME", "Stop the process and delete the candidates; token and history stay", "suspended", true,
		"no process runs any more", func(f show.Facts) (bool, string) {
			v := show.View(f)
			reason := conditionReason(v, v1alpha1.ConditionActive)
			return v.Rollout.Observed && reason == v1alpha1.ReasonSuspended, waitsFor(v)
		})
}

func (c *cli) resume() *cobra.Command {
	return c.suspending("resume NAME", "Let a suspended job run again", "resumed", false,
		"a process runs, or waits for its next run", func(f show.Facts) (bool, string) {
			v := show.View(f)
			return v.Rollout.Observed && (v.Active != nil || rests(v)), waitsFor(v)
		})
}

// suspending returns the command that sets spec.suspend.
func (c *cli) suspending(use, short, did string, value bool, until string, done func(show.Facts) (bool, string)) *cobra.Command {
	var w waiting
	cmd := &cobra.Command{
		Use: use, Short: short, Args: jobNamed, ValidArgsFunction: c.completeJob,
		RunE: func(cmd *cobra.Command, args []string) error {
			api, err := c.connect()
			if err != nil {
				return err
			}
			job, err := api.job(cmd.Context(), bare(args[0]))
			if err != nil {
				return err
			}
			what := did
			if job.Spec.Suspend == value {
				what += " already"
			} else if err := api.patch(cmd.Context(), job, map[string]any{"spec": map[string]any{"suspend": value}}); err != nil {
				return err
			}
			if err := c.changed(job.Name, what); err != nil || !w.wait {
				return err
			}
			return c.await(cmd.Context(), api, job.Name, w.timeout, done)
		},
	}
	w.flags(cmd, until)
	return c.formatted(cmd, ofChanges)
}

// rests reports whether a job that runs to completion has nothing to run now.
func rests(v show.Job) bool {
	return v.Runs != nil && conditionReason(v, v1alpha1.ConditionProgressing) == v1alpha1.ReasonUpToDate
}

func conditionReason(v show.Job, name string) string {
	for _, c := range v.Conditions {
		if c.Type == name {
			return c.Reason
		}
	}
	return ""
}

// waitsFor describes in a few words what a job waits for.
func waitsFor(v show.Job) string {
	if !v.Rollout.Observed {
		return "for the operator to see the change"
	}
	for _, c := range v.Conditions {
		if c.Type == v1alpha1.ConditionProgressing {
			return c.Reason + ": " + show.Clean(c.Message)
		}
	}
	return "for the operator to report a status"
}
