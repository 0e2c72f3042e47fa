package plugin

import (
	"cmp"
	"errors"
	"fmt"
	"slices"
	"strings"
	"time"

	"github.com/spf13/cobra"
	"k8s.io/apimachinery/pkg/types"

	"github.com/singletonjob/operator/api/v1alpha1"
	"github.com/singletonjob/operator/internal/contract"
	"github.com/singletonjob/operator/internal/lease"
	"github.com/singletonjob/operator/internal/show"
)

// annotate returns a patch that asks the operator for a one-time action.
func annotate(name, value string) map[string]any {
	return map[string]any{"metadata": map[string]any{"annotations": map[string]any{name: value}}}
}

func (c *cli) restart() *cobra.Command {
	var w waiting
	cmd := &cobra.Command{
		Use: "restart NAME", Short: "Replace every candidate, with one handover, as a rollout does",
		Long: `Replace every candidate with a new one, with one handover, as a rollout does. The template does not change. The command sets the
job's annotation ` + contract.RestartedAtAnnotation + `.`,
		Example: "  kubectl singleton restart billing --wait", Args: jobNamed, ValidArgsFunction: c.completeJob,
		RunE: func(cmd *cobra.Command, args []string) error {
			api, f, err := c.one(cmd.Context(), args[0])
			if err != nil {
				return err
			}
			before := map[types.UID]bool{}
			for i := range f.Pods {
				before[f.Pods[i].UID] = true
			}
			at := c.now().UTC().Format(time.RFC3339Nano)
			if err := api.patch(cmd.Context(), f.Job, annotate(contract.RestartedAtAnnotation, at)); err != nil {
				return err
			}
			if err := c.changed(f.Job.Name, "restarted"); err != nil || !w.wait {
				return err
			}
			return c.await(cmd.Context(), api, f.Job.Name, w.timeout, func(f show.Facts) (bool, string) { return restarted(f, before) })
		},
	}
	w.flags(cmd, "every candidate is new and a process runs; a suspended job has neither")
	return c.formatted(cmd, ofChanges)
}

// restarted reports whether all Pods from before the restart are replaced, and the job is as it should be.
func restarted(f show.Facts, before map[types.UID]bool) (bool, string) {
	v := show.View(f)
	old := 0
	for i := range f.Pods {
		if before[f.Pods[i].UID] {
			old++
		}
	}
	if old > 0 {
		return false, fmt.Sprintf("for %d old candidates to end; %s", old, waitsFor(v))
	}
	settled := slices.Contains([]string{v1alpha1.ReasonUpToDate, v1alpha1.ReasonSuspended}, conditionReason(v, v1alpha1.ConditionProgressing))
	return settled && (v.Active != nil || f.Job.Spec.Suspend || rests(v)), waitsFor(v)
}

func (c *cli) switchover() *cobra.Command {
	var w waiting
	var to string
	cmd := &cobra.Command{
		Use: "switchover NAME", Short: "Hand over to a standby",
		Long: `Ask the active Pod to hand over to a standby: the one that --to names, or any standby that is ready. The agent stops the process as it does
when the Pod is deleted. The standby's process starts as soon as the old process has ended. The command sets the job's annotation
` + contract.SwitchoverAnnotation + `, which applies only to the current tenure.`,
		Example: "  kubectl singleton switchover billing --wait\n  kubectl singleton switchover billing --to billing-752pq9t-0",
		Args:    jobNamed, ValidArgsFunction: c.completeJob,
		RunE: func(cmd *cobra.Command, args []string) error {
			api, f, err := c.one(cmd.Context(), args[0])
			if err != nil {
				return err
			}
			v := show.View(f)
			to = strings.TrimPrefix(to, "pod/")
			if err := canSwitch(v, to); err != nil {
				return err
			}
			token := v.Active.Token
			asked := to
			if asked == "" {
				asked = lease.AnyPod
			}
			if err := api.patch(cmd.Context(), f.Job, annotate(contract.SwitchoverAnnotation, fmt.Sprintf("%s@%d", asked, token))); err != nil {
				return err
			}
			if err := c.changed(v.Name, "asked to hand over"); err != nil || !w.wait {
				return err
			}
			var end show.Facts
			err = c.await(cmd.Context(), api, v.Name, w.timeout, func(f show.Facts) (bool, string) {
				end = f
				return switched(f, token)
			})
			return cmp.Or(err, tookOver(end, token, to))
		},
	}
	cmd.Flags().StringVar(&to, "to", "", "The standby `POD` to hand over to; any ready standby if empty.")
	_ = cmd.RegisterFlagCompletionFunc("to", c.completeStandby)
	w.flags(cmd, "a process runs in another tenure")
	return c.formatted(cmd, ofChanges)
}

