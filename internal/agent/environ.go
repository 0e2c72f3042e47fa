//go:build linux

package agent

import (
	"fmt"
	"os"
	"slices"
	"strings"
	"syscall"
)

// AnewName is the argv[0] of an agent that has executed itself again: see TakeEnviron. No template can set it.
const AnewName = "singletonjob-agent"

// beforeMain are the variables that Go's runtime and package initialization read before the agent's own code runs.
var beforeMain = []string{"GODEBUG", "GOGC", "GOMAXPROCS", "GOMEMLIMIT", "GOTRACEBACK"}

// TakeEnviron returns the environment of the container and clears it in this process. The environment is meant for the user's process. Its
// variables for Go programs, HTTP clients or Kubernetes clients must not change the agent's behavior. From here on no library sees a
// variable. The agent looks up the operator's variables in the returned environment.
//
// Variables that were already read cannot be undone. If there is such a variable, this program executes itself once more, with the same PID
// and with its environment hidden. An error comes from the kernel.
func TakeEnviron() ([]string, error) {
	environ := os.Environ()
	switch {
	case os.Args[0] == AnewName:
		environ = bareEnv(environ)
	case slices.ContainsFunc(environ, heededBeforeMain):
		argv := append([]string{AnewName}, os.Args[1:]...)
		err := syscall.Exec("/proc/self/exe", argv, hideEnv(environ))
		return nil, fmt.Errorf("execute the agent (/proc/self/exe) without the variables of the container: %w", err)
	}
	os.Clearenv()
	return environ, nil
}

func heededBeforeMain(kv string) bool {
	name, _, _ := strings.Cut(kv, "=")
	return slices.Contains(beforeMain, name)
}

// envMark is the prefix of each variable in a hidden environment, which has no effect on the process that has it.
const envMark = "_"

// hideEnv hides an environment.
func hideEnv(env []string) []string {
	hidden := make([]string, 0, len(env))
	for _, kv := range env {
		hidden = append(hidden, envMark+kv)
	}
	return hidden
}

// bareEnv returns the entries that hideEnv has hidden. It skips all other entries.
func bareEnv(hidden []string) []string {
	bare := make([]string, 0, len(hidden))
	for _, kv := range hidden {
		if known, ok := strings.CutPrefix(kv, envMark); ok {
			bare = append(bare, known)
		}
	}
	return bare
}
