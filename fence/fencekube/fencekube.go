// Package fencekube is the fence for objects of Kubernetes: what a past tenure still writes is refused by the API server.
//
// The check is an admission policy of the chart. It compares the token in an annotation of each write to an object that is labelled
// singletonjob.io/fenced-by with the one of the object that it would replace. This package has every client stamp its writes:
//
//	config, err := fencekube.Fence{Job: "billing", Token: token}.Config(config)
//	…
//	c, err := client.New(config, client.Options{})   // controller-runtime; or kubernetes.NewForConfig, dynamic.NewForConfig, …
//	err = c.Update(ctx, ledger)                       // errors.Is(err, fence.ErrStale): stop
//
// Everything that is written through it is fenced: it puts label and token on what it creates, updates, patches and applies. Use another client for
// what is not the job's alone, such as events.
//
// # What it guarantees
//
// Once an object was written with a token, no write through this package with a lower one is stored. A write to a status or another subresource, a JSON patch and a deletion
// can't carry a token of their own: they take two requests, of which the first writes the token to the object; the second holds only for the object as
// the first has left it.
//
// # What it can't
//
// The API server can't tell what a patch left out: a write that leaves the annotation as it is passes. So all that the job's process writes goes
// through this package, or carries the token in the same request. A deleted object has no mark, and a past tenure may create it again.
package fencekube

import (
	"errors"
	"fmt"
	"net/http"

	"k8s.io/apimachinery/pkg/util/validation"
	"k8s.io/client-go/rest"

	"github.com/singletonjob/operator/fence"
)

// What is written to a fenced object. Delete is its deletion's token.
const (
	Label            = "singletonjob.io/fenced-by"
	TokenAnnotation  = "singletonjob.io/fencing-token"
	DeleteAnnotation = "singletonjob.io/fencing-delete"
)

// Fence stamps what the process of a job writes.
type Fence struct {
	Job   string // the SingletonJob's name
	Token fence.Token
}

// Config is a copy of a client's configuration that has it stamp its writes, and return a [*fence.StaleError] for those that are refused.
// Its bodies are JSON.
func (f Fence) Config(config *rest.Config) (*rest.Config, error) {
	if _, err := (fence.Gate{}).Accept(0, f.Token); err != nil {
		return nil, err
	}
	if problems := validation.IsValidLabelValue(f.Job); f.Job == "" || len(problems) > 0 {
		return nil, fmt.Errorf("fencekube: Job %q is not the name of a SingletonJob", f.Job)
	}
	if config == nil {
		return nil, errors.New("fencekube: no configuration of a client")
	}
	stamped := rest.CopyConfig(config)
	stamped.ContentType, stamped.AcceptContentTypes = applicationJSON, applicationJSON
	stamped.Wrap(func(next http.RoundTripper) http.RoundTripper { return &transport{fence: f, next: next} })
	return stamped, nil
}
