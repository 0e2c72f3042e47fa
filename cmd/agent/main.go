//go:build linux

// Command agent runs a user's process only while the agent holds the Lease of its SingletonJob.
package main

import (
	"context"
	"fmt"
	"io"
	"net"
	"os"
	"os/signal"
	"runtime/debug"
	"strconv"
	"strings"
	"syscall"
	"time"

	"github.com/singletonjob/operator/internal/agent"
	"github.com/singletonjob/operator/internal/contract"
	"github.com/singletonjob/operator/internal/sender"
	"github.com/singletonjob/operator/internal/supervise"
)

const usage = `agent runs a command only while its Pod holds the Lease of a SingletonJob.

  agent run -- COMMAND [ARG]...   compete for the Lease; run COMMAND while this Pod holds it
  agent lease [-o json]           print this container's view of the Lease: holder, token, time left
  agent check [-min-left TIME]    succeed only if this container's tenure is valid (for at least TIME)
  agent install DIR               copy this program to DIR/agent
  agent version                   print the version

run reads its configuration from the environment that the operator sets in the container. It exits with
the exit code of COMMAND, or with 128+n if signal n ended COMMAND. It also uses these exit codes:

  64   the command line is wrong
  69   lease and check only: no agent answers
  70   the operating system refused something that the agent needs
  78   the configuration is wrong; fix it, a restart does not help
  126  COMMAND cannot be executed
  127  COMMAND is not found

lease and check query the agent of the same container; see their --help. check exits with 1 if there is no valid tenure.
`

func main() {
	supervise.MaybeLeash() // must come first: the leash is this program, too
	os.Exit(command(os.Args[1:], os.Stdout, os.Stderr))
}

func command(args []string, stdout, stderr io.Writer) int {
	if len(args) == 0 {
		return wrongUse(stderr, "no command given")
	}
	switch name, rest := args[0], args[1:]; name {
	case "run":
		return run(rest, stderr)
	case "lease":
		return printLease(rest, stdout, stderr)
	case "check":
		return check(rest, stdout, stderr)
	case "install":
		return install(rest, stderr)
	case "version":
		fmt.Fprintln(stdout, contract.Version)
		return 0
	case "help", "-h", "-help", "--help":
		fmt.Fprint(stdout, usage)
		return 0
	default:
		return wrongUse(stderr, fmt.Sprintf("unknown command %q", name))
	}
}

func wrongUse(stderr io.Writer, why string) int {
	fmt.Fprintf(stderr, "agent: %s\n\n%s", why, usage)
	return contract.ExitUsage
}

// fail prints an error in one line, in the form of the agent's log.
func fail(stderr io.Writer, code int, err error) int {
	fmt.Fprintln(stderr, "singletonjob:", strings.ReplaceAll(err.Error(), "\n", "; ")) // a container's status shows one line
	return code
}

func run(args []string, stderr io.Writer) int {
	if len(args) > 0 && args[0] == "--" {
		args = args[1:]
	} else if len(args) > 0 {
		return wrongUse(stderr, fmt.Sprintf("run: unexpected argument %q before --", args[0]))
	}
	if len(args) == 0 {
		return wrongUse(stderr, "run: no command given after --")
	}
	environ, err := agent.TakeEnviron() // first, so that no library sees the variables
	if err != nil {
		return fail(stderr, contract.ExitInternal, err)
	}
	// Every candidate of a cluster pays for the agent's memory, and the agent allocates little.
	debug.SetGCPercent(20)
	// Do this before any slow step: an early signal must not be lost or kill the agent.
	signals := make(chan os.Signal, 16)
	var heard []syscall.Signal
	for _, name := range contract.StopSignals() {
		heard = append(heard, syscall.Signal(contract.SignalNumber(name)))
	}
	if err := sender.Notify(signals, heard...); err != nil {
		return fail(stderr, contract.ExitInternal, err)
	}
	// A closed log pipe must not kill the agent. The signal is handled, not ignored, because the process would inherit an ignored signal.
	signal.Notify(make(chan os.Signal, 1), syscall.SIGPIPE)

	o, err := agent.FromEnv(environ, os.Getpid())
	if err != nil {
		return fail(stderr, contract.ExitConfig, err)
	}
	if err := supervise.MayKill(); err != nil {
		return fail(stderr, contract.ExitConfig, err)
	}
	o.Argv = args
	o.KnowsOutside = os.Getpid() == 1
	o.CannotExecute = supervise.CannotExecute
	if err := o.CannotStart(); err != nil {
		return fail(stderr, agent.StartCode(err), err)
	}
	if terminal, err := os.OpenFile("/dev/tty", os.O_RDONLY|syscall.O_NOCTTY, 0); err == nil {
		_ = terminal.Close()
		o.Terminal = true
	}
	return serve(o, signals, stderr)
}

// serve opens the log, the lock, the socket and the port, and runs the agent.
func serve(o agent.Options, signals <-chan os.Signal, stderr io.Writer) int {
	if err := supervise.Init(); err != nil {
		return fail(stderr, contract.ExitInternal, err)
	}
	env := agent.Lookup(o.Environ)
	var err error
	if o.Clock, err = agent.NewClock(); err != nil {
		return fail(stderr, contract.ExitInternal, err)
	}
	o.Log = agent.NewLog(stderr)
	defer o.Log.Close(logGrace)
	lock, err := agent.ShowLife(&o, agent.LifeDirs())
	if err != nil { // the process can run without it
		o.Log.Print("cannot take the agent's lock", "error", err, "note", "if this container restarts, its next agent must wait until the Lease expires")
	}
	if lock != nil {
		go agent.ForgetLives(lock, o.Identity.PodUID)
	}
	o.Prepare = func() {
		if err := supervise.Prepare(lock); err != nil { // the process can start without it
			o.Log.Print("cannot prepare the start of the process", "error", err)
		}
	}
	o.Start = func(spec supervise.Spec) (agent.Process, error) {
		spec.Lock = lock
		tree, err := supervise.Start(spec)
		if err != nil {
			return nil, err // not a nil *Tree in an interface that is not nil
		}
		return tree, nil
	}
	o.CPULimit = func() (float64, time.Duration) { return agent.CPULimit(agent.CgroupDir) }

	socket, err := agent.Listen(env)
	if err == nil {
		o.Socket = socket.Addr().String()
		defer func() { _ = socket.Close() }()
	} else { // the process can run without it
		o.Log.Print("cannot open the socket for status queries", "error", err)
	}
	a := agent.New(o)
	if socket != nil {
		go a.ServeSocket(socket)
	}
	if o.Config.Port != 0 {
		port, err := agent.ListenPort(net.JoinHostPort(env(contract.RuntimeAddressEnv), strconv.Itoa(o.Config.Port)))
		if err != nil {
			o.Log.Print("cannot listen on the port for probes and metrics", "error", err)
			return contract.ExitInternal
		}
		defer func() { _ = port.Close() }()
		go a.ServePort(port)
	}
	debug.FreeOSMemory() // the memory that only the start needed
	return a.Run(context.Background(), signals)
}

// logGrace is the time limit for writing the last log lines. It is enough on a busy machine, and short if nobody reads the log.
const logGrace = 2 * time.Second

func install(args []string, stderr io.Writer) int {
	if len(args) != 1 || args[0] == "" {
		return wrongUse(stderr, "install needs exactly one directory")
	}
	if err := agent.Install(args[0]); err != nil {
		return fail(stderr, contract.ExitInternal, err)
	}
	return 0
}
