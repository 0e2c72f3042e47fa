//go:build linux

// Package fault breaks a running lab in the ways that real clusters break, and heals it.
//
// Heal reads the faults from the machines and keeps no record. So it works whichever program broke the lab, and however that program ended.
package fault

import (
	"context"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"slices"
	"strings"
	"syscall"
	"time"

	"github.com/singletonjob/operator/test/lab/internal/cluster"
	"github.com/singletonjob/operator/test/lab/internal/proc"
)

// An Injector breaks and heals one lab.
type Injector struct{ Lab *cluster.Lab }

// CutAPI takes the API servers from the node and its pods, and nothing else: the case in which two may act.
func (j Injector) CutAPI(ctx context.Context, node string, cut APICut) error {
	rules, err := apiRules(cut)
	if err != nil {
		return err
	}
	return j.apply(ctx, node, rules)
}

// LosePackets drops a share of the node's packets, in percent.
func (j Injector) LosePackets(ctx context.Context, node string, percent int) error {
	rules, err := lossRules(percent)
	if err != nil {
		return err
	}
	return j.apply(ctx, node, rules)
}

// CutPeers cuts the node off from all other nodes, or from the given ones. The API servers stay reachable.
func (j Injector) CutPeers(ctx context.Context, node string, others ...string) error {
	all, err := j.Lab.Machines()
	if err != nil {
		return err
	}
	var numbers []int
	for _, m := range all {
		if m.Node > 0 && m.Name != node && (len(others) == 0 || slices.Contains(others, m.Name)) {
			numbers = append(numbers, m.Node)
		}
	}
	if len(numbers) == 0 || len(others) > len(numbers) {
		return fmt.Errorf("not all of %v are other nodes than %s", others, node)
	}
	return j.apply(ctx, node, peerRules(numbers))
}

func (j Injector) apply(ctx context.Context, node, rules string) error {
	m, err := j.node(node)
	if err != nil {
		return err
	}
	return m.InNetwork(ctx, rules, "nft", "-f", "-")
}

// node finds one that is a node and lives.
func (j Injector) node(name string) (cluster.Machine, error) {
	m, err := j.Lab.Machine(name)
	if err != nil {
		return m, err
	}
	if m.Node == 0 {
		return m, fmt.Errorf("%s is no node", name)
	}
	if !m.Init.Alive() {
		return m, fmt.Errorf("%s is not running: 'lab fault heal' starts it", name)
	}
	return m, nil
}

// CutNode takes the node's link down: it is lost to everyone, as by a broken switch.
func (j Injector) CutNode(ctx context.Context, node string) error {
	m, err := j.node(node)
	if err != nil {
		return err
	}
	return setLink(ctx, m.Node, "down")
}

func setLink(ctx context.Context, node int, state string) error {
	link := cluster.NodeLink(node)
	if out, err := exec.CommandContext(ctx, "ip", "link", "set", link, state).CombinedOutput(); err != nil {
		return fmt.Errorf("set link %s %s: %w: %s", link, state, err, strings.TrimSpace(string(out)))
	}
	return nil
}

// Delay makes every packet to the node late by the given time.
func (j Injector) Delay(ctx context.Context, node string, by time.Duration) error {
	m, err := j.node(node)
	if err != nil {
		return err
	}
	late := fmt.Sprintf("%dus", by.Microseconds())
	out, err := exec.CommandContext(ctx, "tc", "qdisc", "replace", "dev", cluster.NodeLink(m.Node), "root", "netem", "delay", late).CombinedOutput()
	if err != nil {
		return fmt.Errorf("delay packets to %s: %w: %s; where the kernel has no netem, 'lab fault proxy %[1]s delay' delays the pods' API requests",
			node, err, strings.TrimSpace(string(out)))
	}
	return nil
}

// PauseNode stops every process of the node, its pods' too, as a paused virtual machine does. Its clocks continue.
func (j Injector) PauseNode(ctx context.Context, node string) error {
	m, err := j.node(node)
	if err != nil {
		return err
	}
	return j.Lab.Groups().Freeze(ctx, m.Group())
}

// CrashNode ends the node at once, as a power failure does. Heal boots it again.
func (j Injector) CrashNode(ctx context.Context, node string) error {
	m, err := j.node(node)
	if err != nil {
		return err
	}
	return m.Crash(ctx)
}

// StopService kills a service of the machine, the control plane's included.
func (j Injector) StopService(ctx context.Context, machine, service string) error {
	m, err := j.Lab.Machine(machine)
	if err != nil {
		return err
	}
	return m.Services().Stop(ctx, service, 0)
}

// RestartService kills a service and starts it again.
func (j Injector) RestartService(ctx context.Context, machine, service string) error {
	m, err := j.Lab.Machine(machine)
	if err != nil {
		return err
	}
	if err := m.Services().Stop(ctx, service, 0); err != nil {
		return err
	}
	return j.Lab.StartService(ctx, m, service)
}

// PauseService stops a service by SIGSTOP: it neither answers nor ends.
func (j Injector) PauseService(ctx context.Context, machine, service string) error {
	m, err := j.Lab.Machine(machine)
	if err != nil {
		return err
	}
	return m.Services().Signal(ctx, service, syscall.SIGSTOP)
}

