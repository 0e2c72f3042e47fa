//go:build linux

package main

import (
	"context"
	"encoding/json"
	"flag"
	"fmt"
	"text/tabwriter"

	"github.com/singletonjob/operator/test/lab/internal/cluster"
)

// status is what 'lab status -json' prints.
type status struct {
	Kubeconfig string          `json:"kubeconfig"`
	APIServers []string        `json:"apiServers"` // URLs
	Host       string          `json:"host"`       // the host's address in the lab's network
	Machines   []machineStatus `json:"machines"`
	Faults     []string        `json:"faults"`
}

type machineStatus struct {
	Name     string          `json:"name"`
	Address  string          `json:"address"`
	Pods     string          `json:"pods,omitempty"` // their range
	Zone     string          `json:"zone,omitempty"`
	Alive    bool            `json:"alive"`
	Services []serviceStatus `json:"services,omitempty"`
}

type serviceStatus struct {
	Name  string `json:"name"`
	State string `json:"state"` // running, stopped by a signal, or how it ended
}

func (p program) status(ctx context.Context, args []string) error {
	flags := flag.NewFlagSet("lab status", flag.ContinueOnError)
	asJSON := flags.Bool("json", false, "for programs")
	if err := flags.Parse(args); err != nil {
		return err
	}
	s, err := p.readStatus(ctx)
	if err != nil {
		return err
	}
	if *asJSON {
		text := json.NewEncoder(p.out)
		text.SetIndent("", "  ")
		return text.Encode(s)
	}
	return p.print(s)
}

func (p program) readStatus(ctx context.Context) (status, error) {
	c, err := p.lab.Config()
	if err != nil {
		return status{}, err
	}
	machines, err := p.lab.Machines()
	if err != nil {
		return status{}, err
	}
	s := status{Kubeconfig: p.lab.Kubeconfig(), Host: cluster.APIAddress(1)}
	for i := 1; i <= c.ControlPlanes; i++ {
		s.APIServers = append(s.APIServers, fmt.Sprintf("https://%s:%d", cluster.APIAddress(i), cluster.APIPort))
	}
	for _, m := range machines {
		found := machineStatus{Name: m.Name, Address: s.Host, Alive: m.Init.Alive()}
		if m.Node > 0 {
			found.Address, found.Pods, found.Zone = cluster.NodeAddress(m.Node), cluster.PodCIDR(m.Node), cluster.Zone(m.Node)
		}
		if found.Alive {
			found.Services = services(ctx, m)
		}
		s.Machines = append(s.Machines, found)
	}
	s.Faults, err = p.injector().Active(ctx)
	return s, err
}

func services(ctx context.Context, m cluster.Machine) []serviceStatus {
	all, err := m.Services().List(ctx)
	if err != nil {
		return []serviceStatus{{Name: "init", State: err.Error()}}
	}
	var found []serviceStatus
	for _, s := range all {
		state := "running"
		switch {
		case s.PID == 0:
			state = s.Exit
		case s.Stopped:
			state = "stopped by a signal"
		}
		found = append(found, serviceStatus{Name: s.Name, State: state})
	}
	return found
}

func (p program) print(s status) error {
	w := tabwriter.NewWriter(p.out, 0, 0, 2, ' ', 0)
	_, _ = fmt.Fprintln(w, "MACHINE\tADDRESS\tSERVICE\tSTATE")
	for _, m := range s.Machines {
		if !m.Alive {
			_, _ = fmt.Fprintf(w, "%s\t%s\t\tdown\n", m.Name, m.Address)
		}
		for _, service := range m.Services {
			_, _ = fmt.Fprintf(w, "%s\t%s\t%s\t%s\n", m.Name, m.Address, service.Name, service.State)
		}
	}
	if err := w.Flush(); err != nil {
		return err
	}
	for _, f := range s.Faults {
		_, _ = fmt.Fprintln(p.out, "fault:", f)
	}
	_, _ = fmt.Fprintf(p.out, "KUBECONFIG=%s\n", s.Kubeconfig)
	return nil
}
