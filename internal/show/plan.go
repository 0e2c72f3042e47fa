package show

import (
	"fmt"
	"strconv"
	"strings"
	"time"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/utils/ptr"

	"github.com/singletonjob/operator/api/v1alpha1"
	"github.com/singletonjob/operator/internal/lease"
)

// Plan is the effect of a lease's settings. It is calculated without a cluster. The start time of the program adds to every gap.
type Plan struct {
	LeaseDuration  metav1.Duration         `json:"leaseDuration"`
	RenewDeadline  metav1.Duration         `json:"renewDeadline"`
	RetryPeriod    metav1.Duration         `json:"retryPeriod"`
	LockDelay      metav1.Duration         `json:"lockDelay"`
	OnRenewFailure v1alpha1.OnRenewFailure `json:"onRenewFailure"`
	Candidates     int32                   `json:"candidates"`

	// OutageSurvived is the longest outage of the API server that has no effect, less a round trip or two.
	OutageSurvived metav1.Duration `json:"outageSurvived"`
	// Killed is the time from the last confirmed renewal by which a process is dead. It is nil with KeepRunning, which kills no
	// process.
	Killed *metav1.Duration `json:"killed,omitempty"`
	// WritesPerSecond is the write rate of one idle job.
	WritesPerSecond float64 `json:"writesPerSecond"`
	Gaps            []Gap   `json:"gaps"`
}

// Gap is the time without an active process after a fault.
type Gap struct {
	Fault string `json:"fault"`
	// Least and Most bound the gap. If Most is missing, Note describes the upper bound.
	Least metav1.Duration  `json:"least"`
	Most  *metav1.Duration `json:"most,omitempty"`
	Note  string           `json:"note,omitempty"`
}

// The faults of a plan.
const (
	faultEnds     = "the process ends by itself"
	faultCrash    = "it crashes, or is killed"
	faultHandover = "drain, rollout, switchover"
	faultKilled   = "its container or the agent is killed"
	faultLost     = "its node dies; the pod is frozen"
	faultCutOff   = "its node is cut off from the API server"
	faultOutage   = "the API server is down for all"
)

// PlanOf computes the plan of a valid, defaulted spec. It depends only on the lease, the candidates and the termination grace
// period.
func PlanOf(spec *v1alpha1.SingletonJobSpec) Plan {
	l := spec.Lease
	duration, deadline, retry, delay := l.LeaseDuration.Duration, l.RenewDeadline.Duration, l.RetryPeriod.Duration, l.LockDelay.Duration
	margin := lease.Margin(duration)
	p := Plan{
		LeaseDuration: l.LeaseDuration, RenewDeadline: l.RenewDeadline, RetryPeriod: l.RetryPeriod, LockDelay: l.LockDelay,
		OnRenewFailure: l.OnRenewFailure, Candidates: spec.Candidates,
		OutageSurvived:  metav1.Duration{Duration: deadline - retry},
		WritesPerSecond: 1 / retry.Seconds(),
	}
	const defaultStop = 30
	stop := time.Duration(ptr.Deref(spec.Template.Spec.TerminationGracePeriodSeconds, defaultStop)) * time.Second
	p.Gaps = []Gap{
		bounded(faultEnds, 0, 0, ""),
		bounded(faultCrash, delay, delay, ""),
		bounded(faultHandover, 0, stop+delay, "as long as the process takes to stop"),
		bounded(faultKilled, delay, duration+delay, "until its end is noticed"),
		bounded(faultLost, duration-retry+delay, duration+delay, ""),
	}
	if l.OnRenewFailure == v1alpha1.OnRenewFailureKeepRunning {
		p.Gaps = append(p.Gaps,
			bounded(faultCutOff, 0, 0, "it keeps acting beside the next one; the sink refuses it"),
			bounded(faultOutage, 0, 0, "it keeps acting"))
		return p
	}
	p.Killed = &metav1.Duration{Duration: duration - margin}
	p.Gaps = append(p.Gaps,
		bounded(faultCutOff, margin+delay, duration-deadline+delay, ""),
		Gap{Fault: faultOutage, Note: "none up to about " + said(p.OutageSurvived.Duration) + "; otherwise until it is back"})
	return p
}

