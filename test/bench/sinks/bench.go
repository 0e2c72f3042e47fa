//go:build linux

package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"

	corev1 "k8s.io/api/core/v1"
	rbacv1 "k8s.io/api/rbac/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/singletonjob/operator/api/v1alpha1"
	"github.com/singletonjob/operator/test/bench/sinks/offer"
	"github.com/singletonjob/operator/test/cluster"
	"github.com/singletonjob/operator/test/observe"
)

const (
	program = "./test/sinks/writer"
	image   = "local/sinks-writer:1"
	// storeSecret has the address of the proxies' PostgreSQL, as the chart wants it.
	storeSecret = "fence-store"
	// replicas of the fence-proxy.
	replicas = 2
)

// bench is the sinks, and what writes to them.
type bench struct {
	cluster  *cluster.Cluster
	progress io.Writer
	witness  *witness
	scratch  string
	kinds    []string
	jobs     []*job
	servers  map[string]*server
	// proxy is the URL of the fence-proxy's Service.
	proxy string
}

func (b *bench) say(format string, args ...any) { _, _ = fmt.Fprintf(b.progress, format+"\n", args...) }

func (b *bench) close() {
	for _, s := range b.servers {
		s.close()
	}
	_ = os.RemoveAll(b.scratch)
}

// setUp has the operator and the proxies on the first node, and the candidates on the others: what befalls those befalls nobody else.
func (b *bench) setUp(ctx context.Context, operator string, kinds []string) (err error) {
	b.kinds, b.servers = kinds, map[string]*server{}
	if b.scratch, err = os.MkdirTemp("", "bench-sinks-"); err != nil {
		return err
	}
	writer := filepath.Join(b.scratch, "writer")
	if err := errors.Join(b.cluster.Lab.Fault(ctx, "heal"), cluster.Build(ctx, program, writer)); err != nil {
		return err
	}
	if err := b.cluster.Lab.Image(ctx, image+"="+writer+":/writer@/writer"); err != nil {
		return err
	}
	if b.witness, err = newWitness(b.cluster.Lab.Host); err != nil {
		return err
	}
	for kind := range needed(kinds) {
		s, err := newServer(ctx, kind, b.cluster.Lab.Host, writer)
		if s != nil {
			b.servers[kind] = s
		}
		if err != nil {
			return err
		}
	}
	return b.install(ctx, operator)
}

// needed are the kinds whose servers are: the proxies have their marks in PostgreSQL.
func needed(kinds []string) map[string]bool {
	all := map[string]bool{}
	for _, kind := range kinds {
		all[kind] = commands[kind] != nil
		if kind == "http" {
			all["postgres"] = true
		}
	}
	for kind, is := range all {
		if !is {
			delete(all, kind)
		}
	}
	return all
}

func (b *bench) install(ctx context.Context, operator string) error {
	c, on := b.cluster, `nodeSelector.kubernetes\.io/hostname=`+b.cluster.Lab.Nodes[0]
	store := b.servers["postgres"]
	if store == nil {
		return c.Install(ctx, "charts/singletonjob", operator, on)
	}
	if err := c.CreateNamespace(ctx, cluster.SystemNamespace, ""); err != nil {
		return err
	}
	err := c.Client.Create(ctx, &corev1.Secret{
		ObjectMeta: metav1.ObjectMeta{Namespace: cluster.SystemNamespace, Name: storeSecret}, StringData: map[string]string{"url": store.address},
	})
	if err != nil {
		return err
	}
	err = c.Install(ctx, "charts/singletonjob", operator, on, "fenceProxy.enabled=true", fmt.Sprintf("fenceProxy.replicas=%d", replicas), "fenceProxy."+on,
		"fenceProxy.store.postgres.urlSecret="+storeSecret, "fenceProxy.config.upstream="+b.witness.url, "fenceProxy.config.rules[0].fromHeader=true")
	if err != nil {
		return err
	}
	var service corev1.Service
	err = c.Client.Get(ctx, client.ObjectKey{Namespace: cluster.SystemNamespace, Name: cluster.Release + "-fence"}, &service)
	b.proxy = "http://" + service.Spec.ClusterIP
	return err
}

