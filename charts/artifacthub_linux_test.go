package charts

import (
	"context"
	"encoding/json"
	"os"
	"slices"
	"testing"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"sigs.k8s.io/yaml"
)

// TestArtifactHub: what the chart's annotations say about the definition is so, and the API server takes their examples. Helm finds nothing
// to complain about.
func TestArtifactHub(t *testing.T) {
	c := newCluster(t)
	c.mustHelm("lint", "--strict", chart)
	text, err := os.ReadFile(chart + "/Chart.yaml")
	if err != nil {
		t.Fatal(err)
	}
	var about struct{ Annotations map[string]string }
	var named []struct{ Kind, Version, Name string }
	var examples []json.RawMessage
	if err := yaml.Unmarshal(text, &about); err != nil {
		t.Fatal(err)
	}
	for annotation, into := range map[string]any{"artifacthub.io/crds": &named, "artifacthub.io/crdsExamples": &examples} {
		if err := yaml.Unmarshal([]byte(about.Annotations[annotation]), into); err != nil {
			t.Fatal(annotation, err)
		}
	}
	t.Cleanup(func() { // others install a release that owns it
		if out, err := c.paste(context.Background(), "kubectl delete "+crd+" --timeout=60s"); err != nil {
			t.Error(err, out)
		}
	})
	c.apply(c.mustHelm("template", "release", chart, "--show-only=templates/crds.yaml"))
	c.mustKubectl("wait", "--for=condition=Established", crd)
	var definition struct {
		Metadata metav1.ObjectMeta
		Spec     struct {
			Names    struct{ Kind string }
			Versions []struct{ Name string }
		}
	}
	if err := json.Unmarshal([]byte(c.mustKubectl("get", crd, "--output=json")), &definition); err != nil {
		t.Fatal(err)
	}
	if len(named) != 1 || named[0].Kind != definition.Spec.Names.Kind || named[0].Name != definition.Metadata.Name ||
		!slices.Contains(definition.Spec.Versions, struct{ Name string }{named[0].Version}) {
		t.Errorf("the annotation names %+v, the definition is %+v", named, definition)
	}
	if len(examples) == 0 {
		t.Error("the annotations have no example")
	}
	for _, example := range examples {
		c.apply(string(example))
		c.mustKubectl("delete", "singletonjobs", "--all")
	}
}
