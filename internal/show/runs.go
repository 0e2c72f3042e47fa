package show

import (
	"fmt"
	"slices"
	"strings"
	"time"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/singletonjob/operator/api/v1alpha1"
	"github.com/singletonjob/operator/internal/contract"
	"github.com/singletonjob/operator/internal/lease"
)

// Runs are the runs of a job that runs to completion.
type Runs struct {
	// Cron and TimeZone are empty for a job that runs once.
	Cron     string `json:"cron,omitempty"`
	TimeZone string `json:"timeZone,omitempty"`
	// Next is the next tick.
	Next *time.Time `json:"next,omitempty"`
	// Missed and Skipped count ticks without a run.
	Missed  int64 `json:"missed"`
	Skipped int64 `json:"skipped"`
	// Asked is the name of a run that is requested and has not started.
	Asked string `json:"asked,omitempty"`
	// All lists the last runs, newest first.
	All []v1alpha1.RunStatus `json:"all,omitempty"`
}

func viewRuns(f Facts) *Runs {
	job := f.Job
	if job.Spec.RunPolicy != v1alpha1.RunPolicyRunToCompletion {
		return nil
	}
	v := &Runs{Missed: job.Status.Missed, Skipped: job.Status.Skipped, All: job.Status.Runs, Asked: Asked(f)}
	if s := job.Spec.Schedule; s != nil {
		v.Cron, v.TimeZone = s.Cron, s.TimeZone
	}
	if at := job.Status.NextTick; at != nil {
		v.Next = new(at.UTC())
	}
	return v
}

// Asked is the name of the run that the job's annotation requests; empty if there is none or the request has been handled.
func Asked(f Facts) string {
	name := contract.ParseRequest(f.Job.Annotations[contract.RunNowAnnotation]).Name
	if name == "" || RunOf(f, name) != nil || PassedOver(f, name) {
		return ""
	}
	return name
}

// RunID is the ID of the run that was requested by this name.
func RunID(job *v1alpha1.SingletonJob, name string) string { return string(job.UID) + "/" + name }

// RunOf is the run that was requested by this name, or nil if none is known to have started. The Lease shows it first.
func RunOf(f Facts, name string) *v1alpha1.RunStatus {
	id := RunID(f.Job, name)
	if f.Lease != nil && f.Lease.Runs.Now.ID == id {
		return ofLease(&f.Lease.Runs.Now)
	}
	for i := range f.Job.Status.Runs {
		if f.Job.Status.Runs[i].ID == id {
			return &f.Job.Status.Runs[i]
		}
	}
	if f.Lease != nil { // it may have ended before the status showed it
		for i := range f.Lease.Runs.Past {
			if past := &f.Lease.Runs.Past[i]; past.ID == id {
				return ofLease(past)
			}
		}
	}
	return nil
}

// ofLease converts a run in a Lease, which records no times.
func ofLease(r *lease.Run) *v1alpha1.RunStatus {
	return &v1alpha1.RunStatus{
		ID: r.ID, State: string(r.State), Attempts: r.Attempt, Token: r.Token, Pod: r.Pod, Reason: string(r.Reason), ExitCode: new(int32(r.Code)),
	}
}

// PassedOver reports whether a requested run was skipped.
func PassedOver(f Facts, name string) bool {
	return f.Lease != nil && f.Lease.Runs.Answered == name && RunOf(f, name) == nil
}

// UnderWay is the run that has started and not ended, or nil.
func UnderWay(f Facts) *v1alpha1.RunStatus {
	if f.Lease != nil && f.Lease.Runs.Now.ID != "" {
		now := f.Lease.Runs.Now
		if !now.Open() {
			return nil
		}
		run := ofLease(&now)
		if now.Tick != 0 {
			run.Tick = &metav1.Time{Time: now.Tick.Time()}
		}
		return run
	}
	for i := range f.Job.Status.Runs {
		if run := &f.Job.Status.Runs[i]; !Final(run) {
			return run
		}
	}
	return nil
}

// Final reports whether a run's state cannot change any more.
func Final(r *v1alpha1.RunStatus) bool {
	return slices.Contains([]lease.RunState{lease.RunComplete, lease.RunGivenUp, lease.RunReplaced, v1alpha1.RunUnknown}, lease.RunState(r.State))
}

// RunName names a run for people: by its tick, or by the name with which it was requested.
func RunName(r *v1alpha1.RunStatus) string {
	_, name, found := strings.Cut(r.ID, "/")
	switch {
	case r.Tick != nil && (!found || name == rfc3339(r.Tick.Time)):
		return rfc3339(r.Tick.Time)
	case r.Tick != nil:
		return Clean(name) + " of " + rfc3339(r.Tick.Time)
	case found:
		return Clean(name)
	}
	return "once"
}

func rfc3339(t time.Time) string { return t.UTC().Format(time.RFC3339) }

// lastRuns is how many runs a status shows.
const lastRuns = 3

