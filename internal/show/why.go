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

// Finding is something that is not as it should be: what it is, what shows it, and what to do.
type Finding struct {
	// About is the condition that is not met.
	About  string   `json:"about"`
	Reason string   `json:"reason"`
	What   string   `json:"what"`
	Seen   []string `json:"seen,omitempty"`
	Do     []string `json:"do,omitempty"`
}

// Why lists what keeps a job from being active and protected, the gravest first. None: all is well.
func Why(f Facts) []Finding {
	job := f.Job
	if len(job.Status.Conditions) == 0 {
		return []Finding{{
			About: v1alpha1.ConditionActive, Reason: "NotReported", What: "no operator has said anything of this job yet",
			Seen: []string{"it was made " + Ago(f.Now.Sub(job.CreationTimestamp.Time)) + " ago, and has no conditions"},
			Do:   []string{operatorRuns},
		}}
	}
	var all []Finding
	if job.Status.ObservedGeneration < job.Generation {
		all = append(all, Finding{
			About: v1alpha1.ConditionProgressing, Reason: "NotObserved", What: "the operator has not seen the last change of the spec: what follows is of the one before",
			Seen: []string{fmt.Sprintf("the status is of generation %d, the spec of %d", job.Status.ObservedGeneration, job.Generation)},
			Do:   []string{operatorRuns},
		})
	}
	told := map[string]bool{} // one cause may show in several conditions
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
	if out := staleFinding(f); out != nil {
		all = append(all, *out)
	}
	return toldOnce(all)
}

// toldOnce takes from each finding what those before it have told already.
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

const operatorRuns = "see that an operator runs and serves this namespace: kubectl get pods -A -l app.kubernetes.io/name=singletonjob"

// amiss reports whether a condition is not met. Nothing that progresses is no fault, and what is under way needs no remedy.
func amiss(c metav1.Condition) bool {
	switch {
	case c.Status == "": // an operator of another version does not report it
		return false
	case c.Type == v1alpha1.ConditionProgressing:
		return c.Status == metav1.ConditionFalse && c.Reason != v1alpha1.ReasonUpToDate && c.Reason != v1alpha1.ReasonSuspended
	case c.Reason == v1alpha1.ReasonNoHolder: // Active says it
		return false
	case rests(c.Reason):
		return false
	}
	return c.Status != metav1.ConditionTrue || c.Reason == v1alpha1.ReasonNotReady || c.Reason == v1alpha1.ReasonUnmanagedHolder
}

// further are the conditions besides the three: those that operators of other versions may report too.
func further(c metav1.Condition) bool {
	switch c.Type {
	case v1alpha1.ConditionActive, v1alpha1.ConditionProtected, v1alpha1.ConditionProgressing, v1alpha1.ConditionReady,
		v1alpha1.ConditionComplete, v1alpha1.ConditionFailed: // Active says why a run is not over, or has failed
		return false
	}
	return c.Status == metav1.ConditionFalse
}

// rests reports whether nothing acts since nothing is to be run.
func rests(reason string) bool {
	return reason == v1alpha1.ReasonCompleted || reason == v1alpha1.ReasonNotDue || reason == v1alpha1.ReasonResting
}

func finding(f Facts, c metav1.Condition) Finding {
	found := Finding{About: c.Type, Reason: c.Reason, What: cmp.Or(Clean(c.Message), "the operator does not say more")}
	if ofPods(c.Reason) {
		found.Seen = slices.Concat(podsSeen(f), eventsSeen(f))
	}
	if c.Reason == v1alpha1.ReasonHolderUnreachable || c.Reason == v1alpha1.ReasonElecting || c.Reason == v1alpha1.ReasonForeignHolder ||
		c.Reason == v1alpha1.ReasonUnmanagedHolder {
		found.Seen = append([]string{leaseSeen(f)}, podsSeen(f)...)
	}
	found.Do = remedies(f, c.Reason)
	return found
}

// ofPods reports whether what pods and events show explains a reason.
func ofPods(reason string) bool {
	switch reason {
	case v1alpha1.ReasonNotReady, v1alpha1.ReasonNoCandidates, v1alpha1.ReasonCandidatesNotReady, v1alpha1.ReasonProcessBackOff,
		v1alpha1.ReasonFailedCreate, v1alpha1.ReasonPodsFailing, v1alpha1.ReasonAgentMisconfigured, v1alpha1.ReasonNoStandby,
		v1alpha1.ReasonStandbyOnSameNode, v1alpha1.ReasonVolumeNotShared, v1alpha1.ReasonRolloutStalled, v1alpha1.ReasonProgressDeadlineExceeded,
		v1alpha1.ReasonCandidateStuck:
		return true
	}
	return false
}

