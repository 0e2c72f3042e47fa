//go:build linux

package cluster

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"syscall"
	"time"

	"github.com/singletonjob/operator/test/lab/internal/proc"
)

// Config is what a lab is asked to be.
type Config struct {
	Nodes         int `json:"nodes"`
	ControlPlanes int `json:"controlPlanes"` // API servers, and as many etcds
}

func (c Config) validate() error {
	if c.Nodes < 1 || c.Nodes > maxNodes {
		return fmt.Errorf("%d nodes: a lab has from 1 to %d", c.Nodes, maxNodes)
	}
	if c.ControlPlanes != 1 && c.ControlPlanes != 3 {
		return fmt.Errorf("%d control planes: a lab has 1 or 3", c.ControlPlanes)
	}
	return nil
}

// state is what must be known to take a lab down that another process started. An entry is written before its object is created, or, for a
// machine, before its init may do anything.
type state struct {
	Config
	Owned    bool                    `json:"owned"` // by a run, which takes it down; else it is somebody's who calls up and down
	BootID   string                  `json:"bootID"`
	Machines map[string]proc.Process `json:"machines"`
}

func (l *Lab) statePath() string { return l.path("state.json") }

// loadState returns nil if there is no lab. A state of an earlier boot of the host names no process that lives.
func (l *Lab) loadState() (*state, error) {
	text, err := os.ReadFile(l.statePath())
	if errors.Is(err, fs.ErrNotExist) {
		return nil, nil
	}
	if err != nil {
		return nil, err
	}
	var s state
	if err := json.Unmarshal(text, &s); err != nil {
		return nil, fmt.Errorf("%s: %w ('lab down' works without it)", l.statePath(), err)
	}
	boot, err := proc.BootID()
	if err != nil {
		return nil, err
	}
	if s.BootID != boot {
		s.Machines = map[string]proc.Process{}
	}
	return &s, nil
}

// saveState leaves the old state or the new one, never a part.
func (l *Lab) saveState(s *state) error {
	boot, err := proc.BootID()
	if err != nil {
		return err
	}
	s.BootID = boot
	text, err := json.MarshalIndent(s, "", "  ")
	if err != nil {
		return err
	}
	partial := l.statePath() + ".partial"
	if err := os.WriteFile(partial, append(text, '\n'), 0o644); err != nil {
		return err
	}
	return os.Rename(partial, l.statePath())
}

// lock keeps two programs from changing the lab at once; the second waits. The lock's file is beside the lab's directory, because 'down'
// removes that. The file is removed with the lab, so whoever gets a lock checks that its file is still the one in place.
func (l *Lab) lock(ctx context.Context) (unlock func(), err error) {
	file, err := l.lockFile(ctx, l.dir+".lock", "another program is changing the lab in "+l.dir)
	if err != nil {
		return nil, err
	}
	return func() { _ = file.Close() }, nil
}

func (l *Lab) lockFile(ctx context.Context, path, why string) (*os.File, error) {
	if err := os.MkdirAll(filepath.Dir(path), 0o755); err != nil {
		return nil, err
	}
	for said := false; ; {
		file, err := os.OpenFile(path, os.O_CREATE|os.O_RDWR, 0o644)
		if err != nil {
			return nil, err
		}
		if err := syscall.Flock(int(file.Fd()), syscall.LOCK_EX|syscall.LOCK_NB); err == nil && inPlace(file, path) {
			return file, nil
		}
		_ = file.Close()
		if !said {
			l.say("waiting: %s", why)
			said = true
		}
		select {
		case <-ctx.Done():
			return nil, fmt.Errorf("%s: %w", why, ctx.Err())
		case <-time.After(50 * time.Millisecond):
		}
	}
}

// Own makes the lab the caller's until disown is called or the process ends, in whatever way. Another owner is waited for, and so is
// a lab that somebody has brought up by hand, until it is down or ctx ends. Everything else that is left of a lab is taken down:
// its owner was killed or could not, or none of its machines lives.
func (l *Lab) Own(ctx context.Context) (disown func(), err error) {
	// The kernel unlocks the file of an owner that was killed.
	path := l.dir + ".run"
	file, err := l.lockFile(ctx, path, "the lab in "+l.dir+" runs for somebody else")
	if err != nil {
		return nil, err
	}
	disown = func() {
		_ = os.Remove(path)
		_ = file.Close()
	}
	for said := false; l.isUpByHand(); said = true {
		if !said {
			l.say("waiting: the lab in %s is up, by hand: 'lab down' ends it", l.dir)
		}
		select {
		case <-ctx.Done():
			disown()
			return nil, fmt.Errorf("a lab is up in %s: use it as it is, or run 'lab down' first: %w", l.dir, ctx.Err())
		case <-time.After(time.Second):
		}
	}
	if err := l.Down(ctx); err != nil {
		disown()
		return nil, err
	}
	l.owned = true
	return disown, nil
}

// isUpByHand reports whether there is a lab that no run has made, and a machine of it lives.
func (l *Lab) isUpByHand() bool {
	s, err := l.loadState()
	if err != nil || s == nil || s.Owned {
		return false
	}
	machines, err := l.Machines()
	return err == nil && slices.ContainsFunc(machines, func(m Machine) bool { return m.Init.Alive() })
}

func inPlace(file *os.File, path string) bool {
	mine, err1 := file.Stat()
	there, err2 := os.Stat(path)
	return err1 == nil && err2 == nil && os.SameFile(mine, there)
}

func (l *Lab) removeLock() error {
	if err := os.Remove(l.dir + ".lock"); err != nil && !errors.Is(err, fs.ErrNotExist) {
		return err
	}
	return nil
}
