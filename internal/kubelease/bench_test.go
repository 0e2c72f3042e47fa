//go:build linux

package kubelease

import (
	"context"
	"fmt"
	"strings"
	"testing"
	"time"

	coordinationv1 "k8s.io/api/coordination/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/kubernetes"

	"github.com/singletonjob/operator/internal/contract"
	"github.com/singletonjob/operator/internal/lease"
	"github.com/singletonjob/operator/test/controlplane"
)

// BenchmarkRenewal renews a Lease b.N times with a real agent's client, on a real API server whose etcd drops nothing. It reports by how
// much etcd's database grows for each renewal. The document docs/sizing.md uses that number.
func BenchmarkRenewal(b *testing.B) {
	const node = "ip-10-0-123-145.eu-central-1.compute.internal"
	long := func(tenures int) string {
		var lines []string
		for i := range tenures {
			lines = append(lines, fmt.Sprintf("%d,settlement-of-all-accounts-eur-6f7c9d8b5-0,%s,1767225600000,1767225700000,ProcessExited", 123456789-i, node))
		}
		return strings.Join(lines, ";")
	}
	for name, c := range map[string]struct {
		tenures int
		tracked bool
	}{
		"forgotten":    {tenures: 1},
		"full":         {tenures: 7},
		"full,tracked": {tenures: 7, tracked: true},
	} {
		b.Run(name, func(b *testing.B) { renewals(b, long(c.tenures), c.tracked) })
	}
}

func renewals(b *testing.B, history string, tracked bool) {
	const name = "settlement-of-all-accounts-eur"
	plane, err := controlplane.Start(b.Context(), controlplane.Options{APIServerFlags: []string{"--etcd-compaction-interval=0"}})
	if err != nil {
		b.Fatal(err)
	}
	b.Cleanup(plane.Stop)
	client, err := kubernetes.NewForConfig(plane.Config())
	if err != nil {
		b.Fatal(err)
	}
	ours, err := New(Config{Server: plane.URL(), Namespace: "default", Name: name, Credentials: credentials(b, plane.CA(), plane.Config().BearerToken)})
	if err != nil {
		b.Fatal(err)
	}
	id := lease.Identity{Pod: name + "-6f7c9d8b5-0", PodUID: "0d5a3f0e-7c7c-4d3e-9a3e-6f1b2a3c4d5e", Nonce: "ABCDEFGHIJKL"}.String()
	created := &coordinationv1.Lease{
		ObjectMeta: metav1.ObjectMeta{
			Name:   name,
			Labels: map[string]string{contract.ManagedByLabel: contract.ManagedBy, contract.NameLabel: name},
			Annotations: map[string]string{
				contract.HistoryAnnotation: history, contract.TokenAnnotation: "123456789", contract.LeaseDurationAnnotation: "15s",
				"singletonjob.io/claim": "0d5a3f0e-7c7c-4d3e-9a3e-6f1b2a3c4d5e,0",
			},
		},
		Spec: coordinationv1.LeaseSpec{HolderIdentity: &id, LeaseDurationSeconds: new(int32(15)), LeaseTransitions: new(int32(42)), AcquireTime: &metav1.MicroTime{Time: time.Now()}},
	}
	if _, err := client.CoordinationV1().Leases("default").Create(b.Context(), created, metav1.CreateOptions{FieldManager: "singletonjob"}); err != nil {
		b.Fatal(err)
	}
	answer, err := ours.Get(b.Context(), 0)
	if err != nil {
		b.Fatal(err)
	}
	o := answer.Object
	renew := func() {
		if tracked {
			delete(o.metadata, "managedFields") // and so it is kept as it is stored
		}
		for {
			r := o.Record
			r.RenewTime = time.Now().UnixMicro()
			outcome, stored, err := ours.Update(b.Context(), o, r)
			if outcome == lease.Confirmed {
				o = stored
				return
			}
			b.Log(err) // the machine is busy
			if answer, err := ours.Get(b.Context(), 0); err == nil && answer.Object != nil {
				o = answer.Object
			}
		}
	}
	renew()
	before := databaseSize(b, plane)
	for b.Loop() {
		renew()
	}
	grown := float64(databaseSize(b, plane) - before)
	value, err := plane.Stored(b.Context(), "/registry/leases/default/"+name)
	if err != nil {
		b.Fatal(err)
	}
	b.ReportMetric(float64(len(value)), "B/Lease")
	b.ReportMetric(grown/float64(b.N), "B-of-etcd/renewal")
}

// databaseSize is that of etcd's database when it has stored all.
func databaseSize(b *testing.B, plane *controlplane.ControlPlane) int64 {
	b.Helper()
	size, err := plane.DatabaseSize(context.WithoutCancel(b.Context()))
	if err != nil {
		b.Fatal(err)
	}
	return size
}
