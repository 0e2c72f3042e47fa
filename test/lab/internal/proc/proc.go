//go:build linux

// Package proc names processes so that a number the kernel has given to another process is never mistaken for the one
// that was meant.
package proc

import (
	"context"
	"errors"
	"fmt"
	"os"
	"strconv"
	"strings"
	"syscall"
	"time"
)

// A Process is one process for as long as the machine is up: a pid with the start time that no later bearer of it has.
type Process struct {
	PID   int    `json:"pid"`
	Start uint64 `json:"start"` // ticks since boot
}

// BootID tells one boot of the machine from the next. Start times of two boots must not be compared.
func BootID() (string, error) {
	id, err := os.ReadFile("/proc/sys/kernel/random/boot_id")
	return strings.TrimSpace(string(id)), err
}

// Of identifies the live process that has the PID now.
func Of(pid int) (Process, error) {
	s, err := readStat(pid)
	if err != nil {
		return Process{}, err
	}
	return Process{PID: pid, Start: s.start}, nil
}

// Alive reports whether the process still runs. A zombie does not.
func (p Process) Alive() bool {
	if p.PID <= 0 {
		return false
	}
	s, err := readStat(p.PID)
	return err == nil && s.start == p.Start && s.state != 'Z' && s.state != 'X'
}

// Stopped reports whether the process is stopped by a signal.
func (p Process) Stopped() bool {
	s, err := readStat(p.PID)
	return err == nil && s.start == p.Start && s.state == 'T'
}

// Signal sends the signal to this process and to no other: the handle is taken first and the identity checked after, so
// the pid can't change hands in between. It is no error if the process is gone.
func (p Process) Signal(sig syscall.Signal) error {
	handle, err := os.FindProcess(p.PID) // a pidfd on Linux
	if err != nil {
		return nil
	}
	defer func() { _ = handle.Release() }()
	if !p.Alive() {
		return nil
	}
	if err := handle.Signal(sig); err != nil && !errors.Is(err, os.ErrProcessDone) {
		return fmt.Errorf("send %v to process %d: %w", sig, p.PID, err)
	}
	return nil
}

// WaitGone returns when the process runs no more, or with the context's error.
func (p Process) WaitGone(ctx context.Context) error {
	tick := time.NewTicker(10 * time.Millisecond)
	defer tick.Stop()
	for p.Alive() {
		select {
		case <-ctx.Done():
			return fmt.Errorf("process %d still runs: %w", p.PID, ctx.Err())
		case <-tick.C:
		}
	}
	return nil
}

type stat struct {
	state byte
	start uint64
}

func readStat(pid int) (stat, error) {
	text, err := os.ReadFile(fmt.Sprintf("/proc/%d/stat", pid))
	if err != nil {
		return stat{}, err
	}
	return parseStat(string(text))
}

// parseStat reads the third and the 22nd field. The second, the command's name, may hold blanks and parentheses, so the
// fields are counted from its last parenthesis.
func parseStat(text string) (stat, error) {
	fields := strings.Fields(text[strings.LastIndexByte(text, ')')+1:])
	if len(fields) < 20 {
		return stat{}, fmt.Errorf("malformed process status %q", text)
	}
	start, err := strconv.ParseUint(fields[19], 10, 64)
	if err != nil {
		return stat{}, fmt.Errorf("malformed start time in process status %q", text)
	}
	return stat{state: fields[0][0], start: start}, nil
}
