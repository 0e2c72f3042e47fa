package contract

import (
	"fmt"
	"maps"
	"strconv"
	"strings"
	"time"

	"github.com/singletonjob/operator/internal/lease"
)

// Fields are the fields of a Lease object that the protocol uses, as plain values.
type Fields struct {
	UID             string
	ResourceVersion string
	Annotations     map[string]string

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

// DecodeLease reads a Lease. It fails only where no compare-and-swap could follow: without a UID, or with a
// resourceVersion that is no number. Any other malformed value counts as missing: a token that can't be read is not the
// holder's own, so that its tenure ends, and the next token is higher by the revision alone.
func DecodeLease(f Fields) (lease.Record, error) {
	revision, err := strconv.ParseInt(f.ResourceVersion, 10, 64)
	if err != nil || revision < 0 {
		return lease.Record{}, fmt.Errorf("the Lease's resourceVersion %q is not a number, as Kubernetes 1.35 and later guarantee", f.ResourceVersion)
	}
	if f.UID == "" {
		return lease.Record{}, fmt.Errorf("the Lease has no UID")
	}
	a := f.Annotations
	reason, mark, _ := strings.Cut(a[ReleaseReasonAnnotation], ",")
	return lease.Record{
		UID:         f.UID,
		Revision:    revision,
		Holder:      f.HolderIdentity,
		Token:       parseNumber(a[TokenAnnotation]),
		Transitions: max(0, f.LeaseTransitions),
		Duration:    time.Duration(max(0, f.LeaseDurationSeconds)) * time.Second,
		AcquireTime: parseMicros(f.AcquireTime),
		RenewTime:   parseMicros(f.RenewTime),
		TokenBase:   parseNumber(a[TokenBaseAnnotation]),
		Release:     lease.Release{Reason: lease.Reason(reason), Unclean: mark != ""},
		Handover:    lease.Handover{To: a[HandoverToAnnotation], Reason: lease.Reason(a[HandoverReasonAnnotation])},
		History:     parseHistory(a[HistoryAnnotation]),
	}, nil
}

// EncodeLease writes a record over the fields of a Lease, and leaves annotations that are not the protocol's as they
// are. The map of f is not changed.
func EncodeLease(r lease.Record, f Fields) Fields {
	f.UID, f.ResourceVersion = r.UID, strconv.FormatInt(r.Revision, 10)
	f.HolderIdentity = r.Holder
	f.LeaseDurationSeconds = int32((r.Duration + time.Second - 1) / time.Second)
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
	for name, value := range map[string]string{
		TokenAnnotation:          formatNumber(r.Token),
		TokenBaseAnnotation:      formatNumber(r.TokenBase),
		ReleaseReasonAnnotation:  release,
		HandoverToAnnotation:     r.Handover.To,
		HandoverReasonAnnotation: string(r.Handover.Reason),
		HistoryAnnotation:        formatHistory(r.History),
	} {
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
