package controller

import (
	"context"
	"fmt"
	"reflect"
	"strings"
	"sync"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/client/interceptor"
)

// memo spares the API server reads whose answers are known: its clients alone write what they read, and no controller runs. Any write
// drops all that was read of that kind, by each of them, with what is being read: look-ups read beside the goroutine that writes.
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

// of is a client that asks api what the memo does not know. What another client was answered it does not know: that one may have other rights.
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
			return m.read(list, fmt.Sprint(who, o.Namespace, o.LabelSelector, o.FieldSelector), func() error { return c.List(ctx, list, opts...) })
		},
		Create: func(ctx context.Context, c client.WithWatch, obj client.Object, opts ...client.CreateOption) error {
			defer m.drop(obj)
			return c.Create(ctx, obj, opts...)
		},
		Update: func(ctx context.Context, c client.WithWatch, obj client.Object, opts ...client.UpdateOption) error {
			defer m.drop(obj)
			return c.Update(ctx, obj, opts...)
		},
		Delete: func(ctx context.Context, c client.WithWatch, obj client.Object, opts ...client.DeleteOption) error {
			defer m.drop(obj)
			return c.Delete(ctx, obj, opts...)
		},
		Patch: func(ctx context.Context, c client.WithWatch, obj client.Object, patch client.Patch, opts ...client.PatchOption) error {
			defer m.drop(obj)
			return c.Patch(ctx, obj, patch, opts...)
		},
		SubResourceCreate: func(ctx context.Context, c client.Client, sub string, obj, body client.Object, opts ...client.SubResourceCreateOption) error {
			defer m.drop(obj)
			return c.SubResource(sub).Create(ctx, obj, body, opts...)
		},
		SubResourceUpdate: func(ctx context.Context, c client.Client, sub string, obj client.Object, opts ...client.SubResourceUpdateOption) error {
			defer m.drop(obj)
			return c.SubResource(sub).Update(ctx, obj, opts...)
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

// recall is the answer, and where one belongs that is asked for now.
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
