// Command generate reads the chart's Chart.yaml and values.yaml and writes its README.md to standard output. The page is part of the chart,
// because sites of charts and `helm show readme` show it.
package main

import (
	_ "embed"
	"encoding/json"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"regexp"
	"strings"
	"text/template"

	"go.yaml.in/yaml/v3"
)

//go:embed README.md.tmpl
var layout string

// row is a value that users can set. Text is the comment above it.
type row struct{ Key, Default, Text string }

func main() {
	if err := write("charts/singletonjob", os.Stdout); err != nil {
		fmt.Fprintln(os.Stderr, "charts/generate:", err)
		os.Exit(1)
	}
}

func write(chart string, out io.Writer) error {
	var about struct {
		Name, Description, Home string
		KubeVersion             string `yaml:"kubeVersion"`
	}
	var values yaml.Node
	for name, into := range map[string]any{"Chart.yaml": &about, "values.yaml": &values} {
		text, err := os.ReadFile(filepath.Join(chart, name))
		if err != nil {
			return err
		}
		if err := yaml.Unmarshal(text, into); err != nil {
			return fmt.Errorf("%s: %w", name, err)
		}
	}
	var groups [][]row
	for top := values.Content[0].Content; len(top) > 0; top = top[2:] {
		rows, err := rowsOf("", top[0], top[1])
		if err != nil {
			return err
		}
		groups = append(groups, rows)
	}
	link := page.ReplaceAllString
	return template.Must(template.New("").Parse(layout)).Execute(out, map[string]any{
		"Chart": about, "Kubernetes": regexp.MustCompile(`\d+\.\d+`).FindString(about.KubeVersion), "Groups": groups,
		"Prose": func(text string) string { return link(text, "[$1]("+about.Home+"/blob/main/$1)") },
	})
}

// page is how a comment refers to a document.
var page = regexp.MustCompile(`(docs/[a-z-]+\.md) of the\s+repository`)

// rowsOf returns a row for a value and for each value below it. A map without defaults is one value. A map with defaults and without a
// comment has no row of its own.
func rowsOf(path string, key, value *yaml.Node) ([]row, error) {
	path += key.Value
	text := strings.ReplaceAll(regexp.MustCompile(`(?m)^# ?`).ReplaceAllString(key.HeadComment, ""), "\n", " ")
	text = strings.ReplaceAll(text, "|", `\|`)
	if value.Kind != yaml.MappingNode || len(value.Content) == 0 {
		var content any
		if err := value.Decode(&content); err != nil {
			return nil, fmt.Errorf("%s: %w", path, err)
		}
		shown, err := json.Marshal(content)
		return []row{{path, "`" + string(shown) + "`", text}}, err
	}
	var all []row
	if text != "" {
		all = append(all, row{path, "", text})
	}
	for rest := value.Content; len(rest) > 0; rest = rest[2:] {
		rows, err := rowsOf(path+".", rest[0], rest[1])
		if err != nil {
			return nil, err
		}
		all = append(all, rows...)
	}
	return all, nil
}
