//go:build linux

package agent

import (
	"context"
	"encoding/json"
	"flag"
	"os"
	"os/exec"
	"regexp"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/singletonjob/operator/internal/contract"
)

// usersVariables are all that a template can say to the agent, its libraries and Go's runtime, each with who would heed it.
var usersVariables = map[string]string{
	"GODEBUG=gctrace=1,netdns=cgo": "Go's runtime, and packages net, net/http and crypto/tls",
	"GOGC=1":                       "Go's runtime",
	"GOMAXPROCS=1":                 "Go's runtime",
	"GOMEMLIMIT=64MiB":             "Go's runtime",
	"GOTRACEBACK=crash":            "Go's runtime",
	"HTTP_PROXY=http://p:1":        "package net/http",
	"HTTPS_PROXY=http://p:1":       "package net/http",
	"NO_PROXY=*":                   "package net/http",
	"http_proxy=http://p:1":        "package net/http",
	"https_proxy=http://p:1":       "package net/http",
	"no_proxy=*":                   "package net/http",
	"REQUEST_METHOD=GET":           "package net/http",
	"SSL_CERT_FILE=/nowhere":       "package crypto/x509",
	"SSL_CERT_DIR=/nowhere":        "package crypto/x509",
	"LOCALDOMAIN=example.org":      "package net",
	"RES_OPTIONS=ndots:9":          "package net",
	"HOSTALIASES=/nowhere":         "package net, by the C library",
	"TZ=Asia/Kathmandu":            "package time",
	"ZONEINFO=/nowhere":            "package time",
	"HOME=/nowhere":                "package os",
	"PATH=/nowhere":                "package os/exec",
	"TMPDIR=/nowhere":              "package os",
	"LD_PRELOAD=":                  "the dynamic loader, which the agent has none of",
	"LD_LIBRARY_PATH=/nowhere":     "the dynamic loader, which the agent has none of",
	"KUBERNETES_SERVICE_HOST=":     "clients of Kubernetes",
	"KUBERNETES_SERVICE_PORT=":     "clients of Kubernetes",
	"_=/bin/x":                     "nobody; it looks like a hidden one",
	"_GODEBUG=gctrace=1":           "nobody; it looks like a hidden one",
}

// taken is what a process finds after TakeEnviron.
type taken struct {
	Begun   []string // its environment as it was executed: what Go's runtime has heeded
	Found   []string // what libraries find
	Environ []string
	Args    []string
}

const reportArg = "report-what-is-taken"

func TestTakeEnviron(t *testing.T) {
	if flag.Arg(0) == reportArg { // this is the process that the test has started
		environ, err := TakeEnviron()
		if err != nil {
			t.Fatal(err)
		}
		begun, err := os.ReadFile("/proc/self/environ")
		if err != nil {
			t.Fatal(err)
		}
		_ = json.NewEncoder(os.Stdout).Encode(taken{
			Begun: strings.Split(strings.TrimSuffix(string(begun), "\x00"), "\x00"), Found: os.Environ(), Environ: environ, Args: os.Args[1:],
		})
		os.Exit(0)
	}
	check := func(environ ...string) func(*testing.T) {
		return func(t *testing.T) {
			t.Parallel()
			got := begin(t, environ)
			for _, kv := range got.Begun {
				if heededBeforeMain(kv) {
					t.Errorf("Go's runtime has heeded %s", kv)
				}
			}
			if len(got.Found) > 0 {
				t.Errorf("libraries find %q", got.Found)
			}
			if !slices.Equal(got.Environ, environ) {
				t.Errorf("it has taken %q, want %q", got.Environ, environ)
			}
			if want := []string{"-test.run=^TestTakeEnviron$", reportArg}; !slices.Equal(got.Args, want) {
				t.Errorf("arguments %q, want %q", got.Args, want)
			}
		}
	}
	var all []string
	for kv := range usersVariables {
		all = append(all, kv)
		t.Run(kv, check(kv, "THEIRS=kept"))
	}
	t.Run("all", check(all...))
	t.Run("none", check("THEIRS=kept", "EMPTY="))
}

// Every variable that Go's runtime heeds is among those for which the agent begins again.
func TestGoRuntimeVariablesAreComplete(t *testing.T) {
	for _, name := range beforeMain {
		tested := false
		for kv := range usersVariables {
			tested = tested || strings.HasPrefix(kv, name+"=")
		}
		if !tested {
			t.Errorf("%s is in no row of usersVariables", name)
		}
	}
}

// Validation refuses exactly the values with which Go's runtime cannot start.
func TestGoRuntimeCannotRead(t *testing.T) {
	limits := regexp.MustCompile(contract.GoMemLimitPattern)
	refused := func(name, value string) bool {
		setting, _ := contract.GoDebugFault(value)
		return name == "GODEBUG" && setting != "" || name == contract.GoMemLimit && !limits.MatchString(value)
	}
	for name, values := range map[string][]string{
		contract.GoMemLimit: {
			"", "off", "1", "1B", "4GiB", "007MiB", "+1KiB", "999999TiB", "9223372036854775807",
			"4Gi", "4G", "4gib", "1.5GiB", "-1", " 1GiB", "1GiB ", "GiB", "B", "OFF", "9223372036854775808", "9223372036854775807KiB",
		},
		"GODEBUG": {
			"", "x", ",=,", "gctrace=0,fips140=off", "fips140=", "fips140=on", "cgocheck=1", "profstackdepth=0", "http2client=0,unknown=1",
			"fips140=1", "x=1,fips140=true", "cgocheck=2", "profstackdepth=-200",
		},
	} {
		for _, value := range values {
			t.Run(name+"="+value, func(t *testing.T) {
				t.Parallel()
				out, err := beginning(t, []string{name + "=" + value}).CombinedOutput()
				if ended := err != nil; ended != refused(name, value) {
					t.Errorf("refused: %t; a Go program ends: %t (%.200s)", refused(name, value), ended, out)
				}
			})
		}
	}
}

func begin(t *testing.T, environ []string) (got taken) {
	t.Helper()
	out, err := beginning(t, environ).Output()
	if err != nil {
		t.Fatalf("%v: %s", err, out)
	}
	if err := json.Unmarshal(out, &got); err != nil {
		t.Fatalf("%v: %s", err, out)
	}
	return got
}

func beginning(t *testing.T, environ []string) *exec.Cmd {
	t.Helper()
	exe, err := os.Executable()
	if err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithTimeout(t.Context(), 4*time.Minute) // a hang
	t.Cleanup(cancel)
	cmd := exec.CommandContext(ctx, exe, "-test.run=^TestTakeEnviron$", reportArg)
	cmd.Env = environ
	return cmd
}
