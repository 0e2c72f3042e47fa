//go:build linux

package main

import (
	"crypto/x509"
	"net/http"
	"os"
	"path/filepath"
	"strings"
	"testing"

	authenticationv1 "k8s.io/api/authentication/v1"
	corev1 "k8s.io/api/core/v1"
	rbacv1 "k8s.io/api/rbac/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/kubernetes"

	"github.com/singletonjob/operator/test/pki"
)

// mayReadMetrics grants the operator's account the right to check who may read metrics, as the chart does, and creates a reader and
// a certificate.
func mayReadMetrics(t *testing.T, client *kubernetes.Clientset, namespace string) manager {
	t.Helper()
	bind := func(account string, rules ...rbacv1.PolicyRule) {
		t.Helper()
		meta := metav1.ObjectMeta{Name: namespace + ":" + account}
		_, err := client.RbacV1().ClusterRoles().Create(t.Context(), &rbacv1.ClusterRole{ObjectMeta: meta, Rules: rules}, metav1.CreateOptions{})
		must(t, err)
		_, err = client.RbacV1().ClusterRoleBindings().Create(t.Context(), &rbacv1.ClusterRoleBinding{
			ObjectMeta: meta, RoleRef: rbacv1.RoleRef{APIGroup: rbacv1.GroupName, Kind: "ClusterRole", Name: meta.Name},
			Subjects: []rbacv1.Subject{{Kind: rbacv1.ServiceAccountKind, Namespace: namespace, Name: account}},
		}, metav1.CreateOptions{})
		must(t, err)
	}
	bind("operator",
		rbacv1.PolicyRule{APIGroups: []string{"authentication.k8s.io"}, Resources: []string{"tokenreviews"}, Verbs: []string{"create"}},
		rbacv1.PolicyRule{APIGroups: []string{"authorization.k8s.io"}, Resources: []string{"subjectaccessreviews"}, Verbs: []string{"create"}})
	bind("prometheus", rbacv1.PolicyRule{NonResourceURLs: []string{"/metrics"}, Verbs: []string{"get"}})
	accounts := client.CoreV1().ServiceAccounts(namespace)
	_, err := accounts.Create(t.Context(), &corev1.ServiceAccount{ObjectMeta: metav1.ObjectMeta{Name: "prometheus"}}, metav1.CreateOptions{})
	must(t, err)
	token, err := accounts.CreateToken(t.Context(), "prometheus", &authenticationv1.TokenRequest{}, metav1.CreateOptions{})
	must(t, err)

	m := manager{token: token.Status.Token, certificates: t.TempDir(), name: "first.svc", trusted: x509.NewCertPool()}
	authority, err := pki.Open(m.certificates)
	must(t, err)
	must(t, authority.Issue("tls", pki.Subject{Name: m.name, Hosts: []string{m.name}}))
	m.trusted.AppendCertsFromPEM(authority.PEM())
	return m
}

// metricsAreGuarded: no client reads metrics without a token, and a replaced certificate is served, with another name.
func metricsAreGuarded(t *testing.T, m manager) (name string) {
	t.Helper()
	for token, want := range map[string]int{"": http.StatusUnauthorized, "bad": http.StatusUnauthorized, m.token: http.StatusOK} {
		eventually(t, "a verdict", func() string {
			if code, body := m.ask(t, m.metrics, token); code != want {
				return body
			}
			return ""
		})
	}
	authority, err := pki.Open(m.certificates)
	must(t, err)
	m.name = "second.svc"
	must(t, authority.Issue("next", pki.Subject{Name: m.name, Hosts: []string{m.name}}))
	for _, end := range []string{".key", ".crt"} {
		must(t, os.Rename(filepath.Join(m.certificates, "next"+end), filepath.Join(m.certificates, "tls"+end)))
	}
	eventually(t, "the next certificate", func() string {
		if code, body := m.ask(t, m.metrics, m.token); code != http.StatusOK {
			return body
		}
		return ""
	})
	return m.name
}

func TestMissingMetricsCertificate(t *testing.T) {
	dir := t.TempDir()
	_, _, err := options{metricsSecure: true, metricsAddress: ":8443", metricsCertPath: dir}.metrics()
	if err == nil || !strings.Contains(err.Error(), `--metrics-cert-path "`+dir+`" needs tls.crt and tls.key`) {
		t.Errorf("it says %v", err)
	}
	served, watcher, err := options{metricsAddress: ":8080"}.metrics()
	if err != nil || watcher != nil || served.SecureServing || served.FilterProvider != nil {
		t.Errorf("--metrics-secure=false serves %+v, %v", served, err)
	}
}
