//go:build linux

package agent

import (
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"golang.org/x/sys/unix"

	"github.com/singletonjob/operator/internal/contract"
	"github.com/singletonjob/operator/internal/lease"
)

// livesIn is an agent that shows that it lives in one of the directories.
func livesIn(t *testing.T, random string, dirs ...string) (nonce string, lock *os.File) {
	t.Helper()
	o := Options{Identity: lease.Identity{Pod: "pod", PodUID: "uid", Nonce: random}}
	lock, err := ShowLife(&o, dirs)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = lock.Close() })
	return o.Identity.Nonce, lock
}

// leashOf has a lock's open file, as a leash does.
func leashOf(t *testing.T, lock *os.File) *os.File {
	t.Helper()
	fd, err := unix.Dup(int(lock.Fd()))
	if err != nil {
		t.Fatal(err)
	}
	leash := os.NewFile(uintptr(fd), "leash")
	t.Cleanup(func() { _ = leash.Close() })
	return leash
}

func TestDeathIsProvenByALockThatIsFree(t *testing.T) {
	dir := t.TempDir()
	nonce, lock := livesIn(t, "A", dir)
	leash := leashOf(t, lock)
	for _, holds := range []*os.File{lock, leash} {
		if dead([]string{dir}, "uid", nonce) {
			t.Fatalf("SAFETY: %s is taken for dead, and %s has its lock", nonce, holds.Name())
		}
		if err := holds.Close(); err != nil {
			t.Fatal(err)
		}
	}
	for range 2 { // who looks leaves all as it was
		if !dead([]string{dir}, "uid", nonce) {
			t.Errorf("%s is not found to be dead", nonce)
		}
	}
}

// Nothing that a program can do to the volume makes a living agent dead, nor do names that tell no file.
func TestUncertainLockProvesNoDeath(t *testing.T) {
	for name, spoil := range map[string]func(t *testing.T, path string) error{
		"deleted": func(_ *testing.T, path string) error { return os.Remove(path) },
		"replaced": func(_ *testing.T, path string) error {
			if err := os.Remove(path); err != nil {
				return err
			}
			return os.WriteFile(path, nil, 0o600)
		},
		"replaced by renaming": func(_ *testing.T, path string) error {
			if err := os.WriteFile(path+".new", nil, 0o600); err != nil {
				return err
			}
			return os.Rename(path+".new", path)
		},
		"a link to another file": func(t *testing.T, path string) error {
			other := filepath.Join(t.TempDir(), "other")
			if err := os.WriteFile(other, nil, 0o600); err != nil {
				return err
			}
			if err := os.Remove(path); err != nil {
				return err
			}
			return os.Symlink(other, path)
		},
		"a FIFO": func(_ *testing.T, path string) error {
			if err := os.Remove(path); err != nil {
				return err
			}
			return unix.Mkfifo(path, 0o600)
		},
		"a directory": func(_ *testing.T, path string) error {
			if err := os.Remove(path); err != nil {
				return err
			}
			return os.Mkdir(path, 0o700)
		},
		"opened and locked by nobody else": func(*testing.T, string) error { return nil },
	} {
		t.Run(name, func(t *testing.T) {
			dir, elsewhere := t.TempDir(), t.TempDir()
			nonce, _ := livesIn(t, "A", dir, elsewhere)
			if err := spoil(t, filepath.Join(dir, lifeName("uid", "A"))); err != nil {
				t.Fatal(err)
			}
			if dead([]string{dir, elsewhere}, "uid", nonce) {
				t.Error("SAFETY: an agent that lives is taken for dead")
			}
		})
	}
	dir := t.TempDir()
	nonce, lock := livesIn(t, "A", dir)
	if err := lock.Close(); err != nil {
		t.Fatal(err)
	}
	_, witness, _ := strings.Cut(nonce, ".")
	for _, other := range []string{"", "A", "A.", "." + witness, "B." + witness, "A.AAAAAAAAAAAAAAAA", "../A." + witness, "x/../A." + witness} {
		if dead([]string{dir}, "uid", other) {
			t.Errorf("the nonce %q proves a death", other)
		}
	}
	if dead([]string{dir}, "another", nonce) {
		t.Error("an agent of one pod proves a death in another")
	}
}

// An agent that can't lock says why, and nothing of its name promises more.
func TestMissingLockIsReported(t *testing.T) {
	dir := t.TempDir()
	missing := filepath.Join(dir, "missing")
	o := Options{Identity: lease.Identity{Pod: "pod", PodUID: "uid", Nonce: "A"}}
	if lock, err := ShowLife(&o, []string{missing}); err == nil || lock != nil || !strings.Contains(err.Error(), missing) {
		t.Errorf("lock %v, error %v", lock, err)
	}
	if o.Identity.Nonce != "A" || o.Dead == nil || o.Dead("A") {
		t.Errorf("the nonce is %q", o.Identity.Nonce)
	}
	// The second directory does, where the agent's image is a volume.
	nonce, lock := livesIn(t, "B", missing, dir)
	if o.Dead(nonce) || dead([]string{missing, dir}, "uid", nonce) {
		t.Error("SAFETY: an agent that lives is taken for dead")
	}
	_ = lock.Close()
	if !dead([]string{missing, dir}, "uid", nonce) {
		t.Error("not found to be dead in the second directory")
	}
}

