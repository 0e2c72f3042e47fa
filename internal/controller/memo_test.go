package controller

import (
	"context"
	"fmt"
	"reflect"
	"slices"
	"strings"
	"sync"
	"testing"

	"github.com/google/go-cmp/cmp"
	"github.com/google/go-cmp/cmp/cmpopts"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/labels"
	"k8s.io/apimachinery/pkg/runtime"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/client/interceptor"

	"github.com/singletonjob/operator/api/v1alpha1"
	"github.com/singletonjob/operator/internal/contract"
)

// memo saves reads from the API server whose answers are known: only its clients write what they read, and no controller runs. A
// write drops everything that was read of that kind, by any client, including reads in progress, because look-ups read in parallel
// with the goroutine that writes.
type memo struct {
	mu      sync.Mutex
	kinds   map[string]map[string]answer
	clients int
}

type answer struct {
	object runtime.Object
	err    error
}

func newMemo() *memo { return &memo{kinds: map[string]map[string]answer{}} }

// of is a client that asks api for what the memo does not know. It does not use the answers of another client, which may have other
// rights.
func (m *memo) of(api client.WithWatch) client.WithWatch {
	m.clients++
	who := m.clients
	return interceptor.NewClient(api, interceptor.Funcs{
		Get: func(ctx context.Context, c client.WithWatch, key client.ObjectKey, obj client.Object, opts ...client.GetOption) error {
			if _, partial := obj.(*metav1.PartialObjectMetadata); partial {
				return c.Get(ctx, key, obj, opts...)
			}
			return m.read(obj, fmt.Sprint(who, key), func() error { return c.Get(ctx, key, obj, opts...) })
		},
		List: func(ctx context.Context, c client.WithWatch, list client.ObjectList, opts ...client.ListOption) error {
			var o client.ListOptions
			o.ApplyOptions(opts)
			if o.FieldSelector != nil {
				return m.read(list, fmt.Sprint(who, o.Namespace, o.LabelSelector, o.FieldSelector), func() error { return c.List(ctx, list, opts...) })
			}
			// One answer covers all label selectors.
			err := m.read(list, fmt.Sprint(who, o.Namespace), func() error { return c.List(ctx, list, client.InNamespace(o.Namespace)) })
			if err != nil || o.LabelSelector == nil {
				return err
			}
			return only(list, o.LabelSelector)
		},
		Create: func(ctx context.Context, c client.WithWatch, obj client.Object, opts ...client.CreateOption) error {
			return m.wrote(who, obj, len(opts), c.Create(ctx, obj, opts...))
		},
		Update: func(ctx context.Context, c client.WithWatch, obj client.Object, opts ...client.UpdateOption) error {
			return m.wrote(who, obj, len(opts), c.Update(ctx, obj, opts...))
		},
		Delete: func(ctx context.Context, c client.WithWatch, obj client.Object, opts ...client.DeleteOption) error {
			defer m.drop(obj)
			return c.Delete(ctx, obj, opts...)
		},
		Patch: func(ctx context.Context, c client.WithWatch, obj client.Object, patch client.Patch, opts ...client.PatchOption) error {
			if _, partial := obj.(*metav1.PartialObjectMetadata); partial { // of any kind
				defer m.dropAll()
				return c.Patch(ctx, obj, patch, opts...)
			}
			return m.wrote(who, obj, len(opts), c.Patch(ctx, obj, patch, opts...))
		},
		SubResourceCreate: func(ctx context.Context, c client.Client, sub string, obj, body client.Object, opts ...client.SubResourceCreateOption) error {
			defer m.drop(obj)
			return c.SubResource(sub).Create(ctx, obj, body, opts...)
		},
		SubResourceUpdate: func(ctx context.Context, c client.Client, sub string, obj client.Object, opts ...client.SubResourceUpdateOption) error {
			return m.wrote(who, obj, len(opts), c.SubResource(sub).Update(ctx, obj, opts...))
		},
		SubResourcePatch: func(ctx context.Context, c client.Client, sub string, obj client.Object, patch client.Patch, opts ...client.SubResourcePatchOption) error {
			defer m.drop(obj)
			return c.SubResource(sub).Patch(ctx, obj, patch, opts...)
		},
	})
}

func kindOf(o runtime.Object) string { return strings.TrimSuffix(fmt.Sprintf("%T", o), "List") }

func (m *memo) drop(o runtime.Object) {
	m.mu.Lock()
	defer m.mu.Unlock()
	delete(m.kinds, kindOf(o))
}

func (m *memo) dropAll() {
	m.mu.Lock()
	defer m.mu.Unlock()
	clear(m.kinds)
}

