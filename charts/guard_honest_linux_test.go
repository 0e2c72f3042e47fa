package charts

import (
	"context"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	authenticationv1 "k8s.io/api/authentication/v1"
	coordinationv1 "k8s.io/api/coordination/v1"
	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/singletonjob/operator/internal/contract"
	"github.com/singletonjob/operator/internal/kubelease"
	"github.com/singletonjob/operator/internal/lease"
	"github.com/singletonjob/operator/internal/schedule"
)

// leftBehind are possible contents of a Lease from before the guard existed or from a repair by hand. They must lock out no correct
// agent.
var leftBehind = map[string]change{
	"a tenure":               func(*coordinationv1.Lease) {},
	"a tenure's end":         free,
	"nothing":                func(l *coordinationv1.Lease) { l.Annotations, l.Spec = nil, coordinationv1.LeaseSpec{} },
	"a stranger":             heldBy("web-0_6a1f6ee4"),
	"nobody knows who":       heldBy(lease.UnknownHolder),
	"no marker":              heldBy(""),
	"a token that is none":   token("five"),
	"a negative token":       token("-5"),
	"a token with a sign":    token("+0005"),
	"a token near the end":   token("9223372036854775805"),
	"a token of 19 digits":   token("0009223372036854775804"),
	"a token beyond the end": token("9223372036854775808"),
	"a novel for a token":    token(strings.Repeat("9", 200_000)),
	"a base with a sign":     annotated(contract.TokenBaseAnnotation, "+007"),
	"a base of nothing":      annotated(contract.TokenBaseAnnotation, "0"),
	"the greatest base":      annotated(contract.TokenBaseAnnotation, "4503599627370496"),
	"a history of the times to come": annotated(contract.HistoryAnnotation,
		"9007199254740992,p,n,1,0,;9007199254740991,p,n,1,2,LeaseExpired"),
	"a history of no time":      annotated(contract.HistoryAnnotation, "9223372036854775807,p,n,1,0,"),
	"a history that is none":    annotated(contract.HistoryAnnotation, "we have met before"),
	"a history that ends early": annotated(contract.HistoryAnnotation, "5,job-hbt97c5-0,n,1,0,;and,so,on"),
	"a novel for a history":     annotated(contract.HistoryAnnotation, strings.Repeat("5,p,n,1,0,;", 20_000)),
	"a duration of 68 years":    lasting(mostSeconds),
	"a duration of no time":     lasting(1),
	"a duration that is none":   annotated(contract.LeaseDurationAnnotation, "soon"),
	"a duration of 300 years":   annotated(contract.LeaseDurationAnnotation, "2540400h10m10s"),
	"the last count":            transitions(mostSeconds),
	"renewals of long ago": func(l *coordinationv1.Lease) {
		l.Annotations[contract.HistoryAnnotation] = "5,job-hbt97c5-0,n,1,0,"
		l.Spec.RenewTime = &metav1.MicroTime{Time: time.Date(1, 1, 1, 0, 0, 1, 0, time.UTC)}
	},
	"a handover to somewhere":      annotated(contract.HandoverToAnnotation, "the other side"),
	"a reason for it of any words": annotated(contract.HandoverReasonAnnotation, "because, well;"),
	"a release of any words":       all(free, annotated(contract.ReleaseReasonAnnotation, "because, well;")),
	"a run under way":              running,
	"a run that is none":           annotated(contract.RunAnnotation, "three miles"),
	"a run of nothing": func(l *coordinationv1.Lease) {
		l.Annotations[contract.RunAnnotation], l.Annotations[contract.TickAnnotation] = "", ""
	},
	"a novel for a run":         annotated(contract.RunAnnotation, attempt1+strings.Repeat("5", 200_000)),
	"a tick that is none":       tick("soon"),
	"a tick of the last second": tick("9999-12-31T23:59:59Z"),
	"a schedule that is none":   annotated(contract.ScheduleAnnotation, "now and then"),
	"a request of any words":    annotated(contract.RunRequestAnnotation, "run, please"),
	"annotations of others":     crowded(10_000),
	"renewals to come":          func(l *coordinationv1.Lease) { l.Spec.RenewTime = microTime("9999-12-31T23:59:59.999999Z") },
	"what people put there": all(marked, func(l *coordinationv1.Lease) {
		l.Labels["team"], l.Finalizers = "a", []string{"example.org/stay"}
	}),
}

// honest: agents with clocks that are fifty years behind acquire, renew and release each Lease, with real tokens.
func (w *guardWorld) honest(t *testing.T) {
	a := w.newAgent("job-hbt97c5-1")
	for name, was := range leftBehind {
		t.Run(name, func(t *testing.T) {
			l := held()
			was(l)
			w.in(t).set(l)
			a := a.another(t)
			a.feed(lease.WatchOpened{})
			a.until("it acts", func() bool { return a.acts })
			began := a.state.Tenure
			a.until("it has renewed", func() bool { return a.state.Tenure.Confirmed > began.Confirmed })
			a.feed(lease.Terminated{Signal: 15})
			a.until("it has released", func() bool { return a.released })
			if now := a.object.Record; now.Token != began.Token || now.Revision <= 0 || !now.Free() {
				t.Errorf("after the tenure with token %d the Lease says %+v", began.Token, now)
			}
		})
	}
}

