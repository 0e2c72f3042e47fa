package entrypoint

import (
	"context"
	"encoding/base64"
	"encoding/json"
	"encoding/pem"
	"fmt"
	"io"
	"log"
	"net/http"
	"net/http/httptest"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"github.com/google/go-containerregistry/pkg/name"
	"github.com/google/go-containerregistry/pkg/registry"
	v1 "github.com/google/go-containerregistry/pkg/v1"
	"github.com/google/go-containerregistry/pkg/v1/empty"
	"github.com/google/go-containerregistry/pkg/v1/mutate"
	"github.com/google/go-containerregistry/pkg/v1/remote"
	"github.com/google/go-containerregistry/pkg/v1/types"
	corev1 "k8s.io/api/core/v1"

	"github.com/singletonjob/operator/test/closedport"
)

// hub is a registry in this process. around sees each request first; asked are the paths of requests.
type hub struct {
	t      *testing.T
	host   string
	mu     sync.Mutex
	around func(http.ResponseWriter, *http.Request) (answered bool)
	asked  []string
}

func newHub(t *testing.T) *hub {
	t.Helper()
	h := &hub{t: t}
	server := httptest.NewServer(h.handler())
	t.Cleanup(server.Close)
	h.host = server.Listener.Addr().String()
	return h
}

func (h *hub) handler() http.Handler {
	inner := registry.New(registry.Logger(log.New(io.Discard, "", 0)))
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		h.mu.Lock()
		h.asked = append(h.asked, r.Method+" "+r.URL.Path)
		around := h.around
		h.mu.Unlock()
		if around == nil || !around(w, r) {
			inner.ServeHTTP(w, r)
		}
	})
}

func (h *hub) registry() *Registry {
	h.t.Helper()
	r, err := NewRegistry(Options{Insecure: []string{h.host}})
	must(h.t, err)
	return r
}

func must(t *testing.T, err error) {
	t.Helper()
	if err != nil {
		t.Fatal(err)
	}
}

func (h *hub) ref(path string) name.Reference {
	h.t.Helper()
	ref, err := name.ParseReference(h.host+"/"+path, name.Insecure)
	must(h.t, err)
	return ref
}

func image(t *testing.T, p process) v1.Image {
	t.Helper()
	made, err := mutate.Config(empty.Image, v1.Config{Entrypoint: p.Entrypoint, Cmd: p.Cmd, StopSignal: p.StopSignal})
	must(t, err)
	return made
}

// push stores an image and returns its digest.
func (h *hub) push(path string, p process) string {
	h.t.Helper()
	made := image(h.t, p)
	must(h.t, remote.Write(h.ref(path), made))
	digest, err := made.Digest()
	must(h.t, err)
	return digest.String()
}

// pushIndex stores an index of images by platform.
func (h *hub) pushIndex(path string, images map[string]process) {
	h.t.Helper()
	index := v1.ImageIndex(empty.Index)
	for platform, p := range images {
		parsed, err := v1.ParsePlatform(platform)
		must(h.t, err)
		index = mutate.AppendManifests(index, mutate.IndexAddendum{Add: image(h.t, p), Descriptor: v1.Descriptor{Platform: parsed}})
	}
	must(h.t, remote.WriteIndex(h.ref(path), index))
}

var (
	server = process{Entrypoint: []string{"/server"}, Cmd: []string{"--serve"}}
	other  = process{Entrypoint: []string{"/other"}}
)

