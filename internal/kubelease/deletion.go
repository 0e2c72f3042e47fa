package kubelease

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"math"
	"net/http"
	"net/url"
	"strings"
	"time"
)

// Deletion is what the API server knows about the deletion of a Pod. The zero value means that nobody has deleted the Pod.
type Deletion struct {
	// Gone means that the Pod does not exist, or that another one has its name.
	Gone bool
	// Requested means that the Pod is being deleted. GracePeriod is the grace period in force, at least 0.
	Requested   bool
	GracePeriod time.Duration
}

// Deletion asks whether a Pod of the Lease's namespace is being deleted. It reads only the Pod's metadata, from etcd and not from a cache. It
// has connections of its own, so that it delays no request for the Lease. The account needs the right to get the Pod. With an error, nothing
// is known.
func (c *Client) Deletion(ctx context.Context, pod, uid string) (Deletion, error) {
	fail := func(err error) (Deletion, error) {
		return Deletion{}, fmt.Errorf("read the metadata of Pod %s/%s: %w", c.config.Namespace, pod, err)
	}
	address := fmt.Sprintf("%s/api/v1/namespaces/%s/pods/%s",
		strings.TrimSuffix(c.config.Server, "/"), url.PathEscape(c.config.Namespace), url.PathEscape(pod))
	request, err := http.NewRequestWithContext(ctx, http.MethodGet, address, nil)
	if err != nil {
		return fail(err)
	}
	request.Header.Set("Accept", "application/json;as=PartialObjectMetadata;g=meta.k8s.io;v=v1")
	reply, err := c.pods.exchange(request)
	if err != nil {
		return fail(err)
	}
	if reply.code == http.StatusNotFound && c.podAbsent(reply.body, pod) {
		return Deletion{Gone: true}, nil
	}
	if reply.code != http.StatusOK {
		return fail(reply.failure())
	}
	deletion, err := decodeDeletion(reply.body, pod, uid)
	if err != nil {
		c.pods.leave()
		return fail(err)
	}
	return deletion, nil
}

// podAbsent reports whether a 404 is the API server's statement that the Pod or its namespace does not exist.
func (c *Client) podAbsent(body []byte, pod string) bool {
	s := parseStatus(body)
	is := func(kind, name string) bool {
		return s.Details.Group == "" && s.Details.Kind == kind && s.Details.Name == name
	}
	return s.Reason == "NotFound" && (is("pods", pod) || is("namespaces", c.config.Namespace))
}

func decodeDeletion(body []byte, pod, uid string) (Deletion, error) {
	var o struct {
		Metadata struct {
			Name      string  `json:"name"`
			UID       string  `json:"uid"`
			DeletedAt *string `json:"deletionTimestamp"`
			Seconds   *int64  `json:"deletionGracePeriodSeconds"`
		} `json:"metadata"`
	}
	if err := json.Unmarshal(body, &o); err != nil {
		return Deletion{}, err
	}
	switch m := o.Metadata; {
	case m.Name != pod || m.UID == "":
		return Deletion{}, fmt.Errorf("the answer is about %q with UID %q", m.Name, m.UID)
	case m.UID != uid:
		return Deletion{Gone: true}, nil
	case m.DeletedAt == nil:
		return Deletion{}, nil
	case m.Seconds == nil:
		return Deletion{}, errors.New("it has a deletionTimestamp and no deletionGracePeriodSeconds")
	default:
		const most = math.MaxInt64 / int64(time.Second)
		return Deletion{Requested: true, GracePeriod: time.Duration(min(max(0, *m.Seconds), most)) * time.Second}, nil
	}
}
