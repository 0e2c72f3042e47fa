package show

import (
	"cmp"
	"fmt"
	"slices"
	"strings"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/singletonjob/operator/api/v1alpha1"
	"github.com/singletonjob/operator/internal/contract"
)

// Finding is a problem: what it is, what shows it, and what to do.
type Finding struct {
	// About is the condition that is not met.
	About  string   `json:"about"`
	Reason string   `json:"reason"`
	What   string   `json:"what"`
	Seen   []string `json:"seen,omitempty"`
	Do     []string `json:"do,omitempty"`
	// At is when a failover took place.
	At *time.Time `json:"at,omitempty"`
}

// Why lists what keeps a job from being active and protected, the most serious first. It is empty if all is well.
func Why(f Facts) []Finding {
	job := f.Job
	if len(job.Status.Conditions) == 0 {
		return []Finding{{
			About: v1alpha1.ConditionActive, Reason: "NotReported", What: "no operator has reported on this job yet",
			Seen: append([]string{"it was created " + Ago(f.Now.Sub(job.CreationTimestamp.Time)) + " ago and has no conditions"}, operatorsSeen(f)...),
			Do:   []string{operatorRuns},
		}}
	}
	var all []Finding
	if job.Status.ObservedGeneration < job.Generation {
		all = append(all, Finding{
			About: v1alpha1.ConditionProgressing, Reason: "NotObserved", What: "the operator has not seen the last change of the spec: the following describes the spec before that change",
			Seen: append([]string{fmt.Sprintf("the status is of generation %d, the spec of %d", job.Status.ObservedGeneration, job.Generation)}, operatorsSeen(f)...),
			Do:   []string{operatorRuns},
		})
	}
	told := map[string]bool{} // one cause can appear in several conditions
	for _, name := range []string{v1alpha1.ConditionActive, v1alpha1.ConditionProtected, v1alpha1.ConditionProgressing} {
		c := condition(job, name)
		if !amiss(c) || told[c.Reason] {
			continue
		}
		told[c.Reason] = true
		all = append(all, finding(f, c))
	}
	for _, c := range job.Status.Conditions {
		if further(c) && !told[c.Reason] {
			told[c.Reason] = true
			all = append(all, finding(f, c))
		}
	}
	for _, of := range []func(Facts) *Finding{staleFinding, operatorFinding, clockFinding} {
		if found := of(f); found != nil {
			all = append(all, *found)
		}
	}
	return toldOnce(all)
}

// toldOnce removes from each finding what an earlier finding already says.
func toldOnce(all []Finding) []Finding {
	told := map[string]bool{}
	known := func(text string) bool {
		again := told[text]
		told[text] = true
		return again
	}
	for i := range all {
		all[i].Seen = slices.DeleteFunc(all[i].Seen, known)
		all[i].Do = slices.DeleteFunc(all[i].Do, known)
	}
	return all
}

const operatorRuns = "check that an operator runs and serves this namespace: kubectl get pods -A -l app.kubernetes.io/name=singletonjob"

// amiss reports whether a condition is a problem. A rollout that makes progress is not a problem and needs no remedy.
func amiss(c metav1.Condition) bool {
	switch {
	case c.Status == "": // an operator of another version does not report it
		return false
	case c.Type == v1alpha1.ConditionProgressing:
		return c.Status == metav1.ConditionFalse && c.Reason != v1alpha1.ReasonUpToDate && c.Reason != v1alpha1.ReasonSuspended
	case c.Reason == v1alpha1.ReasonNoHolder: // Active reports it
		return false
	case rests(c.Reason):
		return false
	}
	return c.Status != metav1.ConditionTrue || c.Reason == v1alpha1.ReasonNotReady || c.Reason == v1alpha1.ReasonUnmanagedHolder
}

// further reports whether a condition besides these is a problem: conditions that operators of other versions may report.
func further(c metav1.Condition) bool {
	switch c.Type {
	case v1alpha1.ConditionActive, v1alpha1.ConditionProtected, v1alpha1.ConditionProgressing, v1alpha1.ConditionReady,
		v1alpha1.ConditionComplete, v1alpha1.ConditionFailed: // Active explains why a run has not ended or has failed
		return false
	}
	return c.Status == metav1.ConditionFalse
}