// address is what the writers of a job call their sink by. In Kubernetes they know it.
func (b *bench) address(j *job) string {
	switch {
	case j.kind == "http" && j.fenced:
		return b.proxy
	case j.kind == "handlers" && j.fenced:
		return b.witness.url + fencedPath
	case j.kind == "http" || j.kind == "handlers":
		return b.witness.url
	case b.servers[j.kind] != nil:
		return b.servers[j.kind].address
	}
	return ""
}

// object is the SingletonJob of a sink.
func (b *bench) object(j *job) *v1alpha1.SingletonJob {
	object := b.cluster.Job(namespace, j.name, cluster.ClientGo)
	// With Stop, the kernel ends the process before a successor has begun, so no stale write is sent.
	object.Spec.Lease.OnRenewFailure = v1alpha1.OnRenewFailureKeepRunning
	pod := &object.Spec.Template.Spec
	app := &pod.Containers[0]
	app.Image, app.Command = image, []string{"/writer", j.kind}
	if !j.fenced {
		app.Command = append(app.Command, offer.Unfenced)
	}
	app.Env = []corev1.EnvVar{{Name: offer.AddressEnv, Value: b.address(j)}, {Name: offer.WitnessEnv, Value: b.witness.url + "/reports"}}
	pod.AutomountServiceAccountToken = new(j.kind == "kubernetes") // the operator's account for a job brings none
	pod.Affinity = &corev1.Affinity{NodeAffinity: &corev1.NodeAffinity{RequiredDuringSchedulingIgnoredDuringExecution: &corev1.NodeSelector{
		NodeSelectorTerms: []corev1.NodeSelectorTerm{{MatchExpressions: []corev1.NodeSelectorRequirement{
			{Key: corev1.LabelHostname, Operator: corev1.NodeSelectorOpNotIn, Values: b.cluster.Lab.Nodes[:1]},
		}}},
	}}}
	return object
}

// objects are what the writers need to write to objects of Kubernetes.
func objects(jobs []*job) []client.Object {
	meta := metav1.ObjectMeta{Namespace: namespace, Name: "writers"}
	all := []client.Object{
		&rbacv1.Role{ObjectMeta: meta, Rules: []rbacv1.PolicyRule{{APIGroups: []string{""}, Resources: []string{"configmaps"}, Verbs: []string{"patch"}}}},
		&rbacv1.RoleBinding{
			ObjectMeta: meta, Subjects: []rbacv1.Subject{{Kind: rbacv1.GroupKind, APIGroup: rbacv1.GroupName, Name: "system:serviceaccounts:" + namespace}},
			RoleRef: rbacv1.RoleRef{APIGroup: rbacv1.GroupName, Kind: "Role", Name: meta.Name},
		},
	}
	for _, j := range jobs {
		if j.kind == "kubernetes" {
			all = append(all, &corev1.ConfigMap{ObjectMeta: metav1.ObjectMeta{Namespace: namespace, Name: j.name}})
		}
	}
	return all
}

// stored is the sink's own log of a job's writes, in the order in which they took effect.
func (b *bench) stored(ctx context.Context, j *job) (writes []offer.Write, err error) {
	texts := b.witness.stored(j.log)
	if s := b.servers[j.kind]; s != nil {
		if texts, err = s.stored(ctx, j.log); err != nil {
			return nil, err
		}
	}
	for _, text := range texts {
		write, err := offer.Parse(text)
		if err != nil {
			return nil, fmt.Errorf("%s: %w", j.log, err)
		}
		writes = append(writes, write)
	}
	return writes, nil
}

// result counts once the log has all that was acknowledged by now; what it lacks after a while is lost.
func (b *bench) result(ctx context.Context, j *job, f faultCase) (r Result, err error) {
	ctx, cancel := context.WithTimeout(ctx, settles)
	defer cancel()
	reports := b.witness.told(j.log)
	awaited := observe.Await(ctx, "all that was acknowledged to be stored", func() (bool, any, error) {
		stored, e := b.stored(ctx, j)
		if err = e; e == nil {
			r = count(stored, j.before, reports, j.since)
		}
		return e == nil && (r.Lost == 0 || !j.fenced), r, e
	})
	if awaited != nil && err == nil {
		b.say("%s: %v", j.log, awaited)
	}
	r.Fault, r.Sink, r.Fenced = f.key, j.name, j.fenced
	return r, err
}
