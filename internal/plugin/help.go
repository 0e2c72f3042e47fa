package plugin

import (
	"fmt"

	"github.com/spf13/cobra"

	"github.com/singletonjob/operator/internal/show"
)

// usage is the usage text of a command, wrapped to a number of columns. It leaves out the flags by which kubectl finds a cluster,
// because they would take more lines than the rest.
const usage = `Usage:{{if .Runnable}}
  {{.UseLine}}{{end}}{{if .HasAvailableSubCommands}}
  {{.CommandPath}} COMMAND{{end}}{{if .HasExample}}

Examples:
{{.Example}}{{end}}{{if .HasAvailableSubCommands}}

Commands:{{range .Commands}}{{if .IsAvailableCommand}}
  {{rpad .Name .NamePadding}} {{.Short}}{{end}}{{end}}{{end}}

Flags:
{{.LocalNonPersistentFlags.FlagUsagesWrapped %d | trimTrailingWhitespaces}}

--namespace, --context, --kubeconfig and others work as in kubectl:
"kubectl options" lists them.
`

// narrow is the width of the help without a terminal, and the minimum width on a terminal.
const narrow = 80

// layOut wraps the help of all commands to a terminal with this many columns; 0 if there is no terminal.
func layOut(root *cobra.Command, columns int) {
	columns = max(columns, narrow)
	root.CompletionOptions.HiddenDefaultCmd = true // kubectl has its own way to complete the arguments of plugins
	root.SetUsageTemplate(fmt.Sprintf(usage, columns))
	for _, cmd := range append(root.Commands(), root) {
		cmd.Long = show.Reflow(cmd.Long, columns)
	}
}
