package plugin

import (
	"errors"

	"github.com/spf13/cobra"
	"k8s.io/kubectl/pkg/cmd/debug"
	kubectlexec "k8s.io/kubectl/pkg/cmd/exec"
)

// copying are flags of kubectl debug that make a copy of the pod. A copy has the pod's agent and its identity, and would stand for
// election beside it.
var copying = []string{
	"copy-to", "replace", "same-node", "set-image", "share-processes",
	"keep-labels", "keep-annotations", "keep-liveness", "keep-readiness", "keep-startup", "keep-init-containers", "filename",
}

func (c *cli) debug() *cobra.Command {
	o := debug.NewDebugOptions(c.IOStreams)
	cmd := &cobra.Command{
		Use: "debug NAME --image=IMAGE [-it] [-- COMMAND [ARGUMENT...]]", DisableFlagsInUseLine: true,
		Short: "Start a debug container in the active pod, beside its process",
		Long: `Start an ephemeral container in the active pod, as kubectl debug does, which sees the processes of the gated container. A pod is
never copied: the copy would stand for election.`,
		Example:           "  kubectl singleton debug billing -it --image=busybox:1.37",
		ValidArgsFunction: c.completeJob,
		Args: func(cmd *cobra.Command, args []string) error {
			for _, name := range copying {
				if cmd.Flags().Changed(name) {
					return errors.New("--" + name + ": a pod of a SingletonJob is not copied, since the copy would stand for election")
				}
			}
			if dash := cmd.ArgsLenAtDash(); dash != 1 && (dash >= 0 || len(args) != 1) {
				return errors.New("want the NAME of one SingletonJob, and what is to run behind --")
			}
			if o.Image == "" { // kubectl's own words would offer a copy
				return errors.New("--image is missing, such as --image=busybox:1.37: what the debug container is made of")
			}
			return nil
		},
		RunE: func(cmd *cobra.Command, args []string) error {
			api, err := c.connect()
			if err != nil {
				return err
			}
			var where kubectlexec.ExecOptions
			if err := api.active(cmd.Context(), bare(args[0]), &where); err != nil {
				return err
			}
			if o.TargetContainer == "" {
				o.TargetContainer = where.ContainerName
			}
			args[0] = where.PodName
			if err := o.Complete(c.flags, cmd, args); err != nil {
				return err
			}
			if err := o.Validate(); err != nil {
				return err
			}
			return o.Run(c.flags, cmd)
		},
	}
	o.AddFlags(cmd)
	for _, name := range copying {
		_ = cmd.Flags().MarkHidden(name)
	}
	return cmd
}
