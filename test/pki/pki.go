// Package pki makes the certificates and keys of a short-lived control plane.
package pki

import (
	"bytes"
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/tls"
	"crypto/x509"
	"crypto/x509/pkix"
	"encoding/pem"
	"errors"
	"fmt"
	"math/big"
	"net"
	"os"
	"path/filepath"
	"sync"
	"time"
)

// valid is how long everything is valid: longer than any lab runs.
const valid = 365 * 24 * time.Hour

// A Subject is whom a certificate names.
type Subject struct {
	Name   string
	Groups []string // Kubernetes groups
	// Hosts are the names and addresses that a server answers to. Without any, the certificate is a client's.
	Hosts []string
}

// An Authority signs certificates into a directory: NAME.crt and NAME.key, its own as ca.crt and ca.key.
type Authority struct {
	dir  string
	pem  []byte
	cert *x509.Certificate
	key  *ecdsa.PrivateKey
	mu   sync.Mutex // one certificate at a time is issued
}

// Open loads the directory's authority, or makes it if there is none.
func Open(dir string) (*Authority, error) {
	a := &Authority{dir: dir}
	_, err := os.Stat(filepath.Join(dir, "ca.crt"))
	if errors.Is(err, os.ErrNotExist) {
		err = a.create()
	}
	if err != nil {
		return nil, err
	}
	if a.pem, err = os.ReadFile(filepath.Join(dir, "ca.crt")); err != nil {
		return nil, err
	}
	if a.key, err = readKey(filepath.Join(dir, "ca.key")); err != nil {
		return nil, err
	}
	block, _ := pem.Decode(a.pem)
	if block == nil {
		return nil, fmt.Errorf("%s/ca.crt is no certificate: run 'lab down', then 'lab up'", dir)
	}
	a.cert, err = x509.ParseCertificate(block.Bytes)
	return a, err
}

// PEM is the authority's own certificate.
func (a *Authority) PEM() []byte { return bytes.Clone(a.pem) }

func (a *Authority) create() error {
	if err := os.MkdirAll(a.dir, 0o755); err != nil {
		return err
	}
	key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		return err
	}
	template, err := template(Subject{Name: "singletonjob-tests"})
	if err != nil {
		return err
	}
	template.IsCA, template.BasicConstraintsValid = true, true
	template.KeyUsage, template.ExtKeyUsage = x509.KeyUsageCertSign|x509.KeyUsageCRLSign, nil
	der, err := x509.CreateCertificate(rand.Reader, template, template, key.Public(), key)
	if err != nil {
		return err
	}
	// The certificate comes last: who finds it finds the key.
	if err := writeKey(filepath.Join(a.dir, "ca.key"), key); err != nil {
		return err
	}
	return writePEM(filepath.Join(a.dir, "ca.crt"), "CERTIFICATE", der, 0o644)
}

// Issue writes a certificate and its key under the file name, unless they are there.
func (a *Authority) Issue(file string, s Subject) error {
	a.mu.Lock()
	defer a.mu.Unlock()
	crt := filepath.Join(a.dir, file+".crt")
	if _, err := os.Stat(crt); err == nil {
		return nil
	}
	key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		return err
	}
	template, err := template(s)
	if err != nil {
		return err
	}
	der, err := x509.CreateCertificate(rand.Reader, template, a.cert, key.Public(), a.key)
	if err != nil {
		return fmt.Errorf("sign the certificate of %s: %w", s.Name, err)
	}
	if err := writeKey(filepath.Join(a.dir, file+".key"), key); err != nil {
		return err
	}
	return writePEM(crt, "CERTIFICATE", der, 0o644)
}

// Certificate is what Issue has written.
func (a *Authority) Certificate(file string, s Subject) (tls.Certificate, error) {
	if err := a.Issue(file, s); err != nil {
		return tls.Certificate{}, err
	}
	return tls.LoadX509KeyPair(filepath.Join(a.dir, file+".crt"), filepath.Join(a.dir, file+".key"))
}

// SigningKey writes a key pair, NAME.key and NAME.pub, unless it is there.
func (a *Authority) SigningKey(file string) error {
	pub := filepath.Join(a.dir, file+".pub")
	if _, err := os.Stat(pub); err == nil {
		return nil
	}
	key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		return err
	}
	der, err := x509.MarshalPKIXPublicKey(key.Public())
	if err != nil {
		return err
	}
	if err := writeKey(filepath.Join(a.dir, file+".key"), key); err != nil {
		return err
	}
	return writePEM(pub, "PUBLIC KEY", der, 0o644)
}

func template(s Subject) (*x509.Certificate, error) {
	serial, err := rand.Int(rand.Reader, new(big.Int).Lsh(big.NewInt(1), 120))
	if err != nil {
		return nil, err
	}
	now := time.Now()
	c := &x509.Certificate{
		SerialNumber: serial,
		Subject:      pkix.Name{CommonName: s.Name, Organization: s.Groups},
		NotBefore:    now.Add(-time.Hour), // the machine's clock may be set back
		NotAfter:     now.Add(valid),
		KeyUsage:     x509.KeyUsageDigitalSignature,
		ExtKeyUsage:  []x509.ExtKeyUsage{x509.ExtKeyUsageClientAuth},
	}
	for _, host := range s.Hosts {
		c.ExtKeyUsage = []x509.ExtKeyUsage{x509.ExtKeyUsageServerAuth}
		if ip := net.ParseIP(host); ip != nil {
			c.IPAddresses = append(c.IPAddresses, ip)
		} else {
			c.DNSNames = append(c.DNSNames, host)
		}
	}
	return c, nil
}

func readKey(path string) (*ecdsa.PrivateKey, error) {
	text, err := os.ReadFile(path)
	if err != nil {
		return nil, err
	}
	block, _ := pem.Decode(text)
	if block == nil {
		return nil, fmt.Errorf("%s is no key", path)
	}
	return x509.ParseECPrivateKey(block.Bytes)
}

func writeKey(path string, key *ecdsa.PrivateKey) error {
	der, err := x509.MarshalECPrivateKey(key)
	if err != nil {
		return err
	}
	return writePEM(path, "EC PRIVATE KEY", der, 0o600)
}

// writePEM leaves either the whole file or none.
func writePEM(path, kind string, der []byte, mode os.FileMode) error {
	partial := path + ".partial"
	if err := os.WriteFile(partial, pem.EncodeToMemory(&pem.Block{Type: kind, Bytes: der}), mode); err != nil {
		return err
	}
	return os.Rename(partial, path)
}
