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

// intended holds the settings to plan for that flags set.
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
		Use: "plan [NAME]", Short: "Calculate the effect of a lease's settings for each fault",
		Long: `Calculate the effect of a lease's settings: how long no process acts after each fault, which API server outage the job survives, and
what the settings cost. Without a NAME, the command asks no cluster. With a NAME, it starts from the job's settings, and flags override
them.`,
		Example:           "  kubectl singleton plan --lease 60s/40s/10s\n  kubectl singleton plan billing --lock-delay 30s",
		ValidArgsFunction: c.completeJob,
		Args: func(_ *cobra.Command, args []string) error {
			if want.jobs < 1 {
				return fmt.Errorf("--jobs=%d: must be at least 1", want.jobs)
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
	flags.DurationVar(&want.lockDelay, "lock-delay", 0, "Value of spec.lease.lockDelay.")
	flags.BoolVar(&want.keepRunning, "keep-running", false, "Plan for spec.lease.onRenewFailure: KeepRunning.")
	flags.DurationVar(&want.grace, "grace-period", 0, "Value of terminationGracePeriodSeconds; Kubernetes' default is 30s.")
	flags.Int32Var(&want.candidates, "candidates", 0, "Value of spec.candidates; the default is 2.")
	flags.IntVar(&want.jobs, "jobs", 1, "Number of such jobs, to calculate their total cost.")
	return c.formatted(cmd, []string{"json", "yaml"})
}

// apply puts the flags and the defaults into job, and returns an error for settings that the API server would refuse.
func (want *intended) apply(cmd *cobra.Command, job *v1alpha1.SingletonJob) error {
	l := &job.Spec.Lease
	if want.lease != "" {
		parts := strings.Split(want.lease, "/")
		into := []*time.Duration{&l.LeaseDuration.Duration, &l.RenewDeadline.Duration, &l.RetryPeriod.Duration}
		if len(parts) != len(into) {
			return fmt.Errorf("--lease=%s: expected leaseDuration/renewDeadline/retryPeriod, such as 15s/10s/2s", want.lease)
		}
		for i, part := range parts {
			d, err := time.ParseDuration(part)
			if err != nil || d <= 0 {
				return fmt.Errorf("--lease=%s: %q is not a duration such as 15s or 500ms", want.lease, part)
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
			return fmt.Errorf("--grace-period=%v: must be a whole number of seconds, 0s or more", want.grace)
		}
		job.Spec.Template.Spec.TerminationGracePeriodSeconds = new(int64(want.grace / time.Second))
	}
	if changed("candidates") {
		job.Spec.Candidates = want.candidates
	}
	v1alpha1.Default(job)
	return wrongTimes(job)
}

// wrongTimes validates the planned part of a job. The job needs no template.
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
