package plugin

import (
	"bytes"
	"context"
	"encoding/json"
	"io"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"regexp"
	"strings"
	"sync"
	"testing"
	"time"
	"unicode/utf8"

	coordinationv1 "k8s.io/api/coordination/v1"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/cli-runtime/pkg/genericiooptions"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/singletonjob/operator/api/v1alpha1"
	"github.com/singletonjob/operator/internal/contract"
	"github.com/singletonjob/operator/test/apiserver"
)

// commandLine is the environment variable that makes this program kubectl singleton, with one argument per line.
const commandLine = "TEST_KUBECTL_SINGLETON"

func TestMain(m *testing.M) {
	_ = os.Setenv("LC_ALL", "C.UTF-8")
	if line := os.Getenv(commandLine); line != "" {
		os.Exit(Run(context.Background(), strings.Split(line, "\n"), genericiooptions.IOStreams{In: os.Stdin, Out: os.Stdout, ErrOut: os.Stderr}))
	}
	os.Exit(apiserver.Main(m))
}

var installed struct {
	sync.Once
	err error
}

// world is a namespace on a real API server, with jobs in the state in which an operator would leave them.
type world struct {
	*testing.T
	api        client.WithWatch
	namespace  string
	kubeconfig string
}

func newWorld(t *testing.T) *world {
	t.Helper()
	t.Setenv("KUBECONFIG", filepath.Join(t.TempDir(), "none")) // not the kubeconfig of the user that runs the tests
	plane := apiserver.ForTest(t)
	installed.Do(func() { installed.err = plane.Apply(context.Background(), "../../config/crd") })
	if installed.err != nil {
		t.Fatal(installed.err)
	}
	s, err := scheme()
	if err != nil {
		t.Fatal(err)
	}
	api, err := client.NewWithWatch(plane.Config(), client.Options{Scheme: s})
	if err != nil {
		t.Fatal(err)
	}
	return &world{T: t, api: api, namespace: plane.Namespace(t), kubeconfig: plane.Kubeconfig()}
}

func (w *world) must(err error) {
	w.Helper()
	if err != nil {
		w.Fatal(err)
	}
}

// run runs a command line and returns its exit status and its output.
func (w *world) run(args ...string) (status int, out, errOut string) {
	w.Helper()
	return w.runFor(w.Context(), args...)
}

func (w *world) runFor(ctx context.Context, args ...string) (status int, out, errOut string) {
	w.Helper()
	var stdout, stderr bytes.Buffer
	where := []string{"--kubeconfig=" + w.kubeconfig, "-n", w.namespace}
	if args[0] == "__complete" {
		where = append([]string{args[0]}, where...)
		args = args[1:]
	}
	args = append(where, args...)
	status = Run(ctx, args, genericiooptions.IOStreams{In: strings.NewReader(""), Out: &stdout, ErrOut: &stderr})
	return status, stdout.String(), stderr.String()
}

// ok runs a command that must succeed, and returns its stdout.
func (w *world) ok(args ...string) string {
	w.Helper()
	status, out, errOut := w.run(args...)
	if status != ExitOK {
		w.Fatalf("%q ended with %d:\n%s%s", args, status, out, errOut)
	}
	return out
}

// says fails unless a command exits with a status and prints a text.
func (w *world) says(status int, text string, args ...string) {
	w.Helper()
	got, out, errOut := w.run(args...)
	if got != status || !strings.Contains(out+errOut, text) {
		w.Errorf("%q ended with %d, want %d, and did not say %q:\n%s%s", args, got, status, text, out, errOut)
	}
	if n := strings.Count(errOut, "\n"); status == ExitError && n != 1 {
		w.Errorf("%q: an error is one line, this is %d:\n%s", args, n, errOut)
	}
}

