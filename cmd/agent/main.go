//go:build linux

// Command agent runs a user's process while it holds the Lease of its SingletonJob, and at no other time.
package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
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

const usage = `agent runs a process while its pod holds the Lease of a SingletonJob, and at no other time.

  agent run -- COMMAND [ARG]...   contend for the Lease; run COMMAND whenever it is held
  agent lease [-o json]           print how this container stands to the Lease: holder, token, time left
  agent check [-min-left TIME]    succeed only while this container's tenure is valid (for TIME at least)
  agent install DIR               put a copy of this program into DIR, as DIR/agent
  agent version                   print the version

run takes its configuration from the environment that the operator gives the container, and ends with
COMMAND's exit status, or 128+n if signal n ended it. Exit statuses of its own:

  64   the command line is wrong
  69   lease and check only: no agent answers
  70   the operating system refused something that the agent needs
  78   the configuration is wrong; running it again cannot help
  126  COMMAND cannot be executed
  127  COMMAND is not found

lease and check ask the agent of the same container; their --help says more. check exits with 1 when there is no valid tenure.
`

func main() {
	supervise.MaybeLeash() // first: the leash is this program, too
	os.Exit(command(os.Args[1:], os.Stdout, os.Stderr))
}

func command(args []string, stdout, stderr io.Writer) int {
	if len(args) == 0 {
		return wrongUse(stderr, "a command is missing")
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
		return wrongUse(stderr, fmt.Sprintf("there is no command %q", name))
	}
}

func wrongUse(stderr io.Writer, why string) int {
	fmt.Fprintf(stderr, "agent: %s\n\n%s", why, usage)
	return contract.ExitUsage
}

// fail says what is wrong in one line, as the agent's log does.
func fail(stderr io.Writer, code int, err error) int {
	fmt.Fprintln(stderr, "singletonjob:", strings.ReplaceAll(err.Error(), "\n", "; ")) // a container's status shows one line
	return code
}

func run(args []string, stderr io.Writer) int {
	if len(args) > 0 && args[0] == "--" {
		args = args[1:]
	} else if len(args) > 0 {
		return wrongUse(stderr, fmt.Sprintf("run: %q stands before --", args[0]))
	}
	if len(args) == 0 {
		return wrongUse(stderr, "run: the command to run is missing after --")
	}
	environ, err := agent.TakeEnviron() // before there is anything that it could mean something to
	if err != nil {
		return fail(stderr, contract.ExitInternal, err)
	}
	// The agent's memory counts once for every candidate of a cluster, and it allocates little.
	debug.SetGCPercent(20)
	// Before anything can fail slowly: a signal that comes early must not be lost, or kill the agent.
	signals := make(chan os.Signal, 16)
	var heard []syscall.Signal
	for _, name := range contract.StopSignals() {
		heard = append(heard, syscall.Signal(contract.SignalNumber(name)))
	}
	if err := sender.Notify(signals, heard...); err != nil {
		return fail(stderr, contract.ExitInternal, err)
	}
	// A log that nobody reads any more must not kill the agent. Not ignored: the process would inherit that.
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

// serve gives the agent its surroundings and runs it.
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
	if err != nil { // the process can do without
		o.Log.Print("no lock", "error", err, "note", "an agent that is started in this pod after this one waits until the lease has run out")
	}
	if lock != nil {
		go agent.ForgetLives(lock, o.Identity.PodUID)
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
	} else { // the process can do without
		o.Log.Print("no socket", "error", err)
	}
	a := agent.New(o)
	if socket != nil {
		go a.ServeSocket(socket)
	}
	if o.Config.Port != 0 {
		port, err := net.Listen("tcp", net.JoinHostPort(env(contract.RuntimeAddressEnv), strconv.Itoa(o.Config.Port)))
		if err != nil {
			o.Log.Print("no port for probes and metrics", "error", err)
			return contract.ExitInternal
		}
		server := agent.NewServer(a.Handler())
		defer func() { _ = server.Close() }()
		go func() {
			if err := server.Serve(port); !errors.Is(err, http.ErrServerClosed) {
				o.Log.Print("probes and metrics failing", "error", err)
			}
		}()
	}
	debug.FreeOSMemory() // what starting took
	return a.Run(context.Background(), signals)
}

// logGrace is how long the last log lines may take: what a busy machine takes to write them, and no longer where nobody reads.
const logGrace = 2 * time.Second

func install(args []string, stderr io.Writer) int {
	if len(args) != 1 || args[0] == "" {
		return wrongUse(stderr, "install takes one directory")
	}
	if err := agent.Install(args[0]); err != nil {
		return fail(stderr, contract.ExitInternal, err)
	}
	return 0
}
