//go:build linux

package supervise

import (
	"flag"
	"fmt"
	"os"
	"os/exec"
	"os/signal"
	"runtime"
	"slices"
	"strconv"
	"strings"
	"sync/atomic"
	"syscall"
	"testing"
	"time"
	"unsafe"

	"golang.org/x/sys/unix"

	stand "github.com/singletonjob/operator/test/stillness"
)

// The test binary plays every part: the agent, its leash, and the programs that
// are supervised. Its first argument names the part.
const rolePrefix = "role:"

// stillness is how still this machine has stood since the tests began.
var stillness *stand.Watcher

func TestMain(m *testing.M) {
	MaybeLeash()
	if len(os.Args) > 1 {
		if role, ok := strings.CutPrefix(os.Args[1], rolePrefix); ok {
			os.Exit(play(role, os.Args[2:]))
		}
	}
	// Orphans of the agents that are killed come here, not to an init that may
	// never look. Agents are waited for by then, so none is missed by os/exec.
	if err := unix.Prctl(unix.PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0); err != nil {
		panic(err)
	}
	flag.Parse()
	if parallel := flag.Lookup("test.parallel"); parallel.Value.String() == parallel.DefValue {
		_ = flag.Set("test.parallel", "16") // they wait for deadlines far more than they work
	}
	stillness = stand.Watch(2, 10*time.Millisecond)
	code := m.Run()
	for pid := 1; pid > 0; {
		pid, _ = unix.Wait4(-1, nil, unix.WNOHANG, nil)
	}
	os.Exit(code)
}

// program is the argv of a supervised program.
func program(role string, args ...string) []string {
	return append([]string{"/proc/self/exe", rolePrefix + role}, args...)
}

func play(role string, args []string) int {
	parts := map[string]func(args []string) int{
		"agent":        func([]string) int { return playAgent() },
		"restore-tick": func(args []string) int { return restoreTick(number(args[0])) },
		"spin": func(args []string) int { // on as many threads as are given
			runtime.GOMAXPROCS(number(args[1]) + 1)
			for range number(args[1]) - 1 {
				go beat(args[0], 0)
			}
			return beat(args[0], 0)
		},
		"exit":  func(args []string) int { return number(args[0]) },
		"raise": func(args []string) int { return raise(syscall.Signal(number(args[0]))) },
		"idle":  func([]string) int { return idle() },
		"hoard": func([]string) int { return hoard() },
		"raise-on-term": func(args []string) int {
			sigs := make(chan os.Signal, 1)
			signal.Notify(sigs, unix.SIGTERM)
			say("ready")
			<-sigs
			return raise(syscall.Signal(number(args[0])))
		},
		"leave-thread": func([]string) int { // parts are played on the leading thread
			go func() {
				runtime.LockOSThread()
				say("ready")
				for {
					time.Sleep(time.Second)
				}
			}()
			unix.RawSyscall(unix.SYS_EXIT, 0, 0, 0)
			return 0
		},
		"write": func(args []string) int { // that many bytes
			for left := number(args[0]); left > 0; left -= len(pattern) {
				os.Stdout.WriteString(pattern)
			}
			return 0
		},
		"leave": func(args []string) int { // somebody behind, who beats and holds the output open
			spawn(nil, "beat", args[0])
			say("left")
			return 5
		},
		"leave-talking": func(args []string) int { // somebody behind, who beats after each write of more than a pipe holds
			spawn(nil, "talk", args[0])
			return 0
		},
		"talk":   func(args []string) int { return talk(args[0]) },
		"listen": func(args []string) int { return listen(args[0]) },
		"stubborn": func([]string) int {
			signal.Ignore(unix.SIGTERM, unix.SIGINT, unix.SIGHUP, unix.SIGQUIT)
			return idle()
		},
		"pair": func([]string) int { // in one process group
			spawn(nil, "listen", "second")
			return listen("first")
		},
		"daemons": func(args []string) int {
			for range number(args[0]) {
				spawn(&syscall.SysProcAttr{Setsid: true}, "daemonise")
			}
			return idle()
		},
		"chain": func(args []string) int { // each link a session of its own
			if links := number(args[0]); links > 0 {
				spawn(&syscall.SysProcAttr{Setsid: true}, "chain", strconv.Itoa(links-1))
			}
			return idle()
		},
		"daemonise": func([]string) int { // the second fork, in a session that the child does not lead
			spawn(&syscall.SysProcAttr{Setpgid: true}, "stubborn")
			return 0
		},
		"zombies": func(args []string) int { return makeZombies(number(args[0])) },
		"hoppers": func(args []string) int { return hop(number(args[0]), args[1]) },
		// The pause is short against every bound that is asserted, and leaves the CPU to others.
		"beat":      func(args []string) int { return beat(args[0], 100*time.Microsecond) },
		"beat-hard": func(args []string) int { return beat(args[0], 0) },
		"beat-in-group": func(args []string) int { // as a shell runs a command
			spawn(nil, "beat", args[0])
			select {}
		},
		"beat-hard-in-group": func(args []string) int {
			spawn(nil, "beat-hard", args[0])
			select {}
		},
		"beat-after-thread-exec": func(args []string) int { return execFromThread(program("beat", args[0])) },
		"reach":                  func([]string) int { return reach() },
		"clocks":                 func([]string) int { return clocks() },
		"may-kill": func([]string) int {
			say(fmt.Sprint(MayKill()))
			return 0
		},
		"parent-death": func([]string) int {
			// The setting is a thread's: of the one that was executed.
			n, err := unix.PrctlRetInt(unix.PR_GET_PDEATHSIG, uintptr(unsafe.Pointer(&parentDeath)), 0, 0, 0)
			say(fmt.Sprint(parentDeath, n, err))
			return 0
		},
	}
	part, ok := parts[role]
	if !ok {
		fmt.Fprintln(os.Stderr, "unknown role", role)
		return 99
	}
	return part(args)
}

