// Command generate reads the CRD from standard input and writes docs/api.md to standard output.
// The page is committed, because users read it in the repository.
package main

import (
	"bytes"
	"cmp"
	_ "embed"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"maps"
	"os"
	"regexp"
	"slices"
	"strings"
	"text/template"

	apiextensionsv1 "k8s.io/apiextensions-apiserver/pkg/apis/apiextensions/v1"
	"sigs.k8s.io/yaml"
)

//go:embed api.md.tmpl
var layout string

// foreign are Kubernetes' own types, by their paths. Their fields are documented elsewhere.
var foreign = map[string]string{
	"metadata": "Kubernetes' ObjectMeta: `kubectl explain pod.metadata`.",
	"spec.template": "Kubernetes' [PodTemplateSpec](https://kubernetes.io/docs/reference/kubernetes-api/workload-resources/pod-template-v1/): " +
		"`kubectl explain podtemplate.template`. The [rules](#rules) include what the API server refuses in it.",
	"status.conditions": "Each is a Kubernetes `metav1.Condition`; [status](status.md#conditions) lists their types and reasons.",
}

// schema is a map, so that the page also shows limits that this program does not know.
type schema map[string]any

type section struct {
	Path, Intro string
	Rows        []row
}

type row struct{ Field, Type, Limits, Text string }

func main() {
	raw, err := io.ReadAll(os.Stdin)
	if err == nil {
		raw, err = render(raw)
	}
	if err == nil {
		_, err = os.Stdout.Write(raw)
	}
	if err != nil {
		fmt.Fprintln(os.Stderr, "docs/generate:", err)
		os.Exit(1)
	}
}

func render(raw []byte) ([]byte, error) {
	var crd apiextensionsv1.CustomResourceDefinition
	var tree struct {
		Spec struct {
			Versions []struct{ Schema map[string]schema }
		}
	}
	if err := errors.Join(yaml.Unmarshal(raw, &crd), yaml.Unmarshal(raw, &tree)); err != nil {
		return nil, fmt.Errorf("parse the CRD: %w", err)
	}
	if n := len(tree.Spec.Versions); n != 1 {
		return nil, fmt.Errorf("the CRD has %d versions: the page documents exactly one, because links to several would be ambiguous", n)
	}
	root, page := tree.Spec.Versions[0].Schema["openAPIV3Schema"], &bytes.Buffer{}
	err := template.Must(template.New("").Funcs(template.FuncMap{"prose": prose, "code": code}).Parse(layout)).Execute(page, map[string]any{
		"CRD": crd.Spec, "Version": crd.Spec.Versions[0], "Sections": root.sections(""), "Rules": root.rules("", nil),
	})
	return page.Bytes(), err
}

// sections returns a section for an object, and one for each object below it.
func (s schema) sections(path string) []section {
	required, _ := s["required"].([]any)
	own, below := section{Path: path, Intro: prose(s["description"])}, []section{}
	for _, name := range slices.Sorted(maps.Keys(s.at("properties"))) {
		p, at := s.at("properties").at(name), strings.TrimPrefix(path+"."+name, ".")
		limits := p.limits("")
		if slices.Contains(required, any(name)) {
			limits = slices.Insert(limits, 0, "required")
		}
		f := row{code(at), p.kind(), strings.Join(limits, ", "), prose(p["description"])}
		switch items := p.at("items"); {
		case foreign[at] != "":
			f.Text = strings.TrimSpace(f.Text + " " + foreign[at])
		case p["properties"] != nil || items["properties"] != nil:
			// GitHub's anchor for that section.
			f.Field = fmt.Sprintf("[%s](#%s)", f.Field, strings.ToLower(strings.NewReplacer(".", "", "[]", "").Replace(at)))
			if items != nil {
				p, at = items, at+"[]"
			}
			below = append(below, p.sections(at)...)
		}
		own.Rows = append(own.Rows, f)
	}
	return append([]section{own}, below...)
}

func (s schema) at(key string) schema {
	child, _ := s[key].(map[string]any)
	return child
}

