//go:build linux

package controlplane

import (
	"context"
	"fmt"
	"regexp"
	"strings"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/kubernetes"
)

var notInNames = regexp.MustCompile(`[^a-z0-9]+`)

// Namespace makes a namespace for one test, with what controllers that do not run here would put there: the service
// account "default" and the ConfigMap kube-root-ca.crt. It is deleted after the test, as far as that goes without a
// namespace controller: what is in it stays.
func (a *APIServer) Namespace(t testing.TB) string {
	t.Helper()
	const longest = 40 // of 63, so that generated names stay short enough
	prefix := strings.Trim(notInNames.ReplaceAllString(strings.ToLower(t.Name()), "-"), "-")
	name, err := a.CreateNamespace(t.Context(), "t-"+prefix[:min(longest, len(prefix))]+"-")
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		ctx, cancel := context.WithTimeout(context.Background(), 10*time.Second)
		defer cancel()
		client, err := kubernetes.NewForConfig(a.Config())
		if err != nil {
			t.Error(err)
			return
		}
		if err := client.CoreV1().Namespaces().Delete(ctx, name, metav1.DeleteOptions{}); err != nil && !apierrors.IsNotFound(err) {
			t.Logf("deleting namespace %s: %v", name, err)
		}
	})
	return name
}

// EnforcePodSecurity makes the namespace enforce the profile "restricted", and returns when the API server does so.
func (a *APIServer) EnforcePodSecurity(t testing.TB, namespace string) {
	t.Helper()
	client, err := kubernetes.NewForConfig(a.Config())
	if err != nil {
		t.Fatal(err)
	}
	label := []byte(`{"metadata":{"labels":{"pod-security.kubernetes.io/enforce":"restricted"}}}`)
	if _, err := client.CoreV1().Namespaces().Patch(t.Context(), namespace, types.MergePatchType, label, metav1.PatchOptions{}); err != nil {
		t.Fatal(err)
	}
	privileged := &corev1.Pod{ObjectMeta: metav1.ObjectMeta{Name: "privileged"}, Spec: corev1.PodSpec{
		HostPID: true, Containers: []corev1.Container{{Name: "app", Image: "app"}},
	}}
	for deadline := time.Now().Add(2 * time.Minute); ; time.Sleep(10 * time.Millisecond) {
		_, err := client.CoreV1().Pods(namespace).Create(t.Context(), privileged, metav1.CreateOptions{DryRun: []string{metav1.DryRunAll}})
		if err != nil && strings.Contains(err.Error(), "violates PodSecurity") {
			return
		}
		if time.Now().After(deadline) {
			t.Fatalf("Pod Security is not enforced in %s: %v", namespace, err)
		}
	}
}

// CreateNamespace makes a namespace whose name begins with prefix; see Namespace for what is in it.
func (a *APIServer) CreateNamespace(ctx context.Context, prefix string) (string, error) {
	client, err := kubernetes.NewForConfig(a.Config())
	if err != nil {
		return "", err
	}
	namespace := &corev1.Namespace{ObjectMeta: metav1.ObjectMeta{GenerateName: prefix}}
	namespace, err = client.CoreV1().Namespaces().Create(ctx, namespace, metav1.CreateOptions{})
	if err != nil {
		return "", fmt.Errorf("creating a namespace %s…: %w", prefix, err)
	}
	account := &corev1.ServiceAccount{ObjectMeta: metav1.ObjectMeta{Name: "default"}}
	if _, err := client.CoreV1().ServiceAccounts(namespace.Name).Create(ctx, account, metav1.CreateOptions{}); err != nil && !apierrors.IsAlreadyExists(err) {
		return "", fmt.Errorf("creating the service account %s/default: %w", namespace.Name, err)
	}
	ca := &corev1.ConfigMap{ObjectMeta: metav1.ObjectMeta{Name: "kube-root-ca.crt"}, Data: map[string]string{"ca.crt": string(a.CA())}}
	if _, err := client.CoreV1().ConfigMaps(namespace.Name).Create(ctx, ca, metav1.CreateOptions{}); err != nil && !apierrors.IsAlreadyExists(err) {
		return "", fmt.Errorf("creating the ConfigMap %s/kube-root-ca.crt: %w", namespace.Name, err)
	}
	return namespace.Name, nil
}
