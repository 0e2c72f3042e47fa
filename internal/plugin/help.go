package plugin

import (
	"fmt"

	"github.com/spf13/cobra"

	"github.com/singletonjob/operator/internal/show"
)

// usage is how a command is used, in so many columns. The flags by which kubectl finds a cluster would take more lines than all else.
const usage = `Usage:{{if .Runnable}}
  {{.UseLine}}{{end}}{{if .HasAvailableSubCommands}}
  {{.CommandPath}} COMMAND{{end}}{{if .HasExample}}

Examples:
{{.Example}}{{end}}{{if .HasAvailableSubCommands}}

Commands:{{range .Commands}}{{if .IsAvailableCommand}}
  {{rpad .Name .NamePadding}} {{.Short}}{{end}}{{end}}{{end}}

Flags:
{{.LocalNonPersistentFlags.FlagUsagesWrapped %d | trimTrailingWhitespaces}}

--namespace, --context, --kubeconfig and others mean what they mean to kubectl:
"kubectl options" lists them.
`

// narrow is the width of the help where there is no terminal, and its least on one.
const narrow = 80

// layOut fits the help of all commands to a terminal of so many columns; 0 for none.
func layOut(root *cobra.Command, columns int) {
	columns = max(columns, narrow)
	root.CompletionOptions.HiddenDefaultCmd = true // kubectl has its own way to complete what plugins take
	root.SetUsageTemplate(fmt.Sprintf(usage, columns))
	for _, cmd := range append(root.Commands(), root) {
		cmd.Long = show.Reflow(cmd.Long, columns)
	}
}