// remedies is what to do about a reason. One that is not known here, as an operator of another version may have, is explained
// by the cluster itself.
func remedies(f Facts, reason string) []string {
	name := f.Job.Name
	logs := func() []string {
		return []string{"read why it ends: " + podCommand(f, "logs", " --previous"), "or follow it: kubectl singleton logs -f " + name + inNamespace(f)}
	}
	switch reason {
	case v1alpha1.ReasonSuspended, v1alpha1.ReasonSuspending:
		return []string{"kubectl singleton resume " + name + inNamespace(f)}
	case v1alpha1.ReasonElecting:
		return []string{"wait: a candidate takes over once the last tenure is certainly over, at most the lease's duration after its last renewal"}
	case v1alpha1.ReasonHolderUnreachable:
		return []string{"wait: a standby takes over when the lease runs out", "if that node is lost for good, delete it or taint it out-of-service: kubectl describe node " + cmp.Or(nodeOf(f, Holder(f)), "NODE")}
	case v1alpha1.ReasonForeignHolder:
		return []string{"stop the other elector, or give it a Lease of another name; candidates take over when its lease runs out"}
	case v1alpha1.ReasonLeaseConflict:
		return []string{"see whose it is: kubectl get lease " + name + inNamespace(f) + " -o yaml", "delete that Lease if nobody uses it, or give the job another name"}
	case v1alpha1.ReasonInvalidSpec:
		return []string{"change what the message names: kubectl edit singletonjob " + name + inNamespace(f)}
	case v1alpha1.ReasonProcessBackOff, v1alpha1.ReasonAgentMisconfigured, v1alpha1.ReasonNotReady:
		return logs()
	case v1alpha1.ReasonFailedCreate:
		return []string{"change what refuses the pods: a quota (kubectl describe quota" + inNamespace(f) + "), Pod Security, a webhook, or the template"}
	case v1alpha1.ReasonNoCandidates:
		return []string{"wait, if the job is new; else " + operatorRuns}
	case v1alpha1.ReasonRolloutStalled, v1alpha1.ReasonProgressDeadlineExceeded:
		return append([]string{"correct the template, or apply the one before: the next change is rolled out at once"}, podRemedies(f)...)
	case v1alpha1.ReasonCandidatesNotReady, v1alpha1.ReasonPodsFailing, v1alpha1.ReasonCandidateStuck, v1alpha1.ReasonNoStandby:
		return podRemedies(f)
	case v1alpha1.ReasonStandbyOnSameNode:
		return []string{"let another node take pods (kubectl get nodes): the operator moves one, unless the message says otherwise"}
	case v1alpha1.ReasonSingleCandidate:
		return []string{"kubectl scale singletonjob " + name + inNamespace(f) + " --replicas=2"}
	case v1alpha1.ReasonCPULimitTooSmall:
		return []string{"take the CPU limit away, raise it, or ask for a longer lease, as the message says"}
	}
	return furtherRemedies(f, reason)
}

func furtherRemedies(f Facts, reason string) []string {
	name := f.Job.Name
	switch reason {
	case v1alpha1.ReasonUnmanagedHolder:
		return []string{"delete the pod that the message names: a candidate takes over"}
	case v1alpha1.ReasonSwitchoverBlocked:
		return []string{"wait for what the message names, or take it back: kubectl annotate singletonjob " + name + inNamespace(f) + " " + contract.SwitchoverAnnotation + "-"}
	case v1alpha1.ReasonWorkloadRunning:
		return []string{"scale that workload to 0, also where its replicas are written down: nothing starts before its pods are gone"}
	case v1alpha1.ReasonWorkloadSettling:
		return []string{"wait: a moment, as a rule; if it lasts, see whether the cluster's kube-controller-manager runs"}
	case v1alpha1.ReasonWorkloadMissing, v1alpha1.ReasonWorkloadTaken:
		return []string{"name another workload, or give this one back: kubectl edit singletonjob " + name + inNamespace(f)}
	case v1alpha1.ReasonRetrying:
		return []string{"read why it failed: " + runLogs(f), "or wait: spec.backoffLimit attempts follow the first"}
	case v1alpha1.ReasonRunFailed:
		return []string{"read why it failed: " + runLogs(f), "then run it again: kubectl singleton run " + name + inNamespace(f)}
	case v1alpha1.ReasonBadRun:
		return []string{"see what stands there: kubectl get lease " + name + inNamespace(f) + " -o yaml", "correct or remove what the message names, which the " +
			"guard lets nobody do before the Lease is marked: kubectl annotate lease " + name + inNamespace(f) + " singletonjob.io/guard=off"}
	case v1alpha1.ReasonClocksDisagree:
		return []string{"set the clocks of API servers and of the node on which the operator runs"}
	case v1alpha1.ReasonRunRequestInvalid:
		return []string{
			"ask anew: kubectl singleton run " + name + inNamespace(f),
			"or take it back: kubectl annotate singletonjob " + name + inNamespace(f) + " " + contract.RunNowAnnotation + "-",
		}
	case v1alpha1.ReasonOverdue, v1alpha1.ReasonNoServerTime:
		return []string{"read what the candidates say: kubectl singleton logs " + name + inNamespace(f), "set the clocks of nodes and API servers, if they differ"}
	case v1alpha1.ReasonAhead:
		return []string{"set the clocks of nodes and API servers", "run meanwhile by hand what is missing: kubectl singleton run " + name + inNamespace(f) + " --tick TIME"}
	}
	return specRemedies(f, reason)
}