// rests reports whether no process is active because there is nothing to run.
func rests(reason string) bool {
	return reason == v1alpha1.ReasonCompleted || reason == v1alpha1.ReasonNotDue || reason == v1alpha1.ReasonResting
}

func finding(f Facts, c metav1.Condition) Finding {
	found := Finding{About: c.Type, Reason: c.Reason, What: cmp.Or(Clean(c.Message), "the operator gives no details")}
	if ofPods(c.Reason) {
		found.Seen = slices.Concat(podsSeen(f), eventsSeen(f))
	}
	if c.Reason == v1alpha1.ReasonHolderUnreachable || c.Reason == v1alpha1.ReasonElecting || c.Reason == v1alpha1.ReasonForeignHolder ||
		c.Reason == v1alpha1.ReasonUnmanagedHolder {
		found.Seen = append([]string{leaseSeen(f)}, podsSeen(f)...)
	}
	if c.Type == v1alpha1.ConditionActive && c.Status == metav1.ConditionFalse {
		if why := ended(f); why != "" {
			found.Seen = append(found.Seen, why)
		}
		found.Seen = slices.Concat(found.Seen, complaintsSeen(f), nodesSeen(f))
		found.Do = complaintRemedies(f)
	}
	found.Do = append(found.Do, remedies(f, c.Reason)...)
	return found
}

// ofPods reports whether the state of Pods and Events explains a reason.
func ofPods(reason string) bool {
	switch reason {
	case v1alpha1.ReasonNotReady, v1alpha1.ReasonNoCandidates, v1alpha1.ReasonCandidatesNotReady, v1alpha1.ReasonProcessBackOff,
		v1alpha1.ReasonFailedCreate, v1alpha1.ReasonFailedDelete, v1alpha1.ReasonPodsFailing, v1alpha1.ReasonAgentMisconfigured, v1alpha1.ReasonNoStandby,
		v1alpha1.ReasonStandbyOnSameNode, v1alpha1.ReasonVolumeNotShared, v1alpha1.ReasonRolloutStalled, v1alpha1.ReasonProgressDeadlineExceeded,
		v1alpha1.ReasonCandidateStuck:
		return true
	}
	return false
}

// remedies lists what to do about a reason. For a reason that is unknown here, for example from an operator of another version, it
// points to the cluster.
func remedies(f Facts, reason string) []string {
	name := f.Job.Name
	logs := func() []string {
		return []string{"see why it ends: " + podCommand(f, "logs", " --previous"), "or follow it: kubectl singleton logs -f " + name + inNamespace(f)}
	}
	switch reason {
	case v1alpha1.ReasonSuspended, v1alpha1.ReasonSuspending:
		return []string{"kubectl singleton resume " + name + inNamespace(f)}
	case v1alpha1.ReasonElecting:
		return []string{"wait: a candidate takes over once the last tenure has certainly ended, at most the lease's duration after its last renewal; " +
			"if it lasts, see why no candidate takes the Lease: " + podCommand(f, "logs", " --tail=20")}
	case v1alpha1.ReasonHolderUnreachable:
		return []string{"wait: a standby takes over when the lease runs out", "if that node is permanently lost, delete it or taint it out-of-service: kubectl describe node " + cmp.Or(nodeOf(f, Holder(f)), "NODE")}
	case v1alpha1.ReasonForeignHolder:
		return []string{"stop the other elector, or give it a Lease with another name; a candidate takes over when its lease runs out"}
	case v1alpha1.ReasonLeaseConflict:
		return []string{"see who uses it: kubectl get lease " + name + inNamespace(f) + " -o yaml", "delete that Lease if nothing uses it, or give the job another name"}
	case v1alpha1.ReasonInvalidSpec:
		return []string{"correct the field that the message names: kubectl edit singletonjob " + name + inNamespace(f)}
	case v1alpha1.ReasonProcessBackOff, v1alpha1.ReasonAgentMisconfigured, v1alpha1.ReasonNotReady:
		return logs()
	case v1alpha1.ReasonFailedCreate:
		return []string{"change what refuses the Pods: a quota (kubectl describe quota" + inNamespace(f) + "), Pod Security, a webhook, or the template"}
	case v1alpha1.ReasonNoCandidates:
		return []string{"wait, if the job is new; else " + operatorRuns}
	case v1alpha1.ReasonRolloutStalled, v1alpha1.ReasonProgressDeadlineExceeded:
		return append([]string{"correct the template, or apply the previous one: the operator rolls out the next change at once"}, podRemedies(f)...)
	case v1alpha1.ReasonCandidatesNotReady, v1alpha1.ReasonPodsFailing, v1alpha1.ReasonCandidateStuck, v1alpha1.ReasonNoStandby:
		return podRemedies(f)
	case v1alpha1.ReasonStandbyOnSameNode:
		return []string{"make another node available for Pods (kubectl get nodes): the operator then moves a standby, unless the message says otherwise"}
	case v1alpha1.ReasonSingleCandidate:
		return []string{"kubectl scale singletonjob " + name + inNamespace(f) + " --replicas=2"}
	case v1alpha1.ReasonCPULimitTooSmall:
		return []string{"remove the CPU limit, raise it, or set a longer lease, as the message says"}
	}
	return furtherRemedies(f, reason)
}

