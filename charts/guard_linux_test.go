package charts

import (
	"maps"
	"os"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"testing"
	"time"

	coordinationv1 "k8s.io/api/coordination/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/rest"

	"github.com/singletonjob/operator/api/v1alpha1"
	"github.com/singletonjob/operator/docs/commands"
	"github.com/singletonjob/operator/internal/contract"
	"github.com/singletonjob/operator/internal/inject"
	"github.com/singletonjob/operator/internal/lease"
	"github.com/singletonjob/operator/internal/plan"
	"github.com/singletonjob/operator/test/controlplane"
	"github.com/singletonjob/operator/test/tier"
)

const (
	system    = "system" // the release's namespace
	tenant    = "tenant"
	theLease  = "job"
	guardMark = "singletonjob.io/guard"
	podName   = "authentication.kubernetes.io/pod-name"
	podUID    = "authentication.kubernetes.io/pod-uid"
)

// The users that write Leases. RBAC allows all of them, so that only the guard refuses. The first four are not bound to a Pod.
var (
	root          = rest.ImpersonationConfig{UserName: "root", Groups: []string{"system:masters"}}
	editor        = rest.ImpersonationConfig{UserName: "an-editor"}
	administrator = rest.ImpersonationConfig{UserName: "an-administrator"}
	bareAccount   = rest.ImpersonationConfig{UserName: account(tenant, "job-singletonjob")} // impersonated, or a token that is not bound to a Pod
	kubelet       = rest.ImpersonationConfig{UserName: "system:node:n", Groups: []string{"system:nodes"}}
	operator      = rest.ImpersonationConfig{UserName: account(system, "release-singletonjob")}
	collector     = rest.ImpersonationConfig{UserName: account("kube-system", "generic-garbage-collector"), Groups: []string{"system:masters"}}
	holder        = pod(tenant, "job-hbt97c5-0")
	standby       = pod(tenant, "job-hbt97c5-1")
	impostor      = rest.ImpersonationConfig{UserName: account(tenant, "another"), Extra: standby.Extra} // a Pod with a candidate's name and some account
)

// pod is the identity that the API server derives from a Pod's token.
func pod(namespace, name string) rest.ImpersonationConfig {
	return rest.ImpersonationConfig{
		UserName: account(namespace, "job-singletonjob"), Extra: map[string][]string{podName: {name}, podUID: {"uid-of-" + name}},
	}
}

func identity(of rest.ImpersonationConfig, nonce string) string {
	return of.Extra[podName][0] + "/" + of.Extra[podUID][0] + "/" + nonce
}

// guardWorld is an API server with everything that the chart installs except the operator. Only this test uses it, so that its
// guard refuses nothing to other tests.
type guardWorld struct {
	*cluster
	owned    *controlplane.ControlPlane // the API server's, for tests that kill it
	policies string                     // their manifest
}

func newGuardWorld(t testing.TB) *guardWorld {
	t.Helper()
	helm, err := helmPath()
	if err != nil {
		t.Fatalf("build Helm: %v", err)
	}
	plane, err := controlplane.Start(t.Context(), controlplane.Options{})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(plane.Stop)
	w := &guardWorld{cluster: &cluster{t: t, plane: plane.APIServer, helm: helm, home: t.TempDir()}, owned: plane}
	w.must(plane.StartControllers(t.Context(), 0))
	w.must(plane.Apply(t.Context(), "../config/crd"))
	w.policies = w.mustHelm("template", "release", chart, "--namespace="+system, "--show-only=templates/guard.yaml")
	w.apply(w.mustHelm("template", "release", chart, "--namespace="+system, "--show-only=templates/rbac.yaml", "--show-only=templates/user-roles.yaml"))
	w.mustKubectl("create", "clusterrole", "candidate", "--verb=create,delete,deletecollection,get,list,patch,update,watch", "--resource=leases.coordination.k8s.io")
	w.mustKubectl("create", "clusterrole", "jobs-alone", "--verb=create,get,patch,update", "--resource=singletonjobs.singletonjob.io,singletonjobs.singletonjob.io/status,singletonjobs.singletonjob.io/scale")
	for _, namespace := range []string{system, tenant} {
		w.mustKubectl("create", "namespace", namespace)
	}
	w.bind("edit", "--user="+editor.UserName)
	w.bind("admin", "--user="+administrator.UserName)
	w.may(editor.UserName, map[string]string{"update singletonjobs.singletonjob.io --namespace=" + tenant: "yes"})
	w.may(administrator.UserName, map[string]string{"override singletonjobs.singletonjob.io --subresource=lease --namespace=" + tenant: "yes"})
	w.bind("candidate", "--user="+holder.UserName, "--user="+account("other", "job-singletonjob"), "--user="+kubelet.UserName,
		"--user="+impostor.UserName)
	w.bind("jobs-alone", "--user="+jobsAlone.UserName)
	return w
}

func (w *guardWorld) bind(role string, users ...string) {
	w.t.Helper()
	name := strings.ReplaceAll(role, ":", "-")
	w.mustKubectl(append([]string{"create", "rolebinding", name, "--namespace=" + tenant, "--clusterrole=" + role}, users...)...)
}

func (w *guardWorld) in(t testing.TB) *guardWorld {
	c := *w.cluster
	c.t = t
	return &guardWorld{cluster: &c, owned: w.owned, policies: w.policies}
}

func (w *guardWorld) must(err error) {
	w.t.Helper()
	if err != nil {
		w.t.Fatal(err)
	}
}

func (w *guardWorld) await(what string, is func() error) {
	w.t.Helper()
	for deadline := time.Now().Add(10 * time.Minute); ; time.Sleep(50 * time.Millisecond) {
		err := is()
		if err == nil {
			return
		}
		if time.Now().After(deadline) {
			w.t.Fatalf("waiting for %s: %v", what, err)
		}
	}
}

// as is a client of this user.
func (w *guardWorld) as(who rest.ImpersonationConfig) *kubernetes.Clientset {
	w.t.Helper()
	config := w.plane.Config()
	config.Impersonate = who
	client, err := kubernetes.NewForConfig(config)
	w.must(err)
	return client
}

