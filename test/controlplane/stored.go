//go:build linux

package controlplane

import (
	"bytes"
	"context"
	"crypto/tls"
	"crypto/x509"
	"encoding/json"
	"fmt"
	"net/http"
)

// Stored returns the bytes that etcd has under a key, such as /registry/leases/NAMESPACE/NAME; nil if the key does not exist. Each write of
// the object adds these bytes to etcd's database, which adds some of its own.
func (a *APIServer) Stored(ctx context.Context, key string) ([]byte, error) {
	var answer struct {
		Kvs []struct{ Value []byte }
	}
	if err := a.ask(ctx, "kv/range", map[string][]byte{"key": []byte(key)}, &answer); err != nil { // bytes are in base64, as etcd wants them
		return nil, fmt.Errorf("asking etcd for %s: %w", key, err)
	}
	if len(answer.Kvs) == 0 {
		return nil, nil
	}
	return answer.Kvs[0].Value, nil
}

// DatabaseSize is how long etcd's database is, which its quota bounds, in bytes. It shrinks by nothing but a defragmentation.
func (a *APIServer) DatabaseSize(ctx context.Context) (int64, error) {
	var answer struct {
		DBSize int64 `json:"dbSize,string"`
	}
	if err := a.ask(ctx, "maintenance/status", struct{}{}, &answer); err != nil {
		return 0, fmt.Errorf("asking etcd for the size of its database: %w", err)
	}
	return answer.DBSize, nil
}

// ask asks etcd's gateway.
func (a *APIServer) ask(ctx context.Context, what string, question, answer any) error {
	certificate, err := tls.LoadX509KeyPair(a.path("etcd-client.crt"), a.path("etcd-client.key"))
	if err != nil {
		return err
	}
	authorities := x509.NewCertPool()
	authorities.AppendCertsFromPEM(a.CA())
	transport := &http.Transport{TLSClientConfig: &tls.Config{
		RootCAs: authorities, Certificates: []tls.Certificate{certificate}, MinVersion: tls.VersionTLS12,
	}}
	defer transport.CloseIdleConnections()
	body, err := json.Marshal(question)
	if err != nil {
		return err
	}
	url := fmt.Sprintf("https://127.0.0.1:%d/v3/%s", a.etcdPort, what)
	request, err := http.NewRequestWithContext(ctx, http.MethodPost, url, bytes.NewReader(body))
	if err != nil {
		return err
	}
	response, err := transport.RoundTrip(request)
	if err != nil {
		return err
	}
	defer func() { _ = response.Body.Close() }()
	if response.StatusCode != http.StatusOK {
		return fmt.Errorf("it said %s", response.Status)
	}
	return json.NewDecoder(response.Body).Decode(answer)
}
