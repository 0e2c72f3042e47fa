// Package fencekube is the fence for Kubernetes objects: the API server refuses writes of a past tenure.
//
// The check is an admission policy of the chart. For each write to an object with the label singletonjob.io/fenced-by, it compares the token
// annotation of the new object with that of the stored object. This package makes every client put the token on its writes:
//
//	config, err := fencekube.Fence{Job: "billing", Token: token}.Config(config)
//	…
//	c, err := client.New(config, client.Options{})   // controller-runtime; or kubernetes.NewForConfig, dynamic.NewForConfig, …
//	err = c.Update(ctx, ledger)                       // errors.Is(err, fence.ErrStale): stop
//
// All writes through such a client are fenced: it puts label and token on the objects that it creates, updates, patches and applies. Use
// another client for objects that others write too, such as events.
//
// # What it guarantees
//
// Once an object was written with a token, no write through this package with a lower token is stored. A write to a status or another
// subresource, a JSON patch and a deletion can't carry a token. They take two requests: the first writes the token to the object, and the
// second is valid only for the revision that the first has created.
//
// # What it does not guarantee
//
// The API server can't see what a patch left out: a write that does not change the annotation passes. The job's process must therefore write
// through this package only, or send the token in the same request. A deleted object has no mark, so a past tenure can create it again.
package fencekube

import (
	"errors"
	"fmt"
	"net/http"

	"k8s.io/apimachinery/pkg/util/validation"
	"k8s.io/client-go/rest"

	"github.com/singletonjob/operator/fence"
)

// The label and annotations of a fenced object. DeleteAnnotation has the token of the tenure that deletes it.
const (
	Label            = "singletonjob.io/fenced-by"
	TokenAnnotation  = "singletonjob.io/fencing-token"
	DeleteAnnotation = "singletonjob.io/fencing-delete"
)

// Fence puts label and token on the writes of a job's process.
type Fence struct {
	Job   string // the SingletonJob's name
	Token fence.Token
}

// Config returns a copy of a client's configuration. A client with it puts label and token on its writes, and returns a [*fence.StaleError]
// for refused writes. It sends JSON.
func (f Fence) Config(config *rest.Config) (*rest.Config, error) {
	if _, err := (fence.Gate{}).Accept(0, f.Token); err != nil {
		return nil, err
	}
	if problems := validation.IsValidLabelValue(f.Job); f.Job == "" || len(problems) > 0 {
		return nil, fmt.Errorf("fencekube: Job %q is not the name of a SingletonJob", f.Job)
	}
	if config == nil {
		return nil, errors.New("fencekube: config is nil: pass the client's configuration")
	}
	stamped := rest.CopyConfig(config)
	stamped.ContentType, stamped.AcceptContentTypes = applicationJSON, applicationJSON
	stamped.Wrap(func(next http.RoundTripper) http.RoundTripper { return &transport{fence: f, next: next} })
	return stamped, nil
}