// held is a Lease in the middle of its holder's tenure.
func held() *coordinationv1.Lease {
	const acquired = "2026-01-01T00:00:00.000000Z"
	return &coordinationv1.Lease{
		ObjectMeta: metav1.ObjectMeta{
			Namespace: tenant, Name: theLease,
			Labels: map[string]string{contract.ManagedByLabel: contract.ManagedBy, contract.NameLabel: theLease},
			Annotations: map[string]string{
				contract.TokenAnnotation: "5", contract.HistoryAnnotation: "5,job-hbt97c5-0,n,1767225600000,0,", contract.LeaseDurationAnnotation: "15s",
				"singletonjob.io/claim": "uid,0", "example.org/note": "kept",
			},
		},
		Spec: coordinationv1.LeaseSpec{
			HolderIdentity: new(identity(holder, "n1")), LeaseDurationSeconds: new(int32(15)), LeaseTransitions: new(int32(3)),
			AcquireTime: microTime(acquired), RenewTime: microTime(acquired),
		},
	}
}

func microTime(s string) *metav1.MicroTime {
	t, err := time.Parse(time.RFC3339Nano, s)
	if err != nil {
		panic(err)
	}
	return &metav1.MicroTime{Time: t}
}

// change is a change of a Lease.
type change func(*coordinationv1.Lease)

func all(changes ...change) change {
	return func(l *coordinationv1.Lease) {
		for _, c := range changes {
			c(l)
		}
	}
}

func annotated(name, value string) change {
	return func(l *coordinationv1.Lease) {
		l.Annotations = maps.Clone(l.Annotations)
		if l.Annotations == nil {
			l.Annotations = map[string]string{}
		}
		if delete(l.Annotations, name); value != "" {
			l.Annotations[name] = value
		}
	}
}

// crowded has this many annotations of others.
func crowded(n int) change {
	return func(l *coordinationv1.Lease) {
		l.Annotations = maps.Clone(l.Annotations)
		for i := range n {
			l.Annotations[strconv.Itoa(i)] = ""
		}
	}
}

func token(value string) change { return annotated(contract.TokenAnnotation, value) }

func heldBy(name string) change {
	return func(l *coordinationv1.Lease) { l.Spec.HolderIdentity = &name }
}

func lasting(seconds int32) change {
	return func(l *coordinationv1.Lease) { l.Spec.LeaseDurationSeconds = &seconds }
}

func transitions(n int32) change {
	return func(l *coordinationv1.Lease) { l.Spec.LeaseTransitions = &n }
}

// Changes that agents make. Times can be as wrong as clocks can be.
var (
	marked  = annotated(guardMark, "off")
	free    = all(heldBy(""), annotated(contract.ReleaseReasonAnnotation, "ProcessExited"), func(l *coordinationv1.Lease) { l.Spec.AcquireTime = nil })
	renewed = change(func(l *coordinationv1.Lease) { l.Spec.RenewTime = microTime("1970-01-02T00:00:00.000000Z") })
	lone    = change(func(l *coordinationv1.Lease) { l.Labels = nil })
)

// The Lease's record of runs, up to the state of the newest run.
const (
	attempt1 = `{"now":{"id":"uid/2026-01-01T06:00:00Z","tick":"2026-01-01T06:00:00Z","attempt":1,"state":"`
	attempt2 = `{"now":{"id":"uid/2026-01-01T06:00:00Z","tick":"2026-01-01T06:00:00Z","attempt":2,"state":"`
	tomorrow = `{"now":{"id":"uid/2026-01-02T06:00:00Z","tick":"2026-01-02T06:00:00Z","attempt":1,"state":"`
	byHand   = `{"now":{"id":"uid/again","attempt":1,"state":"`

	morning, noon = "2026-01-01T06:00:00Z", "2026-01-02T06:00:00Z"
)

func run(attempt, state string) change {
	return annotated(contract.RunAnnotation, attempt+state+`","token":5,"pod":"job-hbt97c5-0"}}`)
}

func tick(at string) change { return annotated(contract.TickAnnotation, at) }

var (
	running = all(run(attempt2, "Running"), tick(morning))
	asked   = all(run(attempt1, "Complete"), annotated(contract.RunRequestAnnotation, "again"))
)

// taken is a takeover as an agent writes it. The token may be off by a number.
func taken(by rest.ImpersonationConfig, off int64) change {
	return func(l *coordinationv1.Lease) {
		record, err := contract.DecodeLease(contract.Fields{UID: "u", ResourceVersion: l.ResourceVersion, Annotations: l.Annotations})
		if err != nil {
			panic(err)
		}
		next, _ := record.NextToken()
		transitions := *l.Spec.LeaseTransitions + 1
		record.Token = next + off
		l.Annotations = contract.EncodeLease(record, contract.Fields{Annotations: l.Annotations}).Annotations
		all(annotated(contract.HistoryAnnotation, ""), annotated(contract.ReleaseReasonAnnotation, ""), annotated(contract.LeaseDurationAnnotation, "15s"), renewed)(l)
		l.Spec.HolderIdentity, l.Spec.LeaseTransitions = new(identity(by, "n2")), &transitions
	}
}

// set stores a Lease in its initial state, as a user that the guard exempts.
func (w *guardWorld) set(l *coordinationv1.Lease) *coordinationv1.Lease {
	w.t.Helper()
	w.remove(l)
	stored, err := w.as(collector).CoordinationV1().Leases(l.Namespace).Create(w.t.Context(), l, metav1.CreateOptions{})
	w.must(err)
	return stored
}

// remove deletes the Lease of a name, despite finalizers.
func (w *guardWorld) remove(l *coordinationv1.Lease) {
	w.t.Helper()
	leases := w.as(collector).CoordinationV1().Leases(l.Namespace)
	_, err := leases.Patch(w.t.Context(), l.Name, types.MergePatchType, []byte(`{"metadata":{"finalizers":null}}`), metav1.PatchOptions{})
	if apierrors.IsNotFound(err) {
		return
	}
	w.must(err)
	w.must(leases.Delete(w.t.Context(), l.Name, metav1.DeleteOptions{}))
}

// try makes a user create a Lease, or change or delete a Lease in a given state.
func (w *guardWorld) try(v verb, who rest.ImpersonationConfig, was, does change) error {
	w.t.Helper()
	l := held()
	if was != nil {
		was(l)
	}
	if v == create {
		w.remove(l)
		if does != nil {
			does(l)
		}
		_, err := w.as(who).CoordinationV1().Leases(l.Namespace).Create(w.t.Context(), l, metav1.CreateOptions{})
		return err
	}
	leases := w.as(who).CoordinationV1().Leases(l.Namespace)
	l = w.set(l)
	switch v {
	case remove:
		return leases.Delete(w.t.Context(), l.Name, metav1.DeleteOptions{})
	case removeAll:
		return leases.DeleteCollection(w.t.Context(), metav1.DeleteOptions{}, metav1.ListOptions{})
	}
	does(l)
	_, err := leases.Update(w.t.Context(), l, metav1.UpdateOptions{})
	return err
}

