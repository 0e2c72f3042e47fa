//go:build linux

package supervise

import (
	"errors"
	"fmt"

	"golang.org/x/sys/unix"
)

// ErrCannotKill reports that this process could not kill a descendant that changes its user.
var ErrCannotKill = errors.New("the process can change its user (CAP_SETUID), and without CAP_KILL the agent could not kill it after that: " +
	"add KILL to securityContext.capabilities of the container, or drop SETUID")

// MayKill returns nil if this process can kill every descendant, whatever the descendant does with the privileges of this process, and
// ErrCannotKill otherwise. Start keeps descendants from gaining further privileges.
func MayKill() error {
	if effective := capabilities(); !effective[unix.CAP_KILL] && effective[unix.CAP_SETUID] {
		return ErrCannotKill
	}
	return nil
}

// renouncePrivileges keeps this thread and the programs that it executes from gaining privileges by a set-user-ID program or file
// capabilities. It does so only if this process could not kill a process with such privileges.
func renouncePrivileges() error {
	if capabilities()[unix.CAP_KILL] {
		return nil
	}
	return unix.Prctl(unix.PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0)
}

// capabilities returns the effective capabilities of the calling thread, or none if the kernel does not report them.
func capabilities() map[int]bool {
	header := unix.CapUserHeader{Version: unix.LINUX_CAPABILITY_VERSION_3}
	var data [2]unix.CapUserData
	held := map[int]bool{}
	if unix.Capget(&header, &data[0]) != nil {
		return held
	}
	for bit := range 64 {
		held[bit] = data[bit/32].Effective&(1<<(bit%32)) != 0
	}
	return held
}

// hide protects this process from other processes of the same user. Otherwise they could open the pipes to the leash through /proc/PID/fd,
// and read and write this process's memory through environ and mem. After hide, these files belong to root, at most to the root user of the
// user namespace. The process can still access its own files. Its core is not dumped, and programs that it executes do not inherit the
// protection.
func hide() error {
	if err := unix.Prctl(unix.PR_SET_DUMPABLE, 0, 0, 0, 0); err != nil {
		return fmt.Errorf("hide from processes of the same user: %w", err)
	}
	return nil
}
