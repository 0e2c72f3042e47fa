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

// noMetrics is the address that disables the server.
const noMetrics = "0"

func (o options) checkMetrics() error {
	if o.metricsCertPath != "" && !o.metricsSecure {
		return errors.New("--metrics-cert-path sets a certificate, but --metrics-secure=false uses none: remove one of the two flags")
	}
	return nil
}

// guarded reports whether metrics are served with access control.
func (o options) guarded() bool { return o.metricsSecure && o.metricsAddress != noMetrics }

// metrics returns the options of the metrics server, and the watcher of its certificate if there is one.
func (o options) metrics() (server.Options, *certwatcher.CertWatcher, error) {
	options := server.Options{BindAddress: o.metricsAddress}
	if !o.guarded() {
		return options, nil, nil
	}
	options.SecureServing, options.FilterProvider = true, access.Provide
	// With HTTP/2, an unauthorized client can make the server do more work than the client does.
	options.TLSOpts = []func(*tls.Config){func(c *tls.Config) { c.NextProtos = []string{"http/1.1"} }}
	if o.metricsCertPath == "" {
		return options, nil, nil
	}
	// Without this check, the server would generate a certificate if the file is missing.
	watcher, err := certwatcher.New(filepath.Join(o.metricsCertPath, corev1.TLSCertKey), filepath.Join(o.metricsCertPath, corev1.TLSPrivateKeyKey))
	if err != nil {
		return options, nil, fmt.Errorf("--metrics-cert-path %q needs %s and %s: %w", o.metricsCertPath, corev1.TLSCertKey, corev1.TLSPrivateKeyKey, err)
	}
	options.TLSOpts = append(options.TLSOpts, func(c *tls.Config) { c.GetCertificate = watcher.GetCertificate })
	return options, watcher, nil
}

// mayAsk reports at startup a missing right that otherwise only the clients of the metrics would notice.
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
