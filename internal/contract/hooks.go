package contract

import (
	"errors"
	"time"
)

// Hooks are the lifecycle hooks of the user's container: the agent runs them, and those of the active candidate alone.
type Hooks struct {
	PostStart *Hook `json:"postStart,omitempty"`
	PreStop   *Hook `json:"preStop,omitempty"`
}

// PreActivate is a command that runs in each tenure before the process, which starts only if it succeeds.
type PreActivate struct {
	Exec    []string `json:"exec"`
	Timeout Duration `json:"timeout"`
}

// Hook is a command that runs beside the process, or a pause.
type Hook struct {
	Exec []string `json:"exec,omitempty"`
	// Sleep is from 0 to MaxSleep; it counts where there is no command.
	Sleep Duration `json:"sleep,omitzero"`
}

// MaxSleep bounds Hook.Sleep.
const MaxSleep = time.Hour

func (h *Hook) validate() error {
	switch {
	case h == nil:
		return nil
	case len(h.Exec) > 0 && h.Sleep != 0:
		return errors.New("both exec and sleep are set: one hook does one thing")
	case h.Sleep < 0 || time.Duration(h.Sleep) > MaxSleep:
		return errors.New("sleep is not from 0s to 1h")
	}
	return nil
}
