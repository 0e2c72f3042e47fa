package show

import (
	"fmt"
	"slices"
	"strings"
	"time"

	corev1 "k8s.io/api/core/v1"

	"github.com/singletonjob/operator/api/v1alpha1"
	"github.com/singletonjob/operator/internal/contract"
)

// branch is a line of the tree with its children. Its label is in a column of its own, and its text wraps to the right of the
// label.
type branch struct {
	label string
	cells []cell // one or two coloured words before the text
	text  string
	twigs []string
}

// lastChanges is how many changes of holder a status shows.
const lastChanges = 5

// Tree formats a job as a tree. wide adds long details: versions, the nodes of changes, the messages of true conditions.
func Tree(v Job, now time.Time, s Style, wide bool) string {
	branches := []branch{
		conditionBranch(v, v1alpha1.ConditionActive, wide),
		conditionBranch(v, v1alpha1.ConditionProtected, wide),
		leaseBranch(v, now),
		rolloutBranch(v, wide),
	}
	above := []string{v1alpha1.ConditionActive, v1alpha1.ConditionProtected, v1alpha1.ConditionProgressing}
	if !wide {
		above = append(above, v1alpha1.ConditionReady)                              // it summarizes the others, for other programs
		above = append(above, v1alpha1.ConditionComplete, v1alpha1.ConditionFailed) // Active shows the same
	}
	for _, c := range v.Conditions {
		if !slices.Contains(above, c.Type) && (c.Status != string(corev1.ConditionTrue) || wide) {
			branches = append(branches, conditionBranch(v, c.Type, true))
		}
	}
	if v.Runs != nil {
		branches = append(branches, runsBranch(v, now, s, wide))
	}
	branches = append(branches, candidatesBranch(v, now, s, wide), changesBranch(v, now, s, wide))

	place, token := "in namespace "+v.Namespace, ""
	if v.Token > 0 {
		place, token = place+", token ", itoa(v.Token)
	}
	gap := "  "
	if s.Width > 0 && width(v.Name+gap+place+token) > s.Width {
		gap = "\n" + s.Draw("│  ")
	}
	head := s.paint(bold, v.Name) + s.paint(faint, gap+place) + s.paint(bold, token)
	var out strings.Builder
	fmt.Fprintln(&out, head)
	labels := 0
	for _, b := range branches {
		labels = max(labels, len(b.label))
	}
	for i, b := range branches {
		b.write(&out, s, labels, i == len(branches)-1)
	}
	return out.String()
}

func (b branch) write(out *strings.Builder, s Style, labels int, last bool) {
	elbow, stem := "├─ ", "│  "
	if last {
		elbow, stem = "└─ ", "   "
	}
	elbow, stem = s.Draw(elbow), s.Draw(stem)
	indent := len([]rune(elbow)) + labels + 2
	lead, taken := "", 0
	for _, c := range b.cells {
		lead += s.paint(c.color, c.text) + "  "
		taken += width(c.text) + 2
	}
	room := 0
	if s.Width > 0 {
		room = max(1, s.Width-indent-taken)
	}
	below := stem
	if len(b.twigs) > 0 {
		below += s.Draw("│")
	}
	for i, line := range wrapped(b.text, room, 0) {
		if i == 0 {
			line = s.paint(faint, elbow) + b.label + strings.Repeat(" ", labels+2-len(b.label)) + lead + line
		} else {
			line = s.paint(faint, below) + strings.Repeat(" ", indent+taken-width(below)) + line
		}
		fmt.Fprintln(out, strings.TrimRight(line, " "))
	}
	for i, twig := range b.twigs {
		elbow := "├─ "
		if i == len(b.twigs)-1 {
			elbow = "└─ "
		}
		fmt.Fprintln(out, strings.TrimRight(s.paint(faint, stem+s.Draw(elbow))+twig, " "))
	}
}

func conditionBranch(v Job, name string, wide bool) branch {
	b := branch{label: name, text: "not reported yet"}
	for _, c := range v.Conditions {
		if c.Type != name {
			continue
		}
		b.cells, b.text = []cell{{c.Reason, verdict(c)}}, ""
		switch {
		case c.Reason == v1alpha1.ReasonUpToDate && !wide: // the numbers show it
		case c.Status != string(corev1.ConditionTrue) || wide:
			b.text = Clean(c.Message)
		case name == v1alpha1.ConditionActive && v.Active != nil:
			b.text = where(v.Active.Pod, v.Active.Node)
		}
	}
	return b
}

// verdict is the colour of a condition. A true condition is good, except Active with the reason NotReady. A false one is an error
// or a warning.
func verdict(c Condition) color {
	switch {
	case c.Type == v1alpha1.ConditionProgressing && c.Status == string(corev1.ConditionTrue), c.Reason == v1alpha1.ReasonNotReady:
		return yellow
	case c.Type == v1alpha1.ConditionFailed:
		return red
	case c.Status == string(corev1.ConditionTrue), c.Reason == v1alpha1.ReasonUpToDate, rests(c.Reason):
		return green
	case c.Reason == v1alpha1.ReasonSuspended, c.Reason == v1alpha1.ReasonSingleCandidate, c.Reason == v1alpha1.ReasonSuspending,
		c.Reason == v1alpha1.ReasonRetrying, c.Reason == v1alpha1.ReasonRolloutWaits:
		return yellow
	}
	return red
}

