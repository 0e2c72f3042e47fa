package v1alpha1

import (
	"strings"
	"testing"

	"github.com/singletonjob/operator/internal/supervise"
)

// A setting with which an agent would refuse to start is rejected before, with the agent's message.
func TestPrivilegeErrorsMatchTheAgent(t *testing.T) {
	if words := supervise.ErrCannotKill.Error(); !strings.Contains(badCaps, words) {
		t.Errorf("the rule says\n%s\nthe agent says\n%s", badCaps, words)
	}
}
