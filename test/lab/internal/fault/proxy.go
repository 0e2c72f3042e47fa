//go:build linux

package fault

import (
	"context"
	"crypto/tls"
	"errors"
	"fmt"
	"maps"
	"net"
	"net/http"
	"os"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/singletonjob/operator/test/faultproxy"
	"github.com/singletonjob/operator/test/lab/internal/cluster"
	"github.com/singletonjob/operator/test/lab/internal/initd"
)

// ProxyCommand is the argument with which this program runs RunProxy.
const ProxyCommand = "api-proxy"

// proxyService names the service of the node's proxy on the control plane's machine.
func proxyService(node int) string { return fmt.Sprintf("api-proxy-%d", node) }

func proxyPort(node int) int { return 16443 + node }

func proxyAddress(node int) string {
	return fmt.Sprintf("%s:%d", cluster.APIAddress(1), proxyPort(node))
}

// A RequestFault is what befalls the requests that a node's pods send to the API servers. The node's own are left alone:
// client certificates can't pass a proxy.
type RequestFault struct {
	Kind   string
	After  time.Duration // for delay, duplicate and overload
	Method string        // only these requests; empty: all
	Path   string        // only where the path holds this
}

var requestFaults = map[string]func(time.Duration) faultproxy.Fault{
	"black-hole":  func(time.Duration) faultproxy.Fault { return faultproxy.BlackHole() },
	"hold":        func(time.Duration) faultproxy.Fault { return faultproxy.Hold() },
	"reset":       func(time.Duration) faultproxy.Fault { return faultproxy.Reset() },
	"lose-reply":  func(time.Duration) faultproxy.Fault { return faultproxy.LoseReply() },
	"reset-reply": func(time.Duration) faultproxy.Fault { return faultproxy.ResetReply() },
	"delay":       func(d time.Duration) faultproxy.Fault { return faultproxy.Delay(d, 0) },
	"delay-reply": func(d time.Duration) faultproxy.Fault { return faultproxy.Delay(0, d) },
	"duplicate":   faultproxy.Duplicate,
	"overload":    faultproxy.TooManyRequests,
	"fail":        func(time.Duration) faultproxy.Fault { return faultproxy.Fail(http.StatusInternalServerError) },
	"stale":       func(time.Duration) faultproxy.Fault { return faultproxy.Stale() },
	"stall-watch": func(time.Duration) faultproxy.Fault { return faultproxy.StallWatch() },
}

// RequestFaults lists the kinds.
func RequestFaults() []string { return slices.Sorted(maps.Keys(requestFaults)) }

// Proxy puts a proxy that does the fault between the node's pods and API server 1. Their open connections end.
func (j Injector) Proxy(ctx context.Context, node string, f RequestFault) error {
	if requestFaults[f.Kind] == nil {
		return fmt.Errorf("no request fault %q: there are %s", f.Kind, strings.Join(RequestFaults(), ", "))
	}
	m, err := j.node(node)
	if err != nil {
		return err
	}
	control, err := j.Lab.Machine(cluster.Control)
	if err != nil {
		return err
	}
	if err := stopProxy(ctx, control, m); err != nil {
		return err
	}
	self, err := os.Executable()
	if err != nil {
		return err
	}
	service := initd.Service{
		Name: proxyService(m.Node),
		Log:  j.Lab.Log(proxyService(m.Node)),
		Argv: []string{self, ProxyCommand, strconv.Itoa(m.Node), f.Kind, f.After.String(), f.Method, f.Path},
	}
	if err := control.Services().Start(ctx, service); err != nil {
		return err
	}
	if err := awaitListener(ctx, proxyAddress(m.Node)); err != nil {
		return fmt.Errorf("%w; its log is %s", err, service.Log)
	}
	if err := m.InNetwork(ctx, proxyRules(cluster.APIAddress(1), proxyPort(m.Node)), "nft", "-f", "-"); err != nil {
		return err
	}
	return forgetConnections(ctx, m)
}

// awaitListener returns when somebody accepts connections at the address.
func awaitListener(ctx context.Context, address string) error {
	ctx, cancel := context.WithTimeout(ctx, 30*time.Second)
	defer cancel()
	return cluster.Poll(ctx, 10*time.Millisecond, "the proxy at "+address, func() (bool, error) {
		conn, _ := (&net.Dialer{}).DialContext(ctx, "tcp", address)
		if conn == nil {
			return false, nil // not yet
		}
		return true, conn.Close()
	})
}

// forgetConnections makes the next packet of every connection to the API servers choose its way again.
func forgetConnections(ctx context.Context, m cluster.Machine) error {
	ctx, cancel := context.WithTimeout(ctx, 30*time.Second)
	defer cancel()
	for _, address := range []string{cluster.APIService, cluster.APIAddress(1)} {
		err := cluster.Poll(ctx, 10*time.Millisecond, "no connection to "+address, func() (bool, error) {
			out, err := m.NetworkCommand(ctx, "conntrack", "-D", "-p", "tcp", "--orig-dst", address).CombinedOutput()
			return forgotten(string(out), err)
		})
		if err != nil {
			return fmt.Errorf("forget the connections of %s: %w", m.Name, err)
		}
	}
	return nil
}

// forgotten reports whether a run of conntrack with this output and error has left no connection that there was before. It lists them,
// then deletes one after the other, and stops at one that has ended meanwhile: those behind it are left.
func forgotten(out string, err error) (bool, error) {
	switch {
	case err == nil, strings.Contains(out, ": 0 flow entries"):
		return true, nil
	case strings.Contains(out, "such conntrack doesn't exist"):
		return false, nil
	default:
		return false, fmt.Errorf("%w: %s", err, out)
	}
}

// stopProxy ends the node's proxy. Connections through it end with it.
func stopProxy(ctx context.Context, control, node cluster.Machine) error {
	if !control.Init.Alive() {
		return nil
	}
	services, err := control.Services().List(ctx)
	for _, s := range services {
		if s.PID != 0 && s.Name == proxyService(node.Node) {
			err = errors.Join(err, control.Services().Stop(ctx, s.Name, 0))
		}
	}
	return err
}

// RunProxy is a proxy's main function, with the arguments that Proxy gives it.
func (j Injector) RunProxy(ctx context.Context, args []string) error {
	if len(args) != 5 {
		return fmt.Errorf("%d arguments: 'lab fault proxy' starts this", len(args))
	}
	node, err := strconv.Atoi(args[0])
	if err != nil {
		return err
	}
	after, err := time.ParseDuration(args[2])
	if err != nil {
		return err
	}
	pair, err := tls.LoadX509KeyPair(j.Lab.PKI("apiserver.crt"), j.Lab.PKI("apiserver.key"))
	if err != nil {
		return err
	}
	authority, err := os.ReadFile(j.Lab.PKI("ca.crt"))
	if err != nil {
		return err
	}
	proxy, err := faultproxy.Start(faultproxy.Options{
		Listen:      proxyAddress(node),
		Certificate: &pair,
		Upstream:    fmt.Sprintf("https://%s:%d", cluster.APIAddress(1), cluster.APIPort),
		UpstreamCA:  authority,
	})
	if err != nil {
		return err
	}
	defer proxy.Close()
	var when []faultproxy.Match
	if args[3] != "" {
		when = append(when, faultproxy.Method(strings.Split(args[3], ",")...))
	}
	if args[4] != "" {
		when = append(when, faultproxy.PathHas(args[4]))
	}
	proxy.Inject(requestFaults[args[1]](after), when...)
	<-ctx.Done()
	return nil
}
