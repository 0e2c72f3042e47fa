//go:build linux

package cluster

import (
	"context"
	"fmt"
	"os"
	"path/filepath"
	"strings"

	corev1 "k8s.io/api/core/v1"

	"github.com/singletonjob/operator/test/lab/internal/initd"
)

// cniDirs are where Linux distributions keep the CNI plugins.
var cniDirs = []string{"/usr/lib/cni", "/opt/cni/bin", "/usr/libexec/cni"}

func cniDir() (string, error) {
	for _, dir := range cniDirs {
		if _, err := os.Stat(filepath.Join(dir, "host-local")); err == nil {
			return dir, nil
		}
	}
	return "", fmt.Errorf("no CNI plugins in %s: install the package containernetworking-plugins", strings.Join(cniDirs, ", "))
}

// nodeSetup gives the node directories of its own wherever its daemons keep state, at the paths that real nodes have. Files that must
// survive a reboot of the node are bound from the lab's directory.
func (l *Lab) nodeSetup(i, nodes int) initd.Setup {
	own := l.path(NodeName(i))
	var ip strings.Builder
	fmt.Fprintf(&ip, "link set lo up\naddr add %s/24 dev eth0\nlink set eth0 up\nroute add default via %s\n", NodeAddress(i), APIAddress(1))
	for j := 1; j <= nodes; j++ {
		if j != i {
			ip.WriteString(podRoute(j))
		}
	}
	return initd.Setup{
		Dir:     l.dir,
		Private: []string{"/run", "/var/lib", "/var/log"},
		Binds: map[string]string{
			"/var/lib/containerd": filepath.Join(own, "containerd"),
			"/var/lib/kubelet":    filepath.Join(own, "kubelet"),
		},
		Hostname: NodeName(i),
		IP:       ip.String(),
		Sysctls:  map[string]string{"net/ipv4/ip_forward": "1"},
	}
}

// podRoute leads to the pods of node i, as a command for ip(8).
func podRoute(i int) string {
	return fmt.Sprintf("route replace %s via %s\n", PodCIDR(i), NodeAddress(i))
}

// writeNodeFiles writes the configuration of node i.
func (l *Lab) writeNodeFiles(ctx context.Context, i int) error {
	plugins, err := cniDir()
	if err != nil {
		return err
	}
	own := l.path(NodeName(i))
	for _, dir := range []string{"cni", "containerd", "kubelet"} {
		if err := os.MkdirAll(filepath.Join(own, dir), 0o755); err != nil {
			return err
		}
	}
	files := map[string]string{
		"cni/10-lab.conflist": cniConfig(i),
		"containerd.toml":     l.containerdConfig(i, plugins),
		"kubelet.yaml":        l.kubeletConfig(i),
	}
	for name, text := range files {
		if err := os.WriteFile(filepath.Join(own, name), []byte(text), 0o644); err != nil {
			return err
		}
	}
	return l.writeShiftedSpec(ctx, NodeName(i))
}

// cniConfig gives the node's pods their range. Node objects get theirs in the order in which they register, which nobody
// knows beforehand, so spec.podCIDR may differ; nothing uses it. Routes lead everywhere, so nothing needs to masquerade.
func cniConfig(i int) string {
	return fmt.Sprintf(`{"cniVersion": "1.0.0", "name": "lab", "plugins": [
 {"type": "bridge", "bridge": "cni0", "isGateway": true, "hairpinMode": true,
  "ipam": {"type": "host-local", "dataDir": "/run/ipam", "ranges": [[{"subnet": %q}]], "routes": [{"dst": "0.0.0.0/0"}]}},
 {"type": "portmap", "capabilities": {"portMappings": true}}]}
`, PodCIDR(i))
}