type verb int

const (
	update verb = iota
	create
	remove
	removeAll
)

// checkVerdict checks that a write was accepted (for an empty text), or that the guard refused it with this text.
func checkVerdict(t testing.TB, err error, says string) {
	t.Helper()
	switch {
	case says == "" && err != nil:
		t.Errorf("it was refused: %v", err)
	case says != "" && err == nil:
		t.Errorf("it was accepted, and was to be refused with %q", says)
	case says != "" && (!apierrors.IsForbidden(err) || !strings.Contains(err.Error(), "ValidatingAdmissionPolicy") || !strings.Contains(err.Error(), says)):
		t.Errorf("it was refused, but not by the guard with %q: %v", says, err)
	}
}

// guardOn installs the policies, and returns when each of them is in effect.
func (w *guardWorld) guardOn() {
	w.t.Helper()
	w.apply(w.policies)
	for name, probe := range map[string]func() error{
		"leases":   func() error { return w.dryRun(editor, held()) },
		"operator": func() error { l := held(); lone(l); return w.dryRun(operator, l) },
		"jobs":     func() error { return w.makeJob(jobsAlone, "probe", true) },
	} {
		w.await("the policy for "+name, func() error {
			if err := probe(); !refusedByGuard(err) {
				return notYetError{err}
			}
			return nil
		})
	}
}

// guardOff removes the policies, and returns when nothing is refused any more.
func (w *guardWorld) guardOff() {
	w.t.Helper()
	if out, err := w.run(w.plane.Binaries().Path("kubectl"), []byte(w.policies), "delete", "--filename=-"); err != nil {
		w.t.Fatalf("%v\n%s", err, out)
	}
	w.await("nothing to be refused", func() error { return w.dryRun(editor, held()) })
}

type notYetError struct{ seen error }

func (e notYetError) Error() string { return "not yet" + errorText(e.seen) }

func errorText(err error) string {
	if err == nil {
		return ""
	}
	return ": " + err.Error()
}

func refusedByGuard(err error) bool {
	return err != nil && strings.Contains(err.Error(), "ValidatingAdmissionPolicy")
}

func (w *guardWorld) dryRun(who rest.ImpersonationConfig, l *coordinationv1.Lease) error {
	l.Name = "probe"
	_, err := w.as(who).CoordinationV1().Leases(l.Namespace).Create(w.t.Context(), l, metav1.CreateOptions{DryRun: []string{metav1.DryRunAll}})
	return err
}

// Distinctive parts of the guard's messages.
const (
	notYours    = "only its Pods and the operator may write it"
	notMarked   = "singletonjob.io/guard=off"
	noRight     = `the verb "override" on singletonjobs/lease`
	noCandidate = "is not a candidate"
	tooMany     = "in a Lease with more than 256 annotations"
	notItself   = "may make itself the holder or release the Lease that it holds itself"
	wrongToken  = "is not what it must be"
	wrongCount  = "leaseTransitions grows by 1"
	wrongTime   = "leaseDurationSeconds must be from 3 to 3600"
	mayNotSet   = "a Pod may set only the annotations"
	mayNotTake  = "a Pod may remove only"
	badHistory  = "singletonjob.io/history is not"
	notItsMeta  = "a Pod may not change the Lease's labels"
	notOurs     = "the operator may write only Leases labelled"
	noHolder    = "may not set the holder"
	lowersToken = "may not lower a fencing token"
	lowersTick  = "may not set a tick back"
	wrongTick   = "tick must be a time in UTC and may only grow"
	wrongRun    = "run may change only when a tenure begins"
	badBase     = "the token-base must be a number from 0"
)

const (
	mostSeconds = 1<<31 - 1
	later       = "singletonjob.io/of-a-later-release" // an annotation that only its agents know
)

var owned = change(func(l *coordinationv1.Lease) {
	l.OwnerReferences = []metav1.OwnerReference{{APIVersion: "v1", Kind: "ConfigMap", Name: "gone", UID: "gone"}}
})