// job creates a job with two candidates. The second one is active.
func (w *world) job(name string) *v1alpha1.SingletonJob {
	w.Helper()
	job := &v1alpha1.SingletonJob{
		ObjectMeta: metav1.ObjectMeta{Namespace: w.namespace, Name: name},
		Spec: v1alpha1.SingletonJobSpec{Template: corev1.PodTemplateSpec{Spec: corev1.PodSpec{Containers: []corev1.Container{{
			Name: "app", Image: "app:1", Command: []string{"run"},
		}}}}},
	}
	w.must(w.api.Create(w.Context(), job))
	pods := []*corev1.Pod{w.pod(job, "0", "node-a"), w.pod(job, "1", "node-b")}
	w.lease(job, pods[1], 7001)
	w.status(job, func(s *v1alpha1.SingletonJobStatus) {
		now := metav1.Now()
		*s = v1alpha1.SingletonJobStatus{
			ObservedGeneration: job.Generation, ActivePod: pods[1].Name, ActiveNode: "node-b", ActiveSince: &now, FencingToken: 7001, Tenures: 2,
			Failovers: 1, LeaseSummary: "1h0m0s/10s/2s", Candidates: v1alpha1.CandidatesStatus{Total: 2, Ready: 2, Updated: 2},
			History: []v1alpha1.TenureChange{
				{
					Time: metav1.NowMicro(), Type: v1alpha1.Failover, Reason: v1alpha1.ChangeLeaseExpired, From: pods[0].Name, FromToken: 6000,
					To: pods[1].Name, ToNode: "node-b", Token: 7001, Downtime: &metav1.Duration{Duration: 15 * time.Second},
				},
				{Time: metav1.NowMicro(), Type: v1alpha1.Elected, Reason: v1alpha1.ChangeElected, To: pods[0].Name, Token: 6000},
			},
		}
		w.condition(s, v1alpha1.ConditionActive, v1alpha1.ReasonRunning)
		w.condition(s, v1alpha1.ConditionProtected, v1alpha1.ReasonStandbyReady)
		w.condition(s, v1alpha1.ConditionProgressing, v1alpha1.ReasonUpToDate)
	})
	return job
}

func (w *world) condition(s *v1alpha1.SingletonJobStatus, name, reason string) {
	w.Helper()
	for _, r := range v1alpha1.ConditionReasons() {
		if r.Condition == name && r.Reason == reason {
			for i := range s.Conditions {
				if s.Conditions[i].Type == name {
					s.Conditions[i].Status, s.Conditions[i].Reason, s.Conditions[i].Message = r.Status, reason, r.Meaning
					return
				}
			}
			s.Conditions = append(s.Conditions, metav1.Condition{
				Type: name, Status: r.Status, Reason: reason, Message: r.Meaning, LastTransitionTime: metav1.Now(),
			})
			return
		}
	}
	w.Fatalf("%s has no reason %s", name, reason)
}

// status changes a job's status as its operator would.
func (w *world) status(job *v1alpha1.SingletonJob, change func(*v1alpha1.SingletonJobStatus)) {
	w.Helper()
	w.must(w.api.Get(w.Context(), client.ObjectKeyFromObject(job), job))
	before := job.DeepCopy()
	change(&job.Status)
	w.must(w.api.Status().Patch(w.Context(), job, client.MergeFrom(before)))
}

// pod creates a ready candidate.
func (w *world) pod(job *v1alpha1.SingletonJob, ordinal, node string) *corev1.Pod {
	w.Helper()
	pod := &corev1.Pod{
		ObjectMeta: metav1.ObjectMeta{
			Namespace: w.namespace, Name: job.Name + "-752pq9t-" + ordinal,
			Labels:      map[string]string{contract.NameLabel: job.Name, contract.TemplateHashLabel: "752pq9t"},
			Annotations: map[string]string{contract.GatedAnnotation: "app"},
			OwnerReferences: []metav1.OwnerReference{
				*metav1.NewControllerRef(job, v1alpha1.GroupVersion.WithKind(v1alpha1.Kind)),
			},
		},
		Spec: corev1.PodSpec{NodeName: node, Containers: []corev1.Container{{Name: "app", Image: "app:1"}}},
	}
	w.must(w.api.Create(w.Context(), pod))
	pod.Status = corev1.PodStatus{Phase: corev1.PodRunning, Conditions: []corev1.PodCondition{{Type: corev1.PodReady, Status: corev1.ConditionTrue}}}
	w.must(w.api.Status().Update(w.Context(), pod))
	return pod
}

