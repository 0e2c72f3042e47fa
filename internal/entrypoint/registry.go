package entrypoint

import (
	"bytes"
	"context"
	"crypto/x509"
	"encoding/json"
	"errors"
	"fmt"
	"net/http"
	"slices"
	"strings"
	"sync"

	"github.com/google/go-containerregistry/pkg/authn"
	"github.com/google/go-containerregistry/pkg/name"
	v1 "github.com/google/go-containerregistry/pkg/v1"
	"github.com/google/go-containerregistry/pkg/v1/remote"

	"github.com/singletonjob/operator/api/v1alpha1"
	"github.com/singletonjob/operator/internal/contract"
)

const (
	// maxImages is the maximum number of images of one index that are examined.
	maxImages = 16
	// maxLength bounds an entrypoint with all its arguments. It is stored in the job's status and in each Pod.
	maxLength = 32 << 10
	// maxKept is the maximum number of cached configurations.
	maxKept = 512
)

// Options are the settings of the operator.
type Options struct {
	// Insecure are hosts, with their ports if any, that may be asked over plain HTTP and at any address.
	Insecure []string
	// Roots are CA certificates in PEM, in addition to those of the system.
	Roots []byte
}

// Registry asks registries. It is safe for concurrent use.
type Registry struct {
	transport http.RoundTripper
	insecure  map[string]bool

	mu sync.Mutex
	// kept caches configurations by digest. The registry is still asked for the image each time, so that no user learns about an
	// image that the user may not pull.
	kept map[v1.Hash]process
}

// process is the part of an image's configuration that says what it runs and how to stop it.
type process struct {
	Entrypoint, Cmd []string
	StopSignal      string
}

// equal reports whether both run the same. It ignores the stop signal, which the runtime knows.
func (p process) equal(q process) bool {
	return slices.Equal(p.Entrypoint, q.Entrypoint) && slices.Equal(p.Cmd, q.Cmd)
}

// NewRegistry returns an error if its options are invalid.
func NewRegistry(o Options) (*Registry, error) {
	insecure := map[string]bool{}
	for _, host := range o.Insecure {
		if _, err := name.NewRegistry(host, name.StrictValidation); err != nil || strings.Contains(host, "/") {
			return nil, fmt.Errorf("%q is not a registry: expected a host or host:port", host)
		}
		insecure[host] = true
	}
	roots, err := x509.SystemCertPool()
	if err != nil {
		return nil, fmt.Errorf("read the system's certificates: %w", err)
	}
	if len(o.Roots) > 0 && !roots.AppendCertsFromPEM(o.Roots) {
		return nil, errors.New("found no certificate in PEM")
	}
	return &Registry{transport: newTransport(insecure, roots), insecure: insecure, kept: map[v1.Hash]process{}}, nil
}

// Find asks what an image runs. It tries the matching credentials one after the other while the registry refuses them. The error is
// for users: it quotes nothing that the registry wrote, and is the same for the same cause.
func (r *Registry) Find(ctx context.Context, want Want, credentials Credentials) (*v1alpha1.Entrypoint, error) {
	ref, err := r.parse(want.Image)
	if err != nil {
		return nil, err
	}
	for _, auth := range credentials.matching(ref.Context()) {
		var found *v1alpha1.Entrypoint
		found, err = r.look(ctx, ref, auth, want)
		if err == nil {
			return found, nil
		}
		if !refused(err) {
			break
		}
	}
	host := ref.Context().RegistryStr()
	return nil, explain(ctx, err, host, credentials.Note, r.insecure[host])
}

func (r *Registry) parse(image string) (name.Reference, error) {
	if image == "" {
		return nil, errors.New("the container sets no image")
	}
	ref, err := name.ParseReference(image)
	if err != nil {
		return nil, errors.New("the image name is invalid")
	}
	if r.insecure[ref.Context().RegistryStr()] {
		return name.ParseReference(image, name.Insecure)
	}
	return ref, nil
}

func (r *Registry) look(ctx context.Context, ref name.Reference, auth authn.Authenticator, want Want) (*v1alpha1.Entrypoint, error) {
	puller, err := remote.NewPuller(remote.WithTransport(r.transport), remote.WithAuth(auth), remote.WithUserAgent("singletonjob-operator"),
		remote.WithRetryBackoff(remote.Backoff{Steps: 1})) // Lookups retries later, and others wait
	if err != nil {
		return nil, err
	}
	d, err := puller.Get(ctx, ref)
	if err != nil {
		return nil, err
	}
	images := []*remote.Descriptor{d}
	if d.MediaType.IsIndex() {
		if images, err = chosen(ctx, puller, ref, d, want.Architectures); err != nil {
			return nil, err
		}
	}
	var one process
	for i, image := range images {
		p, err := r.process(image)
		if err != nil {
			return nil, err
		}
		if i > 0 && !p.equal(one) {
			return nil, FindError{v1alpha1.ReasonEntrypointsDiffer, "it does not run the same command on all architectures of the nodes" + listed(want.Architectures)}
		}
		if i > 0 && p.StopSignal != one.StopSignal {
			p.StopSignal = ""
		}
		one = p
	}
	return one.entrypoint(want, d.Digest)
}