func TestFind(t *testing.T) {
	h := newHub(t)
	digest := h.push("app:v1", server)
	h.push("cmd:v1", process{Cmd: []string{"/run", "$(HOME)"}})
	h.push("blank:v1", process{Entrypoint: []string{""}, Cmd: []string{"/run"}})
	h.push("nothing:v1", process{})
	quits := process{Entrypoint: []string{"/server"}, StopSignal: "SIGQUIT"}
	h.push("quits:v1", process{Entrypoint: []string{"/server"}, StopSignal: "quit"})
	h.push("kills:v1", process{Entrypoint: []string{"/server"}, StopSignal: "SIGKILL"})
	h.pushIndex("stops:v1", map[string]process{"linux/amd64": quits, "linux/arm64": quits})
	h.pushIndex("stops:v2", map[string]process{"linux/amd64": quits, "linux/arm64": {Entrypoint: []string{"/server"}, StopSignal: "SIGHUP"}})
	h.push("endless:v1", process{Cmd: []string{strings.Repeat("x", maxLength)}})
	h.pushIndex("same:v1", map[string]process{"linux/amd64": server, "linux/arm64": server, "windows/amd64": other, "unknown/unknown": other})
	h.pushIndex("differ:v1", map[string]process{"linux/amd64": server, "linux/arm64": other})
	h.pushIndex("variants:v1", map[string]process{"linux/arm/v6": server, "linux/arm/v7": other})
	artifact := mutate.ConfigMediaType(image(t, process{}), "application/vnd.example.chart+json")
	must(t, remote.Write(h.ref("chart:v1"), artifact))
	for name, c := range map[string]struct {
		image         string
		args          bool
		architectures []string
		want          process
		says          string
	}{
		"entrypoint and cmd":    {image: "app:v1", want: server},
		"by digest":             {image: "app@" + digest, want: server},
		"by tag and digest":     {image: "app:gone@" + digest, want: server},
		"cmd alone":             {image: "cmd:v1", want: process{Cmd: []string{"/run", "$(HOME)"}}},
		"an empty entrypoint":   {image: "blank:v1", want: process{Cmd: []string{"/run"}}},
		"nothing but args":      {image: "nothing:v1", args: true},
		"nothing":               {image: "nothing:v1", says: "so it runs nothing by itself"},
		"no image":              {image: "chart:v1", says: "so it runs nothing by itself"},
		"too long":              {image: "endless:v1", says: "more than 32768 bytes"},
		"an index":              {image: "same:v1", architectures: []string{"amd64", "arm64"}, want: server},
		"an index, any node":    {image: "same:v1", want: server},
		"an index that differs": {image: "differ:v1", architectures: []string{"amd64", "arm64"}, says: "does not run the same command on all architectures of the nodes (amd64, arm64)"},
		"where no node differs": {image: "differ:v1", architectures: []string{"arm64"}, want: other},
		"variants differ":       {image: "variants:v1", architectures: []string{"arm"}, says: "does not run the same command"},
		"no node can run it":    {image: "same:v1", architectures: []string{"riscv64"}, says: "no image for Linux on the architectures of the nodes (riscv64)"},
		"a stop signal":         {image: "quits:v1", want: quits},
		"one that is none":      {image: "kills:v1", want: process{Entrypoint: []string{"/server"}}},
		"the same for each":     {image: "stops:v1", want: quits},
		"another for each":      {image: "stops:v2", want: process{Entrypoint: []string{"/server"}}},
		"no such tag":           {image: "app:v2", says: "has no such image"},
		"no such repository":    {image: "app2:v1", says: "has no such image"},
		"no such digest":        {image: "app@sha256:" + strings.Repeat("0", 64), says: "has no such image"},
		"no name":               {image: "APP", says: "the image name is invalid"},
	} {
		t.Run(name, func(t *testing.T) {
			want := Want{Image: h.host + "/" + c.image, TemplateHash: "hash", Args: c.args, Architectures: c.architectures}
			found, err := h.registry().Find(t.Context(), want, Credentials{})
			if c.says != "" {
				if err == nil || !strings.Contains(err.Error(), c.says) {
					t.Errorf("got %+v and the error %v, want it to say %q", found, err, c.says)
				}
				return
			}
			must(t, err)
			if found.Digest == "" || found.Image != want.Image || found.TemplateHash != "hash" {
				t.Errorf("got %+v", found)
			}
			if diff := cmp.Diff(c.want, process{found.Command, found.Args, found.StopSignal}); diff != "" {
				t.Errorf("(-want +got):\n%s", diff)
			}
		})
	}
}

