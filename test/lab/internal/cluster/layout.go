//go:build linux

package cluster

import (
	"fmt"
	"path/filepath"
)

// Where everything lies. The addresses are fixed, so one machine runs one lab.
const (
	// DefaultDir holds all files of a lab.
	DefaultDir = "/var/lib/singletonjob-lab"
	// Group is the control group that holds every process of a lab.
	Group = "singletonjob-lab"
	// Bridge is the link that joins the nodes and the host.
	Bridge = "sjlab0"

	network      = "10.210.0.0/24" // nodes and API servers
	podNetwork   = "10.244.0.0/16"
	serviceRange = "10.96.0.0/16"
	// APIService and DNSService are the cluster addresses of the API servers and of the cluster's DNS.
	APIService = "10.96.0.1"
	DNSService = "10.96.0.10"
	// APIPort and APIServicePort are where the API servers answer at their own addresses and at APIService.
	APIPort        = 6443
	APIServicePort = 443

	// Control is the name of the machine that the control plane runs on.
	Control   = "control"
	maxNodes  = 50
	dnsDomain = "cluster.local"
)

// APIAddress is the address of API server i, counted from 1. The host answers to it, so what listens there is reachable
// from nodes and pods.
func APIAddress(i int) string { return fmt.Sprintf("10.210.0.%d", i) }

// loopback is where the parts of the control plane talk to each other: not the usual 127.0.0.1, whose ports others use.
func loopback(i int) string { return fmt.Sprintf("127.210.0.%d", i) }

// NodeName is what node i is called. Nodes are counted from 1.
func NodeName(i int) string { return fmt.Sprintf("node%d", i) }

// Zone is the zone that node i is in: two nodes each.
func Zone(i int) string { return fmt.Sprintf("zone%d", (i+1)/2) }

// NodeAddress is where node i is reached.
func NodeAddress(i int) string { return fmt.Sprintf("10.210.0.%d", 10+i) }

// NodeLink is the host's end of node i's link to the bridge.
func NodeLink(i int) string { return fmt.Sprintf("sjlab-n%d", i) }

// PodCIDR holds the addresses of node i's pods.
func PodCIDR(i int) string { return fmt.Sprintf("10.244.%d.0/24", i-1) }

// Names of services. Those of the control plane are numbered from 1 as its API servers are.
const (
	Containerd = "containerd"
	Kubelet    = "kubelet"
	KubeProxy  = "kube-proxy"

	ControllerManager = "controller-manager"
	Scheduler         = "scheduler"
)

// Etcd names the service of etcd i.
func Etcd(i int) string { return fmt.Sprintf("etcd-%d", i) }

// APIServer names the service of API server i.
func APIServer(i int) string { return fmt.Sprintf("apiserver-%d", i) }

func nodeGroup(name string) string { return name }

// daemons is the group of a machine's own processes. Those of pods are beside it, so that freezing the node's group
// pauses the whole machine.
func daemons(name string) string { return filepath.Join(nodeGroup(name), "daemons") }

func (l *Lab) path(elem ...string) string { return filepath.Join(append([]string{l.dir}, elem...)...) }

// EtcdData is where etcd i keeps its data.
func (l *Lab) EtcdData(i int) string { return l.path(Control, Etcd(i)) }

// Kubeconfig is the administrator's.
func (l *Lab) Kubeconfig() string { return l.path("admin.kubeconfig") }

func (l *Lab) kubeconfig(name string) string { return l.path(name + ".kubeconfig") }

// PKI is where a certificate or key of the cluster lies.
func (l *Lab) PKI(file string) string { return l.path("pki", file) }

// Log is where the service's output goes.
func (l *Lab) Log(service string) string { return l.path("log", service+".log") }
