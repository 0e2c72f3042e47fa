//go:build linux

package fault

import (
	"os"
	"os/exec"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/singletonjob/operator/test/tier"
)

func TestAPIRules(t *testing.T) {
	const to, from = "ip daddr { 10.210.0.1, 10.210.0.2, 10.210.0.3, 10.96.0.1 } tcp dport { 6443, 443 }",
		"ip saddr { 10.210.0.1, 10.210.0.2, 10.210.0.3, 10.96.0.1 } tcp sport { 6443, 443 }"
	for cut, want := range map[APICut]map[string]int{ // how often each rule stands
		Drop:     {to + " drop": 2, from + " drop": 1},
		Refuse:   {to + " reject with tcp reset": 2},
		Requests: {to + " drop": 2},
		Replies:  {from + " drop": 1},
	} {
		t.Run(string(cut), func(t *testing.T) {
			rules, err := apiRules(cut)
			if err != nil {
				t.Fatal(err)
			}
			got := map[string]int{}
			for line := range strings.Lines(rules) {
				if line = strings.TrimSpace(line); strings.HasPrefix(line, "ip ") {
					got[line]++
				}
			}
			if diff := cmp.Diff(want, got); diff != "" {
				t.Errorf("rules (-want +got):\n%s\n%s", diff, rules)
			}
		})
	}
	if _, err := apiRules("sideways"); err == nil {
		t.Error("an unknown way was accepted")
	}
}

func TestRulesAreAccepted(t *testing.T) {
	nft, err := exec.LookPath("nft")
	if err != nil || os.Geteuid() != 0 {
		tier.Needs(t, "it needs nft and root: %v", err)
	}
	rules := map[string]string{"peers": peerRules([]int{2, 3}), "proxy": proxyRules("10.210.0.1", 16444)}
	for _, cut := range APICuts {
		text, err := apiRules(cut)
		if err != nil {
			t.Fatal(err)
		}
		rules[string(cut)] = text
	}
	for _, percent := range []int{1, 99, 100} {
		text, err := lossRules(percent)
		if err != nil {
			t.Fatal(err)
		}
		rules["loss"+text[len(text)-10:]] = text
	}
	for name, text := range rules {
		cmd := exec.Command(nft, "--check", "-f", "-")
		cmd.Stdin = strings.NewReader(text)
		if out, err := cmd.CombinedOutput(); err != nil {
			t.Errorf("%s: %v: %s\n%s", name, err, out, text)
		}
	}
}

func TestLossOutOfRange(t *testing.T) {
	for _, percent := range []int{-1, 0, 101} {
		if _, err := lossRules(percent); err == nil {
			t.Errorf("%d %% was accepted", percent)
		}
	}
}

func TestTablesIn(t *testing.T) {
	got := tablesIn("table ip kube-proxy\ntable inet sjlab_api\ntable ip sjlab_proxy\ntable inet x_sjlab_\n")
	if diff := cmp.Diff([]string{"inet sjlab_api", "ip sjlab_proxy"}, got); diff != "" {
		t.Errorf("tables (-want +got):\n%s", diff)
	}
}

func TestInnermostPID(t *testing.T) {
	for text, want := range map[string]string{
		"Name:\tx\nNSpid:\t4711\t23\t1\nThreads:\t1\n": "1",
		"NSpid:\t4711\n": "4711",
		"Name:\tx\n":     "",
		"NSpid:\n":       "",
	} {
		if got := innermostPID(text); got != want {
			t.Errorf("%q: %q, want %q", text, got, want)
		}
	}
}
