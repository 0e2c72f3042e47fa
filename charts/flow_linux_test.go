package charts

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net/http"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/rest"

	"github.com/singletonjob/operator/test/controlplane"
	"github.com/singletonjob/operator/test/tier"
)

const (
	ours         = "system.release-singletonjob-leases" // the chart's FlowSchema and its level: 3 places here, of 60 in all
	elector      = "system:kube-controller-manager"
	mine, theirs = "mine", "theirs" // namespaces of two tenants
)

// flowWorld is an API server with little concurrency, and the Leases of two tenants and of the control plane.
type flowWorld struct {
	*cluster
	client *http.Client
}

func newFlowWorld(t testing.TB) *flowWorld {
	t.Helper()
	helm, err := helmPath()
	if err != nil {
		t.Fatalf("build Helm: %v", err)
	}
	plane, err := controlplane.Start(t.Context(), controlplane.Options{APIServerFlags: []string{
		"--max-requests-inflight=40", "--max-mutating-requests-inflight=20",
	}})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(plane.Stop)
	transport, err := rest.TransportFor(plane.Config())
	if err != nil {
		t.Fatal(err)
	}
	w := &flowWorld{cluster: &cluster{t: t, plane: plane.APIServer, helm: helm, home: t.TempDir()}, client: &http.Client{Transport: transport}}
	w.mustKubectl("create", "clusterrole", "tenant", "--verb=get,update,watch", "--resource=leases.coordination.k8s.io")
	for deadline := time.Now().Add(5 * time.Minute); ; time.Sleep(50 * time.Millisecond) { // the API server makes it when it is ready
		if _, err := plane.Kubectl(t.Context(), "get", "namespace", "kube-system"); err == nil {
			break
		} else if time.Now().After(deadline) {
			t.Fatal(err)
		}
	}
	for _, namespace := range []string{mine, theirs, "kube-system"} {
		if namespace != "kube-system" {
			w.mustKubectl("create", "namespace", namespace)
			w.mustKubectl("create", "rolebinding", "tenant", "--namespace="+namespace, "--clusterrole=tenant",
				"--group=system:serviceaccounts:"+namespace)
		}
		w.apply("apiVersion: coordination.k8s.io/v1\nkind: Lease\nmetadata: {namespace: " + namespace + ", name: job}\n")
	}
	return w
}

// in is the same world for a subtest.
func (w *flowWorld) in(t testing.TB) *flowWorld {
	c := *w.cluster
	c.t = t
	return &flowWorld{cluster: &c, client: w.client}
}

// install applies the chart's flow control, changed by edit, and waits until the API server uses it.
func (w *flowWorld) install(edit func(string) string, settings ...string) {
	w.t.Helper()
	args := []string{"template", "release", chart, "--namespace=system", "--show-only=templates/flowschema.yaml"}
	w.apply(edit(w.mustHelm(append(args, settings...)...)))
	schema := w.mustKubectl("get", "flowschema", ours, "--output=jsonpath={.metadata.uid}")
	for deadline := time.Now().Add(5 * time.Minute); ; time.Sleep(50 * time.Millisecond) {
		if r := w.ask(w.t.Context(), account(mine, "job"), http.MethodGet, mine, nil); r.schema == schema {
			return
		}
		if time.Now().After(deadline) {
			w.t.Fatalf("the API server does not go by the FlowSchema %s:\n%s", ours, w.mustKubectl("get", "flowschemas"))
		}
	}
}

func account(namespace, name string) string { return "system:serviceaccount:" + namespace + ":" + name }

// reply is the outcome of a request.
type reply struct {
	status        int
	schema, level string
	version       string // of the Lease, if it was served
	took          time.Duration
	err           error
}

func (w *flowWorld) ask(ctx context.Context, user, method, namespace string, body io.Reader) reply {
	return w.send(ctx, user, method, "/apis/coordination.k8s.io/v1/namespaces/"+namespace+"/leases/job", body)
}