// specRemedies are those of what the spec, or what it names, asks for.
func specRemedies(f Facts, reason string) []string {
	job := "singletonjob " + f.Job.Name + inNamespace(f)
	switch reason {
	case v1alpha1.ReasonVolumeNotShared:
		return append([]string{"let the next pod be made when this one is lost: kubectl scale " + job + " --replicas=1", "or use a claim that is ReadWriteMany"}, podRemedies(f)...)
	case v1alpha1.ReasonEntrypointUnknown:
		return []string{
			"mend what the message names: it is tried again every few minutes, and at once when the template changes",
			"or set command to the ENTRYPOINT of the image, which docker inspect and crane config tell: kubectl edit " + templated(f),
		}
	case v1alpha1.ReasonRolloutPaused:
		return []string{"let it go on: kubectl patch " + job + ` --type=merge -p '{"spec":{"strategy":{"paused":false}}}'`}
	case v1alpha1.ReasonRolloutWaits:
		return []string{"wait for its turn, or have its pods replaced now: kubectl singleton restart " + f.Job.Name + inNamespace(f)}
	case v1alpha1.ReasonDeleting:
		return []string{"wait: it goes by itself; if it lasts, see which finalizer it has, and who takes that away: kubectl get " + job + " -o yaml"}
	}
	return []string{"kubectl describe " + job}
}

// templated is what has the template of a job's pods, as kubectl takes it.
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
				all = append(all, "correct the image "+Clean(s.Image)+", or let the nodes pull it (imagePullSecrets)")
			}
		}
		for _, c := range f.Pods[i].Status.Conditions {
			if c.Reason == corev1.PodReasonUnschedulable {
				all = append(all, "make room, or change what the template asks of a node: resources, affinity, tolerations, volumes")
			}
		}
	}
	slices.Sort(all)
	return append(slices.Compact(all), podCommand(f, "describe pod", ""))
}

// podCommand is a command about the pod that is most in need of it.
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

// podDetail is what a pod's status tells beside its state.
func podDetail(pod *corev1.Pod, now time.Time) string {
	if pod.DeletionTimestamp != nil {
		return "was told to go " + Ago(now.Sub(pod.DeletionTimestamp.Add(-time.Duration(grace(pod))*time.Second))) + " ago"
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

// maxEvents is how many Events are told of.
const maxEvents = 4

// eventsSeen are the latest warnings about the job and its candidates that are not ready, each once.
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

// happened is when an Event was seen last.
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

// stale is a reason that only this program knows.
const stale = "Stale"

// staleFinding is told when the status says that a process runs, and its lease ran out long ago.
func staleFinding(f Facts) *Finding {
	v := viewLease(f)
	c := condition(f.Job, v1alpha1.ConditionActive)
	if v.Left == nil || c.Status != metav1.ConditionTrue || time.Duration(*v.Left) > -f.Lease.Duration {
		return nil
	}
	return &Finding{
		About: v1alpha1.ConditionActive, Reason: stale, What: "the status calls " + v.Holder + " active, but it has not renewed its lease",
		Seen: []string{leaseSeen(f)},
		Do:   []string{operatorRuns, "or this machine's clock is wrong"},
	}
}

// Explain is the findings as text.
func Explain(v Job, all []Finding, s Style) string {
	var out strings.Builder
	if len(all) == 0 {
		fmt.Fprintf(&out, "%s is %s\n", v.Name, s.well(v))
	}
	for i, found := range all {
		if i > 0 {
			fmt.Fprintln(&out)
		}
		fmt.Fprintf(&out, "%s %s: %s\n", s.paint(bold, v.Name), found.headline(), s.paint(shade(found), found.Reason))
		s.paragraph(&out, "what", []string{found.What})
		s.paragraph(&out, "seen", found.Seen)
		s.paragraph(&out, "do", found.Do)
	}
	return out.String()
}

// well is what a job is of which nothing is amiss.
func (s Style) well(v Job) string {
	switch {
	case v.Active == nil && v.Runs != nil && v.Runs.Next != nil:
		return s.paint(green, "as it should be") + ": no run is due, the next is that of " + rfc3339(*v.Runs.Next)
	case v.Active == nil && v.Runs != nil:
		return s.paint(green, "as it should be") + ": nothing is to be run"
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