// Mend undoes one fault of a node's network, called as 'lab fault' calls it, and leaves the others. One that is not there is none to undo.
func (j Injector) Mend(ctx context.Context, node, kind string) error {
	m, err := j.node(node)
	if err != nil {
		return err
	}
	switch kind {
	case "node":
		return setLink(ctx, m.Node, "up")
	case "api", "peers", "loss":
		name := "inet " + tablePrefix + kind
		return m.InNetwork(ctx, fmt.Sprintf("table %s\ndelete table %[1]s\n", name), "nft", "-f", "-")
	}
	return fmt.Errorf("no fault %q to mend: api, node, peers or loss", kind)
}

// Heal undoes every fault of the named machines, of all if none is named. It returns when all is undone; the cluster takes
// its own time to notice.
func (j Injector) Heal(ctx context.Context, names ...string) error {
	machines, err := j.Lab.Machines()
	if err != nil {
		return err
	}
	control := machines[0]
	if len(names) > 0 {
		machines = nil
		for _, name := range names {
			m, err := j.Lab.Machine(name)
			if err != nil {
				return err
			}
			machines = append(machines, m)
		}
	}
	var errs []error
	for _, m := range machines {
		errs = append(errs, j.Lab.Groups().ThawAll(ctx, m.Group()), j.continueStopped(m))
		if m.Node > 0 {
			errs = append(errs, healNetwork(ctx, m), stopProxy(ctx, control, m), j.resetClock(ctx, m))
		}
	}
	// Last, and whatever failed before: it starts what was stopped, and boots what crashed.
	return errors.Join(append(errs, j.Lab.Resume(ctx, machines...))...)
}

// continueStopped sends SIGCONT to every process of the machine that a signal has stopped.
func (j Injector) continueStopped(m cluster.Machine) error {
	var errs []error
	for _, pid := range j.Lab.Groups().Processes(m.Group()) {
		if p, err := proc.Of(pid); err == nil && p.Stopped() {
			errs = append(errs, p.Signal(syscall.SIGCONT))
		}
	}
	return errors.Join(errs...)
}

func healNetwork(ctx context.Context, m cluster.Machine) error {
	if !m.Init.Alive() {
		return nil // it went with the machine
	}
	errs := []error{setLink(ctx, m.Node, "up")}
	var deletions strings.Builder
	for _, table := range faultTables(ctx, m) {
		fmt.Fprintf(&deletions, "delete table %s\n", table)
	}
	if deletions.Len() > 0 {
		errs = append(errs, m.InNetwork(ctx, deletions.String(), "nft", "-f", "-"))
	}
	if delayed(ctx, m.Node) {
		if out, err := exec.CommandContext(ctx, "tc", "qdisc", "del", "dev", cluster.NodeLink(m.Node), "root").CombinedOutput(); err != nil {
			errs = append(errs, fmt.Errorf("undo the delay of %s: %w: %s", m.Name, err, out))
		}
	}
	return errors.Join(errs...)
}

func faultTables(ctx context.Context, m cluster.Machine) []string {
	listing, err := m.NetworkCommand(ctx, "nft", "list", "tables").Output()
	if err != nil {
		return nil
	}
	return tablesIn(string(listing))
}

func delayed(ctx context.Context, node int) bool {
	out, err := exec.CommandContext(ctx, "tc", "qdisc", "show", "dev", cluster.NodeLink(node)).Output()
	return err == nil && strings.Contains(string(out), "netem")
}

// Active lists what is broken, a line each.
func (j Injector) Active(ctx context.Context) ([]string, error) {
	machines, err := j.Lab.Machines()
	if err != nil {
		return nil, err
	}
	var found []string
	for _, group := range j.Lab.Groups().Frozen("") {
		found = append(found, "frozen: "+group)
	}
	for _, pid := range j.Lab.Groups().Processes("") {
		if p, err := proc.Of(pid); err == nil && p.Stopped() {
			name, _ := os.ReadFile(fmt.Sprintf("/proc/%d/comm", pid))
			found = append(found, fmt.Sprintf("stopped: process %d (%s)", pid, strings.TrimSpace(string(name))))
		}
	}
	for _, m := range machines {
		found = append(found, j.brokenOf(ctx, m)...)
	}
	return found, nil
}

func (j Injector) brokenOf(ctx context.Context, m cluster.Machine) []string {
	if !m.Init.Alive() {
		return []string{"down: " + m.Name}
	}
	var found []string
	if m.Node > 0 {
		for _, table := range faultTables(ctx, m) {
			found = append(found, fmt.Sprintf("network: %s: table %s", m.Name, table))
		}
		if state, err := os.ReadFile("/sys/class/net/" + cluster.NodeLink(m.Node) + "/operstate"); err == nil && strings.TrimSpace(string(state)) == "down" {
			found = append(found, "cut off: "+m.Name)
		}
		if delayed(ctx, m.Node) {
			found = append(found, "delayed: "+m.Name)
		}
		if offset := j.clockOffset(m); offset != 0 {
			found = append(found, fmt.Sprintf("clock: %s: new pods of runtime class %s are ahead by %v", m.Name, cluster.ShiftedRuntime, offset))
		}
	}
	missing, err := j.Lab.Missing(ctx, m)
	if err != nil {
		found = append(found, err.Error())
	}
	for _, name := range missing {
		found = append(found, fmt.Sprintf("not running: %s on %s", name, m.Name))
	}
	return found
}
