// Package fenceproxy is a fence for HTTP services that can't be changed: a reverse proxy that refuses writes of a past tenure.
package fenceproxy

import (
	"cmp"
	"encoding/json"
	"errors"
	"fmt"
	"net/url"
	"os"
	"strings"
	"time"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"sigs.k8s.io/yaml"

	"github.com/singletonjob/operator/fence"
	"github.com/singletonjob/operator/fence/fencehttp"
)

// Config is the proxy's configuration file, in YAML or JSON. Changes of rules, upstreams and unfencedMethods apply while the proxy runs;
// all other changes need a restart.
type Config struct {
	// Listen is the address for clients, Admin that for /metrics, /healthz, /readyz and /advance.
	Listen string `json:"listen,omitempty"`
	Admin  string `json:"admin,omitempty"`
	// TLS is the certificate for clients. It is read again when its files change.
	TLS *TLS `json:"tls,omitempty"`
	// Upstream is the service for requests whose rule has no upstream.
	Upstream string `json:"upstream,omitempty"`
	// UpstreamCA is a PEM file with the CA certificates to trust for upstreams, in place of the system's.
	UpstreamCA string `json:"upstreamCA,omitempty"`
	Rules      []Rule `json:"rules,omitempty"`
	// UnfencedMethods pass without a token. Empty: GET, HEAD and OPTIONS.
	UnfencedMethods []string `json:"unfencedMethods,omitempty"`
	Store           Store    `json:"store"`
	// Strict lets only POST /advance raise a mark. AdvanceTokenFile has the bearer token for it.
	Strict           bool   `json:"strict,omitempty"`
	AdvanceTokenFile string `json:"advanceTokenFile,omitempty"`
	// Monitor lets all requests pass, and counts those that would be refused. It does not fence.
	Monitor bool `json:"monitor,omitempty"`
	// As in fencehttp.Fence; 0s is no time.
	Drain    *metav1.Duration `json:"drain,omitempty"`
	Settle   *metav1.Duration `json:"settle,omitempty"`
	Patience *metav1.Duration `json:"patience,omitempty"`
	// ShutdownDelay is how long the proxy still accepts clients after it was asked to end, so that all load balancers learn that it is not
	// ready. Shutdown is how long requests in progress can continue after that.
	ShutdownDelay *metav1.Duration `json:"shutdownDelay,omitempty"`
	Shutdown      *metav1.Duration `json:"shutdown,omitempty"`
}

// TLS names two files.
type TLS struct {
	Cert string `json:"cert"`
	Key  string `json:"key"`
}

// Rule is a rule of fencehttp with an upstream of its own.
type Rule struct {
	Host       string         `json:"host,omitempty"`
	Path       string         `json:"path,omitempty"`
	Resource   fence.Resource `json:"resource,omitempty"`
	FromHeader bool           `json:"fromHeader,omitempty"`
	Unfenced   bool           `json:"unfenced,omitempty"`
	Upstream   string         `json:"upstream,omitempty"`
}

// Store is where the marks are. Set exactly one field.
type Store struct {
	// Bolt is a file on a disk that outlives the process. It is for one replica.
	Bolt string `json:"bolt,omitempty"`
	// Postgres is for several replicas.
	Postgres *PostgresConfig `json:"postgres,omitempty"`
}

// PostgresConfig is the database of the marks.
type PostgresConfig struct {
	// URLFile has the connection string, as postgres://user:password@host/database.
	URLFile string `json:"urlFile"`
	// EvictAfter is how long another replica can hold a mark after it is first wanted, before its session is ended. 0: forever; the next
	// tenure waits.
	EvictAfter metav1.Duration `json:"evictAfter"`
}

// Read reads a configuration. An unknown field is an error.
func Read(file string) (Config, error) {
	var c Config
	text, err := os.ReadFile(file)
	if err != nil {
		return c, err
	}
	if err := yaml.UnmarshalStrict(text, &c); err != nil {
		return c, fmt.Errorf("read %s: %w", file, err)
	}
	return c, nil
}

// Validate reports everything that is wrong.
func (c Config) Validate() error {
	var wrong []error
	if c.Listen == "" || c.Admin == "" {
		wrong = append(wrong, errors.New(`listen and admin: want two addresses, such as ":8080" and ":9090"`))
	}
	wrong = append(wrong, c.Store.validate())
	if c.Strict && c.AdvanceTokenFile == "" {
		wrong = append(wrong, errors.New("strict: needs advanceTokenFile, whose bearer token may advance marks"))
	}
	if c.TLS != nil && (c.TLS.Cert == "" || c.TLS.Key == "") {
		wrong = append(wrong, errors.New("tls: want both cert and key"))
	}
	wrong = append(wrong, c.validateTimes())
	_, err := c.rules()
	return errors.Join(append(wrong, err)...)
}

