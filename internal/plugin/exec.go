package plugin

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net/url"

	"github.com/spf13/cobra"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/client-go/kubernetes"
	kubescheme "k8s.io/client-go/kubernetes/scheme"
	"k8s.io/client-go/rest"
	"k8s.io/client-go/tools/remotecommand"
	kubectlexec "k8s.io/kubectl/pkg/cmd/exec"

	"github.com/singletonjob/operator/internal/show"
)

func (c *cli) exec() *cobra.Command {
	o := &kubectlexec.ExecOptions{StreamOptions: kubectlexec.StreamOptions{IOStreams: c.IOStreams}}
	cmd := &cobra.Command{
		Use: "exec NAME [-i] [-t] -- COMMAND [ARGUMENT...]", DisableFlagsInUseLine: true,
		Short: "Execute a command in the active Pod's gated container",
		Long: `Execute a command in the gated container of the active Pod, as kubectl exec does. If another Pod becomes active, the command keeps
running where it started. This command exits with the exit status of that command.`,
		Example:           "  kubectl singleton exec billing -it -- sh",
		ValidArgsFunction: c.completeJob,
		Args: func(cmd *cobra.Command, args []string) error {
			if dash := cmd.ArgsLenAtDash(); dash != 1 || len(args) < 2 {
				return errors.New("expected the NAME of one SingletonJob, --, and the command")
			}
			return nil
		},
		RunE: func(cmd *cobra.Command, args []string) error {
			api, err := c.connect()
			if err != nil {
				return err
			}
			if err := api.active(cmd.Context(), bare(args[0]), o); err != nil {
				return err
			}
			o.Command, o.Executor = args[1:], &interruptible{until: cmd.Context}
			return o.Run()
		},
	}
	cmd.Flags().BoolVarP(&o.Stdin, "stdin", "i", false, "Pass stdin to the command.")
	cmd.Flags().BoolVarP(&o.TTY, "tty", "t", false, "Stdin is a terminal.")
	cmd.Flags().BoolVarP(&o.Quiet, "quiet", "q", false, "Print only the output of the command.")
	cmd.Flags().StringVarP(&o.ContainerName, "container", "c", "", "Use this container instead of the gated one.")
	return cmd
}

// active fills in the Pod and container in which a job's process runs.
func (c *cluster) active(ctx context.Context, name string, o *kubectlexec.ExecOptions) error {
	f, err := c.facts(ctx, name)
	if err != nil {
		return err
	}
	v := show.View(f)
	if v.Active == nil {
		return fmt.Errorf("no process is active; see kubectl singleton why %s -n %s", name, c.namespace)
	}
	o.Namespace, o.PodName = c.namespace, v.Active.Pod
	for i := range f.Pods {
		if o.ContainerName == "" && f.Pods[i].Name == o.PodName {
			o.ContainerName = show.GatedName(&f.Pods[i])
		}
	}
	core, err := kubernetes.NewForConfig(c.config)
	if err != nil {
		return err
	}
	o.PodClient, o.Config = core.CoreV1(), rest.CopyConfig(c.config)
	o.Config.APIPath, o.Config.GroupVersion = "/api", &corev1.SchemeGroupVersion
	o.Config.NegotiatedSerializer = kubescheme.Codecs.WithoutConversion()
	return nil
}

// interruptible ends with a context. kubectl's own executor takes no context, because in kubectl an interrupt ends the program.
type interruptible struct {
	kubectlexec.DefaultRemoteExecutor
	until func() context.Context
}

func (i *interruptible) Execute(
	to *url.URL, config *rest.Config, stdin io.Reader, stdout, stderr io.Writer, tty bool, sizes remotecommand.TerminalSizeQueue,
) error {
	return i.ExecuteWithContext(i.until(), to, config, stdin, stdout, stderr, tty, sizes)
}
