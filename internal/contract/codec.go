package contract

import (
	"fmt"
	"maps"
	"math"
	"strconv"
	"strings"
	"time"
	"unicode"

	"github.com/singletonjob/operator/internal/lease"
)

// Fields are the fields of a Lease object that the protocol uses, as plain values.
type Fields struct {
	UID             string
	ResourceVersion string
	Annotations     map[string]string
	// CreationTimestamp is RFC 3339, as the API server writes it.
	CreationTimestamp string

	HolderIdentity       string
	LeaseDurationSeconds int32
	LeaseTransitions     int32
	// AcquireTime and RenewTime are RFC 3339 with microseconds, as MicroTime is written; empty for none.
	AcquireTime, RenewTime string
}

// microTime is the API's format of MicroTime.
const microTime = "2006-01-02T15:04:05.000000Z07:00"

// maxHistory bounds the history annotation, in bytes.
const maxHistory = 1024

// unclean marks, behind a comma, a release reason after which requests may still be on the wire.
const unclean = "unclean"

// maxWord bounds reasons, maxName the names of pods, as Kubernetes has it.
const (
	maxWord = 64
	maxName = 253
)

// DecodeLease reads a Lease. It fails only where no compare-and-swap could follow: without a UID, or with a
// resourceVersion that is not a number. Anybody may have written it. A malformed value counts as missing, and what it is
// missing for is the safe side: a token that can't be read is not the holder's own, so that its tenure ends, and the next
// token is higher by revision and history; a release marker that is not a word frees nothing; an acquire time of any kind is
// one; a request to hand over to what can't be a pod asks for nothing. A token base, of which nobody knows what it should
// be, counts as bad (lease.Record.BadTokenBase), and so does what it says of runs (lease.Runs.Bad).
func DecodeLease(f Fields) (lease.Record, error) {
	revision, err := strconv.ParseInt(f.ResourceVersion, 10, 64)
	if err != nil || revision < 0 {
		return lease.Record{}, fmt.Errorf("the Lease's resourceVersion %q is not a number, as Kubernetes 1.35 and later guarantee", f.ResourceVersion)
	}
	if f.UID == "" {
		return lease.Record{}, fmt.Errorf("the Lease has no UID")
	}
	a := f.Annotations
	base, badBase := parseBase(a[TokenBaseAnnotation])
	return lease.Record{
		UID:         f.UID,
		Revision:    revision,
		Holder:      f.HolderIdentity,
		Token:       parseNumber(a[TokenAnnotation]),
		Transitions: max(0, f.LeaseTransitions),
		Duration: max(
			time.Duration(max(0, f.LeaseDurationSeconds))*time.Second,
			parseDuration(a[LeaseDurationAnnotation]),
		),
		AcquireTime:  parseAcquireTime(f.AcquireTime),
		RenewTime:    parseMicros(f.RenewTime),
		TokenBase:    base,
		BadTokenBase: badBase,
		Release:      parseRelease(a[ReleaseReasonAnnotation]),
		Handover:     lease.Handover{To: parsePod(a[HandoverToAnnotation]), Reason: parseReason(a[HandoverReasonAnnotation])},
		History:      parseHistory(a[HistoryAnnotation]),
		Runs:         parseRuns(f),
	}, nil
}

// EncodeLease writes a record over the fields of a Lease, and leaves annotations that are not the protocol's as they
// are. The map of f is not changed.
func EncodeLease(r lease.Record, f Fields) Fields {
	f.UID, f.ResourceVersion = r.UID, strconv.FormatInt(r.Revision, 10)
	f.HolderIdentity = r.Holder
	// Rounded up: others wait for it.
	f.LeaseDurationSeconds = int32(min((max(0, r.Duration)+time.Second-1)/time.Second, math.MaxInt32))
	f.LeaseTransitions = r.Transitions
	f.AcquireTime, f.RenewTime = formatMicros(r.AcquireTime), formatMicros(r.RenewTime)

	release := string(r.Release.Reason)
	if release != "" && r.Release.Unclean {
		release += "," + unclean
	}
	a := maps.Clone(f.Annotations)
	if a == nil {
		a = map[string]string{}
	}
	base := formatNumber(r.TokenBase)
	if r.BadTokenBase != "" {
		base = a[TokenBaseAnnotation]
	}
	values := map[string]string{
		TokenAnnotation:          formatNumber(r.Token),
		TokenBaseAnnotation:      base,
		LeaseDurationAnnotation:  formatDuration(r.Duration),
		ReleaseReasonAnnotation:  release,
		HandoverToAnnotation:     r.Handover.To,
		HandoverReasonAnnotation: string(r.Handover.Reason),
		HistoryAnnotation:        formatHistory(r.History),
	}
	maps.Copy(values, formatRuns(r.Runs, f))
	for name, value := range values {
		if value == "" {
			delete(a, name)
		} else {
			a[name] = value
		}
	}
	f.Annotations = a
	return f
}