var verdicts = map[string]struct {
	verb      verb
	who       rest.ImpersonationConfig
	was, does change
	says      string
}{
	// Candidates.
	"holder renews":                         {who: holder, does: renewed},
	"holder renews, written long ago":       {who: holder, was: func(l *coordinationv1.Lease) { l.Annotations, l.Spec.LeaseTransitions = map[string]string{}, nil }, does: renewed},
	"holder releases":                       {who: holder, does: all(free, renewed)},
	"holder shortens its lease":             {who: holder, does: lasting(3)},
	"holder takes over from its last agent": {who: holder, does: taken(holder, 0)},
	"holder begins anew":                    {who: holder, was: heldBy(identity(holder, "n2")), does: taken(holder, 0)},
	"standby takes a free Lease":            {who: standby, was: free, does: taken(standby, 0)},
	"standby takes over, its clock behind":  {who: standby, does: taken(standby, 0)},
	"standby takes over, tokens ahead":      {who: standby, was: token("9000000000"), does: taken(standby, 0)},
	"standby takes over with a base":        {who: standby, was: annotated(contract.TokenBaseAnnotation, "4503599627370496"), does: taken(standby, 0)},
	"standby takes over for the last count": {who: standby, was: transitions(mostSeconds), does: all(taken(standby, 0), transitions(mostSeconds))},

	"standby as the holder":                 {who: standby, does: renewed, says: notItself},
	"standby clears the holder":             {who: standby, does: free, says: notItself},
	"standby writes a free Lease":           {who: standby, was: free, does: renewed, says: notItself},
	"standby makes another the holder":      {who: standby, was: free, does: taken(holder, 0), says: notItself},
	"standby is nobody in particular":       {who: standby, was: free, does: all(taken(standby, 0), heldBy(lease.UnknownHolder)), says: notItself},
	"standby without a nonce":               {who: standby, does: all(taken(standby, 0), heldBy("job-hbt97c5-1/uid-of-job-hbt97c5-1/")), says: notItself},
	"standby with too many parts":           {who: standby, does: all(taken(standby, 0), heldBy(identity(standby, "a/b"))), says: notItself},
	"standby with another's UID":            {who: standby, does: all(taken(standby, 0), heldBy("job-hbt97c5-1/uid-of-job-hbt97c5-0/n")), says: notItself},
	"a pod whose name begins so":            {who: pod(tenant, "job-hbt97c5-10"), was: heldBy("job-hbt97c5-1/uid-of-job-hbt97c5-1/n"), does: free, says: notItself},
	"a pod of another job":                  {who: pod(tenant, "other-hbt97c5-0"), does: taken(pod(tenant, "other-hbt97c5-0"), 0), says: noCandidate},
	"a pod of a job whose name is longer":   {who: pod(tenant, "job-hbt97c5-hbt97c5-0"), does: taken(pod(tenant, "job-hbt97c5-hbt97c5-0"), 0), says: noCandidate},
	"a pod of a job that begins so":         {who: pod(tenant, "job-b-hbt97c5-0"), does: taken(pod(tenant, "job-b-hbt97c5-0"), 0), says: noCandidate},
	"a pod that begins with the job's name": {who: pod(tenant, "job-0"), does: taken(pod(tenant, "job-0"), 0), says: noCandidate},
	"a pod with a word for a hash":          {who: pod(tenant, "job-seventy-0"), does: taken(pod(tenant, "job-seventy-0"), 0), says: noCandidate},
	"a pod with a number that is none":      {who: pod(tenant, "job-hbt97c5-0x"), does: taken(pod(tenant, "job-hbt97c5-0x"), 0), says: noCandidate},
	"a pod of the name, another account":    {who: impostor, does: taken(impostor, 0)}, // the limit of the guard: RBAC refuses this account
	"a pod of another namespace":            {who: pod("other", "job-hbt97c5-0"), does: renewed, says: notYours},
	"the candidates' account without a pod": {who: bareAccount, does: renewed, says: notYours},
	"a kubelet":                             {who: kubelet, does: renewed, says: notYours},
	"holder deletes":                        {verb: remove, who: holder, says: notYours},
	"holder creates":                        {verb: create, who: holder, says: notYours},

	"a token above the next":          {who: standby, does: taken(standby, 1), says: wrongToken},
	"a token below the next":          {who: standby, does: taken(standby, -1), says: wrongToken},
	"the last token there is":         {who: standby, does: all(taken(standby, 0), token("9223372036854775807")), says: wrongToken},
	"a token that is none":            {who: standby, does: all(taken(standby, 0), token("5 or so")), says: wrongToken},
	"no token":                        {who: standby, does: all(taken(standby, 0), token("")), says: wrongToken},
	"the token before":                {who: standby, does: all(taken(standby, 0), token("5")), says: wrongToken},
	"a token without the base":        {who: standby, was: annotated(contract.TokenBaseAnnotation, "1000000"), does: all(taken(standby, -1000000)), says: wrongToken},
	"a token though the base is bad":  {who: standby, was: annotated(contract.TokenBaseAnnotation, "4503599627370497"), does: all(taken(standby, 0), token("4503599627400000")), says: wrongToken},
	"a token though there is no more": {who: standby, was: token("9223372036854775807"), does: all(taken(standby, 0), token("9223372036854775807")), says: wrongToken},
	"holder lowers its token":         {who: holder, does: all(renewed, token("4")), says: wrongToken},
	"holder lowers it as it releases": {who: holder, does: all(free, token("4")), says: wrongToken},
	"holder raises its token":         {who: holder, does: all(renewed, token("1000000000")), says: wrongToken},
	"a takeover not counted":          {who: standby, does: all(taken(standby, 0), transitions(3)), says: wrongCount},
	"a takeover counted twice":        {who: standby, does: all(taken(standby, 0), transitions(5)), says: wrongCount},
	"a renewal counted":               {who: holder, does: all(renewed, transitions(4)), says: wrongCount},
	"the count begins anew":           {who: holder, does: all(renewed, transitions(0)), says: wrongCount},
	"holder stays for 68 years":       {who: holder, does: all(renewed, lasting(mostSeconds)), says: wrongTime},
	"holder stays for more than 1 h":  {who: holder, does: all(renewed, lasting(3601)), says: wrongTime},
	"holder stays for no time":        {who: holder, does: all(renewed, func(l *coordinationv1.Lease) { l.Spec.LeaseDurationSeconds = nil }), says: wrongTime},

	"holder raises the base":                    {who: holder, does: annotated(contract.TokenBaseAnnotation, "7"), says: mayNotSet},
	"holder makes the base a bad one":           {who: holder, was: annotated(contract.TokenBaseAnnotation, "7"), does: annotated(contract.TokenBaseAnnotation, "4503599627370497"), says: mayNotSet},
	"holder removes the base":                   {who: holder, was: annotated(contract.TokenBaseAnnotation, "7"), does: annotated(contract.TokenBaseAnnotation, ""), says: mayNotTake},
	"holder asks itself to hand over":           {who: holder, does: annotated(contract.HandoverToAnnotation, "*"), says: mayNotSet},
	"holder ignores a handover":                 {who: holder, was: annotated(contract.HandoverToAnnotation, "job-hbt97c5-1"), does: annotated(contract.HandoverToAnnotation, "")},
	"holder claims for another job":             {who: holder, does: annotated("singletonjob.io/claim", "other,0"), says: mayNotSet},
	"holder marks":                              {who: holder, does: marked, says: mayNotSet},
	"holder writes a novel":                     {who: holder, does: annotated("example.org/novel", strings.Repeat("a", 200_000)), says: mayNotSet},
	"holder notes something":                    {who: holder, does: annotated("example.org/more", "mine"), says: mayNotSet},
	"holder of a later release":                 {who: holder, does: all(renewed, annotated(later, strings.Repeat("a", 1024)))},
	"holder of a later release removes":         {who: holder, was: annotated(later, "a"), does: all(free, annotated(later, ""))},
	"holder of a later release writes a novel":  {who: holder, does: annotated(later, strings.Repeat("a", 1025)), says: mayNotSet},
	"holder makes the Lease large":              {who: holder, does: all(renewed, crowded(1000)), says: tooMany},
	"holder adds to a large Lease":              {who: holder, was: crowded(1000), does: all(renewed, crowded(1001)), says: tooMany},
	"holder removes from a large Lease":         {who: holder, was: crowded(1000), does: all(renewed, annotated("7", "")), says: tooMany},
	"holder of a large Lease lowers its token":  {who: holder, was: crowded(1000), does: token("4"), says: wrongToken},
	"holder of a large Lease raises its base":   {who: holder, was: crowded(1000), does: annotated(contract.TokenBaseAnnotation, "7"), says: mayNotSet},
	"holder of a large Lease removes its base":  {who: holder, was: all(crowded(1000), annotated(contract.TokenBaseAnnotation, "7")), does: annotated(contract.TokenBaseAnnotation, ""), says: mayNotTake},
	"holder of a large Lease marks":             {who: holder, was: crowded(1000), does: marked, says: mayNotSet},
	"holder fills a Lease that is almost large": {who: holder, was: crowded(250), does: all(free, annotated(contract.TickAnnotation, noon), annotated(contract.ReleaseReasonAnnotation, "X"))},
	"holder removes a stranger's":               {who: holder, does: annotated("example.org/note", ""), says: mayNotTake},
	"a reason of many words":                    {who: holder, does: all(free, annotated(contract.ReleaseReasonAnnotation, "out of order")), says: mayNotSet},
	"a duration of many words":                  {who: holder, does: annotated(contract.LeaseDurationAnnotation, strings.Repeat("1h", 100)), says: mayNotSet},
	"a history without lines":                   {who: holder, does: annotated(contract.HistoryAnnotation, "what happened"), says: badHistory},
	"a history too long":                        {who: holder, does: annotated(contract.HistoryAnnotation, "5,"+strings.Repeat("p", 1024)+",n,1,0,"), says: badHistory},
	"a history that ends in nothing":            {who: holder, does: annotated(contract.HistoryAnnotation, "5,p,n,1,0,;"), says: badHistory},
	"a history of tokens to come":               {who: holder, does: annotated(contract.HistoryAnnotation, "9007199254740992,p,n,1,0,"), says: badHistory},
	"a history of numbers that are odd":         {who: holder, does: annotated(contract.HistoryAnnotation, "+5,p,n,1,0,"), says: badHistory},
	"holder removes the label":                  {who: holder, does: lone, says: notItsMeta},
	"holder puts a finalizer":                   {who: holder, does: func(l *coordinationv1.Lease) { l.Finalizers = []string{"example.org/stay"} }, says: notItsMeta},
	"holder gives the Lease an owner": {who: holder, does: func(l *coordinationv1.Lease) {
		l.OwnerReferences = []metav1.OwnerReference{{APIVersion: "v1", Kind: "ConfigMap", Name: "none", UID: "none"}}
	}, says: notItsMeta},
	"a candidate's forgery while people repair": {who: standby, was: marked, does: taken(standby, 1), says: wrongToken},
	"a candidate deletes while people repair":   {verb: remove, who: standby, was: marked, says: noRight},

	// Candidates of a job that runs to completion.
	"holder tells of a run that it holds":     {who: holder, was: running, does: all(renewed, run(attempt2, "Complete")), says: wrongRun},
	"holder completes its run":                {who: holder, was: running, does: all(free, run(attempt2, "Complete"))},
	"holder's run has failed":                 {who: holder, was: running, does: all(free, run(attempt2, "Failed"), tick(noon))},
	"holder completes another run":            {who: holder, was: running, does: all(free, run(attempt1, "Complete")), says: wrongRun},
	"holder completes what is over":           {who: holder, was: all(running, run(attempt2, "GivenUp")), does: all(free, run(attempt2, "Complete")), says: wrongRun},
	"holder forgets its run":                  {who: holder, was: running, does: all(free, annotated(contract.RunAnnotation, "")), says: mayNotTake},
	"holder writes a novel of its run":        {who: holder, was: running, does: all(free, annotated(contract.RunAnnotation, `{"now":`+strings.Repeat("x", 3000))), says: wrongRun},
	"holder settles ticks as it renews":       {who: holder, was: running, does: all(renewed, tick(noon)), says: wrongTick},
	"holder takes a tick back as it releases": {who: holder, was: all(running, tick(noon)), does: all(free, run(attempt2, "Complete"), tick(morning)), says: wrongTick},
	"holder's tick at an offset":              {who: holder, was: running, does: all(free, run(attempt2, "Complete"), tick("2026-01-02T12:00:00+01:00")), says: wrongTick},
	"holder's tick of no time":                {who: holder, was: running, does: all(free, tick("2026-13-01T00:00:00Z")), says: wrongTick},
	"holder's tick over a bad one":            {who: holder, was: all(running, tick("soon")), does: all(free, tick(noon)), says: wrongTick},
	"holder removes the tick":                 {who: holder, was: all(running, tick(noon)), does: all(free, tick("")), says: mayNotTake},
	"holder changes the schedule":             {who: holder, was: running, does: annotated(contract.ScheduleAnnotation, "{}"), says: mayNotSet},
	"holder removes the schedule":             {who: holder, was: annotated(contract.ScheduleAnnotation, "{}"), does: all(free, annotated(contract.ScheduleAnnotation, "")), says: mayNotTake},
	"holder asks for a run":                   {who: holder, was: running, does: annotated(contract.RunRequestAnnotation, "again"), says: mayNotSet},
	"holder drops a request as it renews":     {who: holder, was: asked, does: all(renewed, annotated(contract.RunRequestAnnotation, "")), says: mayNotTake},
	"holder drops a request as it releases":   {who: holder, was: asked, does: all(free, annotated(contract.RunRequestAnnotation, "")), says: mayNotTake},

	"standby follows a request":                 {who: standby, was: all(asked, free), does: all(taken(standby, 0), run(byHand, "Running"), annotated(contract.RunRequestAnnotation, ""))},
	"standby starts the first run":              {who: standby, was: free, does: all(taken(standby, 0), run(attempt1, "Running"), tick(morning))},
	"standby starts the next run":               {who: standby, was: all(free, run(attempt1, "Complete"), tick(morning)), does: all(taken(standby, 0), run(tomorrow, "Running"), tick(noon))},
	"standby starts the next attempt":           {who: standby, was: all(free, run(attempt1, "Failed"), tick(morning)), does: all(taken(standby, 0), run(attempt2, "Running"))},
	"standby starts it after one that vanished": {who: standby, was: all(run(attempt1, "Running"), tick(morning)), does: all(taken(standby, 0), run(attempt2, "Running"))},
	"standby replaces a run":                    {who: standby, was: running, does: all(taken(standby, 0), run(tomorrow, "Running"), tick(noon))},
	"standby starts what is complete":           {who: standby, was: all(free, run(attempt1, "Complete")), does: all(taken(standby, 0), run(attempt2, "Running")), says: wrongRun},
	"standby starts what was given up":          {who: standby, was: all(free, run(attempt1, "GivenUp")), does: all(taken(standby, 0), run(attempt1, "Running")), says: wrongRun},
	"standby completes what it begins":          {who: standby, was: all(free, run(attempt1, "Failed")), does: all(taken(standby, 0), run(attempt2, "Complete")), says: wrongRun},
	"standby begins with a tick before":         {who: standby, was: all(free, run(attempt1, "Complete"), tick(noon)), does: all(taken(standby, 0), run(tomorrow, "Running"), tick(morning)), says: wrongTick},
	"standby settles ticks of a free Lease":     {who: standby, was: all(free, tick(morning)), does: tick(noon), says: notItself},
	"standby closes a run":                      {who: standby, was: running, does: all(free, run(attempt2, "GivenUp"), tick(noon))},
	"standby closes a run that has failed":      {who: standby, was: all(free, run(attempt1, "Failed")), does: run(attempt1, "GivenUp")},
	"standby completes another's run":           {who: standby, was: running, does: all(free, run(attempt2, "Complete")), says: notItself},
	"standby closes another run":                {who: standby, was: running, does: all(free, run(attempt1, "GivenUp")), says: notItself},
	"standby closes what is complete":           {who: standby, was: all(running, run(attempt2, "Complete")), does: all(free, run(attempt2, "GivenUp")), says: notItself},
	"standby closes with a token":               {who: standby, was: running, does: all(free, run(attempt2, "GivenUp"), token("6")), says: wrongToken},

	// Users.
	"editor makes a run complete":                            {who: editor, was: running, does: run(attempt2, "Complete"), says: notMarked},
	"editor takes a tick back":                               {who: editor, was: tick(noon), does: tick(morning), says: notMarked},
	"administrator repairs a run":                            {who: administrator, was: all(running, marked), does: all(run(attempt2, "Complete"), tick(""))},
	"editor steals":                                          {who: editor, does: heldBy("me"), says: notYours},
	"editor clears the holder":                               {who: editor, does: free, says: notMarked},
	"editor lowers the token":                                {who: editor, does: token("1"), says: notMarked},
	"editor extends":                                         {who: editor, does: lasting(mostSeconds), says: notYours},
	"editor deletes":                                         {verb: remove, who: editor, says: notYours},
	"editor deletes all":                                     {verb: removeAll, who: editor, says: notYours},
	"editor creates":                                         {verb: create, who: editor, says: notYours},
	"editor creates with a mark":                             {verb: create, who: editor, does: marked, says: noRight},
	"editor takes the label away":                            {who: editor, does: lone, says: notYours},
	"editor puts the label on":                               {who: editor, was: lone, does: func(l *coordinationv1.Lease) { l.Labels = held().Labels }, says: notYours},
	"editor notes something":                                 {who: editor, does: annotated("example.org/note", "mine"), says: notYours},
	"editor marks":                                           {who: editor, does: marked, says: noRight},
	"editor deletes what is marked":                          {verb: remove, who: editor, was: marked, says: noRight},
	"editor steals what is marked":                           {who: editor, was: marked, does: heldBy("me"), says: noRight},
	"editor writes what is there":                            {who: editor, does: func(*coordinationv1.Lease) {}},
	"editor's Lease of his own":                              {verb: create, who: editor, does: lone},
	"editor steals his own":                                  {who: editor, was: lone, does: heldBy("me")},
	"editor deletes his own":                                 {verb: remove, who: editor, was: lone},
	"administrator deletes by mistake":                       {verb: remove, who: administrator, says: notMarked},
	"administrator changes by mistake":                       {who: administrator, does: heldBy(""), says: notMarked},
	"administrator marks":                                    {who: administrator, does: marked},
	"administrator marks and changes":                        {who: administrator, does: all(marked, heldBy("")), says: notMarked},
	"administrator marks and lowers the token":               {who: administrator, does: all(marked, token("4")), says: notMarked},
	"administrator marks and removes the token":              {who: administrator, does: all(marked, token("")), says: notMarked},
	"administrator marks and sets a base":                    {who: administrator, does: all(marked, annotated(contract.TokenBaseAnnotation, "7")), says: notMarked},
	"administrator marks and tells histories":                {who: administrator, does: all(marked, annotated(contract.HistoryAnnotation, "9,p,n,1,0,")), says: notMarked},
	"administrator marks and notes something":                {who: administrator, does: all(marked, annotated("example.org/note", "mine")), says: notMarked},
	"administrator marks and labels":                         {who: administrator, does: all(marked, func(l *coordinationv1.Lease) { l.Labels["team"] = "a" }), says: notMarked},
	"administrator marks and gives it an owner":              {who: administrator, does: all(marked, owned), says: notMarked},
	"administrator marks and adds a finalizer":               {who: administrator, does: all(marked, func(l *coordinationv1.Lease) { l.Finalizers = []string{"example.org/stay"} }), says: notMarked},
	"administrator marks what has another mark":              {who: administrator, was: annotated(guardMark, "on"), does: marked},
	"administrator marks a large Lease":                      {who: administrator, was: crowded(1000), does: marked},
	"administrator marks a large Lease and lowers the token": {who: administrator, was: crowded(1000), does: all(marked, token("4")), says: notMarked},
	"administrator marks a large Lease and removes its base": {
		who: administrator, was: all(crowded(1000), annotated(contract.TokenBaseAnnotation, "7")), does: all(marked, annotated(contract.TokenBaseAnnotation, "")), says: notMarked,
	},
	"administrator marks a Lease and makes it large": {who: administrator, does: all(marked, crowded(1000)), says: notMarked},
	"administrator repairs a large Lease":            {who: administrator, was: all(crowded(1000), marked), does: func(l *coordinationv1.Lease) { l.Annotations = held().Annotations }},
	"administrator repairs":                          {who: administrator, was: marked, does: all(heldBy(""), token("77"), lasting(15))},
	"administrator ends the repair":                  {who: administrator, was: marked, does: annotated(guardMark, "")},
	"administrator deletes what is marked":           {verb: remove, who: administrator, was: marked},
	"administrator restores":                         {verb: create, who: administrator, does: marked},
	"administrator creates":                          {verb: create, who: administrator, says: notMarked},
	"another mark is none":                           {who: administrator, was: annotated(guardMark, "on"), does: heldBy(""), says: notMarked},
	"root deletes by mistake":                        {verb: remove, who: root, says: notMarked},
	"root deletes what is marked":                    {verb: remove, who: root, was: marked},

	// The operator, the namespace controller and the garbage collector.
	"operator makes a Lease":              {verb: create, who: operator, does: all(free, token(""))},
	"operator makes one for nobody knows": {verb: create, who: operator, does: heldBy(lease.UnknownHolder)},
	"operator makes one for somebody":     {verb: create, who: operator, says: noHolder},
	"operator makes one with a bad base":  {verb: create, who: operator, does: all(free, annotated(contract.TokenBaseAnnotation, "4503599627370497")), says: badBase},
	// The limit of the rules for the operator: with a deletion before, this lowers the token and the base.
	"operator makes one anew, without token or base": {verb: create, who: operator, was: annotated(contract.TokenBaseAnnotation, "7"), does: all(free, token(""), annotated(contract.TokenBaseAnnotation, ""))},
	"operator asks for a handover":                   {who: operator, does: annotated(contract.HandoverToAnnotation, "job-hbt97c5-1")},
	"operator releases":                              {who: operator, does: free},
	"operator raises the base":                       {who: operator, does: annotated(contract.TokenBaseAnnotation, "4503599627370496")},
	"operator resets a bad base":                     {who: operator, was: annotated(contract.TokenBaseAnnotation, "-7"), does: annotated(contract.TokenBaseAnnotation, "")},
	"operator leaves a bad base":                     {who: operator, was: annotated(contract.TokenBaseAnnotation, "a lot"), does: free},
	"operator raises the token":                      {who: operator, does: token("6")},
	"operator settles ticks":                         {who: operator, was: tick(morning), does: tick(noon)},
	"operator takes a tick back":                     {who: operator, was: tick(noon), does: tick(morning), says: lowersTick},
	"operator takes the tick away":                   {who: operator, was: tick(noon), does: tick(""), says: lowersTick},
	"operator makes the tick a bad one":              {who: operator, was: tick(noon), does: tick("soon"), says: lowersTick},
	"operator resets a bad tick":                     {who: operator, was: tick("soon"), does: tick(morning)},
	"operator writes a schedule":                     {who: operator, was: running, does: annotated(contract.ScheduleAnnotation, "{}")},
	"operator asks for a run":                        {who: operator, was: running, does: annotated(contract.RunRequestAnnotation, "again")},
	"operator deletes":                               {verb: remove, who: operator},
	"operator lowers the base":                       {who: operator, was: annotated(contract.TokenBaseAnnotation, "7"), does: annotated(contract.TokenBaseAnnotation, "6"), says: badBase},
	"operator raises the base too far":               {who: operator, does: annotated(contract.TokenBaseAnnotation, "4503599627370497"), says: badBase},
	"operator lowers the token":                      {who: operator, does: token("4"), says: lowersToken},
	"operator takes the token away":                  {who: operator, does: token(""), says: lowersToken},
	"operator makes itself the holder":               {who: operator, does: heldBy("operator"), says: noHolder},
	"operator takes the label away":                  {who: operator, does: lone, says: notOurs},
	"operator takes somebody's Lease":                {who: operator, was: lone, does: func(l *coordinationv1.Lease) { l.Labels = held().Labels }, says: notOurs},
	"operator changes somebody's Lease":              {who: operator, was: lone, does: heldBy(""), says: notOurs},
	"operator deletes somebody's Lease":              {verb: remove, who: operator, was: lone, says: notOurs},
	"operator makes a Lease like others":             {verb: create, who: operator, does: lone, says: notOurs},
	"operator elects where it is not":                {verb: create, who: operator, does: all(lone, named(tenant, election)), says: notOurs},
	"operator makes a Lease where it is":             {verb: create, who: operator, does: all(lone, named(system, theLease)), says: notOurs},
	"the garbage collector deletes":                  {verb: remove, who: collector},
	"the garbage collector lets an owner go":         {who: collector, does: func(l *coordinationv1.Lease) { l.Finalizers = nil }},
}

