package main

import (
	"encoding"
	"os"
	"reflect"
	"regexp"
	"slices"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/singletonjob/operator/api/v1alpha1"
)

func page(t *testing.T) string {
	t.Helper()
	raw, err := os.ReadFile("../../config/crd/singletonjob.io_singletonjobs.yaml")
	if err != nil {
		t.Fatal(err)
	}
	text, err := render(raw)
	if err != nil {
		t.Fatal(err)
	}
	return string(text)
}

// fieldsOf are the paths of a type's fields, and of those below them that are of types of ours.
func fieldsOf(of reflect.Type, path string) (all []string) {
	for field := range of.Fields() {
		name, _, _ := strings.Cut(field.Tag.Get("json"), ",")
		inner, at := field.Type, strings.TrimPrefix(path+"."+name, ".")
		if name == "" { // of TypeMeta
			all = append(all, fieldsOf(inner, path)...)
			continue
		}
		all = append(all, at)
		for ; inner.Kind() == reflect.Pointer || inner.Kind() == reflect.Slice; inner = inner.Elem() {
			if inner.Kind() == reflect.Slice {
				at += "[]"
			}
		}
		isText := reflect.PointerTo(inner).Implements(reflect.TypeFor[encoding.TextMarshaler]())
		if inner.Kind() == reflect.Struct && inner.PkgPath() == reflect.TypeFor[v1alpha1.SingletonJob]().PkgPath() && !isText {
			all = append(all, fieldsOf(inner, at)...)
		}
	}
	return all
}

// TestEveryFieldIsDocumented compares the page to the Go types, and not to the CRD that it is made from.
func TestEveryFieldIsDocumented(t *testing.T) {
	want := fieldsOf(reflect.TypeFor[v1alpha1.SingletonJob](), "")
	fields, _, _ := strings.Cut(page(t), "\n## Rules")
	_, fields, _ = strings.Cut(fields, "\n## ")
	var got []string
	for _, match := range regexp.MustCompile("(?m)^\\| \\[?`([^`]+)`").FindAllStringSubmatch(fields, -1) {
		got = append(got, match[1])
	}
	slices.Sort(want)
	slices.Sort(got)
	if diff := cmp.Diff(want, got); diff != "" {
		t.Errorf("-fields of the types +rows:\n%s", diff)
	}
	if len(want) < 80 {
		t.Errorf("only %d fields are found in the types", len(want))
	}
}

// TestPageLinks: GitHub names a section by the letters, digits and hyphens of its heading, and adds a number to a second one.
func TestPageLinks(t *testing.T) {
	text, heads := page(t), map[string]int{}
	for _, match := range regexp.MustCompile(`(?m)^#+ (.*)$`).FindAllStringSubmatch(text, -1) {
		heads[regexp.MustCompile(`[^a-z0-9 -]`).ReplaceAllString(strings.ToLower(match[1]), "")]++
	}
	links := regexp.MustCompile(`\]\(#([^)]*)\)`).FindAllStringSubmatch(text, -1)
	for _, match := range links {
		if n := heads[match[1]]; n != 1 {
			t.Errorf("%d sections are named %s, to which a link leads", n, match[1])
		}
	}
	if len(links) < 10 {
		t.Errorf("only %d links are found", len(links))
	}
}

// TestRender renders a CRD that uses every feature of the page.
func TestRender(t *testing.T) {
	crd, err := os.ReadFile("testdata/crd.yaml")
	if err != nil {
		t.Fatal(err)
	}
	want, err := os.ReadFile("testdata/api.md")
	if err != nil {
		t.Fatal(err)
	}
	got, err := render(crd)
	if err != nil {
		t.Fatal(err)
	}
	if diff := cmp.Diff(strings.Split(string(want), "\n"), strings.Split(string(got), "\n")); diff != "" {
		t.Errorf("-want +got:\n%s", diff)
	}
}

func TestInputErrors(t *testing.T) {
	for in, want := range map[string]string{
		"\t":                              "parse the CRD",
		"kind: Pod":                       "the CRD has 0 versions",
		"spec: {versions: [{}, {}]}":      "the CRD has 2 versions",
		"spec: {versions: [{name: [1]}]}": "parse the CRD",
	} {
		if _, err := render([]byte(in)); err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("%q: got %v, want %q", in, err, want)
		}
	}
}