func parseNumber(s string) int64 {
	n, err := strconv.ParseInt(s, 10, 64)
	if err != nil || n < 0 {
		return 0
	}
	return n
}

// parseBase returns a token base, or what stands there instead of one.
func parseBase(s string) (base int64, bad string) {
	if s == "" {
		return 0, ""
	}
	n, err := strconv.ParseInt(s, 10, 64)
	if err != nil || n < 0 || n > lease.MaxTokenBase {
		return 0, Cut(s, maxWord)
	}
	return n, ""
}

// Cut is s for a message, of at most so many bytes: anybody may have written it.
func Cut(s string, most int) string {
	if len(s) <= most {
		return s
	}
	return strings.ToValidUTF8(s[:most], "") + "…"
}

func parseDuration(s string) time.Duration {
	d, err := time.ParseDuration(s)
	if err != nil || d < 0 {
		return 0
	}
	return min(d, lease.MaxDuration)
}

func formatDuration(d time.Duration) string {
	if d <= 0 {
		return ""
	}
	return d.String()
}

// parseReason reads a word, as reasons are. They are copied from place to place and stand in the history between commas.
func parseReason(s string) lease.Reason {
	if len(s) > maxWord || strings.ContainsFunc(s, func(c rune) bool { return c > unicode.MaxASCII || !unicode.IsLetter(c) && !unicode.IsDigit(c) }) {
		return ""
	}
	return lease.Reason(s)
}

// parseRelease reads a reason and its mark, which means nothing without one.
func parseRelease(s string) lease.Release {
	word, mark, _ := strings.Cut(s, ",")
	reason := parseReason(word)
	return lease.Release{Reason: reason, Unclean: reason != "" && mark != ""}
}

// parsePod reads the name of a pod, or lease.AnyPod.
func parsePod(s string) string {
	if s == lease.AnyPod {
		return s
	}
	if len(s) > maxName || strings.Trim(s, "abcdefghijklmnopqrstuvwxyz0123456789-.") != "" {
		return ""
	}
	return s
}

// parseAcquireTime is never 0 where there is anything: only a release leaves nothing.
func parseAcquireTime(s string) int64 {
	if micros := parseMicros(s); micros != 0 || s == "" {
		return micros
	}
	return 1
}

func formatNumber(n int64) string {
	if n == 0 {
		return ""
	}
	return strconv.FormatInt(n, 10)
}

func parseMicros(s string) int64 {
	t, err := time.Parse(time.RFC3339Nano, s)
	if err != nil {
		return 0
	}
	return t.UnixMicro()
}

func formatMicros(micros int64) string {
	if micros == 0 {
		return ""
	}
	return time.UnixMicro(micros).UTC().Format(microTime)
}

// The history is one line a tenure, newest first, separated by semicolons: token,pod,node,acquired,ended,reason.

func formatHistory(past []lease.PastTenure) string {
	var out strings.Builder
	for _, p := range past {
		line := fmt.Sprintf("%d,%s,%s,%d,%d,%s", p.Token, p.Pod, p.Node, p.Acquired, p.Ended, p.Reason)
		if out.Len()+len(";")+len(line) > maxHistory {
			break
		}
		if out.Len() > 0 {
			out.WriteByte(';')
		}
		out.WriteString(line)
	}
	return out.String()
}

func parseHistory(s string) []lease.PastTenure {
	if s == "" || len(s) > maxHistory {
		return nil
	}
	var past []lease.PastTenure
	for line := range strings.SplitSeq(s, ";") {
		v := strings.Split(line, ",")
		if len(v) != 6 || parseNumber(v[0]) == 0 {
			return past
		}
		past = append(past, lease.PastTenure{
			Token: parseNumber(v[0]), Pod: v[1], Node: v[2],
			Acquired: parseNumber(v[3]), Ended: parseNumber(v[4]), Reason: lease.Reason(v[5]),
		})
	}
	return past
}
