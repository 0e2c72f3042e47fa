//go:build linux

package main

import (
	"bufio"
	"bytes"
	"context"
	_ "embed"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"time"

	"github.com/singletonjob/operator/build/gotool"
	"github.com/singletonjob/operator/test/debian"
)

//go:embed init.sh
var initScript []byte

// compile makes the tests' programs and the file system around them.
func compile(ctx context.Context, work, tools string) error {
	for _, s := range suites {
		out, err := gotool.Command(ctx, "", "test", "-c", "-o", filepath.Join(work, s.name), s.dir).CombinedOutput()
		if err != nil {
			return fmt.Errorf("compiling the tests of %s: %w\n%s", s.dir, err, bytes.TrimSpace(out))
		}
	}
	root := filepath.Join(work, "root")
	for _, dir := range []string{"bin", "dev", "proc", "suites", "sys", "tmp"} {
		if err := os.MkdirAll(filepath.Join(root, dir), 0o755); err != nil {
			return err
		}
	}
	// In busybox, unshare lacks time namespaces, setpriv lacks users, and touch and sleep do not work under another name.
	if err := debian.Stage(tools, root, "/bin/busybox", "/bin/sleep", "/bin/touch", "/usr/bin/setpriv", "/usr/bin/unshare"); err != nil {
		return err
	}
	for _, s := range suites {
		if err := os.Rename(filepath.Join(work, s.name), filepath.Join(root, "suites", s.name)); err != nil {
			return err
		}
	}
	if err := os.WriteFile(filepath.Join(root, "init"), initScript, 0o600); err != nil {
		return err
	}
	file, err := os.Create(filepath.Join(work, "initramfs"))
	if err != nil {
		return err
	}
	buffered := bufio.NewWriter(file)
	return errors.Join(writeInitramfs(buffered, root), buffered.Flush(), file.Close())
}

// machine is one kernel, with the tests.
type machine struct {
	kernel  kernel
	image   string
	tools   string // unpacked
	work    string
	pattern string
	limit   time.Duration
}

// test runs the machine to its end, and prints what its tests say.
func (m machine) test(ctx context.Context) error {
	ctx, cancel := context.WithTimeout(ctx, m.limit)
	defer cancel()
	fmt.Fprintf(os.Stderr, "Linux %s, control groups of version %d\n", filepath.Base(m.image), m.kernel.cgroups)
	console := filepath.Join(m.work, "console")
	// Debian's emulator gets the flags of CMPXCHG16B wrong, with which Linux 6.12 panics sooner or later. It also panics where CPUs are
	// emulated by threads of their own: one may run code of the kernel that the other has just changed.
	args := slices.Concat(debian.Command(m.tools, "/usr/bin/qemu-system-x86_64"), []string{
		"-nodefaults", "-no-user-config", "-no-reboot", "-display", "none", "-accel", "tcg,thread=single", "-cpu", "max,-cx16", "-smp", "2", "-m", "2G",
		"-L", filepath.Join(m.tools, "usr/share/seabios"), "-L", filepath.Join(m.tools, "usr/share/qemu"),
		"-kernel", m.image, "-initrd", filepath.Join(m.work, "initramfs"),
		"-append", fmt.Sprintf("console=ttyS0 quiet panic=-1 random.trust_cpu=on mitigations=off cgroups=%d run=%s skip=%s", m.kernel.cgroups, m.pattern, readSources),
		"-serial", "file:" + console, "-serial", "stdio",
	})
	cmd := exec.CommandContext(ctx, args[0], args[1:]...)
	cmd.Env = append(os.Environ(), "QEMU_MODULE_DIR="+filepath.Join(m.tools, "usr/lib/x86_64-linux-gnu/qemu"))
	cmd.Stderr = os.Stderr
	stdout, err := cmd.StdoutPipe()
	if err != nil {
		return err
	}
	if err := cmd.Start(); err != nil {
		return fmt.Errorf("starting the emulator: %w", err)
	}
	ended, err := m.follow(ctx, stdout)
	if err := cmd.Wait(); err != nil {
		return fmt.Errorf("the emulator: %w (after %v at the most)", err, m.limit)
	}
	if err != nil {
		return err
	}
	for _, s := range suites {
		if !slices.Contains(ended, s.name) {
			said, _ := os.ReadFile(console)
			return fmt.Errorf("the machine ended before the tests of %s; its console:\n%s", s.name, said)
		}
	}
	return nil
}

// follow passes each suite's output on, as the events of a package that is named after the kernel too. It returns those that came
// to their end, whatever that was.
func (m machine) follow(ctx context.Context, output io.Reader) (ended []string, err error) {
	var events *exec.Cmd
	var input io.WriteCloser
	stop := func() error {
		if events == nil {
			return nil
		}
		_ = input.Close()
		err := events.Wait()
		events = nil
		return err
	}
	lines := bufio.NewReader(output)
	for {
		line, readErr := lines.ReadString('\n')
		word := strings.Fields(line)
		switch {
		case len(word) == 3 && word[0] == "###" && word[1] == "begin":
			name := fmt.Sprintf("%s@linux-%s", m.suite(word[2]), m.kernel.version)
			events = gotool.Command(ctx, "", "tool", "test2json", "-t", "-p", name)
			events.Stdout = os.Stdout
			if input, err = events.StdinPipe(); err == nil {
				err = events.Start()
			}
		case len(word) == 4 && word[0] == "###" && word[1] == "end":
			ended = append(ended, word[2])
			err = stop()
		case events != nil:
			_, err = io.WriteString(input, line)
		}
		if err != nil {
			return ended, fmt.Errorf("turning what the tests say into events: %w", err)
		}
		if readErr != nil {
			return ended, stop()
		}
	}
}

func (m machine) suite(name string) string {
	i := slices.IndexFunc(suites, func(s suite) bool { return s.name == name })
	if i < 0 {
		return name
	}
	return strings.TrimPrefix(suites[i].dir, "./")
}
