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

// Fields holds the fields of a Lease object that the protocol uses, as plain values.
type Fields struct {
	UID             string
	ResourceVersion string
	Annotations     map[string]string
	// CreationTimestamp is RFC 3339, as the API server writes it.
	CreationTimestamp string

	HolderIdentity       string
	LeaseDurationSeconds int32
	LeaseTransitions     int32
	// AcquireTime and RenewTime are RFC 3339 with microseconds, the format of MicroTime. They are empty if not set.
	AcquireTime, RenewTime string
}

// microTime is the Kubernetes API's format of MicroTime.
const microTime = "2006-01-02T15:04:05.000000Z07:00"

// maxHistory is the maximum size of the history annotation in bytes.
const maxHistory = 1024

// unclean follows a release reason, after a comma, if requests of the tenure may still be on the wire.
const unclean = "unclean"

// maxWord is the maximum length of a reason. maxName is Kubernetes' maximum length of a Pod name.
const (
	maxWord = 64
	maxName = 253
)

// DecodeLease decodes a Lease. It returns an error only if no compare-and-swap is possible: without a UID, or if resourceVersion is not a
// number.
//
// Any client can have written the Lease. A malformed value counts as missing, which is the safe choice for each value:
//   - An unreadable token is not the holder's own, so its tenure ends. The revision and the history make the next token higher.
//   - A release reason that is not a word does not free the Lease.
//   - An unreadable acquire time counts as set.
//   - A handover request to an invalid Pod name requests nothing.
//
// There is no safe choice for a malformed token base or for malformed annotations about runs. They are reported as bad
// (lease.Record.BadTokenBase, lease.Runs.Bad).
func DecodeLease(f Fields) (lease.Record, error) {
	revision, err := strconv.ParseInt(f.ResourceVersion, 10, 64)
	if err != nil || revision < 0 {
		return lease.Record{}, fmt.Errorf("the Lease's resourceVersion %q is not a number; Kubernetes 1.35 and later guarantee a number", f.ResourceVersion)
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

// EncodeLease writes a record into the fields of a Lease. Annotations that are not part of the protocol keep their values. It does not
// modify the map of f.
func EncodeLease(r lease.Record, f Fields) Fields {
	f.UID, f.ResourceVersion = r.UID, strconv.FormatInt(r.Revision, 10)
	f.HolderIdentity = r.Holder
	// Round up, because other candidates wait for this long.
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

// parseBase returns a token base, or the invalid text.
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

// Cut truncates s to most bytes for a message, because any client can have written s.
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

// parseReason accepts only a word of ASCII letters and digits, because reasons are copied and are separated by commas in the history.
func parseReason(s string) lease.Reason {
	if len(s) > maxWord || strings.ContainsFunc(s, func(c rune) bool { return c > unicode.MaxASCII || !unicode.IsLetter(c) && !unicode.IsDigit(c) }) {
		return ""
	}
	return lease.Reason(s)
}

// parseRelease parses a reason and its unclean mark. Without a reason the mark is ignored.
func parseRelease(s string) lease.Release {
	word, mark, _ := strings.Cut(s, ",")
	reason := parseReason(word)
	return lease.Release{Reason: reason, Unclean: reason != "" && mark != ""}
}

// parsePod parses the name of a Pod, or lease.AnyPod.
func parsePod(s string) string {
	if s == lease.AnyPod {
		return s
	}
	if len(s) > maxName || strings.Trim(s, "abcdefghijklmnopqrstuvwxyz0123456789-.") != "" {
		return ""
	}
	return s
}

// parseAcquireTime returns 0 only for an empty text, because only a release leaves the field empty.
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

// The history has one entry per tenure, newest first, separated by semicolons: token,pod,node,acquired,ended,reason.

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
