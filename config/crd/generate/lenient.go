package main

import (
	"maps"
	"slices"
)

// lenient lets a pod template be what a Deployment's may be, and controller-gen's schema is stricter in: metadata of an object, as
// generators write it; null for what may be left out, as charts do; quantities that are numbers with a fraction; and entries of
// a list twice, of which a Deployment's API server only warns.
//
// What Go reads from it is the same as before for what was accepted before, or the hashes of jobs would change.
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

// twice are the lists of a pod whose entries may have one name, by which no API server of custom resources would take them.
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

// isMetadata holds for the properties of what controller-gen makes of an embedded ObjectMeta.
func isMetadata(properties map[string]any) bool {
	return len(properties) == 5 && !slices.ContainsFunc([]string{"annotations", "finalizers", "labels", "name", "namespace"}, func(name string) bool {
		return properties[name] == nil
	})
}

// objectMetadata are the other properties of an ObjectMeta. They say nothing of a pod that is made of a template, and are declared one
// by one so that a field that is misspelt is still refused.
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

// allowNulls lets be null what may be left out, but for what has a default, which null stands for already, and the words of lists. CEL
// takes a property that is null for one that is not there.
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

// isQuantity holds for what controller-gen makes of a resource.Quantity; ports have no pattern.
func isQuantity(schema map[string]any) bool {
	_, pattern := schema["pattern"]
	return pattern && schema["x-kubernetes-int-or-string"] == true
}

// allowNumbers takes a number, too, where an integer and a string are. No type of a schema is that: it is none, less maps, lists and
// truth values, which nobody could read.
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
