// Command fence-proxy is a fence for HTTP services that can't be changed: see docs/fencing-http.md.
package main

import (
	"context"
	"errors"
	"flag"
	"fmt"
	"log/slog"
	"os"
	"os/signal"
	"syscall"

	"github.com/singletonjob/operator/fence"
	"github.com/singletonjob/operator/internal/fenceproxy"
)

func main() {
	if err := run(os.Args[1:]); err != nil && !errors.Is(err, flag.ErrHelp) {
		fmt.Fprintln(os.Stderr, "fence-proxy:", err)
		os.Exit(1)
	}
}

func run(args []string) error {
	flags := flag.NewFlagSet("fence-proxy", flag.ContinueOnError)
	file := flags.String("config", "", "configuration `file`, in YAML or JSON; flags override it")
	var given fenceproxy.Config
	var resource string
	flags.StringVar(&given.Listen, "listen", "", "`address` for clients (default \":8080\")")
	flags.StringVar(&given.Admin, "admin", "", "`address` for /metrics, /healthz, /readyz and /advance (default \":9090\")")
	flags.StringVar(&given.Upstream, "upstream", "", "`URL` of the service behind the proxy")
	flags.StringVar(&resource, "resource", "", "`namespace/name` of the resource of all writes, in place of rules")
	flags.StringVar(&given.Store.Bolt, "bolt", "", "`file` of the marks, for one replica")
	flags.BoolVar(&given.Monitor, "monitor", false, "let all requests pass, and count those that would be refused")
	if err := flags.Parse(args); err != nil {
		return err
	}
	if flags.NArg() > 0 {
		return fmt.Errorf("unexpected argument %q: fence-proxy takes flags only", flags.Arg(0))
	}
	if resource != "" {
		given.Rules = []fenceproxy.Rule{{Resource: fence.Resource(resource)}}
	}
	read := func() (c fenceproxy.Config, err error) {
		if *file != "" {
			if c, err = fenceproxy.Read(*file); err != nil {
				return c, err
			}
		}
		return c.With(given), nil
	}
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	defer stop()
	reload := make(chan os.Signal, 1)
	signal.Notify(reload, syscall.SIGHUP)
	return fenceproxy.Run(ctx, read, reload, slog.New(slog.NewJSONHandler(os.Stderr, nil)))
}
