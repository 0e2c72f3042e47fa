package show

import (
	"fmt"
	"slices"
	"strings"
	"time"

	corev1 "k8s.io/api/core/v1"

	"github.com/singletonjob/operator/api/v1alpha1"
)

// Evidence is what only an explanation needs. All of it may be missing, because not every user may read it.
type Evidence struct {
	// Events are of the job and its pods, in any order.
	Events []corev1.Event
	// Nodes are those of the candidates and of the last failover, by name.
	Nodes map[string]*corev1.Node
	// Operators are the Pods of operators in the whole cluster; OperatorsKnown says that the user may list them.
	Operators      []corev1.Pod
	OperatorsKnown bool
	// Complaints are the last complaints of agents in their logs, by Pod.
	Complaints map[string]string
	// Clock compares the clock of the holder's node with the API server's.
	Clock Clock
}

// Clock is a renewal by two clocks.
type Clock struct {
	// Renewed is the renewal's time, by the clock of the holder's node.
	Renewed time.Time
	// Served is the time of the API server's answer that had it. It is zero if it is not known.
	Served time.Time
	// Since is the longest time for which the renewal can have been stored when it was served. 0: not known.
	Since time.Duration
}

// clockTolerance is the difference between two clocks that is not reported. The API server's time has whole seconds.
const clockTolerance = 5 * time.Second

// difference is how much the clock of the holder's node is ahead of the API server's, at least. It is negative if it is behind, and 0 if
// it may be right.
func (c Clock) difference() time.Duration {
	if c.Served.IsZero() || c.Renewed.IsZero() {
		return 0
	}
	ahead := c.Renewed.Sub(c.Served)
	switch {
	case ahead > clockTolerance:
		return ahead
	case c.Since > 0 && ahead+c.Since < -clockTolerance:
		return ahead + c.Since
	}
	return 0
}

// aboutClock and aboutFailover are what a Finding is about that has no condition.
const (
	aboutClock    = "Clock"
	aboutFailover = "Failover"
	aboutOperator = "Operator"
)

// clockFinding reports that the clock of the holder's node differs from the API server's.
func clockFinding(f Facts) *Finding {
	off := f.Clock.difference()
	if off == 0 {
		return nil
	}
	node, word := nodeOf(f, Holder(f)), "ahead of"
	if node == "" {
		node = "of " + Clean(Holder(f))
	}
	if off < 0 {
		off, word = -off, "behind"
	}
	return &Finding{
		About: aboutClock, Reason: "ClocksDiffer", What: fmt.Sprintf("the clock of node %s is at least %s %s the API server's", node, Ago(off), word),
		Seen: []string{"the Lease was renewed at " + rfc3339(f.Clock.Renewed) + " by the node's clock; the API server answered at " + rfc3339(f.Clock.Served)},
		Do:   []string{"correct the clock of node " + node + ", or of the API servers. No lease depends on it, but schedules and the times in the status do"},
	}
}

// Failover explains the last failover in the history. It is nil if there is none.
func Failover(f Facts) *Finding {
	for _, c := range f.Job.Status.History {
		if c.Type == v1alpha1.Failover {
			return failover(f, c)
		}
	}
	return nil
}

func failover(f Facts, c v1alpha1.TenureChange) *Finding {
	what := Ago(f.Now.Sub(c.Time.Time)) + " ago " + where(c.To, c.ToNode) + " took over"
	if c.From != "" {
		what += " from " + where(c.From, c.FromNode)
	}
	if c.Downtime != nil {
		what += ", after " + c.Downtime.Round(time.Millisecond).String() + " without a process"
	}
	if means := meaning(c.Reason); means != "" {
		what += ": " + means
	}
	found := &Finding{About: aboutFailover, Reason: Clean(c.Reason), What: what, At: new(c.Time.UTC()), Do: failoverRemedies(f, c)}
	for i := range f.Pods {
		if f.Pods[i].Name != c.From {
			continue
		}
		if detail := lastEnd(&f.Pods[i], f.Now); detail != "" {
			found.Seen = append(found.Seen, c.From+": "+detail)
		}
	}
	if seen := nodeSeen(f, c.FromNode); seen != "" {
		found.Seen = append(found.Seen, seen)
	}
	return found
}

// lastEnd says how the gated container of a Pod last ended.
func lastEnd(pod *corev1.Pod, now time.Time) string {
	for _, s := range pod.Status.ContainerStatuses {
		last := s.State.Terminated
		if last == nil {
			last = s.LastTerminationState.Terminated
		}
		if s.Name == GatedName(pod) && last != nil {
			return fmt.Sprintf("container %s last ended %s ago with status %d%s", s.Name, Ago(now.Sub(last.FinishedAt.Time)), last.ExitCode, parenthesis(last.Reason))
		}
	}
	return ""
}

