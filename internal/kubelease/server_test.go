//go:build linux

package kubelease

import (
	"context"
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/x509"
	"encoding/json"
	"encoding/pem"
	"fmt"
	"io"
	"log"
	"math/big"
	"net"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"sync/atomic"
	"testing"
	"time"

	"github.com/singletonjob/operator/internal/lease"
)

// fake is a hand-made API server: it says what no real one can be made to say.
type fake struct {
	*httptest.Server
	connections atomic.Int64
}

// connectionKey is where a request's context holds which connection it came over: 1 for the first.
type connectionKey struct{}

// serve starts a fake that TLS clients trust.
func serve(t *testing.T, h http.HandlerFunc) *fake {
	t.Helper()
	f := &fake{Server: httptest.NewUnstartedServer(h)}
	f.Config.ConnState = func(_ net.Conn, s http.ConnState) {
		if s == http.StateNew {
			f.connections.Add(1)
		}
	}
	var opened atomic.Int64
	f.Config.ConnContext = func(ctx context.Context, _ net.Conn) context.Context {
		return context.WithValue(ctx, connectionKey{}, opened.Add(1))
	}
	f.Config.ErrorLog = log.New(io.Discard, "", 0)
	f.StartTLS()
	t.Cleanup(func() {
		f.CloseClientConnections()
		f.Close()
	})
	return f
}

func (f *fake) ca() []byte {
	return pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: f.Certificate().Raw})
}

// newAuthorityPEM is a certificate authority that has signed nobody.
func newAuthorityPEM(t *testing.T) []byte {
	t.Helper()
	key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		t.Fatal(err)
	}
	template := &x509.Certificate{SerialNumber: big.NewInt(1), NotAfter: time.Now().Add(time.Hour), IsCA: true, BasicConstraintsValid: true}
	der, err := x509.CreateCertificate(rand.Reader, template, template, key.Public(), key)
	if err != nil {
		t.Fatal(err)
	}
	return pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: der})
}

// credentials writes a directory as the kubelet mounts it.
func credentials(t testing.TB, ca []byte, token string) string {
	t.Helper()
	dir := t.TempDir()
	put(t, filepath.Join(dir, "ca.crt"), ca)
	put(t, filepath.Join(dir, "token"), []byte(token+"\n"))
	return dir
}

func put(t testing.TB, path string, content []byte) {
	t.Helper()
	if err := os.WriteFile(path+".new", content, 0o600); err != nil {
		t.Fatal(err)
	}
	if err := os.Rename(path+".new", path); err != nil {
		t.Fatal(err)
	}
}

func (f *fake) client(t *testing.T) *Client {
	t.Helper()
	return newClient(t, Config{Server: f.URL, Namespace: "ns", Name: "job", Credentials: credentials(t, f.ca(), "secret")})
}

func newClient(t *testing.T, c Config) *Client {
	t.Helper()
	client, err := New(c)
	if err != nil {
		t.Fatal(err)
	}
	return client
}

// leaseJSON is a Lease as an API server writes it, with much that the protocol does not know.
func leaseJSON(revision int64) string {
	return fmt.Sprintf(`{"kind":"Lease","apiVersion":"coordination.k8s.io/v1","metadata":{"name":"job","namespace":"ns",`+
		`"uid":"u1","resourceVersion":"%d","creationTimestamp":"2026-01-01T00:00:00Z","generation":1e3,`+
		`"labels":{"app.kubernetes.io/managed-by":"singletonjob","z":"<last>","a":"first"},`+
		`"annotations":{"singletonjob.io/fencing-token":"7","singletonjob.io/lease-duration":"15s","theirs":"kept & \u003cunchanged>"},`+
		`"ownerReferences":[{"apiVersion":"v1","kind":"Pod","name":"p","uid":"u9","blockOwnerDeletion":false}],`+
		`"managedFields":[{"manager":"m","fieldsV1":{"f:spec":{".":{},"f:holderIdentity":{}}}}],"fromTheFuture":[1,1.50,12345678901234567890]},`+
		`"spec":{"holderIdentity":"a/u/n","leaseDurationSeconds":15,"leaseTransitions":3,`+
		`"acquireTime":"2026-01-01T00:00:00.000000Z","renewTime":"2026-01-01T00:00:01.000001Z","strategy":"OldestEmulationVersion","future":{"b":1,"a":2}},`+
		`"status":null}`, revision)
}

func statusJSON(code int, reason, group, kind, name string) string {
	return fmt.Sprintf(`{"kind":"Status","apiVersion":"v1","metadata":{},"status":"Failure","message":"said the server",`+
		`"reason":%q,"details":{"name":%q,"group":%q,"kind":%q},"code":%d}`, reason, name, group, kind, code)
}

// object is leaseJSON decoded.
func object(t *testing.T, c *Client, revision int64) *Object {
	t.Helper()
	o, err := c.decode([]byte(leaseJSON(revision)))
	if err != nil {
		t.Fatal(err)
	}
	return o
}

// renewal is a record that replaces o.
func renewal(o *Object) lease.Record {
	r := o.Record
	r.RenewTime += 1_000_000
	return r
}

// stored answers as an API server that stores what it was sent.
func stored(w http.ResponseWriter, r *http.Request) {
	var sent map[string]any
	if err := json.NewDecoder(r.Body).Decode(&sent); err != nil {
		http.Error(w, err.Error(), http.StatusBadRequest)
		return
	}
	sent["metadata"].(map[string]any)["resourceVersion"] = "11"
	_ = json.NewEncoder(w).Encode(sent)
}

func within(t *testing.T, d time.Duration) context.Context {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), d)
	t.Cleanup(cancel)
	return ctx
}
