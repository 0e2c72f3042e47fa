//go:build linux

// Command lab runs a real Kubernetes of several nodes on one Linux machine, as root, without Docker, a registry or a virtual machine. It
// breaks the cluster on request.
package main

import (
	"context"
	"errors"
	"flag"
	"fmt"
	"io"
	"os"
	"os/exec"
	"os/signal"
	"strings"
	"syscall"
	"time"

	"github.com/singletonjob/operator/test/lab/internal/cluster"
	"github.com/singletonjob/operator/test/lab/internal/fault"
	"github.com/singletonjob/operator/test/lab/internal/initd"
	"github.com/singletonjob/operator/test/lab/internal/machine"
)

const usage = `usage: lab COMMAND

  up [-nodes N] [-control-planes 1|3]   start the lab, or those parts of it that do not run
  run [-nodes N] [-control-planes 1|3] [-wait D] COMMAND...
                                        start a lab, run the command with its KUBECONFIG, and stop the lab
  down                                  stop the lab, in any state, and remove everything that it made
  status [-json]                        print what runs and what is broken
  image ARCHIVE...                      load image archives (OCI layout or docker) into every node
  image NAME=SRC:DST[,SRC:DST...][@ENTRYPOINT...][!STOPSIGNAL]
                                        load an image made of files; SRC may be a directory, or ->TARGET for a symbolic link
  exec MACHINE COMMAND...               run a command inside a node, or inside 'control'
  program NAME                          print the path of a program (kubectl, helm, ctr, ...); build it first if necessary
  fault ...                             break the cluster: see 'lab fault'

The cluster's KUBECONFIG is ` + cluster.DefaultDir + `/admin.kubeconfig. Use its images with imagePullPolicy: Never.
Nodes and pods reach every program on the host that listens on ` + "10.210.0.1" + `.
`

// timeout ends a command that hangs. Building everything from cold caches comes first and takes most of it.
const timeout = 30 * time.Minute

func main() {
	if len(os.Args) > 1 && os.Args[1] == machine.InitCommand {
		fmt.Fprintln(os.Stderr, initd.Run())
		os.Exit(1)
	}
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	err := run(ctx, os.Args[1:], os.Stdout)
	stop()
	if errors.Is(err, flag.ErrHelp) {
		os.Exit(2)
	}
	if err != nil {
		fmt.Fprintln(os.Stderr, "lab:", err)
		os.Exit(1)
	}
}

// program is the lab and where to print.
type program struct {
	lab *cluster.Lab
	out io.Writer
}

func run(ctx context.Context, args []string, out io.Writer) error {
	if len(args) == 0 {
		return help(usage)
	}
	lab, err := cluster.Open(cluster.DefaultDir, os.Stderr)
	if err != nil {
		return err
	}
	p := program{lab: lab, out: out}
	if args[0] == fault.ProxyCommand { // a service, not a command: it runs until it is stopped
		return p.injector().RunProxy(ctx, args[1:])
	}
	commands := map[string]func(context.Context, []string) error{
		"up": p.up, "run": p.run, "down": p.down, "status": p.status, "image": p.image, "exec": p.exec, "program": p.program, "fault": p.fault,
	}
	command := commands[args[0]]
	if command == nil {
		return help(usage)
	}
	if args[0] != "exec" && args[0] != "run" { // which take as long as what they run
		var cancel context.CancelFunc
		ctx, cancel = context.WithTimeout(ctx, timeout)
		defer cancel()
	}
	return command(ctx, args[1:])
}

func help(text string) error {
	fmt.Fprint(os.Stderr, text)
	return flag.ErrHelp
}

func (p program) injector() fault.Injector { return fault.Injector{Lab: p.lab} }