// honestRuns: the same agents write attempts, ticks and ends of runs in the form that the guard demands.
func (w *guardWorld) honestRuns(t *testing.T) {
	const ignoredCode = 2
	candidate := w.newAgent("job-hbt97c5-2")
	due, err := schedule.Parse(schedule.Spec{Cron: "* * * * *", Overlap: schedule.OverlapReplace})
	w.must(err)
	const id = "uid/2026-01-01T06:00:00Z"
	of := func(r lease.Run, s *schedule.Schedule) change {
		return func(l *coordinationv1.Lease) {
			r.Attempt, r.Token, r.Pod = max(1, r.Attempt), 5, "job-hbt97c5-0"
			record := lease.Record{Token: 5, Runs: lease.Runs{Now: r, Schedule: s}}
			fields := contract.EncodeLease(record, contract.Fields{Annotations: l.Annotations})
			for _, name := range []string{contract.RunAnnotation, contract.ScheduleAnnotation} {
				annotated(name, fields.Annotations[name])(l)
			}
		}
	}
	for name, test := range map[string]struct {
		was  change
		code int
		// The final contents of the Lease, if the same agent runs.
		state            lease.RunState
		attempt, ignored int32
	}{
		"the first":                    {was: free, state: lease.RunComplete, attempt: 1},
		"the first, that fails":        {was: free, code: 1, state: lease.RunFailed, attempt: 1},
		"the second attempt":           {was: all(free, of(lease.Run{ID: id, State: lease.RunFailed}, nil)), state: lease.RunComplete, attempt: 2},
		"after one that vanished":      {was: of(lease.Run{ID: id, State: lease.RunRunning}, nil), state: lease.RunComplete, attempt: 2},
		"the last attempt":             {was: of(lease.Run{ID: id, State: lease.RunRunning}, nil), code: 1, state: lease.RunGivenUp, attempt: 2},
		"none after the last":          {was: of(lease.Run{ID: id, State: lease.RunRunning, Attempt: 2}, nil), state: lease.RunGivenUp, attempt: 2},
		"none after the last released": {was: all(free, of(lease.Run{ID: id, State: lease.RunFailed, Attempt: 2}, nil)), state: lease.RunGivenUp, attempt: 2},
		"one that is ignored":          {was: free, code: ignoredCode, state: lease.RunFailed, attempt: 1, ignored: 1},
		"after one that is ignored":    {was: all(free, of(lease.Run{ID: id, State: lease.RunFailed, Ignored: 1}, nil)), code: ignoredCode, state: lease.RunFailed, attempt: 2, ignored: 2},
		"complete after one":           {was: all(free, of(lease.Run{ID: id, State: lease.RunFailed, Ignored: 1}, nil)), state: lease.RunComplete, attempt: 2, ignored: 1},
		"none after one that counts":   {was: of(lease.Run{ID: id, State: lease.RunRunning, Attempt: 3, Ignored: 1}, nil), state: lease.RunGivenUp, attempt: 3, ignored: 1},
		"the next tick":                {was: all(free, of(lease.Run{ID: id, State: lease.RunComplete}, due)), state: lease.RunComplete, attempt: 1},
		"a tick that replaces":         {was: of(lease.Run{ID: id, State: lease.RunRunning}, due), state: lease.RunComplete, attempt: 1},
		"the first tick":               {was: all(free, of(lease.Run{}, due)), code: 1, state: lease.RunFailed, attempt: 1},
		"one that is asked for": {
			was:   all(free, of(lease.Run{ID: id, State: lease.RunGivenUp}, nil), annotated(contract.RunRequestAnnotation, "again@"+morning)),
			state: lease.RunComplete, attempt: 1,
		},
	} {
		t.Run(name, func(t *testing.T) {
			l := held()
			test.was(l)
			w.in(t).set(l)
			a := candidate.another(t)
			const aTick = 2 * time.Minute // so that one is due from the first
			a.now.Wall, a.code = time.Now().Add(aTick).UnixMicro(), test.code
			a.config.Runs = &lease.RunPolicy{UID: "uid", BackoffLimit: 1, IgnoreCodes: []int32{ignoredCode}}
			a.feed(lease.WatchOpened{})
			closes := test.state == lease.RunGivenUp && test.code == 0
			a.until("it has begun or ended a run", func() bool {
				return a.acts && !closes || closes && a.object != nil && a.object.Record.Runs.Now.State == lease.RunGivenUp
			})
			if !closes {
				began := a.state.Tenure
				a.until("it has renewed", func() bool { return a.state.Tenure.Confirmed > began.Confirmed })
				a.acts = false
				a.feed(lease.ChildExited{Code: a.code, Crashed: a.code != 0})
				a.feed(lease.TreeGone{})
				a.until("it has released", func() bool { return a.released })
			}
			now := a.object.Record
			if r := now.Runs; r.Bad != "" || r.Now.State != test.state || r.Now.Attempt != test.attempt || r.Now.Ignored != test.ignored || !now.Free() || r.Asked.Name != "" {
				t.Errorf("in the end the Lease says %+v", now)
			}
		})
	}
}

