//go:build linux

package main

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"net/http"
	"syscall"
	"time"

	coordinationv1 "k8s.io/api/coordination/v1"
	corev1 "k8s.io/api/core/v1"
	policyv1 "k8s.io/api/policy/v1"
	rbacv1 "k8s.io/api/rbac/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/singletonjob/operator/api/v1alpha1"
	"github.com/singletonjob/operator/fence"
	"github.com/singletonjob/operator/internal/contract"
	"github.com/singletonjob/operator/test/faultproxy"
	"github.com/singletonjob/operator/test/localnode"
	"github.com/singletonjob/operator/test/observe"
)

// kind is one row of the catalogue of faults.
type kind struct {
	name string
	// product is true for faults that only a SingletonJob can have. The control does not get them.
	product bool
	// weight is its relative frequency; 0 counts as 4.
	weight int
	// do injects it; heal, if any, ends it. The fault is everything between them.
	do func(ctx context.Context, b *blow) (heal func() error, err error)
}

// blow is one fault that is injected into a subject, or into all subjects if it has none.
type blow struct {
	*world
	*subject
	random *rand.Rand
	pod    string // the active one
	node   *localnode.Node
	holds  time.Duration // how long it will last
}

// instant is a fault without a heal.
func instant(do func(ctx context.Context, b *blow) error) func(context.Context, *blow) (func() error, error) {
	return func(ctx context.Context, b *blow) (func() error, error) { return nil, do(ctx, b) }
}

// leash is the process between the agent and the user's process.
func leash(main int, all []localnode.Process) []localnode.Process {
	leaves := map[int]bool{}
	for _, p := range localnode.Leaves(main, all) {
		leaves[p.Pid] = true
	}
	for _, p := range all {
		if p.Pid != main && !leaves[p.Pid] {
			return []localnode.Process{p}
		}
	}
	return nil
}

func send(to localnode.Target, sig syscall.Signal) func(context.Context, *blow) (func() error, error) {
	return instant(func(_ context.Context, b *blow) error {
		_, err := b.node.Signal(namespace, b.pod, to, sig)
		return err
	})
}

// stopped stops one process; the end of the fault lets the whole container continue.
func stopped(to localnode.Target) func(context.Context, *blow) (func() error, error) {
	return func(_ context.Context, b *blow) (func() error, error) {
		_, err := b.node.Signal(namespace, b.pod, to, syscall.SIGSTOP)
		return b.thaw, err
	}
}

// thaw lets the container continue, if there still is one.
func (b *blow) thaw() error {
	_ = b.node.Thaw(namespace, b.pod)
	return nil
}

func frozen(_ context.Context, b *blow) (func() error, error) {
	return b.thaw, b.node.Freeze(namespace, b.pod)
}

// frozenHeadless thaws the process a while before its agent and leash.
func frozenHeadless(ctx context.Context, b *blow) (func() error, error) {
	first := between(b.random, 0, 2*time.Second)
	return func() error {
		_, _ = b.node.Signal(namespace, b.pod, localnode.Leaves, syscall.SIGCONT)
		pause(ctx, first)
		return b.thaw()
	}, b.node.Freeze(namespace, b.pod)
}

func processFaults() []kind {
	return []kind{
		{name: "process killed", do: send(localnode.Leaves, syscall.SIGKILL)},
		{name: "process exits 0", product: true, do: send(localnode.Leaves, syscall.SIGUSR1)},
		{name: "process exits 1", product: true, do: send(localnode.Leaves, syscall.SIGUSR2)},
		{name: "agent killed", product: true, do: send(localnode.MainProcess, syscall.SIGKILL)},
		{name: "leash killed", product: true, do: send(leash, syscall.SIGKILL)},
		{name: "process stopped", do: stopped(localnode.Leaves)},
		{name: "agent stopped", product: true, do: stopped(localnode.MainProcess)},
		{name: "leash stopped", product: true, do: stopped(leash)},
		{name: "container frozen", do: frozen},
		{name: "container frozen, process thawed first", do: frozenHeadless},
		{name: "writes on the wire past a takeover", do: lateWrites},
	}
}

// lateWrites holds back a few writes, kills the process, and delivers the writes when another process writes.
func lateWrites(ctx context.Context, b *blow) (func() error, error) {
	const some = 3
	mine := func(r *http.Request) bool { return r.Header.Get(fence.HeaderResource) == b.Name }
	deliver := b.SinkLink.Inject(faultproxy.Hold(), faultproxy.Times(some, mine))
	heal := func() error {
		deliver()
		return nil
	}
	// The writer gives up on them one after another.
	pause(ctx, some*500*time.Millisecond)
	_, err := b.node.Signal(namespace, b.pod, localnode.Leaves, syscall.SIGKILL)
	if err != nil {
		return heal, err
	}
	waiting, cancel := context.WithTimeout(ctx, b.lease.Duration+10*time.Second)
	defer cancel()
	_ = observe.Await(waiting, "another writer", func() (bool, any, error) {
		return b.sinks.lastWrite(b.resource()).pod != b.pod, nil, nil
	})
	return heal, nil
}