// nodeSeen describes a node that is not well: not ready, gone, or tainted as out of service. It is empty if nothing is known.
func nodeSeen(f Facts, name string) string {
	node := f.Nodes[name]
	if node == nil {
		return ""
	}
	if node.UID == "" {
		return "node " + name + " does not exist any more"
	}
	for _, c := range node.Status.Conditions {
		if c.Type == corev1.NodeReady && c.Status != corev1.ConditionTrue {
			return fmt.Sprintf("node %s has not been ready for %s: %s: %s", name, Ago(f.Now.Sub(c.LastTransitionTime.Time)), Clean(c.Reason), Clean(c.Message))
		}
	}
	for _, t := range node.Spec.Taints {
		if t.Key == corev1.TaintNodeOutOfService {
			return "node " + name + " is tainted as out of service"
		}
	}
	return ""
}

// nodesSeen describes the nodes of candidates that are not well.
func nodesSeen(f Facts) (lines []string) {
	for _, c := range candidates(f) {
		if seen := nodeSeen(f, c.Node); seen != "" {
			lines = append(lines, seen)
		}
	}
	return lines
}

// failoverRemedies lists what to look at after a failover, by its reason.
func failoverRemedies(f Facts, c v1alpha1.TenureChange) []string {
	logs := "kubectl logs " + c.From + inNamespace(f)
	if i := slices.IndexFunc(f.Pods, func(pod corev1.Pod) bool { return pod.Name == c.From }); i >= 0 {
		logs += " -c " + GatedName(&f.Pods[i])
		if candidate(f, &f.Pods[i]).Restarts > 0 {
			logs += " --previous"
		}
	}
	node := "see the node: kubectl describe node NODE"
	if c.FromNode != "" {
		node = "see the node: kubectl describe node " + c.FromNode
	}
	switch c.Reason {
	case v1alpha1.ChangeLeaseExpired:
		return []string{node, "if it is well, its way to the API servers was cut, or its CPU was taken: " + logs}
	case v1alpha1.ChangeRenewFailed:
		return []string{"see whether the API servers answered then, and the network between them and the node: " + logs, node}
	case v1alpha1.ChangeNodeLost:
		return []string{node, "if the cluster does not replace it, add a node, so that a standby finds room"}
	case v1alpha1.ChangeProcessExited, v1alpha1.ChangeHolderTerminated:
		return []string{"see its log: " + logs}
	case v1alpha1.ChangePreActivateFailed:
		return []string{"see what spec.preActivate printed: " + logs}
	case v1alpha1.ChangePostStartFailed, v1alpha1.ChangeStartupFailed, v1alpha1.ChangeLivenessFailed:
		return []string{"see what the probe or the hook reported: " + logs, "if the process was only slow, give it more time: timeoutSeconds, failureThreshold"}
	case v1alpha1.ChangeLeaseDeleted, v1alpha1.ChangeLeaseLost:
		return []string{"see in the API server's audit log who wrote it; the guard keeps others from it: helm upgrade … --set guard.create=true"}
	}
	return []string{"kubectl singleton history " + f.Job.Name + inNamespace(f) + " -o wide"}
}

// operatorsSeen describes the operators' Pods, for findings that need a working operator.
func operatorsSeen(f Facts) (lines []string) {
	if !f.OperatorsKnown {
		return nil
	}
	if len(f.Operators) == 0 {
		return []string{"no Pod in this cluster has the label " + operatorLabel}
	}
	for i := range f.Operators {
		pod := &f.Operators[i]
		line := fmt.Sprintf("operator %s in namespace %s: %s", where(pod.Name, pod.Spec.NodeName), pod.Namespace, Clean(state(pod)))
		if detail := podDetail(pod, f.Now); detail != "" {
			line += ": " + detail
		}
		lines = append(lines, line)
	}
	return lines
}

// OperatorLabels are the labels of the operators' Pods.
func OperatorLabels() map[string]string {
	return map[string]string{"app.kubernetes.io/name": "singletonjob"}
}

// operatorLabel is the same as a selector.
const operatorLabel = "app.kubernetes.io/name=singletonjob"

