//go:build linux

package e2e

import (
	"bytes"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/singletonjob/operator/docs/commands"
)

// needsKubelet is the name of the test in the rows of commands.Rows.
const needsKubelet = "test/e2e TestDocumentedCommands"

// TestDocumentedCommands runs those commands of the documents that need a kubelet: they read logs, or run a program in a container.
func TestDocumentedCommands(t *testing.T) {
	x := beginBeside(t)
	j := x.createNamed("billing", patient)
	j.awaitSettled()
	crashed := j.get().Status.ActivePod // has a container before the present one
	active := j.crash().Status.ActivePod
	names := strings.NewReplacer("ledger", j.name, "migrate-v42", j.name, "NAME", j.name, "POD --previous", crashed+" --previous", "POD", active)
	pages := map[string][]commands.Command{}
	for _, r := range commands.Rows {
		if r.By != needsKubelet {
			continue
		}
		if pages[r.Page] == nil {
			text, err := os.ReadFile(filepath.Join("../..", r.Page))
			x.must(err)
			pages[r.Page] = commands.Of(r.Page, string(text))
		}
		for _, command := range pages[r.Page] {
			if !r.Is(command) {
				continue
			}
			text, _, _ := strings.Cut(names.Replace(command.Text), "#")
			words := strings.Fields(text)[1:]
			if words[0] != "singleton" {
				x.kubectl(words...)
				continue
			}
			var out bytes.Buffer
			if status := x.singleton(x.ctx, &out, &out, words[1:]...); status != 0 {
				x.Errorf("%s: %s ended with %d\n%s", r.Page, command.Text, status, &out)
			}
		}
	}
}
