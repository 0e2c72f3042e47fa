package fenceproxy

import (
	"bytes"
	"context"
	"crypto/sha256"
	"crypto/tls"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"net"
	"net/http"
	"os"
	"strings"
	"sync"
	"time"

	"github.com/singletonjob/operator/fence/fencehttp"
)

const (
	readHeaderTimeout    = 10 * time.Second
	defaultShutdownDelay = 5 * time.Second
	defaultShutdown      = 20 * time.Second
	lockWait             = 30 * time.Second
	// lookAgain is how often files are looked at. Kubernetes takes a minute to bring a change.
	lookAgain = 5 * time.Second
)

// OpenStore opens the store.
func (c Config) OpenStore(ctx context.Context, log *slog.Logger) (fencehttp.Store, io.Closer, error) {
	if c.Store.Postgres == nil {
		bolt, err := OpenBolt(c.Store.Bolt, lockWait, c.drain())
		return bolt, bolt, err
	}
	text, err := os.ReadFile(c.Store.Postgres.URLFile)
	if err != nil {
		return nil, nil, fmt.Errorf("store.postgres.urlFile: %w", err)
	}
	postgres, err := OpenPostgres(ctx, strings.TrimSpace(string(text)), c.drain(), c.Store.evictAfter(), log)
	return postgres, postgres, err
}

// Run serves until ctx ends. It calls read for the configuration at the start, on reload, and after a file has changed.
func Run(ctx context.Context, read func() (Config, error), reload <-chan os.Signal, log *slog.Logger) error {
	seen := fingerprint(read) // before it is read, and before what takes its time: a change meanwhile is seen
	c, err := read()
	if err != nil {
		return err
	}
	if err := c.Validate(); err != nil {
		return err
	}
	store, closer, err := c.OpenStore(ctx, log)
	if err != nil {
		return err
	}
	defer func() { _ = closer.Close() }()
	p, err := New(c, store, log)
	if err != nil {
		return err
	}
	defer p.Close()
	clients, err := net.Listen("tcp", c.Listen)
	if err != nil {
		return fmt.Errorf("listen: %w", err)
	}
	admins, err := net.Listen("tcp", c.Admin)
	if err != nil {
		return errors.Join(fmt.Errorf("admin: %w", err), clients.Close())
	}
	if c.TLS != nil {
		pair := &keyPair{files: *c.TLS}
		if _, err := pair.get(nil); err != nil {
			return fmt.Errorf("tls: %w", err)
		}
		clients = tls.NewListener(clients, &tls.Config{GetCertificate: pair.get, MinVersion: tls.VersionTLS12, NextProtos: []string{"h2", "http/1.1"}})
	}
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	go p.follow(ctx, read, seen, reload)
	log.Info("fence-proxy serves", "listen", clients.Addr().String(), "admin", admins.Addr().String(), "monitor", c.Monitor, "strict", c.Strict)
	return p.serve(ctx, clients, admins)
}

func (p *Proxy) serve(ctx context.Context, clients, admins net.Listener) error {
	errorLog := slog.NewLogLogger(p.log.Handler(), slog.LevelDebug)
	server := &http.Server{Handler: p, ReadHeaderTimeout: readHeaderTimeout, IdleTimeout: idleTimeout, ErrorLog: errorLog}
	admin := &http.Server{Handler: p.Admin(), ReadHeaderTimeout: readHeaderTimeout, ErrorLog: errorLog}
	ended := make(chan error, 2)
	go func() { ended <- server.Serve(clients) }()
	go func() { ended <- admin.Serve(admins) }()
	select {
	case err := <-ended:
		return errors.Join(err, server.Close(), admin.Close())
	case <-ctx.Done():
	}
	p.NotReady()
	select { // clients come until everybody who sends them has heard
	case err := <-ended:
		return errors.Join(err, server.Close(), admin.Close())
	case <-time.After(orDefault(p.config.ShutdownDelay, defaultShutdownDelay)):
	}
	ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), orDefault(p.config.Shutdown, defaultShutdown))
	defer cancel()
	if err := server.Shutdown(ctx); err != nil {
		p.log.Warn("cutting requests in progress", "error", err)
	}
	p.Close()
	return errors.Join(server.Close(), admin.Close())
}

// follow applies changes of the configuration.
func (p *Proxy) follow(ctx context.Context, read func() (Config, error), seen [sha256.Size]byte, reload <-chan os.Signal) {
	for again := time.NewTicker(lookAgain); ; {
		select {
		case <-ctx.Done():
			again.Stop()
			return
		case <-reload:
		case <-again.C:
			now := fingerprint(read)
			if now == seen {
				continue
			}
			seen = now
		}
		p.takeOver(read)
	}
}

func (p *Proxy) takeOver(read func() (Config, error)) {
	c, err := read()
	if err == nil {
		err = c.Validate()
	}
	if err == nil {
		err = p.Reload(c)
	}
	if err == nil && !sameUntilRestart(c, p.config) {
		err = errors.New("its rules, upstreams and unfencedMethods are in use; the other changes need a restart")
	}
	if err != nil {
		p.metrics.reloaded.Set(0)
		p.log.Error("the configuration on disk is not fully in use", "error", err)
		return
	}
	p.metrics.reloaded.Set(1)
	p.log.Info("the configuration was read again")
}

// sameUntilRestart compares the fields that need a restart.
func sameUntilRestart(a, b Config) bool {
	for _, c := range []*Config{&a, &b} {
		c.Upstream, c.UpstreamCA, c.Rules, c.UnfencedMethods = "", "", nil, nil
	}
	return bytes.Equal(marshal(a), marshal(b))
}

// fingerprint is of the configuration and the files that it names and that Reload reads.
func fingerprint(read func() (Config, error)) [sha256.Size]byte {
	c, err := read()
	text := fmt.Appendf(marshal(c), "%v", err)
	if c.UpstreamCA != "" {
		ca, _ := os.ReadFile(c.UpstreamCA)
		text = append(text, ca...)
	}
	return sha256.Sum256(text)
}

// keyPair is a certificate that is read again when its file has changed.
type keyPair struct {
	files TLS

	mu      sync.Mutex // guards the fields below
	changed time.Time
	pair    *tls.Certificate
}

func (k *keyPair) get(*tls.ClientHelloInfo) (*tls.Certificate, error) {
	k.mu.Lock()
	defer k.mu.Unlock()
	info, err := os.Stat(k.files.Cert)
	if err == nil && (k.pair == nil || !info.ModTime().Equal(k.changed)) {
		var pair tls.Certificate
		if pair, err = tls.LoadX509KeyPair(k.files.Cert, k.files.Key); err == nil {
			k.pair, k.changed = &pair, info.ModTime()
		}
	}
	if k.pair != nil { // keep the older certificate while a new one is being written
		return k.pair, nil
	}
	return nil, err
}