// send sends a request as another user. Flow control depends on the user of a request.
func (w *flowWorld) send(ctx context.Context, user, method, path string, body io.Reader) reply {
	request, err := http.NewRequestWithContext(ctx, method, w.plane.URL()+path, body)
	if err != nil {
		return reply{err: err}
	}
	request.Header.Set("Content-Type", "application/json")
	request.Header.Set("Impersonate-User", user)
	if strings.HasPrefix(user, "system:node:") {
		request.Header.Set("Impersonate-Group", "system:nodes")
	}
	began := time.Now()
	response, err := w.client.Do(request)
	if err != nil {
		return reply{err: err, took: time.Since(began)}
	}
	var object metav1.PartialObjectMetadata
	_ = json.NewDecoder(io.LimitReader(response.Body, 1<<16)).Decode(&object) // none, if it was refused
	_ = response.Body.Close()
	return reply{
		status: response.StatusCode, took: time.Since(began), version: object.ResourceVersion,
		schema: response.Header.Get("X-Kubernetes-Pf-Flowschema-Uid"), level: response.Header.Get("X-Kubernetes-Pf-Prioritylevel-Uid"),
	}
}

// errOvertaken means that a renewal lost to a renewal of the same holder, which says nothing about the treatment of requests.
var errOvertaken = errors.New("overtaken by its own earlier renewal")

func unchanged(manifest string) string { return manifest }

// The priority level of each user, as the API server reports it for each request.
func TestPriorityLevels(t *testing.T) {
	t.Parallel()
	w := newFlowWorld(t)
	w.install(unchanged)
	const lease, leases = "/apis/coordination.k8s.io/v1/namespaces/%s/leases/job", "/apis/coordination.k8s.io/v1/namespaces/%s/leases"
	for name, c := range map[string]struct{ user, method, path, level string }{
		"a renewal":                    {account(mine, "job"), http.MethodPut, fmt.Sprintf(lease, mine), ours},
		"a read":                       {account(mine, "job"), http.MethodGet, fmt.Sprintf(lease, mine), ours},
		"a watch":                      {account(mine, "job"), http.MethodGet, fmt.Sprintf(leases, mine) + "?watch=1&timeoutSeconds=1&fieldSelector=metadata.name=job", ours},
		"without any right":            {account(mine, "job"), http.MethodGet, fmt.Sprintf(lease, theirs), ours},
		"a list":                       {account(mine, "job"), http.MethodGet, fmt.Sprintf(leases, mine), "workload-low"},
		"a new Lease":                  {account(mine, "job"), http.MethodPost, fmt.Sprintf(leases, mine), "workload-low"},
		"something else":               {account(mine, "job"), http.MethodGet, "/api/v1/namespaces/mine/pods", "workload-low"},
		"a person":                     {"alice", http.MethodGet, fmt.Sprintf(lease, mine), "global-default"},
		"the controller manager":       {elector, http.MethodPut, fmt.Sprintf(lease, "kube-system"), "leader-election"},
		"the scheduler":                {"system:kube-scheduler", http.MethodPut, fmt.Sprintf(lease, "kube-system"), "leader-election"},
		"an elector in kube-system":    {account("kube-system", "cloud"), http.MethodPut, fmt.Sprintf(lease, "kube-system"), "leader-election"},
		"a node's heartbeat":           {"system:node:a", http.MethodPut, "/apis/coordination.k8s.io/v1/namespaces/kube-node-lease/leases/a", "node-high"},
		"into the control plane's own": {account(mine, "job"), http.MethodPut, fmt.Sprintf(lease, "kube-system"), ours},
	} {
		got := w.send(t.Context(), c.user, c.method, c.path, strings.NewReader("{}"))
		want := w.mustKubectl("get", "prioritylevelconfiguration", c.level, "--output=jsonpath={.metadata.uid}")
		if got.level != want {
			t.Errorf("%s (%s %s as %s) is not in %s: status %d, error %v, level %s, want %s",
				name, c.method, c.path, c.user, c.level, got.status, got.err, got.level, want)
		}
	}
}

