package plugin

import (
	"context"
	"errors"
	"fmt"
	"strconv"
	"strings"

	"github.com/spf13/cobra"

	"github.com/singletonjob/operator/internal/adopt"
)

func (c *cli) adopt() *cobra.Command {
	var o adopt.Options
	cmd := &cobra.Command{
		Use: "adopt deployment/NAME | statefulset/NAME", Short: "Make a workload that runs a singleton",
		Long: `Make a SingletonJob of a Deployment or StatefulSet, scale that to 0, and wait until the job's process runs. Never are two at work.
It may be interrupted anywhere, and run again.`,
		Example:           "  kubectl singleton adopt deployment/billing --dry-run\n  kubectl singleton adopt deployment/billing",
		ValidArgsFunction: cobra.FixedCompletions([]string{"deployment/", "statefulset/"}, cobra.ShellCompDirectiveNoFileComp|cobra.ShellCompDirectiveNoSpace),
		Args: func(_ *cobra.Command, args []string) error {
			switch len(args) {
			case 1:
				o.Kind, o.Name, _ = strings.Cut(args[0], "/")
			case 2: // as kubectl takes it, too
				o.Kind, o.Name = args[0], args[1]
			}
			if o.Kind == "" || o.Name == "" || strings.Contains(o.Name, "/") {
				return fmt.Errorf("want one workload, as deployment/NAME or statefulset/NAME, got %q", strings.Join(args, " "))
			}
			return nil
		},
		RunE: func(cmd *cobra.Command, _ []string) error {
			api, err := c.connect()
			if err != nil {
				return err
			}
			return c.runAdopt(cmd.Context(), api, o)
		},
	}
	cmd.Flags().StringVar(&o.JobName, "name", "", "Name of the SingletonJob; that of the workload if empty.")
	cmd.Flags().Int32Var(&o.Candidates, "candidates", 0, "How many candidates it has; 0 for the default of 2.")
	cmd.Flags().StringVar(&o.Container, "container", "", "Which of several containers is gated; that of the annotation kubectl.kubernetes.io/default-container if empty.")
	cmd.Flags().Var((*dryRun)(&o.DryRun), "dry-run", "Print the SingletonJob and what would be done, and do nothing.")
	cmd.Flags().Lookup("dry-run").NoOptDefVal = "true"
	return cmd
}

func (c *cli) runAdopt(ctx context.Context, api *cluster, o adopt.Options) error {
	o.Client, o.Namespace, o.Out, o.ErrOut = api, api.namespace, c.Out, c.ErrOut
	err := adopt.Run(ctx, o)
	if err != nil && ctx.Err() != nil { // an interrupted command says nothing more by itself
		fmt.Fprintln(c.ErrOut, "interrupted; run it again to go on")
	}
	return err
}

// dryRun is a switch that takes kubectl's words for it, too.
type dryRun bool

func (d *dryRun) Set(text string) error {
	switch text {
	case "true", "client":
		*d = true
	case "false", "none":
		*d = false
	default:
		return errors.New("want --dry-run alone, or client, or none: all that it says is found out without a write")
	}
	return nil
}

func (d *dryRun) String() string { return strconv.FormatBool(bool(*d)) }

func (d *dryRun) Type() string { return "bool" }
