package fencekube

import (
	"bytes"
	"encoding/json"
	"fmt"
	"io"
	"net/http"
	"net/url"
	"regexp"
	"slices"
	"strings"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"sigs.k8s.io/yaml"

	"github.com/singletonjob/operator/fence"
)

// transport puts label and token on requests that write.
type transport struct {
	fence Fence
	next  http.RoundTripper
}

const (
	applicationJSON = "application/json"
	revisionField   = "resourceVersion"
)

// tries is how often a write is tried while other writes come first.
const tries = 20

// maxBody is more than the largest request that the API server accepts, and than its largest refusal.
const maxBody = 16 << 20

func (t *transport) RoundTrip(req *http.Request) (*http.Response, error) {
	at := parse(req.URL.Path)
	if at.resource == "" || at.unfenced() {
		return t.next.RoundTrip(req)
	}
	switch req.Method {
	case http.MethodPost, http.MethodPut, http.MethodPatch, http.MethodDelete:
	default:
		return t.next.RoundTrip(req)
	}
	body, err := read(req)
	if err != nil {
		return nil, err
	}
	resp, err := t.write(req, at, body)
	if err != nil {
		return nil, err
	}
	return refusal(resp)
}

func (t *transport) write(req *http.Request, at target, body []byte) (*http.Response, error) {
	kind, _, _ := strings.Cut(req.Header.Get("Content-Type"), ";")
	switch {
	case req.Method == http.MethodDelete && at.name == "":
		return nil, fmt.Errorf("fencekube: a collection of %s can't be deleted with a fencing token: delete one by one", at.resource)
	case req.Method == http.MethodPost && at.subresource != "":
		return nil, fmt.Errorf("fencekube: %s/%s can't be created with a fencing token", at.resource, at.subresource)
	case req.Method == http.MethodDelete:
		options, err := deletion(req, body)
		if err != nil {
			return nil, err
		}
		req = req.Clone(req.Context())
		req.Header.Set("Content-Type", applicationJSON)
		return t.twice(req, at, applicationJSON, options)
	case at.subresource != "" || kind == string(types.JSONPatchType):
		return t.twice(req, at, kind, body)
	}
	stamped, err := edit(kind, body, func(object map[string]any) { t.stamp(object, false) })
	if err != nil {
		return nil, err
	}
	return t.send(req, stamped)
}

// deletion returns the body of a deletion. If the body is empty, it is built from the options in the query.
func deletion(req *http.Request, body []byte) ([]byte, error) {
	if len(body) > 0 {
		return body, nil
	}
	var options metav1.DeleteOptions
	query := req.URL.Query()
	if err := metav1.Convert_url_Values_To_v1_DeleteOptions(&query, &options, nil); err != nil {
		return nil, fmt.Errorf("fencekube: the query of a deletion: %w", err)
	}
	return json.Marshal(options)
}

// condition is the field of a body that names the object and revision for which the request is valid.
func condition(method string) string {
	if method == http.MethodDelete {
		return "preconditions"
	}
	return "metadata"
}

// twice first writes the token to the object, and then sends the request, valid only for the revision that the first write has created.
func (t *transport) twice(req *http.Request, at target, kind string, body []byte) (*http.Response, error) {
	seen := map[string]any{} // the fields of the object as the caller knows it
	if kind != string(types.JSONPatchType) {
		if _, err := edit(kind, body, func(object map[string]any) { seen = child(object, condition(req.Method)) }); err != nil {
			return nil, err
		}
	}
	revised, _ := seen[revisionField].(string)
	for try := 1; ; try++ {
		resp, revision, err := t.mark(req, at, seen)
		if err != nil {
			return nil, err
		}
		if resp != nil {
			return t.unmarked(req, body, resp)
		}
		bound, err := bind(req.Method, kind, body, revision)
		if err != nil {
			return nil, err
		}
		resp, err = t.send(req, bound)
		if err != nil || resp.StatusCode != http.StatusConflict || revised != "" || try == tries {
			return resp, err
		}
		_ = resp.Body.Close() // there was another write in between: if it was that of a later tenure, the next mark is refused
	}
}

