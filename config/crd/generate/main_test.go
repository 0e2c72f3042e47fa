package main

import (
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	"sigs.k8s.io/yaml"
)

// A schema loses its description. A property that is called description stays, and so does its schema.
func TestDropDescriptions(t *testing.T) {
	const before = `
a: {type: string, description: x}
description: {type: string, description: x, default: y}
b: {type: object, description: x, properties: {properties: {description: x, properties: {description: {description: x, type: string}}}}}
c: {type: array, items: {description: x, type: object}}
d: {anyOf: [{description: x, type: integer}], additionalProperties: {description: x, type: string}}
`
	const after = `
a: {type: string}
description: {type: string, default: y}
b: {type: object, properties: {properties: {properties: {description: {type: string}}}}}
c: {type: array, items: {type: object}}
d: {anyOf: [{type: integer}], additionalProperties: {type: string}}
`
	var got, want any
	for text, into := range map[string]*any{before: &got, after: &want} {
		if err := yaml.Unmarshal([]byte(text), into); err != nil {
			t.Fatal(err)
		}
	}
	dropDescriptions(got, false)
	if diff := cmp.Diff(want, got); diff != "" {
		t.Errorf("-want +got:\n%s", diff)
	}
}

func TestUnwrap(t *testing.T) {
	got := map[string]any{
		"description": "one\n  two\n\nthree\nfour",
		"properties":  map[string]any{"description": map[string]any{"description": "a\nb", "type": "string"}},
	}
	want := map[string]any{
		"description": "one two\n\nthree four",
		"properties":  map[string]any{"description": map[string]any{"description": "a b", "type": "string"}},
	}
	unwrap(got)
	if diff := cmp.Diff(want, got); diff != "" {
		t.Errorf("-want +got:\n%s", diff)
	}
}

// Required properties and properties with a default are not nullable. Only lists that can have duplicate entries lose their keys.
func TestLenient(t *testing.T) {
	const before = `
properties:
  metadata: {properties: {annotations: {}, finalizers: {}, labels: {additionalProperties: {type: string}}, name: {}, namespace: {}}}
  spec:
    required: [containers]
    properties:
      containers: {items: {properties: {env: {x-kubernetes-list-type: map, x-kubernetes-list-map-keys: [name]}}}, x-kubernetes-list-type: map}
      policy: {type: string, default: Always}
      size: {anyOf: [{type: integer}, {type: string}], pattern: x, x-kubernetes-int-or-string: true}
      port: {anyOf: [{type: integer}, {type: string}], x-kubernetes-int-or-string: true}
`
	const after = `
properties:
  spec:
    required: [containers]
    nullable: true
    properties:
      containers: {items: {properties: {env: {x-kubernetes-list-type: atomic, nullable: true}}}, x-kubernetes-list-type: map}
      policy: {type: string, default: Always}
      size: {pattern: x, x-kubernetes-preserve-unknown-fields: true, minProperties: 1, maxProperties: 0, minItems: 1, maxItems: 0, not: {enum: [true, false]}, nullable: true}
      port: {anyOf: [{type: integer}, {type: string}], x-kubernetes-int-or-string: true, nullable: true}
`
	var got, want map[string]any
	for text, into := range map[string]*map[string]any{before: &got, after: &want} {
		if err := yaml.Unmarshal([]byte(text), into); err != nil {
			t.Fatal(err)
		}
	}
	lenient(got)
	properties, _ := got["properties"].(map[string]any)
	object, err := property(got, "metadata")
	if err != nil {
		t.Fatal(err)
	}
	metadata, _ := object["properties"].(map[string]any)
	for _, name := range []string{"creationTimestamp", "ownerReferences", "labels"} {
		if schema, is := metadata[name].(map[string]any); !is || schema["nullable"] != true {
			t.Errorf("metadata.%s: %v", name, schema)
		}
	}
	if _, misspelt := metadata["lables"]; misspelt || len(metadata) != 15 {
		t.Errorf("metadata has %d fields: %v", len(metadata), metadata)
	}
	delete(properties, "metadata")
	if diff := cmp.Diff(normal(t, want), normal(t, got)); diff != "" {
		t.Errorf("-want +got:\n%s", diff)
	}
}

// normal has the numbers of YAML.
func normal(t *testing.T, value any) string {
	t.Helper()
	out, err := yaml.Marshal(value)
	if err != nil {
		t.Fatal(err)
	}
	return string(out)
}

func TestInputErrors(t *testing.T) {
	for name, c := range map[string]struct{ in, want string }{
		"not a CRD":       {"kind: Pod", "no versions in the CRD"},
		"not YAML":        {"\t", "parse the CRD"},
		"another CRD":     {"spec: {versions: [{name: v1, schema: {openAPIV3Schema: {properties: {}}}}]}", `version v1: the schema has no spec.template (at "spec")`},
		"nothing at all":  {"", "no versions in the CRD"},
		"a rule's target": {"spec: {versions: [{name: v1, schema: {openAPIV3Schema: {properties: {metadata: {type: object}, spec: {properties: {template: {}}}}}}}]}", "the schema has no spec."},
	} {
		t.Run(name, func(t *testing.T) {
			if _, err := generate([]byte(c.in)); err == nil || !strings.Contains(err.Error(), c.want) {
				t.Errorf("got %v, want %q", err, c.want)
			}
		})
	}
}
