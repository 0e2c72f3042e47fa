package v1alpha1

import (
	"strings"
	"testing"

	"github.com/singletonjob/operator/internal/supervise"
)

// What an agent would refuse at its start is refused before, in its own words.
func TestPrivilegesAreRefusedInTheAgentsWords(t *testing.T) {
	if words := supervise.ErrCannotKill.Error(); !strings.Contains(badCaps, words) {
		t.Errorf("the rule says\n%s\nthe agent says\n%s", badCaps, words)
	}
}