func furtherRemedies(f Facts, reason string) []string {
	name := f.Job.Name
	switch reason {
	case v1alpha1.ReasonFailedUpdate, v1alpha1.ReasonFailedDelete:
		return []string{
			"change what refuses the request that the message names: a webhook, an admission policy, or a right that the operator lacks (kubectl get " +
				"validatingwebhookconfigurations,validatingadmissionpolicybindings); the operator then repeats it within 5 minutes",
		}
	case v1alpha1.ReasonUnmanagedHolder:
		return []string{"delete the Pod that the message names: a candidate then takes over"}
	case v1alpha1.ReasonSwitchoverBlocked:
		return []string{"wait for what the message names, or cancel the switchover: kubectl annotate singletonjob " + name + inNamespace(f) + " " + contract.SwitchoverAnnotation + "-"}
	case v1alpha1.ReasonWorkloadRunning:
		return []string{"scale that workload to 0, also in the manifests that set its replicas: no process starts before its Pods no longer exist"}
	case v1alpha1.ReasonWorkloadSettling:
		return []string{"wait: this usually takes a moment; if it lasts, check whether the cluster's kube-controller-manager runs"}
	case v1alpha1.ReasonWorkloadMissing, v1alpha1.ReasonWorkloadTaken:
		return []string{"name another workload, or restore this one: kubectl edit singletonjob " + name + inNamespace(f)}
	case v1alpha1.ReasonWorkloadDenied:
		return []string{"give the operator's service account the right that the message names: the chart's ClusterRole has it; the operator tries again every 30 seconds"}
	case v1alpha1.ReasonRetrying:
		return []string{"see why it failed: " + runLogs(f), "or wait: spec.backoffLimit attempts follow the first"}
	case v1alpha1.ReasonRunFailed:
		return []string{"see why it failed: " + runLogs(f), "then run it again: kubectl singleton run " + name + inNamespace(f)}
	case v1alpha1.ReasonBadRun:
		return []string{"see its contents: kubectl get lease " + name + inNamespace(f) + " -o yaml", "correct or remove what the message names. The guard " +
			"allows that only after you mark the Lease: kubectl annotate lease " + name + inNamespace(f) + " singletonjob.io/guard=off"}
	case v1alpha1.ReasonClocksDisagree:
		return []string{"correct the clocks of the API servers and of the node on which the operator runs"}
	case v1alpha1.ReasonRunRequestInvalid:
		return []string{
			"ask again: kubectl singleton run " + name + inNamespace(f),
			"or cancel the request: kubectl annotate singletonjob " + name + inNamespace(f) + " " + contract.RunNowAnnotation + "-",
		}
	case v1alpha1.ReasonOverdue, v1alpha1.ReasonNoServerTime:
		return []string{"see the candidates' logs: kubectl singleton logs " + name + inNamespace(f), "correct the clocks of nodes and API servers, if they differ"}
	case v1alpha1.ReasonAhead:
		return []string{"correct the clocks of nodes and API servers", "until then, start missing runs by hand: kubectl singleton run " + name + inNamespace(f) + " --tick TIME"}
	}
	return specRemedies(f, reason)
}

