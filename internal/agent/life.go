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

// An agent holds an exclusive lock on a file of its own while it lives, and shares it with its leash. The kernel frees the lock when both
// are dead. docs/decisions/035-what-a-restart-proves.md explains what a free lock proves and what it does not.

// lifePrefix is the prefix of the files' names. The Pod's UID and the agent's nonce follow.
const lifePrefix = ".singletonjob-lives-"

// bootIDFile identifies the running kernel. A lock exists only in the kernel that granted it.
const bootIDFile = "/proc/sys/kernel/random/boot_id"

// LifeDirs returns the directories for an agent's file. The first is a volume of the Pod. Pods of earlier operators have only the second,
// the directory of the binary. The third is for Pods with the agent's image as a volume: the directory for shared memory, which the
// Pod's containers share.
func LifeDirs() []string {
	beside := contract.AgentDir
	if exe, err := os.Executable(); err == nil {
		beside = filepath.Dir(exe)
	}
	return []string{contract.RunDir, beside, "/dev/shm"}
}

// ShowLife takes the lock in the first directory where that works, and adds the lock's witness to the agent's identity. The lock is held
// until the last process with the open file ends: the agent and its leashes. An error gives the reason why there is no lock. In that case
// nothing can prove this agent's death, and a later agent of the Pod waits until the Lease expires.
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

// lockNew creates a file and locks it.
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

// lock takes the lock of a file, unless another process holds it.
func lock(f *os.File) (witness string, _ error) {
	witness, err := witnessOf(f)
	if err != nil {
		return "", err
	}
	return witness, retry(func() error { return unix.Flock(int(f.Fd()), unix.LOCK_EX|unix.LOCK_NB) })
}

// witnessOf returns an ID of a file that no other file has while it is open, and no file of another kernel.
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

// fileID identifies a file within a kernel. While the file is open, no other file has its inode number, except on file systems whose 32-bit
// inode numbers wrap around, such as some tmpfs. There the birth time differs. The birth time is 0 if the kernel does not report it (for a
// tmpfs before Linux 5.18) or a sandbox forbids the call.
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
		return fileID{}, errors.New("it is not a regular file")
	}
	return id, nil
}

// dead reports whether it is proven that this agent of the Pod and its leash are both dead. In case of doubt it returns false.
func dead(dirs []string, pod, nonce string) bool {
	random, named, ok := strings.Cut(nonce, ".")
	if !ok || named == "" || random != filepath.Base(random) {
		return false
	}
	return slices.ContainsFunc(dirs, func(dir string) bool {
		// Do not follow a symbolic link, and do not block on a FIFO without a writer.
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
	// livesKept is the number of agent files that are kept per Pod. The Lease can name one of the latest.
	livesKept = 16
	// livesSeen is the maximum number of directory entries that an agent reads, because other programs can create files there, too.
	livesSeen = 4096
	// livesRead is the number of entries that are read at once.
	livesRead = 256
)

// ForgetLives removes old files of dead agents of the Pod from the directory of this agent's lock. It takes milliseconds. The caller need
// not wait for it.
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

// life is the file of one of the Pod's agents.
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

// retry repeats a call that a signal has interrupted.
func retry(do func() error) error {
	for {
		if err := do(); !errors.Is(err, unix.EINTR) {
			return err
		}
	}
}
