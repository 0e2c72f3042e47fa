//go:build linux

package main

import (
	"context"
	"flag"
	"fmt"
	"slices"
	"strconv"
	"strings"
	"time"

	"golang.org/x/sys/unix"

	"github.com/singletonjob/operator/test/lab/internal/cluster"
	"github.com/singletonjob/operator/test/lab/internal/fault"
)

var faultUsage = `usage: lab fault FAULT

  api NODE [drop|refuse|requests|replies]   the node and its pods lose the API servers and nothing else: packets vanish,
                                            connections are reset, or packets of one direction vanish (default: drop)
  node NODE                                 the node's link goes down
  peers NODE [NODE...]                      the node loses the other nodes, or these; the API servers stay
  loss NODE PERCENT                         so many of its packets vanish
  delay NODE TIME                           its packets come late (needs netem in the kernel)
  proxy NODE KIND [-after TIME] [-method M,..] [-path TEXT]
                                            its pods' requests to the API server meet a fault. KIND is one of
                                            ` + strings.Join(fault.RequestFaults(), ", ") + `
  pause NODE                                all processes of the node stop, as in a paused virtual machine
  crash NODE                                the node loses power
  freeze CONTAINER | thaw CONTAINER         its processes stop and go on; its clocks go on (cgroup freezer)
  lose CONTAINER                            the runtime is killed and started again, and knows nothing of the container's pod, whose
                                            processes live on
  signal CONTAINER SIGNAL [TEXT]            to its process 1, or to those whose command line begins with TEXT
  stop MACHINE SERVICE                      SIGKILL; MACHINE is a node or 'control', see 'lab status' for services
  restart MACHINE SERVICE                   SIGKILL and start again
  suspend MACHINE SERVICE                   SIGSTOP
  backup-etcd | restore-etcd                keep what etcd has stored, and go back to it, revisions included
  clock NODE TIME                           new containers of runtime class ` + cluster.ShiftedRuntime + ` on the node have CLOCK_MONOTONIC
                                            and CLOCK_BOOTTIME ahead by so much (or behind); no kernel can change the clocks
                                            of running processes, their rate, or CLOCK_REALTIME for some processes only
  mend NODE api|node|peers|loss             undo one of the node's, and leave the others
  heal [MACHINE...]                         undo all of them, or those of these machines

CONTAINER is NAMESPACE/POD, NAMESPACE/POD/CONTAINER or a part of its id.
`

// A faultCommand takes at least as many arguments as it names.
type faultCommand struct {
	args int
	run  func(context.Context, fault.Injector, []string) error
}

var faultCommands = map[string]faultCommand{
	"api": {1, func(ctx context.Context, j fault.Injector, a []string) error {
		return j.CutAPI(ctx, a[0], fault.APICut(append(a, string(fault.Drop))[1]))
	}},
	"node":  {1, func(ctx context.Context, j fault.Injector, a []string) error { return j.CutNode(ctx, a[0]) }},
	"peers": {1, func(ctx context.Context, j fault.Injector, a []string) error { return j.CutPeers(ctx, a[0], a[1:]...) }},
	"loss":  {2, losePackets},
	"delay": {2, func(ctx context.Context, j fault.Injector, a []string) error {
		return withDuration(a[1], func(d time.Duration) error { return j.Delay(ctx, a[0], d) })
	}},
	"proxy":  {2, proxy},
	"pause":  {1, func(ctx context.Context, j fault.Injector, a []string) error { return j.PauseNode(ctx, a[0]) }},
	"crash":  {1, func(ctx context.Context, j fault.Injector, a []string) error { return j.CrashNode(ctx, a[0]) }},
	"freeze": {1, func(ctx context.Context, j fault.Injector, a []string) error { return j.Freeze(ctx, a[0]) }},
	"thaw":   {1, func(ctx context.Context, j fault.Injector, a []string) error { return j.Thaw(ctx, a[0]) }},
	"lose":   {1, func(ctx context.Context, j fault.Injector, a []string) error { return j.Lose(ctx, a[0]) }},
	"signal": {2, sendSignal},
	"stop":   {2, func(ctx context.Context, j fault.Injector, a []string) error { return j.StopService(ctx, a[0], a[1]) }},
	"restart": {2, func(ctx context.Context, j fault.Injector, a []string) error {
		return j.RestartService(ctx, a[0], a[1])
	}},
	"suspend": {2, func(ctx context.Context, j fault.Injector, a []string) error { return j.PauseService(ctx, a[0], a[1]) }},
	"clock": {2, func(ctx context.Context, j fault.Injector, a []string) error {
		return withDuration(a[1], func(d time.Duration) error { return j.SetClock(ctx, a[0], d) })
	}},
	"backup-etcd":  {0, func(ctx context.Context, j fault.Injector, _ []string) error { return j.BackUpEtcd(ctx) }},
	"restore-etcd": {0, func(ctx context.Context, j fault.Injector, _ []string) error { return j.RestoreEtcd(ctx) }},
	"mend":         {2, func(ctx context.Context, j fault.Injector, a []string) error { return j.Mend(ctx, a[0], a[1]) }},
	"heal":         {0, func(ctx context.Context, j fault.Injector, a []string) error { return j.Heal(ctx, a...) }},
}

func (p program) fault(ctx context.Context, args []string) error {
	if len(args) == 0 {
		return help(faultUsage)
	}
	command, ok := faultCommands[args[0]]
	if !ok || len(args)-1 < command.args {
		return help(faultUsage)
	}
	return command.run(ctx, p.injector(), args[1:])
}

func losePackets(ctx context.Context, j fault.Injector, args []string) error {
	percent, err := strconv.Atoi(strings.TrimSuffix(args[1], "%"))
	if err != nil {
		return fmt.Errorf("loss of %q: give whole percents", args[1])
	}
	return j.LosePackets(ctx, args[0], percent)
}

func sendSignal(ctx context.Context, j fault.Injector, args []string) error {
	name := "SIG" + strings.TrimPrefix(strings.ToUpper(args[1]), "SIG")
	sig := unix.SignalNum(name)
	if sig == 0 {
		return fmt.Errorf("no signal %q", args[1])
	}
	return j.Signal(ctx, args[0], sig, strings.Join(args[2:], " "))
}

func proxy(ctx context.Context, j fault.Injector, args []string) error {
	flags := flag.NewFlagSet("lab fault proxy", flag.ContinueOnError)
	f := fault.RequestFault{Kind: args[1]}
	flags.DurationVar(&f.After, "after", time.Second, "how late, for delay, delay-reply, duplicate and overload")
	flags.StringVar(&f.Method, "method", "", "only requests with one of these methods")
	flags.StringVar(&f.Path, "path", "", "only requests whose path holds this")
	if err := flags.Parse(slices.Clone(args[2:])); err != nil {
		return err
	}
	return j.Proxy(ctx, args[0], f)
}

func withDuration(text string, do func(time.Duration) error) error {
	d, err := time.ParseDuration(text)
	if err != nil {
		return fmt.Errorf("time %q: give it as 150ms, 2s or -1h", text)
	}
	return do(d)
}
