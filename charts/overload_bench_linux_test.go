package charts

import (
	"context"
	"crypto/tls"
	"encoding/base64"
	"encoding/json"
	"fmt"
	"io"
	"log"
	"net/http"
	"net/http/httptest"
	"strings"
	"sync"
	"testing"
	"time"

	admissionv1 "k8s.io/api/admission/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/rest"
)

// The renewals, as jobs with the default lease send them, and the load on the API server.
const (
	renewers      = 20
	renewEvery    = 2 * time.Second
	renewDeadline = 10 * time.Second
	overload      = 30 * time.Second
	accounts      = 100 // that write, with the clients of each
	clients       = 10
	webhookTakes  = 500 * time.Millisecond
)

// renewals is the outcome of all holders' renewals.
type renewals struct {
	fared
	// late are renewals without a response within a holder's deadline. stopped are the holders that would have stopped, because too
	// much time passed between two stored renewals.
	late, stopped int
	// exempt are the renewals of an additional holder that flow control exempts. They show how busy the machine is.
	exempt fared
}

func (r *renewals) String() string {
	asked := r.served + r.rejected + r.failed + r.late
	return fmt.Sprintf("p50 %v, p99 %v; of %d renewals %d failed (%d rejected, %d without an answer in %v, %d otherwise); of %d holders %d would have stopped; "+
		"exempt from queues: p50 %v, longest %v", r.at(0.5), r.at(0.99), asked, asked-r.served, r.rejected, r.late, renewDeadline, r.failed,
		renewers, r.stopped, r.exempt.at(0.5), r.exempt.at(1))
}

// BenchmarkOverload prints the outcome of renewals with and without the chart's level, while many other accounts create objects
// that take the API server long: a slow admission webhook checks them. This uses no CPU time, and therefore measures queues and not
// this machine. It runs without load first, then with both settings in turns. It is one run, so b.N is not used.
func BenchmarkOverload(b *testing.B) {
	w := newFlowWorld(b)
	w.slowWebhook()
	w.mustKubectl("create", "clusterrole", "maker", "--verb=create", "--resource=configmaps")
	w.mustKubectl("create", "rolebinding", "maker", "--namespace="+theirs, "--clusterrole=maker", "--group=system:serviceaccounts:"+theirs)
	for n := range renewers + 1 {
		w.apply(fmt.Sprintf("apiVersion: coordination.k8s.io/v1\nkind: Lease\nmetadata: {namespace: %s, name: job-%d}\n", mine, n))
	}
	for _, level := range []string{"with", "without"} {
		w.setLevel(level == "with")
		fmt.Printf("idle, %s the level: %v\n", level, w.renewAll(10*time.Second))
	}
	for round := range 3 {
		for _, level := range []string{"with", "without"} {
			w.setLevel(level == "with")
			fmt.Printf("overloaded, round %d, %s the level: %v\n", round+1, level, w.overloaded())
		}
	}
}

// setLevel installs the chart's level and waits until the API server uses it, or removes it.
func (w *flowWorld) setLevel(on bool) {
	w.t.Helper()
	if on {
		w.install(unchanged)
		time.Sleep(2 * time.Second) // a changed level takes effect a little later than its FlowSchema
		return
	}
	w.mustKubectl("delete", "--ignore-not-found", "flowschema/"+ours, "prioritylevelconfiguration/"+ours)
	general := w.mustKubectl("get", "prioritylevelconfiguration", "workload-low", "--output=jsonpath={.metadata.uid}")
	for w.ask(w.t.Context(), account(mine, "job"), http.MethodGet, mine, nil).level != general {
		time.Sleep(50 * time.Millisecond)
	}
}

// slowWebhook delays each ConfigMap of the other tenant.
func (w *flowWorld) slowWebhook() {
	w.t.Helper()
	certificate, err := w.plane.ServerCertificate()
	if err != nil {
		w.t.Fatal(err)
	}
	webhook := httptest.NewUnstartedServer(http.HandlerFunc(func(out http.ResponseWriter, request *http.Request) {
		var review admissionv1.AdmissionReview
		if err := json.NewDecoder(request.Body).Decode(&review); err != nil {
			http.Error(out, err.Error(), http.StatusBadRequest)
			return
		}
		time.Sleep(webhookTakes)
		review.Response, review.Request = &admissionv1.AdmissionResponse{UID: review.Request.UID, Allowed: true}, nil
		_ = json.NewEncoder(out).Encode(review) // the API server has gone
	}))
	webhook.Config.ErrorLog = log.New(io.Discard, "", 0)
	webhook.TLS = &tls.Config{Certificates: []tls.Certificate{certificate}, MinVersion: tls.VersionTLS12}
	webhook.StartTLS()
	w.t.Cleanup(webhook.Close)
	w.apply(`{apiVersion: admissionregistration.k8s.io/v1, kind: ValidatingWebhookConfiguration, metadata: {name: slow}, webhooks: [{
	  name: slow.example.com, clientConfig: {url: '` + webhook.URL + `', caBundle: ` + base64.StdEncoding.EncodeToString(w.plane.CA()) + `},
	  sideEffects: None, admissionReviewVersions: [v1], failurePolicy: Ignore, timeoutSeconds: 30,
	  rules: [{apiGroups: [""], apiVersions: [v1], resources: [configmaps], operations: [CREATE]}],
	  namespaceSelector: {matchLabels: {kubernetes.io/metadata.name: ` + theirs + `}}}]}`)
}

