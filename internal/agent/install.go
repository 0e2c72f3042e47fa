//go:build linux

package agent

import (
	"fmt"
	"io"
	"os"
	"path/filepath"
)

// installedName is the base of contract.AgentPath.
const installedName = "agent"

// Install copies this program into a directory, as "agent". Processes that run an earlier copy are not affected.
func Install(dir string) error {
	self, err := os.Open("/proc/self/exe")
	if err != nil {
		return fmt.Errorf("install: %w", err)
	}
	defer func() { _ = self.Close() }()
	return install(self, dir)
}

// install copies a program into a directory atomically: at every moment there is either the complete old one or the complete new one.
func install(program io.Reader, dir string) (err error) {
	defer func() {
		if err != nil {
			err = fmt.Errorf("install the agent into %s: %w", dir, err)
		}
	}()
	if err := os.MkdirAll(dir, 0o755); err != nil {
		return err
	}
	temp, err := os.CreateTemp(dir, "."+installedName+"-*")
	if err != nil {
		return err
	}
	defer func() { _ = os.Remove(temp.Name()) }() // it no longer exists if the rename succeeded
	_, err = io.Copy(temp, program)
	if err == nil {
		err = temp.Chmod(0o755)
	}
	if closed := temp.Close(); err == nil {
		err = closed
	}
	if err != nil {
		return err
	}
	return os.Rename(temp.Name(), filepath.Join(dir, installedName))
}