func (p program) up(ctx context.Context, args []string) error {
	c, rest, err := parseConfig(flag.NewFlagSet("lab up", flag.ContinueOnError), args)
	if err != nil {
		return err
	}
	if len(rest) > 0 {
		return fmt.Errorf("unexpected argument %q: lab up takes flags only", rest[0])
	}
	begin := time.Now()
	if err := p.lab.Up(ctx, c); err != nil {
		return err
	}
	_, _ = fmt.Fprintf(p.out, "%d nodes up in %.1f s\nexport KUBECONFIG=%s\n", c.Nodes, time.Since(begin).Seconds(), p.lab.Kubeconfig())
	return nil
}

func parseConfig(flags *flag.FlagSet, args []string) (c cluster.Config, rest []string, err error) {
	flags.IntVar(&c.Nodes, "nodes", 3, "number of nodes")
	flags.IntVar(&c.ControlPlanes, "control-planes", 1, "API servers, each with an etcd: 1 or 3")
	err = flags.Parse(args)
	return c, flags.Args(), err
}

// run stops the lab whatever happens to the command. So it uses no lab that it has not started, and waits until a running one has stopped.
func (p program) run(ctx context.Context, args []string) (err error) {
	flags := flag.NewFlagSet("lab run", flag.ContinueOnError)
	wait := flags.Duration("wait", time.Hour, "how long to wait until a running lab has stopped")
	c, command, err := parseConfig(flags, args)
	if err != nil {
		return err
	}
	if len(command) == 0 {
		return help(usage)
	}
	waiting, cancel := context.WithTimeout(ctx, *wait)
	disown, err := p.lab.Own(waiting)
	cancel()
	if err != nil {
		return err
	}
	defer disown()
	defer func() {
		ending, cancel := context.WithTimeout(context.WithoutCancel(ctx), 10*time.Minute)
		defer cancel()
		if downErr := p.lab.Down(ending); downErr != nil { // which fails nothing that has passed, and the next run continues from there
			_, _ = fmt.Fprintln(os.Stderr, "lab: down:", downErr)
		}
	}()
	if err := p.lab.Up(ctx, c); err != nil {
		return err
	}
	cmd := exec.CommandContext(ctx, command[0], command[1:]...)
	cmd.Env = append(os.Environ(), "KUBECONFIG="+p.lab.Kubeconfig())
	cmd.Stdin, cmd.Stdout, cmd.Stderr = os.Stdin, p.out, os.Stderr
	cmd.Cancel = func() error { return cmd.Process.Signal(os.Interrupt) }
	cmd.WaitDelay = time.Minute
	if err := cmd.Run(); err != nil {
		return fmt.Errorf("%s: %w", strings.Join(command, " "), err)
	}
	return nil
}

func (p program) down(ctx context.Context, _ []string) error { return p.lab.Down(ctx) }

func (p program) image(ctx context.Context, args []string) error {
	if len(args) == 0 {
		return help(usage)
	}
	var archives []string
	for _, arg := range args {
		if !strings.Contains(arg, "=") {
			archives = append(archives, arg)
			continue
		}
		if err := p.lab.LoadImageSpec(ctx, arg); err != nil {
			return err
		}
	}
	if len(archives) == 0 {
		return nil
	}
	return p.lab.LoadImages(ctx, archives...)
}

func (p program) exec(ctx context.Context, args []string) error {
	if len(args) < 2 {
		return help(usage)
	}
	m, err := p.lab.Machine(args[0])
	if err != nil {
		return err
	}
	if !m.Init.Alive() {
		return fmt.Errorf("%s is not running", m.Name)
	}
	cmd := m.Command(ctx, args[1:]...)
	cmd.Stdin, cmd.Stdout, cmd.Stderr = os.Stdin, p.out, os.Stderr
	return cmd.Run()
}

func (p program) program(ctx context.Context, args []string) error {
	if len(args) != 1 {
		return help(usage)
	}
	path, err := p.lab.Program(ctx, args[0])
	if err != nil {
		return err
	}
	_, _ = fmt.Fprintln(p.out, path)
	return nil
}