const election = "release-singletonjob-operator" // the Lease of the operator's replicas

func named(namespace, name string) change {
	return func(l *coordinationv1.Lease) { l.Namespace, l.Name = namespace, name }
}

func TestGuard(t *testing.T) {
	t.Parallel()
	w := newGuardWorld(t)
	w.guardOn()
	t.Run("verdicts", func(t *testing.T) {
		for name, c := range verdicts {
			t.Run(name, func(t *testing.T) { checkVerdict(t, w.in(t).try(c.verb, c.who, c.was, c.does), c.says) })
		}
	})
	t.Run("election of the operator's replicas", func(t *testing.T) { w.in(t).elects() })
	t.Run("jobs", func(t *testing.T) { w.in(t).jobs(t) })
	t.Run("collected", func(t *testing.T) { w.in(t).collected() })
	t.Run("honest agents", func(t *testing.T) { w.in(t).honest(t) })
	t.Run("honest runs", func(t *testing.T) { w.in(t).honestRuns(t) })
	t.Run("fence", func(t *testing.T) { w.in(t).fences(t) })
	t.Run("off and on again", func(t *testing.T) { w.in(t).offAndOn() })
	t.Run("killed", func(t *testing.T) {
		tier.Deep(t, "starts API servers anew, for half a minute")
		w.in(t).fenceOn().killed()
	})
}