// only keeps the items of a list that a selector matches.
func only(list client.ObjectList, selector labels.Selector) error {
	all, err := meta.ExtractList(list)
	if err != nil {
		return err
	}
	return meta.SetList(list, slices.DeleteFunc(all, func(o runtime.Object) bool {
		return !selector.Matches(labels.Set(o.(client.Object).GetLabels()))
	}))
}

// wrote drops what was read of a kind, except other objects that were read by name. The API server's response to a write of the world's
// own client is also its answer to a read. Dry runs, and writes that may have finished the deletion of an object, are exceptions.
func (m *memo) wrote(who int, o client.Object, options int, err error) error {
	m.mu.Lock()
	defer m.mu.Unlock()
	kind, name := kindOf(o), client.ObjectKeyFromObject(o).String()
	known := map[string]answer{}
	for what, a := range m.kinds[kind] {
		if strings.HasPrefix(what, kind+" ") && !strings.HasSuffix(what, " "+name) {
			known[what] = a
		}
	}
	if err == nil && who == 1 && options == 0 && o.GetDeletionTimestamp() == nil {
		known[fmt.Sprintf("%s %d %s", kind, who, name)] = answer{object: o.DeepCopyObject()}
	}
	m.kinds[kind] = known
	return err
}

func (m *memo) read(into runtime.Object, what string, ask func() error) error {
	what = fmt.Sprintf("%T %s", into, what)
	known, a, found := m.recall(kindOf(into), what)
	if !found {
		err := ask()
		a = answer{object: into.DeepCopyObject(), err: err}
		m.mu.Lock()
		known[what] = a
		m.mu.Unlock()
	}
	if a.err == nil {
		reflect.ValueOf(into).Elem().Set(reflect.ValueOf(a.object.DeepCopyObject()).Elem())
	}
	return a.err
}

// recall is the remembered answer, or the place for one that is requested now.
func (m *memo) recall(kind, what string) (map[string]answer, answer, bool) {
	m.mu.Lock()
	defer m.mu.Unlock()
	known := m.kinds[kind]
	if known == nil {
		known = map[string]answer{}
		m.kinds[kind] = known
	}
	a, found := known[what]
	return known, a, found
}

// TestMemoMatchesTheAPIServer: throughout a life, the memo's objects are equal to the API server's.
func TestMemoMatchesTheAPIServer(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	api := unmemoized(t, w)
	compared, turns := map[string]int{}, 0
	is := func(holds func() bool) func() bool {
		return func() bool {
			if turns++; turns%3 == 0 {
				for kind, n := range w.remembersAs(api) {
					compared[kind] += n
				}
			}
			return holds()
		}
	}
	w.job(withService)
	w.until("serving", is(w.serving))
	w.image("v2")
	w.until("handed over", is(func() bool { return w.holderRuns("v2")() && w.serving() }))
	w.edit(func(job *v1alpha1.SingletonJob) { job.Spec.Suspend = true })
	w.until("suspended", is(func() bool { return len(w.pods()) == 0 }))
	for _, kind := range []string{"*v1alpha1.SingletonJob", "*v1.Lease", "*v1.Pod", "*v1.Role", "pods by label"} {
		if compared[kind] == 0 {
			t.Errorf("nothing of %s was remembered: %v", kind, compared)
		}
	}
}

// remembersAs fails unless each object in the memo equals the API server's, and counts them by kind.
func (w *world) remembersAs(api client.Reader) map[string]int {
	w.t.Helper()
	compared := map[string]int{}
	for kind, known := range w.memo.kinds {
		for what, a := range known {
			at, ok := strings.CutPrefix(what, kind+" 1 ")
			if !ok {
				continue
			}
			namespace, name, _ := strings.Cut(at, "/")
			is := reflect.New(reflect.TypeOf(a.object).Elem()).Interface().(client.Object)
			err := api.Get(w.t.Context(), client.ObjectKey{Namespace: namespace, Name: name}, is)
			if fmt.Sprint(err) != fmt.Sprint(a.err) {
				w.t.Fatalf("%s: remembered with %v, read with %v", what, a.err, err)
			}
			if diff := cmp.Diff(a.object, runtime.Object(is)); err == nil && diff != "" {
				w.t.Fatalf("%s (-remembered +read):\n%s", what, diff)
			}
			compared[kind]++
		}
	}
	active := []client.ListOption{client.InNamespace(w.key.Namespace), client.MatchingLabels{contract.RoleLabel: contract.RoleActive}}
	var remembered, read corev1.PodList
	w.must(w.api.List(w.t.Context(), &remembered, active...))
	w.must(api.List(w.t.Context(), &read, active...))
	if diff := cmp.Diff(remembered.Items, read.Items, cmpopts.EquateEmpty()); diff != "" {
		w.t.Fatalf("pods by label (-remembered +read):\n%s", diff)
	}
	compared["pods by label"] += len(read.Items)
	return compared
}
