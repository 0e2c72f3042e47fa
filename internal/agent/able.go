//go:build linux

package agent

import (
	"strings"
	"time"

	"github.com/singletonjob/operator/internal/lease"
)

// looksFor is the timeout of the search for a command. A file system that hangs must not block the agent.
const looksFor = time.Second

// CannotStart returns the reason why no tenure could start its process, if that is certain before there is a tenure. So a template whose
// command is not in its image never takes the Lease from one that works. nil guarantees nothing. It does not look for a command whose name
// changes from tenure to tenure, nor for a main process that preActivate can install.
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
