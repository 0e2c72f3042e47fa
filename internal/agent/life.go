//go:build linux

package agent

import (
	"cmp"
	"crypto/sha256"
	"encoding/base32"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"time"

	"golang.org/x/sys/unix"

	"github.com/singletonjob/operator/internal/contract"
)

// An agent shows that it lives by an exclusive lock on a file of its own, which it shares with its leash: the kernel frees it when
// both are gone. docs/decisions/035-what-a-restart-proves.md says what that proves, and which doubts there are.

// lifePrefix begins the files' names; the pod's UID and the agent's nonce follow.
const lifePrefix = ".singletonjob-lives-"

// bootIDFile tells kernels apart: a lock is known to the kernel that was asked for it.
const bootIDFile = "/proc/sys/kernel/random/boot_id"

// LifeDirs are where an agent's file may be: beside its binary, which is a volume of the pod's own, and where that is read-only in the
// directory for shared memory, which the pod's containers share.
func LifeDirs() []string {
	beside := contract.AgentDir
	if exe, err := os.Executable(); err == nil {
		beside = filepath.Dir(exe)
	}
	return []string{beside, "/dev/shm"}
}

// ShowLife takes the lock in the first directory in which it can, and has the identity name it. The lock ends with the last process
// that has the file: the agent and its leashes. An error says why there is none; then nobody will ever have evidence of this agent's death, and an
// agent that is started after it waits for the lease.
func ShowLife(o *Options, dirs []string) (*os.File, error) {
	pod := o.Identity.PodUID
	o.Dead = func(nonce string) bool { return dead(dirs, pod, nonce) }
	var errs []error
	for _, dir := range dirs {
		lock, witness, err := lockNew(filepath.Join(dir, lifeName(pod, o.Identity.Nonce)))
		if err == nil {
			o.Identity.Nonce += "." + witness
			return lock, nil
		}
		errs = append(errs, err)
	}
	return nil, errors.Join(errs...)
}

func lifeName(pod, random string) string { return lifePrefix + pod + "-" + random }

// lockNew makes a file and locks it.
func lockNew(path string) (_ *os.File, witness string, _ error) {
	f, err := os.OpenFile(path, os.O_RDWR|os.O_CREATE|os.O_EXCL, 0o600)
	if err != nil {
		return nil, "", err
	}
	witness, err = lock(f)
	if err != nil {
		_ = os.Remove(path)
		_ = f.Close()
		return nil, "", fmt.Errorf("lock %s: %w", path, err)
	}
	return f, witness, nil
}

// lock takes the lock of a file, unless another has it.
func lock(f *os.File) (witness string, _ error) {
	witness, err := witnessOf(f)
	if err != nil {
		return "", err
	}
	return witness, retry(func() error { return unix.Flock(int(f.Fd()), unix.LOCK_EX|unix.LOCK_NB) })
}

// witnessOf tells a file from all others that there are while it is open, and from those of other kernels.
func witnessOf(f *os.File) (string, error) {
	boot, err := os.ReadFile(bootIDFile)
	if err != nil {
		return "", err
	}
	id, err := fileIDOf(int(f.Fd()))
	if err != nil {
		return "", err
	}
	sum := sha256.Sum256(fmt.Appendf(nil, "%s\n%v", boot, id))
	return base32.StdEncoding.EncodeToString(sum[:10]), nil
}

// fileID tells a file of a kernel. While the file is open no other has its inode, but on file systems that count inodes in 32 bits and begin
// again, as a tmpfs may: there it is born at another time. That is 0 where the kernel does not say so (for a tmpfs before 5.18), or a
// sandbox forbids to ask.
type fileID struct {
	major, minor uint32
	inode        uint64
	born         int64 // nanoseconds
}