// TestTrouble: each problem has its own message, which quotes nothing from the registry.
func TestTrouble(t *testing.T) {
	const secret = "what only the operator may read"
	status := func(code int) func(http.ResponseWriter, *http.Request) bool {
		return func(w http.ResponseWriter, _ *http.Request) bool {
			w.WriteHeader(code)
			_, _ = io.WriteString(w, `{"errors":[{"code":"UNKNOWN","message":"`+secret+`"}]}`)
			return true
		}
	}
	for name, c := range map[string]struct {
		around func(http.ResponseWriter, *http.Request) bool
		says   string
	}{
		"not allowed":     {status(http.StatusUnauthorized), "or refuses the operator's credentials (a note)"},
		"forbidden":       {status(http.StatusForbidden), "or refuses the operator's credentials"},
		"not found":       {status(http.StatusNotFound), "has no such image"},
		"asked too often": {status(http.StatusTooManyRequests), "limits the rate of requests (status 429)"},
		"broken":          {status(http.StatusInternalServerError), "answers with status 500"},
		"something else":  {status(http.StatusTeapot), "answers with status 418"},
		"no registry": {func(w http.ResponseWriter, _ *http.Request) bool {
			_, err := io.WriteString(w, secret)
			return err == nil
		}, "is not a container image"},
		"endless": {func(w http.ResponseWriter, r *http.Request) bool {
			if !strings.Contains(r.URL.Path, "/manifests/") {
				return false
			}
			w.Header().Set("Content-Type", string(types.DockerManifestSchema2))
			for range maxAnswer>>20 + 1 {
				_, _ = w.Write(make([]byte, 1<<20))
			}
			return true
		}, "gives "},
		"cut off": {func(w http.ResponseWriter, _ *http.Request) bool {
			conn, _, err := http.NewResponseController(w).Hijack()
			return err == nil && conn.Close() == nil
		}, "gives an answer that the operator cannot read"},
		"asks for a token elsewhere": {func(w http.ResponseWriter, _ *http.Request) bool {
			w.Header().Set("WWW-Authenticate", `Bearer realm="http://169.254.169.254/latest",service="x"`)
			w.WriteHeader(http.StatusUnauthorized)
			return true
		}, "gives an answer that the operator cannot read"},
		"sends to a host that speaks plain HTTP": {func(w http.ResponseWriter, r *http.Request) bool {
			if !strings.Contains(r.URL.Path, "/manifests/") {
				return false
			}
			http.Redirect(w, r, "http://example.invalid/", http.StatusTemporaryRedirect)
			return true
		}, "plain HTTP"},
	} {
		t.Run(name, func(t *testing.T) {
			h := newHub(t)
			h.push("app:v1", server)
			h.around = c.around
			_, err := h.registry().Find(t.Context(), Want{Image: h.host + "/app:v1"}, Credentials{Note: "a note"})
			if err == nil || !strings.Contains(err.Error(), c.says) || !strings.Contains(err.Error(), h.host) && c.says != "is not a container image" {
				t.Errorf("got %v, want it to name %s and to say %q", err, h.host, c.says)
			}
			if err != nil && strings.Contains(err.Error(), secret) {
				t.Errorf("the answer is shown: %v", err)
			}
		})
	}
}

func TestUnreachableRegistry(t *testing.T) {
	h := newHub(t)
	gone := closedport.Address(t)
	silent := make(chan struct{})
	defer close(silent)
	h.around = func(_ http.ResponseWriter, r *http.Request) bool {
		select {
		case <-silent:
		case <-r.Context().Done():
		}
		return true
	}
	r, err := NewRegistry(Options{Insecure: []string{h.host, gone}})
	must(t, err)
	_, err = r.Find(t.Context(), Want{Image: gone + "/app"}, Credentials{})
	if err == nil || !strings.Contains(err.Error(), gone+" refuses connections") {
		t.Errorf("got %v", err)
	}
	ctx, cancel := context.WithTimeout(t.Context(), 50*time.Millisecond)
	defer cancel()
	_, err = r.Find(ctx, Want{Image: h.host + "/app"}, Credentials{})
	if err == nil || !strings.Contains(err.Error(), "did not answer in time") {
		t.Errorf("got %v", err)
	}
}