// operatorFinding reports that none of the operators that exist is ready. Processes and failovers do not depend on them.
func operatorFinding(f Facts) *Finding {
	for i := range f.Operators {
		if podReady(&f.Operators[i]) && f.Operators[i].DeletionTimestamp == nil {
			return nil
		}
	}
	if len(f.Operators) == 0 { // one may run elsewhere, or with another label
		return nil
	}
	first := &f.Operators[0]
	return &Finding{
		About: aboutOperator, Reason: "OperatorDown",
		What: "no operator is ready: agents still fail over, but no Pod is created or replaced, and status and Service are not updated",
		Seen: operatorsSeen(f), Do: []string{"kubectl describe pod " + first.Name + " -n " + first.Namespace, "kubectl logs " + first.Name + " -n " + first.Namespace},
	}
}

// complaintsSeen lists what the agents last complained about.
func complaintsSeen(f Facts) (lines []string) {
	for _, c := range candidates(f) {
		if text := f.Complaints[c.Pod]; text != "" {
			lines = append(lines, "the log of "+c.Pod+": "+Clean(text))
		}
	}
	return lines
}

// complaintRemedies lists what to do about the agents' complaints.
func complaintRemedies(f Facts) []string {
	for _, text := range f.Complaints {
		if strings.Contains(text, "ValidatingAdmissionPolicy") {
			lease := "lease " + f.Job.Name + inNamespace(f)
			return []string{
				"see what the guard refuses, and the Lease: kubectl get " + lease + " -o yaml",
				"if the Lease was changed by hand, correct it after you mark it: kubectl annotate " + lease + " singletonjob.io/guard=off",
			}
		}
	}
	return nil
}

// Complaint returns the last complaint in the lines of an agent's log: a request that keeps failing, or a warning.
func Complaint(log string) (last string) {
	const agent = "singletonjob: "
	for line := range strings.Lines(log) {
		_, text, found := strings.Cut(strings.TrimSpace(line), agent)
		switch {
		case !found:
		case strings.Contains(text, " failing ") && strings.Contains(text, "error="), strings.HasPrefix(text, "tick not started"):
			last = text
		case strings.Contains(text, "ing again"), strings.HasPrefix(text, "acquired "): // "reading again failures=20": it is over
			last = ""
		}
	}
	return last
}

// ended says why the last tenure ended, while no Pod has a new one.
func ended(f Facts) string {
	if f.Lease == nil || Holder(f) != "" || f.Lease.Release.Reason == "" {
		return ""
	}
	reason := string(f.Lease.Release.Reason)
	if means := meaning(reason); means != "" {
		return "the last tenure ended with " + reason + ": " + means
	}
	return ""
}

// meaning is what the reason of a change of holder means. It is empty if this version does not know it.
func meaning(reason string) string {
	for _, r := range v1alpha1.ChangeReasons() {
		if r.Reason == reason {
			return r.Meaning
		}
	}
	return ""
}

// skew is what to say about versions of the operators that differ from this program's. It is empty if they are close enough.
func skew(mine string, operators []string) string {
	major, minor, ok := minorOf(mine)
	for _, version := range operators {
		theirMajor, theirMinor, theirs := minorOf(version)
		if ok && theirs && (major != theirMajor || max(minor, theirMinor)-min(minor, theirMinor) > 1) {
			return fmt.Sprintf("this plugin is %s and the operator %s: more than one minor version apart. Install the plugin of the operator's version", mine, version)
		}
	}
	return ""
}

// minorOf returns the numbers of a version such as v0.2.0.
func minorOf(version string) (major, minor int, ok bool) {
	n, err := fmt.Sscanf(strings.TrimPrefix(version, "v"), "%d.%d.", &major, &minor)
	return major, minor, err == nil && n == 2
}

// Versions is the output of version: this program's version and those of the operators.
type Versions struct {
	Client string `json:"client"`
	// Operators are the versions of the operators' Pods, each once; nil if the user may not list them.
	Operators []string `json:"operators"`
	// Skew says that the versions are too far apart.
	Skew string `json:"skew,omitempty"`
}

// VersionsOf compares this program's version with those of operators.
func VersionsOf(mine string, operators []corev1.Pod, known bool) Versions {
	v := Versions{Client: mine}
	if !known {
		return v
	}
	v.Operators = []string{}
	told := map[string]bool{}
	for i := range operators {
		version := Clean(operators[i].Labels["app.kubernetes.io/version"])
		if version != "" && !told[version] {
			told[version] = true
			v.Operators = append(v.Operators, version)
		}
	}
	v.Skew = skew(mine, v.Operators)
	return v
}

// Text formats them.
func (v Versions) Text() string {
	text := "Plugin: " + v.Client + "\n"
	switch {
	case v.Operators == nil:
		return text + "Operator: unknown: you may not list Pods in all namespaces\n"
	case len(v.Operators) == 0:
		return text + "Operator: none was found with the label " + operatorLabel + "\n"
	}
	return text + "Operator: " + strings.Join(v.Operators, ", ") + "\n"
}
