package commands

import (
	"fmt"
	"regexp"
	"strings"
)

// What differs from run to run. Each kind is replaced by a letter, and its values are numbered in the order in which they appear: the same
// Pod must be shown in the same places.
var varying = []struct {
	letter string
	values *regexp.Regexp
	// alike: the values are not numbered, because two of them may be equal by chance.
	alike bool
}{
	{"TIME", regexp.MustCompile(`\b\d{4}-\d\d-\d\dT[\d:.]+(?:Z|[+-]\d\d:\d\d)`), true},
	{"UID", regexp.MustCompile(`\b[0-9a-f]{8}(?:-[0-9a-f]{4}){3}-[0-9a-f]{12}(?:/[A-Z2-7.]+)?\b`), false},
	{"ADDRESS", regexp.MustCompile(`\b\d+\.\d+\.\d+\.\d+(?::\d+)?\b`), false},
	{"POD", regexp.MustCompile(`(?:\b[a-z0-9-]+-|…)[b-df-hj-np-tv-z2-9]{7}-\d+\b`), false},
	{"NODE", regexp.MustCompile(`\b(?:node|zone)(?:-[a-z0-9-]*[a-z0-9]|\d+)\b`), false},
	{"AGE", regexp.MustCompile(`\b(?:\d+(?:\.\d+)?(?:ms|µs|s|m|h|d))+\b`), true},
	{"NUMBER", regexp.MustCompile(`\b\d{3,}\b`), false},
}

var (
	gap = regexp.MustCompile(`  +`)
	// waiting are the lines of progress of a command. Which of them are printed depends on when the command looks.
	waiting = regexp.MustCompile(`(?m)(?:^waiting[: ].*\n)+`)
)

// plain returns a text without what varies. Of its columns only their order is left, because their widths depend on what varies.
func plain(text string) string {
	text = waiting.ReplaceAllString(strings.TrimRight(text, " \n")+"\n", "waiting\n")
	for _, v := range varying {
		known := map[string]string{}
		text = v.values.ReplaceAllStringFunc(text, func(value string) string {
			if v.alike {
				return v.letter
			}
			key := value
			if v.letter == "POD" {
				parts := strings.Split(strings.TrimPrefix(value, "…"), "-") // shortened names are names of the same Pod
				key = strings.Join(parts[len(parts)-2:], "-")
				if name := strings.Join(parts[:len(parts)-2], "-"); name != "" {
					value = name + "-"
				} else {
					value = "…"
				}
			} else {
				value = ""
			}
			if known[key] == "" {
				known[key] = fmt.Sprint(v.letter, len(known)+1)
			}
			return value + known[key]
		})
	}
	lines := strings.Split(text, "\n")
	for i, line := range lines {
		lines[i] = gap.ReplaceAllString(strings.TrimRight(line, " "), "  ")
	}
	return strings.Join(lines, "\n")
}

// Same returns an error if a command prints something else than a page shows below it. Times, addresses, and the names and numbers that a cluster
// gives can differ. A line "…" on the page stands for any lines. The page's columns must be straight.
func Same(shown, printed string) error {
	if line := crooked(shown); line != "" {
		return fmt.Errorf("the columns are not straight at\n%s", line)
	}
	parts := strings.Split("\n"+plain(shown), "\n…\n")
	for i := range parts {
		parts[i] = regexp.QuoteMeta(parts[i])
	}
	if got := "\n" + plain(printed); !regexp.MustCompile("^" + strings.Join(parts, `\n(?:.*\n)*?`) + "$").MatchString(got) {
		return fmt.Errorf("without what varies, the page shows\n%s\nand the command prints\n%s", plain(shown), got[1:])
	}
	return nil
}

// crooked returns the first line whose columns begin elsewhere than those of the line above, which has as many of them.
func crooked(text string) string {
	var above []int
	for line := range strings.SplitSeq(text, "\n") {
		runes := []rune(line)
		var columns []int
		for i := range runes {
			if i > 1 && runes[i] != ' ' && runes[i-1] == ' ' && runes[i-2] == ' ' {
				columns = append(columns, i)
			}
		}
		if len(columns) > 2 && len(columns) == len(above) && fmt.Sprint(columns) != fmt.Sprint(above) {
			return line
		}
		above = columns
	}
	return ""
}
