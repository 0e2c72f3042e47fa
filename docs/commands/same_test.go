package commands

import (
	"strings"
	"testing"
)

const table = `NAME        ACTIVE                TOKEN   READY   STATUS    AGE
heartbeat   heartbeat-752pq9t-1   517     2/2     Running   24s
`

// TestSame: what varies may differ. A word, a column, a line, a count and another Pod in a place may not.
func TestSame(t *testing.T) {
	const log = "$ x\nwaiting: for a\n[ledger-752pq9t-0 716] took over from ledger-752pq9t-1 after 13ms: token 716\n"
	for name, test := range map[string]struct {
		shown, printed string
		same           bool
	}{
		"equal":            {table, table, true},
		"another cluster":  {table, "NAME        ACTIVE                TOKEN    READY   STATUS    AGE\nheartbeat   heartbeat-cm2dbqd-0   10517    2/2     Running   2m4s\n", true},
		"another word":     {table, strings.Replace(table, "Running", "Stopped", 1), false},
		"another count":    {table, strings.Replace(table, "2/2", "1/2", 1), false},
		"another head":     {table, strings.Replace(table, "AGE", "OLD", 1), false},
		"no column":        {table, strings.ReplaceAll(strings.Replace(table, "2/2     ", "", 1), "READY   ", ""), false},
		"columns in turn":  {table, strings.Replace(table, "READY   STATUS ", "STATUS   READY ", 1), false},
		"crooked":          {strings.Replace(table, "     2/2", "      2/2", 1), table, false},
		"a line less":      {table, strings.SplitAfter(table, "\n")[0], false},
		"a line more":      {table, table + "more\n", false},
		"elided":           {"…\nb  token 517\n", "a\na\nb  token 333\n", true},
		"nothing elided":   {"…\nb\n…\n", "b\n", true},
		"elided in middle": {"a\n…\nc\n", "a\nb\nb\nc\n", true},
		"elided, another":  {"…\nb\n", "a\nc\n", false},
		"progress":         {log, strings.Replace(log, "waiting: for a\n", "waiting for b\nwaiting: for c\n", 1), true},
		"no progress":      {log, strings.Replace(log, "waiting: for a\n", "", 1), false},
		"other names":      {log, strings.NewReplacer("752pq9t-0", "cm2dbqd-2", "752pq9t-1", "cm2dbqd-0", "13ms", "1m2s", "716", "48213").Replace(log), true},
		"the same Pod":     {log, strings.Replace(log, "752pq9t-1", "752pq9t-0", 1), false},
		"another token":    {log, strings.Replace(log, "token 716", "token 717", 1), false},
		"another job":      {log, strings.ReplaceAll(log, "ledger", "billing"), false},
		"shortened":        {"ledger-752pq9t-0\n…752pq9t-0\n", "ledger-cm2dbqd-1\n…cm2dbqd-1\n", true},
		"shortened other":  {"ledger-752pq9t-0\n…752pq9t-0\n", "ledger-cm2dbqd-1\n…cm2dbqd-0\n", false},
		"times and UIDs": {
			"2026-11-23T01:30:00Z at node-a of 10.210.0.1:36461 x/ccf742c9-e644-4b74-a0da-c69bc3e61506/HRXPOZPGGDVG\n",
			"2027-01-02T03:04:05.678+01:00 at node3 of 127.0.0.1:5 x/00000000-e644-4b74-a0da-c69bc3e61506\n", true,
		},
	} {
		if err := Same(test.shown, test.printed); (err == nil) != test.same {
			t.Errorf("%s: %v", name, err)
		}
	}
}
