//go:build linux

package agent

import (
	"fmt"
	"os"
	"slices"
	"strings"
	"syscall"

	"github.com/singletonjob/operator/internal/supervise"
)

// AnewName is the argv[0] of an agent that has begun anew: see TakeEnviron. No template can say it.
const AnewName = "singletonjob-agent"

// beforeMain are the variables that Go's runtime, and the initialization of packages, heed before the agent's own code runs.
var beforeMain = []string{"GODEBUG", "GOGC", "GOMAXPROCS", "GOMEMLIMIT", "GOTRACEBACK"}

// TakeEnviron returns the environment that the container was given, and takes it away from this process: it is meant for the
// user's, and what is in it for Go programs, for HTTP clients or for those that look for a cluster must not have the agent behave in
// another way. From here on no library finds a variable. The agent looks up what its operator has set in what is returned.
//
// What was heeded by then can't be taken back. So where there is such a variable this program executes itself once more, with the
// same PID, and its environment hidden as a leash's is. An error is of the kernel.
func TakeEnviron() ([]string, error) {
	environ := os.Environ()
	switch {
	case os.Args[0] == AnewName:
		environ = supervise.BareEnv(environ)
	case slices.ContainsFunc(environ, heededBeforeMain):
		argv := append([]string{AnewName}, os.Args[1:]...)
		err := syscall.Exec("/proc/self/exe", argv, supervise.HideEnv(environ))
		return nil, fmt.Errorf("execute the agent (/proc/self/exe) without the variables of the container: %w", err)
	}
	os.Clearenv()
	return environ, nil
}

func heededBeforeMain(kv string) bool {
	name, _, _ := strings.Cut(kv, "=")
	return slices.Contains(beforeMain, name)
}
