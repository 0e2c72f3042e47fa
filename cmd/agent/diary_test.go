//go:build linux

package main

import (
	"cmp"
	"errors"
	"fmt"
	"io"
	"math"
	"os"
	"os/exec"
	"os/signal"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/singletonjob/operator/fence"
	"github.com/singletonjob/operator/internal/supervise"
)

// process is the program that agents run. Every 5 ms it writes a line with its token and CLOCK_BOOTTIME, a clock that all processes of the
// machine share. Its arguments are the path of the diary and one behavior:
//
//	stubborn     ignore SIGTERM
//	exit=N       exit with N at SIGUSR1
//	linger=D     exit D after SIGTERM
//	env          write the environment and the arguments first
//	daemon       start another in a session of its own, which ignores SIGTERM and calls its beats "daemon"
//	is-daemon    be that
//	faulty       die of SIGSEGV as most programs do, which Go's do not
//	hoard        take memory without end at SIGUSR1
func process() {
	diary, err := os.OpenFile(os.Args[1], os.O_APPEND|os.O_CREATE|os.O_WRONLY, 0o600)
	if err != nil {
		fmt.Fprintln(os.Stderr, err)
		os.Exit(1)
	}
	token, ahead := os.Getenv(fence.EnvToken), sleptAhead()
	write := func(what string) {
		// One write is one complete line, no matter which other processes append.
		fmt.Fprintf(diary, "%s %s %d %d\n", what, token, os.Getpid(), supervise.BootTime()-ahead)
	}
	signals := make(chan os.Signal, 16)
	signal.Notify(signals)
	does := parseBehaviour(os.Args[2:])
	if does.faulty {
		dieOfFaults()
	}
	if does.tellsEnv {
		tellEnv(diary)
	}
	if does.startsDaemon {
		startDaemon()
	}
	beat := time.NewTicker(5 * time.Millisecond)
	for {
		if _, err := os.Stat(os.Args[1]); err != nil {
			os.Exit(1) // the test is over, and has not ended this
		}
		write(does.beat)
		select {
		case <-beat.C:
		case sig := <-signals:
			does.react(sig.(syscall.Signal), write)
		}
	}
}

func (b behaviour) react(sig syscall.Signal, write func(string)) {
	switch {
	case sig == syscall.SIGUSR1 && b.hoards:
		go hoard()
	case sig == syscall.SIGUSR1:
		write("exit")
		os.Exit(b.code)
	case sig == syscall.SIGTERM && !b.stubborn:
		time.AfterFunc(b.linger, func() { os.Exit(0) })
	case sig == syscall.SIGURG || sig == syscall.SIGCHLD: // the Go runtime's own
	default:
		write("signal-" + sig.String())
	}
}

func tellEnv(diary io.Writer) {
	for _, kv := range os.Environ() {
		fmt.Fprintf(diary, "env %s\n", kv)
	}
	for _, arg := range os.Args[2:] {
		fmt.Fprintf(diary, "arg %s\n", arg)
	}
	fmt.Fprintln(diary, "end of env")
}

func startDaemon() {
	exe, _ := os.Executable()
	cmd := exec.Command(exe, os.Args[1], "stubborn", "is-daemon")
	cmd.SysProcAttr = &syscall.SysProcAttr{Setsid: true}
	if err := cmd.Start(); err != nil {
		fmt.Fprintln(os.Stderr, err)
		os.Exit(1)
	}
}

// behaviour is what the process does besides writing beats.
type behaviour struct {
	code               int
	linger             time.Duration
	stubborn, tellsEnv bool
	startsDaemon       bool
	faulty, hoards     bool
	beat               string
}

func parseBehaviour(args []string) (b behaviour) {
	b.beat = "beat"
	for _, arg := range args {
		name, value, _ := strings.Cut(arg, "=")
		switch name {
		case "stubborn":
			b.stubborn = true
		case "exit":
			b.code, _ = strconv.Atoi(value)
		case "linger":
			b.linger, _ = time.ParseDuration(value)
		case "env":
			b.tellsEnv = true
		case "daemon":
			b.startsDaemon = true
		case "is-daemon":
			b.beat = "daemon"
		case "faulty":
			b.faulty = true
		case "hoard":
			b.hoards = true
		}
	}
	return b
}

// life is the time in which one process was seen alive.
type life struct {
	token       int64
	pid         int
	first, last int64
	pause       int64 // the longest time between two signs of life
}

// diary is the file that all processes write to, as far as it has been read.
type diary struct {
	path   string
	offset int64
	rest   string // the beginning of an incomplete line
	lives  []*life
	last   map[int]*life // of each process
	words  []string      // lines other than beats
}

func newDiary(t testing.TB) *diary {
	return &diary{path: filepath.Join(t.TempDir(), "diary"), last: map[int]*life{}}
}