// toAPI is a fault of requests between the active pod's node and the API server.
func toAPI(fault func(b *blow) faultproxy.Fault, when ...faultproxy.Match) func(context.Context, *blow) (func() error, error) {
	return func(_ context.Context, b *blow) (func() error, error) {
		remove := b.node.Proxy().Inject(fault(b), when...)
		return func() error {
			remove()
			return nil
		}, nil
	}
}

func always(f faultproxy.Fault) func(*blow) faultproxy.Fault {
	return func(*blow) faultproxy.Fault { return f }
}

func answered(code int, reason string) func(*blow) faultproxy.Fault {
	body := fmt.Sprintf(`{"kind":"Status","apiVersion":"v1","status":"Failure","message":"torture","reason":%q,"code":%d}`, reason, code)
	return always(faultproxy.Answer(code, nil, body))
}

// share matches a random part of all requests.
func share(percent uint32) faultproxy.Match {
	return func(*http.Request) bool { return rand.Uint32N(100) < percent }
}

func cutNode(node func(b *blow) []*localnode.Node) func(context.Context, *blow) (func() error, error) {
	return func(_ context.Context, b *blow) (func() error, error) {
		nodes := node(b)
		for _, n := range nodes {
			n.Cut()
		}
		return func() error {
			var errs []error
			for _, n := range nodes {
				errs = append(errs, n.Heal())
			}
			return errors.Join(errs...)
		}, nil
	}
}

func networkFaults() []kind {
	leases := faultproxy.PathHas("/leases/")
	puts := faultproxy.Method(http.MethodPut)
	return []kind{
		{name: "cut off", weight: 8, do: cutNode(func(b *blow) []*localnode.Node { return []*localnode.Node{b.node} })},
		{name: "standby cut off", do: cutNode(func(b *blow) []*localnode.Node {
			for _, n := range b.nodes {
				if n != b.node {
					return []*localnode.Node{n}
				}
			}
			return nil
		})},
		{name: "all cut off", do: cutNode(func(b *blow) []*localnode.Node { return b.nodes })},
		{name: "moved to another API server", do: instant(func(_ context.Context, b *blow) error { return b.balancer.moveNow(b.node.Proxy()) })},
		{name: "connections refused", do: func(_ context.Context, b *blow) (func() error, error) {
			b.node.Proxy().Refuse()
			return b.node.Heal, nil
		}},
		{name: "black hole", do: toAPI(always(faultproxy.BlackHole()))},
		{name: "one-way: replies swallowed", do: toAPI(always(faultproxy.LoseReply()), leases)},
		{name: "half-open: writes delivered late", do: toAPI(always(faultproxy.Hold()), leases, puts)},
		{name: "slow", do: toAPI(func(b *blow) faultproxy.Fault {
			return faultproxy.Delay(between(b.random, 0, b.lease.Deadline), between(b.random, 0, b.lease.Deadline))
		})},
		{name: "connections reset", do: toAPI(always(faultproxy.Reset()))},
		{name: "replies reset", do: toAPI(always(faultproxy.ResetReply()), leases)},
		{name: "writes delivered twice", do: toAPI(func(b *blow) faultproxy.Fault {
			return faultproxy.Duplicate(between(b.random, 0, b.lease.Duration))
		}, puts)},
		{name: "a third of requests lost", do: toAPI(always(faultproxy.BlackHole()), share(33))},
		{name: "429", do: toAPI(always(faultproxy.TooManyRequests(time.Second)))},
		{name: "500", do: toAPI(always(faultproxy.Fail(http.StatusInternalServerError)))},
		{name: "503", do: toAPI(always(faultproxy.Fail(http.StatusServiceUnavailable)))},
		{name: "401: token expired", do: toAPI(answered(http.StatusUnauthorized, "Unauthorized"))},
		{name: "403", do: toAPI(answered(http.StatusForbidden, "Forbidden"), leases)},
		{name: "410 to watches", do: toAPI(answered(http.StatusGone, "Expired"), faultproxy.Watches())},
		{name: "stale reads", do: toAPI(func(*blow) faultproxy.Fault { return faultproxy.Stale() })},
		{name: "watches stall", do: toAPI(always(faultproxy.StallWatch()))},
	}
}

