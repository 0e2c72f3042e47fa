package contract

import (
	"strconv"
	"strings"
)

// stopSignals are the stop signals that images in use define, with their numbers on Linux. Validation, the CRD's rule and the agent's
// signal handler all take the list from here.
var stopSignals = []struct {
	name   string
	number int
}{
	{"SIGTERM", 15},
	{"SIGINT", 2},
	{"SIGQUIT", 3},
	{"SIGHUP", 1},
	{"SIGUSR1", 10},
	{"SIGUSR2", 12},
	{"SIGWINCH", 28},
	{"SIGRTMIN+3", 37},
}

// StopSignals returns the names of the signals that an agent handles. AgentConfig.StopSignal must be one of them.
func StopSignals() []string {
	names := make([]string, len(stopSignals))
	for i, s := range stopSignals {
		names[i] = s.name
	}
	return names
}

// SignalNumber returns the Linux number of one of StopSignals, and 0 for any other name.
func SignalNumber(name string) int {
	for _, s := range stopSignals {
		if s.name == name {
			return s.number
		}
	}
	return 0
}

// StopSignal returns the entry of StopSignals that an image's STOPSIGNAL means. Like a runtime it accepts a number, or a name in any case,
// with or without SIG. It returns "" for any other text.
func StopSignal(image string) string {
	number, err := strconv.Atoi(image)
	name := strings.TrimPrefix(strings.ToUpper(image), "SIG")
	for _, s := range stopSignals {
		if err == nil && s.number == number || s.name == "SIG"+name {
			return s.name
		}
	}
	return ""
}

// NotHeard returns the rest of a message that begins with the name of the gated container: its stop signal is not one of StopSignals.
func NotHeard() string {
	names := StopSignals()
	last := len(names) - 1
	return "sets lifecycle.stopSignal to a signal that the agent does not handle: use " + strings.Join(names[:last], ", ") + " or " + names[last]
}
