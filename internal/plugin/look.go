package plugin

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"strings"
	"time"

	"github.com/spf13/cobra"
	"k8s.io/apimachinery/pkg/labels"
	"sigs.k8s.io/yaml"

	"github.com/singletonjob/operator/api/v1alpha1"
	"github.com/singletonjob/operator/internal/show"
)

// object is a job's name as -o name prints it, and commands that change a job.
func object(name string) string {
	return v1alpha1.Resource.Resource[:len(v1alpha1.Resource.Resource)-1] + "." + v1alpha1.GroupVersion.Group + "/" + name
}

// print writes a value in the format of -o. text returns the format for people.
func (c *cli) print(name string, value any, text func(wide bool) string) error {
	return write(c.Out, c.output, name, value, text)
}

func write(out io.Writer, format, name string, value any, text func(wide bool) string) error {
	var err error
	switch format {
	case "json":
		encoder := json.NewEncoder(out)
		encoder.SetIndent("", "  ")
		encoder.SetEscapeHTML(false)
		return encoder.Encode(value)
	case "yaml":
		var raw []byte
		if raw, err = yaml.Marshal(value); err == nil {
			_, err = out.Write(raw)
		}
	case "name":
		_, err = fmt.Fprintln(out, object(name))
	default:
		_, err = io.WriteString(out, text(format == "wide"))
	}
	return err
}

// selection holds the flags that say which jobs a command shows.
type selection struct {
	everywhere bool
	labels     string
}

func (s *selection) flags(cmd *cobra.Command) {
	cmd.Flags().BoolVarP(&s.everywhere, "all-namespaces", "A", false, "Show the jobs of all namespaces.")
	cmd.Flags().StringVarP(&s.labels, "selector", "l", "", "Show the jobs with these labels, such as app=billing,tier!=test.")
}

// describe says which jobs are selected, after "SingletonJobs".
func (s *selection) describe(namespace string) string {
	text := ""
	if s.labels != "" {
		text = "with the labels " + s.labels + " "
	}
	if s.everywhere {
		return text + "in any namespace"
	}
	return text + "in namespace " + namespace
}

// check returns an error if the arguments select something else than the flags.
func (s *selection) check(args []string) error {
	if _, err := labels.Parse(s.labels); err != nil {
		return fmt.Errorf("--selector=%s: %w", s.labels, err)
	}
	switch {
	case len(args) > 0 && s.everywhere:
		return errors.New("--all-namespaces shows every job: give no NAME, or select its namespace with -n")
	case len(args) > 0 && s.labels != "":
		return errors.New("--selector selects jobs by their labels: give no NAME")
	}
	return nil
}

func (c *cli) status() *cobra.Command {
	var watch bool
	var which selection
	cmd := &cobra.Command{
		Use:   "status [NAME...]",
		Short: "Show jobs as trees: candidates, lease, rollout, last changes",
		Long: `Show jobs as trees: the active process, whether a standby protects it, the lease, the rollout, the candidates, and the last changes of
holder. Without a NAME, show all jobs of the namespace, or those that the flags select.

The time left on a lease is calculated from the holder's clock and this machine's clock. With --watch, it is calculated from the
times at which this machine saw renewals.`,
		Example:           "  kubectl singleton status billing\n  kubectl singleton status billing --watch",
		ValidArgsFunction: c.completeJob,
		Args: func(_ *cobra.Command, args []string) error {
			if watch && len(args) != 1 {
				return fmt.Errorf("--watch needs the NAME of one SingletonJob, got %d", len(args))
			}
			return which.check(args)
		},
		RunE: func(cmd *cobra.Command, args []string) error {
			api, err := c.connect()
			if err != nil {
				return err
			}
			if watch {
				return c.watchStatus(cmd.Context(), api, bare(args[0]))
			}
			return c.printStatus(cmd.Context(), api, args, which)
		},
	}
	cmd.Flags().BoolVarP(&watch, "watch", "w", false, "Show the status again whenever it changes, until interrupted.")
	which.flags(cmd)
	return c.formatted(cmd, ofLooks)
}