func bounded(fault string, least, most time.Duration, note string) Gap {
	return Gap{Fault: fault, Least: metav1.Duration{Duration: least}, Most: &metav1.Duration{Duration: most}, Note: note}
}

func (g Gap) String() string {
	switch {
	case g.Most == nil:
		return g.Note
	case g.Most.Duration == 0 && g.Note != "":
		return "none: " + g.Note
	case g.Most.Duration == 0:
		return "a moment"
	case g.Least == *g.Most:
		return said(g.Most.Duration)
	case g.Note != "":
		return g.Note + ", at most " + said(g.Most.Duration)
	}
	return said(g.Least.Duration) + " to " + said(g.Most.Duration)
}

// Text formats a plan for people, for this many such jobs.
func (p Plan) Text(jobs int, s Style) string {
	rows := [][]cell{{{"WHAT HAPPENS", bold}, {"NO PROCESS ACTS FOR", bold}}}
	for _, g := range p.Gaps {
		rows = append(rows, []cell{{g.Fault, plain}, {g.String(), plain}})
	}
	lines := []string{p.heading(), ""}
	lines = append(lines, s.columns(rows)...)
	for _, remark := range p.remarks(jobs) {
		lines = append(lines, "", s.Draw(s.flow(remark)))
	}
	return strings.Join(lines, "\n") + "\n"
}

// flow wraps a text to the width of the terminal.
func (s Style) flow(text string) string {
	if s.Width == 0 {
		return text
	}
	return Reflow(text, s.Width)
}

func (p Plan) heading() string {
	text := fmt.Sprintf("lease %s/%s/%s, %s", said(p.LeaseDuration.Duration), said(p.RenewDeadline.Duration), said(p.RetryPeriod.Duration),
		p.OnRenewFailure)
	if p.LockDelay.Duration > 0 {
		text += ", lockDelay " + said(p.LockDelay.Duration)
	}
	return text
}

func (p Plan) remarks(jobs int) []string {
	all := []string{"These times assume a ready standby, and do not include the start time of the program."}
	if p.Candidates == 1 {
		all[0] = "With one candidate there is no standby. If its Pod or node is lost, add the time to schedule, pull and start a new Pod. Kubernetes " +
			"does not replace a Pod on a lost node by itself. Use candidates: 2."
	}
	if p.Killed != nil {
		all = append(all, fmt.Sprintf("If the lease is not renewed, the agent tells the process to stop %s after the last confirmed renewal. The process is dead by %s, and "+
			"another starts after %s at the earliest. Requests that it sent before can still arrive: for a sink without a fence, only lockDelay waits for them.",
			said(p.RenewDeadline.Duration), said(p.Killed.Duration), said(p.LeaseDuration.Duration+p.LockDelay.Duration)))
	} else {
		all = append(all, "With KeepRunning, two processes can act at the same time. Only a sink that compares tokens keeps them apart.")
	}
	return append(all, fmt.Sprintf("When idle: %s per second to the API server%s.", plural(rate(p.WritesPerSecond*float64(jobs)), "write"), ofJobs(jobs)))
}

func ofJobs(jobs int) string {
	if jobs == 1 {
		return ""
	}
	return fmt.Sprintf(" for %d such jobs", jobs)
}

// rate formats a number with three digits.
func rate(perSecond float64) string {
	const digits = 3
	if perSecond >= 100 {
		return strconv.FormatFloat(perSecond, 'f', 0, 64)
	}
	return strconv.FormatFloat(perSecond, 'g', digits, 64)
}

func plural(count, what string) string {
	if count == "1" {
		return count + " " + what
	}
	return count + " " + what + "s"
}

// said formats a duration without units that are 0: 1m instead of 1m0s.
func said(d time.Duration) string {
	text := d.String()
	for _, none := range []string{"m0s", "h0m"} {
		if cut, found := strings.CutSuffix(text, none); found {
			text = cut + none[:1]
		}
	}
	return text
}