// lease creates a job's Lease. A Pod has held it for an hour.
func (w *world) lease(job *v1alpha1.SingletonJob, pod *corev1.Pod, token int64) {
	w.Helper()
	now := metav1.NowMicro()
	w.must(w.api.Create(w.Context(), &coordinationv1.Lease{
		ObjectMeta: metav1.ObjectMeta{
			Namespace: w.namespace, Name: job.Name,
			Labels:      map[string]string{contract.ManagedByLabel: contract.ManagedBy, contract.NameLabel: job.Name},
			Annotations: map[string]string{contract.TokenAnnotation: itoa(token)},
		},
		Spec: coordinationv1.LeaseSpec{
			HolderIdentity: new(pod.Name + "/" + string(pod.UID) + "/nonce"), LeaseDurationSeconds: new(int32(3600)), LeaseTransitions: new(int32(2)),
			AcquireTime: &now, RenewTime: &now,
		},
	}))
}

func itoa(n int64) string {
	raw, _ := json.Marshal(n)
	return string(raw)
}

// TestLook tests the commands that change nothing, with a healthy job and a job without a standby.
func TestLook(t *testing.T) {
	w := newWorld(t)
	w.job("billing")
	alone := w.job("mail")
	w.status(alone, func(s *v1alpha1.SingletonJobStatus) {
		w.condition(s, v1alpha1.ConditionProtected, v1alpha1.ReasonNoStandby)
	})
	standby := &corev1.Pod{ObjectMeta: metav1.ObjectMeta{Namespace: w.namespace, Name: "mail-752pq9t-0"}}
	w.must(w.api.Get(t.Context(), client.ObjectKeyFromObject(standby), standby))
	standby.Status.Conditions[0].Status = corev1.ConditionFalse
	w.must(w.api.Status().Update(t.Context(), standby))
	w.must(w.api.Create(t.Context(), &corev1.Event{
		ObjectMeta: metav1.ObjectMeta{Namespace: w.namespace, Name: "mail.1"}, Type: corev1.EventTypeWarning, Reason: "FailedMount",
		Message: "volume is elsewhere", LastTimestamp: metav1.Now(),
		InvolvedObject: corev1.ObjectReference{Namespace: w.namespace, Name: standby.Name, Kind: "Pod"},
	}))

	for _, name := range []string{"billing", "sj/billing", "singletonjobs.singletonjob.io/billing"} {
		w.says(ExitOK, "●  billing-752pq9t-1  active   node-b  ready", "status", name)
	}
	if both := w.ok("status"); !strings.Contains(both, "billing  in namespace") || !strings.Contains(both, "mail  in namespace") {
		t.Errorf("status without a name shows:\n%s", both)
	}
	t.Setenv("LC_ALL", "C")
	w.says(ExitOK, "|  |- *  billing-752pq9t-1  active", "status", "billing")
	t.Setenv("LC_ALL", "C.UTF-8")
	w.says(ExitOK, "renewed", "status", "billing")
	w.says(ExitOK, "LeaseExpired", "history", "billing", "-o", "wide")
	w.says(ExitOK, "singletonjob.singletonjob.io/billing\n", "status", "billing", "-o", "name")
	w.says(ExitOK, "token: 7001\n", "status", "billing", "-o", "yaml")
	if token := w.ok("token", "billing"); token != "7001\n" {
		t.Errorf("token printed %q", token)
	}
	w.says(ExitOK, "7001 billing-752pq9t-1 node-b\n", "token", "billing", "-o", "wide")
	w.says(ExitOK, "billing is active and protected: billing-752pq9t-1 on node-b, token 7001", "why", "billing")
	w.says(ExitAmiss, "FailedMount: volume is elsewhere", "why", "mail")
	w.says(ExitAmiss, "billing is active", "why")
	var parsed []struct {
		Name     string
		Findings []struct{ Reason string }
	}
	_, out, _ := w.run("why", "-o", "json")
	if err := json.Unmarshal([]byte(out), &parsed); err != nil || len(parsed) != 2 || parsed[1].Findings[0].Reason != v1alpha1.ReasonNoStandby || parsed[0].Findings == nil {
		t.Errorf("why -o json: %v, %+v\n%s", err, parsed, out)
	}
	w.says(ExitOK, "billing\nmail\n", "__complete", "status", "")
	w.says(ExitOK, "mail\n", "__complete", "why", "m")
}