// specRemedies lists remedies for problems of the spec, or of what the spec names.
func specRemedies(f Facts, reason string) []string {
	job := "singletonjob " + f.Job.Name + inNamespace(f)
	switch reason {
	case v1alpha1.ReasonVolumeNotShared:
		return append([]string{"use one candidate, whose Pod the operator replaces when it is lost: kubectl scale " + job + " --replicas=1", "or use a claim with access mode ReadWriteMany"}, podRemedies(f)...)
	case v1alpha1.ReasonEntrypointUnknown, v1alpha1.ReasonRegistryUnreachable, v1alpha1.ReasonRegistryRefused, v1alpha1.ReasonRegistryUntrusted,
		v1alpha1.ReasonImageNotFound, v1alpha1.ReasonNoEntrypoint, v1alpha1.ReasonEntrypointsDiffer:
		return entrypointRemedies(f, reason)
	case v1alpha1.ReasonRolloutPaused:
		return []string{"resume it: kubectl patch " + job + ` --type=merge -p '{"spec":{"strategy":{"paused":false}}}'`}
	case v1alpha1.ReasonRolloutWaits:
		return []string{"wait for its turn, or replace its Pods now: kubectl singleton restart " + f.Job.Name + inNamespace(f)}
	case v1alpha1.ReasonDeleting:
		return []string{"wait: its deletion finishes by itself; if it lasts, see which finalizer it has, and which controller removes that: kubectl get " + job + " -o yaml"}
	}
	return []string{"kubectl describe " + job}
}

// entrypointRemedies lists what helps if the operator does not find out what an image runs.
func entrypointRemedies(f Facts, reason string) []string {
	first := map[string]string{
		v1alpha1.ReasonRegistryUnreachable: "make the registry reachable for the operator, whose network may differ from the nodes'",
		v1alpha1.ReasonRegistryRefused:     "push the image, or give the operator its pull secrets (entrypoint.pullSecrets)",
		v1alpha1.ReasonRegistryUntrusted:   "change the operator's setting that the message names",
		v1alpha1.ReasonImageNotFound:       "push the image for the architectures of the nodes, or correct its name: kubectl edit " + templated(f),
	}[reason]
	command := "set command to the image's ENTRYPOINT, which docker inspect and crane config show: kubectl edit " + templated(f)
	switch reason {
	case v1alpha1.ReasonNoEntrypoint:
		return []string{"set command to a program in the image: kubectl edit " + templated(f)}
	case v1alpha1.ReasonEntrypointsDiffer:
		return []string{command, "or set nodeSelector to one architecture: kubernetes.io/arch"}
	}
	return []string{
		cmp.Or(first, "fix what the message names") + "; the operator tries again every few minutes, and at once when the template changes",
		"or " + command,
	}
}

// templated is the object that holds the template of the job's Pods, as an argument for kubectl.
func templated(f Facts) string {
	kind, name := "singletonjob", f.Job.Name
	if ref := f.Job.Spec.WorkloadRef; ref != nil {
		kind, name = strings.ToLower(string(ref.Kind)), ref.Name
	}
	return kind + " " + name + inNamespace(f)
}

// runLogs is the command that shows the log of the newest run's last attempt.
func runLogs(f Facts) string {
	pod := "POD"
	if len(f.Job.Status.Runs) > 0 && f.Job.Status.Runs[0].Pod != "" {
		pod = f.Job.Status.Runs[0].Pod
	}
	command := "kubectl logs " + pod + inNamespace(f)
	i := slices.IndexFunc(f.Pods, func(p corev1.Pod) bool { return p.Name == pod })
	if i < 0 || GatedName(&f.Pods[i]) == "" {
		return command
	}
	return command + " -c " + GatedName(&f.Pods[i])
}

func podRemedies(f Facts) []string {
	var all []string
	for i := range f.Pods {
		if c := candidate(f, &f.Pods[i]); c.Ready {
			continue
		}
		for _, s := range statuses(&f.Pods[i]) {
			if w := s.State.Waiting; w != nil && (w.Reason == "ErrImagePull" || w.Reason == "ImagePullBackOff" || w.Reason == "InvalidImageName") {
				all = append(all, "correct the image "+Clean(s.Image)+", or give the nodes access to it (imagePullSecrets)")
			}
		}
		for _, c := range f.Pods[i].Status.Conditions {
			if c.Reason == corev1.PodReasonUnschedulable {
				all = append(all, "add capacity, or change the template's demands on a node: resources, affinity, tolerations, volumes")
			}
		}
	}
	slices.Sort(all)
	return append(slices.Compact(all), podCommand(f, "describe pod", ""))
}

