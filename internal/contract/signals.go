package contract

import (
	"strconv"
	"strings"
)

// stopSignals are the signals that end images in use, with Linux's numbers. Whatever else knows them has them from here: validation, the CRD's
// rule, what an agent listens for.
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

// StopSignals are the names of the signals that an agent hears, and that AgentConfig.StopSignal may be.
func StopSignals() []string {
	names := make([]string, len(stopSignals))
	for i, s := range stopSignals {
		names[i] = s.name
	}
	return names
}

// SignalNumber is Linux's number of one of StopSignals; 0 for any other name.
func SignalNumber(name string) int {
	for _, s := range stopSignals {
		if s.name == name {
			return s.number
		}
	}
	return 0
}

// StopSignal is the one of StopSignals that an image means by its STOPSIGNAL, as a runtime reads it: a number, or a name in any case, with
// SIG or without. It is empty for any other text.
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

// NotHeard says of a stop signal of the gated container that it is none of StopSignals, as it goes on from the container's name.
func NotHeard() string {
	names := StopSignals()
	last := len(names) - 1
	return "sets lifecycle.stopSignal to one that the agent does not hear: choose " + strings.Join(names[:last], ", ") + " or " + names[last]
}