// The files of a pod that crashes forever do not fill its volume, and that of an agent that lives is never removed.
func TestOldFilesAreRemoved(t *testing.T) {
	dir := t.TempDir()
	living, _ := livesIn(t, "living", dir)
	last := ""
	for i := range 2 * livesKept {
		nonce, lock := livesIn(t, fmt.Sprint(i), dir)
		ForgetLives(lock, "uid")
		_ = lock.Close()
		last = nonce
	}
	names, err := filepath.Glob(filepath.Join(dir, lifePrefix+"*"))
	if err != nil || len(names) > livesKept+2 {
		t.Errorf("%d files are left, error %v", len(names), err)
	}
	if _, err := os.Stat(filepath.Join(dir, lifeName("uid", "living"))); err != nil || dead([]string{dir}, "uid", living) {
		t.Errorf("the file of an agent that lives: %v", err)
	}
	if !dead([]string{dir}, "uid", last) {
		t.Error("nothing is left to prove the last one's death")
	}
}

// A directory that a program has filled costs each start the same: so many names are looked at, and all are gone after some starts.
func TestOldFilesAreRemovedLittleByLittle(t *testing.T) {
	dir := t.TempDir()
	const files, others, most = 1000, 100, 300
	for i := range files {
		if err := os.WriteFile(filepath.Join(dir, lifeName("uid", fmt.Sprint(i))), nil, 0o600); err != nil {
			t.Fatal(err)
		}
	}
	for i := range others {
		if err := os.WriteFile(filepath.Join(dir, fmt.Sprint("theirs-", i)), nil, 0o600); err != nil {
			t.Fatal(err)
		}
	}
	left := func() int {
		names, err := filepath.Glob(filepath.Join(dir, lifePrefix+"*"))
		if err != nil {
			t.Fatal(err)
		}
		return len(names)
	}
	for start, before := range []int{files, 0, 0, 0, 0, 0, 0} {
		if start > 0 {
			before = left()
		}
		forgetLives(dir, "uid", most)
		if removed := before - left(); removed > most {
			t.Errorf("start %d has removed %d of %d files, and may look at %d", start, removed, before, most)
		}
	}
	if n := left(); n > livesKept+others {
		t.Errorf("%d files are left", n)
	}
	if names, err := filepath.Glob(filepath.Join(dir, "theirs-*")); err != nil || len(names) != others {
		t.Errorf("%d files of others are left, error %v", len(names), err)
	}
}

// A file is told from a later one that has its inode, as some file systems give it again once the first is gone.
func TestRecycledInodeIsAnotherFile(t *testing.T) {
	path := filepath.Join(t.TempDir(), "file")
	made := func() fileID {
		f, err := os.Create(path)
		if err != nil {
			t.Fatal(err)
		}
		defer func() { _ = f.Close() }()
		id, err := fileIDOf(int(f.Fd()))
		if again, err := fileIDOf(int(f.Fd())); err != nil || again != id {
			t.Fatalf("one file is %v and then %v, error %v", id, again, err)
		}
		if err != nil || id.inode == 0 {
			t.Fatalf("%v, error %v", id, err)
		}
		return id
	}
	first, sameInode := made(), 0
	for range 5000 { // longer than a tick of the clock by which files are born
		if err := os.Remove(path); err != nil {
			t.Fatal(err)
		}
		later := made()
		if later.inode != first.inode {
			continue
		}
		if sameInode++; later != first {
			return
		}
	}
	var fs unix.Statfs_t
	if err := unix.Statfs(filepath.Dir(path), &fs); err != nil {
		t.Fatal(err)
	}
	if sameInode == 0 || !slices.Contains([]int64{unix.EXT4_SUPER_MAGIC, unix.XFS_SUPER_MAGIC, unix.BTRFS_SUPER_MAGIC}, fs.Type) {
		t.Skipf("this file system, of type %x, may not say when a file was made, or gives no inode again: %v", fs.Type, first)
	}
	t.Errorf("%d files one after the other are %v", sameInode+1, first)
}

// In a Pod, the lock is in a volume that only the gated container has. In a Pod of an earlier operator, it is where the agents before were.
func TestLifeDirs(t *testing.T) {
	exe, err := os.Executable()
	if err != nil {
		t.Fatal(err)
	}
	if got, want := LifeDirs(), []string{contract.RunDir, filepath.Dir(exe), "/dev/shm"}; !slices.Equal(got, want) {
		t.Errorf("%v, want %v", got, want)
	}
}
