// Command generate reads the CRD that controller-gen derives from the types on standard input, and writes the CRD of this
// repository to standard output. It
//
//   - drops the descriptions of the embedded pod template, which only repeat `kubectl explain pod.spec`. With them the CRD is 640 kB,
//     more than client-side apply can keep in its annotation. The schema of the template stays complete;
//   - joins the wrapped lines of the other descriptions, because kubectl wraps them itself;
//   - makes the template accept what a Deployment accepts (lenient.go);
//   - limits the size of the parts of the template that rules read, because the API server otherwise rejects the rules as too costly;
//   - adds the CEL rules of rules.go.
package main

import (
	"encoding/json"
	"fmt"
	"io"
	"maps"
	"os"
	"strings"

	"sigs.k8s.io/yaml"
)

// maxBytes is the limit of kubectl's last-applied annotation, which holds the object as JSON without whitespace.
const maxBytes = 256 << 10

func main() {
	if err := run(os.Stdin, os.Stdout); err != nil {
		fmt.Fprintln(os.Stderr, "config/crd/generate:", err)
		os.Exit(1)
	}
}

func run(in io.Reader, out io.Writer) error {
	raw, err := io.ReadAll(in)
	if err != nil {
		return fmt.Errorf("read the CRD from standard input: %w", err)
	}
	crd, err := generate(raw)
	if err != nil {
		return err
	}
	_, err = out.Write(crd)
	return err
}

func generate(raw []byte) ([]byte, error) {
	var crd map[string]any
	if err := yaml.Unmarshal(raw, &crd); err != nil {
		return nil, fmt.Errorf("parse the CRD: %w", err)
	}
	spec, _ := crd["spec"].(map[string]any)
	versions, _ := spec["versions"].([]any)
	if len(versions) == 0 {
		return nil, fmt.Errorf("no versions in the CRD: expected the output of controller-gen crd")
	}
	for _, version := range versions {
		v, _ := version.(map[string]any)
		schema, _ := v["schema"].(map[string]any)
		root, _ := schema["openAPIV3Schema"].(map[string]any)
		if err := finish(root); err != nil {
			return nil, fmt.Errorf("version %v: %w", v["name"], err)
		}
	}
	out, err := yaml.Marshal(crd)
	if err != nil {
		return nil, fmt.Errorf("write the CRD: %w", err)
	}
	kept, err := json.Marshal(crd)
	if err != nil {
		return nil, fmt.Errorf("write the CRD: %w", err)
	}
	if len(kept) >= maxBytes*9/10 { // other annotations need space too
		return nil, fmt.Errorf("the CRD has %d bytes as JSON; client-side apply takes less than %d with all annotations", len(kept), maxBytes)
	}
	return out, nil
}

func finish(root map[string]any) error {
	template, err := property(root, "spec.template")
	if err != nil {
		return err
	}
	dropDescriptions(template["properties"], false)
	unwrap(root)
	template["required"] = []any{"spec"}
	lenient(template)

	// Declared so that a rule's error can point at the name.
	metadata, err := property(root, "metadata")
	if err != nil {
		return err
	}
	metadata["properties"] = map[string]any{"name": map[string]any{"type": "string"}}

	maps.Copy(bounds, probeBounds())
	for path, limits := range bounds {
		schema, err := property(root, path)
		if err != nil {
			return err
		}
		maps.Copy(schema, limits)
	}
	for _, r := range rules {
		schema, err := property(root, r.at)
		if err != nil {
			return err
		}
		list, _ := schema["x-kubernetes-validations"].([]any)
		schema["x-kubernetes-validations"] = append(list, r.schema())
	}
	return nil
}

// property returns the schema at a path such as spec.template.spec.containers[].name; the empty path is root itself.
func property(root map[string]any, path string) (map[string]any, error) {
	schema := root
	for name := range strings.SplitSeq(path, ".") {
		if path == "" {
			break
		}
		name, isList := strings.CutSuffix(name, "[]")
		properties, _ := schema["properties"].(map[string]any)
		schema, _ = properties[name].(map[string]any)
		if isList {
			schema, _ = schema["items"].(map[string]any)
		}
		if schema == nil {
			return nil, fmt.Errorf("the schema has no %s (at %q)", path, name)
		}
	}
	return schema, nil
}

// unwrap joins the lines of every paragraph of every description. A property that is called description is not text and stays unchanged.
func unwrap(node any) {
	switch n := node.(type) {
	case map[string]any:
		if text, ok := n["description"].(string); ok {
			paragraphs := strings.Split(text, "\n\n")
			for i, paragraph := range paragraphs {
				paragraphs[i] = strings.Join(strings.Fields(paragraph), " ")
			}
			n["description"] = strings.Join(paragraphs, "\n\n")
		}
		for _, child := range n {
			unwrap(child)
		}
	case []any:
		for _, child := range n {
			unwrap(child)
		}
	}
}

// dropDescriptions removes the key "description" from every schema under node. A node that maps property names to schemas is not a schema
// itself: it can have a property called "description", which must stay.
func dropDescriptions(node any, isSchema bool) {
	switch n := node.(type) {
	case map[string]any:
		if isSchema {
			delete(n, "description")
		}
		for key, child := range n {
			dropDescriptions(child, !isSchema || key != "properties")
		}
	case []any:
		for _, child := range n {
			dropDescriptions(child, isSchema)
		}
	}
}
