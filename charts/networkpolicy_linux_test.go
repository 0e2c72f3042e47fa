package charts

import (
	"fmt"
	"os/exec"
	"slices"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	appsv1 "k8s.io/api/apps/v1"
	corev1 "k8s.io/api/core/v1"
	networkingv1 "k8s.io/api/networking/v1"
	"sigs.k8s.io/yaml"
)

// passes are the connections that a NetworkPolicy allows: protocol, port and peers.
func passes(policy *networkingv1.NetworkPolicy) (in, out []string) {
	line := func(ports []networkingv1.NetworkPolicyPort, peers []networkingv1.NetworkPolicyPeer) (lines []string) {
		whom := "anywhere"
		if len(peers) > 0 {
			text, _ := yaml.Marshal(peers)
			whom = strings.Join(strings.Fields(string(text)), " ")
		}
		for _, port := range ports {
			protocol := corev1.ProtocolTCP
			if port.Protocol != nil {
				protocol = *port.Protocol
			}
			lines = append(lines, fmt.Sprintf("%s %s %s", protocol, port.Port, whom))
		}
		if len(ports) == 0 {
			lines = append(lines, "everything "+whom)
		}
		return lines
	}
	for _, rule := range policy.Spec.Ingress {
		in = append(in, line(rule.Ports, rule.From)...)
	}
	for _, rule := range policy.Spec.Egress {
		out = append(out, line(rule.Ports, rule.To)...)
	}
	return in, out
}

// The policy allows exactly what the operator needs. It selects the operator's Pods, and covers by name all ports that they serve.
func TestNetworkPolicy(t *testing.T) {
	t.Parallel()
	helm, err := helmPath()
	if err != nil {
		t.Fatalf("build Helm: %v", err)
	}
	dns := []string{"UDP 53 anywhere", "TCP 53 anywhere"}
	anybody := []string{"TCP metrics anywhere", "TCP health anywhere"}
	for set, want := range map[string]struct{ in, out []string }{
		"verbosity=0":              {anybody, slices.Concat([]string{"TCP 443 anywhere", "TCP 6443 anywhere"}, dns, []string{"TCP 443 anywhere"})},
		"entrypoint.enabled=false": {anybody, slices.Concat([]string{"TCP 443 anywhere", "TCP 6443 anywhere"}, dns)},
		"entrypoint.insecureRegistries={a:5000,b}": {anybody, slices.Concat([]string{"TCP 443 anywhere", "TCP 6443 anywhere"}, dns,
			[]string{"TCP 443 anywhere", "TCP 5000 anywhere", "TCP 80 anywhere"})},
		"networkPolicy.metricsFrom[0].namespaceSelector.matchLabels.a=b": {
			[]string{"TCP metrics - namespaceSelector: matchLabels: a: b", "TCP health anywhere"},
			slices.Concat([]string{"TCP 443 anywhere", "TCP 6443 anywhere"}, dns, []string{"TCP 443 anywhere"}),
		},
		"entrypoint.enabled=false,networkPolicy.apiServer.ports={443},networkPolicy.apiServer.to[0].ipBlock.cidr=10.0.0.1/32": {
			anybody, slices.Concat([]string{"TCP 443 - ipBlock: cidr: 10.0.0.1/32"}, dns),
		},
		"entrypoint.enabled=false,networkPolicy.extraEgress[0].ports[0].port=8443": {
			anybody, slices.Concat([]string{"TCP 443 anywhere", "TCP 6443 anywhere"}, dns, []string{"TCP 8443 anywhere"}),
		},
	} {
		t.Run(set, func(t *testing.T) {
			manifest, err := exec.CommandContext(t.Context(), helm, "template", "release", chart, "--namespace=ns", "--set=networkPolicy.enabled=true", "--set="+set).Output()
			if err != nil {
				t.Fatalf("helm template: %v", err)
			}
			var policy networkingv1.NetworkPolicy
			var deployment appsv1.Deployment
			rendered(t, manifest, "NetworkPolicy", &policy)
			rendered(t, manifest, "Deployment", &deployment)
			in, out := passes(&policy)
			if diff := cmp.Diff([][]string{want.in, want.out}, [][]string{in, out}); diff != "" {
				t.Errorf("it lets in and out (-want +got):\n%s", diff)
			}
			if diff := cmp.Diff(deployment.Spec.Selector, &policy.Spec.PodSelector); diff != "" || len(policy.Spec.PolicyTypes) != 2 {
				t.Errorf("it is about other pods, or not both ways: %v\n%s", policy.Spec.PolicyTypes, diff)
			}
			for _, port := range deployment.Spec.Template.Spec.Containers[0].Ports {
				if !slices.ContainsFunc(in, func(line string) bool { return strings.HasPrefix(line, "TCP "+port.Name+" ") }) {
					t.Errorf("nobody reaches the port %s", port.Name)
				}
			}
		})
	}
	manifest, err := exec.CommandContext(t.Context(), helm, "template", "release", chart).Output()
	if err != nil || strings.Contains(string(manifest), "NetworkPolicy") {
		t.Errorf("by default there is a policy, or none of all this: %v", err)
	}
}

// rendered is the rendered object of a kind.
func rendered(t *testing.T, manifest []byte, kind string, into any) {
	t.Helper()
	for document := range strings.SplitSeq(string(manifest), "\n---\n") {
		if strings.Contains(document, "\nkind: "+kind+"\n") {
			if err := yaml.UnmarshalStrict([]byte(document), into); err != nil {
				t.Fatal(err)
			}
			return
		}
	}
	t.Fatalf("no %s is rendered", kind)
}
