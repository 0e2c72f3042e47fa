package main

import (
	"context"
	"errors"
	"strings"
	"testing"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/api/meta"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"sigs.k8s.io/controller-runtime/pkg/client"
)

// told is the API server's answer in each namespace.
type told map[string]error

func (told) Get(context.Context, client.ObjectKey, client.Object, ...client.GetOption) error {
	return nil
}

func (a told) List(_ context.Context, _ client.ObjectList, options ...client.ListOption) error {
	return a[(&client.ListOptions{}).ApplyOptions(options).Namespace]
}

// TestReadiness: a sequence of the API server's answers, and the result of a probe after each.
func TestReadiness(t *testing.T) {
	jobs := schema.GroupResource{Group: "singletonjob.io", Resource: "singletonjobs"}
	gone, down := apierrors.NewNotFound(jobs, ""), apierrors.NewServiceUnavailable("down")
	r := &readiness{namespaces: []string{"a", "b"}, why: errors.New("never asked")}
	for _, step := range []struct {
		what   string
		told   told
		caches error
		says   string // nothing if it is ready
	}{
		{what: "the API server is down at first", told: told{"a": down}, says: "never asked"},
		{what: "no definition", told: told{"a": &meta.NoKindMatchError{}}, says: "install their CustomResourceDefinition"},
		{what: "no right in one", told: told{"b": apierrors.NewForbidden(jobs, "", nil)}, says: `lacks rights in namespace "b"`},
		{what: "caches are being filled", caches: errors.New("not filled yet"), says: "not filled yet"},
		{what: "all is well"},
		{what: "the API server is down", told: told{"b": down}},
		{what: "and hangs", told: told{"a": context.DeadlineExceeded}},
		{what: "the definition is removed", told: told{"a": gone, "b": gone}, says: "install their CustomResourceDefinition"},
		{what: "the API server is down then", told: told{"a": down}, says: "install their CustomResourceDefinition"},
		{what: "the definition is back"},
	} {
		r.live, r.synced = step.told, func(context.Context) error { return step.caches }
		r.look(t.Context())
		if err := r.Check(nil); (err != nil) != (step.says != "") || err != nil && !strings.Contains(err.Error(), step.says) {
			t.Errorf("%s: %v, want %q", step.what, err, step.says)
		}
	}
	everywhere := &readiness{live: told{"": gone}}
	if everywhere.look(t.Context()); everywhere.Check(nil) == nil {
		t.Error("an operator for all namespaces is ready without the definition")
	}
}