func where(pod, node string) string {
	if node == "" {
		return pod
	}
	return pod + " on " + node
}

func leaseBranch(v Job, now time.Time) branch {
	l := v.Lease
	b := branch{label: "Lease"}
	if l.Settings != "" {
		b.cells = []cell{{l.Settings, plain}}
	}
	switch {
	case l.Unknown != "":
		b.text = Clean(l.Unknown)
	case l.Holder == "":
		b.text = "no holder"
	case l.Left == nil:
		b.text = "held by " + Clean(l.Holder)
	case *l.Left < 0:
		b.text = fmt.Sprintf("ran out %s ago, held by %s", Ago(-time.Duration(*l.Left)), Clean(l.Holder))
	case l.Renewed.After(now.Add(time.Second)):
		b.text = fmt.Sprintf("renewed; the holder's clock is ahead of this one by %s", Ago(l.Renewed.Sub(now)))
	default:
		b.text = fmt.Sprintf("renewed %s ago, %s left", Ago(now.Sub(*l.Renewed)), Ago(time.Duration(*l.Left)))
	}
	return b
}

func rolloutBranch(v Job, wide bool) branch {
	b := conditionBranch(v, v1alpha1.ConditionProgressing, wide)
	b.label = "Rollout"
	r := v.Rollout
	if !r.Observed {
		b.cells = []cell{{"Unseen", yellow}}
		b.text = "the operator has not seen the last change yet"
		return b
	}
	counts := fmt.Sprintf("%d of %d ready, %d updated", r.Ready, r.Desired, r.Updated)
	if r.Total != r.Desired {
		counts += fmt.Sprintf(", %d in all", r.Total)
	}
	if b.text != "" {
		counts += "; " + b.text
	}
	b.text = counts
	return b
}

func candidatesBranch(v Job, now time.Time, s Style, wide bool) branch {
	b := branch{label: "Candidates"}
	if len(v.Candidates) == 0 {
		b.text = "none"
		return b
	}
	versions := map[string]bool{}
	for _, c := range v.Candidates {
		versions[c.Version] = true
	}
	rows := make([][]cell, 0, len(v.Candidates))
	for _, c := range v.Candidates {
		rows = append(rows, candidateRow(v, c, now, wide || len(versions) > 1))
	}
	const podColumn, nodeColumn, zoneColumn = 1, 3, 4
	if room := s.Width - twig; s.Width > 0 && !wide && !s.fits(rows, room) {
		for _, row := range rows {
			row[podColumn].text = short(v.Name, row[podColumn].text)
		}
		if !s.fits(rows, room) {
			for i := range rows {
				rows[i] = slices.Delete(rows[i], zoneColumn, zoneColumn+1)
			}
		}
		s.squeeze(rows, nodeColumn, room)
	}
	b.twigs = s.columns(rows)
	return b
}

func candidateRow(v Job, c Candidate, now time.Time, version bool) []cell {
	dot, shade := cell{"○", faint}, yellow
	if c.Role == contract.RoleActive {
		dot = cell{"●", green}
	}
	if c.Ready {
		shade = green
	}
	node := c.Node
	if node == "" {
		node = "(no node)"
	}
	age, restarts, hash := "age "+Ago(now.Sub(c.Created)), "", ""
	if v.Active != nil && v.Active.Pod == c.Pod && v.Active.Since != nil {
		age = "for " + Ago(now.Sub(*v.Active.Since))
	}
	if c.Restarts > 0 {
		restarts = fmt.Sprintf("restarts %d", c.Restarts)
	}
	if version {
		hash = c.Version
	}
	return []cell{
		dot,
		{c.Pod, plain},
		{c.Role, plain},
		{node, plain},
		{Clean(c.Zone), plain},
		{Clean(c.State), shade},
		{age, plain},
		{restarts, plain},
		{hash, faint},
	}
}

// twig is the column at which the children of a branch begin.
const twig = 6

func changesBranch(v Job, now time.Time, s Style, wide bool) branch {
	b := branch{label: "Changes", text: fmt.Sprintf("%s, %s", counted(v.Failovers, "failover"), counted(v.Handovers, "handover"))}
	var rows [][]cell
	for _, c := range v.Changes[:min(len(v.Changes), lastChanges)] {
		to, down := short(v.Name, c.To), ""
		if wide {
			to = where(c.To, c.ToNode)
		}
		if c.Downtime != nil {
			down = c.Downtime.Round(time.Millisecond).String() + " down"
		}
		rows = append(rows, []cell{
			{Ago(now.Sub(c.Time.Time)), plain},
			{string(c.Type), changeColor(c.Type)},
			{c.Reason, plain},
			{"→ " + to, plain},
			{"token " + itoa(c.Token), plain},
			{down, faint},
		})
	}
	b.twigs = s.columns(rows)
	return b
}

func changeColor(t v1alpha1.TenureChangeType) color {
	if t == v1alpha1.Failover {
		return yellow
	}
	return plain
}

// short is a Pod's name without the job's name, with which it begins.
func short(job, pod string) string {
	if rest, ok := strings.CutPrefix(pod, job+"-"); ok {
		return "…" + rest
	}
	return pod
}

func counted(n int64, what string) string {
	if n == 1 {
		return "1 " + what
	}
	return fmt.Sprintf("%d %ss", n, what)
}
