package plugin

import (
	"fmt"

	"github.com/spf13/cobra"

	"github.com/singletonjob/operator/internal/contract"
	"github.com/singletonjob/operator/internal/show"
)

func (c *cli) version() *cobra.Command {
	return c.formatted(&cobra.Command{
		Use: "version", Short: "Print the versions of this plugin and of the cluster's operators",
		Long: `Print the versions of this plugin and of the operators' Pods in the cluster. They work together if they are at most one minor version
apart; otherwise a line on stderr says so.`,
		Example: "  kubectl singleton version",
		Args:    cobra.NoArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			api, err := c.connect()
			if err != nil {
				return err
			}
			pods, known := api.operators(cmd.Context())
			v := show.VersionsOf(contract.Version, pods, known)
			if v.Skew != "" {
				fmt.Fprintln(c.ErrOut, "warning: "+v.Skew)
			}
			return c.print("", v, func(bool) string { return v.Text() })
		},
	}, []string{"json", "yaml"})
}