// overloaded renews while all accounts create ConfigMaps endlessly, and obey the API server's rejections.
func (w *flowWorld) overloaded() *renewals {
	w.t.Helper()
	ctx, end := context.WithCancel(w.t.Context())
	var all sync.WaitGroup
	defer all.Wait()
	defer end()
	const object = `{"apiVersion":"v1","kind":"ConfigMap","metadata":{"name":"busy"}}`
	for n := range accounts {
		other := w.anotherClient()
		user := account(theirs, fmt.Sprintf("busy-%d", n))
		for range clients {
			all.Go(func() {
				for ctx.Err() == nil {
					r := other.send(ctx, user, http.MethodPost, "/api/v1/namespaces/"+theirs+"/configmaps?dryRun=All", strings.NewReader(object))
					if r.status != http.StatusCreated {
						select {
						case <-ctx.Done():
						case <-time.After(time.Second): // Retry-After
						}
					}
				}
			})
		}
	}
	time.Sleep(5 * time.Second) // queues fill
	return w.renewAll(overload)
}

// renewAll makes every holder renew for a time, each on its own connection.
func (w *flowWorld) renewAll(most time.Duration) *renewals {
	w.t.Helper()
	var sum renewals
	var mu sync.Mutex
	var all sync.WaitGroup
	until := time.Now().Add(most)
	for n := range renewers + 1 {
		l := renewedLease{flowWorld: w.anotherClient(), name: fmt.Sprintf("job-%d", n), user: account(mine, fmt.Sprintf("job-%d", n))}
		if n == renewers {
			l.user = "" // the administrator
		}
		all.Go(func() {
			time.Sleep(time.Duration(n) * renewEvery / renewers)
			stopped := l.renewUntil(until, func(r reply) {
				mu.Lock()
				defer mu.Unlock()
				switch {
				case l.user == "":
					sum.exempt.add(r)
				case r.err != nil:
					sum.late++
				default:
					sum.add(r)
				}
			})
			mu.Lock()
			defer mu.Unlock()
			if stopped && l.user != "" {
				sum.stopped++
			}
		})
	}
	all.Wait()
	return &sum
}

// renewedLease is a Lease and its holder.
type renewedLease struct {
	*flowWorld
	name, user string
}

// renewUntil renews as a holder does, and reports whether the holder would have stopped.
func (l *renewedLease) renewUntil(until time.Time, told func(reply)) (stopped bool) {
	last, version := time.Now(), l.version()
	for began := time.Now(); began.Before(until); began = time.Now() {
		r := l.renew(version)
		told(r)
		stopped = stopped || time.Since(last) > renewDeadline
		if r.status == http.StatusOK {
			last, version = began, r.version
		} else {
			version = l.version() // a write without a response may be stored
		}
		time.Sleep(renewEvery - min(renewEvery, time.Since(began)))
	}
	return stopped
}

func (l *renewedLease) path() string {
	return "/apis/coordination.k8s.io/v1/namespaces/" + mine + "/leases/" + l.name
}

func (l *renewedLease) renew(version string) reply {
	ctx, end := context.WithTimeout(l.t.Context(), renewDeadline)
	defer end()
	return l.send(ctx, l.user, http.MethodPut, l.path(), strings.NewReader(`{"apiVersion":"coordination.k8s.io/v1","kind":"Lease",`+
		`"metadata":{"name":"`+l.name+`","resourceVersion":"`+version+`"},"spec":{"renewTime":"`+time.Now().UTC().Format(metav1.RFC3339Micro)+`"}}`))
}

// version is the Lease's version. An agent gets it from its watch, which waits in no queue.
func (l *renewedLease) version() string {
	ctx, end := context.WithTimeout(l.t.Context(), renewDeadline)
	defer end()
	return l.send(ctx, "", http.MethodGet, l.path(), nil).version // as the administrator
}

// anotherClient is the same world on its own connection, so that requests do not wait for others before they are sent.
func (w *flowWorld) anotherClient() *flowWorld {
	w.t.Helper()
	config := w.plane.Config()
	settings, err := rest.TLSConfigFor(config)
	if err != nil {
		w.t.Fatal(err)
	}
	connection := &http.Transport{TLSClientConfig: settings, ForceAttemptHTTP2: true}
	w.t.Cleanup(connection.CloseIdleConnections)
	transport, err := rest.HTTPWrappersForConfig(config, connection)
	if err != nil {
		w.t.Fatal(err)
	}
	return &flowWorld{cluster: w.cluster, client: &http.Client{Transport: transport}}
}