// edit changes the subject's Lease, as a user would.
func edit(change func(*coordinationv1.Lease)) func(context.Context, *blow) (func() error, error) {
	return instant(func(ctx context.Context, b *blow) error {
		return b.repair(ctx, func(found *coordinationv1.Lease) error {
			change(found)
			return b.Client.Update(ctx, found)
		})
	})
}

func (b *blow) key() client.ObjectKey { return client.ObjectKey{Namespace: namespace, Name: b.Name} }

// soon limits the attempts of an optional step.
const soon = 20 * time.Second

// again tries until it succeeds or its time is over: the API server may be under attack itself.
func (b *blow) again(ctx context.Context, try func() error) error { return b.againFor(ctx, soon, try) }

func (b *blow) againFor(ctx context.Context, limit time.Duration, try func() error) error {
	ctx, cancel := context.WithTimeout(ctx, limit)
	defer cancel()
	return observe.Await(ctx, "the API server", func() (bool, any, error) {
		err := try()
		return err == nil, nil, err
	})
}

// leaseFaults exclude two edits that the protocol does not survive, as documented: a completely forged release, and a candidate that a user
// names as the holder.
func leaseFaults() []kind {
	return []kind{
		{name: "Lease deleted", do: instant(func(ctx context.Context, b *blow) error {
			return b.repair(ctx, func(found *coordinationv1.Lease) error { return client.IgnoreNotFound(b.Client.Delete(ctx, found)) })
		})},
		{name: "holder blanked", do: edit(func(l *coordinationv1.Lease) { l.Spec.HolderIdentity = new("") })},
		{name: "another holder written", do: edit(func(l *coordinationv1.Lease) { l.Spec.HolderIdentity = new("somebody") })},
		{name: "transitions lowered", do: edit(func(l *coordinationv1.Lease) { l.Spec.LeaseTransitions = new(int32) })},
		{name: "duration lowered", do: edit(func(l *coordinationv1.Lease) {
			l.Spec.LeaseDurationSeconds = new(int32(1))
			delete(l.Annotations, contract.LeaseDurationAnnotation)
		})},
		{name: "duration raised", do: edit(func(l *coordinationv1.Lease) { l.Spec.LeaseDurationSeconds = new(int32(20)) })},
		{name: "token lowered", product: true, do: edit(func(l *coordinationv1.Lease) { l.Annotations[contract.TokenAnnotation] = "1" })},
		{name: "renewal in the future", do: edit(func(l *coordinationv1.Lease) {
			l.Spec.RenewTime = new(metav1.NewMicroTime(time.Now().Add(time.Hour)))
		})},
		{name: "foreign write", product: true, weight: 8, do: instant(forge)},
		{name: "handover asked for", product: true, do: edit(func(l *coordinationv1.Lease) {
			l.Annotations[contract.HandoverToAnnotation], l.Annotations[contract.HandoverReasonAnnotation] = "*", v1alpha1.ChangeSwitchoverRequested
		})},
	}
}

func (b *blow) activePod() *corev1.Pod {
	return &corev1.Pod{ObjectMeta: metav1.ObjectMeta{Namespace: namespace, Name: b.pod}}
}

func (b *blow) deletePod(ctx context.Context, options ...client.DeleteOption) error {
	return b.again(ctx, func() error { return client.IgnoreNotFound(b.Client.Delete(ctx, b.activePod(), options...)) })
}

// change patches the subject's job.
func (b *blow) change(ctx context.Context, limit time.Duration, change func(job *v1alpha1.SingletonJob)) error {
	return b.againFor(ctx, limit, func() error {
		job, err := b.Job(ctx, namespace, b.Name)
		if err != nil {
			return err
		}
		change(job)
		return b.Client.Update(ctx, job)
	})
}

