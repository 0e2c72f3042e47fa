//go:build linux

package supervise

import (
	"errors"
	"fmt"

	"golang.org/x/sys/unix"
)

// ErrCannotKill says that this process could not kill a descendant that has changed its user.
var ErrCannotKill = errors.New("the process may change its user (CAP_SETUID), and without CAP_KILL nothing could kill it then: " +
	"add KILL to securityContext.capabilities of the container, or drop SETUID")

// MayKill reports whether every descendant can be killed, whatever it does with the privileges that this process has;
// ErrCannotKill if not. Start keeps descendants from gaining others.
func MayKill() error {
	if effective := capabilities(); !effective[unix.CAP_KILL] && effective[unix.CAP_SETUID] {
		return ErrCannotKill
	}
	return nil
}

// renouncePrivileges keeps this thread and what it executes from gaining privileges by a set-user-ID program or a file's
// capabilities, if this process could not kill what has them.
func renouncePrivileges() error {
	if capabilities()[unix.CAP_KILL] {
		return nil
	}
	return unix.Prctl(unix.PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0)
}

// capabilities are the effective ones of the calling thread; none where the kernel does not tell.
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

// hide keeps processes of the same user from reaching into this one: by /proc/PID/fd they would open the pipes to the leash,
// by environ and mem read and write what it knows. All of that belongs to root then, and is root's of the user namespace at
// most. The process itself may go on looking at itself, its core is not dumped, and what it executes does not inherit it.
func hide() error {
	if err := unix.Prctl(unix.PR_SET_DUMPABLE, 0, 0, 0, 0); err != nil {
		return fmt.Errorf("hide from processes of the same user: %w", err)
	}
	return nil
}