// TestFloods: the control plane's electors are served while tenants hold every seat of the level, and a tenant's renewals are
// served while other tenants flood the level. Speed does not matter: requests that share queues with a flood are rejected. (A level
// that can borrow seats, like leader-election, also passes the first part, only later.)
func TestFloods(t *testing.T) {
	tier.Deep(t, "floods the API server and counts what was late")
	w := newFlowWorld(t)
	// The queues are so short that the flood overflows them.
	w.install(unchanged, "--set=flowSchema.queueLength=5")

	t.Run("every place is held", func(t *testing.T) {
		w := w.in(t)
		w.holdAll()
		if r := w.ask(w.t.Context(), elector, http.MethodGet, "kube-system", nil); r.err != nil || r.status == http.StatusTooManyRequests {
			t.Errorf("the control plane's election was not served while tenants held their level: status %d, %v", r.status, r.err)
		}
	})
	t.Run("another tenant asks for one's Lease", func(t *testing.T) {
		w := w.in(t)
		ctx := w.holdAll()
		rejected := make(chan struct{}, 1)
		for range 60 { // 6 queues take 5 each
			go func() {
				for ctx.Err() == nil {
					if w.ask(ctx, account(theirs, "job"), http.MethodGet, mine, nil).status == http.StatusTooManyRequests {
						select {
						case rejected <- struct{}{}:
						default:
						}
						time.Sleep(20 * time.Millisecond)
					}
				}
			}()
		}
		select {
		case <-rejected:
		case <-ctx.Done():
			t.Fatal("the flood's queues were never full")
		}
		renewal, end := context.WithTimeout(ctx, 3*time.Second)
		defer end()
		if r := w.ask(renewal, account(mine, "job"), http.MethodGet, mine, nil); r.status == http.StatusTooManyRequests {
			t.Error("a tenant's request was rejected and not queued: others had filled its queues")
		}
	})
	for name, f := range floods {
		t.Run(name, func(t *testing.T) {
			if m := w.in(t).flood(f, 150, time.Minute, (*measured).shows); m.victim.rejected+m.victim.failed > 0 || m.elector.rejected+m.elector.failed > 0 || m.flood.rejected == 0 {
				t.Errorf("a renewal or an election was rejected, or nothing was, so that the test shows nothing: %v", m)
			} else {
				t.Log(m)
			}
		})
	}
}

// holdAll makes a tenant hold every seat of its level, until the returned context ends.
func (w *flowWorld) holdAll() context.Context {
	w.t.Helper()
	ctx, end := context.WithTimeout(w.t.Context(), 3*time.Minute)
	var holders sync.WaitGroup
	w.t.Cleanup(holders.Wait)
	w.t.Cleanup(end)
	for range 10 { // of 3 places
		holders.Go(func() {
			for ctx.Err() == nil { // a waiting request is rejected after 15 s, and a running one is ended after 60 s
				slow, never := io.Pipe()
				context.AfterFunc(ctx, func() { _ = never.Close() })
				w.ask(ctx, account(mine, "job"), http.MethodPut, mine, slow)
			}
		})
	}
	w.awaitFull(ctx)
	return ctx
}

// awaitFull returns when renewals wait because all seats of their level are held.
func (w *flowWorld) awaitFull(ctx context.Context) {
	w.t.Helper()
	for {
		metrics := w.mustKubectl("get", "--raw=/metrics")
		for line := range strings.Lines(metrics) {
			if strings.HasPrefix(line, "apiserver_flowcontrol_current_inqueue_requests") &&
				strings.Contains(line, `flow_schema="`+ours+`"`) && !strings.HasSuffix(line, " 0\n") {
				return
			}
		}
		select {
		case <-ctx.Done():
			w.t.Fatal("the level was never full")
		case <-time.After(100 * time.Millisecond):
		}
	}
}

// A flood is the endless requests of many workers.
type flood func(worker int) (user, namespace string)

var floods = map[string]flood{
	"another tenant's account": func(int) (string, string) { return account(theirs, "job"), theirs },
	"aimed at the namespace":   func(int) (string, string) { return account(theirs, "job"), mine },
	"aimed at the elections":   func(int) (string, string) { return account(theirs, "job"), "kube-system" },
}

// measured is the outcome of the requests of a flood and of its victims.
type measured struct{ victim, elector, flood fared }

type fared struct {
	served, rejected, failed int
	took                     []time.Duration
}

func (f *fared) add(r reply) {
	switch {
	case r.err != nil: // the flood's end, or overtaken
	case r.status == http.StatusTooManyRequests:
		f.rejected++
	case r.status != http.StatusOK:
		f.failed++
	default:
		f.served++
		f.took = append(f.took, r.took)
	}
}