// objectFaults do not include a job that is deleted and recreated. The new job waits until Kubernetes' garbage collector has deleted what
// the old one owned. After a few outages of the API server that takes longer than this run waits.
func objectFaults() []kind {
	force := client.GracePeriodSeconds(0)
	return []kind{
		{name: "pod deleted", do: instant(func(ctx context.Context, b *blow) error { return b.deletePod(ctx) })},
		{name: "pod deleted by force", do: instant(func(ctx context.Context, b *blow) error { return b.deletePod(ctx, force) })},
		{name: "pod deleted by force while its node is cut off", do: func(ctx context.Context, b *blow) (func() error, error) {
			b.node.Cut()
			return b.node.Heal, b.deletePod(ctx, force)
		}},
		{name: "pod evicted", do: instant(func(ctx context.Context, b *blow) error {
			return b.again(ctx, func() error {
				return client.IgnoreNotFound(b.Client.SubResource("eviction").Create(ctx, b.activePod(), &policyv1.Eviction{}))
			})
		})},
		{name: "suspended and resumed", product: true, weight: 2, do: func(ctx context.Context, b *blow) (func() error, error) {
			suspend := func(limit time.Duration, yes bool) error {
				return b.change(context.WithoutCancel(ctx), limit, func(job *v1alpha1.SingletonJob) { job.Spec.Suspend = yes })
			}
			return func() error { return suspend(patience, false) }, suspend(soon, true)
		}},
		{name: "rollout", product: true, weight: 2, do: instant(func(ctx context.Context, b *blow) error {
			return b.change(ctx, soon, func(job *v1alpha1.SingletonJob) {
				job.Spec.Template.Annotations = map[string]string{"rollout": time.Now().String()}
			})
		})},
		{name: "rights removed", product: true, do: instant(func(ctx context.Context, b *blow) error {
			return b.again(ctx, func() error {
				return b.Client.DeleteAllOf(ctx, &rbacv1.RoleBinding{}, client.InNamespace(namespace), client.MatchingLabels{contract.NameLabel: b.Name})
			})
		})},
	}
}

// befalling are the faults of one subject.
func befalling() []kind {
	var all []kind
	for _, more := range [][]kind{processFaults(), networkFaults(), leaseFaults(), objectFaults()} {
		all = append(all, more...)
	}
	return all
}

// startAPIServers starts all stopped servers. It does not give up, because nothing recovers without a server.
func (b *blow) startAPIServers() error {
	return b.againFor(context.Background(), patience, func() error {
		err := b.Plane.StartAPIServer(context.Background())
		if err != nil {
			b.Plane.StopAPIServer()
		}
		return err
	})
}

// oneServer are the faults of one API server of several. Clients move to another one, and later back. After a pause, a server still shows
// old state.
func oneServer() []kind {
	ends := func(end func(b *blow, i int)) func(context.Context, *blow) (func() error, error) {
		return func(_ context.Context, b *blow) (func() error, error) {
			end(b, b.random.IntN(servers))
			return b.startAPIServers, nil
		}
	}
	return []kind{
		{name: "one API server killed and restarted", weight: 6, do: ends(func(b *blow, i int) { b.Plane.KillServer(i) })},
		{name: "one API server restarted", do: ends(func(b *blow, i int) { b.Plane.StopServer(i) })},
		{name: "one API server paused", weight: 8, do: func(_ context.Context, b *blow) (func() error, error) {
			i := b.random.IntN(servers)
			return func() error { return b.Plane.SignalServer(i, syscall.SIGCONT) }, b.Plane.SignalServer(i, syscall.SIGSTOP)
		}},
	}
}

// common are the faults of all subjects at once.
func common() []kind {
	paused := func(to func(b *blow) func(syscall.Signal) error) func(context.Context, *blow) (func() error, error) {
		return func(_ context.Context, b *blow) (func() error, error) {
			return func() error { return to(b)(syscall.SIGCONT) }, to(b)(syscall.SIGSTOP)
		}
	}
	return append(oneServer(), []kind{
		{name: "all API servers killed and restarted", weight: 2, do: func(_ context.Context, b *blow) (func() error, error) {
			b.Plane.KillAPIServer()
			return b.startAPIServers, nil
		}},
		{name: "all API servers restarted", weight: 2, do: func(_ context.Context, b *blow) (func() error, error) {
			b.Plane.StopAPIServer()
			return b.startAPIServers, nil
		}},
		{name: "all API servers paused", do: paused(func(b *blow) func(syscall.Signal) error { return b.Plane.SignalAPIServer })},
		{name: "etcd paused", do: paused(func(b *blow) func(syscall.Signal) error { return b.Plane.SignalEtcd })},
		{name: "etcd killed and restarted", do: func(_ context.Context, b *blow) (func() error, error) {
			b.Plane.StopEtcd()
			return b.Plane.StartEtcd, nil
		}},
		{name: "operator killed", weight: 8, do: func(_ context.Context, b *blow) (func() error, error) {
			b.KillOperator()
			return b.StartOperator, nil
		}},
		{name: "operator paused", do: paused(func(b *blow) func(syscall.Signal) error { return b.SignalOperator })},
		{name: "two operators", do: func(_ context.Context, b *blow) (func() error, error) {
			stop, err := b.AnotherOperator()
			return func() error {
				stop()
				return nil
			}, err
		}},
	}...)
}
