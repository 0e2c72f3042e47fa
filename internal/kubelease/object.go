package kubelease

import (
	"bytes"
	"encoding/json"
	"fmt"
	"maps"

	"github.com/singletonjob/operator/internal/contract"
	"github.com/singletonjob/operator/internal/lease"
)

// Object is a Lease as received from the API server. It is never changed.
type Object struct {
	Record lease.Record

	// The JSON of each field. Fields that the protocol does not use are written back unchanged, byte for byte.
	top, metadata, spec map[string]json.RawMessage
	fields              contract.Fields
}

// metadata and spec are the fields that the protocol uses.
type metadata struct {
	Name            string            `json:"name"`
	Namespace       string            `json:"namespace"`
	UID             string            `json:"uid"`
	ResourceVersion string            `json:"resourceVersion"`
	Labels          map[string]string `json:"labels"`
	Annotations     map[string]string `json:"annotations"`
	Created         string            `json:"creationTimestamp"`
}

type spec struct {
	HolderIdentity       *string `json:"holderIdentity"`
	LeaseDurationSeconds *int32  `json:"leaseDurationSeconds"`
	LeaseTransitions     *int32  `json:"leaseTransitions"`
	AcquireTime          *string `json:"acquireTime"`
	RenewTime            *string `json:"renewTime"`
}

// decode parses a Lease. A Lease that is not this operator's is an error: nothing in it is used, so it is never written.
func (c *Client) decode(body []byte) (*Object, error) {
	var typed struct {
		Kind     string   `json:"kind"`
		Metadata metadata `json:"metadata"`
		Spec     spec     `json:"spec"`
	}
	if err := json.Unmarshal(body, &typed); err != nil {
		return nil, fmt.Errorf("not a Lease: %w", err)
	}
	m, s := typed.Metadata, typed.Spec
	switch {
	case typed.Kind != "Lease":
		return nil, fmt.Errorf("kind %q is not Lease", typed.Kind)
	case m.Name != c.config.Name || m.Namespace != c.config.Namespace:
		return nil, fmt.Errorf("the answer is Lease %s/%s, which was not asked for", m.Namespace, m.Name)
	case !managed(m.Labels):
		return nil, fmt.Errorf("it belongs to somebody else, because it lacks the label %s=%s; add the label if the operator must use this Lease",
			contract.ManagedByLabel, contract.ManagedBy)
	}
	o := &Object{fields: contract.Fields{
		UID:                  m.UID,
		ResourceVersion:      m.ResourceVersion,
		Annotations:          m.Annotations,
		CreationTimestamp:    m.Created,
		HolderIdentity:       value(s.HolderIdentity),
		LeaseDurationSeconds: value(s.LeaseDurationSeconds),
		LeaseTransitions:     value(s.LeaseTransitions),
		AcquireTime:          value(s.AcquireTime),
		RenewTime:            value(s.RenewTime),
	}}
	var err error
	if o.Record, err = contract.DecodeLease(o.fields); err != nil {
		return nil, err
	}
	if err := json.Unmarshal(body, &o.top); err != nil {
		return nil, err
	}
	for name, into := range map[string]*map[string]json.RawMessage{"metadata": &o.metadata, "spec": &o.spec} {
		if raw := o.top[name]; raw != nil {
			if err := json.Unmarshal(raw, into); err != nil {
				return nil, err
			}
		}
	}
	return o, nil
}

// with returns the JSON of o with r's values.
func (o *Object) with(r lease.Record) ([]byte, error) {
	if r.UID != o.Record.UID || r.Revision != o.Record.Revision {
		return nil, fmt.Errorf("the write replaces revision %d of UID %s, but the object at hand is revision %d of UID %s",
			r.Revision, r.UID, o.Record.Revision, o.Record.UID)
	}
	f := contract.EncodeLease(r, o.fields)
	m, s, top := copied(o.metadata), copied(o.spec), copied(o.top)
	// uid and resourceVersion stay o's: they are the condition of the compare-and-swap.
	m.set("annotations", f.Annotations)
	if fields := m["managedFields"]; len(fields) > 0 && string(fields) != "null" {
		m["managedFields"] = untracked
	}
	s.set("holderIdentity", f.HolderIdentity)
	s.setUnlessZero("leaseDurationSeconds", f.LeaseDurationSeconds, f.LeaseDurationSeconds == 0)
	s.set("leaseTransitions", f.LeaseTransitions)
	s.setUnlessZero("acquireTime", f.AcquireTime, f.AcquireTime == "")
	s.setUnlessZero("renewTime", f.RenewTime, f.RenewTime == "")
	top.set("metadata", m)
	top.set("spec", s)
	return marshal(top), nil
}

// untracked clears managedFields, the record of which client wrote which field. It has no use in a Lease, it is half of the Lease's bytes,
// and each renewal would store it again. Once cleared, it starts again only with a server-side apply.
var untracked = json.RawMessage(`[{}]`)

// rawFields is a JSON object that is being changed.
type rawFields map[string]json.RawMessage

// copied returns a copy, and an empty object for nil: null and a missing object are both decoded to nil.
func copied(of map[string]json.RawMessage) rawFields {
	if of == nil {
		return rawFields{}
	}
	return maps.Clone(of)
}

func (f rawFields) set(name string, v any) {
	f[name] = marshal(v)
}

// marshal returns JSON in which "<" stays "<", so that text is written back as it was received.
func marshal(v any) json.RawMessage {
	var out bytes.Buffer
	e := json.NewEncoder(&out)
	e.SetEscapeHTML(false)
	if err := e.Encode(v); err != nil {
		panic(err) // strings, numbers, maps of them and decoded JSON cannot fail to encode
	}
	return bytes.TrimRight(out.Bytes(), "\n")
}

// setUnlessZero leaves out a field whose zero value the API server refuses.
func (f rawFields) setUnlessZero(name string, v any, zero bool) {
	if zero {
		delete(f, name)
		return
	}
	f.set(name, v)
}

func value[T any](p *T) T {
	if p == nil {
		var zero T
		return zero
	}
	return *p
}
