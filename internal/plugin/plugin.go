// Package plugin implements kubectl singleton: its commands and their requests to a cluster. Package show formats the output.
package plugin

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"os"
	"slices"
	"strings"
	"time"

	"github.com/go-logr/logr"
	"github.com/spf13/cobra"
	"golang.org/x/term"
	"k8s.io/cli-runtime/pkg/genericclioptions"
	"k8s.io/cli-runtime/pkg/genericiooptions"
	utilexec "k8s.io/client-go/util/exec"
	crlog "sigs.k8s.io/controller-runtime/pkg/log"

	"github.com/singletonjob/operator/internal/contract"
	"github.com/singletonjob/operator/internal/show"
)

// Exit statuses. The command exec exits with the status of the command that it ran, if it ran.
const (
	ExitOK = 0
	// ExitError: the command failed; one line on stderr gives the reason and the remedy.
	ExitError = 1
	// ExitUsage: the command line is wrong.
	ExitUsage = 2
	// ExitAmiss: "why" found a problem.
	ExitAmiss = 3
	// ExitInterrupted: interrupted; shells use the same status for SIGINT.
	ExitInterrupted = 130
)

// errAmiss ends why, after it has printed its findings.
var errAmiss = errors.New("something is not as it should be")

// cli is the state that all commands share.
type cli struct {
	genericiooptions.IOStreams
	flags  *genericclioptions.ConfigFlags
	output string
	// formats maps a command to the values that its -o accepts.
	formats map[*cobra.Command][]string
	// started: the command line was accepted.
	started bool
	now     func() time.Time
}

// Run runs one command line and returns the exit status. It returns soon after ctx ends.
func Run(ctx context.Context, args []string, streams genericiooptions.IOStreams) int {
	return runAt(ctx, time.Now, args, streams)
}

func runAt(ctx context.Context, now func() time.Time, args []string, streams genericiooptions.IOStreams) int {
	crlog.SetLogger(logr.Discard()) // otherwise it logs a stack trace after a while
	c := &cli{
		IOStreams: streams, flags: genericclioptions.NewConfigFlags(true).WithWarningPrinter(streams),
		formats: map[*cobra.Command][]string{}, now: now,
	}
	root := c.root()
	root.SetArgs(args)
	cmd, err := root.ExecuteContextC(ctx)
	var status utilexec.ExitError
	switch {
	case err == nil:
		return ExitOK
	case errors.Is(err, errAmiss):
		return ExitAmiss
	case ctx.Err() != nil:
		return ExitInterrupted
	case !c.started:
		fmt.Fprintf(c.ErrOut, "error: %s\nSee '%s --help'.\n", strings.TrimSpace(err.Error()), cmd.CommandPath())
		return ExitUsage
	case errors.As(err, &status) && status.Exited():
		fmt.Fprintf(c.ErrOut, "%s\n", status)
		return status.ExitStatus()
	}
	fmt.Fprintln(c.ErrOut, "error:", explain(err))
	return ExitError
}

func (c *cli) root() *cobra.Command {
	root := &cobra.Command{
		Use:   "kubectl-singleton",
		Short: "Show SingletonJobs and operate them",
		Long: `Show SingletonJobs and operate them.

Exit status: 0 success; 1 failure, with the reason in one line on stderr; 2 wrong command line; 3 "why" found a problem. "exec" exits
with the status of the command that it ran.`,
		Version:           contract.Version,
		SilenceErrors:     true,
		SilenceUsage:      true,
		Annotations:       map[string]string{cobra.CommandDisplayNameAnnotation: "kubectl singleton"},
		PersistentPreRunE: func(cmd *cobra.Command, _ []string) error { return c.accept(cmd) },
	}
	root.SetIn(c.In)
	root.SetOut(c.Out)
	root.SetErr(c.ErrOut)
	c.flags.AddFlags(root.PersistentFlags())
	root.AddCommand(c.status(), c.history(), c.runs(), c.token(), c.why(), c.suspend(), c.resume(), c.restart(), c.switchover(), c.run(), c.logs(), c.exec(), c.debug(), c.adopt(), c.plan(), c.version())
	layOut(root, c.style().Width)
	return root
}

// The values that -o accepts, for commands that show something and for commands that change something.
var (
	ofLooks   = []string{"json", "yaml", "wide", "name"}
	ofChanges = []string{"name"}
)

// accept checks what all commands have in common, and notes that the command line is valid.
func (c *cli) accept(cmd *cobra.Command) error {
	if formats := c.formats[cmd]; c.output != "" && !slices.Contains(formats, c.output) {
		return fmt.Errorf("--output=%s: %s accepts %s", c.output, cmd.Name(), strings.Join(formats, ", "))
	}
	c.started = true
	return nil
}

// formatted gives a command the flag -o.
func (c *cli) formatted(cmd *cobra.Command, formats []string) *cobra.Command {
	c.formats[cmd] = formats
	cmd.Flags().StringVarP(&c.output, "output", "o", "", "Output format: "+strings.Join(formats, ", ")+".")
	_ = cmd.RegisterFlagCompletionFunc("output", cobra.FixedCompletions(formats, cobra.ShellCompDirectiveNoFileComp))
	return cmd
}

// jobNamed checks the argument of a command for one job.
func jobNamed(_ *cobra.Command, args []string) error {
	if len(args) != 1 {
		return fmt.Errorf("expected the NAME of one SingletonJob, got %d arguments; kubectl get singletonjobs lists the names", len(args))
	}
	return nil
}

// bare returns a job's name without a leading kind.
func bare(arg string) string {
	kind, name, found := strings.Cut(arg, "/")
	if found && slices.Contains([]string{"sj", "singletonjob", "singletonjobs", "singletonjob.singletonjob.io", "singletonjobs.singletonjob.io"}, strings.ToLower(kind)) {
		return name
	}
	return arg
}

// style is the style for stdout, with colours and a width if stdout is a terminal.
func (c *cli) style() show.Style {
	file, ok := c.Out.(*os.File)
	if !ok || !term.IsTerminal(int(file.Fd())) {
		return show.Style{ASCII: otherEncoding()}
	}
	s := show.Style{Color: os.Getenv("NO_COLOR") == "" && os.Getenv("TERM") != "dumb", ASCII: otherEncoding()}
	if width, _, err := term.GetSize(int(file.Fd())); err == nil {
		s.Width = width
	}
	return s
}

// otherEncoding reports whether the locale names an encoding other than UTF-8. If no locale is set, as in most containers,
// terminals still use UTF-8.
func otherEncoding() bool {
	locale := cmp.Or(os.Getenv("LC_ALL"), os.Getenv("LC_CTYPE"), os.Getenv("LANG"))
	return locale != "" && !strings.Contains(strings.ReplaceAll(strings.ToLower(locale), "-", ""), "utf8")
}

// terminal reports whether stdout is a terminal, and its number of lines.
func (c *cli) terminal() (lines int, is bool) {
	file, ok := c.Out.(*os.File)
	if !ok || !term.IsTerminal(int(file.Fd())) {
		return 0, false
	}
	_, lines, err := term.GetSize(int(file.Fd()))
	return lines, err == nil
}
