package plan

import (
	"cmp"
	"slices"
	"time"

	"github.com/singletonjob/operator/api/v1alpha1"
	"github.com/singletonjob/operator/internal/lease"
)

// Agents write each tenure into the Lease's history, and every renewal stores that again. So an entry that the status also records is
// removed from the Lease once that status is stored. Code that looks further back than the current tenure reads it from the status.

// toldBy returns the tenures whose start and end a status records, oldest first.
func toldBy(s *v1alpha1.SingletonJobStatus) (told []lease.PastTenure) {
	for i := len(s.History) - 1; i > 0; i-- {
		began, ended := &s.History[i], &s.History[i-1]
		if ended.FromToken != began.Token { // the status has no record of the tenures in between
			continue
		}
		t := lease.PastTenure{
			Token: began.Token, Pod: began.To, Node: began.ToNode, Acquired: began.Time.UnixMilli(), Reason: lease.Reason(ended.Reason),
		}
		if ended.Downtime != nil {
			t.Ended = ended.Time.UnixMilli() - ended.Downtime.Milliseconds()
		}
		told = append(told, t)
	}
	return told
}

// withTold returns the Lease's tenures, oldest first, after earlier ones that the status records: in total at most as many as a Lease
// keeps.
func withTold(past []lease.PastTenure, s *v1alpha1.SingletonJobStatus, upTo int64) []lease.PastTenure {
	all := slices.DeleteFunc(toldBy(s), func(t lease.PastTenure) bool {
		return t.Token > upTo || len(past) > 0 && t.Token >= past[0].Token
	})
	all = append(all, past...)
	return all[max(0, len(all)-lease.HistoryLimit):]
}

// untold returns the entries that must stay in a Lease's history, newest first. These are the entries that the status does not record, and
// the newest one that it does record, because the next one follows on it. The argument before is the token of the last tenure that does not
// belong to the job.
func untold(past []lease.PastTenure, s *v1alpha1.SingletonJobStatus, before int64) []lease.PastTenure {
	recorded, told := Recorded(s), toldBy(s)
	n := len(past)
	for ; n > 1; n-- {
		next, oldest := &past[n-2], &past[n-1]
		inOrder := oldest.Token < next.Token && next.Token <= recorded
		if !inOrder || oldest.Token > before && !isTold(told, oldest) && !outlived(s, oldest.Token) {
			break
		}
	}
	return past[:n]
}

// apart is the difference between the clocks of two nodes up to which the end of a tenure counts as recorded. A downtime is never negative,
// so such an end is read back as the start of the next tenure. Decisions that use it count in seconds.
const apart = time.Second

// isTold reports whether a tenure can be read back unchanged from the status.
func isTold(told []lease.PastTenure, t *lease.PastTenure) bool {
	is := *t
	is.Reason = cmp.Or(is.Reason, lease.ReasonLeaseExpired)
	return slices.ContainsFunc(told, func(as lease.PastTenure) bool {
		off := is.Ended - as.Ended
		as.Ended = is.Ended
		return as == is && max(off, -off) <= apart.Milliseconds()
	})
}

// outlived reports whether a status records so many later changes that a Lease would have dropped the tenure.
func outlived(s *v1alpha1.SingletonJobStatus, token int64) bool {
	const most = lease.HistoryLimit
	return len(s.History) >= most && s.History[most-1].Token > token
}
