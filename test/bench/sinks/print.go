package main

import (
	"fmt"
	"slices"
	"strings"
	"time"
)

// kinds are all sinks there are. The name of what writes to one without a fence has a suffix.
var kinds = []string{"postgres", "mariadb", "http", "handlers", "kubernetes", "etcd", "redis", "nats", "s3"}

// chosenKinds are those of a list, each once. Each kind is compared with writes without a fence.
func chosenKinds(list string) (asked []string, err error) {
	for kind := range strings.SplitSeq(list, ",") {
		if !slices.Contains(kinds, kind) {
			return nil, fmt.Errorf("-sinks has %q: there are %s", kind, strings.Join(kinds, ", "))
		}
		if !slices.Contains(asked, kind) {
			asked = append(asked, kind)
		}
	}
	return asked, nil
}

const suffix = "-unfenced"

var faultTitles = map[string]string{
	"api":    "node cut off from the API server",
	"cut":    "node cut off from everything",
	"freeze": "container frozen past its lease, then thawed",
	"crash":  "node without power",
}

// titles are those of the kinds, with their fences.
var titles = map[string][2]string{
	"postgres":   {"PostgreSQL", "`fencesql`"},
	"mariadb":    {"MariaDB", "`fencesql`"},
	"http":       {"an HTTP service", "two `fence-proxy`"},
	"handlers":   {"an HTTP service", "`fencehttp` in its handlers"},
	"kubernetes": {"an object of Kubernetes", "`fencekube`"},
	"etcd":       {"etcd", "`fenceetcd`"},
	"redis":      {"Redis", "`fenceredis`"},
	"nats":       {"NATS JetStream", "`fencenats`"},
	"s3":         {"S3", "`fences3`"},
}

func titleOf(sink string) string {
	kind, unfenced := strings.CutSuffix(sink, suffix)
	if unfenced {
		return titles[kind][0] + ", no fence"
	}
	return titles[kind][0] + ", " + titles[kind][1]
}

// markdown is a table for each fault.
func markdown(results []Result) string {
	var text strings.Builder
	fault := ""
	for _, r := range results {
		if r.Fault != fault {
			fault = r.Fault
			fmt.Fprintf(&text, "\n| %s | offered | stored | stale: offered | stored | nothing stored for |\n|---|---|---|---|---|---|\n", faultTitles[fault])
		}
		stale := fmt.Sprint(r.StaleAccepted)
		if r.Fenced {
			stale = "**" + stale + "**"
		}
		fmt.Fprintf(&text, "| %s | %d | %d | %d | %s | %.1f s |\n", titleOf(r.Sink), r.Offered, r.Accepted, r.StaleOffered, stale,
			r.Gap.Round(100*time.Millisecond).Seconds())
	}
	return text.String()
}