func (c Config) validateTimes() error {
	for _, one := range []struct {
		name string
		d    *metav1.Duration
	}{
		{"drain", c.Drain}, {"settle", c.Settle}, {"patience", c.Patience}, {"shutdownDelay", c.ShutdownDelay}, {"shutdown", c.Shutdown},
	} {
		if one.d != nil && one.d.Duration < 0 {
			return fmt.Errorf("%s: %v is negative: want 0s or more", one.name, one.d.Duration)
		}
	}
	most := c.drain() + c.settle()
	if c.patience() <= most {
		return fmt.Errorf("patience: %v is not longer than drain (%v) and settle (%v) together, for which the first write of a tenure may have to wait: "+
			"set it to more than %v, and the clients' own timeouts, too", c.patience(), c.drain(), c.settle(), most)
	}
	if evict := c.Store.evictAfter(); evict != 0 && evict <= most {
		return fmt.Errorf("store.postgres.evictAfter: %v is not longer than drain (%v) and settle (%v) together, for which a replica may hold a mark: "+
			"set it to more than %v, or to 0s for never", evict, c.drain(), c.settle(), most)
	}
	return nil
}

func (c Config) drain() time.Duration    { return orDefault(c.Drain, fencehttp.DefaultDrain) }
func (c Config) settle() time.Duration   { return orDefault(c.Settle, fencehttp.DefaultSettle) }
func (c Config) patience() time.Duration { return orDefault(c.Patience, fencehttp.DefaultPatience) }

func orDefault(d *metav1.Duration, otherwise time.Duration) time.Duration {
	if d == nil {
		return otherwise
	}
	return d.Duration
}

func (s Store) evictAfter() time.Duration {
	if s.Postgres == nil {
		return 0
	}
	return s.Postgres.EvictAfter.Duration
}

func (s Store) validate() error {
	if (s.Bolt == "") == (s.Postgres == nil) {
		return errors.New("store: want one of bolt (a file, one replica) and postgres (several replicas)")
	}
	if s.Postgres != nil && s.Postgres.URLFile == "" {
		return errors.New("store.postgres.urlFile: want a file that has the connection string")
	}
	if s.evictAfter() < 0 {
		return fmt.Errorf("store.postgres.evictAfter: %v is negative: want 0s for never, or more", s.evictAfter())
	}
	return nil
}

func (c Config) rules() (*fencehttp.Rules, error) {
	rules := make([]fencehttp.Rule, 0, len(c.Rules))
	for i, r := range c.Rules {
		if _, err := c.upstream(r); err != nil {
			return nil, fmt.Errorf("rules[%d]: %w", i, err)
		}
		rules = append(rules, fencehttp.Rule{Host: r.Host, Path: r.Path, Resource: r.Resource, FromHeader: r.FromHeader, Unfenced: r.Unfenced})
	}
	for _, method := range c.UnfencedMethods {
		if method == "" || strings.ToUpper(method) != method {
			return nil, fmt.Errorf("unfencedMethods: %q must be a method in upper case, such as GET", method)
		}
	}
	return fencehttp.NewRules(rules, c.UnfencedMethods...)
}

func (c Config) upstream(r Rule) (*url.URL, error) {
	text := r.Upstream
	if text == "" {
		text = c.Upstream
	}
	u, err := url.Parse(text)
	if err != nil || u.Scheme != "http" && u.Scheme != "https" || u.Host == "" || u.RawQuery != "" || u.Fragment != "" || u.User != nil {
		return nil, fmt.Errorf("upstream: %q must be an address such as http://ledger:8080", text)
	}
	return u, nil
}

// marshal is for comparisons.
func marshal(c Config) []byte {
	text, err := json.Marshal(c)
	if err != nil {
		return []byte(err.Error())
	}
	return text
}

// With returns the configuration overridden by the fields that other sets, with defaults for fields that neither sets.
func (c Config) With(other Config) Config {
	c.Listen = cmp.Or(other.Listen, c.Listen, ":8080")
	c.Admin = cmp.Or(other.Admin, c.Admin, ":9090")
	c.Upstream = cmp.Or(other.Upstream, c.Upstream)
	c.Store.Bolt = cmp.Or(other.Store.Bolt, c.Store.Bolt)
	c.Monitor = c.Monitor || other.Monitor
	if len(other.Rules) > 0 {
		c.Rules = other.Rules
	}
	return c
}
