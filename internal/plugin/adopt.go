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
	var output string
	cmd := &cobra.Command{
		Use: "adopt deployment/NAME | statefulset/NAME", Short: "Turn a Deployment or StatefulSet into a singleton",
		Long: `Create a SingletonJob for a Deployment or StatefulSet, scale the workload to 0, and wait until the job's process runs. Two processes
never run at the same time. You can interrupt the command anywhere and run it again. --undo goes back: it suspends the SingletonJob until
its Pods no longer exist, scales the workload to the number of replicas that it had, and deletes the SingletonJob.`,
		Example: "  kubectl singleton adopt deployment/billing --dry-run\n  kubectl singleton adopt deployment/billing\n" +
			"  kubectl singleton adopt deployment/billing --undo",
		ValidArgsFunction: cobra.FixedCompletions([]string{"deployment/", "statefulset/"}, cobra.ShellCompDirectiveNoFileComp|cobra.ShellCompDirectiveNoSpace),
		Args: func(cmd *cobra.Command, args []string) error {
			switch len(args) {
			case 1:
				o.Kind, o.Name, _ = strings.Cut(args[0], "/")
			case 2: // kubectl accepts this form too
				o.Kind, o.Name = args[0], args[1]
			}
			if o.Kind == "" || o.Name == "" || strings.Contains(o.Name, "/") {
				return fmt.Errorf("expected one workload, as deployment/NAME or statefulset/NAME, got %q", strings.Join(args, " "))
			}
			switch {
			case output != "" && output != "yaml":
				return fmt.Errorf("--output=%s: adopt accepts yaml", output)
			case output != "" && (!o.DryRun || o.Undo):
				return errors.New("--output=yaml prints the SingletonJob that would be created: use it with --dry-run, and without --undo")
			}
			o.ManifestOnly = output != ""
			return suits(cmd, o)
		},
		RunE: func(cmd *cobra.Command, _ []string) error {
			api, err := c.connect()
			if err != nil {
				return err
			}
			return c.runAdopt(cmd.Context(), api, o)
		},
	}
	cmd.Flags().StringVar(&o.JobName, "name", "", "Name of the SingletonJob; if empty, the workload's name, and for --undo the one that has the workload.")
	cmd.Flags().BoolVar(&o.Undo, "undo", false, "Go back: delete the SingletonJob, and let the workload run by itself.")
	cmd.Flags().Int32Var(&o.Replicas, "replicas", 0, "With --undo, scale the workload to this `NUMBER`; if not set, to the number that adopt recorded.")
	cmd.Flags().Int32Var(&o.Candidates, "candidates", 0, "Number of candidates; 0 for the default of 2.")
	cmd.Flags().StringVar(&o.Container, "container", "", "Which of several containers is gated; if empty, the one that the annotation kubectl.kubernetes.io/default-container names.")
	cmd.Flags().Var((*dryRun)(&o.DryRun), "dry-run", "Print the SingletonJob and the steps, and change nothing.")
	cmd.Flags().Lookup("dry-run").NoOptDefVal = "true"
	cmd.Flags().StringVarP(&output, "output", "o", "", "With --dry-run: yaml prints only the SingletonJob on stdout, for a file.")
	return cmd
}

func (c *cli) runAdopt(ctx context.Context, api *cluster, o adopt.Options) error {
	o.Client, o.Namespace, o.Out, o.ErrOut = api, api.namespace, c.Out, c.ErrOut
	err := adopt.Run(ctx, o)
	if err != nil && ctx.Err() != nil { // Run prints no error for an interrupted command
		fmt.Fprintln(c.ErrOut, "interrupted; run it again to continue")
	}
	return err
}

// suits checks the flags that belong to one direction only.
func suits(cmd *cobra.Command, o adopt.Options) error {
	for _, name := range []string{"candidates", "container"} {
		if o.Undo && cmd.Flags().Changed(name) {
			return fmt.Errorf("--%s does not go with --undo", name)
		}
	}
	if cmd.Flags().Changed("replicas") && (!o.Undo || o.Replicas < 1) {
		return fmt.Errorf("--replicas=%d: expected a number from 1, together with --undo", o.Replicas)
	}
	return nil
}

// dryRun is a switch that also accepts kubectl's values. A dry run changes nothing, and has the API server check the SingletonJob, so client
// and server are the same.
type dryRun bool

func (d *dryRun) Set(text string) error {
	switch text {
	case "true", "client", "server":
		*d = true
	case "false", "none":
		*d = false
	default:
		return errors.New("expected --dry-run alone, --dry-run=client, --dry-run=server or --dry-run=none")
	}
	return nil
}

func (d *dryRun) String() string { return strconv.FormatBool(bool(*d)) }

func (d *dryRun) Type() string { return "bool" }