// containerdConfig: a host that denies CAP_SYS_RESOURCE lets nobody lower an oom_score_adj, and runc would fail without
// restrict_oom_score_adj.
func (l *Lab) containerdConfig(i int, plugins string) string {
	return fmt.Sprintf(`version = 3
disabled_plugins = ["io.containerd.snapshotter.v1.devmapper", "io.containerd.nri.v1.nri"]
[plugins."io.containerd.cri.v1.images".pinned_images]
  sandbox = %q
[plugins."io.containerd.cri.v1.runtime"]
  restrict_oom_score_adj = true
  disable_apparmor = true
[plugins."io.containerd.cri.v1.runtime".cni]
  bin_dirs = [%q]
  conf_dir = %q
[plugins."io.containerd.cri.v1.runtime".containerd.runtimes.runc]
  runtime_type = "io.containerd.runc.v2"
  [plugins."io.containerd.cri.v1.runtime".containerd.runtimes.runc.options]
    BinaryName = %q
    SystemdCgroup = false
[plugins."io.containerd.cri.v1.runtime".containerd.runtimes.%[5]s]
  runtime_type = "io.containerd.runc.v2"
  base_runtime_spec = %[6]q
  [plugins."io.containerd.cri.v1.runtime".containerd.runtimes.%[5]s.options]
    BinaryName = %[4]q
    SystemdCgroup = false
`, pauseImage, plugins, l.path(NodeName(i), "cni"), l.bin.Path("runc"), ShiftedRuntime, l.shiftedSpec(NodeName(i)))
}

// kubeletConfig lets the node take pods however full the host's disk is, and never deletes an image: there is nowhere to
// pull it from.
func (l *Lab) kubeletConfig(i int) string {
	return fmt.Sprintf(`apiVersion: kubelet.config.k8s.io/v1beta1
kind: KubeletConfiguration
failCgroupV1: false
cgroupDriver: cgroupfs
cgroupRoot: /%s/%s
enforceNodeAllocatable: []
authentication: {anonymous: {enabled: false}, webhook: {enabled: true}, x509: {clientCAFile: %s}}
authorization: {mode: Webhook}
containerRuntimeEndpoint: unix:///run/containerd/containerd.sock
clusterDNS: [%s]
clusterDomain: %s
resolvConf: ""
failSwapOn: false
evictionHard: {nodefs.available: "0%%", imagefs.available: "0%%", memory.available: "50Mi"}
imageGCHighThresholdPercent: 100
localStorageCapacityIsolation: false
makeIPTablesUtilChains: false
`, Group, nodeGroup(NodeName(i)), l.PKI("ca.crt"), DNSService, dnsDomain)
}

func (l *Lab) containerdService(i int) initd.Service {
	return initd.Service{
		Name: Containerd, Log: l.Log(NodeName(i) + "-containerd"),
		Argv: []string{l.bin.Path("containerd"), "--config", l.path(NodeName(i), "containerd.toml")},
		Env:  []string{"PATH=" + filepath.Dir(l.bin.Path("containerd-shim-runc-v2")) + ":" + os.Getenv("PATH")},
	}
}

func (l *Lab) kubeletServices(i int) []initd.Service {
	node := NodeName(i)
	return []initd.Service{
		{Name: Kubelet, Log: l.Log(node + "-kubelet"), Argv: []string{
			l.bin.Path("kubelet"), "--config=" + l.path(node, "kubelet.yaml"), "--kubeconfig=" + l.kubeconfig(node),
			"--hostname-override=" + node, "--node-ip=" + NodeAddress(i), "--node-labels=" + corev1.LabelTopologyZone + "=" + Zone(i),
		}},
		{Name: KubeProxy, Log: l.Log(node + "-kube-proxy"), Argv: []string{
			l.bin.Path("kube-proxy"), "--kubeconfig=" + l.kubeconfig(node+"-kube-proxy"), "--proxy-mode=nftables",
			"--hostname-override=" + node, "--conntrack-max-per-core=0", "--conntrack-min=0", "--cluster-cidr=" + podNetwork,
		}},
	}
}