func (c *cli) printStatus(ctx context.Context, api *cluster, args []string, which selection) error {
	all, err := c.everyJob(ctx, api, args, which, api.withZones)
	if err != nil {
		return err
	}
	return c.printEach(all, func(f show.Facts) (any, func(bool) string) {
		v := show.View(f)
		return v, func(wide bool) string { return show.Tree(v, f.Now, c.style(), wide) }
	})
}

// everyJob reads the named jobs, or all that are selected, and the facts of each.
func (c *cli) everyJob(
	ctx context.Context, api *cluster, args []string, which selection, facts func(context.Context, *v1alpha1.SingletonJob) (show.Facts, error),
) ([]show.Facts, error) {
	defer c.patience("still waiting for the API server")()
	var jobs []v1alpha1.SingletonJob
	for _, arg := range args {
		job, err := api.job(ctx, bare(arg))
		if err != nil {
			return nil, err
		}
		jobs = append(jobs, *job)
	}
	if len(args) == 0 {
		var err error
		if jobs, err = api.jobs(ctx, which); err != nil {
			return nil, err
		}
		if len(jobs) == 0 {
			fmt.Fprintln(c.ErrOut, "No SingletonJobs "+which.describe(api.namespace)+".")
		}
	}
	all := make([]show.Facts, 0, len(jobs))
	for i := range jobs {
		f, err := facts(ctx, &jobs[i])
		if err != nil {
			return nil, err
		}
		all = append(all, f)
	}
	return all, nil
}

// printEach prints the result for each job: one document in the formats for programs, separate texts with an empty line between in
// the format for people.
func (c *cli) printEach(all []show.Facts, of func(show.Facts) (any, func(wide bool) string)) error {
	if len(all) != 1 && (c.output == "json" || c.output == "yaml") {
		values := make([]any, 0, len(all))
		for _, f := range all {
			value, _ := of(f)
			values = append(values, value)
		}
		return c.print("", values, nil)
	}
	for i, f := range all {
		value, text := of(f)
		if i > 0 && c.output != "name" {
			fmt.Fprintln(c.Out)
		}
		if err := c.print(f.Job.Name, value, text); err != nil {
			return err
		}
	}
	return nil
}

// patience prints what the command waits for if that takes long. The returned function stops it.
func (c *cli) patience(what string) func() {
	const long = 3 * time.Second
	timer := time.AfterFunc(long, func() { fmt.Fprintln(c.ErrOut, c.style().Draw(what+" …")) })
	return func() { timer.Stop() }
}

func (c *cli) history() *cobra.Command {
	return listed(c, &cobra.Command{
		Use: "history NAME", Short: "List the changes of holder, newest first, and their sums", Example: "  kubectl singleton history billing -o wide",
	}, "holder", func(s *v1alpha1.SingletonJobStatus) []v1alpha1.TenureChange { return s.History }, show.History)
}

// listed returns a command that prints a list from a job's status. what names the thing of which each item records one.
func listed[T any](
	c *cli, cmd *cobra.Command, what string, of func(*v1alpha1.SingletonJobStatus) []T,
	table func(job *v1alpha1.SingletonJob, now time.Time, style show.Style, wide bool) string,
) *cobra.Command {
	cmd.Args, cmd.ValidArgsFunction = jobNamed, c.completeJob
	cmd.RunE = func(cmd *cobra.Command, args []string) error {
		api, err := c.connect()
		if err != nil {
			return err
		}
		job, err := api.job(cmd.Context(), bare(args[0]))
		if err != nil {
			return err
		}
		all := of(&job.Status)
		if len(all) == 0 && (c.output == "" || c.output == "wide") {
			fmt.Fprintf(c.ErrOut, "The status of %s has no %s yet.\n", job.Name, what)
			return nil
		}
		return c.print(job.Name, append([]T{}, all...), func(wide bool) string { return table(job, c.now(), c.style(), wide) })
	}
	return c.formatted(cmd, ofLooks)
}

