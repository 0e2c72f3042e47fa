package contract

import (
	"slices"
	"strconv"
	"strings"
)

// The rules in this file say what a template must not contain for the gated container. Validation, the CRD's rules and the agent's tests
// share them. Patterns are RE2 patterns and contain no space.

// OursPattern matches every mount path at or below the directory of the agent and its credentials. A kubelet treats a relative path as if
// it began with a slash. Runtimes drop parts without effect (`//`, `/./`) and resolve `..`. A path with `..` before the directory's name
// matches wherever it leads.
const OursPattern = `(?s)^((/|[.]/)*|(.*/)?[.][.]/(.*/)?)singletonjob(/.*)?$`

// GoMemLimit is the variable that sets the memory limit of Go's runtime. A value that GoMemLimitPattern does not match ends every Go
// program before its first line, the agent included.
const GoMemLimit = "GOMEMLIMIT"

// GoMemLimitPattern matches every value of GoMemLimit with which a Go program starts (except for values near 2^63 bytes), and every value
// that a kubelet has yet to expand.
const GoMemLimitPattern = `^(off|[+]?0*(([0-8]?[0-9]{1,18}|9223372036854775807)B?|[0-9]{1,15}KiB|[0-9]{1,12}MiB|[0-9]{1,9}GiB|[0-9]{1,6}TiB))?$|[$][(]`

// GoMemLimitRemedy describes the values that GoMemLimitPattern matches.
const GoMemLimitRemedy = "a number of bytes, alone or with the suffix B, KiB, MiB, GiB or TiB (4GiB, not 4Gi), or off"

// GoDebugFault returns the first setting in a GODEBUG value that makes Go's runtime end every program before its first line, and a valid
// alternative. Both are empty if there is no such setting, or if a kubelet has yet to expand the value.
func GoDebugFault(value string) (setting, remedy string) {
	if strings.Contains(value, "$(") {
		return "", ""
	}
	for setting := range strings.SplitSeq(value, ",") {
		name, value, _ := strings.Cut(setting, "=")
		n, _ := strconv.ParseInt(value, 10, 32)
		switch name {
		case "fips140":
			if value, _, _ := strings.Cut(value, "#"); !slices.Contains([]string{"", "off", "on", "only", "debug"}, value) {
				return setting, "fips140=off, on, only or debug"
			}
		case "cgocheck":
			if n > 1 {
				return setting, "cgocheck=0 or 1"
			}
		case "profstackdepth":
			if n < 0 {
				return setting, "a profstackdepth of 0 or more"
			}
		}
	}
	return "", ""
}