// TestRegistriesThatAreRefused: the operator asks neither without TLS nor at addresses of this machine, unless the host is listed.
func TestRegistriesThatAreRefused(t *testing.T) {
	h := newHub(t)
	h.push("app:v1", server)
	plain, err := NewRegistry(Options{})
	must(t, err)
	for _, host := range []string{h.host, strings.Replace(h.host, "127.0.0.1", "localhost", 1)} {
		h.asked = nil
		_, err = plain.Find(t.Context(), Want{Image: host + "/app:v1"}, Credentials{})
		if err == nil || !strings.Contains(err.Error(), "list it in entrypoint.insecureRegistries") || len(h.asked) > 0 {
			t.Errorf("%s: got %v, and it was asked for %v", host, err, h.asked)
		}
	}
	for address, want := range map[string]bool{
		"127.0.0.1:443": false, "[::1]:443": false, "169.254.169.254:80": false, "[fe80::1%eth0]:443": false, "0.0.0.0:443": false,
		"[::]:443": false, "[::ffff:127.0.0.1]:443": false, "[fd00:ec2::254]:80": false, "224.0.0.1:443": false, "no address": false,
		"10.0.0.1:443": true, "192.0.2.1:443": true, "[2001:db8::1]:443": true,
	} {
		if err := refuseLocal("tcp", address, nil); (err == nil) != want {
			t.Errorf("%s: %v", address, err)
		}
	}
}

func TestCertificates(t *testing.T) {
	h := &hub{t: t}
	secure := httptest.NewTLSServer(h.handler())
	t.Cleanup(secure.Close)
	secure.Config.ErrorLog = log.New(io.Discard, "", 0)
	host := secure.Listener.Addr().String()
	ref, err := name.ParseReference(host + "/app:v1")
	must(t, err)
	must(t, remote.Write(ref, image(t, server), remote.WithTransport(secure.Client().Transport)))
	ca := pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: secure.Certificate().Raw})
	for says, roots := range map[string][]byte{"": ca, "a certificate that the operator does not trust": nil} {
		r, err := NewRegistry(Options{Insecure: []string{host}, Roots: roots}) // for its address
		must(t, err)
		_, err = r.Find(t.Context(), Want{Image: host + "/app:v1"}, Credentials{})
		if (err == nil) != (says == "") || err != nil && !strings.Contains(err.Error(), says) {
			t.Errorf("%d bytes of roots: %v, want %q", len(roots), err, says)
		}
	}
}

func TestBadOptions(t *testing.T) {
	for says, o := range map[string]Options{
		`"https://host/" is not a registry`: {Insecure: []string{"https://host/"}},
		`"" is not a registry`:              {Insecure: []string{""}},
		"found no certificate in PEM":       {Roots: []byte("x")},
	} {
		if _, err := NewRegistry(o); err == nil || !strings.Contains(err.Error(), says) {
			t.Errorf("got %v, want %q", err, says)
		}
	}
}

func pullSecret(t *testing.T, auths map[string]any) *corev1.Secret {
	t.Helper()
	raw, err := json.Marshal(map[string]any{"auths": auths})
	must(t, err)
	return &corev1.Secret{Type: corev1.SecretTypeDockerConfigJson, Data: map[string][]byte{corev1.DockerConfigJsonKey: raw}}
}

func login(user, password string) map[string]any {
	return map[string]any{"auth": base64.StdEncoding.EncodeToString([]byte(user + ":" + password))}
}

