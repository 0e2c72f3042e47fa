package fault

import (
	"errors"
	"testing"
)

// The words are those of conntrack 1.4.7.
func TestForgottenConnections(t *testing.T) {
	status := errors.New("exit status 1")
	for name, c := range map[string]struct {
		out       string
		err       error
		forgotten bool
		fails     bool
	}{
		"some":       {out: "tcp 6 …\nconntrack v1.4.7 (conntrack-tools): 10 flow entries have been deleted.\n", forgotten: true},
		"none":       {out: "conntrack v1.4.7 (conntrack-tools): 0 flow entries have been deleted.\n", err: status, forgotten: true},
		"one ended":  {out: "conntrack v1.4.7 (conntrack-tools): Operation failed: such conntrack doesn't exist\n", err: status},
		"not a root": {out: "conntrack v1.4.7 (conntrack-tools): Operation failed: sorry, you must be root\n", err: status, fails: true},
	} {
		t.Run(name, func(t *testing.T) {
			got, err := forgotten(c.out, c.err)
			if got != c.forgotten || (err != nil) != c.fails {
				t.Errorf("forgotten(%q, %v) = %v, %v", c.out, c.err, got, err)
			}
		})
	}
}
