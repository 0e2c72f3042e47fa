package main

import (
	"context"
	"crypto/tls"
	"errors"
	"fmt"
	"net/http"
	"path/filepath"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/client-go/rest"
	"k8s.io/utils/clock"
	"sigs.k8s.io/controller-runtime/pkg/certwatcher"
	"sigs.k8s.io/controller-runtime/pkg/metrics/server"

	"github.com/singletonjob/operator/internal/access"
)

// noMetrics is the address of a server that is not wanted.
const noMetrics = "0"

func (o options) checkMetrics() error {
	if o.metricsCertPath != "" && !o.metricsSecure {
		return errors.New("--metrics-cert-path has a certificate that --metrics-secure=false does not use: leave one of them out")
	}
	return nil
}

// guarded reports whether metrics are served, and not to everybody.
func (o options) guarded() bool { return o.metricsSecure && o.metricsAddress != noMetrics }

// metrics are how metrics are served, and what keeps the certificate up to date, if there is one.
func (o options) metrics() (server.Options, *certwatcher.CertWatcher, error) {
	options := server.Options{BindAddress: o.metricsAddress}
	if !o.guarded() {
		return options, nil, nil
	}
	options.SecureServing, options.FilterProvider = true, access.Provide
	// HTTP/2 lets who has no right keep the server busier than he is himself.
	options.TLSOpts = []func(*tls.Config){func(c *tls.Config) { c.NextProtos = []string{"http/1.1"} }}
	if o.metricsCertPath == "" {
		return options, nil, nil
	}
	// The server would take a certificate of its own if there is none.
	watcher, err := certwatcher.New(filepath.Join(o.metricsCertPath, corev1.TLSCertKey), filepath.Join(o.metricsCertPath, corev1.TLSPrivateKeyKey))
	if err != nil {
		return options, nil, fmt.Errorf("--metrics-cert-path %q needs %s and %s: %w", o.metricsCertPath, corev1.TLSCertKey, corev1.TLSPrivateKeyKey, err)
	}
	options.TLSOpts = append(options.TLSOpts, func(c *tls.Config) { c.GetCertificate = watcher.GetCertificate })
	return options, watcher, nil
}

// mayAsk says at the start what else only those find who ask for metrics.
func (o options) mayAsk(config *rest.Config, client *http.Client) error {
	if !o.guarded() {
		return nil
	}
	reviewer, err := access.New(config, client, clock.RealClock{})
	if err != nil {
		return err
	}
	return reviewer.MayAsk(context.Background())
}