// elects: the operator's own Lease has no label, and can still be created, renewed and released.
func (w *guardWorld) elects() {
	l := held()
	all(lone, named(system, election))(l)
	leases := w.as(operator).CoordinationV1().Leases(system)
	l, err := leases.Create(w.t.Context(), l, metav1.CreateOptions{})
	w.must(err)
	heldBy("replica-b")(l)
	_, err = leases.Update(w.t.Context(), l, metav1.UpdateOptions{})
	w.must(err)
	w.must(leases.Delete(w.t.Context(), election, metav1.DeleteOptions{}))
}

// jobsAlone may do everything with SingletonJobs, and nothing with Pods.
var jobsAlone = rest.ImpersonationConfig{UserName: "jobs-alone"}

const jobManifest = `{"apiVersion":"singletonjob.io/v1alpha1","kind":"SingletonJob","metadata":{"name":"%NAME%"},
	"spec":{"candidates":2,"template":{"spec":{"serviceAccountName":"powerful","containers":[{"name":"app","image":"app","command":["run"]}]}}}}`

func (w *guardWorld) makeJob(who rest.ImpersonationConfig, name string, dry bool) error {
	request := w.as(who).CoordinationV1().RESTClient().Post().AbsPath("/apis/singletonjob.io/v1alpha1/namespaces/" + tenant + "/singletonjobs").
		Body([]byte(strings.ReplaceAll(jobManifest, "%NAME%", name)))
	if dry {
		request.Param("dryRun", metav1.DryRunAll)
	}
	return request.Do(w.t.Context()).Error()
}

