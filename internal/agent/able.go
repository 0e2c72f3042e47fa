//go:build linux

package agent

import (
	"strings"
	"time"

	"github.com/singletonjob/operator/internal/lease"
)

// looksFor is how long a file system may take to show a command. One that hangs must not have the agent hang.
const looksFor = time.Second

// CannotStart is why no tenure's process could be started, where that is certain before there is a tenure: so a template whose
// command is not in its image never takes the Lease from one that works. nil promises nothing. A command whose name differs from
// tenure to tenure is not looked for, nor a main process that preActivate may bring.
func (o *Options) CannotStart() error {
	command := o.expandArgv(nil)
	if pre := o.Config.PreActivate; pre != nil {
		command = pre.Exec
	}
	if o.CannotExecute == nil || len(command) == 0 || strings.Contains(command[0], "$(") {
		return nil
	}
	found := make(chan error, 1)
	go func() { found <- o.CannotExecute(command[0], o.childEnv(o.promised(lease.StartChild{}))) }()
	select {
	case err := <-found:
		return err
	case <-time.After(looksFor):
		return nil
	}
}