func talk(path string) int {
	h, err := openHeartbeat(path)
	if err != nil {
		return 98
	}
	for text := slices.Repeat([]byte{'x'}, 128<<10); ; time.Sleep(time.Millisecond) {
		if _, err := os.Stdout.Write(text); err != nil {
			return 97
		}
		h.last.Store(BootTime())
	}
}

func idle() int {
	say("ready")
	select {}
}

// hoard takes all memory there is when it is told to, beside a daemon that takes none.
func hoard() int {
	spawn(&syscall.SysProcAttr{Setsid: true}, "stubborn")
	told := make(chan os.Signal, 1)
	signal.Notify(told, unix.SIGUSR1)
	say("ready")
	<-told
	for kept := [][]byte{}; ; {
		kept = append(kept, slices.Repeat([]byte{1}, 1<<20))
	}
}

// execFromThread loses the parent-death signal: the thread that calls exec takes
// the leader's PID, but does not inherit the leader's setting.
func execFromThread(argv []string) int {
	runtime.LockOSThread() // the main goroutine keeps the leading thread busy
	done := make(chan error)
	go func() {
		runtime.LockOSThread()
		if unix.Gettid() == os.Getpid() {
			panic("the goroutine runs on the leading thread")
		}
		done <- syscall.Exec(argv[0], argv, os.Environ())
	}()
	panic(<-done)
}

func number(s string) int {
	n, err := strconv.Atoi(s)
	if err != nil {
		panic(err)
	}
	return n
}

// say writes a line in one write, so lines of several processes do not mix.
func say(line string) { os.Stdout.WriteString(line + "\n") }

func spawn(attr *syscall.SysProcAttr, role string, args ...string) {
	argv := program(role, args...)
	cmd := exec.Command(argv[0], argv[1:]...)
	cmd.Stdin, cmd.Stdout, cmd.Stderr = os.Stdin, os.Stdout, os.Stderr
	cmd.SysProcAttr = attr
	if err := cmd.Start(); err != nil {
		panic(err)
	}
}

// raise ends the process by the signal's default action, which Go's own handlers
// keep from happening.
func raise(sig syscall.Signal) int {
	defaultAction := make([]byte, 64)
	unix.Prctl(unix.PR_SET_DUMPABLE, 0, 0, 0, 0) // no core files
	unix.RawSyscall6(unix.SYS_RT_SIGACTION, uintptr(sig), uintptr(unsafe.Pointer(&defaultAction[0])), 0, 8, 0, 0)
	unix.Kill(os.Getpid(), sig)
	select {}
}

func listen(name string) int {
	sigs := make(chan os.Signal, 8)
	signal.Notify(sigs, unix.SIGUSR1, unix.SIGHUP, unix.SIGTERM)
	say(name + " ready")
	for sig := range sigs {
		say(name + " " + unix.SignalName(sig.(syscall.Signal)))
		if sig == unix.SIGTERM && name == "first" {
			return 7
		}
	}
	return 0
}

// makeZombies leaves n children that it never waits for and n orphans that end at once.
//
//go:norace
func makeZombies(n int) int {
	for range n {
		if rawFork() == 0 { // a child, a zombie as long as this process lives
			rawExit()
		}
		if rawFork() == 0 { // its child is the orphan
			rawFork()
			rawExit()
		}
	}
	say("ready")
	select {}
}