func (w *guardWorld) patchJob(who rest.ImpersonationConfig, name, subresource, patch string) error {
	return w.as(who).CoordinationV1().RESTClient().Patch("application/merge-patch+json").
		AbsPath("/apis/singletonjob.io/v1alpha1/namespaces/" + tenant + "/singletonjobs/" + name + subresource).
		Body([]byte(patch)).Do(w.t.Context()).Error()
}

// jobs: only users who may create Pods can create jobs. Other writes to a job still work for everybody.
func (w *guardWorld) jobs(t *testing.T) {
	const noPods = "may not create pods in namespace tenant"
	controller := rest.ImpersonationConfig{UserName: account("flux", "applier")}
	refused := w.makeJob(jobsAlone, "a", false)
	checkVerdict(t, refused, noPods)
	if refused != nil {
		if err := commands.Quoted("..", "docs/guard.md", refused.Error()); err != nil {
			t.Error(err)
		}
	}
	checkVerdict(t, w.makeJob(editor, "a", false), "")
	w.bind("system:controller:job-controller", "--user="+controller.UserName) // makes pods, as do those that apply manifests
	w.mustKubectl("create", "rolebinding", "applier", "--namespace="+tenant, "--clusterrole=jobs-alone", "--user="+controller.UserName)
	w.await("the rights of an account", func() error {
		if err := w.makeJob(controller, "b", false); err != nil && !apierrors.IsAlreadyExists(err) {
			return err
		}
		return nil
	})
	for name, c := range map[string]struct {
		who                rest.ImpersonationConfig
		subresource, patch string
		says               string
	}{
		"another account":         {jobsAlone, "", `{"spec":{"template":{"spec":{"serviceAccountName":"other"}}}}`, noPods},
		"another image":           {jobsAlone, "", `{"spec":{"template":{"spec":{"containers":[{"name":"app","image":"evil","command":["run"]}]}}}}`, noPods},
		"an editor's image":       {editor, "", `{"spec":{"template":{"spec":{"containers":[{"name":"app","image":"good","command":["run"]}]}}}}`, ""},
		"labels":                  {jobsAlone, "", `{"metadata":{"labels":{"a":"b"}}}`, ""},
		"the collector":           {collectorAlone, "", `{"metadata":{"finalizers":null}}`, ""},
		"what is there already":   {jobsAlone, "", `{"spec":{"historyLimit":10}}`, ""},
		"a report":                {jobsAlone, "/status", `{"status":{"activePod":"x"}}`, ""},
		"an autoscaler's scaling": {jobsAlone, "/scale", `{"spec":{"replicas":3}}`, ""},
	} {
		t.Run(name, func(t *testing.T) { checkVerdict(t, w.in(t).patchJob(c.who, "a", c.subresource, c.patch), c.says) })
	}
}

