//go:build linux

package main

import (
	"bufio"
	"context"
	"fmt"
	"maps"
	"os"
	"slices"
	"strconv"
	"strings"
	"time"

	coordinationv1 "k8s.io/api/coordination/v1"
	corev1 "k8s.io/api/core/v1"
	rbacv1 "k8s.io/api/rbac/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/rest"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/singletonjob/operator/fence/fencetest"
	"github.com/singletonjob/operator/internal/contract"
	"github.com/singletonjob/operator/test/localnode"
	"github.com/singletonjob/operator/test/observe"
	"github.com/singletonjob/operator/test/stack"
	"github.com/singletonjob/operator/test/torture/judge"
)

const (
	// refusal is part of the API server's answer to a write that a policy refused, and of its log.
	refusal = "ValidatingAdmissionPolicy"
	// guardMark is the annotation that an administrator sets to "off" before a repair.
	guardMark = "singletonjob.io/guard"
	// foreigner is an account that RBAC lets write every Lease of the namespace.
	foreigner = "foreigner"
)

func refused(err error) bool {
	return apierrors.IsForbidden(err) && strings.Contains(err.Error(), refusal)
}

// raiseGuard applies the guard, and returns when the API server at each address enforces it.
func (w *world) raiseGuard(ctx context.Context, root string, addresses ...string) error {
	w.say("building Helm, which renders the guard")
	if err := stack.ApplyGuard(ctx, w.Plane, root); err != nil {
		return err
	}
	for _, address := range addresses {
		if err := w.awaitGuard(ctx, address); err != nil {
			return err
		}
	}
	return nil
}

func (w *world) awaitGuard(ctx context.Context, address string) error {
	config := w.Plane.Config()
	config.Host = address
	direct, err := stack.NewClient(config)
	if err != nil {
		return err
	}
	ctx, cancel := context.WithTimeout(ctx, settles)
	defer cancel()
	return observe.Await(ctx, "the guard to be enforced by "+address, func() (bool, any, error) {
		lock := &coordinationv1.Lease{ObjectMeta: metav1.ObjectMeta{
			Namespace: namespace, Name: "lock", Labels: map[string]string{contract.ManagedByLabel: contract.ManagedBy},
		}}
		err := direct.Create(ctx, lock, client.DryRunAll)
		return refused(err), nil, err
	})
}

// nameForeigner creates an account that is not a candidate's, and that RBAC lets write Leases.
func (w *world) nameForeigner(ctx context.Context) error {
	meta := metav1.ObjectMeta{Namespace: namespace, Name: foreigner}
	for _, o := range []client.Object{
		&corev1.ServiceAccount{ObjectMeta: meta},
		&rbacv1.Role{ObjectMeta: meta, Rules: []rbacv1.PolicyRule{{
			APIGroups: []string{coordinationv1.GroupName}, Resources: []string{"leases"}, Verbs: []string{"*"},
		}}},
		&rbacv1.RoleBinding{
			ObjectMeta: meta, Subjects: []rbacv1.Subject{{Kind: rbacv1.ServiceAccountKind, Name: foreigner}},
			RoleRef: rbacv1.RoleRef{APIGroup: rbacv1.GroupName, Kind: "Role", Name: foreigner},
		},
	} {
		if err := w.Client.Create(ctx, o); err != nil {
			return fmt.Errorf("creating %T %s: %w", o, foreigner, err)
		}
	}
	return nil
}

// foreignClient is the foreigner's: without a Pod, or in a Pod that is no candidate.
func (b *blow) foreignClient() (client.Client, error) {
	config := b.Plane.Config()
	config.Impersonate = rest.ImpersonationConfig{
		UserName: "system:serviceaccount:" + namespace + ":" + foreigner,
		Groups:   []string{"system:serviceaccounts", "system:serviceaccounts:" + namespace, "system:authenticated"},
	}
	if b.random.IntN(2) == 0 {
		config.Impersonate.Extra = map[string][]string{
			"authentication.kubernetes.io/pod-name": {"foreign-pod"}, "authentication.kubernetes.io/pod-uid": {"foreign-uid"},
		}
	}
	return stack.NewClient(config)
}

