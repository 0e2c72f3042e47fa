package gotool

import (
	"bufio"
	"cmp"
	"context"
	"fmt"
	"io"
	"os/exec"
	"strings"
	"sync/atomic"
	"time"
)

// A Compilation fills Go's build cache with everything that packages need, so that building them only has to link.
type Compilation struct {
	// Name is the name of the packages for people.
	Name string
	// Dir is the directory in which the Go tool runs; empty for the current directory.
	Dir      string
	Packages []string
	// Tests: compile the packages' tests. Race: compile with the race detector, which needs cgo and shares nothing with other
	// builds.
	Tests, Race bool
	// Every is the time between progress reports; the default is 5 s.
	Every time.Duration
}

// Run compiles. It writes to progress at the start how much there is to do, and then how much is done: in packages, whose number is
// known, not in minutes. It writes nothing if everything is already in the cache.
func (c Compilation) Run(ctx context.Context, progress io.Writer) error {
	packages, err := c.missing(ctx, progress)
	if err != nil || len(packages) == 0 {
		return err
	}
	_, _ = fmt.Fprintf(progress, "%s: %d packages to compile, once\n", c.Name, len(packages))
	cmd := c.command(ctx, append([]string{"build", "-v"}, packages...)...)
	stderr, err := cmd.StderrPipe()
	if err != nil {
		return err
	}
	if err := cmd.Start(); err != nil {
		return fmt.Errorf("running the Go tool: %w", err)
	}
	begin := time.Now()
	last := c.watch(progress, stderr, packages)
	if err := cmd.Wait(); err != nil {
		if ctx.Err() != nil {
			return ctx.Err()
		}
		return fmt.Errorf("compiling %s: %w\n%s", c.Name, err, strings.Join(last, "\n"))
	}
	_, _ = fmt.Fprintf(progress, "%s: compiled in %v\n", c.Name, time.Since(begin).Round(time.Second))
	return nil
}

// missing are the packages of modules that are not in the cache. Go's own packages are compiled along with them, and programs when
// they are built.
func (c Compilation) missing(ctx context.Context, progress io.Writer) ([]string, error) {
	const those = `{{if and .Stale .Module (not .ForTest) (ne .Name "main")}}{{.ImportPath}}{{end}}`
	args := []string{"list", "-deps", "-f", those}
	if c.Tests {
		args = append(args, "-test")
	}
	cmd := c.command(ctx, append(args, c.Packages...)...)
	stderr, err := cmd.StderrPipe()
	if err != nil {
		return nil, err
	}
	told := make(chan []string)
	go func() { told <- c.watch(progress, stderr, nil) }()
	out, err := cmd.Output()
	if last := <-told; err != nil {
		return nil, fmt.Errorf("listing the packages of %s: %w\n%s", c.Name, err, strings.Join(last, "\n"))
	}
	return strings.Fields(string(out)), nil
}

func (c Compilation) command(ctx context.Context, args ...string) *exec.Cmd {
	if !c.Race {
		return Command(ctx, c.Dir, args...)
	}
	// Same flags as by hand: "go test -race" then finds the same packages in the cache.
	cmd := Command(ctx, c.Dir, append([]string{args[0], "-race"}, args[1:]...)...)
	cmd.Env = append(cmd.Env, "CGO_ENABLED=1", "GOFLAGS=")
	return cmd
}

// watch reads the output of the Go tool, reports from time to time how many packages it has named, and returns its last lines.
func (c Compilation) watch(progress io.Writer, output io.Reader, packages []string) []string {
	const kept = 20
	awaited := make(map[string]bool, len(packages))
	for _, p := range packages {
		awaited[p] = true
	}
	var compiled, downloaded atomic.Int64
	stop := c.tell(progress, len(packages), &compiled, &downloaded)
	defer stop()
	var last []string
	for lines := bufio.NewScanner(output); lines.Scan(); {
		switch line := lines.Text(); {
		case awaited[line]:
			compiled.Add(1)
		case strings.HasPrefix(line, "go: downloading"):
			downloaded.Add(1)
		default:
			last = append(last, line)
			last = last[max(0, len(last)-kept):]
		}
	}
	return last
}

func (c Compilation) tell(progress io.Writer, packages int, compiled, downloaded *atomic.Int64) (stop func()) {
	begin, done, told := time.Now(), make(chan struct{}), make(chan struct{})
	go func() {
		defer close(told)
		tick := time.NewTicker(cmp.Or(c.Every, 5*time.Second))
		defer tick.Stop()
		for {
			select {
			case <-done:
				return
			case <-tick.C:
			}
			switch took, n := time.Since(begin).Round(time.Second), int(compiled.Load()); {
			case packages > 0:
				_, _ = fmt.Fprintf(progress, "%s: %2d %%, %d of %d packages, %v\n", c.Name, 100*n/packages, n, packages, took)
			case downloaded.Load() > 0:
				_, _ = fmt.Fprintf(progress, "%s: %d modules downloaded, %v\n", c.Name, downloaded.Load(), took)
			}
		}
	}()
	return func() {
		close(done)
		<-told
	}
}
