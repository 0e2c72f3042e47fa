//go:build linux

package main

import (
	"context"
	"fmt"
	"strings"
	"time"
)

// A faultCase is one thing that befalls all active processes at once, on one node.
type faultCase struct {
	key string
	// inject does it, mend undoes it. Without a mend no process is left to send a stale write: silent.
	inject, mend func(ctx context.Context, t *trial) error
	// after is how long to watch when all is healed.
	after time.Duration
}

func (f faultCase) silent() bool { return f.mend == nil }

const (
	// stays is how long a fault continues after the successors have written.
	stays = 5 * time.Second
	// blind is how long agents get no answer about their Leases after the fault: so long the processes of the past tenure can write.
	blind = 10 * time.Second
)

var faultCases = []faultCase{
	{key: "api", inject: on("api", "drop"), mend: mend("api"), after: 10 * time.Second},
	// A kernel resends unacknowledged data at growing intervals.
	{key: "cut", inject: on("node"), mend: mend("node"), after: 30 * time.Second},
	// Without the API server: else what the kernel has received for a frozen agent meanwhile ends its process at once. Frozen first: what
	// was under way to the API server would be sent again too late, and later writes after it.
	{key: "freeze", inject: both(containers("freeze"), on("api", "drop")), mend: both(containers("thaw"), mend("api")), after: 10 * time.Second},
	{key: "crash", inject: on("crash"), after: 10 * time.Second},
}

func on(fault string, how ...string) func(context.Context, *trial) error {
	return func(ctx context.Context, t *trial) error {
		return t.cluster.Lab.Fault(ctx, append([]string{fault, t.node}, how...)...)
	}
}

func mend(fault string) func(context.Context, *trial) error {
	return func(ctx context.Context, t *trial) error { return t.cluster.Lab.Fault(ctx, "mend", t.node, fault) }
}

func both(one, other func(context.Context, *trial) error) func(context.Context, *trial) error {
	return func(ctx context.Context, t *trial) error {
		if err := one(ctx, t); err != nil {
			return err
		}
		return other(ctx, t)
	}
}

func containers(fault string) func(context.Context, *trial) error {
	return func(ctx context.Context, t *trial) error {
		for _, j := range t.jobs {
			if err := t.cluster.Lab.Fault(ctx, fault, j.container); err != nil {
				return err
			}
		}
		return nil
	}
}

// withholdLeases has the node's agents get no answer about their Leases. Other requests to the API server, and all sinks, are reached.
func withholdLeases(ctx context.Context, t *trial) error {
	return t.cluster.Lab.Fault(ctx, "proxy", t.node, "black-hole", "-path=/leases")
}

// chosen are the faults of a list, in its order.
func chosen(list string) (faults []faultCase, err error) {
	for key := range strings.SplitSeq(list, ",") {
		found := false
		for _, f := range faultCases {
			if f.key == key {
				faults, found = append(faults, f), true
			}
		}
		if !found {
			return nil, fmt.Errorf("-faults has %q: there are api, cut, freeze and crash", key)
		}
	}
	return faults, nil
}