// canSwitch returns an error if a switchover would not happen now. It ignores obstacles that only the operator knows and that can
// pass by themselves.
func canSwitch(v show.Job, to string) error {
	if v.Active == nil {
		return fmt.Errorf("no process is active, so there is nothing to hand over; see kubectl singleton why %s -n %s", v.Name, v.Namespace)
	}
	var ready []string
	known := false
	for _, c := range v.Candidates {
		known = known || c.Pod == to
		if c.Ready && c.Pod != v.Active.Pod {
			ready = append(ready, c.Pod)
		}
	}
	standbys := "no standby is ready; see kubectl singleton why " + v.Name + " -n " + v.Namespace
	if len(ready) > 0 {
		standbys = "ready standbys: " + strings.Join(ready, ", ")
	}
	switch {
	case to == v.Active.Pod:
		return fmt.Errorf("%s is already active; %s", to, standbys)
	case to != "" && !known:
		return fmt.Errorf("%s is not a candidate of %s; %s", to, v.Name, standbys)
	case to != "" && !slices.Contains(ready, to):
		return fmt.Errorf("%s is not ready to take over; %s", to, standbys)
	case len(ready) == 0:
		return errors.New(standbys)
	}
	return nil
}

// switched reports whether a process runs in a later tenure than the given token's.
func switched(f show.Facts, token int64) (bool, string) {
	v := show.View(f)
	switch {
	case v.Active == nil:
		return false, "for a process to run; " + waitsFor(v)
	case v.Active.Token <= token:
		return false, "for " + v.Active.Pod + " to hand over; " + waitsFor(v)
	case f.Job.Status.FencingToken <= token:
		return false, "for the operator to see that " + v.Active.Pod + " has the Lease"
	}
	return true, ""
}

// tookOver returns an error if a switchover to one Pod has ended with another Pod's tenure, as when the process ends by itself before
// it is asked to. An empty to stands for any Pod.
func tookOver(f show.Facts, token int64, to string) error {
	var taker string
	for _, s := range show.Spans(f) { // newest first
		if s.Token > token {
			taker = s.Pod
		}
	}
	if to == "" || taker == "" || taker == to {
		return nil
	}
	return fmt.Errorf("%s took over, not %s: see the reason in kubectl singleton history %s -n %s", taker, to, f.Job.Name, f.Job.Namespace)
}

// completeStandby completes a flag with the Pods that could take over.
func (c *cli) completeStandby(cmd *cobra.Command, args []string, begin string) ([]string, cobra.ShellCompDirective) {
	if len(args) != 1 {
		return nil, cobra.ShellCompDirectiveNoFileComp
	}
	_, f, err := c.one(cmd.Context(), args[0])
	if err != nil {
		return nil, cobra.ShellCompDirectiveNoFileComp
	}
	var pods []string
	for _, candidate := range show.View(f).Candidates {
		if candidate.Role == contract.RoleStandby && candidate.Ready && strings.HasPrefix(candidate.Pod, begin) {
			pods = append(pods, candidate.Pod)
		}
	}
	return pods, cobra.ShellCompDirectiveNoFileComp
}