// podCommand is a command for the Pod that needs it most.
func podCommand(f Facts, verb, more string) string {
	pod, container := "POD", ""
	for i := range f.Pods {
		c := candidate(f, &f.Pods[i])
		if pod == "POD" || !c.Ready || c.Role != "active" && verb == "delete pod" {
			pod = c.Pod
			container = GatedName(&f.Pods[i])
		}
		if !c.Ready {
			break
		}
	}
	command := "kubectl " + verb + " " + pod + inNamespace(f)
	if verb == "logs" && container != "" {
		command += " -c " + container
	}
	return command + more
}

func inNamespace(f Facts) string { return " -n " + f.Job.Namespace }

func nodeOf(f Facts, pod string) string {
	for i := range f.Pods {
		if f.Pods[i].Name == pod {
			return f.Pods[i].Spec.NodeName
		}
	}
	return ""
}

func leaseSeen(f Facts) string {
	v := Job{Lease: viewLease(f)}
	v.Lease.Settings = ""
	text := "the Lease: " + leaseBranch(v, f.Now).text
	if v.Lease.Holder != "" && !strings.Contains(text, v.Lease.Holder) {
		text += ", held by " + Clean(v.Lease.Holder)
	}
	return text
}

// podsSeen has a line for each candidate that is not ready.
func podsSeen(f Facts) []string {
	var lines []string
	for _, c := range candidates(f) {
		i := slices.IndexFunc(f.Pods, func(p corev1.Pod) bool { return p.Name == c.Pod })
		if c.Ready && f.Pods[i].DeletionTimestamp == nil {
			continue
		}
		line := where(c.Pod, c.Node) + ": " + Clean(c.State)
		if detail := podDetail(&f.Pods[i], f.Now); detail != "" {
			line += ": " + detail
		}
		lines = append(lines, line)
	}
	return lines
}

// podDetail is what a Pod's status shows in addition to its state.
func podDetail(pod *corev1.Pod, now time.Time) string {
	if pod.DeletionTimestamp != nil {
		return "was deleted " + Ago(now.Sub(pod.DeletionTimestamp.Add(-time.Duration(grace(pod))*time.Second))) + " ago"
	}
	for _, s := range statuses(pod) {
		last := s.LastTerminationState.Terminated
		if s.State.Terminated != nil {
			last = s.State.Terminated
		}
		w := s.State.Waiting
		switch {
		case w != nil && last != nil:
			return fmt.Sprintf("container %s last ended %s ago with status %d%s", s.Name, Ago(now.Sub(last.FinishedAt.Time)), last.ExitCode, parenthesis(last.Reason))
		case w != nil && w.Message != "":
			return "container " + s.Name + ": " + Clean(w.Message)
		case s.State.Terminated != nil && last.ExitCode != 0:
			return fmt.Sprintf("container %s ended with status %d%s", s.Name, last.ExitCode, parenthesis(last.Reason))
		}
	}
	for _, c := range pod.Status.Conditions {
		if c.Type == corev1.PodScheduled && c.Status == corev1.ConditionFalse {
			return Clean(c.Message)
		}
	}
	return Clean(pod.Status.Message)
}

func grace(pod *corev1.Pod) int64 {
	if pod.DeletionGracePeriodSeconds == nil {
		return 0
	}
	return *pod.DeletionGracePeriodSeconds
}

func parenthesis(text string) string {
	if text == "" {
		return ""
	}
	return " (" + Clean(text) + ")"
}

// maxEvents is the maximum number of Events shown.
const maxEvents = 4

// eventsSeen lists the latest warnings about the job and its candidates that are not ready, without duplicates.
func eventsSeen(f Facts) []string {
	concerned := map[string]bool{f.Job.Name: true}
	for _, c := range candidates(f) {
		concerned[c.Pod] = !c.Ready
	}
	events := slices.Clone(f.Events)
	slices.SortStableFunc(events, func(a, b corev1.Event) int { return happened(&b).Compare(happened(&a)) })
	var lines []string
	told := map[string]bool{}
	for i := range events {
		e := &events[i]
		text := e.Reason + ": " + Clean(e.Message)
		if e.Type != corev1.EventTypeWarning || !concerned[e.InvolvedObject.Name] || told[text] || len(lines) == maxEvents {
			continue
		}
		told[text] = true
		lines = append(lines, fmt.Sprintf("event, %s ago, of %s: %s", Ago(f.Now.Sub(happened(e))), e.InvolvedObject.Name, text))
	}
	return lines
}