// TestPrivate: credentials are tried until one is accepted, and a request without them gets no cached result.
func TestPrivate(t *testing.T) {
	h := newHub(t)
	h.push("team/app:v1", server)
	var tried []string
	h.around = func(w http.ResponseWriter, r *http.Request) bool {
		user, password, _ := r.BasicAuth()
		if user == "right" && password == "p:w" {
			return false
		}
		if user != "" {
			tried = append(tried, user)
		}
		w.Header().Set("WWW-Authenticate", `Basic realm="x"`)
		w.WriteHeader(http.StatusUnauthorized)
		return true
	}
	r := h.registry()
	want := Want{Image: h.host + "/team/app:v1"}
	var right Credentials
	right.Add(pullSecret(t, map[string]any{
		"https://" + h.host + "/v2/team": login("wrong", "x"), h.host: login("right", "p:w"),
		h.host + "/te": login("another", "x"), "elsewhere.example": login("elsewhere", "x"), "127.0.0.1": login("portless", "x"),
	}))
	found, err := r.Find(t.Context(), want, right)
	must(t, err)
	if diff := cmp.Diff([]string{"/server"}, found.Command); diff != "" {
		t.Error(diff)
	}
	if diff := cmp.Diff([]string{"wrong"}, tried); diff != "" {
		t.Errorf("wrong credentials that were sent (-want +got):\n%s", diff)
	}
	_, err = r.Find(t.Context(), want, Credentials{Note: "why"})
	if err == nil || !strings.Contains(err.Error(), "(why)") {
		t.Errorf("without credentials: %v", err)
	}
}

// TestRedirectsGetNoCredentials: a redirect of a registry does not pass on the credentials.
func TestRedirectsGetNoCredentials(t *testing.T) {
	h, elsewhere := newHub(t), newHub(t)
	var heard []string
	elsewhere.around = func(w http.ResponseWriter, r *http.Request) bool {
		heard = append(heard, r.Header.Get("Authorization"))
		w.WriteHeader(http.StatusNotFound)
		return true
	}
	h.around = func(w http.ResponseWriter, r *http.Request) bool {
		switch _, _, known := r.BasicAuth(); {
		case !known:
			w.Header().Set("WWW-Authenticate", `Basic realm="x"`)
			w.WriteHeader(http.StatusUnauthorized)
		default:
			http.Redirect(w, r, "http://"+elsewhere.host+r.URL.Path, http.StatusTemporaryRedirect)
		}
		return true
	}
	r, err := NewRegistry(Options{Insecure: []string{h.host, elsewhere.host}})
	must(t, err)
	var c Credentials
	c.Add(pullSecret(t, map[string]any{h.host: login("user", "password")}))
	_, err = r.Find(t.Context(), Want{Image: h.host + "/app"}, c)
	if err == nil || strings.Contains(err.Error(), "password") {
		t.Errorf("got %v", err)
	}
	for _, header := range heard {
		if header != "" {
			t.Errorf("another host was told %q", header)
		}
	}
}

func TestMatching(t *testing.T) {
	hubs := name.DefaultRegistry
	for name, c := range map[string]struct {
		key, image string
		want       bool
	}{
		"same host":             {"r.example", "r.example/a", true},
		"another host":          {"r.example", "s.example/a", false},
		"same port":             {"r.example:5000", "r.example:5000/a", true},
		"another port":          {"r.example:5000", "r.example/a", false},
		"no port":               {"r.example", "r.example:5000/a", false},
		"a URL":                 {"https://r.example/v1/", "r.example/a", true},
		"a path":                {"r.example/team", "r.example/team/a", true},
		"a part of a path":      {"r.example/te", "r.example/team/a", false},
		"any part of a host":    {"*.r.example", "eu.r.example/a", true},
		"not several parts":     {"*.example", "eu.r.example/a", false},
		"a part of a part":      {"a*.example", "abc.example/a", true},
		"the default":           {"https://" + hubs + "/v1/", "nginx", true},
		"its other name":        {strings.TrimPrefix(hubs, "index."), "library/nginx", true},
		"a bad pattern":         {"[.example", "r.example/a", false},
		"letters of both cases": {"R.example", "r.example/a", true},
	} {
		t.Run(name, func(t *testing.T) {
			var credentials Credentials
			credentials.Add(pullSecret(t, map[string]any{c.key: login("u", "p")}))
			if got := len(credentials.matchingImage(t, c.image)) > 0; got != c.want {
				t.Errorf("got %v", got)
			}
		})
	}
}

