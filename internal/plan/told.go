package plan

import (
	"cmp"
	"slices"
	"time"

	"github.com/singletonjob/operator/api/v1alpha1"
	"github.com/singletonjob/operator/internal/lease"
)

// Agents write each tenure into the Lease's history, and every renewal stores that again. So what a status tells of as well is taken
// out of it, once that status is stored, and read back from there by what looks further back than the present tenure.

// toldBy are the tenures whose beginning and end a status tells, oldest first.
func toldBy(s *v1alpha1.SingletonJobStatus) (told []lease.PastTenure) {
	for i := len(s.History) - 1; i > 0; i-- {
		began, ended := &s.History[i], &s.History[i-1]
		if ended.FromToken != began.Token { // what came between is not told here
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

// withTold are the Lease's tenures, oldest first, after those before them that a status tells of: as many in all as a Lease keeps.
func withTold(past []lease.PastTenure, s *v1alpha1.SingletonJobStatus, upTo int64) []lease.PastTenure {
	all := slices.DeleteFunc(toldBy(s), func(t lease.PastTenure) bool {
		return t.Token > upTo || len(past) > 0 && t.Token >= past[0].Token
	})
	all = append(all, past...)
	return all[max(0, len(all)-lease.HistoryLimit):]
}

// untold is what must stay of a Lease's history, newest first: what a status does not tell, and the newest tenure that it tells, because
// the next one follows on that. before is the token of the last tenure that is none of the job's.
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

// apart is by how much the clocks of two nodes may differ for the end of a tenure to count as told: no downtime is less than nothing, so
// that the end is read back as the next one's beginning. What is decided by it counts seconds.
const apart = time.Second

// isTold reports whether a tenure is read back as it is.
func isTold(told []lease.PastTenure, t *lease.PastTenure) bool {
	is := *t
	is.Reason = cmp.Or(is.Reason, lease.ReasonLeaseExpired)
	return slices.ContainsFunc(told, func(as lease.PastTenure) bool {
		off := is.Ended - as.Ended
		as.Ended = is.Ended
		return as == is && max(off, -off) <= apart.Milliseconds()
	})
}

// outlived reports whether a status tells of so many changes after a tenure that a Lease would have dropped it for them.
func outlived(s *v1alpha1.SingletonJobStatus, token int64) bool {
	const most = lease.HistoryLimit
	return len(s.History) >= most && s.History[most-1].Token > token
}