// TestSelection: flags select jobs of all namespaces, or by their labels.
func TestSelection(t *testing.T) {
	w := newWorld(t)
	labelled := w.job("billing")
	before := labelled.DeepCopy()
	labelled.Labels = map[string]string{"app": w.namespace}
	w.must(w.api.Patch(t.Context(), labelled, client.MergeFrom(before)))
	w.job("mail")
	other := newWorld(t)
	elsewhere := other.job("billing")
	before = elsewhere.DeepCopy()
	elsewhere.Labels = map[string]string{"app": w.namespace}
	w.must(w.api.Patch(t.Context(), elsewhere, client.MergeFrom(before)))

	mine := "app=" + w.namespace
	if out := w.ok("status", "-l", mine, "-o", "name"); out != "singletonjob.singletonjob.io/billing\n" {
		t.Errorf("-l shows\n%s", out)
	}
	for _, command := range []string{"status", "why"} {
		_, out, _ := w.run(command, "-A", "-l", mine)
		for _, namespace := range []string{w.namespace, other.namespace} {
			if !strings.Contains(out, namespace) || strings.Contains(out, "mail") {
				t.Errorf("%s -A -l shows\n%s", command, out)
			}
		}
	}
	w.says(ExitOK, w.namespace+"/billing is active and protected", "why", "-A", "-l", mine)
	w.says(ExitOK, "No SingletonJobs with the labels app=x in any namespace.", "status", "-A", "-l", "app=x")
	w.says(ExitUsage, "--selector selects jobs by their labels: give no NAME", "status", "billing", "-l", mine)
	w.says(ExitUsage, "--all-namespaces shows every job: give no NAME", "why", "billing", "-A")
	w.says(ExitUsage, "--selector=a b: ", "status", "-l", "a b")
}

// TestWhyLooksFurther: an explanation shows nodes, operators and the clock of the holder's node.
func TestWhyLooksFurther(t *testing.T) {
	w := newWorld(t)
	job := w.job("billing")
	node := &corev1.Node{ObjectMeta: metav1.ObjectMeta{Name: "node-" + w.namespace, Labels: map[string]string{corev1.LabelTopologyZone: "zone-b"}}}
	w.must(w.api.Create(t.Context(), node))
	t.Cleanup(func() { _ = w.api.Delete(context.Background(), node) })
	pod := w.pod(job, "2", node.Name)
	w.took(pod.Name, job, 8003)
	w.says(ExitOK, node.Name+"  zone-b  ready", "status", "billing")
	w.says(ExitOK, "took over from billing-752pq9t-0, after 15s without a process", "why", "billing")
	w.says(ExitOK, "Operator: none was found", "version")

	operator := &corev1.Pod{
		ObjectMeta: metav1.ObjectMeta{Namespace: w.namespace, Name: "operator", Labels: map[string]string{
			"app.kubernetes.io/name": "singletonjob", "app.kubernetes.io/version": "99.0.0",
		}},
		Spec: corev1.PodSpec{Containers: []corev1.Container{{Name: "manager", Image: "manager"}}},
	}
	w.must(w.api.Create(t.Context(), operator))
	w.says(ExitAmiss, "billing has no operator: OperatorDown", "why", "billing")
	w.says(ExitOK, "99.0.0", "version")
	operator.Status = corev1.PodStatus{Phase: corev1.PodRunning, Conditions: []corev1.PodCondition{{Type: corev1.PodReady, Status: corev1.ConditionTrue}}}
	w.must(w.api.Status().Update(t.Context(), operator))
	w.says(ExitOK, "billing is active and protected", "why", "billing")
	w.must(w.api.Delete(t.Context(), operator, client.GracePeriodSeconds(0)))

	w.shift(job, time.Hour)
	w.says(ExitAmiss, "ahead of the API server's", "why", "billing")
	ended := make(chan struct{})
	defer func() { <-ended }()
	ctx, done := context.WithCancel(t.Context())
	defer done()
	go func() { // the holder, whose clock is an hour behind
		defer close(ended)
		for ctx.Err() == nil {
			w.shift(job, -time.Hour)
			time.Sleep(100 * time.Millisecond)
		}
	}()
	w.says(ExitAmiss, "behind the API server's", "why", "billing")
}

