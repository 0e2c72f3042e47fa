// Command slim reads the CRD that controller-gen wrote on standard input, drops the descriptions of the embedded pod
// template and writes the result to every file named as an argument.
//
// With the descriptions the CRD is 640 kB: more than client-side apply can keep in its annotation (256 KiB), and most of
// it only repeats `kubectl explain pod.spec`. The schema of the template itself stays whole, so a misspelt field is
// still refused.
package main

import (
	"fmt"
	"io"
	"os"

	"sigs.k8s.io/yaml"
)

// maxBytes is the limit of kubectl's last-applied annotation.
const maxBytes = 256 << 10

func main() {
	if err := run(os.Stdin, os.Args[1:]); err != nil {
		fmt.Fprintln(os.Stderr, "slim:", err)
		os.Exit(1)
	}
}

func run(in io.Reader, files []string) error {
	raw, err := io.ReadAll(in)
	if err != nil {
		return fmt.Errorf("read the CRD from standard input: %w", err)
	}
	out, err := slim(raw)
	if err != nil {
		return err
	}
	for _, file := range files {
		if err := os.WriteFile(file, out, 0o644); err != nil {
			return err
		}
	}
	return nil
}

func slim(raw []byte) ([]byte, error) {
	var crd map[string]any
	if err := yaml.Unmarshal(raw, &crd); err != nil {
		return nil, fmt.Errorf("parse the CRD: %w", err)
	}
	versions, _ := at(crd, "spec")["versions"].([]any)
	if len(versions) == 0 {
		return nil, fmt.Errorf("no versions in the CRD: expected the output of controller-gen crd")
	}
	for _, version := range versions {
		v, _ := version.(map[string]any)
		schema := at(v, "schema", "openAPIV3Schema", "properties", "spec", "properties", "template")
		if len(schema) == 0 {
			return nil, fmt.Errorf("version %v has no spec.template", v["name"])
		}
		dropDescriptions(at(schema, "properties"), false)
	}
	out, err := yaml.Marshal(crd)
	if err != nil {
		return nil, fmt.Errorf("write the CRD: %w", err)
	}
	if len(out) >= maxBytes {
		return nil, fmt.Errorf("the CRD has %d bytes; client-side apply takes less than %d", len(out), maxBytes)
	}
	return out, nil
}

func at(node map[string]any, path ...string) map[string]any {
	for _, key := range path {
		node, _ = node[key].(map[string]any)
	}
	return node
}

// dropDescriptions removes the key "description" from every schema under node. A node that maps property names to
// schemas is no schema itself: there a property may be called "description", and must stay.
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
