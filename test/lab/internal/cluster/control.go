//go:build linux

package cluster

import (
	"errors"
	"fmt"
	"os"
	"strings"

	"github.com/singletonjob/operator/test/lab/internal/initd"
	"github.com/singletonjob/operator/test/pki"
)

// auditPolicy records who changed which Lease and which pod of the users, and nothing else: enough to explain a failover.
const auditPolicy = `apiVersion: audit.k8s.io/v1
kind: Policy
omitStages: [RequestReceived]
omitManagedFields: true
rules:
- level: None
  namespaces: [kube-system, kube-node-lease]
- level: Request
  verbs: [create, update, patch, delete]
  resources: [{group: coordination.k8s.io, resources: [leases]}]
- level: Metadata
  verbs: [create, delete]
  resources: [{group: "", resources: [pods, pods/eviction]}]
- level: None
`

// issueCertificates makes the identities of the control plane and of the nodes, and their kubeconfigs.
func (l *Lab) issueCertificates(c Config) error {
	authority, err := pki.Open(l.path("pki"))
	if err != nil {
		return err
	}
	server := pki.Subject{Name: "kube-apiserver", Hosts: []string{APIService, "kubernetes", "kubernetes.default", "kubernetes.default.svc"}}
	for i := range 3 { // of all that there may be: certificates outlive a change of plans
		server.Hosts = append(server.Hosts, APIAddress(i+1))
	}
	admins := []string{"system:masters"}
	subjects := map[string]pki.Subject{
		"apiserver":          server,
		"apiserver-kubelet":  {Name: "kube-apiserver-kubelet-client", Groups: admins},
		"admin":              {Name: "admin", Groups: admins},
		"controller-manager": {Name: "system:kube-controller-manager"},
		"scheduler":          {Name: "system:kube-scheduler"},
		"kube-proxy":         {Name: "system:kube-proxy"},
	}
	for i := 1; i <= c.Nodes; i++ {
		subjects[NodeName(i)] = pki.Subject{Name: "system:node:" + NodeName(i), Groups: []string{"system:nodes"}}
	}
	for file, subject := range subjects {
		if err := authority.Issue(file, subject); err != nil {
			return err
		}
	}
	if err := authority.SigningKey("service-accounts"); err != nil {
		return err
	}
	for _, name := range []string{"admin", "controller-manager", "scheduler"} {
		if err := l.writeKubeconfig(name, name, APIAddress(1)); err != nil {
			return err
		}
	}
	for i := 1; i <= c.Nodes; i++ {
		// The nodes are spread over the API servers.
		node, server := NodeName(i), APIAddress((i-1)%c.ControlPlanes+1)
		if err := errors.Join(l.writeKubeconfig(node, node, server), l.writeKubeconfig(node+"-kube-proxy", "kube-proxy", server)); err != nil {
			return err
		}
	}
	return nil
}

func (l *Lab) writeKubeconfig(file, user, server string) error {
	text := fmt.Sprintf(`apiVersion: v1
kind: Config
clusters: [{name: lab, cluster: {server: "https://%s:%d", certificate-authority: %s}}]
users: [{name: %[4]s, user: {client-certificate: %[5]s, client-key: %[6]s}}]
contexts: [{name: lab, context: {cluster: lab, user: %[4]s}}]
current-context: lab
`, server, APIPort, l.PKI("ca.crt"), user, l.PKI(user+".crt"), l.PKI(user+".key"))
	return os.WriteFile(l.kubeconfig(file), []byte(text), 0o600)
}

// etcdService is etcd i of n. It does not wait for the disk: a lab's data need not survive the host.
func (l *Lab) etcdService(i, n int) initd.Service {
	var members []string
	for j := 1; j <= n; j++ {
		members = append(members, fmt.Sprintf("%s=http://%s:2380", Etcd(j), loopback(j)))
	}
	client, peer := fmt.Sprintf("http://%s:2379", loopback(i)), fmt.Sprintf("http://%s:2380", loopback(i))
	return initd.Service{Name: Etcd(i), Log: l.Log(Etcd(i)), Argv: []string{
		l.bin.Path("etcd"), "--name=" + Etcd(i), "--data-dir=" + l.EtcdData(i), "--unsafe-no-fsync",
		"--listen-client-urls=" + client, "--advertise-client-urls=" + client,
		"--listen-peer-urls=" + peer, "--initial-advertise-peer-urls=" + peer,
		"--initial-cluster=" + strings.Join(members, ","),
	}}
}

func (l *Lab) apiServerService(i, n int) initd.Service {
	var etcds []string
	for j := 1; j <= n; j++ {
		etcds = append(etcds, fmt.Sprintf("http://%s:2379", loopback(j)))
	}
	return initd.Service{Name: APIServer(i), Log: l.Log(APIServer(i)), Argv: []string{
		l.bin.Path("kube-apiserver"),
		"--etcd-servers=" + strings.Join(etcds, ","),
		"--bind-address=" + APIAddress(i), "--advertise-address=" + APIAddress(i), fmt.Sprintf("--secure-port=%d", APIPort),
		"--service-cluster-ip-range=" + serviceRange,
		"--tls-cert-file=" + l.PKI("apiserver.crt"), "--tls-private-key-file=" + l.PKI("apiserver.key"),
		"--client-ca-file=" + l.PKI("ca.crt"),
		"--service-account-issuer=https://kubernetes.default.svc",
		"--service-account-key-file=" + l.PKI("service-accounts.pub"), "--service-account-signing-key-file=" + l.PKI("service-accounts.key"),
		"--authorization-mode=Node,RBAC", "--enable-admission-plugins=NodeRestriction,PodNodeSelector", "--allow-privileged=true",
		// The nodes' names resolve nowhere on the host.
		"--kubelet-preferred-address-types=InternalIP",
		"--kubelet-client-certificate=" + l.PKI("apiserver-kubelet.crt"), "--kubelet-client-key=" + l.PKI("apiserver-kubelet.key"),
		"--audit-policy-file=" + l.path("audit-policy.yaml"), "--audit-log-path=" + l.Log("audit-"+APIServer(i)), "--audit-log-maxsize=200",
	}}
}

// controllersServices are the controller manager and the scheduler: one of each, for they hold no data.
func (l *Lab) controllersServices() []initd.Service {
	return []initd.Service{
		{Name: ControllerManager, Log: l.Log("controller-manager"), Argv: []string{
			l.bin.Path("kube-controller-manager"), "--kubeconfig=" + l.kubeconfig("controller-manager"),
			"--bind-address=" + loopback(1), "--leader-elect=false", "--use-service-account-credentials",
			"--service-account-private-key-file=" + l.PKI("service-accounts.key"), "--root-ca-file=" + l.PKI("ca.crt"),
			"--allocate-node-cidrs=true", "--cluster-cidr=" + podNetwork,
		}},
		{Name: Scheduler, Log: l.Log("scheduler"), Argv: []string{
			l.bin.Path("kube-scheduler"), "--kubeconfig=" + l.kubeconfig("scheduler"),
			"--bind-address=" + loopback(1), "--leader-elect=false",
		}},
	}
}
