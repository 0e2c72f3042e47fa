package plugin

import (
	"errors"
	"fmt"
	"strings"
	"time"

	"github.com/spf13/cobra"
	corev1 "k8s.io/api/core/v1"

	"github.com/singletonjob/operator/api/v1alpha1"
	"github.com/singletonjob/operator/internal/show"
)

// intended is what a plan is for, as far as it is not a job's own.
type intended struct {
	lease       string
	lockDelay   time.Duration
	keepRunning bool
	grace       time.Duration
	candidates  int32
	jobs        int
}

func (c *cli) plan() *cobra.Command {
	var want intended
	cmd := &cobra.Command{
		Use: "plan [NAME]", Short: "Calculate what a lease's settings mean in each fault",
		Long: `Calculate what a lease's settings mean: for how long nobody acts after each fault, which outage is survived, what it costs. Without a
NAME no cluster is asked. With one, the job's own settings are the start, and flags say what would be otherwise.`,
		Example:           "  kubectl singleton plan --lease 60s/40s/10s\n  kubectl singleton plan billing --lock-delay 30s",
		ValidArgsFunction: c.completeJob,
		Args: func(_ *cobra.Command, args []string) error {
			if want.jobs < 1 {
				return fmt.Errorf("--jobs=%d: at least 1", want.jobs)
			}
			return cobra.MaximumNArgs(1)(nil, args)
		},
		RunE: func(cmd *cobra.Command, args []string) error {
			job := &v1alpha1.SingletonJob{}
			if len(args) == 1 {
				_, f, err := c.one(cmd.Context(), args[0])
				if err != nil {
					return err
				}
				job = f.Job
			}
			if err := want.apply(cmd, job); err != nil {
				return err
			}
			p := show.PlanOf(&job.Spec)
			return c.print(job.Name, p, func(bool) string { return p.Text(want.jobs, c.style()) })
		},
	}
	flags := cmd.Flags()
	flags.StringVar(&want.lease, "lease", "", "The `D/R/P` of spec.lease: leaseDuration/renewDeadline/retryPeriod; the defaults are 15s/10s/2s.")
	flags.DurationVar(&want.lockDelay, "lock-delay", 0, "As spec.lease.lockDelay.")
	flags.BoolVar(&want.keepRunning, "keep-running", false, "As spec.lease.onRenewFailure: KeepRunning.")
	flags.DurationVar(&want.grace, "grace-period", 0, "As terminationGracePeriodSeconds; Kubernetes' default is 30s.")
	flags.Int32Var(&want.candidates, "candidates", 0, "As spec.candidates; the default is 2.")
	flags.IntVar(&want.jobs, "jobs", 1, "How many such jobs there are, for what they cost together.")
	return c.formatted(cmd, []string{"json", "yaml"})
}

// apply puts what flags say into job, with defaults, and says what the API server would refuse of it.
func (want *intended) apply(cmd *cobra.Command, job *v1alpha1.SingletonJob) error {
	l := &job.Spec.Lease
	if want.lease != "" {
		parts := strings.Split(want.lease, "/")
		into := []*time.Duration{&l.LeaseDuration.Duration, &l.RenewDeadline.Duration, &l.RetryPeriod.Duration}
		if len(parts) != len(into) {
			return fmt.Errorf("--lease=%s: want leaseDuration/renewDeadline/retryPeriod, such as 15s/10s/2s", want.lease)
		}
		for i, part := range parts {
			d, err := time.ParseDuration(part)
			if err != nil || d <= 0 {
				return fmt.Errorf("--lease=%s: %q is no duration: such as 15s or 500ms", want.lease, part)
			}
			*into[i] = d
		}
	}
	changed := cmd.Flags().Changed
	if changed("lock-delay") {
		l.LockDelay.Duration = want.lockDelay
	}
	if changed("keep-running") {
		l.OnRenewFailure = v1alpha1.OnRenewFailureStop
		if want.keepRunning {
			l.OnRenewFailure = v1alpha1.OnRenewFailureKeepRunning
		}
	}
	if changed("grace-period") {
		if want.grace < 0 || want.grace%time.Second != 0 {
			return fmt.Errorf("--grace-period=%v: whole seconds, from 0s", want.grace)
		}
		job.Spec.Template.Spec.TerminationGracePeriodSeconds = new(int64(want.grace / time.Second))
	}
	if changed("candidates") {
		job.Spec.Candidates = want.candidates
	}
	v1alpha1.Default(job)
	return wrongTimes(job)
}

// wrongTimes is what is wrong with the part of a job that is planned. Its template need not be there.
func wrongTimes(job *v1alpha1.SingletonJob) error {
	bare := &v1alpha1.SingletonJob{}
	bare.Name = "plan"
	bare.Spec.Lease, bare.Spec.Candidates = job.Spec.Lease, job.Spec.Candidates
	bare.Spec.Template.Spec.Containers = []corev1.Container{{Name: "app", Image: "app"}}
	var errs []error
	for _, err := range v1alpha1.Validate(bare) {
		if strings.HasPrefix(err.Field, "spec.lease.") || err.Field == "spec.candidates" {
			errs = append(errs, err)
		}
	}
	return errors.Join(errs...)
}