// shift renews a job's Lease by a clock that is that much ahead.
func (w *world) shift(job *v1alpha1.SingletonJob, ahead time.Duration) {
	w.Helper()
	var l coordinationv1.Lease
	w.must(w.api.Get(w.Context(), types.NamespacedName{Namespace: w.namespace, Name: job.Name}, &l))
	l.Spec.RenewTime = new(metav1.NewMicroTime(time.Now().Add(ahead)))
	w.must(w.api.Update(w.Context(), &l))
}

// TestStatusOnATerminal: a terminal gets colours and lines that fit its width, and neither with NO_COLOR.
func TestStatusOnATerminal(t *testing.T) {
	w := newWorld(t)
	w.job("invoices-of-the-northern-subsidiary")
	for _, columns := range []uint16{80, 120} {
		for _, noColor := range []string{"", "1"} {
			t.Setenv("NO_COLOR", noColor)
			person, program := pty(t, columns, 40)
			shown := make(chan string)
			go func() {
				raw, _ := io.ReadAll(person)
				shown <- strings.ReplaceAll(string(raw), "\r\n", "\n")
			}()
			args := []string{"--kubeconfig=" + w.kubeconfig, "-n", w.namespace, "status"}
			if status := Run(t.Context(), args, genericiooptions.IOStreams{In: strings.NewReader(""), Out: program, ErrOut: program}); status != ExitOK {
				t.Errorf("status ended with %d", status)
			}
			_ = program.Close()
			text := <-shown
			if colored := strings.Contains(text, "\x1b["); colored != (noColor == "") {
				t.Errorf("NO_COLOR=%q: %q", noColor, text)
			}
			for line := range strings.Lines(ansi.ReplaceAllString(text, "")) {
				if n := utf8.RuneCountInString(strings.TrimSuffix(line, "\n")); n > int(columns) {
					t.Errorf("%d columns, and a line of %d: %q", columns, n, line)
				}
			}
		}
	}
}

// ansi matches what colours a text.
var ansi = regexp.MustCompile("\x1b\\[[0-9;]*m")

// TestErrors: each error is one line with a remedy.
func TestErrors(t *testing.T) {
	w := newWorld(t)
	w.says(ExitOK, "No SingletonJobs in namespace", "status")
	w.says(ExitError, "and no other either: select another namespace with -n", "status", "nothing-like-it")
	w.job("billing")
	w.says(ExitError, `there is no SingletonJob "biling" in namespace `+w.namespace+"; did you mean billing?", "status", "biling")
	w.job("of-" + w.namespace)
	w.says(ExitError, "but there is one in namespace "+w.namespace+": select it with -n", "token", "of-"+w.namespace, "-n", "default")
	w.says(ExitError, "nobody may not get singletonjobs.singletonjob.io in namespace "+w.namespace, "history", "billing", "--as", "nobody")
	w.says(ExitUsage, "expected the NAME of one SingletonJob, got 0", "token")
	w.says(ExitUsage, "--output=jsn: status accepts json, yaml, wide, name", "status", "-o", "jsn")
	w.says(ExitUsage, "--output=yaml: suspend accepts name", "suspend", "billing", "-o", "yaml")
	w.says(ExitUsage, "unknown command", "stats")
	w.says(ExitUsage, "unknown flag: --wacht", "status", "--wacht")
	w.says(ExitUsage, "--watch needs the NAME of one", "status", "-w")

	empty := httptest.NewServer(http.HandlerFunc(func(out http.ResponseWriter, _ *http.Request) {
		out.Header().Set("Content-Type", "application/json")
		out.WriteHeader(http.StatusNotFound)
		io.WriteString(out, `{"kind":"Status","apiVersion":"v1","status":"Failure","reason":"NotFound","message":"the server could not find the requested resource","details":{},"code":404}`)
	}))
	defer empty.Close()
	w.kubeconfig = ""
	w.says(ExitError, "this cluster has no SingletonJob definition: install the operator first", "status", "billing", "-s", empty.URL)
	w.says(ExitError, "no cluster is configured", "status", "billing")
	empty.Close()
	w.says(ExitError, "refused", "status", "billing", "-s", empty.URL)
}