// agent is the real state machine and the real client, on a clock that the test moves. Its process is a flag.
type agent struct {
	t      testing.TB
	client *kubelease.Client
	config lease.Config
	state  lease.State
	now    lease.Time
	object *kubelease.Object
	// failed is the reason why the last request failed.
	failed         error
	acts, released bool
	code           int // of its process, when that is to end
}

// newAgent creates a Pod and a token for it.
func (w *guardWorld) newAgent(pod string) *agent {
	w.t.Helper()
	ctx, client := w.t.Context(), w.as(root)
	const name = "job-singletonjob"
	_, err := client.CoreV1().ServiceAccounts(tenant).Create(ctx, &corev1.ServiceAccount{ObjectMeta: metav1.ObjectMeta{Name: name}}, metav1.CreateOptions{})
	if !apierrors.IsAlreadyExists(err) { // all candidates have one
		w.must(err)
	}
	made, err := client.CoreV1().Pods(tenant).Create(ctx, &corev1.Pod{ObjectMeta: metav1.ObjectMeta{Name: pod}, Spec: corev1.PodSpec{
		ServiceAccountName: name, Containers: []corev1.Container{{Name: "app", Image: "app"}},
		NodeSelector: map[string]string{"nowhere": "here"},
	}}, metav1.CreateOptions{})
	w.must(err)
	token, err := client.CoreV1().ServiceAccounts(tenant).CreateToken(ctx, name, &authenticationv1.TokenRequest{Spec: authenticationv1.TokenRequestSpec{
		BoundObjectRef: &authenticationv1.BoundObjectReference{APIVersion: "v1", Kind: "Pod", Name: pod, UID: made.UID},
	}}, metav1.CreateOptions{})
	w.must(err)
	credentials := w.t.TempDir()
	w.must(os.WriteFile(filepath.Join(credentials, "ca.crt"), w.plane.CA(), 0o600))
	w.must(os.WriteFile(filepath.Join(credentials, "token"), []byte(token.Status.Token), 0o600))
	k, err := kubelease.New(kubelease.Config{Server: w.plane.URL(), Namespace: tenant, Name: theLease, Credentials: credentials})
	w.must(err)
	w.set(held())
	w.await("the token to be known", func() error { _, err := k.Get(ctx, 0); return err })
	return &agent{t: w.t, client: k, config: lease.Config{
		Identity: lease.Identity{Pod: pod, PodUID: string(made.UID), Nonce: "n"}, Node: "n",
		Duration: 15 * time.Second, RenewDeadline: 10 * time.Second, RetryPeriod: 2 * time.Second, GracePeriod: time.Second,
	}}
}

// another returns another agent process in the same Pod.
func (a *agent) another(t testing.TB) *agent {
	const longAgo = 1_000_000
	return &agent{t: t, client: a.client, config: a.config, now: lease.Time{Boot: 1, Wall: longAgo}}
}

func (a *agent) feed(e lease.Event) {
	a.t.Helper()
	state, actions := lease.Step(a.config, a.state, a.now, e)
	a.state = state
	for _, action := range actions {
		a.do(action)
	}
}

func (a *agent) do(action lease.Action) {
	a.t.Helper()
	// The deadlines of the state machine use its own clock.
	ctx, end := context.WithTimeout(a.t.Context(), 2*time.Minute)
	defer end()
	switch action := action.(type) {
	case lease.SendRead:
		answer, err := a.client.Get(ctx, 0)
		if err != nil {
			a.failed = err
			a.feed(lease.ReadDone{ID: action.ID})
			return
		}
		a.object = answer.Object
		a.feed(lease.ReadDone{ID: action.ID, Found: &answer.Object.Record, Date: a.now.Wall / 1_000_000})
	case lease.SendWrite:
		outcome, stored, err := a.client.Update(ctx, a.object, action.Attempt.Record)
		done := lease.WriteDone{Nonce: action.Attempt.Nonce, Outcome: outcome}
		if a.failed = err; stored != nil {
			a.object, done.Record = stored, &stored.Record
		}
		a.feed(done)
	case lease.StartChild:
		a.acts = true
	case lease.SignalChild, lease.KillTree:
		if a.acts {
			a.acts = false
			a.feed(lease.ChildExited{Code: a.code, Crashed: a.code != 0})
			a.feed(lease.TreeGone{})
		}
	case lease.TenureEnded:
		a.released = action.Released
	}
}

// until advances time by an hour in about a hundred steps, in smaller steps while the process is active.
func (a *agent) until(what string, holds func() bool) {
	a.t.Helper()
	for range 300 {
		if holds() {
			return
		}
		step := 30 * time.Second
		if a.acts {
			step = time.Second
		}
		a.now = lease.Time{Boot: a.now.Boot.Add(step), Wall: a.now.Wall + step.Microseconds()}
		a.feed(lease.Ticked{})
	}
	a.t.Fatalf("it never was so that %s: %v", what, a.failed)
}
