package plugin

import (
	"errors"

	"github.com/spf13/cobra"
	"k8s.io/kubectl/pkg/cmd/debug"
	kubectlexec "k8s.io/kubectl/pkg/cmd/exec"
)

// copying are the flags of kubectl debug that copy the Pod. A copy would have the Pod's agent and identity, and would stand for
// election beside it.
var copying = []string{
	"copy-to", "replace", "same-node", "set-image", "share-processes",
	"keep-labels", "keep-annotations", "keep-liveness", "keep-readiness", "keep-startup", "keep-init-containers", "filename",
}

func (c *cli) debug() *cobra.Command {
	o := debug.NewDebugOptions(c.IOStreams)
	cmd := &cobra.Command{
		Use: "debug NAME --image=IMAGE [-it] [-- COMMAND [ARGUMENT...]]", DisableFlagsInUseLine: true,
		Short: "Start a debug container in the active Pod, beside its process",
		Long: `Start an ephemeral container in the active Pod, as kubectl debug does. It sees the processes of the gated container. The command
never copies a Pod, because the copy would stand for election.`,
		Example:           "  kubectl singleton debug billing -it --image=busybox:1.37",
		ValidArgsFunction: c.completeJob,
		Args: func(cmd *cobra.Command, args []string) error {
			for _, name := range copying {
				if cmd.Flags().Changed(name) {
					return errors.New("--" + name + ": a Pod of a SingletonJob cannot be copied, because the copy would stand for election")
				}
			}
			if dash := cmd.ArgsLenAtDash(); dash != 1 && (dash >= 0 || len(args) != 1) {
				return errors.New("expected the NAME of one SingletonJob, and the command after --")
			}
			if o.Image == "" { // kubectl's own message would suggest a copy
				return errors.New("--image is missing: set the debug container's image, such as --image=busybox:1.37")
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