// collectorAlone is the garbage collector with its own rights, which do not include creating Pods.
var collectorAlone = rest.ImpersonationConfig{UserName: collector.UserName}

// collected: real controllers, with their usual accounts, delete what they must delete.
func (w *guardWorld) collected() {
	w.mustKubectl("create", "namespace", "doomed")
	doomed := held()
	doomed.Namespace = "doomed"
	w.set(doomed)
	owner := w.mustKubectl("create", "configmap", "owner", "--namespace="+tenant, "--output=jsonpath={.metadata.uid}")
	owned := held()
	owned.Name = "owned"
	owned.OwnerReferences = []metav1.OwnerReference{{APIVersion: "v1", Kind: "ConfigMap", Name: "owner", UID: types.UID(owner)}}
	w.set(owned)
	w.mustKubectl("delete", "configmap", "owner", "--namespace="+tenant)
	w.mustKubectl("delete", "namespace", "doomed", "--wait=false")
	for what, args := range map[string][]string{
		"the namespace to be gone":             {"get", "namespace", "doomed"},
		"a Lease without its owner to be gone": {"get", "lease", "owned", "--namespace=" + tenant},
	} {
		w.await(what, func() error {
			if _, err := w.plane.Kubectl(w.t.Context(), args...); err == nil || !strings.Contains(err.Error(), "NotFound") {
				return notYetError{err}
			}
			return nil
		})
	}
}

// offAndOn: without the guard its refusals end, and with the guard again they are back, also for a running tenure.
func (w *guardWorld) offAndOn() {
	w.guardOff()
	checkVerdict(w.t, w.try(update, editor, nil, token("4")), "")
	checkVerdict(w.t, w.try(update, holder, nil, renewed), "")
	w.guardOn()
	checkVerdict(w.t, w.try(update, editor, nil, token("4")), notYours)
	checkVerdict(w.t, w.try(update, holder, nil, renewed), "")
}

// The guard knows the names of Pods as the operator makes them.
func TestGuardKnowsCandidates(t *testing.T) {
	t.Parallel()
	name := regexp.MustCompile(guardText(t, `substring\(variables\.name\.size\(\) \+ 1\)\.matches\('([^']+)'\)`))
	for i := range 1000 {
		job := &v1alpha1.SingletonJob{ObjectMeta: metav1.ObjectMeta{Name: "job", UID: types.UID(strconv.Itoa(i))}}
		for _, ordinal := range []int{0, 9, 10, 99} {
			pod := inject.PodName(job.Name, inject.Hash(job), ordinal)
			if !name.MatchString(strings.TrimPrefix(pod, "job-") + "/uid") {
				t.Fatalf("%s is no candidate for the guard's %s", pod, name)
			}
		}
	}
}

// The guard knows all annotations of a Lease: an unknown one is taken for one of a later release.
func TestGuardKnowsAnnotations(t *testing.T) {
	t.Parallel()
	listed := guardText(t, `(?s)- name: ours\n\s+expression: >-\n\s+\[(.+?)\]`)
	known := contract.EncodeLease(lease.Record{
		Token: 1, TokenBase: 1, Duration: 1, Release: lease.Release{Reason: "X"}, Handover: lease.Handover{To: "p", Reason: "X"}, History: []lease.PastTenure{{}},
	}, contract.Fields{}).Annotations
	for _, name := range []string{
		contract.ScheduleAnnotation, contract.RunRequestAnnotation, contract.TickAnnotation, contract.RunAnnotation, plan.ClaimAnnotation, guardMark,
	} {
		known[name] = ""
	}
	for name := range known {
		if !strings.Contains(listed, "'"+name+"'") {
			t.Errorf("the guard's list lacks %s", name)
		}
	}
	if got := strings.Count(listed, "'") / 2; got != len(known) {
		t.Errorf("the guard lists %d annotations, and this test knows %d: %v", got, len(known), slices.Sorted(maps.Keys(known)))
	}
}

// guardText is what a pattern finds in the chart's template.
func guardText(t *testing.T, pattern string) string {
	t.Helper()
	text, err := os.ReadFile(chart + "/templates/guard.yaml")
	if err != nil {
		t.Fatal(err)
	}
	found := regexp.MustCompile(pattern).FindSubmatch(text)
	if found == nil {
		t.Fatalf("the guard has no %s", pattern)
	}
	return string(found[1])
}