func (s schema) kind() string {
	switch {
	case s["items"] != nil:
		return "list of " + s.at("items").kind()
	case s["x-kubernetes-int-or-string"] == true:
		return "integer or string"
	case s["format"] != nil:
		return fmt.Sprintf("%v (%v)", s["type"], s["format"])
	}
	return fmt.Sprint(s["type"])
}

// elsewhere are the keywords that are not limits, or that the page shows by other means.
var elsewhere = strings.Fields("anyOf description format items properties required type x-kubernetes-int-or-string x-kubernetes-validations")

// limits are a property's default and all constraints on its value.
func (s schema) limits(prefix string) (all []string) {
	for _, key := range slices.Sorted(maps.Keys(s)) {
		if !slices.Contains(elsewhere, key) {
			all = append(all, prefix+strings.ReplaceAll(strings.TrimPrefix(key, "x-kubernetes-"), "-", " ")+" "+show(s[key]))
		}
	}
	if items := s.at("items"); items != nil {
		all = append(all, items.limits("each ")...)
	}
	return all
}

var (
	// formatted matches a message with values in it, as config/crd/generate writes it.
	formatted = regexp.MustCompile(`^'((?:[^'\\]|\\.)*)'\.format\(`)
	// parts matches what is in the message if one of several conditions is not met.
	parts   = regexp.MustCompile(`\? '(; it (?:[^'\\]|\\.)*)'`)
	verb    = regexp.MustCompile(`(%[a-z])+`)
	escaped = regexp.MustCompile(`\\(.)`)
	// markup matches characters that Markdown or GitHub's mathematics would not show literally.
	markup = regexp.MustCompile("[\\\\`*_\\[\\]<>|~$&]")
)

// rules appends the rules of a schema and of all schemas below it, including those in Kubernetes' types, because these rules are
// ours. Rules with the same message are merged.
func (s schema) rules(path string, all []row) []row {
	validations, _ := s["x-kubernetes-validations"].([]any)
	for i := range validations {
		v, _ := validations[i].(map[string]any)
		field, _ := v["fieldPath"].(string)
		at := code(strings.TrimPrefix(path+field, "."))
		for _, message := range messages(fmt.Sprint(cmp.Or(v["messageExpression"], v["message"], v["rule"]))) {
			if same := slices.IndexFunc(all, func(r row) bool { return r.Text == prose(message) }); same >= 0 {
				all[same].Field += "<br>" + at
			} else {
				all = append(all, row{Field: at, Text: prose(message)})
			}
		}
	}
	for _, name := range slices.Sorted(maps.Keys(s.at("properties"))) {
		all = s.at("properties").at(name).rules(path+"."+name, all)
	}
	if items := s.at("items"); items != nil {
		all = items.rules(path+"[]", all)
	}
	return all
}

// messages are those of one rule. A rule with several parts has one for each.
func messages(expression string) []string {
	match := formatted.FindStringSubmatch(expression)
	if match == nil {
		return []string{expression}
	}
	text := func(literal string) string {
		return escaped.ReplaceAllString(verb.ReplaceAllString(literal, "…"), "$1")
	}
	whole, _, _ := strings.Cut(match[1], "%s%s")
	var all []string
	for _, part := range parts.FindAllStringSubmatch(expression, -1) {
		all = append(all, text(whole+part[1]))
	}
	if len(all) == 0 {
		all = []string{text(match[1])}
	}
	return all
}

func prose(text any) string {
	s, _ := text.(string)
	return strings.ReplaceAll(markup.ReplaceAllString(s, `\$0`), "\n\n", "<br><br>")
}

// code formats text as code, with characters escaped that would end a table cell.
func code(text string) string { return "`" + strings.ReplaceAll(text, "|", `\|`) + "`" }

func show(value any) string {
	switch v := value.(type) {
	case string:
		if v != "" {
			return code(v)
		}
	case []any:
		all := make([]string, len(v))
		for i := range v {
			all[i] = show(v[i])
		}
		return strings.Join(all, ", ")
	}
	encoded, _ := json.Marshal(value) // it came from JSON
	return code(string(encoded))
}