func (f *fared) String() string {
	return fmt.Sprintf("%d served, %d rejected, %d failed, median %v, p90 %v, longest %v", f.served, f.rejected, f.failed, f.at(0.5), f.at(0.9), f.at(1))
}

// at is the quantile q of the latencies of served requests.
func (f *fared) at(q float64) time.Duration {
	slices.Sort(f.took)
	if len(f.took) == 0 {
		return 0
	}
	return f.took[int(q*float64(len(f.took)-1))].Round(100 * time.Microsecond)
}

func (m *measured) String() string {
	return fmt.Sprintf("renewals: %v; elections: %v; flood: %v", &m.victim, &m.elector, &m.flood)
}

// shows reports whether there is enough data for a judgement.
func (m *measured) shows() bool {
	return m.flood.rejected > 0 && m.victim.served+m.victim.rejected+m.victim.failed >= 5 && m.elector.served+m.elector.rejected+m.elector.failed >= 5
}

// flood lets workers send requests until there is enough data, but not longer than the limit. Meanwhile a tenant and the control
// plane renew ten times a second.
func (w *flowWorld) flood(f flood, workers int, most time.Duration, enough func(*measured) bool) *measured {
	w.t.Helper()
	ctx, end := context.WithTimeout(w.t.Context(), most)
	defer end()
	var m measured
	var mu sync.Mutex
	var all sync.WaitGroup
	loop := func(to *fared, every time.Duration, ask func() reply) {
		all.Go(func() {
			for ctx.Err() == nil {
				r := ask()
				mu.Lock()
				to.add(r)
				if enough(&m) {
					end()
				}
				mu.Unlock()
				time.Sleep(every)
			}
		})
	}
	renew := func(user, namespace string) func() reply {
		last := w.ask(ctx, user, http.MethodGet, namespace, nil)
		return func() reply {
			r := w.ask(ctx, user, http.MethodPut, namespace, strings.NewReader(`{"apiVersion":"coordination.k8s.io/v1","kind":"Lease",`+
				`"metadata":{"name":"job","resourceVersion":"`+last.version+`"},"spec":{"renewTime":"`+time.Now().UTC().Format(metav1.RFC3339Micro)+`"}}`))
			switch {
			case r.version != "":
				last = r
			case r.status == http.StatusConflict: // an earlier renewal, whose response was lost, was stored after all
				if now := w.ask(ctx, user, http.MethodGet, namespace, nil); now.version != "" {
					last = now
				}
				r.err = errOvertaken
			}
			return r
		}
	}
	victim, leader := renew(account(mine, "job"), mine), renew(elector, "kube-system")
	for n := range workers {
		user, namespace := f(n)
		loop(&m.flood, 0, func() reply { return w.ask(ctx, user, http.MethodGet, namespace, nil) })
	}
	time.Sleep(min(most/10, 500*time.Millisecond)) // the flood is at its height
	loop(&m.victim, 100*time.Millisecond, victim)
	loop(&m.elector, 100*time.Millisecond, leader)
	all.Wait()
	return &m
}

// BenchmarkFloods prints the outcome of renewals and elections during floods, with the chart's settings and with alternatives. It
// is one run, so b.N is not used.
func BenchmarkFloods(b *testing.B) {
	w := newFlowWorld(b)
	const ownLevel = "  priorityLevelConfiguration:\n    name: " + ours
	for _, way := range []struct {
		name string
		edit func(string) string
	}{
		{"as installed", unchanged},
		{"by namespace", func(m string) string { return strings.Replace(m, "ByUser", "ByNamespace", 1) }},
		{"in leader-election", func(m string) string {
			return strings.Replace(m, ownLevel, "  priorityLevelConfiguration:\n    name: leader-election", 1)
		}},
		{"in workload-low", func(m string) string {
			return strings.Replace(m, ownLevel, "  priorityLevelConfiguration:\n    name: workload-low", 1)
		}},
	} {
		w.install(way.edit)
		time.Sleep(2 * time.Second) // a changed level takes effect a little later than its FlowSchema
		for name, f := range floods {
			fmt.Printf("%s; flood %s: %v\n", way.name, name, w.flood(f, 600, 5*time.Second, func(*measured) bool { return false }))
		}
	}
}