// A forgery is what a foreign writer tries, as parts of a merge patch: one needs no revision, so that the guard alone decides on it.
type forgery struct{ labels, annotations, spec string }

const deletes = "deletes"

var forgeries = map[string]forgery{
	"notes":    {},
	"takes":    {annotations: `,"` + contract.TokenAnnotation + `":"9007199254740000"`, spec: `"holderIdentity":"foreign-pod/foreign-uid/nonce"`},
	"releases": {annotations: `,"` + contract.ReleaseReasonAnnotation + `":"ProcessExited"`, spec: `"holderIdentity":"","acquireTime":null`},
	"shortens": {annotations: `,"` + contract.TokenAnnotation + `":"1"`, spec: `"leaseDurationSeconds":1`},
	"hides":    {labels: `"` + contract.ManagedByLabel + `":null`, annotations: `,"` + guardMark + `":"off"`},
	deletes:    {},
}

// patch always changes something: the guard lets writes pass that change nothing.
func (f forgery) patch(nonce uint64) client.Patch {
	return client.RawPatch(types.MergePatchType, fmt.Appendf(nil,
		`{"metadata":{"labels":{%s},"annotations":{"torture/foreign":"%d"%s}},"spec":{%s}}`, f.labels, nonce, f.annotations, f.spec))
}

// forge changes or deletes the Lease as a foreign writer, until the API server accepts or refuses it.
func forge(ctx context.Context, b *blow) error {
	writer, err := b.foreignClient()
	if err != nil {
		return err
	}
	all := slices.Sorted(maps.Keys(forgeries))
	what, nonce := all[b.random.IntN(len(all))], b.random.Uint64()
	lock := &coordinationv1.Lease{ObjectMeta: metav1.ObjectMeta{Namespace: namespace, Name: b.Name}}
	return b.again(ctx, func() (err error) {
		if what == deletes {
			err = writer.Delete(ctx, lock)
		} else {
			err = writer.Patch(ctx, lock, forgeries[what].patch(nonce))
		}
		if err != nil && !refused(err) {
			return err
		}
		b.forged(judge.Forgery{Subject: b.Name, What: what, At: fencetest.Boottime(), Stored: err == nil})
		return nil
	})
}

func (w *world) forged(f judge.Forgery) {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.forgeries = append(w.forgeries, f)
}

// heard keeps the log lines of agents about writes that the guard refused.
func (w *world) heard(line localnode.Line) {
	if strings.Contains(line.Text, refusal) {
		w.refusals(fencetest.Boottime(), line.Pod+": "+line.Text)
	}
}

func (w *world) refusals(at time.Duration, text string) {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.honest = append(w.honest, judge.Refusal{Text: text, At: at})
}

// hearOperator adds the operator's log lines about writes that the guard refused.
func (w *world) hearOperator() error {
	log, err := os.Open(w.OperatorLog())
	if err != nil {
		return err
	}
	defer func() { _ = log.Close() }()
	lines := bufio.NewScanner(log)
	lines.Buffer(nil, 1<<20)
	for lines.Scan() {
		if strings.Contains(lines.Text(), refusal) {
			w.refusals(fencetest.Boottime(), "operator: "+lines.Text())
		}
	}
	return lines.Err()
}

// repair changes or deletes the Lease as an administrator would under the guard: it first sets the mark, and then acts. An existing mark
// stays until the change.
func (b *blow) repair(ctx context.Context, act func(found *coordinationv1.Lease) error) error {
	return b.again(ctx, func() error {
		found := &coordinationv1.Lease{}
		if err := b.Client.Get(ctx, b.key(), found); err != nil {
			return err
		}
		if found.Annotations == nil {
			found.Annotations = map[string]string{}
		}
		if found.Annotations[guardMark] != "off" && !b.Control {
			found.Annotations[guardMark] = "off"
			if err := b.Client.Update(ctx, found); err != nil {
				return err
			}
		}
		delete(found.Annotations, guardMark)
		found.Annotations[editMark] = strconv.FormatInt(time.Now().UnixNano(), 36)
		return act(found)
	})
}
