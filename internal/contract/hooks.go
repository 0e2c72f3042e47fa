package contract

import (
	"errors"
	"fmt"
	"math"
	"time"
)

// Hooks are the lifecycle hooks of the user's container. The agent runs them, and only on the active candidate.
type Hooks struct {
	PostStart *Hook `json:"postStart,omitempty"`
	PreStop   *Hook `json:"preStop,omitempty"`
}

// PreActivate is a command that runs in each tenure before the process. The process starts only if the command succeeds.
type PreActivate struct {
	Exec    []string `json:"exec"`
	Timeout Duration `json:"timeout"`
}

// Hook is a command that runs beside the process, a request to it, or a pause.
type Hook struct {
	Exec []string `json:"exec,omitempty"`
	// HTTPGet is a request to the process. Any response counts as success.
	HTTPGet *HTTPGet `json:"httpGet,omitempty"`
	// Sleep is from 0 to MaxSleep. It applies if Exec and HTTPGet are not set.
	Sleep Duration `json:"sleep,omitzero"`
}

// MaxSleep is the maximum of Hook.Sleep.
const MaxSleep = time.Hour

func (h *Hook) validate() error {
	ways := 0
	for _, set := range []bool{h != nil && len(h.Exec) > 0, h != nil && h.HTTPGet != nil, h != nil && h.Sleep != 0} {
		if set {
			ways++
		}
	}
	switch {
	case h == nil:
		return nil
	case ways > 1:
		return errors.New("more than one of exec, httpGet and sleep is set: set one")
	case h.HTTPGet != nil && (h.HTTPGet.Port < 1 || h.HTTPGet.Port > math.MaxUint16):
		return fmt.Errorf("port %d is not between 1 and 65535", h.HTTPGet.Port)
	case h.Sleep < 0 || time.Duration(h.Sleep) > MaxSleep:
		return errors.New("sleep is not from 0s to 1h")
	}
	return nil
}
