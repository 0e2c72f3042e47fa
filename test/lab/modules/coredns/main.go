// Command coredns is CoreDNS with the plugins that a cluster's DNS needs and no others: without the cloud providers'
// the build takes a fraction of the time.
package main

import (
	"github.com/coredns/coredns/core/dnsserver"
	"github.com/coredns/coredns/coremain"
	_ "github.com/coredns/coredns/plugin/cache"
	_ "github.com/coredns/coredns/plugin/errors"
	_ "github.com/coredns/coredns/plugin/health"
	_ "github.com/coredns/coredns/plugin/kubernetes"
	_ "github.com/coredns/coredns/plugin/loadbalance"
	_ "github.com/coredns/coredns/plugin/ready"
)

func main() {
	// The order is the order in which a query passes the plugins.
	dnsserver.Directives = []string{"health", "ready", "errors", "cache", "loadbalance", "kubernetes"}
	coremain.Run()
}