// chosen returns the images of an index that the nodes could run: those for Linux on one of the architectures.
func chosen(ctx context.Context, puller *remote.Puller, ref name.Reference, index *remote.Descriptor, architectures []string) ([]*remote.Descriptor, error) {
	manifest, err := v1.ParseIndexManifest(bytes.NewReader(index.Manifest))
	if err != nil {
		return nil, err
	}
	var digests []v1.Hash
	for _, m := range manifest.Manifests {
		fit := m.MediaType.IsImage() && m.Platform != nil && m.Platform.OS == "linux" &&
			(len(architectures) == 0 || slices.Contains(architectures, m.Platform.Architecture))
		if fit && !slices.Contains(digests, m.Digest) {
			digests = append(digests, m.Digest)
		}
	}
	if len(digests) == 0 {
		return nil, FindError{v1alpha1.ReasonImageNotFound, "it has no image for Linux on the architectures of the nodes" + listed(architectures)}
	}
	if len(digests) > maxImages {
		return nil, FindError{v1alpha1.ReasonEntrypointUnknown, fmt.Sprintf("it has more than %d images for the nodes' architectures", maxImages)}
	}
	var images []*remote.Descriptor
	for _, digest := range digests {
		image, err := puller.Get(ctx, ref.Context().Digest(digest.String()))
		if err != nil {
			return nil, err
		}
		images = append(images, image)
	}
	return images, nil
}

func listed(architectures []string) string {
	if len(architectures) == 0 {
		return ""
	}
	return " (" + strings.Join(architectures, ", ") + ")"
}

// errNoImage: the registry's object of that name has no image configuration.
var errNoImage = FindError{v1alpha1.ReasonImageNotFound, "the registry's object of that name is not a container image"}

func (r *Registry) process(d *remote.Descriptor) (process, error) {
	if !d.MediaType.IsImage() {
		return process{}, errNoImage
	}
	image, err := d.Image()
	if err != nil {
		return process{}, err
	}
	manifest, err := image.Manifest()
	if err != nil || manifest == nil {
		return process{}, errNoImage
	}
	if p, known := r.remembered(manifest.Config.Digest); known {
		return p, nil
	}
	if manifest.Config.Size > maxAnswer {
		return process{}, errLong
	}
	raw, err := image.RawConfigFile()
	if err != nil {
		return process{}, err
	}
	var config struct {
		Config process `json:"config"`
	}
	if json.Unmarshal(raw, &config) != nil {
		return process{}, errNoImage
	}
	r.remember(manifest.Config.Digest, config.Config)
	return config.Config, nil
}

func (r *Registry) remembered(digest v1.Hash) (process, bool) {
	r.mu.Lock()
	defer r.mu.Unlock()
	p, known := r.kept[digest]
	return p, known
}

func (r *Registry) remember(digest v1.Hash, p process) {
	if p.length() > maxLength {
		return
	}
	r.mu.Lock()
	defer r.mu.Unlock()
	if len(r.kept) >= maxKept {
		clear(r.kept)
	}
	r.kept[digest] = p
}

// entrypoint interprets a configuration as a container runtime does: an ENTRYPOINT of one empty string counts as none.
func (p process) entrypoint(want Want, digest v1.Hash) (*v1alpha1.Entrypoint, error) {
	if len(p.Entrypoint) == 1 && p.Entrypoint[0] == "" {
		p.Entrypoint = nil
	}
	if len(p.Entrypoint) == 0 && len(p.Cmd) == 0 && !want.Args {
		return nil, FindError{v1alpha1.ReasonNoEntrypoint, "it has neither ENTRYPOINT nor CMD, so it runs nothing by itself"}
	}
	if p.length() > maxLength {
		return nil, FindError{v1alpha1.ReasonEntrypointUnknown, fmt.Sprintf("its ENTRYPOINT and CMD have more than %d bytes", maxLength)}
	}
	return &v1alpha1.Entrypoint{
		TemplateHash: want.TemplateHash, Image: want.Image, Digest: digest.String(), Command: p.Entrypoint, Args: p.Cmd,
		StopSignal: contract.StopSignal(p.StopSignal),
	}, nil
}

func (p process) length() int {
	n := len(p.StopSignal)
	for _, args := range [][]string{p.Entrypoint, p.Cmd} {
		for _, arg := range args {
			n += len(arg) + 1
		}
	}
	return n
}
