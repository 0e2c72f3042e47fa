package entrypoint

import (
	"cmp"
	"encoding/base64"
	"encoding/json"
	"path"
	"slices"
	"strings"

	"github.com/google/go-containerregistry/pkg/authn"
	"github.com/google/go-containerregistry/pkg/name"
	corev1 "k8s.io/api/core/v1"
)

// Credentials are the contents of a Pod's pull secrets.
type Credentials struct {
	// Note says what is missing, for users whose registry demands credentials; empty if nothing is missing.
	Note    string
	entries []credential
}

// credential is for a host, optionally with a port, or for some of its paths. It is never printed.
type credential struct {
	host, path string
	auth       authn.AuthConfig
}

// maxAttempts bounds the credentials that are tried for one image.
const maxAttempts = 8

// Add adds the contents of a secret. Like a kubelet, it ignores invalid entries.
func (c *Credentials) Add(secret *corev1.Secret) {
	var entries map[string]entry
	switch secret.Type {
	case corev1.SecretTypeDockerConfigJson:
		var config struct {
			Auths map[string]entry `json:"auths"`
		}
		_ = json.Unmarshal(secret.Data[corev1.DockerConfigJsonKey], &config)
		entries = config.Auths
	case corev1.SecretTypeDockercfg:
		_ = json.Unmarshal(secret.Data[corev1.DockerConfigKey], &entries)
	default:
	}
	for key, e := range entries {
		if auth, ok := e.auth(); ok {
			host, within := split(key)
			c.entries = append(c.entries, credential{host, within, auth})
		}
	}
	// The longest path first, then exact hosts, then the rest in a stable order.
	slices.SortStableFunc(c.entries, func(a, b credential) int {
		return cmp.Or(-cmp.Compare(len(a.path), len(b.path)), cmp.Compare(strings.Count(a.host, "*"), strings.Count(b.host, "*")),
			-cmp.Compare(a.host, b.host), -cmp.Compare(a.path, b.path))
	})
}

// entry is one registry in a Docker configuration.
type entry struct {
	Username string `json:"username"`
	Password string `json:"password"`
	Auth     string `json:"auth"`
}

func (e entry) auth() (authn.AuthConfig, bool) {
	if e.Auth != "" {
		raw, err := base64.StdEncoding.DecodeString(e.Auth)
		if err != nil {
			raw, err = base64.RawStdEncoding.DecodeString(e.Auth)
		}
		user, password, found := strings.Cut(strings.TrimRight(string(raw), "\x00"), ":")
		if err != nil || !found {
			return authn.AuthConfig{}, false
		}
		e.Username, e.Password = user, password
	}
	return authn.AuthConfig{Username: e.Username, Password: e.Password}, e.Username != "" || e.Password != ""
}

// split parses a key of a configuration: a host with an optional port and path, sometimes a URL with the API's version.
func split(key string) (host, within string) {
	key = strings.TrimPrefix(strings.TrimPrefix(key, "https://"), "http://")
	host, within, _ = strings.Cut(key, "/")
	for _, version := range []string{"v1", "v2"} {
		if within == version || strings.HasPrefix(within, version+"/") {
			within = within[len(version):]
			break
		}
	}
	return canonical(host), strings.Trim(within, "/")
}

// canonical gives all names of the default registry the same form.
func canonical(host string) string {
	if "index."+host == name.DefaultRegistry {
		return name.DefaultRegistry
	}
	return strings.ToLower(host)
}

// matching returns the credentials for a repository, most specific first, or anonymous access if there are none.
func (c *Credentials) matching(repository name.Repository) []authn.Authenticator {
	var all []authn.Authenticator
	for _, e := range c.entries {
		if len(all) < maxAttempts && e.isFor(canonical(repository.RegistryStr()), repository.RepositoryStr()) {
			all = append(all, authn.FromConfig(e.auth))
		}
	}
	if len(all) == 0 {
		return []authn.Authenticator{authn.Anonymous}
	}
	return all
}

// isFor matches hosts label by label, where * matches a label or a part of one, and paths by whole segments. A credential without a
// port is for a host without a port.
func (e credential) isFor(host, repository string) bool {
	mine, port, _ := strings.Cut(e.host, ":")
	theirs, theirPort, _ := strings.Cut(host, ":")
	patterns, parts := strings.Split(mine, "."), strings.Split(theirs, ".")
	if port != theirPort || len(patterns) != len(parts) {
		return false
	}
	for i, pattern := range patterns {
		if same, err := path.Match(pattern, parts[i]); err != nil || !same {
			return false
		}
	}
	return e.path == "" || repository == e.path || strings.HasPrefix(repository, e.path+"/")
}
