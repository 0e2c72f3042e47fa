package controller

import (
	"context"

	ctrl "sigs.k8s.io/controller-runtime"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/singletonjob/operator/internal/plan"
)

// logged is a client that writes one log line for each successful write: the object, the action and the reason. Reads are not
// logged.
type logged struct{ client.Client }

// reasonsKey is the context key of the plan's reasons.
type reasonsKey struct{}

func withReasons(ctx context.Context, r plan.Reasons) context.Context {
	return context.WithValue(ctx, reasonsKey{}, r)
}

func (l logged) log(ctx context.Context, done string, o client.Object, dryRun bool, err error) error {
	if err != nil || dryRun {
		return err
	}
	kind := "?"
	if gvk, err := l.GroupVersionKindFor(o); err == nil {
		kind = gvk.Kind
	}
	reasons, _ := ctx.Value(reasonsKey{}).(plan.Reasons)
	ctrl.LoggerFrom(ctx).Info(done, "kind", kind, "object", client.ObjectKeyFromObject(o).String(), "why", reasons.Of(kind, o.GetName()))
	return nil
}

func (l logged) Create(ctx context.Context, o client.Object, opts ...client.CreateOption) error {
	dry := len((&client.CreateOptions{}).ApplyOptions(opts).DryRun) > 0
	return l.log(ctx, "created", o, dry, l.Client.Create(ctx, o, opts...))
}

func (l logged) Update(ctx context.Context, o client.Object, opts ...client.UpdateOption) error {
	return l.log(ctx, "updated", o, false, l.Client.Update(ctx, o, opts...))
}

func (l logged) Patch(ctx context.Context, o client.Object, patch client.Patch, opts ...client.PatchOption) error {
	return l.log(ctx, "patched", o, false, l.Client.Patch(ctx, o, patch, opts...))
}

func (l logged) Delete(ctx context.Context, o client.Object, opts ...client.DeleteOption) error {
	return l.log(ctx, "deleted", o, false, l.Client.Delete(ctx, o, opts...))
}

func (l logged) Status() client.SubResourceWriter { return loggedStatus{l.Client.Status(), l} }

type loggedStatus struct {
	client.SubResourceWriter
	logged
}

func (s loggedStatus) Create(ctx context.Context, o, sub client.Object, opts ...client.SubResourceCreateOption) error {
	return s.SubResourceWriter.Create(ctx, o, sub, opts...)
}

func (s loggedStatus) Patch(ctx context.Context, o client.Object, patch client.Patch, opts ...client.SubResourcePatchOption) error {
	return s.SubResourceWriter.Patch(ctx, o, patch, opts...)
}

func (s loggedStatus) Update(ctx context.Context, o client.Object, opts ...client.SubResourceUpdateOption) error {
	return s.log(ctx, "status updated", o, false, s.SubResourceWriter.Update(ctx, o, opts...))
}
