//go:build linux

package main

import (
	"os"
	"path/filepath"
	"slices"
	"testing"

	"github.com/singletonjob/operator/test/controlplane"
)

// The certificate authority of the API server changes while agents run. If both authorities are trusted in between, no tenure is affected.
// If the agents learn of the new one too late, the tenure ends at its deadline, and the next one begins when they know it.
func TestAuthorityRotated(t *testing.T) {
	t.Parallel()
	for name, inStep := range map[string]bool{"in step": true, "server first": false} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			w := newWorld(t)
			config := testConfig()
			if inStep {
				config = steadyConfig()
			}
			a := w.candidate("a", config)
			token := w.acts(a)
			ca, certificate, err := controlplane.NextCA("127.0.0.1")
			w.must(err)
			if inStep {
				a.setCA(slices.Concat(w.plane.CA(), ca))
				w.renewedTwice()
			}
			w.must(a.proxy.Certify(certificate))
			if !inStep {
				a.await("renew failing", "certificate signed by unknown authority")
				a.await("lost", "reason=RenewFailed")
			}
			a.setCA(ca)
			if !inStep {
				w.acts(a)
				w.checkLives()
				return
			}
			w.renewedTwice()
			if lives := w.checkLives(); len(lives) != 1 || lives[0].token != token {
				t.Errorf("the tenure did not go on: %+v; log of the holder:\n%s", lives, a.lines)
			}
		})
	}
}

func (c *candidate) setCA(pem []byte) {
	c.w.t.Helper()
	temp := filepath.Join(c.credentials, ".ca.crt")
	c.w.must(os.WriteFile(temp, pem, 0o600))
	c.w.must(os.Rename(temp, filepath.Join(c.credentials, "ca.crt")))
}
