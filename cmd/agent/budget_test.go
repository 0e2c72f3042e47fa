//go:build linux

package main

import "testing"

// The agent is in every Pod. The shipped agent, with its leash, uses no more memory than the documentation tells users to allow for.
func TestMemoryAtRest(t *testing.T) {
	t.Parallel()
	const most = 16 // MiB
	w := newWorld(t)
	w.program = shipped(t)
	holder, standby := w.prepare("a", steadyConfig()), w.prepare("b", steadyConfig())
	holder.run("sleep", "infinity")
	holder.acquired()
	standby.run("sleep", "infinity")
	standby.await("lease held")
	w.renewedTwice()
	leash := onlyChild(t, holder.agent.Pid())
	active, waiting := rss(t, holder.agent.Pid())+rss(t, leash), rss(t, standby.agent.Pid())
	t.Logf("a holder and its leash take %.1f MiB, a standby %.1f MiB", active, waiting)
	if active > most || waiting > most {
		t.Errorf("a holder and its leash take %.1f MiB, a standby %.1f MiB, want at most %d", active, waiting, most)
	}
}