func (c *Credentials) matchingImage(t *testing.T, image string) []credential {
	t.Helper()
	ref, err := name.ParseReference(image)
	must(t, err)
	var found []credential
	for _, e := range c.entries {
		if e.isFor(canonical(ref.Context().RegistryStr()), ref.Context().RepositoryStr()) {
			found = append(found, e)
		}
	}
	return found
}

func TestPullSecretFormats(t *testing.T) {
	old, err := json.Marshal(map[string]any{"r.example": map[string]any{"username": "u", "password": "p"}})
	must(t, err)
	for name, c := range map[string]struct {
		secret *corev1.Secret
		want   int
	}{
		"a login":            {pullSecret(t, map[string]any{"r.example": login("u", "p")}), 1},
		"user and password":  {pullSecret(t, map[string]any{"r.example": map[string]any{"username": "u", "password": "p"}}), 1},
		"the older form":     {&corev1.Secret{Type: corev1.SecretTypeDockercfg, Data: map[string][]byte{corev1.DockerConfigKey: old}}, 1},
		"no JSON":            {&corev1.Secret{Type: corev1.SecretTypeDockerConfigJson, Data: map[string][]byte{corev1.DockerConfigJsonKey: []byte("x")}}, 0},
		"no data":            {&corev1.Secret{Type: corev1.SecretTypeDockerConfigJson}, 0},
		"another type":       {&corev1.Secret{Type: corev1.SecretTypeOpaque, Data: map[string][]byte{corev1.DockerConfigKey: old}}, 0},
		"a login of no form": {pullSecret(t, map[string]any{"r.example": map[string]any{"auth": "!"}}), 0},
		"nothing in it":      {pullSecret(t, map[string]any{"r.example": map[string]any{}}), 0},
	} {
		t.Run(name, func(t *testing.T) {
			var credentials Credentials
			credentials.Add(c.secret)
			if got := len(credentials.entries); got != c.want {
				t.Errorf("%d credentials, want %d", got, c.want)
			}
		})
	}
}

// TestConfigurationsAreCached: the configuration of a known digest is not read again.
func TestConfigurationsAreCached(t *testing.T) {
	h := newHub(t)
	h.push("app:v1", server)
	h.push("app:v2", server)
	r := h.registry()
	for _, tag := range []string{"v1", "v2"} {
		h.asked = nil
		_, err := r.Find(t.Context(), Want{Image: h.host + "/app:" + tag}, Credentials{})
		must(t, err)
		blobs := 0
		for _, path := range h.asked {
			if strings.Contains(path, "/blobs/") {
				blobs++
			}
		}
		if want := map[string]int{"v1": 1, "v2": 0}[tag]; blobs != want {
			t.Errorf("%s: %d blobs were read, want %d: %v", tag, blobs, want, h.asked)
		}
	}
	for i := range 2 * maxKept {
		r.remember(v1.Hash{Hex: fmt.Sprint(i)}, server)
	}
	if len(r.kept) > maxKept {
		t.Errorf("%d configurations are kept", len(r.kept))
	}
}

// FuzzConfiguration: whatever a registry returns as a configuration, the result is an entrypoint of bounded length that runs
// something, or an error.
func FuzzConfiguration(f *testing.F) {
	f.Add([]byte(`{"config":{"Entrypoint":["/a"],"Cmd":null}}`))
	f.Add([]byte(`{"config":{"Entrypoint":"/a"}}`))
	f.Add([]byte(`[]`))
	f.Fuzz(func(t *testing.T, raw []byte) {
		var config struct {
			Config process `json:"config"`
		}
		if json.Unmarshal(raw, &config) != nil {
			return
		}
		found, err := config.Config.entrypoint(Want{}, v1.Hash{})
		if (found == nil) == (err == nil) || found != nil && len(found.Command)+len(found.Args) == 0 {
			t.Errorf("%+v, %v", found, err)
		}
	})
}
