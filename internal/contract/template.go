package contract

import (
	"slices"
	"strconv"
	"strings"
)

// What a template must not say of the gated container is decided here where validation, the CRD's rules and tests of the agent need the
// same. Patterns are those of RE2, without a space.

// OursPattern matches each path for a mount that is at or below the directory of the agent and its credentials: a kubelet takes a relative
// path to begin with a slash, and runtimes leave out what changes nothing (`//`, `/./`) and follow `..`. A path that has `..` before the
// directory's name is matched wherever it leads.
const OursPattern = `(?s)^((/|[.]/)*|(.*/)?[.][.]/(.*/)?)singletonjob(/.*)?$`

// GoMemLimit is the variable without which Go's runtime has no limit of memory, and with another value than GoMemLimitPattern's ends every
// program, the agent too, before its first line.
const GoMemLimit = "GOMEMLIMIT"

// GoMemLimitPattern matches each value of GoMemLimit with which a program starts (but for those near 2^63 bytes), and those that a kubelet
// has still to expand.
const GoMemLimitPattern = `^(off|[+]?0*(([0-8]?[0-9]{1,18}|9223372036854775807)B?|[0-9]{1,15}KiB|[0-9]{1,12}MiB|[0-9]{1,9}GiB|[0-9]{1,6}TiB))?$|[$][(]`

// GoMemLimitRemedy is what to write instead, in place of a value that is not matched.
const GoMemLimitRemedy = "a number of bytes, alone or with B, KiB, MiB, GiB or TiB behind it (4GiB, not 4Gi), or off"

// GoDebugFault is the setting in a value of GODEBUG with which Go's runtime ends every program before its first line, and what to write
// instead; empty where there is none. A value that a kubelet has still to expand has none.
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
				return setting, "a profstackdepth that is not negative"
			}
		}
	}
	return "", ""
}
