//go:build linux

package apiserver

import (
	"bytes"
	"os"
	"path/filepath"
	"testing"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/kubernetes"
)

// TestStored: what etcd has of an object is as the API server writes it, and of what is not there it has nothing.
func TestStored(t *testing.T) {
	t.Parallel()
	c := ForTest(t)
	namespace := c.Namespace(t)
	client, err := kubernetes.NewForConfig(c.Config())
	if err != nil {
		t.Fatal(err)
	}
	object := &corev1.ConfigMap{ObjectMeta: metav1.ObjectMeta{Name: "stored"}, Data: map[string]string{"word": "schibboleth"}}
	if _, err := client.CoreV1().ConfigMaps(namespace).Create(t.Context(), object, metav1.CreateOptions{}); err != nil {
		t.Fatal(err)
	}
	key := "/registry/configmaps/" + namespace + "/stored"
	got, err := c.Stored(t.Context(), key)
	if err != nil || !bytes.HasPrefix(got, []byte("k8s\x00")) || !bytes.Contains(got, []byte("schibboleth")) {
		t.Errorf("stored under %s is %q, %v", key, got, err)
		log, _ := os.ReadFile(filepath.Join(c.Dir(), "etcd.log"))
		t.Logf("%s", log)
	}
	if got, err := c.Stored(t.Context(), key+"-not"); err != nil || got != nil {
		t.Errorf("what is not there is %q, %v", got, err)
	}
	if size, err := c.DatabaseSize(t.Context()); err != nil || size < int64(len(got)) {
		t.Errorf("the database has %d bytes, %v", size, err)
	}
}