// happened is the last time at which an Event was seen.
func happened(e *corev1.Event) time.Time {
	at := e.EventTime.Time
	for _, t := range []time.Time{e.FirstTimestamp.Time, e.LastTimestamp.Time} {
		if t.After(at) {
			at = t
		}
	}
	if e.Series != nil && e.Series.LastObservedTime.After(at) {
		at = e.Series.LastObservedTime.Time
	}
	return at
}

// stale is a reason that only this program reports.
const stale = "Stale"

// staleFinding reports a status that says a process runs although its lease ran out long ago.
func staleFinding(f Facts) *Finding {
	v := viewLease(f)
	c := condition(f.Job, v1alpha1.ConditionActive)
	if v.Left == nil || c.Status != metav1.ConditionTrue || time.Duration(*v.Left) > -f.Lease.Duration {
		return nil
	}
	return &Finding{
		About: v1alpha1.ConditionActive, Reason: stale, What: "the status reports " + v.Holder + " as active, but this Pod has not renewed its lease",
		Seen: append([]string{leaseSeen(f)}, operatorsSeen(f)...),
		Do:   []string{operatorRuns, "or this machine's clock is wrong"},
	}
}

// Explain formats the findings as text, and the last failover, which is nil if there was none.
func Explain(v Job, all []Finding, last *Finding, s Style) string {
	var out strings.Builder
	if len(all) == 0 {
		fmt.Fprintf(&out, "%s is %s\n", v.Name, s.well(v))
	}
	if last != nil {
		all = append(slices.Clip(all), *last)
	}
	for _, found := range all {
		if out.Len() > 0 {
			fmt.Fprintln(&out)
		}
		fmt.Fprintf(&out, "%s %s: %s\n", s.paint(bold, v.Name), found.headline(), s.paint(shade(found), found.Reason))
		s.paragraph(&out, "what", []string{found.What})
		s.paragraph(&out, "seen", found.Seen)
		s.paragraph(&out, "do", found.Do)
	}
	return out.String()
}

// well describes a job without problems.
func (s Style) well(v Job) string {
	switch {
	case v.Active == nil && v.Runs != nil && v.Runs.Next != nil:
		return s.paint(green, "as it should be") + ": no run is due, the next tick is " + rfc3339(*v.Runs.Next)
	case v.Active == nil && v.Runs != nil:
		return s.paint(green, "as it should be") + ": there is nothing to run"
	case v.Active == nil:
		return s.paint(green, "active and protected")
	}
	return s.paint(green, "active and protected") + fmt.Sprintf(": %s, token %d", where(v.Active.Pod, v.Active.Node), v.Active.Token)
}

func shade(found Finding) color {
	return verdict(Condition{Type: found.About, Status: string(metav1.ConditionFalse), Reason: found.Reason})
}

func (found Finding) headline() string {
	switch found.About {
	case v1alpha1.ConditionActive:
		if found.Reason == v1alpha1.ReasonNotReady {
			return "is active, but not ready"
		}
		if found.Reason == stale {
			return "may not be active"
		}
		return "is not active"
	case v1alpha1.ConditionProtected:
		return "is not protected"
	case v1alpha1.ConditionProgressing:
		return "is not as its spec asks"
	case v1alpha1.ConditionScheduled:
		return "does not run as scheduled"
	case aboutClock:
		return "runs on a node with another time"
	case aboutFailover:
		return "failed over"
	case aboutOperator:
		return "has no operator"
	}
	return "is not " + found.About
}

func (s Style) paragraph(out *strings.Builder, label string, texts []string) {
	const indent, further = 8, 2
	for i, text := range texts {
		room := 0
		if s.Width > 0 {
			room = s.Width - indent
		}
		for j, line := range wrapped(text, room, further) {
			lead := strings.Repeat(" ", indent)
			switch {
			case i == 0 && j == 0:
				lead = "  " + s.paint(faint, label) + strings.Repeat(" ", indent-2-len(label))
			case j > 0:
				lead += strings.Repeat(" ", further)
			}
			fmt.Fprintln(out, lead+line)
		}
	}
}
