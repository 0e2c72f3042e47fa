package main

import (
	"maps"
	"slices"
)

// lenient makes the schema of the pod template accept what a Deployment accepts. controller-gen's schema is stricter. It allows the
// metadata of an object, as generators write it. It allows null for optional fields, as charts write them. It allows fractional numbers
// as quantities. It allows duplicate entries of a list, for which the API server only warns in a Deployment.
//
// Go reads the same values as before from any template that was accepted before. Otherwise the hashes of jobs would change.
func lenient(template map[string]any) {
	walk(template, func(schema map[string]any) {
		properties, _ := schema["properties"].(map[string]any)
		if isMetadata(properties) {
			maps.Copy(properties, objectMetadata())
		}
		allowNulls(schema, properties)
		if isQuantity(schema) {
			allowNumbers(schema)
		}
		for _, name := range twice {
			if list, is := properties[name].(map[string]any); is && list["x-kubernetes-list-type"] == "map" {
				list["x-kubernetes-list-type"] = "atomic"
				delete(list, "x-kubernetes-list-map-keys")
			}
		}
	})
}

// twice are the lists of a pod in which several entries can have the same name. With list type map, the API server would reject these
// entries in a custom resource.
var twice = []string{"env", "ports", "imagePullSecrets", "hostAliases"}

// walk visits node and all schemas below it.
func walk(node map[string]any, visit func(schema map[string]any)) {
	visit(node)
	properties, _ := node["properties"].(map[string]any)
	for _, name := range slices.Sorted(maps.Keys(properties)) {
		if child, is := properties[name].(map[string]any); is {
			walk(child, visit)
		}
	}
	for _, key := range []string{"items", "additionalProperties"} {
		if child, is := node[key].(map[string]any); is {
			walk(child, visit)
		}
	}
}

// isMetadata reports whether properties are those that controller-gen generates for an embedded ObjectMeta.
func isMetadata(properties map[string]any) bool {
	return len(properties) == 5 && !slices.ContainsFunc([]string{"annotations", "finalizers", "labels", "name", "namespace"}, func(name string) bool {
		return properties[name] == nil
	})
}

// objectMetadata returns the other properties of an ObjectMeta. They have no effect on the pods of a template. Each one is declared, so
// that a misspelt field is still rejected.
func objectMetadata() map[string]any {
	found := map[string]any{}
	for _, name := range []string{"generateName", "resourceVersion", "selfLink", "uid"} {
		found[name] = map[string]any{"type": "string"}
	}
	for _, name := range []string{"creationTimestamp", "deletionTimestamp"} {
		found[name] = map[string]any{"type": "string", "format": "date-time"}
	}
	for _, name := range []string{"generation", "deletionGracePeriodSeconds"} {
		found[name] = map[string]any{"type": "integer", "format": "int64"}
	}
	text := func() map[string]any { return map[string]any{"type": "string"} }
	found["ownerReferences"] = map[string]any{"type": "array", "items": map[string]any{
		"type": "object", "required": []any{"apiVersion", "kind", "name", "uid"}, "properties": map[string]any{
			"apiVersion": text(), "kind": text(), "name": text(), "uid": text(),
			"controller": map[string]any{"type": "boolean"}, "blockOwnerDeletion": map[string]any{"type": "boolean"},
		},
	}}
	found["managedFields"] = map[string]any{"type": "array", "items": map[string]any{"type": "object", "x-kubernetes-preserve-unknown-fields": true}}
	return found
}

// allowNulls allows null for optional properties and for strings in lists. A property with a default already accepts null, which means the
// default. CEL treats a property that is null as absent.
func allowNulls(schema, properties map[string]any) {
	required, _ := schema["required"].([]any)
	for name, property := range properties {
		child, is := property.(map[string]any)
		if _, defaulted := child["default"]; is && !defaulted && !slices.Contains(required, any(name)) {
			child["nullable"] = true
		}
	}
	if values, is := schema["additionalProperties"].(map[string]any); is {
		values["nullable"] = true
	}
	if items, is := schema["items"].(map[string]any); is && items["type"] == "string" && schema["x-kubernetes-list-type"] != "set" {
		items["nullable"] = true
	}
}

// isQuantity reports whether a schema is the one that controller-gen generates for a resource.Quantity; ports have no pattern.
func isQuantity(schema map[string]any) bool {
	_, pattern := schema["pattern"]
	return pattern && schema["x-kubernetes-int-or-string"] == true
}

// allowNumbers also accepts a number where an integer or a string is allowed. No schema type means exactly that. So the schema has no type,
// and excludes maps, lists and booleans, which could not be decoded.
func allowNumbers(schema map[string]any) {
	delete(schema, "anyOf")
	delete(schema, "x-kubernetes-int-or-string")
	maps.Copy(schema, map[string]any{
		"x-kubernetes-preserve-unknown-fields": true,
		"minProperties":                        1, "maxProperties": 0,
		"minItems": 1, "maxItems": 0,
		"not": map[string]any{"enum": []any{true, false}},
	})
}