func fileIDOf(fd int) (fileID, error) {
	var x unix.Statx_t
	err := retry(func() error {
		return unix.Statx(fd, "", unix.AT_EMPTY_PATH, unix.STATX_BASIC_STATS|unix.STATX_BTIME, &x)
	})
	mode, id := uint32(x.Mode), fileID{major: x.Dev_major, minor: x.Dev_minor, inode: x.Ino}
	if x.Mask&unix.STATX_BTIME != 0 {
		id.born = x.Btime.Sec*int64(time.Second) + int64(x.Btime.Nsec)
	}
	if err != nil {
		var s unix.Stat_t
		if err := retry(func() error { return unix.Fstat(fd, &s) }); err != nil {
			return fileID{}, err
		}
		mode, id = s.Mode, fileID{major: unix.Major(s.Dev), minor: unix.Minor(s.Dev), inode: s.Ino}
	}
	if mode&unix.S_IFMT != unix.S_IFREG {
		return fileID{}, errors.New("it is no regular file")
	}
	return id, nil
}

// dead reports whether it is proven that neither an agent of the pod nor its leash lives. Every doubt says no.
func dead(dirs []string, pod, nonce string) bool {
	random, named, ok := strings.Cut(nonce, ".")
	if !ok || named == "" || random != filepath.Base(random) {
		return false
	}
	return slices.ContainsFunc(dirs, func(dir string) bool {
		// Not through a link, and not waiting for who opens the other end of a FIFO.
		fd, err := unix.Open(filepath.Join(dir, lifeName(pod, random)), unix.O_RDONLY|unix.O_NOFOLLOW|unix.O_NONBLOCK|unix.O_CLOEXEC, 0)
		if err != nil {
			return false
		}
		f := os.NewFile(uintptr(fd), lifePrefix)
		defer func() { _ = f.Close() }()
		witness, err := lock(f)
		return err == nil && witness == named
	})
}

const (
	// livesKept is how many files of a pod's agents are kept. One of the last few may be named by the Lease.
	livesKept = 16
	// livesSeen is how many names an agent looks at, whoever has made them: programs write to the directory, too.
	livesSeen = 4096
	// livesRead is how many names are in memory at once.
	livesRead = 256
)

// ForgetLives removes older files of the pod's agents that are dead from the directory of this one's lock. It takes milliseconds, and
// nobody needs to wait for it.
func ForgetLives(lock *os.File, pod string) { forgetLives(filepath.Dir(lock.Name()), pod, livesSeen) }

func forgetLives(dir, pod string, most int) {
	d, err := os.Open(dir)
	if err != nil {
		return
	}
	defer func() { _ = d.Close() }()
	var newest []life
	for err == nil && most > 0 {
		var names []string
		names, err = d.Readdirnames(min(livesRead, most))
		most -= len(names)
		newest = append(newest, livesOf(dir, pod, names)...)
		slices.SortFunc(newest, func(a, b life) int { return cmp.Compare(b.made, a.made) })
		for _, l := range newest[min(livesKept, len(newest)):] {
			l.forget()
		}
		newest = newest[:min(livesKept, len(newest))]
	}
}

// life is a file of one of the pod's agents.
type life struct {
	path string
	made int64
}

func livesOf(dir, pod string, names []string) (lives []life) {
	for _, name := range names {
		path := filepath.Join(dir, name)
		if !strings.HasPrefix(name, lifeName(pod, "")) {
			continue
		}
		if info, err := os.Lstat(path); err == nil {
			lives = append(lives, life{path, info.ModTime().UnixNano()})
		}
	}
	return lives
}

// forget removes the file unless its agent lives.
func (l life) forget() {
	fd, err := unix.Open(l.path, unix.O_RDONLY|unix.O_NOFOLLOW|unix.O_NONBLOCK|unix.O_CLOEXEC, 0)
	if err != nil {
		return
	}
	if unix.Flock(fd, unix.LOCK_EX|unix.LOCK_NB) == nil {
		_ = os.Remove(l.path)
	}
	_ = unix.Close(fd)
}

// retry does again what a signal has interrupted.
func retry(do func() error) error {
	for {
		if err := do(); !errors.Is(err, unix.EINTR) {
			return err
		}
	}
}