// unmarked returns the response to a request whose object could not be marked. If the object with the UID of a deletion no longer exists,
// it is the API server's usual response to such a deletion, because callers expect that.
func (t *transport) unmarked(req *http.Request, body []byte, resp *http.Response) (*http.Response, error) {
	if req.Method != http.MethodDelete || resp.StatusCode != http.StatusUnprocessableEntity {
		return resp, nil
	}
	text, err := io.ReadAll(io.LimitReader(resp.Body, maxBody))
	_ = resp.Body.Close()
	if err != nil {
		return nil, err
	}
	var status metav1.Status
	if json.Unmarshal(text, &status) == nil && status.Details != nil &&
		slices.ContainsFunc(status.Details.Causes, func(c metav1.StatusCause) bool { return c.Field == "metadata.uid" }) {
		return t.send(req, body)
	}
	resp.Body = io.NopCloser(bytes.NewReader(text))
	return resp, nil
}

// bind makes a write valid for one revision of its object only.
func bind(method, kind string, body []byte, revision string) ([]byte, error) {
	if kind != string(types.JSONPatchType) {
		return edit(kind, body, func(object map[string]any) { child(object, condition(method))[revisionField] = revision })
	}
	var steps []any
	if err := json.Unmarshal(body, &steps); err != nil {
		return nil, fmt.Errorf("fencekube: the JSON patch: %w", err)
	}
	return json.Marshal(append([]any{map[string]any{"op": "add", "path": "/metadata/" + revisionField, "value": revision}}, steps...))
}

// mark writes the token to the object that the caller has seen, and returns its new revision. If that is refused, it returns the response.
func (t *transport) mark(req *http.Request, at target, seen map[string]any) (*http.Response, string, error) {
	object := map[string]any{}
	t.stamp(object, req.Method == http.MethodDelete)
	for _, field := range []string{revisionField, "uid"} {
		if value, _ := seen[field].(string); value != "" && (field == revisionField || req.Method == http.MethodDelete) {
			child(object, "metadata")[field] = value
		}
	}
	body, err := json.Marshal(object)
	if err != nil {
		return nil, "", err
	}
	patch := req.Clone(req.Context())
	patch.Method = http.MethodPatch
	query := url.Values{}
	for _, name := range []string{"fieldManager", "dryRun"} {
		if value := req.URL.Query().Get(name); value != "" {
			query.Set(name, value)
		}
	}
	patch.URL.Path, patch.URL.RawPath, patch.URL.RawQuery = at.object, "", query.Encode()
	patch.Header.Set("Content-Type", string(types.MergePatchType))
	patch.Header.Set("Accept", "application/json")
	resp, err := t.send(patch, body)
	if err != nil || resp.StatusCode != http.StatusOK {
		return resp, "", err
	}
	defer func() { _ = resp.Body.Close() }()
	var stored metav1.PartialObjectMetadata
	if err := json.NewDecoder(resp.Body).Decode(&stored); err != nil {
		return nil, "", fmt.Errorf("fencekube: the answer to %s %s: %w", patch.Method, at.object, err)
	}
	return nil, stored.ResourceVersion, nil
}

func (t *transport) stamp(object map[string]any, deletes bool) {
	metadata := child(object, "metadata")
	child(metadata, "labels")[Label] = t.fence.Job
	annotations := child(metadata, "annotations")
	annotations[TokenAnnotation] = t.fence.Token.String()
	if deletes {
		annotations[DeleteAnnotation] = t.fence.Token.String()
	}
}

func (t *transport) send(req *http.Request, body []byte) (*http.Response, error) {
	sent := req.Clone(req.Context())
	sent.Body, sent.GetBody, sent.ContentLength = http.NoBody, nil, int64(len(body))
	if len(body) > 0 {
		sent.Body = io.NopCloser(bytes.NewReader(body))
		sent.GetBody = func() (io.ReadCloser, error) { return io.NopCloser(bytes.NewReader(body)), nil }
	}
	return t.next.RoundTrip(sent)
}