// read reads new lines.
func (d *diary) read() error {
	file, err := os.Open(d.path)
	if errors.Is(err, os.ErrNotExist) {
		return nil
	}
	if err != nil {
		return err
	}
	defer func() { _ = file.Close() }()
	text, err := io.ReadAll(io.NewSectionReader(file, d.offset, math.MaxInt64-d.offset))
	if err != nil {
		return err
	}
	d.offset += int64(len(text))
	lines := strings.Split(d.rest+string(text), "\n")
	d.rest = lines[len(lines)-1]
	for _, line := range lines[:len(lines)-1] {
		d.note(line)
	}
	return nil
}

func (d *diary) note(line string) {
	fields := strings.Fields(line)
	if len(fields) != 4 || fields[0] != "beat" {
		d.words = append(d.words, line)
		return
	}
	token, _ := strconv.ParseInt(fields[1], 10, 64)
	pid, _ := strconv.Atoi(fields[2])
	at, _ := strconv.ParseInt(fields[3], 10, 64)
	l := d.last[pid]
	if l == nil || l.token != token {
		l = &life{token: token, pid: pid, first: at}
		d.last[pid] = l
		d.lives = append(d.lives, l)
	}
	if l.last > 0 {
		l.pause = max(l.pause, at-l.last)
	}
	l.last = at
}

// words returns the lines that are not beats.
func (w *world) words() []string {
	w.t.Helper()
	w.must(w.diary.read())
	return w.diary.words
}

// lives reads the diary and returns the lives in the order of their first beats.
func (w *world) lives() []life {
	w.t.Helper()
	w.must(w.diary.read())
	var lives []life
	for _, l := range w.diary.lives {
		lives = append(lives, *l)
	}
	slices.SortFunc(lives, func(a, b life) int { return cmp.Compare(a.first, b.first) })
	return lives
}

// overran reports whether this is a client-go leader that was paused for longer than the time between its renewDeadline and its
// leaseDuration. client-go does not fence. Such a leader continues until its next attempt to renew fails.
func (l life) overran() bool {
	return l.token == 0 && time.Duration(l.pause) > electorDuration-electorDeadline
}

// checkLives asserts what holds in every test: two processes are never alive at the same time, and each token is greater than every earlier
// one. It returns the lives.
func (w *world) checkLives() []life {
	w.t.Helper()
	lives := w.lives()
	for i := 1; i < len(lives); i++ {
		before, after := lives[i-1], lives[i]
		if after.first <= before.last && !before.overran() {
			w.t.Errorf("SAFETY: two at once for %v: %+v and %+v", time.Duration(before.last-after.first), before, after)
		}
	}
	highest := int64(0)
	for _, l := range lives {
		switch {
		case l.token == 0: // a leader by client-go, which has no tokens
		case l.token <= highest:
			w.t.Errorf("SAFETY: %+v: its token is not above %d", l, highest)
		default:
			highest = l.token
		}
	}
	return lives
}

// awaitBeat waits until the process with this token, or a later one, is alive. If the machine stalls, a tenure can end before its process
// could start.
func (w *world) awaitBeat(token int64) {
	w.t.Helper()
	w.eventually(fmt.Sprintf("a process with token %d or a later one lives", token), func() bool {
		return slices.ContainsFunc(w.lives(), func(l life) bool { return l.token >= token })
	})
}

func TestDiaryDetectsOverlap(t *testing.T) {
	for name, test := range map[string]struct {
		lines string
		fails bool
	}{
		"one after the other": {lines: "beat 1 10 100\nbeat 1 10 200\nbeat 2 11 201\n"},
		"two at once":         {lines: "beat 1 10 100\nbeat 2 11 150\nbeat 1 10 200\n", fails: true},
		"same token":          {lines: "beat 1 10 100\nbeat 1 11 200\n", fails: true},
		// client-go's elector is not judged after a pause of more than 667 ms, the time between its renewDeadline and its leaseDuration.
		"an elector that was paused": {lines: "beat 0 10 100\nbeat 2 11 700000000\nbeat 0 10 800000000\n"},
		"an elector that was not":    {lines: "beat 0 10 100\nbeat 0 10 600000000\nbeat 2 11 700000000\nbeat 0 10 800000000\n", fails: true},
		"an agent that was paused":   {lines: "beat 1 10 100\nbeat 2 11 700000000\nbeat 1 10 800000000\n", fails: true},
		"paused, and another not":    {lines: "beat 0 9 100\nbeat 0 9 800000000\nbeat 1 10 800000001\nbeat 2 11 900000000\nbeat 1 10 900000001\n", fails: true},
	} {
		t.Run(name, func(t *testing.T) {
			inner := &recorder{TB: t}
			w := &world{t: inner, diary: newDiary(t)}
			if err := os.WriteFile(w.diary.path, []byte(test.lines), 0o600); err != nil {
				t.Fatal(err)
			}
			w.checkLives()
			if inner.failed != test.fails {
				t.Errorf("failed: %t, want %t", inner.failed, test.fails)
			}
		})
	}
}

// recorder records errors in place of the test.
type recorder struct {
	testing.TB
	failed bool
}

func (r *recorder) Errorf(string, ...any) { r.failed = true }