// tokenView is the output of token in the formats for programs.
type tokenView struct {
	Token int64  `json:"token"`
	Held  bool   `json:"held"`
	Pod   string `json:"pod,omitempty"`
	Node  string `json:"node,omitempty"`
}

func (c *cli) token() *cobra.Command {
	return c.formatted(&cobra.Command{
		Use: "token NAME", Short: "Print the fencing token of the current or last tenure",
		Long: `Print only the fencing token of the current or last tenure, as the Lease has it. With -o wide, also print the holder. A sink has to
compare tokens itself: reading the token first and writing afterwards does not fence the write.`,
		Example:           "  kubectl singleton token billing",
		Args:              jobNamed,
		ValidArgsFunction: c.completeJob,
		RunE: func(cmd *cobra.Command, args []string) error {
			_, f, err := c.one(cmd.Context(), args[0])
			if err != nil {
				return err
			}
			v := show.View(f)
			if v.Token == 0 {
				return errors.New("there has been no tenure yet; see kubectl singleton why " + v.Name + " -n " + v.Namespace)
			}
			t := tokenView{Token: v.Token}
			if v.Active != nil {
				t = tokenView{v.Token, true, v.Active.Pod, v.Active.Node}
			}
			return c.print(v.Name, t, func(wide bool) string {
				return strings.TrimRight(fmt.Sprint(t.Token, " ", held(t, wide)), " ") + "\n"
			})
		},
	}, ofLooks)
}

func held(t tokenView, wide bool) string {
	switch {
	case !wide:
		return ""
	case !t.Held:
		return "of an earlier tenure"
	}
	return t.Pod + " " + t.Node
}

func (c *cli) why() *cobra.Command {
	var which selection
	cmd := &cobra.Command{
		Use: "why [NAME...]", Short: "Explain why a job is not well or failed over, and what to do",
		Long: `Explain from conditions, Pods, Events, logs, nodes and the Lease why a job is not active or not protected, and say what to do.
Then explain the last failover. Without a NAME, explain all jobs of the namespace, or those that the flags select. The exit status is 0
if all jobs are well, whatever failed over before, and 3 otherwise.`,
		Example:           "  kubectl singleton why billing\n  kubectl singleton why -A",
		ValidArgsFunction: c.completeJob,
		Args:              func(_ *cobra.Command, args []string) error { return which.check(args) },
		RunE: func(cmd *cobra.Command, args []string) error {
			api, err := c.connect()
			if err != nil {
				return err
			}
			all, err := c.everyJob(cmd.Context(), api, args, which, api.evidence)
			if err != nil {
				return err
			}
			amiss := false
			err = c.printEach(all, func(f show.Facts) (any, func(bool) string) {
				found := show.Why(f)
				amiss = amiss || len(found) > 0
				last := show.Failover(f)
				return explained{f.Job.Namespace, f.Job.Name, append([]show.Finding{}, found...), last},
					func(bool) string { return show.Explain(titled(show.View(f), which), found, last, c.style()) }
			})
			if err == nil && amiss {
				return errAmiss
			}
			return err
		},
	}
	which.flags(cmd)
	return c.formatted(cmd, ofLooks)
}

// titled gives a job its namespace where jobs of several are shown.
func titled(v show.Job, which selection) show.Job {
	if which.everywhere {
		v.Name = v.Namespace + "/" + v.Name
	}
	return v
}

// explained is the output of why in the formats for programs. It has no findings if all is well.
type explained struct {
	Namespace string         `json:"namespace"`
	Name      string         `json:"name"`
	Findings  []show.Finding `json:"findings"`
	// LastFailover explains the last failover in the history. It is no finding: all can be well since.
	LastFailover *show.Finding `json:"lastFailover,omitempty"`
}
