package plugin

import (
	"bytes"
	"io"
	"path/filepath"
	"strings"
	"testing"
	"unicode/utf8"

	"github.com/spf13/cobra"
	"k8s.io/cli-runtime/pkg/genericclioptions"
	"k8s.io/cli-runtime/pkg/genericiooptions"
)

// TestHelp: the help of every command fits a terminal of 80 columns, and describes the command's own flags.
func TestHelp(t *testing.T) {
	var names []string
	c := &cli{flags: genericclioptions.NewConfigFlags(true), formats: map[*cobra.Command][]string{}}
	for _, cmd := range c.root().Commands() {
		names = append(names, cmd.Name())
	}
	for _, args := range append([]string{""}, names...) {
		var out bytes.Buffer
		status := Run(t.Context(), append(strings.Fields(args), "--help"), genericiooptions.IOStreams{Out: &out, ErrOut: io.Discard})
		if status != ExitOK || !strings.Contains(out.String(), "-h, --help") || strings.Contains(out.String(), "--as-group") {
			t.Errorf("%s --help ends with %d and prints\n%s", args, status, &out)
		}
		for line := range strings.Lines(out.String()) {
			if n := utf8.RuneCountInString(line) - 1; n > narrow {
				t.Errorf("%s --help has a line of %d characters: %s", args, n, line)
			}
		}
	}
	if len(names) < 12 {
		t.Errorf("only %d commands were asked: %v", len(names), names)
	}
}

// TestWrongCommandLines: common first attempts are accepted, or rejected without a cluster, with the expected form and where to
// read more.
func TestWrongCommandLines(t *testing.T) {
	t.Setenv("KUBECONFIG", filepath.Join(t.TempDir(), "none"))
	for line, want := range map[string]struct {
		status int
		says   string
	}{
		"stats":                                {ExitUsage, "See 'kubectl singleton --help'."},
		"exec billing sh":                      {ExitUsage, "expected the NAME of one SingletonJob, --, and the command\nSee 'kubectl singleton exec --help'."},
		"token --wide billing":                 {ExitUsage, "unknown flag: --wide\nSee 'kubectl singleton token --help'."},
		"debug billing -it":                    {ExitUsage, "--image is missing: set the debug container's image, such as --image=busybox:1.37"},
		"debug billing --image=a --copy-to=b":  {ExitUsage, "--copy-to: a Pod of a SingletonJob cannot be copied"},
		"adopt billing":                        {ExitUsage, `as deployment/NAME or statefulset/NAME, got "billing"`},
		"adopt":                                {ExitUsage, `got ""`},
		"adopt deployment billing mail":        {ExitUsage, `got "deployment billing mail"`},
		"adopt deployment deployment/billing":  {ExitUsage, `got "deployment deployment/billing"`},
		"adopt deployment billing":             {ExitError, "no cluster is configured"},
		"adopt deploy/billing --dry-run":       {ExitError, "no cluster is configured"},
		"adopt deploy/billing --dry-run=none":  {ExitError, "no cluster is configured"},
		"adopt sts/billing --dry-run=client":   {ExitError, "no cluster is configured"},
		"adopt deploy/billing --dry-run=serve": {ExitUsage, "expected --dry-run alone, --dry-run=client, --dry-run=server or --dry-run=none"},
	} {
		var out bytes.Buffer
		status := Run(t.Context(), strings.Fields(line), genericiooptions.IOStreams{Out: io.Discard, ErrOut: &out})
		if status != want.status || !strings.Contains(out.String(), want.says) {
			t.Errorf("%q ended with %d, want %d and %q:\n%s", line, status, want.status, want.says, &out)
		}
	}
}

func TestOtherEncoding(t *testing.T) {
	for name, c := range map[string]struct {
		all, ctype, lang string
		want             bool
	}{
		"no locale, as in a container":    {want: false},
		"UTF-8":                           {lang: "de_DE.UTF-8", want: false},
		"as macOS writes it":              {ctype: "UTF-8", want: false},
		"as some write it":                {lang: "en_US.utf8", want: false},
		"none at all":                     {all: "C", lang: "de_DE.UTF-8", want: true},
		"Latin 1":                         {lang: "de_DE.ISO-8859-1", want: true},
		"characters otherwise than words": {ctype: "C.UTF-8", lang: "C", want: false},
	} {
		t.Run(name, func(t *testing.T) {
			t.Setenv("LC_ALL", c.all)
			t.Setenv("LC_CTYPE", c.ctype)
			t.Setenv("LANG", c.lang)
			if got := otherEncoding(); got != c.want {
				t.Errorf("drawn in ASCII: %v", got)
			}
		})
	}
}