func runsBranch(v Job, now time.Time, s Style, wide bool) branch {
	r := v.Runs
	b := branch{label: "Runs", text: "once"}
	if r.Cron != "" {
		b.text = Clean(r.Cron) + " in " + Clean(r.TimeZone)
		if r.Next != nil {
			b.text += ", next " + untilText(*r.Next, now)
		}
		b.text += fmt.Sprintf("; %d missed, %d skipped", r.Missed, r.Skipped)
	}
	if r.Asked != "" {
		b.text += "; requested and not started: " + Clean(r.Asked)
	}
	rows := make([][]cell, 0, lastRuns)
	for i := range r.All[:min(len(r.All), lastRuns)] {
		row := runRow(v.Name, &r.All[i], now, wide)
		rows = append(rows, append(row[:len(row)-1], cell{"token " + row[len(row)-1].text, plain}))
	}
	for _, column := range []int{podOfRun, tokenOfRun - 1, tookOfRun, attemptOfRun} { // each index is valid once the columns before it are removed
		if s.Width == 0 || wide || s.fits(rows, s.Width-twig) {
			break
		}
		for i := range rows {
			rows[i] = slices.Delete(rows[i], column, column+1)
		}
	}
	b.twigs = s.columns(rows)
	return b
}

func untilText(t, now time.Time) string {
	if !t.After(now) {
		return rfc3339(t) + ", which is due now"
	}
	return "in " + Ago(t.Sub(now)) + " at " + rfc3339(t)
}

// The columns of a run.
const (
	attemptOfRun = iota + 3
	tookOfRun
	podOfRun
	tokenOfRun
)

// runRow is a run's age, state, name, attempts, length, Pod and token, in this order.
func runRow(job string, r *v1alpha1.RunStatus, now time.Time, wide bool) []cell {
	age, took := "-", "-"
	if r.StartTime != nil {
		age = Ago(now.Sub(r.StartTime.Time))
		if r.EndTime != nil {
			took = Ago(r.EndTime.Sub(r.StartTime.Time))
		}
	}
	pod := short(job, r.Pod)
	if wide {
		pod = r.Pod
	}
	return []cell{
		{age, plain},
		{stateText(r), runColor(r)},
		{RunName(r), plain},
		{"attempt " + attempts(r), plain},
		{took, faint},
		{dash(pod), plain},
		{itoa(r.Token), plain},
	}
}

// attempts is the number of a run's attempts, with those that do not count.
func attempts(r *v1alpha1.RunStatus) string {
	if r.IgnoredAttempts == 0 {
		return itoa(int64(r.Attempts))
	}
	return fmt.Sprintf("%d (%d ignored)", r.Attempts, r.IgnoredAttempts)
}

// stateText is a run's state, with the reason of a failure.
func stateText(r *v1alpha1.RunStatus) string {
	failed := r.State == string(lease.RunFailed) || r.State == string(lease.RunGivenUp)
	switch {
	case failed && r.ExitCode != nil && r.Reason == string(lease.ReasonProcessExited):
		return fmt.Sprintf("%s (exit %d)", r.State, *r.ExitCode)
	case failed && r.Reason != "":
		return fmt.Sprintf("%s (%s)", r.State, Clean(r.Reason))
	}
	return Clean(r.State)
}

func runColor(r *v1alpha1.RunStatus) color {
	switch lease.RunState(r.State) {
	case lease.RunComplete:
		return green
	case lease.RunGivenUp:
		return red
	case lease.RunFailed, lease.RunReplaced, v1alpha1.RunUnknown:
		return yellow
	case lease.RunRunning:
	}
	return plain
}

// RunHistory is a table of a job's runs, newest first. wide adds each run's ID, start and end.
func RunHistory(job *v1alpha1.SingletonJob, now time.Time, s Style, wide bool) string {
	head := []string{"AGE", "STATE", "RUN", "ATTEMPTS", "TOOK", "POD", "TOKEN"}
	if wide {
		head = append(head, "ID", "START", "END")
	}
	rows := [][]cell{nil}
	for _, name := range head {
		rows[0] = append(rows[0], cell{name, bold})
	}
	for i := range job.Status.Runs {
		r := &job.Status.Runs[i]
		row := runRow(job.Name, r, now, true)
		row[attemptOfRun].text = attempts(r)
		if wide {
			start, end := "-", "-"
			if r.StartTime != nil {
				start = rfc3339(r.StartTime.Time)
			}
			if r.EndTime != nil {
				end = rfc3339(r.EndTime.Time)
			}
			row = append(row, cell{Clean(r.ID), plain}, cell{start, plain}, cell{end, plain})
		}
		rows = append(rows, row)
	}
	if s.Width > 0 && !wide && !s.fits(rows, s.Width) {
		for _, row := range rows[1:] {
			row[podOfRun].text = short(job.Name, row[podOfRun].text)
		}
	}
	return strings.Join(s.columns(rows), "\n") + "\n"
}
