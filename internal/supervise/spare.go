//go:build linux

package supervise

import (
	"os"

	"golang.org/x/sys/unix"
)

// spare is a leash that waits for the next tree.
type spare struct {
	waiting
	lock *os.File
}

// Prepare forks a leash that waits for the next Start, so that only the fork and the exec of the program are left for Start to do. It does
// not block, and it does nothing if a leash waits already or a tree exists. The caller must pass the file that it will pass as Spec.Lock,
// and leave Stdin, Stdout and Stderr of the Spec at their defaults. Otherwise Start forks another leash.
//
// A leash that waits has no program. It can start nothing before Start gives it an order and a deadline, and it dies with this process. If
// it dies earlier, Start forks another one, and nothing else is lost. An error comes from Init.
func Prepare(lock *os.File) error {
	if err := Init(); err != nil {
		return err
	}
	process.mu.Lock()
	defer process.mu.Unlock()
	if process.tree != nil || process.spare != nil || process.preparing != nil {
		return nil
	}
	process.preparing = make(chan struct{})
	go process.prepare(lock)
	return nil
}

// prepare does the work of Prepare. A tree that begins meanwhile waits for it, because there is only one thread that forks.
func (r *reaper) prepare(lock *os.File) {
	forked, err := r.forkLeash(r.role(), Spec{Lock: lock})
	r.mu.Lock()
	defer r.mu.Unlock()
	close(r.preparing)
	r.preparing = nil
	switch {
	case err != nil: // Start tries again, and reports the error
	case !isChild(forked.leash):
		forked.ends.close()
	default:
		r.spare = &spare{forked, lock}
	}
}

// takeSpare returns the leash that waits, for the tree that calls this. ok is false if there is none that suits the spec.
func (r *reaper) takeSpare(spec Spec) (leash waiting, ok bool) {
	r.mu.Lock()
	defer r.mu.Unlock()
	if preparing := r.preparing; preparing != nil {
		r.mu.Unlock()
		<-preparing
		r.mu.Lock()
	}
	r.reapAll() // a leash that has died is none
	r.poke()
	s := r.spare
	r.spare = nil
	switch {
	case s == nil:
		return waiting{}, false
	case s.lock != spec.Lock || spec.Stdin != nil || spec.Stdout != nil || spec.Stderr != nil:
		_ = unix.Kill(s.leash, unix.SIGKILL) // it was not reaped, so its PID is its own
		s.ends.close()
		return waiting{}, false
	}
	return s.waiting, true
}

// reaped reports whether a process that was reaped is this leash. If it is, its pipes are closed. s can be nil.
func (s *spare) reaped(pid int) bool {
	if s == nil || s.leash != pid {
		return false
	}
	s.ends.close()
	return true
}