// child returns a map within another, and creates it if the value is not a map.
func child(of map[string]any, name string) map[string]any {
	m, ok := of[name].(map[string]any)
	if !ok {
		m = map[string]any{}
		of[name] = m
	}
	return m
}

// edit changes a body that is a JSON object.
func edit(kind string, body []byte, change func(map[string]any)) ([]byte, error) {
	switch types.PatchType(kind) {
	case types.ApplyYAMLPatchType:
		var err error
		if body, err = yaml.YAMLToJSON(body); err != nil {
			return nil, fmt.Errorf("fencekube: the body: %w", err)
		}
	case "", applicationJSON, types.MergePatchType, types.StrategicMergePatchType:
	default:
		return nil, fmt.Errorf("fencekube: can't add the token to a body of type %s: configure the client to send JSON", kind)
	}
	var object map[string]any
	numbers := json.NewDecoder(bytes.NewReader(body))
	numbers.UseNumber()
	if err := numbers.Decode(&object); err != nil || object == nil {
		return nil, fmt.Errorf("fencekube: the body is not a JSON object: %w", err)
	}
	change(object)
	return json.Marshal(object)
}

func read(req *http.Request) ([]byte, error) {
	if req.Body == nil {
		return nil, nil
	}
	defer func() { _ = req.Body.Close() }()
	return io.ReadAll(io.LimitReader(req.Body, maxBody))
}

var stale = regexp.MustCompile(`fencing token is stale: (\S+) has seen token ([0-9]+), the write carries ([0-9]+)`)

// refusal returns the response, or the error if the fence refused the write.
func refusal(resp *http.Response) (*http.Response, error) {
	if resp.StatusCode != http.StatusForbidden {
		return resp, nil
	}
	text, err := io.ReadAll(io.LimitReader(resp.Body, maxBody))
	_ = resp.Body.Close()
	if err != nil {
		return nil, err
	}
	resp.Body = io.NopCloser(bytes.NewReader(text))
	found := stale.FindSubmatch(text)
	if found == nil {
		return resp, nil
	}
	highest, unlike := fence.ParseToken(string(found[2]))
	presented, unlike2 := fence.ParseToken(string(found[3]))
	if unlike == nil && unlike2 == nil {
		return nil, &fence.StaleError{Resource: fence.Resource(found[1]), Presented: presented, Highest: highest}
	}
	return resp, nil
}

// target is the object that a path names.
type target struct {
	group, resource, name, subresource string
	object                             string // the path without the subresource
}

// unfenced reports whether a request is a review, which the API server answers and does not store.
func (t target) unfenced() bool {
	return t.group == "authentication.k8s.io" || t.group == "authorization.k8s.io"
}

// parse reads a path as the API server does: …/api/v1/… or …/apis/group/version/…, a namespace, a resource, a name, a subresource.
func parse(path string) target {
	const group, version = 1, 2
	parts := strings.Split(strings.Trim(path, "/"), "/")
	var t target
	first := 0
	for i, part := range parts { // a proxy can put its own path in front
		if part == "api" && len(parts) > i+group {
			first = i + version
			break
		}
		if part == "apis" && len(parts) > i+version {
			t.group, first = parts[i+group], i+version+1
			break
		}
	}
	if first == 0 || first >= len(parts) {
		return target{}
	}
	rest := parts[first:]
	if rest[0] == "namespaces" && len(rest) > version && rest[version] != "status" && rest[version] != "finalize" {
		rest = rest[version:]
	}
	t.resource = rest[0]
	if len(rest) > 1 {
		t.name = rest[1]
	}
	if len(rest) > version {
		t.subresource = strings.Join(rest[version:], "/")
	}
	prefix := len(parts)
	if t.subresource != "" {
		prefix -= len(rest) - version
	}
	t.object = "/" + strings.Join(parts[:prefix], "/")
	return t
}
