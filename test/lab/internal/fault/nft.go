//go:build linux

package fault

import (
	"fmt"
	"strings"

	"github.com/singletonjob/operator/test/lab/internal/cluster"
)

// Each kind of fault has a table of its own in a machine's network, so that one can be replaced or healed without the
// others. All tables of a lab's faults begin with tablePrefix.
const tablePrefix = "sjlab_"

// APICut is how a node loses the API servers.
type APICut string

// The ways to lose an API server. In all of them everything else stays reachable: the other nodes, the sinks.
const (
	Drop     APICut = "drop"     // packets vanish, both ways
	Refuse   APICut = "refuse"   // connections are reset, old ones and new ones
	Requests APICut = "requests" // packets to the API server vanish; its own arrive
	Replies  APICut = "replies"  // packets to the API server arrive, so writes succeed; its own vanish
)

// APICuts lists them.
var APICuts = []APICut{Drop, Refuse, Requests, Replies}

// firstPriority comes before conntrack and before every address translation. There a request still has the address that
// the client uses, be it the service's, so that a reset goes back to where the client expects it from.
const firstPriority = -300

func apiRules(cut APICut) (string, error) {
	var servers []string
	for i := range 3 {
		servers = append(servers, cluster.APIAddress(i+1))
	}
	addresses := strings.Join(append(servers, cluster.APIService), ", ")
	ports := fmt.Sprintf("%d, %d", cluster.APIPort, cluster.APIServicePort)
	to := fmt.Sprintf("ip daddr { %s } tcp dport { %s }", addresses, ports)
	from := fmt.Sprintf("ip saddr { %s } tcp sport { %s }", addresses, ports)
	chains := map[string]string{}
	// The node's own packets leave by output; its pods' pass prerouting, and so does everything that arrives.
	switch cut {
	case Drop:
		chains["output"], chains["prerouting"] = to+" drop", to+" drop; "+from+" drop"
	case Refuse:
		chains["output"], chains["prerouting"] = to+" reject with tcp reset", to+" reject with tcp reset"
	case Requests:
		chains["output"], chains["prerouting"] = to+" drop", to+" drop"
	case Replies:
		chains["prerouting"] = from + " drop"
	default:
		return "", fmt.Errorf("no way %q to cut an API server off: there are %v", cut, APICuts)
	}
	return table("api", chains), nil
}

// lossRules drop the share of all packets that enter or leave the node or its pods, in percent.
func lossRules(percent int) (string, error) {
	if percent < 1 || percent > 100 {
		return "", fmt.Errorf("loss of %d %%: choose from 1 to 100", percent)
	}
	rule := func(direction string) string {
		if percent == 100 { // which numgen takes for out of range
			return direction + ` "eth0" drop`
		}
		return fmt.Sprintf(`%s "eth0" numgen random mod 100 < %d drop`, direction, percent)
	}
	return table("loss", map[string]string{
		"input": rule("iifname"), "output": rule("oifname"), "forward": rule("iifname") + "; " + rule("oifname"),
	}), nil
}

// peerRules cut the traffic with the other nodes and their pods.
func peerRules(nodes []int) string {
	var addresses []string
	for _, i := range nodes {
		addresses = append(addresses, cluster.NodeAddress(i), cluster.PodCIDR(i))
	}
	set := strings.Join(addresses, ", ")
	to, from := fmt.Sprintf("ip daddr { %s } drop", set), fmt.Sprintf("ip saddr { %s } drop", set)
	return table("peers", map[string]string{"output": to, "input": from, "forward": to + "; " + from})
}

// proxyRules lead the pods' connections to the API servers through the proxy instead.
func proxyRules(address string, port int) string {
	return fmt.Sprintf(`table ip %[1]sproxy
delete table ip %[1]sproxy
table ip %[1]sproxy {
	chain prerouting {
		type nat hook prerouting priority dstnat - 10
		iifname "cni0" ip daddr { %[2]s, %[3]s } tcp dport { %[4]d, %[5]d } dnat to %[3]s:%[6]d
	}
}
`, tablePrefix, cluster.APIService, address, cluster.APIPort, cluster.APIServicePort, port)
}

// table replaces the fault's table, if there is one, in a single transaction.
func table(kind string, chains map[string]string) string {
	var text strings.Builder
	fmt.Fprintf(&text, "table inet %[1]s%[2]s\ndelete table inet %[1]s%[2]s\ntable inet %[1]s%[2]s {\n", tablePrefix, kind)
	for _, hook := range []string{"prerouting", "input", "forward", "output"} {
		if rules := chains[hook]; rules != "" {
			fmt.Fprintf(&text, "\tchain %[1]s {\n\t\ttype filter hook %[1]s priority %[2]d\n", hook, firstPriority)
			for rule := range strings.SplitSeq(rules, "; ") {
				fmt.Fprintf(&text, "\t\t%s\n", rule)
			}
			text.WriteString("\t}\n")
		}
	}
	text.WriteString("}\n")
	return text.String()
}

// tablesIn finds the faults' tables in the output of "nft list tables", as arguments for "delete table".
func tablesIn(listing string) []string {
	var found []string
	for line := range strings.Lines(listing) {
		fields := strings.Fields(line) // table inet sjlab_api
		if len(fields) == 3 && strings.HasPrefix(fields[2], tablePrefix) {
			found = append(found, fields[1]+" "+fields[2])
		}
	}
	return found
}
