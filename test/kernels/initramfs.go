//go:build linux

package main

import (
	"fmt"
	"io"
	"io/fs"
	"os"
	"path/filepath"
	"syscall"
)

// writeInitramfs writes a directory as the kernel takes a machine's first file system: an archive in cpio's "new" format.
func writeInitramfs(to io.Writer, dir string) error {
	a := archive{to: to}
	err := filepath.WalkDir(dir, func(path string, entry fs.DirEntry, err error) error {
		if err != nil || path == dir {
			return err
		}
		name, err := filepath.Rel(dir, path)
		if err != nil {
			return err
		}
		var content []byte
		mode := uint32(syscall.S_IFREG | 0o755)
		switch {
		case entry.IsDir():
			mode = syscall.S_IFDIR | 0o755
		case entry.Type()&fs.ModeSymlink != 0:
			var target string
			target, err = os.Readlink(path)
			mode, content = syscall.S_IFLNK|0o777, []byte(target)
		default:
			content, err = os.ReadFile(path)
		}
		if err == nil {
			a.add(name, mode, content)
		}
		return err
	})
	if err != nil {
		return err
	}
	a.add("TRAILER!!!", 0, nil)
	return a.err
}

type archive struct {
	to     io.Writer
	files  int
	offset int
	err    error // the first
}

func (a *archive) add(name string, mode uint32, content []byte) {
	a.files++
	// magic, inode, mode, user, group, links, time, size, device (2), special file's (2), length of the name, checksum
	a.write(fmt.Appendf(nil, "070701%08x%08x%08x%08x%08x%08x%08x%08x%08x%08x%08x%08x%08x",
		a.files, mode, 0, 0, 1, 0, len(content), 0, 0, 0, 0, len(name)+1, 0))
	a.write(append([]byte(name), 0))
	a.pad()
	a.write(content)
	a.pad()
}

func (a *archive) pad() { a.write(make([]byte, -a.offset&3)) }

func (a *archive) write(data []byte) {
	if a.err == nil {
		_, a.err = a.to.Write(data)
	}
	a.offset += len(data)
}