// TestForbiddenParts: a user who may not read Leases sees the rest.
func TestForbiddenParts(t *testing.T) {
	w := newWorld(t)
	w.job("billing")
	w.mayOnly("viewer", map[string][]string{"singletonjobs": {"get", "list"}, "pods": {"list"}})
	w.says(ExitOK, "unknown: you may not read Leases in this namespace", "status", "billing", "--as", "viewer")
	w.says(ExitOK, "active and protected", "why", "billing", "--as", "viewer")
	w.says(ExitError, "viewer may not patch singletonjobs.singletonjob.io in namespace "+w.namespace+": ask for a role", "suspend", "billing", "--as", "viewer")
}

// TestSuspend: --wait waits for the operator's report on the change, not for an earlier report.
func TestSuspend(t *testing.T) {
	w := newWorld(t)
	job := w.job("billing")
	ended := make(chan struct{})
	go func() {
		defer close(ended)
		w.says(ExitOK, "singletonjob.singletonjob.io/billing suspended\n", "suspend", "billing", "--wait", "--timeout=0")
	}()
	w.until(job, func() bool { return job.Spec.Suspend })
	w.status(job, func(s *v1alpha1.SingletonJobStatus) {
		s.ObservedGeneration, s.ActivePod = job.Generation, ""
		w.condition(s, v1alpha1.ConditionActive, v1alpha1.ReasonSuspended)
		w.condition(s, v1alpha1.ConditionProgressing, v1alpha1.ReasonSuspended)
	})
	<-ended
	w.says(ExitOK, "suspended already", "suspend", "billing")
	w.says(ExitAmiss, "kubectl singleton resume billing", "why", "billing")
	w.says(ExitError, "timed out after 1ms; see kubectl singleton why billing", "resume", "billing", "--wait", "--timeout=1ms")
	if w.until(job, func() bool { return true }); job.Spec.Suspend {
		t.Error("the job was not resumed")
	}
}

// until waits until a job meets a condition.
func (w *world) until(job *v1alpha1.SingletonJob, is func() bool) {
	w.Helper()
	for ; ; time.Sleep(20 * time.Millisecond) {
		w.must(w.api.Get(w.Context(), client.ObjectKeyFromObject(job), job))
		if is() {
			return
		}
	}
}

// TestWatch: without a terminal, a status is printed again when something other than the time has changed, until interrupted.
func TestWatch(t *testing.T) {
	w := newWorld(t)
	job := w.job("billing")
	ctx, interrupt := context.WithCancel(t.Context())
	defer interrupt()
	reader, writer := io.Pipe()
	ended := make(chan int)
	go func() {
		args := []string{"status", "billing", "--watch", "--kubeconfig=" + w.kubeconfig, "-n", w.namespace}
		status := Run(ctx, args, genericiooptions.IOStreams{In: strings.NewReader(""), Out: writer, ErrOut: io.Discard})
		writer.Close()
		ended <- status
	}()
	seen := newReader(reader)
	seen.until(t, "StandbyReady")
	w.renew(job) // is no change
	w.status(job, func(s *v1alpha1.SingletonJobStatus) {
		w.condition(s, v1alpha1.ConditionProtected, v1alpha1.ReasonNoStandby)
	})
	seen.until(t, "NoStandby")
	if n := seen.count("StandbyReady"); n != 1 {
		t.Errorf("what had not changed was shown %d times:\n%s", n, strings.Join(seen.lines, "\n"))
	}
	interrupt()
	go seen.drain()
	if status := <-ended; status != ExitInterrupted {
		t.Errorf("an interrupted watch ended with %d", status)
	}
}

// renew changes the time of a Lease's renewal.
func (w *world) renew(job *v1alpha1.SingletonJob) {
	w.Helper()
	var l coordinationv1.Lease
	w.must(w.api.Get(w.Context(), types.NamespacedName{Namespace: w.namespace, Name: job.Name}, &l))
	l.Spec.RenewTime = new(metav1.NowMicro())
	w.must(w.api.Update(w.Context(), &l))
}
