package pki

import (
	"crypto/tls"
	"crypto/x509"
	"os"
	"path/filepath"
	"testing"
)

func TestIssuedCertificatesVerify(t *testing.T) {
	dir := filepath.Join(t.TempDir(), "pki")
	for range 2 { // the second finds what the first made
		a, err := Open(dir)
		if err != nil {
			t.Fatal(err)
		}
		if err := a.Issue("server", Subject{Name: "kube-apiserver", Hosts: []string{"10.96.0.1", "kubernetes"}}); err != nil {
			t.Fatal(err)
		}
		if err := a.Issue("node1", Subject{Name: "system:node:node1", Groups: []string{"system:nodes"}}); err != nil {
			t.Fatal(err)
		}
		if err := a.SigningKey("sa"); err != nil {
			t.Fatal(err)
		}
	}
	ca, err := os.ReadFile(filepath.Join(dir, "ca.crt"))
	if err != nil {
		t.Fatal(err)
	}
	roots := x509.NewCertPool()
	if !roots.AppendCertsFromPEM(ca) {
		t.Fatal("the authority's certificate does not parse")
	}
	for name, tc := range map[string]struct {
		file, host string
		usage      x509.ExtKeyUsage
		valid      bool
	}{
		"server by address":        {file: "server", host: "10.96.0.1", usage: x509.ExtKeyUsageServerAuth, valid: true},
		"server by name":           {file: "server", host: "kubernetes", usage: x509.ExtKeyUsageServerAuth, valid: true},
		"server by another name":   {file: "server", host: "other", usage: x509.ExtKeyUsageServerAuth},
		"server is no client":      {file: "server", usage: x509.ExtKeyUsageClientAuth},
		"client":                   {file: "node1", usage: x509.ExtKeyUsageClientAuth, valid: true},
		"client can't be a server": {file: "node1", usage: x509.ExtKeyUsageServerAuth},
	} {
		t.Run(name, func(t *testing.T) {
			pair, err := tls.LoadX509KeyPair(filepath.Join(dir, tc.file+".crt"), filepath.Join(dir, tc.file+".key"))
			if err != nil {
				t.Fatal(err)
			}
			_, err = pair.Leaf.Verify(x509.VerifyOptions{Roots: roots, DNSName: tc.host, KeyUsages: []x509.ExtKeyUsage{tc.usage}})
			if (err == nil) != tc.valid {
				t.Errorf("verify: %v, want valid: %v", err, tc.valid)
			}
		})
	}
	info, err := os.Stat(filepath.Join(dir, "node1.key"))
	if err != nil || info.Mode().Perm() != 0o600 {
		t.Errorf("the key's mode: %v, %v", info.Mode(), err)
	}
}