// hop starts chains of processes in which each forks the next one and exits, so
// that what is looked for has gone when it is found. They stay in the main
// process's group, leave it once, or with each fork.
//
//go:norace
func hop(chains int, leave string) int {
	once, each := leave == "once", leave == "each"
	for range chains {
		if rawFork() == 0 {
			if once {
				unix.RawSyscall(unix.SYS_SETSID, 0, 0, 0)
			}
			for {
				if each {
					unix.RawSyscall(unix.SYS_SETSID, 0, 0, 0)
				}
				if rawFork() != 0 {
					rawExit()
				}
			}
		}
	}
	say("ready")
	select {}
}

// rawFork is fork without exec. In the child nothing but raw system calls work.
//
//go:norace
//go:nosplit
func rawFork() uintptr {
	pid, _, _ := unix.RawSyscall6(unix.SYS_CLONE, uintptr(unix.SIGCHLD), 0, 0, 0, 0, 0)
	return pid
}

//go:norace
//go:nosplit
func rawExit() { unix.RawSyscall(unix.SYS_EXIT_GROUP, 0, 0, 0) }

// heartbeat is a page shared with a process that writes the time into it for as long as the kernel lets it run. So its last action is
// certain.
type heartbeat struct{ first, last atomic.Int64 }

func openHeartbeat(path string) (*heartbeat, error) {
	f, err := os.OpenFile(path, os.O_RDWR|os.O_CREATE, 0o600)
	if err != nil {
		return nil, err
	}
	defer f.Close()
	size := int(unsafe.Sizeof(heartbeat{}))
	if err := f.Truncate(int64(size)); err != nil {
		return nil, err
	}
	page, err := unix.Mmap(int(f.Fd()), 0, size, unix.PROT_READ|unix.PROT_WRITE, unix.MAP_SHARED)
	if err != nil {
		return nil, err
	}
	return (*heartbeat)(unsafe.Pointer(&page[0])), nil
}

func beat(path string, pause time.Duration) int {
	h, err := openHeartbeat(path)
	if err != nil {
		panic(err)
	}
	signal.Ignore(unix.SIGTERM, unix.SIGHUP, unix.SIGINT)
	h.first.Store(BootTime())
	for {
		h.last.Store(BootTime())
		if pause > 0 {
			time.Sleep(pause)
		}
	}
}

var pattern = strings.Repeat("0123456789abcde\n", 64)

var parentDeath int32

func init() {
	runtime.LockOSThread() // parts are played on the main thread
	// A program of the tests must not outlive them, whatever goes wrong. The agent ends with its commands.
	if len(os.Args) > 1 && strings.HasPrefix(os.Args[1], rolePrefix) && os.Args[1] != rolePrefix+"agent" {
		time.AfterFunc(30*time.Minute, func() { os.Exit(98) })
	}
}

// reach says what of the leash's and the agent's it can get at, and whether it can be got at itself.
func reach() int {
	leash := os.Getppid()
	stat, err := os.ReadFile(fmt.Sprintf("/proc/%d/stat", leash))
	if err != nil {
		say(err.Error())
		return 1
	}
	for name, pid := range map[string]int{"leash": leash, "agent": number(statFields(stat)[1])} {
		dir := fmt.Sprintf("/proc/%d/", pid)
		for _, path := range []string{"environ", "mem", "maps"} {
			if f, err := os.Open(dir + path); err == nil {
				say("reached: " + name + "'s " + path)
				_ = f.Close()
			}
		}
		if fds, err := os.ReadDir(dir + "fd"); err == nil {
			say(fmt.Sprintf("reached: %s's %d descriptors", name, len(fds)))
		}
		if _, err := os.Readlink(dir + "exe"); err == nil {
			say("reached: " + name + "'s executable")
		}
	}
	if _, err := os.ReadFile("/proc/self/environ"); err != nil {
		say("not its own: " + err.Error())
	}
	if dumpable, err := unix.PrctlRetInt(unix.PR_GET_DUMPABLE, 0, 0, 0, 0); dumpable != 1 {
		say(fmt.Sprint("it leaves no core: ", dumpable, err))
	}
	say("that is all")
	return 0
}

// clocks reports whether the clocks count the time for which the machine has slept, whatever that was.
func clocks() int {
	asleep := time.Duration(gettime(unix.CLOCK_BOOTTIME) - gettime(unix.CLOCK_MONOTONIC))
	counted := time.Duration(BootTime() - gettime(unix.CLOCK_MONOTONIC_RAW))
	left := time.Duration(NoLater(BootTime()+int64(time.Hour)) - gettime(unix.CLOCK_BOOTTIME))
	switch {
	case (asleep - counted).Abs() > time.Minute:
		say(fmt.Sprintf("BootTime counts %v of %v that the machine slept", counted, asleep))
	case (left - 45*time.Minute).Abs() > time.Minute: // three quarters
		say(fmt.Sprintf("NoLater makes %v of an hour", left))
	default:
		say("right")
	}
	return 0
}
